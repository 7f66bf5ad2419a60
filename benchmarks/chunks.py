"""How many runs to train in one tensor program: time per run and step, by chunk size.

`python -m benchmarks.chunks` prints it as ratios to the best size; `irmtv.engine.plan.CACHE_ELEMENTS` is set
from it.
"""

from __future__ import annotations

from functools import partial

from rich.console import Console
from rich.table import Table

from benchmarks.speed import medians
from irmtv import Runs, train
from irmtv.datasets import make_simulation
from irmtv.engine import plan

SIZES = (1, 5, 10, 20, 40, 80)


def main() -> None:
    table = Table(title="time per run, relative to the best chunk size")
    table.add_column("80 runs of IRM-TV-l1, by runs a chunk", no_wrap=True)
    for size in SIZES:
        table.add_column(str(size), justify="right")
    plan.CACHE_ELEMENTS = 1 << 40  # only max_chunk cuts
    for rows, hidden, shared in (
        (1000, (), True),
        (5000, (), True),
        (5000, (), False),
        (20000, (), True),
        (5000, (32,), True),
    ):
        n_sets = 1 if shared else 80
        tasks = [make_simulation(rows, (0.999, 0.9), 0.8, random_state=i, n_test=8) for i in range(n_sets)]
        runs = Runs(seed=range(80), data=[i % n_sets for i in range(80)])
        settings = {"steps": 30, "warmup": 0, "hidden": hidden}
        times = medians(3, *(partial(train, tasks, "irm-tv-l1", runs, max_chunk=s, **settings) for s in SIZES))
        label = f"{rows} rows, {hidden or 'linear'}{'' if shared else ', own data each'}"
        table.add_row(label, *(f"{t / min(times):.2f}" for t in times))
    Console().print(table)


if __name__ == "__main__":
    main()
