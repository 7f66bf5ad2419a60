"""The step rule: how a round of boosting follows a penalty of any weight without running away.

A tree is fitted to the gradient of  risk + c * (sum_k lambda_k penalty_k).  Two things keep it safe:

1. Trust region. c = min(1, k |g_risk| / |g_penalty|) with k = 3, norms over all rows: a penalty never pulls harder than
   k times the risk does. Rounds then differ from those of a large lambda in length, not in direction. The curvature of
   the risk is multiplied by 1 + c |g_penalty| / |g_risk|, so that a leaf's value stays of the size that it has in plain
   boosting. (A penalty's own curvature is of no use here: it is of rank E, and moves all leaves at once.)
2. Line search. The new tree's values are halved until the round's objective, risk + c * penalties, is no higher than
   the highest that it was over the last ten rounds (each of them weighed by the present c). Not the last alone: l1
   penalties have kinks, at which every step that is worth making rises first. If eight halvings do not help, the tree
   is left at that size, and at none where the objective is not finite.

Nothing here depends on the size of lambda beyond c, so that weights of any size train alike, and an objective that is
finite stays so.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from irmtv.boosting.gradients import Pull

RADIUS = 3.0  # k
MEMORY = 10  # rounds that a step may be compared with
HALVINGS = 8
LEAST_CURVATURE = 1e-12  # of a row, so that no leaf divides by 0


@dataclass(frozen=True)
class Direction:
    """What a tree is fitted to: N times gradient and curvature, (N,) or (N, C), and the share c of the penalty."""

    gradient: Tensor
    curvature: Tensor
    share: float


def combined(pull: Pull, radius: float = RADIUS) -> Direction:
    """Risk and penalty in one gradient, the penalty's part at most `radius` times as long as the risk's."""
    risk, penalty = pull.risk_gradient, pull.penalty_gradient
    curvature = pull.risk_curvature.clamp_min(LEAST_CURVATURE)
    if penalty is None:
        return Direction(risk, curvature, 1.0)
    length, along = float(torch.linalg.vector_norm(penalty)), float(torch.linalg.vector_norm(risk))
    if length == 0:
        return Direction(risk, curvature, 1.0)
    share = min(1.0, radius * along / length)
    stretched = curvature * (1 + share * length / along) if along > 0 else curvature
    return Direction(risk + share * penalty, stretched, share)


class LineSearch:
    """Halves the steps of a round that would leave the objective higher than it has been of late."""

    def __init__(self, memory: int = MEMORY, halvings: int = HALVINGS) -> None:
        self.past: deque[tuple[float, float]] = deque(maxlen=memory)  # risk and penalties of rounds
        self.halvings = halvings

    def length(self, now: tuple[float, float], share: float, after: Callable[[float], tuple[float, float]]) -> float:
        """How much of a tree to take: 1, 1/2, 1/4, ...

        `now` are risk and penalties before the tree, `after` gives them for a length.
        """
        self.past.append(now)
        most = max(risk + share * penalty for risk, penalty in self.past)
        length = 1.0
        for _ in range(self.halvings):
            risk, penalty = after(length)
            if risk + share * penalty <= most:  # False where it is not finite, too
                return length
            length /= 2
        return length if math.isfinite(sum(after(length))) else 0.0
