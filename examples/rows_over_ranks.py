"""Rows spread over processes: each reads rows of its own, and all get the model of all rows.

    python examples/rows_over_ranks.py                                                       one process
    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1                                              two, started again when
    torchrun --standalone --nproc-per-node=2 --max-restarts=3 examples/rows_over_ranks.py    one of them is killed

It trains on rows of the simulation, with checkpoints, and prints the accuracy in the worst test environment.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from torch import distributed

from irmtv import Task, train
from irmtv.datasets import make_simulation


def read(rank: int, ranks: int) -> Task:
    """The rows of one rank, unequal in number. A real program reads files of its own here, and scales all alike."""
    task = make_simulation(4000, p_s=(0.999, 0.7), p_v=0.9, random_state=0)
    first, last = (round(len(task.train) * (r / ranks) ** 2) for r in (rank, rank + 1))
    # take() keeps the names of environments of which a rank has no row: codes mean the same on all ranks
    return replace(task, train=task.train.take(torch.arange(first, last)))


def main(steps: int = 600) -> None:
    group, rank, ranks = None, 0, 1
    if "TORCHELASTIC_RUN_ID" in os.environ:  # started by torchrun
        distributed.init_process_group("gloo")  # "nccl" and device="cuda" on GPUs
        group, rank, ranks = distributed.group.WORLD, distributed.get_rank(), distributed.get_world_size()
    task = read(rank, ranks)
    name = os.environ.get("TORCHELASTIC_RUN_ID", str(os.getpid()))
    folder = Path(os.environ.get("CHECKPOINTS", tempfile.gettempdir()))  # with several machines: one that they share
    checkpoint = folder / f"rows_over_ranks-{name}"
    fitted = train(
        task,
        "irm-tv-l1",
        penalty_weight=1e4,
        steps=steps,
        l2=1e-3,
        process_group=group,
        checkpoint=checkpoint,
        checkpoint_every=200,
    )
    if rank == 0:
        print(f"{len(task.train):,} of 4,000 rows here; accuracy in the worst of four test environments:", end=" ")
        print(f"{100 * fitted.evaluate().worst[0]:.1f} %")
        for path in (checkpoint, checkpoint.with_name(checkpoint.name + ".before")):
            path.unlink(missing_ok=True)
    if group is not None:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
