"""Features and other numbers: whatever holds them -> a dense, finite tensor of its own memory."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
import torch
from torch import Tensor

from irmtv.core.messages import plain, shown

NUMBER_KINDS = "biuf"  # dtype kinds: bool, int, unsigned, float
IMPUTE = "Impute them (e.g. sklearn.impute.SimpleImputer), or drop these rows."
LEAVE_OUT = "Leave these rows out: keep = pandas.notna(y), then X[keep], y[keep]."
DTYPES = {torch.float32: np.float32, torch.float64: np.float64}


def as_array(values: Any, parameter: str) -> Any:
    """A dense array of whatever dtype the values have."""
    if scipy.sparse.issparse(values) or (isinstance(values, Tensor) and values.layout != torch.strided):
        dense = "to_dense" if isinstance(values, Tensor) else "toarray"
        kind = type(values).__name__
        raise ValueError(f"{parameter} must be dense. Got a sparse {kind}. Use {parameter}.{dense}().")
    if isinstance(values, Tensor):
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
    check_finite(array, parameter, columns)
    with np.errstate(over="ignore"):
        copy = np.array(array, dtype=DTYPES[dtype], order="C")
    large = ~np.isfinite(copy)
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
