"""Means and deviations of columns whose rows come in blocks: every block is added, and none is kept."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from irmtv.data.scaling import Scaler

Floats = npt.NDArray[np.float64]


def _none() -> Floats:
    return np.empty(0)


@dataclass
class Moments:
    """Of D columns: n rows, their means, the sum of squared distances from them, the smallest and largest values.

    Two parts of n and m rows with means a and b are joined by (Chan, Golub, LeVeque 1979)
        mean = a + (b - a) m / (n + m),    squares = squares_a + squares_b + (b - a)^2 n m / (n + m),
    which loses no digits where the values are far from 0. Squares are in units of each column, so that they are in
    range for very large and very small numbers too.
    """

    n: int = 0
    mean: Floats = field(default_factory=_none)  # (D,)
    squares: Floats = field(default_factory=_none)  # (D,), divided by unit^2
    unit: Floats = field(default_factory=_none)  # (D,)
    low: Floats = field(default_factory=_none)  # (D,)
    high: Floats = field(default_factory=_none)

    def add(self, values: npt.NDArray[np.floating]) -> None:
        """Rows (m, D) of finite numbers."""
        m = len(values)
        if m == 0:
            return
        low, high = (np.asarray(values.min(0), np.float64), np.asarray(values.max(0), np.float64))
        mean = values.mean(0, dtype=np.float64)
        distance = values - mean  # (m, D)
        mean = mean + distance.mean(0)  # what rounding left, where a column is far from 0
        largest = np.maximum(high - mean, mean - low)
        unit = np.where(largest > 0, largest, 1.0)
        if (abs(unit - 1) < 1e9).all() and unit.min() > 1e-9:  # in range as they are
            squares = np.einsum("ij,ij->j", distance, distance) / unit**2
        else:
            distance /= unit
            squares = np.einsum("ij,ij->j", distance, distance)
        if self.n == 0:
            self.n, self.mean, self.squares, self.unit, self.low, self.high = m, mean, squares, unit, low, high
            return
        apart = mean - self.mean
        both = np.maximum(np.maximum(self.unit, unit), np.abs(apart))
        total = self.n + m
        self.squares = (
            self.squares * (self.unit / both) ** 2
            + squares * (unit / both) ** 2
            + (apart / both) ** 2 * (self.n / total * m)
        )
        self.mean = self.mean + apart * (m / total)
        self.n, self.unit = total, both
        self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)

    @property
    def deviation(self) -> Floats:
        """(D,) root of the mean squared distance from the mean."""
        return np.asarray(self.unit * np.sqrt(self.squares / max(self.n, 1)))

    def scaler(self, constant: float = np.inf) -> Scaler:
        """What `Scaler.of` gives for all rows at once, up to rounding."""
        varies = (self.high > self.low) & (self.deviation > 0)
        return Scaler(np.where(varies, self.mean, self.low), np.where(varies, self.deviation, constant))
