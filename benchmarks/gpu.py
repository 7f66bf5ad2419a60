"""Steps on a GPU: microseconds, fused and one operation at a time, and whether all ways give the same numbers.

python -m benchmarks.gpu            needs a CUDA device; two minutes
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.speed import AUTHORS, simulation
from irmtv import Runs, Task, train
from irmtv.engine import program
from irmtv.engine.fused import fused_step

# label -> objective, settings at which every step is of the same kind
STEPS: dict[str, tuple[str, dict[str, Any]]] = {
    "ERM": ("erm", {"l2": 1e-3, "learning_rate": 5e-3}),
    "IRM-TV-l1, penalised": ("irm-tv-l1", {"warmup": 0, **AUTHORS}),
    "Minimax-TV-l1, rho climbing": ("minimax-tv-l1", {"warmup": 1_000_000, **AUTHORS}),
    "Minimax-TV-l1, penalised": ("minimax-tv-l1", {"warmup": 0, **AUTHORS}),
}
WANTED = {(60, "IRM-TV-l1, penalised"): 45, (60, "Minimax-TV-l1, rho climbing"): 180}
WANTED |= {(600, "IRM-TV-l1, penalised"): 150, (600, "Minimax-TV-l1, rho climbing"): 600}


def seconds(tasks: list[Task], name: str, runs: Runs, steps: int, **settings: Any) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    train(tasks, name, runs, steps=steps, device="cuda", **settings)
    torch.cuda.synchronize()
    return time.perf_counter() - start


def microseconds(tasks: list[Task], name: str, n_runs: int, **settings: Any) -> float:
    """Of a step, by the difference of a long and a short training."""
    runs = Runs(seed=range(n_runs), data=[i % len(tasks) for i in range(n_runs)])
    seconds(tasks, name, runs, 50, **settings)
    short, long = (min(seconds(tasks, name, runs, n, **settings) for _ in range(2)) for n in (500, 2500))
    return (long - short) / 2000 * 1e6


def parameters(tasks: list[Task], name: str, device: str, dtype: torch.dtype, **settings: Any) -> torch.Tensor:
    fitted = train(tasks, name, Runs(seed=range(10), data=range(10)), steps=200, device=device, dtype=dtype, **settings)
    return torch.cat([fitted.state()[0].parameters[k].flatten() for k in ("W0", "b0")])


def only_operations(step: Any, phase: Any) -> None:
    """In place of `fused_step`: nothing is fused."""
    return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, nargs="+", default=[60, 600])
    counts = parser.parse_args().runs
    tasks, console = simulation(), Console(width=110)
    table = Table(title=f"microseconds a step, {torch.cuda.get_device_name()}, 5,000 rows, 15 features")
    for column in ("runs", "step", "fused", "operations", "wanted"):
        table.add_column(column, justify="left" if column == "step" else "right")
    ways = (fused_step, only_operations)
    for n_runs in counts:
        for label, (name, settings) in STEPS.items():
            times = []
            for way in ways:
                program.fused_step = way  # type: ignore[attr-defined]
                times.append(f"{microseconds(tasks, name, n_runs, **settings):.0f}")
            table.add_row(str(n_runs), label, *times, str(WANTED.get((n_runs, label), "")))
    console.print(table)
    table = Table(title="largest difference of the weights after 200 steps from the CPU's, relative")
    for column in ("step", "float32 fused", "float32 operations", "float64 fused", "float64 operations"):
        table.add_column(column, justify="left" if column == "step" else "right")
    for label, (name, settings) in STEPS.items():
        cells = []
        mixed = settings | ({} if name == "erm" else {"warmup": 150})
        for dtype in (torch.float32, torch.float64):
            cpu = parameters(tasks, name, "cpu", dtype, **mixed)
            for way in ways:
                program.fused_step = way  # type: ignore[attr-defined]
                gap = (parameters(tasks, name, "cuda", dtype, **mixed) - cpu).abs().max() / cpu.abs().max()
                cells.append(f"{float(gap):.0e}")
        table.add_row(label.split(",")[0], *cells)
    console.print(table)


if __name__ == "__main__":
    main()
