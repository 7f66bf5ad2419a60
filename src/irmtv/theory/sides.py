"""What the statements share in computing and comparing two sides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from irmtv.core.losses import Loss
from irmtv.core.membership import Membership
from irmtv.core.risk import per_sample, summarise
from irmtv.core.types import Statistics
from irmtv.theory.finding import Comparison, Role

Floats = NDArray[np.float64]
PenaltyFunction = Callable[[Statistics, Tensor], Tensor]


def statistics_of(loss: Loss, logits: Tensor, y: Tensor, membership: Membership) -> Statistics:
    """Masses, risks and slopes per environment for logits (R, N) or (R, N, C) and targets (N,) or (R, N)."""
    value, slope = per_sample(loss, logits.unsqueeze(0), y.view(1, -1, y.shape[-1]), want_slope=True)
    return summarise(value, slope, membership, ("risk", "slope"))


def all_equal(
    what: str,
    left_name: str,
    left: Floats | Tensor,
    right_name: str,
    right: Floats | Tensor,
    tolerance: float,
    role: Role = "claim",
) -> Comparison:
    """An equality of many numbers: judged by the pair that lies farthest apart."""
    a, b = np.broadcast_arrays(np.asarray(left, dtype=float), np.asarray(right, dtype=float))
    index = int(np.argmax(np.abs(a - b)))
    what = f"{what} (farthest of {a.size})"
    return Comparison(what, left_name, float(a.flat[index]), "=", right_name, float(b.flat[index]), tolerance, role)


def check_above(value: float, least: float, parameter: str, advice: str) -> None:
    """Raise unless `value` is a finite number above `least`."""
    if not (np.isfinite(value) and value > least):
        raise ValueError(f"{parameter} must be a finite number above {least:g}. Got {value!r}. {advice}")
