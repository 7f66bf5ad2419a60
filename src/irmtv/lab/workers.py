"""Pieces of work, one after the other in this process or side by side in several.

An error in a piece is its outcome, and the others go on; except a ValueError, which says that the spec cannot be run,
and is raised at once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from multiprocessing import connection, forkserver, resource_tracker
from typing import Any, Protocol, TypeVar

WAKE_SECONDS = 0.5


class Labelled(Protocol):
    @property
    def label(self) -> str: ...


W = TypeVar("W", bound=Labelled)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a piece of work: its result, or its error."""

    started: str
    seconds: float
    result: Any = None
    error: str | None = None  # its type and text
    traceback: str = ""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def failure(text: str) -> Outcome:
    """Of a piece that was lost with its process."""
    return Outcome(_now(), 0.0, None, text)


def attempt(work: Callable[[W], Any], piece: W) -> Outcome:
    started, clock = _now(), time.perf_counter()
    try:
        result = work(piece)
        return Outcome(started, time.perf_counter() - clock, result)
    except ValueError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return Outcome(started, time.perf_counter() - clock, None, text, traceback.format_exc())


def one_by_one(
    pieces: Sequence[W], work: Callable[[W], Any], stage: Callable[[str], None] | None
) -> Generator[tuple[W, Outcome]]:
    """In order; `stage` is called with the label of each that begins."""
    for piece in pieces:
        if stage is not None:
            stage(piece.label)
        yield piece, attempt(work, piece)


def _begin(environment: Mapping[str, str]) -> None:
    os.environ.update(environment)  # a server that was started earlier has that of its start
    import torch  # here: `prepare` is for a process that has not imported it yet

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent, which ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End with a parent that was killed, in place of waiting for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def side_by_side(
    pieces: Sequence[W], work: Callable[[W], Any], jobs: int, stage: Callable[[str], None] | None
) -> Generator[tuple[W, Outcome]]:
    """As they are finished. Each of `jobs` processes has one core; the results of a few pieces wait at most."""

    context = _context(work)

    def new_pool() -> ProcessPoolExecutor:
        return ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(dict(os.environ),))

    pool = new_pool()
    waiting = list(reversed(pieces))
    running: dict[Future[Outcome], W] = {}
    try:
        while waiting or running:
            while waiting and len(running) < 2 * jobs:
                piece = waiting.pop()
                try:
                    with _ctrl_c_waits():
                        running[pool.submit(attempt, work, piece)] = piece
                except (BrokenProcessPool, OSError):  # OSError: it broke while this started a process for it
                    if not pool._broken:
                        raise
                    waiting.append(piece)  # what runs will say so
                    break
                if stage is not None:
                    stage(piece.label)
            if not running:  # nothing ran when a process was killed
                _end(pool)
                pool = new_pool()
                continue
            # not for ever: Ctrl-C that another thread of this process got is raised when this one wakes
            finished, _ = wait(running, timeout=WAKE_SECONDS, return_when=FIRST_COMPLETED)
            if any(isinstance(future.exception(), BrokenProcessPool) for future in finished):
                # a process was killed (out of memory, say), on an unknown one of these pieces
                lost = list(running.values())
                running.clear()
                _end(pool)
                pool = new_pool()
                for piece in lost:
                    yield piece, failure("a process that trained was killed; try fewer jobs")
                continue
            for future in finished:
                yield running.pop(future), future.result()
    finally:
        # what runs after Ctrl-C or an error is not waited for; nor are processes that are done: one that was killed
        # while it waited for work keeps the others from hearing that there is none
        _end(pool)


def _context(work: Callable[[W], Any]) -> multiprocessing.context.BaseContext:
    """How processes begin: never as a fork of this one, whose threads of torch and whose GPU would not survive it.

    On Linux they are forks of one fresh interpreter that has imported what `work` needs, which takes seconds, and has
    done nothing with it; it serves all calls of this process.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    function = work.func if isinstance(work, partial) else work
    return _forking(function.__module__)


def _forking(module: str) -> multiprocessing.context.BaseContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", module])  # without effect where it runs already
    return context


def prepare(module: str) -> None:
    """Have the interpreter that processes fork from import a module, while this one does something else."""
    if sys.platform == "linux":
        _forking(module)
        with _ctrl_c_waits():
            forkserver.ensure_running()


@contextmanager
def _ctrl_c_waits() -> Iterator[None]:
    """A process that is started inside has no Ctrl-C of its own, also before `_begin`: it would print a traceback."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # which it would do inside, and unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(pool: ProcessPoolExecutor) -> None:
    """End the processes of a pool without waiting for what they do.

    A broken pool ends those that it knows when it breaks; one that `submit` starts at that moment would stay.
    """
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()
