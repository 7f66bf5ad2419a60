"""Left out of training are ERM and what the rule can look at: the choice is that of a search that leaves out all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.problems import task_of
from irmtv import InvariantBoostingClassifierCV, InvariantClassifierCV
from irmtv.datasets import make_control, make_simulation
from irmtv.models.networks.model import NetworkTrainer
from irmtv.models.search import search
from irmtv.selection import choose

COMMON = {"cv": 2, "random_state": 0}
FAMILIES = {
    "linear": lambda: InvariantClassifierCV(hidden=(), penalty_weights=[10.0, 1e3], l2=0.0, **COMMON),
    "network": lambda: InvariantClassifierCV(
        hidden=(4,), penalty_weights=[1.0, 100.0], max_steps=120, learning_rate=0.05, l2=1e-3, **COMMON
    ),
    "trees": lambda: InvariantBoostingClassifierCV(
        penalty_weights=[1.0, 10.0, 100.0], n_estimators=60, num_leaves=3, n_jobs=1, **COMMON
    ),
}
TASKS = {
    "spurious": lambda: make_simulation(1500, (0.999, 0.8, 0.6), 0.8, random_state=0, n_test=6),
    "label noise": lambda: make_control(1500, "label-noise", n_environments=3, random_state=0, n_test=6),
    "nothing": lambda: make_control(900, n_environments=3, random_state=1, n_test=6),
}
FOUND = {("spurious", "linear"): "invariant-found", ("spurious", "trees"): "invariant-found"}


def searched(estimator, task, **more):
    rows = task.train
    given = {"environment": rows.environment.numpy(), **more}
    return estimator.search(estimator.read_data(rows.x.double().numpy(), rows.y.numpy(), **given))


def everything(records, **options):
    return torch.ones(len(records), dtype=torch.bool)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", TASKS)
def test_the_choice_is_that_of_a_search_that_leaves_out_all(monkeypatch, kind, family):
    task = TASKS[kind]()
    some = searched(FAMILIES[family](), task)
    monkeypatch.setattr("irmtv.models.left_out.worth_leaving_out", everything)
    every = searched(FAMILIES[family](), task)
    assert (some.choice.index, some.choice.outcome) == (every.choice.index, every.choice.outcome)
    assert some.choice.message == every.choice.message
    assert every.records.left_out.isfinite().all() and every.records.left_out.shape[1] == 3
    known = some.records.left_out.isfinite().all(1)
    assert known[some.erm] and known[some.choice.index]
    assert torch.equal(known, some.records.left_out.isfinite().any(1))
    torch.testing.assert_close(some.records.left_out[known], every.records.left_out[known], rtol=1e-4, atol=1e-6)
    for path in some.paths:  # all steps of a path are trained at once
        steps = [i for i, c in enumerate(some.candidates) if some.paths[c.combination] is path]
        assert set(known[steps].tolist()) == {path.without is not None}
    if kind != "spurious":
        assert some.choice.outcome in ("erm-invariant", "erm-kept")
    assert kind != "nothing" or not known.all()
    assert FOUND.get((kind, family), some.choice.outcome) == some.choice.outcome


def test_other_rules_leave_out_all():
    found = search(task_of(n=120, environments=3), "irm-tv-l1", [{"penalty_weight": w} for w in (0.0, 1.0, 100.0)],
                   rule="leave-one-env-out", n_folds=2, steps=30, snapshot_every=5)  # fmt: skip
    assert found.records.left_out.isfinite().all()


@pytest.mark.parametrize("lost", [(), (0,), (1,)])
def test_a_model_that_diverges_where_it_is_left_out_has_an_infinite_risk_there_and_is_not_taken(monkeypatch, lost):
    """ERM is 0. Of three runs of each, one for every part, the last one diverges."""
    task = make_simulation(1500, (0.999, 0.8, 0.6), 0.8, random_state=0, n_test=6)
    fitted = NetworkTrainer._fitted

    def some_diverge(self, parts, objective, combinations, *settings):
        done = fitted(self, parts, objective, combinations, *settings)
        if parts is not self.split.left_out:
            return done
        weights = [c["penalty_weight"] for c in combinations]
        n = len(weights)
        gone = [2 * n + i for i, w in enumerate(weights) if (w > 0) + 0 in lost]
        return replace(done, diverged=dict.fromkeys(gone, 7))

    monkeypatch.setattr(NetworkTrainer, "_fitted", some_diverge)
    weights = [{"penalty_weight": w} for w in (0.0, 1e3)]
    found = search(task, "irm-tv-l1", weights, n_folds=2, steps=200, learning_rate=0.05, l2=1e-3)
    left_out = found.records.left_out
    assert not left_out[found.erm].isnan().any()
    for c in range(2):
        mine = left_out[[i for i, k in enumerate(found.candidates) if k.combination == c]]
        mine = mine[~mine.isnan().any(1)]
        assert len(mine) and mine.isinf().all() == (c in lost)
    if 1 in lost:
        assert found.choice.outcome == "none-found"
    else:
        assert found.choice.outcome == "invariant-found" and found.combination["penalty_weight"] == 1e3
    if 0 in lost:
        assert found.choice.figures["left_out_erm"] is None and "that of ERM infinite" in found.choice.message
    assert found.choice == choose("invariance", found.records)


def test_steps_that_were_not_reached_where_left_out_count_as_lost(monkeypatch):
    """The rule looks at a path as a whole; a step of which nothing is known there cannot be taken."""
    task = make_simulation(1500, (0.999, 0.8, 0.6), 0.8, random_state=0, n_test=6)
    weights = [{"penalty_weight": w} for w in (0.0, 1e3)]
    how = {"n_folds": 2, "steps": 200, "learning_rate": 0.05, "l2": 1e-3}
    leave_out = NetworkTrainer.leave_out

    def fewer(self, paths):
        leave_out(self, paths)
        for path in paths:
            path.without[np.array(path.steps) > 100] = torch.nan

    whole = search(task, "irm-tv-l1", weights, **how)
    monkeypatch.setattr(NetworkTrainer, "leave_out", fewer)
    found = search(task, "irm-tv-l1", weights, **how)
    assert whole.step > 100 >= found.step
    late = torch.tensor([c.step > 100 for c in found.candidates])
    assert found.records.left_out[late].isinf().all() and found.records.left_out[~late].isfinite().all()


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_taken_that_was_not_left_out(monkeypatch, family):
    """Where all environments seem to choose alike, nothing is left out before the rule asks about one candidate."""
    monkeypatch.setattr("irmtv.models.left_out.worth_leaving_out", lambda records, **o: ~everything(records))
    found = searched(FAMILIES[family](), TASKS["spurious"]())
    known = found.records.left_out.isfinite().all(1)
    assert known[found.erm] and known[found.choice.index]
    assert FOUND.get(("spurious", family), found.choice.outcome) == found.choice.outcome
