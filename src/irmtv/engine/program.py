"""The loop over the steps of one chunk of runs: every run of every objective is trained here.

A `Program` lays the tensors of a chunk out once, cuts the steps into phases and takes one step after the other
(`engine/step.py` says what a step does), with snapshots on the way; it keeps what the fitted runs are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from irmtv.core.ranks import Ranks
from irmtv.core.types import Rows, Task
from irmtv.data.blocks import BlockSource
from irmtv.engine.components.base import Phase
from irmtv.engine.components.rho import RhoOnAux
from irmtv.engine.context import Context
from irmtv.engine.device import CapturedStep
from irmtv.engine.fitted import FittedChunk, State
from irmtv.engine.fused import fused_step
from irmtv.engine.linear_step import LinearStep
from irmtv.engine.networks import MLP, Conv1d, Module, Net, as_network
from irmtv.engine.optim import FlatParameters, Guard
from irmtv.engine.plan import Chunk, leaders
from irmtv.engine.progress import Reporter
from irmtv.engine.snapshots import Snapshot, Watcher
from irmtv.engine.solvers.linear_risks import LinearRisks
from irmtv.engine.solvers.starts import SMALL, linear_start
from irmtv.engine.start import Start
from irmtv.engine.step import GradientStep
from irmtv.objectives.base import Objective
from irmtv.selection import Rule
from irmtv.selection.records import STREAMING


@dataclass(frozen=True)
class Call:
    """What a call of `train` asks for, checked: the same for all chunks of its runs."""

    tasks: Sequence[Task]
    objective: Objective
    settings: Sequence[Mapping[str, Any]]  # every setting of every run
    net: Net | Callable[[], nn.Module] | None
    rule: Rule | None
    snapshot_every: int | None
    keep_states: bool
    device: torch.device
    dtype: torch.dtype
    start: Start | None = None
    slopes: str | None = None  # of snapshots, where not of each run's own classifier
    ranks: Ranks | None = None  # the processes that have the other rows
    blocks: BlockSource | None = None  # all rows of the one data set, of which its task has a sample
    patience: int | None = None  # snapshots without a new lowest risk of any run, after which training ends


class Keeper(Protocol):
    """Keeps the states of a program in a file (`engine/checkpoint.py`)."""

    @property
    def every(self) -> int: ...  # steps

    def of_warmup(self) -> Keeper: ...

    def save(self, program: Any) -> None: ...

    def put_back(self, program: Any) -> bool: ...


class Program:
    """One chunk of runs as one tensor program."""

    keeper: Keeper | None = None

    def __init__(self, chunk: Chunk, call: Call) -> None:
        self.chunk, self.call = chunk, call
        self.context = context = Context(
            chunk, call.tasks, call.settings, call.objective, call.device, call.dtype, call.ranks, call.blocks
        )
        self.objective, self.loss = context.objective, context.loss
        self.static, self.steps = context.static, context.steps
        self.net = self._make_network()
        self.phi = FlatParameters(self._starts(), context.device, context.dtype)
        self.guard = Guard(self.phi)
        self.step = GradientStep(context, self.net, self.phi, self.guard)
        self.linear = LinearStep.of(self.step)
        self.phases = self.step.weights.phases(self.step.source is not None)
        vector = self.step.vector if call.slopes is None else call.slopes == "vector"
        self.watcher = Watcher(context, self.net, self.step.source, vector) if call.snapshot_every else None
        self.snapshots: list[Snapshot] = []
        self.kept: dict[int, State] = {}
        self.best: State | None = None
        self.best_score = torch.full((len(chunk.runs),), torch.inf, dtype=torch.float64)

    def _make_network(self) -> Net:
        context = self.context
        one_row = [context.tasks[0].train.take(torch.arange(1))] * context.n_sets
        shape = tuple(context.inputs(one_row).shape[2:])
        net = as_network(self.call.net, context.tasks[0], shape, self.static["hidden"])
        if self.static["classifier"] == "vector" and context.n_outputs == 1 and not isinstance(net, MLP):
            raise ValueError(
                "classifier='vector' multiplies the inputs of the last layer, which a network of one output must show: "
                "use hidden=... or irmtv.engine.MLP with it, or classifier='scalar'. "
                f"Got net={type(net).__name__}."
            )
        return net

    def _starts(self) -> list[dict[str, Tensor]]:
        """Phi's start in every run."""
        context, given = self.context, self.call.start
        starts = [self.net.init(int(s["seed"]), g) for s, g in zip(context.settings, context.generators, strict=True)]
        # drawn all the same where they are given: what draws after Phi draws the same numbers
        if given is not None:
            return given.put(starts, self.chunk.runs)
        name = self.static["start"]
        if name in ("erm", "environment"):
            l2 = torch.tensor([float(s["l2"]) for s in context.settings], dtype=torch.float64)
            fitted = linear_start(name, self._linear_risks(), context.sets.squeeze(1).cpu(), l2)  # (R, C, D + 1)
            return [{"W0": one[:, :-1], "b0": one[:, -1:]} for one in fitted]
        return starts if name != "small" else [{n: SMALL * v for n, v in s.items()} for s in starts]

    def _linear_risks(self) -> list[LinearRisks]:
        """The risks of linear models on every data set, in the environments that are given."""
        context = self.context
        n_environments, all_codes = self._environments_needed(), context.codes
        if n_environments == 1:
            all_codes = torch.zeros_like(all_codes)
        many = bool(self.objective.penalties or self.objective.procedure or context.n_runs > 1)
        rows = self._linear_rows()
        return LinearRisks.several(rows, list(all_codes), n_environments, self.loss, context.n_outputs, many)

    def _environments_needed(self) -> int:
        """How many environments a linear model's risks are measured in."""
        needed = self.objective.uses(self.static) or self.objective.procedure or self.static["start"] == "environment"
        if not needed or self.objective.infers is not None:  # ERM needs no environments
            return 1
        return max(1, len(self.context.tasks[0].train.names))

    def _linear_rows(self) -> list[Rows]:
        """What a linear model reads of every data set."""
        return [task.train for task in self.context.tasks]

    # ---- training --------------------------------------------------------------------------------------------

    def run(self, report: Reporter) -> None:
        if self.context.device.type == "cuda":
            # torch's backward thread warns if a matrix product is the first thing it does on a GPU
            torch.autograd.backward(torch.zeros((), device=self.context.device, requires_grad=True) * 1)
        if self.keeper is None or not self.keeper.put_back(self):
            self._share_warmup(report)
        self._train(self.context.step, self.steps, report)
        if self.keeper is not None:
            self.keeper.save(self)
        self._finish(report)

    def _train(self, start: int, stop: int, report: Reporter) -> None:
        """The steps from `start` to before `stop`, where phases meet."""
        for phase in (p for p in self.phases if start < p.stop <= stop):
            if self.guard.all_dead or self._is_past_its_best():
                break
            self.step.begin(phase)
            self._walk(max(start, phase.start), phase.stop, self._advance(phase), report)

    def _advance(self, phase: Phase) -> Callable[[], None]:
        """One step of this phase: on a GPU fused, recorded and replayed, on a CPU in few passes, where it can be."""

        def step() -> None:
            self.step(phase)

        if not self.step.recordable:
            return (self.linear and self.linear.within(phase)) or step
        return CapturedStep(fused_step(self.step, phase) or step)

    def _walk(self, start: int, stop: int, advance: Callable[[], None], report: Reporter) -> None:
        """One step after the other, as long as a run is alive, with snapshots on the way."""
        report_every, snapshot_every = max(1, self.steps // 100), self.call.snapshot_every
        for step in range(start, stop):
            if self.guard.all_dead:
                return
            if self.keeper is not None and step % self.keeper.every == 0 and step > start:
                self.keeper.save(self)
            if snapshot_every and step % snapshot_every == 0:
                self._snapshot()
                if self._is_past_its_best():
                    return
            if step % report_every == 0:
                report(step)
            advance()
            self.context.set_step(step + 1)

    def _finish(self, report: Reporter) -> None:
        if self.watcher is not None and not (self.snapshots and self.snapshots[-1].step == self.context.step):
            self._snapshot()
        report(self.steps)

    def _share_warmup(self, report: Reporter) -> None:
        """Train one run of each kind through the common warm-up for all."""
        own = isinstance(self.net, (MLP, Conv1d)) and self.step.rows.batches is None
        own &= self.call.rule in STREAMING.values()  # a user's function may count on all runs
        shared = leaders(self.chunk, self.objective, self.call.settings, self.call.start) if own else None
        if shared is None:
            return
        chunk, place, until = shared
        leader = Program(chunk, self.call)
        if self.keeper is not None:
            leader.keeper = self.keeper.of_warmup()
            leader.keeper.put_back(leader)
        try:
            leader._train(leader.context.step, until, report)
        finally:  # where it is interrupted, the others are as far
            self._take(leader, place)

    def _take(self, leader: Program, place: Tensor) -> None:
        """Become what the leaders are; `place` (R,) has every run's leader."""
        for mine, theirs in zip(self.step.optimizers(), leader.step.optimizers(), strict=True):
            mine.take(theirs, place)
        self.guard.take(leader.guard, place)
        self.context.set_step(leader.context.step)
        self.snapshots = [snapshot.take(place) for snapshot in leader.snapshots]
        self.kept = {step: state.take(place) for step, state in leader.kept.items()}
        self.best = None if leader.best is None else leader.best.take(place)
        self.best_score = leader.best_score[place]

    # ---- what is kept ----------------------------------------------------------------------------------------

    def _state(self) -> State:
        source, since = self.step.source, self.guard.since
        return State(
            self.step.predictor(),
            None if source is None else source.state(),
            self.net.buffers() if isinstance(self.net, Module) else [],
            torch.where(since >= 0, since, self.context.step),
            self.step.learned(),
        )

    @torch.no_grad()
    def _snapshot(self) -> None:
        assert self.watcher is not None
        parameters = self.phi.views if self.step.mask is None else self.step.predictor()
        snapshot = self.watcher.look(self.context.step, parameters)
        snapshot = snapshot if self.call.rule is None else snapshot.cpu()
        self.snapshots.append(snapshot)
        if self.call.keep_states:
            self.kept[self.context.step] = self._state()
        if self.call.rule is not None:
            self._keep_best(self.call.rule(snapshot).cpu().to(self.best_score))

    def _is_past_its_best(self) -> bool:
        """Whether no run has had its lowest risk in the last `patience` snapshots."""
        patience = self.call.patience
        if patience is None or len(self.snapshots) <= patience:
            return False
        overall = [torch.where(s.rows > 0, s.rows * s.risk, 0).sum(1) / s.rows.sum(1) for s in self.snapshots]
        lowest = torch.stack(overall).nan_to_num(torch.inf).argmin(0)  # (R,) the snapshot
        return bool((lowest < len(overall) - patience).all())

    def _keep_best(self, score: Tensor) -> None:
        """Keep the present state of the runs whose score (R,) is the least so far."""
        if score.shape != self.best_score.shape:
            raise ValueError(
                f"select must give one number per run, shape {tuple(self.best_score.shape)}. Got {tuple(score.shape)}."
            )
        better = score < self.best_score  # NaN is never better
        if bool(better.any()):
            state = self._state().cpu()
            self.best = state if self.best is None else self.best.updated(state, better)
            self.best_score = torch.where(better, score, self.best_score)

    def fitted(self, place: Mapping[int, int]) -> FittedChunk:
        """What this chunk leaves; `place` says where a run stands among those of the result."""
        last, best = self._state().cpu(), self.best
        if best is not None:  # a run that no snapshot scored keeps its last state, whatever its neighbours have
            best = best.updated(last, self.best_score.isposinf())
        chunk = replace(self.chunk, runs=tuple(place[i] for i in self.chunk.runs))
        rho = self.step.source.net if isinstance(self.step.source, RhoOnAux) else None
        kept = {step: state.cpu() for step, state in self.kept.items()}
        return FittedChunk(chunk, self.net, last, best, rho, self.context.aux_scalers, kept)
