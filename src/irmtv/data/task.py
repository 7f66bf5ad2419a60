"""`make_task`: arrays or tables -> a checked task."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from irmtv.core.losses import Loss
from irmtv.core.messages import check_positive, did_you_mean, shown
from irmtv.core.types import Rows, Task
from irmtv.data.columns import column_names, is_frame, match_columns, no_column, without
from irmtv.data.environments import encode_labels, pool, recode
from irmtv.data.rows import RawRows, as_matrix, check_row_order, read_aux, read_weight
from irmtv.data.target import Target, encode_target, raw_target, read_target


def make_task(
    x: Any,
    y: Any,
    *,
    environment: Any = None,
    aux: Any = None,
    sample_weight: Any = None,
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
    sample_weight : (N,) numbers of at least 0, not all 0, default None
        What each row counts in every mean that training and selection take: weight 2 is the row twice, weight 0 the
        row left out. Any scale; they are kept so that those above 0 have mean 1. Equal weights are none.
    loss : "auto", "binary", "multiclass", "squared", or a function (f, y) -> loss per row, default "auto"
        "auto": bools, or 0 and 1, are binary; integers that are exactly 0..C-1 with 3 <= C <= 100 are
        multiclass; two integers other than 0 and 1 are an error; all else is squared (with a warning for floats
        that look like three or more classes).
    n_outputs : int, default None
        Outputs of the network for a loss of your own: by default one, or the columns of `y`.
    test, held_out : Rows or mapping with keys x, y and optionally environment, aux; default None
        Rows that training never sees, and rows of the training environments that serve selection. Test
        environments have codes of their own; held-out ones those of the training rows. Held-out rows may have a
        sample_weight, too; without, they all count the same.
    min_rows : int, default 10
        Smaller training environments are pooled into one, with a warning; 1 keeps every environment.
    dtype : torch.float32 or torch.float64, default torch.float32
    name : str, default "data"
    card : mapping, default None
        Source, licence, what shifts, known limits.

    Examples
    --------
    >>> import pandas as pd
    >>> rows = pd.DataFrame({"age": range(40), "site": ["a", "b"] * 20})
    >>> make_task(rows, [0, 1, 1, 0] * 10, environment="site")
    Task('data', 40 rows, features (1,), loss binary, 2 environments)
    """
    check_positive(min_rows, "min_rows")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64. Got {dtype!r}. Use one of them.")
    given = RawRows(x, y, environment, aux, sample_weight)
    raw = _take_columns(given)
    columns: list[Hashable] | None = list(raw.x.columns) if is_frame(raw.x) else None
    features = as_matrix(raw.x, "x", dtype, (2, 3))
    n = len(features)
    target, encoded = read_target(raw_target(y, "y", n), loss, n_outputs, dtype)
    train = Rows(features, encoded, aux=read_aux(raw.aux, n), weight=read_weight(raw.sample_weight, n))
    book: dict[Hashable, int] | None = None
    if raw.environment is not None:
        codes, labels = encode_labels(raw.environment, "environment", n)
        pooled, names, book = pool(codes, labels, min_rows)
        train = replace(train, environment=pooled, names=names)

    def other(which: str, rows: Any) -> Rows | None:
        if rows is None:
            return None
        raw = _take_columns(_raw_rows(which, rows), given)
        raw = replace(raw, x=match_columns(raw.x, columns, f"{which}.x"))
        return _other_rows(raw, train, target, book)

    tested, held = other("test", test), other("held_out", held_out)
    return Task(train, target.loss, target.n_outputs, tested, held, name, dict(card or {}))


def _named(rows: RawRows, which: str) -> list[str]:
    """The column names that `environment` or `aux` stands for; none where it holds values."""
    given = getattr(rows, which)
    if isinstance(given, str):
        return [given]
    several = which == "aux" and isinstance(given, (list, tuple)) and all(isinstance(c, str) for c in given)
    return list(given) if several else []


def _take_columns(rows: RawRows, train: RawRows | None = None) -> RawRows:
    """Move the columns that these rows, or else the training rows, name as environment and aux out of x."""
    x_name = f"{rows.prefix}x"
    beside = {name: getattr(rows, name) for name in ("y", "environment", "aux", "sample_weight")}
    check_row_order(rows.x, x_name, **{f"{rows.prefix}{name}": values for name, values in beside.items()})
    present = column_names(rows.x, x_name)
    picked: dict[str, Any] = {}
    taken: list[str] = []
    for which in ("environment", "aux"):
        own = _named(rows, which)
        of_training = _named(train, which) if train else []
        names = own or of_training
        missing = [c for c in names if c not in present]
        if missing and (own or len(missing) < len(names)):
            raise ValueError(no_column(rows.x, missing[0], which, present, x_name))
        if own or getattr(rows, which) is None:
            picked[which] = rows.x[names] if names and not missing else None
        taken += [c for c in dict.fromkeys([*own, *of_training]) if c in present]
    return replace(rows, x=without(rows.x, list(dict.fromkeys(taken))) if taken else rows.x, **picked)


def _raw_rows(which: str, rows: Any) -> RawRows:
    """Test or held-out rows, checked for the keys that they may have."""
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
    return RawRows(**rows, prefix=f"{which}.")


def _other_rows(raw: RawRows, train: Rows, target: Target, book: Mapping[Hashable, int] | None) -> Rows:
    """Test or held-out rows, held to what the training rows decided."""
    x = as_matrix(raw.x, f"{raw.prefix}x", target.dtype, (2, 3))
    aux = read_aux(raw.aux, len(x), f"{raw.prefix}aux")
    for which, ours, theirs in (("x", x, train.x), ("aux", aux, train.aux)):
        if ours is not None and theirs is not None and ours.shape[1:] != theirs.shape[1:]:
            expected, got = tuple(theirs.shape[1:]), tuple(ours.shape[1:])
            raise ValueError(
                f"{raw.prefix}{which} must have the columns of the training rows: expected {expected} per "
                f"row. Got {got}. Select the same columns."
            )
    y = encode_target(raw_target(raw.y, f"{raw.prefix}y", len(x)), target, f"{raw.prefix}y")
    rows = Rows(x, y, aux=aux, weight=read_weight(raw.sample_weight, len(x), f"{raw.prefix}sample_weight"))
    if raw.environment is None:
        return rows
    parameter = f"{raw.prefix}environment"
    if raw.prefix == "held_out.":
        known = recode(raw.environment, book, parameter, len(x))
        return replace(rows, environment=known, names=train.names)
    codes, labels = encode_labels(raw.environment, parameter, len(x))
    return replace(rows, environment=torch.from_numpy(codes), names=tuple(labels))
