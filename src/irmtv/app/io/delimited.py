"""CSV and TSV: the header, the separator, and the rest by Arrow's reader, as text; what is wrong, line by line.

Arrow is strict where others guess (a row with too few values is an error, not a row with missing values) and fast.
Columns come as text, and which are numbers is decided afterwards from the whole column (`text_columns`); a whole file
is first tried with the numbers of its first lines.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as arrow_csv

from irmtv.app.io.source import BLOCK, TextSource, changed
from irmtv.app.io.text_columns import MISSING, number_type
from irmtv.core.messages import did_you_mean, shown
from irmtv.data.tables.errors import TableError

NAMES = {",": "comma", ";": "semicolon", "\t": "tab"}
SAMPLE = 50  # records that the separator is chosen by
LONGEST = 1 << 22  # bytes of one record, at most; also what Arrow parses at a time
UNNAMED = "Unnamed: "


@dataclass(frozen=True)
class Layout:
    """How a text file is written."""

    names: tuple[str, ...]
    separator: str
    notes: tuple[str, ...]
    sample: bytes = b""  # whole lines after the header, to guess types from


def open_text(path: Path, encoding: str | None) -> tuple[TextSource, Layout]:
    """The file after its header, and what the header says."""
    source = TextSource(path, encoding)
    try:
        return source, _layout(source)
    except BaseException:
        source.close()
        raise


def _layout(source: TextSource) -> Layout:
    start = source.block()
    while not start.strip() and (more := source.block()):
        start += more
    if not start.strip():
        what = "is empty" if not start else "has no text"
        raise TableError(f"{str(source.path)!r} {what}. Write the table again, with a line of column names first.")
    separator = _separator(source.path, start)
    names, used = _header(source, start, separator)
    source.give_back(start[used:])
    notes = []
    if separator != "," and not _is_tsv(source.path):
        notes.append(f"columns are separated by a {NAMES[separator]}")
    if all(_is_number(name) for name in names):
        notes.append(
            "the first line is read as the names of the columns, and all of them are numbers: if it is data, put a "
            "line of names before it"
        )
    rest = start[used:]
    return Layout(_checked_names(source.path, names, separator), separator, tuple(notes), rest[: rest.rfind(b"\n") + 1])


def _is_tsv(path: Path) -> bool:
    return Path(path.name.lower().removesuffix(".gz")).suffix in (".tsv", ".tab")


def _separator(path: Path, start: bytes) -> str:
    """Tab for .tsv; else the first of comma, semicolon and tab that gives rows of equal length, as many as it can."""
    if _is_tsv(path):
        return "\t"
    best, best_score = ",", (False, 1)
    for separator in NAMES:
        widths = _widths(start, separator)
        score = (len(widths) > 0 and widths[0] > 1 and len(set(widths)) == 1, widths[0] if widths else 0)
        if score > best_score:
            best, best_score = separator, score
    return best


def _widths(start: bytes, separator: str) -> list[int]:
    """Values in each of the first records; the last, which may be cut, does not count where there are others."""
    widths = []
    try:
        for record in csv.reader(_lines(start), delimiter=separator):
            if record:
                widths.append(len(record))
            if len(widths) > SAMPLE:
                break
    except csv.Error:
        pass
    return widths[:-1] if len(widths) > 1 and not start.endswith(b"\n") else widths


def _lines(start: bytes) -> Iterator[str]:
    return (line.decode("utf-8", "replace") for line in start.splitlines(keepends=True))  # bytes: \n, \r and \r\n only


def _header(source: TextSource, start: bytes, separator: str) -> tuple[list[str], int]:
    """The first record that is not empty, and how many bytes it and its line end take."""
    reader = csv.reader(_lines(start), delimiter=separator, strict=True)
    try:
        for record in reader:
            if any(name.strip() for name in record):
                used = start.splitlines(keepends=True)[: reader.line_num]
                return [" ".join(name.split()) for name in record], sum(map(len, used))
            if record:
                break
    except csv.Error as error:
        raise TableError(
            f"{str(source.path)!r} has broken quoting in its first line, the names of the columns ({error}). Close "
            'every quote; a quote inside a name is written twice: "5"" pipe".'
        ) from error
    raise TableError(f"{str(source.path)!r} must begin with the names of its columns. Got empty names. Add them.")


def check_printable(path: Path, names: Sequence[str]) -> None:
    """Raise where names of columns hold signs that cannot be seen."""
    unprintable = [name for name in names if not name.isprintable()]
    if unprintable:
        raise TableError(
            f"{str(path)!r} has column names with control characters: {shown(unprintable)}. It is damaged, or no text. "
            "Rename them, or write it again."
        )


def _checked_names(path: Path, names: Sequence[str], separator: str) -> tuple[str, ...]:
    if len(names) == 1:
        raise TableError(
            f"{str(path)!r} has one column only, {names[0][:60]!r}, read with a {NAMES[separator]} between columns. A "
            "table needs a target and features: check the separator, which may be a comma, a semicolon or a tab."
        )
    check_printable(path, names)
    full = tuple(name or f"{UNNAMED}{i}" for i, name in enumerate(names))
    twice = [name for name, n in Counter(full).items() if n > 1]
    if twice:
        counted = [f"{name!r} {full.count(name)} times" for name in twice]
        raise TableError(
            f"{str(path)!r} must have every column name once. Got {shown(counted, form=str)}. Rename or remove columns."
        )
    return full


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# ---- the rows -----------------------------------------------------------------------------------------------------


def _options(
    layout: Layout,
    columns: Sequence[str] | None,
    numbers: Mapping[str, pa.DataType] | None = None,
    quotes: bool = True,
    block: int = LONGEST,
) -> dict[str, Any]:
    """Options of Arrow's reader. `numbers`: types of columns to parse; `quotes`: a value may hold a line end."""
    numbers = numbers or {}
    return {
        "read_options": arrow_csv.ReadOptions(column_names=list(layout.names), block_size=block),
        "parse_options": arrow_csv.ParseOptions(delimiter=layout.separator, newlines_in_values=quotes),
        "convert_options": arrow_csv.ConvertOptions(
            column_types={name: numbers.get(name, pa.string()) for name in layout.names},
            include_columns=None if columns is None else list(columns),
            null_values=["", *MISSING] if numbers else [""],
            strings_can_be_null=not numbers,  # what else is missing in text is looked at later, and counted
            check_utf8=False,  # the source has
        ),
    }


def read_text(
    path: Path, encoding: str | None, columns: Sequence[str] | None, text: Collection[str] = ()
) -> tuple[pa.Table, Layout]:
    """The whole file: text, and numbers where the first lines show them and all lines keep to it."""
    with (opened := open_text(path, encoding))[0] as source:
        layout = opened[1]
        wanted = check_columns(path, layout.names, columns)
        numbers = _guessed_numbers(layout, text)
        if numbers and (table := _read_simple(source, _options(layout, wanted, numbers, False, BLOCK))) is not None:
            return table, layout
    at_first = source.at_first
    with open_text(path, encoding)[0] as source:
        if source.at_first != at_first:  # else its columns could be read under the names of the file before
            raise changed(path)
        try:
            table = arrow_csv.read_csv(source, **_options(layout, wanted))
        except (pa.ArrowInvalid, TableError) as error:
            raise _explained(error, source, layout, encoding) from error
        _check_end(source, layout, encoding)
    if table.num_rows == 0:
        raise _no_rows(path)
    return table, layout


def _guessed_numbers(layout: Layout, text: Collection[str]) -> dict[str, pa.DataType]:
    """Columns that are numbers in the first lines; none where these have quotes, which need more care."""
    if not layout.sample or b'"' in layout.sample:
        return {}
    try:
        head = arrow_csv.read_csv(pa.BufferReader(layout.sample), **_options(layout, None, quotes=False))
    except pa.ArrowInvalid:
        return {}
    types = {name: number_type(head.column(name)) for name in layout.names if name not in text}
    return {name: kind for name, kind in types.items() if kind is not None}


def _read_simple(source: TextSource, options: dict[str, Any]) -> pa.Table | None:
    """The file, read about twice as fast; None unless it is as simple as its first lines."""
    try:
        table = arrow_csv.read_csv(source, **options)
    except (pa.ArrowInvalid, TableError):
        return None
    return table if source.quotes == 0 and table.num_rows else None


def text_batches(
    path: Path, encoding: str | None, columns: Sequence[str] | None
) -> tuple[TextSource, Layout, Iterator[pa.RecordBatch]]:
    """The file in pieces, as Arrow reads them; the source says how much of it was read."""
    source, layout = open_text(path, encoding)

    def batches() -> Iterator[pa.RecordBatch]:
        with source:
            wanted = check_columns(path, layout.names, columns)
            rows = 0
            try:
                for batch in arrow_csv.open_csv(source, **_options(layout, wanted)):
                    rows += batch.num_rows
                    yield batch
            except (pa.ArrowInvalid, TableError) as error:
                raise _explained(error, source, layout, encoding) from error
            _check_end(source, layout, encoding)
        if rows == 0:
            raise _no_rows(path)

    return source, layout, batches()


def check_columns(path: Path, names: Sequence[str], columns: Sequence[str] | None) -> Sequence[str] | None:
    """The given `columns`; an error where the file lacks one."""
    missing = [name for name in columns or () if name not in set(names)]
    if missing:
        raise TableError(
            f"{str(path)!r} has no column {shown(missing)}.{did_you_mean(missing[0], names)} It has {shown(names, 10)}."
            " Name one of them."
        )
    return columns


def _no_rows(path: Path) -> TableError:
    return TableError(f"{str(path)!r} has column names but no rows. Check how it was written.")


def _check_end(source: TextSource, layout: Layout, encoding: str | None) -> None:
    """A quote that is never closed swallows the rest of the file, which may look like one long value."""
    if source.quotes % 2 and (fault := _first_fault(source.path, layout, encoding)) is not None:
        raise fault


def _explained(error: Exception, source: TextSource, layout: Layout, encoding: str | None) -> TableError:
    """The error as one that says which line is wrong, and what to do."""
    if source.problem is not None:
        return source.problem
    if isinstance(error, TableError):
        return error
    if "Empty CSV file" in str(error):
        return _no_rows(source.path)
    fault = _first_fault(source.path, layout, encoding)
    if fault is not None:
        return fault
    reason = str(error).splitlines()[0][:200] if str(error) else "it cannot be parsed"
    return TableError(f"{str(source.path)!r} cannot be read as a table: {reason}. Write it again as CSV or Parquet.")


def _first_fault(path: Path, layout: Layout, encoding: str | None) -> TableError | None:
    """The first line that does not fit, by Python's csv: slow, and only where something is wrong."""
    where, width = str(path), len(layout.names)
    fix = 'Close every quote; a quote inside a value is written twice: "5"" pipe".'
    with TextSource(path, encoding) as source:
        reader = csv.reader(source.lines(), delimiter=layout.separator, strict=True)
        begins = 1
        try:
            for record in reader:
                if record and len(record) != width:
                    return TableError(
                        f"{where!r}, line {begins}: {len(record)} values where the first line names {width} columns. "
                        "Add or remove values, put quotes around values that hold a "
                        f"{NAMES[layout.separator]}, and close every quote."
                    )
                begins = reader.line_num + 1
        except csv.Error as error:
            if "field larger" in str(error):
                return TableError(
                    f"{where!r}, line {begins}: a value of more than {csv.field_size_limit():,} characters. Check the "
                    f"quotes in this line. {fix}"
                )
            if "unexpected end" in str(error):
                return TableError(f"{where!r}, line {begins}: a quote is opened and never closed. {fix}")
            return TableError(f"{where!r}, line {begins}: broken quoting ({error}). {fix}")
    return None
