"""Which features' relation changes: slopes against least squares, names against known answers, levels of the tests."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from app.diagnose.worlds import regression, rows_of, task_rows
from irmtv.app.diagnose import features
from irmtv.app.diagnose.features import feature_changes, joint_test, own_slopes
from irmtv.datasets import make_control, make_selection_bias, make_simulation
from irmtv.selection.equality import holm


def test_slopes_and_errors_are_those_of_least_squares_in_each_environment(monkeypatch):
    monkeypatch.setattr(features, "RIDGE", 1e-9)
    rows = regression(n=120, slopes=(1.0, -1.0), noise=(0.5, 2.0))
    slope, variance = own_slopes(rows)
    for e in (0, 1):
        here = rows.environment == e
        x = np.column_stack([np.ones(here.sum()), rows.x[here]])
        expected, *_ = np.linalg.lstsq(x, rows.y[here], rcond=None)
        assert slope[:, e] == pytest.approx(expected, abs=1e-6)
        bread = np.linalg.inv(x.T @ x)
        residual = rows.y[here] - x @ expected
        leverage = [row @ bread @ row for row in x]
        meat = sum((r / (1 - h)) ** 2 * np.outer(row, row) for r, h, row in zip(residual, leverage, x, strict=True))
        assert variance[:, e] == pytest.approx(np.diag(bread @ meat @ bread), rel=1e-5)


def test_the_error_holds_where_the_noise_is_uneven():
    """Slopes of many draws vary as their errors say, with noise that grows with x."""
    slopes, variances = [], []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(300, 1))
        y = x[:, 0] + np.abs(x[:, 0]) * rng.normal(size=300)
        rows = rows_of(x, y, environment=np.repeat(["a", "b"], 150))
        slope, variance = own_slopes(rows)
        slopes.append(slope[1, 0] - slope[1, 1])
        variances.append(variance[1].sum())
    assert np.std(slopes) == pytest.approx(np.sqrt(np.mean(variances)), rel=0.2)


def test_the_feature_that_changes_is_named_and_no_other():
    found = feature_changes(regression(n=1000, slopes=(2.0, 0.5), shift=(0.0, 1.0), level=(0.0, 2.0)), 0)
    assert [f.name for f in found.changing] == ["x0"]
    low, high = found.features[0].slopes[1], found.features[0].slopes[0]
    assert high > low
    assert "x0 (slope" in found.sentence and " in b, " in found.sentence
    assert found.level_p < 1e-6 and found.joint_p == 1 / (1 + features.PERMUTATIONS)


def test_selection_bias_names_the_biased_feature_which_weighs_less_under_invariance():
    task = make_selection_bias((1500, 1500), (1.8, -1.8), random_state=0)
    found = feature_changes(task_rows(task), 0)
    biased = f"x{task.train.x.shape[1] - 1}"
    assert found.features[0].name == biased
    assert found.features[0].changes and abs(found.features[0].invariant) < abs(found.features[0].erm) + 0.05


def test_the_simulation_spurious_columns_share_the_change_and_fade():
    found = feature_changes(task_rows(make_simulation(1000, p_s=(0.999, 0.7), random_state=0)), 0)
    assert found.joint_p < 0.05 and found.changes
    assert {int(f.name[1:]) for f in found.fading[:5]} <= set(range(5, 15))
    spurious = [f for f in found.features if int(f.name[1:]) >= 5]
    assert sum(abs(f.invariant) for f in spurious) < 0.7 * sum(abs(f.erm) for f in spurious)
    if not found.changing:
        assert "share the change" in found.sentence


def test_several_classes():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 2))
    e = np.repeat([0, 1], 1500)
    score = np.column_stack([x[:, 0] * np.where(e, 2.0, -1.0), x[:, 1], np.zeros(3000)])
    y = (score + rng.gumbel(size=score.shape)).argmax(1)
    found = feature_changes(rows_of(x, y, "multiclass", environment=np.array(["a", "b"])[e]), 0)
    assert [f.name for f in found.changing] == ["x0"]
    assert sum(abs(f.erm) for f in found.features) == pytest.approx(1)


def test_levels_of_the_tests_where_nothing_changes():
    """Though the environments differ in X, in the level of y, and in the noise."""
    n, single, joint, names = 150, 0, 0, 0
    for seed in range(n):
        rows = regression(n=200, shift=(0.0, 0.5), level=(0.0, 1.0), d=4, seed=seed)
        slope, variance = (features.torch.as_tensor(v) for v in own_slopes(rows))
        p = features.equal_means(slope, variance).numpy()[1:]
        single += int((p < 0.05).sum())
        names += bool((holm(p) < 0.05).any())
        joint += joint_test(rows, seed, permutations=39) <= 0.05
    assert single <= binom.ppf(0.999, 4 * n, 0.06)
    assert names <= binom.ppf(0.999, n, 0.06)
    assert joint <= binom.ppf(0.999, n, 0.06)


def test_a_small_noisy_environment_does_not_change_relations():
    n = 120
    noisy = (regression(n=800, noise=(0.5, 1.5), seed=s).take(np.r_[0:400, 400:480]) for s in range(n))
    rejected = sum(joint_test(rows, s, permutations=39) <= 0.05 for s, rows in enumerate(noisy))
    assert rejected <= binom.ppf(0.999, n, 0.06)


def test_logistic_level_of_the_test_and_a_sentence_for_nothing():
    n, single = 100, 0
    for seed in range(n):
        rows = task_rows(make_control(300, "nothing", n_informative=2, n_noise=2, random_state=seed))
        slope, variance = (features.torch.as_tensor(v) for v in own_slopes(rows))
        single += int((features.equal_means(slope, variance).numpy()[1:] < 0.05).sum())
    assert single <= binom.ppf(0.999, 4 * n, 0.07)
    found = feature_changes(rows, 0)
    assert "No feature's relation" in found.sentence and not found.changes


def test_categories_whose_few_rows_are_of_one_class_are_not_named():
    found = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        x = np.column_stack([rng.normal(size=1500), rng.random((1500, 30)) < 0.1])
        y = rng.random(1500) < 0.05
        rows = rows_of(x, y, "binary", environment=np.repeat(["a", "b"], [1200, 300]))
        slope, variance = (features.torch.as_tensor(v) for v in own_slopes(rows))
        found.append(features.equal_means(slope, variance).numpy()[1:])
    assert np.nanmean(np.array(found) < 0.05) < 0.05


def test_columns_with_few_ones_in_an_environment_say_nothing_there():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=400), np.zeros(400)])
    x[:5, 1] = 1  # five rows of a category, all in the first environment
    rows = rows_of(x, x[:, 0] + 5 * x[:, 1] + rng.normal(size=400), environment=np.repeat(["a", "b"], 200))
    found = {f.name: f for f in feature_changes(rows, 0).features}
    assert np.isnan(found["x1"].slopes).all() and np.isnan(found["x1"].p) and not found["x1"].changes
    summary = feature_changes(rows, 0).summary()
    assert next(f for f in summary["features"] if f["name"] == "x1")["p"] is None


def test_holm_by_hand():
    assert holm([0.01, np.nan, 0.02, 0.5]).tolist() == pytest.approx([0.03, np.nan, 0.04, 0.5], nan_ok=True)
