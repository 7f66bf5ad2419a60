"""Rows over several ranks: the weights of one process that has all rows; ranks that disagree say so and end."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch import distributed

import irmtv
import irmtv.engine.rows as engine_rows
from engine.problems import refuse, task_of
from engine.several_ranks import CASES, ON_FOUR, fitted, main, shares, spawned, task
from irmtv import train
from irmtv.engine.context import Noise
from irmtv.engine.rows import STREAM_OF_BATCHES, StratifiedBatches

LINUX = sys.platform == "linux"

pytestmark = [
    pytest.mark.time_limit(300),
    pytest.mark.slow,
    pytest.mark.skipif(
        not (distributed.is_available() and distributed.is_gloo_available()), reason="this torch has no gloo"
    ),
]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict]:
    """What each of four ranks found."""
    return spawned(main, tmp_path_factory.mktemp("ranks"), 4)


class BatchesOfTwo:
    """In one process, the rows that two ranks draw for a step."""

    def __init__(self, codes, batch_size, generators):
        whole = codes[0]
        self.rows, self.each = shares(2, whole), []
        for rank, rows in enumerate(self.rows):
            seeds = Noise([0, 1], torch.device("cpu"), STREAM_OF_BATCHES + rank).key.tolist()
            streams = [torch.Generator().manual_seed(seed) for seed in seeds]
            size = round(batch_size * len(rows) / len(whole))
            self.each.append(StratifiedBatches([whole[rows]] * 2, size, streams))
        self.batch_size = sum(batches.batch_size for batches in self.each)

    def next(self):
        return torch.cat([rows[batches.next()] for rows, batches in zip(self.rows, self.each, strict=True)], 1)


@pytest.mark.parametrize(("case", "n"), [*((case, 2) for case in CASES), *((case, 4) for case in ON_FOUR)])
def test_several_ranks_equal_one(ranks, monkeypatch, case, n):
    if "batch_size" in CASES[case][1]:
        monkeypatch.setattr(engine_rows, "StratifiedBatches", BatchesOfTwo)
    with pytest.warns(match="diverged") if case == "diverges" else pytest.MonkeyPatch.context():
        alone = fitted(case)
    codes = task(case).train.environment
    assert len({len(rows) for rows in shares(n, codes)}) == n
    assert [int(codes[rows].max()) for rows in shares(n, codes)] == [2] + [1] * (n - 1)
    for found in ranks[:n]:
        assert found[n][case]["diverged"] == alone["diverged"] == ({1: 1} if case == "diverges" else {})
        for name, value in alone["parameters"].items():
            torch.testing.assert_close(found[n][case]["parameters"][name], value, rtol=1e-5, atol=1e-9)
            assert torch.equal(found[n][case]["parameters"][name], ranks[0][n][case]["parameters"][name])


def test_a_rank_alone_would_find_something_else(ranks):
    alone = train(task_of(n=200), "irm-tv-l1", penalty_weight=20.0, warmup=50, steps=200, dtype=torch.float64)
    mine = ranks[0][2]["irm-tv-l1"]["parameters"]["W0"][0]
    assert not torch.allclose(mine, alone.state()[0].parameters["W0"][0], rtol=1e-3)


BOTH = {
    "objective": "objective is irm-tv-l1",
    "settings": "steps is 5 on rank 0, 7 on rank 1",
    "dtype": "dtype is torch.float64 on rank 0, torch.float32 on rank 1",
    "features": "features is (3,) on rank 0, (2,) on rank 1",
    "names": "names of the environments is (0, 1, 2) on rank 0, ('a', 'b', 'c') on rank 1",
    "empty": "task must have training rows. Got none",
    "one-sided": "steps must be a whole number of at least 1. Got -1",
    "lff": "Got 'lff'. Use one of erm, irm-tv-l1",
    "snapshots": "snapshots, and select other than 'fixed', cannot be had with process_group. Got snapshot_every=2",
    "newton": "solver must be 'adam'",
    "weights": "sample_weight must be left out with process_group",
    "small-batches": "batch_size counts the rows of all ranks",
}


@pytest.mark.parametrize("what", BOTH)
def test_what_ranks_disagree_in_is_one_error_on_all(ranks, what):
    for found in ranks[:2]:
        assert BOTH[what] in found["said"][what]
    if what == "one-sided":
        assert "Got an error on 1 of 2: rank 1 has ValueError: steps" in ranks[0]["said"][what]


def test_a_rank_that_does_not_come_is_waited_for_as_long_as_the_group_says(ranks):
    assert "waited in vain for the other ranks" in ranks[0]["said"]["absent"]


def test_rank_0_writes_a_checkpoint_and_all_read_it(ranks):
    for found in ranks[:2]:
        said = found["said"]
        assert said["checkpoint"] == said["one-sided checkpoint"] and said["checkpoint"].startswith("tensor(")
        assert "checkpoint must be of the same training" in said["another checkpoint"]
        assert "steps was 20, is 21" in said["another checkpoint"]


def torchrun(folder: Path, at: int) -> dict:
    """Of a training on two ranks, of which one is killed at this step and started again."""
    script = Path(__file__).with_name("killed_rank.py")
    paths = os.pathsep.join([str(Path(irmtv.__file__).parents[1]), str(script.parents[1])])
    # without the last one workers that are started again find the addresses of those that are gone (torch 2.13)
    local = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    process = subprocess.Popen(
        [*command, str(script), str(folder), str(at)],
        env=os.environ | local | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)  # torchrun then ends its workers
    assert process.returncode == 0, said
    return torch.load(folder / f"fitted-{at}.pt")


@pytest.mark.skipif(not LINUX, reason="processes are killed as on Linux")
def test_a_killed_rank_is_started_again_from_the_checkpoint(tmp_path):
    killed, whole = torchrun(tmp_path, 137), torchrun(tmp_path, 1000)
    assert (killed["began"], whole["began"]) == (126, 0)  # progress is told every second step
    for name, value in whole["parameters"].items():
        assert torch.equal(killed["parameters"][name], value)


@pytest.mark.parametrize("settings", [{}, {"batch_size": 40}, {"hidden": (4,)}, {"steps": -1}])
def test_nothing_keeps_a_group_that_is_destroyed(settings, tmp_path):
    """Threads of a group that is there when Python ends can abort the process; cycles live until they are collected."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    gc.disable()
    try:
        group = weakref.ref(distributed.group.WORLD)
        with refuse("steps must be") if "steps" in settings else contextlib.nullcontext():
            fitted = train(task_of(), "minimax-tv-l1", process_group=distributed.group.WORLD, **{"steps": 5} | settings)
        distributed.destroy_process_group()
        assert group() is None
    finally:
        gc.enable()
    assert "steps" in settings or len(fitted) == 1


def test_a_group_must_be_initialised():
    with refuse("process_group must be a group of torch.distributed that has been initialised"):
        train(task_of(), "erm", process_group="gloo")
