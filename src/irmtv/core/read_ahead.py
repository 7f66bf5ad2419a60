"""The next pieces of something are made by a thread while this one works on the last."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
_WAIT = 0.1  # seconds, after which a thread that waits looks whether it is still wanted


class _End:
    """What the thread sends last: nothing, or what went wrong."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def read_ahead(source: Iterable[T], depth: int = 2) -> Iterator[T]:
    """The items of `source`, at most `depth` of them made before they are asked for.

    What `source` raises is raised here, after the items before it. However the loop over this iterator ends (Ctrl-C,
    an error, `break` and the end of the iterator), the thread has ended when it is closed.

    Parameters
    ----------
    source : iterable
        Is gone through in a thread of its own.
    depth : int, default 2
        How many items may wait.

    Examples
    --------
    >>> list(read_ahead(range(3)))
    [0, 1, 2]
    """
    waiting: queue.Queue[T | _End] = queue.Queue(depth)
    unwanted = threading.Event()

    def put(item: T | _End) -> bool:
        while not unwanted.is_set():
            try:
                waiting.put(item, timeout=_WAIT)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        error: BaseException | None = None
        items = iter(source)
        try:
            for item in items:
                if not put(item):
                    break
        except BaseException as raised:
            error = raised
        finally:
            close = getattr(items, "close", None)  # of a generator: files that it has open
            if close is not None:
                close()
        put(_End(error))

    thread = threading.Thread(target=work, name="read-ahead", daemon=True)
    try:  # Ctrl-C may come as soon as it has begun
        thread.start()
        while True:
            item = waiting.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        unwanted.set()
        while not waiting.empty():
            waiting.get_nowait()
        if thread.ident is not None:
            thread.join()
