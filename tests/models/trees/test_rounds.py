"""The loop and its step rule."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import lightgbm
import numpy as np
import pytest
import torch

from irmtv.core.losses import as_loss
from irmtv.core.types import Rows, Task
from irmtv.models.trees import measured, rounds
from irmtv.models.trees.gradients import Pull
from irmtv.models.trees.measured import snapshots
from irmtv.models.trees.rounds import Binned, Trees, best_constant, boost
from irmtv.models.trees.trust_region import After, LineSearch, combined, radius_of
from irmtv.objectives import OBJECTIVES
from models.trees.tasks import N_OUTPUTS, small_task

FEW = Trees(n_estimators=12, num_leaves=5, min_child_samples=5, n_jobs=1)
SOME = Fraction(3, 10)


def boosted(task, name, weights, warmup=0, reserve=Fraction(0), trees=FEW, **settings):
    objective = OBJECTIVES[name]
    binned = Binned(task, [], trees, reserve)
    how = objective.resolve(settings)
    return binned, boost(binned, objective, how, trees, weights=weights, warmup=warmup, every=1)


@pytest.mark.parametrize("loss", N_OUTPUTS)
@pytest.mark.parametrize("weighted", [False, True])
def test_plain_boosting_is_lightgbm(loss, weighted):
    """With LightGBM's own objective, from the same start; for several classes it scales the curvature by C/(C-1)."""
    task = small_task(loss, weighted=weighted)
    _, ours = boosted(task, "erm", [])
    rows = task.train
    weight = None if rows.weight is None else rows.weight.numpy()
    start = best_constant(task.loss, rows.y, rows.weight, task.n_outputs).numpy()
    given = np.broadcast_to(start, (len(rows), task.n_outputs))
    data = lightgbm.Dataset(
        rows.x.numpy(), rows.y.numpy(), weight=weight, init_score=given if task.n_outputs > 1 else given[:, 0].copy()
    )
    named = {"binary": "binary", "squared": "regression", "multiclass": "multiclass"}[loss]
    parameters = {**FEW.parameters(task.n_outputs), "objective": named, "boost_from_average": False}
    if loss == "multiclass":
        parameters["learning_rate"] = FEW.learning_rate * 1.5
    theirs = lightgbm.train(parameters, data, FEW.n_estimators).predict(rows.x.numpy(), raw_score=True)
    tolerance = 1e-6 if loss != "multiclass" else 1e-5
    np.testing.assert_allclose(ours.booster.predict(rows.x.numpy(), raw_score=True), theirs, atol=tolerance, rtol=1e-5)


@pytest.mark.parametrize("reserve", [Fraction(0), SOME])
@pytest.mark.parametrize("loss", N_OUTPUTS)
def test_scores_that_are_kept_are_those_of_the_booster(loss, reserve):
    """Also where trees were shortened, and for rows that were not trained on."""
    task = small_task(loss, held_out=True)
    binned, found = boosted(task, "irm-tv-l1+vrex", [1e6, 1e6], warmup=1, reserve=reserve)
    assert min(found.lengths) < 1 or loss == "squared"
    for watched in found.watched[-3:]:
        raw = found.booster.predict(binned.watched.x.numpy(), raw_score=True, num_iteration=watched.trees)
        np.testing.assert_allclose(watched.scores.numpy(), found.base + raw, atol=1e-12)


@pytest.mark.parametrize("loss", N_OUTPUTS)
@pytest.mark.parametrize(
    "name", ["vrex", "mm-rex", "irm-tv-l1", "irm-tv-l2", "irmv1", "irm-tv-l1+vrex", "minimax-tv-l1"]
)
def test_no_weight_is_too_large(name, loss):
    """From 1e-2 to 1e6: finite, and on all training rows never worse than the constant that boosting began with."""
    task = small_task(loss)
    begin = best_constant(task.loss, task.train.y, None, task.n_outputs)
    shape = (len(task.train),) if task.n_outputs == 1 else (len(task.train), task.n_outputs)
    constant = float(task.loss.value(begin.expand(shape), task.train.y).mean())
    trees = replace(FEW, n_estimators=60)
    for weight in (1e-2, 1.0, 1e2, 1e4, 1e6):
        weights = [weight] * len(OBJECTIVES[name].penalties)
        _, found = boosted(task, name, weights, warmup=2, reserve=SOME, trees=trees)
        assert all(0 <= length <= 1 for length in found.lengths)
        for upto in (5, 20, 60):
            raw = found.booster.predict(task.train.x.numpy(), raw_score=True, num_iteration=upto)
            scores = torch.as_tensor(found.base + raw.reshape(shape))
            assert float(task.loss.value(scores, task.train.y).mean()) <= constant + 1e-9


def test_few_rows_do_not_make_a_penalty_run_away():
    """Six hundred rounds at a weight of a million: the objective alone would let the risk double."""
    rng = np.random.default_rng(2)
    environment, y = np.repeat([0, 1], 200), rng.integers(0, 2, 400)
    follows = np.where(rng.random(400) < np.where(environment == 0, 0.95, 0.65), y, 1 - y)
    x = np.c_[y + rng.normal(size=400), 2 * follows + 0.5 * rng.normal(size=400)]
    rows = Rows(
        torch.as_tensor(x), torch.as_tensor(y).double(), environment=torch.as_tensor(environment), names=("a", "b")
    )
    trees = Trees(n_estimators=600, n_jobs=1)
    _, found = boosted(Task(rows, as_loss("binary")), "irm-tv-l1", [1e6], warmup=1, reserve=SOME, trees=trees)
    scores = torch.as_tensor(found.base + found.booster.predict(x, raw_score=True))
    assert float(as_loss("binary").value(scores, rows.y).mean()) <= math.log(2)


@pytest.mark.parametrize("loss", N_OUTPUTS)
def test_rounds_are_measured_together_as_each_alone(loss, monkeypatch):
    task = small_task(loss, held_out=True, weighted=True)
    binned, found = boosted(task, "vrex", [10.0], reserve=SOME)
    together = snapshots(binned.watched, task.loss, found.watched, "held-out")
    monkeypatch.setattr(measured, "AT_ONCE", 1)
    alone = snapshots(binned.watched, task.loss, found.watched, "held-out")
    assert [s.step for s in together] == [s.step for s in alone] == list(range(1, 13))
    for a, b in zip(together, alone, strict=True):
        for name in ("rows", "effective", "risk", "risk_cov", "slope", "slope_cov", "accuracy"):
            torch.testing.assert_close(getattr(a, name), getattr(b, name), equal_nan=True)


@pytest.mark.parametrize("name", ["vrex", "irm-tv-l1", "minimax-tv-l1"])
@pytest.mark.parametrize("loss", N_OUTPUTS)
def test_lengths_tried_together_are_those_tried_in_turn(name, loss, monkeypatch):
    task = small_task(loss)
    lengths = []
    for most in (1, 10**6):
        monkeypatch.setattr(rounds, "AT_ONCE", most)
        lengths.append(boosted(task, name, [1e6], warmup=2, reserve=SOME)[1].lengths)
    assert lengths[0] == lengths[1]


def test_a_penalty_makes_risks_equal():
    task = small_task("binary", n=2000)
    trees = Trees(n_estimators=60, num_leaves=4, n_jobs=1)
    gaps = []
    for name, weights in (("erm", []), ("vrex", [100.0])):
        _, found = boosted(task, name, weights, reserve=SOME if weights else Fraction(0), trees=trees)
        rows = task.train
        value = task.loss.value(
            torch.as_tensor(found.base + found.booster.predict(rows.x.numpy(), raw_score=True)), rows.y
        )
        gaps.append(abs(float(value[rows.environment == 0].mean() - value[rows.environment == 1].mean())))
    assert gaps[1] < gaps[0] / 3


def test_rows_set_aside_grow_no_tree():
    task = small_task("binary")
    binned = Binned(task, [], FEW, SOME)
    assert binned.aside is not None
    assert len(binned.aside) == 72 and len(binned.grown_on) == 168
    assert torch.bincount(binned.aside.environment).tolist() == [36, 36]
    assert binned.train.construct().num_data() == 168


def test_a_warm_up_is_plain_boosting():
    task = small_task("binary", held_out=True)
    _, plain = boosted(task, "erm", [])
    _, found = boosted(task, "vrex", [50.0], warmup=5)
    for k in range(5):
        torch.testing.assert_close(plain.watched[k].scores, found.watched[k].scores, rtol=0, atol=0)
    assert not torch.allclose(plain.watched[6].scores, found.watched[6].scores)


def test_nothing_to_split_is_a_constant():
    task = small_task("binary", n=20)
    trees = Trees(n_estimators=5, min_child_samples=50, n_jobs=1)
    _, found = boosted(task, "vrex", [1.0], trees=trees)
    np.testing.assert_allclose(found.watched[-1].scores.numpy(), found.base[0])


def test_environments_are_found_in_time():
    """Its two halves differ in what the second column says."""
    task = small_task("binary", n=2000)
    trees = Trees(n_estimators=30, num_leaves=4, n_jobs=1)
    _, found = boosted(
        task, "minimax-tv-l1", [100.0], warmup=10, reserve=SOME, trees=trees, environment_learning_rate=1e-2
    )
    q = found.rho.membership(torch.tensor([[0.1], [0.9]], dtype=torch.float64))
    assert abs(float(q[0, 0] - q[1, 0])) > 0.8


def test_the_best_constant():
    y, w = torch.tensor([0.0, 1.0, 1.0]), torch.tensor([2.0, 1.0, 1.0])
    assert float(best_constant(as_loss("binary"), y, w, 1)) == pytest.approx(0)
    assert float(best_constant(as_loss("binary"), y, None, 1)) == pytest.approx(math.log(2))
    assert float(best_constant(as_loss("squared"), y, w, 1)) == pytest.approx(0.5)
    p = torch.softmax(best_constant(as_loss("multiclass", 3), torch.tensor([0, 1, 1, 2]), None, 3), 0)
    np.testing.assert_allclose(p.numpy(), [0.25, 0.5, 0.25])


# ---- the step rule ----------------------------------------------------------------------------------------------


def pull_of(risk, penalty):
    risk, penalty = (None if v is None else torch.tensor(v, dtype=torch.float64) for v in (risk, penalty))
    return Pull(1.0, 1.0, risk, torch.ones_like(risk), penalty, None)


def test_a_small_penalty_is_added_as_it_is():
    found = combined(pull_of([3.0, 4.0], [1.0, 0.0]))
    np.testing.assert_allclose(found.gradient, [4.0, 4.0])
    np.testing.assert_allclose(found.curvature, 1.2)  # 1 + |penalty| / |risk|
    assert found.share == 1


def test_a_large_penalty_is_cut_to_so_many_times_the_risk():
    assert combined(pull_of([3.0, 4.0], [0.0, 1e6]), radius=10).gradient[1] == 4 + 10 * 5
    found = combined(pull_of([3.0, 4.0], [0.0, 1e6]), radius=3)
    np.testing.assert_allclose(found.gradient, [3.0, 4.0 + 15.0])
    np.testing.assert_allclose(found.curvature, 4.0)
    assert found.share == pytest.approx(15 / 1e6)


def test_without_a_penalty_nothing_changes():
    for penalty in (None, [0.0, 0.0]):
        found = combined(pull_of([3.0, 4.0], penalty))
        np.testing.assert_allclose(found.gradient, [3.0, 4.0])
        np.testing.assert_allclose(found.curvature, 1.0)


def test_a_larger_weight_may_pull_harder():
    assert [radius_of([w]) for w in (0.0, 1.0, 100.0, 400.0, 1e4, 1e6)] == [3, 3, 3, 6, 10, 10]
    assert radius_of([1.0, 400.0]) == 6 and radius_of([]) == 3


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_steps_are_halved_until_the_objective_is_no_higher_than_of_late(at_once):
    search = LineSearch(memory=2)

    def length(now, function):
        return search.length(After(*now, 0), 0.5, lambda lengths: [After(*function(a), 0) for a in lengths], at_once)

    assert length((1.0, 4.0), lambda a: (1.0, 4.0)) == 1  # 3 is not above 3
    assert length((1.0, 0.0), lambda a: (1.0, 8 * a)) == 0.5  # 1 + 4 a <= 3, two rounds ago
    assert length((1.0, 0.0), lambda a: (1.0, 8 * a)) == 2**-8  # 3 is forgotten: nothing is low enough
    assert length((1.0, 0.0), lambda a: (math.nan, 0.0)) == 0
    assert length((1.0, 0.0), lambda a: (1.0, 0.0) if a <= 1 / 16 else (math.nan, 0.0)) == 1 / 16


@pytest.mark.parametrize("at_once", [1, 100])
def test_no_step_brings_the_risk_of_all_rows_above_that_of_the_constant(at_once):
    search = LineSearch(ceiling=1.0)

    def length(now, overall):
        return search.length(After(0, 0, now), 1.0, lambda lengths: [After(0, 0, overall(a)) for a in lengths], at_once)

    assert length(0.9, lambda a: 0.9 + a) == 2**-4  # the first that is not above 1
    assert length(0.9, lambda a: 1.1) == 0
    assert length(1.2, lambda a: 1.1) == 1  # above it already: down it may go
    assert length(0.9, lambda a: math.nan) == 0
