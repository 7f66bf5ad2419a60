"""On a GPU: record one step as a CUDA graph and replay it.

A step of a small network is some sixty kernels that each take less time than their launch. Within a phase of
training every step launches the same kernels on the same tensors, so it is recorded once and replayed as one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

WARM_STEPS = 3  # steps before recording: libraries allocate their workspaces at first use


class CapturedStep:
    """Call it like the step; after a few calls it replays the recording."""

    def __init__(self, step: Callable[[], None]) -> None:
        self.step, self.calls = step, 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

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
