"""Arrays as rows of a store, and back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from irmtv.lab.experiments.store_files import StoreError

DTYPES = {name: np.dtype(code) for name, code in (("float32", "<f4"), ("float64", "<f8"), ("int64", "<i8"))}
DTYPES["bool"] = np.dtype("?")
MAX_ARRAY_BYTES = 500_000_000  # SQLite takes at most 10^9 bytes in one row


def array_rows(arrays: Mapping[str, np.ndarray]) -> list[tuple[Any, ...]]:
    """Raw little-endian bytes in C order: read back bit for bit, and nothing in them can be executed."""
    rows = []
    for name, array in arrays.items():
        kind = array.dtype.name if isinstance(array, np.ndarray) else type(array).__name__
        if kind not in DTYPES:
            raise StoreError(f"array {name!r} must be a NumPy array of {', '.join(DTYPES)}. Got {kind}; convert it.")
        if array.nbytes > MAX_ARRAY_BYTES:
            raise StoreError(f"array {name!r} must have at most {MAX_ARRAY_BYTES} bytes. Got {array.nbytes}; split it.")
        data = array.astype(DTYPES[kind], copy=False).tobytes()
        rows.append((name, kind, json.dumps(list(array.shape)), data))
    return rows


def as_array(name: str, kind: str, shape: str, data: bytes) -> np.ndarray:
    """The array of a row, writable and in the machine's byte order."""
    dims = _dims(shape)
    if kind not in DTYPES or len(data) != math.prod(dims) * DTYPES[kind].itemsize:
        raise StoreError(f"array {name!r} is damaged: {len(data)} bytes cannot be {kind} of shape {dims}.")
    return np.ndarray(dims, DTYPES[kind], buffer=data).astype(kind)


@lru_cache(maxsize=1000)
def _dims(shape: str) -> tuple[int, ...]:
    return tuple(json.loads(shape))
