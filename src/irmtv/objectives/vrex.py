"""V-REx in the paper's general form (proposition VREx, eq. V-REx-l2).

    min_Phi  sum_e mu_e R_e  +  lambda sum_e mu_e (R_e - sum_e mu_e R_e)^2

Published codes differ by constant factors (for two equal environments (R_1 - R_2)^2 is four times this),
so their lambda cannot be carried over as it is.
"""

from torch import Tensor

from irmtv.core.types import Statistics
from irmtv.objectives.base import Penalty, Subgradient
from irmtv.objectives.build import penalised


def risk_variance(e: Statistics, mu: Tensor) -> Tensor:
    """Var_mu(R_e): (R,)."""
    assert e.risk is not None
    mean = (mu * e.risk).sum(-1, keepdim=True)
    return (mu * (e.risk - mean).square()).sum(-1)


def risk_variance_subgradient(e: Statistics, mu: Tensor) -> Subgradient:
    """d/dR_e = 2 mu_e (R_e - sum mu R); the mean's own part is 0, since the deviations sum to 0."""
    assert e.risk is not None
    deviation = e.risk - (mu * e.risk).sum(-1, keepdim=True)
    pull = mu * deviation
    return (pull * deviation).sum(-1), 2 * pull, None


VREX = penalised(
    "vrex",
    Penalty("vrex", risk_variance, uses=frozenset({"risk"}), subgradient=risk_variance_subgradient, norm="l2"),
    formula="sum_e mu_e R_e + lambda sum_e mu_e (R_e - sum mu R)^2",
    summary="variance of the risk over the environments",
    source="Krueger et al., ICML",
    year=2021,
)
