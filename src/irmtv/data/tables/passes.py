"""A raw table that is read piece by piece: what `split_columns` and the preprocessing learn of all of its rows.

One pass adds every piece up (`FirstPass.add`); `FirstPass.learned` then is what is known of the table as if it had been
in memory, and divides later pieces by it (`LearnedTable.read`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype

from irmtv.core.messages import shown
from irmtv.data.moments import Moments
from irmtv.data.tables.columns import (
    Roles,
    about_empty,
    about_left_out,
    check_target_kind,
    dates_of,
    decimal_years,
    labels_of,
    one_value,
    refuse_counted,
    whole_numbers,
)
from irmtv.data.tables.errors import TableError
from irmtv.data.tables.kinds import as_frame, as_text, plain_dtype
from irmtv.data.tables.summaries import FEW_VALUES, MOST_LEVELS, LevelTally, NumberTally, Summary, Tally, tally_of
from irmtv.data.tables.target import TargetSummary

MOST_VALUES = 1_000  # distinct values of a target that are counted
Ints = npt.NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class Piece:
    """Rows of a piece in which nothing is missing that must be there."""

    features: pd.DataFrame
    y: pd.Series
    aux: pd.DataFrame | None
    kept: Ints | None = None  # positions of the rows in the piece; None: all


@dataclass(frozen=True, eq=False)
class LearnedRows:
    """What is known of a table's rows by target, environment and aux.

    Attributes
    ----------
    n_rows, n_kept : int
        All rows, and those without a gap in target, environment and aux.
    target : TargetSummary
    moments : Moments or None
        Of a target of numbers.
    places, labels : (n_kept,) and (P,), or None
        The place of every row that is kept, and the environment of every place: labels may be equal.
    dates : dict of str to dict
        Of aux columns that are text: decimal years by text.
    aux_is_date : tuple of bool, one per aux column
    notes : tuple of str
    """

    n_rows: int
    n_kept: int
    target: TargetSummary
    moments: Moments | None
    places: Ints | None
    labels: pd.Series | None
    dates: dict[str, dict[Any, float]]
    aux_is_date: tuple[bool, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class LearnedTable:
    """What is known of a table.

    Attributes
    ----------
    rows : LearnedRows
    roles : Roles
        `unused` has the columns with too many distinct texts, too.
    columns : dict of str to Summary
        The features.
    few_values : dict of str to int
        Features of numbers that have a few whole ones only: how many.
    notes, missing : as in `irmtv.data.tables.columns.Columns`.
    """

    rows: LearnedRows
    roles: Roles
    columns: dict[str, Summary]
    few_values: dict[str, int]
    notes: tuple[str, ...]
    missing: dict[str, float]

    def read(self, frame: pd.DataFrame) -> Piece:
        """A piece of the table by its roles; of the features those that are there."""
        part, kept = frame, None
        if self.rows.n_kept < self.rows.n_rows:
            kept = whole_rows(frame, self.roles.taken)[0]
            part = frame if kept is None else frame.iloc[kept]
        target = part[str(self.roles.target)]
        values = self.rows.target.values
        y = target if self.rows.target.numeric or is_bool_dtype(values.dtype) else as_text(target).astype(str)
        if values.dtype.kind in "iu" and y.dtype.kind == "f" and not self.rows.target.has_more:
            y = y.astype(values.dtype)  # whole numbers, which gaps elsewhere made others
        features = part[[name for name in self.columns if name in part]]
        flags = [
            name
            for name in self.columns
            if name in part and features[name].dtype == bool and self.columns[name].kind == "text"
        ]
        features = features.astype(dict.fromkeys(flags, object)) if flags else features  # it has gaps elsewhere
        return Piece(features, y, self._aux(part), kept)

    def _aux(self, part: pd.DataFrame) -> pd.DataFrame | None:
        if not self.roles.aux:
            return None
        made = {}
        for name, is_date in zip(self.roles.aux, self.rows.aux_is_date, strict=True):
            values = part[name]
            if name in self.rows.dates:
                values = values.map(self.rows.dates[name])
            elif is_date:
                values = decimal_years(values)
            made[name] = values.astype(np.float64)
        return pd.DataFrame(made, index=part.index)


class FirstPass:
    """Adds up the pieces of a table: `add_rows` the columns that say which rows are kept, `features` the others.

    Parameters
    ----------
    roles : Roles
        With a target.
    categorical : collection of str
        Features whose values are categories, whatever they look like.
    most_levels : int
        Distinct texts or dates of a feature, beyond which it is left out.
    """

    def __init__(self, roles: Roles, categorical: Collection[str] = (), most_levels: int = MOST_LEVELS) -> None:
        self.roles = roles
        self.n_rows = self.n_kept = 0
        self._gaps: dict[str, int] = {}
        self.features = FeatureTallies(categorical, most_levels)
        self._aux: dict[str, Tally] = {}
        self._aux_dates: dict[str, bool] = {}
        self._target = _Target(str(roles.target))
        self._places = _Places(roles.environment) if roles.environment else None

    def add(self, frame: pd.DataFrame) -> int:
        """The next piece; how many of its rows are kept."""
        part = self.add_rows(frame)
        others = {*self.roles.taken, *self.roles.unused}
        features = as_frame(part[[name for name in part.columns if name not in others]])
        self.features.add({name: features[name] for name in features.columns})
        return len(part)

    def add_rows(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Target, environment and aux of the next piece; the rows that are kept."""
        kept, gaps = whole_rows(frame, self.roles.taken)
        part = frame if kept is None else frame.iloc[kept]
        self.n_rows += len(frame)
        self.n_kept += len(part)
        for name, n in gaps.items():
            self._gaps[name] = self._gaps.get(name, 0) + n
        self._target.add(part[str(self.roles.target)])
        if self._places is not None:
            self._places.add(part)
        for name in self.roles.aux:
            values = part[name]
            values = decimal_years(values) if is_datetime64_any_dtype(values.dtype) else values
            self._aux.setdefault(name, _aux_tally(values)).add(values)
            self._aux_dates.setdefault(name, is_datetime64_any_dtype(part[name].dtype))
        return part

    def rows(self) -> LearnedRows:
        """What is known of the rows, with the errors and notes that `split_columns` has of a table in memory."""
        notes = about_left_out(self._gaps, self.roles.taken, self.n_rows, self.n_kept)
        target = self._target.summary(self._gaps.get(str(self.roles.target), 0) > 0, self.n_kept)
        places = None if self._places is None else self._places.codes()
        labels = None if self._places is None else self._places.labels()
        dates, is_date, date_notes = self._read_aux()
        moments = self._target.numbers.moments if target.numeric else None
        return LearnedRows(
            self.n_rows, self.n_kept, target, moments, places, labels, dates, is_date, (*notes, *date_notes)
        )

    def learned(self, rows: LearnedRows | None = None) -> LearnedTable:
        """What is known of the table; `rows`: of its rows, where it is known already."""
        rows = self.rows() if rows is None else rows
        notes, tallies = list(rows.notes), self.features.each
        numbers = {name: tally for name, tally in tallies.items() if isinstance(tally, NumberTally)}
        refuse_counted({n: t.too_large for n, t in numbers.items() if t.too_large}, self.n_kept, "feature")
        too_many = [n for n, t in tallies.items() if isinstance(t, LevelTally) and t.too_many]
        if too_many and len(too_many) == len(tallies):
            raise TableError(
                f"all features are text or dates with more than {self.features.most_levels:,} different values: "
                f"{shown(too_many)}. Name others, or write shorter texts."
            )
        if too_many:
            notes.append(
                f"left out, since they are text or dates with more than {self.features.most_levels:,} different "
                f"values, which are not learned from files that are larger than the memory: {shown(too_many)}"
            )
        counted = {name: tally for name, tally in tallies.items() if name not in set(too_many)}
        missing = {name: tally.missing / self.n_kept for name, tally in counted.items() if tally.missing}
        notes += about_empty(missing, len(counted))
        few = {name: len(tally.distinct) for name, tally in numbers.items() if tally.distinct}
        roles = Roles(self.roles.target, self.roles.environment, self.roles.aux, [*self.roles.unused, *too_many])
        return LearnedTable(
            rows=rows,
            roles=roles,
            columns={name: tally.summary() for name, tally in counted.items()},
            few_values=few,
            notes=tuple(notes),
            missing=missing,
        )

    def _read_aux(self) -> tuple[dict[str, dict[Any, float]], tuple[bool, ...], list[str]]:
        """Decimal years of texts, by column; which columns are dates; notes."""
        dates: dict[str, dict[Any, float]] = {}
        notes, constant, large = list[str](), list[str](), dict[str, int]()
        for name, tally in self._aux.items():
            if isinstance(tally, NumberTally):
                large |= {name: tally.too_large} if tally.too_large else {}
                constant += [name] * bool(tally.moments.n and tally.moments.low[0] == tally.moments.high[0])
                continue
            if tally.too_many:
                raise TableError(
                    f"aux {name!r} must be numbers or dates. Got text with more than {tally.most:,} different values. "
                    "Write it as dates, or name another column."
                )
            texts = pd.Series(tally.values(), name=name)
            read, more = dates_of(texts)
            dates[name] = dict(zip(texts.tolist(), decimal_years(read).astype(np.float64).tolist(), strict=True))
            notes += more
            constant += [name] * (len(set(dates[name].values())) < 2)
        refuse_counted(large, self.n_kept, "aux")
        if self._aux and len(constant) == len(self._aux):
            raise TableError(f"aux must vary. {shown(constant)} has one value in all rows. Name other columns.")
        return dates, tuple(name in dates or self._aux_dates[name] for name in self.roles.aux), notes


class FeatureTallies:
    """Features, added up; see `FirstPass` for the parameters."""

    def __init__(self, categorical: Collection[str] = (), most_levels: int = MOST_LEVELS) -> None:
        self.categorical, self.most_levels = frozenset(categorical), most_levels
        self.each: dict[str, Tally] = {}

    def add(self, columns: Mapping[str, Any]) -> None:
        """The next rows, every column a Series, or an array of numbers."""
        for name, column in columns.items():
            if name not in self.each:
                self.each[name] = tally_of(column, name in self.categorical, self.most_levels)
            self.each[name].add(column)

    def join(self, other: FeatureTallies) -> None:
        """Rows of the same columns that were added up elsewhere."""
        for name, tally in other.each.items():
            mine = self.each.setdefault(name, tally)
            if mine is not tally:
                mine.join(tally)  # type: ignore[arg-type]  # both began with the same column's type


def _aux_tally(values: pd.Series) -> Tally:
    numeric = is_numeric_dtype(values.dtype)
    return NumberTally() if numeric else LevelTally("text")


def whole_rows(frame: pd.DataFrame, taken: Sequence[str]) -> tuple[Ints | None, dict[str, int]]:
    """Positions of rows without a gap in these columns, None: all; and how many gaps each of them has."""
    whole, gaps = None, {}
    for name in taken:
        missing = frame[name].isna().to_numpy()
        if missing.any():
            gaps[name] = int(missing.sum())
            whole = ~missing if whole is None else whole & ~missing
    return None if whole is None else whole.nonzero()[0], gaps


class _Target:
    """A target, added up."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.numbers = NumberTally()
        self.known: dict[Any, int] = {}
        self.has_more = False
        self._dtypes: list[Any] = []

    def add(self, y: pd.Series) -> None:
        check_target_kind(y)
        dtype = plain_dtype(y)
        if dtype not in self._dtypes:
            self._dtypes.append(dtype)
        if not len(y):
            return
        if self._is_number(y.dtype):
            self.numbers.add(y)
            if self.has_more or self._has_no_others(y.to_numpy()):
                return
        codes, values = pd.factorize(y)
        rows = np.bincount(codes, minlength=len(values)).tolist()
        for value, n in zip(values.tolist(), rows, strict=True):
            if value in self.known or len(self.known) < MOST_VALUES:
                self.known[value] = self.known.get(value, 0) + n
            else:
                self.has_more = True
                if self._is_number(y.dtype):
                    return

    def _has_no_others(self, y: npt.NDArray[np.number]) -> bool:
        """Whether numbers are a few known ones only, as of classes; then they are counted, faster than any new ones."""
        if len(self.known) > FEW_VALUES:
            return False
        rows = {value: int(np.count_nonzero(y == value)) for value in self.known}
        if sum(rows.values()) < len(y):
            return False
        for value, n in rows.items():
            self.known[value] += n
        return True

    @staticmethod
    def _is_number(dtype: Any) -> bool:
        return is_numeric_dtype(dtype) and not is_bool_dtype(dtype)

    def summary(self, has_gaps: bool, n_rows: int) -> TargetSummary:
        """`has_gaps`: whether it is missing somewhere, which makes text of truth values, as in memory."""
        numeric = self._is_number(self._dtypes[0])
        refuse_counted({self.name: self.numbers.too_large} if self.numbers.too_large else {}, n_rows, "target")
        if len(self.known) < 2 and not self.has_more:
            raise one_value(self.name, next(iter(self.known)), n_rows)
        dtype: Any = object
        if numeric:
            dtype = np.result_type(*self._dtypes)
        elif all(is_bool_dtype(found) for found in self._dtypes) and not has_gaps:
            dtype = bool
        values = pd.Series(list(self.known), dtype=dtype)
        if dtype is object:
            values = values.astype(str)
        elif numeric and not self.has_more:
            values = whole_numbers(values)
        return TargetSummary(self.name, numeric, values.array, np.array(list(self.known.values())), self.has_more)


class _Places:
    """The columns that say where rows come from, added up: every combination of their values is a place."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.known: dict[tuple[Any, ...], int] = {}
        self._codes: list[Ints] = []
        self._dtypes: dict[str, Any] = {}

    def add(self, part: pd.DataFrame) -> None:
        if not len(part):
            return
        joined, each = np.zeros(len(part), dtype=np.int64), []
        for name in self.names:
            codes, values = pd.factorize(part[name])
            joined = joined * len(values) + codes
            each.append(values.tolist())
            dtype = plain_dtype(part[name])
            if dtype.kind != "O" or isinstance(dtype, pd.StringDtype) or name not in self._dtypes:
                self._dtypes[name] = dtype
        # of one column these are the numbers of its values
        codes, found = pd.factorize(joined) if len(self.names) > 1 else (joined, np.arange(len(each[0])))
        lookup = np.empty(len(found), dtype=np.int64)
        for i, number in enumerate(found.tolist()):
            value: list[Any] = []
            for values in reversed(each):
                value.insert(0, values[number % len(values)])
                number //= len(values)
            lookup[i] = self.known.setdefault(tuple(value), len(self.known))
        if len(self.known) > MOST_LEVELS:
            raise TableError(
                f"environment ({', '.join(self.names)}) has more than {MOST_LEVELS:,} different labels, which look "
                "like names of single rows. Name a coarser column: a site, a year."
            )
        self._codes.append(_smallest(lookup[codes], len(self.known)))

    def codes(self) -> Ints:
        """(n_kept,)"""
        parts, n = self._codes, len(self.known)
        self._codes = []
        return np.concatenate([_smallest(part, n) for part in parts]) if parts else np.zeros(0, np.uint8)

    def labels(self) -> pd.Series:
        """(P,) the environment of every place."""
        columns = {}
        for j, name in enumerate(self.names):
            values = pd.Series([place[j] for place in self.known])
            dtype = self._dtypes[name]
            if is_datetime64_any_dtype(dtype) or isinstance(dtype, pd.StringDtype):
                values = values.astype(dtype)
            columns[name] = values
        return labels_of(pd.DataFrame(columns), self.names)


def _smallest(codes: Ints, n: int) -> Ints:
    """Codes below n in as few bytes as hold them."""
    return codes.astype(np.min_scalar_type(max(n - 1, 0)), copy=False)
