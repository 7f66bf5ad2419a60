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

from irmtv.answer.summary import EnvironmentRow, Estimate
from irmtv.core.messages import did_you_mean
from irmtv.estimators.base import Prepared
from irmtv.estimators.predictor import keep
from irmtv.metrics import METRICS
from irmtv.search import Searched

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
DRAWS = 4000
LEVEL = (0.025, 0.975)


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
_OF_TASK = {"regression": ("rmse", "mae", "mse"), "binary": ("accuracy", "log_loss")}


def score_for(task: str, metric: str | None) -> Score:
    """By name; the first of those that fit the task, where none is named."""
    known = _OF_TASK["regression" if task == "regression" else "binary"]
    if metric is None:
        return SCORES[known[0]]
    if metric not in known:
        raise ValueError(
            f"metric must be one of {list(known)} for {task}. Got {metric!r}.{did_you_mean(metric, known)}"
        )
    return SCORES[metric]


def held_out_outputs(found: Searched, index: int, prepared: Prepared) -> Floats:
    """Outputs of a candidate for every training row, of models that have not seen it: (N,) or (N, C), y's units.

    The candidate's states must have been kept.
    """
    candidate = found.candidates[index]
    family = found.families[candidate.family]
    at_step = family.folds.at(candidate.step)
    outputs: Floats | None = None
    for f, task in enumerate(family.folds.tasks):
        rows = task.held_out
        assert rows is not None
        members = keep(at_step, family.runs_of(f, candidate.combination), prepared.x, prepared.y).members
        x = rows.x
        if family.objective.reads_aux:
            raise ValueError(
                f"objective {family.objective.name!r} reads aux to predict, and tables to predict for may lack it. Use "
                "another objective, such as 'minimax-tv-l1'."
            )
        found_here = np.mean([m.logits(x.double()).numpy() for m in members], axis=0)
        if outputs is None:
            outputs = np.empty((len(found.fold), *found_here.shape[1:]))
        outputs[(found.fold == f).numpy()] = found_here
    assert outputs is not None
    if prepared.y is not None:
        outputs = outputs * prepared.y.scale[0] + prepared.y.mean[0]
    return outputs


def target_of(prepared: Prepared) -> npt.NDArray[Any]:
    """y of the training rows, as metrics want it: 0/1, codes of classes, or numbers in the user's units."""
    y = prepared.task.train.y.numpy()
    if prepared.y is None:
        return y
    return np.asarray(y.astype(np.float64) * prepared.y.scale[0] + prepared.y.mean[0])


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
    The mean scores of an environment's n rows are drawn from the normal distribution that rows of this kind give,
    N(means, covariance of the two models' scores / n), 4,000 times; values, differences, the worst environment are
    computed in each draw, and intervals are quantiles. This is the bootstrap of the rows without its cost, for
    environments of some twenty rows and more. Losses are drawn around the logarithm of their mean: they stay positive.
    """
    metric = METRICS[score.of_rows]
    both = np.stack([metric.score(f[None], y[None])[0] for f in (erm, chosen)])  # (2, N)
    n_environments = len(names)
    rows = np.bincount(codes, minlength=n_environments)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.stack([np.bincount(codes, weights=v, minlength=n_environments) / rows for v in both])  # (2, E)
        off = both - mean[:, codes]
        products = [off[0] * off[0], off[0] * off[1], off[1] * off[1]]
        a, b, c = (np.bincount(codes, weights=p, minlength=n_environments) / rows / rows for p in products)
    draws = _drawn(mean, a, b, c, seed)  # (2, D, E)
    if score.of_rows != "accuracy":  # losses: of few rows with some large ones the logarithm is the nearer to normal
        draws = _positive(draws, mean)
    there = rows > 0
    share = rows / rows.sum()
    value = score.of_mean(mean)
    draws = draws.clip(0, 1) if score.of_rows == "accuracy" else draws
    drawn = score.of_mean(draws)
    by_environment = [
        _row(str(names[e]), int(rows[e]), value[:, e], drawn[:, :, e]) for e in range(n_environments) if there[e]
    ]
    overall = score.of_mean(np.nansum(mean * share, -1)), score.of_mean(np.nansum(draws * share, -1))
    pick = np.nanmin if score.greater_is_better else np.nanmax
    worst = pick(value[:, there], axis=-1), pick(drawn[:, :, there], axis=-1)
    total = int(rows.sum())
    return by_environment, _row("all rows", total, *overall), _row("worst environment", total, *worst)


def _drawn(mean: Floats, a: Floats, b: Floats, c: Floats, seed: int) -> Floats:
    """Pairs of means, from covariances ((a, b), (b, c)) of every environment: (2, D, E)."""
    rng = np.random.default_rng(seed)
    u, v = rng.standard_normal((2, DRAWS, mean.shape[1]))
    first = np.sqrt(a)
    with np.errstate(invalid="ignore", divide="ignore"):
        slope = np.where(first > 0, b / first, 0.0)
    left = c - slope**2
    rest = np.sqrt(np.where(left > 1e-9 * c, left, 0.0))  # what rounding leaves is nothing: the same model twice
    return np.stack([mean[0] + first * u, mean[1] + slope * u + rest * v])


def _positive(draws: Floats, mean: Floats) -> Floats:
    """The same, drawn around the logarithm of the mean with the same relative error: (2, D, E)."""
    middle = mean[:, None, :]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(middle > 0, middle * np.exp((draws - middle) / middle), draws)


def _row(name: str, rows: int, value: Floats, drawn: Floats) -> EnvironmentRow:
    """`value` (2,), `drawn` (2, D): plain risk minimisation and the chosen model."""
    return {
        "name": name,
        "rows": rows,
        "erm": _estimate(float(value[0]), drawn[0]),
        "chosen": _estimate(float(value[1]), drawn[1]),
        "difference": _estimate(float(value[1] - value[0]), drawn[1] - drawn[0]),
    }


def _estimate(value: float, drawn: Floats) -> Estimate:
    low, high = (float(q) for q in np.nanquantile(drawn, LEVEL))
    return {"value": value, "low": low, "high": high}
