"""A progress bar for long training: how many runs are done, how fast, how long still."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from irmtv.core.messages import printable
from irmtv.core.progress import Progress as Report

SECONDS = 10.0  # between two lines, where there is no terminal


class ProgressBar:
    """Shows what `train(progress=...)` reports.

    >>> with ProgressBar("IRM-TV-l1") as bar:               # doctest: +SKIP
    ...     train(task, "irm-tv-l1", runs, progress=bar)

    Several trainings share a bar by `bar.stage(name, share)`: the next training is that share of the whole. Where the
    console is a file or a pipe there is no bar; with `lines`, a plain line every ten seconds instead.
    """

    def __init__(
        self,
        title: str = "training",
        console: Console | None = None,
        *,
        lines: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        console = Console() if console is None else console
        self._lines = console if lines and not console.is_terminal else None
        self._clock = clock
        self._ended, self._telling = threading.Event(), threading.Lock()
        self._began = self._last = clock()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,  # a file or a pipe would get an empty line
        )
        self._title, self._start, self._share = printable(title), 0.0, 1.0

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        self._task = self._bar.add_task(self._title, total=1.0, note="")
        if self._lines is not None:  # also while nothing is reported: a user should see that it is still at work
            threading.Thread(target=self._keep_telling, daemon=True).start()
        return self

    def _keep_telling(self) -> None:
        while not self._ended.wait(SECONDS / 4):
            self._show()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._bar.stop()

    def _show(self, **what: Any) -> None:
        """Move the bar; where there is none, print a line if the last one is old enough."""
        if "description" in what:  # names may come from files
            what["description"] = printable(what["description"])
        self._bar.update(self._task, **what)
        with self._telling:
            if self._lines is None or self._clock() - self._last < SECONDS or self._ended.is_set():
                return
            self._last, task = self._clock(), self._bar.tasks[0]
            passed = f"{self._last - self._began:.0f} s"
            self._lines.print(f"{task.description}: {100 * task.completed:.0f} %, {passed}", soft_wrap=True)

    def stage(self, name: str, share: float) -> None:
        """What comes next: its name and its share of the whole."""
        self._start = self._bar.tasks[0].completed
        self._share = share
        self._show(description=name)

    def rename(self, name: str) -> None:
        """What the bar is about now."""
        self._show(description=name)

    def at(self, share: float, name: str) -> None:
        """How much of the whole is done, and what is being done, where no training reports it."""
        self._show(completed=share, description=name)

    def __call__(self, report: Report) -> None:
        rate = (report.runs_done * report.steps + report.runs_now * report.step) / max(report.seconds, 1e-9)
        self._show(
            completed=self._start + self._share * report.share,
            note=f"{report.runs_done + report.runs_now}/{report.runs} runs, {rate:,.0f} steps/s",
        )
