"""A metric per environment, for many runs at once: overall, by environment, mean, worst, spread, intervals.

Every metric here is the mean of a score per sample, so one pass of segment sums gives the whole table and
a bootstrap is a matrix product with resampling counts.

Axes: R runs, N rows, E environments, C outputs, B bootstrap draws.

>>> import numpy as np
>>> logits = np.array([[2.0, -1.0, 0.5, -3.0], [2.0, 1.0, 0.5, -3.0]])  # (R, N)
>>> table = evaluate_environments(logits, [1, 0, 1, 1], ["a", "a", "b", "b"])
>>> table.by_environment
array([[1. , 0.5],
       [0.5, 0.5]])
>>> table.worst_environment
['b', 'a']
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray

from irmtv.core.messages import did_you_mean, shown

Array: TypeAlias = NDArray[Any]
Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

_CHUNK = 1 << 22  # numbers in a temporary array: bounds the memory of scores and of bootstrap draws
_SHOWN = 20  # environments that a printed table lists
_QUANTITIES = ("overall", "mean", "worst", "spread")


# --- the metrics ------------------------------------------------------------------------------------------


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
            Metric("accuracy", _accuracy, True, ("binary", "multiclass"), percent=True),
            Metric("log_loss", _log_loss, False, ("binary", "multiclass")),
            Metric("mse", _squared_error, False, ("squared",)),
            Metric("mae", _absolute_error, False, ("squared",)),
        )
    }
)


# --- the table --------------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """Lower and upper limits, each shaped like the quantity they belong to."""

    lower: Floats
    upper: Floats


@dataclass(frozen=True, eq=False, repr=False)
class EnvironmentTable:
    """One metric, per environment, for R runs. Made by :func:`evaluate_environments`.

    An environment without rows is NaN in `by_environment` and does not enter `mean`, `worst` and `spread`.
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

    @property
    def mean(self) -> Floats:
        """(R,) unweighted mean over the environments."""
        here = self._present
        return np.asarray(np.where(here, self.by_environment, 0.0).sum(-1) / here.sum(-1))

    @property
    def worst(self) -> Floats:
        """(R,) the smallest value over the environments; the largest, where less is better."""
        low, high = self._extremes
        return low if self.greater_is_better else high

    @property
    def worst_environment(self) -> list[Hashable]:
        """The environment of `worst`, one name per run; the first of them where several tie."""
        if self.greater_is_better:
            index = np.where(self._present, self.by_environment, np.inf).argmin(-1)
        else:
            index = np.where(self._present, self.by_environment, -np.inf).argmax(-1)
        return [self.names[e] for e in index]

    @property
    def spread(self) -> Floats:
        """(R,) best minus worst environment in absolute value: never negative."""
        low, high = self._extremes
        return _difference(high, low)

    @property
    def _present(self) -> NDArray[np.bool_]:
        return np.broadcast_to(self.counts > 0, self.by_environment.shape)

    @property
    def _extremes(self) -> tuple[Floats, Floats]:
        here = self._present
        low = np.where(here, self.by_environment, np.inf).min(-1)
        return low, np.where(here, self.by_environment, -np.inf).max(-1)

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
        )

    def to_frame(self) -> pd.DataFrame:
        """One row per run and environment: run, environment, value, count, lower, upper.

        The limits are NaN without a bootstrap.
        """
        shape = self.by_environment.shape
        limits = (self.intervals or {}).get("by_environment")
        none = np.full(shape, np.nan)
        pairs = list(itertools.product(self.run_names, self.names))
        return pd.DataFrame(
            {
                "run": [run for run, _ in pairs],
                "environment": [environment for _, environment in pairs],
                "value": self.by_environment.ravel(),
                "count": np.broadcast_to(self.counts, shape).ravel(),
                "lower": (limits.lower if limits else none).ravel(),
                "upper": (limits.upper if limits else none).ravel(),
            }
        )

    def summary(self) -> pd.DataFrame:
        """One row per quantity (overall, mean, worst, spread, then each environment), over the runs.

        Columns: mean, std (ddof=1; NaN for a single run), min, max, runs (how many have the environment),
        and for a single bootstrapped run lower and upper.
        """
        reduced = [getattr(self, q) for q in _QUANTITIES]
        values = np.column_stack([*reduced, self.by_environment])  # (R, 4 + E)
        always = np.ones((len(self), len(_QUANTITIES)), dtype=bool)
        columns: dict[str, Array] = _over_runs(values, np.column_stack([always, self._present]))
        if self.intervals is not None and len(self) == 1:
            parts = [self.intervals[k] for k in (*_QUANTITIES, "by_environment")]
            columns["lower"] = np.concatenate([part.lower.ravel() for part in parts])
            columns["upper"] = np.concatenate([part.upper.ravel() for part in parts])
        labels = np.fromiter((*_QUANTITIES, *self.names), dtype=object)
        index = pd.Index(labels, name="quantity", dtype=object, tupleize_cols=False)  # names may be tuples
        return pd.DataFrame(columns, index=index)

    def mean_std(self, quantity: Hashable) -> tuple[float, float]:
        """Mean and standard deviation (ddof=1) over the runs.

        Of `overall`, `mean`, `worst`, `spread`, or of an environment by its name. Runs in which the
        environment has no rows are left out; the deviation of a single run is NaN.
        """
        if quantity in _QUANTITIES:
            values = getattr(self, str(quantity))
            here = np.ones(len(self), dtype=bool)
        elif quantity in self.names:
            e = self.names.index(quantity)
            values, here = self.by_environment[:, e], self._present[:, e]
        else:
            raise ValueError(
                f"quantity must be one of {list(_QUANTITIES)} or an environment ({shown(self.names)}). "
                f"Got {quantity!r}.{did_you_mean(quantity, (*_QUANTITIES, *self.names))}"
            )
        result = _over_runs(values[:, None], here[:, None])
        return float(result["mean"][0]), float(result["std"][0])

    def __repr__(self) -> str:
        title, body, note = self._shown()
        lines = [title, *body.to_string().splitlines(), note]
        return "\n".join(line.rstrip() for line in lines if line)

    __str__ = __repr__

    def _repr_html_(self) -> str:
        title, body, note = self._shown()
        notes = [f"<p>{html.escape(text)}</p>" if text else "" for text in (title, note)]
        return f"{notes[0]}{body.to_html()}{notes[1]}"

    def _shown(self) -> tuple[str, pd.DataFrame, str]:
        """What is printed: a title, a table of strings, a note (may be empty)."""
        summary = self.summary().iloc[: len(_QUANTITIES) + _SHOWN]
        labels = [str(label) for label in summary.index]
        rows = np.broadcast_to(self.counts, self.by_environment.shape)  # (R, E)
        per_row = [rows.sum(-1), *[np.zeros(1, dtype=np.int64)] * 3, *rows.T[:_SHOWN]]
        body: dict[str, list[str]] = {}
        if len(self) == 1:
            labels[_QUANTITIES.index("worst")] = f"worst ({self.worst_environment[0]})"
            what = "one run"
            body["value"] = [self._number(v) for v in summary["mean"]]
            if self.intervals is not None:
                limits = zip(summary["lower"], summary["upper"], strict=True)
                level = f"{100 * (self.confidence or 0):g} % interval"
                body[level] = [f"{self._number(a)} to {self._number(b)}" for a, b in limits]
                what += f", {self.n_bootstrap} bootstrap draws"
        else:
            what = f"mean ± standard deviation over {len(self)} runs"
            pairs = zip(summary["mean"], summary["std"], strict=True)
            body["mean ± std"] = [f"{self._number(m)} ± {self._number(s)}" for m, s in pairs]
            body["min"] = [self._number(v) for v in summary["min"]]
            body["max"] = [self._number(v) for v in summary["max"]]
        body["rows"] = [_count(n) if i == 0 or i > 3 else "" for i, n in enumerate(per_row)]
        title = f"{self.metric}{' (%)' if self.percent else ''} by environment: {what}"
        hidden = len(self.names) - _SHOWN
        note = f"... and {hidden} more environments: see .summary() or .to_frame()" if hidden > 0 else ""
        return title, pd.DataFrame(body, index=labels), note

    def _number(self, value: float) -> str:
        return f"{100 * value:.2f}" if self.percent else f"{value:.4g}"


def _over_runs(values: Floats, here: NDArray[np.bool_]) -> dict[str, Array]:
    """Mean, std, min, max over the runs that count: (R, K) and a mask (R, K) -> K of each."""
    n = here.sum(0)
    nothing = n == 0
    with np.errstate(invalid="ignore", divide="ignore"):  # no runs: NaN by intention; inf - inf likewise
        mean = np.where(here, values, 0.0).sum(0) / n
        deviation = np.where(here, values - mean, 0.0)
        std = np.where(n > 1, np.sqrt(np.square(deviation).sum(0) / (n - 1)), np.nan)
    low = np.where(here, values, np.inf).min(0, initial=np.inf)
    high = np.where(here, values, -np.inf).max(0, initial=-np.inf)
    return {
        "mean": mean,
        "std": std,
        "min": np.where(nothing, np.nan, low),
        "max": np.where(nothing, np.nan, high),
        "runs": n,
    }


def _difference(high: Floats, low: Floats) -> Floats:
    with np.errstate(invalid="ignore"):  # inf - inf is NaN, and that is the answer
        return np.asarray(high - low)


def _count(n: Ints) -> str:
    low, high = int(n.min()), int(n.max())
    return str(low) if low == high else f"{low} to {high}"


# --- from outputs to the table ----------------------------------------------------------------------------


def evaluate_environments(
    logits: ArrayLike | torch.Tensor,
    y: ArrayLike | torch.Tensor,
    environment: ArrayLike | torch.Tensor | Sequence[Hashable] | None = None,
    *,
    metric: str | Metric = "accuracy",
    names: Sequence[Hashable] | None = None,
    n_bootstrap: int = 0,
    confidence: float = 0.95,
    random_state: int | np.random.Generator | None = None,
    run_names: Sequence[Hashable] | None = None,
) -> EnvironmentTable:
    """The metric in every environment, for every run.

    Parameters
    ----------
    logits : outputs of the network (predictions, for regression): (R, N) for one output, (R, N, C) for
        several. (N,) is one run. Two axes are always (R, N): for one run with several outputs pass
        ``logits[None]``.
    y : (N,) shared by the runs, or (R, N). 0/1 for one logit, 0 ... C - 1 for several.
        Several regression targets: (N, C) or (R, N, C), averaged.
    environment : (N,) labels of any hashable kind, or (R, N) where each run has its own rows.
        None: one environment "all".
    metric : a name in :data:`METRICS`, or a :class:`Metric`.
    names : fixes the environments and their order. With an integer `environment` they are the names of the
        codes 0 ... E - 1; with other labels they are the labels. One without rows is NaN. None: the labels
        that occur, sorted.
    n_bootstrap : number of draws for the intervals, 0 for none. 1000 or more for a level of 0.95.
    confidence : level of the intervals, between 0 and 1.
    random_state : seed of the draws. The draws are shared by the runs, so that a run has the same intervals
        alone and among others.
    run_names : one name per run. None: 0 ... R - 1.

    Notes
    -----
    Intervals are percentile intervals; rows are resampled within each environment, so they speak of the
    sampling of rows, not of training or of environments. The worst of several noisy values is pessimistic on
    average and the spread too large; the intervals inherit that. Where every score of an environment is
    equal (accuracy 1), its interval has no width.
    """
    chosen = _metric(metric)
    _check_bootstrap(n_bootstrap, confidence)
    f = _outputs(logits)  # (R, N) or (R, N, C)
    target = _targets(y, f, chosen)  # (1 or R, N) or (1 or R, N, C)
    codes, labels = _encode(environment, names, f.shape[:2])  # (N,) or (R, N)
    n_runs, n_rows, n_env = f.shape[0], f.shape[1], len(labels)
    if run_names is not None and (isinstance(run_names, str) or len(run_names) != n_runs):
        raise ValueError(
            f"run_names must hold one name per run: {n_runs} names. Got {run_names!r}. "
            "Pass a list of that length, or None for 0, 1, 2, ..."
        )

    step = max(1, _CHUNK // max(1, f[0].size))
    scores = np.empty((n_runs, n_rows))
    sums = np.empty((n_runs, n_env))
    for start in range(0, n_runs, step):
        part = slice(start, start + step)
        with np.errstate(all="ignore"):  # infinite or NaN outputs of a run that diverged show in its results
            own = target if target.shape[0] == 1 else target[part]
            scores[part] = chosen.score(f[part].astype(np.float64, copy=False), own)
        sums[part] = _segment_sums(scores[part], codes if codes.ndim == 1 else codes[part], n_env)

    if codes.ndim == 1:
        counts = np.bincount(codes, minlength=n_env).astype(np.int64)  # (E,)
    else:
        counts = _segment_sums(np.ones(codes.shape), codes, n_env).astype(np.int64)  # (R, E)
    by_environment = np.full((n_runs, n_env), np.nan)
    np.divide(sums, counts, out=by_environment, where=np.broadcast_to(counts > 0, sums.shape))
    intervals = None
    if n_bootstrap:
        seed = _seed(random_state)
        if codes.ndim == 1:
            intervals = _bootstrap(scores, codes, n_env, chosen, n_bootstrap, confidence, seed)
        else:  # each run has its own rows: there is nothing to share
            alone = [
                _bootstrap(s[None], c, n_env, chosen, n_bootstrap, confidence, seed)
                for s, c in zip(scores, codes, strict=True)
            ]
            intervals = {
                k: Interval(*(np.concatenate(limits) for limits in zip(*(a[k] for a in alone), strict=True)))
                for k in alone[0]
            }
    return EnvironmentTable(
        metric=chosen.name,
        greater_is_better=chosen.greater_is_better,
        names=labels,
        counts=counts,
        by_environment=by_environment,
        overall=sums.sum(-1) / n_rows,
        run_names=tuple(range(n_runs)) if run_names is None else tuple(run_names),
        percent=chosen.percent,
        intervals=intervals,
        confidence=confidence if n_bootstrap else None,
        n_bootstrap=int(n_bootstrap),
    )


def _segment_sums(scores: Floats, codes: Ints, n_env: int) -> Floats:
    """Sums by code: scores (R, N), codes (N,) or (R, N) -> (R, E). The cost does not grow with E."""
    n_runs = scores.shape[0]
    flat = codes + n_env * np.arange(n_runs)[:, None]  # (R, N): the runs side by side
    sums = np.bincount(flat.ravel(), weights=scores.ravel(), minlength=n_runs * n_env)
    return np.asarray(sums, dtype=np.float64).reshape(n_runs, n_env)


def _bootstrap(
    scores: Floats, codes: Ints, n_env: int, metric: Metric, n_bootstrap: int, confidence: float, seed: int
) -> dict[str, Interval]:
    """Percentile intervals for runs that share their rows' environments: scores (R, N), codes (N,).

    One environment after the other, so that memory holds a few (R, B) arrays whatever E is. They are taken
    in the order of their first row: the draws then do not depend on what the environments are called.
    """
    rng = np.random.default_rng(seed)
    tails = [0.5 - confidence / 2, 0.5 + confidence / 2]
    n_runs, n_rows = scores.shape
    present, first = np.unique(codes, return_index=True)
    members = np.split(np.argsort(codes, kind="stable"), np.bincount(codes, minlength=n_env).cumsum()[:-1])
    limits = np.full((2, n_runs, n_env), np.nan)
    total, mean = np.zeros((2, n_runs, n_bootstrap))
    low, high = np.full_like(total, np.inf), np.full_like(total, -np.inf)
    for e in present[np.argsort(first)]:
        drawn = _resampled_means(scores[:, members[e]], n_bootstrap, rng)  # (R, B)
        limits[:, :, e] = _quantiles(drawn, tails)
        total += drawn * (len(members[e]) / n_rows)
        mean += drawn / len(present)
        np.minimum(low, drawn, out=low)
        np.maximum(high, drawn, out=high)
    reduced = {
        "overall": total,
        "mean": mean,
        "worst": low if metric.greater_is_better else high,
        "spread": _difference(high, low),
    }
    result = {"by_environment": Interval(limits[0], limits[1])}
    return result | {k: Interval(*_quantiles(v, tails)) for k, v in reduced.items()}


def _resampled_means(scores: Floats, n_bootstrap: int, rng: np.random.Generator) -> Floats:
    """Means of n rows drawn with replacement: (R, n) -> (R, B), by multinomial counts and a product."""
    n_runs, n = scores.shape
    means = np.empty((n_runs, n_bootstrap))
    step = max(1, _CHUNK // n)
    for start in range(0, n_bootstrap, step):
        b = min(step, n_bootstrap - start)
        drawn = rng.integers(n, size=(b, n)) + n * np.arange(b)[:, None]
        times = np.bincount(drawn.ravel(), minlength=b * n).reshape(b, n)  # how often each row was drawn
        with np.errstate(invalid="ignore", over="ignore"):  # 0 * inf: an infinite score has no interval
            means[:, start : start + b] = scores @ times.T.astype(np.float64) / n
    return means


def _quantiles(drawn: Floats, tails: list[float]) -> Floats:
    """(R, B) -> (2, R)."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.quantile(drawn, tails, axis=1))


def _seed(random_state: int | np.random.Generator | None) -> int:
    return int(np.random.default_rng(random_state).integers(2**63))


# --- checks -----------------------------------------------------------------------------------------------


def _metric(metric: str | Metric) -> Metric:
    if isinstance(metric, Metric):
        return metric
    if metric not in METRICS:
        raise ValueError(f"metric must be one of {list(METRICS)}. Got {metric!r}.{did_you_mean(metric, METRICS)}")
    return METRICS[metric]


def _check_bootstrap(n_bootstrap: int, confidence: float) -> None:
    if isinstance(n_bootstrap, bool) or not isinstance(n_bootstrap, (int, np.integer)) or n_bootstrap < 0:
        raise ValueError(
            f"n_bootstrap must be a whole number of draws, 0 for no intervals. Got {n_bootstrap!r}. "
            "1000 is a usual choice."
        )
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1. Got {confidence!r}. For 95 % intervals pass 0.95.")


def _outputs(logits: ArrayLike | torch.Tensor) -> Array:
    """(R, N) or (R, N, C) with C > 1, in the dtype that came."""
    f = _numbers(logits, "logits")
    came = f.shape
    if f.ndim == 1:
        f = f[None]
    if f.ndim not in (2, 3) or f.size == 0:
        raise ValueError(
            "logits must have shape (N,) for one run, (R, N) for R runs, or (R, N, C) for several outputs, "
            f"with at least one row. Got shape {came}. "
            "For one run with several outputs pass logits[None]."
        )
    return f[..., 0] if f.ndim == 3 and f.shape[-1] == 1 else f


def _targets(y: ArrayLike | torch.Tensor, f: Array, metric: Metric) -> Array:
    """y with a leading axis of 1 (shared) or R, of the shape that the metric needs beside f."""
    target = _numbers(y, "y")
    n_runs, n_rows = f.shape[:2]
    shared = (n_rows,) if metric.classifies or f.ndim == 2 else f.shape[1:]
    own = (n_runs, *shared)
    if target.shape not in (shared, own):
        what = "one class per row" if metric.classifies else "one target per output"
        hint = "Check that both hold the same rows."
        if target.shape == (n_rows, 1):
            hint = "Pass y.ravel()."
        elif f.ndim == 2 and target.shape[:1] == (n_runs,):
            hint = "Two axes of logits are always (R, N): for one run with several outputs pass logits[None]."
        raise ValueError(
            f"y must have shape {shared}, or {own} where each run has its own data: {what} for "
            f"metric {metric.name!r} and logits {f.shape}. Got shape {target.shape}. {hint}"
        )
    if not np.isfinite(target).all():
        raise ValueError("y must be finite. Got NaN or infinite values. Leave those rows out.")
    if metric.classifies:
        n_classes = 2 if f.ndim == 2 else f.shape[-1]
        ok = (target == np.floor(target)) & (target >= 0) & (target < n_classes)
        if not ok.all():
            outputs = "one logit" if f.ndim == 2 else f"{n_classes} logits"
            raise ValueError(
                f"y must hold the classes 0 to {n_classes - 1} for {outputs} and metric {metric.name!r}. "
                f"Got {shown(np.unique(target[~ok]).tolist())}. Encode the classes as 0, 1, 2, ...; "
                "for regression use metric 'mse' or 'mae'."
            )
    return target[None] if target.shape == shared else target


def _encode(
    environment: ArrayLike | torch.Tensor | Sequence[Hashable] | None,
    names: Sequence[Hashable] | None,
    shape: tuple[int, ...],
) -> tuple[Ints, tuple[Hashable, ...]]:
    """Codes (N,) or (R, N) into names, and the names."""
    given = None if names is None else _check_names(names)
    if environment is None:
        if given is not None and len(given) != 1:
            raise ValueError(
                f"names must hold one name where environment is None. Got {len(given)}: {shown(given)}. "
                "Pass the environment of every row, or leave names out."
            )
        return np.zeros(shape[1], dtype=np.int64), given or ("all",)
    labels = _labels(environment)
    if labels.shape not in (shape, shape[1:]):
        raise ValueError(
            f"environment must have shape {shape[1:]}, or {shape} where each run has its own rows. "
            f"Got shape {labels.shape}. Pass one label per row of logits."
        )
    if given is not None and labels.dtype.kind in "iu":
        outside = (labels < 0) | (labels >= len(given))
        if outside.any():
            raise ValueError(
                f"environment must hold codes from 0 to {len(given) - 1}, one for each of the {len(given)} "
                f"names. Got {shown(np.unique(labels[outside]).tolist())}. "
                "Leave names out to name the environments by their own values."
            )
        return labels.astype(np.int64), given
    try:
        codes, unique = pd.factorize(labels.ravel())
    except TypeError as error:
        raise ValueError(
            f"environment must hold hashable labels (numbers, strings, tuples). {error}. Convert them first."
        ) from error
    if (codes < 0).any():
        raise ValueError(
            "environment must have a label for every row. "
            f"Got {int((codes < 0).sum())} missing (NaN or None) of {codes.size}. "
            'Leave those rows out, or give them a label of their own such as "unknown".'
        )
    found = [label.item() if isinstance(label, np.generic) else label for label in unique]
    ordered = _sorted(list(dict.fromkeys(found))) if given is None else given
    position = {name: i for i, name in enumerate(ordered)}
    strange = [label for label in found if label not in position]
    if strange:
        raise ValueError(
            f"environment must hold only labels that are in names ({shown(ordered)}). Got also "
            f"{shown(strange)}. Add them to names, leave names out, or pass integer codes 0, 1, 2, ..."
        )
    rank = np.array([position[label] for label in found], dtype=np.int64)
    return rank[codes].reshape(labels.shape), tuple(ordered)


def _check_names(names: Sequence[Hashable]) -> tuple[Hashable, ...]:
    listed = (names,) if isinstance(names, str) else tuple(names)
    if isinstance(names, str) or not listed or len(set(listed)) != len(listed):
        raise ValueError(
            f"names must be a sequence of distinct environment names. Got {names!r}. Pass one name per environment."
        )
    return listed


def _labels(environment: Any) -> Array:
    """An array of integers, floats or booleans, or of objects. Lists stay as they are: numpy would turn
    ["a", nan] into strings and tuples into an axis."""
    if isinstance(environment, torch.Tensor):
        environment = environment.detach().cpu().numpy()
    if isinstance(environment, (list, tuple)):
        nested = bool(environment) and all(isinstance(v, (list, np.ndarray)) for v in environment)
        environment = np.array(environment, dtype=object) if nested else np.fromiter(environment, dtype=object)
    labels: Array = np.asarray(environment)
    if labels.dtype.kind in "mM":  # dates: names that can be read
        labels = np.asarray(pd.Series(labels.ravel()), dtype=object).reshape(labels.shape)
    if labels.dtype.kind in "OUS":
        labels = labels.astype(object)
        if pd.api.types.infer_dtype(labels.ravel(), skipna=False) == "integer":
            labels = labels.astype(np.int64)
    return labels


def _sorted(labels: list[Any]) -> list[Any]:
    try:
        return sorted(labels)
    except TypeError:  # kinds that do not compare: any order that does not depend on the rows
        return sorted(labels, key=lambda label: (type(label).__name__, repr(label)))


def _numbers(values: Any, parameter: str) -> Array:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    try:
        array: Array = np.asarray(values)
    except ValueError as error:  # rows of unequal length
        raise ValueError(f"{parameter} must be a regular array of numbers. Got: {error}") from error
    if array.dtype.kind == "b":
        return array.astype(np.int64)
    if array.dtype.kind not in "iuf":
        raise ValueError(
            f"{parameter} must be an array of numbers. Got dtype {array.dtype}. "
            "Encode classes as 0, 1, 2, ... and convert the rest to floats."
        )
    return array
