"""Means and deviations of columns whose rows come in blocks: every block is added, and none is kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from irmtv.data.scaling import Scaler

Floats = npt.NDArray[np.float64]


def _none() -> Floats:
    return np.empty(0)


@dataclass
class Moments:
    """Of D columns: n rows, their means, the sum of squared distances from the means, the smallest and largest values.

    Two parts of n and m rows with means a and b are joined by (Chan, Golub, LeVeque 1979)
        mean = a + (b - a) m / (n + m),    squares = squares_a + squares_b + (b - a)^2 n m / (n + m),
    which loses no digits where the values are far from 0. Squares are in units of each column, so that they are in
    range for very large and very small numbers too.
    """

    n: int = 0
    first: Floats = field(default_factory=_none)  # (D,) the first row: distances from it have all digits
    ahead: Floats = field(default_factory=_none)  # (D,) mean - first
    squares: Floats = field(default_factory=_none)  # (D,), divided by unit^2
    unit: Floats = field(default_factory=_none)  # (D,)
    low: Floats = field(default_factory=_none)  # (D,)
    high: Floats = field(default_factory=_none)

    def add(self, values: npt.NDArray[np.floating], ends: tuple[Floats, Floats] | None = None) -> None:
        """Rows (m, D) of finite numbers; the smallest and largest of each column (D,), where they are known."""
        m = len(values)
        if m == 0:
            return
        if self.n == 0:
            self.first = np.asarray(values[0], dtype=np.float64)
            self.low = self.high = self.first
            self.ahead, self.squares, self.unit = (np.zeros(len(self.first)) for _ in range(3))
        self._join(*_block(values, self.first, ends or (values.min(0), values.max(0))))

    def join(self, other: Moments) -> None:
        """Rows that were added up elsewhere."""
        if other.n and self.n:
            mean = (other.first - self.first) + other.ahead
            self._join(other.n, mean, other.squares, other.unit, other.low, other.high)
        elif other.n:
            self.__dict__ |= other.__dict__

    def _join(self, m: int, mean: Floats, squares: Floats, unit: Floats, low: Floats, high: Floats) -> None:
        """m rows by their mean less `first`, their squares in units, and their smallest and largest values."""
        apart, total = mean - self.ahead, self.n + m
        both = np.maximum(np.maximum(self.unit, unit), np.abs(apart) if self.n else 0.0)
        safe = np.where(both > 0, both, 1.0)
        self.squares = self.squares * (self.unit / safe) ** 2 + squares * (unit / safe) ** 2
        self.squares += (apart / safe) ** 2 * (self.n / total * m) if self.n else 0.0
        self.ahead = self.ahead + apart * (m / total)
        self.n, self.unit = total, both
        self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)

    @property
    def mean(self) -> Floats:
        """(D,)"""
        return self.first + self.ahead

    @property
    def deviation(self) -> Floats:
        """(D,) root of the mean squared distance from the mean."""
        return np.asarray(self.unit * np.sqrt(self.squares / max(self.n, 1)))

    def scaler(self, constant: float = np.inf) -> Scaler:
        """What `Scaler.of` gives for all rows at once, up to rounding."""
        varies = (self.high > self.low) & (self.deviation > 0)
        return Scaler(np.where(varies, self.mean, self.low), np.where(varies, self.deviation, constant))


def _block(
    values: npt.NDArray[np.floating], first: Floats, ends: tuple[npt.NDArray[Any], npt.NDArray[Any]]
) -> tuple[int, Floats, Floats, Floats, Floats, Floats]:
    """Of rows (m, D): m, the mean less `first`, squares of distances from it, their unit, smallest and largest."""
    distance = values - first  # (m, D) float64
    mean = distance.mean(0)
    distance -= mean
    low, high = (np.asarray(end, np.float64) for end in ends)
    unit = np.maximum(high - first - mean, mean - (low - first))
    if not ((unit > 1e-9) & (unit < 1e9)).all():  # squares may be out of range
        distance /= np.where(unit > 0, unit, 1.0)
        squares = np.einsum("ij,ij->j", distance, distance)
    else:
        squares = np.einsum("ij,ij->j", distance, distance) / unit**2
    return len(values), mean, squares, unit, low, high
