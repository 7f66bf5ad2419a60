"""Tables from files: CSV, TSV and Parquet, whole or in pieces."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pandas.api.types import is_datetime64_any_dtype

from irmtv.app.io.delimited import (
    UNNAMED,
    check_columns,
    check_printable,
    open_text,
    read_text,
    text_batches,
    typed,
)
from irmtv.app.io.source import check_file
from irmtv.core.messages import check_positive, shown
from irmtv.core.numbers import several
from irmtv.data.tables.errors import TableError

TEXT = (".csv", ".tsv", ".tab", ".txt")
PARQUET = (".parquet", ".pq")
_FIRST, _LAST = (np.datetime64(day, "s") for day in ("0002-01-01", "9998-12-31"))
ROWS = 50_000  # of a piece
_INDEX = re.compile(r"__index_level_\d+__")  # the rows' labels of a DataFrame, which pandas writes beside its columns


@dataclass(frozen=True, eq=False)
class Table:
    """A file as a table.

    Attributes
    ----------
    frame : DataFrame
        Numbers as int64 or float64, everything else as text; of a Parquet file also dates.
    path : Path or None
        Where it was read; None for a DataFrame that was given.
    notes : tuple of str
        What to know about how it was read.
    """

    frame: pd.DataFrame
    path: Path | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, source: str | os.PathLike[str] | Table | pd.DataFrame, encoding: str | None = None) -> Table:
        """A Table or a DataFrame as it is; a file, read."""
        if isinstance(source, Table):
            return source
        return cls(source) if isinstance(source, pd.DataFrame) else read_table(source, encoding=encoding)


def read_table(
    path: str | os.PathLike[str],
    *,
    encoding: str | None = None,
    columns: Sequence[str] | None = None,
    text: Collection[str] = (),
) -> Table:
    """Read a table.

    Parameters
    ----------
    path : str or Path
        The suffix says what it is: .csv, .tsv, .tab or .txt, each also with .gz; .parquet or .pq. In .csv and .txt the
        columns are separated by commas, semicolons or tabs, whichever gives rows of equal length.
    encoding : str or None, default None
        Text encoding; None is UTF-8, with or without a byte-order mark.
    columns : sequence of str or None, default None
        Only these.
    text : collection of str, default ()
        Columns that stay text even where they look like numbers (codes such as 00123).

    Returns
    -------
    Table
        A column of a text file is numbers where every value that is not missing is one, else text without spaces around
        it. Missing are empty cells and NA, N/A, n/a, #N/A, <NA>, NaN, nan, -nan, NULL, null and ?; a note tells
        which columns of text have which of these.

    Raises
    ------
    TableError
        Where the file is missing, damaged or no table. The message says where, and what to do.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.csv")
    ...     _ = path.write_text("size;where\\n1;north\\n2;NA\\n")
    ...     table = read_table(path)
    >>> table.frame["size"].tolist(), table.frame["where"].isna().tolist()
    ([1, 2], [False, True])
    >>> table.notes
    ('columns are separated by a semicolon', 'read as missing: NA in where (1 cell)')
    """
    path = Path(path)
    if _is_parquet(path):
        frame, notes = read_parquet(path, columns)
        return Table(frame, path, notes)
    with _memory_for(path):
        arrow, layout = read_text(path, encoding, columns, text)
        untyped = dict(zip(arrow.column_names, arrow.columns, strict=True))
        del arrow  # so that each column's text can be freed
        frame, notes = _typed_columns(untyped, text, layout.separator != ",")
    return Table(frame, path, (*layout.notes, *notes))


@contextmanager
def _memory_for(path: Path) -> Iterator[None]:
    """What was too large, where the memory does not suffice for a whole table."""
    try:
        yield
    except MemoryError as error:  # Arrow's is one, too
        size = path.stat().st_size
        raise TableError(
            f"{str(path)!r} has {size:,} bytes, and as a table more than there is memory for. Read fewer columns, or "
            "write a part of it."
        ) from error


def _typed_columns(
    untyped: dict[str, pa.ChunkedArray], text: Collection[str], decimal_comma: bool
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The columns as numbers or text, with notes; `untyped` is emptied, so that text is freed column by column."""
    series: dict[str, pd.Series] = {}
    notes, with_commas = list[str](), list[str]()
    marks: dict[str, dict[str, int]] = {}  # by what stands for a missing value: columns of text, and how often
    for name in list(untyped):
        column = untyped.pop(name)
        series[name], missing, comma = typed(column, name in text, decimal_comma)
        del column
        for mark, n in missing.items():
            marks.setdefault(mark, {})[name] = n
        with_commas += [name] * comma
    notes += [_about_missing(marks)] if marks else []
    if with_commas:
        notes.append(f"1,5 is read as the number 1.5 in {shown(with_commas)}")
    for name in [name for name in series if name.startswith(UNNAMED)]:
        notes.append(_about_unnamed(name, series))
    return pd.DataFrame(series, copy=False), tuple(notes)


def table_names(path: str | os.PathLike[str], *, encoding: str | None = None) -> list[str]:
    """The names of a table's columns; the rows are not read.

    Parameters
    ----------
    path, encoding : as in `read_table`.
    """
    path = Path(path)
    if _is_parquet(path):
        return open_parquet(path)[1]
    source, layout = open_text(path, encoding)
    source.close()
    return list(layout.names)


def table_chunks(
    path: str | os.PathLike[str],
    rows: int = ROWS,
    *,
    encoding: str | None = None,
    columns: Sequence[str] | None = None,
    text: Collection[str] = (),
    progress: Callable[[float], None] | None = None,
) -> Iterator[pd.DataFrame]:
    """Read a table in pieces, in memory that does not grow with the file.

    Parameters
    ----------
    path, encoding, columns : as in `read_table`.
    rows : int, default 50,000
        Rows of a piece; the last may have fewer.
    text : collection of str, default ()
        Columns that stay text. Which columns are numbers is decided for every piece anew, so columns that hold text
        elsewhere in the file should be named: codes may look like numbers for a while.
    progress : callable or None, default None
        Called with the share of the file that was read.

    Yields
    ------
    DataFrame
        Indexed by the row's number in the file.
    """
    chunks = chunks_as_they_stand(path, rows, encoding=encoding, columns=columns, text=text, progress=progress)
    return (frame for frame, _ in chunks)


def chunks_as_they_stand(
    path: str | os.PathLike[str],
    rows: int = ROWS,
    *,
    encoding: str | None = None,
    columns: Sequence[str] | None = None,
    text: Collection[str] = (),
    progress: Callable[[float], None] | None = None,
) -> Iterator[tuple[pd.DataFrame, pa.Table]]:
    """The pieces of `table_chunks`, each with its cells as the file has them: NA and 007 are text there."""
    path = Path(path)
    check_positive(rows, "rows")
    if _is_parquet(path):
        pieces = parquet_chunks(path, rows, columns, progress)
    else:
        layout, batches = text_batches(path, encoding, columns, progress)
        pieces = _typed_chunks(batches, rows, text, layout.separator != ",")
    start = 0
    for frame, cells in pieces:
        frame.index = pd.RangeIndex(start, start + len(frame))
        start += len(frame)
        yield frame, cells


def _typed_chunks(
    batches: Iterator[pa.RecordBatch], rows: int, text: Collection[str], decimal_comma: bool
) -> Iterator[tuple[pd.DataFrame, pa.Table]]:
    """Batches of any length as pieces of `rows` rows."""
    for piece in _pieces(batches, rows):
        series = {name: typed(piece.column(name), name in text, decimal_comma).values for name in piece.column_names}
        yield pd.DataFrame(series, copy=False), piece


def _pieces(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    waiting: pa.Table | None = None
    for batch in batches:
        new = pa.Table.from_batches([batch])
        waiting = new if waiting is None else pa.concat_tables([waiting, new])
        while waiting.num_rows >= rows:
            yield waiting.slice(0, rows)
            waiting = waiting.slice(rows)
    if waiting is not None and waiting.num_rows:
        yield waiting


def _is_parquet(path: Path) -> bool:
    """Whether it is Parquet by its suffix; an error where the suffix is of neither kind."""
    name = path.name.lower()
    suffix = Path(name).suffix
    if suffix in PARQUET:
        return True
    if suffix == ".gz" and Path(name.removesuffix(".gz")).suffix in PARQUET:
        raise TableError(f"{str(path)!r}: Parquet is compressed inside. Unpack it with gunzip.")
    if Path(name.removesuffix(".gz")).suffix in TEXT:
        return False
    check_file(path)  # a folder or a misspelt name is the likelier mistake
    known = shown((*TEXT, *PARQUET), 10, form=str)
    raise TableError(
        f"{str(path)!r} must end in one of {known} (text also with .gz). Got {suffix or 'no suffix'}. Rename it, or "
        "write it as CSV or Parquet."
    )


def _about_missing(marks: dict[str, dict[str, int]]) -> str:
    """One note for all columns of text that have marks such as "?"."""

    def counted(columns: dict[str, int]) -> str:
        return shown([f"{name} ({several(n, 'cell')})" for name, n in columns.items()], 12, form=str)

    return "read as missing: " + "; ".join(f"{mark} in {counted(columns)}" for mark, columns in marks.items())


def _about_unnamed(name: str, series: dict[str, pd.Series]) -> str:
    """A column without a name: left out where it is empty or counts the rows, as the index of a DataFrame does."""
    values, position = series[name], int(name.removeprefix(UNNAMED)) + 1
    if values.isna().all():
        del series[name]
        return f"column {position}, which has neither name nor values, is left out"
    if values.dtype == np.int64 and bool((np.diff(values.to_numpy()) == 1).all()) and values.iloc[0] in (0, 1):
        del series[name]
        return f"column {position}, which has no name and counts the rows, is left out"
    return f"column {position} has no name and is called {name!r}"


# ---- Parquet: types come with the file; columns that are not numbers, text or dates are left out, with a note --------


def open_parquet(path: Path, columns: Sequence[str] | None = None) -> tuple[pq.ParquetFile, list[str], tuple[str, ...]]:
    """The file, the columns that can be read, and a note about the others."""
    check_file(path)
    if path.stat().st_size == 0:
        raise TableError(f"{str(path)!r} is empty. Copy it again, or write it again.")
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise TableError(
            f"{str(path)!r} is not a whole Parquet file. Copy it again, write it again, or rename it if it is text."
        ) from error
    schema = file.schema_arrow
    names = [str(name) for name in schema.names]
    check_printable(path, names)
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
    return file, kept, (note,) if left else ()


def _plain(kind: pa.DataType) -> bool:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = (pa.types.is_nested, pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return not any(test(value) for test in tests)


def read_parquet(path: Path, columns: Sequence[str] | None) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The whole file."""
    file, kept, notes = open_parquet(path, columns)
    with _parquet_rows(path, file):
        table = file.read(columns=kept)
    return _frame(table, kept), notes


def parquet_chunks(
    path: Path, rows: int, columns: Sequence[str] | None, progress: Callable[[float], None] | None
) -> Iterator[tuple[pd.DataFrame, pa.Table]]:
    """At most `rows` rows at a time, as a DataFrame and as the file has them."""
    file, kept, _ = open_parquet(path, columns)
    done = 0
    with _parquet_rows(path, file):
        for batch in file.iter_batches(batch_size=rows, columns=kept):
            done += batch.num_rows
            if progress is not None:
                progress(done / file.metadata.num_rows)
            piece = pa.Table.from_batches([batch])
            yield _frame(piece, kept), _decoded(piece)


@contextmanager
def _parquet_rows(path: Path, file: pq.ParquetFile) -> Iterator[None]:
    """Reading rows: there are some, and those that cannot be decoded are an error of the file."""
    if file.metadata.num_rows == 0:
        raise TableError(f"{str(path)!r} has columns but no rows. Check how it was written.")
    try:
        yield
    except pa.ArrowMemoryError as error:
        shape = f"{file.metadata.num_rows:,} rows and {file.metadata.num_columns:,} columns"
        raise TableError(
            f"{str(path)!r} has {shape}, more than there is memory for. Read fewer columns, or write a part of it."
        ) from error
    except (pa.ArrowException, OSError) as error:
        raise TableError(
            f"{str(path)!r} is damaged: its rows cannot be decoded. Copy it again, or write it again."
        ) from error


def _frame(table: pa.Table, names: Sequence[str]) -> pd.DataFrame:
    """Column by column, so that no second copy of the whole is made."""
    series = {name: _series(table.column(name)) for name in names}
    for name, values in series.items():
        if is_datetime64_any_dtype(values.dtype):
            _check_years(name, values)
    return pd.DataFrame(series, copy=False)


def _check_years(name: str, times: pd.Series) -> None:
    """Beyond these years nothing that Python has for dates works."""
    instants = times.dt.tz_convert(None) if times.dt.tz is not None else times
    first, last = instants.min(), instants.max()
    if not pd.isna(first) and not (first >= _FIRST and last <= _LAST):
        raise TableError(
            f"column {name!r} must hold times in the years 2 to 9998. Got others, of the years {first.year} to "
            f"{last.year}. Empty these cells, or write the column as numbers."
        )


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
    # pandas does not compare halves with a list
    if pa.types.is_decimal(kind) or pa.types.is_float16(kind) or (pa.types.is_integer(kind) and column.null_count):
        column = column.cast(pa.float64(), safe=False)
    elif pa.types.is_date(kind):
        column = column.cast(pa.timestamp("s" if pa.types.is_date32(kind) else "ms"))
    elif pa.types.is_time(kind) or pa.types.is_large_string(kind):
        column = column.cast(pa.string())
    elif pa.types.is_null(kind):
        column = column.cast(pa.float64())
    return pd.Series(column.to_pandas(), copy=False)
