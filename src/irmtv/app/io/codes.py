"""Numbers that may be codes of categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from irmtv.core.messages import shown

CODES = (3, 12)  # distinct whole numbers of a feature that may be codes of categories
ROWS_PER_CODE = 10  # that such a column has at least
HEAD = 1000  # rows that are looked at first


def about_codes(features: pd.DataFrame, categorical: Sequence[str]) -> list[str]:
    """Which numbers may be codes of categories: they are read as numbers unless the user says so."""
    found = {}
    for name in features.columns:
        column = features[name]
        if str(name) in categorical or not is_numeric_dtype(column.dtype) or is_bool_dtype(column.dtype):
            continue
        # most columns show in a few rows that they hold something else
        n = None if _whole_values(column.iloc[:HEAD]) is None else _whole_values(column)
        if n is not None:
            found[str(name)] = n
    return about_few_values(found, len(features))


def about_few_values(counts: Mapping[str, int], n_rows: int) -> list[str]:
    """The same by the number of distinct whole values of columns that have at most a few."""
    found = {name: n for name, n in counts.items() if CODES[0] <= n <= CODES[1] and n_rows >= ROWS_PER_CODE * n}
    if not found:
        return []
    example = ",".join(list(found)[:3])
    return [
        f"read as numbers, though they have few different whole ones: "
        f"{shown([f'{name} ({n})' for name, n in found.items()], 12, form=str)}. If some are codes without an order, "
        f"say so: --categorical {example} (in Python categorical={list(found)[:3]})"
    ]


def _whole_values(column: pd.Series) -> int | None:
    """How many different values there are; None where they are not whole, or more than codes have."""
    values = np.asarray(column.dropna().unique(), dtype=np.float64)
    return len(values) if len(values) <= CODES[1] and bool((np.mod(values, 1) == 0).all()) else None
