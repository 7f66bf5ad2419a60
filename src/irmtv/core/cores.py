"""How many cores there are for us, and work on them side by side, every piece with one thread.

Several threads inside one small tensor operation gain little, and where other work keeps the cores busy they wait for
each other in spinning loops: a step takes many times as long. So pieces of work run side by side, each in a thread of
its own whose operations use one core, and a busy machine costs what its share costs. What is computed does not depend
on how many run at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from threading import Lock, local
from typing import Generic, TypeVar, cast

import torch

T = TypeVar("T")
R = TypeVar("R")

_BESIDE_OTHERS: ContextVar[bool] = ContextVar("beside_others", default=False)  # in a piece: the cores are taken

_INSIDE = local()  # how often this thread is


class _Outside:
    """What the process was set to when the first of those entered that set it to one thread."""

    lock = Lock()
    entered = 0
    threads = 1


def cores() -> int:
    """The cores that this process may use: no more than torch's threads (OMP_NUM_THREADS, joblib's share of them), the
    cores that it is bound to, and a container's share of them."""
    if _BESIDE_OTHERS.get():
        return 1
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(_torch_threads(), there, _of_container()))


def _torch_threads() -> int:
    with _Outside.lock:
        return _Outside.threads if _Outside.entered else torch.get_num_threads()


def _of_container(path: str = "/sys/fs/cgroup/cpu.max") -> int:
    """The quota of processor time, in cores; as good as none where nothing says so."""
    try:
        with open(path) as file:
            quota, period = file.read().split()
    except (OSError, ValueError):
        return 1 << 30
    return 1 << 30 if quota == "max" else max(1, int(quota) // int(period))


@contextmanager
def one_thread_each(threads: int = 1) -> Iterator[None]:
    """Inside, operations of torch use one thread (or `threads`), here and in threads that begin here; then as many as
    before."""
    mine = torch.get_num_threads()
    with _Outside.lock:
        if not _Outside.entered:
            _Outside.threads = mine
        elif mine == 1 and not getattr(_INSIDE, "depth", 0):
            mine = _Outside.threads  # this thread began while another one was inside, and found one
        _Outside.entered += 1
    _INSIDE.depth = getattr(_INSIDE, "depth", 0) + 1
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        _INSIDE.depth -= 1
        with _Outside.lock:
            _Outside.entered -= 1
            torch.set_num_threads(mine)


class InOrder(Generic[R]):
    """Hands results on in the order of their pieces, each as soon as those before it are there: sums that are added so
    do not depend on which piece was ready first, and few of them wait."""

    def __init__(self, take: Callable[[R], None]) -> None:
        self._take, self._lock, self._waiting, self._next = take, Lock(), dict[int, R](), 0

    def put(self, i: int, result: R) -> None:
        """The result of piece number i, from any thread."""
        with self._lock:
            self._waiting[i] = result
            while self._next in self._waiting:
                self._take(self._waiting.pop(self._next))
                self._next += 1


def side_by_side(
    work: Callable[[T], R], pieces: Iterable[T], most: int | None = None, stop: Callable[[], None] | None = None
) -> list[R]:
    """`work` of every piece, in their order; at most as many at a time as there are cores, or as `most` says.

    The first error is raised, when those pieces that have begun are done: `stop` is called to tell them to end.
    """
    each = list(pieces)
    at_a_time = min(len(each), cores() if most is None else most)
    with one_thread_each():
        if at_a_time <= 1:
            return [work(piece) for piece in each]
        errors: list[BaseException] = []

        def end(error: BaseException) -> None:
            errors.append(error)
            if stop is not None and len(errors) == 1:
                stop()

        def alone(piece: T) -> R | None:
            _BESIDE_OTHERS.set(True)
            try:
                return None if errors else work(piece)
            except BaseException as error:
                end(error)
                return None

        with ThreadPoolExecutor(at_a_time) as pool:
            try:
                # what a context says holds in the threads, too
                begun = [pool.submit(copy_context().run, alone, piece) for piece in each]
                wait(begun)
            except BaseException as error:  # Ctrl-C comes to this thread
                end(error)
        if errors:
            raise errors[0]
        return [cast(R, future.result()) for future in begun]
