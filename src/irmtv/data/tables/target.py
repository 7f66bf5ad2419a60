"""The target of a table: what kind of prediction it asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from irmtv.core.messages import did_you_mean, plain_repr, shown
from irmtv.data.tables.errors import TableError

TaskName = Literal["binary", "multiclass", "regression"]
MOST_WHOLE_NUMBERS = 20  # maximum number of distinct whole numbers in a class target
MOST_STRINGS = 200  # maximum number of distinct strings in a class target


@dataclass(frozen=True, eq=False)
class TargetSummary:
    """A target by its distinct values, in the order in which they come first; nothing missing."""

    name: Any
    numeric: bool  # not so of truth values
    values: Any  # (L,)
    counts: npt.NDArray[np.int64]  # (L,): rows of each
    has_more: bool = False  # numbers of which only some were counted

    @classmethod
    def of(cls, y: pd.Series) -> TargetSummary:
        """Of a target in memory."""
        codes, values = pd.factorize(y)
        numeric = is_numeric_dtype(y.dtype) and not is_bool_dtype(y.dtype)
        return cls(y.name, numeric, values, np.bincount(codes, minlength=len(values)))


def task_of(y: pd.Series, task: str | None = None) -> tuple[TaskName, str]:
    """What kind of prediction a target asks for, and why.

    Parameters
    ----------
    y : Series
        The target, nothing missing.
    task : str or None, default None
        "binary", "multiclass" or "regression" where the user says so.

    Returns
    -------
    str, str
        The task, and a sentence that says why; empty where it was asked for.

    Examples
    --------
    >>> task_of(pd.Series(["no", "yes", "no"], name="sold"))
    ('binary', "'sold' has two values, 'no', 'yes': classes")
    >>> task_of(pd.Series([0.5, 1.5, 2.5], name="price"))[0]
    'regression'
    """
    return task_of_target(TargetSummary.of(y), task)


def task_of_target(y: TargetSummary, task: str | None = None) -> tuple[TaskName, str]:
    """The same of a target in short."""
    name, distinct, numeric = y.name, np.asarray(y.values), y.numeric
    if task is not None:
        return _check_task(y, task), ""
    if len(distinct) == 2:
        return "binary", f"{name!r} has two values, {shown(sorted(distinct.tolist()))}: classes"
    if not numeric:
        _check_classes(y)
        return "multiclass", f"{name!r} is text with {len(distinct)} values: classes"
    if len(distinct) <= MOST_WHOLE_NUMBERS and bool(np.all(np.mod(distinct, 1) == 0)):
        return "multiclass", (
            f"{name!r} has {len(distinct)} whole numbers: classes. Use --task regression if their size matters"
        )
    more = "more than " * y.has_more
    return "regression", f"{name!r} is numbers with {more}{len(distinct):,} values: a regression"


def _check_task(y: TargetSummary, task: str) -> TaskName:
    """The task that the user names, where the target allows it."""
    known, n_distinct = get_args(TaskName), len(y.values)
    if task not in known:
        raise TableError(f"task must be one of {', '.join(known)}. Got {task!r}.{did_you_mean(task, known)}")
    if task == "regression" and not y.numeric:
        raise TableError(
            f"task regression needs numbers. {y.name!r} is text, such as {plain_repr(y.values[0])}. Leave --task out, "
            "or choose another target."
        )
    if task == "binary" and n_distinct != 2:
        raise TableError(f"task binary needs two classes. {y.name!r} has {n_distinct}. Use multiclass or regression.")
    if task == "regression":
        return "regression"
    return "binary" if n_distinct == 2 else "multiclass"


def _check_classes(y: TargetSummary) -> None:
    """Raise on too many distinct strings: often these are numbers, but for a few."""
    n_distinct, n_rows = len(y.values), int(y.counts.sum())
    if n_distinct <= MOST_STRINGS and n_distinct <= max(2, n_rows / 2):
        return
    text = pd.Series(y.values).astype(str)
    unread = pd.to_numeric(text, errors="coerce").isna().to_numpy()
    if y.counts[unread].sum() < 0.5 * n_rows:
        raise TableError(
            f"target {y.name!r} is numbers but for {int(y.counts[unread].sum())} of {n_rows} rows, such as "
            f"{shown(text[unread], 3)}. Make these numbers, or leave the cells empty."
        )
    raise TableError(
        f"target {y.name!r} has {n_distinct:,} different texts in {n_rows:,} rows, such as {shown(text.iloc[:2])}: too "
        f"many for classes (at most {MOST_STRINGS}, and half as many as rows). Choose another target, or join some."
    )
