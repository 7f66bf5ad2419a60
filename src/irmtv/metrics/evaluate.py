"""From the outputs of many runs to the table."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from irmtv.data.rows import check_row_order
from irmtv.metrics.definitions import Metric, Statistic, as_metric
from irmtv.metrics.inputs import as_environments, as_outputs, as_run_names, as_targets, check_bootstrap
from irmtv.metrics.table import QUANTITIES, Array, Bools, EnvironmentTable, Floats, Interval, Ints, nan_extremes

if TYPE_CHECKING:
    import torch

CHUNK = 1 << 22  # numbers in a temporary array: bounds the memory of scores and of bootstrap draws


def evaluate_environments(
    logits: ArrayLike | torch.Tensor,
    y: ArrayLike | torch.Tensor,
    environment: ArrayLike | torch.Tensor | Sequence[Hashable] | None = None,
    *,
    metric: str | Metric | Statistic = "accuracy",
    names: Sequence[Hashable] | None = None,
    n_bootstrap: int = 0,
    confidence: float = 0.95,
    random_state: int | np.random.Generator | None = None,
    run_names: Sequence[Hashable] | None = None,
) -> EnvironmentTable:
    """The metric in every environment, for every run.

    Parameters
    ----------
    logits
        Outputs of the network (predictions, for regression): (R, N) for one output, (R, N, C) for several. (N,) is one
        run. Two axes are always (R, N): for one run with several outputs pass ``logits[None]``.
    y
        (N,) shared by the runs, or (R, N). 0/1 for one logit, 0 ... C - 1 for several. Several regression targets: (N,
        C) or (R, N, C), averaged.
    environment
        (N,) labels of any hashable kind, or (R, N) where each run has its own rows. None: one environment "all".
    metric
        A name in :data:`METRICS` (means of a score per row: accuracy, log_loss, mse, mae) or :data:`STATISTICS`
        (roc_auc, f1, balanced_accuracy, average_precision; r2, rmse), or a :class:`Metric`.
    names
        Fixes the environments and their order. With an integer `environment` they are the names of the codes 0 ... E -
        1; with other labels they are the labels. One without rows is NaN. None: the labels that occur, sorted.
    n_bootstrap
        Number of draws for the intervals, 0 for none. 1000 or more for a level of 0.95.
    confidence
        Level of the intervals, between 0 and 1.
    random_state
        Seed of the draws. The draws are shared by the runs, so that a run has the same intervals alone and among
        others.
    run_names
        One name per run. None: 0 ... R - 1.

    Notes
    -----
    Intervals are percentile intervals; rows are resampled within each environment, so they speak of the
    sampling of rows, not of training or of environments. The worst of several noisy values is pessimistic on
    average and the spread too large; the intervals inherit that. Where every score of an environment is
    equal (accuracy 1), its interval has no width.

    An environment of one class has no roc_auc, one without rows of the second of two classes no f1 and no
    average_precision, one whose y does not vary no r2: NaN, and left out of mean, worst and spread.
    """
    chosen = as_metric(metric)
    check_bootstrap(n_bootstrap, confidence)
    check_row_order(y, "y", environment=environment)
    f = as_outputs(logits)  # (R, N) or (R, N, C)
    target = as_targets(y, f, chosen)  # (1 or R, N) or (1 or R, N, C)
    codes, labels = as_environments(environment, names, f.shape[:2])  # (N,) or (R, N)
    all_run_names = as_run_names(run_names, len(f))

    counts = _segment_sums(np.ones(codes.shape), codes, len(labels)).astype(np.int64)  # (E,) or (R, E)
    undefined, intervals, draws = None, None, None
    if n_bootstrap:
        seed = int(np.random.default_rng(random_state).integers(2**63))
        draws = Draws(n_bootstrap, [0.5 - confidence / 2, 0.5 + confidence / 2], seed)
    if isinstance(chosen, Statistic):
        by_environment, overall, undefined = statistic_by_environment(chosen, f, target, codes, len(labels))
        if draws is not None:
            intervals = statistic_intervals(chosen, f, target, codes, len(labels), draws)
    else:
        scores, sums = _scores_and_sums(chosen, f, target, codes, len(labels))  # (R, N), (R, E)
        with np.errstate(invalid="ignore"):
            by_environment = sums / counts  # an environment without rows: 0 / 0 is NaN
            overall = sums.sum(-1) / f.shape[1]
        if draws is not None:
            intervals = bootstrap(scores, codes, len(labels), draws, greater_is_better=chosen.greater_is_better)
    return EnvironmentTable(
        metric=chosen.name,
        greater_is_better=chosen.greater_is_better,
        names=labels,
        counts=counts,
        by_environment=by_environment,
        overall=overall,
        run_names=all_run_names,
        percent=chosen.percent,
        intervals=intervals,
        confidence=confidence if n_bootstrap else None,
        n_bootstrap=int(n_bootstrap),
        undefined=undefined if undefined is not None and undefined.any() else None,
    )


@np.errstate(all="ignore")  # infinite or NaN outputs of a run that diverged show in its results
def _scores_and_sums(metric: Metric, f: Array, target: Array, codes: Ints, n_env: int) -> tuple[Floats, Floats]:
    """Scores (R, N) and their sums by environment (R, E), some runs at a time."""
    scores, sums = np.empty(f.shape[:2]), np.empty((len(f), n_env))
    all_codes = np.broadcast_to(codes, scores.shape)
    for part in chunks(len(f), f[0].size):
        own = target if len(target) == 1 else target[part]
        scores[part] = metric.score(f[part].astype(np.float64, copy=False), own)
        sums[part] = _segment_sums(scores[part], all_codes[part], n_env)
    return scores, sums


def _segment_sums(scores: Floats, codes: Ints, n_env: int) -> Floats:
    """Sums by code: (N,) -> (E,), (R, N) -> (R, E). The cost does not grow with E."""
    runs = scores.shape[:-1]
    n_runs = math.prod(runs)
    side_by_side = codes + n_env * np.arange(n_runs).reshape(*runs, 1)
    sums = np.bincount(side_by_side.ravel(), weights=scores.ravel(), minlength=n_runs * n_env)
    return np.asarray(sums, dtype=np.float64).reshape(*runs, n_env)


def chunks(n: int, size: int) -> list[slice]:
    """0 ... n - 1 in pieces, as few as bounded memory allows where each of them needs `size` numbers.

    >>> chunks(5, size=1 << 21)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(1, CHUNK // size)
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


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
            defined = np.broadcast_to(statistic.defined(own_f[:, rows], own_y[:, rows]), len(own_f))
            value = statistic.value(own_f[:, rows], own_y[:, rows], once[:, rows])[:, 0]
            values[runs, e], undefined[runs, e] = np.where(defined, value, np.nan), ~defined
    return values, overall, undefined


# --- percentile intervals: rows are resampled within each environment ----------------------------------------


class Draws(NamedTuple):
    n: int
    tails: list[float]  # of an interval
    seed: int  # one for all runs, so that a run has the same intervals alone and among others


def as_intervals(limits: Floats) -> dict[str, Interval]:
    """Limits (2, R, 4 + E) of the quantities and environments, by quantity."""
    by_quantity = {q: Interval(*limits[:, :, i]) for i, q in enumerate(QUANTITIES)}
    return {"by_environment": Interval(*limits[:, :, len(QUANTITIES) :])} | by_quantity


def bootstrap(scores: Floats, codes: Ints, n_env: int, draws: Draws, *, greater_is_better: bool) -> dict[str, Interval]:
    """Intervals by quantity from scores (R, N) and environments (N,), or (R, N) where each run has its own rows."""
    alike = [(scores, codes)] if codes.ndim == 1 else zip(scores[:, None], codes, strict=True)
    parts = [_limits(s, c, n_env, greater_is_better, draws) for s, c in alike]
    return as_intervals(np.concatenate(parts, axis=1))


@np.errstate(invalid="ignore", over="ignore")  # 0 * inf, inf - inf: an infinite score has no interval
def _limits(scores: Floats, codes: Ints, n_env: int, greater_is_better: bool, draws: Draws) -> Floats:
    """(2, R, 4 + E) limits of the quantities and environments; the runs share their rows: codes (N,).

    One environment after the other, so that memory holds a few (R, B) arrays whatever E is.
    """
    rng = np.random.default_rng(draws.seed)
    n_runs, n_rows = scores.shape
    members = np.split(np.argsort(codes, kind="stable"), np.bincount(codes, minlength=n_env).cumsum()[:-1])
    present = pd.unique(codes)  # by their first row: the draws do not depend on what environments are called
    by_environment = np.full((2, n_runs, n_env), np.nan)
    total, mean = np.zeros((2, n_runs, draws.n))
    low, high = np.full_like(total, np.inf), np.full_like(total, -np.inf)
    for e in present:
        drawn = _resampled_means(scores[:, members[e]], draws.n, rng)  # (R, B)
        by_environment[:, :, e] = np.quantile(drawn, draws.tails, axis=1)
        total += drawn * (len(members[e]) / n_rows)
        mean += drawn / len(present)
        np.minimum(low, drawn, out=low)
        np.maximum(high, drawn, out=high)
    worst = low if greater_is_better else high
    reduced = [np.quantile(q, draws.tails, axis=1) for q in (total, mean, worst, high - low)]  # in order of QUANTITIES
    return np.concatenate([np.stack(reduced, axis=-1), by_environment], axis=-1)


def _resampled_means(scores: Floats, n_bootstrap: int, rng: np.random.Generator) -> Floats:
    """Means of n rows drawn with replacement: (R, n) -> (R, B), by multinomial counts and a product."""
    n_runs, n = scores.shape
    means = np.empty((n_runs, n_bootstrap))
    for part in chunks(n_bootstrap, n):
        b = part.stop - part.start
        drawn = rng.integers(n, size=(b, n)) + n * np.arange(b)[:, None]
        times = np.bincount(drawn.ravel(), minlength=b * n).reshape(b, n)  # how often each row was drawn
        means[:, part] = scores @ times.T.astype(np.float64) / n
    return means


@np.errstate(all="ignore")
def statistic_intervals(
    statistic: Statistic, f: Floats, y: Array, codes: Ints, n_env: int, draws: Draws
) -> dict[str, Interval]:
    """Percentile intervals by quantity; rows are resampled within each environment, draws without a value left out."""
    limits = np.empty((2, len(f), len(QUANTITIES) + n_env))
    for runs, own_f, own_y, own_codes in _alike(f, y, codes):
        drawn, total = drawn_statistic(statistic, own_f, own_y, own_codes, n_env, draws.n, draws.seed)
        diverged = np.full((len(own_f), 1, n_env), False)  # those are no draws to leave out: the run has no interval
        for e in np.unique(own_codes):
            diverged[:, 0, e] = ~np.isfinite(own_f[:, own_codes == e]).reshape(len(own_f), -1).all(1)
        here = ~np.isnan(drawn) | diverged
        low, high = nan_extremes(drawn, here, -1)
        mean = drawn.sum(-1, where=here) / here.sum(-1)
        quantities = (total, mean, low if statistic.greater_is_better else high, high - low)  # in order of QUANTITIES
        every = np.concatenate([np.stack(quantities, -1), drawn], -1)  # (R, B, 4 + E)
        limits[:, runs] = _quantiles(every, draws.tails)
    return as_intervals(limits)


@np.errstate(all="ignore")
def drawn_statistic(
    statistic: Statistic, f: Floats, y: Array, codes: Ints, n_env: int, n_draws: int, seed: int
) -> tuple[Floats, Floats]:
    """A statistic on rows drawn again within each environment, by environment (R, B, E) and over all rows (R, B).

    All runs see the same draws, so that their differences are paired. NaN where a draw has no value. codes (N,).
    """
    rng = np.random.default_rng(seed)
    drawn, total = np.full((len(f), n_draws, n_env), np.nan), np.empty((len(f), n_draws))
    members = {int(e): (codes == e).nonzero()[0] for e in np.unique(codes)}
    for part in chunks(n_draws, f.shape[1] * len(f)):
        times = np.zeros((part.stop - part.start, f.shape[1]))
        for rows in members.values():
            times[:, rows] = rng.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=len(times))
        total[:, part] = statistic.value(f, y, times)
        for e, rows in members.items():
            drawn[:, part, e] = statistic.value(f[:, rows], y[:, rows], times[:, rows])
    return drawn, total


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
