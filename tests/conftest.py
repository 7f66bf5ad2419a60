"""What tests of several folders use: markers, time limits, the command."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

MARKERS = {
    "slow": "takes more than about a third of a second of processor time (tests/slow.txt); left out by `make check`",
    "browser": "looks at a page in Chromium",
    "data": "reads the real files in the folder that IRMTV_DATA names",
    "gpu": "needs a CUDA device",
}
FIXTURES = {"real": "data"}  # a test that uses the fixture, through others too, has the marker
TIME_LIMIT = 900.0  # seconds, on a busy machine too; a test that waits for a process or a signal has its own
SLOW = frozenset(Path(__file__).with_name("slow.txt").read_text(encoding="utf-8").split())  # made by tests/slow.py
SET_UP = pytest.StashKey[float]()  # when the fixtures were ready, in processor seconds
LEFT_OUT = pytest.StashKey[Counter[str]]()


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    config.addinivalue_line("markers", "time_limit(seconds): the test fails where it takes longer")
    config.stash[LEFT_OUT] = Counter()
    if getattr(config.option, "numprocesses", None):  # pytest-xdist
        config.pluginmanager.register(_Workers(config))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = item.nodeid.partition("[")[0]
        if name in SLOW or name.partition("::")[0] in SLOW:
            item.add_marker("slow")
        for fixture in set(FIXTURES) & set(getattr(item, "fixturenames", ())):
            item.add_marker(FIXTURES[fixture])
        if item.get_closest_marker("data") and not os.environ.get("IRMTV_DATA"):
            item.add_marker(pytest.mark.skip(reason="IRMTV_DATA names no folder with the real data"))


# what a test costs


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--times", metavar="FILE", help="append processor seconds of every test to FILE, for tests/slow.py"
    )


def _processor_seconds() -> float:
    """Of this process and of those it has waited for; unlike the wall clock it is the same on a busy machine."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    before = _processor_seconds()
    try:
        return (yield)
    finally:
        if file := item.config.getoption("--times"):
            with Path(file).open("a", encoding="utf-8") as times:
                setup = item.stash.get(SET_UP, before) - before
                times.write(f"{_processor_seconds() - before:.3f}\t{setup:.3f}\t{item.nodeid}\n")


# what `make check` leaves out


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        names = [name for name in MARKERS if item.get_closest_marker(name)]
        item.config.stash[LEFT_OUT][" and ".join(names) or "not asked for"] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(session.config.stash[LEFT_OUT])


class _Workers:
    """Takes from the processes of pytest-xdist what they left out: each of them collects everything."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_testnodedown(self, node: Any) -> None:
        self.config.stash[LEFT_OUT] |= Counter(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if counts := config.stash[LEFT_OUT]:
        names = ", ".join(f"{n} {name}" for name, n in counts.most_common())
        terminalreporter.write_line(f"left out: {counts.total()} tests ({names}); `make test` runs them")


# time limits


@contextmanager
def _time_limit(item: pytest.Item) -> Iterator[None]:
    """Raises TimeoutError in the test where it waits too long. Wall clock, so limits are generous."""
    marker = item.get_closest_marker("time_limit")
    seconds = float(marker.args[0]) if marker else TIME_LIMIT
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"{item.nodeid} takes more than {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with _time_limit(item):
        yield
    item.stash[SET_UP] = _processor_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with _time_limit(item):
        return (yield)


# fixtures


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT interrupts this process and those it starts, also where the tests were started with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """`command("fit", path, ...)` runs it through its entry point, in this process: torch takes seconds to load."""
    from irmtv import cli

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["irmtv", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Ended(ended.value.code or 0, captured.out, captured.err)

    return call
