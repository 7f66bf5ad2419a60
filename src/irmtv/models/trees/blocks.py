"""Trees on rows that come in blocks: LightGBM reads them by its `Sequence`, and of features its bins alone stay.

Beside the bins every row has a few numbers in memory: its target, environment, scores, gradient and curvature.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from irmtv.core.types import Rows, Task
from irmtv.data.blocks import BlockSource
from irmtv.models.trees.library import lightgbm

BATCH = 1 << 16  # rows that LightGBM asks for at a time


def task_of_blocks(source: BlockSource, sample: Task) -> Task:
    """All rows as a task, with their numbers (N, 1) in place of features: one pass."""
    parts: list[Rows] = []
    for block in source.blocks():
        if block.weight is not None or block.x.shape[1:] != sample.train.x.shape[1:]:
            raise ValueError(
                f"blocks must be Rows of {tuple(sample.train.x.shape[1:])} features without weights. Got "
                f"{tuple(block.x.shape[1:])}{'' if block.weight is None else ', and weights'}. Make all blocks by the "
                "same preparation."
            )
        parts.append(replace(block, x=block.x[:, :0].clone(), y=_double(block.y)))  # not a view: it would keep x

    def joined(name: str) -> Tensor | None:
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else torch.cat(values)

    y = joined("y")
    assert y is not None
    numbers = torch.arange(len(y)).unsqueeze(1)
    rows = Rows(numbers, y, joined("environment"), joined("aux"), parts[0].names)
    return replace(sample, train=rows, held_out=None, test=None)


def sequences(source: BlockSource, numbers: Tensor) -> list[Any]:
    """The features of some rows (n,), by their numbers in rising order: a `lightgbm.Sequence` for each block."""
    kind, read = _kind(), _Pass(source)
    sizes = np.array([sum(counts) for counts in source.rows_of_blocks], dtype=np.int64)
    ends = sizes.cumsum()
    places = np.searchsorted(ends, numbers.numpy(), side="right")
    found = []
    for i in np.unique(places):
        inside = numbers.numpy()[places == i] - (ends[i] - sizes[i])
        found.append(kind(read, int(i), inside))
    return found


class _Pass:
    """Blocks in rising order are those of one pass, which reads ahead; one that lies behind begins the next pass."""

    def __init__(self, source: BlockSource) -> None:
        self.source, self.i, self.x = source, -1, np.empty((0, 0))
        self.left: Iterator[Rows] = iter(())

    def block(self, i: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        if i < self.i or self.i < 0:
            self.i, self.left = -1, self.source.blocks()
        if i > self.i:
            rows = next(islice(self.left, i - self.i - 1, None))
            self.i, self.x = i, np.asarray(rows.x.numpy(), dtype=np.float64)
        return self.x


def _kind() -> Any:
    """A subclass of `lightgbm.Sequence`, which is imported where it is needed."""

    class Block(lightgbm().Sequence):  # type: ignore[misc]
        batch_size = BATCH

        def __init__(self, read: _Pass, i: int, rows: npt.NDArray[np.int64]) -> None:
            self.read, self.i, self.rows = read, i, rows

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, index: Any) -> Any:
            return np.ascontiguousarray(self.read.block(self.i)[self.rows[index]])

    return Block


def _double(y: Tensor) -> Tensor:
    return y.double() if y.is_floating_point() else y
