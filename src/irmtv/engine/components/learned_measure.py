"""A measure on the environments that climbs the objective while Phi descends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from irmtv.core.types import Statistics
from irmtv.engine.context import Context
from irmtv.objectives.base import Weight
from irmtv.objectives.learned_measure import exponentiated_ascent, within_distance


class LearnedMeasure:
    """mu (R, E), one exponentiated step up the objective before every step of Phi.

    It starts at, and stays near, the shares of the training rows (of all of them, whatever a mini-batch has). Inferred
    environments have no shares before they are found: mu is their mass until a run's penalty first acts.
    """

    def __init__(self, context: Context, n_environments: int) -> None:
        self.context, self.objective = context, context.objective
        self.rate = context.column("measure_rate").unsqueeze(1)
        distances = [float(s["measure_distance"]) for s in context.settings]
        self.distance = torch.tensor(distances, device=context.device, dtype=context.dtype).unsqueeze(1)
        self.bounded = bool(self.distance.isfinite().any())
        self.shares: Tensor | None = None  # (R, E), of given environments
        self.mu = context.full((context.n_runs, n_environments), 1 / n_environments)
        self.begun = torch.zeros(context.n_runs, 1, device=context.device, dtype=torch.bool)  # of inferred environments
        self.adjustment: Tensor | None = None
        if self.objective.infers is not None:
            return
        counts, effective = _rows_of(context, n_environments)  # (T, E)
        each = counts.repeat_interleave(context.per_set, 0).to(context.device, context.dtype)  # (R, E)
        self.shares = each / each.sum(1, keepdim=True)
        there = (each > 0).to(context.dtype)
        uniform = context.static.get("measure_start") == "uniform"
        self.mu.copy_(there / there.sum(1, keepdim=True) if uniform else self.shares)
        if any(s.get("adjustment") for s in context.settings):
            known = effective.repeat_interleave(context.per_set, 0).to(context.device, context.dtype)
            self.adjustment = context.column("adjustment").unsqueeze(1) / known.clamp_min(1).sqrt()

    def of(self, e: Statistics) -> Tensor:
        """The present measure: (R, E)."""
        return self.mu if self.shares is not None else torch.where(self.begun, self.mu, e.mass)

    def update(self, e: Statistics, weights: Sequence[Weight], scale: Tensor, dead: Tensor) -> Statistics:
        """The statistics with the new measure; that of frozen runs, `dead` (R,), stands still."""
        with torch.no_grad():
            self.mu.copy_(self.of(e))
            for weight, _ in weights:
                self.begun.logical_or_((weight > 0).unsqueeze(1))
            gradient = self._gradient(e, weights, scale)
            if self.adjustment is not None:
                gradient = gradient + self.adjustment
            moved = exponentiated_ascent(self.mu, gradient, self.rate)
            if self.bounded:
                centre = e.mass.expand_as(moved) if self.shares is None else self.shares
                moved = within_distance(moved, centre, self.distance)
            # a gradient that is not finite is Phi's to report: the measure waits
            good = moved.isfinite().all(1, keepdim=True) & ~dead.unsqueeze(1)
            self.mu.copy_(torch.where(good, moved, self.mu))
        return replace(e, learned=self.mu)

    def _gradient(self, e: Statistics, weights: Sequence[Weight], scale: Tensor) -> Tensor:
        """d (scaled objective) / d mu, up to a number that is the same for all environments: (R, E).

        An environment that a mini-batch does not have counts 0 where the objective is a risk alone (as in groupDRO),
        and keeps its place among the others where there are penalties.
        """
        assert e.risk is not None
        risk = e.risk.detach()
        if not self.objective.penalties:
            return risk * scale.unsqueeze(1)
        if not weights:
            present = (e.mass > 0).to(risk.dtype)
            there = present * self.mu
            whole = there.sum(1, keepdim=True).clamp_min(torch.finfo(risk.dtype).tiny)
            mean = (there * risk).sum(1, keepdim=True) / whole
            return present * (risk - mean) / whole * scale.unsqueeze(1)
        still = replace(
            e,
            mean_risk=e.mean_risk.detach(),
            mass=e.mass.detach(),
            risk=risk,
            slope=None if e.slope is None else e.slope.detach(),
            slope_halves=None if (h := e.slope_halves) is None else (h[0].detach(), h[1].detach()),
        )
        with torch.enable_grad():
            mu = self.mu.clone().requires_grad_()
            moved = replace(still, learned=mu)
            total = self.objective.risk(moved, self.context.static)
            values = self.objective.penalty_values(moved, self.context.static)
            for (weight, _), value in zip(weights, values, strict=True):
                total = total + weight * value
            (gradient,) = torch.autograd.grad((total * scale).sum(), mu)
        return gradient

    def state(self) -> dict[str, Tensor]:
        """For the record: mu; NaN for a run whose inferred environments no penalty has seen."""
        return {"measure": self.mu.clone() if self.shares is not None else torch.where(self.begun, self.mu, torch.nan)}


def _rows_of(context: Context, n_environments: int) -> tuple[Tensor, Tensor]:
    """What the rows of every environment count together, and how many rows' worth of knowledge they are: (T, E) each.

    The same, unless rows have weights: then sum w, and (sum w)^2 / sum w^2.
    """
    codes = context.codes
    if context.blocks is not None:
        counts = context.over_ranks(torch.tensor([context.blocks.rows_of_environments], device=context.device))
        return counts, counts
    if context.weights is None:
        counts = torch.stack([torch.bincount(c, minlength=n_environments) for c in codes])
        counts = context.over_ranks(counts.to(context.device))
        return counts, counts

    def sums(weights: Tensor) -> Tensor:
        return weights.new_zeros(len(codes), n_environments).scatter_add(1, codes, weights)

    counts = sums(context.weights)
    return counts, counts.square() / sums(context.weights.square()).clamp_min(torch.finfo(counts.dtype).tiny)
