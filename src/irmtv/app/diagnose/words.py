"""Numbers as a reader wants them, and results as JSON: what the parts of a diagnosis share."""

from __future__ import annotations

import calendar
import math
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from typing import Any

import numpy as np

from irmtv.core.numbers import Estimate

LEVEL = 0.05  # of every test
NOTHING_TO_COMPARE = (
    "a diagnosis compares environments: give environment (a column that says where each row came from: a site, a year, "
    "a device), or aux (columns in which environments are looked for: a time, a place), or both. Got neither."
)


def number(value: float | None, digits: int = 3) -> str:
    """With so many significant digits, and none that say nothing.

    >>> number(0.12345), number(1234567.0), number(float("nan")), number(0.5)
    ('0.123', '1,234,567', 'unknown', '0.5')
    """
    if value is None or not math.isfinite(value):
        return "unknown"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.1e}"
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:g}"


def p_text(p: float | None) -> str:
    """A p-value in a sentence.

    >>> p_text(0.0003), p_text(0.034), p_text(None)
    ('p < 0.001', 'p = 0.034', 'p unknown')
    """
    if p is None or not math.isfinite(p):
        return "p unknown"
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def within(estimate: Estimate, digits: int = 3) -> str:
    """A value with its interval: '0.71 (0.68 to 0.74)'."""
    if estimate["low"] is None or estimate["high"] is None:
        return number(estimate["value"], digits)
    low, high = number(estimate["low"], digits), number(estimate["high"], digits)
    return f"{number(estimate['value'], digits)} ({low} to {high})"


def listed(names: Iterable[Any]) -> str:
    """In a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    texts = [str(name) for name in names]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}" if texts else ""


def estimate(value: float, low: float, high: float) -> Estimate:
    """As JSON has it: None where a number is not finite."""
    return {"value": finite(value), "low": finite(low), "high": finite(high)}


def finite(value: Any) -> float | None:
    """A plain float, None where it is not finite."""
    return float(value) if value is not None and math.isfinite(value) else None


def floats(values: Any) -> list[Any]:
    """An array of any shape as nested lists of plain floats, None where a number is not finite."""
    array = np.asarray(values, dtype=np.float64)
    return [finite(v) if array.ndim == 1 else floats(v) for v in array]


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


def holm(p: Sequence[float] | np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """p-values corrected for how many there are (Holm); NaN stays, and is not counted.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    given = np.asarray(p, dtype=np.float64)
    known = np.isfinite(given)
    corrected = np.full(given.shape, np.nan)
    order = np.argsort(given[known], kind="stable")
    factors = np.arange(known.sum(), 0, -1)
    stepped = np.maximum.accumulate(given[known][order] * factors).clip(max=1.0)
    back = np.empty_like(stepped)
    back[order] = stepped
    corrected[known] = back
    return corrected
