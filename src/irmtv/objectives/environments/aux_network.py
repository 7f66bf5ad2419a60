"""rho: a small network that reads auxiliary variables and gives each row a probability of each environment.

    rho(z) = softmax( V relu(W z + b) + c ),    two environments: q = (sigmoid(.), 1 - sigmoid(.))

Its hidden layer is the costliest part of a minimax step, and often need not be computed row by row:

* one auxiliary column, rows sorted by it: `sorted_relu_layer`, a few passes for any width;
* few distinct auxiliary rows (years, attributes): the network runs on those alone (`GroupedRows`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from irmtv.core.membership import Blocks, RowMembership, Soft, SoftPair, at_least_rounding
from irmtv.objectives.environments.sorted_relu import (
    SortedBlocks,
    layer_and_kept,
    layer_gradient,
    sorted_relu_layer,
)

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
        return self.output_layer(p, self.hidden_layer(p, z))

    def hidden_layer(self, p: Parameters, z: Tensor) -> Tensor:
        """(T, A, N) -> (R, hidden, N)."""
        n_sets = len(z)
        w = p["W"].reshape(n_sets, -1, self.n_aux)  # (T, K hidden, A)
        hidden = torch.baddbmm(p["b"].reshape(n_sets, -1, 1), w, z).relu()
        return hidden.view(len(p["W"]), self.hidden, -1)

    def output_layer(self, p: Parameters, hidden: Tensor) -> Tensor:
        return torch.baddbmm(p["c"].unsqueeze(-1), p["V"], hidden)

    def gradient(self, p: Parameters, z: Tensor, hidden: Tensor, by_logits: Tensor) -> dict[str, Tensor]:
        """In the parameters, from that in the logits (R, outputs, N)."""
        inside = torch.bmm(p["V"].transpose(1, 2), by_logits).mul_(hidden > 0)  # (R, hidden, N)
        by_set = inside.view(len(z), -1, z.shape[2])  # (T, K hidden, N)
        return {
            "W": torch.bmm(by_set, z.transpose(1, 2)).view_as(p["W"]),
            "b": inside.sum(2),
            "V": torch.bmm(by_logits, hidden.transpose(1, 2)),
            "c": by_logits.sum(2),
        }

    def from_logits(self, logits: Tensor, n_sets: int) -> Soft | SoftPair:
        """(R, outputs, N) -> q."""
        shaped = logits.view(n_sets, -1, *logits.shape[1:])  # (T, K, outputs, N)
        if self.n_outputs == 1:
            return SoftPair(torch.sigmoid(shaped.squeeze(2)))
        return Soft(torch.softmax(shaped, 2))


def in_logits(q: Soft | SoftPair, v: Tensor, by_environment: Tensor) -> Tensor:
    """The gradient of sum_e g_e sum_i q_ie v_i in the logits (R, outputs, N), of v (T, K, N) and g (R, E)."""
    if isinstance(q, SoftPair):
        curve: Tensor = torch.ops.aten.sigmoid_backward(v.expand_as(q.rho), q.rho)  # v q (1 - q)
        first, second = by_environment.unbind(1)
        return curve.flatten(0, 1).mul_((first - second).unsqueeze(1)).unsqueeze(1)
    by_q = by_environment.view(*q.q.shape[:3], 1) * v.unsqueeze(2)  # (T, K, E, N)
    return (q.q * (by_q - (q.q * by_q).sum(2, keepdim=True))).flatten(0, 1)


@dataclass(frozen=True)
class Climbing:
    """A step of environments up a penalty on slopes, without autograd: places (rows, or distinct rows), what is there.

    The environments' slopes come as G_e = m_e S_e, which are linear in q.
    """

    q: Soft | SoftPair  # of the M places
    slope: Tensor  # (T, K, M) sums of the slopes at a place
    count: Tensor | float  # (T, 1, M) rows at a place, or their weights; a number where all are the same
    total: Tensor | float  # rows in all
    gradient: Callable[[Tensor], dict[str, Tensor]]  # in the parameters, from that in the logits (R, outputs, M)

    @classmethod
    def of_rows(
        cls, q: Soft | SoftPair, slope: Tensor, weight: Tensor | None, gradient: Callable[[Tensor], dict[str, Tensor]]
    ) -> Climbing:
        """Every row is a place of its own; weights (T, 1 or K, N), where there are any, sum to 1."""
        if weight is None:
            return cls(q, slope, 1.0, slope.shape[2], gradient)
        return cls(q, slope * weight, weight, 1.0, gradient)

    def sums(self) -> Tensor:
        """G_e: (R, E)."""
        return self.q.sums(self.slope) / self.total

    def mass(self) -> Tensor:
        """m_e: (R, E)."""
        if isinstance(self.count, float):
            return self.q.mass
        return self.q.sums(self.count.expand(self.slope.shape)) / self.total

    def pull_back(self, by_sum: Tensor, by_mass: Tensor | None) -> dict[str, Tensor]:
        """The gradient in the parameters, from those in G_e and m_e (R, E)."""
        by_logits = in_logits(self.q, self.slope, by_sum / self.total)
        if by_mass is not None:
            count = self.slope.new_full((1, 1, 1), self.count) if isinstance(self.count, float) else self.count
            by_logits = by_logits + in_logits(self.q, count.expand(self.slope.shape), by_mass / self.total)
        return self.gradient(by_logits)


@dataclass(frozen=True)
class PlainRows:
    """Any aux: the network runs on every row."""

    z: Tensor  # (T, A, N), or (R, A, N) where every run has rows of its own (mini-batches)
    order: Tensor | None = None
    n_sets: int | None = None  # T, where z does not tell

    def membership(self, net: AuxNetwork, p: Parameters) -> RowMembership:
        return net.from_logits(net.logits(p, self.z), self.n_sets or len(self.z))

    def climbing(self, net: AuxNetwork, p: Parameters, slope: Tensor, weight: Tensor | None) -> Climbing:
        hidden = net.hidden_layer(p, self.z)
        q = net.from_logits(net.output_layer(p, hidden), self.n_sets or len(self.z))
        return Climbing.of_rows(q, slope, weight, lambda by_logits: net.gradient(p, self.z, hidden, by_logits))


@dataclass(frozen=True)
class SortedRows:
    """One aux column, rows sorted by it."""

    z: Tensor  # (T, N), ascending
    order: Tensor  # (T, N)

    def membership(self, net: AuxNetwork, p: Parameters) -> RowMembership:
        logits = sorted_relu_layer(self.z, p["W"].squeeze(2), p["b"], p["V"], p["c"])
        return net.from_logits(logits, len(self.z))

    @cached_property
    def _blocks(self) -> SortedBlocks:
        return SortedBlocks.of(self.z)

    def climbing(self, net: AuxNetwork, p: Parameters, slope: Tensor, weight: Tensor | None) -> Climbing:
        logits, kept = layer_and_kept(self._blocks, p["W"].squeeze(2), p["b"], p["V"], p["c"])

        def gradient(by_logits: Tensor) -> dict[str, Tensor]:
            w, b, v, c = layer_gradient(kept, by_logits)
            return {"W": w.unsqueeze(2), "b": b, "V": v, "c": c}

        return Climbing.of_rows(net.from_logits(logits, len(self.z)), slope, weight, gradient)


@dataclass(frozen=True)
class GroupedRows:
    """Few distinct aux rows: sum over the rows that share one, then weigh the sums by q of that one."""

    z: Tensor  # (T, A, U) the distinct rows
    blocks: Blocks  # of the rows, by which distinct row they have

    @property
    def order(self) -> Tensor:
        return self.blocks.order

    def membership(self, net: AuxNetwork, p: Parameters) -> RowMembership:
        return Grouped(self.blocks, net.from_logits(net.logits(p, self.z), len(self.z)))

    def climbing(self, net: AuxNetwork, p: Parameters, slope: Tensor, weight: Tensor | None) -> Climbing:
        hidden, blocks = net.hidden_layer(p, self.z), self.blocks
        q = net.from_logits(net.output_layer(p, hidden), len(self.z))
        sums = blocks.sums(slope).view(*slope.shape[:2], -1)  # (T, K, U)
        total = blocks.total.unsqueeze(1)  # (R or 1, 1)
        return Climbing(
            q, sums, blocks.counts.unsqueeze(1), total, lambda by_logits: net.gradient(p, self.z, hidden, by_logits)
        )


AuxRows = PlainRows | SortedRows | GroupedRows


@dataclass(frozen=True)
class Grouped:
    """RowMembership of rows through the membership of their groups."""

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

    def spread(self, per_environment: Tensor, shape: tuple[int, ...]) -> Tensor:
        return self.blocks.spread(self.q.spread(per_environment, shape), shape)


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
    if aux.shape[1] == 1:
        values, codes = torch.unique(aux.squeeze(1), return_inverse=True)
        return values.unsqueeze(1), codes
    codes = torch.zeros(len(aux), dtype=torch.int64, device=aux.device)
    for column in aux.T:
        values, code = torch.unique(column, return_inverse=True)
        _, codes = torch.unique(codes * len(values) + code, return_inverse=True)
    n_distinct = int(codes.max()) + 1
    rows = torch.empty(n_distinct, aux.shape[1], dtype=aux.dtype, device=aux.device)
    rows[codes] = aux
    return rows, codes
