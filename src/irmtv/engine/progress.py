"""How far a call of `train` is, of chunks that may train at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from irmtv.core.progress import Progress
from irmtv.engine.plan import Chunk


@dataclass(frozen=True)
class Reporter:
    """Tells how far one chunk is; where training is to stop, KeyboardInterrupt says so."""

    teller: Teller
    chunk: Chunk

    def __call__(self, step: int) -> None:
        self.teller.tell(self.chunk, step)


class Teller:
    """Tells the `progress` callback of a call how far all of its chunks are, one call at a time."""

    def __init__(self, progress: Callable[[Progress], None] | None, runs: int) -> None:
        self.progress, self.runs, self.stopped = progress, runs, False
        self.started, self.lock = time.perf_counter(), Lock()
        self.now: dict[tuple[int, ...], float] = {}  # by the runs of a chunk that trains: the share that is done
        self.done = 0

    def of(self, chunk: Chunk) -> Reporter:
        return Reporter(self, chunk)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def stop(self) -> None:
        """Have chunks end that still train."""
        self.stopped = True

    def tell(self, chunk: Chunk, step: int) -> None:
        if self.stopped:
            raise KeyboardInterrupt
        if self.progress is None:
            return
        steps = int(chunk.static["steps"])
        with self.lock:
            self.now[chunk.runs] = step / steps
            now = sum(map(len, self.now))
            share = sum(len(runs) * part for runs, part in self.now.items()) / now
            self.progress(Progress(round(share * steps), steps, self.done, now, self.runs, self.seconds))

    def finish(self, chunk: Chunk) -> None:
        with self.lock:
            self.now.pop(chunk.runs, None)
            self.done += len(chunk.runs)
