"""Rows as a user gives them, matched by position, and numbers in any container as dense, finite tensors."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from irmtv.core.containers import is_sparse, is_tensor
from irmtv.core.messages import check_length, plain, shown
from irmtv.data.columns import is_date, is_frame, is_polars

if TYPE_CHECKING:
    import torch
    from torch import Tensor

NUMBER_KINDS = "biuf"  # dtype kinds: bool, int, unsigned, float
IMPUTE = "Impute them (e.g. sklearn.impute.SimpleImputer), or drop these rows."
LEAVE_OUT = "Leave these rows out: keep = pandas.notna(y), then X[keep], y[keep]."


@dataclass(frozen=True)
class RawRows:
    """One set of rows as the user gave them."""

    x: Any
    y: Any
    environment: Any = None  # values, or None; for `make_task` also a column name of x
    aux: Any = None  # values, or None; for `make_task` also one or several column names of x
    sample_weight: Any = None  # values, or None
    prefix: str = ""  # "test." or "held_out.": what messages put before its parts


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Objects of any class may fail in any way when they are made numbers or labels: that is one ValueError."""
    try:
        yield
    except (ValueError, TypeError, MemoryError, ImportError, Warning):  # ours, those of arrays, and what is not theirs
        raise
    except Exception as error:
        raise ValueError(
            f"{what} cannot be read: {type(error).__name__}: {error}. Give arrays, tables or lists of numbers, texts "
            "or dates."
        ) from error


def check_row_order(x: Any, x_name: str = "X", **beside: Any) -> None:
    """Raise where a pandas object beside x has its row labels in another order, as after a sort or a join.

    Rows are matched by position, as scikit-learn does. Labels that are not those of x (a filtered table beside a fresh
    one) say nothing, and neither do labels that occur twice.
    """
    index = getattr(x, "index", None)
    if not isinstance(index, pd.Index):
        return
    for name, values in beside.items():
        own = getattr(values, "index", None)
        if not isinstance(own, pd.Index) or len(own) != len(index) or own.equals(index):
            continue
        if own.is_unique and index.is_unique and bool(own.isin(index).all()):
            first = int((own != index).argmax())
            raise ValueError(
                f"{name} must have its rows in the order of {x_name}: rows are matched by position. Got the same row "
                f"labels in another order (row {first} is {own[first]!r} in {name} and {index[first]!r} in {x_name}). "
                f"To align by labels use {name}.loc[{x_name}.index]; if the position is meant, {name}.to_numpy()."
            )


# ---- numbers ------------------------------------------------------------------------------------------------------


def as_array(values: Any, parameter: str) -> Any:
    """A dense array of whatever dtype the values have."""
    tensor = is_tensor(values)
    if is_sparse(values) or (tensor and str(values.layout) != "torch.strided"):
        dense = "to_dense" if tensor else "toarray"
        kind = type(values).__name__
        raise ValueError(f"{parameter} must be dense. Got a sparse {kind}. Use {parameter}.{dense}().")
    if tensor:
        import torch

        values = values.detach().cpu()
        wide = torch.promote_types(values.dtype, torch.float32)  # numpy has no bfloat16
        return (values.to(wide) if values.is_floating_point() else values).numpy()
    if isinstance(values, np.ma.MaskedArray) and values.dtype.kind in NUMBER_KINDS:
        return np.ma.filled(values.astype(np.float64), np.nan)
    try:
        return np.asarray(values)
    except ValueError as error:
        got = str(error).rstrip(".")
        raise ValueError(f"{parameter} must have rows of one length. Got {got}. Pad or drop rows.") from error


def as_numbers(values: Any, parameter: str) -> Any:
    """An array of bools, ints or floats; missing entries of a DataFrame become NaN."""
    if isinstance(values, pd.DataFrame):
        text = [f"{c!r} ({d})" for c, d in values.dtypes.items() if getattr(d, "kind", "O") not in NUMBER_KINDS]
        if not text:
            return values.to_numpy(dtype=np.float64, na_value=np.nan)
        raise ValueError(
            f"{parameter} must have numeric or bool columns. Got {shown(text, form=str)}. Encode these "
            "columns as numbers first (e.g. pandas.get_dummies, skrub.TableVectorizer) or drop them."
        )
    array = as_array(values, parameter)
    if array.dtype.kind not in NUMBER_KINDS:
        raise ValueError(
            f"{parameter} must be numbers. Got {type(values).__name__} of dtype {array.dtype}. Encode text "
            f"and dates as numbers first; numbers in disguise: numpy.asarray({parameter}, dtype=float)."
        )
    return array


def check_finite(
    values: Any,
    parameter: str,
    columns: Sequence[Hashable] | None = None,
    to_do: str = IMPUTE,
    *,
    gaps: bool = False,
) -> None:
    """Raise where a value is infinite or, unless `gaps` are allowed, missing: how many rows, and where the first is."""
    if values.dtype.kind == "f":
        # NaN and infinity are what the least or the greatest of some values is, and no array of answers is made
        if not gaps and values.size and np.isfinite([values.min(), values.max()]).all():
            return
        bad = np.isinf(values) if gaps else ~np.isfinite(values)
    else:
        bad = np.asarray(pd.isna(values))  # None or NaT among objects
    if not bad.any():
        return
    missing = bool(pd.isna(values[bad]).any())
    infinite = bool((~pd.isna(values[bad])).any())
    first = "NaN" if pd.isna(values[np.unravel_index(bad.argmax(), bad.shape)]) else "infinity"
    bad_columns = int(bad.any(0).sum()) if bad.ndim == 2 else 1
    more = f"; {bad_columns} columns have some" if bad_columns > 1 else ""
    if infinite and to_do != LEAVE_OUT:
        to_do = f"Make infinite values NaN, numpy.where(numpy.isinf({parameter}), numpy.nan, {parameter}). {to_do}"
    raise ValueError(
        f"{parameter} must be finite{', or missing (NaN)' * gaps}. Input {parameter} contains "
        f"{' and '.join(['NaN'] * missing + ['infinity'] * infinite)} in "
        f"{int(bad.reshape(len(bad), -1).any(1).sum())} of {len(bad)} rows: the first is {first} in "
        f"{_first(bad, columns)}{more}. {to_do}".rstrip()
    )


def _first(bad: Any, columns: Sequence[Hashable] | None) -> str:
    """Where the first True stands, in the user's terms."""
    row, *rest = (int(i) for i in np.unravel_index(bad.argmax(), bad.shape))
    if len(rest) == 2:
        return f"row {row}, channel {rest[0]}, position {rest[1]}"
    return f"row {row}" + "".join(f", column {plain(columns[i]) if columns is not None else i!r}" for i in rest)


def as_tensor(array: Any, parameter: str, dtype: torch.dtype, columns: Sequence[Hashable] | None = None) -> Tensor:
    """A checked copy as a tensor."""
    import torch

    check_finite(array, parameter, columns)
    with np.errstate(over="ignore"):
        copy = np.array(array, dtype=np.float32 if dtype == torch.float32 else np.float64, order="C")
    narrower = array.dtype.kind not in "biu" and array.dtype.itemsize > copy.itemsize  # others overflow nowhere
    large = ~np.isfinite(copy) if narrower else np.zeros((), bool)
    if large.any():
        raise ValueError(
            f"{parameter} must fit into {dtype}. Got {large.sum()} values that overflow to infinity, the "
            f"first at {_first(large, columns)}. Rescale them or use dtype=torch.float64."
        )
    return torch.from_numpy(copy)


def as_matrix(values: Any, parameter: str, dtype: torch.dtype, ndims: tuple[int, int]) -> Tensor:
    """x: (N, D) or (N, channels, length); aux: (N,) or (N, A)."""
    array = as_numbers(values, parameter)
    if array.ndim not in ndims or array.size == 0:
        shapes = {1: "(rows,)", 2: "(rows, columns)", 3: "(rows, channels, length)"}
        advice = f"For one feature use {parameter}.reshape(-1, 1)" if array.ndim == 1 else "Reshape or refill it"
        raise ValueError(
            f"{parameter} must be {' or '.join(shapes[d] for d in ndims)} and not empty. Got shape "
            f"{array.shape}. {advice}."
        )
    columns = list(values.columns) if isinstance(values, pd.DataFrame) else None
    return as_tensor(array, parameter, dtype, columns)


# ---- aux and weights ----------------------------------------------------------------------------------------------


def count_rows(aux: Any) -> int:
    """How many rows aux has, where nothing else says so."""
    try:
        return len(aux)
    except TypeError:  # a number, an array without axes, a generator
        raise ValueError(
            f"aux must be numbers of shape (rows,) or (rows, columns). Got {aux!r}. For one row pass a list, aux=[...]."
        ) from None


def read_aux(values: Any, n_rows: int, parameter: str = "aux") -> Tensor | None:
    """Auxiliary variables (N, A) in float64, checked; None where there are none."""
    if values is None:
        return None
    import torch

    _refuse_dates(values, parameter)
    if is_polars(values):
        values = values.to_numpy()
    aux = as_matrix(values.to_frame() if isinstance(values, pd.Series) else values, parameter, torch.float64, (1, 2))
    check_length(len(aux), n_rows, parameter)
    return aux.reshape(len(aux), -1)


def _refuse_dates(values: Any, parameter: str) -> None:
    """A time is a good aux, as a number."""
    if is_frame(values):
        dates = [(repr(c), d) for c, d in zip(values.columns, values.dtypes, strict=True) if is_date(d)]
    else:
        dates = [("", values.dtype)] if is_date(getattr(values, "dtype", None)) else []
    if not dates:
        return
    name, dtype = dates[0]
    one = f"X[{name}]" if is_frame(values) else parameter
    polars = not hasattr(dtype, "kind")
    number, year = (".dt.epoch()", ".dt.year()") if polars else (".astype('int64')", ".dt.year")
    raise ValueError(
        f"{parameter} must be numbers. Got dates, {name or 'of dtype'} ({dtype}). Make numbers of them: {one}{number} "
        f"is a time (its unit does not matter, aux is standardised), {one}{year} a year."
    )


def read_weight(values: Any, n_rows: int, parameter: str = "sample_weight") -> Tensor | None:
    """What each row counts: (N,) float64, those above 0 with mean 1; None where all count the same."""
    if values is None:
        return None
    array = as_numbers(values, parameter)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(f"{parameter} must be (rows,), one number per row. Got shape {array.shape}.")
    check_length(len(array), n_rows, parameter)
    import torch

    weight = as_tensor(array, parameter, torch.float64)
    if bool((weight < 0).any()):
        first = int((weight < 0).nonzero()[0])
        raise ValueError(
            f"{parameter} must not be negative. Got {weight[first].item():g} at row {first}. Use 0 to leave a row out."
        )
    if not bool(weight.any()):
        raise ValueError(
            f"{parameter} must be above 0 for some row. Got zeros only. Leave it out to weigh all the same."
        )
    if bool((weight == weight[0]).all()):
        return None
    weight = weight / weight.max()  # a sum of very large ones would not be finite
    return weight / weight[weight > 0].mean()
