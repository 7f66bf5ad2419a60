"""What the other files share: array types, and work cut into chunks."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
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
