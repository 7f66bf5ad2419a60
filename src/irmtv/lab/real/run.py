"""Every piece of work that the folder does not have yet: a split, a family of models, a seed of the folds.

Results are lines of JSON in one file, written as they come: what is finished is kept when the command is stopped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from irmtv._version import __version__
from irmtv.core.messages import check_positive, did_you_mean
from irmtv.core.plain_json import json_text
from irmtv.datasets.common import Home
from irmtv.lab.real.measure import FAMILIES, SCIKIT_LEARN, TREES, measure
from irmtv.lab.real.tables import RealTable, load_table, table_names
from irmtv.lab.workers import one_by_one, side_by_side
from irmtv.models.trees.library import lightgbm

NAME = "real"
FILE = f"{NAME}.jsonl"
KEY = ("table", "split", "family", "seed", "rows", "version")
Record = dict[str, Any]


@dataclass(frozen=True)
class Piece:
    """One family on one split with one seed."""

    table: str
    split: str
    family: str
    seed: int
    rows: str  # fingerprint of the table

    @property
    def label(self) -> str:
        return f"{self.table}: {self.split}, {self.family}" + (f", seed {self.seed}" if self.seed else "")

    @property
    def key(self) -> dict[str, Any]:
        parts = (self.table, self.split, self.family, self.seed, self.rows, __version__)
        return dict(zip(KEY, parts, strict=True))


@dataclass(frozen=True)
class RealRun:
    """Results, and what is not among them."""

    records: list[Record]  # those that were asked for, in order
    notes: list[str]  # of the tables
    left_out: list[str]  # tables without a file, families that cannot be trained here
    failed: list[str]
    found: int  # how many were in the folder


def run_real(
    out: Path,
    *,
    tables: Sequence[str] | None = None,
    families: Sequence[str] | None = None,
    seeds: int = 1,
    jobs: int = 1,
    data_home: Home = None,
    progress: Callable[[float, str], None] | None = None,
) -> RealRun:
    """Measure what the folder does not have.

    Parameters
    ----------
    out
        Folder of the results.
    tables, families
        Names; None: all. Trees are left out where LightGBM is not installed, unless they are named.
    seeds
        How many seeds of the folds, from 0 on; scikit-learn's models have none and are measured once.
    jobs
        Number of processes.
    data_home
        Folder of the tables; None: the one that IRMTV_DATA names.
    progress
        Called with the finished share and the name of a piece of work.
    """
    check_positive(seeds, "repetitions")
    check_positive(jobs, "jobs")
    names = table_names(tables)
    trained, left_out = _families(families)
    home = None if data_home is None else str(data_home)
    read: list[RealTable] = []
    for name in names:
        try:
            read.append(_table(name, home))
        except OSError as error:  # no such file, no network
            left_out.append(f"table {name!r}: {error}")
    pieces = [
        Piece(table.name, split.label, family, seed, table.fingerprint)
        for table in read
        for split in table.splits
        for family in trained
        for seed in range(1 if family == SCIKIT_LEARN else seeds)
    ]
    out.mkdir(parents=True, exist_ok=True)
    path = out / FILE
    known = read_records(path)
    missing = [piece for piece in pieces if _frozen(piece.key) not in known]
    failed = []
    work = partial(_work, data_home=home, threads=None if jobs == 1 else 1)

    def stage(label: str) -> None:
        if progress is not None:
            progress((len(pieces) - len(missing) + done) / len(pieces), label)

    done = 0
    results = one_by_one(missing, work, stage) if jobs == 1 else side_by_side(missing, work, jobs, stage)
    for piece, outcome in results:
        done += 1
        if outcome.error is not None:
            failed.append(f"{piece.label}: {outcome.error}")
            continue
        record = {**piece.key, **outcome.result}
        append_record(path, record)
        known[_frozen(piece.key)] = record
        stage(piece.label)
    records = [known[key] for piece in pieces if (key := _frozen(piece.key)) in known]
    notes = [note for table in read for note in table.notes]
    return RealRun(records, notes, left_out, failed, len(pieces) - len(missing))


def _families(asked: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Which are trained, and what is left out."""
    for name in asked or ():
        if name not in FAMILIES:
            raise ValueError(f"--methods must be one of {list(FAMILIES)}. Got {name!r}.{did_you_mean(name, FAMILIES)}")
    wanted = [name for name in FAMILIES if asked is None or name in asked]
    left_out = [f"{name}: not asked for" for name in FAMILIES if name not in wanted]
    if TREES in wanted:
        try:
            lightgbm()
        except ImportError as error:
            if asked is not None:
                raise
            wanted.remove(TREES)
            left_out.append(f"{TREES}: {error}")
    return wanted, left_out


@lru_cache(maxsize=2)
def _table(name: str, data_home: str | None) -> RealTable:
    return load_table(name, data_home)


def _work(piece: Piece, data_home: str | None, threads: int | None) -> Record:
    table = _table(piece.table, data_home)
    split = next(split for split in table.splits if split.label == piece.split)
    try:
        return measure(table, split, piece.family, piece.seed, threads)
    except ValueError as error:  # of this piece alone: the others go on
        raise RuntimeError(str(error)) from error


# --- the file ------------------------------------------------------------------------------------------------------


def _frozen(key: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(key[name] for name in KEY)


def read_records(path: Path) -> dict[tuple[Any, ...], Record]:
    """The results of a file by their key; a line that was cut off is not there."""
    records: dict[tuple[Any, ...], Record] = {}
    if not path.exists():
        return records
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and set(KEY) <= set(record):
            records[_frozen(record)] = record
    return records


def append_record(path: Path, record: Record) -> None:
    """One more line, after the end of one that was cut off."""
    before = path.read_bytes() if path.exists() else b""
    cut = before != b"" and not before.endswith(b"\n")
    with path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(("\n" if cut else "") + json_text(record) + "\n")
