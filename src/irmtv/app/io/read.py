"""Tables from files: CSV, TSV, Parquet and folders of Parquet files, whole or in pieces."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from irmtv.app.io.delimited import UNNAMED, open_text, read_text, text_batches
from irmtv.app.io.memory import memory_limit
from irmtv.app.io.parquet import ParquetTable, cut, open_parquet, with_number_types, with_rows
from irmtv.app.io.shards import PARQUET
from irmtv.app.io.source import TextSource, check_file
from irmtv.app.io.text_columns import typed, typed_columns
from irmtv.core.messages import check_positive, shown
from irmtv.core.read_ahead import read_ahead
from irmtv.data.tables.errors import TableError

TEXT = (".csv", ".tsv", ".tab", ".txt")
ROWS = 50_000  # of a piece


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
    def of(
        cls, source: str | os.PathLike[str] | Table | ParquetTable | pd.DataFrame, encoding: str | None = None
    ) -> Table:
        """A Table or a DataFrame as it is; a file, read."""
        if isinstance(source, Table):
            return source
        if isinstance(source, ParquetTable):
            frame, notes = source.frame()
            return cls(frame, source.path, (*source.notes, *notes))
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
        columns are separated by commas, semicolons or tabs, whichever gives rows of equal length. A folder is the
        table of all Parquet files in it and below it, in the order of their paths; `site=north/` in a path is a column
        `site` with the value `north` (Hive partitions), and names that begin with _ or . are not read.
    encoding : str or None, default None
        Text encoding; None is UTF-8, with or without a byte-order mark.
    columns : sequence of str or None, default None
        Only these.
    text : collection of str, default ()
        Columns that stay text even where they look like numbers (codes such as 00123).

    Returns
    -------
    Table
        A column of text is numbers where every value that is not missing is one, else text without spaces around it.
        Missing are empty cells and NA, N/A, n/a, #N/A, <NA>, NaN, nan, -nan, NULL, null and ?; a note tells which
        columns of text have which of these.

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
        return Table.of(with_rows(open_parquet(path, columns, text)))
    with _memory_for(path):
        arrow, layout = read_text(path, encoding, columns, text)
        untyped = dict(zip(arrow.column_names, arrow.columns, strict=True))
        del arrow  # so that each column's text can be freed
        series, notes = typed_columns(untyped, text, layout.separator != ",")
    about_names = [_about_unnamed(name, series) for name in list(series) if name.startswith(UNNAMED)]
    return Table(pd.DataFrame(series, copy=False), path, (*layout.notes, *notes, *about_names))


def open_table(
    path: str | os.PathLike[str],
    memory: str | int | None = None,
    *,
    encoding: str | None = None,
    in_blocks: bool = False,
) -> Table | ParquetTable:
    """A table, read; of Parquet files that are too large for that, without its rows.

    Parameters
    ----------
    path, encoding : as in `read_table`.
    memory : str, int or None, default None
        "2GB", "500MB" or bytes; None is half of what is available. A table is too large where about four times its
        size as a DataFrame is more.
    in_blocks : bool, default False
        Parquet files are too large, whatever the memory: several processes share their blocks.
    """
    path, limit = Path(path), memory_limit(memory)
    if not _is_parquet(path):
        return read_table(path, encoding=encoding)
    table = with_rows(open_parquet(path))
    return with_number_types(table) if in_blocks or not table.fits(limit) else Table.of(table)


def names_of(table: Table | ParquetTable) -> list[str]:
    """The names of a table's columns."""
    return table.names if isinstance(table, ParquetTable) else list(table.frame.columns)


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


def table_names(path: str | os.PathLike[str], *, encoding: str | None = None) -> list[str]:
    """The names of a table's columns; the rows are not read.

    Parameters
    ----------
    path, encoding : as in `read_table`.
    """
    path = Path(path)
    if _is_parquet(path):
        return open_parquet(path).names
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
        Columns that stay text. Which columns of text are numbers is decided for every piece anew, so columns that hold
        text elsewhere in the file should be named: codes may look like numbers for a while.
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
    source: TextSource | None = None
    if _is_parquet(path):
        table = with_rows(open_parquet(path, columns, text))
        pieces, total = table.pieces(rows), table.n_rows
    else:
        source, layout, batches = text_batches(path, encoding, columns)
        pieces = read_ahead(_typed_chunks(batches, rows, text, layout.separator != ","))
    start = 0
    for frame, cells in pieces:
        frame.index = pd.RangeIndex(start, start + len(frame))
        start += len(frame)
        if progress is not None:
            progress(start / total if source is None else source.share)
        yield frame, cells


def _typed_chunks(
    batches: Iterator[pa.RecordBatch], rows: int, text: Collection[str], decimal_comma: bool
) -> Iterator[tuple[pd.DataFrame, pa.Table]]:
    """Batches of any length as pieces of `rows` rows."""
    for piece in cut((pa.Table.from_batches([batch]) for batch in batches), rows):
        series = {name: typed(piece.column(name), name in text, decimal_comma).values for name in piece.column_names}
        yield pd.DataFrame(series, copy=False), piece


def _is_parquet(path: Path) -> bool:
    """Whether it is Parquet by its suffix, or a folder of such files; an error where the suffix is of neither kind."""
    if path.is_dir():
        return True
    name = path.name.lower()
    suffix = Path(name).suffix
    if suffix in PARQUET:
        return True
    if suffix == ".gz" and Path(name.removesuffix(".gz")).suffix in PARQUET:
        raise TableError(f"{str(path)!r}: Parquet is compressed inside. Unpack it with gunzip.")
    if Path(name.removesuffix(".gz")).suffix in TEXT:
        return False
    check_file(path)  # a misspelt name is the likelier mistake
    if suffix == ".irmtv":
        raise TableError(f"{str(path)!r} is a model, not a table. Name the model first, then the table.")
    known = shown((*TEXT, *PARQUET), 10, form=str)
    got = "".join(Path(name).suffixes[-2:]) if suffix == ".gz" else suffix or "no suffix"
    raise TableError(
        f"{str(path)!r} must end in one of {known} (text also with .gz). Got {got}. Rename it, or "
        "write it as CSV or Parquet."
    )


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
