"""The environment of every row: labels of any kind -> codes and names."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from irmtv.core.messages import shown
from irmtv.metrics.arrays import Array, Ints, without_torch


def encode(
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
    codes, found = _factorize(labels)
    ordered = tuple(_sorted(list(dict.fromkeys(found)))) if given is None else given
    position = {name: i for i, name in enumerate(ordered)}
    strange = [label for label in found if label not in position]
    if strange:
        raise ValueError(
            f"environment must hold only labels that are in names ({shown(ordered)}). Got also "
            f"{shown(strange)}. Add them to names, leave names out, or pass integer codes 0, 1, 2, ..."
        )
    rank = np.array([position[label] for label in found], dtype=np.int64)
    return rank[codes], ordered


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
    """An array of integers, floats or booleans, or of objects. Lists stay as they are: numpy would turn
    ["a", nan] into strings and tuples into an axis."""
    environment = without_torch(environment)
    if isinstance(environment, (list, tuple)):
        nested = bool(environment) and all(isinstance(v, (list, np.ndarray)) for v in environment)
        environment = np.array(environment, dtype=object) if nested else np.fromiter(environment, dtype=object)
    labels: Array = np.asarray(environment)
    if labels.dtype.kind in "mM":  # dates: names that can be read
        labels = np.asarray(pd.Series(labels.ravel()), dtype=object).reshape(labels.shape)
    if labels.dtype.kind in "OUS":
        labels = labels.astype(object)
        if pd.api.types.infer_dtype(labels.ravel(), skipna=False) == "integer":
            labels = labels.astype(np.int64)
    return labels


def _factorize(labels: Array) -> tuple[Ints, list[Any]]:
    """Codes of the shape of the labels, and the label of every code."""
    try:
        codes, unique = pd.factorize(labels.ravel())
    except TypeError as error:
        raise ValueError(
            f"environment must hold hashable labels (numbers, strings, tuples). {error}. Convert them first."
        ) from error
    missing = int((codes < 0).sum())
    if missing:
        raise ValueError(
            f"environment must have a label for every row. Got {missing} missing (NaN or None) of {codes.size}. "
            'Leave those rows out, or give them a label of their own such as "unknown".'
        )
    return codes.reshape(labels.shape), [v.item() if isinstance(v, np.generic) else v for v in unique]


def _sorted(labels: list[Any]) -> list[Any]:
    try:
        return sorted(labels)
    except TypeError:  # kinds that do not compare: any order that does not depend on the rows
        return sorted(labels, key=lambda label: (type(label).__name__, repr(label)))
