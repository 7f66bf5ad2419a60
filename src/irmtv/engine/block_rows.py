"""The rows of a step, of rows that come in blocks: batches of rows that stay in memory for some steps.

A *stay* is some steps, the same number each time, and the rows that serve them: of every environment its share, drawn
from blocks in random order, without repetition until all rows have had their turn. Which rows these are follows from
the number of the stay alone (`Deal`), so a training continues anywhere without what was read before. The rows of the
next stay are read by a thread while the steps of this one are taken.

Blocks are read once in a round, or again where a stay ends within them and there is no memory to keep them until the
next: blocks of many rows in many environments cost more reading.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from irmtv.core.types import Rows
from irmtv.data.blocks import BlockSource
from irmtv.engine.components.base import EnvironmentSource, StepRows
from irmtv.engine.components.rho import RhoOnAux
from irmtv.engine.context import Context
from irmtv.engine.networks import Net
from irmtv.engine.plan import rows_per_step
from irmtv.engine.rows import TrainingRows

MOST_ROWS, MOST_NUMBERS = 1 << 18, 1 << 25  # of a stay: rows, and their features
STREAM_OF_STAYS = 1 << 21  # of a run's random numbers, with the rank: far from those of components


class Piece(NamedTuple):
    """Some rows of one environment in a block, in the random order that they have in this round."""

    round: int  # all rows once
    block: int
    environment: int
    begin: int
    end: int
    all: int  # rows of this environment in this block


class Deal:
    """Which rows stay when.

    Parameters
    ----------
    counts : (B, E) rows of every environment in every block.
    size : rows of a stay.
    """

    def __init__(self, counts: Tensor, size: int) -> None:
        self.counts, self.size, self.totals = counts, size, counts.sum(0)
        self._rounds: dict[int, tuple[Tensor, Tensor]] = {}

    def pieces(self, stay: int) -> list[Piece]:
        """The rows of a stay, block by block."""
        n = int(self.totals.sum())
        found = []
        for e, total in enumerate(self.totals.tolist()):
            begin, end = (k * self.size * total // n for k in (stay, stay + 1))
            while begin < end:
                number, first = divmod(begin, total)
                last = min(end - number * total, total)
                found += self._of_round(number, e, first, last)
                begin = number * total + last
        return sorted(found)

    def _of_round(self, number: int, e: int, first: int, last: int) -> list[Piece]:
        """The rows of an environment from `first` to before `last`, in the order of a round."""
        order, ends = self._round(number)
        a, b = torch.searchsorted(ends[e], torch.tensor([first, last - 1]), right=True).tolist()
        found = []
        for place in range(a, b + 1):
            block, end = int(order[place]), int(ends[e, place])
            size = int(self.counts[block, e])
            begin = end - size
            if size:
                found.append(Piece(number, block, e, max(first - begin, 0), min(last, end) - begin, size))
        return found

    def _round(self, number: int) -> tuple[Tensor, Tensor]:
        """The order of the blocks (B,), and by environment how many rows there are up to each (E, B)."""
        if number not in self._rounds:
            order = torch.randperm(len(self.counts), generator=torch.Generator().manual_seed(number))
            self._rounds = {k: v for k, v in self._rounds.items() if k >= number - 1}
            self._rounds[number] = order, self.counts[order].cumsum(0).T.contiguous()
        return self._rounds[number]


class Reader:
    """Reads the rows of stays; blocks that the next one goes on with are kept, as far as there is room."""

    def __init__(self, source: BlockSource, deal: Deal) -> None:
        self.source, self.deal = source, deal
        self._kept: dict[int, Rows] = {}

    def rows(self, stay: int) -> Rows:
        """All rows of a stay."""
        by_block: dict[tuple[int, int], list[Piece]] = defaultdict(list)
        for piece in self.deal.pieces(stay):
            by_block[piece.round, piece.block].append(piece)
        parts, kept, room = [], {}, self.deal.size
        for (number, block), pieces in by_block.items():
            whole = self._kept[block] if block in self._kept else self.source.block(block)
            parts.append(whole.take(_chosen(whole, self._counted(whole, block), number, block, pieces)))
            if any(piece.end < piece.all for piece in pieces) and block not in kept and len(whole) <= room:
                kept[block] = whole
                room -= len(whole)
        self._kept = kept
        return _joined(parts)

    def _counted(self, rows: Rows, block: int) -> Tensor:
        """The environments of a block's rows (n,), which are as many as the source says."""
        codes = torch.zeros(len(rows), dtype=torch.long) if rows.environment is None else rows.environment.cpu()
        n_environments = self.deal.counts.shape[1]
        counts = torch.bincount(codes, minlength=n_environments)
        if rows.weight is not None or not torch.equal(counts, self.deal.counts[block]):
            raise ValueError(
                f"block {block} must have the rows that it says, {self.deal.counts[block].tolist()} by environment, "
                f"without weights. Got {counts.tolist()}. Leave files alone while they are read."
            )
        return codes


def _chosen(rows: Rows, codes: Tensor, number: int, block: int, pieces: Sequence[Piece]) -> Tensor:
    """Where the rows of these pieces are in their block, in its order."""
    generator = torch.Generator().manual_seed((number << 32) + block)
    shuffled = torch.randperm(len(rows), generator=generator)
    shuffled_codes = codes[shuffled]
    return torch.cat([shuffled[shuffled_codes == p.environment][p.begin : p.end] for p in pieces]).sort().values


def _joined(parts: Sequence[Rows]) -> Rows:
    def of(name: str) -> Tensor | None:
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else torch.cat(values)

    x, y = of("x"), of("y")
    assert x is not None and y is not None
    return replace(parts[0], x=x, y=y, environment=of("environment"), aux=of("aux"))


class BlockTrainingRows(TrainingRows):
    """Mini-batches of the rows that stay."""

    def __init__(
        self,
        context: Context,
        net: Net,
        source: EnvironmentSource | None,
        n_environments: int,
        blocks: BlockSource,
    ) -> None:
        self.context, self.net, self.source = context, net, source
        self.n_environments, self.shares = n_environments, None
        self.n_rows = blocks.n_rows
        n_all = self.n_rows if context.ranks is None else context.ranks.total
        self._share_batches(rows_per_step(context.static["batch_size"], n_all))
        most = max(self.own_size, min(MOST_ROWS, MOST_NUMBERS // max(1, blocks.n_features)))
        self.all_stay = self.n_rows <= most
        self.steps_of_stay = context.steps if self.all_stay else most // self.own_size
        counts = torch.tensor([list(each) for each in blocks.rows_of_blocks], dtype=torch.long).view(
            -1, n_given(blocks)
        )
        # a few more than are asked for: environments have whole numbers of rows
        size = self.n_rows if self.all_stay else self.steps_of_stay * self.own_size + counts.shape[1]
        self.reader = Reader(blocks, Deal(counts, size))
        self.step = 0
        self._next: tuple[int, Future[Rows]] | None = None
        self._begin(0)

    def next(self) -> StepRows:
        stay = self.step // self.steps_of_stay
        if stay != self.stay:
            self._begin(stay)
        self.step += 1
        return super().next()

    def skip(self, steps: int) -> None:
        stay, within = divmod(steps, self.steps_of_stay)
        if stay != self.stay:
            self._begin(stay)
        self.step = steps
        super().skip(within)

    def _begin(self, stay: int) -> None:
        """Have the rows of a stay, and those of the next one read."""
        expected, self._next = self._next, None
        if expected is not None and expected[0] == stay:
            rows = expected[1].result()
        else:
            if expected is not None:
                expected[1].exception()  # one reads at a time
            rows = self.reader.rows(stay)
        self.stay = stay
        context = self.context
        self.x, self.y = context.inputs([rows]), context.targets([rows])
        codes = torch.zeros(len(rows), dtype=torch.long) if rows.environment is None else rows.environment
        self.codes = codes.unsqueeze(0).to(context.device)
        if isinstance(self.source, RhoOnAux):
            self.source.aux = self.source.read([rows])
        self._deal_batches([codes.cpu()], self._generators(stay))
        if (stay + 1) * self.steps_of_stay < context.steps:
            ahead = ThreadPoolExecutor(1, thread_name_prefix="irmtv-blocks")
            self._next = stay + 1, ahead.submit(self.reader.rows, stay + 1)
            ahead.shutdown(wait=False)  # it ends with what it was given

    def _generators(self, stay: int) -> list[torch.Generator]:
        """Of the batches of every run: as of rows in memory where all rows stay, else anew in every stay."""
        if self.all_stay and self.context.ranks is None:
            return self.context.generators
        rank = 0 if self.context.ranks is None else self.context.ranks.rank
        seeds = self.context.noise(STREAM_OF_STAYS + rank).key.tolist()
        return [torch.Generator().manual_seed((int(seed) << 20) + stay) for seed in seeds]


def n_given(blocks: BlockSource) -> int:
    """How many environments the blocks tell apart."""
    return max(1, len(blocks.names))


def training_rows(
    context: Context, net: Net, source: EnvironmentSource | None, n_environments: int, needs_codes: bool
) -> TrainingRows:
    """The rows of a chunk of runs: those of their tasks, or of blocks. Newton's method reads blocks itself."""
    if context.blocks is None or context.static["solver"] == "newton" or context.objective.procedure is not None:
        return TrainingRows(context, net, source, n_environments, needs_codes)
    return BlockTrainingRows(context, net, source, n_environments, context.blocks)
