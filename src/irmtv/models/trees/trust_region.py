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
   the highest that it was over the last ten rounds (each of them weighed by the present c), and the risk of all
   training rows no higher than that of the constant which boosting began with. Not the last round alone: l1 penalties
   have kinks, at which every step that is worth making rises first. If eight halvings do not help, the tree is left at
   that size; at none where the risk would still be above the constant's, or the objective is not finite.

So whatever the weight, no penalty can make a booster predict its training rows worse than a constant. Beyond k and c
nothing depends on the size of lambda: large weights train nearly alike.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from irmtv.models.trees.gradients import Pull

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


class After(NamedTuple):
    """What a round comes to with so much of its trees."""

    risk: float  # of the rows that trees are grown on
    penalty: float  # weighted, of the rows that penalties look at
    overall: float  # the risk of all training rows


class LineSearch:
    """Halves the steps of a round that would leave the objective higher than it has been of late.

    Parameters
    ----------
    ceiling : the risk of all training rows before the first tree, above which none may bring it.
    memory, halvings : rounds that are remembered, and how often a step is halved.
    """

    def __init__(self, ceiling: float = math.inf, memory: int = MEMORY, halvings: int = HALVINGS) -> None:
        self.past: deque[tuple[float, float]] = deque(maxlen=memory)  # risk and penalties of rounds
        self.ceiling, self.halvings = ceiling, halvings

    def length(
        self, now: After, share: float, after: Callable[[Sequence[float]], Sequence[After]], at_once: int = 1
    ) -> float:
        """How much of a tree to take: 1, 1/2, 1/4, ...

        `now` is before the tree, `after` tells what some lengths come to. 1 is tried first, then `at_once` at a time.
        """
        self.past.append((now.risk, now.penalty))
        most = max(risk + share * penalty for risk, penalty in self.past)
        ceiling = max(self.ceiling, now.overall)  # plain rounds may have come above it, on rows set aside
        lengths = [0.5**k for k in range(self.halvings)]
        for begin, end in _groups(len(lengths), at_once):
            for length, a in zip(lengths[begin:end], after(lengths[begin:end]), strict=True):
                if a.risk + share * a.penalty <= most and a.overall <= ceiling:  # False where not finite, too
                    return length
        least = 0.5**self.halvings
        (a,) = after([least])
        return least if math.isfinite(a.risk + a.penalty) and a.overall <= ceiling else 0.0


def _groups(n: int, at_once: int) -> Iterator[tuple[int, int]]:
    """From where to where: the first alone, then so many at a time."""
    yield 0, 1
    for begin in range(1, n, at_once):
        yield begin, begin + at_once
