"""V-REx in the paper's general form (proposition VREx, eq. V-REx-l2).

    min_Phi  sum_e mu_e R_e  +  lambda sum_e mu_e (R_e - sum_e mu_e R_e)^2

Published codes differ by constant factors (for two equal environments (R_1 - R_2)^2 is four times this),
so their lambda cannot be carried over as it is.
"""

from torch import Tensor

from irmtv.core.types import Statistics
from irmtv.objectives.base import Penalty, penalised


def risk_variance(e: Statistics, mu: Tensor) -> Tensor:
    """Var_mu(R_e): (R,)."""
    assert e.risk is not None
    mean = (mu * e.risk).sum(-1, keepdim=True)
    return (mu * (e.risk - mean).square()).sum(-1)


VREX = penalised(
    "vrex",
    Penalty("vrex", risk_variance, uses=frozenset({"risk"})),
    formula="sum_e mu_e R_e + lambda sum_e mu_e (R_e - sum mu R)^2",
    summary="variance of the risk over the environments",
    source="Krueger et al., ICML",
    year=2021,
    not_applicable={"authors-reduction": "it uses no slopes"},
)
