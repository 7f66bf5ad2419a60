"""Tables of a summary for the terminal, as Markdown and as LaTeX; the summary itself as CSV; files of all."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path

import pandas as pd
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from irmtv.core.files import write_files
from irmtv.core.messages import printable
from irmtv.html.text_table import frame_csv
from irmtv.lab.tables.compare import NOT_RUN
from irmtv.lab.tables.layout import PUBLISHED, Cell, Column, Table, findings, is_number, tables
from irmtv.lab.tables.overview import overview

__all__ = ["tables", "to_csv", "to_latex", "to_markdown", "to_terminal", "write_all"]

_TESTS = "Paired differences (Wilcoxon signed-rank over repetitions, p corrected by Holm):"
_OVER = "all settings"
_GAP = 3  # columns of the terminal between two cells: the padding and the place of a (blank) divider


def _by_metric(summary: pd.DataFrame, detail: bool = False) -> Iterator[tuple[str, list[Table]]]:
    """The tables of each metric: over settings, where there are several, then for each."""
    over = overview(summary, detail)
    for metric, each in itertools.groupby(tables(summary), key=lambda table: table.metric):
        yield metric, [*(table for table in over if table.metric == metric), *each]


def _grouped(columns: Sequence[Column]) -> Iterator[tuple[str, list[int]]]:
    """The positions of the columns of each group, side by side; a column without one stands alone."""
    for (group, _), members in itertools.groupby(
        range(len(columns)), key=lambda i: (columns[i].group, "" if columns[i].group else columns[i].name)
    ):
        yield group, list(members)


# --- terminal ---------------------------------------------------------------------------------------------


def to_terminal(summary: pd.DataFrame, console: Console, tests: pd.DataFrame | None = None) -> None:
    """Print the tables. What is too wide is continued in further tables, a group of columns never divided."""
    for metric, made in _by_metric(summary):
        for table in made:
            console.print(Text(f"{table.title}: {metric}", style="bold"))
            for part in _parts(table, console.width):
                console.print(part)
                console.print()
            _print_lines(console, table.notes)
            found = findings(tests, table) if tests is not None else []
            if found:
                console.print(Text(_TESTS))
                _print_lines(console, [f"{what}: {differs}" for what, differs in found])
            if found or table.notes:
                console.print()
        _print_lines(console, made[0].caption, indent=0)
        console.print()


def _print_lines(console: Console, lines: Sequence[str], indent: int = 2) -> None:
    for line in lines:
        console.print(Padding(Text(line), (0, 0, 0, indent), expand=False))


def _parts(table: Table, width: int) -> Iterator[RichTable]:
    """The table in as many printed ones as it takes, with as many groups side by side as the width holds."""
    lines = [
        [*_heading(table, i).split("\n"), *(str(row.cells[i]) for row in table.rows)] for i in range(len(table.columns))
    ]
    widths = [max(map(cell_len, of_column)) + _GAP for of_column in lines]
    room = width - max(cell_len(text) for text in [table.stub, *(row.label for row in table.rows)])
    parts: list[list[int]] = []
    for _, members in _grouped(table.columns):
        if parts and sum(widths[i] for i in [*parts[-1], *members]) <= room:
            parts[-1] += members
        else:
            parts.append(members)
    said = False  # what was not run is said once
    for part in parts:
        yield _rich(table, part, tight=sum(widths[i] for i in part) > room, skip_not_run=said)
        said = said or any(table.columns[i].group != PUBLISHED for i in part)


def _heading(table: Table, i: int) -> str:
    """The group stands over its first column only; without groups, a long name takes both lines."""
    column = table.columns[i]
    if not column.group:
        return column.name.replace(" (", "\n(") if " (" in column.name else f"\n{column.name}"
    starts = i == 0 or table.columns[i - 1].group != column.group
    return f"{column.group if starts else ''}\n{column.name}"


def _rich(table: Table, positions: Sequence[int], tight: bool, skip_not_run: bool) -> RichTable:
    made = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    headings = [f"\n{table.stub}", *(_heading(table, i) for i in positions)]
    if all(heading.startswith("\n") for heading in headings):
        headings = [heading[1:] for heading in headings]
    for heading in headings:
        made.add_column(Text(heading), overflow="fold")
    for row in table.rows:
        if skip_not_run and any(row.cells[i].text == NOT_RUN for i in positions):
            continue
        texts = [str(row.cells[i]) for i in positions]
        made.add_row(Text(row.label), *(Text(t.replace(" (", "\n(") if tight else t) for t in texts))
    return made


# --- Markdown ---------------------------------------------------------------------------------------------


def to_markdown(summary: pd.DataFrame, tests: pd.DataFrame | None = None) -> str:
    """Tables as GitHub reads them: a section per metric, with its caption; in it all settings, then each."""
    lines: list[str] = []
    for metric, made in _by_metric(summary, detail=True):
        lines += [f"## {_md(metric)}", "", *_bullets(made[0].caption)]
        lines += [] if made[0].setting else [f"### {_OVER}", ""]
        for table in made:
            level = "###" if table.setting else "####"
            lines += [f"{level} {_md(table.title)}", "", *_markdown_table(table), "", *_bullets(table.notes)]
            if tests is not None and (found := findings(tests, table)):
                lines += [_TESTS, "", *_bullets([f"{what}: {differs}" for what, differs in found])]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_table(table: Table) -> Iterator[str]:
    heads = [table.stub, *(f"{_md(c.group)}: {c.name}" if c.group else _md(c.name) for c in table.columns)]
    yield f"| {' | '.join(heads)} |"
    yield f"| {' | '.join(['---', *('---:' if is_number(c) else '---' for c in table.columns)])} |"
    for row in table.rows:
        yield f"| {' | '.join([_md(row.label), *(str(cell) for cell in row.cells)])} |"


def _bullets(lines: Sequence[str]) -> list[str]:
    return [*(f"- {_md(line)}" for line in lines), ""] if lines else []


def _md(text: str) -> str:
    """Labels are text, whatever signs they hold; a backslash is the escape, also of | in a table."""
    return re.sub(r"([\\`*_\[\]|&~#$]|<(?=[A-Za-z/!?]))", r"\\\1", " ".join(printable(text).split()))


# --- LaTeX ------------------------------------------------------------------------------------------------

_TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_TEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "–": "--", "±": r"$\pm$"}
_TEX |= {sign: rf"\{sign}" for sign in "&%$#_{}"}
_TEX |= {sign: f"{{{sign}}}" for sign in "[]*"}  # after a line break, [ and * would be arguments of it


def to_latex(summary: pd.DataFrame, name: str = "results") -> str:
    """One table environment per metric and setting, for the package booktabs; before these, over the settings.

    Labels are tab:NAME-METRIC-1 and so on. The first table of a metric explains; the others refer to it.
    """
    parts = ["% needs \\usepackage{booktabs}"]
    number = itertools.count(1)
    for metric, made in _by_metric(summary):
        labels = [f"tab:{_slug(name)}-{_slug(metric)}-{next(number)}" for _ in made]
        for table, label in zip(made, labels, strict=True):
            parts.append("\n".join(_latex_table(table, label, explained_in=labels[0])))
    return "\n\n".join(parts) + "\n"


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")


def _latex_table(table: Table, label: str, explained_in: str) -> Iterator[str]:
    groups = list(_grouped(table.columns))
    if label == explained_in:
        explained = [_tex(line) for line in (f"{table.title}.", *table.caption)]
    else:
        explained = [_tex(f"{table.title}: {table.metric}."), rf"As table \ref{{{explained_in}}}."]
    caption = " ".join([*explained, *map(_tex, table.notes)])
    yield r"\begin{table}"
    yield r"\centering"
    yield rf"\caption{{{caption}}}"
    yield rf"\label{{{label}}}"
    yield rf"\begin{{tabular}}{{l{''.join('r' if is_number(c) else 'l' for c in table.columns)}}}"
    yield r"\toprule"
    if any(group for group, _ in groups):
        yield " & ".join(["", *(rf"\multicolumn{{{len(m)}}}{{c}}{{{_tex(g)}}}" for g, m in groups)]).lstrip() + r" \\"
        yield " ".join(rf"\cmidrule(lr){{{m[0] + 2}-{m[-1] + 2}}}" for _, m in groups)  # column 1 is the method
    yield " & ".join([table.stub, *(_tex(c.name) for c in table.columns)]) + r" \\"
    yield r"\midrule"
    for row in table.rows:
        yield " & ".join([_tex(row.label), *(_latex_cell(cell) for cell in row.cells)]) + r" \\"
    yield r"\bottomrule"
    yield r"\end{tabular}"
    yield r"\end{table}"


def _latex_cell(cell: Cell) -> str:
    if not cell.number:
        return _tex(cell.text)
    spread = rf" \pm {_latex_number(cell.sd)}" if cell.sd else ""
    remarks = [f"${cell.difference}$ sd"] if cell.difference else []
    remarks += [f"$n={cell.n}$"] if cell.n else []
    return f"${_latex_number(cell.number)}{spread}$" + (f" ({', '.join(remarks)})" if remarks else "")


def _latex_number(text: str) -> str:
    mantissa, e, power = text.partition("e")
    return rf"{mantissa} \cdot 10^{{{int(power)}}}" if e else text.replace("inf", r"\infty")


def _tex(text: str) -> str:
    return "".join(_TEX.get(sign, sign) for sign in " ".join(printable(text).split()))


# --- CSV and files ----------------------------------------------------------------------------------------


def to_csv(summary: pd.DataFrame) -> str:
    """The summary as it is, one line per cell, every digit kept; accuracy stays a share."""
    return frame_csv(summary)


def write_all(folder: str | PathLike[str], name: str, summary: pd.DataFrame, tests: pd.DataFrame) -> list[Path]:
    """Write NAME.md, NAME.csv, NAME.tex and NAME-tests.csv. A reader never sees half a file."""
    if not name or Path(name).name != name:
        raise ValueError(
            f"name must be a file name without ending and folder. Got {name!r}. Use folder for the folder."
        )
    texts = {
        f"{name}.md": to_markdown(summary, tests),
        f"{name}.csv": to_csv(summary),
        f"{name}.tex": to_latex(summary, name),
        f"{name}-tests.csv": to_csv(tests),
    }
    return write_files(folder, texts)
