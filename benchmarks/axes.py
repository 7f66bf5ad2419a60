"""Time and memory along one axis at a time, the others small: `make bench AXES=1`.

Every point is a process of its own: processor seconds of `make_task` and `train` (IRM-TV-l1, a linear model), and the
greatest resident memory above that of the process before it made the data, over the data's bytes (x, y and
environment as the user holds them, which are in it). Along `rows` training is one epoch of the mini-batches that are
the default from 100,000 rows on; along the other axes a hundred steps of all rows.

python -m benchmarks.axes                   all of them, ten minutes and 3 GB
python -m benchmarks.axes --axis rows
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.record import Ratio, record, table_of

SMALL = {"runs": 1, "rows": 10_000, "features": 10, "environments": 2}
AXES: dict[str, tuple[int, ...]] = {
    "runs": (1, 10, 100, 1000),
    "rows": (1_000, 10_000, 100_000, 1_000_000, 10_000_000),
    "features": (10, 100, 1000),
    "environments": (2, 20, 200, 1000),
}


def resident() -> float:
    """The greatest resident memory so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def point(runs: int, rows: int, features: int, environments: int, steps: int) -> dict[str, float]:
    """One point, measured in this process."""
    import numpy as np
    import torch

    from irmtv import Runs, make_task, train

    torch.set_num_threads(1)
    tiny = np.zeros((40, features), np.float32)  # what the first training of a process loads is not the data's
    tiny[::3] = 1
    small = make_task(tiny, np.arange(40) % 2, environment=np.arange(40) // 20)
    for batch_size in (None, 10):
        train(small, "irm-tv-l1", steps=10, warmup=0, batch_size=batch_size)
    before = resident()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, features), np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    environment = np.arange(rows) % environments
    size = x.nbytes + y.nbytes + environment.nbytes
    start = time.process_time()
    task = make_task(x, y, environment=environment, min_rows=1)
    prepared = time.process_time() - start
    train(task, "irm-tv-l1", Runs(seed=range(runs)), steps=steps, warmup=0, penalty_weight=10.0)
    seconds = time.process_time() - start
    return {"seconds": seconds, "prepared": prepared, "memory": (resident() - before) / size, "bytes": float(size)}


def measure(axis: str, value: int) -> dict[str, float]:
    """The same in a process of its own."""
    at = {**SMALL, axis: value}
    steps = max(1, value // 1024) if axis == "rows" else 100
    command = [sys.executable, "-m", "benchmarks.axes", "--point", json.dumps({**at, "steps": steps})]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def wanted_of(axis: str, points: dict[int, dict[str, float]]) -> list[Ratio]:
    """The ratios that are wanted of an axis."""
    if axis != "rows":
        return []
    large = {n: p for n, p in points.items() if n >= 100_000}
    each = [p["seconds"] / n for n, p in large.items()]
    return [
        Ratio("rows 1e5 to 1e7: time per row, most / least", max(each) / min(each), 1.2),
        Ratio("rows 1e5 to 1e7: memory above the empty process / data", max(p["memory"] for p in large.values()), 2.5),
    ]


def points_of(axis: str, points: dict[int, dict[str, float]]) -> Table:
    table = Table(title=f"along {axis}, the others " + ", ".join(f"{v:,} {k}" for k, v in SMALL.items() if k != axis))
    for column in (axis, "seconds", "of them make_task", f"microseconds / {axis[:-1]}", "memory / data"):
        table.add_column(column, justify="right")
    for value, p in points.items():
        cells = (
            f"{p['seconds']:.3f}",
            f"{p['prepared']:.3f}",
            f"{p['seconds'] / value * 1e6:,.2f}",
            f"{p['memory']:.2f}",
        )
        table.add_row(f"{value:,}", *cells)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axis", choices=AXES, action="append", help="only this one; may be repeated")
    parser.add_argument("--no-record", action="store_true", help="leave benchmarks/results.jsonl as it is")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.point:
        print(json.dumps(point(**json.loads(asked.point))))
        return
    console = Console()
    ratios: list[Ratio] = []
    kept: dict[str, Any] = {}
    for axis in asked.axis or AXES:
        points = {value: measure(axis, value) for value in AXES[axis]}
        console.print(points_of(axis, points))
        ratios += wanted_of(axis, points)
        kept[axis] = {str(value): {k: round(v, 4) for k, v in p.items()} for value, p in points.items()}
    if ratios:
        console.print(table_of("what is wanted", ratios))
    if not asked.no_record:
        record("axes", ratios, points=kept)


if __name__ == "__main__":
    main()
