"""Text of the user's as a page can show it, and the numbers of a figure as a CSV file and as cells of a table."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from typing import TypedDict
from urllib.parse import quote

from irmtv.core.numbers import NO_VALUE, Estimate, short

Value = str | float | int | bool | None


class FigureData(TypedDict):
    """The numbers of a figure: one row per mark."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]


MOST_ROWS = 60  # of the table in the page; the CSV has all
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet takes a text that begins so for a formula


def estimate_cells(*estimates: Estimate) -> list[Value]:
    """Value, lower and upper end of each estimate, as cells of one row."""
    return [cell for e in estimates for cell in (e["value"], e["low"], e["high"])]


def csv_text(data: FigureData) -> str:
    """As CSV, numbers with every digit; None and numbers that are not finite are empty.

    Names come from the user's table, and the CSV may be opened by others: a text that a spreadsheet would execute gets
    an apostrophe before it, which is how spreadsheets mark text.

    Examples
    --------
    >>> print(csv_text({"columns": ["name", "risk"], "rows": [["a, b", 0.5], ["=1+1", None], ["c", -1]]}))
    name,risk
    "a, b",0.5
    '=1+1,
    c,-1
    <BLANKLINE>
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([_safe(column) for column in data["columns"]])
    for row in data["rows"]:
        writer.writerow([_cell(value) for value in row])
    return buffer.getvalue()


def csv_uri(data: FigureData) -> str:
    """The CSV as the address of a link: it needs neither a server nor a script."""
    return "data:text/csv;charset=utf-8," + quote(csv_text(data).encode("utf-8", "replace"), safe="!*'(),/:;@$ ~")


def shown_cells(data: FigureData) -> list[list[str]]:
    """The first rows as short texts, for the table in the page."""
    return [[_shown(value) for value in row] for row in data["rows"][:MOST_ROWS]]


def numeric_columns(data: FigureData) -> list[bool]:
    """By column: whether it holds nothing but numbers and gaps."""
    return [
        all(value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)) for value in column)
        and any(value is not None for value in column)
        for column in (list(zip(*data["rows"], strict=True)) or [()] * len(data["columns"]))
    ]


def file_name(text: str) -> str:
    """A file name of letters that every file system takes.

    >>> file_name("What a <feature> weighs / ERM"), file_name("???")
    ('what-a-feature-weighs-erm', 'figure')
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "figure"


def _cell(value: Value) -> str | float | int:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _safe(value) if isinstance(value, str) else value


def _safe(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text


def _shown(value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return short(value)
    return NO_VALUE if value is None else str(value)
