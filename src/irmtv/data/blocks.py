"""Rows that come in blocks: what training needs of a data set that is larger than the memory.

The application makes a `BlockSource` of a folder of files; solvers and networks train on it in passes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Protocol

from irmtv.core.types import Rows


class BlockSource(Protocol):
    """A data set that is read block by block, as often as it is asked for.

    Every pass gives the same blocks in the same order. Features are standardised, and the target of a regression is, as
    a `TrainingData` has them.
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

    def blocks(self) -> Iterator[Rows]:
        """One pass: Rows of x (n, D) float32 or float64, y and codes into `names`."""
