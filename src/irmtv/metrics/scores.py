"""The metrics: each is the mean of a score per sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from irmtv.metrics.arrays import Array, Floats


@dataclass(frozen=True)
class Metric:
    """A metric that is the mean of a score per sample."""

    name: str
    score: Callable[[Floats, Array], Array]  # logits (R, N) or (R, N, C), y that broadcasts -> (R, N)
    greater_is_better: bool
    losses: tuple[str, ...]  # names of the losses (see irmtv.core.losses) whose outputs it can read
    percent: bool = False  # print as a percentage

    @property
    def classifies(self) -> bool:
        """Whether y holds classes (one per row) and not targets (one per output)."""
        return "binary" in self.losses or "multiclass" in self.losses


def _accuracy(f: Floats, y: Array) -> Array:
    """1 where the sign (one logit) or the largest logit names the class. NaN stays NaN: no guess."""
    if f.ndim == 2:
        return np.where(np.isnan(f), np.nan, (f > 0) == (y > 0.5))
    return np.where(np.isnan(f).any(-1), np.nan, f.argmax(-1) == y)


def _log_loss(f: Floats, y: Array) -> Array:
    """log(1 + exp(-f)) for y = 1, log(1 + exp(f)) for y = 0; logsumexp(f) - f_y for several logits."""
    if f.ndim == 2:
        return np.asarray(np.logaddexp(0.0, (1.0 - 2.0 * y) * f))
    f = f - f.max(-1, keepdims=True)
    index = np.broadcast_to(y.astype(np.int64), f.shape[:-1])[..., None]  # (R, N, 1)
    return np.asarray(np.log(np.exp(f).sum(-1)) - np.take_along_axis(f, index, -1)[..., 0])


def _squared_error(f: Floats, y: Array) -> Array:
    return _over_targets(np.square(f - y))


def _absolute_error(f: Floats, y: Array) -> Array:
    return _over_targets(np.abs(f - y))


def _over_targets(error: Array) -> Array:
    return np.asarray(error.mean(-1)) if error.ndim == 3 else error


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        m.name: m
        for m in (
            Metric("accuracy", _accuracy, True, ("binary", "multiclass"), percent=True),
            Metric("log_loss", _log_loss, False, ("binary", "multiclass")),
            Metric("mse", _squared_error, False, ("squared",)),
            Metric("mae", _absolute_error, False, ("squared",)),
        )
    }
)
