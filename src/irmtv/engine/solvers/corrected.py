"""A sample of rows whose risks are corrected to those of all rows, near one model.

With R the risk of all rows in an environment and r that of the sample, and D = R - r known at a model theta_0,

    R(theta) ~ r(theta) + D + D' (theta - theta_0) + 1/2 (theta - theta_0)' D'' (theta - theta_0)

is exact at theta_0 with its first two derivatives, and what is left out is of third order and a difference between the
sample and all rows. An objective needs of all rows the risks, gradients and Hessians at theta_0, which one pass gives.
So a pass is followed by a whole solution on the corrected sample, kinks and all, instead of one step: a few passes are
enough, and where theta stays where it is it is stationary for all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from irmtv.core.ranks import Ranks
from irmtv.engine.solvers.block_risks import BlockRisks
from irmtv.engine.solvers.linear_risks import LinearRisks, Point, SharedRows
from irmtv.engine.solvers.second_order import Problem

MOST_PASSES = 30
CLOSE, STILL = 1e-13, 1e-8  # tolerance of solutions between passes; a model that moves less than this is the solution
REMEMBERED = 6  # steps that are mixed

# sets, every run's among them, models and ERM (R, P), a problem whose sets are those of ERM -> models (R, P)
Solve = Callable[[Sequence[LinearRisks], Tensor, Tensor, Tensor, Problem], Tensor]


class Solved(NamedTuple):
    """What passes lead to."""

    erm: Tensor  # (R, P)
    theta: Tensor  # (R, P)
    still: bool  # whether they had come to rest


def by_passes(
    samples: Sequence[LinearRisks],
    sets: Sequence[BlockRisks],
    owner: Tensor,
    erm: Tensor,
    theta: Tensor,
    *,
    solve_erm: Callable[[Sequence[LinearRisks], Tensor], tuple[Tensor, Problem]],
    solve: Solve,
    ranks: Ranks | None = None,
) -> Solved:
    """ERM and the models of runs on the data sets `owner` (R,), from those of the samples (R, P).

    Every pass looks at all of them, and is followed by solutions on samples that are corrected by it.
    """
    ends, each = [FixedPoint() for _ in theta], owner.tolist()
    bends: list[Tensor | None] = [None] * len(each)  # of ERM, which needs them near the solution alone
    still_erm = still = False
    for _ in range(MOST_PASSES):
        if ranks is not None:  # those of the first rank: others may differ in rounding
            erm, theta = ranks.of_first(erm), ranks.of_first(theta)
        for t, one in enumerate(sets):
            one.blocks.look_ahead(theta[owner == t])
            if not still_erm:
                one.blocks.look_ahead(erm[owner == t], curved=None in bends)
        apart = torch.arange(len(each))  # every run on a data set of its own
        if not still_erm:  # it comes to rest first
            near_erm = [
                CorrectedRisks(samples[t], sets[t], v, bend) for t, v, bend in zip(each, erm, bends, strict=True)
            ]
            bends = [one.correction for one in near_erm]
            new_erm, of_erm = solve_erm(near_erm, erm)
            erm, still_erm = new_erm, _is_still(erm, new_erm)
        near = [CorrectedRisks(samples[t], sets[t], v) for t, v in zip(each, theta, strict=True)]
        new = solve(near, apart, theta, erm, of_erm)
        still = _is_still(theta, new)
        theta = torch.stack([p.next(a, b) for p, a, b in zip(ends, theta, new, strict=True)])
        if still and still_erm:
            break
    return Solved(erm, theta, still and still_erm)


def _is_still(before: Tensor, after: Tensor) -> bool:
    """Whether no model (R, P) has moved by more than a share of its largest parameter."""
    return bool(((after - before).abs().amax(1) <= STILL * (1 + before.abs().amax(1))).all())


class CorrectedRows(SharedRows):
    """See the head of this file; of one model theta (P,).

    `hessian` (E, P, P) is D'' of a model near it: what minimises risks alone is stationary with any, and sums of
    Hessians are what takes most of a pass.
    """

    def __init__(self, sample: LinearRisks, whole: BlockRisks, theta: Tensor, hessian: Tensor | None = None) -> None:
        self.sample, self.theta = sample, theta
        one = theta.unsqueeze(0)
        here, there = sample.at(one), whole.at_some(one, hessian is None)
        self.risk = (there.risk - here.risk)[0]  # (E,)
        self.gradient = (there.gradient - here.gradient)[0]  # (E, P)
        self.hessian = (there.hessian - here.hessian)[0] if hessian is None else hessian  # (E, P, P)

    def at(self, theta: Tensor, member: Tensor, curved: int | None = None) -> Point:
        point, away = self.sample.at(theta), theta - self.theta  # (K, P)
        pulled = torch.einsum("eij,kj->kei", self.hessian, away)
        toward = self.gradient + pulled / 2  # (K, E, P)
        return replace(
            point,
            risk=point.risk + self.risk + (toward @ away.unsqueeze(2)).squeeze(2),
            gradient=point.gradient + self.gradient + pulled,
            hessian=point.hessian + self.hessian,
        )

    def along(self, point: Point, v: Tensor) -> Tensor:
        return self.sample.along(point, v)


class FixedPoint:
    """Where an iteration theta -> g(theta) goes, by Anderson's mixing of its last steps: far fewer of them are needed.

    The next point is the mixture of the g that would make the same mixture of the steps g - theta least.
    """

    def __init__(self) -> None:
        self.points: list[Tensor] = []
        self.images: list[Tensor] = []

    def next(self, point: Tensor, image: Tensor) -> Tensor:
        """After g(point) = image, (P,) each."""
        self.points, self.images = [*self.points, point][-REMEMBERED:], [*self.images, image][-REMEMBERED:]
        steps = torch.stack([b - a for a, b in zip(self.points, self.images, strict=True)])
        if len(steps) == 1 or not bool(steps[-1].norm() < steps[:-1].norm(dim=1).amin()):  # not near the end yet
            self.points, self.images = self.points[-1:], self.images[-1:]
            return image
        change = (steps[1:] - steps[:-1]).T  # (P, m)
        mixed = torch.linalg.lstsq(change, steps[-1].unsqueeze(1), driver="gelsd").solution
        images = torch.stack(self.images)
        following: Tensor = image - ((images[1:] - images[:-1]).T @ mixed).squeeze(1)
        return following


class CorrectedRisks(LinearRisks):
    """The same as one data set of a problem."""

    def __init__(self, sample: LinearRisks, whole: BlockRisks, theta: Tensor, hessian: Tensor | None = None) -> None:
        rows = CorrectedRows(sample, whole, theta, hessian)
        self.shared, self.member, self.correction = rows, 0, rows.hessian
        self.loss, self.n_outputs, self.n_environments = sample.loss, sample.n_outputs, sample.n_environments
        self.size, self.n_parameters, self.parts = sample.size, sample.n_parameters, sample.parts
        self.x, self.mass, self.effective = sample.x, whole.mass, whole.effective
