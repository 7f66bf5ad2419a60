"""What all parts of a chunk of runs share: data sets, settings, random streams and the number of the step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from irmtv.core.membership import Pooled, RowMembership
from irmtv.core.ranks import Ranks
from irmtv.core.types import Rows, Task, codes_of, stacked, weights_of
from irmtv.data.blocks import BlockSource
from irmtv.engine.plan import Chunk
from irmtv.objectives.base import Objective
from irmtv.objectives.environments.aux_network import AuxScaler

MASK = 0xFFFFFFFF  # arithmetic on 32 bits inside int64: a product keeps its low bits when it overflows


class Context:
    """T data sets with K runs on each; R = T K runs, data set by data set."""

    def __init__(
        self,
        chunk: Chunk,
        tasks: Sequence[Task],
        settings: Sequence[Mapping[str, Any]],
        objective: Objective,
        device: torch.device,
        dtype: torch.dtype,
        ranks: Ranks | None = None,
        blocks: BlockSource | None = None,
    ) -> None:
        self.chunk, self.device, self.dtype = chunk, device, dtype
        self.ranks = ranks  # the processes that have the other rows; None where there are none
        self.blocks = blocks  # all rows, of which the task has a sample, the same in all processes; or None
        self.static: Mapping[str, Any] = dict(chunk.static)  # settings that all of these runs share
        self.objective = objective.chosen(self.static)
        self.settings = [settings[i] for i in chunk.runs]
        self.tasks = [tasks[d] for d in chunk.data]
        self.loss, self.n_outputs = self.tasks[0].loss, self.tasks[0].n_outputs
        self.n_sets, self.n_runs = len(chunk.data), len(chunk.runs)
        self.per_set = self.n_runs // self.n_sets
        train = [t.train for t in self.tasks]
        self.codes = codes_of(train)  # (T, N) environments
        self.weights = weights_of(train)  # (T, N) float64, or None: all rows count the same
        self.steps: int = self.static["steps"]
        # a run's random numbers depend on its seed alone, whatever trains beside it
        self.generators = [torch.Generator().manual_seed(int(s["seed"])) for s in self.settings]
        self.aux_scalers = self._make_scalers()
        self.step = 0
        # a step recorded on a GPU reads its number there
        self._on_gpu = None if device.type == "cpu" else torch.zeros((), dtype=torch.int64, device=device)

    def _make_scalers(self) -> tuple[AuxScaler, ...]:
        if "aux_scaling" not in self.static:
            return ()
        # `check_tasks` saw to it that all have aux
        aux = [t.train.aux for t in self.tasks if t.train.aux is not None]
        if self.ranks is not None and self.blocks is None:
            return tuple(scaler_over_ranks(a.to(self.device), self.static["aux_scaling"], self.ranks) for a in aux)
        weights = [None] * len(aux) if self.weights is None else list(self.weights)
        return tuple(AuxScaler.of(a, self.static["aux_scaling"], w) for a, w in zip(aux, weights, strict=True))

    def over_ranks(self, local: Tensor) -> Tensor:
        """The sum over all processes, each with a tensor of its own rows; differentiable."""
        return local if self.ranks is None else self.ranks.add(local)

    def pooled(self, membership: RowMembership) -> RowMembership:
        """A membership of this process's rows, whose sums are over the rows of all processes."""
        return membership if self.ranks is None else Pooled.of(membership, self.ranks.add, self.dtype)

    @property
    def now(self) -> int | Tensor:
        """The number of the step, where a recorded step can read it."""
        return self.step if self._on_gpu is None else self._on_gpu

    def set_step(self, step: int) -> None:
        """Between steps, outside of what is recorded."""
        self.step = step
        if self._on_gpu is not None:
            self._on_gpu.fill_(step)

    def noise(self, stream: int) -> Noise:
        """Random numbers of every run and step; `stream` sets apart the components of a run."""
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

    def full(self, shape: Sequence[int], value: float) -> Tensor:
        """A tensor of one number, in these runs' precision."""
        return torch.full(tuple(shape), value, device=self.device, dtype=self.dtype)

    @cached_property
    def sets(self) -> Tensor:
        """The data set of every run: (R, 1)."""
        return torch.arange(self.n_sets, device=self.device).repeat_interleave(self.per_set).unsqueeze(1)

    def scaled_aux(self, rows: Sequence[Rows]) -> Tensor:
        """Standardised aux of one data set's rows each: (T, N, A)."""
        scaled = [s(r.aux, self.dtype) for s, r in zip(self.aux_scalers, rows, strict=True) if r.aux is not None]
        return torch.stack(scaled).to(self.device)

    def inputs(self, rows: Sequence[Rows]) -> Tensor:
        """What Phi reads of one data set's rows each: x, and standardised aux where it reads that: (T, N, ...).

        Of one data set it may be the data themselves: nobody writes into it.
        """
        x = stacked([r.x for r in rows]).to(self.device, self.dtype)
        return torch.cat([x.flatten(2), self.scaled_aux(rows)], 2) if self.objective.reads_aux else x

    def targets(self, rows: Sequence[Rows]) -> Tensor:
        """(T, N) or (T, N, C)."""
        y = stacked([r.y for r in rows]).to(self.device)
        return y.to(self.dtype) if y.is_floating_point() else y

    def shares(self) -> Tensor | None:
        """Weights of the training rows, summing to 1 over a data set: (T, N); None where all are equal."""
        if self.weights is None:
            return None
        return (self.weights / self.weights.sum(1, keepdim=True)).to(self.device, self.dtype)


def scaler_over_ranks(aux: Tensor, scaling: str, ranks: Ranks) -> AuxScaler:
    """Standardises aux (N, A) by the training rows of all processes, as `AuxScaler.of` does by those of one."""
    aux = aux.double()
    axis = 0 if scaling == "column" else (0, 1)
    n = ranks.total * (1 if scaling == "column" else aux.shape[1])
    mean = ranks.add(aux.sum(axis)) / n
    greatest, least = (ranks.greatest(v) for v in (aux.amax(axis), -aux.amin(axis)))
    deviation = (ranks.add((aux - mean).square().sum(axis)) / n).sqrt()
    return AuxScaler(mean.cpu(), torch.where(greatest > -least, deviation, 1).cpu())


class Noise:
    """Random numbers by counting: a hash of (seed, stream, step, place), the same alone, in a batch, on CPU and GPU.

    Methods with noise at every step need numbers that a recorded step on a GPU can make anew at each replay, and that
    do not depend on which runs train together. A stateful generator gives neither.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device, stream: int = 0) -> None:
        keys = torch.tensor([[s & MASK, s >> 32 & MASK] for s in seeds], dtype=torch.int64, device=device)
        low_and_high = _mix(_mix(keys[:, 0] + 0x9E3779B9 & MASK) + keys[:, 1] & MASK)
        self.key = _mix(low_and_high + stream & MASK)  # (R,)

    def uniform(self, step: int | Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """(R, *shape) in (0, 1), never 0 or 1."""
        place = torch.arange(math.prod(shape), device=self.key.device)
        at_step = _mix(self.key + _mix(torch.as_tensor(step, device=self.key.device) & MASK) & MASK)  # (R,)
        bits = _mix(_mix(place + 0x85EBCA6B & MASK) + at_step.unsqueeze(1) & MASK)  # (R, n)
        # 23 bits and the half: what float32 can hold apart, from 0 and 1 too
        return (((bits >> 9).to(dtype) + 0.5) / 2**23).view(len(self.key), *shape)

    def normal(self, step: int | Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Standard normal, (R, *shape)."""
        normal: Tensor = torch.special.ndtri(self.uniform(step, shape, torch.float64))
        return normal.to(dtype)

    def logistic(self, step: int | Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Standard logistic, the difference of two Gumbel variables: (R, *shape)."""
        return torch.logit(self.uniform(step, shape, torch.float64)).to(dtype)


def _mix(x: Tensor) -> Tensor:
    """A 32-bit integer hash (xor-shift-multiply) that changes half of the bits for each bit of x."""
    x = (x ^ (x >> 16)) * 0x7FEB352D & MASK
    x = (x ^ (x >> 15)) * 0x846CA68B & MASK
    return x ^ (x >> 16)
