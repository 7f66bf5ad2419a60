"""Types of Parquet columns: which belong together in one table, and what they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pandas.api.types import is_datetime64_any_dtype

from irmtv.app.io.text_columns import without_marks
from irmtv.data.tables.errors import TableError
from irmtv.data.tables.reading import Levels

_FIRST, _LAST = (np.datetime64(day, "s") for day in ("0002-01-01", "9998-12-31"))
_UNITS = ("s", "ms", "us", "ns")
_BYTES_OF_TEXT = 32  # of a cell in memory, where the file holds every different text once


def is_plain(kind: pa.DataType) -> bool:
    """Numbers, text, dates, durations: what a column of a table may hold."""
    value = _value_type(kind)
    tests = (pa.types.is_nested, pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return not any(test(value) for test in tests)


def word_of(kind: pa.DataType) -> str | None:
    """What a column holds, in a word; None of a column without any value, which goes with every other."""
    value, types = _value_type(kind), pa.types
    if types.is_null(value):
        return None
    if types.is_integer(value) or types.is_floating(value) or types.is_decimal(value):
        return "numbers"
    if types.is_timestamp(value):
        return "dates" if value.tz is None else "dates with a time zone"
    tests = {
        "text": (types.is_string, types.is_large_string, types.is_string_view),
        "dates": (types.is_date,),
        "true and false": (types.is_boolean,),
        "times of day": (types.is_time,),
        "durations": (types.is_duration,),
    }
    return next((word for word, of in tests.items() if any(test(value) for test in of)), "lists, records or bytes")


def common_type(kinds: Sequence[pa.DataType]) -> pa.DataType:
    """The type that holds the values of all of these, which have one word."""
    known = [kind for kind in dict.fromkeys(kinds) if not pa.types.is_null(kind)]
    if len(known) < 2:
        return known[0] if known else pa.null()
    values = list(dict.fromkeys(_value_type(kind) for kind in known))
    if len(values) == 1:
        return values[0]
    word = word_of(values[0])
    if word == "numbers":
        return _common_number(values)
    if word is not None and word.startswith("dates"):
        zone = next((value.tz for value in values if pa.types.is_timestamp(value) and value.tz is not None), None)
        return pa.timestamp(_UNITS[max(_UNITS.index(_unit(value)) for value in values)], zone)
    if word == "durations":
        return pa.duration(_UNITS[max(_UNITS.index(value.unit) for value in values)])
    return pa.string()


def _common_number(values: Sequence[pa.DataType]) -> pa.DataType:
    whole = all(pa.types.is_integer(value) for value in values)
    unsigned = [value for value in values if pa.types.is_unsigned_integer(value)]
    if whole and len(unsigned) == len(values):
        return pa.uint64()
    return pa.int64() if whole and pa.uint64() not in unsigned else pa.float64()


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _unit(kind: pa.DataType) -> str:
    if pa.types.is_date(kind):
        return "s" if pa.types.is_date32(kind) else "ms"
    return str(kind.unit)


def bytes_of(kind: pa.DataType, rows: int, stored: int) -> int:
    """About what a column takes as a Series. `stored` are its bytes in the files, uncompressed."""
    word = word_of(kind)
    if word in ("text", "times of day"):
        return 8 * rows + max(stored, _BYTES_OF_TEXT * rows)
    return rows if word == "true and false" else 8 * rows


# ---- to pandas ----------------------------------------------------------------------------------------------------


def as_frame(
    table: pa.Table, names: Sequence[str], in_levels: bool = False, read: Mapping[str, pd.Series] | None = None
) -> pd.DataFrame:
    """Column by column, so that no second copy of the whole is made.

    With `in_levels` text that the table has as codes of its different values stays so, as a column of categories.
    Columns in `read` are those.
    """
    read = read or {}
    series = {name: read[name] if name in read else _series(table.column(name), in_levels) for name in names}
    for name, values in series.items():
        if is_datetime64_any_dtype(values.dtype):
            _check_years(name, values)
    return pd.DataFrame(series, copy=False)


def decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Categories as their values: pieces of a file would know different ones."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def as_text_levels(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text without marks of gaps such as "?"; by its different values, where it is read so."""
    if pa.types.is_dictionary(column.type):
        values = (chunk.dictionary.cast(pa.string()) for chunk in column.chunks)
        if all(without_marks(pa.chunked_array([own])).combine_chunks().equals(own) for own in values):
            return column
        return without_marks(decoded(column).cast(pa.string())).dictionary_encode()
    return without_marks(column.cast(pa.string()))


def _check_years(name: str, times: pd.Series) -> None:
    """Beyond these years nothing that Python has for dates works."""
    instants = times.dt.tz_convert(None) if times.dt.tz is not None else times
    first, last = instants.min(), instants.max()
    if not pd.isna(first) and not (first >= _FIRST and last <= _LAST):
        raise TableError(
            f"column {name!r} must hold times in the years 2 to 9998. Got others, of the years {first.year} to "
            f"{last.year}. Empty these cells, or write the column as numbers."
        )


def is_number(kind: pa.DataType) -> bool:
    """Whether NumPy has this type of numbers and can have gaps among them, as whole numbers in float64."""
    types = pa.types
    return bool(types.is_integer(kind) or types.is_float32(kind) or types.is_float64(kind))


def as_numbers(column: pa.ChunkedArray) -> npt.NDArray[np.number]:
    """Such a column as `as_frame` has it, without pandas; not copied where nothing is missing."""
    if column.null_count and pa.types.is_integer(column.type):
        column = column.cast(pa.float64(), safe=False)
    whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    values: npt.NDArray[np.number] = whole.to_numpy(zero_copy_only=False)
    return values


def as_levels(column: pa.ChunkedArray) -> Levels | None:
    """A column of text by its different values, without pandas; None unless it is read so, with fewer than rows."""
    if not pa.types.is_dictionary(column.type):
        return None
    column = column.unify_dictionaries()
    whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    values = whole.dictionary
    if len(values) > len(whole):
        return None
    codes = whole.indices.cast(pa.int64()).fill_null(len(values))
    return Levels(values.to_pylist(), codes.to_numpy(zero_copy_only=False))


def _series(column: pa.ChunkedArray, in_levels: bool) -> pd.Series:
    kind = column.type
    if pa.types.is_dictionary(kind):
        few = sum(len(chunk.dictionary) for chunk in column.chunks) <= len(column)  # not all of a row group's texts
        if in_levels and few and word_of(kind) == "text":
            return pd.Series(column.unify_dictionaries().to_pandas(), copy=False)
        column = column.cast(kind.value_type)
        kind = column.type
    # pandas does not compare halves with a list
    if pa.types.is_decimal(kind) or pa.types.is_float16(kind) or (pa.types.is_integer(kind) and column.null_count):
        column = column.cast(pa.float64(), safe=False)
    elif pa.types.is_date(kind):
        column = column.cast(pa.timestamp("s" if pa.types.is_date32(kind) else "ms"))
    elif pa.types.is_time(kind) or pa.types.is_large_string(kind):
        column = column.cast(pa.string())
    elif pa.types.is_null(kind):
        column = column.cast(pa.float64())
    return pd.Series(column.to_pandas(), copy=False)
