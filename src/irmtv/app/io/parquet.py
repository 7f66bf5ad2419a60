"""A Parquet file, or a folder of them, as one table: opened once, read whole or piece by piece, as often as needed.

Types come with the files, but that text is read as in a text file: as numbers, where all of it is. Columns that are not
numbers, text or dates are left out, with a note.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from irmtv.app.io.delimited import check_columns, check_printable
from irmtv.app.io.parquet_types import as_frame, as_text_levels, bytes_of, common_type, decoded, is_plain, word_of
from irmtv.app.io.shards import Shard, shards_of
from irmtv.app.io.source import check_file
from irmtv.app.io.text_columns import text_as_numbers, typed, typed_columns
from irmtv.core.messages import did_you_mean, shown
from irmtv.core.read_ahead import read_ahead
from irmtv.data.tables.errors import TableError, TableNotFoundError

_INDEX = re.compile(r"__index_level_\d+__")  # the rows' labels of a DataFrame, which pandas writes beside its columns
FEW_ROWS, MANY_ROWS = 2000, 1 << 17  # that are read together, to see whether text is numbers
TIMES = 4  # what a table takes as a DataFrame: its numbers as models want them, and what training adds


@dataclass(frozen=True)
class ParquetTable:
    """The files of a table and the columns that can be read of them."""

    path: Path
    shards: tuple[Shard, ...]
    partitions: tuple[str, ...]  # columns that the folders' names are
    types: Mapping[str, pa.DataType]  # of every column that is read, in their order, the partitions last
    groups: tuple[tuple[int, ...], ...]  # by file, the rows of its row groups
    n_columns: int  # of the files, with those that are left out
    notes: tuple[str, ...] = ()
    stored: Mapping[str, int] = field(default_factory=dict)  # bytes of columns of text, uncompressed
    any_column: str = ""  # of the files
    in_levels: bool = False  # text is read as its different values, and a column of it is one of categories
    text: frozenset[str] = frozenset()  # columns that stay text, though their values may be numbers

    @property
    def names(self) -> list[str]:
        return list(self.types)

    @property
    def n_rows(self) -> int:
        return sum(map(sum, self.groups))

    def select(self, names: Collection[str]) -> ParquetTable:
        """The table with these columns alone."""
        return replace(self, types={name: kind for name, kind in self.types.items() if name in set(names)})

    @property
    def _own(self) -> list[str]:
        """Columns of the files; one at least, since that says how many rows there are."""
        own = [name for name in self.types if name not in self.partitions]
        return own or [self.any_column]

    @property
    def texts(self) -> list[str]:
        """Columns of text in the files."""
        return [name for name in self._own if word_of(self.types.get(name, pa.null())) == "text"]

    def bytes_in_memory(self) -> int:
        """About what the table takes as a DataFrame."""
        return sum(bytes_of(kind, self.n_rows, self.stored.get(name, 0)) for name, kind in self.types.items())

    def fits(self, memory: int) -> bool:
        """Whether the table can be read and trained on in so many bytes."""
        return TIMES * self.bytes_in_memory() <= memory

    def frame(self) -> tuple[pd.DataFrame, tuple[str, ...]]:
        """All rows, with notes; text that is numbers throughout is numbers, as in a text file."""
        with self.enough_memory():
            whole = pa.concat_tables([self._rows_of(number) for number in range(len(self.shards))])
            texts = {name: decoded(whole.column(name)).cast(pa.string()) for name in self.texts}
            read, notes = typed_columns(texts, self.text)
            return as_frame(whole, self.names, read=read), notes

    def pieces(self, rows: int) -> Iterator[tuple[pd.DataFrame, pa.Table]]:
        """At most `rows` rows at a time, as a DataFrame and as the files have them; read ahead by a thread."""
        return read_ahead(self._pieces(rows))

    def _pieces(self, rows: int) -> Iterator[tuple[pd.DataFrame, pa.Table]]:
        with self.enough_memory():
            for piece in cut(self.batches(rows), rows):
                plain = pa.table({name: decoded(piece.column(name)) for name in piece.column_names})
                texts = {name: plain.column(name).cast(pa.string()) for name in self.texts}
                read = {name: typed(column, name in self.text).values for name, column in texts.items()}
                yield as_frame(plain, self.names, read=read), plain

    def batches(self, rows: int) -> Iterator[pa.Table]:
        """Pieces of row groups, file by file."""
        for number in range(len(self.shards)):
            with self.file(number) as file:
                for group in range(len(self.groups[number])):
                    yield from self.rows_of_group(number, file, group, rows)

    @contextmanager
    def file(self, number: int) -> Iterator[pq.ParquetFile]:
        """One of the files, open; it must be the same before and after."""
        shard = self.shards[number]
        shard.check_unchanged()
        with opened(shard.path, self.texts if self.in_levels else ()) as file:
            yield file
        shard.check_unchanged()

    def rows_of_group(
        self, number: int, file: pq.ParquetFile, group: int, rows: int, threads: bool = True
    ) -> Iterator[pa.Table]:
        """A row group of a file in pieces of `rows` rows; shorter ones may be among them.

        `threads` says whether columns are decoded side by side.
        """
        shard = self.shards[number]
        with _readable(shard.path, file, group):
            for batch in file.iter_batches(rows, [group], self._own, use_threads=threads):
                yield self._in_common_types(shard, pa.Table.from_batches([batch]))

    def _rows_of(self, number: int) -> pa.Table:
        shard = self.shards[number]
        with self.file(number) as file, _readable(shard.path, file):
            return self._in_common_types(shard, file.read(columns=self._own))

    def _in_common_types(self, shard: Shard, table: pa.Table) -> pa.Table:
        """Columns in their order, with the types of the whole table and the labels of the folders."""
        columns, texts = [], set(self.texts) if self.in_levels else set()
        for name, kind in self.types.items():
            if name in self.partitions:
                label = shard.labels[self.partitions.index(name)]
                columns.append(_repeated(label, kind, table.num_rows, self.in_levels))
                continue
            column = table.column(name)
            if name in texts:
                column = as_text_levels(column)
            elif word_of(kind) == "numbers" and word_of(column.type) == "text":
                column = text_as_numbers(decoded(column).cast(pa.string()))[0]
            if column.type != kind and not (name in texts and pa.types.is_dictionary(column.type)):
                try:
                    column = column.cast(kind, safe=not pa.types.is_floating(kind))
                except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                    raise TableError(
                        f"column {name!r} of {str(shard.path)!r} is {column.type}, and its values do not fit into the "
                        f"{kind} of the other files. Write all files with the same types."
                    ) from error
            columns.append(column)
        return pa.table(columns, names=list(self.types))

    @contextmanager
    def enough_memory(self) -> Iterator[None]:
        """What does not fit says how large the table is."""
        try:
            yield
        except pa.ArrowMemoryError as error:
            raise TableError(
                f"{str(self.path)!r} has {self.n_rows:,} rows and {self.n_columns:,} columns, more than there is "
                "memory for. Read fewer columns, or write a part of it."
            ) from error


def open_parquet(path: Path, columns: Sequence[str] | None = None, text: Collection[str] = ()) -> ParquetTable:
    """The table of a file or a folder; no row is read.

    Parameters
    ----------
    path : Path
    columns : sequence of str or None, default None
        Only these.
    text : collection of str, default ()
        Columns that stay text, though their values are numbers.
    """
    if path.is_dir():
        shards, partitions, notes = shards_of(path, text)
    else:
        check_file(path)
        shards, partitions, notes = (Shard.of(path),), (), ()
    schemas, groups, stored = list[pa.Schema](), list[tuple[int, ...]](), dict[str, int]()
    for shard in shards:
        schema, rows, own = _footer(shard.path)
        if schemas:
            _check_alike(shards[0].path, schemas[0], shard.path, schema)
        if not schemas or schema != schemas[-1]:
            schemas.append(schema)
        groups.append(rows)
        for name, size in own.items():
            stored[name] = stored.get(name, 0) + size
    for name in partitions:
        if name in schemas[0].names:
            raise TableError(
                f"{name!r} is a column of {str(shards[0].path)!r} and the name of the folders around it, {name}=...: "
                "which of them counts is not known. Rename the folders, or write the files without this column."
            )
    found = [*_columns(schemas[0]), *partitions]
    check_printable(path, found)
    check_columns(path, found, columns)
    wanted = [name for name in found if columns is None or name in set(columns)]
    labels = {name: [shard.labels[j] for shard in shards] for j, name in enumerate(partitions)}
    types = {name: _type_of(name, schemas, labels) for name in wanted}
    left = [name for name, kind in types.items() if not is_plain(kind)]
    types = {name: kind for name, kind in types.items() if is_plain(kind)}
    if columns is None and len(types) < 2:
        raise TableError(
            f"{str(path)!r} has {len(types)} columns of numbers, text or dates. A table needs a target and features: "
            "write it with more."
        )
    if left:
        notes = (*notes, f"left out, since their values are lists, records or bytes: {shown(left)}")
    any_column = schemas[0].names[0]
    return ParquetTable(
        path, shards, partitions, types, tuple(groups), len(found), notes, stored, any_column, text=frozenset(text)
    )


def with_rows(table: ParquetTable) -> ParquetTable:
    """The table; an error where it has none."""
    if table.n_rows == 0:
        raise TableError(f"{str(table.path)!r} has columns but no rows. Check how it was written.")
    return table


def with_number_types(table: ParquetTable) -> ParquetTable:
    """The table, where text that is numbers throughout is numbers; text that may be such is read once."""
    kinds: dict[str, pa.DataType] = {}
    may_be = table.select([name for name in table.texts if name not in table.text])
    for rows in (FEW_ROWS, MANY_ROWS):  # most columns of text show in a few rows what they are
        if not may_be.types:
            return table
        kinds = dict.fromkeys(may_be.types, pa.int64())
        for piece in may_be.batches(rows):
            for name in list(kinds):
                numbers = text_as_numbers(decoded(piece.column(name)).cast(pa.string()))[0]
                if numbers is None:
                    del kinds[name]
                elif pa.types.is_floating(numbers.type):
                    kinds[name] = pa.float64()
            if rows == FEW_ROWS or not kinds:
                break
        may_be = may_be.select(kinds)
    return replace(table, types={**table.types, **kinds})


def cut(tables: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Tables of any length as pieces of `rows` rows; the last may have fewer."""
    waiting: pa.Table | None = None
    for new in tables:
        waiting = new if waiting is None or not waiting.num_rows else pa.concat_tables([waiting, new])
        while waiting.num_rows >= rows:
            yield waiting.slice(0, rows)
            waiting = waiting.slice(rows)
    if waiting is not None and waiting.num_rows:
        yield waiting


def _repeated(label: object, kind: pa.DataType, n: int, in_levels: bool) -> pa.Array:
    """The label of a folder in n rows."""
    if label is None:
        return pa.nulls(n, kind)
    if in_levels and word_of(kind) == "text":
        return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int8()), n), pa.array([label], kind))
    return pa.repeat(pa.scalar(label, kind), n)


@contextmanager
def opened(path: Path, in_levels: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
    """The file, closed in the end; these columns of text are read as codes of their different values."""
    try:
        if path.stat().st_size == 0:
            raise TableError(f"{str(path)!r} is empty. Copy it again, or write it again.")
        file = pq.ParquetFile(path, read_dictionary=in_levels or None)
    except FileNotFoundError as error:
        raise TableNotFoundError(f"{str(path)!r} cannot be found any more. Wait until it is written.") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, TableError):
            raise
        if isinstance(error, PermissionError):
            raise TableError(f"{str(path)!r} cannot be read: permission denied. Change its rights.") from error
        raise TableError(
            f"{str(path)!r} is not a whole Parquet file. Copy it again, write it again, or rename it if it is text."
        ) from error
    with file:
        yield file


def _footer(path: Path) -> tuple[pa.Schema, tuple[int, ...], dict[str, int]]:
    """Columns and their types, rows of the row groups, and the bytes of columns of text."""
    with opened(path) as file:
        schema, about = file.schema_arrow, file.metadata
        names = [str(name) for name in schema.names]
        twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
        if twice:
            raise TableError(
                f"{str(path)!r} must have every column name once. Got {shown(twice)} more often. Rename them."
            )
        stored = {}
        if about.num_columns == len(names):  # no column is a record of several
            texts = [j for j, name in enumerate(names) if word_of(schema.field(name).type) == "text"]
            each = [about.row_group(g) for g in range(about.num_row_groups)] if texts else []
            stored = {names[j]: sum(group.column(j).total_uncompressed_size for group in each) for j in texts}
        rows = tuple(about.row_group(g).num_rows for g in range(about.num_row_groups))
        return schema.remove_metadata(), rows, stored


def _columns(schema: pa.Schema) -> list[str]:
    return [str(name) for name in schema.names if not _INDEX.fullmatch(str(name))]


def _check_alike(first: Path, schema: pa.Schema, path: Path, other: pa.Schema) -> None:
    """Raise unless two files have the same columns of the same kinds."""
    if schema == other:
        return
    names, own = _columns(schema), _columns(other)
    for name in names:
        if name not in set(own):
            raise TableError(
                f"{str(path)!r} must have the columns of the other files. It has no column {name!r}, which "
                f"{str(first)!r} has.{did_you_mean(name, own)} Write it again with this column, or move it elsewhere."
            )
    more = [name for name in own if name not in set(names)]
    if more:
        raise TableError(
            f"{str(path)!r} must have the columns of the other files. It has {shown(more)}, which {str(first)!r} has "
            "not. Write it again without, or move it elsewhere."
        )
    for name in names:
        kinds = schema.field(name).type, other.field(name).type
        words = [word_of(kind) for kind in kinds]
        if words[0] != words[1] and None not in words:
            raise TableError(
                f"column {name!r} must be of one kind in all files. Got {words[1]} ({kinds[1]}) in {str(path)!r} and "
                f"{words[0]} ({kinds[0]}) in {str(first)!r}. Write the files again with the same types."
            )


def _type_of(name: str, schemas: Sequence[pa.Schema], labels: Mapping[str, Sequence[object]]) -> pa.DataType:
    if name in labels:
        return pa.string() if any(isinstance(label, str) for label in labels[name]) else pa.int64()
    return common_type([schema.field(name).type for schema in schemas])


@contextmanager
def _readable(path: Path, file: pq.ParquetFile, group: int | None = None) -> Iterator[None]:
    """Rows that cannot be decoded are an error of the file, and of its row group."""
    try:
        yield
    except pa.ArrowMemoryError:
        raise
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, TableError):
            raise
        bad = _first_damaged(file) if group is None else group
        where = "" if bad is None else f" (row group {bad + 1} of {file.num_row_groups})"
        raise TableError(
            f"{str(path)!r} is damaged: its rows cannot be decoded{where}. Copy it again, or write it again."
        ) from error


def _first_damaged(file: pq.ParquetFile) -> int | None:
    for group in range(file.num_row_groups):
        try:
            file.read_row_group(group)
        except (pa.ArrowException, OSError):
            return group
    return None
