"""Speed, as ratios measured in one run on one machine: `make bench`.

Every pair is timed alternately several times and the medians are compared, so that a slow moment of the
machine hits both sides. With one thread (OMP_NUM_THREADS=1) processor time counts, so that other work on the machine
matters little. Both sides have the same threads. Every run adds a line to `benchmarks/results.jsonl`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from rich.console import Console

from benchmarks import textbook
from benchmarks.record import Ratio, record, table_of
from irmtv import Runs, Task, make_task, train
from irmtv.datasets import make_simulation


def alone() -> bool:
    """Whether there is one thread: its processor time is then what an idle machine would take."""
    return torch.get_num_threads() == 1


def medians(repeats: int, *functions: Callable[[], object]) -> list[float]:
    """Median seconds of each function, called in turn."""
    clock = time.process_time if alone() else time.perf_counter
    times: list[list[float]] = [[] for _ in functions]
    for f in functions:
        f()  # warm
    for _ in range(repeats):
        for f, taken in zip(functions, times, strict=True):
            start = clock()
            f()
            taken.append(clock() - start)
    return [statistics.median(t) for t in times]


def simulation(n_sets: int = 10) -> list[Task]:
    return [make_simulation(5000, (0.999, 0.9), 0.8, random_state=i, n_test=8) for i in range(n_sets)]


AUTHORS = {"penalty_weight": 1e4, "l2": 1e-3, "learning_rate": 5e-3}


def against_textbook(repeats: int) -> list[Ratio]:
    tasks = simulation()
    rows = tasks[0].train
    assert rows.environment is not None and rows.aux is not None
    by_environment = [torch.where(rows.environment == e)[0] for e in range(2)]
    z = (rows.aux - rows.aux.mean()) / rows.aux.std()
    ten = Runs(seed=range(10), data=range(10))
    schedules = (("500 + 30 steps", 530, 500), ("300 penalised steps", 300, 0), ("300 warm-up steps", 300, 300))
    results = []
    for label, steps, warmup in schedules[:2]:  # a tenth of the authors' schedule, and its costly part
        ours, book = medians(
            repeats,
            partial(train, tasks, "irm-tv-l1", ten, steps=steps, warmup=warmup, **AUTHORS),
            partial(textbook.train_irm, rows.x, rows.y, by_environment, steps=steps, warmup=warmup),
        )
        results.append(Ratio(f"IRM-TV-l1, 10 runs, {label}: times faster", book / (ours / 10), 30.0, more=True))
    for label, steps, warmup in schedules[::2]:  # here rho climbs in the warm-up, which costs most
        ours, book = medians(
            repeats,
            partial(train, tasks, "minimax-tv-l1", ten, steps=steps, warmup=warmup, **AUTHORS),
            partial(textbook.train_minimax, rows.x, rows.y, z, steps=steps, warmup=warmup),
        )
        results.append(Ratio(f"Minimax-TV-l1, 10 runs, {label}: times faster", book / (ours / 10), 14.0, more=True))
    return results


def steps_against_erm(repeats: int) -> list[Ratio]:
    results = []
    tasks = simulation()
    for label, n_runs, hidden in (
        ("10 runs, linear", 10, ()),
        ("50 runs, linear", 50, ()),
        ("10 runs, hidden (32,)", 10, (32,)),
    ):
        runs = Runs(seed=range(n_runs), data=[i % 10 for i in range(n_runs)])
        settings = {"hidden": hidden, "steps": 200, "l2": 1e-3}
        erm, irm = medians(
            repeats,
            partial(train, tasks, "erm", runs, **settings),
            partial(train, tasks, "irm-tv-l1", runs, warmup=0, penalty_weight=1e4, **settings),
        )
        results.append(Ratio(f"IRM-TV-l1 step / ERM step, {label}", irm / erm, 1.15))
    return results


def environments(repeats: int) -> list[Ratio]:
    base = make_simulation(5000, (0.999, 0.9), 0.8, random_state=0, n_test=8).train
    tasks = {}
    for layout in ("equal", "unequal"):
        for count in (2, 200):
            if layout == "equal":
                codes = torch.arange(5000) * count // 5000
            else:  # sizes from small to four times the mean
                shares = torch.linspace(0.2, 1.8, count)
                codes = torch.searchsorted(shares.cumsum(0) / shares.sum(), torch.arange(5000) / 5000 + 1e-6)
            tasks[layout, count] = make_task(base.x, base.y, environment=codes.numpy(), min_rows=1)
    runs = Runs(seed=range(10))
    settings = {"steps": 200, "warmup": 0, "penalty_weight": 1e4}
    results = []
    for layout in ("equal", "unequal"):
        few, many = medians(
            repeats,
            partial(train, tasks[layout, 2], "irm-tv-l1", runs, **settings),
            partial(train, tasks[layout, 200], "irm-tv-l1", runs, **settings),
        )
        results.append(Ratio(f"200 environments / 2, {layout} sizes", many / few, 1.5))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--no-record", action="store_true", help="leave benchmarks/results.jsonl as it is")
    asked = parser.parse_args()
    console = Console()
    with console.status("timing"):
        measures = (against_textbook, steps_against_erm, environments)
        ratios = [ratio for measure in measures for ratio in measure(asked.repeats)]
    clock = "processor time" if alone() else "wall time"
    console.print(table_of(f"{clock}, {torch.get_num_threads()} threads, medians of {asked.repeats}", ratios))
    console.print("times faster: time per run of the textbook implementation, one run after another, over ours")
    if not asked.no_record:
        record("speed", ratios)


if __name__ == "__main__":
    main()
