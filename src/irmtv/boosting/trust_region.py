"""The step rule: how a round of boosting follows a penalty of any weight without running away.

A tree is fitted to the gradient of  risk + c * (sum_k lambda_k penalty_k).  Two things keep it safe:

1. Trust region. c = min(1, k |g_risk| / |g_penalty|), norms over all rows: a penalty never pulls harder than k times
   the risk does. The curvature of the risk is multiplied by 1 + c |g_penalty| / |g_risk| (by 4 at most), so that a
   leaf's value stays of the size that it has in plain boosting. (A penalty's own curvature is of no use here: it is of
   rank E, and moves all leaves at once.)
   What k must be: where two environments gain c_1 > c_2 > 0 by a feature, the risk's pull towards it vanishes once the
   environments count -c_2 / (c_1 - c_2) and c_1 / (c_1 - c_2) instead of 1/2 and 1/2, for which the penalty must pull
   (c_1 + c_2) / (c_1 - c_2) times as hard as the risk: 3 where one gains twice what the other does, 9 where it is a
   quarter more. But what a penalty adds to the gradient is, on few rows, mostly noise, times k. So k grows with the
   weight, from 3 (at lambda = 100 and below) as its square root to 10 (at 1,111 and above): no weight is too large.
2. Line search. The new tree's values are halved until the round's objective, risk + c * penalties, is no higher than
   the highest that it was over the last ten rounds (each of them weighed by the present c). Not the last alone: l1
   penalties have kinks, at which every step that is worth making rises first. If eight halvings do not help, the tree
   is left at that size, and at none where the objective is not finite.

Nothing here depends on the size of lambda beyond k and c, so that large weights train alike, and an objective that is
finite stays so.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from irmtv.boosting.gradients import Pull

LEAST_RADIUS, GREATEST_RADIUS = 3.0, 10.0  # k
AT_WEIGHT = 100.0  # from which k grows
MEMORY = 10  # rounds that a step may be compared with
HALVINGS = 8
LEAST_CURVATURE = 1e-12  # of a row, so that no leaf divides by 0


@dataclass(frozen=True)
class Direction:
    """What a tree is fitted to: N times gradient and curvature, (N,) or (N, C), and the share c of the penalty."""

    gradient: Tensor
    curvature: Tensor
    share: float


def radius_of(weights: Sequence[float]) -> float:
    """k, by the largest weight of a penalty."""
    grown = LEAST_RADIUS * math.sqrt(max(weights, default=0.0) / AT_WEIGHT)
    return min(max(LEAST_RADIUS, grown), GREATEST_RADIUS)


def combined(pull: Pull, radius: float = LEAST_RADIUS) -> Direction:
    """Risk and penalty in one gradient, the penalty's part at most `radius` times as long as the risk's."""
    risk, penalty = pull.risk_gradient, pull.penalty_gradient
    curvature = pull.risk_curvature.clamp_min(LEAST_CURVATURE)
    if penalty is None:
        return Direction(risk, curvature, 1.0)
    length, along = float(torch.linalg.vector_norm(penalty)), float(torch.linalg.vector_norm(risk))
    if length == 0:
        return Direction(risk, curvature, 1.0)
    share = min(1.0, radius * along / length)
    stretched = curvature * (1 + min(share * length / along, LEAST_RADIUS)) if along > 0 else curvature
    return Direction(risk + share * penalty, stretched, share)


class LineSearch:
    """Halves the steps of a round that would leave the objective higher than it has been of late."""

    def __init__(self, memory: int = MEMORY, halvings: int = HALVINGS) -> None:
        self.past: deque[tuple[float, float]] = deque(maxlen=memory)  # risk and penalties of rounds
        self.halvings = halvings

    def length(
        self,
        now: tuple[float, float],
        share: float,
        after: Callable[[Sequence[float]], Sequence[tuple[float, float]]],
        at_once: int = 1,
    ) -> float:
        """How much of a tree to take: 1, 1/2, 1/4, ...

        `now` are risk and penalties before the tree, `after` gives them for some lengths. 1 is tried first, then
        `at_once` at a time.
        """
        self.past.append(now)
        most = max(risk + share * penalty for risk, penalty in self.past)
        lengths = [0.5**k for k in range(self.halvings)]
        for begin, end in _groups(len(lengths), at_once):
            for length, (risk, penalty) in zip(lengths[begin:end], after(lengths[begin:end]), strict=True):
                if risk + share * penalty <= most:  # False where it is not finite, too
                    return length
        least = 0.5**self.halvings
        return least if math.isfinite(sum(after([least])[0])) else 0.0


def _groups(n: int, at_once: int) -> Iterator[tuple[int, int]]:
    """From where to where: the first alone, then so many at a time."""
    yield 0, 1
    for begin in range(1, n, at_once):
        yield begin, begin + at_once
