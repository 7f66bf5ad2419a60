"""Chunks that train at the same time: the numbers, threads, progress and Ctrl-C."""

from __future__ import annotations

import importlib
from itertools import pairwise

import pytest
import torch

from irmtv import Runs, train
from irmtv.datasets import make_simulation
from irmtv.engine import TrainingInterrupted

module = importlib.import_module("irmtv.engine.train")
TASKS = [make_simulation(60, (0.9, 0.6), 0.8, random_state=k) for k in range(4)]
HOW = {"hidden": (4,), "steps": 40, "snapshot_every": 10}
RUNS = Runs(seed=0, data=[0, 0, 1, 1, 2, 2, 3, 3], penalty_weight=[0.0, 10.0] * 4)


@pytest.fixture
def at_a_time(monkeypatch):
    """Four chunks, and how many of them train at the same time."""
    monkeypatch.setattr("irmtv.engine.plan.FOR_TWO", 1)
    monkeypatch.setattr(module, "WORK_FOR_A_CORE", 1)

    def so_many(n: int) -> None:
        monkeypatch.setattr("irmtv.core.cores.cores", lambda: n)

    return so_many


@pytest.mark.parametrize("more", [{}, {"batch_size": 16}])
def test_numbers_do_not_depend_on_how_many_train_at_a_time(at_a_time, more) -> None:
    found = []
    for n in (1, 2, 3):
        at_a_time(n)
        found.append(train(TASKS, "irm-tv-l1", RUNS, **HOW, **more))
    assert len(found[0].chunks) == 4 and found[0].history is not None
    for other in found[1:]:
        assert other.history is not None
        assert [chunk.chunk.runs for chunk in other.chunks] == [chunk.chunk.runs for chunk in found[0].chunks]
        for name in ("risk", "risk_cov", "slope", "slope_cov"):
            assert torch.equal(getattr(other.history, name), getattr(found[0].history, name))


@pytest.mark.parametrize("n", [1, 2])
def test_progress_rises_to_the_end(at_a_time, n: int) -> None:
    at_a_time(n)
    shares: list[float] = []
    train(TASKS, "irm-tv-l1", RUNS, progress=lambda p: shares.append(p.share), **HOW)
    assert shares[-1] == pytest.approx(1) and max(shares) <= 1 + 1e-9
    assert all(later >= earlier - 0.03 for earlier, later in pairwise(shares))  # whole steps


@pytest.mark.parametrize("n", [1, 2])
def test_an_interruption_keeps_what_has_begun_and_threads_are_as_before(at_a_time, n: int) -> None:
    at_a_time(n)
    before, calls = torch.get_num_threads(), []

    def interrupt(progress) -> None:
        calls.append(progress)
        if len(calls) == 30:
            raise KeyboardInterrupt

    with pytest.raises(TrainingInterrupted) as interrupted:
        train(TASKS, "irm-tv-l1", RUNS, progress=interrupt, **{**HOW, "steps": 400})
    partial = interrupted.value.partial
    assert 0 < len(partial) < 8 and len(partial.runs) == len(partial)
    assert torch.get_num_threads() == before
