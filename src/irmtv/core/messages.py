"""What error messages share: an error names the parameter, what was expected, what came, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from numbers import Integral
from typing import Any


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """The end of an error message: the known name nearest to a misspelt one, or nothing.

    >>> did_you_mean("penalty_wieght", ["hidden", "penalty_weight"])
    " Did you mean 'penalty_weight'?"
    >>> did_you_mean("banana", ["hidden", "penalty_weight"])
    ''
    """
    by_lower = {str(k).lower(): k for k in known}
    near = difflib.get_close_matches(str(name).lower(), by_lower, n=1)
    return f" Did you mean {by_lower[near[0]]!r}?" if near else ""


def shown(values: Iterable[Any], limit: int = 5, form: Callable[[Any], str] = repr) -> str:
    """The first few values, and how many more there are.

    >>> shown(range(7))
    '0, 1, 2, 3, 4, … 2 more'
    """
    texts = [form(v) for v in values]
    more = [f"… {len(texts) - limit} more"] if len(texts) > limit else []
    return ", ".join(texts[:limit] + more)


def check_positive(value: object, parameter: str) -> None:
    """Raise unless `value` is an integer of at least 1."""
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < 1:
        raise ValueError(f"{parameter} must be a positive integer. Got {value!r}. Use 1 or more.")


def check_length(length: int, expected: int, parameter: str) -> None:
    """Raise unless `parameter` has one entry per row."""
    if length != expected:
        raise ValueError(
            f"{parameter} must have one entry per row of x: expected {expected}. Got {length}. "
            "Select the same rows in both."
        )
