"""Parquet: types come with the file; what is no plain column of numbers, text or dates is left out, with a note."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from irmtv.app.io.delimited import check_columns
from irmtv.app.io.source import check_file
from irmtv.core.messages import shown
from irmtv.data.tables.errors import TableError

_INDEX = re.compile(r"__index_level_\d+__")  # the rows' labels of a DataFrame, which pandas writes beside its columns


def open_parquet(path: Path) -> pq.ParquetFile:
    """The file, if it is one."""
    check_file(path)
    if path.stat().st_size == 0:
        raise TableError(f"{str(path)!r} is empty. Copy it again, or write it again.")
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise TableError(
            f"{str(path)!r} is not a whole Parquet file. Copy it again, write it again, or rename it if it is text."
        ) from error


def usable(path: Path, schema: pa.Schema, columns: Sequence[str] | None) -> tuple[list[str], tuple[str, ...]]:
    """The columns that can be read, and a note about the others."""
    names = [str(name) for name in schema.names]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise TableError(f"{str(path)!r} must have every column name once. Got {shown(twice)} more often. Rename them.")
    check_columns(path, names, columns)
    wanted = [name for name in names if (columns is None or name in set(columns)) and not _INDEX.fullmatch(name)]
    kept = [name for name in wanted if _plain(schema.field(name).type)]
    left = [name for name in wanted if name not in set(kept)]
    if columns is None and len(kept) < 2:
        raise TableError(
            f"{str(path)!r} has {len(kept)} columns of numbers, text or dates. A table needs a target and features: "
            "write it with more."
        )
    note = f"left out, since their values are lists, records or bytes: {shown(left)}"
    return kept, (note,) if left else ()


def _plain(kind: pa.DataType) -> bool:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = (pa.types.is_nested, pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return not any(test(value) for test in tests)


def read_parquet(path: Path, columns: Sequence[str] | None) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The whole file."""
    file = open_parquet(path)
    kept, notes = usable(path, file.schema_arrow, columns)
    if file.metadata.num_rows == 0:
        raise TableError(f"{str(path)!r} has columns but no rows. Check how it was written.")
    try:
        table = file.read(columns=kept)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path) from error
    return _frame(table, kept), notes


def parquet_chunks(
    path: Path, rows: int, columns: Sequence[str] | None, progress: Callable[[float], None] | None
) -> Iterator[tuple[pd.DataFrame, pa.Table]]:
    """So many rows at a time, and the same as the file has them."""
    file = open_parquet(path)
    kept, _ = usable(path, file.schema_arrow, columns)
    total, done = file.metadata.num_rows, 0
    if total == 0:
        raise TableError(f"{str(path)!r} has columns but no rows. Check how it was written.")
    try:
        for batch in file.iter_batches(batch_size=rows, columns=kept):
            done += batch.num_rows
            if progress is not None:
                progress(done / total)
            piece = pa.Table.from_batches([batch])
            yield _frame(piece, kept), _decoded(piece)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path) from error


def _frame(table: pa.Table, names: Sequence[str]) -> pd.DataFrame:
    """Column by column, so that no second copy of the whole is made."""
    return pd.DataFrame({name: _series(table.column(name)) for name in names}, copy=False)


def _decoded(table: pa.Table) -> pa.Table:
    """Categories as their values: pieces of a file would know different ones."""
    for j, column in enumerate(table.columns):
        if pa.types.is_dictionary(column.type):
            table = table.set_column(j, table.column_names[j], column.cast(column.type.value_type))
    return table


def _series(column: pa.ChunkedArray) -> pd.Series:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_decimal(kind) or (pa.types.is_integer(kind) and column.null_count):
        column = column.cast(pa.float64(), safe=False)
    elif pa.types.is_date(kind):
        column = column.cast(pa.timestamp("s" if pa.types.is_date32(kind) else "ms"))
    elif pa.types.is_time(kind) or pa.types.is_large_string(kind):
        column = column.cast(pa.string())
    elif pa.types.is_null(kind):
        column = column.cast(pa.float64())
    return pd.Series(column.to_pandas(), copy=False)


def _damaged(path: Path) -> TableError:
    return TableError(f"{str(path)!r} is damaged: its rows cannot be decoded. Copy it again, or write it again.")
