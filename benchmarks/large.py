"""A table that is larger than the memory: what `irmtv fit --model linear` takes of memory and time, and its answer.

    python -m benchmarks.large FOLDER --rows 20000000 --memory 1GB

makes that many rows x 20 features in FOLDER (Parquet, five sites as Hive partitions; about 170 bytes a row), and a
tenth of them beside it, runs the command in a process of its own, and prints

- its peak resident memory, its time and the number of passes over the files, with the time of a bare pass that decodes
  them and does nothing else;
- how far the coefficients of ERM on the tenth are from those of the same rows in memory, relative to the largest.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import irmtv
from irmtv.app.io.parquet import TIMES, open_parquet

SITES = ("north", "south", "east", "west", "centre")
AGREEMENT = (0.95, 0.9, 0.8, 0.7, 0.6)  # of the shortcuts with the target, by site
CAUSES, SHORTCUTS, NOISE = 6, 3, 10
GROUP = 250_000  # rows of a row group
FILES = 4  # of a site


class Ended(NamedTuple):
    """A command that has ended."""

    seconds: float
    processor: float  # seconds, of all cores
    peak: float  # bytes of resident memory
    answer: dict[str, Any]


def rows_of(site: int, n: int, rng: np.random.Generator) -> pa.Table:
    """Some rows of a site: causes, shortcuts that agree with the target as the site has it, noise and a colour."""
    causes = rng.normal(size=(n, CAUSES))
    sold = causes @ np.linspace(1.0, 0.2, CAUSES) + rng.logistic(size=n) > 0
    agrees = np.where(rng.random((n, SHORTCUTS)) < AGREEMENT[site], sold[:, None], ~sold[:, None])
    shortcuts = agrees + rng.normal(size=(n, SHORTCUTS))
    noise = rng.normal(size=(n, NOISE)) + site / 5
    noise[:, 0] = np.where(rng.random(n) < 0.02, np.nan, noise[:, 0])
    columns = {
        **{f"cause{j}": causes[:, j] for j in range(CAUSES)},
        **{f"shortcut{j}": shortcuts[:, j] for j in range(SHORTCUTS)},
        **{f"noise{j}": noise[:, j] for j in range(NOISE)},
    }
    made = {name: pa.array(values, from_pandas=True) for name, values in columns.items()}
    colours = pa.DictionaryArray.from_arrays(pa.array(rng.integers(0, 3, n), pa.int8()), ["red", "green", "blue"])
    return pa.table({**made, "colour": colours.cast(pa.string()), "sold": pa.array(sold.astype(np.int64))})


def make(folder: Path, rows: int) -> None:
    """The table, and a tenth of it in a folder beside; nothing where they are there already."""
    whole, tenth = folder / "whole", folder / "tenth"
    if whole.exists():
        return
    each = rows // (len(SITES) * FILES)
    for e, site in enumerate(SITES):
        for number in range(FILES):
            rng = np.random.default_rng([e, number])
            paths = [place / f"site={site}" / f"part-{number}.parquet" for place in (whole, tenth)]
            for path in paths:
                path.parent.mkdir(parents=True, exist_ok=True)
            writers = list[pq.ParquetWriter]()
            for start in range(0, each, GROUP):
                group = rows_of(e, min(GROUP, each - start), rng)
                writers = writers or [pq.ParquetWriter(path, group.schema) for path in paths]
                writers[0].write_table(group)
                writers[1].write_table(group.slice(0, group.num_rows // 10))
            for writer in writers:
                writer.close()


def bare_pass(folder: Path) -> float:
    """Seconds to decode all files."""
    began = time.perf_counter()
    for path in sorted(folder.rglob("*.parquet")):
        with pq.ParquetFile(path) as file:
            for _ in file.iter_batches(batch_size=1 << 16):
                pass
    return time.perf_counter() - began


def fit(folder: Path, memory: str, out: Path, model: str = "linear", objective: str = "auto") -> Ended:
    """`irmtv fit` in a process of its own."""
    command = "from irmtv.cli import main; main()"
    options = ["--target", "sold", "--environment", "site", "--model", model, "--memory", memory, "--out", str(out)]
    options += ["--objective", objective]
    began = time.perf_counter()
    with (out.with_suffix(".json")).open("w") as answer:
        process = subprocess.Popen(
            [sys.executable, "-c", command, "fit", str(folder), *options, "--json"], stdout=answer
        )
        _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"irmtv fit {folder} ended with {status}")
    seconds, processor = time.perf_counter() - began, used.ru_utime + used.ru_stime
    return Ended(seconds, processor, used.ru_maxrss * 1024, json.loads(out.with_suffix(".json").read_text()))


def passes_of(answer: dict[str, Any]) -> int:
    """That training made; one comes before it."""
    note = next(note for note in answer["data"]["notes"] if note.startswith("the files were read"))
    return int(re.findall(r"(\d+) times by it", note)[0])


def identified(pipeline: Any) -> NDArray[np.float64]:
    """Coefficients and intercept of a linear model; the mean of the categories' is the intercept's.

    The columns of all categories add up to 1 as the intercept's does: without l2 any number may go from these to that.
    """
    coefficients, model = pipeline[-1].coef_.ravel().copy(), pipeline[-1]
    categories = [i for i, name in enumerate(pipeline[:-1].get_feature_names_out()) if name.startswith("colour_")]
    mean = coefficients[categories].mean()
    coefficients[categories] -= mean
    return np.r_[coefficients, model.intercept_.ravel() + mean]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--model", default="linear")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    make(given.folder, given.rows)
    whole, tenth = given.folder / "whole", given.folder / "tenth"
    size = sum(path.stat().st_size for path in whole.rglob("*.parquet"))
    print(f"{given.rows:,} rows, {size / 1e9:.2f} GB of Parquet")
    bare_pass(whole)  # brings files from the disk into memory, where all passes that are compared find them
    bare = [bare_pass(whole)]
    ended = fit(whole, given.memory, given.folder / "whole.irmtv", given.model)
    bare.append(bare_pass(whole))
    training = passes_of(ended.answer)
    seconds, pass_ = ended.answer["seconds"], float(np.mean(bare))
    print(f"peak resident memory: {ended.peak / 1e9:.2f} GB with --memory {given.memory}")
    print(f"time: {ended.seconds:.0f} s ({ended.processor:.0f} s of processors), of which the pass before training")
    print(f"  {seconds['preparing']:.1f} s, training on all rows {seconds['all rows']:.1f} s; the rest is the search")
    print("  on a sample, and what is said of it")
    print(f"a bare pass: {bare[0]:.1f} s before, {bare[1]:.1f} s after")
    print(f"passes: 1 before training, {seconds['preparing'] / pass_:.2f} bare passes;")
    print(f"  {training} by training, {seconds['all rows'] / max(1, training) / pass_:.2f} bare passes each")
    if given.model != "linear":
        return
    table = open_parquet(tenth)  # with as much memory as it can have and is not read as a whole: the samples are equal
    fit(tenth, str(TIMES * table.bytes_in_memory() - 1), given.folder / "streamed.irmtv", objective="erm")
    fit(tenth, "1TB", given.folder / "memory.irmtv", objective="erm")
    streamed, memory = (identified(irmtv.load(given.folder / f"{name}.irmtv")) for name in ("streamed", "memory"))
    print(
        f"coefficients of a tenth, streamed and in memory: {abs(streamed - memory).max() / abs(memory).max():.1e} apart"
    )


if __name__ == "__main__":
    main()
