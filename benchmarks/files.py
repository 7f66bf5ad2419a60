"""What reading, fitting and predicting a large file costs: time as a multiple of pandas' reading, and peak memory.

`python -m benchmarks.files [--rows N]` makes a table of N rows and 30 columns (numbers, categories, texts, a date,
missing values) in a temporary folder and runs every step in a process of its own. The ratios are of one run; bounds:
reading 1.3 times pandas.read_csv, `fit` outside training 3 times, `fit` under 4 GB, `predict` in constant memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

ROWS, FEW = 1_000_000, 200_000
NUMBERS, COUNTS, CATEGORIES = 18, 4, 4


def make_table(path: Path, rows: int, seed: int = 0) -> None:
    """30 columns: 18 numbers, 4 counts, 4 categories, a text of 5,000 levels, a date, a site, the target."""
    with path.open("w", encoding="utf-8", newline="") as file:
        for start in range(0, rows, 100_000):
            _piece(min(100_000, rows - start), np.random.default_rng([seed, start])).to_csv(
                file, header=start == 0, index=False, lineterminator="\n"
            )


def _piece(n: int, rng: np.random.Generator) -> pd.DataFrame:
    frame = pd.DataFrame({f"number {j}": rng.normal(size=n).round(5) for j in range(NUMBERS)})
    for j in range(COUNTS):
        frame[f"count {j}"] = rng.integers(0, 10 ** (j + 1), n)
    for j in range(CATEGORIES):
        levels = np.array([f"level {j} {k}" for k in range(3 + 8 * j)])
        frame[f"category {j}"] = levels[rng.integers(0, len(levels), n)]
    frame["street"] = np.array([f"{k} some street" for k in range(5000)])[rng.integers(0, 5000, n)]
    day = np.datetime64("2014-01-01") + rng.integers(0, 3000, n)
    frame["date"] = np.datetime_as_string(day)
    frame["site"] = np.array(["north", "south", "east", "west"])[rng.integers(0, 4, n)]
    signal = frame["number 0"] + 0.5 * frame["number 1"] + rng.normal(size=n)
    for name in ("number 2", "category 1", "date", "count 3"):
        frame[name] = frame[name].mask(rng.random(n) < 0.05)
    frame["bought"] = np.where(signal > 0, "yes", "no")
    return frame


# ---- what is measured, each in a process of its own ----------------------------------------------------------------


def _with_pandas(path: str) -> None:
    pd.read_csv(path)


def _with_irmtv(path: str) -> None:
    from irmtv.app.io import read_table

    read_table(path)


def _prepare(path: str) -> None:
    """Reading, dividing, preprocessing: what `fit` does before it trains."""
    from sklearn.pipeline import Pipeline

    from irmtv.app.io import read_table, split_columns, table_steps

    columns = split_columns(read_table(path).frame, target="bought", environment="site")
    Pipeline(table_steps()).fit_transform(columns.features)


def _command(*arguments: str) -> None:
    from irmtv.cli import app

    app(list(arguments), standalone_mode=False)


STEPS = {"pandas": _with_pandas, "read": _with_irmtv, "prepare": _prepare, "command": _command}
# imported before the clock starts
IMPORTS = {
    "pandas": "pandas",
    "read": "irmtv.app.io",
    "prepare": "irmtv.data.tables.steps",
    "command": "irmtv.app.fit.workflow",
}


def _measured(step: str, *arguments: str) -> dict[str, float]:
    """Seconds and peak memory (MB) of a step, and what it printed as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.files", "--step", step, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    *before, last = done.stdout.strip().splitlines()
    found = json.loads(last)
    if before:
        found["printed"] = json.loads("\n".join(before))
    return found


def _run(step: str, arguments: list[str]) -> None:
    __import__(IMPORTS[step])
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    clock, work = time.perf_counter(), time.process_time()
    STEPS[step](*arguments)
    seconds, cpu = time.perf_counter() - clock, time.process_time() - work
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": seconds, "cpu": cpu, "peak": peak / 1024, "imports": start / 1024}))


def main(rows: int = ROWS) -> None:
    """Make the files, measure, print."""
    shown = Table(title=f"{rows:,} x 30 CSV, one run")
    for name in ("step", "seconds", "times pandas", "peak MB"):
        shown.add_column(name, justify="left" if name == "step" else "right")
    with tempfile.TemporaryDirectory() as folder:
        large, small, model = Path(folder, "large.csv"), Path(folder, "small.csv"), Path(folder, "model.irmtv")
        make_table(large, rows)
        make_table(small, min(FEW, rows // 5))
        base = _measured("pandas", str(large))

        def line(name: str, found: dict[str, float], seconds: float | None = None) -> None:
            own = found["seconds"] if seconds is None else seconds
            shown.add_row(name, f"{own:.1f}", f"{own / base['seconds']:.2f}", f"{found['peak']:,.0f}")

        line("pandas.read_csv", base)
        line("read_table", _measured("read", str(large)))
        line("read_table, split_columns, table_steps", _measured("prepare", str(large)))
        fit = ["fit", str(large), "--target", "bought", "--environment", "site", "--out", str(model), "--json"]
        fitted = _measured("command", *fit)
        laps = fitted["printed"]["seconds"]  # type: ignore[index]
        line("fit", fitted)
        line("fit, outside training", fitted, fitted["seconds"] - laps["training"])
        for name, file in (("predict", large), (f"predict, {min(FEW, rows // 5):,} rows", small)):
            found = _measured("command", "predict", str(model), str(file), "--out", str(Path(folder, "out.csv")))
            line(name, found)
        Console().print(shown)
        Console().print({name: round(seconds, 1) for name, seconds in laps.items()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--step", choices=sorted(STEPS))
    asked, rest = parser.parse_known_args()
    if asked.step:
        _run(asked.step, rest)
    else:
        main(asked.rows)
