"""IRM-TV-l1: the paper's model for labelled environments (theorem IRMTVL1, eq. IRM-TV-l1).

    min_Phi  sum_e mu_e R_e  +  lambda ( sum_e mu_e |S_e| )^2

S_e is the slope of environment e's risk in the dummy classifier at w = 1, so the bracket is the total
variation of the risk under mu. The subgradient of |.| at 0 is 0.
"""

from collections.abc import Callable

from torch import Tensor

from irmtv.core.risk import modulus
from irmtv.core.types import Reduction, Statistics
from irmtv.objectives.base import Penalty, Subgradient
from irmtv.objectives.build import penalised


def tv_l1(e: Statistics, mu: Tensor) -> Tensor:
    """( sum_e mu_e |S_e| )^2: (R,)."""
    return (mu * modulus(e)).sum(-1).square()


def tv_l1_subgradient(e: Statistics, mu: Tensor) -> Subgradient:
    """The paper's closed form (eq. IRMTVL1objsubgrad): d/dS_e = 2 (sum mu |S|) mu_e sign(S_e), for a scalar w."""
    assert e.slope is not None
    direction = mu * e.slope.sign()
    variation = (direction * e.slope).sum(-1)  # sum_e mu_e |S_e|
    return variation.square(), None, direction * (2 * variation).unsqueeze(-1)


def tv_l1_by_sums(sums: Tensor, mass: Callable[[], Tensor], reduction: Reduction) -> tuple[Tensor, Tensor | None]:
    """Of ( sum_e |G_e| )^2 in G_e = m_e S_e, which is the penalty in both reductions."""
    sign = sums.sign()
    return sign * (2 * (sign * sums).sum(-1, keepdim=True)), None


IRM_TV_L1 = penalised(
    "irm-tv-l1",
    Penalty("irm-tv-l1", tv_l1, subgradient=tv_l1_subgradient, norm="l1"),
    formula="sum_e mu_e R_e + lambda (sum_e mu_e |S_e|)^2",
    summary="squared total variation (l1) of the risk in the classifier, environments given",
    source="Lai & Wang, ICML",
    year=2024,
)
