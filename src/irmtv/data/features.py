"""X as numbers: features for networks (finite, or series; standardised), and for trees (gaps, categories as codes).

scikit-learn checks what it can, and sets or compares `n_features_in_` and `feature_names_in_` of the estimator.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy.sparse
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_feature_names, _check_n_features, validate_data
from torch import Tensor

from irmtv.core.messages import plain, shown, users_stacklevel
from irmtv.data.columns import is_date, is_frame
from irmtv.data.rows import NUMBER_KINDS, check_finite

Floats = npt.NDArray[np.float64]
Labels = tuple[Any, ...]
LARGEST = 1e290  # of X: sums over many rows are finite still
BLOCK = 1 << 20  # numbers that are looked at together: several tables of this size are made of them
ENCODE = (
    "Encode text, categories and dates first: make_pipeline(skrub.TableVectorizer(), estimator) does it for the whole "
    "table, and knows what to do with categories that are new at prediction."
)
IMPUTE = (
    "Put an imputer before, make_pipeline(sklearn.impute.SimpleImputer(), estimator) (skrub.TableVectorizer leaves "
    "missing numbers as they are), or drop these rows."
)
DATES = "Make numbers of them (a year, X[c].dt.year, or a time, X[c].astype('int64')), or drop them."


# ---- standardisation by the training rows, in float64: the fit does not depend on the user's units ----------------


@dataclass(frozen=True)
class Scaler:
    """z = (v - mean) / scale, per column; of series (N, channels, length) per channel.

    The scale of a feature that is constant in training is infinite: training cannot say what another value of it means,
    so every value is z = 0. (With a scale of 1 the network's random start would decide what new values do.)
    """

    mean: Floats  # (D,), or (channels, 1)
    scale: Floats

    @classmethod
    def of(cls, values: Floats, weight: Floats | None = None, constant: float = np.inf) -> Scaler:
        """From the training rows (N, D) or (N, channels, length), each counted by its weight (N,).

        `constant` is the scale of a constant column: 1 for targets, which come back from z.

        Examples
        --------
        >>> Scaler.of(np.array([[1.0, 7.0], [3.0, 7.0]]))
        Scaler(mean=array([2., 7.]), scale=array([ 1., inf]))
        """
        if weight is not None:
            values, weight = values[weight > 0], weight[weight > 0]
        if values.ndim == 3:  # every moment of a series is a row of its channel
            n, channels, length = values.shape
            each = None if weight is None else np.repeat(weight, length)
            flat = cls.of(values.transpose(0, 2, 1).reshape(n * length, channels), each, constant)
            return cls(flat.mean[:, None], flat.scale[:, None])
        rows = max(1, BLOCK // max(1, values.shape[1]))
        blocks = [slice(i, i + rows) for i in range(0, len(values), rows)]
        total = float(len(values)) if weight is None else weight.sum()

        def average(of: Callable[[Floats], Floats]) -> Floats:
            sums = [of(values[b]).sum(0) if weight is None else weight[b] @ of(values[b]) for b in blocks]
            return np.asarray(np.sum(sums, 0) / total)

        mean = average(lambda v: v)
        mean = mean + average(lambda v: v - mean)  # what rounding left, where a column is far from 0
        high, low = (np.stack([pick(values[b]) for b in blocks]) for pick in (_highest, _lowest))
        high, low = high.max(0), low.min(0)
        largest = np.maximum(high - mean, mean - low)
        unit = np.where(largest > 0, largest, 1.0)  # squares of very large or small numbers are out of range
        deviation = unit * np.sqrt(average(lambda v: ((v - mean) / unit) ** 2))
        # the deviation of a constant is 0 only up to rounding
        varies = (high > low) & (deviation > 0)
        return cls(np.where(varies, mean, values[0]), np.where(varies, deviation, constant))

    def __call__(self, values: Floats) -> Floats:
        """To standard units."""
        result: Floats = (values - self.mean) / self.scale
        return result

    def tensor(self, values: Floats, dtype: torch.dtype, rows: int = 1 << 16) -> Tensor:
        """The same as a tensor; some rows at a time, so that no second table in float64 is made."""
        made = torch.empty(values.shape, dtype=dtype)
        for start in range(0, len(values), rows):
            made[start : start + rows] = torch.as_tensor(self(values[start : start + rows]))
        return made

    def back(self, values: Floats) -> Floats:
        """To the user's units."""
        result: Floats = values * self.scale + self.mean
        return result


def _highest(values: Floats) -> Floats:
    return np.asarray(values.max(0))


def _lowest(values: Floats) -> Floats:
    return np.asarray(values.min(0))


# ---- numbers ------------------------------------------------------------------------------------------------------


def as_features(
    estimator: BaseEstimator, x: Any, reset: bool, series: bool = False, like: Scaler | None = None
) -> Floats:
    """X as finite numbers (N, D), or (N, channels, length) where `series` is True, in float64.

    Sparse input is made dense, in `fit` (`reset`) with a warning: the networks read every column of every row. Every
    prediction behind an encoder would repeat it. `like` is the scaler of the training rows, whose axes X must have.
    """
    if reset and scipy.sparse.issparse(x):
        _warn_of_density(*x.shape)  # type: ignore[attr-defined]  # sparse matrices have no common type
    if series and not reset and like is not None:
        _check_channels(x, like, getattr(estimator, "_length_in", None))
    _refuse_text(x)
    values = _validated(estimator, x, reset, _to_encode, allow_nd=series)
    if values.ndim > 3:
        raise ValueError(
            f"X must be (rows, features) or (rows, channels, length). Got shape {values.shape}. Join the last axes."
        )
    check_finite(values, "X", _names(estimator, x), IMPUTE)
    if values.size and max(values.max(), -values.min()) > LARGEST:
        raise ValueError(
            f"X must have numbers of at most {LARGEST:g}: sums over more rows would be infinite. Got "
            f"{max(values.max(), -values.min()):.3g}. Divide such columns by a power of ten, or take their logarithms."
        )
    if reset and values.ndim == 3:
        estimator._length_in = values.shape[2]  # for messages alone
    if like is not None:
        _check_axes(values, like)
    return np.ascontiguousarray(
        values
    )  # a sum over rows is rounded otherwise where a frame's columns come in one piece


def series_shape(like: Scaler, length: int | None) -> str:
    """(channels, length) of the training rows; of a model from a file the length is not known."""
    return f"({len(like.mean)}, {'any that the module reads' if length is None else length})"


def _validated(
    estimator: BaseEstimator, x: Any, reset: bool, in_other_words: Callable[[str, Any], str | None], **how: Any
) -> Floats:
    """A dense array of float64 that scikit-learn has checked, but for missing and infinite values."""
    if scipy.sparse.issparse(x):
        x = x.toarray()  # type: ignore[attr-defined]  # sparse matrices have no common type
    try:
        checked = validate_data(estimator, x, reset=reset, dtype=np.float64, ensure_all_finite=False, **how)
    except (ValueError, TypeError) as error:
        message = in_other_words(str(error), x)
        if message is None:
            raise
        raise ValueError(message) from error
    return np.asarray(checked, dtype=np.float64)


def _names(estimator: BaseEstimator, x: Any) -> Sequence[Any] | None:
    return list(x.columns) if is_frame(x) else getattr(estimator, "feature_names_in_", None)


def _check_axes(features: Floats, like: Scaler) -> None:
    """Raise unless these are series where the model was trained on series, a table where on a table."""
    forms = {1: "(rows, features), a table", 2: "(rows, channels, length), series"}
    if features.ndim - 1 != like.mean.ndim:
        raise ValueError(
            f"X must be {forms[like.mean.ndim]}, as in training. Got shape {features.shape}. Give rows of the same "
            "kind, or train another model on these."
        )


def _check_channels(x: Any, like: Scaler, length: int | None) -> None:
    """scikit-learn would call the channels of series features."""
    shape, trained = np.shape(x), like.mean.shape  # (D,), or (channels, 1) of series
    if len(shape) != 3 or len(trained) != 2 or shape[1] == trained[0]:
        return
    to_do = "Select the channels of training."
    if shape[2] == trained[0]:
        to_do = "If the last two axes are swapped, use X.transpose(0, 2, 1)."
    raise ValueError(
        f"X must be (rows, channels, length) with (channels, length) = {series_shape(like, length)} as in training. "
        f"Got {shape[1:]}. {to_do}"
    )


def _warn_of_density(n_rows: int, n_columns: int) -> None:
    warnings.warn(
        f"X is sparse and was made dense ({n_rows} x {n_columns}, {n_rows * n_columns * 8 / 2**20:.0f} MiB), in fit "
        "and in every prediction: the model reads every column of every row. Reduce the columns (e.g. "
        "sklearn.decomposition.TruncatedSVD) if memory is short.",
        UserWarning,
        stacklevel=users_stacklevel(),
    )


def _to_encode(message: str, x: Any) -> str | None:
    """scikit-learn's message, where it does not say what to do; None where it does."""
    if "could not convert string" in message:
        return f"X must be numbers. Got text ({message}). {ENCODE}"
    if "Timestamp" in message or "datetime" in message:
        return f"X must be numbers. Got dates ({message}). {ENCODE}"
    if "Feature names are only supported if all input features have string names" in message:
        kinds = sorted({type(plain(c)).__name__ for c in x.columns})
        return (
            f"X must have column names of one kind. Got {' and '.join(kinds)}. Name all columns by strings: "
            "X.columns = X.columns.astype(str)."
        )
    if message.startswith("Found array with dim"):
        return (
            f"{message} Series, (rows, channels, length), need a network of your own: module=...; else make rows of "
            "them, X.reshape(len(X), -1)."
        )
    return None


def _refuse_text(x: Any) -> None:
    """Text and dates are no features yet: say so before an attempt to convert them fails in other words."""
    if not is_frame(x):
        dtype = getattr(x, "dtype", None)
        if is_date(dtype):
            raise ValueError(f"X must be numbers. Got dates ({dtype}). {ENCODE}")
        return
    dtypes: Sequence[Any] = list(x.dtypes) if hasattr(x, "dtypes") else []
    text = [f"{name!r} ({dtype})" for name, dtype in zip(x.columns, dtypes, strict=False) if not _is_numeric(dtype)]
    if text:
        raise ValueError(f"X must have numeric or bool columns. Got {shown(text, form=str)}. {ENCODE}")


def _is_numeric(dtype: Any) -> bool:
    kind = getattr(dtype, "kind", None)  # NumPy's and pandas' dtypes
    if kind is not None:
        return kind in NUMBER_KINDS
    is_numeric = getattr(dtype, "is_numeric", None)  # polars'
    return bool(is_numeric() or str(dtype) == "Boolean") if is_numeric is not None else True


# ---- numbers, gaps and categories ---------------------------------------------------------------------------------


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
        if not is_frame(x):
            values = _with_gaps(estimator, x, reset=True)
            return cls((None,) * values.shape[1]), values
        frame = _framed(estimator, x, reset=True)
        columns = cls(tuple(_categories(frame[name], name) for name in frame.columns))
        return columns, columns._read(frame)

    def __call__(self, estimator: BaseEstimator, x: Any) -> Floats:
        """Later rows as numbers (N, D)."""
        if is_frame(x):
            return self._read(_framed(estimator, x, reset=False))
        if self.categorical:
            names = [estimator.feature_names_in_[j] for j in self.categorical]
            raise ValueError(
                f"X must be a DataFrame, as in training: {shown(names)} held categories. Got {type(x).__name__}. "
                "Give rows with the same columns."
            )
        return _with_gaps(estimator, x, reset=False)

    def _read(self, frame: pd.DataFrame) -> Floats:
        values = np.empty(frame.shape, dtype=np.float64)
        for j, (name, labels) in enumerate(zip(frame.columns, self.categories, strict=True)):
            values[:, j] = _codes(frame[name], labels) if labels is not None else _column(frame[name], name)
        check_finite(values, "X", list(frame.columns), "", gaps=True)
        return values


def _framed(estimator: BaseEstimator, x: Any, reset: bool) -> pd.DataFrame:
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


def _with_gaps(estimator: BaseEstimator, x: Any, reset: bool) -> Floats:
    """An array whose numbers may be missing."""
    dtype = getattr(x, "dtype", None)
    if is_date(dtype):
        raise ValueError(f"X must be numbers or categories. Got dates ({dtype}). {DATES}")
    values = _validated(estimator, x, reset, _to_frame)
    check_finite(values, "X", None, "", gaps=True)
    return values


def _to_frame(message: str, x: Any) -> str | None:
    """scikit-learn's message about text, with what to do."""
    if "could not convert string" not in message:
        return None
    return (
        f"X must be numbers, or a DataFrame, whose columns may hold categories. Got text in an array ({message}). Use "
        "pandas.DataFrame(X)."
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
