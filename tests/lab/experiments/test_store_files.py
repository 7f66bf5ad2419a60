"""Folders, files and disks that are not as a store needs them: each has its own error, and nothing is harmed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from irmtv._version import __version__
from irmtv.lab.experiments.store import Store
from irmtv.lab.experiments.store_arrays import as_array
from irmtv.lab.experiments.store_files import APPLICATION_ID, FORMAT, StoreError, StoreFull
from lab.experiments.records import POSIX, a_group, a_run, files, filled, raw


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "odd # name? 100%" / "experiment"


# --- what can be wrong with a folder ---------------------------------------------------------------------------------


def refused(folder: Path, message: str) -> None:
    """Neither way of opening works, and both say why."""
    with pytest.raises(StoreError, match=message):
        Store.create_or_open(folder)
    with pytest.raises(StoreError, match=message):
        Store.read(folder)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "f").write_text("text")
    refused(tmp_path / "f", r"f is a file. An experiment is a folder")
    with pytest.raises(StoreError, match=r"cannot be used: Not a directory"):
        Store.create_or_open(tmp_path / "f" / "x")
    assert (tmp_path / "f").read_text() == "text"


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    for name in "abcdefg":
        (tmp_path / name).write_text(name)
    before = files(tmp_path)
    with pytest.raises(StoreError, match=r"not empty and holds no experiment .*'a', 'b', 'c', 'd', 'e', … 2 more"):
        Store.create_or_open(tmp_path)
    with pytest.raises(StoreError, match=r"holds no experiment \(experiment.sqlite\). It has 'a', "):
        Store.read(tmp_path)
    assert files(tmp_path) == before


def test_a_folder_that_does_not_exist_cannot_be_read_and_is_not_made(folder):
    with pytest.raises(StoreError, match=r"does not exist. Name the folder that an experiment was written to"):
        Store.read(folder)
    assert not folder.parent.exists()


def test_an_empty_folder_can_be_written_to_but_not_read(tmp_path):
    with pytest.raises(StoreError, match=r"holds no experiment \(experiment.sqlite\). It is empty"):
        Store.read(tmp_path)
    assert files(tmp_path) == {}
    filled(tmp_path)
    with Store.read(tmp_path) as store:
        assert len(store) == 1


def test_what_a_killed_process_left_before_the_database_was_made_is_no_obstacle(tmp_path):
    for name in ("lock.sqlite", "writer.json", "writer.json.new"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "experiment.sqlite.new").write_bytes(b"half of it")
    filled(tmp_path)
    assert sorted(files(tmp_path)) == ["experiment.sqlite", "lock.sqlite"]


def test_a_log_without_its_database_is_not_taken_for_a_new_store(tmp_path):
    (tmp_path / "experiment.sqlite-wal").write_bytes(b"of a store whose database is gone")
    with pytest.raises(StoreError, match=r"It has 'experiment.sqlite-wal'"):
        Store.create_or_open(tmp_path)


@pytest.mark.parametrize("content", [b"not a database at all", b"x" * 5000])
def test_a_file_that_is_no_database(tmp_path, content):
    (tmp_path / "experiment.sqlite").write_bytes(content)
    refused(tmp_path, "experiment.sqlite is not an experiment of irmtv: file is not a database")
    assert files(tmp_path) == {"experiment.sqlite": content}


@pytest.mark.parametrize(
    "statements",
    [
        "",
        "CREATE TABLE t (a);",
        "CREATE TABLE meta (key, value); INSERT INTO meta VALUES ('format', '1');",
        f"PRAGMA application_id = {APPLICATION_ID}; CREATE TABLE t (a);",
        f"PRAGMA application_id = {APPLICATION_ID}; CREATE TABLE meta (key, value);",
        "PRAGMA journal_mode = WAL; CREATE TABLE t (a);",
    ],
)
def test_a_database_of_another_program(tmp_path, statements):
    with raw(tmp_path) as sql:
        sql.executescript(statements)
    before = files(tmp_path)
    refused(tmp_path, "is a database of another program, not an experiment of irmtv")
    assert files(tmp_path) == before


def test_a_store_of_a_newer_format_is_not_touched(folder):
    filled(folder)
    with raw(folder) as sql:
        sql.execute("UPDATE meta SET value = '7' WHERE key = 'format'")
    before = files(folder)
    refused(folder, rf"has format 7, .* This one \({__version__}\) understands format {FORMAT}: update irmtv. Nothing")
    assert files(folder) == before


def test_a_newer_format_that_appears_while_waiting_is_seen(folder, monkeypatch):
    first = Store.create_or_open(folder)

    def on_wait(message: str) -> None:
        first.close()
        with raw(folder) as sql:
            sql.execute("UPDATE meta SET value = '7' WHERE key = 'format'")

    with pytest.raises(StoreError, match=r"has format 7"):
        Store.create_or_open(folder, wait=True, on_wait=on_wait)
    assert not (folder / "writer.json").exists()
    with raw(folder, "lock.sqlite") as lock:  # and the lock is free
        lock.execute("BEGIN EXCLUSIVE")


def test_a_damaged_store_is_an_error_not_a_wrong_answer(folder):
    filled(folder, *(a_run(f"k{i}") for i in range(200)))
    path = folder / "experiment.sqlite"
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle:] = b"\xff" * (len(content) - middle)
    path.write_bytes(content)
    with Store.read(folder) as store, pytest.raises(StoreError, match=r"(?s)is damaged: .*Restore it from a"):
        store.runs()
    path.write_bytes(content[:4096])  # as after a copy that broke off
    with pytest.raises(StoreError, match=r"is damaged: .*malformed"), Store.read(folder) as store:
        store.runs()


@pytest.mark.parametrize(
    ("kind", "shape", "data"), [("float64", "[2]", b"123"), ("object", "[1]", b"12345678"), ("int64", "[]", b"")]
)
def test_an_array_that_does_not_fit_its_description_is_an_error(kind, shape, data):
    with pytest.raises(StoreError, match=r"array 'x' is damaged"):
        as_array("x", kind, shape, data)


# --- disks -----------------------------------------------------------------------------------------------------------


def test_a_full_disk_loses_the_last_group_only_and_the_store_goes_on(folder):
    big = a_group(a_run("big", arrays={"x": np.zeros(100_000)}))
    with Store.create_or_open(folder) as store:
        store.add_group(a_group(a_run("k1"), a_run("k2")))
        (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
        store._connection.execute(f"PRAGMA max_page_count = {pages + 10}")
        with pytest.raises(StoreFull) as caught:
            store.add_group(big)
        assert str(caught.value) == (
            f"{folder} cannot be written to: the disk is full. 2 runs are safe in it; only the last group was lost, "
            "and the same command continues from there once there is space."
        )
        assert isinstance(caught.value, ValueError)
        assert store.finished() == {"k1", "k2"}
        with Store.read(folder) as reader:
            assert len(reader.runs()) == 2
        with pytest.raises(StoreFull):  # still full
            store.add_group(big)
        store._connection.execute(f"PRAGMA max_page_count = {pages + 10_000}")
        store.add_group(big)
        assert store.finished() == {"k1", "k2", "big"}
        assert store._connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@POSIX
def test_a_disk_that_fails_loses_the_last_group_only_and_the_store_goes_on(folder):
    """A limit on the size of files makes the system refuse the write itself."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    big = a_group(a_run("big", arrays={"x": np.zeros(1_000_000)}))
    with Store.create_or_open(folder) as store:
        store.add_group(a_group(a_run("k1")))
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, hard))
        try:
            with pytest.raises(StoreError, match=r"disk I/O error. The disk or a quota .* 1 run is safe in it; only"):
                store.add_group(big)
            assert store.finished() == {"k1"}
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        store.add_group(big)
        assert store.finished() == {"k1", "big"}
        assert store._connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.fixture
def plain_user() -> Iterator[Path]:
    """A folder of a user who is not root: permissions mean nothing to root."""
    with tempfile.TemporaryDirectory() as place:
        base = Path(place)
        was_root = os.geteuid() == 0
        if was_root:
            os.chown(base, 65534, -1)
            os.seteuid(65534)
        try:
            yield base
        finally:
            for path in [base, *base.rglob("*")]:
                path.chmod(0o700)
            if was_root:
                os.seteuid(0)


@POSIX
def test_a_folder_that_may_not_be_written_to(plain_user):
    store = filled(plain_user / "store")
    (plain_user / "empty").mkdir()
    for folder in (plain_user / "store", plain_user / "empty", plain_user):
        folder.chmod(0o500)
    (store / "lock.sqlite").chmod(0o400)
    (store / "experiment.sqlite").chmod(0o400)
    with pytest.raises(StoreError, match=r"new cannot be used: Permission denied. Name a folder that you may write to"):
        Store.create_or_open(plain_user / "new")
    with pytest.raises(StoreError, match=r"empty.* cannot be opened as asked: unable to open.* you may .* write"):
        Store.create_or_open(plain_user / "empty")
    with pytest.raises(StoreError, match=r"store.* cannot be opened as asked: .* you may .* write"):
        Store.create_or_open(store)
    before = files(store)
    with Store.read(store) as reader:  # as from a read-only disk
        assert len(reader.runs()) == 1
    assert files(store) == before


@POSIX
def test_a_database_that_may_not_be_written_to_is_found_out_at_once(plain_user):
    store = filled(plain_user / "store")
    (store / "experiment.sqlite").chmod(0o400)
    with pytest.raises(StoreError, match=r"experiment.sqlite cannot be opened as asked: attempt to write a readonly"):
        Store.create_or_open(store)
    assert not (store / "writer.json").exists()


@POSIX
def test_a_lock_that_cannot_be_taken_is_not_taken_for_one_that_is_free(plain_user):
    """SQLite grants BEGIN EXCLUSIVE on a file that may not be written to, without locking anything."""
    store = filled(plain_user / "store")
    (store / "lock.sqlite").chmod(0o400)
    with pytest.raises(StoreError, match=r"lock.sqlite cannot be opened as asked: attempt to write a readonly"):
        Store.create_or_open(store)


@POSIX
def test_a_folder_that_may_not_be_looked_into(plain_user):
    store = filled(plain_user / "store")
    store.chmod(0o000)
    refused(store, "cannot be used: Permission denied")


@POSIX
def test_a_store_left_in_wal_mode_can_be_read_from_a_disk_that_cannot_be_written_to(plain_user):
    store = filled(plain_user / "store")
    with raw(store) as sql:
        sql.execute("PRAGMA journal_mode = WAL")
    store.chmod(0o500)
    with Store.read(store) as reader:
        assert len(reader.runs()) == 1


@POSIX
def test_what_still_stands_in_the_log_is_read_too_after_a_crash(folder, plain_user):
    """The files as a crash leaves them, on a disk that cannot be written to."""
    copy = plain_user / "copy"
    copy.mkdir()
    original = plain_user / "original"
    with Store.create_or_open(original) as store:
        store.add_group(a_group(a_run("k1")))
        for name in ("experiment.sqlite", "experiment.sqlite-wal", "experiment.sqlite-shm"):
            shutil.copy(original / name, copy / name)
    assert (copy / "experiment.sqlite-wal").stat().st_size > 0
    copy.chmod(0o500)
    with Store.read(copy) as reader:
        assert reader.finished() == {"k1"}


def test_a_store_that_a_crash_left_in_the_middle_of_a_write_says_how_it_is_repaired(folder, tmp_path):
    """Only without a write-ahead log: half of a group is in the file, and the journal to take it out beside it."""
    filled(folder, a_run("k1"))
    copy = tmp_path / "copy"
    with raw(folder) as sql:
        sql.execute("PRAGMA cache_size = 1")
        sql.execute("BEGIN")
        sql.executemany(
            "INSERT INTO failures VALUES (?, ?, ?, '', '', 0, '')", [(i, "g", "x" * 4000) for i in range(9)]
        )
        shutil.copytree(folder, copy)
        sql.execute("ROLLBACK")
    assert (copy / "experiment.sqlite-journal").stat().st_size > 0
    before = files(copy)
    with pytest.raises(StoreError, match=r"was left in the middle of a write.* the command that writes it"):
        Store.read(copy)
    assert files(copy) == before
    with Store.create_or_open(copy) as store:
        assert (store.finished(), store.failures()) == ({"k1"}, [])
    with Store.read(copy) as store:
        assert store.finished() == {"k1"}
