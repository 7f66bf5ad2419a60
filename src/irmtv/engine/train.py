"""THE loop: every run of every objective is trained here.

`train` checks what it is given, plans the chunks and runs them; `_Program` is one chunk: tensors laid out,
and a step. A step is

    logits -> per-sample loss and slope -> a few numbers per environment -> objective -> one backward -> Adam.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from irmtv.core.membership import Blocks, Codes, Membership
from irmtv.core.risk import per_sample, summarise
from irmtv.core.types import Runs, Task
from irmtv.engine.batches import StratifiedBatches
from irmtv.engine.fitted import FittedChunk, FittedRuns, State
from irmtv.engine.guard import Guard
from irmtv.engine.nets import MLP, Module, Net
from irmtv.engine.optim import Adam, FlatParameters
from irmtv.engine.plan import Chunk, plan
from irmtv.engine.settings import PER_RUN, check_tasks, free_memory, pick_device, resolve_settings
from irmtv.engine.snapshots import History, Snapshot, Watcher
from irmtv.environments.aux_network import AuxNetwork, AuxRows, AuxScaler, PlainRows, lay_out
from irmtv.objectives import OBJECTIVES
from irmtv.objectives.base import Objective
from irmtv.selection import Rule, as_rule


@dataclass(frozen=True)
class Progress:
    """How far a call of `train` is; handed to the `progress` callback now and then."""

    step: int  # of the present chunk
    steps: int
    runs_done: int  # runs whose training is finished
    runs_now: int  # runs training now
    runs: int
    seconds: float

    @property
    def share(self) -> float:
        """Share of all the work that is done, 0 to 1."""
        return (self.runs_done + self.runs_now * self.step / self.steps) / self.runs


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C during training. `partial` holds the runs as they were (FittedRuns), or None if none had begun."""

    def __init__(self, partial: FittedRuns | None) -> None:
        super().__init__("training was interrupted; the runs so far are in `.partial`")
        self.partial = partial


def train(
    task: Task | Sequence[Task],
    objective: str | Objective = "irm-tv-l1",
    runs: Runs | None = None,
    *,
    hidden: Sequence[int] = (),
    net: Net | Callable[[], nn.Module] | None = None,
    classifier: Literal["scalar", "vector"] = "scalar",
    steps: int = 2000,
    learning_rate: float = 5e-3,
    l2: float = 0.0,
    batch_size: int | None | Literal["auto"] = "auto",
    select: str | Rule = "fixed",
    snapshot_every: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    max_chunk: int | None = None,
    **hyperparameters: Any,
) -> FittedRuns:
    """Train many runs in one tensor program.

    Parameters
    ----------
    task : a Task, or several of equal shape; `Runs(data=...)` says which run trains on which.
    objective : a name in `irmtv.OBJECTIVES`, a sum such as "irm-tv-l1+vrex", or an Objective.
    runs : the runs. Anything that does not change a shape may differ between them at no cost: seed,
        learning_rate, l2, penalty_weight, warmup, environment_learning_rate. Other settings may differ too;
        such runs train one group after the other.
    hidden : hidden layer widths of Phi; () is a linear model.
    net : instead of `hidden`: a network of `irmtv.engine`, or a function that returns a torch.nn.Module.
    classifier : "scalar" (w = 1 multiplies the logits) or "vector" (w multiplies the last layer's inputs; for
        several outputs one w per logit).
    steps : gradient steps. With mini-batches a step is one batch.
    learning_rate, l2 : Adam's rate; the weight of the sum of squares of all parameters, biases too.
    batch_size : rows per step; None is the full batch, "auto" the full batch below 100,000 rows, else 1,024.
    select : "fixed" keeps the last step; "iid" and "worst-env" keep each run's best snapshot.
    snapshot_every : measure all runs every so many steps, on the task's held-out rows or, without, the training rows.
    progress : called with a `Progress` about a hundred times per chunk.
    device : "cpu", "cuda" or "auto".
    max_chunk : at most so many runs in one program (otherwise chosen by cache and memory).
    **hyperparameters : the objective's own, for all runs; `irmtv list NAME` shows them.

    Returns
    -------
    FittedRuns, in the order of `runs`.
    """
    tasks = (task,) if isinstance(task, Task) else tuple(task)
    chosen = OBJECTIVES[objective] if isinstance(objective, str) else objective
    runs = Runs() if runs is None else runs
    engine = {
        "hidden": tuple(hidden),
        "classifier": classifier,
        "steps": steps,
        "learning_rate": learning_rate,
        "l2": l2,
        "batch_size": batch_size,
    }
    settings = resolve_settings(chosen, runs, engine, hyperparameters, len(tasks))
    check_tasks(tasks, chosen, settings)
    rule = as_rule(select)
    if rule is not None and snapshot_every is None:
        snapshot_every = max(1, steps // 50)
    where = pick_device(device)
    chunks = plan(
        tasks,
        settings,
        PER_RUN | {h.name for h in chosen.hyperparameters if h.per_run},
        width=_values_per_row(net, tasks[0], settings),
        on_cpu=where.type == "cpu",
        memory_bytes=free_memory(where),
        max_chunk=max_chunk,
    )
    started = time.perf_counter()
    finished: list[_Program] = []
    diverged: dict[int, int] = {}

    def result() -> FittedRuns:
        order = torch.argsort(torch.tensor([i for p in finished for i in p.chunk.runs]))
        return FittedRuns(
            objective=chosen,
            runs=runs,
            tasks=tasks,
            settings=tuple(settings),
            chunks=tuple(p.fitted() for p in finished),
            history=History.of([p.snapshots for p in finished], order),
            diverged=dict(sorted(diverged.items())),
            select=select if isinstance(select, str) else getattr(select, "__name__", "custom"),
            seconds=time.perf_counter() - started,
        )

    for chunk in chunks:
        done = sum(len(p.chunk.runs) for p in finished)
        program = _Program(chunk, tasks, chosen, settings, net, rule, snapshot_every, where, dtype)

        def tell(step: int, done: int = done, program: _Program = program) -> None:
            if progress is not None:
                now = time.perf_counter() - started
                progress(Progress(step, program.steps, done, len(program.chunk.runs), len(runs), now))

        try:
            program.run(tell)
        except KeyboardInterrupt:
            finished.append(program)
            # only whole calls have every run; a partial result is made where each run has a state
            complete = sum(len(p.chunk.runs) for p in finished) == len(runs)
            raise TrainingInterrupted(result() if complete else None) from None
        finished.append(program)
        diverged |= {chunk.runs[r]: step for r, step in program.guard.report().items()}
    return result()


def _values_per_row(net: Any, task: Task, settings: Sequence[Mapping[str, Any]]) -> int:
    """Values that a step holds per row and run, roughly: the inputs and three tensors per layer width."""
    features = max(1, task.train.x[0].numel())
    if isinstance(net, MLP):
        widths = sum(net.widths)
    elif net is not None:
        widths = 16 * features
    else:
        widths = max(sum(s["hidden"]) for s in settings) + task.n_outputs
    rho = max(s.get("environment_hidden", 0) for s in settings)
    return features + 3 * widths + 3 * rho + 12


@dataclass(frozen=True)
class _Phase:
    """A stretch of steps over which nothing changes but the parameters."""

    start: int
    stop: int
    weights: Tensor  # (R, P) penalty weights that act
    scale: Tensor  # (R,) 1 / divisor
    penalised: bool  # some run has a penalty that acts
    climbing: Tensor | None  # (R,) of 0 and 1: whose rho climbs; None if no one's


class _Program:
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
        self.best: State | None = None
        self.best_score = torch.full((len(chunk.runs),), torch.inf)
        self.step_now = 0
        self._membership: Membership | None = None

    def _column(self, mine: Sequence[Mapping[str, Any]], name: str) -> Tensor:
        return torch.tensor([float(s[name]) for s in mine], device=self.device, dtype=self.dtype)

    # ---- set-up ----------------------------------------------------------------------------------------------

    def _make_rho(self, mine: Sequence[Mapping[str, Any]]) -> None:
        aux = [t.train.aux for t in self.tasks]
        assert all(a is not None for a in aux)
        n_aux = aux[0].shape[1]  # type: ignore[union-attr]
        self.rho_net = AuxNetwork(n_aux, self.static["n_environments"], self.static["environment_hidden"])
        self.n_environments = self.rho_net.n_environments
        self.aux_scalers = tuple(AuxScaler.of(a.to(self.dtype), self.static["aux_scaling"]) for a in aux if a is not None)
        self.rho = FlatParameters([self.rho_net.init(g) for g in self.generators], self.device, self.dtype)
        self.rho_rate = self._column(mine, "environment_learning_rate")
        self.rho_adam = Adam(self.rho, self.rho_rate, maximise=True)

    def _lay_out_rows(self) -> None:
        """Put the rows where a step reads them: x, y, and who belongs to which environment."""
        rows = [t.train for t in self.tasks]
        x = torch.stack([r.x for r in rows]).to(self.device, self.dtype)  # (T, N, ...)
        y = torch.stack([r.y for r in rows]).to(self.device)  # (T, N) or (T, N, C)
        y = y.to(self.dtype) if y.is_floating_point() else y
        n_rows = x.shape[1]
        codes = torch.stack([_codes(r.environment, n_rows) for r in rows])  # (T, N)
        aux = None
        if self.rho_net is not None:
            scaled = [s(r.aux.to(self.dtype)) for s, r in zip(self.aux_scalers, rows, strict=True) if r.aux is not None]
            aux = torch.stack(scaled).to(self.device)  # (T, N, A)
        size = self.static["batch_size"]
        if size == "auto":
            size = None if n_rows < 100_000 else 1024
        self.batches: StratifiedBatches | None = None
        self.aux_rows: AuxRows | None = None
        if size is not None and size < n_rows:
            self.x, self.y, self.codes, self.aux = x, y, codes.to(self.device), aux
            per_run = [codes[t] for t in range(self.n_sets) for _ in range(self.per_set)]
            self.batches = StratifiedBatches(per_run, size, self.generators)
            return
        if aux is not None:
            self.aux_rows = lay_out(aux, self.per_set)
            order = self.aux_rows.order
            shape = self.aux_rows.blocks.rows_shape if hasattr(self.aux_rows, "blocks") else (n_rows,)
        else:
            needed = codes if self.uses else torch.zeros_like(codes)  # ERM: one block, nothing padded
            blocks = Blocks.of(needed, self.n_environments if self.uses else 1, self.per_set)
            self.given = blocks.to(self.device, self.dtype)
            order, shape = self.given.order, self.given.rows_shape
        if order is not None:
            index = torch.arange(self.n_sets, device=self.device).unsqueeze(1)
            x, y = x[index, order], y[index, order]
        self.x = self.net.prepare(x)
        self.y = y.view(self.n_sets, 1, *shape, *y.shape[2:])
        self.rows_shape = shape

    def _make_phases(self, mine: Sequence[Mapping[str, Any]]) -> list[_Phase]:
        """Cut the steps where a run's warm-up ends."""
        n_penalties = len(self.objective.penalties)
        if not n_penalties:
            ones = torch.ones(len(mine), device=self.device, dtype=self.dtype)
            return [_Phase(0, self.steps, ones.new_zeros(len(mine), 0), ones, False, None)]
        full = torch.tensor(
            [self.objective.weights(s["penalty_weight"]) for s in mine], device=self.device, dtype=self.dtype
        )  # (R, P)
        self.climb_weights = full / full.amax(1, keepdim=True).clamp_min(torch.finfo(self.dtype).tiny)
        self.climb_weights[full.amax(1) == 0] = 1  # lambda = 0: rho still shows what it finds
        warm = torch.tensor([_warmup_steps(s["warmup"], self.steps) for s in mine], device=self.device)
        annealed = self.static.get("schedule") == "annealed"
        cuts = sorted({0, self.steps, *(int(w) for w in warm if w < self.steps)})
        phases = []
        for start, stop in zip(cuts, cuts[1:], strict=False):
            acting = start >= warm  # (R,)
            weights = torch.where(acting.unsqueeze(1), full, self.objective.warmup_weight(full))
            divisor = self.objective.divisor(weights.sum(1))
            scale = torch.where(acting, 1 / divisor, 1.0) if self.static["normalise"] else torch.ones_like(divisor)
            climbing = None
            if self.rho_net is not None:
                climbing = (~acting if annealed else torch.ones_like(acting)).to(self.dtype)
                climbing = climbing if bool(climbing.any()) else None
            phases.append(_Phase(start, stop, weights, scale.to(self.dtype), bool(weights.any()), climbing))
        return phases

    def _make_watcher(self) -> Watcher:
        held_out = [t.held_out for t in self.tasks]
        rows = [t.train if h is None else h for t, h in zip(self.tasks, held_out, strict=True)]
        aux = None
        if self.rho_net is not None:
            aux = torch.stack([s(r.aux.to(self.dtype)) for s, r in zip(self.aux_scalers, rows, strict=True) if r.aux is not None])
        return Watcher(
            rows,
            self.per_set,
            "train" if held_out[0] is None else "held-out",
            self.net,
            self.loss,
            self.rho_net,
            aux,
            self.n_environments,
            self.vector,
            self.device,
            self.dtype,
        )

    # ---- training --------------------------------------------------------------------------------------------

    def run(self, tell: Callable[[int], None]) -> None:
        every = max(1, self.steps // 100)
        for phase in self.phases:
            self._membership = None
            self.l2_gradient = self.phi.spread(2 * self.l2 * phase.scale) if bool(self.l2.any()) else None
            if phase.climbing is not None:
                self.rho_adam.set_rate(self.rho_rate * phase.climbing)
            for step in range(phase.start, phase.stop):
                if step % every == 0:
                    tell(step)
                if self.snapshot_every and step % self.snapshot_every == 0:
                    self._snapshot()
                self._step(phase)
                self.step_now = step + 1
                if self.guard.all_dead:
                    break
        if self.watcher is not None:
            self._snapshot()
        tell(self.steps)

    def _step(self, phase: _Phase) -> None:
        x, y, shape, aux_rows, given = self._rows()
        self.phi.gradient.zero_()
        out = self.net.forward(self.phi.views, x, training=True)
        f = out.logits.view(self.n_sets, self.per_set, *shape, *out.logits.shape[2:])
        slopes_matter = phase.penalised or phase.climbing is not None
        value, slope = per_sample(self.loss, f, y, "slope" in self.uses and slopes_matter, out.last, self.vector)
        halves = self.batches is not None and slopes_matter and self.objective.wants_halves(self.static)
        if phase.climbing is not None:
            self._climb(value.detach(), None if slope is None else slope.detach(), aux_rows, halves)
        if not phase.penalised and "risk" not in self.uses:
            total = self._mean(value, given)
        else:
            membership = given or self._inferred(aux_rows, phase)
            e = summarise(value, slope, membership, self.uses, halves)
            total = self.objective.risk(e, self.static)
            if phase.penalised:
                for k, penalty in enumerate(self.objective.penalty_values(e, self.static)):
                    total = total + phase.weights[:, k] * penalty
        total.backward(phase.scale)
        if self.l2_gradient is not None:
            self.phi.gradient.addcmul_(self.phi.vector, self.l2_gradient)
        self.guard.check(total.detach(), self.step_now, self.adam, self.rho_adam if phase.climbing is not None else None)
        self.adam.step()

    def _mean(self, value: Tensor, given: Membership | None) -> Tensor:
        """Mean loss of every run, pads left out: (R,)."""
        weight = getattr(given if given is not None else getattr(self.aux_rows, "blocks", None), "weight", None)
        if weight is None:
            return value.flatten(2).mean(2).flatten()
        return ((value * weight).flatten(2).sum(2) / weight.flatten(2).sum(2)).flatten()

    def _climb(self, value: Tensor, slope: Tensor | None, aux_rows: AuxRows | None, halves: bool) -> None:
        """One step of rho up the penalties; Phi stands still."""
        assert self.rho_net is not None and aux_rows is not None
        self.rho.gradient.zero_()
        e = summarise(value, slope, self.rho_net.membership(self.rho.views, aux_rows), self.uses, halves)
        penalties = torch.stack(self.objective.penalty_values(e, self.static), 1)  # (R, P)
        (self.climb_weights * penalties).sum().backward()  # type: ignore[no-untyped-call]
        self.guard.check_rho(self.step_now, self.rho_adam)
        self.rho_adam.step()

    def _inferred(self, aux_rows: AuxRows | None, phase: _Phase) -> Membership:
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
        n_runs, size = index.shape
        sets = torch.arange(self.n_sets, device=self.device).repeat_interleave(self.per_set).unsqueeze(1)
        # every run has rows of its own, so each is a data set of its own in the first layer
        x = self.net.prepare(self.x[sets, index])
        y = self.y[sets, index].view(self.n_sets, self.per_set, size, *self.y.shape[2:])
        shape = (size,)
        if self.rho_net is not None:
            assert self.aux is not None
            return x, y, shape, PlainRows(self.aux[sets, index].transpose(1, 2).contiguous(), None, self.n_sets), None
        codes = self.codes[sets, index].view(self.n_sets, self.per_set, size)
        return x, y, shape, None, Codes(codes, self.n_environments)

    # ---- what is kept ----------------------------------------------------------------------------------------

    def _state(self) -> State:
        buffers = self.net.buffers() if isinstance(self.net, Module) else []
        steps = torch.full((len(self.chunk.runs),), self.step_now)
        for r, step in self.guard.report().items():
            steps[r] = step
        return State(
            _to_cpu(self.phi.state()), _to_cpu(self.rho.state()) if self.rho_net is not None else None, buffers, steps
        )

    @torch.no_grad()
    def _snapshot(self) -> None:
        assert self.watcher is not None
        rho = self.rho.views if self.rho_net is not None else None
        snapshot = self.watcher.look(self.step_now, self.phi.views, rho)
        self.snapshots.append(snapshot)
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

    def fitted(self) -> FittedChunk:
        return FittedChunk(self.chunk, self.net, self._state(), self.best, self.rho_net, self.aux_scalers)


def _network(net: Net | Callable[[], nn.Module] | None, task: Task, hidden: Sequence[int]) -> Net:
    if net is None:
        if task.train.x.ndim > 2:
            raise ValueError(
                f"x has shape (rows, {', '.join(map(str, task.train.x.shape[1:]))}); hidden=... is for tables (rows, "
                "features). Give net=irmtv.engine.Conv1d(...) or a function that returns a torch.nn.Module."
            )
        return MLP(task.train.x.shape[1], hidden, task.n_outputs)
    if isinstance(net, Module):
        return net.subset()
    if hasattr(net, "shapes") and hasattr(net, "forward") and not isinstance(net, nn.Module):
        return net  # type: ignore[return-value]
    if callable(net) and not isinstance(net, nn.Module):
        return Module(net, task.n_outputs)
    raise ValueError(
        "net must be a network of irmtv.engine or a function that returns a new torch.nn.Module (each run starts "
        f"its own). Got {type(net).__name__}; wrap it: net=lambda: MyModule(...)."
    )


def _codes(environment: Tensor | None, n_rows: int) -> Tensor:
    return torch.zeros(n_rows, dtype=torch.int64) if environment is None else environment


def _warmup_steps(warmup: float, steps: int) -> int:
    return warmup if isinstance(warmup, int) else round(warmup * steps)


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
