"""Columns of a raw table in short: all that the preprocessing learns from.

A summary is made of a column in memory (`NumberSummary.of`, `LevelSummary.of`), or added up piece by piece (`Tally`)
where the table is larger than the memory. What is learned does not see the difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.types import is_bool_dtype

from irmtv.data.moments import Moments
from irmtv.data.tables.kinds import as_kind, kind_of, plain_dtype
from irmtv.data.tables.reading import BLOCK, Levels, as_floats

LARGEST = float(np.finfo(np.float32).max)  # models compute in 32 bits
FEW_VALUES = 12  # distinct numbers of a column that are counted; a column with more has many
MOST_LEVELS = 1_000_000  # distinct texts or dates of a column that are counted


@dataclass(frozen=True)
class NumberSummary:
    """A column of numbers or truth values."""

    n: int  # values that are given
    missing: int
    mean: float = 0.0
    low: float = 0.0
    high: float = 0.0
    distance: float = 0.0  # root of the mean squared distance from the middle of low and high
    deviation: float = 0.0  # the same from the mean; of a column that was added up
    kind = "number"

    @classmethod
    def of(cls, column: pd.Series) -> NumberSummary:
        """Of a column in memory."""
        values = as_floats(column)
        gone = np.isnan(values)
        known = values[~gone] if gone.any() else values
        n = len(known)
        if not n:
            return cls(0, len(values))
        mean = float(known.mean(dtype=np.float64))
        low, high = float(known.min()), float(known.max())
        middle, half = middle_and_half(low, high)
        distance = 0.0
        if 0 < half < np.inf:  # some rows at a time, which stay in the cache
            parts = (known[start : start + BLOCK].astype(np.float64) for start in range(0, n, BLOCK))
            distance = half * float(np.sqrt(sum(np.square((part - middle) / half).sum() for part in parts) / n))
        return cls(n, len(values) - n, mean, low, high, distance)


def middle_and_half(low: float, high: float) -> tuple[float, float]:
    """The middle of a range, and how far its ends are from it."""
    middle = low / 2 + high / 2  # in float64: the difference of large numbers is exact near each other
    return middle, max(high - middle, middle - low)


@dataclass(frozen=True)
class LevelSummary:
    """A column of text, dates or categories, as its L distinct values and how often each is there."""

    kind: str  # "date", "text" or "category"
    values: Any  # (L,) in the order in which they come first
    counts: npt.NDArray[np.int64]  # (L + 1,): rows of each, and without a value

    @classmethod
    def of(cls, levels: Levels, kind: str) -> LevelSummary:
        """Of a column in memory."""
        return cls(kind, levels.values, np.bincount(levels.codes, minlength=len(levels.values) + 1))

    @property
    def missing(self) -> int:
        return int(self.counts[-1])

    def column(self, length: int) -> pd.Series:
        """The values, then a missing one where the rows have any, then the first again, up to `length` rows."""
        if len(self.values) == 0:
            return pd.Series([None] * length, dtype=object)
        order = np.zeros(length, dtype=np.int64)
        order[: len(self.values)] = np.arange(len(self.values))
        taken = pd.Series(self.values).take(order).reset_index(drop=True)
        if self.missing:
            keeps_type = taken.dtype.kind == "M" or isinstance(taken.dtype, pd.CategoricalDtype)
            taken = taken if keeps_type else taken.astype(object)
            taken.iloc[len(self.values)] = None
        return taken


Summary = NumberSummary | LevelSummary


# ---- added up, piece by piece -------------------------------------------------------------------------------------


def _ends(values: npt.NDArray[np.floating]) -> tuple[float, float]:
    """The smallest and the largest; NaN where one is among them, 0 of none."""
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)


class NumberTally:
    """A column of numbers, added up."""

    def __init__(self) -> None:
        self.moments = Moments()
        self.missing = 0
        self.too_large = 0  # infinite, or beyond 32 bits
        self.distinct: set[float] | None = set()  # None where there are many, or one of them is not whole

    def add(self, column: pd.Series | npt.NDArray[Any]) -> None:
        known = as_floats(column)
        low, high = _ends(known)
        if np.isnan(low):
            gone = np.isnan(known)
            self.missing += int(np.count_nonzero(gone))
            known = known[~gone]
            low, high = _ends(known)
        if not len(known):
            return
        if self.distinct is not None:
            self._count(known)
        if low < -LARGEST or high > LARGEST:
            large = np.abs(known) > LARGEST
            self.too_large += int(large.sum())
            known = known[~large]
            low, high = _ends(known)
        self.moments.add(known.reshape(-1, 1), (np.array([low]), np.array([high])))

    def _count(self, known: npt.NDArray[Any]) -> None:
        """Distinct values, as long as they are few and whole."""
        assert self.distinct is not None
        if self.distinct and sum(np.count_nonzero(known == value) for value in self.distinct) == len(known):
            return  # as of most pieces of a column that has few
        for part in (known[:1000], known):  # most columns show in a few values that they hold many
            found = np.unique(part) if len(part) <= 1000 else pd.unique(part)
            more = self.distinct | {float(value) for value in found[: FEW_VALUES + 1]}
            if len(more) > FEW_VALUES or not all(value % 1 == 0 for value in more):
                self.distinct = None
                return
        self.distinct = more

    def summary(self) -> NumberSummary:
        of = self.moments
        if not of.n:
            return NumberSummary(0, self.missing)
        mean, low, high, deviation = (float(v[0]) for v in (of.mean, of.low, of.high, of.deviation))
        middle, half = middle_and_half(low, high)
        apart = float(of.first[0]) - middle + float(of.ahead[0])  # the mean from the middle, with all digits
        distance = float(np.hypot(deviation, apart)) if 0 < half < np.inf else 0.0
        return NumberSummary(of.n, self.missing, mean, low, high, distance, deviation)

    def join(self, other: NumberTally) -> None:
        """Rows that were added up elsewhere."""
        self.moments.join(other.moments)
        self.missing += other.missing
        self.too_large += other.too_large
        both = None if self.distinct is None or other.distinct is None else self.distinct | other.distinct
        self.distinct = None if both is None or len(both) > FEW_VALUES else both


class LevelTally:
    """A column of text, dates or categories, added up; of one with too many distinct values that it has."""

    def __init__(self, kind: str, most: int = MOST_LEVELS) -> None:
        self.kind, self.most = kind, most
        self.known: dict[Any, int] = {}  # by value, its place
        self.counts: list[int] = []
        self.missing = 0
        self.too_many = False
        self._dtype: Any = object

    def add(self, column: pd.Series) -> None:
        column = as_kind(column, "category")[0] if self.kind == "category" else column
        codes, values = pd.factorize(column)
        rows = np.bincount(codes + 1, minlength=len(values) + 1).tolist()
        self.missing += rows[0]
        if self.too_many:
            return
        if self.kind != "category" and len(values):
            self._dtype = plain_dtype(column)
        self._count(values.tolist(), rows[1:])

    def join(self, other: LevelTally) -> None:
        """Rows that were added up elsewhere."""
        self.missing += other.missing
        self.too_many |= other.too_many
        if self.too_many:
            self.known, self.counts = {}, []
            return
        self._dtype = other._dtype if other.known else self._dtype
        self._count(other.known, other.counts)

    def _count(self, values: Iterable[Any], rows: Iterable[int]) -> None:
        for value, n in zip(values, rows, strict=True):
            place = self.known.setdefault(value, len(self.counts))
            if place == len(self.counts):
                self.counts.append(n)
            else:
                self.counts[place] += n
        if len(self.counts) > self.most:
            self.too_many = True
            self.known, self.counts = {}, []

    def values(self) -> Any:
        """The distinct values, in the order in which they came first, as `pandas.factorize` gives them."""
        if self.kind == "category":
            return pd.factorize(pd.Series(list(self.known), dtype=object).astype("category"))[1]
        return pd.Index(list(self.known), dtype=self._dtype)

    def summary(self) -> LevelSummary:
        return LevelSummary(self.kind, self.values(), np.array([*self.counts, self.missing], dtype=np.int64))


class FlagTally(LevelTally):
    """A column of objects: truth values, which are numbers where none is missing, else text, as in memory; with pandas
    before 3 also text."""

    def __init__(self, most: int = MOST_LEVELS) -> None:
        super().__init__("text", most)

    def add(self, column: pd.Series) -> None:
        super().add(column.astype(object))

    def summary(self) -> Any:
        if self.missing or not all(isinstance(value, bool) for value in self.known):
            return super().summary()
        low, high, n = float(min(self.known)), float(max(self.known)), sum(self.counts)
        mean = sum(float(value) * rows for value, rows in zip(self.known, self.counts, strict=True)) / n
        half = (high - low) / 2
        return NumberSummary(n, 0, mean, low, high, half, float(np.sqrt(mean * (1 - mean))) if half else 0.0)


Tally = NumberTally | LevelTally


def tally_of(column: pd.Series | npt.NDArray[Any], is_category: bool = False, most: int = MOST_LEVELS) -> Tally:
    """What adds up a column that begins like this one."""
    if isinstance(column, np.ndarray):
        return NumberTally()
    own = kind_of(column)
    if is_category or own == "category":  # of files categories are text, by its different values
        return LevelTally("category" if is_category else "text", most)
    # of the files that are read in pieces truth values with gaps are objects, and text with pandas before 3
    if is_bool_dtype(column.dtype) or column.dtype == object:
        return FlagTally(most)
    return NumberTally() if own == "number" else LevelTally(own, most)


def kinds(summaries: Mapping[str, Summary]) -> dict[str, str]:
    """By column: "number", "date", "text" or "category"."""
    return {name: summary.kind for name, summary in summaries.items()}
