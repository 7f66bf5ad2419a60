"""The store of an experiment: one SQLite file in its folder, one writer, append-only.

>>> with Store.create_or_open("results/simulation") as store:   # doctest: +SKIP
...     store.add_group(group)
>>> Store.read("results/simulation").metrics_frame()            # doctest: +SKIP

Nothing that is written can be changed or removed, and a group of runs is stored as a whole or not at all, whatever
happens to the process or the machine.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import socket
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from irmtv.core.numbers import several
from irmtv.lab.experiments.store_arrays import array_rows, as_array
from irmtv.lab.experiments.store_digests import GROUP, RUN, SPEC, Digests, add_digest, add_run_digest
from irmtv.lab.experiments.store_files import (
    DATABASE,
    StoreDamaged,
    StoreError,
    WriterLock,
    check_source,
    check_target,
    connect_to_read,
    connect_to_write,
    explained,
    explaining,
    make_database,
    now,
    settle,
    take_lock,
)

if TYPE_CHECKING:
    import pandas as pd  # loaded by `metrics_frame` only: a store opens in no time

STATUSES = ("finished", "diverged")
_RUN_COLUMNS = "key, setting, method, objective, repetition, seed, part, hyperparameters, status, diverged_at"
_GROUP_COLUMNS = "key, label, spec_hash, device, host, pid, started, seconds, versions"
ALL = "TRUE"  # the condition
_COLUMN_OF = {"settings": "setting", "methods": "method", "parts": "part", "keys": "key", "arrays": "name"}


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


def _run_row(run: RunRecord) -> tuple[Any, ...]:
    """The values of `_RUN_COLUMNS`; numbers of NumPy are not what SQLite takes."""
    settings = as_json(dict(run.hyperparameters), f"hyperparameters of run {run.key}")
    diverged_at = None if run.diverged_at is None else int(run.diverged_at)
    numbers = (int(run.repetition), int(run.seed))
    return (run.key, run.setting, run.method, run.objective, *numbers, run.part, settings, run.status, diverged_at)


def _stored_value(value: float) -> float | None:
    """SQLite has no NaN: NULL stands in its place. Nor has it a negative zero."""
    return None if math.isnan(value) else float(value) + 0.0


def as_value(stored: float | None) -> float:
    return math.nan if stored is None else stored


def run_name(run: RunRecord) -> str:
    return f"{run.setting}, {run.method}, repetition {run.repetition}, {run.part}"


def _name(row: Sequence[Any]) -> str:
    """The same of a row that may be damaged."""
    of = dict(zip(_RUN_COLUMNS.split(", "), row, strict=True))
    return f"{of['setting']}, {of['method']}, repetition {of['repetition']}, {of['part']}"


def _record(row: Sequence[Any], metrics: Sequence[Any], arrays: Sequence[Any]) -> RunRecord:
    """A run from its rows."""
    columns = dict(zip(_RUN_COLUMNS.split(", "), row, strict=True))
    return RunRecord(
        **{**columns, "hyperparameters": json.loads(columns["hyperparameters"])},
        arrays={name: as_array(name, *array) for name, *array in arrays},
        metrics=tuple(Metric(environment, metric, as_value(value)) for environment, metric, value in metrics),
    )


class Store:
    """Open one with :meth:`create_or_open` (to write) or :meth:`read`; close it, or use it in a `with` block."""

    def __init__(self, folder: Path, connection: sqlite3.Connection, lock: WriterLock | None) -> None:
        self.folder = folder
        self._path = folder / DATABASE
        self._connection = connection
        self._lock = lock

    @classmethod
    def create_or_open(
        cls, folder: str | Path, *, wait: bool = False, on_wait: Callable[[str], None] | None = None
    ) -> Store:
        """Open the store in `folder` to write to it; create it if there is none.

        Only one process writes at a time, from here until :meth:`close`. While another one does, this raises
        :class:`StoreBusy`, or with `wait` waits until it has ended; `on_wait` is called once with a message.
        """
        folder = Path(folder)
        with explaining(folder / DATABASE):
            check_target(folder)
            folder.mkdir(parents=True, exist_ok=True)
            lock = take_lock(folder, wait, on_wait)
            try:
                if not (folder / DATABASE).exists():
                    make_database(folder)
                return cls(folder, connect_to_write(folder), lock)
            except BaseException:
                lock.release()
                raise

    @classmethod
    def read(cls, folder: str | Path) -> Store:
        """Open the store in `folder` to read it; another process may be writing. Changes nothing."""
        folder = Path(folder)
        with explaining(folder / DATABASE):
            check_source(folder)
            return cls(folder, connect_to_read(folder), None)

    def close(self) -> None:
        """Close the files and release the lock. A second call does nothing."""
        lock, self._lock = self._lock, None
        if lock is None:
            self._connection.close()
            return
        try:
            settle(self._connection)
        finally:
            lock.release()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({str(self.folder)!r}, {'to read' if self._lock is None else 'to write'})"

    # --- writing -------------------------------------------------------------------------------------------------

    def add_spec(self, hash: str, text: str) -> None:
        """Keep the text of a spec. The same one may be given again."""
        with self._transaction() as connection:
            row = connection.execute("SELECT text FROM specs WHERE hash = ?", (hash,)).fetchone()
            if row is None:
                connection.execute("INSERT INTO specs VALUES (?, ?, ?)", (hash, text, now()))
                add_digest(connection, SPEC, hash, (hash, text))
            elif row[0] != text:
                raise StoreError(f"{self.folder} holds another text for the spec with hash {hash!r}.")

    def add_group(self, group: Group) -> None:
        """Keep the runs of a group, all or none. A run that is there already is an error."""
        check_group(group)
        # everything is turned into rows first, so that a record that cannot be stored is found before the writing
        rows = [(_run_row(run), array_rows(run.arrays)) for run in group.runs]
        versions = as_json(dict(group.versions), "versions")
        place = (group.key, group.label, group.spec_hash, group.device, group.host, int(group.pid))
        group_row = (*place, group.started, float(group.seconds), versions)
        with self._transaction() as connection:
            for run in group.runs:
                if connection.execute("SELECT 1 FROM runs WHERE key = ?", (run.key,)).fetchone():
                    raise StoreError(
                        f"{self.folder} holds the run {run.key} already ({run_name(run)}), and what is stored stays. "
                        "Leave out the runs that finished() names."
                    )
            group_id = connection.execute(
                f"INSERT INTO groups ({_GROUP_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", group_row
            ).lastrowid
            add_digest(connection, GROUP, group_id, group_row)
            for run, (row, arrays) in zip(group.runs, rows, strict=True):
                run_id = connection.execute(
                    f"INSERT INTO runs (group_id, {_RUN_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (group_id, *row),
                ).lastrowid
                connection.executemany("INSERT INTO arrays VALUES (?, ?, ?, ?, ?)", ((run_id, *a) for a in arrays))
                metrics = [(m.environment, m.metric, _stored_value(m.value)) for m in run.metrics]
                connection.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?)", ((run_id, *m) for m in metrics))
                add_run_digest(connection, run_id, row, metrics, arrays)
        with suppress(sqlite3.Error):  # into the one file, so that a log that is lost costs no group; readers go first
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def add_failure(self, group_key: str, label: str, text: str) -> None:
        """Note that a group raised an error. Its runs count as not done."""
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO failures (group_key, label, text, host, pid, happened) VALUES (?, ?, ?, ?, ?, ?)",
                (group_key, label, text, socket.gethostname(), os.getpid(), now()),
            )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction: after any error nothing of it is written, and the store stays usable."""
        if self._lock is None:
            raise StoreError(
                f"{self.folder} was opened to read, or is closed. Use Store.create_or_open to write to it."
            )
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection
            self._connection.execute("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.Error):  # SQLite may have rolled back itself, on a full disk for example
                self._connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise explained(error, self._path, self._safe()) from error
            raise

    def _safe(self) -> str:
        try:
            count = len(self)
            return "1 run is safe in it" if count == 1 else f"{count} runs are safe in it"
        except StoreError:  # cannot be read now either
            return "The runs stored before are safe in it"

    # --- reading -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of runs."""
        (count,) = self._select("SELECT COUNT(*) FROM runs")[0]
        return int(count)

    def finished(self) -> frozenset[str]:
        """The keys of the runs that need not be trained again: finished, or diverged."""
        return frozenset(key for (key,) in self._select("SELECT key FROM runs NOT INDEXED"))

    def runs(
        self,
        settings: Collection[str] | None = None,
        methods: Collection[str] | None = None,
        parts: Collection[str] | None = None,
        arrays: Collection[str] | None = None,
        keys: Collection[str] | None = None,
    ) -> list[RunRecord]:
        """The runs of these settings, methods, parts and keys, as they came, with the arrays of these names.

        None stands for all of them; `arrays=()` loads no array.
        """
        where, values = _where({"settings": settings, "methods": methods, "parts": parts, "keys": keys})
        also, names = _where({"arrays": arrays})
        everything = where == also == ALL
        with self._snapshot():
            if everything:
                self._check_integrity()
            digests = self._digests(where, values)
            found = self._runs(digests, where, values, also, names)
            if everything:
                self._check_groups(digests)
        return found

    def _runs(
        self, digests: Digests, where: str, values: Sequence[Any], also: str = ALL, names: Sequence[str] = ()
    ) -> list[RunRecord]:
        """The runs for which `where` holds, with the arrays for which `also` holds, compared with their digests."""
        rows = self._select(f"SELECT id, {_RUN_COLUMNS} FROM runs WHERE {where} ORDER BY id", values)
        arrays_of: dict[int, list[Any]] = {run_id: [] for run_id, *_ in rows}
        metrics_of: dict[int, list[Any]] = {run_id: [] for run_id, *_ in rows}
        for run_id, *array in self._select(
            "SELECT run_id, name, dtype, shape, data FROM arrays JOIN runs ON runs.id = run_id "
            f"WHERE {where} AND {also} ORDER BY arrays.rowid",
            [*values, *names],
        ):
            if run_id in arrays_of:
                arrays_of[run_id].append(array)
        for run_id, *metric in self._select(
            "SELECT run_id, environment, metric, value FROM metrics JOIN runs ON runs.id = run_id "
            f"WHERE {where} ORDER BY metrics.rowid",
            values,
        ):
            if run_id in metrics_of:
                metrics_of[run_id].append(metric)
        found, damaged = [], []
        for run_id, *row in rows:
            of_run = (row, metrics_of[run_id], arrays_of[run_id])
            try:
                if not digests.run_fits(run_id, *of_run, every=also == ALL):
                    raise ValueError("another digest")
                found.append(_record(*of_run))
            except (ValueError, TypeError, KeyError, AttributeError):  # no JSON, no array, no number in their places
                damaged.append(_name(row))
        if damaged:
            more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
            raise StoreDamaged(self._path, f"run {damaged[0]!r}{more} cannot be what was stored")
        return found

    def check(self) -> None:
        """Read everything; raise StoreDamaged, which names what is not as it was stored."""
        self.runs()
        self.specs()

    def parts(self) -> dict[str, str]:
        """The part of every run, by its key."""
        return dict(self._select("SELECT key, part FROM runs ORDER BY id"))

    def check_structure(self) -> None:
        """Raise StoreDamaged where a run or a group is lost; what the runs hold is compared when they are read."""
        with self._snapshot():
            self._check_integrity()
            self._check_groups(self._digests())

    def _digests(self, where: str = ALL, values: Sequence[Any] = ()) -> Digests:
        """Of the runs for which `where` holds, and of all groups and specs."""
        if not self._select("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'digests'"):
            return Digests(())
        of_runs = f" WHERE kind != '{RUN}' OR id IN (SELECT id FROM runs WHERE {where})" if where != ALL else ""
        return Digests(self._select(f"SELECT kind, id, digest, arrays FROM digests{of_runs}", values))

    def _check_integrity(self) -> None:
        """Whether the tables hold what their indices say: a row that is lost is missing in one of them."""
        ((word, *_), *_) = self._select("PRAGMA integrity_check(1)")
        if word != "ok":
            raise StoreDamaged(self._path, f"SQLite finds: {str(word).splitlines()[-1]}")

    def _check_groups(self, digests: Digests) -> None:
        for what in self._damaged_groups(digests).values():
            raise StoreDamaged(self._path, what)

    def _damaged_groups(self, digests: Digests) -> dict[Any, str]:
        """What is wrong with groups, by their number."""
        runs: dict[Any, list[tuple[Any, Any]]] = {}
        for run_id, group_id, key in self._select("SELECT id, group_id, key FROM runs NOT INDEXED ORDER BY id"):
            runs.setdefault(group_id, []).append((run_id, key))
        damaged = {group_id: f"{several(len(its), 'run')} belong to no group" for group_id, its in runs.items()}
        for group_id, *row in self._select(f"SELECT id, {_GROUP_COLUMNS} FROM groups ORDER BY id"):
            its, has = runs.get(group_id, []), digests.has(GROUP, group_id)
            fits = digests.fits(GROUP, group_id, row) and all(digests.has(RUN, run_id) == has for run_id, _ in its)
            if fits and row[0] == group_key(str(key) for _, key in its):
                damaged.pop(group_id, None)
            else:
                damaged[group_id] = f"the group {row[1]!r}, or a run of it, cannot be what was stored"
        return damaged

    def undamaged_groups(self) -> Iterator[Group]:
        """Every group that is as it was stored, as they came."""
        digests = self._digests()
        damaged = self._damaged_groups(digests)
        for group_id, *row in self._select(f"SELECT id, {_GROUP_COLUMNS} FROM groups ORDER BY id"):
            with suppress(StoreError):
                if group_id not in damaged:
                    columns = dict(zip(_GROUP_COLUMNS.split(", "), row, strict=True))
                    runs = tuple(self._runs(digests, "group_id = ?", [group_id]))
                    yield Group(**{**columns, "versions": json.loads(columns["versions"])}, runs=runs)

    def specs(self) -> list[tuple[str, str]]:
        """Hash and text of every spec, as they came."""
        with self._snapshot():
            found = self._select("SELECT hash, text FROM specs ORDER BY rowid")
            undamaged = set(self.undamaged_specs())
        for hash, _ in set(found) - undamaged:
            raise StoreDamaged(self._path, f"the spec with hash {hash!r} cannot be what was stored")
        return found

    def undamaged_specs(self) -> list[tuple[str, str]]:
        digests = self._digests()
        rows = self._select("SELECT hash, text FROM specs ORDER BY rowid")
        return [row for row in rows if digests.fits(SPEC, row[0], row)]

    def failures(self) -> list[Failure]:
        """The groups that raised an error, as they came. Some may have been trained since."""
        rows = self._select("SELECT group_key, label, text, happened FROM failures ORDER BY id")
        return [Failure(*row) for row in rows]

    def versions(self) -> list[dict[str, str]]:
        """What the groups were computed with: each different set of versions once, as they came."""
        rows = self._select("SELECT versions FROM groups GROUP BY versions ORDER BY MIN(id)")
        try:
            return [json.loads(text) for (text,) in rows]
        except (ValueError, TypeError) as error:
            raise StoreDamaged(self._path, "the versions of a group cannot be what was stored") from error

    def metrics_frame(self) -> pd.DataFrame:
        """One row per number at the last step; the hyper-parameters as JSON text."""
        import pandas as pd

        columns = ["setting", "method", "repetition", "part", "environment", "metric", "value", "hyperparameters"]
        rows = self._select(
            f"SELECT {', '.join(columns)} FROM metrics JOIN runs ON runs.id = run_id ORDER BY metrics.rowid"
        )
        frame = pd.DataFrame(rows, columns=columns)
        return frame.assign(value=[as_value(v) for v in frame["value"]])

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Several statements see the same state, whatever a writer adds between them."""
        with explaining(self._path):
            self._connection.execute("BEGIN")
        try:
            yield
        finally:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")

    def _select(self, statement: str, values: Sequence[str] = ()) -> list[Any]:
        with explaining(self._path):
            return self._connection.execute(statement, values).fetchall()


def _where(wanted: Mapping[str, Collection[str] | None]) -> tuple[str, list[str]]:
    """The condition that the column of each parameter has one of the wanted values, and these values."""
    conditions, values = [ALL], []
    for parameter, names in wanted.items():
        if isinstance(names, str):
            raise StoreError(f"{parameter} must be a list of names. Got the text {names!r}; use [{names!r}].")
        if names is not None:
            conditions.append(f"{_COLUMN_OF[parameter]} IN ({', '.join('?' * len(names))})")
            values += list(names)
    return " AND ".join(conditions), values
