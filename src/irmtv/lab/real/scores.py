"""Scores of unseen rows, paired differences with bootstrap standard errors, and how good an interval was."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
DRAWS = 1000  # of the bootstrap
AT_ONCE = 1 << 22  # row numbers that are drawn at a time


def higher_is_better(metric: str) -> bool:
    return metric == "accuracy"


def score(rows: Floats, metric: str) -> float:
    """Accuracy of 0/1 per row, or the root of the mean of squared errors per row."""
    mean = float(np.mean(rows))
    return mean if higher_is_better(metric) else math.sqrt(mean)


def score_error(rows: Floats, metric: str) -> float:
    """The standard error of a score, from how its rows differ."""
    of_mean = float(np.std(rows)) / math.sqrt(len(rows))
    value = score(rows, metric)
    return of_mean if higher_is_better(metric) else of_mean / (2 * value) if value > 0 else 0.0


def paired_gain(plain: Floats, chosen: Floats, metric: str, seed: int = 0) -> tuple[float, float]:
    """How much better the second model is than the first on the same rows, and its bootstrap standard error.

    Parameters
    ----------
    plain, chosen : (N,) each, per row: 1 where it is right, or its squared error.
    metric : "accuracy" or "rmse". The gain is positive where the second model is better.
    seed : of the draws of rows.
    """
    sign = 1.0 if higher_is_better(metric) else -1.0
    gain = sign * (score(chosen, metric) - score(plain, metric))
    if np.array_equal(plain, chosen):
        return 0.0, 0.0
    both = np.stack([plain, chosen]).astype(np.float64)  # (2, N)
    means = np.concatenate([both @ times.T / len(plain) for times in _draws(len(plain), seed)], axis=1)  # (2, DRAWS)
    drawn = means if higher_is_better(metric) else np.sqrt(means)
    return gain, float((drawn[1] - drawn[0]).std(ddof=1))


def _draws(n: int, seed: int) -> Iterator[Floats]:
    """How often each of n rows was drawn, in parts: (B, n) each, DRAWS in all."""
    rng = np.random.default_rng(seed)
    most = max(1, AT_ONCE // n)
    for start in range(0, DRAWS, most):
        b = min(most, DRAWS - start)
        drawn = rng.integers(n, size=(b, n)) + n * np.arange(b)[:, None]
        yield np.bincount(drawn.ravel(), minlength=b * n).reshape(b, n).astype(np.float64)


def covers(low: float, high: float, value: float) -> bool:
    return low <= value <= high


def interval_score(low: float, high: float, value: float, coverage: float) -> float:
    """Winkler's score, lower is better: the width, and 2 / (1 - coverage) times how far the value lies outside.

    >>> interval_score(0.5, 0.75, 0.6, 0.5), interval_score(0.5, 0.75, 1.0, 0.5)
    (0.25, 1.25)
    """
    outside = max(low - value, 0.0) + max(value - high, 0.0)
    return high - low + 2 / (1 - coverage) * outside
