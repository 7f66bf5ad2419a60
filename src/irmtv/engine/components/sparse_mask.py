"""SparseIRM's mask: keep probabilities of Phi's weights that learn beside them, within a budget.

Formulas stand in `irmtv.objectives.sparse_irm`; here is when they are used.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from irmtv.core.projection import onto_box_with_sum
from irmtv.engine.components.base import Mask
from irmtv.engine.context import Context
from irmtv.engine.networks import MLP, Conv1d, Net, Parameters
from irmtv.engine.optim import Adam, FlatParameters
from irmtv.objectives.sparse_irm import kept_at, kept_weights, soft_mask, temperature

STREAM = 0x5BA5  # of the noise: no other component's


class SparseMask(Mask):
    """A keep probability for every weight of every run: scores (R, n).

    They start at 1, where the mask is exactly 1 and has no slope, so nothing moves before the kept share falls.
    """

    def __init__(self, context: Context, net: Net, phi: FlatParameters, source: object = None) -> None:
        self.context, self.noise = context, context.noise(STREAM)
        self.shapes = masked_shapes(net)
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.n = sum(self.sizes)
        if self.n == 0:
            raise ValueError(
                "net must have weights that can be switched off: parameters of two or more dimensions. Got the shapes "
                f"{net.shapes}; use another network, or the penalty without a mask, such as objective='irm-tv-l2'."
            )
        starts = [{"scores": torch.ones(self.n)}] * context.n_runs
        self.parameters = FlatParameters(starts, context.device, context.dtype)
        self.scores = self.parameters.views["scores"]  # (R, n)
        self.adam = self.optimizer = Adam(self.parameters, context.column("score_learning_rate"))
        self.kept_share = context.column("kept_share")
        self.first = round(context.static["sparsify_from"] * context.steps)
        self.last = round(context.static["sparsify_until"] * context.steps)
        self.share = torch.ones_like(self.kept_share)  # (R,) that each run's scores obey now
        # the largest gradient whose square, and a sum of such squares, is finite
        self.largest = math.sqrt(torch.finfo(context.dtype).max) / 1e3

    @property
    def _waiting(self) -> bool:
        """Whether nothing is switched off yet. A recorded step cannot ask; there the numbers say the same."""
        now = self.context.now
        return isinstance(now, int) and now < self.first

    def apply(self, views: Parameters) -> Parameters:
        if self._waiting:
            return views
        self.parameters.gradient.zero_()
        noise = self.noise.logistic(self.context.now, (self.n,), self.context.dtype)
        return self._masked(views, soft_mask(self.scores, noise, temperature(self._now(), self.context.steps)))

    def _now(self) -> Tensor:
        """The present step as a number to compute with: a quotient of whole numbers would be float32."""
        return torch.as_tensor(self.context.now, dtype=self.context.dtype)

    def _masked(self, views: Parameters, mask: Tensor) -> dict[str, Tensor]:
        """Phi's parameters, the weights times their part of mask (R, n)."""
        parts = zip(self.shapes.items(), torch.split(mask, self.sizes, 1), strict=True)
        return {**views, **{name: views[name] * part.view(-1, *shape) for (name, shape), part in parts}}

    @torch.no_grad()
    def step(self) -> None:
        """Adam's step of the scores, then the nearest point within the budget of the step to come."""
        if self._waiting:
            return
        # Phi's gradient is the guard's to judge; this one can be larger by orders, and Adam needs its square
        self.parameters.gradient.nan_to_num_(nan=0.0).clamp_(-self.largest, self.largest)
        self.optimizer.step()
        now = self._now()
        if isinstance(self.optimizer.steps, Tensor):  # a recorded step: its count begins with the falling share, too
            self.optimizer.steps.mul_(now >= self.first)
        moving = self.parameters.by_name(self.optimizer.rate)["scores"][:, 0] > 0  # a frozen run has rate 0
        share = kept_at(now + 1, self.first, self.last, self.kept_share)
        self.share.copy_(torch.where(moving, share, self.share))
        nearest = within_budget(self.scores, self.share * self.n)
        self.scores.copy_(torch.where(moving.unsqueeze(1), nearest, self.scores))

    @torch.no_grad()
    def fitted(self, views: Parameters) -> dict[str, Tensor]:
        """The weights of `kept_weights` as they are, the others 0."""
        kept = kept_weights(self.scores, self.share).to(self.scores.dtype)
        return {k: v.detach().clone() for k, v in self._masked(views, kept).items()}

    @torch.no_grad()
    def state(self) -> dict[str, Tensor]:
        """scores (R, n), in the order of Phi's weights; kept (R,), the share of the weights that a model uses."""
        kept = kept_weights(self.scores, self.share).to(self.scores.dtype).mean(1)
        return {"scores": self.scores.detach().clone(), "kept": kept}


def masked_shapes(net: Net) -> dict[str, tuple[int, ...]]:
    """The parameters that a mask may switch off: weights, no biases.

    In our own networks their names begin with W; of another network all that has two or more dimensions.
    """
    own = isinstance(net, (MLP, Conv1d))
    return {k: shape for k, shape in net.shapes.items() if (k.startswith("W") if own else len(shape) > 1)}


def within_budget(scores: Tensor, budget: Tensor) -> Tensor:
    """The nearest point of {0 <= s <= 1, sum s <= budget} to scores (R, n), budget (R,)."""
    clipped = scores.clamp(0, 1)
    exceeds = clipped.sum(1) > budget
    return torch.where(exceeds.unsqueeze(1), onto_box_with_sum(scores, 0.0, 1.0, budget), clipped)
