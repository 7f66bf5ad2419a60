"""What a process of a training over several ranks does, for test_ranks.py; and the same on all rows, in one process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed, multiprocessing

from engine.problems import task_of
from irmtv import Rows, Runs, Task, train
from irmtv.objectives.environments import Affine

S = {"steps": 200, "learning_rate": 1e-3, "l2": 1e-3, "dtype": torch.float64}
P = {"penalty_weight": 20.0, "warmup": 50}
CASES = {
    "erm": ("erm", {}),
    "irm-tv-l1": ("irm-tv-l1", P),
    "minimax-tv-l1": ("minimax-tv-l1", P),
    "vrex": ("vrex", P),
    "groupdro": ("groupdro", {"measure_rate": 0.1, "adjustment": 1.0}),
    "network": ("minimax-tv-l1", P | {"hidden": (4,), "n_environments": 3, "schedule": "alternating"}),
    "few-times": ("minimax-tv-l1", P),
    "by-autograd": ("irm-tv-l1", P | {"classifier": "vector", "expand": Affine(8), "penalty_weight": "adaptive"}),
    "batches": ("irm-tv-l1", P | {"batch_size": 40}),
    "inferred-batches": ("minimax-tv-l1", P | {"batch_size": 40}),
    "diverges": ("irm-tv-l1", P),
}
ON_FOUR = ("erm", "irm-tv-l1", "minimax-tv-l1", "vrex", "groupdro")
N, RUNS = 200, Runs(seed=[0, 1], penalty_weight=[20.0, 5.0])
OF_ERM = Runs(seed=[0, 1])


def spawned(main: Callable[..., None], folder: Path, ranks: int) -> list[dict]:
    """What each of so many new processes has saved in a folder as RANK.pt."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        if sys.platform == "linux":
            patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        multiprocessing.spawn(main, (str(folder),), nprocs=ranks)
    return [torch.load(folder / f"{rank}.pt") for rank in range(ranks)]


def task(case: str) -> Task:
    """All rows; rows that share their aux with others are laid out in another way."""
    whole = task_of(n=N, environments=3)
    if case == "few-times":
        rows = replace(whole.train, aux=(5 * whole.train.aux).round())
        return replace(whole, train=rows)
    return whole


def shares(ranks: int, codes: Tensor) -> list[Tensor]:
    """Row numbers of every rank, unequal in number; the last environment is on the first rank alone."""
    last = codes == codes.max()
    others = (~last).nonzero().flatten()
    cuts = [0, *(round(len(others) * (r + 1) * (r + 2) / (ranks * (ranks + 1))) for r in range(ranks))]
    mine = [others[a:b] for a, b in pairwise(cuts)]
    return [torch.cat([mine[0], last.nonzero().flatten()]), *mine[1:]]


def mine_of(whole: Task, rank: int, ranks: int) -> Task:
    """The task of one rank; an environment that it has no row of keeps its name and number."""
    return replace(whole, train=whole.train.take(shares(ranks, whole.train.environment)[rank]))


def fitted(case: str, group: object = None, rank: int = 0, ranks: int = 1) -> dict[str, object]:
    name, more = CASES[case]
    mine = mine_of(task(case), rank, ranks)
    runs = OF_ERM if "penalty_weight" not in more or more["penalty_weight"] == "adaptive" else RUNS
    if case == "diverges":
        runs = Runs(seed=[0, 1], learning_rate=[1e-3, 1e200])
    shared = {k: v for k, v in (S | more).items() if k not in runs.names}
    result = train(mine, name, runs, process_group=group, **shared)
    parameters = {k: v for s in result.state() for k, v in (*s.parameters.items(), *(s.rho or {}).items())}
    return {"parameters": parameters, "diverged": dict(result.diverged)}


def refused(rank: int, group: object, short: object, folder: Path) -> dict[str, str]:
    """What is said on this rank where the ranks disagree, by what they disagree in."""
    whole = task("erm").train
    mine = whole.take(torch.arange(rank, N, 2))
    odd = rank == 1
    calls = {
        "objective": {"objective": "vrex" if odd else "irm-tv-l1"},
        "settings": {"steps": 7 if odd else 5},
        "dtype": {"dtype": torch.float32 if odd else torch.float64},
        "features": {"rows": replace(mine, x=mine.x[:, :2]) if odd else mine},
        "names": {"rows": replace(mine, names=("a", "b", "c")) if odd else mine},
        "empty": {"rows": mine.take(torch.arange(0)) if odd else mine},
        "one-sided": {"steps": -1 if odd else 5},
        "lff": {"objective": "lff"},
        "snapshots": {"snapshot_every": 2},
        "newton": {"solver": "newton"},
        "weights": {"rows": replace(mine, weight=torch.linspace(0.5, 1.5, len(mine)).double())},
        "small-batches": {"batch_size": 2},
        "one-sided checkpoint": {"checkpoint": folder / f"own-{rank}", "steps": 20, "checkpoint_every": 5},
        "checkpoint": {"checkpoint": folder / "own-0", "steps": 20},  # of rank 0, which writes
        "another checkpoint": {"checkpoint": folder / "own-0", "steps": 21},
        "absent": {"process_group": short},
    }
    said = {}
    for what, call in calls.items():
        if what == "absent" and odd:
            break  # and never comes
        call = {"objective": "irm-tv-l1", "steps": 5, "dtype": torch.float64, "process_group": group, **call}
        rows: Rows = call.pop("rows", mine)
        try:
            found = train(replace(task("erm"), train=rows), **call)
            said[what] = str(torch.cat([v.flatten() for v in found.state()[0].parameters.values()]))
        except (ValueError, RuntimeError) as error:
            said[what] = str(error)
    return said


def main(rank: int, folder: str) -> None:
    """All four ranks, then the first two of them."""
    torch.set_num_threads(1)
    meet = f"file://{Path(folder) / 'meet'}"
    distributed.init_process_group("gloo", init_method=meet, rank=rank, world_size=4, timeout=timedelta(seconds=120))
    pair = distributed.new_group([0, 1])
    short = distributed.new_group([0, 1], timeout=timedelta(seconds=2))
    kept = {4: {case: fitted(case, distributed.group.WORLD, rank, 4) for case in ON_FOUR}}
    if rank < 2:
        kept[2] = {case: fitted(case, pair, rank, 2) for case in CASES}
        kept["said"] = refused(rank, pair, short, Path(folder))
    torch.save(kept, Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()  # its threads could abort a process that ends before them
