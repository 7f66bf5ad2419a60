"""What a process does that has blocks of its own, for test_blocks_over_ranks.py; and the same with all blocks."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, distributed

from engine.problems import task_of
from irmtv import Rows, Task, train
from irmtv.data.blocks import RowsInBlocks

NEWTON = {"solver": "newton", "dtype": torch.float64, "l2": 1e-3}
STEPS = {"steps": 60, "dtype": torch.float64, "batch_size": 50, "learning_rate": 1e-2, "hidden": (4,)}
W = {"penalty_weight": 20.0}
CASES = {
    "erm": ("binary", "erm", NEWTON),
    "irm-tv-l1": ("binary", "irm-tv-l1", NEWTON | W),
    "vector": ("multiclass", "irm-tv-l2", NEWTON | W | {"classifier": "vector"}),
    "squared": ("squared", "irm-tv-l1", NEWTON | W),
    "inferred": ("binary", "minimax-tv-l1", NEWTON | W),
    "columns": ("binary", "eills", NEWTON | W),
    "network": ("binary", "irm-tv-l1", STEPS | W | {"warmup": 20}),
}
N = 1200


def task(kind: str) -> Task:
    """All rows, environment by environment: the last one is in the last block alone."""
    whole = task_of(kind, n=N, environments=4)
    return replace(whole, train=whole.train.take(torch.argsort(whole.train.environment, stable=True)))


def sample_of(whole: Task) -> Task:
    index = torch.randperm(len(whole.train), generator=torch.Generator().manual_seed(1))[:500].sort().values
    return replace(whole, train=whole.train.take(index))


def blocks(rows: Rows) -> tuple[Rows, ...]:
    return RowsInBlocks.cut(rows, [130, 1, 589, 480]).parts


def parameters(kind: str, objective: str, settings: dict[str, object], source: RowsInBlocks, group: object) -> Tensor:
    sample = sample_of(task(kind))
    fitted = train(sample, objective, blocks=source, process_group=group, snapshot_every=30, **settings)
    return torch.cat([v.flatten() for v in fitted.state()[0].parameters.values()])


def main(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    meet = f"file://{Path(folder) / 'meet'}"
    distributed.init_process_group("gloo", init_method=meet, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    found: dict[str, object] = {}
    for case, (kind, objective, settings) in CASES.items():
        mine = RowsInBlocks(blocks(task(kind).train)[:3] if rank == 0 else blocks(task(kind).train)[3:])
        found[case] = parameters(kind, objective, settings, mine, distributed.group.WORLD)
    kind, objective, settings = CASES["erm"]
    mine = RowsInBlocks(blocks(task(kind).train)[:3] if rank == 0 else blocks(task(kind).train)[3:])
    if rank == 1:  # its file has changed since it was counted
        mine = Shrunk(mine.parts)
    try:
        found["said"] = str(parameters(kind, objective, settings, mine, distributed.group.WORLD))
    except ValueError as error:
        found["said"] = str(error)
    torch.save(found, Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()


class Shrunk(RowsInBlocks):
    """Says more rows than it has."""

    @property
    def n_rows(self) -> int:
        return super().n_rows + 1
