"""The training procedure of "eills" (`objectives.eills` has the formulas): columns of a linear model, chosen outright.

Second moments give a short list of sets of columns for every penalty weight (`column_sets.py`). The sets of all runs on
a data set are fitted together by Newton's method, with the true loss, and each run takes its best one. That one is
solved to the end.

Step 0 of a history is ERM on all columns, step 1 the solution. `learning_rate`, `steps`, `batch_size`, `solver` and
`start` have no part in it. `fitted.learned("columns")` says which columns a run has taken; the coefficients of the
others are 0.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from irmtv.core.losses import Multiclass, Squared
from irmtv.core.messages import shown, users_stacklevel
from irmtv.core.types import Statistics
from irmtv.engine.fitted import State
from irmtv.engine.networks import MLP
from irmtv.engine.plan import Chunk
from irmtv.engine.program import Call, Program, Reporter
from irmtv.engine.solvers.column_sets import GradientValues, Moments, RegretValues, best_sets, chi_square_quantile
from irmtv.engine.solvers.linear_risks import SMOOTH, LinearRisks
from irmtv.engine.solvers.second_order import TOLERANCE, Local, Problem, Solution, Term
from irmtv.engine.solvers.starts import solve_erm

SHORT_LIST = 24  # sets of a data set that are fitted, at most
STRICTER = (0.2, 0.5, 0.8)  # levels that the largest weight contributes to the short list, beside its own
SCREENING = 1e-4  # tolerance of these fits
LEAST_L2 = 5e-5  # of these fits: classes that some columns separate would leave no gradients to compare
SHARPENING = (0.1, 0.01, 0.001)  # eps of the l1 form, as shares of the pooled fit's total variation


@dataclass(frozen=True)
class OnColumns(Problem):
    """A problem on some of the columns: `components` (G, P, P) are diagonal, 1 for every parameter in use."""

    def _on_set(self, t: int, theta: Tensor, l2: Tensor, weights: Tensor, eps: Tensor, components: Tensor) -> Local:
        whole = super()._on_set(t, theta, l2, weights, eps, components)
        used = components.diagonal(dim1=1, dim2=2)  # (K, P)
        both = used.unsqueeze(2) * used.unsqueeze(1)
        hessian = whole.hessian * both + torch.diag_embed(1 - used)
        return Local(whole.value, whole.gradient * used, hessian, whole.rest * both)


class Sets(NamedTuple):
    """Sets of columns, each with what it is fitted with and where that begins."""

    owner: Tensor  # (K,) data set
    l2: Tensor  # (K,)
    weight: Tensor  # (K,) of the gradients; 0 for the pooled fit
    columns: Tensor  # (K, D) bool
    theta: Tensor  # (K, P)
    eps: Tensor  # (K,) of the l1 form

    def take(self, index: Tensor) -> Sets:
        return Sets(*(part[index] for part in self))

    def used(self) -> Tensor:
        """Which parameters are, the intercepts among them: (K, P) of 0 and 1."""
        one = torch.nn.functional.pad(self.columns, (0, 1), value=True).double()
        return one.repeat(1, self.theta.shape[1] // one.shape[1])


class Judged(NamedTuple):
    """Pooled fits of sets of columns, (K,) each."""

    risk: Tensor
    regret: Tensor
    complexity: Tensor  # BIC
    statistic: Tensor  # chi-square with `degrees`, where the fit is stationary in all environments
    degrees: Tensor

    def values(self, weights: Tensor, level: float) -> Tensor:
        """For penalty weights (G,): (G, K)."""
        limit = chi_square_quantile(self.degrees, level)
        beyond = self.regret * (1 - limit / self.statistic.clamp_min(1e-300)).clamp_min(0)
        return self.risk + self.complexity + weights.unsqueeze(1) * beyond


class ColumnsProgram(Program):
    """One chunk of runs; see the head of this file."""

    def __init__(self, chunk: Chunk, call: Call) -> None:
        super().__init__(chunk, call)
        context = self.context
        if not isinstance(self.net, MLP) or len(self.net.widths) != 2:
            raise ValueError(
                "objective 'eills' chooses columns of a linear model: use hidden=() and no net=. "
                f"Got net={type(self.net).__name__}."
            )
        if not isinstance(self.loss, SMOOTH):
            raise ValueError(
                "objective 'eills' needs the derivatives of the loss, which it has for 'binary', 'multiclass' and "
                f"'squared'. Got {self.loss.name!r}."
            )
        if call.start is not None:
            raise ValueError("objective 'eills' begins with ERM: start must be None or a name. Got tensors.")
        self.form: str = self.static["form"]
        self.owner = context.sets.squeeze(1).cpu()
        self.l2 = torch.tensor([float(s["l2"]) for s in context.settings], dtype=torch.float64)
        self.weight = torch.tensor([float(s["penalty_weight"]) for s in context.settings], dtype=torch.float64)
        self.taken = torch.zeros(context.n_runs, dtype=torch.long)  # steps of Newton's method
        self.reached = torch.ones(context.n_runs, dtype=torch.bool)
        n_columns = self.phi.views["W0"].shape[2]
        self.columns = torch.ones(context.n_runs, n_columns, dtype=torch.bool)

    def _starts(self) -> list[dict[str, Tensor]]:
        return [{n: torch.zeros(s, dtype=torch.float64) for n, s in self.net.shapes.items()}] * self.context.n_runs

    @torch.no_grad()
    def run(self, report: Reporter) -> None:
        report(0)
        context = self.context
        n_environments = len(context.tasks[0].train.names)
        sets = [
            LinearRisks(task.train, codes, n_environments, self.loss, context.n_outputs)
            for task, codes in zip(context.tasks, context.codes, strict=True)
        ]
        kind = self.objective.measure_of(self.static)
        measure = [Statistics(s.mass.new_zeros(1), s.mass.unsqueeze(0)).measure(kind)[0] for s in sets]
        terms = [Term("gradient", "l1" if self.form == "l1" else "l2", measure)]
        self.problem = Problem(sets, measure, terms, torch.zeros(sets[0].n_parameters, 0, dtype=torch.float64))
        theta = self._erm()
        self._put(theta)
        self._look(0)
        acting = (self.weight > 0).nonzero().squeeze(1)
        if len(acting):
            theta[acting] = self._chosen(acting, theta)
            self._put(theta)
        self._look(1)
        report(self.steps)
        self._tell()

    def _erm(self) -> Tensor:
        """Of every run, (R, P); runs that differ in gamma alone have one."""
        keys = torch.stack([self.owner.double(), self.l2], 1)
        distinct, place = torch.unique(keys, dim=0, return_inverse=True)
        solved = solve_erm(self.problem, distinct[:, 0].long(), distinct[:, 1].contiguous())
        self.reached &= solved.reached[place]
        self.taken += solved.steps[place]
        return solved.theta[place]

    # ---- the choice --------------------------------------------------------------------------------------------

    def _chosen(self, acting: Tensor, erm: Tensor) -> Tensor:
        """The solutions of the runs that have a weight, (K, P); `erm` (R, P)."""
        regret = self.form == "regret"
        # the pooled fits of a set serve all weights
        fitted_with = torch.zeros_like(self.weight) if regret else self.weight
        keys = torch.stack([self.owner.double(), self.l2, fitted_with], 1)[acting]
        groups, group = torch.unique(keys, dim=0, return_inverse=True)
        parts, lists = [], self._short_lists(acting)
        for g, (t, l2, weight) in enumerate(groups.tolist()):
            masks = lists[int(t), weight]
            run = acting[group == g][0]  # any of them
            one = masks.new_ones(len(masks), dtype=torch.float64)
            theta = erm[run].expand(len(masks), -1)
            parts.append(Sets(one.long() * int(t), one * max(l2, LEAST_L2), one * weight, masks, theta, 0 * one))
        place = torch.arange(len(groups)).repeat_interleave(torch.tensor([len(part.owner) for part in parts]))
        every = Sets(*(torch.cat(column) for column in zip(*parts, strict=True)))
        every, values = self._screened(every, self.weight[acting])
        values = torch.where(group.unsqueeze(1) == place, values, torch.inf)  # (K, sets)
        final = every.take(values.argmin(1))._replace(l2=self.l2[acting])
        self.columns[acting] = final.columns
        return self._finished(final, acting)

    def _short_lists(self, acting: Tensor) -> dict[tuple[int, float], Tensor]:
        """By data set and the weight that sets are fitted with: (sets, D) bool."""
        lists = {}
        for t in sorted(set(self.owner[acting].tolist())):
            risks, mu = self.problem.sets[t], self.problem.measure[t]
            weights = torch.unique(self.weight[acting][self.owner[acting] == t])
            if self.form == "regret":
                moments = Moments.of(risks, mu)
                found = best_sets(RegretValues(moments, self._steps(weights)), moments.n_columns, SHORT_LIST)
                lists[t, 0.0] = _spread_out(_in_turn(found, SHORT_LIST), moments.columns, risks.size - 1)
                continue
            moments = Moments.of(risks, mu, standardise=False)
            labels = not isinstance(self.loss, Squared)
            found = best_sets(GradientValues(moments, weights, labels), moments.n_columns, SHORT_LIST)
            for weight, masks in zip(weights.tolist(), found, strict=True):
                lists[t, weight] = _spread_out(masks, moments.columns, risks.size - 1)
        return lists

    def _steps(self, weights: Tensor) -> list[tuple[float, float]]:
        """Weights and levels of the short list: stricter ones too, since squared errors of labels may test less well."""
        level = float(self.static["level"])
        top = float(weights.max())
        return [(w, level) for w in weights.tolist()] + [(top, other) for other in STRICTER if other > level]

    def _screened(self, sets: Sets, weights: Tensor) -> tuple[Sets, Tensor]:
        """The sets with their fits, and their values for penalty weights (G,): (G, sets)."""
        sets = sets._replace(theta=sets.theta * sets.used())
        pooled = self._minimise(sets, SCREENING, ())
        sets = sets._replace(theta=pooled.theta)
        if self.form == "regret":
            judged = [self._judge(t, sets.take(index)) for t, index in _by_owner(sets.owner)]
            order = torch.cat([index for _, index in _by_owner(sets.owner)]).argsort()
            whole = Judged(*(torch.cat(column)[order] for column in zip(*judged, strict=True)))
            return sets, whole.values(weights, self.static["level"])
        if self.form == "l1":
            variation = torch.empty_like(sets.l2)
            for t, index in _by_owner(sets.owner):
                some = sets.take(index)
                gradient = self.problem.sets[t].at(some.theta).gradient * some.used().unsqueeze(1)
                variation[index] = torch.linalg.vector_norm(gradient, dim=2) @ self.problem.measure[t]
            scale = variation.clamp_min(1e-8)
            smooth = [term._replace(norm="l2") for term in self.problem.terms]
            sets = sets._replace(theta=self._minimise(sets, SCREENING, smooth).theta)
            for share in SHARPENING:
                sets = sets._replace(eps=scale * share)
                solved = self._minimise(sets, SCREENING, self.problem.terms)
                sets = sets._replace(theta=solved.theta)
        else:
            solved = self._minimise(sets, SCREENING, self.problem.terms)
        return sets._replace(theta=solved.theta), solved.value.expand(len(weights), -1)

    def _finished(self, sets: Sets, acting: Tensor) -> Tensor:
        """The chosen sets to the end, each once: (K, P)."""
        keys = torch.cat([torch.stack([sets.owner.double(), sets.l2, sets.weight], 1), sets.columns.double()], 1)
        distinct, place = torch.unique(keys, dim=0, return_inverse=True)
        one = torch.zeros(len(distinct), dtype=torch.long).scatter(0, place, torch.arange(len(place)))
        solved = self._minimise(sets.take(one), TOLERANCE, () if self.form == "regret" else self.problem.terms)
        self.reached[acting] &= solved.reached[place]
        self.taken[acting] += solved.steps[place]
        return solved.theta[place]

    def _minimise(self, sets: Sets, tolerance: float, terms: Sequence[Term]) -> Solution:
        problem = OnColumns(self.problem.sets, self.problem.measure, terms, torch.diag_embed(sets.used()))
        weights = sets.weight.unsqueeze(1)[:, : len(terms)]
        which = torch.arange(len(sets.owner))
        return problem.minimise(sets.theta, sets.owner, sets.l2, weights, sets.eps, tolerance, which)

    def _judge(self, t: int, sets: Sets) -> Judged:
        """Pooled fits on one data set."""
        risks, mu = self.problem.sets[t], self.problem.measure[t]
        return judge(risks, mu, sets.theta, sets.used(), sets.l2)

    # ---- what is kept ------------------------------------------------------------------------------------------

    def _put(self, theta: Tensor) -> None:
        shaped = theta.view(len(theta), self.context.n_outputs, -1).to(self.context.device, self.context.dtype)
        self.phi.views["W0"].copy_(shaped[..., :-1])
        self.phi.views["b0"].copy_(shaped[..., -1:])

    def _look(self, step: int) -> None:
        self.context.set_step(step)
        if self.watcher is not None:
            self._snapshot()

    def _state(self) -> State:
        state = super()._state()
        learned = {
            "columns": self.columns.double(),
            "newton_steps": self.taken.clone(),
            "converged": self.reached.clone(),
        }
        return replace(state, learned={**state.learned, **learned})

    def _tell(self) -> None:
        """Which runs did not reach the tolerance."""
        if bool(self.reached.all()):
            return
        missed = [self.chunk.runs[r] for r in (~self.reached).nonzero().flatten().tolist()]
        warnings.warn(
            f"objective 'eills': Newton's method did not reach its tolerance in {len(missed)} of {len(self.reached)} "
            f"runs ({shown(missed)}). Usual reasons: classes that a linear model separates (use l2=1e-4), or columns "
            "of very different scales (standardise them).",
            stacklevel=users_stacklevel(),
        )


def judge(risks: LinearRisks, mu: Tensor, theta: Tensor, used: Tensor, l2: Tensor) -> Judged:
    """Pooled fits theta (K, P) on the parameters used (K, P), with l2 (K,), in the environments of mu (E,).

    Of several classes the last one's outputs are left out: the others say the same. The ridge is part of all gradients
    and Hessians, and counts for as much noise as rows of the same curvature would.
    """
    n = risks.n_parameters
    if isinstance(risks.loss, Multiclass):
        outputs = theta.view(len(theta), risks.n_outputs, -1)
        theta, n = (outputs - outputs.mean(1, keepdim=True)).flatten(1), n - risks.size
    counts = (mu > 0).nonzero().squeeze(1)
    mu = mu[counts]
    rows = torch.stack([1 / risks.share[risks.parts[e]].square().sum() for e in counts.tolist()])  # (E,) effective
    point, spread = risks.at(theta), risks.spread(theta)[:, counts, :n, :n]
    used = used[:, :n]
    both = (used.unsqueeze(2) * used.unsqueeze(1)).unsqueeze(1)  # (K, 1, n, n)
    idle = torch.diag_embed(1 - used).unsqueeze(1)
    ridge = 2 * l2.view(-1, 1, 1, 1) * torch.diag_embed(used).unsqueeze(1)
    mean = point.gradient[:, counts, :n] * used.unsqueeze(1)  # (K, E, n)
    curve, spread = point.hessian[:, counts, :n, :n] * both, spread * both
    gradient = (mean + 2 * (l2.unsqueeze(1) * theta[:, :n] * used).unsqueeze(1)).unsqueeze(3)
    covariance = spread - mean.unsqueeze(3) * mean.unsqueeze(2)
    size = used.sum(1)
    scale = _trace(covariance) / _trace(curve).clamp_min(1e-300)  # (K, E)
    # few rows: lean on the model's own covariance, a multiple of the Hessian
    lean = ((2 * size.unsqueeze(1) + 10) / rows)[..., None, None]
    hessian = curve + ridge + idle
    covariance = (covariance + scale[..., None, None] * (lean * curve + (1 + lean) * ridge)) / (1 + lean) + idle
    covariance = covariance + 1e-12 * _trace(covariance)[..., None, None] * torch.eye(n, dtype=torch.float64)
    factor = torch.linalg.cholesky_ex(covariance)[0]
    # the one step of all environments together that makes the statistic least
    white_hessian = torch.linalg.solve_triangular(factor, hessian, upper=False) * rows.sqrt().view(-1, 1, 1)
    white_gradient = torch.linalg.solve_triangular(factor, gradient, upper=False) * rows.sqrt().view(-1, 1, 1)
    step = torch.linalg.solve(
        (white_hessian.mT @ white_hessian).sum(1), (white_hessian.mT @ white_gradient).sum(1)
    ).unsqueeze(1)
    statistic = (white_gradient - white_hessian @ step).square().sum((1, 2, 3))
    regret = (gradient * torch.linalg.solve(hessian, gradient)).sum((2, 3)) @ mu / 2
    pooled = torch.linalg.inv(torch.einsum("e,keij->kij", mu, hessian))
    evidence = float(rows.sum())
    costs = (pooled * torch.einsum("e,keij->kij", mu, spread)).sum(2) * (math.log(max(evidence, 2)) / (2 * evidence))
    # columns that lower the risk by what they cost: noise in the others would hide the regret of these
    n_outputs = n // risks.size
    blocks = pooled.view(-1, n_outputs, risks.size, n_outputs, risks.size).diagonal(dim1=2, dim2=4)  # (K, C, C, D + 1)
    coef = theta[:, :n].view(-1, n_outputs, risks.size).transpose(1, 2).unsqueeze(3)  # (K, D + 1, C, 1)
    worth = (coef * torch.linalg.solve(blocks.permute(0, 3, 1, 2), coef)).sum((2, 3)) / 2
    useful = worth > costs.view(-1, n_outputs, risks.size).sum(1)
    degrees = (1 + useful[:, :-1].sum(1)) * n_outputs * (len(mu) - 1)
    complexity = costs.sum(1)
    return Judged(point.risk[:, counts] @ mu, regret, complexity, statistic, degrees.clamp_min(1).double())


def _trace(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)


def _by_owner(owner: Tensor) -> list[tuple[int, Tensor]]:
    """Data sets, and where what belongs to them stands."""
    return [(t, (owner == t).nonzero().squeeze(1)) for t in sorted(set(owner.tolist()))]


def _in_turn(lists: Sequence[Tensor], most: int) -> Tensor:
    """The first sets of all lists, then the second ones, ..., each once: (at most `most`, D)."""
    chosen: dict[bytes, Tensor] = {}
    for rank in range(max(map(len, lists))):
        for masks in lists:
            if rank < len(masks) and len(chosen) < most:
                chosen.setdefault(bytes(masks[rank].tolist()), masks[rank])
    return torch.stack(list(chosen.values()))


def _spread_out(masks: Tensor, columns: Tensor, n_columns: int) -> Tensor:
    """Sets of some columns as sets of all: (sets, D)."""
    return torch.zeros(len(masks), n_columns, dtype=torch.bool).index_copy(1, columns, masks)
