"""rho: a small network that reads auxiliary variables and gives each row a probability of each environment.

    rho(z) = softmax( V relu(W z + b) + c ),    two environments: q = (sigmoid(.), 1 - sigmoid(.))

Its hidden layer is the costliest part of a minimax step, and often need not be computed row by row:

* one auxiliary column, rows sorted by it: `sorted_relu_layer`, two cumulative sums for any width;
* few distinct auxiliary rows (years, attributes): the network runs on those alone (`GroupedRows`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from irmtv.core.membership import Blocks, Membership, Soft, SoftPair, at_least_rounding
from irmtv.objectives.environments.sorted_relu import sorted_relu_layer

Parameters = Mapping[str, Tensor]


@dataclass(frozen=True)
class AuxScaler:
    """Standardises aux by the training rows: per column, or with one mean and deviation for the matrix.

    Rows with weights count by them, so that a row of weight 2 is two rows here too.

    In float64 until the end: seconds since 1970 have a resolution of two minutes in float32.
    """

    mean: Tensor  # (A,) or ()
    deviation: Tensor

    @classmethod
    def of(
        cls, aux: Tensor, scaling: Literal["column", "authors"] = "column", weight: Tensor | None = None
    ) -> AuxScaler:
        """From the training rows' aux (N, A) and, where they have them, their weights (N,)."""
        aux = aux.double()
        if weight is not None:
            aux, weight = aux[weight > 0], weight[weight > 0].double()
        axis = 0 if scaling == "column" else (0, 1)
        varies = aux.amax(axis) > aux.amin(axis)  # the deviation of a constant is 0 only up to rounding
        if weight is None:
            return cls(aux.mean(axis), torch.where(varies, aux.std(axis, correction=0), 1))
        share = (weight / weight.sum()).unsqueeze(1)  # (N, 1)
        share = share if scaling == "column" else share / aux.shape[1]
        mean = (share * aux).sum(axis)
        return cls(mean, torch.where(varies, (share * (aux - mean).square()).sum(axis).sqrt(), 1))

    def __call__(self, aux: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """aux (N, A), standardised, in `dtype` (by default its own)."""
        return ((aux.double() - self.mean) / self.deviation).to(dtype or aux.dtype)


@dataclass(frozen=True)
class AuxNetwork:
    """The shapes, the start and the forward pass of rho; the parameters live in the training state."""

    n_aux: int
    n_environments: int = 2
    hidden: int = 16

    @property
    def n_outputs(self) -> int:
        return 1 if self.n_environments == 2 else self.n_environments

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Per run."""
        return {
            "W": (self.hidden, self.n_aux),
            "b": (self.hidden,),
            "V": (self.n_outputs, self.hidden),
            "c": (self.n_outputs,),
        }

    def init(self, generator: torch.Generator) -> dict[str, Tensor]:
        """One run's start: Xavier-uniform weights, zero biases."""
        start = {}
        for name, shape in self.shapes.items():
            start[name] = torch.zeros(shape, dtype=torch.float64)
            if len(shape) == 2:
                bound = math.sqrt(6 / sum(shape))
                start[name].uniform_(-bound, bound, generator=generator)
        return start

    def logits(self, p: Parameters, z: Tensor) -> Tensor:
        """(T, A, N) -> (R, outputs, N)."""
        n_sets, n_runs = len(z), len(p["W"])
        w = p["W"].reshape(n_sets, -1, self.n_aux)  # (T, K hidden, A)
        hidden = torch.baddbmm(p["b"].reshape(n_sets, -1, 1), w, z).relu().view(n_runs, self.hidden, -1)
        return torch.baddbmm(p["c"].unsqueeze(-1), p["V"], hidden)

    def from_logits(self, logits: Tensor, n_sets: int) -> Soft | SoftPair:
        """(R, outputs, N) -> q."""
        shaped = logits.view(n_sets, -1, *logits.shape[1:])  # (T, K, outputs, N)
        if self.n_outputs == 1:
            return SoftPair(torch.sigmoid(shaped.squeeze(2)))
        return Soft(torch.softmax(shaped, 2))


@dataclass(frozen=True)
class PlainRows:
    """Any aux: the network runs on every row."""

    z: Tensor  # (T, A, N), or (R, A, N) where every run has rows of its own (mini-batches)
    order: Tensor | None = None
    n_sets: int | None = None  # T, where z does not tell

    def membership(self, net: AuxNetwork, p: Parameters) -> Membership:
        return net.from_logits(net.logits(p, self.z), self.n_sets or len(self.z))


@dataclass(frozen=True)
class SortedRows:
    """One aux column, rows sorted by it."""

    z: Tensor  # (T, N), ascending
    order: Tensor  # (T, N)

    def membership(self, net: AuxNetwork, p: Parameters) -> Membership:
        logits = sorted_relu_layer(self.z, p["W"].squeeze(2), p["b"], p["V"], p["c"])
        return net.from_logits(logits, len(self.z))


@dataclass(frozen=True)
class GroupedRows:
    """Few distinct aux rows: sum over the rows that share one, then weigh the sums by q of that one."""

    z: Tensor  # (T, A, U) the distinct rows
    blocks: Blocks  # of the rows, by which distinct row they have

    @property
    def order(self) -> Tensor:
        return self.blocks.order

    def membership(self, net: AuxNetwork, p: Parameters) -> Membership:
        return Grouped(self.blocks, net.from_logits(net.logits(p, self.z), len(self.z)))


AuxRows = PlainRows | SortedRows | GroupedRows


@dataclass(frozen=True)
class Grouped:
    """Membership of rows through the membership of their groups."""

    blocks: Blocks
    q: Soft | SoftPair

    @property
    def n_environments(self) -> int:
        return self.q.n_environments

    @property
    def rows_shape(self) -> tuple[int, ...]:
        return self.blocks.rows_shape

    @property
    def total(self) -> Tensor:
        return self.blocks.total

    @property
    def weight(self) -> Tensor | None:
        return self.blocks.weight

    @cached_property
    def _counts(self) -> Tensor:  # (R, E)
        counts = self.blocks.counts.unsqueeze(1).expand(-1, self.blocks.per_set, -1)  # (T, K, U)
        return self.q.sums(counts)

    @property
    def rows(self) -> Tensor:
        return at_least_rounding(self._counts, self.total.unsqueeze(1))

    @cached_property
    def mass(self) -> Tensor:
        return self._counts / self.total.unsqueeze(1)

    def sums(self, v: Tensor) -> Tensor:
        per_group = self.blocks.sums(v)  # (R, U) or (R, U, J)
        return self.q.sums(per_group.view(*v.shape[:2], *per_group.shape[1:]))


def lay_out(aux: Tensor, per_set: int, weight: Tensor | None = None) -> AuxRows:
    """Choose the cheapest layout for standardised aux (T, N, A) of T data sets.

    Groups hold the rows' weights (T, N), where there are any; the other layouts leave them to the sums.
    """
    _, n_rows, n_aux = aux.shape
    distinct = [_distinct_rows(a) for a in aux]
    sizes = {len(values) for values, _ in distinct}
    if len(sizes) == 1 and max(sizes) <= n_rows // 4:
        blocks = Blocks.of(torch.stack([codes for _, codes in distinct]), max(sizes), per_set, weight)
        z = torch.stack([values.T for values, _ in distinct])
        return GroupedRows(z.contiguous(), blocks.to(aux.device, aux.dtype))
    if n_aux == 1:
        z, order = aux.squeeze(2).sort(1)
        return SortedRows(z, order)
    return PlainRows(aux.transpose(1, 2).contiguous())


def _distinct_rows(aux: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows of (N, A), (U, A), and for every row the number of its distinct row, (N,).

    Column by column: `torch.unique(dim=0)` gives the same and takes a hundred times as long.
    """
    codes = torch.zeros(len(aux), dtype=torch.int64, device=aux.device)
    for column in aux.T:
        values, code = torch.unique(column, return_inverse=True)
        _, codes = torch.unique(codes * len(values) + code, return_inverse=True)
    n_distinct = int(codes.max()) + 1
    rows = torch.empty(n_distinct, aux.shape[1], dtype=aux.dtype, device=aux.device)
    rows[codes] = aux
    return rows, codes
