"""A linear model rescaled to an environment: multiplied by a number, its intercepts moved, to the lowest risk there."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from irmtv.core.losses import Loss
from irmtv.core.types import Rows
from irmtv.engine.solvers.linear_risks import LinearRisks

MOST_STEPS = 30
ENOUGH = 1e-12  # decrease that a step promises
LARGEST = 20.0  # scale: where the rows are told apart, the best one is infinite


class Rescaled(NamedTuple):
    """One environment at the rescaled model."""

    scale: float
    gradient: Tensor  # (P,)
    hessian: Tensor  # (P, P)
    spread: Tensor  # (P, P) second moments of the rows' gradients
    rows: float  # how many rows of equal weight are as sure


def rescaling(theta: Tensor, n_outputs: int) -> Tensor:
    """The directions in which theta (P,) is rescaled: its weights, and every output's intercept: (P, 1 + C)."""
    size = len(theta) // n_outputs
    intercepts = torch.eye(len(theta), dtype=theta.dtype)[:, size - 1 :: size]
    return torch.cat([(theta * (1 - intercepts.sum(1))).unsqueeze(1), intercepts], 1)


def rescale(rows: Rows, theta: Tensor, loss: Loss, n_outputs: int) -> Rescaled:
    """theta (P,) to the rows of one environment, by Newton's method."""
    risks = LinearRisks(rows, torch.zeros(len(rows), dtype=torch.long), 1, loss, n_outputs, many=False)
    directions = rescaling(theta, n_outputs)
    at = torch.cat([theta.new_ones(1), theta.view(n_outputs, -1)[:, -1]])
    point = risks.at((directions @ at).unsqueeze(0))
    for _ in range(MOST_STEPS):
        gradient = directions.T @ point.gradient[0, 0]
        hessian = directions.T @ point.hessian[0, 0] @ directions
        ridge = 1e-9 * torch.diag(hessian.diagonal() + 1e-9)  # outputs may all be equal, and softmax has one too many
        step = torch.linalg.solve(hessian + ridge, gradient)
        if float(gradient @ step) < ENOUGH or float(at[0].abs()) > LARGEST:
            break
        length = 1.0
        while length > 1e-6:
            there = risks.at((directions @ (at - length * step)).unsqueeze(0))
            if float(there.risk) <= float(point.risk):
                break
            length /= 2
        else:
            break
        at, point = at - length * step, there
    spread = risks.spread(point.theta)[0, 0]
    return Rescaled(float(at[0]), point.gradient[0, 0], point.hessian[0, 0], spread, float(risks.effective[0]))
