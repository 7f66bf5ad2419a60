"""The columns of training, by name, with the types of training: what another table means to a fitted model."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.types import is_datetime64_any_dtype, is_numeric_dtype
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from irmtv.core.messages import did_you_mean, shown, users_stacklevel
from irmtv.data.tables.errors import TableError


class TableColumns(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is not annotated
    """The columns of training, by name, with the types of training; others are ignored.

    Attributes
    ----------
    feature_names_in_ : array of str
        The columns.
    kinds_ : dict of str to str
        "number", "date" or "text", by column.
    """

    def fit(self, X: Any, y: Any = None) -> TableColumns:
        """Remember names and kinds of the columns."""
        frame = _as_frame(X)
        self.feature_names_in_ = np.asarray([str(name) for name in frame.columns], dtype=object)
        self.n_features_in_ = len(self.feature_names_in_)
        self.kinds_ = {str(name): kind_of(frame[name]) for name in frame.columns}
        return self

    def transform(self, X: Any) -> pd.DataFrame:
        """These columns, with a warning where values cannot be read."""
        made, unread = self.align(X)
        if unread:
            counted = shown([f"{name!r} ({n:,} of {len(made):,})" for name, n in unread.items()], form=str)
            warnings.warn(
                f"text where the rows of training had numbers or dates, taken as missing: {counted}.",
                UserWarning,
                stacklevel=users_stacklevel(),
            )
        return made

    def align(self, X: Any) -> tuple[pd.DataFrame, dict[str, int]]:
        """These columns, and by column how many values are not what they were in training."""
        check_is_fitted(self, "kinds_")
        frame = _as_frame(X)
        check_names(self.kinds_, list(frame.columns))
        made, unread = {}, {}
        for name, kind in self.kinds_.items():
            made[name], bad = _as_kind(frame[name], kind)
            if bad:
                unread[name] = bad
        return pd.DataFrame(made, index=frame.index, copy=False), unread

    @property
    def text(self) -> list[str]:
        """Columns that are no numbers: for `read_table` and `table_chunks`."""
        return [name for name, kind in self.kinds_.items() if kind != "number"]

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[Any]:
        """The names of the columns."""
        check_is_fitted(self, "kinds_")
        return np.asarray(self.feature_names_in_, dtype=object)


def check_names(columns: Iterable[str], present: Sequence[Any]) -> None:
    """Raise where a column of training is not there."""
    there = set(present)
    missing = [name for name in columns if name not in there]
    if missing:
        raise TableError(
            f"the table must have the columns that the model was trained on. Missing: {shown(missing, 10)}."
            f"{did_you_mean(missing[0], present)} It has {shown(present, 10)}. Add or rename columns."
        )


def _as_frame(x: Any) -> pd.DataFrame:
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
    """ "number", "date" or "text"."""
    if is_numeric_dtype(column.dtype):  # bool, too
        return "number"
    return "date" if is_datetime64_any_dtype(column.dtype) else "text"


_TRUE_FALSE: Mapping[str, float] = {"true": 1.0, "false": 0.0}


def _as_kind(column: pd.Series, kind: str) -> tuple[pd.Series, int]:
    """A column as one of that kind, and how many values could not be read."""
    own = kind_of(column)
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
            read = read.fillna(words.map(lambda value: _TRUE_FALSE.get(str(value).lower(), np.nan)))
    return read, int((read.isna() & given).sum())


def _as_words(column: pd.Series) -> pd.Series:
    """Numbers as they would be written: 1 rather than 1.0, whatever a missing value did to the column."""
    whole = column.dtype.kind == "f" and bool((column.dropna() % 1 == 0).all())
    words = column.dropna().map(lambda value: str(int(value)) if whole else str(value))
    return words.astype(object).reindex(column.index)
