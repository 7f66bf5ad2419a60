"""What the generators share: a check of counts, the random streams, and equal segments of time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from irmtv.core.messages import did_you_mean

T = TypeVar("T")


def count(name: str, value: Any, least: int = 1, reason: str = "") -> int:
    """The value as int, or an error that names it."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value >= least:
        return int(value)
    why = f" ({reason})" if reason else ""
    raise ValueError(
        f"{name} must be an integer of at least {least}{why}. Got {value!r}. "
        f"Give a whole number without a decimal point, {least} or more."
    )


def streams(random_state: Any) -> list[np.random.Generator]:
    """Two independent streams, one for the training and one for the test rows."""
    if random_state is None or isinstance(random_state, np.random.Generator):
        rng = np.random.default_rng(random_state)
    elif isinstance(random_state, (int, np.integer)) and not isinstance(random_state, bool) and random_state >= 0:
        rng = np.random.default_rng(int(random_state))
    else:
        raise ValueError(
            "random_state must be None, an integer of at least 0, or a numpy.random.Generator. "
            f"Got {random_state!r}. Use an integer for data that can be drawn again."
        )
    # Seeds are drawn, not `rng.spawn`ed: spawning would ignore how far a given Generator has advanced.
    root = np.random.SeedSequence(rng.integers(2**32, size=4).tolist())
    return [np.random.default_rng(child) for child in root.spawn(2)]


def segments(n: int, k: int) -> NDArray[np.int64]:
    """Which of k equal segments of time each of n rows at t_i = (i + 0.5) / n lies in: (n,)."""
    row = np.arange(n, dtype=np.int64)
    return (2 * row + 1) * k // (2 * n)  # floor(t k), in integers: no rounding at the cuts


def segment_names(k: int) -> tuple[str, ...]:
    """Names of k equal segments of [0, 1): ("t<0.5", "t>=0.5") for two."""
    if k == 1:
        return ("0<=t<1",)
    cuts = [f"{s / k:g}" for s in range(1, k)]
    middle = [f"{low}<=t<{high}" for low, high in pairwise(cuts)]
    return (f"t<{cuts[0]}", *middle, f"t>={cuts[-1]}")


def one_of(name: str, value: Any, known: tuple[T, ...]) -> T:
    """The value, or an error that names the known ones."""
    for one in known:
        if isinstance(value, str) and value == one:
            return one
    raise ValueError(
        f"{name} must be one of {list(known)}. Got {value!r}.{did_you_mean(value, known) or f' Use {known[0]!r}.'}"
    )
