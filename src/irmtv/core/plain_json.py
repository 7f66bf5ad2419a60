"""Values as plain JSON: what NumPy, pandas and torch hold becomes numbers, texts, lists and mappings of Python.

JSON has no NaN and no infinity: both are null. (Files of models have an exact encoding of their own:
`irmtv.persistence.encoding`.)
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from irmtv.core.numbers import Estimate


def plain_json(value: Any) -> Any:
    """The value as JSON has it; a DataFrame is a list of its rows.

    Examples
    --------
    >>> import numpy as np
    >>> plain_json({"a": np.float32(0.5), 2: (np.int64(1), float("inf")), "c": np.array([True])})
    {'a': 0.5, '2': [1, None], 'c': [True]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain_json(v) for key, v in value.items()}
    if hasattr(value, "to_dict") and hasattr(value, "columns"):  # a DataFrame
        return plain_json(value.to_dict("records"))
    if isinstance(value, (list, tuple, range)):
        return [plain_json(v) for v in value]
    if hasattr(value, "tolist"):  # NumPy, torch, a Series
        return plain_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return None if type(value).__name__ in ("NAType", "NaTType") else value


def finite(value: Any) -> float | None:
    """A float of Python, None where it is not finite.

    >>> finite(1), finite(float("nan")), finite(None)
    (1.0, None, None)
    """
    return float(value) if value is not None and math.isfinite(value) else None


def floats(values: Any) -> list[Any]:
    """An array of any shape as nested lists of `finite` numbers.

    >>> floats([[1, 2], [3, float("nan")]])
    [[1.0, 2.0], [3.0, None]]
    """
    array = np.asarray(values, dtype=np.float64)
    return [finite(v) if array.ndim == 1 else floats(v) for v in array]


def estimate(value: float, low: float, high: float) -> Estimate:
    """A value with its interval, None where a number is not finite."""
    return {"value": finite(value), "low": finite(low), "high": finite(high)}


def json_text(value: Any, indent: int | None = None) -> str:
    """Any value as a JSON text that every reader takes."""
    return json.dumps(plain_json(value), indent=indent, ensure_ascii=False, allow_nan=False)
