"""Numbers that may be codes of categories."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from irmtv.core.messages import shown

CODES = (3, 12)  # distinct whole numbers of a feature that may be codes of categories
ROWS_PER_CODE = 10  # that such a column has at least


def about_codes(features: pd.DataFrame, categorical: Sequence[str]) -> list[str]:
    """Which numbers may be codes of categories: they are read as numbers unless the user says so."""
    found = {}
    for name in features.columns:
        column = features[name]
        if str(name) in categorical or not is_numeric_dtype(column.dtype) or is_bool_dtype(column.dtype):
            continue
        values = np.asarray(column.dropna().unique(), dtype=np.float64)
        whole = bool((np.mod(values, 1) == 0).all())
        if whole and CODES[0] <= len(values) <= CODES[1] and len(column) >= ROWS_PER_CODE * len(values):
            found[str(name)] = len(values)
    if not found:
        return []
    example = ",".join(list(found)[:3])
    return [
        f"read as numbers, though they have few different whole ones: "
        f"{shown([f'{name} ({n})' for name, n in found.items()], 12, form=str)}. If some are codes without an order, "
        f"say so: --categorical {example} (in Python categorical={list(found)[:3]})"
    ]
