"""What the parts of a diagnosis share: the level of their tests, their summary as JSON, and values of aux as text."""

from __future__ import annotations

import calendar
import math
from dataclasses import dataclass, fields
from datetime import date, timedelta
from typing import Any, ClassVar

from irmtv.core.numbers import number
from irmtv.core.plain_json import plain_json

LEVEL = 0.05  # of every test
NOTHING_TO_COMPARE = (
    "a diagnosis compares environments: give environment (a column that says where each row came from: a site, a year, "
    "a device), or aux (columns in which environments are looked for: a time, a place), or both. Got neither."
)


@dataclass(frozen=True)
class Part:
    """A part of a diagnosis: numbers, and a sentence that says what they mean."""

    ALSO: ClassVar[tuple[str, ...]] = ()  # properties that stand in the summary beside the fields

    @property
    def sentence(self) -> str:
        raise NotImplementedError

    def summary(self) -> dict[str, Any]:
        """JSON: the sentence ("said"), the fields that `repr` shows, and `ALSO`; None where a number is not finite."""
        names = [*(f.name for f in fields(self) if f.repr), *self.ALSO]
        return dict(plain_json({"said": self.sentence, **{name: getattr(self, name) for name in names}}))


def as_date(decimal_year: float) -> str:
    """The day that a decimal year lies in.

    >>> as_date(2015.0), as_date(2014.5)
    ('2015-01-01', '2014-07-02')
    """
    year = math.floor(decimal_year)
    if not 1 <= year <= 9998:
        return number(decimal_year, 6)
    days = 366 if calendar.isleap(year) else 365
    return (date(year, 1, 1) + timedelta(days=(decimal_year - year) * days + 1e-6)).isoformat()


def place(value: float, is_date: bool) -> str:
    """A value of aux in a sentence."""
    return as_date(value) if is_date else number(value, 6)
