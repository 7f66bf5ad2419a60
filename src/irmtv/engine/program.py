"""THE loop: every run of every objective is trained here.

A `Program` is one chunk of runs: tensors laid out once, and a step, which is

    logits -> per-sample loss and slope -> a few numbers per environment -> objective -> one backward -> Adam.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from irmtv.core.losses import ClosedForm
from irmtv.core.membership import Blocks, Codes, Membership
from irmtv.core.risk import BlockHead, LastLayer, per_sample, summarise, summarise_blocks
from irmtv.core.types import Rows, Statistics, Task
from irmtv.engine.batches import StratifiedBatches
from irmtv.engine.capture import CapturedStep
from irmtv.engine.fitted import FittedChunk, State
from irmtv.engine.guard import Guard
from irmtv.engine.nets import MLP, Conv1d, Module, Net
from irmtv.engine.optim import Adam, FlatParameters
from irmtv.engine.plan import Chunk
from irmtv.engine.snapshots import Snapshot, Watcher
from irmtv.environments.aux_network import AuxNetwork, AuxRows, AuxScaler, GroupedRows, PlainRows, lay_out
from irmtv.objectives.base import Objective, Weight, warmup_steps
from irmtv.selection import Rule


@dataclass(frozen=True)
class Phase:
    """A stretch of steps over which nothing changes but the parameters."""

    start: int
    stop: int
    weights: tuple[Weight, ...]  # one per penalty: the weights that act
    scale: Tensor  # (R,) 1 / divisor
    penalised: bool  # some run has a penalty that acts
    climbing: Tensor | None  # (R,) of 0 and 1: whose rho climbs; None if no one's


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
    ) -> None:
        self.chunk, self.objective, self.rule, self.snapshot_every = chunk, objective, rule, snapshot_every
        self.device, self.dtype = device, dtype
        self.static = dict(chunk.static)
        self.steps: int = self.static["steps"]
        mine = [settings[i] for i in chunk.runs]
        self.tasks = [tasks[d] for d in chunk.data]
        self.loss, self.n_outputs = self.tasks[0].loss, self.tasks[0].n_outputs
        self.n_sets, self.per_set = len(chunk.data), len(chunk.runs) // len(chunk.data)
        self.vector = self.static["classifier"] == "vector"
        self.uses = objective.uses(self.static)
        self.n_environments = max(1, len(self.tasks[0].train.names))
        # a run's randomness is its own: its seed alone decides, whatever trains beside it
        self.generators = [torch.Generator().manual_seed(int(s["seed"])) for s in mine]

        self.net = _network(net, self.tasks[0], self.static["hidden"])
        if self.vector and self.n_outputs == 1 and not isinstance(self.net, MLP):
            raise ValueError(
                "classifier='vector' multiplies the inputs of the last layer, which a network of one output must show: "
                "use hidden=... or irmtv.engine.MLP with it, or classifier='scalar'. "
                f"Got net={type(self.net).__name__}."
            )
        starts = [self.net.init(int(s["seed"]), g) for s, g in zip(mine, self.generators, strict=True)]
        self.phi = FlatParameters(starts, device, dtype)
        self.adam = Adam(self.phi, self._column(mine, "learning_rate"))
        self.l2 = self._column(mine, "l2")
        self.rho_net: AuxNetwork | None = None
        self.aux_scalers: tuple[AuxScaler, ...] = ()
        if objective.needs == "aux":
            self._make_rho(mine)
        self._lay_out_rows()
        self.phases = self._make_phases(mine)
        self.guard = Guard(self.phi, self.rho if self.rho_net is not None else None)
        self.watcher = self._make_watcher() if snapshot_every else None
        self.snapshots: list[Snapshot] = []
        self.keep_states, self.kept = keep_states, dict[int, State]()
        self.best: State | None = None
        self.best_score = torch.full((len(chunk.runs),), torch.inf, dtype=torch.float64)
        self.step_now = 0
        # the step number as the guard sees it: on a GPU it lives there, so that a recorded step counts on
        self.clock = None if device.type == "cpu" else torch.zeros((), dtype=torch.int64, device=device)
        self._membership: Membership | None = None
        self.no_mass = torch.zeros(1, self.n_environments, device=device, dtype=dtype)

    def _column(self, mine: Sequence[Mapping[str, Any]], name: str) -> Tensor:
        column = torch.tensor([float(s[name]) for s in mine], device=self.device, dtype=self.dtype)
        if not bool(column.isfinite().all()):
            raise ValueError(
                f"{name} must fit into {self.dtype}. Got {max(s[name] for s in mine)!r}; use a smaller one, or "
                "dtype=torch.float64."
            )
        return column

    # ---- set-up ----------------------------------------------------------------------------------------------

    def _make_rho(self, mine: Sequence[Mapping[str, Any]]) -> None:
        aux = [t.train.aux for t in self.tasks if t.train.aux is not None]  # `check_tasks` saw to it that all have it
        self.rho_net = AuxNetwork(aux[0].shape[1], self.static["n_environments"], self.static["environment_hidden"])
        self.n_environments = self.rho_net.n_environments
        self.aux_scalers = tuple(AuxScaler.of(a, self.static["aux_scaling"]) for a in aux)
        self.rho = FlatParameters([self.rho_net.init(g) for g in self.generators], self.device, self.dtype)
        self.rho_rate = self._column(mine, "environment_learning_rate")
        self.rho_adam = Adam(self.rho, self.rho_rate, maximise=True)

    def _scaled_aux(self, rows: Sequence[Rows]) -> Tensor | None:
        """Standardised aux of one data set's rows each: (T, N, A); None where no environments are inferred."""
        if self.rho_net is None:
            return None
        scaled = [s(r.aux, self.dtype) for s, r in zip(self.aux_scalers, rows, strict=True) if r.aux is not None]
        return torch.stack(scaled).to(self.device)

    def _lay_out_rows(self) -> None:
        """Put the rows where a step reads them: x, y, and who belongs to which environment."""
        rows = [t.train for t in self.tasks]
        x = torch.stack([r.x for r in rows]).to(self.device, self.dtype)  # (T, N, ...)
        y = torch.stack([r.y for r in rows]).to(self.device)  # (T, N) or (T, N, C)
        y = y.to(self.dtype) if y.is_floating_point() else y
        n_rows = x.shape[1]
        codes = torch.stack([_codes(r.environment, n_rows) for r in rows])  # (T, N)
        aux = self._scaled_aux(rows)
        size = self.static["batch_size"]
        if size == "auto":
            size = None if n_rows < 100_000 else 1024
        self.batches: StratifiedBatches | None = None
        self.aux_rows: AuxRows | None = None
        self.given: Blocks | Codes
        if size is not None and size < n_rows:
            self.x, self.y, self.codes, self.aux = x, y, codes.to(self.device), aux
            per_run = [codes[t] for t in range(self.n_sets) for _ in range(self.per_set)]
            self.batches = StratifiedBatches(per_run, size, self.generators)
            return
        # a user's module may look at all rows (batch norm) and would take those that fill up a block for data
        as_they_are = isinstance(self.net, Module)
        shape: tuple[int, ...] = (n_rows,)
        order = None
        if as_they_are and aux is not None:
            self.aux_rows = PlainRows(aux.transpose(1, 2).contiguous())
        elif as_they_are:
            shared = codes.to(self.device).unsqueeze(1).expand(-1, self.per_set, -1)
            self.given = Codes(shared, self.n_environments)
        elif aux is not None:
            self.aux_rows = lay_out(aux, self.per_set)
            order = self.aux_rows.order
            shape = self.aux_rows.blocks.rows_shape if isinstance(self.aux_rows, GroupedRows) else shape
        else:
            needed = codes if self.uses else torch.zeros_like(codes)  # ERM: one block, nothing padded
            blocks = Blocks.of(needed, self.n_environments if self.uses else 1, self.per_set)
            self.given = blocks = blocks.to(self.device, self.dtype)
            order, shape = blocks.order, blocks.rows_shape
        if order is not None:
            index = torch.arange(self.n_sets, device=self.device).unsqueeze(1)
            x, y = x[index, order], y[index, order]
        self.x = self.net.prepare(x)
        self.y = y.view(self.n_sets, 1, *shape, *y.shape[2:])
        self.rows_shape = shape

    def _make_phases(self, mine: Sequence[Mapping[str, Any]]) -> list[Phase]:
        """Cut the steps where a run's warm-up ends."""
        n_penalties = len(self.objective.penalties)
        if not n_penalties:
            ones = torch.ones(len(mine), device=self.device, dtype=self.dtype)
            return [Phase(0, self.steps, (), ones, False, None)]
        full = torch.tensor(
            [self.objective.weights(s["penalty_weight"]) for s in mine], device=self.device, dtype=self.dtype
        )  # (R, P)
        self.climb_weights = full / full.amax(1, keepdim=True).clamp_min(torch.finfo(self.dtype).tiny)
        self.climb_weights[full.amax(1) == 0] = 1  # lambda = 0: rho still shows what it finds
        warm = torch.tensor([warmup_steps(s["warmup"], self.steps) for s in mine], device=self.device)
        annealed = self.static.get("schedule") == "annealed"
        cuts = sorted({0, self.steps, *(int(w) for w in warm if w < self.steps)})
        phases = []
        for start, stop in pairwise(cuts):
            acting = start >= warm  # (R,)
            weights = torch.where(acting.unsqueeze(1), full, self.objective.warmup_weight(full))
            divisor = self.objective.divisor(weights.sum(1))
            scale = torch.where(acting, 1 / divisor, 1.0) if self.static["normalise"] else torch.ones_like(divisor)
            climbing = None
            if self.rho_net is not None:
                climbing = (~acting if annealed else torch.ones_like(acting)).to(self.dtype)
                climbing = climbing if bool(climbing.any()) else None
            scale = scale.to(self.dtype)
            columns = (weights * scale.unsqueeze(1)).unsqueeze(2).unbind(1)  # P of (R, 1)
            both = tuple(zip(weights.unbind(1), columns, strict=True))
            phases.append(Phase(start, stop, both, scale, bool(weights.any()), climbing))
        return phases

    def _make_watcher(self) -> Watcher:
        held_out = [t.held_out for t in self.tasks]
        rows = [t.train if h is None else h for t, h in zip(self.tasks, held_out, strict=True)]
        return Watcher(
            rows,
            self.per_set,
            "train" if held_out[0] is None else "held-out",
            self.net,
            self.loss,
            self.rho_net,
            self._scaled_aux(rows),
            self.n_environments,
            self.vector,
            self.device,
            self.dtype,
        )

    # ---- training --------------------------------------------------------------------------------------------

    def run(self, tell: Callable[[int], None]) -> None:
        if self.device.type == "cuda":
            # torch's backward thread warns if a matrix product is the first thing it does on a GPU
            torch.autograd.backward(torch.zeros((), device=self.device, requires_grad=True) * 1)
        every = max(1, self.steps // 100)
        for phase in self.phases:
            if self.guard.all_dead:
                break
            self._membership = None
            self.l2_gradient = self.phi.spread(2 * self.l2 * phase.scale) if bool(self.l2.any()) else None
            if phase.climbing is not None:
                self.rho_adam.set_rate(self.rho_rate * phase.climbing)
            advance = self._advance(phase)
            for step in range(phase.start, phase.stop):
                if self.snapshot_every and step % self.snapshot_every == 0:
                    self._snapshot()
                if step % every == 0:
                    tell(step)
                advance()
                self.step_now = step + 1
                if self.guard.all_dead:
                    break
        if self.watcher is not None:
            self._snapshot()
        tell(self.steps)

    def _advance(self, phase: Phase) -> Callable[[], None]:
        """One step of this phase; on a GPU recorded and replayed, where nothing in it can need the host."""
        own = isinstance(self.net, (MLP, Conv1d)) and isinstance(self.loss, ClosedForm)
        if self.device.type == "cuda" and own and self.batches is None:
            return CapturedStep(lambda: self._step(phase))
        return lambda: self._step(phase)

    def _step(self, phase: Phase) -> None:
        x, y, shape, aux_rows, given = self._rows()
        self.phi.gradient.zero_()
        out = self.net.forward(self.phi.views, x, training=True)
        f = out.logits.view(self.n_sets, self.per_set, *shape, *out.logits.shape[2:])
        slopes_matter = "slope" in self.uses and (phase.penalised or phase.climbing is not None)
        blocks = given if isinstance(given, Blocks) and not self.vector else None
        if blocks and isinstance(self.loss, ClosedForm) and (self.objective.explicit or not phase.penalised):
            total = self._explicit(phase, self.loss, f, y, blocks, slopes_matter)
        else:
            if blocks and isinstance(self.loss, ClosedForm):
                e = summarise_blocks(self.loss, f, y, blocks, self.uses, slopes_matter)
            else:
                e = self._summarise(phase, f, y, given, aux_rows, out.last, slopes_matter)
            total = self.objective.risk(e, self.static)
            if phase.penalised:
                for (weight, _), penalty in zip(
                    phase.weights, self.objective.penalty_values(e, self.static), strict=True
                ):
                    total = torch.addcmul(total, weight, penalty)
            torch.autograd.backward(total, phase.scale)
            total = total.detach()
        if self.l2_gradient is not None:
            self.phi.gradient.addcmul_(self.phi.vector, self.l2_gradient)
        rho_adam = self.rho_adam if phase.climbing is not None else None
        self.guard.check(total, self._now, self.adam, rho_adam)
        self.adam.step()
        if self.clock is not None:
            self.clock.add_(1)

    def _explicit(
        self, phase: Phase, loss: ClosedForm, f: Tensor, y: Tensor, given: Blocks, want_slope: bool
    ) -> Tensor:
        """The objective (R,), and its gradient written into the parameters: by hand down to the logits."""
        weights = phase.weights if phase.penalised else ()
        with torch.no_grad():
            head = BlockHead(loss, f.detach(), y, given, "risk" in self.uses, want_slope)
            total, *grads = self.objective.value_and_gradient(head.statistics, self.static, weights, phase.scale)
            gradient = head.pull_back(*grads)
        torch.autograd.backward(f, gradient)
        return total

    def _summarise(
        self,
        phase: Phase,
        f: Tensor,
        y: Tensor,
        given: Membership | None,
        aux_rows: AuxRows | None,
        last: LastLayer | None,
        want_slope: bool,
    ) -> Statistics:
        """The statistics for Phi's step, as a graph; rho, where it climbs, takes its step first."""
        value, slope = per_sample(self.loss, f, y, want_slope, last, self.vector)
        halves = self.batches is not None and want_slope and self.objective.wants_halves(self.static)
        if phase.climbing is not None:
            self._climb(value.detach(), None if slope is None else slope.detach(), aux_rows, halves)
        if phase.penalised or given is not None:
            return summarise(value, slope, given or self._inferred(aux_rows, phase), self.uses, halves)
        return Statistics(self._mean(value), self.no_mass)  # Phi does not see rho yet

    @property
    def _now(self) -> int | Tensor:
        return self.step_now if self.clock is None else self.clock

    def _mean(self, value: Tensor) -> Tensor:
        """Mean loss of every run, pads left out: (R,)."""
        if isinstance(self.aux_rows, GroupedRows):
            return self.aux_rows.blocks.mean(value)
        return value.flatten(2).mean(2).flatten()

    def _climb(self, value: Tensor, slope: Tensor | None, aux_rows: AuxRows | None, halves: bool) -> None:
        """One step of rho up the penalties; Phi stands still."""
        assert self.rho_net is not None and aux_rows is not None
        self.rho.gradient.zero_()
        e = summarise(value, slope, self.rho_net.membership(self.rho.views, aux_rows), self.uses, halves)
        penalties = torch.stack(self.objective.penalty_values(e, self.static), 1)  # (R, P)
        torch.autograd.backward((self.climb_weights * penalties).sum())
        self.guard.check_rho(self._now, self.rho_adam)
        self.rho_adam.step()

    def _inferred(self, aux_rows: AuxRows | None, phase: Phase) -> Membership:
        """q for Phi's step. While rho stands still, on the full batch, it is the same at every step."""
        if self._membership is not None:
            return self._membership
        assert self.rho_net is not None and aux_rows is not None
        with torch.no_grad():
            membership = self.rho_net.membership(self.rho.views, aux_rows)
        if phase.climbing is None and self.batches is None:
            self._membership = membership
        return membership

    def _rows(self) -> tuple[Tensor, Tensor, tuple[int, ...], AuxRows | None, Membership | None]:
        """This step's rows: x, y, their shape, and the environments' aux or membership."""
        if self.batches is None:
            given = None if self.rho_net is not None else self.given
            return self.x, self.y, self.rows_shape, self.aux_rows, given
        index = self.batches.next().to(self.device)  # (R, b)
        size = index.shape[1]
        sets = torch.arange(self.n_sets, device=self.device).repeat_interleave(self.per_set).unsqueeze(1)
        # every run has rows of its own, so each is a data set of its own in the first layer
        x = self.net.prepare(self.x[sets, index])
        y = self.y[sets, index].view(self.n_sets, self.per_set, size, *self.y.shape[2:])
        shape = (size,)
        if self.rho_net is not None:
            assert self.aux is not None
            return (
                x,
                y,
                shape,
                PlainRows(self.aux[sets, index].transpose(1, 2).contiguous(), None, self.n_sets),
                None,
            )
        codes = self.codes[sets, index].view(self.n_sets, self.per_set, size)
        return x, y, shape, None, Codes(codes, self.n_environments)

    # ---- what is kept ----------------------------------------------------------------------------------------

    def _state(self) -> State:
        buffers = self.net.buffers() if isinstance(self.net, Module) else []
        steps = torch.full((len(self.chunk.runs),), self.step_now)
        for r, step in self.guard.report().items():
            steps[r] = step
        return State(
            _to_cpu(self.phi.state()),
            _to_cpu(self.rho.state()) if self.rho_net is not None else None,
            buffers,
            steps,
        )

    @torch.no_grad()
    def _snapshot(self) -> None:
        assert self.watcher is not None
        rho = self.rho.views if self.rho_net is not None else None
        snapshot = self.watcher.look(self.step_now, self.phi.views, rho)
        self.snapshots.append(snapshot)
        if self.keep_states:
            self.kept[self.step_now] = self._state()
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
        return FittedChunk(chunk, self.net, last, best, self.rho_net, self.aux_scalers, self.kept)


def _network(net: Net | Callable[[], nn.Module] | None, task: Task, hidden: Sequence[int]) -> Net:
    if net is None:
        if task.train.x.ndim > 2:
            raise ValueError(
                f"x has shape (rows, {', '.join(map(str, task.train.x.shape[1:]))}); hidden=... is for tables (rows, "
                "features). Give net=irmtv.engine.Conv1d(...) or a function that returns a torch.nn.Module."
            )
        return MLP(task.train.x.shape[1], hidden, task.n_outputs)
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


def _codes(environment: Tensor | None, n_rows: int) -> Tensor:
    return torch.zeros(n_rows, dtype=torch.int64) if environment is None else environment


def _to_cpu(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k: v.cpu() for k, v in state.items()}


def _merge(old: State | None, new: State, better: Tensor) -> State:
    """For every run the new state where it is better."""
    if old is None:
        return new

    def pick(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {k: torch.where(better.view(-1, *(1,) * (v.ndim - 1)), b[k], v) for k, v in a.items()}

    rho = None if old.rho is None or new.rho is None else pick(old.rho, new.rho)
    buffers = [n if b else o for o, n, b in zip(old.buffers, new.buffers, better, strict=True)] if old.buffers else []
    return State(pick(old.parameters, new.parameters), rho, buffers, torch.where(better, new.steps, old.steps))
