"""Training, test and held-out rows: x, y, environment and aux as the user gave them, and what they become."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from irmtv.core.messages import check_length, did_you_mean, shown
from irmtv.core.types import Rows
from irmtv.data.environments import factorize, recode
from irmtv.data.numeric import as_matrix, as_numbers, as_tensor
from irmtv.data.target import Target, encode_target, raw_target


@dataclass(frozen=True)
class Part:
    """One set of rows as the user gave them."""

    prefix: str  # "", "test." or "held_out.": what messages put before its parts
    x: Any
    y: Any
    environment: Any = None  # values, a column name of x, or None
    aux: Any = None  # values, one or several column names of x, or None
    sample_weight: Any = None  # values, or None

    def named(self, which: str) -> list[str]:
        """The column names that `environment` or `aux` stands for; none where it holds values."""
        given = getattr(self, which)
        if isinstance(given, str):
            return [given]
        several = which == "aux" and isinstance(given, (list, tuple)) and all(isinstance(c, str) for c in given)
        return list(given) if several else []


def take_columns(part: Part, train: Part | None = None) -> Part:
    """Move the columns that the part, or else the training rows, name as environment and aux out of x."""
    columns = list(part.x.columns) if isinstance(part.x, pd.DataFrame) else []
    if len(set(columns)) < len(columns):
        twice = [c for c in dict.fromkeys(columns) if columns.count(c) > 1]
        raise ValueError(f"{part.prefix}x must have every column once. Got {shown(twice)} twice. Rename or drop it.")
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


def as_part(which: str, rows: Any) -> Part:
    keys = ("x", "y", "environment", "aux", *(("sample_weight",) if which == "held_out" else ()))
    if isinstance(rows, Rows):
        names, codes = rows.names, rows.environment
        labels = codes if codes is None or not names else [names[code] for code in codes.tolist()]
        weight = {"sample_weight": rows.weight} if which == "held_out" else {}
        rows = {"x": rows.x, "y": rows.y, "environment": labels, "aux": rows.aux, **weight}
    if not isinstance(rows, Mapping) or not {"x", "y"} <= set(rows) <= set(keys):
        wrong = [k for k in rows if k not in keys] if isinstance(rows, Mapping) else []
        got = f"the keys {shown(rows)}" if isinstance(rows, Mapping) else type(rows).__name__
        raise ValueError(
            f"{which} must be Rows or a mapping with the keys x, y and optionally {', '.join(keys[2:])}. "
            f"Got {got}.{did_you_mean(wrong[0], keys) if wrong else ''} Use {which}={{'x': ..., 'y': ...}}."
        )
    return Part(f"{which}.", **rows)


def match_columns(x: Any, columns: list[Hashable] | None, parameter: str) -> Any:
    """The training columns in the training order, where both x are DataFrames."""
    if columns is None or not isinstance(x, pd.DataFrame):
        return x
    missing, extra = [c for c in columns if c not in x.columns], [c for c in x.columns if c not in columns]
    if missing or extra:
        got = f"missing: {shown(missing) or 'none'}; extra: {shown(extra) or 'none'}"
        raise ValueError(f"{parameter} must have the columns of x. Got {got}. Select the same columns.")
    return x[columns]


def read_aux(part: Part, n_rows: int) -> Tensor | None:
    if part.aux is None:
        return None
    values = part.aux.to_frame() if isinstance(part.aux, pd.Series) else part.aux
    aux = as_matrix(values, f"{part.prefix}aux", torch.float64, (1, 2))
    check_length(len(aux), n_rows, f"{part.prefix}aux")
    return aux.reshape(n_rows, -1)  # (N, A)


def read_weight(part: Part, n_rows: int) -> Tensor | None:
    """What each row counts: (N,) float64, those above 0 with mean 1; None where all count the same."""
    if part.sample_weight is None:
        return None
    parameter = f"{part.prefix}sample_weight"
    array = as_numbers(part.sample_weight, parameter)
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


def other_rows(part: Part, train: Rows, target: Target, book: Mapping[Hashable, int] | None) -> Rows:
    """Test or held-out rows, held to what the training rows decided."""
    x = as_matrix(part.x, f"{part.prefix}x", target.dtype, (2, 3))
    aux = read_aux(part, len(x))
    for which, ours, theirs in (("x", x, train.x), ("aux", aux, train.aux)):
        if ours is not None and theirs is not None and ours.shape[1:] != theirs.shape[1:]:
            expected, got = tuple(theirs.shape[1:]), tuple(ours.shape[1:])
            raise ValueError(
                f"{part.prefix}{which} must have the columns of the training rows: expected {expected} per "
                f"row. Got {got}. Select the same columns."
            )
    y = encode_target(raw_target(part.y, f"{part.prefix}y", len(x)), target, f"{part.prefix}y")
    rows = Rows(x, y, aux=aux, weight=read_weight(part, len(x)))
    if part.environment is None:
        return rows
    parameter = f"{part.prefix}environment"
    if part.prefix == "held_out.":
        codes = recode(part.environment, book, parameter, len(x))
        return replace(rows, environment=codes, names=train.names)
    codes, labels = factorize(part.environment, parameter, len(x))
    return replace(rows, environment=torch.from_numpy(codes), names=tuple(labels))
