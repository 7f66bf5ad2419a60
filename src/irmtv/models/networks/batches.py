"""Many runs of one search: what is trained in one call, and which of it is best."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from irmtv.core.types import Runs, Task
from irmtv.engine import FittedRuns
from irmtv.models.base import Combination, lowest_overall_risk


@contextmanager
def divergence_is_recorded() -> Iterator[None]:
    """Training without its warning of runs that diverged: their status says so, or NaN in their place."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*runs diverged.*")
        yield


def every_run(parts: Sequence[Task], seeds: Sequence[int], combinations: Sequence[Combination]) -> Runs:
    """Every combination with every seed on every data set, fold by fold, in it seed by seed."""
    runs = [(d, seed, c) for d in range(len(parts)) for seed in seeds for c in combinations]
    columns = {name: [c[name] for _, _, c in runs] for name in combinations[0]}
    return Runs(seed=[seed for _, seed, _ in runs], data=[d for d, _, _ in runs], **columns)


def lowest_risk(fitted: FittedRuns, n: int) -> int:
    """Which of n combinations has the lowest risk on held-out rows, at its best step; run r is of combination r % n."""
    assert fitted.history is not None
    statistics = (fitted.history.rows, fitted.history.risk)
    lowest = []
    for c in range(n):
        rows, risk = (v[:, c::n].double().transpose(0, 1) for v in statistics)  # (F K, S, E)
        lost = any(run % n == c for run in fitted.diverged)
        lowest.append(torch.inf if lost else float(lowest_overall_risk(rows, risk)[1:].min()))
    return int(np.argmin(lowest))
