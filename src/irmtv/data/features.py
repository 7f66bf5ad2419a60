"""X as numbers: features for networks (finite, or series), and for trees (with gaps; `categories` has the codes).

scikit-learn checks what it can, and sets or compares `n_features_in_` and `feature_names_in_` of the estimator.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy.sparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_feature_names, _check_n_features, validate_data

from irmtv.core.messages import plain, shown, users_stacklevel
from irmtv.data.categories import DATES
from irmtv.data.columns import is_date, is_frame
from irmtv.data.rows import NUMBER_KINDS, check_finite, readable
from irmtv.data.scaling import Scaler

Floats = npt.NDArray[np.float64]
LARGEST = 1e290  # of X: sums over many rows are finite still
ENCODE = (
    "Encode text, categories and dates first: make_pipeline(skrub.TableVectorizer(), estimator) does it for the whole "
    "table, and knows what to do with categories that are new at prediction."
)
IMPUTE = (
    "Put an imputer before, make_pipeline(sklearn.impute.SimpleImputer(), estimator) (skrub.TableVectorizer leaves "
    "missing numbers as they are), or drop these rows."
)


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
        with readable("X"):
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


def framed(estimator: BaseEstimator, x: Any, reset: bool) -> pd.DataFrame:
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


def with_gaps(estimator: BaseEstimator, x: Any, reset: bool) -> Floats:
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
