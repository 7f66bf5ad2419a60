"""solver="newton": linear models to a stationary point, by second-order steps along a path of penalty weights.

ERM comes first. Then the penalty weights rise by factors of ten, from 1 to a run's own, each point the start of the
next; runs that differ in their weights alone share this path. On it an l1 norm is taken as l2, which has no kinks. At
the end of the path comes the objective itself: l1 through sqrt(|S|^2 + eps^2), eps falling to a thousandth of ERM's
total variation. So what is minimised does not depend on how many steps were taken, and a run is one point of the path:
its solution, step 1 of its history (step 0 is ERM).

The objective has several stationary points, and the start says which one is reached (docs/solving.md draws them):

* "erm": along the path, from ERM.
* "equal-risks": along the same path, where the variance of the risks (V-REx) is penalised too, with the same weight.
  That is given up at the end of the path: it leads to a start where the environments' risks are equal.
* "environment": at once, from the model of the environment on which ERM is worst.
* "small", "random": at once, from coefficients near 0, or from random ones by the run's seed.
* tensors: at once, from there, and what they say is taken to be near: an l1 norm is not smoothed to l2 before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from irmtv.core.losses import Loss
from irmtv.core.membership import Soft, SoftPair
from irmtv.core.types import Rows, Task
from irmtv.engine.components.rho import RhoOnAux
from irmtv.engine.plan import Chunk
from irmtv.engine.program import Call
from irmtv.engine.progress import Reporter
from irmtv.engine.settings import STARTS
from irmtv.engine.solvers.block_risks import Codes
from irmtv.engine.solvers.corrected import CLOSE
from irmtv.engine.solvers.linear_program import ERM, SOLUTION, LinearProgram, masses_alone
from irmtv.engine.solvers.linear_risks import SMOOTH, LinearRisks, row_slopes
from irmtv.engine.solvers.second_order import TOLERANCE, Problem, Term
from irmtv.engine.solvers.starts import SMALL, worst_own
from irmtv.objectives.base import Objective
from irmtv.objectives.environments.segments import Segments, as_network, find_segments

WEIGHTS = tuple(10.0**k for k in range(60))  # points of the path, after ERM
SHARPENING = (0.03, 0.001)  # eps of the l1 norm, as shares of ERM's total variation
ON_THE_WAY = 1e-6  # tolerance of all but the last point
CLIMBING_STEPS, CLIMBING_RATE, HARDER = 600, 0.02, 10.0  # of rho on several aux columns
ON_PATH = ("erm", "equal-risks")
GIVEN = "given"  # tensors


def why_not(objective: Objective, settings: Mapping[str, Any], loss: Loss) -> str | None:
    """Why Newton's method cannot minimise this, in words that follow "solver='newton' is not for this: "; or None."""
    if settings.get("hidden", ()) != ():
        return f"it is for linear models, hidden=(), and hidden is {settings['hidden']!r}"
    if not isinstance(loss, SMOOTH):
        return f"it knows the derivatives of the binary, multi-class and squared losses, not of {loss.name!r}"
    if objective.procedure == "columns":
        return None  # it takes Newton's steps anyway
    if objective.choose or objective.row_weights or objective.mask or objective.procedure or objective.reads_aux:
        return f"{objective.name!r} is a way of training of its own"
    if objective.infers not in (None, "aux"):
        return f"{objective.name!r} infers environments row by row"
    without = [p.name for p in objective.penalties if p.norm is None]
    if without:
        return f"the penalty of {without[0]!r} is neither an l1 nor an l2 norm of numbers per environment"
    if isinstance(settings.get("penalty_weight"), str) or objective.weight_mode != "given":
        return "the penalty weight follows Phi"
    if objective.measure_of(settings) == "learned":
        return "the measure is learned"
    if settings.get("schedule") == "alternating":
        return "schedule='alternating' moves the environments at every step"
    return "penalties see mixtures of the environments (expand)" if settings.get("expand") is not None else None


def check_solver(task: Task, objective: Objective, settings: Sequence[Mapping[str, Any]], net: Any, start: Any) -> None:
    """Whether the solver that each run asks for can do what it asks for, from where it is to start."""
    for s in settings:
        name, linear = s["start"], s["hidden"] == () and net is None and isinstance(task.loss, SMOOTH)
        if s["solver"] == "newton":
            why = "the network is given by net=" if net is not None else why_not(objective, s, task.loss)
            if why is not None:
                raise ValueError(f"solver='newton' is not for this: {why}. Use solver='adam'.")
            if isinstance(start, Mapping) and s["layer"] is not None:
                raise ValueError(
                    f"start must be a name with layer={s['layer']!r}, one of {list(STARTS)}: the model is one of "
                    "directions. Got tensors; use layer=None with them."
                )
            if s["layer"] is not None and objective.infers is not None:
                raise ValueError(f"layer is for given environments. Got layer={s['layer']!r} for {objective.name!r}.")
        elif s["layer"] is not None and objective.procedure != "columns":
            raise ValueError(
                f"layer={s['layer']!r} is for linear models by solver='newton' or objective 'eills': a layer that is "
                "trained makes a vector classifier the same as a scalar one. Use solver='newton', or layer=None."
            )
        elif name == "equal-risks":
            raise ValueError("start='equal-risks' is a path of Newton's method. Use solver='newton' with it.")
        elif name in ("erm", "environment") and not linear:
            raise ValueError(
                f"start={name!r} is for linear models, hidden=(), with a built-in loss. Got hidden={s['hidden']!r}; a "
                "network begins with ERM by warmup=0.5."
            )
        elif name in ("erm", "environment") and objective.reads_aux:
            raise ValueError(
                f"start={name!r} is a model of x alone. {objective.name!r} predicts from aux beside x; use "
                "start='small' or 'random' with it."
            )


@dataclass(frozen=True)
class Batch:
    """What tells models apart, one entry each."""

    owner: Tensor  # (K,) data set
    l2: Tensor  # (K,)
    weights: Tensor  # (K, terms)
    kind: Tensor  # (K,) which components of the slope

    def take(self, index: Tensor) -> Batch:
        return Batch(self.owner[index], self.l2[index], self.weights[index], self.kind[index])

    def minimise(self, problem: Problem, theta: Tensor, eps: Tensor | float = 0.0, tolerance: float = TOLERANCE) -> Any:
        eps = torch.as_tensor(eps, dtype=torch.float64).expand(len(theta))
        return problem.minimise(theta, self.owner, self.l2, self.weights, eps, tolerance, self.kind)


class NewtonProgram(LinearProgram):
    """One chunk of runs; see the head of this file. They may differ in `classifier` and `start`."""

    said = "solver='newton'"

    def __init__(self, chunk: Chunk, call: Call) -> None:
        super().__init__(chunk, call)
        context = self.context
        self.starts = [s["start"] or "erm" if call.start is None else GIVEN for s in context.settings]
        weights = [self.objective.weights(s["penalty_weight"]) for s in context.settings if self.objective.penalties]
        self.runs = Batch(
            self.data_set,
            self.l2,
            torch.tensor(weights, dtype=torch.float64).view(context.n_runs, -1),
            torch.tensor([int(s["classifier"] == "vector") for s in context.settings]),
        )
        self.codes: list[Codes | None] = [None]  # of the rows of blocks: those that are given, or inferred
        # the largest weight of every run, by which it is placed on the path
        self.top = self.runs.weights.amax(1) if weights else torch.zeros(context.n_runs, dtype=torch.float64)

    # ---- the path ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def run(self, report: Reporter) -> None:
        report(0)
        self._continue()
        sets = self._linear_risks()
        erm = self._erm(self._problem(sets))
        self._put(erm)
        problem = self._problem(sets if self.step.source is None else self._inferred_risks(erm))
        if not self._by_passes:
            self._look(ERM)
        acting = (self.top > 0).nonzero().squeeze(1)
        theta = erm.clone()
        if len(acting):
            theta[acting] = self._penalised(problem, acting, erm, report)
        if self._by_passes:
            theta = self._finished_on_blocks(problem.sets, erm, theta, acting)
        self._put(theta)
        self._look(SOLUTION)
        report(self.steps)
        self._tell(
            "Usual reason: a large penalty_weight, from a start that is far from the solution. Use start='erm' or "
            "'equal-risks', which lead there along a path, or a smaller penalty_weight."
        )

    def _finished_on_blocks(self, samples: Sequence[LinearRisks], erm: Tensor, theta: Tensor, acting: Tensor) -> Tensor:
        """The solutions on all rows, (R, P), from ERM and the solutions on the sample. Environments that were inferred
        on the sample are taken as they are."""

        def solve(sets: Sequence[LinearRisks], owner: Tensor, theta: Tensor, erm: Tensor, of_erm: Problem) -> Tensor:
            if not len(acting):
                return erm
            problem, runs = self._problem(sets), replace(self.runs, owner=owner).take(acting)
            eps: Tensor | float = 0.0
            if any(term.norm == "l1" for term in problem.terms):
                eps = SHARPENING[-1] * self._variation(of_erm, erm[acting], runs)
            solved = runs.minimise(problem, theta[acting], eps, CLOSE)
            self.taken[acting] += solved.steps
            return theta.index_copy(0, acting, solved.theta)

        erm, theta = self._on_blocks(samples, self._risks_of_blocks(self.codes), self.runs.owner, erm, theta, solve)
        self._put(erm)
        self._look(ERM)
        return erm.index_copy(0, acting, theta[acting])

    def _problem(self, sets: Sequence[LinearRisks]) -> Problem:
        objective, static = self.objective, self.static
        known = [masses_alone(one) for one in sets]
        measure = self._measures(sets, objective.measure_of(static) if objective.infers is None else "empirical")
        terms = [
            Term(
                "slope" if "slope" in p.uses else "risk",
                p.norm or "l2",
                [p.weights(k, static.get("measure"), static.get("reduction"))[0] for k in known],
            )
            for p in objective.penalties
        ]
        return Problem(sets, measure, terms, _components(sets[0].n_outputs, sets[0].size))

    def _inferred_risks(self, erm: Tensor) -> list[LinearRisks]:
        """The environments inferred from aux at ERM (R, P), for every run; the data sets that they make of the rows.

        One column is cut exactly. Several, or one with fewer hidden units than cuts need, are left to rho, which climbs
        the penalty of ERM's slopes, from its start and fast, and is made hard.
        """
        source, context = self.step.source, self.context
        assert isinstance(source, RhoOnAux)
        settings = zip(context.settings, self.runs.owner.tolist(), strict=True)
        alike = [(t, float(s["l2"]), int(s["seed"])) for s, t in settings]
        one = [alike.index(key) for key in dict.fromkeys(alike)]  # a run of each kind
        codes, of_blocks = {}, {}
        if source.net.n_aux == 1 and source.net.hidden >= 2 * (source.n_environments - 1):  # a cut is two units
            for r in one:
                segments, column = self._cut(source, r, erm[r])
                codes[alike[r]] = segments.of(column)
                of_blocks[alike[r]] = partial(self._cut_of_block, segments)
        else:
            self._climb(source)
            q = source.membership_of([t.train for t in context.tasks])()
            assert isinstance(q, (Soft, SoftPair))
            for r in one:
                codes[alike[r]] = q.q.flatten(0, 1)[r].argmax(0).cpu()  # of (R, E, N)
                of_blocks[alike[r]] = partial(self._climbed_of_block, source, r)
        for r, key in enumerate(alike):
            for value in source.parameters.views.values():
                value[r].copy_(value[alike.index(key)])
        self.codes = list(of_blocks.values())
        self.runs = replace(self.runs, owner=torch.tensor([list(codes).index(key) for key in alike]))
        if self.call.blocks is not None and not self._by_passes:
            return [*self._risks_of_blocks(self.codes)]
        n, loss = source.n_environments, self.loss
        tasks = [context.tasks[t] for t, _, _ in codes]
        return LinearRisks.several([t.train for t in tasks], list(codes.values()), n, loss, context.n_outputs)

    def _cut(self, source: RhoOnAux, r: int, erm: Tensor) -> tuple[Segments, Tensor]:
        """One column of aux (N,) into stretches, by the slopes of ERM (P,); rho of this run becomes what they say."""
        task = self.context.tasks[int(self.runs.owner[r])]
        column = source.aux[int(self.runs.owner[r]), :, 0].double().cpu()
        weight = None if task.train.weight is None else task.train.weight.double().cpu()
        most = min(4 * source.n_environments - 1, source.net.hidden // 2)
        slopes = row_slopes(task.train, erm, self.loss, self.context.n_outputs)
        seed = int(self.context.settings[r]["seed"])
        segments = find_segments(column, slopes, source.n_environments, most, weight, seed)
        for name, value in as_network(segments, source.net).items():
            source.parameters.views[name][r].copy_(value)
        return segments, column

    def _cut_of_block(self, segments: Segments, rows: Rows) -> Tensor:
        """The environments of rows in a block."""
        return segments.of(self.context.scaled_aux([_with_aux(rows)])[0, :, 0].double().cpu())

    def _climbed_of_block(self, source: RhoOnAux, r: int, rows: Rows) -> Tensor:
        """The same by rho of a run."""
        p = {name: v[r : r + 1] for name, v in source.views().items()}
        z = source.read([_with_aux(rows)]).transpose(1, 2)  # (1, A, n)
        return source.net.from_logits(source.net.logits(p, z), 1).q.flatten(0, 1)[0].argmax(0).cpu()

    def _climb(self, source: RhoOnAux) -> None:
        """rho of every run up the penalty of ERM's slopes, Phi standing still; then hard."""
        rate = source.rate.clamp_min(CLIMBING_RATE)
        source.adam.set_rate(rate)
        self.step.climb_at_rest(CLIMBING_STEPS)
        for name in ("V", "c"):
            source.parameters.views[name].mul_(HARDER)

    def _penalised(self, problem: Problem, acting: Tensor, erm: Tensor, report: Reporter) -> Tensor:
        """The solutions of the runs that have a penalty, (K, P)."""
        theta = self._begin(problem, acting, erm, report)[acting]
        runs, smooth = self.runs.take(acting), _as_l2(problem)
        if any(term.norm == "l1" for term in problem.terms):
            at_once = torch.tensor([self.starts[r] not in (*ON_PATH, GIVEN) for r in acting.tolist()])
            theta[at_once] = self._solve(smooth, acting[at_once], theta[at_once], tolerance=ON_THE_WAY)
            scale = self._variation(problem, erm[acting], runs)
            for share in SHARPENING[:-1]:
                theta = self._solve(problem, acting, theta, share * scale, ON_THE_WAY)
            return self._solve(problem, acting, theta, SHARPENING[-1] * scale)
        return self._solve(problem, acting, theta)

    def _solve(
        self, problem: Problem, which: Tensor, theta: Tensor, eps: Tensor | float = 0.0, tolerance: float = TOLERANCE
    ) -> Tensor:
        """These runs from theta; their steps are counted."""
        if not len(which):
            return theta
        solved = self.runs.take(which).minimise(problem, theta, eps, tolerance)
        self.taken[which] += solved.steps
        if tolerance == TOLERANCE:
            self.reached[which] &= solved.reached
        result: Tensor = solved.theta
        return result

    def _begin(self, problem: Problem, acting: Tensor, erm: Tensor, report: Reporter) -> Tensor:
        """Where the objective itself is minimised from, of every run: (R, P)."""
        if self.call.start is not None:
            given = self.call.start.put(self._starts(), self.chunk.runs)
            return torch.stack([torch.cat([one["W0"], one["b0"]], 1).flatten() for one in given])
        begin = erm.clone()
        on_path = torch.tensor([r for r in acting.tolist() if self.starts[r] in ON_PATH], dtype=torch.long)
        if len(on_path):
            begin[on_path] = self._along(problem, on_path, erm, report)
        for r in acting.tolist():
            if self.starts[r] == "small":
                begin[r] = SMALL * erm[r]
            elif self.starts[r] == "random":
                begin[r] = torch.randn(erm.shape[1], generator=self.context.generators[r], dtype=torch.float64)
        away = torch.tensor([r for r in acting.tolist() if self.starts[r] == "environment"], dtype=torch.long)
        if len(away):
            begin[away] = worst_own(problem, self.runs.owner[away], self.runs.l2[away], erm[away])
        return begin

    def _along(self, problem: Problem, which: Tensor, erm: Tensor, report: Reporter) -> Tensor:
        """Through weights of 1, 10, ... up to the last one below every run's own: (K, P)."""
        runs, top = self.runs.take(which), self.top[which]
        direction = runs.weights / top.unsqueeze(1)
        alone = not any(term.on == "risk" for term in problem.terms)
        guided = torch.tensor([alone and self.starts[r] == "equal-risks" for r in which.tolist()]).double()
        # runs that differ only in how far they go are one until there
        owner, kind = runs.owner.double(), runs.kind.double()
        keys = torch.cat([torch.stack([owner, runs.l2, kind, guided], 1), direction], 1)
        distinct, place = torch.unique(keys, dim=0, return_inverse=True)
        smooth = _with_equal_risks(problem) if alone else _as_l2(problem)
        one = torch.zeros(len(distinct), dtype=torch.long).scatter(0, place, torch.arange(len(which)))  # any of them
        shares = torch.cat([distinct[:, 4:], distinct[:, 3:4]], 1) if alone else distinct[:, 4:]
        path = Batch(distinct[:, 0].long(), distinct[:, 1].contiguous(), shares, distinct[:, 2].long())
        theta, taken = erm[which][one], torch.zeros(len(distinct), dtype=torch.long)
        farthest = torch.zeros(len(distinct), dtype=torch.float64).scatter_reduce(0, place, top, "amax")
        begin, steps = erm[which], torch.zeros(len(which), dtype=torch.long)
        levels = [w for w in WEIGHTS if w <= float(top.max()) * (1 + 1e-9)]
        for k, level in enumerate(levels):
            report(self.steps * k // (len(levels) + 1))
            going = (farthest >= level * (1 - 1e-9)).nonzero().squeeze(1)
            there = path.take(going)
            there = replace(there, weights=there.weights * level)
            solved = there.minimise(smooth, theta[going], tolerance=ON_THE_WAY)
            theta[going] = solved.theta
            taken[going] += solved.steps
            come = top >= level * (1 - 1e-9)
            begin = torch.where(come.unsqueeze(1), theta[place], begin)
            steps = torch.where(come, taken[place], steps)
        self.taken[which] += steps
        return begin

    def _variation(self, problem: Problem, theta: Tensor, runs: Batch) -> Tensor:
        """sum_e m_e |S_e| at these models: (K,)."""
        sizes = torch.empty(len(theta), dtype=torch.float64)
        for t in sorted(set(runs.owner.tolist())):
            mine = runs.owner == t
            slopes = (theta[mine].unsqueeze(1) * problem.sets[t].at(theta[mine]).gradient) @ problem.components[
                runs.kind[mine]
            ]  # (K, E, J)
            sizes[mine] = torch.linalg.vector_norm(slopes, dim=2) @ problem.sets[t].mass
        return sizes.clamp_min(1e-8)


def _with_aux(rows: Rows) -> Rows:
    if rows.aux is None:
        raise ValueError(
            "blocks must have aux where environments are inferred. Got rows without; read the columns that the sample "
            "was read with."
        )
    return rows


def _components(n_outputs: int, size: int) -> Tensor:
    """Which parameters the components of the slope have, of a scalar and of a vector classifier: (2, P, J)."""
    if n_outputs == 1:
        vector = torch.eye(size, dtype=torch.float64)[:, :-1]
    else:
        vector = torch.eye(n_outputs, dtype=torch.float64).repeat_interleave(size, 0)
    scalar = torch.zeros_like(vector)
    scalar[:, 0] = 1
    return torch.stack([scalar, vector])


def _as_l2(problem: Problem) -> Problem:
    """The same with l2 norms, which are smooth."""
    return replace(problem, terms=[term._replace(norm="l2") for term in problem.terms])


def _with_equal_risks(problem: Problem) -> Problem:
    """With l2 norms, and the variance of the risks among the penalties."""
    smooth = _as_l2(problem)
    return replace(smooth, terms=[*smooth.terms, Term("risk", "l2", problem.measure)])
