"""IRMv1 as first published: the uniform measure, and lambda as in the original schedule.

    min_Phi  mean_e R_e  +  lambda mean_e |S_e|^2

Before annealing the penalty acts with weight 1 (here min(1, lambda), so that lambda = 0 is ERM); once
it acts fully the whole objective is divided by lambda where lambda > 1.
"""

import torch
from torch import Tensor

from irmtv.objectives.base import Penalty
from irmtv.objectives.build import penalised
from irmtv.objectives.irm_tv_l2 import tv_l2, tv_l2_subgradient


def _divide_by_lambda(weight: Tensor) -> Tensor:
    return weight.clamp_min(1)


def _weight_one_before_annealing(weight: Tensor) -> Tensor:
    return torch.minimum(weight, torch.ones_like(weight))


IRMV1 = penalised(
    "irmv1",
    Penalty("irmv1", tv_l2, power=2, measure="uniform", subgradient=tv_l2_subgradient, norm="l2"),
    measure="uniform",
    formula="mean_e R_e + lambda mean_e |S_e|^2",
    summary="the first practical IRM: squared slope, every environment counted once",
    source="Arjovsky et al.",
    year=2019,
    divisor=_divide_by_lambda,
    warmup_weight=_weight_one_before_annealing,
)
