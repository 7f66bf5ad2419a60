"""The Parquet files of a folder, in a fixed order, and the columns that the names of their folders are.

`site=north/year=2020/part-0.parquet` has two columns more than its file, `site` and `year` (Hive partitions).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from irmtv.app.io.source import changed, state_of
from irmtv.core.messages import shown
from irmtv.core.numbers import several
from irmtv.data.tables.errors import TableError, TableNotFoundError

PARQUET = (".parquet", ".pq")
MISSING = "__HIVE_DEFAULT_PARTITION__"
_HIDDEN = ("_", ".")
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")

Label = str | int | None


def is_parquet(path: Path) -> bool:
    """By its name."""
    return path.suffix.lower() in PARQUET


@dataclass(frozen=True)
class Shard:
    """One file of a table."""

    path: Path
    labels: tuple[Label, ...] = ()  # by partition column
    state: tuple[int, int, int] = (0, 0, 0)  # what changes when somebody writes to the file

    @classmethod
    def of(cls, path: Path, labels: Sequence[Label] = ()) -> Shard:
        return cls(path, tuple(labels), _state(path))

    def check_unchanged(self) -> None:
        """Raise where the file is another than when the table was opened, or gone."""
        if _state(self.path) != self.state:
            raise changed(self.path)


def _state(path: Path) -> tuple[int, int, int]:
    try:
        return state_of(path.stat())
    except OSError as error:
        raise TableNotFoundError(
            f"{str(path)!r} cannot be found any more ({error.strerror}): the files of a table must stay as they are "
            "while it is read. Wait until they are written, then repeat."
        ) from error


def shards_of(folder: Path, text: Collection[str] = ()) -> tuple[tuple[Shard, ...], tuple[str, ...], tuple[str, ...]]:
    """The files of a folder by their path, the names of its partition columns, and notes.

    Parameters
    ----------
    folder : Path
    text : collection of str, default ()
        Partition columns that stay text; others whose values are all whole numbers are numbers.
    """
    files, others = _files(folder)
    if not files:
        raise _no_parquet(folder, others)
    keys: tuple[str, ...] | None = None
    found: list[tuple[Path, list[Label]]] = []
    for path in files:
        parts = [part.split("=", 1) for part in path.relative_to(folder).parts[:-1] if "=" in part]
        own = tuple(unquote(key) for key, _ in parts)
        keys = own if keys is None else keys
        if own != keys:
            raise TableError(
                f"the files of {str(folder)!r} must lie in folders of the same columns. Got {_path_of(own)} for "
                f"{str(path)!r} and {_path_of(keys)} for {str(files[0])!r}. Move the files, or name one of the folders."
            )
        found.append((path, [_label(value) for _, value in parts]))
    keys = keys or ()
    if len(set(keys)) < len(keys):
        raise TableError(f"{str(folder)!r} has folders that name a column twice: {_path_of(keys)}. Rename one of them.")
    for j, key in enumerate(keys):
        labels = [row[j] for _, row in found]
        if key not in text and all(label is None or _WHOLE.fullmatch(str(label)) for label in labels):
            for _, row in found:
                row[j] = None if row[j] is None else int(str(row[j]))
    note = f"{several(len(others), 'file')} of the folder {'is' if len(others) == 1 else 'are'} no Parquet and not read"
    shards = tuple(Shard.of(path, own) for path, own in found)
    return shards, keys, (f"{note}: {shown(others)}",) if others else ()


def _label(value: str) -> str | None:
    return None if value in ("", MISSING) else unquote(value)


def _path_of(keys: Sequence[str]) -> str:
    return "/".join(f"{key}=..." for key in keys) or "none"


def _files(folder: Path) -> tuple[list[Path], list[str]]:
    """Parquet files below a folder, in the order of their paths, and the names of other files."""

    def fail(error: OSError) -> None:
        where = error.filename if error.filename is not None else str(folder)
        raise TableError(f"the folder {where!r} cannot be read: {error.strerror}. Change its rights.") from error

    parquet, others = list[Path](), list[str]()
    for place, folders, names in os.walk(folder, onerror=fail):
        folders[:] = sorted(name for name in folders if not name.startswith(_HIDDEN))
        for name in names:
            if name.startswith(_HIDDEN):
                continue
            path = Path(place, name)
            if is_parquet(path):
                parquet.append(path)
            else:
                others.append(path.relative_to(folder).as_posix())
    return sorted(parquet, key=lambda path: path.relative_to(folder).parts), sorted(others)


def _no_parquet(folder: Path, others: Sequence[str]) -> TableError:
    if not others:
        return TableError(
            f"{str(folder)!r} is a folder without Parquet files (names that begin with _ or . are not read). Name a "
            "file, or a folder of .parquet files."
        )
    return TableError(
        f"{str(folder)!r} is a folder without Parquet files; a folder is read as one table of them. It has "
        f"{shown(others)}. Name one file, such as {str(folder / others[0])!r}, or write the files as Parquet: "
        "pandas.read_csv(FILE).to_parquet(FILE)."
    )
