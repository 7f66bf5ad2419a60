"""The training rows, put where a step reads them: all of them, or a mini-batch per run."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from irmtv.core.membership import Blocks, Codes, Membership, Weighted
from irmtv.engine.batches import BalancedBatches, Batches, StratifiedBatches
from irmtv.engine.components.sources import Source
from irmtv.engine.context import Stage
from irmtv.engine.networks import Module, Net
from irmtv.objectives.environments.aux_network import GroupedRows

FULL_BATCH_BELOW, BATCH_ROWS = 100_000, 1024


class StepRows(NamedTuple):
    """The rows of one step."""

    x: Tensor  # prepared for the network
    y: Tensor  # (T, 1 or K, *shape), with C for several targets
    shape: tuple[int, ...]  # of one run's rows
    numbers: Tensor | None  # (R, b) which rows they are; None for all rows
    given: Membership | None  # given environments; None where they are inferred
    inferred: Any  # what the source of inferred environments reads of them
    weight: Tensor | None = None  # (T, 1 or K, *shape) what each counts, summing to 1; None: all the same


class TrainingRows:
    def __init__(self, stage: Stage, net: Net, source: Source | None, n_environments: int, needs_codes: bool) -> None:
        self.stage, self.net, self.source = stage, net, source
        rows = [t.train for t in stage.tasks]
        x, y = stage.inputs(rows), stage.targets(rows)  # (T, N, ...), (T, N) or (T, N, C)
        n_rows = x.shape[1]
        codes = torch.stack([_codes(r.environment, n_rows) for r in rows])  # (T, N)
        self.n_environments, self.shares = n_environments, stage.shares()
        size = stage.static["batch_size"]
        if size == "auto":
            size = None if n_rows < FULL_BATCH_BELOW else BATCH_ROWS
        self.batches: Batches | None = None
        if size is not None and size < n_rows:
            self.x, self.y, self.codes = x, y, codes.to(stage.device)
            per_run = [codes[t] for t in range(stage.n_sets) for _ in range(stage.per_set)]
            balanced = stage.static.get("sampling") == "balanced"
            self.batches = (BalancedBatches if balanced else StratifiedBatches)(per_run, size, stage.generators)
            return
        # a user's module may look at all rows (batch norm) and would take those that fill up a block for data
        as_they_are = isinstance(net, Module)
        order: Tensor | None = None
        shape: tuple[int, ...] = (n_rows,)
        given: Blocks | Codes | Weighted | None = None
        if source is not None:
            order, shape = source.arrange(as_they_are)
        elif as_they_are:
            shared = codes.to(stage.device).unsqueeze(1).expand(-1, stage.per_set, -1)
            given = Codes(shared, n_environments)
            given = given if self.shares is None else Weighted(given, self.shares.unsqueeze(1))
        else:
            needed = codes if needs_codes else torch.zeros_like(codes)  # ERM: one block, nothing padded
            blocks = Blocks.of(needed, n_environments if needs_codes else 1, stage.per_set, stage.weights)
            given = blocks = blocks.to(stage.device, stage.dtype)
            order, shape = blocks.order, blocks.rows_shape
        if order is not None:
            index = torch.arange(stage.n_sets, device=stage.device).unsqueeze(1)
            x, y = x[index, order], y[index, order]
        inferred = None if source is None else source.rows(None)
        y = y.view(stage.n_sets, 1, *shape, *y.shape[2:])
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
        stage = self.stage
        index = self.batches.next().to(stage.device)  # (R, b)
        size = index.shape[1]
        sets = torch.arange(stage.n_sets, device=stage.device).repeat_interleave(stage.per_set).unsqueeze(1)
        # every run has rows of its own, so each is a data set of its own in the first layer
        x = self.net.prepare(self.x[sets, index])
        y = self.y[sets, index].view(stage.n_sets, stage.per_set, size, *self.y.shape[2:])
        weight = None
        if self.shares is not None:
            weight = self.shares[sets, index].view(stage.n_sets, stage.per_set, size)
            # a batch may have rows of weight 0 alone
            weight = weight / weight.sum(2, keepdim=True).clamp_min(torch.finfo(weight.dtype).tiny)
        if self.source is not None:
            return StepRows(x, y, (size,), index, None, self.source.rows(index), weight)
        codes = Codes(self.codes[sets, index].view(stage.n_sets, stage.per_set, size), self.n_environments)
        return StepRows(x, y, (size,), index, codes if weight is None else Weighted(codes, weight), None, weight)


def _codes(environment: Tensor | None, n_rows: int) -> Tensor:
    return torch.zeros(n_rows, dtype=torch.int64) if environment is None else environment
