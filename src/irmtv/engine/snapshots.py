"""What is measured during training: per environment, for all runs, sums that later tests can be made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from irmtv.core.losses import Loss
from irmtv.core.membership import Codes, Membership, Soft, SoftPair, Weighted
from irmtv.core.risk import LastLayer, divide, per_sample
from irmtv.core.types import Rows, codes_of, weights_of
from irmtv.engine.components.base import EnvironmentSource
from irmtv.engine.context import Context
from irmtv.engine.networks import Net, Parameters
from irmtv.selection.records import pad


@dataclass(frozen=True)
class Snapshot:
    """One moment of R runs. Means over the rows of each environment; `rows` says how many there are.

    Rows with weights count by them, in `rows` too: in means over environments each has what its rows weigh.
    """

    step: int
    on: Literal["held-out", "train"]
    rows: Tensor  # (R, E) q-weighted number of rows, or sum of their weights
    effective: Tensor  # (R, E) as many rows of equal weight make a mean as sure; `rows` where none have weights
    risk: Tensor  # (R, E) mean loss
    risk_cov: Tensor  # (R, E) squared standard errors; (R, E, E) covariances where environments share rows (inferred)
    slope: Tensor  # (R, E) mean slope, (R, E, J) for a vector classifier
    slope_cov: Tensor  # like risk_cov, with a last axis J for a vector classifier
    accuracy: Tensor  # (R, E); NaN where the loss is not a classification loss

    def take(self, index: Tensor) -> Snapshot:
        """The runs at `index`."""
        return self._each(lambda v: v[index])

    def cpu(self) -> Snapshot:
        """On the CPU. To measure must not wait for a GPU, so it leaves its numbers there."""
        return self._each(Tensor.cpu)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Snapshot:
        changed: dict[str, Any] = {k: change(v) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **changed)


@dataclass(frozen=True)
class History:
    """All snapshots of all runs, stacked: (S, R, E).

    Runs may differ in their steps, environments or slope components (runs of several groups, or interrupted
    ones). Where a run has nothing, `rows` and `effective` are 0 and the rest NaN.
    """

    steps: tuple[int, ...]
    on: str
    rows: Tensor
    effective: Tensor
    risk: Tensor
    risk_cov: Tensor
    slope: Tensor
    slope_cov: Tensor
    accuracy: Tensor

    @classmethod
    def of(cls, chunks: Sequence[Sequence[Snapshot]], order: Tensor) -> History | None:
        """From the snapshots of every chunk of runs; `order` puts the runs back in the order of the call."""
        if not chunks or not all(chunks):  # no snapshots, or interrupted before the first
            return None
        steps = sorted({s.step for chunk in chunks for s in chunk})
        names = [f.name for f in fields(Snapshot) if f.name not in ("step", "on")]
        stacked = {
            name: torch.cat(pad([_at(steps, chunk, name) for chunk in chunks], leading=2), 1)[:, order]
            for name in names
        }
        stacked |= {name: stacked[name].nan_to_num(0) for name in ("rows", "effective")}
        return cls(steps=tuple(steps), on=chunks[0][0].on, **stacked)


def _at(steps: Sequence[int], chunk: Sequence[Snapshot], name: str) -> Tensor:
    """One quantity of a chunk of runs at these steps: (S, R, ...), NaN where it was not measured."""
    measured = {s.step: getattr(s, name).cpu() for s in chunk}
    nothing = torch.full_like(measured[chunk[0].step], torch.nan)
    return torch.stack([measured.get(step, nothing) for step in steps])


def correct(loss: Loss, f: Tensor, y: Tensor) -> Tensor | None:
    """1 where the prediction is right, 0 elsewhere: (T, K, N); None where there are no classes."""
    if loss.name == "binary":
        return ((f > 0) == (y > 0.5)).to(f.dtype)
    if loss.name == "multiclass":
        return (f.argmax(-1) == y).to(f.dtype)
    return None


def given_environments(rows: Sequence[Rows], per_set: int, n_environments: int, device: torch.device) -> Codes:
    """The given environments of one data set's rows each, for `per_set` runs on each."""
    return Codes(codes_of(rows).to(device).unsqueeze(1).expand(-1, per_set, -1), n_environments)


@torch.no_grad()
def measure(
    step: int,
    on: Literal["held-out", "train"],
    loss: Loss,
    f: Tensor,
    y: Tensor,
    environments: Membership,
    weight: Tensor | None = None,
    last: LastLayer | None = None,
    vector: bool = False,
) -> Snapshot:
    """A snapshot from logits f (T, K, N) or (T, K, N, C), labels y (T, 1, N, ...) and the rows' weights (T, 1, N).

    `last` and `vector` are the last layer and whether w is a vector, see `per_sample`.
    """
    value, slope = per_sample(loss, f, y, True, last, vector)
    assert slope is not None
    membership = environments
    if weight is not None:
        assert isinstance(environments, (Codes, Soft, SoftPair))  # blocks are for training rows
        membership = Weighted(environments, weight)
    rows = membership.rows.to(f.dtype)
    present = ~_absent(membership)

    def mean(v: Tensor) -> Tensor:
        means = divide(membership.sums(v), rows)
        there = present if means.ndim == 2 else present.unsqueeze(-1)
        return torch.where(there, means, torch.nan)

    right = correct(loss, f, y)
    risk = mean(value)
    counted = torch.where(present, rows, 0).expand(len(risk), -1)  # what a mean divides by is not 0
    return Snapshot(
        step=step,
        on=on,
        rows=counted,
        effective=counted if weight is None else torch.where(present, effective_rows(membership), 0).to(risk),
        risk=risk,
        risk_cov=covariance_of_means(membership, value).to(risk),
        slope=mean(slope),
        slope_cov=covariance_of_means(membership, slope).to(risk),
        accuracy=torch.full_like(risk, torch.nan) if right is None else mean(right),
    )


class Watcher:
    """The held-out rows of a chunk of runs (without those, the training rows), prepared once, and the measuring."""

    def __init__(self, context: Context, net: Net, source: EnvironmentSource | None, vector: bool) -> None:
        held_out = [t.held_out for t in context.tasks]
        rows = [t.train if h is None else h for t, h in zip(context.tasks, held_out, strict=True)]
        self.context, self.net, self.vector = context, net, vector
        self.on: Literal["held-out", "train"] = "train" if held_out[0] is None else "held-out"
        self.x, self.y = net.prepare(context.inputs(rows)), context.targets(rows).unsqueeze(1)  # y (T, 1, N, ...)
        weights = weights_of(rows, across_sets=True)
        self.weight = None if weights is None else weights.to(context.device, context.dtype).unsqueeze(1)  # (T, 1, N)
        given = given_environments(rows, context.per_set, max(1, len(context.tasks[0].train.names)), context.device)
        inferred = None if source is None else source.membership_of(rows)
        self.environments: Callable[[], Membership] = (lambda: given) if inferred is None else inferred

    @torch.no_grad()
    def look(self, step: int, p: Parameters) -> Snapshot:
        out = self.net.forward(p, self.x)
        f = out.logits.view(self.context.n_sets, self.context.per_set, *out.logits.shape[1:])
        loss, environments = self.context.loss, self.environments()
        return measure(step, self.on, loss, f, self.y, environments, self.weight, out.last, self.vector)


def _absent(membership: Membership) -> Tensor:
    """Environments without rows, or with a mass that is rounding alone (a saturated rho): (R, E) or (1, E)."""
    return membership.mass <= torch.finfo(membership.mass.dtype).eps


def effective_rows(membership: Membership) -> Tensor:
    """(sum_i q_ie w_i)^2 / sum_i q_ie w_i^2 of rows with weights w, the q-weighted number of others: (R, E)."""
    rows = membership.rows.double()
    if not isinstance(membership, Weighted):
        return rows
    squares = Weighted(membership.base, membership.weight.double().square()).rows
    return rows.square() / squares


def covariance_of_means(membership: Membership, v: Tensor) -> Tensor:
    """How sure the environments' means of v, (T, K, N) or (T, K, N, J), are.

    Environments that share no row: their squared standard errors s^2 / n, (R, E) or (R, E, J). Soft ones: the
    covariance matrix sum_i q_ie q_if (v_i - mean_e)(v_i - mean_f) / (Q_e Q_f), (R, E, E) or (R, E, E, J), Q_e the rows
    of e, each factor times sqrt(n / (n - 1)) with n = Q^2 / sum q^2 the effective rows, as for hard ones. NaN where an
    environment has no rows.

    Rows with weights w have w q in place of q: for environments that share no row the standard errors are those of
    weighted means, sum_i w_i^2 (v_i - mean_e)^2 / (sum_i w_i)^2 n / (n - 1).
    """
    v = v.double()
    absent = _absent(membership).expand(v.shape[0] * v.shape[1], -1)  # (R, E)
    if isinstance(membership, Weighted) and isinstance(membership.base, Codes):
        errors = _errors_of_weighted_means(membership.base, membership.weight.double(), v)
        return errors.masked_fill(absent if errors.ndim == 2 else absent.unsqueeze(-1), torch.nan)
    rows = membership.rows.double()
    base = membership.base if isinstance(membership, Weighted) else membership
    if not isinstance(base, (Soft, SoftPair)):
        means = divide(membership.sums(v), rows)
        spread = divide(membership.sums(v.square()), rows) - means.square()
        variance = divide(spread.clamp_min(0), (rows - 1).clamp_min(1))  # one row alone: 0, nothing is known
        return variance.masked_fill(absent if means.ndim == 2 else absent.unsqueeze(-1), torch.nan)
    soft = Soft(base.q.double())  # trained in float32 as a rule
    if isinstance(membership, Weighted):
        soft = Soft(soft.q * membership.weight.double().unsqueeze(2))
    means = divide(soft.sums(v), rows)
    q = soft.q.flatten(0, 1).unsqueeze(-1)  # (R, E, N, 1)
    v = v.flatten(0, 1).unsqueeze(1)  # (R, 1, N) or (R, 1, N, J)
    v = v if v.ndim == 4 else v.unsqueeze(-1)
    small = _small_sample(rows, q.squeeze(-1).square().sum(-1)).sqrt()  # (R, E)
    off = q * (v - means.view(*means.shape[:2], 1, -1)) * (small / rows).view(*rows.shape, 1, 1)  # (R, E, N, J)
    matrix = torch.einsum("renj,rfnj->refj", off, off)
    either = absent.unsqueeze(1) | absent.unsqueeze(2)
    matrix = matrix.masked_fill(either.unsqueeze(-1), torch.nan)
    return matrix.squeeze(-1) if means.ndim == 2 else matrix


def _errors_of_weighted_means(hard: Codes, weight: Tensor, v: Tensor) -> Tensor:
    """Squared standard errors of the environments' weighted means, (R, E) or (R, E, J); weight (T, 1 or K, N)."""
    weight = weight.expand(hard.codes.shape)
    total = hard.sums(weight)  # (R, E)
    trailing = v.shape[3:]
    index = hard.codes.view(*hard.codes.shape, *(1,) * len(trailing)).expand_as(v)
    each = weight.view(*weight.shape, *(1,) * len(trailing))
    means = divide(hard.sums(each * v), total)
    own = means.view(*v.shape[:2], *means.shape[1:]).gather(2, index)  # of every row's environment
    spread = hard.sums((each * (v - own)).square())
    factor = _small_sample(total, hard.sums(weight.square()))
    return divide(divide(spread, total), total) * (factor if means.ndim == 2 else factor.unsqueeze(-1))


def _small_sample(total: Tensor, squares: Tensor) -> Tensor:
    """n / (n - 1) of the n = (sum w)^2 / sum w^2 rows that rows of weights w are worth, at most 2."""
    effective = (total.square() / squares.clamp_min(torch.finfo(squares.dtype).tiny)).clamp_min(1)
    return (effective / (effective - 1).clamp_min(1e-3)).clamp_max(2)
