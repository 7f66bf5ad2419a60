"""All rows of a table that is larger than the memory, prepared block by block for training."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import torch
from sklearn.pipeline import Pipeline
from torch import Tensor

from irmtv.app.io.parquet_blocks import ParquetBlocks, block_frame, shares
from irmtv.app.io.parquet_types import as_levels, as_numbers, is_number, word_of
from irmtv.core.read_ahead import read_ahead
from irmtv.core.types import Rows
from irmtv.data.categories import CategoricalColumns
from irmtv.data.environments import rows_of_codes
from irmtv.data.scaling import Scaler
from irmtv.data.tables.errors import TableError
from irmtv.data.tables.kinds import as_frame, as_kind
from irmtv.data.tables.passes import LearnedTable, Piece
from irmtv.data.tables.reading import Levels
from irmtv.data.training import TrainingData

Ints = npt.NDArray[np.integer]
FEW_CLASSES = 20


class TableBlocks:
    """A `BlockSource` (irmtv.data.blocks) of the files of a table.

    Parameters
    ----------
    blocks : the rows as the files have them.
    learned : what is known of the whole table.
    kept : by block, how many of its rows are kept; blocks without any are left out.
    codes : (N,) environments of the rows that are kept, or None.
    steps : the fitted preprocessing.
    data : a sample of the rows, in whose units and types the blocks come.
    progress : called with the share of a pass that was read.
    """

    def __init__(
        self,
        blocks: ParquetBlocks,
        learned: LearnedTable,
        kept: Sequence[int],
        codes: Ints | None,
        steps: Pipeline,
        data: TrainingData[Any],
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self._blocks, self._learned, self._steps, self._data = blocks, learned, steps, data
        self._kept = np.asarray(kept, dtype=np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self._kept)])
        self._there = np.flatnonzero(self._kept)  # blocks that have rows
        self._codes, self._progress = codes, progress
        # columns that need no DataFrame
        kinds, types = steps[0].kinds_, blocks.table.types
        self._numbers = [name for name, kind in kinds.items() if kind == "number" and is_number(types[name])]
        self._texts = [name for name in steps[-1].recipes if kinds[name] == "text" and word_of(types[name]) == "text"]
        if isinstance(data.x, CategoricalColumns):
            self._numbers = self._texts = []
        rows, target = learned.rows, str(learned.roles.target)
        self._number_target = rows.n_kept == rows.n_rows and rows.target.numeric and is_number(types[target])
        self.passes = 0  # that were begun
        self.blocks_read = 0  # by themselves

    def share(self, rank: int, ranks: int) -> TableBlocks:
        """The blocks of one of several processes, which have about as many rows each: neighbours in the files."""
        if ranks > len(self._there):
            raise TableError(
                f"every process must have rows. Got {ranks} processes for a table of {len(self._there)} blocks, which "
                "follow the row groups of its files. Start fewer, or use less --memory, which makes smaller blocks."
            )
        begin, end = shares(self._kept[self._there], ranks)[rank]
        first, last = int(self._there[begin]), int(self._there[end - 1]) + 1
        codes = None if self._codes is None else self._codes[self._starts[first] : self._starts[last]]
        blocks, kept = self._blocks.between(first, last), self._kept[first:last].tolist()
        return TableBlocks(blocks, self._learned, kept, codes, self._steps, self._data, self._progress)

    @property
    def cuts(self) -> list[int]:
        """How many rows of each block are kept."""
        return [int(n) for n in self._kept]

    @property
    def n_rows(self) -> int:
        return int(self._starts[-1])

    @property
    def n_features(self) -> int:
        return int(self._data.task.train.x.shape[1])

    @property
    def names(self) -> tuple[Hashable, ...]:
        return self._data.task.train.names if self._codes is not None else ()

    @property
    def rows_of_environments(self) -> tuple[int, ...]:
        if self._codes is None:
            return ()
        return tuple(rows_of_codes(self._codes, len(self.names)).tolist())

    @property
    def rows_of_blocks(self) -> tuple[tuple[int, ...], ...]:
        return tuple(self._rows_of(int(i)) for i in self._there)

    def _rows_of(self, i: int) -> tuple[int, ...]:
        if self._codes is None:
            return (int(self._kept[i]),)
        own = self._codes[self._starts[i] : self._starts[i + 1]]
        return tuple(np.bincount(own, minlength=len(self.names)).tolist())

    def blocks(self) -> Iterator[Rows]:
        """One pass, read ahead by a thread and prepared ahead by another one."""
        self.passes += 1
        own = ((i, i + 1, table) for i, table in enumerate(self._blocks.tables()))
        return read_ahead(self._rows(read_ahead(own), iter(range(1, len(self._kept) + 1))))

    def spans(self, most: int, rows: int) -> list[Iterator[Rows]]:
        """One pass in at most so many spans, at most `rows` rows at a time, whose features are not rounded to
        the type of a block's.

        Nothing is read ahead: spans keep the cores busy, and more threads than cores only take them from each other.
        """
        self.passes += 1
        done = iter(range(1, len(self._kept) + 1))  # counted by the threads that work on them
        return [self._rows(self._blocks.pieces(*span), done, rows) for span in self._blocks.spans(most)]

    def _rows(
        self, pieces: Iterator[tuple[int, int, pa.Table]], done: Iterator[int], most: int | None = None
    ) -> Iterator[Rows]:
        for first, last, table in pieces:
            if self._starts[first] < self._starts[last]:
                yield from self._prepared(first, last, table, most)
            n = [next(done) for _ in range(first, last)][-1]
            if self._progress is not None:
                self._progress(n / len(self._kept))

    def block(self, i: int) -> Rows:
        """One of the blocks of a pass."""
        number = int(self._there[i])
        self.blocks_read += 1
        (rows,) = self._prepared(number, number + 1, self._blocks.block(number))
        return rows

    def _prepared(self, first: int, last: int, table: pa.Table, most: int | None = None) -> Iterator[Rows]:
        """The rows of neighbouring blocks, at most `most` at a time in float64; None: together, as a block."""
        columns: dict[str, Any] = {name: _numbers(table.column(name)) for name in self._numbers}
        texts = {name: as_levels(table.column(name)) for name in self._texts}
        columns |= {name: text for name, text in texts.items() if text is not None}
        others, target = [name for name in table.column_names if name not in columns], str(self._learned.roles.target)
        aux = None
        if others == [target] and self._number_target:  # nothing needs a DataFrame
            y = self._target(as_numbers(table.column(target)))
            features = self._standardised(columns, len(y), most)
        else:
            piece = self._learned.read(block_frame(table.select(others)))
            y, features = self._target(piece.y), self._features(piece, columns, most)
            aux = None if piece.aux is None else torch.from_numpy(piece.aux.to_numpy(dtype=np.float64).copy())
        codes, names = None, self._data.task.train.names
        if self._codes is not None:
            codes = torch.from_numpy(self._codes[self._starts[first] : self._starts[last]].astype(np.int64))
        start = 0
        for x in features:
            part = slice(start, start := start + len(x))
            own = None if codes is None else codes[part]
            yield Rows(x, y[part], own, None if aux is None else aux[part], () if own is None else names)

    def _features(self, piece: Piece, columns: Mapping[str, Any], most: int | None) -> Iterator[Tensor]:
        """(m, D), of the features of a piece and others beside it."""
        x = self._data.x
        if isinstance(x, CategoricalColumns):
            whole = torch.from_numpy(x.read(self._steps.transform(piece.features)))
            return iter(torch.split(whole, most or len(whole)))
        if (kept := piece.kept) is not None:
            columns = {
                name: Levels(column.values, column.codes[kept]) if isinstance(column, Levels) else column[kept]
                for name, column in columns.items()
            }
        kinds, frame = self._steps[0].kinds_, as_frame(piece.features)
        others = {str(name): as_kind(column, kinds[str(name)])[0] for name, column in frame.items()}
        return self._standardised({**columns, **others}, len(piece.y), most)

    def _standardised(self, columns: Mapping[str, Any], n: int, most: int | None) -> Iterator[Tensor]:
        """(m, D), of all features of n rows as `ReadNumbers.scaled` takes them."""
        x = self._data.x
        assert isinstance(x, Scaler)
        pieces = self._steps[-1].scaled(columns, n, x, most or n)
        return pieces if most is not None else (piece.to(self._data.task.train.x.dtype) for piece in pieces)

    def _target(self, y: pd.Series | npt.NDArray[np.number]) -> Tensor:
        """(n,) codes of classes, or numbers in standard units."""
        dtype = _numpy(self._data.task.train.y)
        if self._data.y is not None:
            return torch.from_numpy(self._data.y(np.asarray(y, dtype=np.float64)[:, None])[:, 0].astype(dtype))
        classes = self._data.classes
        assert classes is not None
        if classes.dtype.kind in "biuf":
            values = np.asarray(y).astype(classes.dtype, copy=False)
            few = len(classes) <= FEW_CLASSES  # which are counted faster than searched
            codes = sum(values >= c for c in classes[1:]) if few else np.searchsorted(classes, values)
        else:
            place = {str(label): code for code, label in enumerate(classes)}
            each, labels = pd.factorize(y)
            codes = np.array([place[str(label)] for label in labels])[each]
        return torch.from_numpy(codes.astype(dtype))


def _numpy(like: Tensor) -> Any:
    """The type of its numbers. Blocks are made by NumPy: torch would use threads for each of them."""
    return like.new_empty(0).numpy().dtype


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[np.number]:
    """A column as `as_numbers` has it, not read-only, so that torch takes it without a copy."""
    if column.num_chunks == 1 and not column.null_count:
        return np.asarray(torch.utils.dlpack.from_dlpack(column.chunk(0)).numpy())
    return as_numbers(column)
