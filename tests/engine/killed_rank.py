"""Run by torchrun: `killed_rank.py FOLDER STEP`: at STEP of its first life, rank 1 is killed. For test_ranks.py."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from torch import distributed

from engine.several_ranks import S, mine_of, task
from irmtv import Runs, train


def main(folder: Path, at: int) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    lived = folder / f"lived-{at}-{rank}"
    first = not lived.exists()
    lived.touch()
    begun = []

    def progress(now) -> None:
        begun.append(now.step)
        if first and rank == 1 and now.step >= at:
            os.kill(os.getpid(), signal.SIGKILL)

    fitted = train(
        mine_of(task("irm-tv-l1"), rank, ranks),
        "minimax-tv-l1",
        Runs([0, 1]),
        penalty_weight=20.0,
        warmup=60,
        process_group=distributed.group.WORLD,
        checkpoint=folder / f"training-{at}",
        checkpoint_every=25,
        progress=progress,
        **S,
    )
    if rank == 0:
        parameters = dict(fitted.state()[0].parameters)
        torch.save({"parameters": parameters, "began": begun[0]}, folder / f"fitted-{at}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
