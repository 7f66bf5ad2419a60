"""Arrays or DataFrames -> Task. Whatever is wrong with the input is said here, before training starts.

Rows are counted from 0 and matched by position: pandas indexes are ignored. Everything is copied, so later
edits of the caller's arrays do not reach the task.
"""

from __future__ import annotations

import cmath
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
import torch
from torch import Tensor

from irmtv.core.losses import Binary, Loss, Multiclass, Squared, as_loss
from irmtv.core.messages import check_length, check_positive, did_you_mean, shown
from irmtv.core.types import Rows, Task

_NUMBERS = "biuf"  # dtype kinds: bool, int, unsigned, float
_DTYPES = {torch.float32: np.float32, torch.float64: np.float64}
_LOSSES = ("auto", "binary", "multiclass", "squared")


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
        Any hashable labels. A named column is taken out of `x` (and of the x of `test` and `held_out`).
    aux : (N,) or (N, A) numbers, or one or several column names of `x`, default None
        What environments may be inferred from. Named columns are taken out of `x`.
    loss : "auto", "binary", "multiclass", "squared", or a function (f, y) -> loss per row, default "auto"
        "auto": bools, or 0 and 1, are binary; integers that are exactly 0..C-1 with 3 <= C <= 100 are
        multiclass; two integers other than 0 and 1 are an error; all else is squared.
    n_outputs : int, default None
        Outputs of the network for a loss of your own: by default one, or the columns of `y`.
    test, held_out : Rows or mapping with keys x, y and optionally environment, aux; default None
        Rows that training never sees, and rows of the training environments that serve selection. Test
        environments have codes of their own; held-out ones those of the training rows.
    min_rows : int, default 10
        Smaller training environments are pooled into one, with a warning; 1 keeps every environment.
    dtype : torch.float32 or torch.float64, default torch.float32
    name : str, default "data"
    card : mapping, default None
        Source, licence, what shifts, known limits.

    Examples
    --------
    >>> rows = pd.DataFrame({"age": range(40), "site": ["a", "b"] * 20})
    >>> make_task(rows, [0, 1, 1, 0] * 10, environment="site")
    Task('data', 40 rows, features (1,), loss binary, 2 environments)
    """
    check_positive(min_rows, "min_rows")
    if dtype not in _DTYPES:
        raise ValueError(f"dtype must be torch.float32 or torch.float64. Got {dtype!r}. Use one of them.")
    given = _Part("", x, y, environment, aux)
    part = _take_columns(given)
    columns = list(part.x.columns) if isinstance(part.x, pd.DataFrame) else None
    features = _matrix(part.x, "x", dtype, (2, 3))
    n = len(features)
    target, encoded = _read_target(_raw_target(y, "y", n), loss, n_outputs, dtype)
    train = Rows(features, encoded, aux=_aux(part, n, dtype))
    book: dict[Hashable, int] | None = None
    if part.environment is not None:
        codes, labels = _factorize(part.environment, "environment", n)
        pooled, names, book = _pool(codes, labels, min_rows, "environment")
        train = replace(train, environment=pooled, names=names)

    def other(which: str, rows: Any) -> Rows | None:
        if rows is None:
            return None
        part = _take_columns(_as_part(which, rows), given)
        return _other_rows(replace(part, x=_match(part.x, columns, f"{which}.x")), train, target, book)

    tested, held = other("test", test), other("held_out", held_out)
    return Task(train, target.loss, target.n_outputs, tested, held, name, dict(card or {}))


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
    codes, labels = _factorize(values, parameter)
    return _pool(codes, labels, min_rows, parameter)[:2]


# Numbers ----------------------------------------------------------------------------------------------------


def _array(values: Any, parameter: str) -> Any:
    """A dense array of whatever dtype the values have."""
    if scipy.sparse.issparse(values) or (isinstance(values, Tensor) and values.layout != torch.strided):
        dense = "to_dense" if isinstance(values, Tensor) else "toarray"
        kind = type(values).__name__
        raise ValueError(f"{parameter} must be dense. Got a sparse {kind}. Use {parameter}.{dense}().")
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        wide = torch.promote_types(values.dtype, torch.float32)  # numpy has no bfloat16
        return (values.to(wide) if values.is_floating_point() else values).numpy()
    if isinstance(values, np.ma.MaskedArray) and values.dtype.kind in _NUMBERS:
        return np.ma.filled(values.astype(np.float64), np.nan)
    try:
        return np.asarray(values)
    except ValueError as error:
        got = str(error).rstrip(".")
        raise ValueError(f"{parameter} must have rows of one length. Got {got}. Pad or drop rows.") from error


def _numbers(values: Any, parameter: str) -> Any:
    """An array of bools, ints or floats; missing entries of a DataFrame become NaN."""
    if isinstance(values, pd.DataFrame):
        text = [f"{c!r} ({d})" for c, d in values.dtypes.items() if getattr(d, "kind", "O") not in _NUMBERS]
        if not text:
            return values.to_numpy(dtype=np.float64, na_value=np.nan)
        raise ValueError(
            f"{parameter} must have numeric or bool columns. Got {shown(text, form=str)}. Encode these "
            "columns as numbers first (e.g. pandas.get_dummies, skrub.TableVectorizer) or drop them."
        )
    array = _array(values, parameter)
    if array.dtype.kind not in _NUMBERS:
        raise ValueError(
            f"{parameter} must be numbers. Got {type(values).__name__} of dtype {array.dtype}. Encode text "
            f"and dates as numbers first; numbers in disguise: numpy.asarray({parameter}, dtype=float)."
        )
    return array


def _first(bad: Any, columns: Sequence[Hashable] | None) -> str:
    """Where the first True stands, in the user's terms."""
    row, *rest = (int(i) for i in np.unravel_index(bad.argmax(), bad.shape))
    if len(rest) == 2:
        return f"row {row}, channel {rest[0]}, position {rest[1]}"
    return f"row {row}" + "".join(f", column {columns[i] if columns else i!r}" for i in rest)


def _check_finite(array: Any, parameter: str, columns: Sequence[Hashable] | None = None) -> None:
    missing = pd.isna(array)  # NaN, and None or NaT among objects
    infinite = np.isinf(array) if array.dtype.kind == "f" else np.zeros_like(missing)
    bad = missing | infinite
    if bad.any():
        is_target = parameter in ("y", "test.y", "held_out.y")
        cure = "Leave out" if is_target else "Impute them (e.g. sklearn.impute.SimpleImputer) or drop"
        raise ValueError(
            f"{parameter} must be finite. Got {bad.sum()} NaN or infinite values ({missing.sum()} missing, "
            f"{infinite.sum()} infinite), the first at {_first(bad, columns)}. "
            f"{cure} these rows."
        )


def _cast(
    array: Any, parameter: str, dtype: torch.dtype, columns: Sequence[Hashable] | None = None
) -> Tensor:
    """A checked copy as a tensor."""
    _check_finite(array, parameter, columns)
    with np.errstate(over="ignore"):
        copy = np.array(array, dtype=_DTYPES[dtype], order="C")
    large = ~np.isfinite(copy)
    if large.any():
        raise ValueError(
            f"{parameter} must fit into {dtype}. Got {large.sum()} values that overflow to infinity, the "
            f"first at {_first(large, columns)}. Rescale them or use dtype=torch.float64."
        )
    return torch.from_numpy(copy)


def _matrix(values: Any, parameter: str, dtype: torch.dtype, ndims: tuple[int, int]) -> Tensor:
    """x: (N, D) or (N, channels, length); aux: (N,) or (N, A)."""
    array = _numbers(values, parameter)
    if array.ndim not in ndims or array.size == 0:
        shapes = {1: "(rows,)", 2: "(rows, columns)", 3: "(rows, channels, length)"}
        advice = (
            f"For one feature use {parameter}.reshape(-1, 1)" if array.ndim == 1 else "Reshape or refill it"
        )
        raise ValueError(
            f"{parameter} must be {' or '.join(shapes[d] for d in ndims)} and not empty. Got shape "
            f"{array.shape}. {advice}."
        )
    return _cast(array, parameter, dtype, list(values.columns) if isinstance(values, pd.DataFrame) else None)


def _aux(part: _Part, n_rows: int, dtype: torch.dtype) -> Tensor | None:
    if part.aux is None:
        return None
    values = part.aux.to_frame() if isinstance(part.aux, pd.Series) else part.aux
    aux = _matrix(values, f"{part.prefix}aux", dtype, (1, 2))
    check_length(len(aux), n_rows, f"{part.prefix}aux")
    return aux.reshape(n_rows, -1)  # (N, A)


# Target -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Target:
    """What the training y decided, and what every other y is held to."""

    kind: str  # "binary", "multiclass", "squared" or "custom"
    loss: Loss
    n_outputs: int
    shape: tuple[int, ...]  # of one row's y: () or (C,)
    dtype: torch.dtype


def _raw_target(values: Any, parameter: str, n_rows: int) -> Any:
    """y as an array of any dtype, (N,) or (N, C), nothing missing."""
    if isinstance(values, pd.DataFrame):
        values = values.iloc[:, 0] if values.shape[1] == 1 else _numbers(values, parameter)
    array = _array(values, parameter)
    if array.ndim not in (1, 2) or array.shape[1:] == (0,):
        got = f"{type(values).__name__} of shape {array.shape}"
        raise ValueError(
            f"{parameter} must be (rows,) or (rows, targets). Got {got}. Pass one value per row."
        )
    check_length(len(array), n_rows, parameter)
    array = array[:, 0] if array.shape[1:] == (1,) else array
    if array.dtype == object and array.ndim == 1:
        array = pd.Series(array).infer_objects().to_numpy()  # Python bools or ints among objects
    _check_finite(array, parameter)
    return array


def _read_target(y: Any, loss: Any, n_outputs: int | None, dtype: torch.dtype) -> tuple[_Target, Tensor]:
    """Decide the loss from the training y, and encode it."""
    kind = _kind(loss, y)
    classes = kind in ("binary", "multiclass")
    outputs = (
        len(pd.unique(y.ravel())) if kind == "multiclass" else 1 if classes or y.ndim == 1 else y.shape[1]
    )
    if n_outputs is not None:
        check_positive(n_outputs, "n_outputs")
        if kind != "custom" and n_outputs != outputs:
            raise ValueError(
                f"n_outputs must be {outputs} for this y and loss {kind!r}. Got {n_outputs}. Omit it."
            )
        outputs = int(n_outputs)
    made = as_loss(loss if kind == "custom" else kind, outputs)
    target = _Target(kind, made, outputs, () if classes else y.shape[1:], dtype)
    encoded = _encode_target(y, target, "y")
    if classes and (encoded == encoded[0]).all():
        raise ValueError(
            f"y must have at least two classes for loss {kind!r}. Got only {y[0]!s} in {len(y)} rows. "
            "Check the filter that made it, or use loss='squared' for numbers."
        )
    return target, encoded


def _kind(loss: Any, y: Any) -> str:
    if isinstance(loss, str) and loss in _LOSSES:
        return _guess(y) if loss == "auto" else loss
    if isinstance(loss, (Binary, Multiclass, Squared)):
        return loss.name
    if isinstance(loss, Loss) or callable(loss):
        return "custom"
    near = did_you_mean(loss, _LOSSES)
    raise ValueError(
        f"loss must be one of {shown(_LOSSES)} or a function (f, y) -> loss. Got {loss!r}.{near}"
    )


def _guess(y: Any) -> str:
    """The loss that the labels ask for, as `make_task` documents it."""
    if y.ndim == 2:
        return "squared"
    labels = set(pd.unique(y).tolist())
    if y.dtype.kind not in _NUMBERS:  # refused later, with the labels shown
        return "binary" if len(labels) <= 2 else "multiclass"
    if labels == {0, 1} or (y.dtype.kind != "f" and labels <= {0, 1}):
        return "binary"
    if y.dtype.kind != "f" and len(labels) == 2:
        raise ValueError(
            "y must be 0 and 1 for two classes: loss='auto' cannot tell classes from numbers. Got only "
            f"{shown(sorted(labels))}. Use y = (y == {max(labels)}), or loss='squared' for numbers."
        )
    contiguous = y.dtype.kind != "f" and labels == set(range(len(labels))) and len(labels) <= 100
    return "multiclass" if contiguous else "squared"


def _encode_target(y: Any, target: _Target, parameter: str) -> Tensor:
    """y as the loss wants it: (N,) or (N, C) floats, or (N,) int64 classes."""
    if y.shape[1:] != target.shape:
        raise ValueError(
            f"{parameter} must be {('rows', *target.shape)} for loss {target.kind!r}. Got shape {y.shape}. "
            f"Select the same targets; for one column per class use {parameter}.argmax(axis=1)."
        )
    if target.kind in ("binary", "multiclass"):
        _check_labels(y, target.kind, max(2, target.n_outputs), parameter)
    if target.kind == "multiclass":
        return torch.from_numpy(y.astype(np.int64))
    return _cast(_numbers(y, parameter), parameter, target.dtype)


def _check_labels(y: Any, kind: str, classes: int, parameter: str) -> None:
    labels = pd.unique(y).tolist()
    if set(labels) <= set(range(classes)):
        return
    if parameter != "y":
        advice = "Recode the labels like those of the training y, or drop the rows of unknown classes"
    elif kind == "binary" and len(labels) == 2:
        advice = f"Use y = (y == {labels[1]!r})"
    else:
        several = " with loss='multiclass', or loss='squared' for numbers" if kind == "binary" else ""
        advice = f"Use classes, y = numpy.unique(y, return_inverse=True){several}"
    wanted = "0 and 1" if classes == 2 else f"the integers 0..{classes - 1}"
    raise ValueError(
        f"{parameter} must be {wanted} for loss {kind!r}. Got the labels {shown(labels)}. {advice}."
    )


# Environments -----------------------------------------------------------------------------------------------


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
        values = _array(values, parameter)
    if isinstance(values, pd.MultiIndex) or not hasattr(values, "shape"):
        values = pd.Series([_plain(v) for v in values], dtype=object)
    if values.ndim == 0 or values.size == 0 or values.shape[1:] not in ((), (1,)):
        got = f"shape {tuple(values.shape)}"
        raise ValueError(
            f"{parameter} must be one label per row. Got {got}. Combine columns: list(zip(a, b))."
        )
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


def _factorize(values: Any, parameter: str, n_rows: int | None = None) -> tuple[Any, list[Any]]:
    """Codes (N,) and the distinct labels: sorted where they can be, else in order of first appearance."""
    series = _label_series(values, parameter)
    check_length(len(series), len(series) if n_rows is None else n_rows, parameter)
    try:  # as an array: an Index of tuples would turn into a MultiIndex
        codes, uniques = pd.factorize(series.to_numpy() if series.dtype == object else series)
    except TypeError as error:
        raise ValueError(
            f"{parameter} must be hashable labels. Got {error}. Use tuples, not lists."
        ) from error
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


def _pool(
    codes: Any, labels: list[Any], min_rows: int, parameter: str
) -> tuple[Tensor, tuple[Hashable, ...], dict[Hashable, int]]:
    """Codes after pooling, their names, and the code of every label.

    Public functions call it directly, so that its warnings point at the user's line.
    """
    if len(labels) > max(50, len(codes) / 2) and all(isinstance(v, (float, datetime)) for v in labels):
        continuous = (
            f"{parameter} has {len(labels)} distinct values in {len(codes)} rows, which looks continuous. "
            "Pass it as aux= to infer environments from it, or cut it into bins (e.g. pandas.qcut)."
        )
        warnings.warn(continuous, UserWarning, stacklevel=3)
    sizes = np.bincount(codes).tolist()
    groups = _groups(sizes, min_rows)
    names = [
        labels[g[0]] if len(g) == 1 else f"pooled({shown((labels[i] for i in g), form=str)})" for g in groups
    ]
    if len(groups) < len(labels):
        host, small = groups[-1][0], [i for i in groups[-1] if sizes[i] < min_rows]
        joined = (
            f" with the smallest other, {labels[host]!r} ({sizes[host]} rows)" if host not in small else ""
        )
        listed = shown(small, form=lambda i: f"{labels[i]!r}: {sizes[i]}")
        few = (
            f"{parameter}: environments with fewer than min_rows={min_rows} rows ({listed}) are pooled"
            f"{joined} into {names[-1]!r}: a mean slope over so few rows is noise. Environments left: "
            f"{len(groups)}. Use min_rows=1 to keep them apart."
        )
        warnings.warn(few, UserWarning, stacklevel=3)
    lookup = np.empty(len(labels), dtype=np.int64)
    for code, group in enumerate(groups):
        lookup[group] = code
    book = {v: code for code, v in enumerate(names)} | dict(zip(labels, lookup.tolist(), strict=True))
    return torch.from_numpy(lookup[codes]), tuple(names), book


def _recode(values: Any, book: Mapping[Hashable, int] | None, parameter: str, n_rows: int) -> Tensor:
    """Codes (N,) of labels that the training rows have."""
    codes, labels = _factorize(values, parameter, n_rows)
    unknown = [v for v in labels if v not in (book or {})]
    if book is None or unknown:
        known = shown(book) if book else "none: pass environment= for them too"
        near = did_you_mean(unknown[0], book or ())
        raise ValueError(
            f"{parameter} must be environments of the training rows ({known}). Got {shown(unknown)}."
            f"{near} Rows of new environments belong in test."
        )
    return torch.tensor([book[v] for v in labels])[torch.from_numpy(codes)]


# Training, test and held-out rows ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """One set of rows as the user gave them."""

    prefix: str  # "", "test." or "held_out.": what messages put before its parts
    x: Any
    y: Any
    environment: Any = None  # values, a column name of x, or None
    aux: Any = None  # values, one or several column names of x, or None

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
    """Move the columns that the part, or else the training rows, name as environment and aux out of x."""
    columns = list(part.x.columns) if isinstance(part.x, pd.DataFrame) else []
    if len(set(columns)) < len(columns):
        twice = [c for c in dict.fromkeys(columns) if columns.count(c) > 1]
        raise ValueError(
            f"{part.prefix}x must have every column once. Got {shown(twice)} twice. Rename or drop it."
        )
    picked: dict[str, Any] = {}
    for which in ("environment", "aux"):
        own = part.named(which)
        names = own or (train.named(which) if train else [])
        missing = [c for c in names if c not in columns]
        if missing and (own or len(missing) < len(names)):
            got = f"the columns {shown(columns)}" if columns else type(part.x).__name__
            raise ValueError(
                f"{part.prefix}x must be a DataFrame with the column {missing[0]!r}, which {which} names. "
                f"Got {got}.{did_you_mean(missing[0], columns)} Name a column, or pass {which} as values."
            )
        if own or getattr(part, which) is None:
            picked[which] = part.x[names] if names and not missing else None
    taken = {c for p in (part, train) if p for which in ("environment", "aux") for c in p.named(which)}
    left = [c for c in columns if c not in taken]
    return replace(part, x=part.x[left] if len(left) < len(columns) else part.x, **picked)


def _as_part(which: str, rows: Any) -> _Part:
    keys = ("x", "y", "environment", "aux")
    if isinstance(rows, Rows):
        names, codes = rows.names, rows.environment
        labels = codes if codes is None or not names else [names[code] for code in codes.tolist()]
        rows = {"x": rows.x, "y": rows.y, "environment": labels, "aux": rows.aux}
    if not isinstance(rows, Mapping) or not {"x", "y"} <= set(rows) <= set(keys):
        wrong = [k for k in rows if k not in keys] if isinstance(rows, Mapping) else []
        got = f"the keys {shown(rows)}" if isinstance(rows, Mapping) else type(rows).__name__
        raise ValueError(
            f"{which} must be Rows or a mapping with the keys x, y and optionally environment, aux. "
            f"Got {got}.{did_you_mean(wrong[0], keys) if wrong else ''} Use {which}={{'x': ..., 'y': ...}}."
        )
    return _Part(f"{which}.", **rows)


def _match(x: Any, columns: list[Hashable] | None, parameter: str) -> Any:
    """The training columns in the training order, where both x are DataFrames."""
    if columns is None or not isinstance(x, pd.DataFrame):
        return x
    missing, extra = [c for c in columns if c not in x.columns], [c for c in x.columns if c not in columns]
    if missing or extra:
        got = f"missing: {shown(missing) or 'none'}; extra: {shown(extra) or 'none'}"
        raise ValueError(f"{parameter} must have the columns of x. Got {got}. Select the same columns.")
    return x[columns]


def _other_rows(part: _Part, train: Rows, target: _Target, book: Mapping[Hashable, int] | None) -> Rows:
    """Test or held-out rows, held to what the training rows decided."""
    x = _matrix(part.x, f"{part.prefix}x", target.dtype, (2, 3))
    aux = _aux(part, len(x), target.dtype)
    for which, ours, theirs in (("x", x, train.x), ("aux", aux, train.aux)):
        if ours is not None and theirs is not None and ours.shape[1:] != theirs.shape[1:]:
            expected, got = tuple(theirs.shape[1:]), tuple(ours.shape[1:])
            raise ValueError(
                f"{part.prefix}{which} must have the columns of the training rows: expected {expected} per "
                f"row. Got {got}. Select the same columns."
            )
    y = _encode_target(_raw_target(part.y, f"{part.prefix}y", len(x)), target, f"{part.prefix}y")
    if part.environment is None:
        return Rows(x, y, aux=aux)
    parameter = f"{part.prefix}environment"
    if part.prefix == "held_out.":
        return Rows(x, y, _recode(part.environment, book, parameter, len(x)), aux, train.names)
    codes, labels = _factorize(part.environment, parameter, len(x))
    return Rows(x, y, torch.from_numpy(codes), aux, tuple(labels))
