"""Which model a diagnosis rests on: each kind on rows it has not seen, the choice, and that answers stay right."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

from app.diagnose.worlds import regression, rows_of, task_rows
from irmtv.app.diagnose import diagnose, diagnose_table, erm_model, losses
from irmtv.app.diagnose.erm_model import fit_erm, simplest
from irmtv.app.diagnose.features import (
    TREES_PENALTY_WEIGHT,
    equal_means,
    feature_changes,
    joint_test,
    own_slopes,
    torch,
)
from irmtv.app.diagnose.informative import given_informative
from irmtv.app.diagnose.losses import loss_by_environment
from irmtv.app.pages.diagnosis import diagnosis_content
from irmtv.datasets import make_simulation
from irmtv.html.page import page
from irmtv.models.erm import NetworkErm, TreeErm, for_every_class
from irmtv.models.importances import output_shares
from irmtv.models.trees.library import lightgbm

pytest.importorskip("lightgbm")
TASKS = ("binary", "multiclass", "regression")
OTHERS = ("mlp", "trees")


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(TreeErm, "ROUNDS", 40)
    monkeypatch.setattr(NetworkErm, "STEPS", 200)


def curved(n=600, task="regression", seed=0, shift=0.0, d=4):
    """y given X is the same at both sites, and no line: a hinge, squared. One site may have higher x0."""
    rng = np.random.default_rng(seed)
    later = np.arange(n) % 2 == 1
    x = rng.normal(size=(n, d))
    x[:, 0] += shift * later
    score = np.maximum(x[:, 0], 0) ** 2 + np.sign(x[:, 1])
    if task == "regression":
        y = score + rng.normal(size=n)
    elif task == "binary":
        y = rng.random(n) < 1 / (1 + np.exp(-1.5 * (score - score.mean())))
    else:
        scores = np.column_stack([score, x[:, 1], np.ones(n)])
        y = (scores + rng.gumbel(size=scores.shape)).argmax(1)
    return rows_of(x, y, task, environment=np.where(later, "b", "a"))


def parity(n=1500, fade=1.0, seed=0):
    """The sign of a product of two features, which no line sees; it matters less in b by the factor `fade`."""
    rng = np.random.default_rng(seed)
    later = np.arange(n) % 2 == 1
    x = rng.uniform(-1, 1, size=(n, 4))
    y = np.where(later, fade, 1.0) * np.sign(x[:, 0] * x[:, 1]) + 0.5 * rng.normal(size=n)
    return rows_of(x, y, environment=np.where(later, "b", "a"))


@pytest.mark.parametrize("kind", OTHERS)
def test_outputs_have_nothing_to_do_with_the_targets_of_their_own_fold(kind, quick):
    """Neither the fit, nor its size, nor when it stops."""
    rows = curved(300)
    before = fit_erm(rows, 3, kind)
    for k in (0, 4):
        held = before.fold == k
        y = rows.y.copy()
        y[held] = 5 * np.random.default_rng(k).normal(size=held.sum())
        after = fit_erm(replace(rows, y=y), 3, kind)
        assert after.outputs[held] == pytest.approx(before.outputs[held], abs=1e-5)
        assert np.abs(after.outputs[~held] - before.outputs[~held]).mean() > 0.1


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", OTHERS)
def test_every_kind_sees_a_curve_that_a_line_does_not(kind, task, quick):
    rows = curved(900, task)
    linear, other = fit_erm(rows, 0), fit_erm(rows, 0, kind)
    assert other.kind == other.asked == kind and linear.kind == "linear"
    assert other.outputs.shape == linear.outputs.shape
    assert other.loss.mean() < 0.97 * linear.loss.mean()
    f, y = other.outputs, rows.y
    if task == "regression":
        assert other.loss == pytest.approx((f - y) ** 2) and other.slope == pytest.approx(2 * (f - y) * f)
    elif task == "binary":
        assert other.loss == pytest.approx(np.log1p(np.exp(f)) - y * f)
    else:
        assert other.loss == pytest.approx(np.log(np.exp(f).sum(1)) - f[np.arange(len(f)), y])


def test_leaves_and_rounds_are_chosen(monkeypatch):
    monkeypatch.setattr(TreeErm, "ROUNDS", 60)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 3))
    nothing = rows_of(x, rng.normal(size=600), environment=np.tile(["a", "b"], 300))
    assert fit_erm(nothing, 0, "trees").trees[1] < 20 < fit_erm(curved(600), 0, "trees").trees[1]
    signs = rng.uniform(-1, 1, (1000, 3))
    wide = rows_of(signs, np.sign(signs).prod(1) + 0.1 * rng.normal(size=1000), environment=["a", "b"] * 500)
    assert fit_erm(wide, 0, "trees").trees[0] == max(TreeErm.LEAVES)


def test_auto_takes_the_lowest_held_out_risk(quick):
    found = fit_erm(parity(), 0, "auto")
    assert list(found.risks) == ["linear", "mlp", "trees"] and found.asked == "auto"
    alone = {kind: fit_erm(parity(), 0, kind).loss.mean() for kind in found.risks}
    assert dict(found.risks) == pytest.approx(alone)
    assert found.kind == min(alone, key=alone.get) == "trees"
    assert found.loss.mean() == alone["trees"] < 0.6 * alone["linear"]


def test_auto_keeps_a_line_where_there_is_one_or_it_is_as_good(quick, monkeypatch):
    found = fit_erm(regression(n=600), 0, "auto")
    assert found.kind == "linear" and found.risks["linear"] < min(found.risks["mlp"], found.risks["trees"])
    assert found.outputs == pytest.approx(fit_erm(regression(n=600), 0).outputs)
    monkeypatch.setattr(erm_model, "ALIKE", 0.1)  # a line has less than ten times the lowest risk
    kept = fit_erm(parity(400), 0, "auto")
    assert kept.kind == "linear" and min(kept.risks.values()) < 0.9 * kept.risks["linear"]


@pytest.mark.parametrize(
    ("risks", "kept"),
    [
        ((1.0, 0.995, 0.991), "linear"),
        ((1.0, 0.9, 0.892), "mlp"),
        ((1.0, 0.9, 0.88), "trees"),
        ((1.0, 1.2, 0.98), "trees"),
        ((float("nan"), 1.2, 1.3), "mlp"),
    ],
)
def test_the_simplest_within_one_per_cent(risks, kept):
    assert simplest(dict(zip(("linear", "mlp", "trees"), risks, strict=True))) == kept


def test_without_lightgbm(monkeypatch, quick):
    def missing():
        monkeypatch.setitem(__import__("sys").modules, "lightgbm", None)
        return lightgbm()

    monkeypatch.setattr(erm_model, "lightgbm", missing)
    rows = curved(300)
    found = fit_erm(rows, 0, "auto")
    assert list(found.risks) == ["linear", "mlp"]
    assert "pip install 'irmtv[boosting]'" in found.notes[0]
    x, y, e = rows.x, rows.y, rows.environment
    assert found.notes[0] in diagnose(x, y, e, task="regression").notes
    with pytest.raises(ImportError, match=r"pip install 'irmtv\[boosting\]'"):
        diagnose(x, y, e, model="trees")
    assert diagnose(x, y, e, model="linear", task="regression").model.notes == ()


def test_a_kind_that_does_not_exist():
    with pytest.raises(ValueError, match=r"model must be one of \['auto', 'linear', 'mlp', 'trees'\].*mean 'trees'"):
        diagnose_table(pd.DataFrame({"y": [1]}), "y", ["e"], model="tree")


@pytest.mark.parametrize("kind", OTHERS)
def test_a_curve_whose_parts_the_sites_see_is_no_change(kind):
    """Where a linear model takes it for one, as a part of the documentation says."""
    linear, other = [], []
    for seed in range(4):
        rows = curved(1000, seed=seed, shift=1.0)
        for model, found in ((fit_erm(rows, seed), linear), (fit_erm(rows, seed, kind), other)):
            beyond = None if model.kind == "linear" else model
            found.append((given_informative(rows, model, seed, 99).p, joint_test(rows, seed, 99, beyond)))
    assert (np.array(linear) <= 0.02).all()
    assert (np.array(other) > 0.05).mean() >= 0.75


@pytest.mark.parametrize("kind", OTHERS)
def test_levels_where_nothing_differs(kind, monkeypatch):
    """Sites drawn at random: all tests that look at the model's outputs. examples/diagnose_levels.py has more."""
    monkeypatch.setattr(losses, "DRAWS", 2)  # intervals are not looked at
    monkeypatch.setattr(TreeErm, "ROUNDS", 20)
    monkeypatch.setattr(NetworkErm, "STEPS", 100)
    n, found = 30, []
    for seed in range(n):
        rows = curved(200, seed=seed, d=3, task="binary" if seed % 2 else "regression")
        model = fit_erm(rows, seed, kind)
        p = equal_means(*(torch.as_tensor(v) for v in own_slopes(rows, model))).numpy()
        found.append(
            [
                loss_by_environment(rows, model, seed).p,
                p[0],
                joint_test(rows, seed, 39, model),
                given_informative(rows, model, seed, 99).p,
                *p[1:],
            ]
        )
    rejected = (np.array(found) <= 0.05).sum(0)
    assert rejected[:4].max() <= binom.ppf(0.999, n, 0.06)
    assert rejected[4:].sum() <= binom.ppf(0.999, 3 * n, 0.06)
    assert np.mean(found) == pytest.approx(0.5, abs=0.07)  # and p-values lie all over


@pytest.mark.parametrize("kind", OTHERS)
def test_the_feature_that_changes_is_named_and_no_other(kind, quick):
    rows = regression(n=1000, slopes=(2.0, 0.5), shift=(0.0, 0.5), level=(0.0, 2.0), d=4)
    found = feature_changes(rows, 0, fit_erm(rows, 0, kind))
    assert [f.name for f in found.changing] == ["x0"] and found.model == kind
    low, high = found.features[0].slopes[1], found.features[0].slopes[0]
    assert low < 0 < high  # less in b, more in a, than what serves both
    leaves = "slope of what the network leaves" if kind == "mlp" else "slope of what the trees leave"
    assert f"x0 ({leaves} " in found.sentence
    assert found.level_p < 1e-6 and found.summary()["model"] == kind
    for key in ("erm", "invariant"):
        weights = [getattr(f, key) for f in found.features]
        assert min(weights) >= 0 and sum(weights) == pytest.approx(1)


def test_slopes_of_what_is_left_are_those_of_least_squares_on_the_residuals():
    rows = regression(n=200, slopes=(2.0, 0.5))
    model = replace(fit_erm(rows, 0), kind="mlp", outputs=np.tanh(rows.x[:, 0]))
    slope, _ = own_slopes(rows, model)
    for e in (0, 1):
        here = rows.environment == e
        x = np.column_stack([np.ones(here.sum()), rows.x[here]])
        left = rows.y[here] - np.tanh(rows.x[here, 0])
        expected, *_ = np.linalg.lstsq(x, left, rcond=None)
        assert slope[:, e] == pytest.approx(expected, rel=0.05, abs=0.02)  # but for the little ridge


def test_what_matters_only_together_and_fades_is_seen_by_trees_alone():
    rows = parity(fade=0.2)
    trees = fit_erm(rows, 0, "trees")
    assert joint_test(rows, 0, 99) > 0.05 and not given_informative(rows, fit_erm(rows, 0), 0, 99).informative
    assert joint_test(rows, 0, 99, trees) <= 0.02 and given_informative(rows, trees, 0, 99).informative


@pytest.mark.parametrize("kind", OTHERS)
def test_a_shortcut_weighs_less_under_invariance(kind, quick):
    rng = np.random.default_rng(0)
    n = 1000
    later = np.arange(n) % 2 == 1
    y = rng.integers(0, 2, n)
    right = np.where(rng.random(n) < np.where(later, 0.7, 0.98), y, 1 - y)
    x = np.column_stack([y + rng.normal(size=n), 2 * right + 0.5 * rng.normal(size=n)])
    rows = rows_of(x, y, "binary", environment=np.where(later, "b", "a"))
    found = {f.name: f for f in feature_changes(rows, 0, fit_erm(rows, 0, kind)).features}
    assert found["x1"].changes and found["x1"].invariant < found["x1"].erm


def test_shares_of_a_linear_model_are_those_of_its_weights():
    rng = np.random.default_rng(0)
    rows = rows_of(rng.normal(size=(4000, 3)), rng.normal(size=4000), environment=["a", "b"] * 2000)
    weights = np.array([[3.0, -1.0, 0.0]])
    assert output_shares(lambda x: x @ weights.T, rows.x, 0) == pytest.approx([0.75, 0.25, 0.0], abs=0.02)
    classes = np.array([[3.0, 1.0, 5.0], [-3.0, 1.0, 5.0]])  # the others add the same to both classes
    assert output_shares(lambda x: x @ classes.T, rows.x, 0) == pytest.approx([1.0, 0.0, 0.0], abs=1e-9)


def test_classes_that_a_fold_does_not_have():
    rows = rows_of(np.random.default_rng(0).normal(size=(60, 2)), np.tile([0, 1, 2], 20), "multiclass")
    filled = for_every_class(np.array([2.0, -4.0]), [0, 2], rows.as_task())
    assert filled.tolist() == [[-1.0, -7.0, 1.0], [2.0, -7.0, -2.0]]
    three = np.arange(6.0).reshape(2, 3)
    assert for_every_class(three, [0, 1, 2], rows.as_task()).tolist() == three.tolist()


@pytest.mark.parametrize("kind", OTHERS)
def test_words_and_the_page_name_the_model(kind, quick):
    rows = curved(400, "binary")
    found = diagnose(rows.x, rows.y, rows.environment, model=kind)
    name = {"mlp": "a network", "trees": "boosted trees"}[kind]
    assert f"the plain model (ERM, {name})" in found.headline[0] and f"({name}; log loss)" in found.losses.sentence
    summary = json.loads(json.dumps(found.summary, allow_nan=False))
    assert summary["model"] == kind and summary["models"]["name"] == name and summary["models"]["asked"] == kind
    content = diagnosis_content(summary)
    assert ("model", name) in content["facts"]
    made = page(content)
    assert f"{name[0].upper()}{name[1:]}" in made and "what the model leaves" in made
    assert "linear model" not in made
    assert {"mlp": "what the network leaves", "trees": "what the trees leave"}[kind] in made
    if kind == "trees":
        assert f"({summary['models']['leaves']} leaves, " in made


def test_a_page_says_what_auto_chose_among_and_old_summaries_have_a_page():
    rows = regression(n=300)
    found = diagnose(rows.x, rows.y, rows.environment, model="linear")
    summary = found.summary
    auto = {**summary, "models": {**summary["models"], "asked": "auto", "risks": {"linear": 0.25, "mlp": 0.5}}}
    assert "chosen by the held-out loss over all rows (linear 0.25, mlp 0.5)" in page(diagnosis_content(auto))
    old = {k: v for k, v in summary.items() if k not in ("model", "models")}
    old["features"] = {k: v for k, v in summary["features"].items() if k != "model"}
    content = diagnosis_content(old)
    assert ("model", "a linear model") in content["facts"] and page(content) == page(diagnosis_content(summary))


def test_trees_that_are_invariant_read_less_of_what_misleads():
    task = make_simulation(3000, p_s=(0.999, 0.7), p_v=0.8, random_state=0)
    plain, invariant = TreeErm().shares(task_rows(task).as_task(), (4, 100), TREES_PENALTY_WEIGHT, 0)
    assert invariant[5:].sum() < 0.75 * plain[5:].sum()
