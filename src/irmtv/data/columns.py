"""Which columns of a table are environment and aux, and which are features.

`environment` and `aux` may be columns of X, named in the constructor and taken out of it, or values given to `fit`.
At prediction the named columns may be there (they are ignored) or not. Frames are handled by what they can do (columns
by name, drop some), so that pandas and polars need no code of their own.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from irmtv.core.messages import did_you_mean, plain, plain_repr, shown


@dataclass(frozen=True)
class Columns:
    """X without the columns that are no features, and what these held."""

    features: Any  # a frame, an array or a sparse matrix
    environment: Any  # (N,) labels, or None
    aux: Any  # (N, A), or None


def is_frame(x: Any) -> bool:
    """Whether x is a table with named columns (pandas, polars)."""
    return not is_lazy(x) and hasattr(x, "columns") and hasattr(x, "drop")


def is_polars(values: Any) -> bool:
    """A frame or series of polars, by what it can do."""
    return hasattr(values, "to_pandas") and hasattr(values, "to_numpy")


def is_lazy(values: Any) -> bool:
    """A plan of a table without its rows (polars' LazyFrame)."""
    return hasattr(values, "collect_schema") and hasattr(values, "collect")


def refuse_lazy(**given: Any) -> None:
    """Raise where an input is a plan of rows and not the rows."""
    for parameter, values in given.items():
        if is_lazy(values):
            raise ValueError(
                f"{parameter} must hold its rows. Got {type(values).__name__}, a plan of them. Call .collect(): "
                f"{parameter}.collect()."
            )


def is_date(dtype: Any) -> bool:
    """Whether a dtype of NumPy, pandas or polars holds dates or durations."""
    kind = getattr(dtype, "kind", None)
    is_temporal = getattr(dtype, "is_temporal", None)  # polars'
    return kind in ("m", "M") if kind is not None else bool(is_temporal is not None and is_temporal())


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
    values: dict[str, Any] = {}
    taken: list[Any] = []
    present = column_names(x)
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
            raise ValueError(
                no_column(x, missing[0], parameter, present, "X", _pipeline_advice(missing[0], parameter, present))
            )
        taken += [name for name in names if name in present]
        values[parameter] = given[parameter]
        if names and not missing and given[parameter] is None:
            values[parameter] = x[names[0]] if parameter == "environment" else x[names]
    if taken:
        x = without(x, list(dict.fromkeys(taken)))
    if fitting and is_frame(x) and len(list(x.columns)) == 0:
        raise ValueError(f"X must have features besides {shown(taken)}. Got no other column. Add some.")
    return Columns(x, values["environment"], values["aux"])


def without(x: Any, names: Sequence[Any]) -> Any:
    """A frame less some of its columns."""
    return x.drop(columns=names) if hasattr(x, "iloc") else x.drop(names)


def labels_by_name(x: Any, name: Any, kept: Sequence[Any]) -> tuple[Any, Any]:
    """X and the labels in one of its columns, which leaves X unless it is among those that are `kept`."""
    present = column_names(x)
    if name not in present:
        got = f"has the columns {shown(present)}" if present else f"is {type(x).__name__} without column names"
        raise ValueError(
            f"environment must be labels, one per row, or a column of X. Got {name!r}, and X {got}."
            f"{did_you_mean(name, present)} Name a column of X, or pass values."
        )
    return (x if name in kept else without(x, [name])), x[name]


def column_names(x: Any, x_name: str = "X") -> list[Any]:
    """The columns of a frame, each once; none of anything else."""
    refuse_lazy(**{x_name: x})
    if not is_frame(x):
        return []
    names = list(x.columns)
    if len(set(names)) < len(names):
        twice = [f"{plain(c)!r} {names.count(c)} times" for c in dict.fromkeys(names) if names.count(c) > 1]
        raise ValueError(
            f"{x_name} must have every column name once. Got {shown(twice, form=str)}. Rename them, or keep the first "
            f"of each: {x_name}.loc[:, ~{x_name}.columns.duplicated()]."
        )
    return names


def match_columns(values: Any, names: Sequence[Hashable] | None, parameter: str) -> Any:
    """A frame with its columns in the order of training; as it is where one of the two has no column names."""
    if names is None or not is_frame(values) or list(values.columns) == list(names):
        return values
    missing = [name for name in names if name not in values.columns]
    extra = [name for name in values.columns if name not in names]
    if missing or extra:
        got = f"missing: {shown(missing) or 'none'}; extra: {shown(extra) or 'none'}"
        raise ValueError(
            f"{parameter} must have the columns of training, {shown(names)}. Got {got}. Select the same: "
            f"{parameter}[{list(names)}]."
        )
    return values[list(names)]


def no_column(x: Any, name: Any, parameter: str, present: Sequence[Any], x_name: str, to_do: str = "") -> str:
    """The message where a column that `parameter` names is not in x."""
    got = f"the columns {shown(present)}" if present else f"{type(x).__name__} without column names"
    to_do = to_do or f"{did_you_mean(name, present)} Name a column of {x_name}, or pass {parameter} as values."
    return f"{x_name} must be a DataFrame with the column {name!r}, which {parameter} names. Got {got}.{to_do}"


def _pipeline_advice(name: Any, parameter: str, present: Sequence[Any]) -> str:
    """What to do where a column was encoded or renamed, or lost its name, in an earlier step of a pipeline."""
    values = f"pass values: fit(X, y, {parameter}=...)"
    if not present:
        return (
            f" Name a column of X, or {values}. In a pipeline, .set_output(transform='pandas') lets the steps before "
            "hand on a DataFrame."
        )
    renamed = [c for c in present if str(c).endswith(f"__{name}")]
    if renamed:
        return (
            f" {renamed[0]!r} seems to be it, renamed by an earlier step: use {parameter}={renamed[0]!r}, or "
            f"verbose_feature_names_out=False in that step."
        )
    encoded = [c for c in present if str(c).startswith(f"{name}_") or f"__{name}_" in str(c)]
    if encoded and isinstance(name, str):
        return (
            f" It seems to have been encoded by an earlier step, as {shown(encoded, limit=3)}. Keep it out of the "
            f"encoder: drop it from X and pass it beside, pipeline.fit(X.drop(columns={name!r}), y, "
            f"STEP__{parameter}=X[{name!r}]), STEP being this estimator's name in the pipeline; or let it through as "
            f"it is, skrub.TableVectorizer(specific_transformers=[('passthrough', [{name!r}])])."
        )
    return f"{did_you_mean(name, present)} Name a column of X, or {values}."


def _refuse_name(given: Any, parameter: str) -> None:
    """A name where values are wanted: it belongs to the constructor, so that prediction knows the column, too."""
    several = isinstance(given, (list, tuple)) and parameter == "aux" and len(given) > 0
    if isinstance(given, str) or (several and all(isinstance(name, str) for name in given)):
        raise ValueError(
            f"{parameter} must be values here, one per row. Got the name {given!r}. Columns of X are named in the "
            f"constructor, {parameter}={given!r}, which takes them out of X; or pass values, {parameter}=X[{given!r}]."
        )
