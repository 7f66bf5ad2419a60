"""A raw table, divided into target, environment, aux and features; rows without target or environment are left out."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.types import is_datetime64_any_dtype, is_numeric_dtype
from pandas.tseries.api import guess_datetime_format

from irmtv.core.messages import did_you_mean, plain_repr, shown
from irmtv.data.tables.errors import TableError
from irmtv.data.tables.summaries import LARGEST
from irmtv.data.tables.target import MOST_STRINGS, MOST_WHOLE_NUMBERS, TaskName, task_of

__all__ = [
    "LARGEST",
    "MOST_STRINGS",
    "MOST_WHOLE_NUMBERS",
    "Columns",
    "TaskName",
    "refuse_infinite",
    "split_columns",
    "task_of",
]
MOST_DATES = 20  # maximum number of distinct values from which the format of dates is guessed


@dataclass(frozen=True, eq=False)
class Columns:
    """A table, divided; every part has the same rows.

    Attributes
    ----------
    features : DataFrame (N, columns)
    y : Series (N,) or None
        The target; nothing is missing.
    environment : Series (N,) or None
        Labels; those of several columns are joined, "a / b".
    aux : DataFrame (N, A) of float64 or None
        Dates as decimal years.
    aux_is_date : tuple of bool, one per aux column
    kept : (N,) positions of these rows in the table
    notes : tuple of str
        What was done, in sentences.
    missing : dict of str to float
        Share of missing values, of the features that have any.
    """

    features: pd.DataFrame
    y: pd.Series | None
    environment: pd.Series | None
    aux: pd.DataFrame | None
    aux_is_date: tuple[bool, ...]
    kept: npt.NDArray[np.int64]
    notes: tuple[str, ...]
    missing: dict[str, float]


def split_columns(
    frame: pd.DataFrame,
    *,
    target: str | None,
    environment: str | Sequence[str] = (),
    aux: str | Sequence[str] = (),
    drop: str | Sequence[str] = (),
    features: str | Sequence[str] = (),
    categorical: str | Sequence[str] = (),
    fitting: bool = True,
) -> Columns:
    """Divide a table into target, environment, aux and features.

    Parameters
    ----------
    frame : DataFrame
        A table, as `read_table` gives it.
    target : str or None
        The column to be predicted; None where there is none.
    environment, aux : str or sequence of str, default ()
        Columns. Rows where one of these or the target is missing are left out, and a note counts them.
    drop : str or sequence of str, default ()
        Columns that are no features.
    features : str or sequence of str, default ()
        Only these columns are features; all others where none are named.
    categorical : str or sequence of str, default ()
        Features whose values are categories, whatever they look like (`table_steps` reads them so); checked here.
    fitting : bool, default True
        Whether a model shall be learned: then the target must vary, and there must be features.

    Returns
    -------
    Columns

    Raises
    ------
    TableError
        Names the column, what is wrong with it and what to do.

    Examples
    --------
    >>> frame = pd.DataFrame({"x": [1.0, 2.0, None], "site": ["a", "b", None], "y": [0, 1, 1]})
    >>> columns = split_columns(frame, target="y", environment="site")
    >>> columns.features.columns.tolist(), columns.y.tolist(), columns.kept.tolist()
    (['x'], [0, 1], [0, 1])
    >>> columns.notes
    ("1 of 3 rows left out, since 'site' is missing there (1)",)
    """
    roles = roles_of(
        list(frame.columns),
        target=target,
        environment=environment,
        aux=aux,
        drop=drop,
        features=features,
        categorical=categorical,
        fitting=fitting,
    )
    if len(frame) == 0:
        raise TableError("the table has no rows. Check how it was written.")
    kept, notes = _complete(frame, roles.taken)
    frame = frame if len(kept) == len(frame) else frame.iloc[kept]
    y = None if target is None else _target(frame[target], fitting)
    labels = labels_of(frame, roles.environment) if roles.environment else None
    values, is_date, date_notes = _numbers(frame[roles.aux]) if roles.aux else (None, (), [])
    notes += date_notes
    x = frame.drop(columns=[*roles.taken, *roles.unused])
    missing = _check_features(x) if fitting else {}
    notes += about_empty(missing, x.shape[1])
    return Columns(x, y, labels, values, is_date, kept, tuple(notes), missing)


@dataclass(frozen=True)
class Roles:
    """Names of columns, by what they are for."""

    target: str | None
    environment: list[str]
    aux: list[str]
    unused: list[str]  # neither these nor features

    @property
    def taken(self) -> list[str]:
        """Target, environment and aux."""
        target = [] if self.target is None else [self.target]
        return list(dict.fromkeys([*target, *self.environment, *self.aux]))


def roles_of(
    present: Sequence[str],
    *,
    target: str | None,
    environment: str | Sequence[str] = (),
    aux: str | Sequence[str] = (),
    drop: str | Sequence[str] = (),
    features: str | Sequence[str] = (),
    categorical: str | Sequence[str] = (),
    fitting: bool = True,
) -> Roles:
    """The columns of a table by their role, checked; the parameters are those of `split_columns`."""
    names = {"target": _as_list(target), "environment": _as_list(environment), "aux": _as_list(aux)}
    _check_roles(present, names, fitting)
    unused = list[str]()
    roles = Roles(target, names["environment"], names["aux"], unused)
    if fitting and len(roles.taken) == len(present):
        raise TableError(
            f"the table must have features besides {shown(roles.taken)}. Got no other column. Add some, or take fewer "
            "as environment or aux."
        )
    unused += _unused(present, names, _as_list(drop), _as_list(features))
    _check_categorical(present, names, unused, _as_list(categorical))
    return roles


# ---- checks -------------------------------------------------------------------------------------------------------


def _as_list(names: str | Sequence[str] | None) -> list[str]:
    return [names] if isinstance(names, str) else list(names or ())


def _check_roles(present: Sequence[str], roles: dict[str, list[str]], fitting: bool) -> None:
    if len(set(present)) < len(present):
        twice = [name for name, n in Counter(present).items() if n > 1]
        raise TableError(f"the table must have every column name once. Got {shown(twice)} more often. Rename columns.")
    if fitting and len(present) < 2:
        raise TableError(
            f"the table has {len(present)} column(s), {shown(present)}. It needs a target and features: check the "
            "separator."
        )
    for role, names in roles.items():
        _check_present(role, names, present)
    uses = Counter(name for names in roles.values() for name in dict.fromkeys(names))
    # a column may say both where a row came from and what environments are looked for in; never the target
    for name in roles["target"]:
        if uses[name] > 1:
            other = next(role for role in ("environment", "aux") if name in roles[role])
            raise TableError(f"{name!r} cannot be both target and {other}. Name two different columns.")


def _check_present(role: str, names: Sequence[str], present: Sequence[str]) -> None:
    for name in names:
        if name not in set(present):
            raise TableError(
                f"{role} must be a column of the table. Got {name!r}.{did_you_mean(name, present)} The columns are "
                f"{shown(present, 20)}. Name one of them."
            )


def _unused(present: Sequence[str], roles: dict[str, list[str]], drop: list[str], features: list[str]) -> list[str]:
    """Columns that shall be no features, beside target, environment and aux."""
    if drop and features:
        raise TableError(
            f"drop and features say the same in two ways. Got drop={drop} and features={features}. Use drop for the "
            "columns to leave out, or features for all that shall stay."
        )
    option, names = ("features", features) if features else ("drop", drop)
    _check_present(option, names, present)
    for role, taken in roles.items():
        clash = [name for name in names if name in taken]
        if clash and features:
            raise TableError(
                f"features cannot hold {shown(clash)}, which is the {role}: a model does not see it when it predicts. "
                "Leave it out of features."
            )
        if clash:
            raise TableError(
                f"drop names {shown(clash)}, which is the {role} and so no feature in any case. Leave it out of drop, "
                f"or name another {role}."
            )
    own = {name for taken in roles.values() for name in taken}
    others = [name for name in present if name not in own]
    unused = [name for name in others if name not in set(features)] if features else list(drop)
    if others and len(set(unused)) == len(others):
        raise TableError(f"drop must leave some features. Got all of them: {shown(others)}. Drop fewer.")
    return list(dict.fromkeys(unused))


def _check_categorical(
    present: Sequence[str], roles: dict[str, list[str]], unused: Sequence[str], categorical: Sequence[str]
) -> None:
    _check_present("categorical", categorical, present)
    for name in categorical:
        role = next((role for role, names in roles.items() if name in names), None)
        if role is not None or name in unused:
            why = "is not a feature here" if role is None else f"is the {role}, which needs no such word"
            raise TableError(f"categorical must name features. {name!r} {why}. Leave it out of categorical.")


def _complete(frame: pd.DataFrame, taken: Sequence[str]) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Rows in which none of these is missing, and what to say about the others."""
    whole = np.ones(len(frame), dtype=bool)
    gaps = {}
    for name in taken:
        missing = frame[name].isna().to_numpy()
        if missing.any():
            gaps[name] = int(missing.sum())
            whole &= ~missing
    if not gaps:
        return np.arange(len(frame)), []
    kept = whole.nonzero()[0]
    return kept, about_left_out(gaps, taken, len(frame), len(kept))


def about_left_out(gaps: Mapping[str, int], taken: Sequence[str], n_rows: int, n_kept: int) -> list[str]:
    """What to say of rows that are left out; an error where none stays. `gaps`: missing values by column."""
    if not gaps:
        return []
    counted = shown([f"{name!r} is missing there ({n:,})" for name, n in gaps.items()], form=str)
    if not n_kept:
        raise TableError(
            f"no row has all of {shown(taken)}: {counted}. Fill these cells, or name other columns as target, "
            "environment or aux."
        )
    return [f"{n_rows - n_kept:,} of {n_rows:,} rows left out, since {counted}"]


def about_empty(missing: Mapping[str, float], n_features: int) -> list[str]:
    """What to say of features without any value; an error where all are. `missing`: shares by column."""
    empty = [name for name, share in missing.items() if share == 1]
    if empty and len(empty) == n_features:
        raise TableError(f"all features are missing in all rows: {shown(empty)}. Check how the table was written.")
    return [f"without any value, and so without use: {shown(empty)}"] if empty else []


def _target(y: pd.Series, fitting: bool) -> pd.Series:
    check_target_kind(y)
    if is_numeric_dtype(y.dtype):
        refuse_infinite(pd.DataFrame({y.name: y}), "target")
    if fitting and y.nunique() < 2:
        raise one_value(y.name, y.iloc[0], len(y))
    return whole_numbers(y)


def check_target_kind(y: pd.Series) -> None:
    """Dates are no target."""
    if is_datetime64_any_dtype(y.dtype) or y.dtype.kind == "m":
        raise TableError(
            f"target {y.name!r} is a date. Make a number of it (a year, days since a day), or choose another target."
        )


def one_value(name: Any, value: Any, n_rows: int) -> TableError:
    """The error of a target that does not vary."""
    return TableError(
        f"target {name!r} has one value only, {plain_repr(value)}, in all {n_rows:,} rows: there is nothing "
        "to predict. Check the filter that made the table, or choose another target."
    )


def whole_numbers(values: pd.Series) -> pd.Series:
    """Numbers that a missing value had made 1.0 and 2.0 as 1 and 2 again: they may be labels."""
    if values.dtype.kind == "f" and bool(((values % 1 == 0) & (values.abs() < 2**53)).all()):
        return values.astype(np.int64)
    return values


def labels_of(frame: pd.DataFrame, names: Sequence[str]) -> pd.Series:
    """Environments by the columns that say where rows come from."""
    parts = []
    for name in names:
        values = whole_numbers(frame[name])
        if is_datetime64_any_dtype(values.dtype):
            text = values.dt.strftime("%Y-%m-%d %H:%M:%S")
            values = text.str.removesuffix(" 00:00:00") if text.str.endswith(" 00:00:00").all() else text
        parts.append(values)
    if len(parts) == 1:
        return parts[0]
    joined = parts[0].astype(str).astype(object)
    for part in parts[1:]:
        joined = joined + " / " + part.astype(str).astype(object)
    return joined.rename(" / ".join(names))


def _numbers(frame: pd.DataFrame) -> tuple[pd.DataFrame, tuple[bool, ...], list[str]]:
    """Auxiliary columns as float64, which were dates, and what to say about these."""
    made, is_date, notes = {}, [], list[str]()
    for name in frame.columns:
        values = frame[name]
        dates = None
        if is_datetime64_any_dtype(values.dtype):
            dates = values
        elif not is_numeric_dtype(values.dtype):
            dates, note = dates_of(values)
            notes += note
        is_date.append(dates is not None)
        made[name] = (values if dates is None else decimal_years(dates)).astype(np.float64)
    numbers = pd.DataFrame(made)
    refuse_infinite(numbers, "aux")
    constant = [name for name in numbers if numbers[name].nunique() < 2]
    if len(constant) == numbers.shape[1]:
        raise TableError(f"aux must vary. {shown(constant)} has one value in all rows. Name other columns.")
    return numbers, tuple(is_date), notes


def dates_of(values: pd.Series) -> tuple[pd.Series, list[str]]:
    """Texts as dates, all written in the same way: days and months never change places from row to row."""
    words = values.astype(object)
    month_first, day_first = _formats(words)
    read = {}
    for form in dict.fromkeys(("ISO8601", *month_first, *day_first)):
        read[form] = pd.to_datetime(words, errors="coerce", utc=True, format=form)
        if not read[form].isna().any():
            break
    form = min(read, key=lambda tried: int(read[tried].isna().sum()))
    dates = read[form]
    unread = dates.isna()
    if unread.any():
        raise TableError(
            f"aux {values.name!r} must be numbers or dates. Got {int(unread.sum()):,} of {len(values):,} values that "
            f"are neither, or are written otherwise than the other dates, such as {shown(words[unread].unique(), 3)}. "
            "Name another column, give it as environment, write dates as 2014-12-31, or empty these cells."
        )
    if form not in month_first:
        return dates, []
    other = day_first[month_first.index(form)]
    days = pd.to_datetime(words, errors="coerce", utc=True, format=other)
    if days.isna().any() or days.equals(dates):
        return dates, []
    return dates, [
        f"{values.name!r}: all dates can be read with the day or the month first; read with the month first, "
        f"{plain_repr(words.iloc[0])} as {dates.iloc[0]:%Y-%m-%d}. Write dates as 2014-12-31 if this is wrong"
    ]


def _formats(words: pd.Series) -> tuple[list[str], list[str]]:
    """How dates may be written, by the first that shows it: with the month first, and the same with the day first."""
    month_first, day_first = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that an order does not fit a value: it is tried on all below
        for word in words.unique()[:MOST_DATES]:
            guessed = guess_datetime_format(str(word)), guess_datetime_format(str(word), dayfirst=True)
            if guessed[0] is not None and guessed[1] is not None:
                month_first, day_first = [guessed[0]], [guessed[1]]
                break
    short = [f"%m{mark}%d{mark}%y" for mark in "/.-"]  # years of two digits are never guessed
    return month_first + short, day_first + [f"%d{mark}%m{mark}%y" for mark in "/.-"]


def decimal_years(dates: pd.Series) -> pd.Series:
    """2014.5 in the middle of 2014."""
    when = dates.dt
    day = when.day_of_year - 1 + (when.hour + (when.minute + when.second / 60) / 60) / 24
    years: pd.Series = when.year + day / np.where(when.is_leap_year, 366, 365)
    return years


def _check_features(features: pd.DataFrame) -> dict[str, float]:
    """Share of missing values by column; raises on infinities."""
    refuse_infinite(features, "feature")
    shares = {str(name): float(features[name].isna().mean()) for name in features.columns}
    return {name: share for name, share in shares.items() if share > 0}


def refuse_infinite(frame: pd.DataFrame, role: str) -> None:
    """Infinities, and numbers that 32 bits cannot hold, by column."""
    counts = {}
    for name in frame.columns:
        if frame[name].dtype.kind != "f":
            continue
        values: Any = frame[name].to_numpy()
        with np.errstate(invalid="ignore"):
            low, high = np.fmin.reduce(values, initial=0.0), np.fmax.reduce(values, initial=0.0)  # gaps do not count
            if low >= -LARGEST and high <= LARGEST:
                continue
            n = int((np.abs(values) > LARGEST).sum())
        if n:
            counts[str(name)] = n
    refuse_counted(counts, len(frame), role)


def refuse_counted(counts: Mapping[str, int], n_rows: int, role: str) -> None:
    """Raise where columns have numbers that are infinite or too large: how many, by column."""
    if counts:
        counted = shown([f"{name!r} ({n:,} of {n_rows:,} rows)" for name, n in counts.items()], form=str)
        raise TableError(
            f"{role} columns must hold finite numbers below 3e38. Got infinite or larger ones in {counted}. Empty "
            "these cells, or leave the column out."
        )
