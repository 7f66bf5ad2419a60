"""Digests of what a store holds, so that damage is noticed.

A disk, a network or a copy that changes one bit leaves a database that SQLite often reads without a word: a number is
another one, a run has another key and is missing. So every run, group and spec is stored with a sha256 of its content,
and reading compares. The key of a group is that of its runs, so that a run that is lost is noticed, too. Stores of
older versions have no digests; what they hold is read as it is.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

RUN, GROUP, SPEC = "run", "group", "spec"
TABLE = """
CREATE TABLE IF NOT EXISTS digests (
    kind TEXT NOT NULL, id NOT NULL, digest TEXT NOT NULL, arrays TEXT, -- of a run: the digests of its arrays, by name
    PRIMARY KEY (kind, id)
)
"""
Row = Sequence[Any]


def digest_of(*parts: Any) -> str:
    """sha256 of texts, numbers, bytes and lists of these."""
    text = json.dumps(parts, ensure_ascii=True, default=_hex)
    return hashlib.sha256(text.encode()).hexdigest()


def _hex(value: Any) -> str:
    return f"bytes {bytes(value).hex()}"


def array_digests(arrays: Iterable[Row]) -> dict[str, str]:
    """By name, of rows (name, dtype, shape, data)."""
    return {
        str(name): hashlib.sha256(f'{_opening(dtype, shape)}{hashlib.sha256(data).hexdigest()}"]'.encode()).hexdigest()
        for name, dtype, shape, data in arrays
    }


@lru_cache(maxsize=1000, typed=True)
def _opening(dtype: Any, shape: Any) -> str:
    """What `digest_of(dtype, shape, data)` digests, up to the data: thousands of arrays have the same few."""
    return json.dumps([dtype, shape, "bytes "], ensure_ascii=True, default=_hex)[: -len('"]')]


def run_digest(row: Row, metrics: Sequence[Row], arrays: str) -> str:
    """Of a row of `runs`, its metrics, and the digests of its arrays as they are stored."""
    return digest_of(list(row), [list(metric) for metric in metrics], arrays)


def add_run_digest(
    connection: sqlite3.Connection, run_id: int | None, row: Row, metrics: Sequence[Row], arrays: Iterable[Row]
) -> None:
    text = json.dumps(array_digests(arrays), sort_keys=True)
    _add(connection, RUN, run_id, run_digest(row, metrics, text), text)


def add_digest(connection: sqlite3.Connection, kind: str, id: Any, row: Row) -> None:
    """Of a group or a spec; that of a group comes before those of its runs."""
    connection.execute(TABLE)  # stores of older versions have none
    _add(connection, kind, id, digest_of(list(row)), None)


def _add(connection: sqlite3.Connection, kind: str, id: Any, digest: str, arrays: str | None) -> None:
    connection.execute("INSERT INTO digests VALUES (?, ?, ?, ?)", (kind, id, digest, arrays))


class Digests:
    """The digests of a store that was opened; none of an older one."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._known: Mapping[tuple[Any, Any], Row] = {(kind, id): rest for kind, id, *rest in rows}

    def has(self, kind: str, id: Any) -> bool:
        return (kind, id) in self._known

    def fits(self, kind: str, id: Any, row: Row) -> bool:
        """Whether a group or a spec is as it was stored; True where it has no digest."""
        return not self.has(kind, id) or self._known[kind, id][0] == digest_of(list(row))

    def run_fits(self, id: Any, row: Row, metrics: Sequence[Row], arrays: Sequence[Row], every: bool) -> bool:
        """Whether a run is as it was stored, with all of its arrays or with some of them."""
        if not self.has(RUN, id):
            return True
        digest, text = self._known[RUN, id]
        if digest != run_digest(row, metrics, text):
            return False
        known, found = json.loads(text), array_digests(arrays)
        return bool(known == found) if every else all(known.get(name) == value for name, value in found.items())
