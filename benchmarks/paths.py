"""What a path of penalty weights costs in one batch, against one fit after the other: `python -m benchmarks.paths`.

20 penalty weights on 5 folds are 100 runs. `search` trains them together, chooses, and for the rule "invariance" trains
models of single environments too; the other side is 100 calls of `train` with the same rows, seeds, steps and
snapshots. Both are timed alternately and the medians of their ratios are shown; below 1 the path is cheaper.

A second table has what a user calls: `InvariantClassifierCV`, which chooses l2 before and trains its choice on all rows
after, against 100 fits of `InvariantClassifier` with l2 given. Of these 15 are timed, before, between and after the two
rules, with weights and folds from the whole grid, and counted for 100; how far they lie apart is shown.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from irmtv import InvariantClassifier, InvariantClassifierCV, Runs, Task, train
from irmtv.core.types import Rows
from irmtv.datasets import make_simulation
from irmtv.models.search import search
from irmtv.selection.folds import fold_tasks

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
# the same of the estimators: rows, hidden layers, steps, the ratio that is asked for
ESTIMATOR_SIZES: Sequence[tuple[int, tuple[int, ...], int, float]] = (
    (5000, (), 2000, 0.4),
    (5000, (32,), 400, 1.0),
)
TIMED = 5  # separate fits, three times


def separate(task: Task, how: dict[str, Any]) -> None:
    """Every run by itself."""
    for fold in fold_tasks(task, FOLDS, 0):
        for weight in WEIGHTS:
            train(fold, "irm-tv-l1", Runs(penalty_weight=[weight]), **how)


def together(task: Task, how: dict[str, Any], rule: str) -> None:
    """The same runs, and the choice among them."""
    search(task, "irm-tv-l1", [{"penalty_weight": w} for w in WEIGHTS], rule=rule, n_folds=FOLDS, **how)


def seconds(function: Callable[..., None], *arguments: Any) -> float:
    """With one thread those of the processor, which others at work on the machine hardly change."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    function(*arguments)
    return clock() - start


def fit_separately(task: Task, how: dict[str, Any], which: Sequence[int]) -> list[float]:
    """Seconds of some of the 100 fits of an estimator, one per penalty weight and fold."""
    folds = fold_tasks(task, FOLDS, 0)
    found = []
    for i in which:
        rows, weight = folds[i % FOLDS].train, WEIGHTS[i // FOLDS]
        found.append(seconds(fit, InvariantClassifier("irm-tv-l1", penalty_weight=weight, random_state=0, **how), rows))
    return found


def fit(model: Any, rows: Rows) -> None:
    assert rows.environment is not None
    model.fit(rows.x.numpy(), rows.y.numpy(), environment=rows.environment.numpy())


def fit_path(task: Task, how: dict[str, Any], rule: str) -> None:
    """All of them, l2 before and the choice on all rows after."""
    path = InvariantClassifierCV("irm-tv-l1", penalty_weights=WEIGHTS, cv=FOLDS, rule=rule, random_state=0, **how)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*plain risk minimisation is kept")
        fit(path, task.train)


def estimators(repeats: int, only: Sequence[int] | None) -> Table:
    table = Table(title="InvariantClassifierCV, 20 penalty weights x 5 folds / 100 fits of InvariantClassifier")
    for column in ("rows x 15, network", "steps", "iid", "invariance", "at most", "one fit, s (least, most)"):
        table.add_column(column, justify="right", no_wrap=True)
    spread = np.linspace(0, len(WEIGHTS) * FOLDS - 1, 3 * TIMED).astype(int).tolist()
    for rows, hidden, steps, most in ESTIMATOR_SIZES:
        if only and rows not in only:
            continue
        task = make_simulation(rows, (0.999, 0.7), 0.8, random_state=0, n_test=8)
        how: dict[str, Any] = {"hidden": hidden, "max_steps": steps, "solver": "adam"}  # a path in one batch, of Adam
        fit_path(task, {**how, "max_steps": 4}, "iid")  # warm
        ratios: list[tuple[float, float]] = []
        single: list[float] = []
        for _ in range(repeats):
            alone = fit_separately(task, how, spread[::3])
            iid = seconds(fit_path, task, how, "iid")
            alone += fit_separately(task, how, spread[1::3])
            invariance = seconds(fit_path, task, how, "invariance")
            alone += fit_separately(task, how, spread[2::3])
            hundred = statistics.mean(alone) * len(WEIGHTS) * FOLDS
            ratios.append((iid / hundred, invariance / hundred))
            single += alone
        iid, invariance = (statistics.median(r[i] for r in ratios) for i in (0, 1))
        table.add_row(
            label(rows, hidden),
            str(steps),
            f"{iid:.2f}",
            f"{invariance:.2f}",
            f"{most:g}{'' if max(iid, invariance) <= most else '  missed'}",
            f"{statistics.mean(single):.2f} ({min(single):.2f}, {max(single):.2f})",
        )
    return table


def label(rows: int, hidden: tuple[int, ...]) -> str:
    return f"{rows}, {'linear' if not hidden else f'hidden {hidden}'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="the median counts")
    parser.add_argument("--rows", type=int, action="append", help="only sizes with so many rows; may be repeated")
    parser.add_argument("--warmup", type=float, help="only sizes with this warm-up")
    parser.add_argument("--only", choices=("search", "estimators"), help="one of the two tables")
    asked = parser.parse_args()
    if asked.only != "estimators":
        Console().print(searches(asked.repeats, asked.rows, asked.warmup))
    if asked.only != "search" and asked.warmup is None:
        Console().print(estimators(asked.repeats, asked.rows))


def searches(repeats: int, only: Sequence[int] | None, only_warmup: float | None) -> Table:
    table = Table(title="20 penalty weights x 5 folds: cost of the path / cost of 100 separate fits")
    for column in ("rows x 15, network", "steps", "warm-up", "iid", "invariance", "at most"):
        table.add_column(column, justify="right", no_wrap=True)
    for rows, hidden, steps, warmup, most in SIZES:
        if (only and rows not in only) or (only_warmup is not None and warmup != only_warmup):
            continue
        task = make_simulation(rows, (0.999, 0.7), 0.8, random_state=0, n_test=8)
        how: dict[str, Any] = {"hidden": hidden, "steps": steps, "warmup": warmup, "snapshot_every": steps // 4}
        together(task, {**how, "steps": 4, "snapshot_every": 2}, "iid")  # warm
        ratios: list[tuple[float, float]] = []
        for _ in range(repeats):
            alone = seconds(separate, task, how)
            ratios.append(
                (seconds(together, task, how, "iid") / alone, seconds(together, task, how, "invariance") / alone)
            )
        iid, invariance = (statistics.median(r[i] for r in ratios) for i in (0, 1))
        good = max(iid, invariance) <= most
        table.add_row(
            label(rows, hidden),
            str(steps),
            f"{warmup:g}",
            f"{iid:.2f}",
            f"{invariance:.2f}",
            f"{most:g}{'' if good else '  missed'}",
        )
    return table


if __name__ == "__main__":
    main()
