"""MM-REx: the worst affine combination of the environments' risks.

    min_Phi  (1 - E l) max_e R_e + l sum_e R_e  =  mean_e R_e + lambda (max_e R_e - mean_e R_e)

with l = lambda_min of the original, lambda = 1 - E l: 0 is ERM, 1 the worst risk, above 1 extrapolates.
"""

import torch
from torch import Tensor

from irmtv.core.types import Statistics
from irmtv.objectives.base import Penalty
from irmtv.objectives.build import penalised


def worst_excess(e: Statistics, mu: Tensor) -> Tensor:
    """max_e R_e - sum_e mu_e R_e: (R,). Environments without rows do not count."""
    assert e.risk is not None
    present = e.risk.masked_fill(e.mass <= 0, -torch.inf)
    return present.amax(-1) - (mu * e.risk).sum(-1)


MM_REX = penalised(
    "mm-rex",
    Penalty("mm-rex", worst_excess, uses=frozenset({"risk"}), default_weight=10.0, measure="uniform"),
    measure="uniform",
    formula="mean_e R_e + lambda (max_e R_e - mean_e R_e),  lambda = 1 - E lambda_min",
    summary="worst affine combination of the risks",
    source="Krueger et al., ICML",
    year=2021,
)
