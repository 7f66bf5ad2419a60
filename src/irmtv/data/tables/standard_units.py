"""Columns of many rows in standard units, some rows at a time, as training on blocks reads them.

Numbers of all columns are worked on together, by few operations that take long. Threads beside each other take turns
at Python between two operations, and where these are short that takes more time than the numbers do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from irmtv.data.scaling import Scaler


@dataclass(frozen=True, eq=False)
class Column:
    """A column of N rows, and where its numbers are among those of all columns.

    Attributes
    ----------
    place : int
        Of its first number.
    values : (N,) floats, or int64 positions in `table`
    table : (L + 1, outputs) float32 or None
        The numbers of the levels of a column that has levels.
    fill : (outputs,) float32
        In place of gaps.
    flag : int or None
        The place of the number that says where it has gaps.
    """

    place: int
    values: npt.NDArray[Any]
    table: npt.NDArray[np.float32] | None
    fill: npt.NDArray[np.float32]
    flag: int | None


def standardised(columns: Sequence[Column], scaler: Scaler, n: int, most: int) -> Iterator[Tensor]:
    """Rows (m, D) in float64, each column side by side, at most `most` of the n rows at a time.

    Numbers are rounded to 32 bits before, as tables in memory have them. Each piece takes the place of the last one:
    memory that the system has to give anew costs more time, too.
    """
    mean, scale = torch.from_numpy(scaler.mean), torch.from_numpy(scaler.scale)
    made = torch.empty(len(mean), min(most, n), dtype=torch.float64)
    numbers = _Numbers([column for column in columns if column.table is None], mean, scale, made, most)
    coded = [_Coded(column, mean, scale) for column in columns if column.table is not None]
    flags = [(c.flag, (torch.arange(2) - mean[c.flag]) / scale[c.flag]) for c in columns if c.flag is not None]
    for start in range(0, n, most):
        m = min(most, n - start)
        gaps = dict(numbers.put(made, m))
        for one in coded:
            gaps.update(one.put(made, slice(start, start + m)))
        for flag, units in flags:
            made[flag, :m] = units[0]
            if flag in gaps:
                made[flag, :m].masked_fill_(gaps[flag], float(units[1]))
        yield made[:, :m].T


class _Numbers:
    """Columns of numbers."""

    def __init__(self, columns: Sequence[Column], mean: Tensor, scale: Tensor, made: Tensor, most: int) -> None:
        self.columns, self.places = columns, torch.tensor([column.place for column in columns], dtype=torch.long)
        self.mean, self.scale = mean[self.places].unsqueeze(1), scale[self.places].unsqueeze(1)
        wide = [np.require(column.values, np.float64, "W") for column in columns]  # torch cannot look at others
        self.pieces = zip(*(torch.split(torch.from_numpy(values), most) for values in wide), strict=True)
        self.gaps = [k for k, values in enumerate(wide) if np.isnan(values.min(initial=0.0))]
        self.rounded = torch.empty(len(columns), made.shape[1])
        self.together = len(columns) > 0 and columns[-1].place - columns[0].place == len(columns) - 1
        self.spare = made[:0] if self.together else torch.empty(self.rounded.shape, dtype=torch.float64)

    def put(self, made: Tensor, m: int) -> Iterator[tuple[int | None, Tensor]]:
        """The next m rows among the numbers of all columns (D, most); flags of columns with gaps, and their places."""
        if not self.columns:
            return
        first = self.columns[0].place
        z = (made[first : first + len(self.columns)] if self.together else self.spare)[:, :m]
        torch.stack(next(self.pieces), out=z)
        rounded = self.rounded[:, :m].copy_(z)
        for k in self.gaps:
            missing = rounded[k].isnan()
            rounded[k].masked_fill_(missing, float(self.columns[k].fill[0]))
            yield self.columns[k].flag, missing
        z.copy_(rounded).sub_(self.mean).div_(self.scale)
        if not self.together:
            made[:, :m].index_copy_(0, self.places, z)


class _Coded:
    """A column of levels."""

    def __init__(self, column: Column, mean: Tensor, scale: Tensor) -> None:
        assert column.table is not None
        self.codes, self.flag = torch.from_numpy(np.require(column.values, np.int64, "W")), column.flag
        missing = np.isnan(column.table)
        self.missing = torch.from_numpy(missing.any(1))  # (L + 1,)
        table = torch.from_numpy(np.where(missing, column.fill, column.table)).double()
        self.places = slice(column.place, column.place + table.shape[1])
        self.table = ((table - mean[self.places]) / scale[self.places]).T.contiguous()  # (outputs, L + 1)

    def put(self, made: Tensor, rows: slice) -> Iterator[tuple[int | None, Tensor]]:
        """The same as of numbers."""
        codes = self.codes[rows]
        for own, table in zip(made[self.places, : len(codes)], self.table, strict=True):
            torch.index_select(table, 0, codes, out=own)
        if self.flag is not None:
            yield self.flag, self.missing[codes]
