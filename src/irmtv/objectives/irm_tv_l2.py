"""IRM-TV-l2: IRM written as a total variation model with the L2 norm (theorem IRMTVL2).

    min_Phi  sum_e mu_e R_e  +  lambda sum_e mu_e |S_e|^2

With the uniform measure this is IRMv1. `reduction="authors"` sums (m_e S_e)^2 instead: for E equal
environments that is the same penalty divided by E.
"""

from collections.abc import Callable

from torch import Tensor

from irmtv.core.membership import at_least_rounding
from irmtv.core.risk import modulus_squared
from irmtv.core.types import Reduction, Statistics
from irmtv.objectives.base import Penalty, Subgradient
from irmtv.objectives.build import penalised


def tv_l2(e: Statistics, mu: Tensor) -> Tensor:
    """sum_e mu_e |S_e|^2: (R,)."""
    return (mu * modulus_squared(e)).sum(-1)


def tv_l2_subgradient(e: Statistics, mu: Tensor) -> Subgradient:
    """For a scalar classifier: d/dS_e = 2 mu_e S_e."""
    assert e.slope is not None
    pull = mu * e.slope
    return (pull * e.slope).sum(-1), None, 2 * pull


def tv_l2_by_sums(sums: Tensor, mass: Callable[[], Tensor], reduction: Reduction) -> tuple[Tensor, Tensor | None]:
    """Of sum_e G_e^2 / m_e in G_e = m_e S_e and m_e, or of the authors' sum_e G_e^2."""
    if reduction == "authors":
        return 2 * sums, None
    slope = sums / at_least_rounding(mass(), 1.0)
    return 2 * slope, -slope.square()


IRM_TV_L2 = penalised(
    "irm-tv-l2",
    Penalty("irm-tv-l2", tv_l2, power=2, subgradient=tv_l2_subgradient, norm="l2"),
    formula="sum_e mu_e R_e + lambda sum_e mu_e |S_e|^2",
    summary="mean squared slope of the risk in the classifier, environments given",
    source="Lai & Wang, ICML",
    year=2024,
)
