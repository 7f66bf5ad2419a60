"""What the loaders of series share: arrays from a file, scaling by band, and rows held apart."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from irmtv.datasets.fetch import BROKEN
from irmtv.datasets.safe_pickle import opened

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Array = np.ndarray[Any, Any]
# of an archive of arrays: a missing member, a method of packing or a size that nobody wrote
BROKEN_ARRAYS = (*BROKEN, KeyError, NotImplementedError, MemoryError)


def read_npz(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file, plain or packed once more; never an array of objects, which would be a pickle."""
    try:
        with opened(path) if path.suffix in (".gz", ".zip") else path.open("rb") as file:
            content = io.BytesIO(file.read())
        found = np.load(content, allow_pickle=False)
        if not isinstance(found, Mapping):
            raise ValueError("it holds one array, not several with names")
        return {name: found[name] for name in found}
    except FileNotFoundError:
        raise
    except BROKEN_ARRAYS as error:
        raise ValueError(
            f"it is not a whole .npz file of numbers and texts ({type(error).__name__}: {error})"
        ) from error


def standardised(series: Floats, train: Integers) -> torch.Tensor:
    """(N, bands, times) -> float32, every band with mean 0 and variance 1 over the rows `train` and all times."""
    mean = series[train].mean((0, 2), keepdims=True)  # (1, bands, 1)
    spread = series[train].std((0, 2), keepdims=True)
    return torch.from_numpy((series - mean) / np.where(spread > 0, spread, 1.0)).float()


def held_apart(rng: np.random.Generator, groups: Integers, share: float) -> NDArray[np.bool_]:
    """Which rows are held apart, (N,): this share of every group, rounded, so that all splits have equal sizes."""
    apart = np.zeros(len(groups), dtype=bool)
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        apart[rng.permutation(members)[: round(share * len(members))]] = True
    return apart


def check_share(name: str, value: Any) -> float:
    """A share of the rows, above 0 and below 1."""
    if isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and 0 < float(value) < 1:
        return float(value)
    raise ValueError(f"{name} must be a share of the rows, above 0 and below 1. Got {value!r}. Use 0.2 for a fifth.")
