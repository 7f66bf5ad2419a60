"""The content of a store: its tables, the records they hold, and how records become rows and back."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

FORMAT = 1  # of the tables below; a store with a higher number was written by a newer irmtv
APPLICATION_ID = 0x49524D54  # "IRMT", in the header of the file: tells our databases from others

# Times, hosts and machines stand in `groups`, `failures` and `specs.added` only, so that the other columns of two
# stores of the same experiment are equal.
TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE specs (hash TEXT PRIMARY KEY, text TEXT NOT NULL, added TEXT NOT NULL);
CREATE TABLE groups (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, label TEXT NOT NULL, spec_hash TEXT NOT NULL,
    device TEXT NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL,
    started TEXT NOT NULL, seconds REAL NOT NULL, versions TEXT NOT NULL
);
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, group_id INTEGER NOT NULL REFERENCES groups (id), key TEXT NOT NULL UNIQUE,
    setting TEXT NOT NULL, method TEXT NOT NULL, objective TEXT NOT NULL,
    repetition INTEGER NOT NULL, seed INTEGER NOT NULL, part TEXT NOT NULL,
    hyperparameters TEXT NOT NULL, status TEXT NOT NULL, diverged_at INTEGER
);
CREATE TABLE arrays (
    run_id INTEGER NOT NULL REFERENCES runs (id), name TEXT NOT NULL,
    dtype TEXT NOT NULL, shape TEXT NOT NULL, data BLOB NOT NULL, UNIQUE (run_id, name)
);
CREATE TABLE metrics (
    run_id INTEGER NOT NULL REFERENCES runs (id), environment TEXT NOT NULL, metric TEXT NOT NULL,
    value REAL, -- NULL is NaN
    UNIQUE (run_id, environment, metric)
);
CREATE TABLE failures (
    id INTEGER PRIMARY KEY, group_key TEXT NOT NULL, label TEXT NOT NULL, text TEXT NOT NULL,
    host TEXT NOT NULL, pid INTEGER NOT NULL, happened TEXT NOT NULL
);
"""

STATUSES = ("finished", "diverged")
DTYPES = {name: np.dtype(code) for name, code in (("float32", "<f4"), ("float64", "<f8"), ("int64", "<i8"))}
DTYPES["bool"] = np.dtype("?")
MAX_ARRAY_BYTES = 500_000_000  # SQLite takes at most 10^9 bytes in one row


class StoreError(ValueError):
    """A store cannot be used as asked."""


@dataclass(frozen=True)
class Metric:
    """One number of one run at its last step."""

    environment: str
    metric: str
    value: float


@dataclass(frozen=True)
class RunRecord:
    """One finished run."""

    key: str  # sha256 hex of everything that decides its numbers
    setting: str
    method: str  # label
    objective: str
    repetition: int
    seed: int
    part: str  # "all", "fold 1/5", "without <environment>"
    hyperparameters: Mapping[str, Any]  # JSON-able (a tuple comes back as a list); all resolved settings of the run
    status: str  # "finished" or "diverged"
    diverged_at: int | None
    arrays: Mapping[str, np.ndarray]  # snapshot statistics and metrics: "steps" (S,), "test/accuracy" (S, E)
    metrics: tuple[Metric, ...]  # last step, readable with plain SQL


@dataclass(frozen=True)
class Group:
    """Runs that were trained together, and where and when."""

    key: str  # group_key of the runs
    label: str
    spec_hash: str
    device: str
    host: str
    pid: int
    started: str  # ISO, UTC
    seconds: float
    versions: Mapping[str, str]  # irmtv, torch, python, numpy
    runs: tuple[RunRecord, ...]


@dataclass(frozen=True)
class Failure:
    """A group that raised an error in place of giving results."""

    group_key: str
    label: str
    text: str
    happened: str  # ISO, UTC


def group_key(run_keys: Iterable[str]) -> str:
    """The key of a group: sha256 of the keys of its runs, in order."""
    return hashlib.sha256("\n".join(run_keys).encode()).hexdigest()


def as_json(value: Any, what: str) -> str:
    """One text for one content: keys sorted. Infinity and NaN come back too."""
    try:
        return json.dumps(value, sort_keys=True, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise StoreError(f"{what} must be numbers, texts, lists and mappings only. Got {value!r}: {error}.") from error


def check_group(group: Group) -> None:
    """Raise unless the group can be stored, before anything is written."""
    keys = [run.key for run in group.runs]
    if not keys:
        raise StoreError(f"group {group.label!r} must hold at least one run. Got none.")
    if len(set(keys)) < len(keys):
        raise StoreError(f"the runs of group {group.label!r} must have different keys. Got {keys}.")
    if group.key != group_key(keys):
        raise StoreError(f"the key of group {group.label!r} must be group_key of its runs' keys. Got {group.key!r}.")
    for run in group.runs:
        if run.status not in STATUSES:
            raise StoreError(f"status must be one of {list(STATUSES)}. Got {run.status!r} (run {run.key}).")
        if (run.status == "diverged") != (run.diverged_at is not None):
            raise StoreError(
                f"diverged_at must be a step where status is 'diverged', and None elsewhere. Got {run.diverged_at!r} "
                f"with status {run.status!r} (run {run.key})."
            )


def group_row(group: Group) -> tuple[Any, ...]:
    versions = as_json(dict(group.versions), "versions")
    where = (group.device, group.host, int(group.pid))
    return (group.key, group.label, group.spec_hash, *where, group.started, float(group.seconds), versions)


def run_row(run: RunRecord) -> tuple[Any, ...]:
    names = (run.key, run.setting, run.method, run.objective)
    settings = as_json(dict(run.hyperparameters), f"hyperparameters of run {run.key}")
    diverged_at = None if run.diverged_at is None else int(run.diverged_at)
    return (*names, int(run.repetition), int(run.seed), run.part, settings, run.status, diverged_at)


def array_rows(run: RunRecord) -> list[tuple[Any, ...]]:
    """Raw little-endian bytes in C order: read back bit for bit, and nothing in them can be executed."""
    rows = []
    for name, array in run.arrays.items():
        kind = array.dtype.name if isinstance(array, np.ndarray) else type(array).__name__
        if kind not in DTYPES:
            raise StoreError(f"array {name!r} must be a NumPy array of {', '.join(DTYPES)}. Got {kind}; convert it.")
        if array.nbytes > MAX_ARRAY_BYTES:
            raise StoreError(f"array {name!r} must have at most {MAX_ARRAY_BYTES} bytes. Got {array.nbytes}; split it.")
        data = array.astype(DTYPES[kind], copy=False).tobytes()
        rows.append((name, kind, json.dumps(list(array.shape)), data))
    return rows


def metric_rows(run: RunRecord) -> list[tuple[Any, ...]]:
    return [(m.environment, m.metric, float(m.value)) for m in run.metrics]


def as_array(name: str, kind: str, shape: str, data: bytes) -> np.ndarray:
    """The array of a row, writable and in the machine's byte order."""
    dims: Sequence[int] = json.loads(shape)
    if kind not in DTYPES or len(data) != math.prod(dims) * DTYPES[kind].itemsize:
        raise StoreError(f"array {name!r} is damaged: {len(data)} bytes cannot be {kind} of shape {tuple(dims)}.")
    return np.ndarray(tuple(dims), DTYPES[kind], buffer=data).astype(np.dtype(kind))


def as_value(stored: float | None) -> float:
    """SQLite has no NaN: it keeps NULL in its place."""
    return math.nan if stored is None else stored


def as_record(row: Sequence[Any], arrays: Mapping[str, np.ndarray], metrics: Iterable[Metric]) -> RunRecord:
    """The record of a row of `runs`, without its ids."""
    key, setting, method, objective, repetition, seed, part, hyperparameters, status, diverged_at = row
    settings = json.loads(hyperparameters)
    names = (key, setting, method, objective)
    return RunRecord(*names, repetition, seed, part, settings, status, diverged_at, arrays, tuple(metrics))


def run_name(run: RunRecord) -> str:
    return f"{run.setting}, {run.method}, repetition {run.repetition}, {run.part}"
