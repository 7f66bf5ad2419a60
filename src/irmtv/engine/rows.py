"""The rows of a step: all training rows, or a mini-batch for every run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from irmtv.core.membership import Blocks, Codes, Membership, Weighted
from irmtv.core.ranks import Ranks
from irmtv.core.types import stacked
from irmtv.engine.components.base import EnvironmentSource, StepRows
from irmtv.engine.context import Context
from irmtv.engine.networks import Module, Net
from irmtv.engine.plan import rows_per_step
from irmtv.objectives.environments.aux_network import GroupedRows

STREAM_OF_BATCHES = 1 << 20  # of a run's random numbers, with the rank: far from those of components
MOST_OF_32_BITS = 1 << 31  # rows, whose numbers begin with 0
PIECE = 1 << 13  # rows that are sorted at a time: what that takes beside them stays small


class TrainingRows:
    """The training rows, laid out once; `next` gives the rows of a step."""

    batches: Batches | None = None
    shares: Tensor | None
    x: Tensor  # of batches: (T, N, ...)
    y: Tensor

    def __init__(
        self, context: Context, net: Net, source: EnvironmentSource | None, n_environments: int, needs_codes: bool
    ) -> None:
        self.context, self.net, self.source = context, net, source
        rows = [t.train for t in context.tasks]
        x, y = context.inputs(rows), context.targets(rows)  # (T, N, ...), (T, N) or (T, N, C)
        n_rows = x.shape[1]
        self.n_environments, self.shares, codes = n_environments, context.shares(), context.codes
        n_all = n_rows if context.ranks is None else context.ranks.total
        size = self.per_step = rows_per_step(context.static["batch_size"], n_all)  # of all processes
        if size < n_all:
            self.x, self.y, self.codes = x, y, _narrow(codes).to(context.device)
            self._share_batches(size)
            generators = context.generators if context.ranks is None else streams_of_rank(context)
            self._deal_batches(codes, generators)
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
        if order is not None and not torch.equal(order, torch.arange(n_rows, device=order.device).expand(len(x), -1)):
            index = torch.arange(context.n_sets, device=context.device).unsqueeze(1)
            x, y = x[index, order], y[index, order]
        inferred = None if source is None else source.rows(None)
        y = y.view(context.n_sets, 1, *shape, *y.shape[2:])
        weight = self._laid_out(order, given, inferred)
        over_all = None if given is None else context.pooled(given)
        self.whole = StepRows(net.prepare(x), y, shape, None, over_all, inferred, weight)
        self.share = self._share(weight, given, inferred)

    def _share_batches(self, size: int) -> None:
        """How many rows each process gives to a batch of so many, and which runs have their batches in common."""
        context = self.context
        self.own_size = self.per_step = size
        if context.ranks is not None:
            sizes = shares_of_batch(size, context.ranks)
            self.own_size, self.per_step = sizes[context.ranks.rank], sum(sizes)
        # runs of one seed on one data set would draw the same batches: they have them in common
        seeds = [s["seed"] for s in context.settings]
        each = range(0, context.n_runs, context.per_set)
        self.drawn = 1 if all(len(set(seeds[r : r + context.per_set])) == 1 for r in each) else context.per_set

    def _deal_batches(self, codes: Sequence[Tensor] | Tensor, generators: Sequence[torch.Generator]) -> None:
        """Batches of the rows of `codes`, (N,) by data set."""
        context = self.context
        drawing = range(0, context.n_runs, context.per_set // self.drawn)
        kind = BalancedBatches if context.static.get("sampling") == "balanced" else StratifiedBatches
        self.batches = kind(
            [codes[r // context.per_set] for r in drawing], self.own_size, [generators[r] for r in drawing]
        )
        # of a data set, the first among the rows of all
        first = self.x.shape[1] * torch.arange(context.n_sets, device=context.device)
        self.first = first.repeat_interleave(self.drawn).unsqueeze(1)

    def skip(self, steps: int) -> None:
        """Go on after so many steps, whose batches are drawn and not looked at."""
        for _ in range(steps if self.batches is not None else 0):
            assert self.batches is not None
            self.batches.next()

    def _share(self, weight: Tensor | None, given: Membership | None, inferred: Any) -> Tensor:
        """What each row counts in the mean over all rows: (T, 1, *shape), or what broadcasts to it."""
        if weight is not None:
            return weight
        blocks = inferred.blocks if isinstance(inferred, GroupedRows) else given
        if not isinstance(blocks, Blocks):
            return self.context.full((1,) * (2 + len(self.whole.shape)), 1 / self.per_step)
        counts = blocks.counts.sum(1) if self.context.ranks is None else self.context.full((1,), self.per_step)
        each = 1 / counts.view(-1, 1, 1, 1)  # (T, 1, 1, 1)
        return each if blocks.weight is None else each * blocks.weight

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
        context, shape = self.context, (self.context.n_sets, self.drawn)
        index = self.batches.next().to(context.device)  # (T drawn, b)
        size, places = index.shape[1], (self.first + index).flatten()

        def drawn(values: Tensor) -> Tensor:  # (T, N, ...) -> (T drawn, b, ...)
            return values.flatten(0, 1).index_select(0, places).view(*index.shape, *values.shape[2:])

        # every draw has rows of its own, so each is a data set of its own in the first layer
        x = self.net.prepare(drawn(self.x))
        y = drawn(self.y).view(*shape, size, *self.y.shape[2:])
        weight = None
        if self.shares is not None:
            weight = drawn(self.shares).view(*shape, size)
            # a batch may have rows of weight 0 alone
            weight = weight / weight.sum(2, keepdim=True).clamp_min(torch.finfo(weight.dtype).tiny)
        numbers = index.repeat_interleave(context.per_set // self.drawn, 0)  # (R, b)
        if self.source is not None:
            return StepRows(x, y, (size,), numbers, None, self.source.rows(numbers), weight)
        own = drawn(self.codes).view(*shape, size).long()
        codes = Codes(own.expand(-1, context.per_set, -1), self.n_environments)
        given = context.pooled(codes if weight is None else Weighted(codes, weight))
        return StepRows(x, y, (size,), numbers, given, None, weight)

    def share_of(self, rows: StepRows) -> Tensor:
        """What each of these rows counts in the mean over them: what broadcasts to (T, K, *shape)."""
        if self.batches is None:
            return self.share
        return self.context.full((1, 1, 1), 1 / self.per_step) if rows.weight is None else rows.weight

    def mean_over_ranks(self, value: Tensor, rows: StepRows) -> Tensor:
        """Mean over this step's rows of all processes, (T, K, *shape) -> (R,)."""
        return self.context.over_ranks((value * self.share_of(rows)).flatten(2).sum(2).flatten())


def shares_of_batch(size: int, ranks: Ranks) -> list[int]:
    """Rows per step of every process, by its share of the rows."""
    sizes = [round(size * n / ranks.total) for n in ranks.n_rows]
    if min(sizes) < 2:
        raise ValueError(
            f"batch_size counts the rows of all ranks, each of which gives its share, at least 2. Got {size}, of which "
            f"the ranks would give {sizes}; use a larger one, or spread the rows evenly."
        )
    return sizes


def streams_of_rank(context: Context) -> list[torch.Generator]:
    """Generators that draw this process's batches: every rank has streams of its own, from the seeds of the runs."""
    assert context.ranks is not None
    seeds = context.noise(STREAM_OF_BATCHES + context.ranks.rank).key.tolist()
    return [torch.Generator().manual_seed(int(seed)) for seed in seeds]


class Batches(ABC):
    """Row numbers for every run (or all of one seed and data set), by its generator: (R, batch_size) at each call.

    An epoch has 32 bits for each where that is enough: of many millions of rows it takes as much memory as a feature.

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
            self._epoch = None  # the last one, gone before the next is drawn
            self._epoch = stacked([self._draw(run) for run in range(len(self.codes))])
            self._next = 0
        assert self._epoch is not None
        self._next += 1
        return self._epoch[:, self._next - 1].long()

    @abstractmethod
    def _draw(self, run: int) -> Tensor:
        """The batches of this run's next epoch: (per_epoch, batch_size)."""


class StratifiedBatches(Batches):
    """Every batch has each environment in its share of the rows, to within one row.

    An epoch is a permutation in which each environment's rows are spread evenly: a row's place is its
    (random) rank within its environment, plus a random share of a step, over that environment's size.
    """

    def _draw(self, run: int) -> Tensor:
        rows, codes = (
            spread[: self.per_epoch * self.batch_size].view(self.per_epoch, self.batch_size)
            for spread in _spread(self.codes[run], self.generators[run])
        )
        pieces = (torch.split(each, max(1, PIECE // self.batch_size)) for each in (rows, codes))
        for some, of in zip(*pieces, strict=True):
            some.copy_(some.gather(1, torch.from_numpy(np.argsort(of.numpy(), axis=1, kind="stable"))))
        return rows


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
                drawn.append(rows[_permutation(len(rows), generator)])
                missing -= len(rows)
            epoch[which == e], waiting[e] = torch.cat(drawn).tensor_split([total])
        return epoch.view(self.per_epoch, self.batch_size)


def _spread(codes: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A permutation of the rows in which every window holds each environment in its share, and their environments.

    Sorted by place, piece by piece: beside the rows twice no more is held, which counts for many millions of them. Nor
    are environments looked up by row, each in another place of the memory.
    """
    codes = _narrow(codes)
    by_environment, counts = _by_environment(codes, _permutation(len(codes), generator))
    first = counts.cumsum(0) - counts
    # one offset per environment keeps its rows evenly spaced and environments interleaved at random
    offset = torch.rand(len(counts), generator=generator, dtype=torch.float64)
    spread, codes_of_spread = torch.empty_like(by_environment), torch.empty_like(codes)
    n_pieces, start, done = -(-len(codes) // PIECE), torch.zeros_like(counts), 0
    for piece in range(1, n_pieces + 1):
        # the ranks whose place is below piece / n_pieces, which places beyond 1 never are: the last piece takes them
        stop = (counts * (piece / n_pieces) - offset).ceil().long().clamp(min=0).minimum(counts).maximum(start)
        sizes = counts - start if piece == n_pieces else stop - start
        environment = torch.repeat_interleave(torch.arange(len(counts)), sizes)
        rank = torch.arange(len(environment)) + (start - (sizes.cumsum(0) - sizes))[environment]
        place = (rank + offset[environment]) / counts[environment]
        # each environment's places are sorted, and NumPy merges what is: thirty times faster than to sort it
        order = torch.from_numpy(np.argsort(place.numpy(), kind="stable"))
        some = slice(done, done + len(order))
        torch.take(by_environment, (first[environment] + rank)[order], out=spread[some])
        codes_of_spread[some] = environment[order]
        start, done = start + sizes, some.stop
    return spread, codes_of_spread


def _permutation(n: int, generator: torch.Generator) -> Tensor:
    """0 to n - 1 in random order; the same in 32 bits as in 64."""
    return torch.randperm(n, generator=generator, dtype=torch.int32 if n <= MOST_OF_32_BITS else torch.int64)


def _narrow(codes: Tensor) -> Tensor:
    """Codes of environments in as few bits as they need: they are looked up by row, all over the memory."""
    return codes.to(torch.int16) if int(codes.max()) < 1 << 15 else codes


def _by_environment(codes: Tensor, shuffled: Tensor) -> tuple[Tensor, Tensor]:
    """The shuffled rows environment by environment, otherwise in their order, and how many each has (E,)."""
    counts = torch.bincount(codes)
    place = counts.cumsum(0) - counts  # of the next row of an environment
    rows = torch.empty_like(shuffled)
    for some in torch.split(shuffled, PIECE):
        of = codes[some]
        order = torch.from_numpy(np.argsort(of.numpy(), kind="stable"))
        sizes = torch.bincount(of, minlength=len(counts))
        shift = place - (sizes.cumsum(0) - sizes)
        rows[torch.arange(len(some)) + torch.repeat_interleave(shift, sizes)] = some[order]
        place = place + sizes
    return rows, counts
