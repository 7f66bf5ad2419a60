"""Weights on the rows from a second network that learns what is easy (`irmtv.objectives.lff`)."""

from __future__ import annotations

import torch
from torch import Tensor

from irmtv.core.losses import Binary, Multiclass
from irmtv.core.risk import Head
from irmtv.engine.components.base import StepRows
from irmtv.engine.context import Context
from irmtv.engine.networks import Module, Net, ThereAndBack
from irmtv.engine.optim import Adam, FlatParameters, Guard
from irmtv.objectives.lff import (
    class_maximum,
    gce_weight,
    moving_average,
    relative_difficulty,
    relative_to_class,
)


class RelativeDifficulty:
    """b, a network like Phi with a start and an Adam of its own, and each row's difficulty under b relative to Phi.

    A run whose losses or b's gradient are not finite gets weights that are NaN: Phi's guard then freezes it at the
    same step. Here it is held too, so that its last weights stay as they were.
    """

    def __init__(self, context: Context, net: Net) -> None:
        if not isinstance(context.loss, (Binary, Multiclass)):
            raise ValueError(
                f"objective {context.objective.name!r} needs the probability of the right class, that is the built-in "
                f"loss 'binary' or 'multiclass'. Got {context.loss.name!r}; make the task with one of them."
            )
        self.context, self.loss = context, context.loss
        # a user's module keeps the state of every run it started (averages, random streams): b needs its own
        self.net: Net = Module(net.factory, net.n_outputs) if isinstance(net, Module) else net
        self.through = ThereAndBack(self.net)
        # a user's module starts from a seed alone: with the run's own it would be Phi's twin
        starts = [self.net.init(int(torch.randint(2**62, (), generator=g)), g) for g in context.generators]
        self.parameters = FlatParameters(starts, context.device, context.dtype)
        self.adam = Adam(self.parameters, context.column("learning_rate"))
        self.pull = self.parameters.spread(2 * context.column("l2"))
        self.guard = Guard(self.parameters)

        self.averaged = context.static["variant"] == "averaged"
        self.exponent = self._per_run(context.column("gce_exponent"))
        self.averaging = self._per_run(context.column("averaging"))
        y = context.targets([t.train for t in context.tasks])  # (T, N)
        self.classes = y.long().unsqueeze(1).expand(-1, context.per_set, -1)  # (T, K, N)
        self.n_classes = max(2, context.n_outputs)
        # rows of weight 0 are as if they were not there: no class is measured by them
        weights = context.weights
        self.left_out = None if weights is None else (weights == 0).to(context.device).unsqueeze(1)  # (T, 1, N)
        # in the order of the training rows; NaN before a row's first visit: (T, K, N) each
        self.last = context.full(self.classes.shape, torch.nan)
        if self.averaged:
            self.of_biased, self.of_phi = self.last.clone(), self.last.clone()

    def _per_run(self, column: Tensor) -> Tensor:
        """(R,) -> (T, K, 1)."""
        return column.view(self.context.n_sets, self.context.per_set, 1)

    def weigh(self, rows: StepRows, f: Tensor, value: Tensor) -> Tensor:
        """(T, K, *shape), from Phi's logits and losses of these rows, both without a graph; takes its own step too."""
        logits = self.through.forward(self.parameters.views, rows.x).logits
        with torch.no_grad():
            head = Head(self.loss, logits.detach().view(f.shape), rows.y, True, False)
            biased, of_phi = head.value.flatten(2), value.flatten(2)  # (T, K, n)
            self._step(rows, head, biased + of_phi)
            alive = ~self._per_run(self.guard.dead)
            index = None if rows.numbers is None else rows.numbers.view(biased.shape)  # of these rows
            if self.averaged:
                biased = self._relative_average(self.of_biased, biased, index)
                of_phi = self._relative_average(self.of_phi, of_phi, index)
            weight = relative_difficulty(biased, of_phi)
            _put(self.last, index, torch.where(alive, weight, _at(self.last, index)))
            return torch.where(alive, weight, torch.nan).view(value.shape)

    def _step(self, rows: StepRows, head: Head, losses: Tensor) -> None:
        """b's step on its own objective, whose gradient in a row's cross-entropy is q p^q or, plain, p^q."""
        by_loss = gce_weight(head.value.flatten(2), self.exponent)
        if not self.averaged:
            by_loss = by_loss / self.exponent
        self.through.pull_back(self.parameters, head.pull_back_rows(by_loss.view(head.value.shape) * rows.share, None))
        self.parameters.gradient.addcmul_(self.parameters.vector, self.pull)
        # b's objective is bounded: what tells of a failure is the losses that weights are made of
        self.guard.check(losses.mean(2).flatten(), self.context.now, self.adam)
        self.adam.step()

    def _relative_average(self, average: Tensor, value: Tensor, index: Tensor | None) -> Tensor:
        """Move the averages (T, K, N) of these rows; theirs, relative to the largest of their class: (T, K, n)."""
        new = moving_average(_at(average, index), value, self.averaging)
        _put(average, index, new)
        seen = average if self.left_out is None else average.masked_fill(self.left_out, torch.nan)
        largest = class_maximum(seen, self.classes, self.n_classes)
        return relative_to_class(new, _at(self.classes, index), largest)

    def state(self) -> dict[str, Tensor]:
        """The last weight of every training row, NaN before its first visit: (R, N)."""
        return {"row_weights": self.last.flatten(0, 1).clone()}


def _at(values: Tensor, index: Tensor | None) -> Tensor:
    """(T, K, N) at the rows `index` (T, K, b); all of them where it is None."""
    return values if index is None else values.gather(2, index)


def _put(values: Tensor, index: Tensor | None, new: Tensor) -> None:
    """In place: a recorded step goes on with the same tensors."""
    if index is None:
        values.copy_(new)
    else:
        values.scatter_(2, index, new)
