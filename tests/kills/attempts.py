"""Commands in processes of their own, forked from this one, which has everything loaded: a second each instead of four.

This process must have one thread: what it forks has no others.
"""

from __future__ import annotations

import ctypes
import importlib
import mmap
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE = 60.0  # seconds in which everything that a command started must have ended
PHASES = ("before training", "training", "storing", "making tables", "before `main`")
BEFORE, TRAINING, STORING, TABLES, NOT_BEGUN = range(len(PHASES))
END = 98

_phase = mmap.mmap(-1, 1)  # shared with what is forked: what it is doing


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int  # the exit code, or minus the signal
    seconds: float
    phase: str  # what it was doing when it was hit
    out: str
    err: str


def prepare(*loaded: str) -> None:
    """Load these modules, and take over the children of commands that die."""
    for name in sorted(loaded):
        try:
            importlib.import_module(name)
        except Exception:  # made by another module, which is loaded too
            continue
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def modules_of(arguments: list[str], folder: Path) -> list[str]:
    """Names of the modules that a command loads."""
    names = folder / "modules"
    ended = attempt(arguments, folder, at_end=lambda: names.write_text("\n".join(sys.modules)))
    assert ended.code == 0, ended
    return names.read_text().split()


def attempt(
    arguments: list[str],
    folder: Path,
    hit: Callable[[int], None] | None = None,
    after: float = 0.0,
    at_end: Callable[[], Any] | None = None,
    from_main: bool = False,
) -> Ended:
    """Run `irmtv` with these arguments; `hit` is called with its process after so many seconds.

    With `from_main` these begin with its `main`; at the end of it, the exit code is END for a stop that comes too late.

    Returns when the command and everything that it started has ended.
    """
    out, err = folder / "out", folder / "err"
    _phase[0] = NOT_BEGUN
    began = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        _command(arguments, out, err, at_end)
    phase = BEFORE
    if hit is not None:
        while from_main and _phase[0] == NOT_BEGUN:
            time.sleep(0.001)
        time.sleep(after)
        phase = _phase[0]
        hit(pid)  # one that has ended is a zombie until the next line
    _, status = os.waitpid(pid, 0)
    seconds = time.perf_counter() - began
    _wait_for_the_rest(pid)
    texts = (path.read_text(errors="replace") if path.exists() else "" for path in (out, err))
    return Ended(os.waitstatus_to_exitcode(status), seconds, PHASES[phase], *texts)


def _command(arguments: list[str], out: Path, err: Path, at_end: Callable[[], Any] | None) -> None:
    """In the forked process; does not return."""
    code = 1
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        _say_phases()
        from irmtv.cli import main

        sys.argv = ["irmtv", *arguments]
        try:
            _phase[0] = BEFORE
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if at_end is not None:
            at_end()
    except KeyboardInterrupt:
        code = END
    except BaseException:
        traceback.print_exc()
        code = 99
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _say_phases() -> None:
    """Tell the process that kills what is being done; fork workers, too, in place of new interpreters."""
    from irmtv.lab import tables, workers
    from irmtv.lab.experiments import plan, run, store

    plan.RUNS_PER_GROUP["cpu"] = 1
    context = multiprocessing.get_context("fork")
    context.Process = _Worker  # type: ignore[assignment]
    workers.multiprocessing.get_context = lambda method: context  # type: ignore[assignment]
    for place, name, phase in (
        (run, "one_by_one", TRAINING),
        (run, "side_by_side", TRAINING),
        (store.Store, "add_group", STORING),
        (tables, "report_experiment", TABLES),
    ):
        setattr(place, name, _in_phase(getattr(place, name), phase))


class _Worker(multiprocessing.get_context("fork").Process):  # type: ignore[misc]
    """A forked process that a signal does not find half made; one that is spawned runs nothing of ours there."""

    def start(self) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        super().start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def run(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        super().run()


def _in_phase(function: Callable[..., Any], phase: int) -> Callable[..., Any]:
    def called(*arguments: Any, **options: Any) -> Any:
        before, _phase[0] = _phase[0], phase
        try:
            return function(*arguments, **options)
        finally:
            if phase == STORING:  # the others go on: what is trained is made while it is asked for
                _phase[0] = before

    return called


def _wait_for_the_rest(group: int) -> None:
    """Wait for what a command started; it is our child once the command has died."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            if os.waitpid(-group, os.WNOHANG)[0] == 0:
                time.sleep(0.005)
        except ChildProcessError:
            return
    os.killpg(group, signal.SIGKILL)
    raise AssertionError(f"what a command started went on for {PATIENCE:.0f} s after it had ended")


def workers_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def send(pid: int, number: int, whom: str) -> str:
    """A signal to a command ("parent"), to one of its workers ("worker") or to all ("group"); who got it."""
    if whom == "worker" and (workers := workers_of(pid)):
        os.kill(workers[-1], number)
        return "worker"
    try:
        os.killpg(pid, number) if whom == "group" else os.kill(pid, number)
    except ProcessLookupError:  # forked a moment ago: it has no group of its own yet
        os.kill(pid, number)
    return "parent" if whom == "worker" else whom
