"""Runs that differ only after the warm-up are trained as one until then, and nobody can tell."""

from __future__ import annotations

import pytest
import torch

from engine.problems import close, parameters, steps_taken, task_of
from irmtv import OBJECTIVES, Runs, train
from irmtv.engine import TrainingInterrupted
from irmtv.engine.snapshots import History

WEIGHTS = [0.0, 10.0, 1e3]
SHARING = [
    ("irm-tv-l1", {}),
    ("irm-tv-l2", {"penalty_weight": "learned", "weight_learning_rate": [0.01, 0.1, 0.5]}),
    ("vrex", {"hidden": (4,)}),
    ("irm-tv-l1+vrex", {}),
    ("irm-tv-l1", {"expand": {"n": 5, "reach": 0.5}}),
    ("irm-tv-l1", {"penalty_schedule": "linear"}),
    ("minimax-tv-l1", {"environment_learning_rate": 1e-2}),
    ("zin", {"n_environments": 3, "environment_learning_rate": 1e-2, "schedule": "alternating"}),
    ("eiil", {}),
    ("eiil", {"variant": "joint", "environment_learning_rate": 1e-2}),
    ("tiva", {"environment_learning_rate": 1e-2}),
    ("ood-tv-irm-l1", {}),
]
NOT_SHARING = [
    ("irmv1", {}),  # its penalty acts in the warm-up
    ("minimax-tv-l1+vrex", {}),  # rho weighs the penalties by their lambdas
    ("irm-tv-l1", {"measure": "learned"}),
    ("sparse-irm", {}),
    ("irm-tv-l1", {"batch_size": 20}),
]
SHARED = {"dtype": torch.float64, "steps": 30, "warmup": 12, "l2": 1e-2, "snapshot_every": 5, "keep_states": True}


def runs_and_settings(settings):
    lists = {k: v for k, v in settings.items() if isinstance(v, list)}
    columns = {"penalty_weight": WEIGHTS} if "penalty_weight" not in settings else {}
    columns |= lists
    rest = {k: v for k, v in settings.items() if k not in lists}
    rows = [
        {"seed": s, "data": d, **{k: v[i] for k, v in columns.items()}} for s, d in ((0, 0), (7, 1)) for i in range(3)
    ]
    return rows, {**SHARED, **rest}


@pytest.fixture
def seen(monkeypatch):
    """(step, runs that train) of every step."""
    return steps_taken(monkeypatch)


@pytest.mark.parametrize(("name", "settings"), SHARING + NOT_SHARING, ids=str)
def test_each_run_is_what_it_is_alone(name, settings, seen):
    tasks = [task_of(seed=i, held_out=30) for i in range(2)]
    rows, rest = runs_and_settings(settings)
    columns = {k: [r[k] for r in rows] for k in rows[0]}
    together = train(tasks, name, Runs(**columns), **rest)
    sharing = (name, settings) in SHARING
    assert {n for step, n in seen if step < 12} == ({2} if sharing else {6})
    assert {n for step, n in seen if step >= 12} == {6}
    assert [step for step, _ in seen] == list(range(30))
    for r, row in enumerate(rows):
        alone = train(tasks, name, Runs(**row), **rest)
        assert close(parameters(together)[r], parameters(alone)[0])
        assert together.history.steps == alone.history.steps
        for field in ("rows", "risk", "risk_cov", "slope", "accuracy"):
            assert torch.allclose(getattr(together.history, field)[:, r], getattr(alone.history, field)[:, 0], 1e-7)
        for step in (0, 5, 15):
            assert close(parameters(together.at(step))[r], parameters(alone.at(step))[0])
    assert isinstance(together.history, History)


def test_warm_ups_of_their_own_are_shared_as_far_as_they_go_together(seen):
    task = task_of()
    rows = [{"seed": 0, "warmup": w, "penalty_weight": p} for w in (6, 12) for p in (10.0, 100.0)]
    settings = {"dtype": torch.float64, "steps": 20}
    together = train(task, "irm-tv-l1", Runs(**{k: [r[k] for r in rows] for k in rows[0]}), **settings)
    assert {n for step, n in seen if step < 6} == {2} and {n for step, n in seen if step >= 6} == {4}
    for r, row in enumerate(rows):
        assert close(parameters(together)[r], parameters(train(task, "irm-tv-l1", Runs(**row), **settings))[0])


def test_the_best_state_of_the_warm_up_is_kept():
    task = task_of(held_out=40)
    settings = {**SHARED, "select": "iid"}
    together = train(task, "irm-tv-l1", Runs(penalty_weight=WEIGHTS), **settings)
    for r, weight in enumerate(WEIGHTS):
        alone = train(task, "irm-tv-l1", Runs(penalty_weight=weight), **settings)
        assert together.steps[r] == alone.steps[0]
        assert close(parameters(together, "selected")[r], parameters(alone, "selected")[0])


def test_a_leader_that_diverges_takes_its_own_with_it():
    task = task_of()
    rows = [
        {"seed": s, "learning_rate": rate, "penalty_weight": w} for s, rate in ((0, 5e-3), (1, 1e200)) for w in WEIGHTS
    ]
    with pytest.warns(UserWarning, match="3 of 6 runs diverged"):
        fitted = train(
            task, "irm-tv-l1", Runs(**{k: [r[k] for r in rows] for k in rows[0]}), steps=20, dtype=torch.float64
        )
    assert sorted(fitted.diverged) == [3, 4, 5]
    alone = train(task, "irm-tv-l1", Runs(**rows[1]), steps=20, dtype=torch.float64)
    assert close(parameters(fitted)[1], parameters(alone)[0])


def test_an_interrupt_in_the_shared_warm_up_leaves_all_runs_as_far():
    def stop(progress):
        if progress.step >= 8:
            raise KeyboardInterrupt

    with pytest.raises(TrainingInterrupted) as caught:
        train(task_of(), "irm-tv-l1", Runs(penalty_weight=WEIGHTS), steps=30, warmup=12, progress=stop)
    partial = caught.value.partial
    assert partial.steps.tolist() == [8, 8, 8]
    assert close(parameters(partial)[0], parameters(partial)[2])


def test_the_registry_is_covered():
    """A new objective must say here whether its warm-up is shared."""
    known = {name.split("+")[0] for name, _ in SHARING + NOT_SHARING}
    alike = {"mm-rex", "minimax-tv-l2", "ood-tv-irm-l2", "ood-tv-minimax-l1", "ood-tv-minimax-l2"}
    without = {"erm", "groupdro", "lff", "hrm", "eills"}
    assert set(OBJECTIVES) == known | alike | without
