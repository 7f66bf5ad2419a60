"""Tables of a summary for the terminal, as Markdown and as LaTeX; the summary itself as CSV; files of all."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from irmtv.report.compare import NOT_RUN
from irmtv.report.layout import PUBLISHED, Cell, Column, Table, findings, is_number, tables

__all__ = ["tables", "to_csv", "to_latex", "to_markdown", "to_terminal", "write_all"]

_TESTS = "Paired differences (Wilcoxon signed-rank over repetitions, p corrected by Holm):"
_GAP = 3  # columns of the terminal between two cells: the padding and the place of a (blank) divider


def _blocks(made: Sequence[Table]) -> Iterator[tuple[str, list[Table]]]:
    """The tables of each metric."""
    for metric, block in itertools.groupby(made, key=lambda table: table.metric):
        yield metric, list(block)


def _grouped(columns: Sequence[Column]) -> Iterator[tuple[str, list[int]]]:
    """The positions of the columns of each group, side by side."""
    for group, members in itertools.groupby(range(len(columns)), key=lambda i: columns[i].group):
        yield group, list(members)


# --- terminal ---------------------------------------------------------------------------------------------


def to_terminal(summary: pd.DataFrame, console: Console, tests: pd.DataFrame | None = None) -> None:
    """Print the tables. What is too wide is continued in further tables, a group of columns never divided."""
    for metric, block in _blocks(tables(summary)):
        for table in block:
            console.print(Text(f"{table.setting}: {metric}", style="bold"))
            for part in _parts(table, console.width):
                console.print(part)
                console.print()
            _print_lines(console, table.notes)
            if tests is not None and (found := findings(tests, table)):
                console.print(Text(_TESTS))
                _print_lines(console, [f"{what}: {differs}" for what, differs in found])
            console.print()
        _print_lines(console, block[0].caption, indent=0)
        console.print()


def _print_lines(console: Console, lines: Sequence[str], indent: int = 2) -> None:
    for line in lines:
        console.print(Padding(Text(line), (0, 0, 0, indent), expand=False))


def _parts(table: Table, width: int) -> Iterator[RichTable]:
    """The table in as many printed ones as it takes, with as many groups side by side as the width holds."""
    widths = [max(map(cell_len, _column_lines(table, i))) + _GAP for i in range(len(table.columns))]
    room = width - max(cell_len(text) for text in ["method", *(row.label for row in table.rows)])
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


def _column_lines(table: Table, i: int) -> list[str]:
    return [*_heading(table, i).split("\n"), *(str(row.cells[i]) for row in table.rows)]


def _heading(table: Table, i: int) -> str:
    """The group stands over its first column only."""
    column = table.columns[i]
    starts = i == 0 or table.columns[i - 1].group != column.group
    return f"{column.group if starts else ''}\n{column.name}"


def _rich(table: Table, positions: Sequence[int], tight: bool, skip_not_run: bool) -> RichTable:
    made = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    made.add_column(Text("\nmethod"), overflow="fold")
    for i in positions:
        made.add_column(Text(_heading(table, i)), overflow="fold")
    for row in table.rows:
        if skip_not_run and any(row.cells[i].text == NOT_RUN for i in positions):
            continue
        texts = [str(row.cells[i]) for i in positions]
        made.add_row(Text(row.label), *(Text(t.replace(" (", "\n(") if tight else t) for t in texts))
    return made


# --- Markdown ---------------------------------------------------------------------------------------------


def to_markdown(summary: pd.DataFrame, tests: pd.DataFrame | None = None) -> str:
    """Tables as GitHub reads them: a section per metric, with its caption, and in it one per setting."""
    lines: list[str] = []
    for metric, block in _blocks(tables(summary)):
        lines += [f"## {_md(metric)}", "", *_bullets(block[0].caption)]
        for table in block:
            lines += [f"### {_md(table.setting)}", "", *_markdown_table(table), ""]
            lines += _bullets(table.notes)
            if tests is not None and (found := findings(tests, table)):
                lines += [_TESTS, "", *_bullets([f"{what}: {differs}" for what, differs in found])]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_table(table: Table) -> Iterator[str]:
    heads = ["method", *(f"{_md(c.group)}: {c.name}" for c in table.columns)]
    yield f"| {' | '.join(heads)} |"
    yield f"| {' | '.join(['---', *('---:' if is_number(c) else '---' for c in table.columns)])} |"
    for row in table.rows:
        yield f"| {' | '.join([_md(row.label), *(str(cell) for cell in row.cells)])} |"


def _bullets(lines: Sequence[str]) -> list[str]:
    return [*(f"- {_md(line)}" for line in lines), ""] if lines else []


def _md(text: str) -> str:
    """Labels are text, whatever signs they hold; a backslash is the escape, also of | in a table."""
    return re.sub(r"([\\`*_\[\]|&~#$]|<(?=[A-Za-z/!?]))", r"\\\1", " ".join(text.split()))


# --- LaTeX ------------------------------------------------------------------------------------------------

_TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_TEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "–": "--", "±": r"$\pm$"}
_TEX |= {sign: rf"\{sign}" for sign in "&%$#_{}"}
_TEX |= {sign: f"{{{sign}}}" for sign in "[]*"}  # after a line break, [ and * would be arguments of it


def to_latex(summary: pd.DataFrame) -> str:
    """One table environment per metric and setting, for the package booktabs."""
    parts = ["% needs \\usepackage{booktabs}"]
    parts += ["\n".join(_latex_table(table)) for table in tables(summary)]
    return "\n\n".join(parts) + "\n"


def _latex_table(table: Table) -> Iterator[str]:
    groups = list(_grouped(table.columns))
    caption = " ".join(_tex(line) for line in (f"{table.setting}.", *table.caption, *table.notes))
    yield r"\begin{table}"
    yield r"\centering"
    yield rf"\caption{{{caption}}}"
    yield rf"\begin{{tabular}}{{l{''.join('r' if is_number(c) else 'l' for c in table.columns)}}}"
    yield r"\toprule"
    yield " & ".join(["", *(rf"\multicolumn{{{len(m)}}}{{c}}{{{_tex(g)}}}" for g, m in groups)]).lstrip() + r" \\"
    yield " ".join(rf"\cmidrule(lr){{{m[0] + 2}-{m[-1] + 2}}}" for _, m in groups)  # column 1 is the method
    yield " & ".join(["method", *(_tex(c.name) for c in table.columns)]) + r" \\"
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
    return "".join(_TEX.get(sign, sign) for sign in " ".join(text.split()))


# --- CSV and files ----------------------------------------------------------------------------------------


def to_csv(summary: pd.DataFrame) -> str:
    """The summary as it is, one line per cell, every digit kept; accuracy stays a share."""
    return summary.to_csv(index=False, lineterminator="\n")


def write_all(folder: str | os.PathLike[str], name: str, summary: pd.DataFrame, tests: pd.DataFrame) -> list[Path]:
    """Write NAME.md, NAME.csv, NAME.tex and NAME-tests.csv. A reader never sees half a file."""
    if not name or Path(name).name != name:
        raise ValueError(
            f"name must be a file name without ending and folder. Got {name!r}. Use folder for the folder."
        )
    texts = {
        f"{name}.md": to_markdown(summary, tests),
        f"{name}.csv": to_csv(summary),
        f"{name}.tex": to_latex(summary),
        f"{name}-tests.csv": to_csv(tests),
    }
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    return [_write(target / file, text) for file, text in texts.items()]


def _write(path: Path, text: str) -> Path:
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # same file system, so that replacing is one step
    try:
        beside.write_text(text, encoding="utf-8", newline="\n")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    return path
