"""What everybody who acts in one chunk of runs shares: its data sets, settings, random streams and the clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from irmtv.core.types import Rows, Task, weights_of
from irmtv.engine.noise import Noise
from irmtv.engine.plan import Chunk
from irmtv.objectives.base import Objective
from irmtv.objectives.environments.aux_network import AuxScaler


class Stage:
    """T data sets with K runs on each; R = T K runs, data set by data set."""

    def __init__(
        self,
        chunk: Chunk,
        tasks: Sequence[Task],
        settings: Sequence[Mapping[str, Any]],
        objective: Objective,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.chunk, self.device, self.dtype = chunk, device, dtype
        self.static: Mapping[str, Any] = dict(chunk.static)  # settings that all of these runs share
        self.objective = objective.chosen(self.static)
        self.settings = [settings[i] for i in chunk.runs]
        self.tasks = [tasks[d] for d in chunk.data]
        self.loss, self.n_outputs = self.tasks[0].loss, self.tasks[0].n_outputs
        self.n_sets, self.n_runs = len(chunk.data), len(chunk.runs)
        self.per_set = self.n_runs // self.n_sets
        self.weights = weights_of([t.train for t in self.tasks])  # (T, N) float64, or None: all rows count the same
        self.steps: int = self.static["steps"]
        # a run's randomness is its own: its seed alone decides, whatever trains beside it
        self.generators = [torch.Generator().manual_seed(int(s["seed"])) for s in self.settings]
        self.aux_scalers = self._make_scalers()
        self.step = 0
        # on a GPU the step number lives there too, so that a recorded step counts on
        self.clock = None if device.type == "cpu" else torch.zeros((), dtype=torch.int64, device=device)

    def _make_scalers(self) -> tuple[AuxScaler, ...]:
        if "aux_scaling" not in self.static:
            return ()
        # `check_tasks` saw to it that all have aux
        aux = [t.train.aux for t in self.tasks if t.train.aux is not None]
        weights = [None] * len(aux) if self.weights is None else list(self.weights)
        return tuple(AuxScaler.of(a, self.static["aux_scaling"], w) for a, w in zip(aux, weights, strict=True))

    @property
    def now(self) -> int | Tensor:
        """The present step, where a recorded step can read it."""
        return self.step if self.clock is None else self.clock

    def set_step(self, step: int) -> None:
        self.step = step
        if self.clock is not None:
            self.clock.fill_(step)

    def tick(self) -> None:
        """At the end of a step, inside what is recorded; `step` itself is the loop's."""
        if self.clock is not None:
            self.clock.add_(1)

    def noise(self, stream: int) -> Noise:
        return Noise([int(s["seed"]) for s in self.settings], self.device, stream)

    def column(self, name: str) -> Tensor:
        """A setting of every run: (R,)."""
        column = torch.tensor([float(s[name]) for s in self.settings], device=self.device, dtype=self.dtype)
        if not bool(column.isfinite().all()):
            raise ValueError(
                f"{name} must fit into {self.dtype}. Got {max(s[name] for s in self.settings)!r}; use a smaller one, "
                "or dtype=torch.float64."
            )
        return column

    def scaled_aux(self, rows: Sequence[Rows]) -> Tensor:
        """Standardised aux of one data set's rows each: (T, N, A)."""
        scaled = [s(r.aux, self.dtype) for s, r in zip(self.aux_scalers, rows, strict=True) if r.aux is not None]
        return torch.stack(scaled).to(self.device)

    def inputs(self, rows: Sequence[Rows]) -> Tensor:
        """What Phi reads of one data set's rows each: x, and standardised aux where it reads that: (T, N, ...)."""
        x = torch.stack([r.x for r in rows]).to(self.device, self.dtype)
        return torch.cat([x.flatten(2), self.scaled_aux(rows)], 2) if self.objective.reads_aux else x

    def targets(self, rows: Sequence[Rows]) -> Tensor:
        """(T, N) or (T, N, C)."""
        y = torch.stack([r.y for r in rows]).to(self.device)
        return y.to(self.dtype) if y.is_floating_point() else y

    def shares(self) -> Tensor | None:
        """What each training row counts, summing to 1 over a data set: (T, N); None where all count the same."""
        if self.weights is None:
            return None
        return (self.weights / self.weights.sum(1, keepdim=True)).to(self.device, self.dtype)
