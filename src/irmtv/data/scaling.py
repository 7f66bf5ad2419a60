"""Standardisation by the training rows, in float64: the fit does not depend on the user's units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Floats = npt.NDArray[np.float64]
BLOCK = 1 << 20  # numbers that are looked at together: several tables of this size are made of them


@dataclass(frozen=True)
class Scaler:
    """z = (v - mean) / scale, per column; of series (N, channels, length) per channel.

    The scale of a feature that is constant in training is infinite: training cannot say what another value of it means,
    so every value is z = 0. (With a scale of 1 the network's random start would decide what new values do.)
    """

    mean: Floats  # (D,), or (channels, 1)
    scale: Floats

    @classmethod
    def of(cls, values: Floats, weight: Floats | None = None, constant: float = np.inf) -> Scaler:
        """From the training rows (N, D) or (N, channels, length), each counted by its weight (N,).

        `constant` is the scale of a constant column: 1 for targets, which come back from z.

        Examples
        --------
        >>> Scaler.of(np.array([[1.0, 7.0], [3.0, 7.0]]))
        Scaler(mean=array([2., 7.]), scale=array([ 1., inf]))
        """
        if weight is not None:
            values, weight = values[weight > 0], weight[weight > 0]
        if values.ndim == 3:  # every moment of a series is a row of its channel
            n, channels, length = values.shape
            each = None if weight is None else np.repeat(weight, length)
            flat = cls.of(values.transpose(0, 2, 1).reshape(n * length, channels), each, constant)
            return cls(flat.mean[:, None], flat.scale[:, None])
        rows = max(1, BLOCK // max(1, values.shape[1]))
        blocks = [slice(i, i + rows) for i in range(0, len(values), rows)]
        total = float(len(values)) if weight is None else weight.sum()

        def average(of: Callable[[Floats], Floats]) -> Floats:
            sums = [of(values[b]).sum(0) if weight is None else weight[b] @ of(values[b]) for b in blocks]
            return np.asarray(np.sum(sums, 0) / total)

        mean = average(lambda v: v)
        mean = mean + average(lambda v: v - mean)  # what rounding left, where a column is far from 0
        high, low = (np.stack([pick(values[b]) for b in blocks]) for pick in (_highest, _lowest))
        high, low = high.max(0), low.min(0)
        largest = np.maximum(high - mean, mean - low)
        unit = np.where(largest > 0, largest, 1.0)  # squares of very large or small numbers are out of range
        deviation = unit * np.sqrt(average(lambda v: ((v - mean) / unit) ** 2))
        # the deviation of a constant is 0 only up to rounding
        varies = (high > low) & (deviation > 0)
        return cls(np.where(varies, mean, values[0]), np.where(varies, deviation, constant))

    def __call__(self, values: npt.NDArray[np.floating]) -> Floats:
        """To standard units."""
        result: Floats = (values - self.mean) / self.scale
        return result

    def tensor(self, values: npt.NDArray[np.floating], dtype: torch.dtype, rows: int = 1 << 16) -> Tensor:
        """The same as a tensor; some rows at a time, so that no second table in float64 is made."""
        import torch

        made = torch.empty(values.shape, dtype=dtype)
        for start in range(0, len(values), rows):
            made[start : start + rows] = torch.as_tensor(self(values[start : start + rows]))
        return made

    def array(self, values: npt.NDArray[np.floating], dtype: npt.DTypeLike, rows: int = 1 << 12) -> npt.NDArray[Any]:
        """The same as an array, some rows at a time that stay in the cache; in one thread, beside other work."""
        made = np.empty(values.shape, dtype=dtype)
        for start in range(0, len(values), rows):
            part = values[start : start + rows] - self.mean
            part /= self.scale
            made[start : start + rows] = part
        return made

    def back(self, values: Floats) -> Floats:
        """To the user's units."""
        result: Floats = values * self.scale + self.mean
        return result


def _highest(values: Floats) -> Floats:
    return np.asarray(values.max(0))


def _lowest(values: Floats) -> Floats:
    return np.asarray(values.min(0))
