"""The front door: everything the user has -> a checked task."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from irmtv.core.losses import Loss
from irmtv.core.messages import check_positive
from irmtv.core.types import Rows, Task
from irmtv.data.environments import factorize, pool
from irmtv.data.numeric import DTYPES, as_matrix
from irmtv.data.rows import Part, as_part, match_columns, other_rows, read_aux, read_weight, take_columns
from irmtv.data.target import raw_target, read_target


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
    >>> rows = pd.DataFrame({"age": range(40), "site": ["a", "b"] * 20})
    >>> make_task(rows, [0, 1, 1, 0] * 10, environment="site")
    Task('data', 40 rows, features (1,), loss binary, 2 environments)
    """
    check_positive(min_rows, "min_rows")
    _check_alignment(x, y=y, environment=environment, aux=aux, sample_weight=sample_weight)
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be torch.float32 or torch.float64. Got {dtype!r}. Use one of them.")
    given = Part("", x, y, environment, aux, sample_weight)
    part = take_columns(given)
    columns: list[Hashable] | None = list(part.x.columns) if isinstance(part.x, pd.DataFrame) else None
    features = as_matrix(part.x, "x", dtype, (2, 3))
    n = len(features)
    target, encoded = read_target(raw_target(y, "y", n), loss, n_outputs, dtype)
    train = Rows(features, encoded, aux=read_aux(part, n), weight=read_weight(part, n))
    book: dict[Hashable, int] | None = None
    if part.environment is not None:
        codes, labels = factorize(part.environment, "environment", n)
        pooled, names, book = pool(codes, labels, min_rows, "environment")
        train = replace(train, environment=pooled, names=names)

    def other(which: str, rows: Any) -> Rows | None:
        if rows is None:
            return None
        part = take_columns(as_part(which, rows), given)
        return other_rows(replace(part, x=match_columns(part.x, columns, f"{which}.x")), train, target, book)

    tested, held = other("test", test), other("held_out", held_out)
    return Task(train, target.loss, target.n_outputs, tested, held, name, dict(card or {}))


def _check_alignment(x: Any, **others: Any) -> None:
    """Rows are matched by position. The same labels in another order are surely not meant so."""
    if not isinstance(x, pd.DataFrame | pd.Series):
        return
    for name, values in others.items():
        if not isinstance(values, pd.DataFrame | pd.Series) or values.index.equals(x.index):
            continue
        if len(values) == len(x) and x.index.is_unique and set(values.index) == set(x.index):
            raise ValueError(
                f"{name} must have its rows in the order of x: rows are matched by position. Got the same index in "
                f"another order; use {name} = {name}.loc[x.index]."
            )
