"""The training procedure of "eills" (`objectives.eills` has the formulas): columns of a linear model, chosen outright.

Second moments give a short list of sets of columns for every penalty weight (`column_sets.py`). The sets of all runs on
a data set are fitted together by Newton's method, with the true loss, and each run takes its best one. That one is
solved to the end.

Step 0 of a history is ERM on all columns, step 1 the solution. `learning_rate`, `steps`, `batch_size`, `solver` and
`start` have no part in it. `fitted.learned("columns")` says which columns a run has taken; the coefficients of the
others are 0. With form="directions" these are directions (`dropped_directions.py`), and x is projected on what a run
keeps by `fitted.learned("kept_directions")` (R, D, D).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from irmtv.core.losses import Binary, Multiclass, Squared
from irmtv.core.types import Task
from irmtv.engine.fitted import State
from irmtv.engine.plan import Chunk
from irmtv.engine.program import Call
from irmtv.engine.progress import Reporter
from irmtv.engine.solvers.column_sets import GradientValues, Moments, RegretValues, best_sets, chi_square_quantile
from irmtv.engine.solvers.corrected import CLOSE
from irmtv.engine.solvers.dropped_directions import ROWS_PER_COLUMN, SecondMoments, drop_directions
from irmtv.engine.solvers.linear_program import ERM, SOLUTION, LinearProgram
from irmtv.engine.solvers.linear_risks import SMOOTH, LinearRisks
from irmtv.engine.solvers.second_order import TOLERANCE, Local, Problem, Solution, Term

SHORT_LIST = 12  # sets of a data set that are fitted, at most
LADDER = (1.0, 10.0, 100.0, 1e4)  # penalty weights that contribute to it
STRICTER = (0.2, 0.5, 0.8)  # levels that the largest weight contributes to the short list, beside its own
ANCHORS, SECOND_LIST = 2, 6  # models around which logistic risks are looked at again; sets that each may add
SCREENING = 1e-4  # tolerance of these fits
MOST_MIXED, MIN_ENVIRONMENTS = 30, 3  # columns up to which directions are looked for by default, and from how many on
LEAST_L2 = 5e-5  # of these fits: classes that some columns separate would leave no gradients to compare
SHARPENING = (0.1, 0.01, 0.001)  # eps of the l1 form, as shares of the pooled fit's total variation


@dataclass(frozen=True)
class OnColumns(Problem):
    """A problem on some of the columns: `components` (G, P, P) are diagonal, 1 for every parameter in use."""

    def _local(
        self, theta: Tensor, owner: Tensor, l2: Tensor, weights: Tensor, eps: Tensor, components: Tensor
    ) -> Local:
        whole = super()._local(theta, owner, l2, weights, eps, components)
        used = components.diagonal(dim1=1, dim2=2)  # (K, P)
        both = used.unsqueeze(2) * used.unsqueeze(1)
        hessian = whole.hessian * both + torch.diag_embed(1 - used)
        return Local(whole.value, whole.gradient * used, hessian, whole.rest * both)


class Group(NamedTuple):
    """Runs whose sets are fitted alike."""

    owner: int  # data set
    l2: float
    weight: float  # of the gradients; 0 for pooled fits
    erm: Tensor  # (P,) where fits begin


class Sets(NamedTuple):
    """Sets of columns, each with what it is fitted with and where that begins."""

    group: Tensor  # (K,)
    owner: Tensor  # (K,) data set
    l2: Tensor  # (K,)
    weight: Tensor  # (K,) of the gradients
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


class ColumnsProgram(LinearProgram):
    """One chunk of runs; see the head of this file."""

    said = "objective 'eills'"

    def __init__(self, chunk: Chunk, call: Call) -> None:
        super().__init__(chunk, call)
        context = self.context
        if not isinstance(self.loss, SMOOTH):
            raise ValueError(
                "objective 'eills' needs the derivatives of the loss, which it has for 'binary', 'multiclass' and "
                f"'squared'. Got {self.loss.name!r}."
            )
        if call.start is not None:
            raise ValueError("objective 'eills' begins with ERM: start must be None or a name. Got tensors.")
        self.form: str = self.static["form"]
        if self.form == "directions":
            self._check_directions()
        self.weight = torch.tensor([float(s["penalty_weight"]) for s in context.settings], dtype=torch.float64)

    def _check_directions(self) -> None:
        if not isinstance(self.loss, Squared) or self.context.n_outputs > 1:
            raise ValueError(
                "form='directions' of 'eills' is for squared errors of one target, of which second moments say all. "
                f"Got loss {self.loss.name!r}, {self.context.n_outputs} output(s). Use form='regret', with layer= for "
                "columns that are mixtures."
            )
        if self.static["layer"] is not None:
            raise ValueError(
                f"form='directions' finds directions itself: layer must be None. Got {self.static['layer']!r}."
            )

    @torch.no_grad()
    def run(self, report: Reporter) -> None:
        report(0)
        self._continue()
        sets = self._linear_risks()
        self.columns = torch.ones(self.context.n_runs, sets[0].size - 1, dtype=torch.bool)
        self.projection = torch.eye(sets[0].size - 1, dtype=torch.float64).repeat(self.context.n_runs, 1, 1)
        self.problem = self._problem(sets)
        erm = self._erm(self.problem)
        if not self._by_passes:
            self._put(erm)
            self._look(ERM)
        theta, acting = erm.clone(), (self.weight > 0).nonzero().squeeze(1)
        if len(acting):
            theta[acting] = self._chosen(acting, erm)
        if self._by_passes:
            theta = self._finished_on_blocks(sets, erm, theta, acting)
        self._put(theta)
        self._look(SOLUTION)
        report(self.steps)
        self._tell(
            "Usual reasons: classes that a linear model separates (use l2=1e-4), or columns of very different scales "
            "(standardise them)."
        )

    def _problem(self, sets: Sequence[LinearRisks]) -> Problem:
        measure = self._measures(sets, self.objective.measure_of(self.static))
        terms = [Term("gradient", "l1" if self.form == "l1" else "l2", measure)]
        return Problem(sets, measure, terms, torch.zeros(sets[0].n_parameters, 0, dtype=torch.float64))

    def _finished_on_blocks(self, samples: Sequence[LinearRisks], erm: Tensor, theta: Tensor, acting: Tensor) -> Tensor:
        """The models of the columns that the sample has chosen, on all rows: (R, P)."""
        blocks = self._risks_of_blocks([None])

        def solve(sets: Sequence[LinearRisks], owner: Tensor, theta: Tensor, erm: Tensor, _: Problem) -> Tensor:
            if not len(acting):
                return erm
            self.problem = self._problem(sets)
            final = self.final._replace(theta=theta[acting], owner=owner[acting])
            solved = self._minimise(final, CLOSE, () if self.form == "regret" else self.problem.terms)
            self.taken[acting] += solved.steps
            return erm.index_copy(0, acting, solved.theta)

        erm, theta = self._on_blocks(samples, blocks, self.data_set, erm, theta, solve)
        chosen, self.columns = self.columns, torch.ones_like(self.columns)  # ERM is on all of them
        self._put(erm)
        self._look(ERM)
        self.columns = chosen
        return theta

    # ---- the choice --------------------------------------------------------------------------------------------

    def _chosen(self, acting: Tensor, erm: Tensor) -> Tensor:
        """The solutions of the runs that have a weight, (K, P); `erm` (R, P)."""
        if self.form == "directions":
            return torch.stack([self._on_kept_directions(r) for r in acting.tolist()])
        # the pooled fits of a set serve all weights
        fitted_with = torch.zeros_like(self.weight) if self.form == "regret" else self.weight
        keys = torch.stack([self.data_set.double(), self.l2, fitted_with], 1)[acting]
        distinct, group = torch.unique(keys, dim=0, return_inverse=True)
        groups = [
            Group(int(t), max(l2, LEAST_L2), weight, erm[acting[group == g][0]])
            for g, (t, l2, weight) in enumerate(distinct.tolist())
        ]
        if self.form == "regret":
            sets, values = self._by_regret(groups, self.weight[acting])
        else:
            sets, value = self._by_gradients(groups)
            values = value.expand(len(acting), -1)
        values = torch.where(group.unsqueeze(1) == sets.group, values, torch.inf)  # (K, sets)
        final = sets.take(values.argmin(1))._replace(l2=self.l2[acting])
        self.columns[acting], self.final = final.columns, final
        return self._finished(final, acting)

    def _on_kept_directions(self, r: int) -> Tensor:
        """The solution of a run, (P,)."""
        place = int(self.data_set[r])
        risks, counts = self.problem.sets[place], self.problem.measure[place] > 0
        shared, t = risks.shared, risks.member
        parts = (shared.effective[t], shared.xx[t], shared.xy[t].squeeze(1), shared.yy[t].squeeze(1))
        moments = SecondMoments(*(part[counts].numpy() for part in parts))
        found = drop_directions(moments, float(self.weight[r]), float(self.l2[r]), float(self.static["level"]))
        dropped = torch.from_numpy(found.directions)
        self.projection[r] -= dropped @ dropped.T
        return torch.from_numpy(found.theta)

    def _by_regret(self, groups: Sequence[Group], weights: Tensor) -> tuple[Sets, Tensor]:
        """Sets with their pooled fits, and their values for penalty weights (G,): (G, sets)."""
        level = float(self.static["level"])
        # the same for all runs, so that what trains beside a run does not matter to it
        steps = [(w, level) for w in LADDER] + [(LADDER[-1], other) for other in STRICTER if other > level]
        moments = {t: Moments.of(self.problem.sets[t], self.problem.measure[t]) for t in {g.owner for g in groups}}
        lists = {t: self._listed(RegretValues(m, steps), m, SHORT_LIST) for t, m in moments.items()}
        sets, judged = self._pooled(_sets_of(groups, [lists[g.owner] for g in groups]))
        if isinstance(self.loss, Binary):
            more = [self._looked_again(g, moments[g.owner], steps, sets, judged, k) for k, g in enumerate(groups)]
            if any(map(len, more)):
                others, also = self._pooled(_sets_of(groups, more))
                sets = Sets(*map(torch.cat, zip(sets, others, strict=True)))
                judged = Judged(*map(torch.cat, zip(judged, also, strict=True)))
        return sets, judged.values(weights, level)

    def _looked_again(
        self, group: Group, moments: Moments, steps: Sequence[tuple[float, float]], sets: Sets, judged: Judged, k: int
    ) -> Tensor:
        """More sets for group k, where no set of its list passes the test: (sets, D) bool.

        Squared errors of labels may mislead where columns spread differently in the environments. So the logistic risk
        itself is looked at, to second order around the best models of the list.
        """
        level = float(self.static["level"])
        mine = (sets.group == k).nonzero().squeeze(1)
        ladder = judged.values(torch.tensor(LADDER[::-1], dtype=torch.float64), level)[:, mine]
        best = mine[ladder.argmin(1)].tolist()
        passes = judged.statistic[best[0]] <= chi_square_quantile(judged.degrees[best[0]], level)
        if bool(passes) and bool(sets.columns[best[0]].any()):
            return sets.columns[:0]
        found = []
        for anchor in [i for i in dict.fromkeys(best) if bool(sets.columns[i].any())][:ANCHORS]:
            risks, mu = self.problem.sets[group.owner], self.problem.measure[group.owner]
            around = Moments.around(risks, mu, sets.theta[anchor], moments.columns)
            found.append(self._listed(RegretValues(around, steps), around, SECOND_LIST))
        known = {bytes(mask.tolist()) for mask in sets.columns[mine]}
        new = [mask for masks in found for mask in masks if bytes(mask.tolist()) not in known]
        return torch.unique(torch.stack(new), dim=0) if new else sets.columns[:0]

    def _pooled(self, sets: Sets) -> tuple[Sets, Judged]:
        """The sets with their pooled fits, judged."""
        sets = sets._replace(theta=self._minimise(sets, SCREENING, ()).theta)
        owners = [(t, (sets.owner == t).nonzero().squeeze(1)) for t in sorted(set(sets.owner.tolist()))]
        parts = []
        for t, index in owners:
            some = sets.take(index)
            parts.append(judge(self.problem.sets[t], self.problem.measure[t], some.theta, some.used(), some.l2))
        order = torch.cat([index for _, index in owners]).argsort()
        return sets, Judged(*(torch.cat(column)[order] for column in zip(*parts, strict=True)))

    def _by_gradients(self, groups: Sequence[Group]) -> tuple[Sets, Tensor]:
        """Sets with their penalised fits, and their values (sets,)."""
        lists = []
        for group in groups:
            moments = Moments.of(self.problem.sets[group.owner], self.problem.measure[group.owner], standardise=False)
            weight = torch.tensor([group.weight], dtype=torch.float64)
            values = GradientValues(moments, weight, of_labels=not isinstance(self.loss, Squared))
            lists.append(self._listed(values, moments, SHORT_LIST))
        sets = _sets_of(groups, lists)
        sets = sets._replace(theta=self._minimise(sets, SCREENING, ()).theta)
        scale = self._variation(sets)
        smooth = [term._replace(norm="l2") for term in self.problem.terms]
        solved = self._minimise(sets, SCREENING, smooth)
        for share in SHARPENING if self.form == "l1" else ():
            sets = sets._replace(theta=solved.theta, eps=scale * share)
            solved = self._minimise(sets, SCREENING, self.problem.terms)
        return sets._replace(theta=solved.theta), solved.value

    def _listed(self, values: RegretValues | GradientValues, moments: Moments, most: int) -> Tensor:
        """A short list of all steps of these values: (at most `most`, D) bool."""
        some = _in_turn(best_sets(values, moments.n_columns, most), most)
        return torch.zeros(len(some), self.columns.shape[1], dtype=torch.bool).index_copy(1, moments.columns, some)

    def _variation(self, sets: Sets) -> Tensor:
        """sum_e mu_e |g_e,S| of every set, not quite 0: (K,)."""
        sizes = torch.empty_like(sets.l2)
        for t in set(sets.owner.tolist()):
            mine = sets.owner == t
            gradient = self.problem.sets[t].at(sets.theta[mine]).gradient * sets.used()[mine].unsqueeze(1)
            sizes[mine] = torch.linalg.vector_norm(gradient, dim=2) @ self.problem.measure[t]
        return sizes.clamp_min(1e-8)

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

    # ---- what is kept ------------------------------------------------------------------------------------------

    def _state(self) -> State:
        state = super()._state()
        found = (
            {"kept_directions": self.projection} if self.form == "directions" else {"columns": self.columns.double()}
        )
        return replace(state, learned={**state.learned, **found})


def drops_directions(task: Task) -> bool:
    """Whether form="directions" makes sense: squared errors of one target, and three environments that can tell."""
    rows, d = task.train, task.train.x[0].numel()
    if not isinstance(task.loss, Squared) or task.n_outputs > 1 or rows.environment is None or d > MOST_MIXED:
        return False
    counts = torch.bincount(rows.environment, minlength=len(rows.names))
    return d > 1 and int((counts >= ROWS_PER_COLUMN * (d + 1)).sum()) >= MIN_ENVIRONMENTS


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
    rows = risks.effective[counts]
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
    # few rows: lean on the model's own covariance, a multiple of the Hessian
    lean = ((2 * size.unsqueeze(1) + 10) / rows)[..., None, None]
    scale = ((_trace(spread) @ mu) / (_trace(curve) @ mu).clamp_min(1e-300)).view(-1, 1, 1, 1)
    hessian = curve + ridge + idle
    covariance = (covariance + scale * (lean * curve + (1 + lean) * ridge)) / (1 + lean) + idle
    covariance = covariance + 1e-12 * _trace(covariance)[..., None, None] * torch.eye(n, dtype=torch.float64)
    factor = torch.linalg.cholesky_ex(covariance)[0]
    # the one step of all environments together that makes the statistic least
    white_hessian = torch.linalg.solve_triangular(factor, hessian, upper=False) * rows.sqrt().view(-1, 1, 1)
    white_gradient = torch.linalg.solve_triangular(factor, gradient, upper=False) * rows.sqrt().view(-1, 1, 1)
    step = torch.linalg.solve(
        (white_hessian.mT @ white_hessian).sum(1), (white_hessian.mT @ white_gradient).sum(1)
    ).unsqueeze(1)
    statistic = (white_gradient - white_hessian @ step).square().sum((1, 2, 3)).nan_to_num(nan=torch.inf)
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


def _sets_of(groups: Sequence[Group], lists: Sequence[Tensor]) -> Sets:
    """The sets of every group, (sets, D) bool each."""
    group = torch.arange(len(groups)).repeat_interleave(torch.tensor([len(masks) for masks in lists]))
    columns = torch.cat(list(lists))
    owner = torch.tensor([g.owner for g in groups])[group]
    l2, weight = (torch.tensor([g[i] for g in groups], dtype=torch.float64)[group] for i in (1, 2))
    sets = Sets(group, owner, l2, weight, columns, torch.stack([g.erm for g in groups])[group], torch.zeros_like(l2))
    return sets._replace(theta=sets.theta * sets.used())


def _trace(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)


def _in_turn(lists: Sequence[Tensor], most: int) -> Tensor:
    """The first sets of all lists, then the second ones, ..., each once: (at most `most`, D)."""
    chosen: dict[bytes, Tensor] = {}
    for rank in range(max(map(len, lists))):
        for masks in lists:
            if rank < len(masks) and len(chosen) < most:
                chosen.setdefault(bytes(masks[rank].tolist()), masks[rank])
    return torch.stack(list(chosen.values()))
