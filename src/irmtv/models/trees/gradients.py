"""The objectives as functions of the scores f: value, gradient and curvature, row by row.

An objective is a risk and penalties on the few numbers R_e and S_e of each environment, so its gradient in f_i is

    dF/df_i = sum_e  dF/dR_e  w_i q_ie / n_e  l'_i  +  dF/dS_e  w_i q_ie / n_e  s'_i,        n_e = sum_i w_i q_ie.

dF/dR_e and dF/dS_e come from the objectives' own functions, their closed forms or automatic differentiation of E
numbers, whatever the number of rows; l' and s' are the closed forms of `irmtv.core.losses`. So every objective that is
listed works here, and no formula is written twice.

Slopes are taken at `scale` times the scores, where scale is the number with which the rows' mean loss is lowest. Scores
of a booster that is not finished are too small everywhere, so that all environments have negative slopes, whatever they
look at: at scale 1 a penalty on slopes first asks for larger scores, and says nothing about environments until boosting
has used what it should not. At the best scale the mean slope is 0 from the first tree on, and environments that differ
have slopes of both signs. As a booster is finished the best scale comes to 1, and the penalty is the paper's.

The curvature is the diagonal of the Hessian while dF/dR_e and dF/dS_e are held fixed: what
they change when f does is of rank E, not diagonal, and is left to the step rule (`irmtv.models.trees.trust_region`).

| loss       | l''          | s''                                               |
|------------|--------------|---------------------------------------------------|
| binary     | p (1 - p)    | 2 p (1 - p) + f p (1 - p) (1 - 2 p)               |
| squared    | 2            | 4                                                 |
| multiclass | p_k (1-p_k)  | 2 p_k (1-p_k) + p_k (1 - 2 p_k) (f_k - sum_j p_j f_j) |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from irmtv.core.losses import ClosedForm
from irmtv.core.membership import Codes, Soft, SoftPair, Weighted
from irmtv.core.risk import summarise
from irmtv.core.types import Statistics
from irmtv.objectives.base import Objective
from irmtv.objectives.learned_measure import exponentiated_ascent, within_distance

Base = Codes | Soft | SoftPair


def _curvature(loss: ClosedForm, at: _Forward) -> Tensor:
    """l'' of every row from what is known of it: shaped like f."""
    if loss.name == "squared":
        return torch.full_like(at.f[0, 0], 2.0)
    return (at.kept * (1 - at.kept))[0, 0]  # what is kept of classes are their probabilities


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
    """An objective on N rows with known environments, as a function of their scores. `scale` is that of its slopes.

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
        self.scale = 1.0
        self._last: tuple[Tensor, _Forward] | None = None
        # whether the risk is the mean loss, and the penalties' gradients are known in closed form
        self.is_mean = objective.infers is not None or objective.measure_of(settings) == "empirical"
        self.is_explicit = self.is_mean and objective.explicit
        self.move_to(membership)
        learned = objective.measure_of(settings) == "learned"
        self.measure: Measure | None = Measure(self) if learned else None

    def move_to(self, membership: Base) -> None:
        """Other environments from here on."""
        self.base = membership
        self.membership = membership if self.weight is None else Weighted(membership, self.weight)

    def statistics(self, f: Tensor) -> Statistics:
        """R_e, S_e and masses at the scores f, (N,) or (N, C)."""
        return self._looked(f)[0]

    def losses_and_slopes(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Of every row, slopes at the present scale: (1, 1, N) each."""
        at = self._at(self.scale * f[None, None])
        slope = at.residual * at.f
        return self._forward(f).value, slope.sum(-1) if slope.ndim > 3 else slope

    def _looked(self, f: Tensor) -> tuple[Statistics, _Forward, _Forward | None]:
        """Statistics, and what losses at f and slopes at scale * f are made of."""
        plain = self._forward(f)
        statistics, slopes = self._summed(plain)
        return statistics, plain, slopes

    def _summed(self, plain: _Forward) -> tuple[Statistics, _Forward | None]:
        slopes, slope = None, None
        if "slope" in self.uses:
            slopes = plain if self.scale == 1 else self._at(self.scale * plain.f)
            slope = slopes.residual * slopes.f
            slope = slope.sum(-1) if slope.ndim > 3 else slope
        statistics = summarise(plain.value, slope, self.membership, self.uses)
        learned = None if self.measure is None else self.measure.mu
        return replace(statistics, mixtures=self.mixtures, learned=learned), slopes

    def _at(self, f: Tensor) -> _Forward:
        return _Forward(f, *self.loss.forward(f, self.y))

    def _forward(self, f: Tensor) -> _Forward:
        """Remembered: where a line search ends the next round begins."""
        if self._last is None or self._last[0] is not f:
            self._last = f, self._at(f[None, None])
        return self._last[1]

    def rescale(self, f: Tensor, steps: int = 20) -> None:
        """Take slopes at the best scale of f, from 0.1 to 100: Newton's steps, from the present one."""
        if "slope" not in self.uses:
            return
        scale = self.scale
        weight = torch.ones(1, dtype=torch.float64) if self.weight is None else self.weight[0, 0]
        for _ in range(steps):
            at = self._at(scale * f[None, None])
            first = at.residual[0, 0] * f
            first = first if f.ndim == 1 else first.sum(-1)
            down, bend = float((weight * first).sum()), float((weight * self._bend(at, f)).sum())
            if not bend > 0:  # all scores are 0
                return
            moved = min(max(scale - down / bend, scale / 2, 0.1), 2 * scale, 100.0)
            done = abs(moved - scale) < 1e-2 * scale  # the step after this one would be about the square of it
            scale = moved
            if done:
                break
        self.scale = scale

    def _bend(self, at: _Forward, f: Tensor) -> Tensor:
        """d^2 l(w f) / dw^2 of every row, where `at` is at w f: (N,)."""
        if self.loss.name == "multiclass":
            p = at.kept[0, 0]
            return (p * f.square()).sum(-1) - (p * f).sum(-1).square()
        return _curvature(self.loss, at) * f.square()

    def values(self, f: Tensor, weights: Sequence[float]) -> tuple[float, float]:
        """The risk, and the weighted sum of the penalties."""
        risk, penalty = self._parts(self.statistics(f), weights)
        return float(risk), float(penalty)

    def risk(self, f: Tensor) -> float:
        """The risk alone."""
        return float(self._risks(self._forward(f)))

    def risks(self, f: Tensor) -> list[float]:
        """At several scores at once, (K, N) or (K, N, C)."""
        risks: list[float] = self._risks(self._at(f[None])).tolist()
        return risks

    def several(self, f: Tensor, weights: Sequence[float]) -> tuple[list[float], list[float]]:
        """Risks and weighted penalties at several scores at once, (K, N) or (K, N, C)."""
        risk, penalty = self._parts(self._summed(self._at(f[None]))[0], weights)
        return risk.expand(len(f)).tolist(), penalty.expand(len(f)).tolist()

    def _risks(self, at: _Forward) -> Tensor:
        """(K,)."""
        if not self.is_mean:
            return self._parts(self._summed(at)[0], ())[0]
        value = at.value if self.weight is None else at.value * self.weight
        return value.flatten(2).sum(-1).flatten() / self.total

    def _parts(self, e: Statistics, weights: Sequence[float]) -> tuple[Tensor, Tensor]:
        """Risk and weighted penalties: (K,) each."""
        risk = self.objective.risk(e, self.settings)
        penalty = torch.zeros_like(risk)
        if any(weights):
            values = self.objective.penalty_values(e, self.settings)
            for weight, value in zip(weights, values, strict=True):
                penalty = penalty + weight * value
        return risk, penalty

    def pull(self, f: Tensor, weights: Sequence[float], elsewhere: Statistics | None = None) -> Pull:
        """Value and gradient at f, one weight per penalty; a learned measure first moves one step up the objective.

        `elsewhere` are the statistics of other rows of the same environments: dF/dR_e and dF/dS_e of the penalties (and
        the measure) are taken there.
        """
        e, plain, slopes = self._looked(f)
        there = e if elsewhere is None else elsewhere
        if self.measure is not None:
            self.measure.update(there, weights)
            e, there = (replace(s, learned=self.measure.mu) for s in (e, there))
        risk, along, each = self._gradient(e, plain, None, lambda s: self._parts(s, ())[0])
        assert along is not None and each is not None  # a risk is a mean of losses
        curvature = _curvature(self.loss, plain)
        curvature = curvature * (each if curvature.ndim == 1 else each.unsqueeze(-1))
        penalty, gradient = 0.0, None
        if any(weights):
            penalty, gradient, _ = self._gradient(there, plain, slopes, lambda s: self._parts(s, weights)[1], weights)
        return Pull(risk, penalty, along, curvature, gradient, e)

    def _gradient(
        self,
        e: Statistics,
        plain: _Forward,
        slopes: _Forward | None,
        function: Callable[[Statistics], Tensor],
        weights: Sequence[float] = (),
    ) -> tuple[float, Tensor | None, Tensor | None]:
        """A function of the statistics: value, N times its gradient in f, and that in the losses of the rows.

        It is the risk, or, with `weights`, the penalties.
        """
        value, by = self._known(e, weights) if self.is_explicit else _differentiated(e, function)
        in_loss, in_slope = self._rows_of(by), self._spread(by.get("slope"))
        gradient = None if in_loss is None else self._pull_back(plain, in_loss, None)
        if in_slope is not None:
            assert slopes is not None
            more = self._pull_back(slopes, None, self.scale * in_slope)
            gradient = more if gradient is None else gradient + more
        return value, gradient, in_loss

    def _known(self, e: Statistics, weights: Sequence[float]) -> tuple[float, Mapping[str, Tensor | None]]:
        """The mean loss, or the penalties, with their gradients in the statistics, by the objective's closed forms."""
        one = torch.ones(1, dtype=torch.float64)
        if not weights:
            return float(e.mean_risk), {"mean_risk": one}
        each = [(w * one, w * one.unsqueeze(1)) for w in weights]
        total, _, by_risk, by_slope = self.objective.value_and_gradient(e, self.settings, each, one)
        return float(total - e.mean_risk), {"risk": by_risk, "slope": by_slope}

    def _rows_of(self, by: Mapping[str, Tensor | None]) -> Tensor | None:
        """From gradients in the mean loss and R_e to N times those in each row's loss: (N,)."""
        in_loss, mean = self._spread(by.get("risk")), by.get("mean_risk")
        if mean is None:
            return in_loss
        each = mean.expand(self.y.shape[2]) if self.weight is None else mean * self.weight[0, 0]
        return each if in_loss is None else in_loss + each

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

    def _pull_back(self, at: _Forward, in_loss: Tensor | None, in_slope: Tensor | None) -> Tensor:
        """From gradients in the rows' losses or slopes, (N,), to that in their scores."""
        if at.f.ndim > 3:
            in_loss = None if in_loss is None else in_loss.unsqueeze(-1)
            in_slope = None if in_slope is None else in_slope.unsqueeze(-1)
        gradient = self.loss.pull_back(at.f, at.residual, at.kept, in_loss, in_slope)
        assert gradient is not None
        return gradient[0, 0]


def _differentiated(
    e: Statistics, function: Callable[[Statistics], Tensor]
) -> tuple[float, Mapping[str, Tensor | None]]:
    """A function of the statistics and its gradient in them, automatically."""
    named = {n: v.detach().requires_grad_() for n in ("mean_risk", "risk", "slope") if (v := getattr(e, n)) is not None}
    value = function(replace(e, **named)).sum()  # of one run
    if not value.requires_grad:
        return float(value), {}
    gradients = torch.autograd.grad(value, list(named.values()), allow_unused=True)
    return float(value.detach()), dict(zip(named, gradients, strict=True))


class _Forward(NamedTuple):
    """A loss and what its derivatives are made of, (1, 1, N) or (1, 1, N, C)."""

    f: Tensor
    value: Tensor
    residual: Tensor
    kept: Tensor


class Measure:
    """mu, one exponentiated step up the objective before every round, as `engine.components.learned_measure`."""

    def __init__(self, of: ScoreObjective) -> None:
        self.owner = of
        settings, present = of.settings, (of.membership.mass > 0).double()  # (1, E)
        uniform = settings.get("measure_start") == "uniform"
        self.mu = present / present.sum() if uniform else of.membership.mass.double()
        self.rate = torch.tensor([[float(settings["measure_rate"])]], dtype=torch.float64)
        self.distance = torch.tensor([[float(settings["measure_distance"])]], dtype=torch.float64)
        self.adjustment = float(settings.get("adjustment") or 0.0)

    def update(self, e: Statistics, weights: Sequence[float]) -> None:
        mu = self.mu.clone().requires_grad_()
        risk, penalty = self.owner._parts(replace(e, learned=mu), weights)
        (gradient,) = torch.autograd.grad((risk + penalty).sum(), mu)
        if self.adjustment:
            gradient = gradient + self.adjustment / self.owner.membership.rows.clamp_min(1).sqrt()
        moved = exponentiated_ascent(self.mu, gradient, self.rate)
        if bool(self.distance.isfinite()):
            moved = within_distance(moved, e.mass.double(), self.distance)
        self.mu = moved if bool(moved.isfinite().all()) else self.mu
