"""What makes small steps fast: memory that the process keeps on a CPU, a recorded step on a GPU.

CPU: a step allocates and frees the same few hundred-kilobyte tensors again and again. By default glibc hands such
blocks back to the system and fetches them anew, and touching the fresh pages costs more than the arithmetic. Raising
two thresholds of `malloc` keeps them (up to the threshold) in the process. Without glibc nothing happens.

GPU: a step of a small network is some sixty kernels that each take less time than their launch. Within a phase of
training every step launches the same kernels on the same tensors, so it is recorded once as a CUDA graph and replayed.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable

import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt's names, from malloc.h
KEPT_BYTES = 256 << 20
WARM_STEPS = 3  # steps before recording: libraries allocate their workspaces at first use


@functools.cache
def keep_freed_memory() -> bool:
    """Raise the thresholds, once per process; whether the C library has them."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_MMAP_THRESHOLD, KEPT_BYTES)) and bool(mallopt(_TRIM_THRESHOLD, KEPT_BYTES))


class CapturedStep:
    """Call it like the step; after a few calls it replays the recording."""

    def __init__(self, step: Callable[[], None]) -> None:
        self.step, self.calls = step, 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch does not annotate it

    def __call__(self) -> None:
        if self.graph is not None:
            self.graph.replay()
        elif self.calls < WARM_STEPS:
            self.calls += 1
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self.step()
            torch.cuda.current_stream().wait_stream(self.stream)
        else:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=self.stream):
                self.step()
            self.graph.replay()  # recording runs nothing
