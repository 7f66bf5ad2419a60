"""THE loop: every run of every objective is trained here.

A `Program` is one chunk of runs: tensors laid out once, and a step, which is

    logits -> per-sample loss and slope -> a few numbers per environment -> objective -> one backward -> Adam.

Whoever else acts has a place in the step: a source of environments (`sources`), a learned measure (`measure`), a
penalty weight that follows Phi (`weights`), a mask on Phi or weights on the rows (`roles`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from irmtv.core.losses import ClosedForm
from irmtv.core.membership import Blocks, Membership, Soft, SoftPair, Weighted, mean_over_rows
from irmtv.core.risk import BlockHead, LastLayer, per_sample, summarise, summarise_blocks
from irmtv.core.types import Statistics, Task
from irmtv.engine.capture import CapturedStep
from irmtv.engine.components.learned_measure import LearnedMeasure
from irmtv.engine.components.penalty_weights import PenaltyWeights, Phase
from irmtv.engine.components.rho import RhoOnAux
from irmtv.engine.components.roles import MASKS, ROW_WEIGHTS
from irmtv.engine.components.sources import SOURCES
from irmtv.engine.context import Stage
from irmtv.engine.fitted import FittedChunk, State
from irmtv.engine.guard import Guard
from irmtv.engine.networks import MLP, Conv1d, Module, Net
from irmtv.engine.optim import Adam, FlatParameters
from irmtv.engine.plan import Chunk
from irmtv.engine.rows import StepRows, TrainingRows
from irmtv.engine.shared import follow, leaders
from irmtv.engine.snapshots import Snapshot, Watcher
from irmtv.engine.start import Start
from irmtv.objectives.base import Objective, Weight
from irmtv.objectives.lambda_phi import worst_risk_objective
from irmtv.selection import Rule
from irmtv.selection.records import STREAMING


class Program:
    """One chunk of runs as one tensor program."""

    def __init__(
        self,
        chunk: Chunk,
        tasks: Sequence[Task],
        objective: Objective,
        settings: Sequence[Mapping[str, Any]],
        net: Net | Callable[[], nn.Module] | None,
        rule: Rule | None,
        snapshot_every: int | None,
        keep_states: bool,
        device: torch.device,
        dtype: torch.dtype,
        start: Start | None = None,
    ) -> None:
        same = (tasks, objective, settings, net, rule, snapshot_every, keep_states, device, dtype, start)
        self._others_like_it: Callable[[Chunk], Program] = lambda some: Program(some, *same)
        self._settings, self._start = settings, start
        self.stage = stage = Stage(chunk, tasks, settings, objective, device, dtype)
        self.objective = objective = stage.objective
        self.chunk, self.rule, self.snapshot_every = chunk, rule, snapshot_every
        self.steps, self.static, self.loss = stage.steps, stage.static, stage.loss
        self.vector = self.static["classifier"] == "vector"
        self.uses = objective.uses(self.static)

        n_inputs = stage.inputs([stage.tasks[0].train.take(torch.arange(1))] * stage.n_sets).shape[2:]
        self.net = _network(net, stage.tasks[0], tuple(n_inputs), self.static["hidden"])
        if self.vector and stage.n_outputs == 1 and not isinstance(self.net, MLP):
            raise ValueError(
                "classifier='vector' multiplies the inputs of the last layer, which a network of one output must show: "
                "use hidden=... or irmtv.engine.MLP with it, or classifier='scalar'. "
                f"Got net={type(self.net).__name__}."
            )
        starts = [self.net.init(int(s["seed"]), g) for s, g in zip(stage.settings, stage.generators, strict=True)]
        if start is not None:  # drawn all the same: whoever draws after Phi draws the same numbers
            starts = start.put(starts, chunk.runs)
        self.phi = FlatParameters(starts, device, dtype)
        self.adam = Adam(self.phi, stage.column("learning_rate"))
        self.l2 = stage.column("l2")
        self.source = None if objective.infers is None else SOURCES[objective.infers](stage)
        given = max(1, len(stage.tasks[0].train.names))
        self.n_environments = given if self.source is None else self.source.n_environments
        self.rows = TrainingRows(stage, self.net, self.source, self.n_environments, bool(self.uses))
        self.guard = Guard(self.phi)
        self.mask = None if objective.mask is None else MASKS[objective.mask](stage, self.net, self.phi, self.source)
        weigher = objective.row_weights
        self.row_weights = None if weigher is None else ROW_WEIGHTS[weigher](stage, self.net)
        self.weights = PenaltyWeights(stage, self.phi, self.guard)
        learned = objective.measure_of(self.static) == "learned"
        self.measure = LearnedMeasure(stage, self.n_environments) if learned else None
        self.mixtures: Tensor | None = None
        if self.static.get("expand") is not None:
            self.mixtures = self.static["expand"].draw(self.n_environments, stage.generators).to(device, dtype)
        self.phases = self.weights.phases(self.source is not None)
        self.watcher = self._make_watcher() if snapshot_every else None
        self.snapshots: list[Snapshot] = []
        self.keep_states, self.kept = keep_states, dict[int, State]()
        self.best: State | None = None
        self.best_score = torch.full((len(chunk.runs),), torch.inf, dtype=torch.float64)
        self._membership: Membership | None = None
        self.no_mass = torch.zeros(1, self.n_environments, device=device, dtype=dtype)

    def _make_watcher(self) -> Watcher:
        stage = self.stage
        held_out = [t.held_out for t in stage.tasks]
        rows = [t.train if h is None else h for t, h in zip(stage.tasks, held_out, strict=True)]
        inferred = None if self.source is None else self.source.of(rows)
        return Watcher(
            rows,
            stage.inputs(rows),
            stage.targets(rows),
            stage.per_set,
            "train" if held_out[0] is None else "held-out",
            self.net,
            self.loss,
            inferred,
            max(1, len(stage.tasks[0].train.names)),
            self.vector,
        )

    # ---- training --------------------------------------------------------------------------------------------

    def run(self, tell: Callable[[int], None]) -> None:
        if self.stage.device.type == "cuda":
            # torch's backward thread warns if a matrix product is the first thing it does on a GPU
            torch.autograd.backward(torch.zeros((), device=self.stage.device, requires_grad=True) * 1)
        self._train(self._follow_leaders(tell), self.steps, tell)
        if self.watcher is not None:
            self._snapshot()
        tell(self.steps)

    def _train(self, start: int, stop: int, tell: Callable[[int], None]) -> None:
        """The steps from `start` to before `stop`, both where phases meet."""
        for phase in (p for p in self.phases if start <= p.start and p.stop <= stop):
            if self.guard.all_dead:
                break
            self._begin(phase)
            self._walk(phase.start, phase.stop, self._advance(phase), tell)

    def _walk(self, start: int, stop: int, advance: Callable[[], None], tell: Callable[[int], None]) -> None:
        """One step after the other, as long as a run is alive, with snapshots on the way."""
        every = max(1, self.steps // 100)
        for step in range(start, stop):
            if self.guard.all_dead:
                return
            if self.snapshot_every and step % self.snapshot_every == 0:
                self._snapshot()
            if step % every == 0:
                tell(step)
            advance()
            self.stage.step = step + 1

    def _follow_leaders(self, tell: Callable[[int], None]) -> int:
        """Let one run of each kind go through the common warm-up for all; the step at which it ends."""
        own = isinstance(self.net, (MLP, Conv1d)) and self.rows.batches is None
        own &= self.rule in STREAMING.values()  # a user's function may count on all runs
        found = leaders(self.chunk, self.objective, self._settings, self._start) if own else None
        if found is None:
            return 0
        chunk, place, until = found
        leader = self._others_like_it(chunk)
        try:
            leader._train(0, until, tell)
        finally:  # where it is interrupted, the others are as far
            follow(self._trained(), leader._trained(), place)
            self.guard.follow(leader.guard, place)
            self.stage.set_step(leader.stage.step)
            self.snapshots = [snapshot.take(place) for snapshot in leader.snapshots]
            self.kept = {step: state.take(place) for step, state in leader.kept.items()}
            self.best = None if leader.best is None else leader.best.take(place)
            self.best_score = leader.best_score[place]
        return until

    def _trained(self) -> Iterator[tuple[FlatParameters, Adam]]:
        """Everything that has moved by the end of the warm-up, with its optimizer."""
        yield self.phi, self.adam
        for player in (self.source, getattr(self.source, "selector", None)):
            if player is not None and player.parameters is not None and player.adam is not None:
                yield player.parameters, player.adam

    def _begin(self, phase: Phase) -> None:
        self._membership = None
        self.weights.begin(phase)
        self.l2_gradient = self.phi.spread(2 * self.l2 * phase.scale) if bool(self.l2.any()) else None
        if self.source is not None:
            self.source.begin(phase.acting, phase.before, self._training_slopes)
            if phase.climbing is not None and self.source.adam is not None:
                self.source.adam.set_rate(self.source.rate * phase.climbing * ~self.guard.dead)

    def _advance(self, phase: Phase) -> Callable[[], None]:
        """One step of this phase; on a GPU recorded and replayed, where nothing in it can need the host."""
        own = isinstance(self.net, (MLP, Conv1d)) and isinstance(self.loss, ClosedForm)
        if self.stage.device.type == "cuda" and own and self.rows.batches is None:
            return CapturedStep(lambda: self._step(phase))
        return lambda: self._step(phase)

    def _step(self, phase: Phase) -> None:
        rows = self.rows.next()
        self.phi.gradient.zero_()
        views = self.phi.views if self.mask is None else self.mask.apply(self.phi.views)
        out = self.net.forward(views, rows.x, training=True)
        f = out.logits.view(self.stage.n_sets, self.stage.per_set, *rows.shape, *out.logits.shape[2:])
        if self.row_weights is not None:
            total, scale = self._weighted(f, rows), phase.scale
        else:
            total, scale = self._descend(phase, f, rows, out.last)
        if self.l2_gradient is not None:
            pull = self.phi.spread(2 * self.l2 * scale) if self.weights.varies else self.l2_gradient
            self.phi.gradient.addcmul_(self.phi.vector, pull)
        self.guard.check(total, self.stage.now, self.adam, *self._others(phase))
        self.adam.step()
        if self.mask is not None:
            self.mask.after()
        self.stage.tick()

    def _others(self, phase: Phase) -> list[Adam | None]:
        """The optimizers that a frozen run must be held still in, beside Phi's."""
        climbing = self.source.adam if self.source is not None and phase.climbing is not None else None
        learner = self.weights.learner
        return [climbing, None if self.mask is None else self.mask.adam, None if learner is None else learner.adam]

    def _descend(self, phase: Phase, f: Tensor, rows: StepRows, last: LastLayer | None) -> tuple[Tensor, Tensor]:
        """The objective (R,) and its scale (R,); its gradient, scaled, is written into the parameters."""
        want_slope = "slope" in self.uses and (phase.penalised or phase.climbing is not None)
        blocks = rows.given if isinstance(rows.given, Blocks) and not self.vector else None
        explicit = self.objective.explicit and not self.weights.exact
        if blocks and isinstance(self.loss, ClosedForm) and (explicit or not phase.penalised):
            return self._explicit(phase, self.loss, f, rows.y, blocks, want_slope)
        if blocks and isinstance(self.loss, ClosedForm):
            e = summarise_blocks(self.loss, f, rows.y, blocks, self.uses, want_slope)
        else:
            e = self._summarise(phase, f, rows, last, want_slope)
        e, weights, scale = self._complete(phase, e)
        total = self.objective.risk(e, self.static)
        if phase.penalised:
            values = self.objective.penalty_values(e, self.static)
            if self.weights.exact:
                penalty, worst = torch.stack(values).sum(0), self.objective.worst_risk(e)
                exact = worst_risk_objective(worst, total, penalty, self.weights.cap)
                total = torch.where(phase.acting, exact, total)
            else:
                for (weight, _), value in zip(weights, values, strict=True):
                    total = torch.addcmul(total, weight, value)
        torch.autograd.backward(total, scale)
        self.weights.learn(phase, e, scale)
        return total.detach(), scale

    def _explicit(
        self, phase: Phase, loss: ClosedForm, f: Tensor, y: Tensor, given: Blocks, want_slope: bool
    ) -> tuple[Tensor, Tensor]:
        """The same for closed forms: the gradient by hand down to the logits."""
        with torch.no_grad():
            head = BlockHead(loss, f.detach(), y, given, "risk" in self.uses, want_slope)
            e, weights, scale = self._complete(phase, head.statistics)
            total, *grads = self.objective.value_and_gradient(e, self.static, weights, scale)
            gradient = head.pull_back(*grads)
        torch.autograd.backward(f, gradient)
        self.weights.learn(phase, e, scale)
        return total, scale

    def _complete(self, phase: Phase, e: Statistics) -> tuple[Statistics, Sequence[Weight], Tensor]:
        """The statistics with mixtures and a learned measure, and the penalty weights and scale that follow."""
        if self.mixtures is None and self.measure is None and not self.weights.varies:
            return e, phase.weights if phase.penalised else (), phase.scale
        e = self._seen(e)
        weights, scale = self.weights.at(phase, e)
        weights = weights if phase.penalised else ()
        if self.measure is not None and e.risk is not None:  # inferred environments: none before the penalty acts
            e = self.measure.update(e, weights, scale, self.guard.dead)
        return e, weights, scale

    def _seen(self, e: Statistics) -> Statistics:
        """With the mixtures and the learned measure, if there are any."""
        if self.mixtures is None and self.measure is None:
            return e
        return replace(e, mixtures=self.mixtures, learned=None if self.measure is None else self.measure.of(e))

    def _weighted(self, f: Tensor, rows: StepRows) -> Tensor:
        """The mean loss with weights on the rows (R,), its gradient written into the parameters."""
        assert self.row_weights is not None
        value = self.loss.value(f, rows.y)
        weight = self.row_weights.weigh(rows, f.detach(), value.detach())
        total = mean_over_rows(weight * value, rows.weight)
        torch.autograd.backward(total.sum())
        return total.detach()

    def _summarise(
        self, phase: Phase, f: Tensor, rows: StepRows, last: LastLayer | None, want_slope: bool
    ) -> Statistics:
        """The statistics for Phi's step, as a graph; the source of environments takes its step first."""
        value, slope = per_sample(self.loss, f, rows.y, want_slope, last, self.vector)
        halves = self.rows.batches is not None and want_slope and self.objective.wants_halves(self.static)
        if phase.climbing is not None:
            self._climb(value.detach(), None if slope is None else slope.detach(), rows, halves)
        if phase.penalised or rows.given is not None:
            return summarise(value, slope, rows.given or self._inferred(rows, phase), self.uses, halves)
        assert self.source is not None  # Phi does not see rho yet
        mean = self.source.mean(value) if rows.weight is None else mean_over_rows(value, rows.weight)
        return Statistics(mean, self.no_mass)

    def _climb(self, value: Tensor, slope: Tensor | None, rows: StepRows, halves: bool) -> None:
        """One step of the environments up the penalties; Phi stands still."""
        source = self.source
        assert source is not None
        source.before_climbing(rows.inferred, rows.y, rows.weight)
        if source.parameters is None or source.adam is None:
            return
        source.parameters.gradient.zero_()
        e = self._seen(summarise(value, slope, self._from_source(rows), self.uses, halves))
        penalties = torch.stack(self.objective.penalty_values(e, self.static), 1)  # (R, P)
        torch.autograd.backward((self.weights.relative * penalties).sum())
        self.guard.check_other(source.parameters, self.stage.now, source.adam)
        source.adam.step()

    def _inferred(self, rows: StepRows, phase: Phase) -> Membership:
        """q for Phi's step. While nobody infers, on the full batch, it is the same at every step."""
        if self._membership is not None:
            return self._membership
        with torch.no_grad():
            membership = self._from_source(rows)
        if phase.climbing is None and self.rows.batches is None:
            self._membership = membership
        return membership

    def _from_source(self, rows: StepRows) -> Membership:
        """The present q of these rows, with their weights."""
        assert self.source is not None
        q = self.source.membership(rows.inferred)
        return Weighted(q, rows.weight) if rows.weight is not None and isinstance(q, (Soft, SoftPair)) else q

    @torch.no_grad()
    def _training_slopes(self) -> Tensor:
        """Slopes of all training rows, in their own order, under the present Phi: (R, N)."""
        stage = self.stage
        rows = [t.train for t in stage.tasks]
        out = self.net.forward(self._predicting(), self.net.prepare(stage.inputs(rows)))
        f = out.logits.view(stage.n_sets, stage.per_set, *out.logits.shape[1:])
        _, slope = per_sample(self.loss, f, stage.targets(rows).unsqueeze(1), True)
        assert slope is not None
        return slope.flatten(0, 1)

    # ---- what is kept ----------------------------------------------------------------------------------------

    def _state(self) -> State:
        buffers = self.net.buffers() if isinstance(self.net, Module) else []
        steps = torch.full((len(self.chunk.runs),), self.stage.step)
        for r, step in self.guard.report().items():
            steps[r] = step
        acting = (self.weights, self.measure, self.mask, self.row_weights, getattr(self.source, "selector", None))
        learned = {k: v for a in acting if a is not None for k, v in a.state().items()}
        return State(
            _to_cpu(self._predicting()),
            None if self.source is None else _to_cpu(self.source.state()),
            buffers,
            steps,
            _to_cpu(learned),
        )

    def _predicting(self) -> Mapping[str, Tensor]:
        """The parameters that the fitted model predicts with."""
        return self.phi.state() if self.mask is None else self.mask.settled(self.phi.views)

    @torch.no_grad()
    def _snapshot(self) -> None:
        assert self.watcher is not None
        parameters = self.phi.views if self.mask is None else self._predicting()
        snapshot = self.watcher.look(self.stage.step, parameters)
        self.snapshots.append(snapshot)
        if self.keep_states:
            self.kept[self.stage.step] = self._state()
        if self.rule is None:
            return
        score = self.rule(snapshot).cpu().to(self.best_score)
        if score.shape != self.best_score.shape:
            raise ValueError(
                f"select must give one number per run, shape {tuple(self.best_score.shape)}. Got {tuple(score.shape)}."
            )
        better = score < self.best_score  # NaN is never better
        if bool(better.any()):
            self.best = _merge(self.best, self._state(), better)
            self.best_score = torch.where(better, score, self.best_score)

    def fitted(self, place: Mapping[int, int]) -> FittedChunk:
        """What this chunk leaves; `place` says where a run stands among those of the result."""
        last, best = self._state(), self.best
        if best is not None:  # a run that no snapshot scored keeps its last state, whatever its neighbours have
            best = _merge(best, last, self.best_score.isposinf())
        chunk = replace(self.chunk, runs=tuple(place[i] for i in self.chunk.runs))
        rho = self.source.net if isinstance(self.source, RhoOnAux) else None
        return FittedChunk(chunk, self.net, last, best, rho, self.stage.aux_scalers, self.kept)


def _network(
    net: Net | Callable[[], nn.Module] | None, task: Task, inputs: tuple[int, ...], hidden: Sequence[int]
) -> Net:
    """The network that reads rows of the shape `inputs`."""
    if net is None:
        if len(inputs) > 1:
            raise ValueError(
                f"x has shape (rows, {', '.join(map(str, task.train.x.shape[1:]))}); hidden=... is for tables (rows, "
                "features). Give net=irmtv.engine.Conv1d(...) or a function that returns a torch.nn.Module."
            )
        return MLP(inputs[0], hidden, task.n_outputs)
    if isinstance(net, Module):
        return Module(net.factory, task.n_outputs)  # without any run's copies: this chunk's own
    if hasattr(net, "shapes") and hasattr(net, "forward") and not isinstance(net, nn.Module):
        own = cast(Net, net)
        if own.n_outputs != task.n_outputs:
            raise ValueError(
                f"net must have one output per class or target of the task, n_outputs={task.n_outputs}. "
                f"Got n_outputs={own.n_outputs}."
            )
        return own
    if callable(net) and not isinstance(net, nn.Module):
        return Module(net, task.n_outputs)
    raise ValueError(
        "net must be a network of irmtv.engine or a function that returns a new torch.nn.Module (each run starts "
        f"its own). Got {type(net).__name__}; wrap it: net=lambda: MyModule(...)."
    )


def _to_cpu(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k: v.detach().cpu() for k, v in state.items()}


def _merge(old: State | None, new: State, better: Tensor) -> State:
    """For every run the new state where it is better."""
    if old is None:
        return new

    def pick(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {k: torch.where(better.view(-1, *(1,) * (v.ndim - 1)), b[k], v) for k, v in a.items()}

    rho = None if old.rho is None or new.rho is None else pick(old.rho, new.rho)
    buffers = [n if b else o for o, n, b in zip(old.buffers, new.buffers, better, strict=True)] if old.buffers else []
    steps = torch.where(better, new.steps, old.steps)
    return State(pick(old.parameters, new.parameters), rho, buffers, steps, pick(old.learned, new.learned))
