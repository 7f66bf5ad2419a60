"""Tables to files, piece by piece: whole or not at all."""

from __future__ import annotations

import csv
import gzip
import io
import os
from collections.abc import Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from irmtv.app.io.shards import is_parquet
from irmtv.core.files import replaced, try_to_write
from irmtv.core.messages import shown
from irmtv.data.tables.errors import TableError, TableNotFoundError

SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".pq")


def check_writable(path: Path, option: str = "--out", *, inputs: Sequence[str | PathLike[str]] = ()) -> None:
    """Raise unless a file can be written there without overwriting an input; called before any work.

    Parameters
    ----------
    path : Path
        The file to write.
    option : str, default "--out"
        The option that named it, for error messages.
    inputs : sequence of paths, default ()
        Files that are read, and so must not be overwritten.
    """
    if path.is_dir():
        raise TableError(f"{option} must be a file. Got {str(path)!r}, which is a folder. Name a file in it.")
    if path.exists() and not path.is_file():
        raise TableError(f"{option} must be an ordinary file. {str(path)!r} is a device or a pipe. Name another.")
    if not path.parent.is_dir():
        raise TableNotFoundError(
            f"{option} must be in a folder that exists. There is no {str(path.parent)!r}; make it."
        )
    if not os.access(path.parent, os.W_OK):
        raise TableError(f"{option} cannot be written: no right to write in {str(path.parent)!r}. Name another folder.")
    try:
        try_to_write(path)
    except OSError as error:
        raise TableError(
            f"{option} cannot be written: {error.strerror} in {str(path.parent)!r}. Name another folder."
        ) from error
    for read in inputs:
        if path.exists() and Path(read).exists() and path.samefile(read):
            raise TableError(f"{option} must not be a file that is read, {str(read)!r}. Name another file.")
        if is_parquet(path) and Path(read).is_dir() and path.resolve().is_relative_to(Path(read).resolve()):
            raise TableError(
                f"{option} must not be a Parquet file in the folder that is read, {str(read)!r}: it would be a part of "
                "the table. Name a file elsewhere."
            )


def check_table_writable(path: Path, option: str = "--out", *, inputs: Sequence[str | PathLike[str]] = ()) -> None:
    """Like `check_writable`, for a table: its suffix says what is written."""
    check_writable(path, option, inputs=inputs)
    if not path.name.lower().endswith(SUFFIXES):
        raise TableError(f"{option} must end in one of {shown(SUFFIXES, 9, form=str)}. Got {path.name!r}. Rename it.")


class TableWriter:
    """Writes pieces of a table to a file, which appears under its name once it is complete; or to a stream.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.csv")
    ...     with TableWriter(path) as writer:
    ...         writer.write(pd.DataFrame({"a": [1, 2]}))
    ...     path.read_text()
    'a\\n1\\n2\\n'

    Parameters
    ----------
    out : Path or stream of bytes
        The suffix of a path says what is written; a stream gets CSV.
    """

    def __init__(self, out: Path | IO[bytes]) -> None:
        self._path = out if isinstance(out, Path) else None
        self._stream = None if isinstance(out, Path) else out
        self._open = ExitStack()
        self._writer: Any = None
        self._schema: pa.Schema | None = None

    def __enter__(self) -> TableWriter:
        if self._path is not None:
            check_table_writable(self._path)
            self._beside = self._open.enter_context(replaced(self._path))
        return self

    def write(self, frame: pd.DataFrame, before: pa.Table | None = None) -> None:
        """One more piece; the first decides names and types. Columns of `before` come first, as they are."""
        if self._schema is None:
            self._schema = pa.Table.from_pandas(frame, preserve_index=False).schema.remove_metadata()
            self._start(pa.schema([*([] if before is None else before.schema.remove_metadata()), *self._schema]))
        table = pa.Table.from_pandas(frame, schema=self._schema, preserve_index=False, safe=False)
        if before is not None:
            names = [*before.column_names, *table.column_names]
            table = pa.Table.from_arrays([*before.columns, *table.columns], names=names)
        self._writer.write_table(table)

    def _start(self, schema: pa.Schema) -> None:
        name = "" if self._path is None else self._path.name.lower()
        stream: Any = self._stream if self._path is None else self._open.enter_context(self._beside.open("wb"))
        if name.endswith((".parquet", ".pq")):
            self._writer = self._open.enter_context(pq.ParquetWriter(stream, schema))
            return
        if name.endswith(".gz"):
            stream = self._open.enter_context(gzip.GzipFile(filename="", fileobj=stream, mode="wb", mtime=0))
        separator = "\t" if name.removesuffix(".gz").endswith(".tsv") else ","
        stream.write(_header(schema.names, separator))
        self._writer = _CsvWriter(stream, separator)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)


class _CsvWriter:
    """Quotes around texts only where a text of the piece needs them; True and False as pandas writes them."""

    def __init__(self, stream: Any, separator: str) -> None:
        self._stream, self._separator = stream, separator
        self._special = '["\r\n' + separator + "]"

    def write_table(self, table: pa.Table) -> None:
        for j, column in enumerate(table.columns):
            if pa.types.is_boolean(column.type):
                table = table.set_column(j, table.column_names[j], pc.if_else(column, "True", "False"))
        texts = [c for c in table.columns if pa.types.is_string(c.type) or pa.types.is_large_string(c.type)]
        # an empty text would read as missing
        quoted = any(pc.any(pc.match_substring_regex(c, f"^$|{self._special}")).as_py() for c in texts)
        style = "needed" if quoted else "none"
        options = arrow_csv.WriteOptions(include_header=False, delimiter=self._separator, quoting_style=style)
        arrow_csv.write_csv(table, self._stream, options)


def _header(names: list[str], separator: str) -> bytes:
    text = io.StringIO()
    csv.writer(text, delimiter=separator, lineterminator="\n").writerow(names)
    return text.getvalue().encode("utf-8")
