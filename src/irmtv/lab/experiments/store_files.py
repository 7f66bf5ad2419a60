"""The files of a store: which folder is one, the lock of its writer, its database and tables, and errors.

In the folder: `experiment.sqlite` holds everything; `lock.sqlite` is empty and only ever locked; `writer.json` names
the process that writes. While a store is open for writing SQLite keeps `-wal` and `-shm` files beside the database; a
store at rest is one file again, which can be copied, and read from a read-only disk.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from irmtv._version import __version__
from irmtv.core.messages import shown
from irmtv.lab.experiments.store_digests import TABLE as DIGESTS

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
"""  # and `store_digests.TABLE`, which stores of older versions do not have

DATABASE = "experiment.sqlite"
LOCK = "lock.sqlite"
WRITER = "writer.json"
# what a process that was killed before it had made the database may leave behind
BEFORE_DATABASE = frozenset({LOCK, WRITER, f"{WRITER}.new", f"{DATABASE}.new"})
POLL_SECONDS = 0.2
PATIENCE_SECONDS = 30.0  # for readers, where WAL cannot be used and reading and writing take turns
WAL_PATIENCE_SECONDS = 0.5


NO_LOCKS = (  # codes of SQLite
    sqlite3.SQLITE_IOERR_LOCK,
    sqlite3.SQLITE_IOERR_RDLOCK,
    sqlite3.SQLITE_IOERR_UNLOCK,
    sqlite3.SQLITE_IOERR_CHECKRESERVEDLOCK,
)


class StoreError(ValueError):
    """A store cannot be used as asked."""


class StoreBusy(StoreError):
    """Another process writes to the store."""


class StoreFull(StoreError):
    """The disk is full."""


class StoreDamaged(StoreError):
    """What is read is not what was written."""

    def __init__(self, path: Path, what: str) -> None:
        what = " ".join(what.split())  # SQLite tells in several lines
        super().__init__(
            f"{path} is damaged: {what}. Restore it from a backup, or run the experiment with --repair: what is "
            "damaged is taken out (the file stays beside it under another name) and trained again."
        )


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# --- what went wrong ---------------------------------------------------------------------------------------------


def _code(error: BaseException) -> int:
    """SQLite's kind of error; 0 where it comes from elsewhere."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF  # the other bits are details


def explained(error: sqlite3.Error, path: Path, safe: str | None = None) -> StoreError:
    """An error of SQLite, as one that says what to do; `safe` says what is stored, where a group was being added."""
    go_on, said = "Repeat the same command", " ".join(str(error).split())
    if safe is not None:
        go_on = f"{safe}; only the last group was lost, and the same command continues from there"
    if getattr(error, "sqlite_errorcode", 0) in NO_LOCKS:
        return StoreError(
            f"{path.parent} is on a file system that keeps no locks ({said}), as some networks do. Name a folder on a "
            "disk of this machine, and copy it when it is finished."
        )
    if _code(error) == sqlite3.SQLITE_FULL:
        return StoreFull(f"{path.parent} cannot be written to: the disk is full. {go_on} once there is space.")
    closed = (
        f"{path} cannot be opened as asked: {said}. Check that you may read it and write to it and its folder, and "
        "that the disk is not read-only; or name another folder."
    )
    in_use = f"{path} is in use: {said}. Close what reads it (a database viewer, for example)."
    texts = {
        sqlite3.SQLITE_IOERR: f"{path} cannot be read or written: {said}. The disk or a quota may be full, or the "
        f"disk or the network may be failing. {go_on} once that is solved.",
        sqlite3.SQLITE_NOTADB: f"{path} is not an experiment of irmtv: {said}. Name another folder.",
        **dict.fromkeys((sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM), closed),
        **dict.fromkeys((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED), in_use),
    }
    if _code(error) == sqlite3.SQLITE_CORRUPT:
        return StoreDamaged(path, said)
    return StoreError(texts.get(_code(error), f"{path}: {said.rstrip('.')}."))


@contextmanager
def explaining(path: Path) -> Iterator[None]:
    """Errors of SQLite and of the file system inside come out as StoreError."""
    try:
        yield
    except sqlite3.Error as error:
        raise explained(error, path) from error
    except UnicodeDecodeError as error:  # in SQLite's own message
        raise StoreDamaged(path, "SQLite cannot read its tables") from error
    except OSError as error:
        raise StoreError(
            f"{error.filename or path} cannot be used: {error.strerror or error}. Name a folder that you may write to."
        ) from error


# --- which folder ------------------------------------------------------------------------------------------------


def check_target(folder: Path) -> None:
    """Raise unless `folder` can become a store, or is one that this version can write to. Changes nothing."""
    if _has_database(folder):
        check_identity(folder)
    elif folder.exists() and (others := _others(folder)):
        raise StoreError(
            f"{folder} is not empty and holds no experiment ({DATABASE}), so nothing is written into it. "
            f"It has {shown(others)}. Name a new folder."
        )


def check_source(folder: Path) -> None:
    """Raise unless `folder` is a store that this version can read."""
    if _has_database(folder):
        check_identity(folder)
    elif not folder.exists():
        raise StoreError(f"{folder} does not exist. Name the folder that an experiment was written to.")
    else:
        others = _others(folder)
        holds = f"It has {shown(others)}" if others else "It is empty"
        raise StoreError(f"{folder} holds no experiment ({DATABASE}). {holds}. Name the folder of an experiment.")


def _has_database(folder: Path) -> bool:
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file. An experiment is a folder: name a new one, or that of an experiment.")
    return (folder / DATABASE).exists()


def _others(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.name not in BEFORE_DATABASE)


def check_identity(folder: Path) -> None:
    """Raise where the database is not ours or of a newer format, without a lock and without any file beside it.

    So even a foreign database is left as it was. What is looked at stands in the file from its making and never
    changes; but a file that is being written to, or was when its writer died, can look malformed without its log.
    That is for the proper opening to decide, which looks again.
    """
    path = folder / DATABASE
    with explaining(path), closing(_connect(path, "mode=ro&immutable=1")) as connection:
        try:
            _check_ours(connection, path)
        except sqlite3.Error as error:
            if _code(error) != sqlite3.SQLITE_CORRUPT:
                raise


def _check_ours(connection: sqlite3.Connection, path: Path) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    ours = (
        application == APPLICATION_ID
        and connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'meta'").fetchone()
    )
    row = connection.execute("SELECT value FROM meta WHERE key = 'format'").fetchone() if ours else None
    if row is None or not str(row[0]).isdecimal():
        raise StoreError(f"{path} is a database of another program, not an experiment of irmtv. Name another folder.")
    if int(row[0]) > FORMAT:
        raise StoreError(
            f"{path.parent} has format {row[0]}, written by a newer irmtv. This one ({__version__}) understands format "
            f"{FORMAT}: update irmtv. Nothing was changed."
        )


# --- one writer --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WriterLock:
    """The right to write. The system takes the lock away from a process that dies, however it dies."""

    folder: Path
    connection: sqlite3.Connection

    def release(self) -> None:
        with suppress(OSError):
            (self.folder / WRITER).unlink()
        self.connection.close()


def take_lock(folder: Path, wait: bool, on_wait: Callable[[str], None] | None) -> WriterLock:
    """Become the one writer, or raise StoreBusy, or wait."""
    waiting = False
    while (connection := _try_lock(folder / LOCK)) is None:
        busy = f"{folder} is being written to by {_writer(folder)}."
        if not wait:
            raise StoreBusy(f"{busy} Its results can be read meanwhile; --wait waits until it is free.")
        if on_wait is not None and not waiting:
            on_wait(f"{busy} Waiting until it is free.")
        waiting = True
        time.sleep(POLL_SECONDS)  # not SQLite's own waiting, which Ctrl-C cannot end
    with suppress(OSError):  # it serves messages only
        _write_writer(folder)
    return WriterLock(folder, connection)


def _try_lock(path: Path) -> sqlite3.Connection | None:
    """A connection that holds the lock for as long as it is open; None where another process has it."""
    with explaining(path):
        connection = _connect(path, "mode=rwc", patience=0.0)
        try:
            connection.execute("PRAGMA journal_mode = MEMORY")  # nothing is ever written, so no journal file either
            connection.execute("BEGIN EXCLUSIVE")
            _check_writable(connection)
        except BaseException as error:
            connection.close()
            if _code(error) == sqlite3.SQLITE_BUSY:
                return None
            raise
    return connection


def _write_writer(folder: Path) -> None:
    new = folder / f"{WRITER}.new"
    new.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": now()}), encoding="utf-8")
    new.replace(folder / WRITER)  # a reader never sees half of it


def _writer(folder: Path) -> str:
    try:
        who = json.loads((folder / WRITER).read_text(encoding="utf-8"))
        return f"process {who['pid']} on {who['host']} since {who['since']}"
    except (OSError, ValueError, KeyError, TypeError):  # not written yet, or not ours
        return "another process"


# --- the database ------------------------------------------------------------------------------------------------


def make_database(folder: Path) -> None:
    """Create the database under another name and rename it when complete, so that no store is ever half-made."""
    new = folder / f"{DATABASE}.new"
    with explaining(new):
        new.unlink(missing_ok=True)
        with closing(_connect(new, "mode=rwc")) as connection:
            connection.execute("PRAGMA journal_mode = MEMORY")  # leaves no journal that a later file could inherit
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.executescript(f"BEGIN; {TABLES} {DIGESTS}; COMMIT;")
            meta = [("format", str(FORMAT)), ("creator", f"irmtv {__version__}")]
            connection.executemany("INSERT INTO meta VALUES (?, ?)", meta)
        new.replace(folder / DATABASE)


def connect_to_write(folder: Path) -> sqlite3.Connection:
    path = folder / DATABASE
    with explaining(path):
        connection = _connect(path, "mode=rw")
        try:
            # A killed process loses nothing of what was committed under any setting. A machine that loses its power
            # may, unless every commit waits for the disk: FULL does so in WAL mode, EXTRA in rollback mode too. It
            # costs milliseconds per group, and a group trains for seconds or more.
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("PRAGMA fullfsync = ON")  # macOS: fsync alone does not wait for the disk
            connection.execute("PRAGMA foreign_keys = ON")
            _check_ours(connection, path)  # again: it may have been made while this process waited
            _prefer_wal(connection)
            connection.execute("BEGIN IMMEDIATE")
            _check_writable(connection)
            connection.execute("ROLLBACK")
        except BaseException:
            connection.close()
            raise
    return connection


def _check_writable(connection: sqlite3.Connection) -> None:
    """Write, inside a transaction that is never committed.

    SQLite opens a file that may not be written to for reading, and grants it even BEGIN EXCLUSIVE (without any lock),
    all without a word: find out now, not after the training.
    """
    connection.execute("PRAGMA user_version = 1")


def _prefer_wal(connection: sqlite3.Connection) -> None:
    """Write-ahead log: reading and writing do not wait for each other.

    Some network file systems cannot have it, and a reader at this very moment can be in the way: the store then
    works with a rollback journal, where reading and writing take turns.
    """
    connection.execute(f"PRAGMA busy_timeout = {int(WAL_PATIENCE_SECONDS * 1000)}")
    with suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA busy_timeout = {int(PATIENCE_SECONDS * 1000)}")


def settle(connection: sqlite3.Connection) -> None:
    """Close for good: everything into the one file, where no reader is in the way; else the next writer does it."""
    with suppress(sqlite3.Error):  # all is committed: a full disk, for example, loses nothing here
        connection.execute("PRAGMA busy_timeout = 0")
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()


def connect_to_read(folder: Path) -> sqlite3.Connection:
    path = folder / DATABASE
    with explaining(path):
        connection = _connect(path, "mode=ro")
        try:
            _check_ours(connection, path)
        except BaseException as error:
            connection.close()
            if _code(error) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                raise
        else:
            return connection
        log, journal = (path.with_name(path.name + end) for end in ("-wal", "-journal"))
        if journal.exists():
            raise StoreError(
                f"{path} was left in the middle of a write by a process that died. Run the command that writes it "
                "again: it repairs the file and continues."
            )
        if log.exists():
            raise StoreError(
                f"{path} cannot be read where its folder may not be written to, as a part of it still stands in "
                f"{log.name}. Copy the folder to another place and read it there."
            )
        # in WAL mode, on a disk where the files for that can neither be found nor made: so no process writes there
        return _connect(path, "mode=ro&immutable=1")


def _connect(path: Path, options: str, patience: float = PATIENCE_SECONDS) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?{options}"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=patience)  # transactions are written out
    connection.text_factory = lambda text: text.decode(errors="backslashreplace")  # what is damaged is told by digests
    return connection
