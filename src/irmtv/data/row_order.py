"""Rows of X and of what comes beside it belong together by position: a warning where their labels say otherwise."""

from __future__ import annotations

import warnings
from typing import Any

import pandas as pd

from irmtv.core.messages import users_stacklevel


def warn_of_another_order(x: Any, **beside: Any) -> None:
    """Of pandas objects with the row labels of X in another order, as after a sort or a join of one of them.

    Rows are taken by position, as scikit-learn does. Labels that are not those of X (a filtered table beside a fresh
    one) say nothing, and neither do labels that occur twice.
    """
    index = getattr(x, "index", None)
    if not isinstance(index, pd.Index):
        return
    for name, values in beside.items():
        own = getattr(values, "index", None)
        if not isinstance(own, pd.Index) or len(own) != len(index) or own.equals(index):
            continue
        if own.is_unique and index.is_unique and bool(own.isin(index).all()):
            first = int((own != index).argmax())
            warnings.warn(
                f"{name} has the row labels of X in another order (row {first} is {own[first]!r} in {name} and "
                f"{index[first]!r} in X) and is taken by position, as scikit-learn does. To align it by labels pass "
                f"{name}.loc[X.index]; if the position is meant, {name}.to_numpy().",
                UserWarning,
                stacklevel=users_stacklevel(),
            )
