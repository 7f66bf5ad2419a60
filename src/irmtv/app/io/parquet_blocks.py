"""A Parquet table as blocks of rows: the same ones in every pass, and each of them by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from irmtv.app.io.parquet import ParquetTable
from irmtv.app.io.parquet_types import as_frame


class Part(NamedTuple):
    """Some rows of a row group."""

    file: int  # number of the file
    group: int
    first: int
    last: int  # exclusive


@dataclass(frozen=True)
class ParquetBlocks:
    """The rows of a table in blocks, which follow the row groups of the files as far as they can."""

    table: ParquetTable
    parts: tuple[tuple[Part, ...], ...]  # by block
    rows: int  # of a block, at most
    together: int  # of neighbouring blocks that a pass reads as one piece, at most
    threads: bool = True  # whether columns are decoded side by side

    @classmethod
    def of(cls, table: ParquetTable, rows: int, together: int = 0) -> ParquetBlocks:
        """Blocks of at most `rows` rows: small row groups together, large ones in parts of about the same size."""
        blocks: list[tuple[Part, ...]] = []
        waiting: list[Part] = []
        n = 0
        for file, groups in enumerate(table.groups):
            for group, size in enumerate(groups):
                step = _step(size, rows)
                for first in range(0, size, step):
                    part = Part(file, group, first, min(first + step, size))
                    if n + part.last - part.first > rows and waiting:
                        blocks.append(tuple(waiting))
                        waiting, n = [], 0
                    waiting.append(part)
                    n += part.last - part.first
        return cls(replace(table, in_levels=True), (*blocks, *([tuple(waiting)] if waiting else [])), rows, together)

    def select(self, names: list[str]) -> ParquetBlocks:
        """The same blocks, of these columns alone."""
        return replace(self, table=self.table.select(names))

    def between(self, first: int, last: int) -> ParquetBlocks:
        """The blocks from `first` to before `last`."""
        return replace(self, parts=self.parts[first:last])

    def spans(self, most: int) -> list[tuple[int, int]]:
        """Neighbouring blocks that may be read beside others, at most so many groups of about as many rows each: the
        first and the one after the last. They begin with row groups, which are then read once."""
        begins = [i for i, parts in enumerate(self.parts) if i == 0 or parts[0].first == 0]
        rows = np.add.reduceat(self.sizes(), begins)
        cuts = shares(rows, min(most, len(begins)))
        ends = [*begins, len(self.parts)]
        return [(ends[first], ends[last]) for first, last in cuts]

    def __len__(self) -> int:
        return len(self.parts)

    def sizes(self) -> list[int]:
        """Rows of every block."""
        return [sum(part.last - part.first for part in parts) for parts in self.parts]

    def frames(self) -> Iterator[pd.DataFrame]:
        """All blocks, in their order."""
        return (block_frame(piece) for piece in self.tables())

    def tables(self) -> Iterator[pa.Table]:
        """The same as the files have them."""
        with self.table.enough_memory():
            yield from _recut(self._pieces(), self.sizes())

    def pieces(self, first: int, last: int) -> Iterator[tuple[int, int, pa.Table]]:
        """The blocks from `first` to before `last`, neighbours together: from which to before which, and their rows."""
        ends, n = [first], 0
        for i, size in enumerate(self.sizes()[first:last], first):
            if n and n + size > self.together:
                ends.append(i)
                n = 0
            n += size
        cuts = list(pairwise([*ends, last]))
        joined = tuple(_merged(part for parts in self.parts[a:b] for part in parts) for a, b in cuts)
        # others are read beside these: more threads would only take the cores from each other
        pieces = replace(self, parts=joined, rows=max(self.rows, self.together), threads=False).tables()
        return ((a, b, piece) for (a, b), piece in zip(cuts, pieces, strict=True))

    def frame(self, i: int) -> pd.DataFrame:
        """One block."""
        return block_frame(self.block(i))

    def block(self, i: int) -> pa.Table:
        """One block as the files have it."""
        with self.table.enough_memory():
            return pa.concat_tables([self._part(part) for part in self.parts[i]])

    def _pieces(self) -> Iterator[pa.Table]:
        every = (part for parts in self.parts for part in parts)
        for number, of_file in groupby(every, key=lambda part: part.file):
            with self.table.file(number) as file:
                for group, parts in groupby(of_file, key=lambda part: part.group):
                    yield from self._rows_of(number, file, group, list(parts))

    def _part(self, part: Part) -> pa.Table:
        with self.table.file(part.file) as file:
            return pa.concat_tables(list(self._rows_of(part.file, file, part.group, [part])))

    def _rows_of(self, number: int, file: pq.ParquetFile, group: int, parts: list[Part]) -> Iterator[pa.Table]:
        """These parts of a row group, which is read no further than to the last of them."""
        step, start = _step(self.table.groups[number][group], self.rows), 0
        for piece in self.table.rows_of_group(number, file, group, step, self.threads):
            end = start + piece.num_rows
            for part in parts:
                first, last = max(part.first, start), min(part.last, end)
                if first < last:
                    yield piece.slice(first - start, last - first)
            if end >= parts[-1].last:
                return
            start = end


def block_frame(table: pa.Table) -> pd.DataFrame:
    """A block as a DataFrame, where text is categories."""
    return as_frame(table, table.column_names, in_levels=True)


def shares(sizes: Sequence[int] | npt.NDArray[np.integer], n: int) -> list[tuple[int, int]]:
    """Pieces of these sizes in n shares, neighbours together, one each at least: from where to before where.

    >>> shares([10, 10, 10, 30], 2), shares([100, 1, 1], 3)
    ([(0, 3), (3, 4)], [(0, 1), (1, 2), (2, 3)])
    """
    until = np.cumsum(sizes)
    ends = [0]
    for k in range(1, n + 1):
        nearest = int(np.searchsorted(until, until[-1] * k / n)) + 1
        ends.append(min(max(nearest, ends[-1] + 1), len(until) - (n - k)))
    return list(pairwise(ends))


def _merged(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The same rows in as few parts as possible: those that follow each other in a row group are read as one."""
    merged: list[Part] = []
    for part in parts:
        if merged and merged[-1][:2] == part[:2] and merged[-1].last == part.first:
            merged[-1] = merged[-1]._replace(last=part.last)
        else:
            merged.append(part)
    return tuple(merged)


def _step(size: int, rows: int) -> int:
    """Rows of the parts of a row group."""
    parts = max(1, -(-size // rows))
    return max(1, -(-size // parts))


def _recut(tables: Iterator[pa.Table], sizes: list[int]) -> Iterator[pa.Table]:
    """Tables of any length as tables of these."""
    waiting: list[pa.Table] = []
    n = 0
    for size in sizes:
        while n < size:
            new = next(tables)
            waiting.append(new)
            n += new.num_rows
        joined = pa.concat_tables(waiting) if len(waiting) > 1 else waiting[0]
        yield joined.slice(0, size) if n > size else joined
        waiting, n = ([joined.slice(size)], n - size) if n > size else ([], 0)
