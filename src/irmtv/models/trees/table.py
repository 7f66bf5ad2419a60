"""A user's table as trees read it: numbers with missing ones among them, and categories as codes.

LightGBM splits on missing values and on categories itself. So nothing is imputed or one-hot encoded here; categories
are numbered by the training rows, and one that they do not have counts as missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy.sparse
from sklearn.utils.validation import _check_feature_names, _check_n_features, validate_data

from irmtv.core.messages import plain, shown
from irmtv.data.columns import is_frame
from irmtv.data.numeric import NUMBER_KINDS

Floats = npt.NDArray[np.float64]
Labels = tuple[Any, ...]
DATES = "Make numbers of them (a year, X[c].dt.year, or a time, X[c].astype('int64')), or drop them."


@dataclass(frozen=True)
class Table:
    """How the columns of training become numbers."""

    categories: tuple[Labels | None, ...]  # by column: None for numbers, else what codes 0, 1, ... stand for

    @property
    def categorical(self) -> list[int]:
        """Columns that hold codes."""
        return [j for j, labels in enumerate(self.categories) if labels is not None]

    @classmethod
    def of(cls, estimator: Any, x: Any) -> tuple[Table, Floats]:
        """From training rows, which also say what later rows must look like; and these rows as numbers (N, D)."""
        if not is_frame(x):
            values = _numbers(estimator, x, reset=True)
            return cls((None,) * values.shape[1]), values
        frame = _framed(estimator, x, reset=True)
        table = cls(tuple(_categories(frame[name], name) for name in frame.columns))
        return table, table._read(frame)

    def __call__(self, estimator: Any, x: Any) -> Floats:
        """Later rows as numbers (N, D)."""
        if not is_frame(x):
            if self.categorical:
                names = [estimator.feature_names_in_[j] for j in self.categorical]
                raise ValueError(
                    f"X must be a DataFrame, as in training: {shown(names)} held categories. Got {type(x).__name__}. "
                    "Give rows with the same columns."
                )
            return _numbers(estimator, x, reset=False)
        return self._read(_framed(estimator, x, reset=False))

    def _read(self, frame: pd.DataFrame) -> Floats:
        values = np.empty(frame.shape, dtype=np.float64)
        for j, (name, labels) in enumerate(zip(frame.columns, self.categories, strict=True)):
            values[:, j] = _codes(frame[name], labels) if labels is not None else _column(frame[name], name)
        _refuse_infinite(values, list(frame.columns))
        return values


def _framed(estimator: Any, x: Any, reset: bool) -> pd.DataFrame:
    """A frame of pandas with the columns of training, checked by scikit-learn's own rules."""
    frame = x if isinstance(x, pd.DataFrame) else x.to_pandas()
    if not reset:
        names = list(getattr(estimator, "feature_names_in_", ()))
        if names and set(names) <= set(frame.columns) and len(names) == len(frame.columns):
            frame = frame[names]  # the order of columns is the table's own affair
    _check_feature_names(estimator, frame, reset=reset)
    _check_n_features(estimator, frame, reset=reset)
    if len(frame) == 0:
        raise ValueError(f"X must have rows. Found array with 0 sample(s) (shape={frame.shape}). Check the filter.")
    return frame


def _numbers(estimator: Any, x: Any, reset: bool) -> Floats:
    if scipy.sparse.issparse(x):
        x = x.toarray()  # type: ignore[attr-defined]  # sparse matrices have no common type
    kind = getattr(getattr(x, "dtype", None), "kind", None)
    if kind in ("m", "M"):
        raise ValueError(f"X must be numbers or categories. Got dates ({x.dtype}). {DATES}")
    try:
        checked = validate_data(estimator, x, reset=reset, dtype=np.float64, ensure_all_finite="allow-nan")
    except ValueError as error:
        if "could not convert string" not in str(error):
            raise
        raise ValueError(
            f"X must be numbers, or a DataFrame, whose columns may hold categories. Got text in an array ({error}). "
            "Use pandas.DataFrame(X)."
        ) from error
    values: Floats = np.asarray(checked, dtype=np.float64)
    _refuse_infinite(values, None)
    return values


def _categories(column: Any, name: Any) -> Labels | None:
    """The categories of a column that holds some; None of numbers."""
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return _text_or_numbers([plain(v) for v in column.cat.remove_unused_categories().cat.categories], name)
    if getattr(dtype, "kind", "O") in NUMBER_KINDS:
        return None
    if getattr(dtype, "kind", "O") in "mM" or isinstance(dtype, pd.PeriodDtype):
        raise ValueError(f"X must be numbers or categories. Got dates in {name!r} ({dtype}). {DATES}")
    known = column.dropna().infer_objects()
    if getattr(known.dtype, "kind", "O") in NUMBER_KINDS:  # numbers among objects
        return None
    labels = _text_or_numbers([plain(v) for v in known.unique()], name)
    return tuple(sorted(labels, key=lambda v: (isinstance(v, str), v)))


def _text_or_numbers(labels: Sequence[Any], name: Any) -> Labels:
    """As they are, if a file can hold them."""
    odd = [v for v in labels if not isinstance(v, (str, int, float, bool))]
    if odd:
        raise ValueError(
            f"X must be numbers or categories, which are text or numbers. Got {type(odd[0]).__name__} in {name!r}: an "
            f"argument must be a string or a number. Use X[{name!r}].astype(str), or drop the column."
        )
    return tuple(labels)


def _codes(column: Any, labels: Labels) -> Floats:
    """0, 1, ... in the order of the labels; NaN for missing ones and for those that training did not have."""
    place = {label: float(code) for code, label in enumerate(labels)}
    found: Floats = column.astype(object).map(lambda v: place.get(plain(v), np.nan)).to_numpy(dtype=np.float64)
    return found


def _column(column: Any, name: Any) -> Floats:
    try:
        found: Floats = column.to_numpy(dtype=np.float64, na_value=np.nan)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"X must have numbers in {name!r}, as in training. Got {column.dtype} ({error}). Give the same kind."
        ) from error
    return found


def _refuse_infinite(values: Floats, names: Sequence[Any] | None) -> None:
    infinite = np.isinf(values)
    if infinite.any():
        row, column = (int(i) for i in np.unravel_index(infinite.argmax(), infinite.shape))
        where = plain(names[column]) if names is not None else column
        raise ValueError(
            f"X must be finite, or missing (NaN). Input X contains infinity in {int(infinite.any(1).sum())} of "
            f"{len(values)} rows: the first in column {where!r}, row {row}. Make it missing: "
            "numpy.where(numpy.isinf(X), numpy.nan, X)."
        )
