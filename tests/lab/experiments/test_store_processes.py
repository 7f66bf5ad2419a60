"""Processes that write to a store, wait for it, read it, and die."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from irmtv.lab.experiments import Store, StoreBusy, StoreError, store_files
from irmtv.lab.experiments import store as store_module
from lab.experiments.records import POSIX, a_group, a_run, files, filled, raw

pytestmark = pytest.mark.time_limit(60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "odd # name? 100%" / "experiment"


CHILD = """
import sys, types
# the store without the rest of the package, as torch takes seconds to load and the store has no use for it
for name in ("irmtv", "irmtv.lab", "irmtv.lab.experiments"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [{source!r} + name.replace("irmtv", "", 1).replace(".", "/")]
import numpy as np
from irmtv.lab.experiments.store import Group, RunRecord, Store, group_key
from irmtv.lab.experiments.store_files import StoreBusy

def say(*words):
    print(*words, flush=True)

def a_group(number, runs, size):
    keys = [f"{{number}}/{{r}}" for r in range(runs)]
    records = tuple(
        RunRecord(key, "s", "m", "erm", 0, 0, "all", {{}}, "finished", None, {{"x": np.full(size, number)}}, ())
        for key in keys
    )
    return Group(group_key(keys), f"{{number}}", "", "cpu", "h", 0, "", 0.0, {{"runs": str(runs)}}, records)

folder = sys.argv[1]
assert "torch" not in sys.modules and "pandas" not in sys.modules
"""


@contextmanager
def child(code: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A second process that runs `code`; it is gone at the end of the block."""
    source = str(Path(store_module.__file__).parents[2])
    script = CHILD.format(source=source) + textwrap.dedent(code)
    command = [sys.executable, "-c", script, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


HOLD = """
store = Store.create_or_open(folder)
store.add_group(a_group(0, 2, 3))
say("open")
input()
store.add_group(a_group(1, 2, 3))
store.close()
say("closed")
input()
"""


@POSIX
def test_a_process_killed_while_it_writes_leaves_whole_groups_only(folder):
    """Killed at a random moment, five times over; the child hardly does anything but write."""
    moments = random.Random(0)
    written = 0
    for _ in range(5):
        code = """
        with Store.create_or_open(folder) as store:
            first = len(store) // 20
            say("open")
            for number in range(first, first + 500):
                store.add_group(a_group(number, 20, 10_000))
                say(number)
        """
        with child(code, folder) as process:
            assert heard(process) == "open"
            for _ in range(moments.randrange(4)):
                written = int(heard(process)) + 1
            time.sleep(moments.uniform(0, 0.05))
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
            rest = process.stdout.read().split()
            written = int(rest[-1]) + 1 if rest else written
        with Store.read(folder) as reader, Store.create_or_open(folder) as writer:  # and the lock is free again
            assert writer._connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert writer._connection.execute("PRAGMA foreign_key_check").fetchall() == []
            runs = writer.runs()
            assert len(reader) == len(runs)
            # every group that the child was told to be stored is there, and perhaps one more
            assert len(runs) in (20 * written, 20 * (written + 1))
            assert [r.key for r in runs] == [f"{g}/{r}" for g in range(len(runs) // 20) for r in range(20)]
            for run in runs:
                assert np.array_equal(run.arrays["x"], np.full(10_000, int(run.key.split("/")[0])))
            written = len(runs) // 20
    assert written > 0


@POSIX
def test_a_second_writer_is_refused_until_the_first_has_died(folder):
    with child(HOLD, folder) as process:
        assert heard(process) == "open"
        before = (folder / "writer.json").read_bytes()
        who = f"process {process.pid} on {re.escape(socket.gethostname())} since 2"
        with pytest.raises(StoreBusy, match=f"is being written to by {who}.* can be read meanwhile; --wait waits"):
            Store.create_or_open(folder)
        assert (folder / "writer.json").read_bytes() == before
        process.send_signal(signal.SIGKILL)
        process.wait()
    with Store.create_or_open(folder) as store:
        assert json.loads((folder / "writer.json").read_text())["pid"] == os.getpid()
        assert len(store) == 2
    assert sorted(files(folder)) == ["experiment.sqlite", "lock.sqlite"]  # at rest


def test_a_second_writer_waits_if_asked(folder, monkeypatch):
    monkeypatch.setattr(store_files, "POLL_SECONDS", 0.01)
    told = []
    with child(HOLD, folder) as process:
        assert heard(process) == "open"

        def on_wait(message: str) -> None:
            told.append(message)
            tell(process)  # only now may the first writer end

        with Store.create_or_open(folder, wait=True, on_wait=on_wait) as store:
            assert heard(process) == "closed"
            assert len(store) == 4
        assert len(told) == 1
        assert f"is being written to by process {process.pid} on " in told[0]
        assert told[0].endswith("Waiting until it is free.")


@pytest.mark.usefixtures("ctrl_c")
def test_waiting_needs_no_one_to_tell_and_ends_with_ctrl_c(folder, monkeypatch):
    with Store.create_or_open(folder) as store:
        naps = []

        def sleep(seconds: float) -> None:
            naps.append(seconds)
            if len(naps) == 3:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(store_files.time, "sleep", sleep)
        with pytest.raises(KeyboardInterrupt):
            Store.create_or_open(folder, wait=True)
        assert naps == [store_files.POLL_SECONDS] * 3
        store.add_group(a_group(a_run()))
        assert len(store) == 1


@POSIX
@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_the_waiting_of_a_process(folder):
    code = """
    try:
        Store.create_or_open(folder, wait=True, on_wait=say)
    except KeyboardInterrupt:
        say("interrupted")
    """
    with Store.create_or_open(folder), child(code, folder) as process:
        assert "Waiting" in heard(process)
        process.send_signal(signal.SIGINT)
        assert heard(process) == "interrupted"


def test_a_second_writer_in_the_same_process_is_refused_too(folder):
    with Store.create_or_open(folder):
        with pytest.raises(StoreBusy, match=f"process {os.getpid()} "):
            Store.create_or_open(folder)
        with pytest.raises(StoreBusy):  # the refusal did not give the lock away
            Store.create_or_open(folder)
    Store.create_or_open(folder).close()


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"pid": 1}'])
def test_the_writer_is_named_only_where_it_is_known(folder, content):
    with Store.create_or_open(folder):
        (folder / "writer.json").unlink()
        if content is not None:
            (folder / "writer.json").write_text(content)
        with pytest.raises(StoreBusy, match=r"is being written to by another process"):
            Store.create_or_open(folder)


def test_closing_twice_does_not_take_the_lock_from_the_next_writer(folder):
    first = Store.create_or_open(folder)
    first.close()
    with Store.create_or_open(folder):
        first.close()
        assert (folder / "writer.json").exists()
        with pytest.raises(StoreBusy):
            Store.create_or_open(folder)
    with pytest.raises(StoreError, match=r"opened to read, or is closed"):
        first.add_spec("a", "b")
    with pytest.raises(StoreError, match=r"closed database"):
        first.runs()


def test_reading_while_another_process_writes(folder):
    with child(HOLD, folder) as process:
        assert heard(process) == "open"
        with Store.read(folder) as store:
            assert len(store) == 2
            tell(process)
            assert heard(process) == "closed"
            assert len(store) == 4  # the same reader sees what came
            assert [run.key for run in store.runs()] == ["0/0", "0/1", "1/0", "1/1"]
    with Store.create_or_open(folder) as writer, Store.read(folder) as store:
        writer.add_group(a_group(a_run("k")))
        assert len(store) == 5


@pytest.mark.parametrize("table", ["runs", "arrays", "metrics"])
def test_a_group_that_is_added_while_runs_are_read_is_seen_as_a_whole_or_not_at_all(folder, table):
    filled(folder, a_run("k1"))
    with Store.create_or_open(folder) as writer, Store.read(folder) as reader:
        added = []

        def add(statement: str) -> None:
            if f"FROM {table} " in statement and not added:
                added.append(statement)
                writer.add_group(a_group(a_run("k2")))

        reader._connection.set_trace_callback(add)
        runs = reader.runs()
        assert len(added) == 1
        assert [run.key for run in runs] == ["k1"]
        assert {(len(run.arrays), len(run.metrics)) for run in runs} == {(2, 3)}
        assert [run.key for run in reader.runs()] == ["k1", "k2"]


def test_a_reader_cannot_write(folder):
    filled(folder)
    with Store.read(folder) as store:
        for write in (
            lambda: store.add_spec("a", "b"),
            lambda: store.add_group(a_group(a_run("k2"))),
            lambda: store.add_failure("a", "b", "c"),
        ):
            with pytest.raises(StoreError, match=r"was opened to read"):
                write()
        with pytest.raises(sqlite3.OperationalError, match=r"readonly"):
            store._connection.execute("INSERT INTO meta VALUES ('a', 'b')")


def test_reading_leaves_every_file_as_it_was(folder):
    filled(folder)
    (folder / "lock.sqlite").unlink()
    before = files(folder)
    with Store.read(folder) as store:
        assert len(store.runs()) == 1
        assert files(folder) == before
    assert files(folder) == before
    assert list(before) == ["experiment.sqlite"]  # at rest a store is one file


def test_a_store_works_where_there_can_be_no_write_ahead_log(folder, monkeypatch):
    """A reader that is in the way when the store is opened has the same effect as a file system that cannot have it."""
    monkeypatch.setattr(store_files, "WAL_PATIENCE_SECONDS", 0.0)
    filled(folder, a_run("k1"))
    with raw(folder) as other:
        other.execute("BEGIN")
        other.execute("SELECT * FROM runs").fetchall()
        store = Store.create_or_open(folder)
        assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        other.execute("ROLLBACK")
    with store:
        store.add_group(a_group(a_run("k2")))
        with Store.read(folder) as reader:
            assert reader.finished() == {"k1", "k2"}


def test_a_reader_that_never_ends_is_named_as_the_reason(folder, monkeypatch):
    monkeypatch.setattr(store_files, "WAL_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(store_files, "PATIENCE_SECONDS", 0.0)
    filled(folder, a_run("k1"))
    with raw(folder) as other:
        other.execute("BEGIN")
        other.execute("SELECT * FROM runs").fetchall()
        with Store.create_or_open(folder) as store:
            with pytest.raises(StoreError, match=r"is in use: database is locked. Close what reads it"):
                store.add_group(a_group(a_run("k2")))
            other.execute("ROLLBACK")
            store.add_group(a_group(a_run("k2")))
            assert len(store) == 2


@POSIX
def test_a_process_killed_while_the_log_was_copied_into_the_file_loses_nothing(folder, tmp_path):
    """Then the file's header counts pages that stand in the log only, and without the log it looks malformed."""
    copy = tmp_path / "copy"
    copy.mkdir()
    with Store.create_or_open(folder) as store:
        small = (folder / "experiment.sqlite").stat().st_size
        store.add_group(a_group(*(a_run(f"k{i}") for i in range(50))))
        store._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        (copy / "experiment.sqlite").write_bytes((folder / "experiment.sqlite").read_bytes()[:small])
        shutil.copy(folder / "experiment.sqlite-wal", copy)
    assert (folder / "experiment.sqlite").stat().st_size > small
    uri = f"{(copy / 'experiment.sqlite').as_uri()}?immutable=1"
    with closing(sqlite3.connect(uri, uri=True)) as sql, pytest.raises(sqlite3.DatabaseError, match=r"malformed"):
        sql.execute("SELECT * FROM meta")
    with Store.read(copy) as store:
        assert len(store.runs()) == 50
    with Store.create_or_open(copy) as store:
        assert len(store.runs()) == 50
        assert store._connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
