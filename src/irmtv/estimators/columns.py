"""A user's table -> features, environment labels, auxiliary variables.

`environment` and `aux` may be columns of X, named in the constructor and taken out of it, or values given to `fit`.
At prediction the named columns may be there (they are ignored) or not. Frames are handled by what they can do (columns
by name, drop some), so that pandas and polars need no code of their own; the numbers are checked by scikit-learn.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse
from sklearn.utils.validation import validate_data
from torch import Tensor

from irmtv.core.messages import did_you_mean, shown
from irmtv.validate.numeric import NUMBER_KINDS
from irmtv.validate.rows import Part, read_aux

Floats = npt.NDArray[np.float64]
CURE = (
    "Encode these columns first: make_pipeline(skrub.TableVectorizer(), estimator) does it for the whole table, and "
    "knows what to do with categories that are new at prediction."
)


@dataclass(frozen=True)
class Columns:
    """X without the columns that are no features, and what these held."""

    features: Any  # a frame, an array or a sparse matrix
    environment: Any  # (N,) labels, or None
    aux: Any  # (N, A), or None


def is_frame(x: Any) -> bool:
    return hasattr(x, "columns") and hasattr(x, "drop")


def as_names(value: Any, parameter: str) -> list[str]:
    """Column names from a constructor's `environment` (one) or `aux` (one or several)."""
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    several = parameter == "aux" and isinstance(value, (list, tuple)) and len(value) > 0
    if several and all(isinstance(name, str) for name in value):
        return list(value)
    form = "a column name or a list of column names" if parameter == "aux" else "a column name"
    raise ValueError(
        f"{parameter} must be {form} of X, or None. Got {value!r}. Values go to fit: fit(X, y, {parameter}=...)."
    )


def split(x: Any, environment: Any, aux: Any, given: dict[str, Any], fitting: bool) -> Columns:
    """Take the named columns out of X.

    Parameters
    ----------
    x : what the user passed as X.
    environment, aux : column names from the constructor.
    given : "environment" and "aux" passed beside X, or None each.
    fitting : the named columns must be there, and values beside them are refused; otherwise the columns may be absent,
        and values go before them (other environments than those of training, say).
    """
    found: dict[str, Any] = {}
    taken: list[str] = []
    present = list(x.columns) if is_frame(x) else []
    for parameter, value in (("environment", environment), ("aux", aux)):
        names = as_names(value, parameter)
        if names and given[parameter] is not None and fitting:
            raise ValueError(
                f"{parameter} must come from one place. Got the column {shown(names)} in the constructor and values in "
                f"the call. Use set_params({parameter}=None), or leave the values out."
            )
        missing = [name for name in names if name not in present]
        if missing and fitting:
            got = f"the columns {shown(present)}" if present else f"{type(x).__name__} without column names"
            raise ValueError(
                f"X must be a DataFrame with the column {missing[0]!r}, which {parameter} names. Got {got}."
                f"{did_you_mean(missing[0], present)} Name a column of X, or pass values: fit(X, y, {parameter}=...)."
            )
        taken += [name for name in names if name in present]
        if names and not missing and given[parameter] is None:
            found[parameter] = x[names[0]] if parameter == "environment" else x[names]
        else:
            found[parameter] = given[parameter]
    if taken:
        once = list(dict.fromkeys(taken))
        x = x.drop(columns=once) if hasattr(x, "iloc") else x.drop(once)
    if fitting and is_frame(x) and len(list(x.columns)) == 0:
        raise ValueError(f"X must have features besides {shown(taken)}. Got no other column. Add some.")
    return Columns(x, found["environment"], found["aux"])


def as_features(estimator: Any, x: Any, reset: bool, series: bool = False) -> Floats:
    """X as numbers (N, D), or (N, channels, length) where `series` is True, in float64.

    scikit-learn checks them and sets or compares `n_features_in_` and `feature_names_in_`. Sparse input is densified,
    with a warning: the networks read every column of every row.
    """
    if scipy.sparse.issparse(x):
        sparse: Any = x
        n_rows, n_columns = sparse.shape
        warnings.warn(
            f"X is sparse and was made dense ({n_rows} x {n_columns}, {n_rows * n_columns * 8 / 2**20:.0f} MiB): the "
            "model reads every column of every row. Reduce the columns (e.g. sklearn.decomposition.TruncatedSVD) if "
            "memory is short.",
            UserWarning,
            stacklevel=4,
        )
        x = sparse.toarray()
    _refuse_text(x)
    try:
        checked = validate_data(estimator, x, reset=reset, dtype=np.float64, allow_nd=series)
    except ValueError as error:
        if "could not convert string" not in str(error):
            raise
        raise ValueError(f"X must be numbers. Got text ({error}). {CURE}") from error
    if checked.ndim > 3:
        raise ValueError(
            f"X must be (rows, features) or (rows, channels, length). Got shape {checked.shape}. Join the last axes."
        )
    return np.asarray(checked, dtype=np.float64)


def _refuse_text(x: Any) -> None:
    """Text and dates are no features yet: say so before an attempt to convert them fails in other words."""
    if not is_frame(x):
        return
    dtypes: Sequence[Any] = list(x.dtypes) if hasattr(x, "dtypes") else []
    text = [f"{name!r} ({dtype})" for name, dtype in zip(x.columns, dtypes, strict=False) if not _is_numeric(dtype)]
    if text:
        raise ValueError(f"X must have numeric or bool columns. Got {shown(text, form=str)}. {CURE}")


def _is_numeric(dtype: Any) -> bool:
    kind = getattr(dtype, "kind", None)  # NumPy's and pandas' dtypes
    if kind is not None:
        return kind in NUMBER_KINDS
    is_numeric = getattr(dtype, "is_numeric", None)  # polars'
    return bool(is_numeric() or str(dtype) == "Boolean") if is_numeric is not None else True


def as_labels(values: Any) -> Any:
    """Labels in a form that the checks of labels read: a Series or an array, whatever library held them."""
    return values.to_numpy() if hasattr(values, "to_numpy") and not hasattr(values, "iloc") else values


def as_aux(values: Any, n_rows: int) -> Tensor | None:
    """Auxiliary variables (N, A) in float64, checked; None where there are none."""
    return None if values is None else read_aux(Part("", None, None, aux=as_labels(values)), n_rows)
