"""What the statements share in computing and comparing two sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linprog
from torch import Tensor

from irmtv.core.losses import Loss
from irmtv.core.membership import Membership
from irmtv.core.risk import per_sample, summarise
from irmtv.core.types import Statistics

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Function = Callable[[Floats], Floats]
Surface = Callable[[Floats, Floats], Floats]  # of two coordinates
PenaltyFunction = Callable[[Statistics, Tensor], Tensor]  # of R runs with E environments and mu (R, E): (R,)

ROUNDING = 1e-12  # what float64 leaves of sums of some ten numbers of order 1 to 100


def statistics_of(loss: Loss, logits: Tensor, y: Tensor, membership: Membership) -> Statistics:
    """Masses, risks and slopes per environment for logits (R, N) or (R, N, C) and targets (N,) or (R, N)."""
    value, slope = per_sample(loss, logits.unsqueeze(0), y.view(1, -1, y.shape[-1]), want_slope=True)
    return summarise(value, slope, membership, ("risk", "slope"))


def statistics_from(risk: Floats, slope: Floats, mass: Floats) -> Statistics:
    """Environments that are given by their numbers: risk (R, E), slope (R, E) or (R, E, J), mass (E,) of any total."""
    r, s, m = (torch.from_numpy(np.ascontiguousarray(v, dtype=float)) for v in (risk, slope, mass))
    return Statistics(r @ m, m.unsqueeze(0), r, s)


def slope_penalties(slope: Floats, mass: Floats, l1: PenaltyFunction, l2: PenaltyFunction) -> tuple[float, float]:
    """Both penalties of environments with these slopes and masses, (E,) each."""
    e = statistics_from(np.zeros((1, len(slope))), slope[None], mass)
    return l1(e, e.mass).item(), l2(e, e.mass).item()


def uniform_measure(count: int) -> Tensor:
    """Every environment alike: (count,)."""
    return torch.full((count,), 1 / count, dtype=torch.float64)


def largest_on_simplex(values: Floats) -> tuple[float, Floats]:
    """The largest sum of rho_e values_e over probabilities rho, and that rho (E,).

    By a linear program, which does not know that all of rho lies where the values are largest.
    """
    solved = linprog(-values, A_eq=np.ones((1, len(values))), b_eq=[1.0], bounds=(0.0, 1.0))
    assert solved.fun is not None
    return -float(solved.fun), np.asarray(solved.x)


def length(vectors: Floats) -> Floats:
    """|v| of vectors along the first axis: (d, ...) to (...)."""
    return np.asarray(np.sqrt(np.square(vectors).sum(0)))


def fitted_order(cells: Sequence[int], errors: ArrayLike) -> float:
    """The p of error ~ cells^-p, by least squares on logarithms; NaN where an error is 0.

    >>> round(fitted_order((10, 20, 40), (4.0, 1.0, 0.25)), 12)
    2.0
    """
    size = np.abs(np.asarray(errors, dtype=float))
    if not (size > 0).all():
        return float("nan")
    return float(-np.polyfit(np.log(np.asarray(cells, dtype=float)), np.log(size), 1)[0])


def check_above(value: float, least: float, parameter: str, advice: str) -> None:
    """Raise unless `value` is a finite number above `least`."""
    if not (np.isfinite(value) and value > least):
        raise ValueError(f"{parameter} must be a finite number above {least:g}. Got {value!r}. {advice}")
