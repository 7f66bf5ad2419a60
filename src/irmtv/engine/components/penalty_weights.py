"""Penalty weights: lambda at a step is fixed within a phase, on a ramp, follows Phi, or is learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from irmtv.core.types import Statistics
from irmtv.engine.components.base import Phase
from irmtv.engine.context import Context
from irmtv.engine.optim import Adam, FlatParameters, Guard
from irmtv.objectives.base import Weight, warmup_steps
from irmtv.objectives.environments.aux_network import AuxNetwork
from irmtv.objectives.lambda_phi import lambda_phi


class PenaltyWeights:
    """The penalty weights of a chunk of runs, all made in the same way, and the phases that they cut training into."""

    def __init__(self, context: Context, phi: FlatParameters, guard: Guard) -> None:
        self.context, self.objective, self.phi, self.guard = context, context.objective, phi, guard
        self.mode = self.objective.weight_mode_of(context.static)
        self.ramp: str = context.static.get("penalty_schedule", "constant")
        self.normalise = bool(context.static.get("normalise", False))
        self.exact = self.mode == "adaptive-exact"
        # whether lambda may differ from step to step
        self.varies = bool(self.objective.penalties) and (self.mode != "given" or self.ramp != "constant")
        self.last = torch.zeros(context.n_runs, device=context.device, dtype=context.dtype)  # for the record
        self.learner: LogWeight | WeightNetwork | None = None
        if not self.objective.penalties:
            return
        full = [self.objective.weights(s["penalty_weight"]) for s in context.settings]
        self.full = torch.tensor(full, device=context.device, dtype=context.dtype)  # (R, P)
        warm = [warmup_steps(s["warmup"], context.steps) for s in context.settings]
        self.warm = torch.tensor(warm, device=context.device)  # (R,)
        ramps = [
            warmup_steps(s["penalty_ramp"], max(1, context.steps - int(w))) if "penalty_ramp" in s else 1
            for s, w in zip(context.settings, self.warm, strict=True)
        ]
        self.ramp_steps = torch.tensor(ramps, device=context.device, dtype=context.dtype).clamp_min(1)
        # each penalty's share for environments that climb all of them; at lambda = 0 they climb too, all alike
        self.relative = self.full / self.full.amax(1, keepdim=True).clamp_min(torch.finfo(context.dtype).tiny)
        self.relative[self.full.amax(1) == 0] = 1
        if self.mode != "given":
            # the largest factor that `full` may get: 1 each where lambda follows Phi, or its unit
            self.cap = context.column("max_penalty_weight") / self.full.amax(1)
        if self.mode in LEARNERS:
            self.learner = LEARNERS[self.mode](context, phi)

    def phases(self, infers: bool) -> list[Phase]:
        """Cut the steps where a run's warm-up ends."""
        context = self.context
        if not self.objective.penalties:
            ones = torch.ones_like(self.last)
            none = ones < 0
            return [Phase(0, context.steps, none, none, ones[:, None][:, :0], (), ones, False, None)]
        when = self.objective.climbs(context.static) if infers else "never"
        cuts = sorted({0, context.steps, *(int(w) for w in self.warm if w < context.steps)})
        phases: list[Phase] = []
        before = torch.zeros_like(self.warm, dtype=torch.bool)
        for start, stop in pairwise(cuts):
            acting = start >= self.warm  # (R,)
            weights = torch.where(acting.unsqueeze(1), self.full, self.objective.warmup_weight(self.full))
            scale = self._scale(weights.sum(1), acting)
            climbing = None
            if when != "never":
                climbing = (~acting if when == "warm-up" else torch.ones_like(acting)).to(context.dtype)
                climbing = climbing if bool(climbing.any()) else None
            penalised = bool(weights.any()) or (self.mode != "given" and bool(acting.any()))
            both = self._as_weights(weights, scale)
            phases.append(Phase(start, stop, acting, before, weights, both, scale, penalised, climbing))
            before = acting
        return phases

    def _scale(self, weight: Tensor, acting: Tensor) -> Tensor:
        """1 / divisor where the penalty acts and the objective is normalised: (R,)."""
        # what is differentiated as the worst risk has its size whatever lambda is
        if not self.normalise or self.exact:
            return torch.ones_like(weight)
        return torch.where(acting, 1 / self.objective.divisor(weight), torch.ones_like(weight))

    @staticmethod
    def _as_weights(weights: Tensor, scale: Tensor) -> tuple[Weight, ...]:
        columns = (weights * scale.unsqueeze(1)).unsqueeze(2).unbind(1)  # P of (R, 1)
        return tuple(zip(weights.unbind(1), columns, strict=True))

    def begin(self, phase: Phase) -> None:
        """A learned weight starts to climb when the penalty starts to act."""
        if self.learner is not None:
            self.learner.adam.count_for(phase.acting)

    def at(self, phase: Phase, e: Statistics) -> tuple[Sequence[Weight], Tensor]:
        """The weights of this step and the scale of the objective, both without a graph."""
        if not self.varies or not phase.penalised:
            return phase.weights, phase.scale
        with torch.no_grad():
            given = self.mode == "given"
            now = self._ramped(self.full) if given else self.full * self._following(e).unsqueeze(1)
            weights = torch.where(phase.acting.unsqueeze(1), now, phase.full)
            total = weights.sum(1)
            self.last.copy_(torch.where(self.guard.dead, self.last, total))
            scale = self._scale(total, phase.acting)
            return self._as_weights(weights, scale), scale

    def _ramped(self, full: Tensor) -> Tensor:
        """(R, P): after step i of n of the ramp, full i / n, or full^(i/n) from 1 (from full, where that is less)."""
        done = torch.as_tensor(self.context.now, device=full.device) - self.warm + 1
        share = (done / self.ramp_steps).clamp(0, 1).unsqueeze(1)
        if self.ramp == "linear":
            return full * share
        return torch.where(full > 1, full.clamp_min(1) ** share, full)

    def _following(self, e: Statistics) -> Tensor:
        """lambda_Phi, or what has been learned: (R,), at most the cap."""
        if self.learner is not None:
            return torch.minimum(self.learner.value(), self.cap)
        penalty = torch.stack(self.objective.penalty_values(e, self.context.static)).sum(0)
        return lambda_phi(self.objective.worst_risk(e), self.objective.risk(e, self.context.static), penalty, self.cap)

    def learn(self, phase: Phase, e: Statistics, scale: Tensor) -> None:
        """One step of the weight up lambda * penalty; Phi's gradient gets its part, where lambda depends on Phi."""
        if self.learner is None or not phase.penalised:
            return
        with torch.no_grad():
            penalty = torch.stack(self.objective.penalty_values(e, self.context.static), 1)
            pull = (self.full * penalty).sum(1) * (phase.acting & ~self.guard.dead) * scale  # (R,)
        self.learner.parameters.gradient.zero_()
        value = self.learner.value()
        torch.autograd.backward((torch.where(value < self.cap, value, value.detach()) * pull).sum())
        self.guard.check_other(self.learner.parameters, self.context.now, self.learner.adam)
        self.learner.adam.step()

    def state(self) -> dict[str, Tensor]:
        """For the record: lambda at the last step, where it is not the one that was given."""
        return {"penalty_weight": self.last.clone()} if self.varies else {}


class LogWeight:
    """lambda = exp(theta), one number per run, from 1."""

    def __init__(self, context: Context, phi: FlatParameters) -> None:
        start = {"theta": torch.zeros(1, dtype=torch.float64)}
        self.parameters = FlatParameters([start] * context.n_runs, context.device, context.dtype)
        self.adam = Adam(self.parameters, context.column("weight_learning_rate"), maximise=True)

    def value(self) -> Tensor:
        return self.parameters.views["theta"].squeeze(1).exp()


class WeightNetwork:
    """lambda = softplus( MLP(all parameters of Phi) ): one hidden layer with ReLU.

    Differentiable in Phi too: the primal objective contains lambda(Phi).
    """

    def __init__(self, context: Context, phi: FlatParameters) -> None:
        self.phi = phi
        n_inputs = sum(v[0].numel() for v in phi.views.values())
        self.net = AuxNetwork(n_inputs, hidden=context.static["weight_hidden"])  # one output: the same shape as rho
        self.parameters = FlatParameters([self.net.init(g) for g in context.generators], context.device, context.dtype)
        self.adam = Adam(self.parameters, context.column("weight_learning_rate"), maximise=True)

    def value(self) -> Tensor:
        flat = torch.cat([v.flatten(1) for v in self.phi.views.values()], 1).unsqueeze(2)  # (R, n, 1): a row per run
        return torch.nn.functional.softplus(self.net.logits(self.parameters.views, flat)).flatten()


LEARNERS: Mapping[str, type[LogWeight | WeightNetwork]] = {"learned": LogWeight, "network": WeightNetwork}
