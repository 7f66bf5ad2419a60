"""What a column of a raw table holds (numbers, dates, text, categories), and how others of its name become the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_datetime64_any_dtype, is_numeric_dtype

from irmtv.core.messages import did_you_mean, shown
from irmtv.data.tables.errors import TableError


def check_names(columns: Iterable[str], present: Sequence[Any]) -> None:
    """Raise where a column of training is not there."""
    there = set(present)
    missing = [name for name in columns if name not in there]
    if missing:
        raise TableError(
            f"the table must have the columns that the model was trained on. Missing: {shown(missing, 10)}."
            f"{did_you_mean(missing[0], present)} It has {shown(present, 10)}. Add or rename columns."
        )


def as_frame(x: Any) -> pd.DataFrame:
    if isinstance(x, pd.DataFrame):
        frame = x
    elif hasattr(x, "to_pandas") and hasattr(x, "columns"):  # polars
        frame = x.to_pandas()
    else:
        raise TableError(
            f"X must be a DataFrame with the columns of the table. Got {type(x).__name__}. Use read_table(path).frame."
        )
    lasting = [name for name in frame.columns if frame[name].dtype.kind == "m"]
    if lasting:  # durations, as numbers
        frame = frame.assign(**{name: frame[name].dt.total_seconds() for name in lasting})
    return frame if all(isinstance(name, str) for name in frame.columns) else frame.rename(columns=str)


def kind_of(column: pd.Series) -> str:
    """ "number", "date", "category" (by its dtype) or "text"."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return "category"
    if is_numeric_dtype(column.dtype):  # bool, too
        return "number"
    return "date" if is_datetime64_any_dtype(column.dtype) else "text"


def as_kind(column: pd.Series, kind: str) -> tuple[pd.Series, int]:
    """A column as one of that kind, and how many values could not be read."""
    own = kind_of(column)
    if kind == "category":
        return _as_categories(column), 0
    if own == "category":
        if kind == "text":
            return column, 0  # by its different values
        column, own = as_text(column), "text"
    if kind == own:
        return column, 0
    if kind == "text":
        return (column if own == "date" else _as_words(column)), 0
    given = column.notna()
    read: pd.Series
    if kind == "date":
        # numbers may be years: as missing rather than as seconds since 1970
        read = pd.to_datetime(column if own == "text" else column.where(~given), errors="coerce")
    elif own == "date":
        read = pd.Series(np.nan, index=column.index, name=column.name)
    else:
        words = column.astype(object)
        read = pd.to_numeric(words, errors="coerce").astype(np.float64)
        if (read.isna() & given).any():
            read = read.fillna(words.map(lambda value: {"true": 1.0, "false": 0.0}.get(str(value).lower(), np.nan)))
    return read, int((read.isna() & given).sum())


def as_text(column: pd.Series) -> pd.Series:
    """Categories as their values, row by row; any other column as it is."""
    if not isinstance(column.dtype, pd.CategoricalDtype):
        return column
    own = column.dtype.categories.dtype
    return column.astype(own if isinstance(own, pd.StringDtype) else object)


def plain_dtype(column: pd.Series) -> Any:
    """The type of its values, also of categories."""
    return column.dtype.categories.dtype if isinstance(column.dtype, pd.CategoricalDtype) else column.dtype


def _as_words(column: pd.Series) -> pd.Series:
    """Numbers as they would be written: 1 rather than 1.0, whatever a missing value did to the column."""
    whole = column.dtype.kind == "f" and bool((column.dropna() % 1 == 0).all())
    words = column.dropna().map(lambda value: str(int(value)) if whole else str(value))
    return words.astype(object).reindex(column.index)


def _as_categories(column: pd.Series) -> pd.Series:
    """Words of the type "category", which skrub takes neither for numbers nor for dates."""
    codes, distinct = pd.factorize(column)
    words = np.array([*map(_category, distinct), None], dtype=object)  # the last one, -1, where missing
    return pd.Series(words[codes], index=column.index, name=column.name, dtype=object).astype("category")


def _category(value: Any) -> str:
    """As it would be written; a whole number is the same with and without a point, and as text."""
    text = str(value).strip()
    if isinstance(value, (bool, np.bool_)):
        return text
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if number.is_integer() and abs(number) < 2**53 else text
