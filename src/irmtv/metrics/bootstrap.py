"""Percentile intervals: rows are resampled within each environment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from irmtv.metrics.arrays import Floats, Ints, chunks
from irmtv.metrics.table import QUANTITIES, Interval


@dataclass(frozen=True)
class Draws:
    """How many draws, the level of the intervals, and the seed."""

    n: int
    confidence: float
    random_state: int | np.random.Generator | None

    def seed(self) -> int:
        """One for all runs, so that a run has the same intervals alone and among others."""
        return int(np.random.default_rng(self.random_state).integers(2**63))

    @property
    def tails(self) -> list[float]:
        return [0.5 - self.confidence / 2, 0.5 + self.confidence / 2]


def as_intervals(limits: Floats) -> dict[str, Interval]:
    """Limits (2, R, 4 + E) of the quantities and environments, by quantity."""
    by_quantity = {q: Interval(*limits[:, :, i]) for i, q in enumerate(QUANTITIES)}
    return {"by_environment": Interval(*limits[:, :, len(QUANTITIES) :])} | by_quantity


def bootstrap(scores: Floats, codes: Ints, n_env: int, draws: Draws, *, greater_is_better: bool) -> dict[str, Interval]:
    """Intervals by quantity from scores (R, N) and environments (N,), or (R, N) where each run has its own rows."""
    seed = draws.seed()
    alike = [(scores, codes)] if codes.ndim == 1 else zip(scores[:, None], codes, strict=True)
    parts = [_limits(s, c, n_env, greater_is_better, draws, seed) for s, c in alike]
    return as_intervals(np.concatenate(parts, axis=1))


@np.errstate(invalid="ignore", over="ignore")  # 0 * inf, inf - inf: an infinite score has no interval
def _limits(scores: Floats, codes: Ints, n_env: int, greater_is_better: bool, draws: Draws, seed: int) -> Floats:
    """(2, R, 4 + E) limits of the quantities and environments; the runs share their rows: codes (N,).

    One environment after the other, so that memory holds a few (R, B) arrays whatever E is.
    """
    rng = np.random.default_rng(seed)
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
