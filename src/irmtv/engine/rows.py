"""The rows of a step: all training rows, or a mini-batch for every run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from irmtv.core.membership import Blocks, Codes, Membership, Weighted
from irmtv.engine.components.base import EnvironmentSource, StepRows
from irmtv.engine.context import Context
from irmtv.engine.networks import Module, Net
from irmtv.objectives.environments.aux_network import GroupedRows

FULL_BATCH_BELOW, BATCH_ROWS = 100_000, 1024


class TrainingRows:
    """The training rows, laid out once; `next` gives the rows of a step."""

    def __init__(
        self, context: Context, net: Net, source: EnvironmentSource | None, n_environments: int, needs_codes: bool
    ) -> None:
        self.context, self.net, self.source = context, net, source
        rows = [t.train for t in context.tasks]
        x, y = context.inputs(rows), context.targets(rows)  # (T, N, ...), (T, N) or (T, N, C)
        n_rows = x.shape[1]
        self.n_environments, self.shares, codes = n_environments, context.shares(), context.codes
        size = context.static["batch_size"]
        if size == "auto":
            size = None if n_rows < FULL_BATCH_BELOW else BATCH_ROWS
        self.batches: Batches | None = None
        if size is not None and size < n_rows:
            self.x, self.y, self.codes = x, y, codes.to(context.device)
            per_run = [codes[t] for t in range(context.n_sets) for _ in range(context.per_set)]
            balanced = context.static.get("sampling") == "balanced"
            self.batches = (BalancedBatches if balanced else StratifiedBatches)(per_run, size, context.generators)
            return
        # a user's module may look at all rows (batch norm) and would take those that fill up a block for data
        as_they_are = isinstance(net, Module)
        order: Tensor | None = None
        shape: tuple[int, ...] = (n_rows,)
        given: Blocks | Codes | Weighted | None = None
        if source is not None:
            order, shape = source.arrange(as_they_are)
        elif as_they_are:
            shared = codes.to(context.device).unsqueeze(1).expand(-1, context.per_set, -1)
            given = Codes(shared, n_environments)
            given = given if self.shares is None else Weighted(given, self.shares.unsqueeze(1))
        else:
            needed = codes if needs_codes else torch.zeros_like(codes)  # ERM: one block, nothing padded
            blocks = Blocks.of(needed, n_environments if needs_codes else 1, context.per_set, context.weights)
            given = blocks = blocks.to(context.device, context.dtype)
            order, shape = blocks.order, blocks.rows_shape
        if order is not None:
            index = torch.arange(context.n_sets, device=context.device).unsqueeze(1)
            x, y = x[index, order], y[index, order]
        inferred = None if source is None else source.rows(None)
        y = y.view(context.n_sets, 1, *shape, *y.shape[2:])
        weight = self._laid_out(order, given, inferred)
        self.whole = StepRows(net.prepare(x), y, shape, None, given, inferred, weight)

    def _laid_out(self, order: Tensor | None, given: Membership | None, inferred: Any) -> Tensor | None:
        """The rows' shares where the rows are: (T, 1, *shape), 0 for those that fill up a block."""
        blocks = inferred.blocks if isinstance(inferred, GroupedRows) else given
        if self.shares is None:
            return None
        if isinstance(blocks, Blocks):
            assert blocks.weight is not None  # which rows with weights always have
            return blocks.weight / blocks.counts.sum(1).view(-1, 1, 1, 1)
        shares = self.shares if order is None else self.shares.gather(1, order)
        return shares.unsqueeze(1)

    def next(self) -> StepRows:
        """This step's rows."""
        if self.batches is None:
            return self.whole
        context = self.context
        index = self.batches.next().to(context.device)  # (R, b)
        size, sets = index.shape[1], context.sets
        # every run has rows of its own, so each is a data set of its own in the first layer
        x = self.net.prepare(self.x[sets, index])
        y = self.y[sets, index].view(context.n_sets, context.per_set, size, *self.y.shape[2:])
        weight = None
        if self.shares is not None:
            weight = self.shares[sets, index].view(context.n_sets, context.per_set, size)
            # a batch may have rows of weight 0 alone
            weight = weight / weight.sum(2, keepdim=True).clamp_min(torch.finfo(weight.dtype).tiny)
        if self.source is not None:
            return StepRows(x, y, (size,), index, None, self.source.rows(index), weight)
        codes = Codes(self.codes[sets, index].view(context.n_sets, context.per_set, size), self.n_environments)
        return StepRows(x, y, (size,), index, codes if weight is None else Weighted(codes, weight), None, weight)


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
    return sooner. Where the batch cannot be divided equally, chance says which environments have a row more.
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
