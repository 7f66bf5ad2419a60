"""Options of the rule `invariance`, and whether values make sense; `invariance` says what they mean.

`max_price` is how much higher than that of ERM the held-out risk of a candidate may be, over all rows, as a share: 0.05
is 5 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from irmtv.core.messages import did_you_mean

TESTS = ("both", "risks", "slopes", "columns", "zero-slopes")
DEFAULTS: Mapping[str, Any] = {
    "test": "both", "level": 0.01, "own_level": 0.35, "reach": 10.0, "slack": 0.5, "min_gain": 0.25,
    "max_price": float("inf"),
}  # fmt: skip


def check_options(**options: Any) -> None:
    """Whether `invariance` takes these options."""
    for name in options:
        if name not in DEFAULTS:
            known = list(DEFAULTS)
            raise ValueError(f"options of 'invariance' are {known}. Got {name!r}.{did_you_mean(name, known)}")
    given = {**DEFAULTS, **options}
    if given["test"] not in TESTS:
        raise ValueError(
            f"test must be one of {list(TESTS)}. Got {given['test']!r}.{did_you_mean(given['test'], TESTS)}"
        )
    for name in ("level", "own_level", "min_gain"):
        if not (_is_number(given[name]) and 0 <= given[name] <= 1):
            raise ValueError(f"{name} must be a number from 0 to 1. Got {given[name]!r}.")
    for name in ("reach", "slack"):
        if not (_is_number(given[name]) and 0 <= given[name] < float("inf")):
            raise ValueError(f"{name} must be a finite number of at least 0. Got {given[name]!r}.")
    if not (_is_number(given["max_price"]) and given["max_price"] >= 0):
        raise ValueError(
            "max_price must be a number of at least 0: how much higher the risk may be than that of ERM, as a share "
            f"(0.05 is 5 %), or infinity. Got {given['max_price']!r}."
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
