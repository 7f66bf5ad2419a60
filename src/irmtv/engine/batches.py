"""Mini-batches: every batch has each environment in its share ("stratified") or equally often ("balanced")."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor


class Batches(ABC):
    """Row numbers for every run, from that run's own generator: (R, batch_size) at each call.

    Within a batch the rows stand environment by environment, so that its even and its odd rows have each
    environment equally often, to within one row: slopes of the two halves are multiplied by some penalties.
    """

    def __init__(self, codes: Sequence[Tensor], batch_size: int, generators: Sequence[torch.Generator]) -> None:
        self.codes = codes  # one (N,) tensor of environment codes per run
        self.batch_size = batch_size
        self.generators = generators
        n_rows = len(codes[0])
        if not 2 <= batch_size <= n_rows:
            raise ValueError(
                f"batch_size must be between 2 and the number of rows, {n_rows}. Got {batch_size}; "
                "use batch_size=None for the full batch."
            )
        self.per_epoch = n_rows // batch_size
        self._epoch: Tensor | None = None  # (R, per_epoch, batch_size)
        self._next = self.per_epoch

    def next(self) -> Tensor:
        if self._next >= self.per_epoch:
            self._epoch = torch.stack([self._draw(run) for run in range(len(self.codes))])
            self._next = 0
        assert self._epoch is not None
        self._next += 1
        return self._epoch[:, self._next - 1]

    @abstractmethod
    def _draw(self, run: int) -> Tensor:
        """The batches of this run's next epoch: (per_epoch, batch_size)."""


class StratifiedBatches(Batches):
    """Every batch has each environment in its share of the rows, to within one row.

    An epoch is a permutation in which each environment's rows are spread evenly: a row's place is its
    (random) rank within its environment, plus a random share of a step, over that environment's size.
    """

    def _draw(self, run: int) -> Tensor:
        codes = self.codes[run]
        spread = _spread(codes, self.generators[run])
        rows = spread[: self.per_epoch * self.batch_size].view(self.per_epoch, self.batch_size)
        return rows.gather(1, torch.argsort(codes[rows], dim=1, stable=True))


class BalancedBatches(Batches):
    """Every batch has each environment equally often, to within one row.

    The rows of an environment come in random permutations of them, one after the other: a small environment's rows
    return sooner. Where the batch cannot be divided equally, chance says who has a row more.
    """

    def __init__(self, codes: Sequence[Tensor], batch_size: int, generators: Sequence[torch.Generator]) -> None:
        super().__init__(codes, batch_size, generators)
        # by run and environment: all of its rows, and those of its present permutation that are still to come
        self._members = [[torch.nonzero(c == e).flatten() for e in torch.unique(c)] for c in codes]
        self._waiting = [[rows[:0] for rows in members] for members in self._members]

    def _draw(self, run: int) -> Tensor:
        members, waiting, generator = self._members[run], self._waiting[run], self.generators[run]
        n = len(members)
        each, extra = divmod(self.batch_size, n)
        turns = torch.argsort(torch.rand(self.per_epoch, n, generator=generator, dtype=torch.float64), dim=1)
        counts = each + (torch.argsort(turns, dim=1) < extra).long()  # (per_epoch, n)
        which = torch.repeat_interleave(torch.arange(n).repeat(self.per_epoch), counts.flatten())
        epoch = torch.empty_like(which)
        for e, (rows, total) in enumerate(zip(members, counts.sum(0).tolist(), strict=True)):
            drawn = [waiting[e]]
            missing = total - len(drawn[0])
            while missing > 0:
                drawn.append(rows[torch.randperm(len(rows), generator=generator)])
                missing -= len(rows)
            epoch[which == e], waiting[e] = torch.cat(drawn).tensor_split([total])
        return epoch.view(self.per_epoch, self.batch_size)


def _spread(codes: Tensor, generator: torch.Generator) -> Tensor:
    """A permutation of the rows in which every window holds each environment in its share."""
    shuffled = torch.randperm(len(codes), generator=generator)
    by_environment = shuffled[torch.argsort(codes[shuffled], stable=True)]
    sorted_codes = codes[by_environment]
    counts = torch.bincount(sorted_codes)
    first = counts.cumsum(0) - counts
    rank = torch.arange(len(codes)) - first[sorted_codes]
    # one offset per environment keeps its rows evenly spaced and environments interleaved at random
    offset = torch.rand(len(counts), generator=generator, dtype=torch.float64)
    place = (rank + offset[sorted_codes]) / counts[sorted_codes]
    return by_environment[torch.argsort(place)]
