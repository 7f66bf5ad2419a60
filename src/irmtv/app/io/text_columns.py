"""Columns of text as numbers, or as text with its gaps; of text files and of Parquet alike.

A column is numbers where every value that is not missing is one. Everything else is text as it stands, less spaces
around it: dates, too, which the preprocessing reads later, and True and False.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from irmtv.core.messages import shown
from irmtv.core.numbers import several

# what counts as missing, besides nothing at all and spaces alone
MISSING = ("NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "-nan", "NULL", "null", "?")
HEAD = 2000  # values that are tried first: most columns of text show themselves early
_NUMBER = r"[0-9]+\.?[0-9]*([eE][+-]?[0-9]+)?|\.[0-9]+"
_GROUPED = r"[0-9]+,[0-9]+|[0-9]{1,3}([,.' ][0-9]{3})+([.,][0-9]+)?"  # 1,5 and 1,200 and 1.200,50


def typed_columns(
    untyped: dict[str, pa.ChunkedArray], text: Collection[str], decimal_comma: bool = False
) -> tuple[dict[str, pd.Series], tuple[str, ...]]:
    """The columns as numbers or text, with notes; `untyped` is emptied, so that text is freed column by column."""
    series: dict[str, pd.Series] = {}
    notes, with_commas, mixed = list[str](), list[str](), list[str]()
    marks: dict[str, dict[str, int]] = {}  # by what stands for a missing value: columns of text, and how often
    names = list(untyped)
    with ThreadPoolExecutor(pa.cpu_count()) as pool:  # Arrow and NumPy do the work, without Python's lock
        each = pool.map(lambda name: typed(untyped.pop(name), name in text, decimal_comma), names)
    for name, (series[name], missing, comma, others) in zip(names, each, strict=True):
        for mark, n in missing.items():
            marks.setdefault(mark, {})[name] = n
        with_commas += [name] * comma
        mixed += [f"{name} ({several(others[0], 'cell')} such as {others[1]!r})"] if others is not None else []
    notes += [_about_missing(marks)] if marks else []
    if with_commas:
        notes.append(f"1,5 is read as the number 1.5 in {shown(with_commas)}")
    if mixed:
        notes.append(
            f"read as text, since not all values are numbers: {shown(mixed, 12, form=str)}. If they should be, write "
            "them as 1200.5, or empty the cells"
        )
    return series, tuple(notes)


def _about_missing(marks: dict[str, dict[str, int]]) -> str:
    """One note for all columns of text that have marks such as "?"."""

    def counted(columns: dict[str, int]) -> str:
        return shown([f"{name} ({several(n, 'cell')})" for name, n in columns.items()], 12, form=str)

    return "read as missing: " + "; ".join(f"{mark} in {counted(columns)}" for mark, columns in marks.items())


class Typed(NamedTuple):
    """A column as a table has it."""

    values: pd.Series  # float64 or int64, or text
    missing: dict[str, int]  # of text: which of `MISSING` it had, and how often
    decimal_comma: bool = False  # whether 1,5 was read as 1.5
    others: tuple[int, str] | None = None  # of text that is mostly numbers: values that are none, and one of them


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
        numbers, comma = text_as_numbers(column, decimal_comma)
        if numbers is not None:
            return Typed(_series(numbers), {}, comma)
    cells = without_marks(column)
    gone = pc.utf8_trim_whitespace(column.filter(pc.and_(column.is_valid(), cells.is_null())))
    counts = pc.value_counts(gone).to_pylist() if len(gone) else []
    missing = {c["values"]: c["counts"] for c in counts if c["values"] != ""}
    return Typed(_series(cells), missing, others=None if as_text else _no_numbers(cells, decimal_comma))


def _no_numbers(cells: pa.ChunkedArray, decimal_comma: bool) -> tuple[int, str] | None:
    """How many values of text are no numbers, and the first of them; None unless half of the first values look like
    numbers."""
    clean = _with_point if decimal_comma else _without_plus
    head = clean(cells.slice(0, HEAD).drop_null())
    like = pc.sum(pc.match_substring_regex(head, f"^-?({_NUMBER}|{_GROUPED})$")).as_py() or 0
    if 2 * like < max(1, len(head)):
        return None
    given = cells.drop_null()
    others = given.filter(pc.invert(pc.match_substring_regex(clean(given), f"^-?({_NUMBER})$")))
    return (len(others), others[0].as_py()) if len(others) else None


def without_marks(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text without spaces around it, null where it is a mark such as "?"."""
    cells = pc.utf8_trim_whitespace(column)
    gone = pc.is_in(cells, value_set=pa.array(["", *MISSING]))
    return pc.if_else(gone, pa.scalar(None, pa.string()), cells) if pc.any(gone).as_py() else cells


def text_as_numbers(column: pa.ChunkedArray, decimal_comma: bool = False) -> tuple[pa.ChunkedArray | None, bool]:
    """Text as int64 or float64, None where a value is no number; and whether 1,5 was read as 1.5."""
    # most columns are clean
    for clean in (_as_they_stand, _without_plus, _with_point) if decimal_comma else (_as_they_stand, _without_plus):
        numbers = _numbers(column, clean)
        if numbers is not None:
            return numbers, clean is _with_point
    return None, False


def number_type(cells: pa.ChunkedArray) -> pa.DataType | None:
    """int64 or float64 where the values that are not missing are such, and there are any; else None."""
    missing = pc.is_in(cells, value_set=pa.array(["", *MISSING]))
    given = cells.filter(pc.invert(missing))
    numbers = _numbers(given, _as_they_stand) if len(given) else None
    return None if numbers is None else numbers.type


def _numbers(cells: pa.ChunkedArray, clean: Callable[[pa.ChunkedArray], pa.ChunkedArray]) -> pa.ChunkedArray | None:
    """As int64 or float64, or None where a value is no number."""
    head = clean(cells.slice(0, HEAD))
    for kind in (pa.int64(), pa.float64()):
        try:
            pc.cast(head, kind)
            return pc.cast(clean(cells), kind)
        except pa.ArrowInvalid:
            continue
    return None


def _as_they_stand(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    return cells


def _without_plus(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.replace_substring_regex(without_marks(cells), r"^\+", "")


def _with_point(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """1,5 as 1.5; what has a point already is left, and so no number afterwards."""
    return pc.replace_substring_regex(_without_plus(cells), r"^(-?[0-9]*),([0-9]+)$", r"\1.\2")


def _series(column: pa.ChunkedArray) -> pd.Series:
    """As pandas holds it, without a second copy of numbers."""
    if pa.types.is_integer(column.type) and column.null_count:
        column = pc.cast(column, pa.float64(), safe=False)
    if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
        return pd.Series(np.asarray(column.to_numpy()), copy=False)
    result: Any = column.to_pandas()
    return pd.Series(result, copy=False)
