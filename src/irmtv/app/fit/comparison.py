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
from irmtv.data.features import Scaler
from irmtv.data.training import TrainingData
from irmtv.metrics import METRICS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
DRAWS = 4000
LEVEL = (0.025, 0.975)
WORST = "worst environment"


@dataclass(frozen=True)
class Score:
    """A metric as a mean of scores of rows, and what is done to the mean."""

    name: str
    of_rows: str  # a name in METRICS
    greater_is_better: bool
    of_mean: Callable[[Floats], Floats] = lambda v: v


SCORES = {
    "accuracy": Score("accuracy", "accuracy", True),
    "log_loss": Score("log_loss", "log_loss", False),
    "rmse": Score("rmse", "mse", False, np.sqrt),
    "mse": Score("mse", "mse", False),
    "mae": Score("mae", "mae", False),
}
_OF_NUMBERS, _OF_CLASSES = ("rmse", "mae", "mse"), ("accuracy", "log_loss")


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
    in each draw, and intervals are quantiles. The worst environment is the one that is worst on these rows, for each
    model its own; that it was picked among several makes it look a little worse than it is.
    """
    metric = METRICS[score.of_rows]
    both = np.stack([metric.score(f[None], y[None])[0] for f in (erm, chosen)])  # (2, N)
    n_environments = len(names)
    rows = np.bincount(codes, minlength=n_environments)
    there = np.flatnonzero(rows)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.stack([np.bincount(codes, weights=v, minlength=n_environments) / rows for v in both])[:, there]
    share = rows[there] / rows.sum()
    rng = np.random.default_rng(seed)
    place = np.searchsorted(there, codes)
    if score.of_rows == "accuracy":
        draws = _drawn_shares(both > 0.5, place, len(there), rng)  # (2, D, E)
        drawn, pooled = draws, draws @ share
    else:
        draws = _drawn_means(both, mean, place, rows[there], rng)
        drawn, pooled = _positive(draws, mean), _positive(draws @ share, mean @ share)
    value = score.of_mean(mean)
    drawn, pooled = score.of_mean(drawn), score.of_mean(pooled)
    by_environment = [
        _row(str(names[e]), int(rows[e]), value[:, i], drawn[:, :, i]) for i, e in enumerate(there.tolist())
    ]
    overall = _row("all rows", int(rows.sum()), score.of_mean(mean @ share), pooled)
    # the environment that is the worst of these: with the worst of every draw noise would count twice
    worst = value.argmin(-1) if score.greater_is_better else value.argmax(-1)  # (2,), one for each model
    each = np.arange(2)
    return by_environment, overall, _row(WORST, int(rows[there][worst[1]]), value[each, worst], drawn[each, :, worst])


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
        "erm": _estimate(float(value[0]), drawn[0]),
        "chosen": _estimate(float(value[1]), drawn[1]),
        "difference": _estimate(float(value[1] - value[0]), drawn[1] - drawn[0]),
    }


def _estimate(value: float, drawn: Floats) -> Estimate:
    low, high = (float(q) for q in np.quantile(drawn, LEVEL))
    return {"value": value, "low": low, "high": high}
