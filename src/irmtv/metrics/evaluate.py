"""From the outputs of many runs to the table."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike

from irmtv.data.rows import check_row_order
from irmtv.metrics.arrays import Array, Floats, Ints, chunks
from irmtv.metrics.bootstrap import Draws, bootstrap
from irmtv.metrics.inputs import as_environments, as_outputs, as_run_names, as_targets, check_bootstrap
from irmtv.metrics.scores import Metric
from irmtv.metrics.statistics import Statistic, as_metric, statistic_by_environment, statistic_intervals
from irmtv.metrics.table import EnvironmentTable


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
    logits : outputs of the network (predictions, for regression): (R, N) for one output, (R, N, C) for
        several. (N,) is one run. Two axes are always (R, N): for one run with several outputs pass
        ``logits[None]``.
    y : (N,) shared by the runs, or (R, N). 0/1 for one logit, 0 ... C - 1 for several.
        Several regression targets: (N, C) or (R, N, C), averaged.
    environment : (N,) labels of any hashable kind, or (R, N) where each run has its own rows.
        None: one environment "all".
    metric : a name in :data:`METRICS` (means of a score per row: accuracy, log_loss, mse, mae) or :data:`STATISTICS`
        (roc_auc of two classes, r2, rmse), or a :class:`Metric`.
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

    An environment of one class has no roc_auc, one whose y does not vary no r2: NaN, and left out of mean, worst and
    spread.
    """
    chosen = as_metric(metric)
    check_bootstrap(n_bootstrap, confidence)
    check_row_order(y, "y", environment=environment)
    f = as_outputs(logits)  # (R, N) or (R, N, C)
    target = as_targets(y, f, chosen)  # (1 or R, N) or (1 or R, N, C)
    codes, labels = as_environments(environment, names, f.shape[:2])  # (N,) or (R, N)
    all_run_names = as_run_names(run_names, len(f))

    counts = _segment_sums(np.ones(codes.shape), codes, len(labels)).astype(np.int64)  # (E,) or (R, E)
    draws = Draws(n_bootstrap, confidence, random_state)
    undefined, intervals = None, None
    if isinstance(chosen, Statistic):
        by_environment, overall, undefined = statistic_by_environment(chosen, f, target, codes, len(labels))
        if n_bootstrap:
            intervals = statistic_intervals(chosen, f, target, codes, len(labels), draws)
    else:
        scores, sums = _scores_and_sums(chosen, f, target, codes, len(labels))  # (R, N), (R, E)
        with np.errstate(invalid="ignore"):
            by_environment = sums / counts  # an environment without rows: 0 / 0 is NaN
            overall = sums.sum(-1) / f.shape[1]
        if n_bootstrap:
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
