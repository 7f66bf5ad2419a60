"""solver="newton": linear models to a stationary point, by second-order steps along a path of penalty weights.

ERM comes first. Then the penalty weights rise by factors of ten, from 0.1 to a run's own, each point the start of the
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
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from irmtv.core.losses import Loss
from irmtv.core.messages import shown, users_stacklevel
from irmtv.core.types import Statistics, Task
from irmtv.engine.fitted import State
from irmtv.engine.networks import MLP
from irmtv.engine.plan import Chunk
from irmtv.engine.program import Call, Program, Reporter
from irmtv.engine.settings import STARTS
from irmtv.engine.solvers.linear_risks import SMOOTH, LinearRisks
from irmtv.engine.solvers.second_order import TOLERANCE, Problem, Term
from irmtv.engine.solvers.starts import SMALL, solve_erm, worst_own
from irmtv.objectives.base import Objective

FIRST_WEIGHT = 0.1  # where the path begins, after ERM
SHARPENING = (0.1, 0.01, 0.001)  # eps of the l1 norm, as shares of ERM's total variation
ON_THE_WAY = 1e-6  # tolerance of all but the last point
ERM, SOLUTION = 0, 1  # the steps of a history


def why_not(objective: Objective, settings: Mapping[str, Any], loss: Loss) -> str | None:
    """Why Newton's method cannot minimise this, in words that follow "solver='newton' is not for this: "; or None."""
    if settings.get("hidden", ()) != ():
        return f"it is for linear models, hidden=(), and hidden is {settings['hidden']!r}"
    if not isinstance(loss, SMOOTH):
        return f"it knows the derivatives of the binary, multi-class and squared losses, not of {loss.name!r}"
    chosen = objective.chosen(settings)
    if chosen.row_weights or chosen.mask or chosen.procedure or chosen.reads_aux:
        return f"{objective.name!r} is a way of training of its own"
    if chosen.infers is not None:
        return f"{objective.name!r} infers environments while it trains"
    without = [p.name for p in chosen.penalties if p.norm is None]
    if without:
        return f"the penalty of {without[0]!r} is neither an l1 nor an l2 norm of numbers per environment"
    if isinstance(settings.get("penalty_weight"), str) or chosen.weight_mode != "given":
        return "the penalty weight follows Phi"
    if chosen.measure_of(settings) == "learned":
        return "the measure is learned"
    return "penalties see mixtures of the environments (expand)" if settings.get("expand") is not None else None


def check_solver(task: Task, objective: Objective, settings: Sequence[Mapping[str, Any]], net: Any, start: Any) -> None:
    """Whether the solver that each run asks for can do what it asks for, from where it is to start."""
    for s in settings:
        name, linear = s["start"], s["hidden"] == () and net is None and isinstance(task.loss, SMOOTH)
        if s["solver"] == "newton":
            why = "the network is given by net=" if net is not None else why_not(objective, s, task.loss)
            if why is not None:
                raise ValueError(f"solver='newton' is not for this: {why}. Use solver='adam'.")
            if isinstance(start, Mapping):
                raise ValueError(
                    f"start must be a name for solver='newton', one of {list(STARTS)}. Got tensors; they go with "
                    "solver='adam'."
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


@dataclass
class Path:
    """Models on the way: one for all runs that differ only in how far they go."""

    owner: Tensor  # (U,) data set
    l2: Tensor  # (U,)
    direction: Tensor  # (U, terms) weights of the penalties, the largest 1
    theta: Tensor  # (U, P)
    steps: Tensor  # (U,)
    place: Tensor  # (R,) every run's model


class NewtonProgram(Program):
    """One chunk of runs; see the head of this file."""

    def __init__(self, chunk: Chunk, call: Call) -> None:
        super().__init__(chunk, call)
        context = self.context
        if not isinstance(self.net, MLP) or len(self.net.widths) != 2:
            raise ValueError(
                "solver='newton' is for linear models: use hidden=() and no net=, or solver='adam'. Got "
                f"net={type(self.net).__name__}."
            )
        self.owner = context.sets.squeeze(1).cpu()  # (R,)
        self.l2 = torch.tensor([float(s["l2"]) for s in context.settings], dtype=torch.float64)
        weights = [self.objective.weights(s["penalty_weight"]) for s in context.settings if self.objective.penalties]
        self.weights = torch.tensor(weights, dtype=torch.float64).view(context.n_runs, -1)  # (R, penalties)
        self.taken = torch.zeros(context.n_runs, dtype=torch.long)  # steps of Newton's method
        self.reached = torch.ones(context.n_runs, dtype=torch.bool)

    def _starts(self) -> list[dict[str, Tensor]]:
        """Drawn for what draws after Phi: `run` puts the models in their place, and solves ERM once."""
        context = self.context
        return [self.net.init(int(s["seed"]), g) for s, g in zip(context.settings, context.generators, strict=True)]

    # ---- the path ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def run(self, report: Reporter) -> None:
        report(0)
        problem = self._problem(self._linear_risks())
        path = self._erm(problem)
        self._put(path.theta[path.place], path.steps[path.place])
        self._look(ERM)
        top = self.weights.amax(1) if self.weights.shape[1] else torch.zeros(len(self.weights))
        if bool((top > 0).any()):
            self._penalised(problem, path, top, report)
        self._look(SOLUTION)
        self.context.set_step(SOLUTION)
        report(self.steps)
        self._tell()

    def _problem(self, sets: Sequence[LinearRisks]) -> Problem:
        objective, static = self.objective, self.static
        known = [Statistics(s.mass.new_zeros(1), s.mass.unsqueeze(0)) for s in sets]
        given = objective.infers is None
        measure = [k.measure(objective.measure_of(static) if given else "empirical")[0] for k in known]
        terms = [
            Term(
                "slope" if "slope" in p.uses else "risk",
                p.norm or "l2",
                [p.weights(k, static.get("measure"), static.get("reduction"))[0] for k in known],
            )
            for p in objective.penalties
        ]
        return Problem(sets, measure, terms, self._components(sets[0]))

    def _components(self, one: LinearRisks) -> Tensor:
        """Which parameters a component of the slope has: (P, J)."""
        n, size = one.n_outputs, one.size
        if self.static["classifier"] == "scalar":
            return torch.ones(one.n_parameters, 1, dtype=torch.float64)
        if n == 1:
            return torch.eye(size, dtype=torch.float64)[:, :-1]
        return torch.eye(n, dtype=torch.float64).repeat_interleave(size, 0)

    def _erm(self, problem: Problem) -> Path:
        """The path's beginning."""
        top = self.weights.amax(1, keepdim=True) if self.weights.shape[1] else self.l2.new_zeros(len(self.l2), 0)
        direction = torch.where(top > 0, self.weights / top, 0)
        keys = torch.cat([self.owner.double().unsqueeze(1), self.l2.unsqueeze(1), direction], 1)
        distinct, place = torch.unique(keys, dim=0, return_inverse=True)
        owner, l2 = distinct[:, 0].long(), distinct[:, 1].contiguous()
        solved = solve_erm(problem, owner, l2)
        self.reached &= solved.reached[place]
        return Path(owner, l2, distinct[:, 2:], solved.theta, solved.steps, place)

    def _penalised(self, problem: Problem, path: Path, top: Tensor, report: Reporter) -> None:
        start, erm = self.static["start"] or "erm", path.theta.clone()
        begin, steps = self._begin(problem, path, top, report)
        acting = (top > 0).nonzero().squeeze(1)
        owner, l2, weights = self.owner[acting], self.l2[acting], self.weights[acting]
        theta, taken = begin[acting], steps[acting]
        smooth = _as_l2(problem)
        sharp = any(term.norm == "l1" for term in problem.terms)
        eps = torch.zeros_like(l2)
        if start not in ("erm", "equal-risks") or not sharp:  # the path may end below a run's own weight
            solved = smooth.minimise(theta, owner, l2, weights, eps, ON_THE_WAY if sharp else TOLERANCE)
            theta, taken, reached = solved.theta, taken + solved.steps, solved.reached
        if sharp:
            scale = self._variation(problem, erm[path.place][acting], owner)
            for share in SHARPENING:
                tolerance = TOLERANCE if share == SHARPENING[-1] else ON_THE_WAY
                solved = problem.minimise(theta, owner, l2, weights, scale * share, tolerance)
                theta, taken, reached = solved.theta, taken + solved.steps, solved.reached
        self.reached[acting] &= reached
        everyone, counted = erm[path.place], path.steps[path.place]
        everyone[acting], counted[acting] = theta, taken
        self._put(everyone, counted)

    def _begin(self, problem: Problem, path: Path, top: Tensor, report: Reporter) -> tuple[Tensor, Tensor]:
        """Where the objective itself is minimised from: (R, P), and the steps that it took to get there (R,)."""
        start, erm = self.static["start"] or "erm", path.theta[path.place]
        if start in ("erm", "equal-risks"):
            guided = start == "equal-risks" and not any(term.on == "risk" for term in problem.terms)
            return self._along(_with_equal_risks(problem) if guided else _as_l2(problem), path, top, report)
        steps = path.steps[path.place]
        if start == "small":
            return SMALL * erm, steps
        if start == "random":
            drawn = [torch.randn(erm.shape[1], generator=g, dtype=torch.float64) for g in self.context.generators]
            return torch.stack(drawn), steps
        return worst_own(problem, path.owner, path.l2, path.theta)[path.place], steps

    def _along(self, problem: Problem, path: Path, top: Tensor, report: Reporter) -> tuple[Tensor, Tensor]:
        """Through weights of 0.1, 1, 10, ... up to every run's own."""
        direction = path.direction
        if direction.shape[1] < len(problem.terms):  # the variance of the risks, beside the others
            direction = torch.cat([direction, torch.ones(len(direction), 1, dtype=torch.float64)], 1)
        farthest = torch.zeros(len(path.theta), dtype=torch.float64).scatter_reduce(0, path.place, top, "amax")
        begin, steps = path.theta[path.place], path.steps[path.place]
        theta, taken = path.theta.clone(), path.steps.clone()
        level, last = FIRST_WEIGHT, float(farthest.max())
        n_levels = max(1, math.ceil(math.log10(last / level)) + 2) if last > level else 1
        for k in range(n_levels):
            report(self.steps * k // (n_levels + 1))
            level = FIRST_WEIGHT * 10**k
            going = (farthest >= level * (1 - 1e-9)).nonzero().squeeze(1)
            if not len(going):
                break
            solved = problem.minimise(
                theta[going],
                path.owner[going],
                path.l2[going],
                direction[going] * level,
                torch.zeros(len(going), dtype=torch.float64),
                ON_THE_WAY,
            )
            theta[going], taken[going] = solved.theta, taken[going] + solved.steps
            there = top >= level * (1 - 1e-9)
            begin = torch.where(there.unsqueeze(1), theta[path.place], begin)
            steps = torch.where(there, taken[path.place], steps)
        return begin, steps

    def _variation(self, problem: Problem, theta: Tensor, owner: Tensor) -> Tensor:
        """sum_e |S_e| in the mean over environments, at these models: (K,)."""
        sizes = []
        for one, t in zip(theta, owner.tolist(), strict=True):
            point = problem.sets[t].at(one.unsqueeze(0))
            slopes = (point.theta.unsqueeze(1) * point.gradient) @ problem.components  # (1, E, J)
            sizes.append(torch.linalg.vector_norm(slopes, dim=2)[0] @ problem.sets[t].mass)
        return torch.stack(sizes).clamp_min(1e-8)

    # ---- what is kept ------------------------------------------------------------------------------------------

    def _put(self, theta: Tensor, steps: Tensor) -> None:
        shaped = theta.view(len(theta), self.context.n_outputs, -1).to(self.context.device, self.context.dtype)
        with torch.no_grad():
            self.phi.views["W0"].copy_(shaped[..., :-1])
            self.phi.views["b0"].copy_(shaped[..., -1:])
        self.taken = steps

    def _look(self, step: int) -> None:
        self.context.set_step(step)
        if self.watcher is not None:
            self._snapshot()

    def _state(self) -> State:
        state = super()._state()
        return replace(state, learned={**state.learned, "newton_steps": self.taken, "converged": self.reached})

    def _tell(self) -> None:
        """Which runs did not reach the tolerance."""
        if bool(self.reached.all()):
            return
        missed = [self.chunk.runs[r] for r in (~self.reached).nonzero().flatten().tolist()]
        warnings.warn(
            f"Newton's method did not reach its tolerance in {len(missed)} of {len(self.reached)} runs "
            f"({shown(missed)}). Their models are the best that was found. Usual reason: a large penalty_weight, from "
            "a start that is far from the solution. Use start='erm' or 'equal-risks', which lead there along a path, "
            "or a smaller penalty_weight.",
            stacklevel=users_stacklevel(),
        )


def _as_l2(problem: Problem) -> Problem:
    """The same with l2 norms, which are smooth."""
    return replace(problem, terms=[term._replace(norm="l2") for term in problem.terms])


def _with_equal_risks(problem: Problem) -> Problem:
    """With l2 norms, and the variance of the risks among the penalties."""
    smooth = _as_l2(problem)
    return replace(smooth, terms=[*smooth.terms, Term("risk", "l2", problem.measure)])
