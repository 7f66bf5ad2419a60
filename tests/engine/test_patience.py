"""Training that ends once all runs are past their best."""

from __future__ import annotations

import pytest
import torch

from engine.problems import refuse
from irmtv import Runs, make_task, train
from irmtv.core.types import Task


def overfitting(seed: int = 0) -> Task:
    """More columns than rows tell about: held-out risk falls, then rises."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(160, 30, generator=generator, dtype=torch.float64)
    y = (x[:, 0] + torch.randn(160, generator=generator) > 0).double()
    halves = [make_task(x[part].numpy(), y[part].numpy()) for part in (slice(0, 60), slice(60, 160))]
    return Task(halves[0].train, halves[0].loss, held_out=halves[1].train)


SETTINGS = {"hidden": (8,), "steps": 400, "snapshot_every": 10, "learning_rate": 0.02, "dtype": torch.float64}


def test_the_steps_that_are_taken_are_those_of_a_training_without_patience() -> None:
    task, runs = overfitting(), Runs(seed=[0, 1])
    whole, short = train(task, "erm", runs, **SETTINGS), train(task, "erm", runs, patience=5, **SETTINGS)
    n = len(short.history.steps)
    assert n < len(whole.history.steps)
    assert short.history.steps == whole.history.steps[:n]
    torch.testing.assert_close(short.history.risk, whole.history.risk[:n], rtol=1e-12, atol=0)
    # the best of every run lies five snapshots back or more, of one of them exactly five
    best = short.history.risk[..., 0].argmin(0)
    assert int(best.max()) == n - 1 - 5
    torch.testing.assert_close(best, whole.history.risk[:, :, 0].argmin(0))
    assert short.steps.tolist() == [short.history.steps[-1]] * 2


def test_without_overfitting_all_steps_are_taken() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    task = make_task(x.numpy(), (2 * x[:, 0]).numpy())
    short = train(task, "erm", Runs(), patience=2, hidden=(), steps=100, snapshot_every=10, learning_rate=1e-3)
    assert short.history.steps[-1] == 100


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patience": 0, "snapshot_every": 5}, "patience must be a positive integer"),
        ({"patience": 3}, "snapshot_every"),
        ({"patience": 3, "snapshot_every": 5, "objective": "eiil"}, "without a penalty"),
    ],
)
def test_refused(settings: dict, message: str) -> None:
    given = {"objective": "erm", "steps": 10} | settings
    with refuse(message):
        train(overfitting(), given.pop("objective"), **given)
