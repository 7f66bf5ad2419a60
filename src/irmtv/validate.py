"""Arrays or DataFrames -> Task. Whatever is wrong with the input is said here, before training starts.

Every message names the parameter, what was expected, what came, and what to do. Rows are counted from 0 and
matched by position: pandas indexes are ignored. Everything is copied, so later edits of the caller's arrays
do not reach the task.
"""

from __future__ import annotations

import cmath
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
import torch
from torch import Tensor

from irmtv.core.losses import Binary, Loss, Multiclass, Squared, as_loss
from irmtv.core.messages import did_you_mean
from irmtv.core.types import Rows, Task

_NUMBERS = "biuf"  # dtype kinds: bool, int, unsigned, float
_DTYPES = {torch.float32: np.float32, torch.float64: np.float64}
_LOSSES = ("binary", "multiclass", "squared")
_MOST_CLASSES = 100  # more distinct integers than this are taken for a quantity


def make_task(
    x: Any,
    y: Any,
    *,
    environment: Any = None,
    aux: Any = None,
    loss: str | Loss | Callable[[Tensor, Tensor], Tensor] = "auto",
    n_outputs: int | None = None,
    test: Rows | Mapping[str, Any] | None = None,
    held_out: Rows | Mapping[str, Any] | None = None,
    min_rows: int = 10,
    dtype: torch.dtype = torch.float32,
    name: str = "data",
    card: Mapping[str, Any] | None = None,
) -> Task:
    """Check the data and make a task of it.

    Parameters
    ----------
    x : array, DataFrame, tensor or nested list, (N, D) or (N, channels, length)
        Features: numbers, none missing or infinite.
    y : array, Series, tensor or list, (N,) or (N, C)
        Classes 0 and 1, classes 0..C-1, or targets; (N, C) for several targets. (N, 1) is taken for (N,).
    environment : labels, one per row, or a column name of `x`, default None
        Any hashable labels. A named column is taken out of `x` (and of ``test`` and ``held_out``).
    aux : (N,) or (N, A) numbers, or one or several column names of `x`, default None
        What environments may be inferred from. Named columns are taken out of `x`.
    loss : "auto", "binary", "multiclass", "squared", or a function (f, y) -> loss per row, default "auto"
        "auto": bools or 0 and 1 are binary; integers that are exactly 0..C-1 with 3 <= C <= 100 are
        multiclass; two integers other than 0 and 1 are an error; all else is squared.
    n_outputs : int, default None
        Outputs of the network for a loss of your own: by default one, or the columns of `y`.
    test, held_out : Rows or mapping with keys x, y and optionally environment, aux; default None
        Rows that training never sees, and rows of the training environments that serve selection. Test
        environments get codes of their own; held-out ones those of the training rows.
    min_rows : int, default 10
        Smaller environments are pooled into one, with a warning; 1 keeps every environment.
    dtype : torch.float32 or torch.float64, default torch.float32
    name : str, default "data"
    card : mapping, default None
        Source, licence, what shifts, known limits.

    Returns
    -------
    Task

    Examples
    --------
    >>> rows = pd.DataFrame({"age": range(40), "site": ["a", "b"] * 20})
    >>> make_task(rows, [0, 1, 1, 0] * 10, environment="site")
    Task('data', 40 rows, features (1,), loss binary, 2 environments)
    """
    _check_positive(min_rows, "min_rows")
    if dtype not in _DTYPES:
        raise ValueError(f"dtype must be torch.float32 or torch.float64. Got {dtype}.")
    part = _Part("", x, y, environment, aux)
    given = _take_columns(part)
    columns = list(given.x.columns) if isinstance(given.x, pd.DataFrame) else None
    features = _features(given.x, "x", dtype)
    target, y_train = _read_target(_raw_target(y, "y", len(features)), loss, n_outputs, dtype)
    rows = Rows(x=features, y=y_train, aux=_aux(given.aux, "aux", len(features), dtype))
    book: dict[Hashable, int] | None = None
    if given.environment is not None:
        codes, labels = _factorize(given.environment, "environment", len(features))
        grouped, names, book = _pool(codes, labels, min_rows, "environment")
        rows = replace(rows, environment=grouped, names=names)

    def other(which: str, given_part: Rows | Mapping[str, Any] | None) -> Rows | None:
        return (
            None if given_part is None else _other_rows(which, given_part, part, columns, rows, target, book)
        )

    return Task(
        train=rows,
        loss=target.loss,
        n_outputs=target.n_outputs,
        test=other("test", test),
        held_out=other("held_out", held_out),
        name=name,
        card=dict(card or {}),
    )


def encode_environment(
    values: Any, min_rows: int = 1, parameter: str = "environment"
) -> tuple[Tensor, tuple[Hashable, ...]]:
    """Labels -> integer codes and the names they stand for.

    Parameters
    ----------
    values : list, array, Series, Categorical or tensor, (N,)
        Hashable labels of any type; equal labels (1, 1.0 and True are equal) are one environment.
    min_rows : int, default 1
        Environments with fewer rows are pooled, with a warning.
    parameter : str, default "environment"
        What messages call the values.

    Returns
    -------
    codes : (N,) int64 tensor
    names : tuple
        By code: sorted where the labels can be sorted, else in order of first appearance; a pooled
        environment comes last.

    Examples
    --------
    >>> encode_environment(["b", "a", "b"])
    (tensor([1, 0, 1]), ('a', 'b'))
    """
    _check_positive(min_rows, "min_rows")
    codes, labels = _factorize(values, parameter)
    grouped, names, _ = _pool(codes, labels, min_rows, parameter)
    return grouped, names


# ---------------------------------------------------------------------------------------------- small checks


def _check_positive(value: Any, parameter: str) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{parameter} must be a positive integer. Got {value!r}.")


def _check_length(n: int, expected: int, parameter: str) -> None:
    if n != expected:
        raise ValueError(
            f"{parameter} must have one entry per row of x: expected {expected}. Got {n}. "
            "Select the same rows in both."
        )


def _shown(values: Iterable[Any], limit: int = 5, form: Callable[[Any], str] = repr) -> str:
    """The first few values, and how many more there are."""
    texts = [form(v) for v in values]
    more = [f"… {len(texts) - limit} more"] if len(texts) > limit else []
    return ", ".join(texts[:limit] + more)


# --------------------------------------------------------------------------------------------------- numbers


def _array(values: Any, parameter: str) -> np.ndarray:
    """A dense array of whatever dtype the values have."""
    if scipy.sparse.issparse(values) or (isinstance(values, Tensor) and values.layout != torch.strided):
        raise ValueError(
            f"{parameter} must be dense. Got a sparse {type(values).__name__}. "
            f"Use {parameter}.{'to_dense' if isinstance(values, Tensor) else 'toarray'}()."
        )
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        if values.is_floating_point():  # numpy has no bfloat16
            values = values.to(torch.promote_types(values.dtype, torch.float32))
        return values.numpy()
    if isinstance(values, np.ma.MaskedArray) and values.dtype.kind in _NUMBERS:
        return values.astype(np.float64).filled(np.nan)
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError(
            f"{parameter} must be rectangular: as many values in every row. Got rows that differ ({error}). "
            "Pad or drop the shorter ones."
        ) from error


def _numbers(values: Any, parameter: str) -> np.ndarray:
    """An array of bools, ints or floats; missing entries of a DataFrame become NaN."""
    if isinstance(values, pd.DataFrame):
        text = {c: d for c, d in values.dtypes.items() if getattr(d, "kind", "O") not in _NUMBERS}
        if text:
            raise ValueError(
                f"{parameter} must have numeric or bool columns. Got "
                f"{_shown(text.items(), form=lambda item: f'{item[0]!r} ({item[1]})')}. "
                "Encode these columns as numbers first (e.g. pandas.get_dummies, skrub.TableVectorizer) or drop them."
            )
        return values.to_numpy(dtype=np.float64, na_value=np.nan)
    array = _array(values, parameter)
    if array.dtype.kind not in _NUMBERS:
        raise ValueError(
            f"{parameter} must be numbers. Got {type(values).__name__} of dtype {array.dtype}. "
            f"Encode text as numbers first; if they are numbers, use numpy.asarray({parameter}, dtype=float)."
        )
    return array


def _check_finite(array: np.ndarray, parameter: str, columns: Sequence[Hashable] | None = None) -> None:
    missing = pd.isna(array)  # NaN, and None or NaT among objects
    infinite = np.isinf(array) if array.dtype.kind == "f" else np.zeros_like(missing)
    if not missing.any() and not infinite.any():
        return
    bad = missing | infinite
    raise ValueError(
        f"{parameter} must be finite. Got {bad.sum()} NaN or infinite values ({missing.sum()} missing, "
        f"{infinite.sum()} infinite), the first at {_first(bad, columns)}. Impute them "
        "(e.g. sklearn.impute.SimpleImputer) or drop these rows."
    )


def _first(bad: np.ndarray, columns: Sequence[Hashable] | None) -> str:
    """Where the first True stands, in the user's terms."""
    row, *rest = (int(i) for i in np.unravel_index(int(bad.argmax()), bad.shape))
    if len(rest) == 2:
        return f"row {row}, channel {rest[0]}, position {rest[1]}"
    return f"row {row}" + "".join(f", column {columns[i] if columns else i!r}" for i in rest)


def _cast(
    array: np.ndarray, parameter: str, dtype: torch.dtype, columns: Sequence[Hashable] | None = None
) -> Tensor:
    """A checked copy as a tensor of `dtype`."""
    _check_finite(array, parameter, columns)
    with np.errstate(over="ignore"):
        copy = np.array(array, dtype=_DTYPES[dtype], order="C")
    too_large = ~np.isfinite(copy)
    if too_large.any():
        raise ValueError(
            f"{parameter} must fit into {dtype}. Got {too_large.sum()} larger values that overflow to infinity, "
            f"the first at {_first(too_large, columns)}. Rescale them or use dtype=torch.float64."
        )
    return torch.from_numpy(copy)


def _features(values: Any, parameter: str, dtype: torch.dtype) -> Tensor:
    """x: (N, D) or (N, channels, length)."""
    array = _numbers(values, parameter)
    if array.ndim not in (2, 3):
        hint = f" For one feature use {parameter}.reshape(-1, 1)." if array.ndim == 1 else ""
        raise ValueError(
            f"{parameter} must be 2-D (rows, features) or 3-D (rows, channels, length). "
            f"Got shape {array.shape}.{hint}"
        )
    if array.size == 0:
        raise ValueError(
            f"{parameter} must have at least one row and one feature. Got shape {array.shape}. "
            "Check the filter that made it, and that not all columns went to environment or aux."
        )
    return _cast(array, parameter, dtype, list(values.columns) if isinstance(values, pd.DataFrame) else None)


def _aux(
    values: Any, parameter: str, n_rows: int, dtype: torch.dtype, width: int | None = None
) -> Tensor | None:
    """aux: (N, A)."""
    if values is None:
        return None
    values = values.to_frame() if isinstance(values, pd.Series) else values
    array = _numbers(values, parameter)
    if array.ndim not in (1, 2) or array.size == 0:
        raise ValueError(
            f"{parameter} must be (rows,) or (rows, columns). Got shape {array.shape}. Reshape it."
        )
    _check_length(len(array), n_rows, parameter)
    array = array.reshape(n_rows, -1)  # (N, A)
    if width is not None and array.shape[1] != width:
        raise ValueError(
            f"{parameter} must have the columns of the training aux: expected {width}. Got {array.shape[1]}. "
            "Select the same columns."
        )
    return _cast(array, parameter, dtype, list(values.columns) if isinstance(values, pd.DataFrame) else None)


# ---------------------------------------------------------------------------------------------------- target


@dataclass(frozen=True)
class _Target:
    """What the training y decided, and what every other y is held to."""

    kind: str  # "binary", "multiclass", "squared" or "custom"
    loss: Loss
    n_outputs: int
    shape: tuple[int, ...]  # of one row's y: () or (C,)
    dtype: torch.dtype


def _raw_target(values: Any, parameter: str, n_rows: int) -> np.ndarray:
    """y as an array of any dtype, (N,) or (N, C), nothing missing."""
    if isinstance(values, pd.DataFrame):
        values = values.iloc[:, 0] if values.shape[1] == 1 else _numbers(values, parameter)
    array = _array(values, parameter)
    if array.ndim not in (1, 2) or array.shape[1:] == (0,):
        raise ValueError(
            f"{parameter} must be (rows,) or (rows, targets). Got {type(values).__name__} of shape "
            f"{array.shape}. Pass one value per row of x."
        )
    _check_length(len(array), n_rows, parameter)
    array = array[:, 0] if array.shape[1:] == (1,) else array
    if array.dtype == object and array.ndim == 1:
        array = pd.Series(array).infer_objects().to_numpy()  # Python bools or ints among objects
    _check_finite(array, parameter)
    return array


def _read_target(
    y: np.ndarray, loss: Any, n_outputs: int | None, dtype: torch.dtype
) -> tuple[_Target, Tensor]:
    """Decide the loss from the training y, and encode it."""
    kind = _kind(loss, y)
    if kind == "multiclass":
        implied = len(pd.unique(y)) if y.ndim == 1 else 1
    else:
        implied = y.shape[1] if y.ndim == 2 else 1
    if n_outputs is not None:
        _check_positive(n_outputs, "n_outputs")
        if kind != "custom" and n_outputs != implied:
            raise ValueError(
                f"n_outputs must be {implied}, which is what y has for loss {kind!r}. Got {n_outputs}. Leave it out: "
                "it is for a loss of your own."
            )
        implied = int(n_outputs)
    made = as_loss(loss if kind == "custom" else kind, implied)
    target = _Target(kind, made, implied, y.shape[1:], dtype)
    encoded = _encode_target(y, target, "y")
    if kind in ("binary", "multiclass") and (encoded == encoded[0]).all():
        raise ValueError(
            f"y must have at least two classes for loss {kind!r}. Got only {y[0].item()!r} in {len(y)} rows. "
            "Check the filter that made it, or use loss='squared'."
        )
    return target, encoded


def _kind(loss: Any, y: np.ndarray) -> str:
    if isinstance(loss, (Binary, Multiclass, Squared)):
        return loss.name
    if isinstance(loss, str) and loss == "auto":
        return _guess(y)
    if loss in _LOSSES if isinstance(loss, str) else False:
        return loss
    if isinstance(loss, Loss) or callable(loss):
        return "custom"
    raise ValueError(
        f"loss must be 'auto', {_shown(_LOSSES)} or a function (f, y) -> loss per row. Got {loss!r}."
        f"{did_you_mean(loss, ('auto', *_LOSSES))}"
    )


def _guess(y: np.ndarray) -> str:
    """The loss that the labels ask for; see `make_task`."""
    if y.ndim == 2 or y.dtype.kind not in _NUMBERS:
        return "squared" if y.ndim == 2 else "binary" if len(pd.unique(y)) <= 2 else "multiclass"
    labels = set(pd.unique(y).tolist())
    if labels == {0, 1} or (y.dtype.kind != "f" and labels <= {0, 1}):
        return "binary"
    if y.dtype.kind == "f":
        return "squared"
    if len(labels) == 2:
        raise ValueError(
            f"loss='auto' cannot tell classes from numbers: y must be 0 and 1 for two classes. Got only "
            f"{_shown(sorted(labels))}. Use y = (y == {max(labels)!r}) for classes, loss='squared' for numbers."
        )
    return "multiclass" if len(labels) <= _MOST_CLASSES and labels == set(range(len(labels))) else "squared"


def _encode_target(y: np.ndarray, target: _Target, parameter: str) -> Tensor:
    """y as the loss wants it: (N,) or (N, C) floats, or (N,) int64 classes."""
    classes = {"binary": 2, "multiclass": target.n_outputs}.get(target.kind)
    if classes is not None and y.ndim == 2:
        raise ValueError(
            f"{parameter} must be one label per row for loss {target.kind!r}. Got shape {y.shape}. "
            f"For one column per class use {parameter}.argmax(axis=1)."
        )
    if y.shape[1:] != target.shape:
        raise ValueError(
            f"{parameter} must be shaped like the training y. Got {y.shape}. Select the same targets."
        )
    if classes is not None:
        _check_labels(y, target.kind, classes, parameter)
    elif y.dtype.kind not in _NUMBERS:
        raise ValueError(
            f"{parameter} must be numbers. Got dtype {y.dtype}. Convert it, or encode it as classes."
        )
    if target.kind == "multiclass":
        return torch.from_numpy(y.astype(np.int64))
    return _cast(y, parameter, target.dtype)


def _check_labels(y: np.ndarray, kind: str, classes: int, parameter: str) -> None:
    labels = pd.unique(y).tolist()
    if set(labels) <= set(range(classes)):
        return
    if parameter != "y":
        advice = "Recode the labels like those of the training y, or drop the rows of unknown classes."
    elif kind == "binary" and len(labels) == 2:
        advice = f"Use y = (y == {labels[1]!r})."
    else:
        advice = "Use classes, y = numpy.unique(y, return_inverse=True)" + (
            " with loss='multiclass', or loss='squared' for numbers." if kind == "binary" else "."
        )
    wanted = "0 and 1" if classes == 2 else f"the integers 0..{classes - 1}"
    raise ValueError(
        f"{parameter} must be {wanted} for loss {kind!r}. Got the labels {_shown(labels)}. {advice}"
    )


# ---------------------------------------------------------------------------------------------- environments


def _plain(label: Any) -> Any:
    """A Python object in place of a numpy or torch scalar."""
    if isinstance(label, (np.datetime64, np.timedelta64)):
        return pd.Series([label]).iloc[0]
    if isinstance(label, np.generic) or (isinstance(label, Tensor) and label.ndim == 0):
        return label.item()
    return label


def _label_series(values: Any, parameter: str) -> pd.Series:
    """One label per entry, whatever holds them."""
    if isinstance(values, (str, bytes, Mapping, Set)) or not hasattr(values, "__iter__"):
        raise ValueError(
            f"{parameter} must be labels, one per row. Got {type(values).__name__} {values!r}. "
            "Pass a list, an array or a Series; a column name needs x to be a DataFrame."
        )
    if isinstance(values, (Tensor, pd.DataFrame)):
        values = values.to_numpy() if isinstance(values, pd.DataFrame) else _array(values, parameter)
    shape = getattr(values, "shape", None) or (len(values := list(values)),)
    if len(shape) > 1 and shape[1:] != (1,) or shape[0] == 0:
        raise ValueError(
            f"{parameter} must be one label per row. Got shape {tuple(shape)}. To combine columns use "
            "tuples: list(zip(a, b))."
        )
    if hasattr(values, "dtype"):
        series = pd.Series(values[:, 0] if len(shape) > 1 else values)
        if series.dtype != object:
            return series.reset_index(drop=True)
        values = series.tolist()
    return pd.Series([_plain(v) for v in values], dtype=object)


def _unusable(label: Any) -> bool:
    """Missing or infinite, also inside a tuple."""
    if isinstance(label, tuple):
        return any(_unusable(part) for part in label)
    if isinstance(label, (float, complex, Decimal)):
        return not cmath.isfinite(label)
    return label is None or label is pd.NaT or label is pd.NA


def _factorize(values: Any, parameter: str, n_rows: int | None = None) -> tuple[np.ndarray, list[Any]]:
    """Codes (N,) and the distinct labels: sorted where they can be, else in order of first appearance."""
    series = _label_series(values, parameter)
    if n_rows is not None:
        _check_length(len(series), n_rows, parameter)
    try:  # as an array: an Index of tuples would turn into a MultiIndex
        codes, uniques = pd.factorize(series.to_numpy() if series.dtype == object else series)
    except TypeError as error:
        raise ValueError(
            f"{parameter} must be hashable labels. Got {error}. Use tuples, not lists."
        ) from error
    labels: list[Any] = uniques.tolist()
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


def _pool(
    codes: np.ndarray, labels: list[Any], min_rows: int, parameter: str
) -> tuple[Tensor, tuple[Hashable, ...], dict[Hashable, int]]:
    """Codes after pooling, their names, and the code of every label. Called straight from public functions,
    so that warnings point at the user's line."""
    if len(labels) > max(50, len(codes) / 2) and all(isinstance(v, (float, datetime)) for v in labels):
        warnings.warn(
            f"{parameter} has {len(labels)} distinct values in {len(codes)} rows, which looks continuous. "
            "Pass it as aux= to infer environments from it, or cut it into bins (e.g. pandas.qcut).",
            UserWarning,
            stacklevel=3,
        )
    sizes = np.bincount(codes, minlength=len(labels)).tolist()
    groups = _groups(sizes, min_rows)
    names = [
        labels[g[0]] if len(g) == 1 else f"pooled({_shown((labels[i] for i in g), form=str)})" for g in groups
    ]
    if len(groups) < len(labels):
        small = [i for i in groups[-1] if sizes[i] < min_rows]
        host = [i for i in groups[-1] if sizes[i] >= min_rows]
        joined = f", with the smallest other, {labels[host[0]]!r} ({sizes[host[0]]} rows)," if host else ""
        warnings.warn(
            f"{parameter}: environments with fewer than min_rows={min_rows} rows "
            f"({_shown(small, form=lambda i: f'{labels[i]!r}: {sizes[i]}')}) are pooled{joined} into "
            f"{names[-1]!r}, because a mean slope over so few rows is noise; {len(groups)} environments remain. "
            "Use min_rows=1 to keep them apart.",
            UserWarning,
            stacklevel=3,
        )
    lookup = np.empty(len(labels), dtype=np.int64)
    for code, group in enumerate(groups):
        lookup[group] = code
    book = {**{v: i for i, v in enumerate(names)}, **dict(zip(labels, lookup.tolist(), strict=True))}
    return torch.from_numpy(lookup[codes]), tuple(names), book


def _recode(values: Any, book: Mapping[Hashable, int] | None, parameter: str, n_rows: int) -> Tensor:
    """Codes (N,) of labels that the training rows have."""
    if book is None:
        raise ValueError(
            f"{parameter} must match the training environment. Got none there: pass environment= too."
        )
    codes, labels = _factorize(values, parameter, n_rows)
    unknown = [v for v in labels if v not in book]
    if unknown:
        raise ValueError(
            f"{parameter} must be environments of the training rows ({_shown(book)}). Got {_shown(unknown)} as "
            f"well.{did_you_mean(unknown[0], book)} Rows of new environments belong in test."
        )
    return torch.tensor([book[v] for v in labels])[torch.from_numpy(codes)]


# ---------------------------------------------------------------------------- training, test, held-out rows


@dataclass(frozen=True)
class _Part:
    """One set of rows as the user gave them."""

    prefix: str  # "", "test." or "held_out.": how messages call its parts
    x: Any
    y: Any
    environment: Any = None  # values, a column name of x, or None
    aux: Any = None  # values, column names of x, or None

    def named(self, which: str) -> list[str]:
        """The column names that `environment` or `aux` stands for; none where it holds values."""
        given = getattr(self, which)
        if isinstance(given, str):
            return [given]
        several = (
            which == "aux" and isinstance(given, (list, tuple)) and all(isinstance(c, str) for c in given)
        )
        return list(given) if several else []


def _take_columns(part: _Part, train: _Part | None = None) -> _Part:
    """Move the columns that the part, or the training rows, named as environment and aux out of x."""
    x = part.x
    if isinstance(x, pd.DataFrame) and not x.columns.is_unique:
        twice = x.columns[x.columns.duplicated()].unique()
        raise ValueError(
            f"{part.prefix}x must have each column once. Got twice: {_shown(twice)}. Rename or drop."
        )
    taken: list[str] = []
    picked: dict[str, Any] = {}
    for which in ("environment", "aux"):
        own = part.named(which)
        names = own or (train.named(which) if train else [])
        columns: Sequence[Any] = x.columns if isinstance(x, pd.DataFrame) else []
        missing = [c for c in names if c not in columns]
        if missing and (own or len(missing) < len(names)):
            what = f"a DataFrame with the column {missing[0]!r}, which {part.prefix}{which} names"
            came = f"the columns {_shown(columns)}" if len(columns) else type(x).__name__
            raise ValueError(
                f"{part.prefix}x must be {what}. Got {came}.{did_you_mean(missing[0], columns)} "
                f"Name a column, or pass {which} as values, one per row."
            )
        given = None if own else getattr(part, which)
        picked[which] = x[names] if given is None and names and not missing else given
        taken += [] if missing else names
    return replace(part, x=x.drop(columns=taken) if taken else x, **picked)


def _as_part(which: str, given: Any) -> _Part:
    if isinstance(given, Rows):
        labels = given.environment
        if labels is not None and given.names:
            labels = [given.names[code] for code in labels.tolist()]
        return _Part(f"{which}.", given.x, given.y, labels, given.aux)
    keys = ("x", "y", "environment", "aux")
    if not isinstance(given, Mapping) or not {"x", "y"} <= set(given) <= set(keys):
        came = f"the keys {_shown(given)}" if isinstance(given, Mapping) else type(given).__name__
        wrong = [k for k in given if k not in keys] if isinstance(given, Mapping) else []
        raise ValueError(
            f"{which} must be Rows or a mapping with the keys x, y and optionally environment, aux. Got {came}."
            f"{did_you_mean(wrong[0], keys) if wrong else ''} Use {which}={{'x': ..., 'y': ...}}."
        )
    return _Part(f"{which}.", **given)


def _other_rows(
    which: str,
    given: Any,
    train: _Part,
    columns: list[Hashable] | None,
    rows: Rows,
    target: _Target,
    book: Mapping[Hashable, int] | None,
) -> Rows:
    """Test or held-out rows, held to what the training rows decided."""
    part = _take_columns(_as_part(which, given), train)
    x = _match_columns(part.x, columns, f"{part.prefix}x")
    features = _features(x, f"{part.prefix}x", target.dtype)
    n = len(features)
    if features.shape[1:] != rows.x.shape[1:]:
        raise ValueError(
            f"{part.prefix}x must have the features of x: expected {tuple(rows.x.shape[1:])} per row. "
            f"Got {tuple(features.shape[1:])}. Select the same columns."
        )
    y = _encode_target(_raw_target(part.y, f"{part.prefix}y", n), target, f"{part.prefix}y")
    width = None if rows.aux is None else rows.aux.shape[1]
    made = Rows(x=features, y=y, aux=_aux(part.aux, f"{part.prefix}aux", n, target.dtype, width))
    if part.environment is None:
        return made
    parameter = f"{part.prefix}environment"
    if which == "held_out":
        return replace(made, environment=_recode(part.environment, book, parameter, n), names=rows.names)
    codes, labels = _factorize(part.environment, parameter, n)
    return replace(made, environment=torch.from_numpy(codes), names=tuple(labels))


def _match_columns(x: Any, columns: list[Hashable] | None, parameter: str) -> Any:
    """The training columns in the training order, where both are DataFrames."""
    if columns is None or not isinstance(x, pd.DataFrame):
        return x
    missing = [c for c in columns if c not in x.columns]
    extra = [c for c in x.columns if c not in columns]
    if missing or extra:
        raise ValueError(
            f"{parameter} must have the columns of x. Missing: {_shown(missing) or 'none'}; extra: "
            f"{_shown(extra) or 'none'}. Select the same columns."
        )
    return x[columns]
