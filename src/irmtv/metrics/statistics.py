"""Metrics that are no means of a score per sample: the area under the ROC curve, R^2, the root of the squared error.

Each is a function of rows and of how often each counts, so that one piece of code gives the value (every row once) and
all draws of a bootstrap. Some have no value on some rows: there is no curve where all rows are of one class, and
nothing to explain where y does not vary. Such an environment is NaN and does not enter mean, worst and spread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from irmtv.core.messages import did_you_mean
from irmtv.metrics.arrays import Array, Bools, Floats, Ints, chunks
from irmtv.metrics.bootstrap import Draws, as_intervals
from irmtv.metrics.scores import METRICS, Metric
from irmtv.metrics.table import QUANTITIES, Interval, nan_extremes


@dataclass(frozen=True)
class Statistic:
    """A metric of all rows of an environment together."""

    name: str
    # outputs (R, n) or (R, n, C), y that broadcasts, how often each row counts (B, n) -> (R, B)
    value: Callable[[Floats, Array, Floats], Floats]
    defined: Callable[[Array], Bools]  # y (1 or R, n) or (1 or R, n, C) -> (1 or R,): whether these rows have a value
    greater_is_better: bool
    losses: tuple[str, ...]  # names of the losses (see irmtv.core.losses) whose outputs it can read
    percent: bool = False

    @property
    def classifies(self) -> bool:
        """Whether y holds classes (one per row) and not targets (one per output)."""
        return self.losses != ("squared",)


def _area_under_curve(f: Floats, y: Array, times: Floats) -> Floats:
    """The share of pairs of a row of class 1 and one of class 0 that the outputs put in order; ties count half."""
    areas = np.full((len(f), len(times)), np.nan)
    for r, outputs in enumerate(f):
        if np.isnan(outputs).any():
            continue
        order = np.argsort(outputs, kind="stable")
        ranked = outputs[order]
        first = np.r_[True, ranked[1:] != ranked[:-1]].nonzero()[0]  # of every set of rows that tie
        positive = (y[r if len(y) > 1 else 0] > 0.5)[order]
        counted = times[:, order]
        ones = np.add.reduceat(counted * positive, first, axis=1)  # (B, sets)
        zeros = np.add.reduceat(counted * ~positive, first, axis=1)
        below = zeros.cumsum(1) - zeros / 2
        areas[r] = (ones * below).sum(1) / (ones.sum(1) * zeros.sum(1))  # one class alone: 0 / 0
    return areas


def _explained(f: Floats, y: Array, times: Floats) -> Floats:
    """R^2 = 1 - squared error / squared distance from the mean of y; the mean over several targets."""
    f, y = _with_targets(f, y)
    left = np.einsum("rnc,bn->rbc", np.square(f - y), times)
    around = y - y.mean(1, keepdims=True)  # so that squares do not drown in the distance from 0
    squares = np.einsum("rnc,bn->rbc", np.square(around), times)
    total = squares - np.square(np.einsum("rnc,bn->rbc", around, times)) / times.sum(1)[:, None]
    total = np.where(total > 1e-12 * squares, total, np.nan)  # a draw of one row again and again
    return np.asarray((1 - left / total).mean(-1))


def _root_of_squares(f: Floats, y: Array, times: Floats) -> Floats:
    """The root of the mean squared error; the mean over several targets."""
    f, y = _with_targets(f, y)
    squares = np.einsum("rnc,bn->rbc", np.square(f - y), times) / times.sum(1)[:, None]
    return np.asarray(np.sqrt(squares).mean(-1))


def _with_targets(f: Floats, y: Array) -> tuple[Floats, Floats]:
    """Both with an axis of targets: (R, n, C)."""
    return (f[..., None], y[..., None].astype(np.float64)) if f.ndim == 2 else (f, y.astype(np.float64))


def _varies(y: Array) -> Bools:
    """(1 or R,): whether y, each of its targets, has two or more values among these rows."""
    varies: Bools = np.asarray(y.max(1) > y.min(1))
    return np.asarray(varies.all(-1)) if varies.ndim == 2 else varies


def _always(y: Array) -> Bools:
    return np.full(len(y), True)


STATISTICS: Mapping[str, Statistic] = MappingProxyType(
    {
        s.name: s
        for s in (
            Statistic("roc_auc", _area_under_curve, _varies, True, ("binary",)),
            Statistic("r2", _explained, _varies, True, ("squared",)),
            Statistic("rmse", _root_of_squares, _always, False, ("squared",)),
        )
    }
)


def as_metric(metric: str | Metric | Statistic) -> Metric | Statistic:
    """A metric by its name, or as it is."""
    if isinstance(metric, (Metric, Statistic)):
        return metric
    known = _known()
    if not isinstance(metric, str) or metric not in known:
        raise ValueError(f"metric must be one of {list(known)}. Got {metric!r}.{did_you_mean(metric, known)}")
    return known[metric]


def metric_for(loss: str, metric: str | None) -> str:
    """The name of a metric that reads the outputs of this loss; the first of them where none is asked for."""
    fitting = [m.name for m in _known().values() if loss in m.losses]
    if metric is None:
        return fitting[0]
    if metric not in fitting:
        what = {"squared": "a regression", "binary": "two classes"}.get(loss, "several classes")
        raise ValueError(f"metric must be one of {fitting} for {what}. Got {metric!r}.{did_you_mean(metric, fitting)}")
    return metric


def _known() -> dict[str, Metric | Statistic]:
    return {**METRICS, **STATISTICS}


@np.errstate(all="ignore")  # infinite or NaN outputs of a run that diverged show in its results
def statistic_by_environment(
    statistic: Statistic, f: Floats, y: Array, codes: Ints, n_env: int
) -> tuple[Floats, Floats, Bools]:
    """Values (R, E) and overall (R,), and where rows have no value (R, E); codes (N,) or (R, N)."""
    values, undefined = np.full((len(f), n_env), np.nan), np.full((len(f), n_env), False)
    overall = np.empty(len(f))
    for runs, own_f, own_y, own_codes in _alike(f, y, codes):
        once = np.ones((1, f.shape[1]))
        overall[runs] = statistic.value(own_f, own_y, once)[:, 0]
        for e in np.unique(own_codes):
            rows = own_codes == e
            defined = np.broadcast_to(statistic.defined(own_y[:, rows]), len(own_f))
            value = statistic.value(own_f[:, rows], own_y[:, rows], once[:, rows])[:, 0]
            values[runs, e], undefined[runs, e] = np.where(defined, value, np.nan), ~defined
    return values, overall, undefined


@np.errstate(all="ignore")
def statistic_intervals(
    statistic: Statistic,
    f: Floats,
    y: Array,
    codes: Ints,
    n_env: int,
    draws: Draws,
) -> dict[str, Interval]:
    """Percentile intervals by quantity; rows are resampled within each environment, draws without a value left out."""
    seed = draws.seed()
    limits = np.empty((2, len(f), len(QUANTITIES) + n_env))
    for runs, own_f, own_y, own_codes in _alike(f, y, codes):
        rng = np.random.default_rng(seed)
        drawn = np.full((len(own_f), draws.n, n_env), np.nan)
        total = np.empty((len(own_f), draws.n))
        members = {int(e): (own_codes == e).nonzero()[0] for e in np.unique(own_codes)}
        for part in chunks(draws.n, f.shape[1] * len(own_f)):
            times = np.zeros((part.stop - part.start, f.shape[1]))
            for rows in members.values():
                times[:, rows] = rng.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=len(times))
            total[:, part] = statistic.value(own_f, own_y, times)
            for e, rows in members.items():
                drawn[:, part, e] = statistic.value(own_f[:, rows], own_y[:, rows], times[:, rows])
        diverged = np.full((len(own_f), 1, n_env), False)  # those are no draws to leave out: the run has no interval
        for e, rows in members.items():
            diverged[:, 0, e] = ~np.isfinite(own_f[:, rows]).reshape(len(own_f), -1).all(1)
        here = ~np.isnan(drawn) | diverged
        low, high = nan_extremes(drawn, here, -1)
        mean = drawn.sum(-1, where=here) / here.sum(-1)
        quantities = (total, mean, low if statistic.greater_is_better else high, high - low)  # in order of QUANTITIES
        every = np.concatenate([np.stack(quantities, -1), drawn], -1)  # (R, B, 4 + E)
        limits[:, runs] = _quantiles(every, draws.tails)
    return as_intervals(limits)


def _quantiles(drawn: Floats, tails: list[float]) -> Floats:
    """(R, B, K) -> (2, R, K), over the draws that have a value; NaN where none has."""
    limits = np.full((len(tails), drawn.shape[0], drawn.shape[2]), np.nan)
    for r, k in np.ndindex(drawn.shape[0], drawn.shape[2]):
        values = drawn[r, :, k]
        values = values[~np.isnan(values)]
        if len(values):
            limits[:, r, k] = np.quantile(values, tails)
    return limits


def _alike(f: Floats, y: Array, codes: Ints) -> Iterator[tuple[slice, Floats, Array, Ints]]:
    """Runs that share their environments: all of them, or one by one; with their outputs, y and codes (N,)."""
    if codes.ndim == 1:
        yield slice(0, len(f)), f.astype(np.float64, copy=False), y, codes
        return
    for r in range(len(f)):
        run = slice(r, r + 1)
        yield run, f[run].astype(np.float64, copy=False), y if len(y) == 1 else y[run], codes[r]
