"""A rank that dies is an error on the others that says what to do; none of them waits for ever."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import distributed, multiprocessing

from engine.problems import task_of
from irmtv import train

pytestmark = [
    pytest.mark.time_limit(120),
    pytest.mark.slow,
    pytest.mark.skipif(
        not (distributed.is_available() and distributed.is_gloo_available()), reason="this torch has no gloo"
    ),
]


def main(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    meet = f"file://{Path(folder) / 'meet'}"
    distributed.init_process_group("gloo", init_method=meet, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    task = task_of(n=100)
    mine = replace(task, train=task.train.take(torch.arange(rank, 100, 2)))

    def progress(now) -> None:
        if rank == 1 and now.step >= 10:
            os._exit(0)  # without a word, as by a kill

    try:
        train(mine, "irm-tv-l1", steps=1000, process_group=distributed.group.WORLD, progress=progress)
    except RuntimeError as error:
        Path(folder, "said").write_text(f"{error}\n{type(error.__cause__).__name__}", encoding="utf-8")
    os._exit(0)


def test_the_others_say_that_a_rank_was_lost(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    if sys.platform == "linux":
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    multiprocessing.spawn(main, (str(tmp_path),), nprocs=2)
    said = (tmp_path / "said").read_text(encoding="utf-8")
    assert said.startswith("another rank was lost, or did not answer within the timeout of the process group.")
    assert "torchrun --max-restarts=3" in said and said.endswith("\nRuntimeError")
