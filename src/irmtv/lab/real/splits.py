"""Which rows are trained on, and which are unseen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
FEWEST = 300  # rows of an environment that are kept before others have their share, where rows are left out


@dataclass(frozen=True)
class RowSplit:
    """Training rows and unseen rows, by their numbers in the table."""

    label: str  # what is unseen
    train: Ints
    unseen: Ints
    in_time: bool = False  # whether everything unseen came later


def leave_each_out(part: ArrayLike, last: str | None = None) -> list[RowSplit]:
    """A split for every part of the rows, which is unseen in it; `last`: the part that is later than all others.

    >>> [(s.label, s.train.tolist(), s.unseen.tolist()) for s in leave_each_out(["b", "a", "b"])]
    [('a', [0, 2], [1]), ('b', [1], [0, 2])]
    """
    parts = np.asarray(part).astype(str)
    return [
        RowSplit(name, np.flatnonzero(parts != name), np.flatnonzero(parts == name), name == last)
        for name in np.unique(parts).tolist()
    ]


def first_then(label: str, part: ArrayLike, first: Sequence[str], then: Sequence[str]) -> RowSplit:
    """A split in time: some parts of the rows, then others."""
    parts = np.asarray(part).astype(str)
    train, unseen = (np.flatnonzero(np.isin(parts, names)) for names in (first, then))
    return RowSplit(label, train, unseen, in_time=True)


def some_rows(rows: Ints, environment: NDArray[Any], most: int, seed: int = 0) -> Ints:
    """At most `most` of the rows at random, in their order: of every environment `FEWEST`, then its share.

    Parameters
    ----------
    rows : (n,) numbers of rows.
    environment : (N,) of all rows of the table.
    most : how many are kept.
    seed : of the draw.
    """
    if len(rows) <= most:
        return rows
    names, codes = np.unique(environment[rows], return_inverse=True)
    sizes = np.bincount(codes)
    first = np.minimum(sizes, min(FEWEST, most // len(names)))
    share = (most - first.sum()) / (sizes - first).sum()
    wanted = first + np.floor(share * (sizes - first)).astype(np.int64)
    rng = np.random.default_rng(seed)
    kept = [rng.permutation(rows[codes == e])[:n] for e, n in enumerate(wanted)]
    return np.sort(np.concatenate(kept))
