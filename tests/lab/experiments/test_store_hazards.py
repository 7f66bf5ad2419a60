"""Clocks that jump, logs that are deleted while they are written to, file systems without locks."""

from __future__ import annotations

import re
import sqlite3
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from irmtv.lab import workers
from irmtv.lab.experiments import Store, StoreDamaged, StoreError, repair_store, run_experiment, store_files
from lab.experiments.comparison import store_differences
from lab.experiments.records import POSIX, a_group, a_run
from lab.experiments.small import ERM, TV, small
from paths import REPOSITORY


@pytest.mark.slow
def test_nothing_depends_on_the_clock_of_the_wall(tmp_path, monkeypatch):
    spec = small(ERM, TV)
    run_experiment(spec, tmp_path / "undisturbed")
    hours = iter(np.random.default_rng(0).integers(-1_000_000, 1_000_000, 10_000))

    class Jumping(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.fromtimestamp(1.7e9 + 1000 * float(next(hours)), UTC)

    for module in (store_files, workers):
        monkeypatch.setattr(module, "datetime", Jumping)
    run_experiment(spec, tmp_path / "x")
    assert next(hours) and run_experiment(spec, tmp_path / "x").found == 9
    with Store.read(tmp_path / "x") as a, Store.read(tmp_path / "undisturbed") as b:
        assert store_differences(a, b) == [] and len(a) == 9


def test_durations_are_not_measured_by_the_clock_of_the_wall():
    asking = re.compile(r"\btime\.time\(|from time import .*\btime\b|st_[mca]time")
    found = {
        path.name for path in (REPOSITORY / "src").rglob("*.py") if asking.search(path.read_text(encoding="utf-8"))
    }
    assert found <= {"source.py"}  # whether a table was changed while it was read


@POSIX
@pytest.mark.parametrize("ends", [("-wal",), ("-shm",), ("-wal", "-shm")])
def test_a_log_that_is_deleted_while_it_is_written_to_loses_what_is_named_at_most(tmp_path, ends):
    """What was put into the one file stays; the rest is missing, or its damage is named and repaired."""
    folder = tmp_path / "x"
    with Store.create_or_open(folder) as store:
        for k in range(3):
            store.add_group(a_group(a_run(f"k{k}"), label=f"group {k}"))
        for end in ends:
            (folder / f"experiment.sqlite{end}").unlink()
        with suppress(StoreError):
            for k in range(3, 6):
                store.add_group(a_group(a_run(f"k{k}"), label=f"group {k}"))
    keys = [f"k{k}" for k in range(6)]
    try:
        with Store.create_or_open(folder) as store:
            store.check()
    except StoreDamaged:
        assert repair_store(folder) is not None
    with Store.read(folder) as store:
        store.check()
        assert {*keys[:3]} <= store.finished() <= {*keys}


def without_locks(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """As SQLite says it where the system refuses a lock: ENOLCK, ENOTSUP."""
    connect = store_files._connect

    class Refusing:
        def __init__(self, connection: sqlite3.Connection) -> None:
            self._connection = connection

        def __getattr__(self, name: str) -> object:
            return getattr(self._connection, name)

        def execute(self, statement: str, *values: object) -> object:
            if statement.startswith("BEGIN"):
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = code
                raise error
            return self._connection.execute(statement, *values)

    def refusing(path: Path, *options: object, **more: object) -> Refusing:
        return Refusing(connect(path, *options, **more))

    monkeypatch.setattr(store_files, "_connect", refusing)


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_LOCK, sqlite3.SQLITE_IOERR_RDLOCK])
def test_a_file_system_without_locks_is_named_before_training(tmp_path, monkeypatch, code):
    without_locks(monkeypatch, code)
    with pytest.raises(StoreError, match=r"keeps no locks \(disk I/O error\).*Name a folder on a disk of this machine"):
        run_experiment(small(ERM), tmp_path / "x")
