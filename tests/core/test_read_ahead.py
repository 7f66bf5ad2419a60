"""A thread that makes the next pieces: their order, errors, and that it ends."""

from __future__ import annotations

import doctest
import gc
import signal
import threading
import time

import pytest

from irmtv.core import read_ahead as module
from irmtv.core.read_ahead import read_ahead


def alive():
    return [thread for thread in threading.enumerate() if thread.name == "read-ahead"]


def test_examples_in_the_documentation():
    assert doctest.testmod(module).failed == 0


def test_all_items_in_their_order_and_then_the_error():
    def items():
        yield from range(100)
        raise ValueError("the file is damaged")

    ahead = read_ahead(items())
    assert [next(ahead) for _ in range(100)] == list(range(100))
    with pytest.raises(ValueError, match="the file is damaged"):
        next(ahead)
    assert not alive()


def test_no_more_is_made_than_may_wait():
    made = []

    def items():
        for i in range(100):
            made.append(i)
            yield i

    ahead = read_ahead(items(), depth=2)
    assert next(ahead) == 0
    deadline = time.monotonic() + 60
    while len(made) < 4 and time.monotonic() < deadline:  # one is taken, two wait, one is in hand
        time.sleep(0.001)
    time.sleep(0.05)
    assert len(made) == 4
    ahead.close()
    assert not alive()


def test_the_thread_ends_and_closes_its_files_where_the_loop_ends_early():
    closed = threading.Event()

    def items():
        try:
            yield from range(100)
        finally:
            closed.set()

    for item in (ahead := read_ahead(items())):
        if item == 3:
            break
    ahead.close()
    assert closed.is_set() and not alive()


@pytest.mark.time_limit(60)
def test_ctrl_c_while_it_waits(ctrl_c):
    """Wherever it comes, in the wait for an item or between two: the thread ends when the loop is left."""

    def items():
        yield 1
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.2)
        yield 2

    def stopped() -> bool:
        try:
            list(read_ahead(items()))
        except KeyboardInterrupt:
            return True
        return False

    assert stopped()
    gc.collect()
    assert not alive()
