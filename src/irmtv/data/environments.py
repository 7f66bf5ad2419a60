"""Environment labels -> codes and names; small environments are pooled; advice where labels are none."""

from __future__ import annotations

import cmath
import warnings
from collections.abc import Hashable, Mapping, Sequence, Set
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from irmtv.core.containers import is_tensor
from irmtv.core.messages import check_length, did_you_mean, plain, shown, users_stacklevel
from irmtv.data.columns import is_polars
from irmtv.data.rows import as_array

if TYPE_CHECKING:
    from torch import Tensor

Ints = npt.NDArray[np.int64]
MANY = 50  # distinct numbers or dates: more look continuous
_POOLED = "pooled("  # how the name of pooled environments begins


def as_labels(values: Any) -> Any:
    """Labels in a form that the checks of labels read: a Series or an array, whatever library held them.

    Intervals (of `pandas.cut`) and periods become their text: a model file holds text and numbers.
    """
    if is_polars(values):
        return values.to_numpy()
    dtype = getattr(values, "dtype", None)
    inner = getattr(getattr(dtype, "categories", None), "dtype", dtype)
    if isinstance(inner, (pd.IntervalDtype, pd.PeriodDtype)):
        text = pd.Series(values).astype(object)
        return text.where(text.isna(), text.astype(str))
    return values


def _plain(label: Any) -> Any:
    """A Python object in place of a numpy or torch scalar."""
    if isinstance(label, (np.datetime64, np.timedelta64)):
        return pd.Series([label]).iloc[0]
    is_scalar = isinstance(label, np.generic) or (is_tensor(label) and label.ndim == 0)
    return label.item() if is_scalar else label


def _label_series(values: Any, parameter: str) -> Any:
    """A Series with one label per row, whatever held them."""
    if isinstance(values, (str, bytes, Mapping, Set)) or not hasattr(values, "__iter__"):
        raise ValueError(
            f"{parameter} must be labels, one per row. Got {type(values).__name__} {values!r}. Pass a list, "
            "an array or a Series; naming a column needs a DataFrame x."
        )
    if is_tensor(values):
        values = as_array(values, parameter)
    if is_polars(values):
        values = values.to_numpy()
    if isinstance(values, pd.MultiIndex) or not hasattr(values, "shape"):
        values = pd.Series([_plain(v) for v in values], dtype=object)
    if values.ndim == 0 or values.size == 0 or values.shape[1:] not in ((), (1,)):
        got = f"shape {tuple(values.shape)}"
        raise ValueError(f"{parameter} must be one label per row. Got {got}. Combine columns: list(zip(a, b)).")
    if values.ndim == 2:
        values = values.iloc[:, 0] if isinstance(values, pd.DataFrame) else values[:, 0]
    series = pd.Series(values, copy=False)
    return pd.Series([_plain(v) for v in series], dtype=object) if series.dtype == object else series


def _unusable(label: Any) -> bool:
    """Missing or infinite, also inside a tuple."""
    if isinstance(label, tuple):
        return any(_unusable(part) for part in label)
    if isinstance(label, (float, complex, Decimal)):
        return not cmath.isfinite(label)
    return label is None or label is pd.NaT or label is pd.NA


def encode_labels(values: Any, parameter: str, n_rows: int | None = None) -> tuple[Ints, list[Any]]:
    """Codes (N,) of hashable labels, and the distinct labels, sorted. Equal labels (1, 1.0 and True) are one.

    Labels of kinds that do not compare are sorted by kind and text: the order never depends on that of the rows.

    Examples
    --------
    >>> encode_labels(["b", "a", "b"], "environment")
    (array([1, 0, 1]), ['a', 'b'])
    """
    series = _label_series(values, parameter)
    check_length(len(series), len(series) if n_rows is None else n_rows, parameter)
    try:  # as an array: an Index of tuples would turn into a MultiIndex
        codes, uniques = pd.factorize(series.to_numpy() if series.dtype == object else series)
    except TypeError as error:
        raise ValueError(f"{parameter} must be hashable labels. Got {error}. Use tuples, not lists.") from error
    labels = uniques.tolist()
    unusable = [i for i, label in enumerate(labels) if _unusable(label)]
    if unusable or codes.min() < 0:  # which missing labels are
        bad = np.isin(codes, [-1, *unusable])
        row = int(bad.argmax())
        raise ValueError(
            f"{parameter} must be known for every row. Got {bad.sum()} missing or infinite labels, the first "
            f"is {series.iloc[row]!r} at row {row}. Give these rows a label of their own or drop them."
        )
    try:
        order = sorted(range(len(labels)), key=labels.__getitem__)
    except TypeError:
        order = sorted(range(len(labels)), key=lambda i: (type(labels[i]).__name__, repr(labels[i])))
    np.take(np.argsort(order), codes, out=codes, mode="clip")  # in place; codes are places of labels, so nothing is cut
    return codes, [labels[i] for i in order]


def _groups(sizes: Sequence[int], min_rows: int) -> list[list[int]]:
    """Which labels share an environment: each its own, the small ones together and last."""
    small = [i for i, size in enumerate(sizes) if size < min_rows]
    large = [i for i, size in enumerate(sizes) if size >= min_rows]
    if large and small and sum(sizes[i] for i in small) < min_rows:
        host = min(large, key=sizes.__getitem__)
        large.remove(host)
        small.insert(0, host)
    return [[i] for i in large] + ([small] if small else [])


def pool(codes: Ints, labels: list[Any], min_rows: int) -> tuple[Tensor, tuple[Hashable, ...], dict[Hashable, int]]:
    """Codes after pooling, their names, and the code of every label; a warning of what was pooled."""
    lookup, names, book = pool_labels(np.bincount(codes), labels, min_rows)
    import torch

    pooled = codes if (lookup == np.arange(len(lookup))).all() else lookup[codes]
    return torch.from_numpy(pooled), names, book


def rows_of_codes(codes: npt.NDArray[np.integer], n: int, at_a_time: int = 1 << 16) -> npt.NDArray[np.int64]:
    """How many rows have each of n codes, (n,). `numpy.bincount` would first copy those of many rows as whole numbers.

    >>> rows_of_codes(np.array([0, 2, 2], dtype=np.uint8), 3).tolist()
    [1, 0, 2]
    """
    counts, step = np.zeros(n, dtype=np.int64), max(at_a_time, n)
    for start in range(0, len(codes), step):
        counts += np.bincount(codes[start : start + step], minlength=n)
    return counts


def pool_labels(rows: Ints, labels: list[Any], min_rows: int) -> tuple[Ints, tuple[Hashable, ...], dict[Hashable, int]]:
    """The same by the rows that each label has: the code of every label after pooling, names, and codes by label."""
    n_rows = int(rows.sum())
    if _looks_continuous(labels, n_rows):
        continuous = (
            f"environment has {len(labels)} distinct values in {n_rows} rows, which looks continuous. "
            "Pass it as aux= to infer environments from it, or cut it into bins (e.g. pandas.qcut)."
        )
        warnings.warn(continuous, UserWarning, stacklevel=users_stacklevel())
    sizes = rows.tolist()
    groups = _groups(sizes, min_rows)
    names = [labels[g[0]] if len(g) == 1 else f"{_POOLED}{shown((labels[i] for i in g), form=str)})" for g in groups]
    if len(groups) < len(labels):
        host, small = groups[-1][0], [i for i in groups[-1] if sizes[i] < min_rows]
        joined = f" with the smallest other, {labels[host]!r} ({sizes[host]} rows)" if host not in small else ""
        listed = shown(small, form=lambda i: f"{labels[i]!r}: {sizes[i]}")
        few = (
            f"environment: environments with fewer than min_rows={min_rows} rows ({listed}) are pooled"
            f"{joined} into {names[-1]!r}: a mean slope over so few rows is noise. Environments left: "
            f"{len(groups)}. Use min_rows=1 to keep them apart."
        )
        warnings.warn(few, UserWarning, stacklevel=users_stacklevel())
    lookup = np.empty(len(labels), dtype=np.int64)
    for code, group in enumerate(groups):
        lookup[group] = code
    book = {v: code for code, v in enumerate(names)} | dict(zip(labels, lookup.tolist(), strict=True))
    return lookup, tuple(names), book


def is_pooled(name: Hashable) -> bool:
    """Whether this is the name that `pool` gives to environments with few rows."""
    return isinstance(name, str) and name.startswith(_POOLED)


def _looks_continuous(labels: Sequence[Any], n_rows: int) -> bool:
    return len(labels) > max(MANY, n_rows / 2) and all(isinstance(v, (float, datetime)) for v in labels)


def recode(values: Any, book: Mapping[Hashable, int] | None, parameter: str, n_rows: int) -> Tensor:
    """Codes (N,) of labels that the training rows have."""
    codes, labels = encode_labels(values, parameter, n_rows)
    unknown = [v for v in labels if v not in (book or {})]
    if book is None or unknown:
        known = shown(book) if book else "none: pass environment= for them too"
        near = did_you_mean(unknown[0], book or ())
        raise ValueError(
            f"{parameter} must be environments of the training rows ({known}). Got {shown(unknown)}."
            f"{near} Rows of new environments belong in test."
        )
    import torch

    return torch.tensor([book[v] for v in labels])[torch.from_numpy(codes)]


# ---- advice -------------------------------------------------------------------------------------------------------


def check_environments(codes: Ints, labels: Sequence[Hashable], min_rows: int, needed: bool) -> None:
    """Before small environments are pooled: whether two would be left, and whether these are labels at all.

    Raises where two are needed and would not be left; warns of numbers that look continuous, and of labels that most
    rows have alone.
    """
    check_label_rows(np.bincount(codes, minlength=len(labels)), labels, min_rows, needed)


def check_label_rows(sizes: Ints, labels: Sequence[Hashable], min_rows: int, needed: bool) -> None:
    """The same by the rows that each label has."""
    n_rows = int(sizes.sum())
    large = sizes >= min_rows
    left = int(large.sum()) + (1 if (~large).any() and (not large.any() or sizes[~large].sum() >= min_rows) else 0)
    advice = _not_labels(labels, n_rows)
    if needed and left < 2:
        raise ValueError(_too_few(sizes, labels, min_rows, advice))
    if advice is not None and not _looks_continuous(labels, n_rows):  # of those `pool` warns
        warnings.warn(
            f"environment has {len(labels)} different labels in {n_rows} rows. {advice}",
            UserWarning,
            stacklevel=users_stacklevel(),
        )


def _not_labels(labels: Sequence[Any], n_rows: int) -> str | None:
    """What to do with labels that are none: numbers and dates of a continuous kind, names of single rows."""
    several = len(labels) > max(10, n_rows / 2)
    if (several or len(labels) > MANY) and all(isinstance(v, datetime) for v in labels):
        return (
            "Dates are rather aux, as numbers, from which environments are inferred (aux=d.astype('int64')), or a "
            "coarser label: the year, d.dt.year."
        )
    if (several or len(labels) > MANY) and all(isinstance(v, float) for v in labels):
        return (
            "They look continuous: pass them as aux, from which environments are inferred, or cut them into bins, "
            "pandas.qcut(values, 4)."
        )
    if several:
        return (
            "That looks like a name of each row and not of where it came from: use a coarser label (a site, a year); "
            "numbers may be passed as aux, or cut into bins, pandas.qcut(values, 4)."
        )
    return None


def _too_few(sizes: Ints, labels: Sequence[Any], min_rows: int, advice: str | None) -> str:
    """Fewer than two environments are left to compare."""
    n_rows = int(sizes.sum())
    if len(labels) < 2:
        return (
            f"environment must have two or more different labels: invariance compares them. Got only {shown(labels)} "
            f"(n_samples={n_rows}). Use another column, or objective='erm'."
        )
    most = np.argsort(-sizes, kind="stable")
    listed = shown(most, limit=4, form=lambda i: f"{plain(labels[i])!r}: {sizes[i]}")
    keeps = f"min_rows={int(sizes[most[1]])} keeps two or more apart" if sizes[most[1]] > 1 else ""
    to_do = advice or f"Use a coarser label, or a smaller min_rows ({keeps or 'now every label has one row'})."
    return (
        f"environment must have two or more labels with min_rows={min_rows} rows or more each: invariance compares "
        f"them. Got {len(labels)} labels in {n_rows} rows (n_samples={n_rows}), rows of each: {listed}. Those with "
        f"fewer than min_rows are pooled into one, since a mean over so few rows is noise, and nothing is left beside "
        f"it. {to_do}"
    )


def warn_of_copies(x: npt.NDArray[Any], codes: Ints, n_labels: int, names: Sequence[Any] | None) -> None:
    """A feature that says the same as environment: the model can read from it where a row came from."""
    n_rows = len(codes)
    if x.ndim != 2 or n_labels < 2 or n_rows < 2 * n_labels:
        return
    first = np.full(n_labels, n_rows)
    np.minimum.at(first, codes, np.arange(n_rows))  # the first row of each environment
    few = slice(0, 256)
    likely = (x[few] == x[first[codes[few]]]).all(0).nonzero()[0]  # most columns are out after a few rows
    same = [j for j in likely if (x[:, j] == x[first[codes], j]).all() and len(np.unique(x[first, j])) == n_labels]
    if same:
        of = [int(j) if names is None else plain(names[j]) for j in same]
        warnings.warn(
            f"X has the environment among its features: {shown(of)} has one value for each of the {n_labels} labels of "
            "environment. The model can read from it where a row came from, which is rarely wanted. Drop it from X.",
            UserWarning,
            stacklevel=users_stacklevel(),
        )
