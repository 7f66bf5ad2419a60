"""Auxiliary variables that come without X: how many rows there are, and in which order their columns stand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from irmtv.core.messages import shown
from irmtv.data.columns import is_frame


def rows_in(aux: Any) -> int:
    """How many rows aux has, where nothing else says so."""
    try:
        return len(aux)
    except TypeError:  # a number, an array without axes, a generator
        raise ValueError(
            f"aux must be numbers of shape (rows,) or (rows, columns). Got {aux!r}. For one row pass a list, aux=[...]."
        ) from None


def names_of(aux: Any) -> list[str] | None:
    """The names of the columns, where aux is a frame and they are text."""
    names = list(aux.columns) if is_frame(aux) else []
    return names if names and all(isinstance(name, str) for name in names) else None


def in_order(aux: Any, names: Sequence[str] | None) -> Any:
    """aux with its columns in the order of those of training, where both have names."""
    got = names_of(aux)
    if got is None or names is None or got == list(names):
        return aux
    missing = [name for name in names if name not in got]
    if missing or len(got) != len(names):
        raise ValueError(
            f"aux must have the columns of fit, {shown(names)}. Got {shown(got)}. Select the same: aux[{list(names)}]."
        )
    return aux[list(names)]
