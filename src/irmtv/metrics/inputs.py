"""Checks of what comes in, other than the environments: logits, y, run names, bootstrap settings."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from irmtv.core.messages import shown
from irmtv.metrics.arrays import Array, without_torch
from irmtv.metrics.scores import Metric
from irmtv.metrics.statistics import Statistic


def check_bootstrap(n_bootstrap: int, confidence: float) -> None:
    """Raise unless the number of draws and the level make sense."""
    if isinstance(n_bootstrap, bool) or not isinstance(n_bootstrap, (int, np.integer)) or n_bootstrap < 0:
        raise ValueError(
            f"n_bootstrap must be a whole number of draws, 0 for no intervals. Got {n_bootstrap!r}. "
            "1000 is a usual choice."
        )
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1. Got {confidence!r}. For 95 % intervals pass 0.95.")


def as_run_names(run_names: Sequence[Hashable] | None, n_runs: int) -> tuple[Hashable, ...]:
    """One name per run."""
    if run_names is None:
        return tuple(range(n_runs))
    if isinstance(run_names, str) or len(run_names) != n_runs:
        raise ValueError(
            f"run_names must hold one name per run: {n_runs} names. Got {run_names!r}. "
            "Pass a list of that length, or None for 0, 1, 2, ..."
        )
    return tuple(run_names)


def as_outputs(logits: Any) -> Array:
    """(R, N) or (R, N, C) with C > 1, in the dtype that came."""
    came = _as_numbers(logits, "logits")
    f = came[None] if came.ndim == 1 else came
    if f.ndim not in (2, 3) or f.size == 0:
        raise ValueError(
            "logits must have shape (N,) for one run, (R, N) for R runs, or (R, N, C) for several outputs, "
            f"with at least one row. Got shape {came.shape}. "
            "For one run with several outputs pass logits[None]."
        )
    return f[..., 0] if f.ndim == 3 and f.shape[-1] == 1 else f


def as_targets(y: Any, f: Array, metric: Metric | Statistic) -> Array:
    """y with a leading axis of 1 (shared) or R, of the shape that the metric needs beside f."""
    if metric.losses == ("binary",) and f.ndim == 3:
        raise ValueError(
            f"metric {metric.name!r} is for two classes, one logit. Got logits of {f.shape[-1]} outputs. Use "
            "'accuracy' or 'log_loss'."
        )
    target = _as_numbers(y, "y")
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
        _check_classes(target, f, metric)
    return target[None] if target.shape == shared else target


def _check_classes(target: Array, f: Array, metric: Metric | Statistic) -> None:
    n_classes = 2 if f.ndim == 2 else f.shape[-1]
    ok = (target == np.floor(target)) & (target >= 0) & (target < n_classes)
    if not ok.all():
        outputs = "one logit" if f.ndim == 2 else f"{n_classes} logits"
        raise ValueError(
            f"y must hold the classes 0 to {n_classes - 1} for {outputs} and metric {metric.name!r}. "
            f"Got {shown(np.unique(target[~ok]).tolist())}. Encode the classes as 0, 1, 2, ...; "
            "for regression use metric 'mse' or 'mae'."
        )


def _as_numbers(values: Any, parameter: str) -> Array:
    try:
        array: Array = np.asarray(without_torch(values))
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
