"""What error messages share: an error names the parameter, what was expected, what came, and what to do."""

from __future__ import annotations

import difflib
import math
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable
from numbers import Integral
from typing import Any


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """The end of an error message: the known name nearest to a misspelt one, or nothing.

    >>> did_you_mean("penalty_wieght", ["hidden", "penalty_weight"])
    " Did you mean 'penalty_weight'?"
    >>> did_you_mean("banana", ["hidden", "penalty_weight"])
    ''

    Where no whole name is near, one that begins like it:

    >>> did_you_mean("penlaty", ["hidden", "penalty_weight_schedule"])
    " Did you mean 'penalty_weight_schedule'?"
    """
    given, known = str(name).lower(), list(known)
    by_lower = {str(k).lower(): k for k in known}
    near = difflib.get_close_matches(given, by_lower, n=1)
    if not near and len(given) > 3:
        by_lower = {str(k).lower()[: len(given)]: k for k in reversed(known)}
        near = difflib.get_close_matches(given, by_lower, n=1, cutoff=0.75)
    return f" Did you mean {plain(by_lower[near[0]])!r}?" if near else ""


def plain(value: Any) -> Any:
    """A NumPy or torch scalar as Python's: users wrote 0 and 'a', not np.int64(0) and np.str_('a')."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value


def plain_repr(value: Any) -> str:
    """As a user would write it.

    >>> import numpy as np
    >>> plain_repr(np.int64(3)), plain_repr(np.str_("a"))
    ('3', "'a'")
    """
    return repr(plain(value))


# marks that turn the direction of all text after them, on a page and in a terminal
_TURNING = ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI")


def readable(text: str) -> str:
    """The same with a sign in place of each character that cannot be shown or that changes how others are shown.

    Line breaks and tabs stay; so do all letters, of whatever script and direction.

    Examples
    --------
    >>> readable("a\\x00b"), readable("\\u202eabc"), readable("half \\ud800 pair")
    ('a�b', '�abc', 'half � pair')
    """
    bad = {
        c
        for c in set(text)
        if c not in "\n\t"
        and (unicodedata.category(c) in ("Cc", "Cn", "Co", "Cs") or unicodedata.bidirectional(c) in _TURNING)
    }
    return "".join("�" if c in bad else c for c in text) if bad else text


_UNSEEN = re.compile("[\u061c\u200e\u200f\u2028\u2029]")  # marks that turn one place only, and separators of lines


def printable(text: str) -> str:
    """Text from a file, for a terminal: nothing in it can move the cursor, change colours or hide what follows.

    >>> printable("\\x1b[31mred\\u202e, a tab:\\t.")
    '\ufffd[31mred\ufffd, a tab:\\t.'
    """
    return _UNSEEN.sub("\ufffd", readable(text))


def shown(values: Iterable[Any], limit: int = 5, form: Callable[[Any], str] = plain_repr) -> str:
    """The first few values, and how many more there are.

    >>> shown(range(7))
    '0, 1, 2, 3, 4, … 2 more'
    """
    texts = [form(v) for v in values]
    more = [f"… {len(texts) - limit} more"] if len(texts) > limit else []
    return ", ".join(texts[:limit] + more)


# a warning points at the user's line, not at a line of one of these packages
NOT_THE_USER = ("irmtv", "sklearn", "skrub", "torch", "lightning", "joblib", "contextlib")


def users_stacklevel() -> int:
    """For `warnings.warn`: how far up the user's own line is, whichever way the call took through the libraries."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).split(".")[0] in NOT_THE_USER:
        frame, level = frame.f_back, level + 1
    return level


def is_non_negative(value: object) -> bool:
    """Whether it is a finite number of at least 0."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


def check_positive(value: object, parameter: str) -> None:
    """Raise unless `value` is an integer of at least 1."""
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < 1:
        raise ValueError(f"{parameter} must be a positive integer. Got {plain_repr(value)}. Use 1 or more.")


def check_length(length: int, expected: int, parameter: str) -> None:
    """Raise unless `parameter` has one entry per row."""
    if length != expected:
        raise ValueError(
            f"{parameter} must have one entry per row of x: expected {expected}. Got {length}. "
            "Select the same rows in both."
        )
