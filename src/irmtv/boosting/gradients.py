"""The objectives as functions of the scores f: value, gradient and curvature, row by row.

An objective is a risk and penalties on the few numbers R_e and S_e of each environment, so its gradient in f_i is

    dF/df_i = sum_e  dF/dR_e  w_i q_ie / n_e  l'_i  +  dF/dS_e  w_i q_ie / n_e  s'_i,        n_e = sum_i w_i q_ie.

dF/dR_e and dF/dS_e come from the objectives' own functions, by automatic differentiation of E numbers, whatever the
number of rows; l' and s' are the closed forms of `irmtv.core.losses`. So every objective that is listed works here, and
no formula is written twice. The curvature is the diagonal of the Hessian while dF/dR_e and dF/dS_e are held fixed: what
they change when f does is of rank E, not diagonal, and is left to the step rule (`irmtv.boosting.trust_region`).

| loss       | l''          | s''                                               |
|------------|--------------|---------------------------------------------------|
| binary     | p (1 - p)    | 2 p (1 - p) + f p (1 - p) (1 - 2 p)               |
| squared    | 2            | 4                                                 |
| multiclass | p_k (1-p_k)  | 2 p_k (1-p_k) + p_k (1 - 2 p_k) (f_k - sum_j p_j f_j) |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from irmtv.core.losses import ClosedForm
from irmtv.core.membership import Codes, Soft, SoftPair, Weighted
from irmtv.core.risk import summarise
from irmtv.core.types import Statistics
from irmtv.objectives.base import Objective
from irmtv.objectives.learned_measure import exponentiated_ascent, within_distance

Base = Codes | Soft | SoftPair


def second_derivatives(loss: ClosedForm, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """l'' and s'' of every row, in every score alone: both shaped like f."""
    if loss.name == "squared":
        return torch.full_like(f, 2.0), torch.full_like(f, 4.0)
    if loss.name == "binary":
        p = torch.sigmoid(f)
        spread = p * (1 - p)
        return spread, spread * (2 + f * (1 - 2 * p))
    if loss.name == "multiclass":
        p = torch.softmax(f, -1)
        spread = p * (1 - p)
        away = f - (p * f).sum(-1, keepdim=True)
        return spread, 2 * spread + p * (1 - 2 * p) * away
    raise ValueError(f"trees minimise the losses 'binary', 'multiclass' and 'squared'. Got {loss.name!r}.")


@dataclass(frozen=True)
class Pull:
    """The objective at some scores, and where it pulls them. Gradients are those of N times the objective."""

    risk: float
    penalty: float  # sum_k lambda_k penalty_k
    risk_gradient: Tensor  # (N,) or (N, C)
    risk_curvature: Tensor
    penalty_gradient: Tensor | None  # None where no penalty acts
    statistics: Statistics


class ScoreObjective:
    """An objective on N rows with known environments, as a function of their scores.

    Parameters
    ----------
    objective, settings : what is minimised, with its hyper-parameters resolved.
    loss, y : per row; y is (N,) float64, int64 for several classes.
    membership : environments of the rows, (1, 1, N); `move_to` changes them.
    weight : (N,) what each row counts, or None.
    mixtures : (1, M, E) affine mixtures that penalties see, or None.
    """

    def __init__(
        self,
        objective: Objective,
        settings: Mapping[str, Any],
        loss: ClosedForm,
        y: Tensor,
        membership: Base,
        weight: Tensor | None = None,
        mixtures: Tensor | None = None,
    ) -> None:
        self.objective, self.settings, self.loss, self.mixtures = objective, settings, loss, mixtures
        self.y = y[None, None]
        self.weight = None if weight is None else weight.double()[None, None]  # (1, 1, N)
        self.uses = objective.uses(settings)
        self.total = float(y.shape[0]) if weight is None else float(weight.double().sum())
        self.move_to(membership)
        self.measure = _Measure(self) if objective.measure_of(settings) == "learned" else None

    def move_to(self, membership: Base) -> None:
        """Other environments from here on."""
        self.base = membership
        self.membership = membership if self.weight is None else Weighted(membership, self.weight)

    def statistics(self, f: Tensor) -> Statistics:
        """R_e, S_e and masses at the scores f, (N,) or (N, C)."""
        value, residual, _ = self.loss.forward(f[None, None], self.y)
        return self._summarised(value, residual, f)

    def _summarised(self, value: Tensor, residual: Tensor, f: Tensor) -> Statistics:
        slope = residual * f[None, None]
        found = summarise(value, slope.sum(-1) if slope.ndim > 3 else slope, self.membership, self.uses)
        return replace(
            found, mixtures=self.mixtures, learned=None if self.measure is None else self.measure.of(found.mass)
        )

    def values(self, f: Tensor, weights: Sequence[float]) -> tuple[float, float]:
        """The risk, and the weighted sum of the penalties."""
        risk, penalty = self._parts(self.statistics(f), weights)
        return float(risk), float(penalty)

    def _parts(self, e: Statistics, weights: Sequence[float]) -> tuple[Tensor, Tensor]:
        risk = self.objective.risk(e, self.settings)[0]
        penalty = torch.zeros_like(risk)
        if any(weights):
            values = self.objective.penalty_values(e, self.settings)
            for weight, value in zip(weights, values, strict=True):
                penalty = penalty + weight * value[0]
        return risk, penalty

    def pull(self, f: Tensor, weights: Sequence[float]) -> Pull:
        """Value and gradient at f, one weight per penalty; a learned measure first moves one step up the objective."""
        value, residual, kept = self.loss.forward(f[None, None], self.y)
        e = self._summarised(value, residual, f)
        if self.measure is not None:
            e = self.measure.update(e, weights)
        named = {n: v.detach().requires_grad_() for n in ("mean_risk", "risk", "slope") if (v := getattr(e, n)) is not None}
        e = replace(e, **named)
        risk, penalty = self._parts(e, weights)
        in_risk = self._rows_of(torch.autograd.grad(risk, list(named.values()), allow_unused=True), named)
        along = self._pull_back(f, residual, kept, *in_risk)
        curvature = second_derivatives(self.loss, f, self.y[0, 0])[0]
        each = in_risk[0]
        assert along is not None and each is not None  # a risk is a mean of losses
        found = None
        if any(weights) and penalty.requires_grad:
            in_penalty = self._rows_of(torch.autograd.grad(penalty, list(named.values()), allow_unused=True), named)
            found = self._pull_back(f, residual, kept, *in_penalty)
        return Pull(
            float(risk),
            float(penalty),
            along,
            curvature * (each if curvature.ndim == 1 else each.unsqueeze(-1)),
            found,
            replace(e, **{n: v.detach() for n, v in named.items()}),
        )

    def _rows_of(
        self, gradients: Sequence[Tensor | None], named: Mapping[str, Tensor]
    ) -> tuple[Tensor | None, Tensor | None]:
        """From gradients in the mean loss, R_e and S_e to N times those in each row's loss and slope: (N,) each."""
        by = dict(zip(named, gradients, strict=True))
        in_loss, mean = self._spread(by.get("risk")), by.get("mean_risk")
        if mean is not None:
            weight = torch.ones(self.y.shape[2], dtype=torch.float64) if self.weight is None else self.weight[0, 0]
            each = mean * weight
            in_loss = each if in_loss is None else in_loss + each
        return in_loss, self._spread(by.get("slope"))

    def _spread(self, gradient: Tensor | None) -> Tensor | None:
        """N sum_e g_e w_i q_ie / n_e: the transpose of a mean over environments, (1, E) -> (N,)."""
        if gradient is None:
            return None
        rows = self.membership.rows.double()
        per_row = gradient / torch.where(rows > torch.finfo(rows.dtype).tiny, rows, 1) * self.total  # (1, E)
        if isinstance(self.base, Codes):
            spread = per_row[0][self.base.codes[0, 0]]
        else:
            spread = torch.einsum("e,en->n", per_row[0], self.base.q[0, 0].double())
        return spread if self.weight is None else spread * self.weight[0, 0]

    def _pull_back(
        self, f: Tensor, residual: Tensor, kept: Tensor, in_loss: Tensor | None, in_slope: Tensor | None
    ) -> Tensor | None:
        if f.ndim > 1:
            in_loss = None if in_loss is None else in_loss.unsqueeze(-1)
            in_slope = None if in_slope is None else in_slope.unsqueeze(-1)
        found = self.loss.pull_back(f[None, None], residual, kept, in_loss, in_slope)
        return None if found is None else found[0, 0]


class _Measure:
    """mu, one exponentiated step up the objective before every round, as `irmtv.engine.measure` does it."""

    def __init__(self, of: ScoreObjective) -> None:
        self.owner = of
        settings, present = of.settings, (of.membership.mass > 0).double()  # (1, E)
        uniform = settings.get("measure_start") == "uniform"
        self.mu = present / present.sum() if uniform else of.membership.mass.double()
        self.rate = torch.tensor([[float(settings["measure_rate"])]], dtype=torch.float64)
        self.distance = torch.tensor([[float(settings["measure_distance"])]], dtype=torch.float64)
        self.adjustment = float(settings.get("adjustment") or 0.0)

    def of(self, mass: Tensor) -> Tensor:
        return self.mu

    def update(self, e: Statistics, weights: Sequence[float]) -> Statistics:
        mu = self.mu.clone().requires_grad_()
        risk, penalty = self.owner._parts(replace(e, learned=mu), weights)
        (gradient,) = torch.autograd.grad(risk + penalty, mu)
        if self.adjustment:
            gradient = gradient + self.adjustment / self.owner.membership.rows.clamp_min(1).sqrt()
        moved = exponentiated_ascent(self.mu, gradient, self.rate)
        if bool(self.distance.isfinite()):
            moved = within_distance(moved, e.mass.double(), self.distance)
        self.mu = moved if bool(moved.isfinite().all()) else self.mu
        return replace(e, learned=self.mu)
