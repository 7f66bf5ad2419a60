"""What a path of penalty weights costs in one batch, against one fit after the other: `python -m benchmarks.paths`.

20 penalty weights on 5 folds are 100 runs. `search` trains them together, chooses, and for the rule "invariance" trains
models of single environments too; the other side is 100 calls of `train` with the same rows, seeds, steps and
snapshots. Both are timed alternately and the medians of their ratios are shown; below 1 the path is cheaper.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from irmtv import Runs, Task, train
from irmtv.crossfit import fold_tasks
from irmtv.datasets import make_simulation
from irmtv.search import search

WEIGHTS = (0.0, *np.logspace(-1, 5, 19).tolist())
FOLDS = 5
# rows, hidden layers, steps, warm-up (which all weights on a fold share), and the ratio that is asked for
SIZES: Sequence[tuple[int, tuple[int, ...], int, float, float]] = (
    (5000, (), 200, 0.5, 0.4),
    (5000, (), 100, 0.0, 0.4),
    (500, (), 400, 0.5, 1.0),
    (20000, (), 100, 0.5, 1.0),
    (20000, (), 50, 0.0, 1.0),
    (500, (32,), 200, 0.5, 1.0),
    (5000, (32,), 60, 0.5, 1.0),
    (20000, (32,), 20, 0.5, 1.0),
    (20000, (32,), 10, 0.0, 1.0),
)


def separate(task: Task, how: dict[str, Any]) -> None:
    """Every run by itself."""
    for fold in fold_tasks(task, FOLDS, 0):
        for weight in WEIGHTS:
            train(fold, "irm-tv-l1", Runs(penalty_weight=[weight]), **how)


def together(task: Task, how: dict[str, Any], rule: str) -> None:
    """The same runs, and the choice among them."""
    search(task, "irm-tv-l1", [{"penalty_weight": w} for w in WEIGHTS], rule=rule, n_folds=FOLDS, **how)


def seconds(function: Callable[..., None], *arguments: Any) -> float:
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="the median counts")
    parser.add_argument("--rows", type=int, action="append", help="only sizes with so many rows; may be repeated")
    parser.add_argument("--warmup", type=float, help="only sizes with this warm-up")
    asked = parser.parse_args()
    table = Table(title="20 penalty weights x 5 folds: cost of the path / cost of 100 separate fits")
    for column in ("rows x 15, network", "steps", "warm-up", "iid", "invariance", "at most"):
        table.add_column(column, justify="right", no_wrap=True)
    for rows, hidden, steps, warmup, most in SIZES:
        if (asked.rows and rows not in asked.rows) or (asked.warmup is not None and warmup != asked.warmup):
            continue
        task = make_simulation(rows, (0.999, 0.7), 0.8, random_state=0, n_test=8)
        how: dict[str, Any] = {"hidden": hidden, "steps": steps, "warmup": warmup, "snapshot_every": steps // 4}
        together(task, {**how, "steps": 4, "snapshot_every": 2}, "iid")  # warm
        ratios: list[tuple[float, float]] = []
        for _ in range(asked.repeats):
            alone = seconds(separate, task, how)
            ratios.append(
                (seconds(together, task, how, "iid") / alone, seconds(together, task, how, "invariance") / alone)
            )
        iid, invariance = (statistics.median(r[i] for r in ratios) for i in (0, 1))
        label = f"{rows}, {'linear' if not hidden else f'hidden {hidden}'}"
        good = max(iid, invariance) <= most
        table.add_row(
            label, str(steps), f"{warmup:g}", f"{iid:.2f}", f"{invariance:.2f}", f"{most:g}{'' if good else '  missed'}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
