"""Two models on the same held-out rows, environment by environment: how good each is, and how far they differ.

Every row was held out once (cross-fitting), and both models are measured on it, so that differences are paired: what
makes a row hard for both cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from irmtv.app.fit.summary import EnvironmentRow
from irmtv.core.messages import did_you_mean
from irmtv.core.numbers import Estimate
from irmtv.core.plain_json import finite
from irmtv.data.scaling import Scaler
from irmtv.data.training import TrainingData
from irmtv.metrics import METRICS, STATISTICS
from irmtv.metrics.evaluate import drawn_statistic, statistic_by_environment

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
DRAWS = 4000
RESAMPLES, FEWEST_RESAMPLES = 1000, 200  # bootstrap draws of a statistic; fewer where there are many rows
RESAMPLED_ROWS = 50_000_000  # rows in all draws together
LEVEL = (0.025, 0.975)
WORST = "worst environment"


@dataclass(frozen=True)
class Score:
    """A metric: the mean of scores of rows, and what is done to the mean; or a statistic of all rows together."""

    name: str
    of_rows: str  # a name in METRICS, or in STATISTICS
    greater_is_better: bool
    of_mean: Callable[[Floats], Floats] = lambda v: v


SCORES = {
    "accuracy": Score("accuracy", "accuracy", True),
    "log_loss": Score("log_loss", "log_loss", False),
    "rmse": Score("rmse", "mse", False, np.sqrt),
    "mse": Score("mse", "mse", False),
    "mae": Score("mae", "mae", False),
    **{name: Score(name, name, True) for name in ("roc_auc", "f1", "balanced_accuracy", "average_precision", "r2")},
}
_OF_NUMBERS = ("rmse", "mae", "mse", "r2")  # the first is the default
_OF_CLASSES = tuple(name for name in SCORES if name not in _OF_NUMBERS)


def score_for(task: str, metric: str | None) -> Score:
    """By name; the first of those that fit the task, where none is named."""
    known = _OF_NUMBERS if task == "regression" else _OF_CLASSES
    if metric is None:
        return SCORES[known[0]]
    if metric not in known:
        raise ValueError(
            f"metric must be one of {list(known)} for {task}. Got {metric!r}.{did_you_mean(metric, known)}"
        )
    return SCORES[metric]


def in_units_of_y(outputs: Floats, y: Scaler | None) -> Floats:
    """From units of training, where numbers are standardised, to those of the user."""
    return outputs if y is None else np.asarray(outputs * y.scale[0] + y.mean[0])


def target_of(data: TrainingData[Any]) -> npt.NDArray[Any]:
    """y of the training rows, as metrics want it: 0/1, codes of classes, or numbers in the user's units."""
    y = data.task.train.y.numpy()
    return y if data.y is None else in_units_of_y(y.astype(np.float64), data.y)


def compare(
    erm: Floats,
    chosen: Floats,
    y: npt.NDArray[Any],
    codes: Ints,
    names: Sequence[str],
    score: Score,
    seed: int = 0,
) -> tuple[list[EnvironmentRow], EnvironmentRow, EnvironmentRow]:
    """By environment, over all rows, and in the worst environment of each model: values with 95 % intervals.

    Parameters
    ----------
    erm, chosen : (N,) or (N, C) outputs on held-out rows.
    y : (N,).
    codes, names : environment of every row and its name.
    score : what to measure.
    seed : of the draws.

    Notes
    -----
    Of an environment's n rows the pair of mean scores is drawn 4,000 times: losses from the normal distribution that
    such rows give, with the covariance of the two models' scores / n (around the logarithm of the mean, so that they
    stay positive), accuracies from the Dirichlet distribution of their four cases. Values and differences are computed
    in each draw, and intervals are quantiles. Of a statistic of all rows together (an area, F1, R^2) rows are drawn
    again, the same for both models; an environment that has no value of it (one class alone) is None. The worst
    environment is the one that is worst on these rows, for each model its own; that it was picked among several makes
    it look a little worse than it is.
    """
    n_environments = len(names)
    rows = np.bincount(codes, minlength=n_environments)
    there = np.flatnonzero(rows)
    place = np.searchsorted(there, codes)
    both = np.stack([erm, chosen])  # (2, N) or (2, N, C)
    measure = _measured_statistic if score.of_rows in STATISTICS else _measured_mean
    value, drawn, over_all, pooled = measure(score, both, y, place, rows[there], seed)
    by_environment = [
        _row(str(names[e]), int(rows[e]), value[:, i], drawn[:, :, i]) for i, e in enumerate(there.tolist())
    ]
    overall = _row("all rows", int(rows.sum()), over_all, pooled)
    # the environment that is the worst of these: with the worst of every draw noise would count twice
    order = -value if score.greater_is_better else value
    worst = np.where(np.isnan(order), -np.inf, order).argmax(-1)  # (2,), one for each model
    each = np.arange(2)
    return by_environment, overall, _row(WORST, int(rows[there][worst[1]]), value[each, worst], drawn[each, :, worst])


Measured = tuple[Floats, Floats, Floats, Floats]  # values (2, E), draws (2, D, E); of all rows (2,), draws (2, D)


def _measured_mean(score: Score, both: Floats, y: npt.NDArray[Any], codes: Ints, rows: Ints, seed: int) -> Measured:
    scores = np.stack([METRICS[score.of_rows].score(f[None], y[None])[0] for f in both])  # (2, N)
    mean = np.stack([np.bincount(codes, weights=v, minlength=len(rows)) / rows for v in scores])
    share = rows / rows.sum()
    rng = np.random.default_rng(seed)
    if score.of_rows == "accuracy":
        draws = _drawn_shares(scores > 0.5, codes, len(rows), rng)  # (2, D, E)
        drawn, pooled = draws, draws @ share
    else:
        draws = _drawn_means(scores, mean, codes, rows, rng)
        drawn, pooled = _positive(draws, mean), _positive(draws @ share, mean @ share)
    return score.of_mean(mean), score.of_mean(drawn), score.of_mean(mean @ share), score.of_mean(pooled)


def _measured_statistic(
    score: Score, both: Floats, y: npt.NDArray[Any], codes: Ints, rows: Ints, seed: int
) -> Measured:
    """By a bootstrap of the rows of every environment, the same for both models."""
    statistic, n = STATISTICS[score.of_rows], len(rows)
    value, overall, _ = statistic_by_environment(statistic, both, y[None], codes, n)
    draws = max(FEWEST_RESAMPLES, min(RESAMPLES, RESAMPLED_ROWS // len(codes)))
    drawn, pooled = drawn_statistic(statistic, both, y[None], codes, n, draws, seed)
    return value, drawn, overall, pooled


def _drawn_shares(right: npt.NDArray[np.bool_], codes: Ints, n: int, rng: np.random.Generator) -> Floats:
    """Shares of right rows of two models, by environment: (2, D, E).

    From the Dirichlet distribution of the four cases (both right, one of them, none) given their counts, with Jeffreys'
    prior of the single shares: it has a width also where every row is right, and for few rows.
    """
    cases = [(a, b) for a in (True, False) for b in (True, False)]
    counts = np.stack([np.bincount(codes, weights=(right[0] == a) & (right[1] == b), minlength=n) for a, b in cases])
    alike = counts[1] + counts[2] == 0  # never different: the same model twice, or as good as
    prior = np.array([0.5, 0.0, 0.0, 0.5])[:, None] * alike + np.full((4, 1), 0.25) * ~alike
    drawn = rng.gamma(np.broadcast_to((counts + prior)[:, None], (4, DRAWS, n)))
    total = drawn.sum(0)
    return np.stack([(drawn[0] + drawn[1]) / total, (drawn[0] + drawn[2]) / total])


def _drawn_means(both: Floats, mean: Floats, codes: Ints, rows: Ints, rng: np.random.Generator) -> Floats:
    """Pairs of means, normal, with the covariance of the two models' scores over the rows: (2, D, E)."""
    off = both - mean[:, codes]
    products = (off[0] * off[0], off[0] * off[1], off[1] * off[1])
    a, b, c = (np.bincount(codes, weights=p, minlength=len(rows)) / rows.astype(float) ** 2 for p in products)
    u, v = rng.standard_normal((2, DRAWS, len(rows)))
    first = np.sqrt(a)
    with np.errstate(invalid="ignore", divide="ignore"):
        slope = np.where(first > 0, b / first, 0.0)
    left = c - slope**2
    rest = np.sqrt(np.where(left > 1e-9 * c, left, 0.0))  # what rounding leaves is nothing: the same model twice
    return np.stack([mean[0] + first * u, mean[1] + slope * u + rest * v])


def _positive(draws: Floats, mean: Floats) -> Floats:
    """The same, drawn around the logarithm of the mean with the same relative error: (2, D[, E])."""
    middle = mean[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(middle > 0, middle * np.exp((draws - middle) / middle), draws)


def _row(name: str, rows: int, value: Floats, drawn: Floats) -> EnvironmentRow:
    """`value` (2,), `drawn` (2, D): ERM and the chosen model."""
    return {
        "name": name,
        "rows": rows,
        "erm": _estimate(value[0], drawn[0]),
        "chosen": _estimate(value[1], drawn[1]),
        "difference": _estimate(value[1] - value[0], drawn[1] - drawn[0]),
    }


def _estimate(value: float, drawn: Floats) -> Estimate:
    """None where these rows have no value; the interval is of the draws that have one."""
    known = drawn[~np.isnan(drawn)]
    low, high = np.quantile(known, LEVEL) if len(known) and not np.isnan(value) else (np.nan, np.nan)
    return {"value": finite(value), "low": finite(low), "high": finite(high)}
