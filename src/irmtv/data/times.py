"""Whether environment labels are times, and in which order: dates, months, quarters, weeks and years."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date, datetime, time
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd

YEARS = range(1900, 2101)  # whole numbers in it are years, where all labels are
# a year and a part of it; the largest number of such a part
_PARTS = ((r"(\d{4})-(\d{1,2})", 12), (r"(\d{4})[- ]?[Qq](\d)", 4), (r"(\d{4})-?[Ww](\d{2})", 53))
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}.*)?")
_WHOLE = re.compile(r"\d+")


def time_order(labels: Sequence[Any], told: bool = False) -> list[int] | None:
    """The places of the labels in the order of time; None where they are not times.

    Times are dates and datetimes (of Python, NumPy and pandas, with their periods); texts of ISO 8601, all of one form
    ("2011-01-31", with or without a time of day, "2011-01", "2011Q1", "2011-W05"); and whole numbers, or texts of them,
    that are all years from 1900 to 2100. A month, quarter or week must be of such a year, a day may be of any.

    Parameters
    ----------
    labels : distinct labels, one per environment.
    told : the user says that these are times. Labels that do not look like it are then sorted too: numbers as numbers,
        texts as texts, but for the numbers inside ("batch 10" comes after "batch 9"), others by kind and text.

    Examples
    --------
    >>> time_order(["2011-10", "2011-2", "2010-12"])
    [2, 1, 0]
    >>> time_order([3, 1, 2]), time_order([3, 1, 2], told=True)
    (None, [1, 2, 0])
    """
    keys = None
    for read in (*_TIMES, *(_TOLD if told else ())):
        keys = _read_all(read, labels)
        if keys is not None:
            break
    if keys is None and told:
        keys = [(type(label).__name__, _natural(str(label))) for label in labels]
    return None if keys is None else sorted(range(len(keys)), key=keys.__getitem__)


def time_name(label: Any) -> str:
    """A label in words: dates without a time of day where that is midnight."""
    if isinstance(label, np.datetime64):
        label = pd.Timestamp(label)
    if isinstance(label, datetime) and label.time() == time():
        return label.date().isoformat()
    return str(label)


def _read_all(read: Callable[[Any], Any], labels: Sequence[Any]) -> list[Any] | None:
    """What all labels are read as; None where one cannot be, two are the same, or they do not compare."""
    keys = []
    for label in labels:
        key = read(label)
        if key is None:
            return None
        keys.append(key)
    try:
        sorted(keys)
    except TypeError:  # some with a time zone and some without
        return None
    return keys if keys and len(set(keys)) == len(keys) else None


# ---- from a label to what it is sorted by; None where it is not of this form --------------------------------------


def _moment(label: Any) -> pd.Timestamp | None:
    """Of a date or a period, its beginning."""
    if isinstance(label, pd.Period):
        return label.start_time
    if not isinstance(label, (date, np.datetime64)) or pd.isna(label):
        return None
    return pd.Timestamp(label)


def _day(label: Any) -> datetime | None:
    """Of a text; of two days with a slash between, as pandas writes weeks, the first."""
    if not isinstance(label, str):
        return None
    first, slash, last = label.strip().partition("/")
    if _DAY.fullmatch(first) is None or (slash and _DAY.fullmatch(last) is None):
        return None
    try:
        return datetime.fromisoformat(first)
    except ValueError:
        return None


def _part_of_year(form: str, largest: int) -> Callable[[Any], tuple[int, int] | None]:
    def read(label: Any) -> tuple[int, int] | None:
        found = re.fullmatch(form, label.strip()) if isinstance(label, str) else None
        if found is None:
            return None
        year, part = int(found[1]), int(found[2])
        return (year, part) if year in YEARS and 1 <= part <= largest else None

    return read


def _year(label: Any) -> int | None:
    if isinstance(label, str):
        text = label.strip()
        number = int(text) if _WHOLE.fullmatch(text) else None
    else:
        found = _number(label)
        number = int(found) if found is not None and found == int(found) else None
    return number if number in YEARS else None


def _number(label: Any) -> float | None:
    """A finite number, also one that is written as text."""
    if isinstance(label, (bool, np.bool_)) or not isinstance(label, (str, Real)):
        return None
    try:
        number = float(label)
    except ValueError:
        return None
    return number if np.isfinite(number) else None


def _natural(label: Any) -> tuple[tuple[bool, int, str], ...] | None:
    """A text with the numbers inside it as numbers."""
    if not isinstance(label, str):
        return None
    parts = re.findall(r"\d+|\D+", label)
    return tuple((not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts)


_TIMES: tuple[Callable[[Any], Any], ...] = (
    _moment,
    _day,
    *(_part_of_year(form, largest) for form, largest in _PARTS),
    _year,
)
_TOLD: tuple[Callable[[Any], Any], ...] = (_number, _natural)
