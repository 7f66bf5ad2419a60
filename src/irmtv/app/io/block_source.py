"""All rows of a table that is larger than the memory, prepared block by block for training."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from sklearn.pipeline import Pipeline
from torch import Tensor

from irmtv.app.io.parquet_blocks import ParquetBlocks
from irmtv.core.read_ahead import read_ahead
from irmtv.core.types import Rows
from irmtv.data.categories import CategoricalColumns
from irmtv.data.tables.errors import TableError
from irmtv.data.tables.passes import LearnedTable, Piece
from irmtv.data.training import TrainingData

Ints = npt.NDArray[np.integer]


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
        return tuple(np.bincount(self._codes, minlength=len(self.names)).tolist())

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
        return read_ahead(self._rows())

    def _rows(self) -> Iterator[Rows]:
        for i, frame in enumerate(read_ahead(self._blocks.frames())):
            if self._kept[i]:
                yield self._prepared(i, frame)
            if self._progress is not None:
                self._progress((i + 1) / len(self._kept))

    def block(self, i: int) -> Rows:
        """One of the blocks of a pass."""
        number = int(self._there[i])
        self.blocks_read += 1
        return self._prepared(number, self._blocks.frame(number))

    def _prepared(self, i: int, frame: pd.DataFrame) -> Rows:
        piece, like = self._learned.read(frame), self._data.task.train
        codes = None
        if self._codes is not None:
            codes = torch.from_numpy(self._codes[self._starts[i] : self._starts[i + 1]].astype(np.int64))
        aux = None if piece.aux is None else torch.from_numpy(piece.aux.to_numpy(dtype=np.float64).copy())
        return Rows(self._features(piece), self._target(piece), codes, aux, like.names if codes is not None else ())

    def _features(self, piece: Piece) -> Tensor:
        """(n, D)"""
        values, x = self._steps.transform(piece.features), self._data.x
        if isinstance(x, CategoricalColumns):
            return torch.from_numpy(x.read(values))
        return torch.from_numpy(x.array(values, _numpy(self._data.task.train.x)))

    def _target(self, piece: Piece) -> Tensor:
        """(n,) codes of classes, or numbers in standard units."""
        y, dtype = piece.y, _numpy(self._data.task.train.y)
        if self._data.y is not None:
            return torch.from_numpy(self._data.y(y.to_numpy(dtype=np.float64)[:, None])[:, 0].astype(dtype))
        classes = self._data.classes
        assert classes is not None
        if classes.dtype.kind in "biuf":
            codes = np.searchsorted(classes, y.to_numpy().astype(classes.dtype))
        else:
            place = {str(label): code for code, label in enumerate(classes)}
            each, values = pd.factorize(y)
            codes = np.array([place[str(value)] for value in values])[each]
        return torch.from_numpy(codes.astype(dtype))


def _numpy(like: Tensor) -> Any:
    """The type of its numbers. Blocks are made by NumPy: torch would use threads for each of them."""
    return like.new_empty(0).numpy().dtype


def shares(sizes: Sequence[int] | Ints, ranks: int) -> list[tuple[int, int]]:
    """Blocks of these sizes for so many processes, neighbours together, one each at least: from where to before where.

    >>> shares([10, 10, 10, 30], 2), shares([100, 1, 1], 3)
    ([(0, 3), (3, 4)], [(0, 1), (1, 2), (2, 3)])
    """
    until = np.cumsum(sizes)
    ends = [0]
    for k in range(1, ranks + 1):
        nearest = int(np.searchsorted(until, until[-1] * k / ranks)) + 1
        ends.append(min(max(nearest, ends[-1] + 1), len(until) - (ranks - k)))
    return list(pairwise(ends))
