"""The metrics: means of a score per sample, and statistics of all rows together.

A statistic (the area under the ROC curve, F1, R^2, the root of the squared error) is a function of rows and of how
often each counts, so that one piece of code gives the value (every row once) and all draws of a bootstrap. Some have no
value on some rows: there is no curve where all rows are of one class, no F1 or average precision without a row of the
second class, and nothing to explain where y does not vary. Such an environment is NaN and does not enter mean, worst
and spread.

All are as scikit-learn defines them. Two classes: the second one, in sorted order, is what is looked for. Several
classes: each against the rest, and the plain mean over classes ("macro", "ovr" in scikit-learn); a class that has no
value on some rows does not enter the mean there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from irmtv.core.messages import did_you_mean
from irmtv.metrics.table import Array, Bools, Floats

CLASSES = ("binary", "multiclass")


@dataclass(frozen=True)
class Metric:
    """A metric that is the mean of a score per sample."""

    name: str
    score: Callable[[Floats, Array], Array]  # logits (R, N) or (R, N, C), y that broadcasts -> (R, N)
    greater_is_better: bool
    losses: tuple[str, ...]  # names of the losses (see irmtv.core.losses) whose outputs it can read
    percent: bool = False  # print as a percentage

    @property
    def classifies(self) -> bool:
        """Whether y holds classes (one per row) and not targets (one per output)."""
        return "binary" in self.losses or "multiclass" in self.losses


def _accuracy(f: Floats, y: Array) -> Array:
    """1 where the sign (one logit) or the largest logit names the class. NaN stays NaN: no guess."""
    if f.ndim == 2:
        return np.where(np.isnan(f), np.nan, (f > 0) == (y > 0.5))
    return np.where(np.isnan(f).any(-1), np.nan, f.argmax(-1) == y)


def _log_loss(f: Floats, y: Array) -> Array:
    """log(1 + exp(-f)) for y = 1, log(1 + exp(f)) for y = 0; logsumexp(f) - f_y for several logits."""
    if f.ndim == 2:
        return np.asarray(np.logaddexp(0.0, (1.0 - 2.0 * y) * f))
    f = f - f.max(-1, keepdims=True)
    index = np.broadcast_to(y.astype(np.int64), f.shape[:-1])[..., None]  # (R, N, 1)
    return np.asarray(np.log(np.exp(f).sum(-1)) - np.take_along_axis(f, index, -1)[..., 0])


def _squared_error(f: Floats, y: Array) -> Array:
    return _over_targets(np.square(f - y))


def _absolute_error(f: Floats, y: Array) -> Array:
    return _over_targets(np.abs(f - y))


def _over_targets(error: Array) -> Array:
    return np.asarray(error.mean(-1)) if error.ndim == 3 else error


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        m.name: m
        for m in (
            Metric("accuracy", _accuracy, True, CLASSES, percent=True),
            Metric("log_loss", _log_loss, False, CLASSES),
            Metric("mse", _squared_error, False, ("squared",)),
            Metric("mae", _absolute_error, False, ("squared",)),
        )
    }
)


@dataclass(frozen=True)
class Statistic:
    """A metric of all rows of an environment together."""

    name: str
    # outputs (R, n) or (R, n, C), y that broadcasts, how often each row counts (B, n) -> (R, B)
    value: Callable[[Floats, Array, Floats], Floats]
    # outputs and y, (1 or R, n) or (1 or R, n, C) -> (1 or R,): whether these rows have a value
    defined: Callable[[Floats, Array], Bools]
    greater_is_better: bool
    losses: tuple[str, ...]  # names of the losses (see irmtv.core.losses) whose outputs it can read
    percent: bool = False

    @property
    def classifies(self) -> bool:
        """Whether y holds classes (one per row) and not targets (one per output)."""
        return self.losses != ("squared",)


def _area_under_curve(f: Floats, y: Array, times: Floats) -> Floats:
    """The share of pairs of a row of class 1 and one of class 0 that the outputs put in order; ties count half."""

    def area(ones: Floats, zeros: Floats) -> Floats:
        below = zeros.cumsum(1) - zeros / 2
        return np.asarray((ones * below).sum(1) / (ones.sum(1) * zeros.sum(1)))  # one class alone: 0 / 0

    return _by_rank(f, y, times, area)


def _average_precision(f: Floats, y: Array, times: Floats) -> Floats:
    """Mean over the rows of class 1 of the share of class 1 among the rows that have at least their output."""

    def average(ones: Floats, zeros: Floats) -> Floats:
        right, all_above = (v[:, ::-1].cumsum(1)[:, ::-1] for v in (ones, ones + zeros))
        precision = np.divide(right, all_above, out=np.zeros_like(right), where=all_above > 0)
        return np.asarray((ones * precision).sum(1) / ones.sum(1))

    return _by_rank(f, y, times, average)


def _by_rank(f: Floats, y: Array, times: Floats, value: Callable[[Floats, Floats], Floats]) -> Floats:
    """A function of how often rows of class 1 and of class 0 have each output, from the lowest on: (B, sets) each.

    Several classes: each against the rest, by its probability; the mean over those that have a value on these rows.
    """
    if f.ndim == 3:
        odds = np.exp(f - f.max(-1, keepdims=True))
        shares = odds / odds.sum(-1, keepdims=True)  # (R, n, C)
        each = [_by_rank(shares[..., c], y == c, times, value) for c in range(f.shape[-1])]
        return _mean_of_known(np.stack(each))
    values = np.full((len(f), len(times)), np.nan)
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
        values[r] = value(ones, zeros)
    return values


def _mean_of_known(each: Floats) -> Floats:
    """Over the first axis, of what is not NaN; NaN where all is."""
    known = ~np.isnan(each)
    return np.asarray(each.sum(0, where=known) / known.sum(0))


def _balanced_accuracy(f: Floats, y: Array, times: Floats) -> Floats:
    """The share of right rows of a class, in the mean over the classes that these rows have."""
    return _mean_of_known(np.stack([right / there for right, _, there in _class_counts(f, y, times)]))


def _f1(f: Floats, y: Array, times: Floats) -> Floats:
    """2 x right / (predicted + there), of class 1; several classes: the mean over those that occur or are predicted."""
    each = [2 * right / (predicted + there) for right, predicted, there in _class_counts(f, y, times)]
    return each[1] if f.ndim == 2 else _mean_of_known(np.stack(each))


def _class_counts(f: Floats, y: Array, times: Floats) -> list[tuple[Floats, Floats, Floats]]:
    """By class: rows that are rightly predicted to be of it, that are predicted, that are; NaN without an output."""
    guess = (f > 0).astype(np.int64) if f.ndim == 2 else f.argmax(-1)  # (R, n)
    unknown = np.asarray(np.isnan(f)).reshape(len(f), -1).any(1, keepdims=True)  # (R, 1)
    counts = []
    for c in range(2 if f.ndim == 2 else f.shape[-1]):
        guessed, there = guess == c, np.broadcast_to(y == c, guess.shape)
        parts = (guessed & there, guessed, there)
        right, predicted, actual = (np.where(unknown, np.nan, part.astype(np.float64) @ times.T) for part in parts)
        counts.append((right, predicted, actual))
    return counts


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


def _varies(f: Floats, y: Array) -> Bools:
    """(1 or R,): whether y, each of its targets, has two or more values among these rows."""
    varies: Bools = np.asarray(y.max(1) > y.min(1))
    return np.asarray(varies.all(-1)) if varies.ndim == 2 else varies


def _has_class_1(f: Floats, y: Array) -> Bools:
    """Of two classes; of more some class always occurs."""
    return np.asarray((y > 0.5).any(1)) if f.ndim == 2 else np.full(len(y), True)


def _always(f: Floats, y: Array) -> Bools:
    return np.full(len(y), True)


STATISTICS: Mapping[str, Statistic] = MappingProxyType(
    {
        s.name: s
        for s in (
            Statistic("roc_auc", _area_under_curve, _varies, True, CLASSES),
            Statistic("f1", _f1, _has_class_1, True, CLASSES),
            Statistic("balanced_accuracy", _balanced_accuracy, _always, True, CLASSES, percent=True),
            Statistic("average_precision", _average_precision, _has_class_1, True, CLASSES),
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
