"""Words that error messages share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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
