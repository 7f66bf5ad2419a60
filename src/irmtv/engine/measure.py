"""A measure on the environments that climbs the objective while Phi descends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from irmtv.core.types import Statistics
from irmtv.engine.stage import Stage
from irmtv.objectives.base import Weight
from irmtv.objectives.learned_measure import exponentiated_ascent, within_distance


class LearnedMeasure:
    """mu (R, E), one exponentiated step up the objective before every step of Phi."""

    def __init__(self, stage: Stage, n_environments: int) -> None:
        self.stage, self.objective = stage, stage.objective
        self.rate = stage.column("measure_rate").unsqueeze(1)
        distances = [float(s["measure_distance"]) for s in stage.settings]
        self.distance = torch.tensor(distances, device=stage.device, dtype=stage.dtype).unsqueeze(1)
        self.bounded = bool(self.distance.isfinite().any())
        self.mu = torch.full((stage.n_runs, n_environments), 1 / n_environments, device=stage.device, dtype=stage.dtype)
        self.begun = stage.static.get("measure_start") == "uniform"
        self.adjustment: Tensor | None = None
        if "adjustment" in stage.static:
            counts = torch.stack([_counts(t.train.environment, n_environments) for t in stage.tasks])  # (T, E)
            each = counts.repeat_interleave(stage.per_set, 0).to(stage.device, stage.dtype)
            self.adjustment = stage.column("adjustment").unsqueeze(1) / each.clamp_min(1).sqrt()

    def of(self, e: Statistics) -> Tensor:
        """The present measure: (R, E). Before its first step, the shares of the rows."""
        return self.mu if self.begun else e.mass.expand_as(self.mu)

    def update(self, e: Statistics, weights: Sequence[Weight], scale: Tensor) -> Statistics:
        """The statistics with the new measure. Environments that are absent from a mini-batch stay as they are."""
        with torch.no_grad():
            self.mu.copy_(self.of(e))
            self.begun = True
            gradient = self._gradient(e, weights, scale)
            if self.adjustment is not None:
                gradient = gradient + self.adjustment
            moved = exponentiated_ascent(self.mu, gradient, self.rate)
            if self.bounded:
                moved = within_distance(moved, e.mass.expand_as(moved), self.distance)
            # a gradient that is not finite is Phi's to report: the measure waits
            good = moved.isfinite().all(1, keepdim=True)
            self.mu.copy_(torch.where(good, moved, self.mu))
        return replace(e, learned=self.mu)

    def _gradient(self, e: Statistics, weights: Sequence[Weight], scale: Tensor) -> Tensor:
        """d (scaled objective) / d mu: (R, E)."""
        assert e.risk is not None
        still = replace(
            e,
            mean_risk=e.mean_risk.detach(),
            mass=e.mass.detach(),
            risk=e.risk.detach(),
            slope=None if e.slope is None else e.slope.detach(),
            slope_halves=None if e.slope_halves is None else tuple(s.detach() for s in e.slope_halves),  # type: ignore[arg-type]
        )
        if not weights:
            return still.risk * scale.unsqueeze(1)  # type: ignore[operator]
        with torch.enable_grad():
            mu = self.mu.clone().requires_grad_()
            moved = replace(still, learned=mu)
            total = self.objective.risk(moved, self.stage.static)
            for (weight, _), value in zip(
                weights, self.objective.penalty_values(moved, self.stage.static), strict=True
            ):
                total = total + weight * value
            (gradient,) = torch.autograd.grad((total * scale).sum(), mu)
        return gradient

    def state(self) -> dict[str, Tensor]:
        return {"measure": self.mu.clone()}


def _counts(codes: Tensor | None, n_environments: int) -> Tensor:
    assert codes is not None  # `check_tasks` saw to it
    return torch.bincount(codes, minlength=n_environments)
