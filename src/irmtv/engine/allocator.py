"""Keep freed memory for the next step.

A step allocates and frees the same few hundred-kilobyte tensors again and again. By default glibc hands such
blocks back to the system and fetches them anew, and touching the fresh pages costs more than the arithmetic.
Raising two thresholds of `malloc` keeps them (up to the threshold) in the process. Elsewhere than on glibc
nothing happens.
"""

from __future__ import annotations

import ctypes
import functools
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt's names, from malloc.h
KEPT_BYTES = 256 << 20


@functools.cache
def keep_freed_memory() -> bool:
    """Whether the allocator could be told; asked once per process."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_MMAP_THRESHOLD, KEPT_BYTES)) and bool(mallopt(_TRIM_THRESHOLD, KEPT_BYTES))
