"""What the other files share: array types, tensors as arrays, and work cut into chunks."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

_CHUNK = 1 << 22  # numbers in a temporary array: bounds the memory of scores and of bootstrap draws


def chunks(n: int, size: int) -> list[slice]:
    """0 ... n - 1 in pieces, as few as bounded memory allows where each of them needs `size` numbers.

    >>> chunks(5, size=1 << 21)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(1, _CHUNK // size)
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def without_torch(values: Any) -> Any:
    """A numpy array in place of a tensor; anything else as it is."""
    if not isinstance(values, torch.Tensor):
        return values
    values = values.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()  # numpy has no bfloat16
