"""Fitted runs: the states that training leaves, in the order of the call, and what is computed from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from irmtv.core.messages import did_you_mean
from irmtv.core.types import Rows, Runs, Task
from irmtv.engine.networks import MLP, Module, Net
from irmtv.engine.plan import Chunk
from irmtv.engine.snapshots import History
from irmtv.metrics import EnvironmentTable, evaluate_environments
from irmtv.objectives.base import Objective
from irmtv.objectives.environments.aux_network import AuxNetwork, AuxScaler


@dataclass(frozen=True)
class State:
    """Parameters of a chunk of runs at one moment (for the best state: at each run's own best step)."""

    parameters: Mapping[str, Tensor]  # (R, ...)
    rho: Mapping[str, Tensor] | None  # (R, ...)
    buffers: list[dict[str, Tensor]] = field(default_factory=list)
    steps: Tensor = field(default_factory=lambda: torch.zeros(0))  # (R,) the step of each run's state
    learned: Mapping[str, Tensor] = field(default_factory=dict)  # what was learned beside Phi and rho: (R, ...)

    def take(self, index: Tensor) -> State:
        """The runs at `index`."""
        buffers = [self.buffers[int(i)] for i in index] if self.buffers else []
        return replace(self._each(lambda v: v[index]), buffers=buffers)

    def cpu(self) -> State:
        """On the CPU."""
        return self._each(lambda v: v.detach().cpu())

    def _each(self, change: Callable[[Tensor], Tensor]) -> State:
        def all_of(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {k: change(v) for k, v in values.items()}

        rho = None if self.rho is None else all_of(self.rho)
        return State(all_of(self.parameters), rho, self.buffers, change(self.steps), all_of(self.learned))

    def updated(self, new: State, better: Tensor) -> State:
        """The new state of the runs where it is better, (R,) bool, and this one of the others."""

        def pick(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {k: torch.where(better.view(-1, *(1,) * (v.ndim - 1)), b[k], v) for k, v in a.items()}

        rho = None if self.rho is None or new.rho is None else pick(self.rho, new.rho)
        pairs = zip(self.buffers, new.buffers, better, strict=True) if self.buffers else ()
        buffers = [n if b else o for o, n, b in pairs]
        steps = torch.where(better, new.steps, self.steps)
        return State(pick(self.parameters, new.parameters), rho, buffers, steps, pick(self.learned, new.learned))


@dataclass(frozen=True)
class FittedChunk:
    """One chunk of runs: its network and states."""

    chunk: Chunk
    net: Net
    last: State
    best: State | None
    rho: AuxNetwork | None
    aux_scalers: tuple[AuxScaler, ...]
    kept: Mapping[int, State] = field(default_factory=dict)  # step -> state, where every snapshot's was kept


@dataclass(frozen=True, repr=False)
class FittedRuns:
    """R trained runs. Index 0 of every result is the runs' axis, in the order of `runs`."""

    objective: Objective
    runs: Runs
    tasks: tuple[Task, ...]
    settings: tuple[Mapping[str, Any], ...]  # every setting of every run, defaults included
    chunks: tuple[FittedChunk, ...] = field(repr=False)
    history: History | None = field(repr=False)
    diverged: Mapping[int, int]  # run -> step at which it turned non-finite and was frozen
    select: str
    seconds: float

    def __len__(self) -> int:
        return len(self.runs)

    def __repr__(self) -> str:
        failed = f", {len(self.diverged)} diverged" if self.diverged else ""
        return (
            f"FittedRuns({self.objective.name!r}, {self.runs!r}, select={self.select!r}, {self.seconds:.1f} s{failed})"
        )

    def state(self, which: Literal["selected", "last"] = "selected") -> list[State]:
        """The states to predict with, one per chunk: the selection rule's choice, or the last step."""
        if which not in ("selected", "last"):
            raise ValueError(f"which must be 'selected' or 'last'. Got {which!r}.")
        return [c.last if which == "last" or c.best is None else c.best for c in self.chunks]

    @property
    def steps(self) -> Tensor:
        """(R,) the step at which each run's selected state was taken."""
        return self._in_order([s.steps for s in self.state()])

    def at(self, step: int) -> FittedRuns:
        """These runs as they were at a snapshot; needs `train(..., keep_states=True)`.

        A run without a snapshot of its own at that step is as it was at its last one before: at its end, where it had
        ended by then (fewer steps, or diverged). `steps` says which.
        """
        steps = sorted({s for c in self.chunks for s in c.kept})
        if step not in steps:
            hint = f"one of {steps}" if steps else "nothing: train with snapshot_every=... and keep_states=True"
            raise ValueError(f"step must be a snapshot whose states were kept, {hint}. Got {step!r}.")

        def then(chunk: FittedChunk) -> State:
            before = [s for s in chunk.kept if s <= step]
            return chunk.kept[max(before)] if before else chunk.last

        return replace(self, chunks=tuple(replace(c, last=then(c), best=None) for c in self.chunks))

    def logits(
        self,
        x: Any,
        *,
        aux: Any = None,
        which: Literal["selected", "last"] = "selected",
        batch_rows: int = 1 << 16,
    ) -> Tensor:
        """Outputs of every run: (R, N), or (R, N, C).

        Parameters
        ----------
        x
            Array (N, ...) that all runs read, columns in the order of training, or a sequence with one array per data
            set.
        aux
            Auxiliary variables of these rows, (N, A) or one array per data set, as they were given for training: for
            objectives whose predictor reads them beside x. Others ignore them.
        which
            "selected" for the selection rule's state, "last" for the last step.
        batch_rows
            Rows computed at a time, to bound memory.
        """
        inputs, beside = self._features(x), None
        if self.objective.reads_aux:
            if aux is None:
                raise ValueError(
                    f"aux must be given: the predictor of {self.objective.name!r} reads aux beside x. Use "
                    "logits(x, aux=...), or evaluate(make_task(..., aux=...).train), with the columns of the training "
                    "rows."
                )
            beside = self._aux(aux)
        parts = []
        for fitted, state in zip(self.chunks, self.state(which), strict=True):
            stacked = _read(fitted, inputs, beside, next(iter(state.parameters.values())))
            if isinstance(fitted.net, Module) and state.buffers:
                fitted.net.load_buffers(state.buffers)
            with torch.no_grad():
                pieces = [
                    fitted.net.forward(state.parameters, fitted.net.prepare(piece)).logits
                    for piece in torch.split(stacked, batch_rows, 1)
                ]
            parts.append(torch.cat(pieces, 1))
        return self._in_order(parts)

    def membership(self, aux: Any = None, *, x: Any = None, which: Literal["selected", "last"] = "selected") -> Tensor:
        """Probability of each inferred environment: (R, N, E).

        Without aux, of every run's own training rows. With it, of rows with these auxiliary variables: aux is (N, A)
        for all runs, or a sequence with one array of N rows per data set; x likewise, for an objective that infers
        environments from x too (others ignore it). An objective that infers environments row by row has none for other
        rows; before it has inferred them they are NaN.
        """
        if aux is None and x is not None:
            raise ValueError("x goes with aux: membership(aux, x=...). Without both: the training rows' memberships.")
        if self.chunks[0].rho is None:
            return self._membership_by_row(aux, which)
        if aux is None:
            own = [t.train for t in self.tasks]
            aux, x = ([r.aux for r in own], [r.x for r in own]) if len(own) > 1 else (own[0].aux, own[0].x)
        inputs = self._aux(aux)
        if len({len(z) for z in inputs}) > 1:
            raise ValueError(
                f"aux must have as many rows for every data set. Got {[len(z) for z in inputs]}; give one at a time."
            )
        reads_x = self.objective.infers == "rest"
        if reads_x and x is None:
            raise ValueError(
                f"x must be given: {self.objective.name!r} infers environments from x and aux together. Use "
                "membership(aux, x=...)."
            )
        features = self._features(x) if reads_x else None
        parts = []
        for fitted, state in zip(self.chunks, self.state(which), strict=True):
            assert fitted.rho is not None and state.rho is not None
            scaled = _read(fitted, features, inputs, state.rho["W"]).transpose(1, 2)  # (T, A, N)
            with torch.no_grad():
                q = fitted.rho.from_logits(fitted.rho.logits(state.rho, scaled), len(scaled)).q  # (T, K, E, N)
            parts.append(q.flatten(0, 1).transpose(1, 2))
        return self._in_order(parts)

    def _features(self, x: Any) -> list[Tensor]:
        """x as one array for all runs, or one per data set."""
        per_set = isinstance(x, (list, tuple)) and len(self.tasks) > 1
        inputs = [_tensor(v) for v in (x if per_set else [x])]
        if per_set and len(inputs) != len(self.tasks):
            raise ValueError(
                f"x must be one array for all runs or one per data set ({len(self.tasks)}). Got {len(inputs)} arrays."
            )
        expected = self.tasks[0].train.x.shape[1:]
        for v in inputs:
            if v.shape[1:] != expected:
                raise ValueError(
                    f"x must have the features of the training rows, (rows, {', '.join(map(str, expected))}). "
                    f"Got {tuple(v.shape)}."
                )
        return inputs

    def _aux(self, aux: Any) -> list[Tensor]:
        """aux as one array (N, A) for all runs, or one per data set."""
        assert self.tasks[0].train.aux is not None
        n_columns = self.tasks[0].train.aux.shape[1]
        arrays = isinstance(aux, (list, tuple)) and all(hasattr(a, "shape") for a in aux)  # not rows of numbers
        per_set = arrays and len(self.tasks) > 1 and len(aux) == len(self.tasks)
        inputs = [_tensor(a) for a in (aux if per_set else [aux])]
        inputs = [z.unsqueeze(-1) if z.ndim == 1 else z for z in inputs]  # (N, A)
        for z in inputs:
            if z.ndim != 2 or z.shape[1] != n_columns:
                raise ValueError(
                    f"aux must have the columns of the training rows, (rows, {n_columns}). Got {tuple(z.shape)}."
                )
        return inputs

    def _membership_by_row(self, aux: Any, which: Literal["selected", "last"]) -> Tensor:
        """Of the training rows, where each has a membership of its own."""
        first = [s.rho["q"] for s in self.state(which) if s.rho is not None and "q" in s.rho]  # (R', N) per chunk
        if not first:
            raise ValueError(
                f"membership() is for objectives that infer environments from aux or row by row. "
                f"{self.objective.name!r} does not; learned(...) gives what else its runs learned."
            )
        if aux is not None:
            raise ValueError(
                f"aux must be None for {self.objective.name!r}, which infers the environment of each training row by "
                "itself: other rows have no membership. Use membership() for the training rows."
            )
        sizes = sorted({q.shape[1] for q in first})
        if len(sizes) > 1:
            raise ValueError(
                f"membership() makes one table of all runs, so every data set must have as many rows. Got {sizes}; "
                "train on each in a call of its own."
            )
        return self._in_order([torch.stack([q, 1 - q], 2) for q in first])

    def learned(self, name: str, *, which: Literal["selected", "last"] = "selected") -> Tensor:
        """What every run learned beside Phi, by name: (R, ...).

        "penalty_weight" (R,) where it follows Phi, "measure" (R, E) where it is learned, and what a method brings of
        its own (its gates, scores, weights of the environments); an unknown name says what there is.
        """
        states = self.state(which)
        known = sorted(set.intersection(*(set(s.learned) for s in states)))
        if name not in known:
            some = any(name in s.learned for s in states)
            there = f"one of {known}" if known else "nothing: these runs learned Phi alone"
            there += "; some of them learned this one: train those in a call of their own" if some else ""
            raise ValueError(f"name must be what all runs learned: {there}. Got {name!r}.{did_you_mean(name, known)}")
        values = [s.learned[name] for s in states]
        if len({v.shape[1:] for v in values}) > 1:
            raise ValueError(
                f"{name!r} has another shape in some runs, {sorted({tuple(v.shape[1:]) for v in values})}: their data "
                "have other rows or environments. Train on one of them at a time."
            )
        return self._in_order(values)

    def coefficients(self, *, which: Literal["selected", "last"] = "selected") -> tuple[Tensor, Tensor]:
        """Of a linear model: coefficients (R, D) or (R, C, D), and intercepts (R,) or (R, C).

        Where the predictor reads aux beside x (`objective.reads_aux`), D counts the columns of x and then those of aux,
        the latter per unit of standardised aux.
        """
        coef, intercept = [], []
        for fitted, state in zip(self.chunks, self.state(which), strict=True):
            if not isinstance(fitted.net, MLP) or len(fitted.net.widths) > 2:
                raise ValueError("coefficients() is for linear models, hidden=() and no net=. This network is another.")
            w, b = state.parameters["W0"], state.parameters["b0"].squeeze(2)
            coef.append(w.squeeze(1) if w.shape[1] == 1 else w)
            intercept.append(b.squeeze(1) if b.shape[1] == 1 else b)
        return self._in_order(coef), self._in_order(intercept)

    def evaluate(
        self,
        rows: Rows | Sequence[Rows] | None = None,
        *,
        metric: str | None = None,
        n_bootstrap: int = 0,
        random_state: int | None = None,
        which: Literal["selected", "last"] = "selected",
    ) -> EnvironmentTable:
        """Per-environment results of every run: on `rows`, or on each run's own test rows.

        `metric` is "accuracy" for classification and "mse" for regression unless named.
        """
        given: Any = [t.test for t in self.tasks] if rows is None else rows
        sets: list[Rows] = list(given) if isinstance(given, (list, tuple)) else [given]
        for task, own in zip(self.tasks, sets, strict=False):
            if rows is None and own is None:
                raise ValueError(f"evaluate() needs rows: the task {task.name!r} has no test rows.")
        if not all(isinstance(s, Rows) for s in sets):
            raise ValueError(
                "rows must be irmtv.Rows, or one for each data set: task.train, task.test, or from arrays "
                f"make_task(x, y, environment=...).train. Got {type(rows).__name__}."
            )
        x: Any = sets[0].x
        aux: Any = sets[0].aux
        y, environment = sets[0].y, sets[0].environment
        if len(sets) > 1:
            sizes = [len(s) for s in sets]
            if len(set(sizes)) > 1:
                raise ValueError(
                    f"evaluate() makes one table of all runs, so every data set must have as many rows. Got {sizes}; "
                    "evaluate on one set of rows at a time, evaluate(rows)."
                )
            owner = torch.tensor(self.runs.column("data"))
            x, aux = [s.x for s in sets], [s.aux for s in sets]
            aux = None if any(a is None for a in aux) else aux
            y = torch.stack([s.y for s in sets])[owner]
            if environment is not None:
                environment = torch.stack([s.environment for s in sets if s.environment is not None])[owner]
        return evaluate_environments(
            self.logits(x, aux=aux, which=which),
            y,
            environment,
            metric=metric or ("mse" if self.tasks[0].loss.name not in ("binary", "multiclass") else "accuracy"),
            names=sets[0].names or None,
            n_bootstrap=n_bootstrap,
            random_state=random_state,
        )

    def _in_order(self, parts: Sequence[Tensor]) -> Tensor:
        positions = torch.tensor([i for c in self.chunks for i in c.chunk.runs])
        return torch.cat(list(parts))[torch.argsort(positions)]


def _read(fitted: FittedChunk, x: Sequence[Tensor] | None, aux: Sequence[Tensor] | None, like: Tensor) -> Tensor:
    """What a network reads: x, standardised aux or both, (T, N, ...); (1, N, ...) where all data sets read the same."""
    data = fitted.chunk.data

    def each(arrays: Sequence[Tensor]) -> list[Tensor]:  # one per data set of the chunk
        return [arrays[d] for d in data] if len(arrays) > 1 else list(arrays) * len(data)

    if aux is None:
        assert x is not None
        return torch.stack(each(x) if len(x) > 1 else list(x)).to(like)
    scaled = [s(z, like.dtype).to(like) for s, z in zip(fitted.aux_scalers, each(aux), strict=True)]
    if x is None:
        return torch.stack(scaled)
    for a, z in zip(each(x), scaled, strict=True):
        if len(a) != len(z):
            raise ValueError(f"aux must have one row for every row of x. Got {len(z)} rows of aux and {len(a)} of x.")
    return torch.stack([torch.cat([a.to(like), z], 1) for a, z in zip(each(x), scaled, strict=True)])


def _tensor(values: Any) -> Tensor:
    """From any array. Read-only ones (a DataFrame's) and reversed ones are copied: torch takes neither as they are."""
    return values if isinstance(values, Tensor) else torch.as_tensor(np.require(values, requirements=["C", "W"]))
