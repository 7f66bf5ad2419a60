"""A user's table -> features, environment labels, auxiliary variables.

`environment` and `aux` may be columns of X, named in the constructor and taken out of it, or values given to `fit`.
At prediction the named columns may be there (they are ignored) or not. Frames are handled by what they can do (columns
by name, drop some), so that pandas and polars need no code of their own; the numbers are checked by scikit-learn.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from datetime import datetime
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy.sparse
from sklearn.utils.validation import validate_data
from torch import Tensor

from irmtv.core.messages import did_you_mean, plain, plain_repr, shown, users_stacklevel
from irmtv.data.numeric import NUMBER_KINDS
from irmtv.data.rows import Part, read_aux
from irmtv.data.series import check_channels

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
MANY = 50  # distinct numbers or dates: more look continuous
CURE = (
    "Encode text, categories and dates first: make_pipeline(skrub.TableVectorizer(), estimator) does it for the whole "
    "table, and knows what to do with categories that are new at prediction."
)
IMPUTE = (
    "Put an imputer before, make_pipeline(sklearn.impute.SimpleImputer(), estimator) (skrub.TableVectorizer leaves "
    "missing numbers as they are), or drop these rows"
)


@dataclass(frozen=True)
class Columns:
    """X without the columns that are no features, and what these held."""

    features: Any  # a frame, an array or a sparse matrix
    environment: Any  # (N,) labels, or None
    aux: Any  # (N, A), or None


def is_frame(x: Any) -> bool:
    return not is_lazy(x) and hasattr(x, "columns") and hasattr(x, "drop")


def is_lazy(values: Any) -> bool:
    """A plan of a table without its rows (polars' LazyFrame)."""
    return hasattr(values, "collect_schema") and hasattr(values, "collect")


def refuse_lazy(**given: Any) -> None:
    for parameter, values in given.items():
        if is_lazy(values):
            raise ValueError(
                f"{parameter} must hold its rows. Got {type(values).__name__}, a plan of them. Call .collect(): "
                f"{parameter}.collect()."
            )


def is_column_name(value: Any) -> bool:
    return isinstance(value, (str, Integral)) and not isinstance(value, bool)


def as_names(value: Any, parameter: str) -> list[Any]:
    """Column names from a constructor's `environment` (one) or `aux` (one or several); integers may be names."""
    if value is None:
        return []
    if is_column_name(value):
        return [plain(value)]
    several = parameter == "aux" and isinstance(value, (list, tuple)) and len(value) > 0
    if several and all(is_column_name(name) for name in value):
        return [plain(name) for name in value]
    raise ValueError(_no_name(value, parameter))


def _no_name(value: Any, parameter: str) -> str:
    form = "a column name or a list of column names" if parameter == "aux" else "a column name"
    shape = getattr(value, "shape", None)
    got = plain_repr(value) if shape is None or len(shape) == 0 else f"{type(value).__name__} of shape {tuple(shape)}"
    return f"{parameter} must be {form} of X, or None. Got {got}. Values go to fit: fit(X, y, {parameter}=...)."


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
    taken: list[Any] = []
    present = _names_of(x)
    for parameter, value in (("environment", environment), ("aux", aux)):
        names = as_names(value, parameter)
        refuse_lazy(**{parameter: given[parameter]})
        if names and given[parameter] is not None and fitting:
            raise ValueError(
                f"{parameter} must come from one place. Got the column {shown(names)} in the constructor and values in "
                f"the call. Use set_params({parameter}=None), or leave the values out."
            )
        _refuse_name(given[parameter], parameter)
        missing = [name for name in names if name not in present]
        if missing and fitting:
            if not isinstance(missing[0], str) and all(isinstance(name, str) for name in present):
                raise ValueError(_no_name(value, parameter))
            raise ValueError(_no_column(x, missing[0], parameter, present))
        taken += [name for name in names if name in present]
        if names and not missing and given[parameter] is None:
            found[parameter] = x[names[0]] if parameter == "environment" else x[names]
        else:
            found[parameter] = given[parameter]
    if taken:
        x = without(x, list(dict.fromkeys(taken)))
    if fitting and is_frame(x) and len(list(x.columns)) == 0:
        raise ValueError(f"X must have features besides {shown(taken)}. Got no other column. Add some.")
    return Columns(x, found["environment"], found["aux"])


def without(x: Any, names: Sequence[Any]) -> Any:
    """A frame less some of its columns."""
    return x.drop(columns=names) if hasattr(x, "iloc") else x.drop(names)


def labels_by_name(x: Any, name: Any, kept: Sequence[Any]) -> tuple[Any, Any]:
    """X and the labels in one of its columns, which leaves X unless it is among those that are `kept`."""
    present = _names_of(x)
    if name not in present:
        got = f"has the columns {shown(present)}" if present else f"is {type(x).__name__} without column names"
        raise ValueError(
            f"environment must be labels, one per row, or a column of X. Got {name!r}, and X {got}."
            f"{did_you_mean(name, present)} Name a column of X, or pass values."
        )
    return (x if name in kept else without(x, [name])), x[name]


def _names_of(x: Any) -> list[Any]:
    """The columns of a frame, each once; none of anything else."""
    refuse_lazy(X=x)
    if not is_frame(x):
        return []
    names = list(x.columns)
    if len(set(names)) < len(names):
        twice = [f"{plain(c)!r} {names.count(c)} times" for c in dict.fromkeys(names) if names.count(c) > 1]
        raise ValueError(
            f"X must have every column name once. Got {shown(twice, form=str)}. Rename them, or keep the first of "
            "each: X.loc[:, ~X.columns.duplicated()]."
        )
    return names


def _refuse_name(given: Any, parameter: str) -> None:
    """A name where values are wanted: it belongs to the constructor, so that prediction knows the column, too."""
    several = isinstance(given, (list, tuple)) and parameter == "aux" and len(given) > 0
    if isinstance(given, str) or (several and all(isinstance(name, str) for name in given)):
        raise ValueError(
            f"{parameter} must be values here, one per row. Got the name {given!r}. Columns of X are named in the "
            f"constructor, {parameter}={given!r}, which takes them out of X; or pass values, {parameter}=X[{given!r}]."
        )


def _no_column(x: Any, name: Any, parameter: str, present: Sequence[Any]) -> str:
    """What to say where X has no such column: it may have been encoded, renamed, or lost its name on the way."""
    wanted = f"X must be a DataFrame with the column {name!r}, which {parameter} names."
    values = f"pass values: fit(X, y, {parameter}=...)"
    if not present:
        return (
            f"{wanted} Got {type(x).__name__} without column names. Name a column of X, or {values}. In a pipeline, "
            ".set_output(transform='pandas') lets the steps before hand on a DataFrame."
        )
    got = f"{wanted} Got the columns {shown(present)}."
    renamed = [c for c in present if str(c).endswith(f"__{name}")]
    if renamed:
        return (
            f"{got} {renamed[0]!r} seems to be it, renamed by an earlier step: use {parameter}={renamed[0]!r}, or "
            f"verbose_feature_names_out=False in that step."
        )
    encoded = [c for c in present if str(c).startswith(f"{name}_") or f"__{name}_" in str(c)]
    if encoded and isinstance(name, str):
        return (
            f"{got} It seems to have been encoded by an earlier step, as {shown(encoded, limit=3)}. Keep it out of the "
            f"encoder: drop it from X and pass it beside, pipeline.fit(X.drop(columns={name!r}), y, "
            f"STEP__{parameter}=X[{name!r}]), STEP being this estimator's name in the pipeline; or let it through as "
            f"it is, skrub.TableVectorizer(specific_transformers=[('passthrough', [{name!r}])])."
        )
    return f"{got}{did_you_mean(name, present)} Name a column of X, or {values}."


def as_features(estimator: Any, x: Any, reset: bool, series: bool = False) -> Floats:
    """X as numbers (N, D), or (N, channels, length) where `series` is True, in float64.

    scikit-learn checks them and sets or compares `n_features_in_` and `feature_names_in_`. Sparse input is densified,
    in `fit` (`reset`) with a warning: the networks read every column of every row. Every prediction behind an encoder
    would repeat it.
    """
    if scipy.sparse.issparse(x):
        sparse: Any = x
        if reset:
            _warn_of_density(*sparse.shape)
        x = sparse.toarray()
    if series and not reset:
        check_channels(estimator, x)
    _refuse_text(x)
    try:
        checked = validate_data(estimator, x, reset=reset, dtype=np.float64, allow_nd=series, ensure_all_finite=False)
    except (ValueError, TypeError) as error:
        told = _in_other_words(str(error), x)
        if told is None:
            raise
        raise ValueError(told) from error
    if checked.ndim > 3:
        raise ValueError(
            f"X must be (rows, features) or (rows, channels, length). Got shape {checked.shape}. Join the last axes."
        )
    names = list(x.columns) if is_frame(x) else getattr(estimator, "feature_names_in_", None)
    _check_finite(checked, names)
    if reset and checked.ndim == 3:
        estimator._length_in = checked.shape[2]  # for messages alone
    return np.asarray(checked, dtype=np.float64)


def _warn_of_density(n_rows: int, n_columns: int) -> None:
    warnings.warn(
        f"X is sparse and was made dense ({n_rows} x {n_columns}, {n_rows * n_columns * 8 / 2**20:.0f} MiB), in fit "
        "and in every prediction: the model reads every column of every row. Reduce the columns (e.g. "
        "sklearn.decomposition.TruncatedSVD) if memory is short.",
        UserWarning,
        stacklevel=users_stacklevel(),
    )


def _in_other_words(message: str, x: Any) -> str | None:
    """scikit-learn's message, where it does not say what to do; None where it does."""
    if "could not convert string" in message:
        return f"X must be numbers. Got text ({message}). {CURE}"
    if "Timestamp" in message or "datetime" in message:
        return f"X must be numbers. Got dates ({message}). {CURE}"
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


def _check_finite(values: Any, names: Sequence[Any] | None) -> None:
    """Say where the first NaN or infinite number stands, and how many rows have any."""
    finite = np.isfinite(values)
    if finite.all():
        return
    row, *rest = (int(i) for i in np.unravel_index((~finite).argmax(), finite.shape))
    if len(rest) == 1:
        places = (~finite).any(0).nonzero()[0]
        more = f"; {len(places)} columns have some" if len(places) > 1 else ""
        where = f"column {plain(names[rest[0]]) if names is not None else rest[0]!r}, row {row}{more}"
    else:
        where = f"row {row}, channel {rest[0]}, position {rest[1]}"
    n_rows = int((~finite).reshape(len(values), -1).any(1).sum())
    missing = bool(np.isnan(values).any())
    infinite = bool(np.isinf(values).any())
    kind = " and ".join(["NaN"] * missing + ["infinity"] * infinite)
    first = "NaN" if np.isnan(values[(row, *rest)]) else "infinity"
    to_do = f"Make infinite values NaN, numpy.where(numpy.isinf(X), numpy.nan, X). {IMPUTE}" if infinite else IMPUTE
    raise ValueError(
        f"X must be finite. Input X contains {kind} in {n_rows} of {len(values)} rows: the first is {first} in "
        f"{where}. {to_do}."
    )


def _refuse_text(x: Any) -> None:
    """Text and dates are no features yet: say so before an attempt to convert them fails in other words."""
    if not is_frame(x):
        dtype = getattr(x, "dtype", None)
        if getattr(dtype, "kind", None) in ("m", "M"):
            raise ValueError(f"X must be numbers. Got dates ({dtype}). {CURE}")
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


def _is_date(dtype: Any) -> bool:
    kind = getattr(dtype, "kind", None)
    is_temporal = getattr(dtype, "is_temporal", None)  # polars'
    return kind in ("m", "M") if kind is not None else bool(is_temporal is not None and is_temporal())


# ---- y ----------------------------------------------------------------------------------------------------------


def whole_target(y: Any) -> Any:
    """y as it came, if nothing is missing and it holds no dates; else an error that says where."""
    refuse_lazy(y=y)
    array = np.asarray(as_labels(y)) if hasattr(y, "__len__") else None
    if array is None or array.ndim == 0:
        return y
    if array.dtype.kind in "mM":
        raise ValueError(
            f"y must be numbers or labels. Got dates ({array.dtype}). Make numbers of them: y.astype('int64'), or the "
            "year, y.dt.year."
        )
    missing: npt.NDArray[np.bool_] = np.asarray(pd.isna(array))
    infinite = np.isinf(array) if array.dtype.kind == "f" else np.zeros_like(missing)
    bad = missing | infinite
    if bad.any():
        kind = " and ".join(["NaN"] * bool(missing.any()) + ["infinity"] * bool(infinite.any()))
        rows: npt.NDArray[np.bool_] = np.asarray(bad.reshape(len(array), -1).any(1))
        raise ValueError(
            f"y must be known and finite in every row. Input y contains {kind} in {int(rows.sum())} of {len(rows)} "
            f"rows, the first is row {int(rows.argmax())}. Leave these rows out: keep = pandas.notna(y), then X[keep], "
            "y[keep]."
        )
    return y


# ---- environment and aux ----------------------------------------------------------------------------------------


def as_labels(values: Any) -> Any:
    """Labels in a form that the checks of labels read: a Series or an array, whatever library held them.

    Intervals (of `pandas.cut`) and periods become their text: a model file holds text and numbers.
    """
    if hasattr(values, "to_numpy") and not hasattr(values, "iloc"):  # polars
        return values.to_numpy()
    dtype = getattr(values, "dtype", None)
    inner = getattr(getattr(dtype, "categories", None), "dtype", dtype)
    if isinstance(inner, (pd.IntervalDtype, pd.PeriodDtype)):
        text = pd.Series(values).astype(object)
        return text.where(text.isna(), text.astype(str))
    return values


def as_aux(values: Any, n_rows: int) -> Tensor | None:
    """Auxiliary variables (N, A) in float64, checked; None where there are none."""
    if values is None:
        return None
    _refuse_dates(values)
    return read_aux(Part("", None, None, aux=as_labels(values)), n_rows)


def _refuse_dates(values: Any) -> None:
    """A time is a good aux, as a number."""
    if is_frame(values):
        dates = [(repr(c), d) for c, d in zip(values.columns, values.dtypes, strict=True) if _is_date(d)]
    else:
        dates = [("", values.dtype)] if _is_date(getattr(values, "dtype", None)) else []
    if not dates:
        return
    name, dtype = dates[0]
    one = f"X[{name}]" if is_frame(values) else "aux"
    polars = not hasattr(dtype, "kind")
    number, year = (".dt.epoch()", ".dt.year()") if polars else (".astype('int64')", ".dt.year")
    raise ValueError(
        f"aux must be numbers. Got dates, {name or 'of dtype'} ({dtype}). Make numbers of them: {one}{number} is a "
        f"time (its unit does not matter, aux is standardised), {one}{year} a year."
    )


def check_environments(codes: Ints, labels: Sequence[Hashable], min_rows: int, needed: bool) -> None:
    """Before small environments are pooled: whether two would be left, and whether these are labels at all.

    Raises where two are needed and would not be left; warns of numbers that look continuous, and of labels that most
    rows have alone.
    """
    sizes = np.bincount(codes, minlength=len(labels))
    large = sizes >= min_rows
    left = int(large.sum()) + (1 if (~large).any() and (not large.any() or sizes[~large].sum() >= min_rows) else 0)
    advice = _not_labels(labels, len(codes))
    if needed and left < 2:
        raise ValueError(_too_few(sizes, labels, min_rows, advice))
    # of the most extreme cases `pool` warns
    told = len(labels) > max(MANY, len(codes) / 2) and all(isinstance(v, (float, datetime)) for v in labels)
    if advice is not None and not told:
        warnings.warn(
            f"environment has {len(labels)} different labels in {len(codes)} rows. {advice}",
            UserWarning,
            stacklevel=users_stacklevel(),
        )


def _not_labels(labels: Sequence[Any], n_rows: int) -> str | None:
    """What to do with labels that are none: numbers and dates of a continuous kind, names of single rows."""
    several = len(labels) > max(10, n_rows / 2)
    if (several or len(labels) > MANY) and all(isinstance(v, datetime) for v in labels):
        return (
            "Dates are rather aux, as numbers, from which environments are inferred (aux=d.astype('int64')), or a "
            "coarser label: the year, d.dt.year."
        )
    if (several or len(labels) > MANY) and all(isinstance(v, float) for v in labels):
        return (
            "They look continuous: pass them as aux, from which environments are inferred, or cut them into bins, "
            "pandas.qcut(values, 4)."
        )
    if several:
        return (
            "That looks like a name of each row and not of where it came from: use a coarser label (a site, a year); "
            "numbers may be passed as aux, or cut into bins, pandas.qcut(values, 4)."
        )
    return None


def _too_few(sizes: Ints, labels: Sequence[Any], min_rows: int, advice: str | None) -> str:
    """Fewer than two environments are left to compare."""
    n_rows = int(sizes.sum())
    if len(labels) < 2:
        return (
            f"environment must have two or more different labels: invariance compares them. Got only {shown(labels)} "
            f"(n_samples={n_rows}). Use another column, or objective='erm'."
        )
    most = np.argsort(-sizes, kind="stable")
    listed = shown(most, limit=4, form=lambda i: f"{plain(labels[i])!r}: {sizes[i]}")
    keeps = f"min_rows={int(sizes[most[1]])} keeps two or more apart" if sizes[most[1]] > 1 else ""
    to_do = advice or f"Use a coarser label, or a smaller min_rows ({keeps or 'now every label has one row'})."
    return (
        f"environment must have two or more labels with min_rows={min_rows} rows or more each: invariance compares "
        f"them. Got {len(labels)} labels in {n_rows} rows (n_samples={n_rows}), rows of each: {listed}. Those with "
        f"fewer than min_rows are pooled into one, since a mean over so few rows is noise, and nothing is left beside "
        f"it. {to_do}"
    )


def warn_of_copies(x: Floats, codes: Ints, n_labels: int, names: Sequence[Any] | None) -> None:
    """A feature that says the same as environment: the model can read from it where a row came from."""
    n_rows = len(codes)
    if x.ndim != 2 or n_labels < 2 or n_rows < 2 * n_labels:
        return
    first = np.full(n_labels, n_rows)
    np.minimum.at(first, codes, np.arange(n_rows))  # the first row of each environment
    few = slice(0, 256)
    likely = (x[few] == x[first[codes[few]]]).all(0).nonzero()[0]  # most columns are out after a few rows
    same = [j for j in likely if (x[:, j] == x[first[codes], j]).all() and len(np.unique(x[first, j])) == n_labels]
    if same:
        of = [int(j) if names is None else plain(names[j]) for j in same]
        warnings.warn(
            f"X has the environment among its features: {shown(of)} has one value for each of the {n_labels} labels of "
            "environment. The model can read from it where a row came from, which is rarely wanted. Drop it from X.",
            UserWarning,
            stacklevel=users_stacklevel(),
        )
