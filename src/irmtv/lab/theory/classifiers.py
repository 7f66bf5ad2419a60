"""Every classifier w is an environment: what the statements about the worst risk share (section OOD).

objective     E_mu R + lambda_Phi ( E_mu |dR/dw| )^2          lambda_Phi a function of worst risk, mean and penalty
IRM form      mu as given
minimax form  mu uniform in E R; the penalty under the rho that makes it largest
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from irmtv.core.types import Statistics
from irmtv.lab.theory.sides import Floats, PenaltyFunction

RiskFunction = Callable[[Tensor], Tensor]  # of w (P, W), every entry for itself
WeightFunction = Callable[[Tensor, Tensor, Tensor, float], Tensor]  # of worst, expected, penalty, cap

NO_CAP = 1e300  # finite, since infinity times a penalty of 0 is not a number
TIE = 1e-9  # optima this near to each other are equal: far above rounding, far below the step of any grid


def on_classifiers(risk: RiskFunction, w: Tensor, mass: Tensor) -> Statistics:
    """Every w is an environment; its slope dR/dw by automatic differentiation. w (P, W), mass (W,)."""
    w = w.detach().requires_grad_()
    value = risk(w)
    (slope,) = torch.autograd.grad(value.sum(), w)
    value, mass = value.detach(), mass.unsqueeze(0)
    return Statistics((mass * value).sum(-1), mass, value, slope)


def worst_measure(e: Statistics) -> Tensor:
    """The rho of the minimax form, (P, W): E_rho |S| is linear in rho, so all of it lies where |S| is largest."""
    assert e.slope is not None
    return torch.nn.functional.one_hot(e.slope.abs().argmax(-1), e.slope.shape[-1]).to(e.slope)


def adaptive_value(
    e: Statistics, mu: Tensor, weight: WeightFunction, penalty: PenaltyFunction, cap: float = NO_CAP
) -> tuple[Floats, Floats]:
    """lambda_Phi, and E R + lambda_Phi times the penalty under mu: (P,) each."""
    assert e.risk is not None
    size = penalty(e, mu)
    chosen = weight(e.risk.amax(-1), e.mean_risk, size, cap)
    return chosen.numpy(), (e.mean_risk + chosen * size).numpy()


def nearest_with_any_weight(e: Statistics, mu: Tensor, penalty: PenaltyFunction) -> float:
    """E R + lambda times the penalty, for the lambda >= 0 that brings it nearest to the worst risk: a search."""
    size, gap = penalty(e, mu).item(), worst_risk(e) - e.mean_risk.item()
    weights = np.array([0, *np.logspace(-6, 12, 200), *([max(gap, 0) / size] if size else [])])
    values = e.mean_risk.item() + weights * size
    return float(values[np.abs(values - worst_risk(e)).argmin()])


def worst_risk(e: Statistics) -> float:
    """max_w R(w Phi) for one Phi."""
    assert e.risk is not None
    return e.risk.max().item()


def angle_error(f: Tensor, y: Tensor) -> Tensor:
    """How far angles lie apart, 0 to 1: (1 - cos(f - y)) / 2. Neither convex nor monotone in |f - y|."""
    return (1 - torch.cos(f - y)) / 2
