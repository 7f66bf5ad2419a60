"""From columns of text to columns of numbers or text: numbers stay numbers, text stays text.

A column is numbers where every value that is not missing is one. Everything else is text as it stands, less spaces
around it: dates, too, which the preprocessing reads later, and True and False.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

# what counts as missing, besides nothing at all and spaces alone
MISSING = ("NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "-nan", "NULL", "null", "?")
HEAD = 2000  # values that are tried first: most columns of text show themselves early


class Typed(NamedTuple):
    """A column as a table has it."""

    values: pd.Series  # float64 or int64, or text
    missing: dict[str, int]  # of text: which of `MISSING` it had, and how often
    decimal_comma: bool = False  # whether 1,5 was read as 1.5


def typed(column: pa.ChunkedArray, as_text: bool = False, decimal_comma: bool = False) -> Typed:
    """A column of text as a column of a table.

    Parameters
    ----------
    column : ChunkedArray of strings
        Null where the file has nothing.
    as_text : bool, default False
        Leave it text, whatever it looks like.
    decimal_comma : bool, default False
        Whether 1,5 may be a number: where columns are separated by something else.
    """
    if not pa.types.is_string(column.type):  # read as numbers
        return Typed(_series(column), {})
    if not as_text:
        numbers = _numbers(column)
        if numbers is not None:
            return Typed(_series(numbers), {})
    words = pc.utf8_trim_whitespace(column)
    gone = pc.is_in(words, value_set=pa.array(["", *MISSING]))
    found: dict[str, int] = {}
    if pc.any(gone).as_py():
        counts = pc.value_counts(words.filter(gone))
        found = {c["values"]: c["counts"] for c in counts.to_pylist() if c["values"] != ""}
        words = pc.if_else(gone, pa.scalar(None, pa.string()), words)
    if not as_text:
        for clean in (_without_plus, _with_point) if decimal_comma else (_without_plus,):
            numbers = _numbers(words, clean)
            if numbers is not None:
                return Typed(_series(numbers), {}, clean is _with_point)
    return Typed(_series(words), found)


def number_type(words: pa.ChunkedArray) -> pa.DataType | None:
    """int64 or float64 where the values that are not missing are such, and there are any; else None."""
    missing = pc.is_in(words, value_set=pa.array(["", *MISSING]))
    given = words.filter(pc.invert(missing))
    numbers = _numbers(given) if len(given) else None
    return None if numbers is None else numbers.type


def _numbers(
    words: pa.ChunkedArray, clean: Callable[[pa.ChunkedArray], pa.ChunkedArray] = lambda same: same
) -> pa.ChunkedArray | None:
    """As int64 or float64, or None where a value is no number."""
    head = clean(words.slice(0, HEAD))
    for kind in (pa.int64(), pa.float64()):
        try:
            pc.cast(head, kind)
            return pc.cast(clean(words), kind)
        except pa.ArrowInvalid:
            continue
    return None


def _without_plus(words: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.replace_substring_regex(words, r"^\+", "")


def _with_point(words: pa.ChunkedArray) -> pa.ChunkedArray:
    """1,5 as 1.5; what has a point already is left, and so no number afterwards."""
    return pc.replace_substring_regex(_without_plus(words), r"^(-?[0-9]*),([0-9]+)$", r"\1.\2")


def _series(column: pa.ChunkedArray) -> pd.Series:
    """As pandas holds it, without a second copy of numbers."""
    if pa.types.is_integer(column.type) and column.null_count:
        column = pc.cast(column, pa.float64(), safe=False)
    if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
        return pd.Series(np.asarray(column.to_numpy()), copy=False)
    result: Any = column.to_pandas()
    return pd.Series(result, copy=False)
