"""Checks of what comes in: logits, y, environments, run names, bootstrap settings."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from irmtv.core.messages import shown
from irmtv.data.environments import encode_labels
from irmtv.data.rows import as_array
from irmtv.metrics.definitions import Metric, Statistic
from irmtv.metrics.table import Array, Ints


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


def as_environments(
    environment: Any, names: Sequence[Hashable] | None, shape: tuple[int, ...]
) -> tuple[Ints, tuple[Hashable, ...]]:
    """Codes (N,) or (R, N) into names, and the names, for logits of `shape` (R, N)."""
    given = None if names is None else _check_names(names)
    if environment is None:
        if given is not None and len(given) != 1:
            raise ValueError(
                f"names must hold one name where environment is None. Got {len(given)}: {shown(given)}. "
                "Pass the environment of every row, or leave names out."
            )
        return np.zeros(shape[1], dtype=np.int64), given or ("all",)
    labels = _as_labels(environment)
    if labels.shape not in (shape, shape[1:]):
        raise ValueError(
            f"environment must have shape {shape[1:]}, or {shape} where each run has its own rows. "
            f"Got shape {labels.shape}. Pass one label per row of logits."
        )
    if given is not None and labels.dtype.kind in "iu":
        return _check_codes(labels, len(given)), given
    codes, present = encode_labels(labels.ravel(), "environment")
    codes = codes.reshape(labels.shape)
    if given is None:
        return codes, tuple(present)
    position = {name: i for i, name in enumerate(given)}
    strange = [label for label in present if label not in position]
    if strange:
        raise ValueError(
            f"environment must hold only labels that are in names ({shown(given)}). Got also "
            f"{shown(strange)}. Add them to names, leave names out, or pass integer codes 0, 1, 2, ..."
        )
    return np.array([position[label] for label in present], dtype=np.int64)[codes], given


def _check_names(names: Sequence[Hashable]) -> tuple[Hashable, ...]:
    listed = tuple(names)
    if isinstance(names, str) or not listed or len(set(listed)) != len(listed):
        raise ValueError(
            f"names must be a sequence of distinct environment names. Got {names!r}. Pass one name per environment."
        )
    return listed


def _check_codes(codes: Array, n_names: int) -> Ints:
    outside = (codes < 0) | (codes >= n_names)
    if outside.any():
        raise ValueError(
            f"environment must hold codes from 0 to {n_names - 1}, one for each of the {n_names} "
            f"names. Got {shown(np.unique(codes[outside]).tolist())}. "
            "Leave names out to name the environments by their own values."
        )
    return codes.astype(np.int64)


def _as_labels(environment: Any) -> Array:
    """An array of labels. Lists stay as they are: numpy would turn ["a", nan] into strings and tuples into an axis."""
    if isinstance(environment, (list, tuple)):
        nested = bool(environment) and all(isinstance(v, (list, np.ndarray)) for v in environment)
        environment = np.array(environment, dtype=object) if nested else np.fromiter(environment, dtype=object)
    labels: Array = as_array(environment, "environment")
    if labels.dtype == object and pd.api.types.infer_dtype(labels.ravel(), skipna=False) == "integer":
        labels = labels.astype(np.int64)  # which may be codes
    return labels


def _as_numbers(values: Any, parameter: str) -> Array:
    array: Array = as_array(values, parameter)
    if array.dtype.kind == "b":
        return array.astype(np.int64)
    if array.dtype.kind not in "iuf":
        raise ValueError(
            f"{parameter} must be an array of numbers. Got dtype {array.dtype}. "
            "Encode classes as 0, 1, 2, ... and convert the rest to floats."
        )
    return array
