"""Stratified mini-batches: every batch has each environment in its share, to within one row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class StratifiedBatches:
    """Row numbers for every run, from that run's own generator: (R, batch_size) at each call.

    An epoch is a permutation in which each environment's rows are spread evenly: a row's place is its
    (random) rank within its environment, plus a random share of a step, over that environment's size.
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
        self._epoch: Tensor | None = None
        self._next = self.per_epoch

    def next(self) -> Tensor:
        if self._next >= self.per_epoch:
            self._epoch = torch.stack([_spread(c, g) for c, g in zip(self.codes, self.generators, strict=True)])
            self._next = 0
        assert self._epoch is not None
        start = self._next * self.batch_size
        self._next += 1
        return self._epoch[:, start : start + self.batch_size]


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
