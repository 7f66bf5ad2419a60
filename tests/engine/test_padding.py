"""Data sets of several lengths in one tensor program: every run is what it is alone."""

from __future__ import annotations

import pytest
import torch

from irmtv import Runs, Task, train
from irmtv.core.types import Rows
from irmtv.datasets import make_simulation

WEIGHTS = [0.0, 10.0]
MEASURED = ("rows", "effective", "risk", "risk_cov", "slope", "slope_cov", "accuracy")


def _tasks(weighted: bool = False) -> list[Task]:
    """Three data sets of 80, 71 and 64 rows in two environments, with 30, 20 and 25 rows held out."""
    tasks = []
    for k, (n, held_out) in enumerate(((80, 30), (71, 20), (64, 25))):
        made = make_simulation(200, (0.9, 0.6), 0.8, random_state=k)
        order = torch.randperm(200, generator=torch.Generator().manual_seed(k))
        train_rows, measured = made.train.take(order[:n]), made.train.take(order[n : n + held_out])
        if weighted:
            train_rows = Rows(**{**vars(train_rows), "weight": torch.linspace(0.5, 2.0, n, dtype=torch.float64)})
        tasks.append(Task(train_rows, made.loss, held_out=measured))
    return tasks


@pytest.mark.parametrize("objective", ["irm-tv-l1", "vrex"])
@pytest.mark.parametrize("weighted", [False, True])
def test_runs_on_data_sets_of_several_lengths_are_what_they_are_alone(objective: str, weighted: bool) -> None:
    tasks = _tasks(weighted)
    how = {"hidden": (4,), "steps": 60, "snapshot_every": 20, "dtype": torch.float64}
    runs = Runs(seed=0, data=[d for d in range(3) for _ in WEIGHTS], penalty_weight=WEIGHTS * 3)
    together = train(tasks, objective, runs, **how)
    assert len(together.chunks) == 1
    assert [len(task.train) for task in together.tasks] == [80, 71, 64]  # as they were given
    for d, task in enumerate(tasks):
        alone = train(task, objective, Runs(seed=0, penalty_weight=WEIGHTS), **how)
        assert together.history is not None and alone.history is not None
        for name in MEASURED:
            mine = getattr(together.history, name)[:, 2 * d : 2 * d + 2]
            torch.testing.assert_close(mine, getattr(alone.history, name), rtol=1e-8, atol=1e-11, equal_nan=True)
        for name, value in alone.state()[0].parameters.items():
            torch.testing.assert_close(
                together.state()[0].parameters[name][2 * d : 2 * d + 2], value, rtol=1e-8, atol=1e-11
            )


def test_lengths_that_lie_far_apart_are_not_filled_up() -> None:
    tasks = [make_simulation(n, (0.9, 0.6), 0.8, random_state=0) for n in (40_000, 200)]
    fitted = train(tasks, "erm", Runs(seed=0, data=[0, 1]), hidden=(4,), steps=1)
    assert len(fitted.chunks) == 2


def test_runs_of_one_seed_have_their_batches_in_common() -> None:
    """And are what they are alone, where each draws its own."""
    task = make_simulation(200, (0.9, 0.6), 0.8, random_state=0)
    how = {"hidden": (4,), "steps": 40, "batch_size": 32, "dtype": torch.float64}
    for seeds in ([3, 3], [3, 4]):
        together = train(task, "irm-tv-l1", Runs(seed=seeds, penalty_weight=WEIGHTS), **how).state()[0].parameters
        for r, (seed, weight) in enumerate(zip(seeds, WEIGHTS, strict=True)):
            alone = train(task, "irm-tv-l1", Runs(seed=seed, penalty_weight=weight), **how).state()[0].parameters
            for name, value in alone.items():
                torch.testing.assert_close(together[name][[r]], value, rtol=1e-8, atol=1e-11)
