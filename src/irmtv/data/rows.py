"""Rows as a user gives them: x, y, and what comes beside them (aux, weights), matched by position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from irmtv.core.messages import check_length
from irmtv.data.columns import is_date, is_frame
from irmtv.data.environments import as_labels
from irmtv.data.numeric import as_matrix, as_numbers, as_tensor


@dataclass(frozen=True)
class RawRows:
    """One set of rows as the user gave them."""

    x: Any
    y: Any
    environment: Any = None  # values, or None; for `make_task` also a column name of x
    aux: Any = None  # values, or None; for `make_task` also one or several column names of x
    sample_weight: Any = None  # values, or None
    prefix: str = ""  # "test." or "held_out.": what messages put before its parts


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
    _refuse_dates(values, parameter)
    values = as_labels(values)
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
