"""Rows that come in blocks: what training needs of a data set that is larger than the memory.

The application makes a `BlockSource` of a folder of files; solvers and networks train on it in passes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from irmtv.core.types import Rows


class BlockSource(Protocol):
    """A data set that is read block by block, as often as it is asked for.

    Every pass gives the same blocks in the same order. Features are standardised, and the target of a regression is, as
    a `TrainingData` has them; for trees features are as their `TrainingData` has them, with gaps and codes. Where
    training infers environments, rows have `aux`. Rows have no weights.
    """

    @property
    def n_rows(self) -> int:
        """Rows of all blocks."""

    @property
    def n_features(self) -> int:
        """D, columns of x."""

    @property
    def names(self) -> tuple[Hashable, ...]:
        """Environments, by code; () where none are given."""

    @property
    def rows_of_environments(self) -> tuple[int, ...]:
        """How many rows each environment has; () where none are given."""

    @property
    def rows_of_blocks(self) -> Sequence[Sequence[int]]:
        """By block, how many rows of each environment it has: one number where none are given."""

    def blocks(self) -> Iterator[Rows]:
        """One pass: Rows of x (n, D) float32 or float64, y and codes into `names`. It may read ahead."""

    def spans(self, most: int, rows: int) -> Sequence[Iterator[Rows]]:
        """One pass in at most so many parts, which may be gone through side by side: neighbouring blocks each, whose
        rows come in pieces of at most so many, cut in another way than blocks, with x in float64;
        a piece may take the place of the one before it in memory."""

    def block(self, i: int) -> Rows:
        """One block of a pass by itself: for networks, which read blocks in random order.

        It may be called from any thread, by one at a time, and should cost what one block costs.
        """


@dataclass(frozen=True)
class RowsInBlocks:
    """A `BlockSource` of rows that are in memory.

    >>> rows = Rows(torch.zeros(5, 2), torch.zeros(5), torch.tensor([0, 0, 1, 1, 1]), names=("north", "south"))
    >>> RowsInBlocks.cut(rows, [3, 2]).rows_of_blocks
    ((2, 1), (0, 2))
    """

    parts: tuple[Rows, ...]

    @classmethod
    def cut(cls, rows: Rows, sizes: Sequence[int]) -> RowsInBlocks:
        """Rows in their order, so many in each block."""
        return cls(tuple(rows.take(index) for index in torch.split(torch.arange(len(rows)), list(sizes))))

    @property
    def n_rows(self) -> int:
        return sum(map(len, self.parts))

    @property
    def n_features(self) -> int:
        return self.parts[0].x[0].numel()

    @property
    def names(self) -> tuple[Hashable, ...]:
        return self.parts[0].names

    @property
    def rows_of_environments(self) -> tuple[int, ...]:
        return tuple(map(sum, zip(*self.rows_of_blocks, strict=True))) if self.names else ()

    @property
    def rows_of_blocks(self) -> tuple[tuple[int, ...], ...]:
        return tuple(
            (len(part),)
            if part.environment is None
            else tuple(torch.bincount(part.environment, minlength=len(part.names)).tolist())
            for part in self.parts
        )

    def blocks(self) -> Iterator[Rows]:
        return iter(self.parts)

    def spans(self, most: int, rows: int) -> list[Iterator[Rows]]:
        each = -(-len(self.parts) // most)
        return [_cut(self.parts[i : i + each], rows) for i in range(0, len(self.parts), each)]

    def block(self, i: int) -> Rows:
        return self.parts[i]


def _cut(parts: Sequence[Rows], rows: int) -> Iterator[Rows]:
    """The same rows, at most so many at a time."""
    pieces = (torch.split(torch.arange(len(part)), rows) for part in parts)
    return (part.take(index) for part, each in zip(parts, pieces, strict=True) for index in each if len(index))
