"""Rows over 1, 2 and 4 ranks of one machine: the same weights, bytes handed to all-reduce, time per step.

python -m benchmarks.ranks                    about two minutes
python -m benchmarks.ranks --rows 20000 --steps 50 --ranks 1 2

Every rank is a new process with one thread (gloo). Rows are spread unequally, and the last environment is on the first
rank alone. Weights are compared with those of a process without a group. Bytes are counted at every call of all-reduce,
step by step, and compared with `benchmarks.sizing.Step`. Times are of one step: processor milliseconds of the rank that
needs most, and milliseconds on the clock, which count the waiting for ranks that share a core or have more rows.

The second table is of linear models by Newton's method on rows in blocks, as files give them: passes, and all bytes
beside those that `benchmarks.sizing.numbers_of_pass` says.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, distributed, multiprocessing

from benchmarks.sizing import DOUBLE, Step, n_parameters, numbers_of_pass
from irmtv import Rows, Task, make_task, train
from irmtv.data.blocks import RowsInBlocks
from irmtv.engine.plan import rows_per_step
from irmtv.engine.step import GradientStep

COLUMNS, ENVIRONMENTS, RHO = 20, 5, 49  # rho: one time, 16 hidden units
NOTHING = 1e-6  # differences are relative to the parameter, or to this where it is smaller
SETTINGS: dict[str, Any] = {"learning_rate": 1e-3, "l2": 1e-3, "dtype": torch.float64, "batch_size": None}
PENALTY = {"penalty_weight": 20.0, "warmup": 0.25}
BLOCK = 10_000  # rows
OF_BLOCKS: dict[str, dict[str, Any]] = {name: {"penalty_weight": 20.0} for name in ("irm-tv-l1", "irm-tv-l2", "vrex")}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "erm": ("erm", {}),
    "irm-tv-l1": ("irm-tv-l1", PENALTY),
    "minimax-tv-l1": ("minimax-tv-l1", PENALTY),
    "vrex": ("vrex", PENALTY),
    "groupdro": ("groupdro", {"measure_rate": 0.1}),
    "irm-tv-l1, network (32,)": ("irm-tv-l1", PENALTY | {"hidden": (32,)}),
    "irm-tv-l1, batches of 1,024": ("irm-tv-l1", PENALTY | {"batch_size": 1024}),
}


@dataclass
class Sent:
    """What one step handed to all-reduce, and how long it took."""

    penalised: bool
    messages: list[int]  # bytes
    wall: float = 0.0  # seconds
    processor: float = 0.0  # seconds of this process


class Count:
    """Counts the bytes of every all-reduce, in steps and before them."""

    def __init__(self) -> None:
        self.steps: list[Sent] = []
        self.before = 0  # bytes of what ranks tell each other, and of sums, before the first step
        self.outside: list[int] = []  # bytes of every all-reduce that is in no step
        self._inside: Sent | None = None

    def note(self, tensor: Tensor) -> None:
        n_bytes = tensor.numel() * tensor.element_size()
        if self._inside is None:
            self.before += n_bytes
        else:
            self._inside.messages.append(n_bytes)

    @contextmanager
    def counting(self) -> Iterator[None]:
        reduce, gather, step = distributed.all_reduce, distributed.all_gather, GradientStep.__call__

        def reduced(tensor: Tensor, *more: Any, **named: Any) -> Any:
            self.note(tensor)
            if self._inside is None:
                self.outside.append(tensor.numel() * tensor.element_size())
            return reduce(tensor, *more, **named)

        def gathered(into: list[Tensor], tensor: Tensor, *more: Any, **named: Any) -> Any:
            self.note(tensor)
            return gather(into, tensor, *more, **named)

        def timed(this: GradientStep, phase: Any) -> None:
            self._inside = sent = Sent(bool(phase.penalised), [])
            wall, processor = time.perf_counter(), time.process_time()
            step(this, phase)
            sent.wall, sent.processor = time.perf_counter() - wall, time.process_time() - processor
            self.steps.append(sent)
            self._inside = None

        distributed.all_reduce, distributed.all_gather, GradientStep.__call__ = reduced, gathered, timed  # type: ignore
        try:
            yield
        finally:
            distributed.all_reduce, distributed.all_gather, GradientStep.__call__ = reduce, gather, step  # type: ignore


def whole(rows: int) -> Task:
    """All rows: a linear signal, columns that follow the target differently in every environment, and a time."""
    rng = np.random.default_rng(0)
    environment = rng.integers(0, ENVIRONMENTS, rows)
    x = rng.standard_normal((rows, COLUMNS))
    y = (x[:, :5].sum(1) + rng.standard_normal(rows) > 0).astype(float)
    x[:, 10:] += (2 * y - 1)[:, None] * (environment[:, None] / ENVIRONMENTS)
    aux = environment / ENVIRONMENTS + 0.1 * rng.standard_normal(rows)
    return make_task(x, y, environment=environment, aux=aux, min_rows=1, dtype=torch.float64)


def shares(codes: Tensor, ranks: int) -> list[Tensor]:
    """Row numbers of every rank, unequal in number; the last environment is on the first rank alone."""
    last = codes == codes.max()
    others = (~last).nonzero().flatten()
    cuts = [0, *(round(len(others) * (r + 1) * (r + 2) / (ranks * (ranks + 1))) for r in range(ranks))]
    mine = [others[a:b] for a, b in pairwise(cuts)]
    return [torch.cat([mine[0], last.nonzero().flatten()]), *mine[1:]]


def fitted(case: str, task: Task, steps: int, group: Any = None) -> Tensor:
    """All parameters of the model."""
    objective, more = CASES[case]
    settings = SETTINGS | more
    if "warmup" in settings:
        settings["warmup"] = round(settings["warmup"] * steps)
    (state,) = train(task, objective, steps=steps, process_group=group, **settings).state()
    return torch.cat([v.flatten() for v in (*state.parameters.values(), *(state.rho or {}).values())])


def work(rank: int, ranks: int, rows: int, steps: int, folder: str) -> None:
    """One rank."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet-{ranks}", rank=rank, world_size=ranks)
    task = whole(rows)
    mine = replace(task, train=task.train.take(shares(task.train.environment, ranks)[rank]))
    kept = {}
    for case in CASES:
        count = Count()
        with count.counting():
            parameters = fitted(case, mine, steps, distributed.group.WORLD)
        kept[case] = {
            "parameters": parameters,
            "before": count.before,
            "steps": count.steps,
        }
    torch.save(kept, f"{folder}/{ranks}-{rank}.pt")
    distributed.destroy_process_group()


def predicted(case: str, penalised: bool, first: bool) -> list[int]:
    """Bytes of the messages of a step."""
    objective, more = CASES[case]
    inferred = objective.startswith("minimax")
    step = Step(
        objective,
        2 if inferred else ENVIRONMENTS,
        n_parameters(COLUMNS, more.get("hidden", ())),
        "penalised" if penalised else "warm-up",
        batches="batch_size" in more,
        rho=RHO if inferred else 0,
        first=first,
    )
    return [DOUBLE * n for n in (*step.sums, step.parameters)]


def agreement(case: str, steps: Sequence[Sent]) -> int:
    """Number of steps that sent what is predicted."""
    before: list[bool | None] = [None, *(step.penalised for step in steps)]
    return sum(
        step.messages == predicted(case, step.penalised, step.penalised != last)
        for step, last in zip(steps, before, strict=False)
    )


def measure(rows: int, steps: int, counts: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """The rows of the table."""
    task = whole(rows)
    alone = {case: fitted(case, task, steps) for case in CASES}
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for ranks in counts:
            multiprocessing.spawn(work, (ranks, rows, steps, folder), nprocs=ranks)  # type: ignore[no-untyped-call]
            paths = [f"{folder}/{ranks}-{rank}.pt" for rank in range(ranks)]
            found[ranks] = [torch.load(path, weights_only=False) for path in paths]
    for case in CASES:
        for ranks in counts:
            yield (case, str(ranks), *cells(case, [one[case] for one in found[ranks]], alone[case]))


def cells(case: str, every: Sequence[dict[str, Any]], alone: Tensor) -> tuple[str, ...]:
    """What all ranks found, in a row of the table."""
    mine = every[0]["parameters"]
    assert all(torch.equal(one["parameters"], mine) for one in every)
    apart = float(((mine - alone).abs() / alone.abs().clamp_min(NOTHING)).max())
    n_steps = len(every[0]["steps"])
    late = [one["steps"][n_steps // 2 :] for one in every]  # penalised, all of them
    messages = late[0][-1].messages
    processor = max(statistics.mean(step.processor for step in steps) for steps in late)
    wall = statistics.median(step.wall for step in late[0])
    return (
        "-" if "batch_size" in CASES[case][1] else f"{apart:.0e}",
        f"{sum(messages):,} in {len(messages)}",
        f"{min(agreement(case, one['steps']) for one in every)} of {n_steps}",
        f"{every[0]['before']:,}",
        f"{1000 * processor:.2f}",
        f"{1000 * wall:.2f}",
    )


# ---- linear models on blocks -----------------------------------------------------------------------------------


class Passes(RowsInBlocks):
    """Counts how often the blocks are read."""

    made: ClassVar[int] = 0

    def blocks(self) -> Iterator[Rows]:
        type(self).made += 1
        return super().blocks()


def on_blocks(objective: str, task: Task, mine: Rows, group: Any = None) -> Tensor:
    """Coefficients by Newton's method: blocks of this rank's rows, and the same sample on all."""
    blocks = Passes(RowsInBlocks.cut(mine, [len(part) for part in torch.split(torch.arange(len(mine)), BLOCK)]).parts)
    sample = replace(task, train=task.train.take(torch.arange(0, len(task.train), 5)))
    settings = {"solver": "newton", "l2": 1e-3, "dtype": torch.float64, "blocks": blocks, "process_group": group}
    (state,) = train(sample, objective, **settings, **OF_BLOCKS[objective]).state()
    return torch.cat([v.flatten() for v in state.parameters.values()])


def work_on_blocks(rank: int, ranks: int, rows: int, folder: str) -> None:
    """One rank."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet-{ranks}", rank=rank, world_size=ranks)
    task = whole(rows)
    mine = task.train.take(shares(task.train.environment, ranks)[rank])
    kept = {}
    for objective in OF_BLOCKS:
        count, Passes.made = Count(), 0
        with count.counting():
            parameters = on_blocks(objective, task, mine, distributed.group.WORLD)
        kept[objective] = {"parameters": parameters, "passes": Passes.made, "messages": count.outside}
    torch.save(kept, f"{folder}/{ranks}-{rank}.pt")
    distributed.destroy_process_group()


def measure_blocks(rows: int, counts: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """The rows of the second table."""
    task = whole(rows)
    alone = {objective: on_blocks(objective, task, task.train) for objective in OF_BLOCKS}
    with tempfile.TemporaryDirectory() as folder:
        for ranks in counts:
            multiprocessing.spawn(work_on_blocks, (ranks, rows, folder), nprocs=ranks)  # type: ignore[no-untyped-call]
            found = torch.load(f"{folder}/{ranks}-0.pt")
            for objective, one in found.items():
                apart = float(((one["parameters"] - alone[objective]).abs() / alone[objective].abs()).max())
                of_pass = DOUBLE * numbers_of_pass(ENVIRONMENTS, COLUMNS + 1)
                whole_step = rows_per_step("auto", rows) >= rows  # then rows are counted for it, too
                counting = DOUBLE * (ENVIRONMENTS + (ENVIRONMENTS + 1 if whole_step else 0))
                predicted = one["passes"] * of_pass + counting
                sent = sum(one["messages"])
                yield objective, str(ranks), f"{apart:.0e}", str(one["passes"]), f"{sent:,}", f"{predicted:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Rows over several ranks of this machine.")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    table = Table(title=f"{asked.rows:,} rows x {COLUMNS} columns, {asked.steps} steps, {os.cpu_count()} cores")
    table.add_column("method", no_wrap=True)
    for column in (
        "ranks", "difference", "bytes a step", "steps as predicted", "bytes before", "processor ms", "ms"
    ):  # fmt: skip
        table.add_column(column, justify="right")
    for row in measure(asked.rows, asked.steps, asked.ranks):
        table.add_row(*row)
    passes = Table(title=f"{asked.rows:,} rows x {COLUMNS} columns in blocks of {BLOCK:,}, Newton's method")
    passes.add_column("method", no_wrap=True)
    for column in ("ranks", "difference", "passes", "bytes all-reduced", "as predicted"):
        passes.add_column(column, justify="right")
    for row in measure_blocks(asked.rows, asked.ranks):
        passes.add_row(*row)
    Console(width=140).print(table, passes)


if __name__ == "__main__":
    main()
