"""How far a step of linear models is from what the machine could do; and what a size costs beside scikit-learn.

python -m benchmarks.roofline      two minutes; OMP_NUM_THREADS=1, as the pages have it

The roofline: a step reads x twice, once for the margins and once for the gradient, and makes 4 D floating-point
operations per row and run; beside that it goes over the rows' margins and slopes a few times. Runs on one
data set share the reading of x. What reading and arithmetic cost on this machine is measured here too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression

from benchmarks.record import Ratio, record
from benchmarks.speed import AUTHORS, medians, simulation
from irmtv import Runs, make_task, train

FLOAT = 4  # bytes
# times that one number per row and run is read or written (`irmtv.engine.linear_step`): margins, their sigmoid, the
# gradient; with the penalty slopes, their sums, the curve and what is pulled, too
PASSES = {"erm": 4, "irm-tv-l1": 14}
COLUMNS = 16  # of x, with that of the intercept
SIZES = ((1_000, 10), (10_000, 10), (10_000, 100), (99_000, 10), (100_000, 10))
STEPS, WEIGHTS = 500, 10


def best(f: Callable[[], object], times: int = 7) -> float:
    """The least processor seconds of a call."""
    f()
    taken = []
    for _ in range(times):
        start = time.process_time()
        f()
        taken.append(time.process_time() - start)
    return min(taken)


def machine() -> tuple[float, float, float]:
    """Bytes per second at which x is read, from memory and from the cache, and operations per second."""

    def reading(rows: int, times: int) -> float:
        x, w = torch.rand(15, rows), torch.rand(1, 15)
        return x.numel() * FLOAT * times / best(lambda: [w @ x for _ in range(times)])

    square = torch.rand(1024, 1024)
    return reading(8_000_000, 1), reading(50_000, 100), 2 * 1024**3 / best(lambda: square @ square)


def step_seconds(name: str, runs: Runs, **settings: object) -> float:
    """Of one step, by the difference of a long and a short training."""
    tasks = simulation()
    long, short = (best(partial(train, tasks, name, runs, steps=n, **settings), 5) for n in (220, 20))
    return (long - short) / 200


def roofline(console: Console) -> list[Ratio]:
    memory, cache, arithmetic = machine()
    console.print(
        f"x is read at {memory / 1e9:.0f} GB/s from memory and {cache / 1e9:.0f} GB/s from the cache; "
        f"{arithmetic / 1e9:.0f} GFlop/s in a product of matrices; {torch.get_num_threads()} threads"
    )
    table = Table(title="one step of 10 data sets of 5,000 rows x 15 features")
    for column in ("what", "MB", "MFlop", "at least, us", "measured, us", "measured / least"):
        table.add_column(column, justify="left" if column == "what" else "right")
    ratios = []
    for name, per_set in (("erm", 1), ("irm-tv-l1", 1), ("erm", 5), ("irm-tv-l1", 5)):
        rows = 10 * 5000
        read = rows * FLOAT * (2 * COLUMNS + PASSES[name] * per_set)
        flops = rows * per_set * 4 * COLUMNS
        least = max(read / cache, flops / arithmetic)
        settings = {"l2": 1e-3} if name == "erm" else {"warmup": 0, **AUTHORS}
        runs = Runs(seed=range(10 * per_set), data=[i % 10 for i in range(10 * per_set)])
        took = step_seconds(name, runs, **settings)
        what = f"{name}, {10 * per_set} runs"
        table.add_row(
            what,
            f"{read / 1e6:.1f}",
            f"{flops / 1e6:.0f}",
            f"{least * 1e6:.0f}",
            f"{took * 1e6:.0f}",
            f"{took / least:.1f}",
        )
        ratios.append(Ratio(f"{what}: a step / what its bytes and operations take", took / least, 3.0))
    console.print(table)
    return ratios


def sizes(console: Console) -> None:
    table = Table(title=f"{STEPS} steps of IRM-TV-l1, in fits of LogisticRegression on the same rows")
    for column in ("rows x features", "one weight", f"{WEIGHTS} weights", "LogisticRegression, s"):
        table.add_column(column, justify="right")
    for n_rows, n_features in SIZES:
        rng = np.random.default_rng(0)
        x = rng.standard_normal((n_rows, n_features), np.float32)
        y = (x[:, 0] + x[:, 1] + 2 * rng.standard_normal(n_rows) > 0).astype(int)
        task = make_task(x, y, environment=np.arange(n_rows) % 2)
        path = Runs.grid(penalty_weight=[0.0, *np.logspace(0, 4, WEIGHTS - 1)])
        settings = {"steps": STEPS, "l2": 1e-3}
        sklearn, one, ten = medians(
            3,
            lambda x=x, y=y: LogisticRegression().fit(x, y),  # type: ignore[misc]
            partial(train, task, "irm-tv-l1", penalty_weight=100.0, **settings),
            partial(train, task, "irm-tv-l1", path, **settings),
        )
        table.add_row(f"{n_rows:,} x {n_features}", f"{one / sklearn:.0f}", f"{ten / sklearn:.0f}", f"{sklearn:.4f}")
    console.print(table)


def main() -> None:
    console = Console()
    ratios = roofline(console)
    sizes(console)
    record("roofline", ratios)


if __name__ == "__main__":
    main()
