"""The paper's running times beside ours, and what l1 costs more than l2: seconds are the machine's, ratios are not."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from irmtv.core.numbers import NO_VALUE, number
from irmtv.html.text_table import TextTable, tables_markdown, write_tables
from irmtv.lab.experiments import papers
from irmtv.lab.experiments.running_times import COLUMNS, EPOCHS, METHODS, PAIRS, RunningTimes, Timing

NAME = "running-times"
TITLE = "Running times"
WHERE = {"alone": "one run alone", "together": "per run of ten"}


@dataclass(frozen=True)
class RunningTimesReport:
    """What `irmtv reproduce running-times` prints and writes."""

    measured: RunningTimes
    published: Mapping[str, Mapping[str, float | None]]  # key of the method -> column -> seconds

    def paper(self, method: str, column: str) -> float | None:
        """The paper's seconds."""
        objective, _ = METHODS[method]
        key = "minimax-tv-l2" if objective == "zin" else objective  # as the paper calls it
        return self.published[key].get(COLUMNS[column].published)

    def tables(self) -> list[TextTable]:
        """Seconds, and ratios of l1 to l2."""
        return [self._seconds(), self._ratios()]

    def _seconds(self) -> TextTable:
        rows = []
        for t, method in itertools.product(self.measured.timings, METHODS):
            theirs = self.paper(method, t.column)
            ours = [getattr(t, kind).get(method) for kind in WHERE]
            medians = [NO_VALUE if times is None else number(float(np.median(times))) for times in ours]
            rows.append([_title(t), method, NO_VALUE if theirs is None else f"{theirs:.1f}", *medians])
        shapes = "; ".join(f"{t.column}: {COLUMNS[t.column].shape}" for t in self.measured.timings)
        steps = "; ".join(f"{t.column} {t.steps[0]} and {t.steps[1]}" for t in self.measured.timings)
        notes = [
            f"on: {self.measured.machine}; torch {self.measured.versions.get('torch', '')}. Medians of "
            f"{self.measured.repetitions} measurements, the methods in turn. The paper's machine is not known.",
            f"measured over fewer steps and scaled to {EPOCHS:,}, warm-up and penalised steps mixed as the published "
            f"schedule has them. Steps of each phase, one run and ten: {steps}; the first fifth of them is not timed.",
            f"shapes: {shapes}. A step counts as an epoch; that is one mini-batch on Landcover.",
        ]
        if any(t.stand_in for t in self.measured.timings):
            notes.append("stand-in: random numbers of the same shape; what a step costs does not depend on the values.")
        if "landcover" in [t.column for t in self.measured.timings]:
            notes.append("Landcover has no environments: methods that need them have no time there, nor in the paper.")
        columns = ("data", "method", "paper", *WHERE.values())
        return TextTable(f"Seconds of {EPOCHS:,} steps", columns, rows, notes, labels=2)

    def ratio(self, l1: str, l2: str, column: str) -> dict[str, Any]:
        """The ratio of the times of two methods on one data set: the paper's, and ours with the lowest and highest."""
        timing = next(t for t in self.measured.timings if t.column == column)
        theirs = [self.paper(m, column) for m in (l1, l2)]
        ratio: dict[str, Any] = {"paper": None if theirs[0] is None or theirs[1] is None else theirs[0] / theirs[1]}
        for kind in WHERE:
            times = getattr(timing, kind)
            ratio[kind] = None
            if l1 in times and l2 in times:
                each = np.divide(times[l1], times[l2])  # measured one after the other
                ratio[kind] = {"median": float(np.median(each)), "low": float(each.min()), "high": float(each.max())}
        return ratio

    def _ratios(self) -> TextTable:
        rows = []
        for (l1, l2), t in itertools.product(PAIRS, self.measured.timings):
            r = self.ratio(l1, l2, t.column)
            if r["alone"] is not None or r["paper"] is not None:
                theirs = NO_VALUE if r["paper"] is None else f"{r['paper']:.3f}"
                rows.append([_title(t), l1, theirs, *(_range(r[kind]) for kind in WHERE)])
        note = "median of the ratios of measurements that followed each other, and their range; l2: ZIN and IRM-TV-l2."
        return TextTable("l1 over l2", ("data", "l1", "paper", *WHERE.values()), rows, (note,), labels=2)

    def table(self) -> pd.DataFrame:
        """A row for every measurement: seconds of 5,300 steps of one run."""
        rows = [
            {
                "column": t.column,
                "stand_in": t.stand_in,
                "method": method,
                "runs": 1 if kind == "alone" else self.measured.runs_together,
                "repetition": i,
                "seconds": seconds,
                "paper_seconds": self.paper(method, t.column),
            }
            for t in self.measured.timings
            for kind in WHERE
            for method, times in getattr(t, kind).items()
            for i, seconds in enumerate(times)
        ]
        return pd.DataFrame(rows)

    def numbers(self) -> dict[str, Any]:
        """All numbers, for programs."""
        return {
            "machine": self.measured.machine,
            "versions": self.measured.versions,
            "repetitions": self.measured.repetitions,
            "epochs": EPOCHS,
            "columns": {
                t.column: {
                    "shape": COLUMNS[t.column].shape,
                    "stand_in": t.stand_in,
                    "steps": t.steps,
                    "paper": {m: self.paper(m, t.column) for m in METHODS},
                    **{kind: getattr(t, kind) for kind in WHERE},
                }
                for t in self.measured.timings
            },
            "ratios": [
                {"l1": l1, "l2": l2, "column": t.column, **self.ratio(l1, l2, t.column)}
                for l1, l2 in PAIRS
                for t in self.measured.timings
            ],
        }

    def markdown(self) -> str:
        """All tables."""
        return tables_markdown(TITLE, self.tables())

    def write(self, folder: str | os.PathLike[str]) -> list[Path]:
        """running-times.md, .csv and .json."""
        return write_tables(folder, NAME, self.markdown(), self.table(), self.numbers())


def report_running_times(measured: RunningTimes) -> RunningTimesReport:
    """Put the paper's table beside what `measure_running_times` measured."""
    table = json.loads((papers.papers_folder() / "published.json").read_text(encoding="utf-8"))["running_seconds"]
    by_column = {key: dict(zip(table["columns"], values, strict=True)) for key, values in table["results"].items()}
    return RunningTimesReport(measured, by_column)


def _title(timing: Timing) -> str:
    return f"{timing.column} (stand-in)" if timing.stand_in else timing.column


def _range(ratio: Mapping[str, float] | None) -> str:
    return NO_VALUE if ratio is None else f"{ratio['median']:.2f} ({ratio['low']:.2f}–{ratio['high']:.2f})"
