"""Environment labels -> codes and names; small environments are pooled."""

from __future__ import annotations

import cmath
import warnings
from collections.abc import Hashable, Mapping, Sequence, Set
from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from irmtv.core.messages import check_length, check_positive, did_you_mean, shown, users_stacklevel
from irmtv.data.numeric import as_array


def encode_environment(
    values: Any, min_rows: int = 1, parameter: str = "environment"
) -> tuple[Tensor, tuple[Hashable, ...]]:
    """Labels -> (N,) int64 codes and the names they stand for.

    Names are sorted where the labels can be sorted, else in order of first appearance; a pooled one is last.

    Parameters
    ----------
    values : list, array, Series, Categorical or tensor, (N,)
        Hashable labels of any type; equal labels (1, 1.0 and True are equal) are one environment.
    min_rows : int, default 1
        Environments with fewer rows are pooled, with a warning.
    parameter : str, default "environment"
        What messages call the values.

    Examples
    --------
    >>> encode_environment(["b", "a", "b"])
    (tensor([1, 0, 1]), ('a', 'b'))
    """
    check_positive(min_rows, "min_rows")
    codes, labels = factorize(values, parameter)
    return pool(codes, labels, min_rows, parameter)[:2]


def _plain(label: Any) -> Any:
    """A Python object in place of a numpy or torch scalar."""
    if isinstance(label, (np.datetime64, np.timedelta64)):
        return pd.Series([label]).iloc[0]
    is_scalar = isinstance(label, np.generic) or (isinstance(label, Tensor) and label.ndim == 0)
    return label.item() if is_scalar else label


def _label_series(values: Any, parameter: str) -> Any:
    """A Series with one label per row, whatever held them."""
    if isinstance(values, (str, bytes, Mapping, Set)) or not hasattr(values, "__iter__"):
        raise ValueError(
            f"{parameter} must be labels, one per row. Got {type(values).__name__} {values!r}. Pass a list, "
            "an array or a Series; naming a column needs a DataFrame x."
        )
    if isinstance(values, Tensor):
        values = as_array(values, parameter)
    if isinstance(values, pd.MultiIndex) or not hasattr(values, "shape"):
        values = pd.Series([_plain(v) for v in values], dtype=object)
    if values.ndim == 0 or values.size == 0 or values.shape[1:] not in ((), (1,)):
        got = f"shape {tuple(values.shape)}"
        raise ValueError(f"{parameter} must be one label per row. Got {got}. Combine columns: list(zip(a, b)).")
    if values.ndim == 2:
        values = values.iloc[:, 0] if isinstance(values, pd.DataFrame) else values[:, 0]
    series = pd.Series(values)
    return pd.Series([_plain(v) for v in series], dtype=object) if series.dtype == object else series


def _unusable(label: Any) -> bool:
    """Missing or infinite, also inside a tuple."""
    if isinstance(label, tuple):
        return any(_unusable(part) for part in label)
    if isinstance(label, (float, complex, Decimal)):
        return not cmath.isfinite(label)
    return label is None or label is pd.NaT or label is pd.NA


def factorize(values: Any, parameter: str, n_rows: int | None = None) -> tuple[Any, list[Any]]:
    """Codes (N,) and the distinct labels: sorted where they can be, else in order of first appearance."""
    series = _label_series(values, parameter)
    check_length(len(series), len(series) if n_rows is None else n_rows, parameter)
    try:  # as an array: an Index of tuples would turn into a MultiIndex
        codes, uniques = pd.factorize(series.to_numpy() if series.dtype == object else series)
    except TypeError as error:
        raise ValueError(f"{parameter} must be hashable labels. Got {error}. Use tuples, not lists.") from error
    labels = uniques.tolist()
    bad = np.isin(codes, [-1, *(i for i, label in enumerate(labels) if _unusable(label))])
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(
            f"{parameter} must be known for every row. Got {bad.sum()} missing or infinite labels, the first "
            f"is {series.iloc[row]!r} at row {row}. Give these rows a label of their own or drop them."
        )
    try:
        order = sorted(range(len(labels)), key=labels.__getitem__)
    except TypeError:
        order = list(range(len(labels)))
    return np.argsort(order)[codes], [labels[i] for i in order]


def _groups(sizes: Sequence[int], min_rows: int) -> list[list[int]]:
    """Which labels share an environment: each its own, the small ones together and last."""
    small = [i for i, size in enumerate(sizes) if size < min_rows]
    large = [i for i, size in enumerate(sizes) if size >= min_rows]
    if large and small and sum(sizes[i] for i in small) < min_rows:
        host = min(large, key=sizes.__getitem__)
        large.remove(host)
        small.insert(0, host)
    return [[i] for i in large] + ([small] if small else [])


def pool(
    codes: Any, labels: list[Any], min_rows: int, parameter: str
) -> tuple[Tensor, tuple[Hashable, ...], dict[Hashable, int]]:
    """Codes after pooling, their names, and the code of every label; a warning of what was pooled."""
    if len(labels) > max(50, len(codes) / 2) and all(isinstance(v, (float, datetime)) for v in labels):
        continuous = (
            f"{parameter} has {len(labels)} distinct values in {len(codes)} rows, which looks continuous. "
            "Pass it as aux= to infer environments from it, or cut it into bins (e.g. pandas.qcut)."
        )
        warnings.warn(continuous, UserWarning, stacklevel=users_stacklevel())
    sizes = np.bincount(codes).tolist()
    groups = _groups(sizes, min_rows)
    names = [labels[g[0]] if len(g) == 1 else f"pooled({shown((labels[i] for i in g), form=str)})" for g in groups]
    if len(groups) < len(labels):
        host, small = groups[-1][0], [i for i in groups[-1] if sizes[i] < min_rows]
        joined = f" with the smallest other, {labels[host]!r} ({sizes[host]} rows)" if host not in small else ""
        listed = shown(small, form=lambda i: f"{labels[i]!r}: {sizes[i]}")
        few = (
            f"{parameter}: environments with fewer than min_rows={min_rows} rows ({listed}) are pooled"
            f"{joined} into {names[-1]!r}: a mean slope over so few rows is noise. Environments left: "
            f"{len(groups)}. Use min_rows=1 to keep them apart."
        )
        warnings.warn(few, UserWarning, stacklevel=users_stacklevel())
    lookup = np.empty(len(labels), dtype=np.int64)
    for code, group in enumerate(groups):
        lookup[group] = code
    book = {v: code for code, v in enumerate(names)} | dict(zip(labels, lookup.tolist(), strict=True))
    return torch.from_numpy(lookup[codes]), tuple(names), book


def recode(values: Any, book: Mapping[Hashable, int] | None, parameter: str, n_rows: int) -> Tensor:
    """Codes (N,) of labels that the training rows have."""
    codes, labels = factorize(values, parameter, n_rows)
    unknown = [v for v in labels if v not in (book or {})]
    if book is None or unknown:
        known = shown(book) if book else "none: pass environment= for them too"
        near = did_you_mean(unknown[0], book or ())
        raise ValueError(
            f"{parameter} must be environments of the training rows ({known}). Got {shown(unknown)}."
            f"{near} Rows of new environments belong in test."
        )
    return torch.tensor([book[v] for v in labels])[torch.from_numpy(codes)]
