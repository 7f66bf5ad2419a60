"""Columns of numbers, gaps and categories as numbers for trees."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from irmtv.core.messages import plain, shown, users_stacklevel
from irmtv.data.columns import is_date, is_frame
from irmtv.data.rows import NUMBER_KINDS, check_finite

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

Floats = npt.NDArray[np.float64]
Labels = tuple[Any, ...]
TINY = 1e-30  # of X for trees: what has no larger value loses some to LightGBM's 0
DATES = "Make numbers of them (a year, X[c].dt.year, or a time, X[c].astype('int64')), or drop them."


@dataclass(frozen=True)
class CategoricalColumns:
    """How the columns of training become numbers for trees, which split on missing values and categories themselves.

    Nothing is imputed or one-hot encoded: categories are numbered by the training rows, and one that these do not have
    counts as missing.
    """

    categories: tuple[Labels | None, ...]  # by column: None for numbers, else what codes 0, 1, ... stand for

    @property
    def categorical(self) -> list[int]:
        """Columns that hold codes."""
        return [j for j, labels in enumerate(self.categories) if labels is not None]

    @classmethod
    def of(cls, estimator: BaseEstimator, x: Any) -> tuple[CategoricalColumns, Floats]:
        """From training rows, which also say what later rows must look like; and these rows as numbers (N, D)."""
        from irmtv.data.features import framed, with_gaps  # scikit-learn's checks: predictions from a file need none

        if not is_frame(x):
            values = with_gaps(estimator, x, reset=True)
            _warn_of_tiny(values, list(range(values.shape[1])))
            return cls((None,) * values.shape[1]), values
        frame = framed(estimator, x, reset=True)
        columns = cls(tuple(_categories(frame[name], name) for name in frame.columns))
        values = columns.read(frame)
        _warn_of_tiny(values, list(frame.columns))
        return columns, values

    def fitted(self, estimator: BaseEstimator, x: pd.DataFrame) -> Floats:
        """Training rows as numbers (N, D), where these columns are known beforehand."""
        from irmtv.data.features import framed

        values = self.read(framed(estimator, x, reset=True))
        _warn_of_tiny(values, list(x.columns))
        return values

    def __call__(self, estimator: BaseEstimator, x: Any) -> Floats:
        """Later rows as numbers (N, D)."""
        from irmtv.data.features import framed, with_gaps

        if is_frame(x):
            return self.read(framed(estimator, x, reset=False))
        if self.categorical:
            names = [estimator.feature_names_in_[j] for j in self.categorical]
            raise ValueError(
                f"X must be a DataFrame, as in training: {shown(names)} held categories. Got {type(x).__name__}. "
                "Give rows with the same columns."
            )
        return with_gaps(estimator, x, reset=False)

    def read(self, frame: pd.DataFrame) -> Floats:
        """A frame with the columns of training, in their order, as numbers (N, D)."""
        values = np.empty(frame.shape, dtype=np.float64)
        for j, (name, labels) in enumerate(zip(frame.columns, self.categories, strict=True)):
            values[:, j] = _codes(frame[name], labels) if labels is not None else _column(frame[name], name)
        check_finite(values, "X", list(frame.columns), "", gaps=True)
        return values


def _warn_of_tiny(values: Floats, names: Sequence[Any]) -> None:
    """LightGBM takes numbers below 1e-35 for 0: a column of them says nothing to it."""
    largest = np.abs(values).max(0, initial=0.0, where=~np.isnan(values))
    tiny = [name for name, most in zip(names, largest, strict=True) if 0 < most < TINY]
    if tiny:
        warnings.warn(
            f"columns {shown(tiny)} of X have no value beyond {TINY:g}, and trees take numbers below 1e-35 for 0: they "
            "may be lost. Multiply them by a constant, in training and in prediction.",
            UserWarning,
            stacklevel=users_stacklevel(),
        )


def _categories(column: Any, name: Any) -> Labels | None:
    """The categories of a column that holds some; None of numbers."""
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return _text_or_numbers([plain(v) for v in column.cat.remove_unused_categories().cat.categories], name)
    if getattr(dtype, "kind", "O") in NUMBER_KINDS:
        return None
    if is_date(dtype) or isinstance(dtype, pd.PeriodDtype):
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
    positions, distinct = pd.factorize(column)  # -1, the last, where missing
    codes = np.array([*(place.get(plain(v), np.nan) for v in distinct), np.nan])
    return codes[positions]


def _column(column: Any, name: Any) -> Floats:
    try:
        values: Floats = column.to_numpy(dtype=np.float64, na_value=np.nan)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"X must have numbers in {name!r}, as in training. Got {column.dtype} ({error}). Give the same kind."
        ) from error
    return values
