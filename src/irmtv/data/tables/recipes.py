"""What a value of a column that is no number becomes, as plain data: applied by NumPy and pandas alone.

skrub decides what a column is and how it is encoded (`steps`). Where that is a list of categories, the parts of a date
or groups of letters (`letters`), a recipe says the same in a few lists, which a model file holds as JSON. Recipes come
from files: what they may be is checked here, where they are built.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from irmtv.data.tables.letters import Letters
from irmtv.data.tables.texts import check_texts, nulls_among

Floats = npt.NDArray[np.float32]
# parts of a date, in skrub's words
PARTS = ("year", "month", "day", "hour", "minute", "second", "microsecond", "nanosecond", "weekday", "day_of_year")
SECONDS = "total_seconds"
_DTYPE = re.compile(r"datetime64\[(s|ms|us|ns)\]")
_LONGEST_FORMAT = 100


@dataclass(frozen=True)
class Categories:
    """A column of categories: a number for each of them that is 1 or 0, or for trees their places among the labels."""

    labels: Sequence[str]  # those of training, none missing
    places: Sequence[int | None] | None  # by label: which of the numbers is 1, None: none; None for trees
    missing: int | None  # the same for a missing value
    nulls: Sequence[str]  # texts that stand for a missing value

    def __post_init__(self) -> None:
        check_texts(self.labels, "labels")
        check_texts(self.nulls, "nulls")
        if self.places is None:
            if self.missing is not None:
                raise ValueError("a category that is missing has no place among the labels of trees")
            return
        if not isinstance(self.places, list) or len(self.places) != len(self.labels):
            raise ValueError("there must be a place for every label")
        taken = [place for place in (*self.places, self.missing) if place is not None]
        if any(type(place) is not int for place in taken) or sorted(taken) != list(range(len(taken))):
            raise ValueError("places of categories must be different whole numbers, counted from 0")

    @property
    def n_outputs(self) -> int:
        """How many numbers a value becomes."""
        if self.places is None:
            return 1
        return sum(place is not None for place in (*self.places, self.missing))

    def table(self, values: Any) -> Floats:
        """(L + 1, outputs): what every value becomes, and a missing one last."""
        known = {label: i for i, label in enumerate(self.labels)}
        codes = [known.get(str(value), -1) for value in values]
        if self.places is None:
            made = np.array([*codes, -1], dtype=np.float32)[:, None]
            made[made < 0] = np.nan
            return made
        gone = nulls_among(values, self.nulls)
        places = [self.places[code] if code >= 0 else None for code in codes]
        places = [*(self.missing if null else place for null, place in zip(gone, places, strict=True)), self.missing]
        made = np.zeros((len(places), self.n_outputs), dtype=np.float32)
        ones = [(row, place) for row, place in enumerate(places) if place is not None]
        if ones:
            made[tuple(zip(*ones, strict=True))] = 1
        return made

    def new(self, values: Any) -> list[bool]:
        """By value, whether training did not have it."""
        known, gone = set(self.labels), nulls_among(values, self.nulls)
        return [str(value) not in known and not null for value, null in zip(values, gone, strict=True)]


@dataclass(frozen=True)
class Dates:
    """A column of dates, or of texts in one format: the parts of each date."""

    format: str | None  # of texts; None where the column of training held dates
    dtype: str
    parts: Sequence[str]
    nulls: Sequence[str]

    def __post_init__(self) -> None:
        check_texts(self.nulls, "nulls")
        check_texts(self.parts, "parts")
        if not self.parts or not set(self.parts) <= {*PARTS, SECONDS}:
            raise ValueError(f"parts of a date must be some of {(*PARTS, SECONDS)}. Got {self.parts!r}")
        if not isinstance(self.dtype, str) or not _DTYPE.fullmatch(self.dtype):
            raise ValueError(f"dtype must be a type of dates. Got {self.dtype!r}")
        if self.format is not None and not (isinstance(self.format, str) and len(self.format) <= _LONGEST_FORMAT):
            raise ValueError(f"format must be a text of at most {_LONGEST_FORMAT} characters or None")

    @property
    def n_outputs(self) -> int:
        """How many numbers a value becomes."""
        return len(self.parts)

    def table(self, values: Any) -> Floats:
        """(L + 1, parts): what every value becomes, NaN where it cannot be read, and a missing one last."""
        dates = pd.Series(values)
        if not pd.api.types.is_datetime64_any_dtype(dates.dtype):
            texts = dates.astype(object).where(~np.array(nulls_among(values, self.nulls), dtype=bool), None)
            dates = pd.to_datetime(texts, format=self.format, errors="coerce", utc=self.format is None)
        if dates.dt.tz is not None:
            dates = dates.dt.tz_convert(None)
        dates = dates.astype(self.dtype)  # type: ignore[call-overload]  # of a type of dates, as was checked
        made = np.full((len(dates) + 1, len(self.parts)), np.nan, dtype=np.float32)
        for j, part in enumerate(self.parts):
            made[:-1, j] = _part(dates, part).to_numpy(dtype=np.float32, na_value=np.nan)
        return made


Recipe = Categories | Dates | Letters


def stored(recipe: Recipe) -> dict[str, Any]:
    """A recipe as lists, texts and numbers."""
    return asdict(recipe)


def recipe_of(given: Any) -> Recipe:
    """The recipe that `stored` wrote; a ValueError says what is wrong with another."""
    if not isinstance(given, Mapping):
        raise ValueError(f"a recipe must be names and values. Got {type(given).__name__}")
    for kind in (Categories, Dates, Letters):
        if set(given) == set(kind.__dataclass_fields__):
            return kind(**given)
    raise ValueError(f"a recipe must be of categories, dates or text. Got {sorted(map(str, given))[:10]}")


def _part(dates: pd.Series, part: str) -> Any:
    if part == SECONDS:
        return (dates - datetime(1970, 1, 1)) / pd.Timedelta("1s")
    return dates.dt.day_of_week + 1 if part == "weekday" else getattr(dates.dt, part)
