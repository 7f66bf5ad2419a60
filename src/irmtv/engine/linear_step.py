"""Steps of linear models of a yes or no on a CPU, in as few passes over the rows as they take.

With the sign t = 1 - 2y of a row and its margin u = t f, which is positive where the model is wrong,

    l = softplus(u)        s = u sigmoid(u)        dl/du = p,  ds/du = p + s (1 - p)        p = sigmoid(u),

so rows are kept as t (x, 1): one product gives all margins, another one the gradient, and the target is not read again.
The same numbers as those of `GradientStep`, up to rounding, whose parameters, optimizer and guard it moves. Every other
step (networks, other losses, mini-batches, rows with weights, several penalties) is taken there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from irmtv.core.losses import Binary
from irmtv.core.membership import Blocks
from irmtv.engine.components.base import Phase
from irmtv.engine.step import GradientStep
from irmtv.objectives.environments.aux_network import GroupedRows


class LinearStep:
    """The rows of a chunk of runs as margins read them, and the steps on them."""

    def __init__(self, step: GradientStep) -> None:
        self.step, rows, context = step, step.rows.whole, step.context
        n_sets, n_features, n_rows = rows.x.shape
        blocks = rows.inferred.blocks if isinstance(rows.inferred, GroupedRows) else rows.given
        sign = (1 - 2 * rows.y.to(rows.x.dtype)).view(n_sets, 1, n_rows)
        self.given = rows.given
        if isinstance(blocks, Blocks) and blocks.weight is not None:
            sign = sign * blocks.weight.view(n_sets, 1, n_rows)  # rows that fill up a block are 0 ...
            # ... and so are their slopes, which need not be left out again
            self.given = blocks.unpadded() if rows.given is blocks else rows.given
        self.x = torch.cat([rows.x * sign, sign], 1)  # (T, D + 1, M)
        self.transposed = self.x.transpose(1, 2)
        least, most = self.x.aminmax()
        self.longest = math.sqrt(n_features + 1) * max(-float(least), float(most))  # no row is longer
        # where the parameters (W of all runs, then b) stand among (T, K, D + 1), and the other way round
        place = torch.arange(context.n_runs * (n_features + 1)).view(context.n_runs, n_features + 1)
        self.back = torch.cat([place[:, :-1].flatten(), place[:, -1]])
        self.there = torch.argsort(self.back)
        empty = self.x.new_empty
        self.w = empty(n_sets, context.per_set, n_features + 1)
        self.gradient = torch.empty_like(self.w)
        # where the slopes are asked for, they take the place of the margins
        self.margin, self.p = (empty(n_sets, context.per_set, n_rows) for _ in range(2))
        self.shape = (n_sets, context.per_set, *rows.shape)
        self.p_of_rows, self.slope_of_rows = self.p.view(self.shape), self.margin.view(self.shape)
        self.one = self.x.new_ones(())
        self.n_rows = len(context.tasks[0].train)

    @classmethod
    def of(cls, step: GradientStep) -> LinearStep | None:
        """None where steps are of another kind."""
        context, net = step.context, step.through.mlp
        if context.device.type != "cpu" or net is None or not net.linear or not step.plain:
            return None
        if not isinstance(step.loss, Binary) or context.weights is not None:
            return None
        y = step.rows.whole.y
        return cls(step) if bool(((y == 0) | (y == 1)).all()) else None

    def within(self, phase: Phase) -> Callable[[], None] | None:
        """The steps of a phase, or None where they are of another kind."""
        step = self.step
        if phase.penalised and step.pulling is None:
            return None
        if phase.climbing is not None and not step.climbs_by_hand:
            return None
        scale = (phase.scale / self.n_rows).view(*self.shape[:2], 1)  # of dl/du in the objective
        return lambda: self._take(phase, scale)

    @torch.no_grad()
    def _take(self, phase: Phase, scale: Tensor) -> None:
        step, phi, slope, sums = self.step, self.step.phi, self.margin, None
        torch.index_select(phi.vector, 0, self.there, out=self.w.view(-1))
        torch.bmm(self.w, self.x, out=self.margin)
        torch.sigmoid(self.margin, out=self.p)
        if phase.penalised or phase.climbing is not None:
            slope.mul_(self.p)
        if phase.climbing is not None:
            step.climb(None, self.slope_of_rows, step.rows.whole, False)
        if phase.penalised:
            membership = self.given or step.inferred(step.rows.whole, phase)
            sums = membership.sums(self.slope_of_rows)
            # what the penalty pulls at the slope of every row, in units of what the loss does
            pull = step.pull_of(phase, membership, scale.view(-1, 1))(sums)
            slope.lerp_(self.one, self.p)  # ds/du
            self.p_of_rows.addcmul_(self.slope_of_rows, membership.spread(pull, self.shape))
        torch.bmm(self.p, self.transposed, out=self.gradient)
        torch.index_select(self.gradient.mul_(scale).view(-1), 0, self.back, out=phi.gradient)
        if step.l2_gradient is not None:
            phi.gradient.addcmul_(phi.vector, step.l2_gradient)
        step.guard.check(self._watched(sums), step.context.now, step.adam, *step.moved_optimizers(phase))
        step.adam.step()

    def _watched(self, sums: Tensor | None) -> Tensor | None:
        """(R,) what is finite where the objective is; None: that it is follows from how long rows and weights are."""
        vector = self.step.phi.vector
        longest = math.sqrt(torch.dot(vector, vector).item()) * self.longest  # no margin, and no slope, is larger
        if longest < math.sqrt(torch.finfo(vector.dtype).max) / self.n_rows:
            return None
        return self.margin.sum(2).flatten() if sums is None else sums.square().sum(1)
