"""The result: one metric, per environment, for many runs; as arrays, as frames and as text."""

from __future__ import annotations

import html
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from irmtv.core.messages import did_you_mean, shown

Array: TypeAlias = NDArray[Any]
Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

QUANTITIES = ("overall", "mean", "worst", "spread")  # one number per run
_SHOWN = 20  # environments that a printed table lists


class Interval(NamedTuple):
    """Lower and upper limits, each shaped like the quantity they belong to."""

    lower: Floats
    upper: Floats


@dataclass(frozen=True, eq=False, repr=False)
class EnvironmentTable:
    """One metric, per environment, for R runs. Made by :func:`~irmtv.metrics.evaluate_environments`.

    An environment without rows, or whose rows have no value (the area under the curve of one class), is NaN in
    `by_environment` and does not enter `mean`, `worst` and `spread`.
    A run whose outputs are NaN in an environment is NaN there, and in everything that contains it.
    """

    metric: str
    greater_is_better: bool
    names: tuple[Hashable, ...]  # E environments
    counts: Ints  # (E,) rows per environment, (R, E) where each run has its own
    by_environment: Floats  # (R, E)
    overall: Floats  # (R,) mean over the rows
    run_names: tuple[Hashable, ...]  # R
    percent: bool = False
    intervals: Mapping[str, Interval] | None = None  # keys: by_environment, overall, mean, worst, spread
    confidence: float | None = None  # level of the intervals
    n_bootstrap: int = 0
    undefined: Bools | None = None  # (R, E) where an environment has rows, but no value: an area of one class

    @property
    def mean(self) -> Floats:
        """(R,) unweighted mean over the environments."""
        with np.errstate(invalid="ignore"):  # of none: NaN
            return np.asarray(self.by_environment.sum(-1, where=self._present) / self._present.sum(-1))

    @property
    def worst(self) -> Floats:
        """(R,) the smallest value over the environments; the largest, where less is better."""
        low, high = nan_extremes(self.by_environment, self._present, -1)
        return low if self.greater_is_better else high

    @property
    def worst_environment(self) -> list[Hashable]:
        """The environment of `worst`, one name per run; the first of them where several tie."""
        badness = -self.by_environment if self.greater_is_better else self.by_environment
        return [self.names[e] for e in np.where(self._present, badness, -np.inf).argmax(-1)]

    @property
    def spread(self) -> Floats:
        """(R,) best minus worst environment in absolute value: never negative."""
        low, high = nan_extremes(self.by_environment, self._present, -1)
        with np.errstate(invalid="ignore"):  # inf - inf is NaN, and that is the answer
            return high - low

    @property
    def _rows(self) -> Ints:
        """(R, E) rows per run and environment."""
        return np.broadcast_to(self.counts, self.by_environment.shape)

    @property
    def _present(self) -> Bools:
        rows: Bools = self._rows > 0
        return rows if self.undefined is None else rows & ~self.undefined

    def __len__(self) -> int:
        """The number of runs."""
        return len(self.by_environment)

    def __iter__(self) -> Iterator[EnvironmentTable]:
        return (self[r] for r in range(len(self)))

    def __getitem__(self, run: int | slice) -> EnvironmentTable:
        """The table of one run, or of a slice of the runs, by position. Intervals are kept."""
        if not isinstance(run, slice):
            position = range(len(self))[run]  # an IndexError of the usual kind, and negative positions
            run = slice(position, position + 1)
        if not self.run_names[run]:
            raise IndexError(f"a table needs at least one run. Got {run} of {len(self)} runs.")
        kept = None
        if self.intervals is not None:
            kept = {k: Interval(v.lower[run], v.upper[run]) for k, v in self.intervals.items()}
        return replace(
            self,
            counts=self.counts if self.counts.ndim == 1 else self.counts[run],
            by_environment=self.by_environment[run],
            overall=self.overall[run],
            run_names=self.run_names[run],
            intervals=kept,
            undefined=None if self.undefined is None else self.undefined[run],
        )

    def to_frame(self) -> pd.DataFrame:
        """One row per run and environment: run, environment, value, count, lower, upper.

        The limits are NaN without a bootstrap.
        """
        none = np.full_like(self.by_environment, np.nan)
        lower, upper = self.intervals["by_environment"] if self.intervals else (none, none)
        return pd.DataFrame(
            {
                "run": [run for run in self.run_names for _ in self.names],
                "environment": list(self.names) * len(self),
                "value": self.by_environment.ravel(),
                "count": self._rows.ravel(),
                "lower": lower.ravel(),
                "upper": upper.ravel(),
            }
        )

    def summary(self) -> pd.DataFrame:
        """One row per quantity (overall, mean, worst, spread, then each environment), over the runs.

        Columns: mean, std (ddof=1; NaN for a single run), min, max, runs (how many have the environment),
        and for a single bootstrapped run lower and upper.
        """
        reduced = np.column_stack([getattr(self, q) for q in QUANTITIES])  # (R, 4)
        values = np.hstack([reduced, self.by_environment])  # (R, 4 + E)
        columns = _over_runs(values, np.hstack([np.full(reduced.shape, True), self._present]))
        if self.intervals is not None and len(self) == 1:
            parts = [self.intervals[k] for k in (*QUANTITIES, "by_environment")]
            columns["lower"] = np.concatenate([part.lower.ravel() for part in parts])
            columns["upper"] = np.concatenate([part.upper.ravel() for part in parts])
        labels = [*QUANTITIES, *self.names]
        index = pd.Index(labels, name="quantity", dtype=object, tupleize_cols=False)  # names may be tuples
        return pd.DataFrame(columns, index=index)

    def mean_std(self, quantity: Hashable) -> tuple[float, float]:
        """Mean and standard deviation (ddof=1) over the runs.

        Of `overall`, `mean`, `worst`, `spread`, or of an environment by its name. Runs in which the
        environment has no rows are left out; the deviation of a single run is NaN.
        """
        known = (*QUANTITIES, *self.names)
        if quantity not in known:
            raise ValueError(
                f"quantity must be one of {list(QUANTITIES)} or an environment ({shown(self.names)}). "
                f"Got {quantity!r}.{did_you_mean(quantity, known)}"
            )
        row = self.summary().iloc[known.index(quantity)]
        return float(row["mean"]), float(row["std"])

    def __repr__(self) -> str:
        title, body, note = self._shown()
        lines = [title, *body.to_string().splitlines(), note]
        return "\n".join(line.rstrip() for line in lines if line)

    def _repr_html_(self) -> str:
        title, body, note = self._shown()
        return f"<p>{html.escape(title)}</p>{body.to_html()}" + (f"<p>{note}</p>" if note else "")

    def _shown(self) -> tuple[str, pd.DataFrame, str]:
        """What is printed: a title, a table of strings, a note (may be empty)."""
        summary = self.summary().iloc[: len(QUANTITIES) + _SHOWN]
        text = summary.map(lambda v: f"{100 * v:.2f}" if self.percent else f"{v:.4g}")
        labels = [str(label) for label in summary.index]
        if len(self) == 1:
            what = "one run"
            labels[QUANTITIES.index("worst")] += f" ({self.worst_environment[0]})"
            columns = {"value": text["mean"]}
            if self.intervals is not None:
                what += f", {self.n_bootstrap} bootstrap draws"
                columns[f"{100 * (self.confidence or 0):g} % interval"] = text["lower"] + " to " + text["upper"]
        else:
            what = f"mean ± standard deviation over {len(self)} runs"
            columns = {"mean ± std": text["mean"] + " ± " + text["std"], "min": text["min"], "max": text["max"]}
        title = f"{self.metric}{' (%)' if self.percent else ''} by environment: {what}"
        body = pd.DataFrame(columns).set_axis(labels)
        body["rows"] = [_count(self._rows.sum(-1)), "", "", "", *(_count(n) for n in self._rows.T[:_SHOWN])]
        hidden = len(self.names) - _SHOWN
        note = f"... and {hidden} more environments: see .summary() or .to_frame()" if hidden > 0 else ""
        return title, body, note


def _count(n: Ints) -> str:
    low, high = int(n.min()), int(n.max())
    return str(low) if low == high else f"{low} to {high}"


def nan_extremes(values: Floats, here: Bools, axis: int) -> tuple[Floats, Floats]:
    """The smallest and the largest along an axis, of the values where the mask says so; NaN where it leaves nothing."""
    some = here.any(axis)
    low, high = values.min(axis, where=here, initial=np.inf), values.max(axis, where=here, initial=-np.inf)
    return np.where(some, low, np.nan), np.where(some, high, np.nan)


def _over_runs(values: Floats, here: Bools) -> dict[str, Array]:
    """Mean, std, min, max over the runs that count: (R, K) and a mask (R, K) -> K of each."""
    n = here.sum(0)
    low, high = nan_extremes(values, here, 0)
    with np.errstate(invalid="ignore", divide="ignore"):  # no runs: NaN by intention; inf - inf likewise
        mean = values.sum(0, where=here) / n
        variance = np.square(values - mean).sum(0, where=here) / (n - 1)
    return {
        "mean": mean,
        "std": np.sqrt(variance, where=n > 1, out=np.full_like(mean, np.nan)),
        "min": low,
        "max": high,
        "runs": n,
    }
