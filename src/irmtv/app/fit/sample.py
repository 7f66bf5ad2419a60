"""Rows that are drawn from many: of every environment its share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from irmtv.data.environments import rows_of_codes
from irmtv.data.training import TrainingData

Ints = npt.NDArray[np.integer]
FEWEST_OF_ENVIRONMENT = 1000
BLOCK = 1 << 17  # rows that are looked at together


def some_rows(data: TrainingData[Any], most: int, seed: int) -> TrainingData[Any]:
    """At most `most` rows, at random: of every environment its share, and no fewer than a thousand of its rows."""
    rows = data.task.train
    n = len(rows)
    if n <= most:
        return data
    codes = None if rows.environment is None else rows.environment.numpy()
    return replace(data, task=replace(data.task, train=rows.take(torch.from_numpy(drawn(codes, n, most, seed)))))


def drawn(codes: Ints | None, n: int, most: int, seed: int) -> npt.NDArray[np.int64]:
    """Positions of these rows, in their order, by the environments (N,) of all; None is one environment.

    All rows are shuffled, and the first ones of every environment are taken. The order of the rows is all that is in
    memory: 4 bytes for each.
    """
    if n <= most:
        return np.arange(n)
    order = torch.randperm(
        n, generator=torch.Generator().manual_seed(seed), dtype=torch.int32 if n < 2**31 else torch.int64
    ).numpy()
    sizes = np.array([n]) if codes is None else rows_of_codes(codes, int(codes.max()) + 1)
    left = np.minimum(sizes, [max(FEWEST_OF_ENVIRONMENT, round(int(size) * most / n)) for size in sizes])
    taken = []
    for start in range(0, n, BLOCK):
        some = order[start : start + BLOCK]
        own = np.zeros(len(some), dtype=np.int64) if codes is None else codes[some].astype(np.int64)
        sort = np.argsort(own, kind="stable")
        own = own[sort]
        there = np.bincount(own, minlength=len(sizes))
        rank = np.arange(len(own)) - (np.cumsum(there) - there)[own]  # among those of its environment
        taken.append(some[sort[rank < left[own]]])
        left = left - np.minimum(left, there)
        if not left.any():
            break
    return np.sort(np.concatenate(taken)).astype(np.int64)
