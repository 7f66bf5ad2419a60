"""Which rows belong to which environment, known only through sums per environment.

Every membership gives, for a per-row quantity v, the sums  sum_i q_ie v_i  as (R, E), and the masses
m_e = mean_i q_ie. Means R_e and S_e follow (see `irmtv.core.risk`). Rows come as (T, K, *rows_shape):
T data sets, K runs on each, R = T K; a trailing axis J (vector classifier) is carried along.

Where rows have weights w of their own, q_ie stands for w_i q_ie throughout, and "the number of rows" for sum_i w_i.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor


class Membership(Protocol):
    """q, known only through what it sums to."""

    @property
    def n_environments(self) -> int: ...

    @property
    def rows_shape(self) -> tuple[int, ...]:
        """How the rows of one run are laid out: (N,), or (blocks, length)."""
        ...

    @property
    def total(self) -> Tensor | float:
        """Number of rows (pads not counted): (R,), (1,) or a plain number."""
        ...

    @property
    def rows(self) -> Tensor:
        """sum_i q_ie, the rows that an environment has (at least a tiny number): (R, E) or (1, E)."""
        ...

    @property
    def mass(self) -> Tensor:
        """m_e = rows / total: (R, E) or (1, E)."""
        ...

    def sums(self, v: Tensor) -> Tensor:
        """sum_i q_ie v_i: (T, K, *rows_shape) -> (R, E); with a trailing J -> (R, E, J)."""
        ...


class RowMembership(Membership, Protocol):
    """A membership of the rows of a training step, which also goes back to them."""

    def spread(self, per_environment: Tensor, shape: tuple[int, ...]) -> Tensor:
        """sum_e q_ie g_e: from environments (R, E) to what each row gets; it broadcasts against `shape`, pads get 0.

        The other way round than `sums`: what a gradient in those sums is in the rows.
        """
        ...


@dataclass(frozen=True)
class Blocks:
    """Given environments, laid out so that a sum over an environment is a sum over whole blocks.

    The rows are put in the order of their environments and cut into blocks of one length, each inside
    one environment, the last block of an environment padded with rows of weight 0. Summing a block is
    one contiguous reduction, and its backward a broadcast: no gather or scatter over N rows, and a
    cost that does not grow with the number of environments. Rows that have weights of their own stand in
    the same places: their weights take the place of the ones.
    """

    order: Tensor  # (T, n_blocks * length) row numbers; pads repeat row 0
    weight: Tensor | None  # (T, 1, n_blocks, length) row weights, 0 for pads; None where all are 1
    environment: Tensor  # (T, 1, n_blocks) code of each block
    counts: Tensor  # (T, E) rows per environment, or the sums of their weights
    length: int
    identity: bool  # block b is environment b, in every data set
    per_set: int = 1  # K, runs per data set

    @classmethod
    def of(cls, codes: Tensor, n_environments: int, per_set: int = 1, weight: Tensor | None = None) -> Blocks:
        """From environment codes (T, N), int64, for `per_set` runs on each of the T data sets.

        `weight` (T, N) is what each row counts, by default 1.
        """
        codes = codes.cpu()
        n_sets, n_rows = codes.shape
        counts = torch.stack([torch.bincount(c, minlength=n_environments) for c in codes])  # (T, E)
        length = _block_length(counts)
        per_environment = (counts + length - 1) // length  # (T, E) blocks
        n_blocks = int(per_environment.sum(1).max())
        order = torch.zeros(n_sets, n_blocks * length, dtype=torch.int64)
        given = torch.ones(n_sets, n_rows) if weight is None else weight.cpu()
        laid_out = torch.zeros(n_sets, n_blocks * length, dtype=given.dtype)
        environment = torch.zeros(n_sets, n_blocks, dtype=torch.int64)
        for t in range(n_sets):
            rows = torch.argsort(codes[t], stable=True)
            code = codes[t][rows]
            first_row = counts[t].cumsum(0) - counts[t]  # (E,) where an environment starts among `rows`
            first_slot = (per_environment[t].cumsum(0) - per_environment[t]) * length  # ... in the layout
            slot = torch.arange(n_rows) - first_row[code] + first_slot[code]
            order[t, slot] = rows
            laid_out[t, slot] = given[t, rows]
            used = torch.repeat_interleave(torch.arange(n_environments), per_environment[t])
            environment[t, : len(used)] = used
        as_they_are = weight is None and n_blocks * length == n_rows
        identity = n_blocks == n_environments and bool((environment == torch.arange(n_environments)).all())
        return cls(
            order=order,
            weight=None if as_they_are else laid_out.view(n_sets, 1, n_blocks, length),
            environment=environment.unsqueeze(1),
            counts=counts if weight is None else given.new_zeros(counts.shape).scatter_add(1, codes, given),
            length=length,
            identity=identity,
            per_set=per_set,
        )

    def to(self, device: torch.device, dtype: torch.dtype) -> Blocks:
        return replace(
            self,
            order=self.order.to(device),
            weight=None if self.weight is None else self.weight.to(device, dtype),
            environment=self.environment.to(device),
            counts=self.counts.to(device, dtype),
        )

    def unpadded(self) -> Blocks:
        """For values that are 0 in the rows that fill up blocks: nothing needs to be left out."""
        return replace(self, weight=None)

    @property
    def n_environments(self) -> int:
        return self.counts.shape[1]

    @property
    def rows_shape(self) -> tuple[int, ...]:
        return self.environment.shape[2], self.length

    @cached_property
    def _counts(self) -> Tensor:  # (R, E) or (1, E)
        return self.counts if len(self.counts) == 1 else self.counts.repeat_interleave(self.per_set, 0)

    @cached_property
    def rows(self) -> Tensor:
        return _at_least_tiny(self._counts)

    @cached_property
    def total(self) -> Tensor:
        return self._counts.sum(1)

    @cached_property
    def mass(self) -> Tensor:
        return self._counts / self.total.unsqueeze(1)

    def sums(self, v: Tensor) -> Tensor:
        return self.gather_blocks(self.block_sums(v))

    def block_sums(self, v: Tensor) -> Tensor:
        """(T, K, n_blocks, length, ...) -> (T, K, n_blocks, ...), pads left out."""
        if self.weight is not None:
            v = v * (self.weight.unsqueeze(-1) if v.ndim > 4 else self.weight)
        return v.sum(3)

    def mean(self, v: Tensor) -> Tensor:
        """Mean over all rows of every run, pads left out: (T, K, n_blocks, length) -> (R,)."""
        return self.block_sums(v).sum(2).flatten() / self.total

    def gather_blocks(self, per_block: Tensor) -> Tensor:
        """From sums over blocks (T, K, n_blocks, ...) to sums over environments (R, E, ...)."""
        if self.identity:
            return per_block.flatten(0, 1)
        trailing = per_block.shape[3:]
        n_runs = per_block.shape[0] * per_block.shape[1]
        index = self.environment.view(*self.environment.shape, *(1,) * len(trailing)).expand_as(per_block)
        shape = (*per_block.shape[:2], self.n_environments, *trailing)
        return per_block.new_zeros(shape).scatter_add(2, index, per_block).reshape(n_runs, -1, *trailing)

    def spread(self, per_environment: Tensor, shape: tuple[int, ...]) -> Tensor:
        shaped = per_environment.view(shape[0], shape[1], self.counts.shape[1], 1)
        if not self.identity:
            shaped = shaped.gather(2, self.environment.unsqueeze(3).expand(*shape[:2], -1, 1))
        return shaped if self.weight is None else shaped * self.weight


def _at_least_tiny(rows: Tensor) -> Tensor:
    """So that an environment without rows has mean 0, not 0 / 0."""
    return rows.clamp_min(torch.finfo(rows.dtype).tiny)


def at_least_rounding(rows: Tensor, total: Tensor | float) -> Tensor:
    """For soft memberships, (R, E) and a number or (R, 1): no less than rounding leaves of all rows.

    Where rho is 1 up to rounding, the sums of 1 - rho are rounding errors: divided by less than this they
    would be means of any size.
    """
    return rows.clamp_min(total * torch.finfo(rows.dtype).eps)


def _block_length(counts: Tensor) -> int:
    """The length that costs least: rows plus padding, and about eight rows' worth of work per block."""
    sizes = counts[counts > 0]
    greatest = int(sizes.max())
    exact = math.gcd(*sizes.tolist())
    candidates = {greatest, exact} | {2**k for k in range(greatest.bit_length())}

    def cost(length: int) -> float:
        n_blocks = ((counts + length - 1) // length).sum(1).max().item()
        padded = n_blocks * length * len(counts) > int(counts.sum())
        # a padded layout multiplies by weights: about a quarter more passes over the rows
        return n_blocks * length * (1.25 if padded else 1.0) + 8 * n_blocks

    return min(sorted(candidates), key=cost)


class RowByRow:
    """What memberships share that hold something of every row."""

    held: ClassVar[str]  # the name of the field that has it

    @property
    def values(self) -> Tensor:  # (T, K, ..., N)
        values: Tensor = getattr(self, self.held)
        return values

    @property
    def rows_shape(self) -> tuple[int, ...]:
        return (self.values.shape[-1],)

    @property
    def total(self) -> float:
        return float(self.values.shape[-1])

    @property
    def rows(self) -> Tensor:
        return at_least_rounding(self.mass * self.total, self.total)

    @property
    def mass(self) -> Tensor:
        raise NotImplementedError

    def half(self, odd: bool) -> Self:
        """Every other row."""
        return replace(self, **{self.held: self.values[..., int(odd) :: 2]})  # type: ignore[type-var]  # subclasses are dataclasses


@dataclass(frozen=True)
class Codes(RowByRow):
    """Given environments of a mini-batch: one code per row and run. An environment may be absent."""

    held = "codes"
    codes: Tensor  # (T, K, b) int64
    n: int

    @property
    def n_environments(self) -> int:
        return self.n

    @cached_property
    def _counts(self) -> Tensor:  # (R, E), whole numbers: exact in any precision
        return self.sums(torch.ones(self.codes.shape, device=self.codes.device))

    @cached_property
    def rows(self) -> Tensor:
        return _at_least_tiny(self._counts)

    @cached_property
    def mass(self) -> Tensor:
        return self._counts.double() / self.total  # `summarise` gives it the precision of the losses

    def sums(self, v: Tensor) -> Tensor:
        trailing = v.shape[3:]
        index = self.codes.view(*self.codes.shape, *(1,) * len(trailing)).expand_as(v)
        sums = v.new_zeros((*v.shape[:2], self.n, *trailing)).scatter_add(2, index, v)
        return sums.reshape(-1, self.n, *trailing)

    def spread(self, per_environment: Tensor, shape: tuple[int, ...]) -> Tensor:
        return per_environment.view(*shape[:2], -1).gather(2, self.codes)


@dataclass(frozen=True)
class Soft(RowByRow):
    """Inferred environments: q_ie by softmax, one einsum."""

    held = "q"
    q: Tensor  # (T, K, E, N)

    @property
    def n_environments(self) -> int:
        return self.q.shape[2]

    @cached_property
    def mass(self) -> Tensor:
        return self.q.mean(3).flatten(0, 1)

    def sums(self, v: Tensor) -> Tensor:
        spec = "tken,tknj->tkej" if v.ndim > 3 else "tken,tkn->tke"
        return torch.einsum(spec, self.q, v).flatten(0, 1)

    def spread(self, per_environment: Tensor, shape: tuple[int, ...]) -> Tensor:
        return torch.einsum("tken,tke->tkn", self.q, per_environment.view(*shape[:2], -1))


@dataclass(frozen=True)
class SoftPair(RowByRow):
    """Two inferred environments (rho, 1 - rho): the second sum is the rest of the first."""

    held = "rho"
    rho: Tensor  # (T, K, N)
    n_environments: ClassVar[int] = 2

    @property
    def q(self) -> Tensor:  # (T, K, E, N)
        return torch.stack([self.rho, 1 - self.rho], 2)

    @cached_property
    def mass(self) -> Tensor:
        first = self.rho.mean(2).flatten()
        return torch.stack([first, 1 - first], 1)

    def sums(self, v: Tensor) -> Tensor:
        rho = self.rho.unsqueeze(-1) if v.ndim > 3 else self.rho
        first = (rho * v).sum(2)  # (T, K, ...)
        return torch.stack([first, v.sum(2) - first], 2).flatten(0, 1)

    def spread(self, per_environment: Tensor, shape: tuple[int, ...]) -> Tensor:
        first, second = per_environment.view(*shape[:2], 2, 1).unbind(2)  # (T, K, 1)
        return torch.addcmul(second, self.rho, first - second)


@dataclass(frozen=True)
class Weighted:
    """A membership of rows that have weights of their own: w_i q_ie in place of q_ie."""

    base: Codes | Soft | SoftPair
    weight: Tensor  # (T, 1 or K, N), at least 0

    @property
    def n_environments(self) -> int:
        return self.base.n_environments

    @property
    def rows_shape(self) -> tuple[int, ...]:
        return self.base.rows_shape

    @cached_property
    def _every(self) -> Tensor:  # (T, K, N)
        return self.weight.expand(*self.base.values.shape[:2], -1)

    @cached_property
    def total(self) -> Tensor:
        return _at_least_tiny(self._every.sum(2).flatten())  # a mini-batch may have rows of weight 0 alone

    @cached_property
    def _counts(self) -> Tensor:  # (R, E)
        return self.base.sums(self._every)

    @property
    def rows(self) -> Tensor:
        if isinstance(self.base, Codes):
            return _at_least_tiny(self._counts)
        return at_least_rounding(self._counts, self.total.unsqueeze(1))

    @property
    def mass(self) -> Tensor:
        return self._counts / self.total.unsqueeze(1)

    def sums(self, v: Tensor) -> Tensor:
        return self.base.sums(v * (self.weight.unsqueeze(-1) if v.ndim > 3 else self.weight))

    def spread(self, per_environment: Tensor, shape: tuple[int, ...]) -> Tensor:
        return self.base.spread(per_environment, shape) * self.weight

    def half(self, odd: bool) -> Weighted:
        return Weighted(self.base.half(odd), self.weight[..., int(odd) :: 2])


@dataclass(frozen=True)
class Pooled:
    """A membership of rows that several processes have parts of: its sums are over the rows of all.

    Here are the rows of this process; `spread` goes back to them.
    """

    inner: Any  # the Membership of this process's rows
    counts: Tensor  # (R, E) or (1, E): sum_i q_ie over the rows of all
    total: Tensor  # (R,) or (1,) rows of all
    add: Callable[[Tensor], Tensor]  # the sum over the processes of a tensor that has one shape on all

    @classmethod
    def of(cls, inner: Membership, add: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Pooled:
        mass = inner.mass.to(dtype)
        total = torch.as_tensor(inner.total, device=mass.device, dtype=dtype).expand(len(mass))
        return cls(inner, *counted_over_ranks(mass * total.unsqueeze(1), total, add), add)

    @property
    def n_environments(self) -> int:
        return self.counts.shape[1]

    @property
    def rows_shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.inner.rows_shape
        return shape

    @property
    def rows(self) -> Tensor:
        if isinstance(self.inner, (Blocks, Codes)):
            return self.counts
        return at_least_rounding(self.counts, self.total.unsqueeze(1))

    @property
    def mass(self) -> Tensor:
        return self.counts / self.total.unsqueeze(1)

    def sums(self, v: Tensor) -> Tensor:
        return self.add(self.inner.sums(v))

    def spread(self, per_environment: Tensor, shape: tuple[int, ...]) -> Tensor:
        spread: Tensor = self.inner.spread(per_environment, shape)
        return spread

    def half(self, odd: bool) -> Pooled:
        """Every other row of every process."""
        return Pooled.of(self.inner.half(odd), self.add, self.counts.dtype)


def counted_over_ranks(counts: Tensor, total: Tensor, add: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Rows per environment, (R, E) or (1, E), and rows, (R,) or (1,), of all processes: one message for both."""
    both = add(torch.cat([counts, total.unsqueeze(1)], 1))
    return both[:, :-1], both[:, -1].detach()


def mean_over_rows(v: Tensor, weight: Tensor | None) -> Tensor:
    """Of every run: (T, K, *rows_shape) -> (R,). `weight` broadcasts against v and sums to 1 over a run's rows."""
    return v.flatten(2).mean(2).flatten() if weight is None else (v * weight).flatten(2).sum(2).flatten()
