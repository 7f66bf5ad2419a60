"""Networks on rows in blocks: every row has its turn, every batch has its share of environments."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from engine.problems import parameters, task_of
from irmtv import Runs, train
from irmtv.data.blocks import RowsInBlocks
from irmtv.engine import block_rows
from irmtv.engine.block_rows import Deal, Reader

N, SIZES = 900, [1, 420, 17, 300, 162]  # of unequal blocks
S = {"hidden": (4,), "steps": 60, "batch_size": 30, "dtype": torch.float64, "learning_rate": 0.01}
P = S | {"penalty_weight": 10.0, "warmup": 20}
CASES = {
    "erm": ("erm", S),
    "irm-tv-l1": ("irm-tv-l1", P),
    "halves": ("irm-tv-l2", P),
    "linear": ("vrex", P | {"hidden": ()}),
    "balanced": ("groupdro", S | {"sampling": "balanced", "adjustment": 1.0}),
}
RUNS = Runs(seed=[0, 1])


def whole_task(kind="binary"):
    """All rows, environment by environment: the last one is in the last blocks alone. Rows know their numbers."""
    task = task_of(kind, n=N, environments=4)
    return replace(task, train=task.train.take(torch.argsort(task.train.environment, stable=True)))


def sample_of(task):
    index = torch.randperm(N, generator=torch.Generator().manual_seed(1))[:300].sort().values
    return replace(task, train=task.train.take(index))


def blocks_of(task):
    return RowsInBlocks.cut(task.train, SIZES)


@pytest.fixture
def short_stays(monkeypatch):
    """Rows of a stay are fewer than all."""
    monkeypatch.setattr(block_rows, "MOST_ROWS", 250)


@pytest.mark.parametrize("size", [20, 100, 899, 900, 2000])
def test_every_row_has_its_turn_and_every_stay_its_share_of_environments(size):
    task = whole_task()
    counts = torch.tensor(blocks_of(task).rows_of_blocks)
    rows = replace(task.train, x=torch.arange(N).double().unsqueeze(1))
    reader = Reader(RowsInBlocks.cut(rows, SIZES), Deal(counts, size))
    n = -(-3 * N // size)
    stays = [reader.rows(stay) for stay in range(n)]
    turns = torch.zeros(N, dtype=torch.long)
    expected = size * counts.sum(0) / N
    for stay in stays:
        turns += torch.bincount(stay.x[:, 0].long(), minlength=N)
        assert bool((torch.bincount(stay.environment, minlength=4) - expected).abs().max() <= 1)
    assert int(turns.max() - turns.min()) <= 1 + (n * size > 3 * N)
    # what stays when depends on nothing that was read before
    middle = n // 2
    again = Reader(RowsInBlocks.cut(rows, SIZES), Deal(counts, size)).rows(middle)
    assert torch.equal(again.x, stays[middle].x)


def test_rows_of_a_stay_are_random():
    task = whole_task()
    counts = torch.tensor(blocks_of(task).rows_of_blocks)
    rows = replace(task.train, x=torch.arange(N).double().unsqueeze(1))
    reader = Reader(RowsInBlocks.cut(rows, SIZES), Deal(counts, 300))
    first, later = (reader.rows(stay).x[:, 0].long() for stay in (0, 3))  # the first of two rounds
    assert 0.1 < torch.isin(first, later).double().mean() < 0.9


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_where_all_rows_stay_the_result_is_that_of_rows_in_memory(case):
    name, settings = CASES[case]
    task = whole_task()
    memory = parameters(train(task, name, RUNS, **settings))
    found = parameters(train(sample_of(task), name, RUNS, blocks=blocks_of(task), **settings))
    for one, other in zip(found, memory, strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["binary", "multiclass", "targets"])
def test_a_model_of_rows_that_come_and_go_is_as_good(kind, short_stays):
    task = whole_task(kind)
    more = S | {"steps": 600, "snapshot_every": 300}
    memory = train(task, "irm-tv-l1", penalty_weight=1.0, **more)
    found = train(sample_of(task), "irm-tv-l1", blocks=blocks_of(task), penalty_weight=1.0, **more)
    risks = [float(task.loss.value(f.logits(task.train.x)[0], task.train.y).mean()) for f in (found, memory)]
    assert abs(risks[0] - risks[1]) < 0.05 * risks[1]
    assert found.history.steps == memory.history.steps


@pytest.mark.slow
@pytest.mark.parametrize("case", ["irm-tv-l1", "minimax-tv-l1"])
def test_a_run_alone_is_the_run_beside_others(case, short_stays):
    task = whole_task()
    both = parameters(train(sample_of(task), case, RUNS, blocks=blocks_of(task), **P))
    for seed, one in enumerate(both):
        (alone,) = parameters(train(sample_of(task), case, Runs(seed), blocks=blocks_of(task), **P))
        assert torch.allclose(one, alone, rtol=1e-8)


class Stop(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("case", ["irm-tv-l1", "minimax-tv-l1"])
@pytest.mark.parametrize("stays", ["all", "some"])
def test_stopped_and_continued_is_the_same_bit_for_bit(case, stays, tmp_path, request):
    if stays == "some":
        request.getfixturevalue("short_stays")
    task, path = whole_task(), tmp_path / "training.ckpt"
    source = blocks_of(task)
    whole = parameters(train(sample_of(task), case, RUNS, blocks=source, **P))

    def progress(at):
        if at.step >= 37:
            raise Stop

    with pytest.raises(Stop):
        train(sample_of(task), case, RUNS, blocks=source, checkpoint=path, checkpoint_every=6, progress=progress, **P)
    again = parameters(train(sample_of(task), case, RUNS, blocks=source, checkpoint=path, checkpoint_every=6, **P))
    assert all(torch.equal(one, other) for one, other in zip(again, whole, strict=True))


class Changing(RowsInBlocks):
    """One block has other rows when it is read for itself."""

    def block(self, i):
        return super().block(0) if i == 3 else super().block(i)


def test_a_block_that_changes_is_an_error_and_no_thread_stays(short_stays):
    task = whole_task()
    before = threading.active_count()
    with pytest.raises(ValueError, match=r"block 3 must have the rows that it says.*Leave files alone"):
        train(sample_of(task), "irm-tv-l1", blocks=Changing(blocks_of(task).parts), **P)
    for thread in threading.enumerate():
        if thread.name.startswith("irmtv-blocks"):
            thread.join(10)
    assert threading.active_count() == before
