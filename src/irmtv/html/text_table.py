"""A table of texts, for the terminal and as Markdown; a report's tables as files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from irmtv.core.files import write_files
from irmtv.core.messages import printable
from irmtv.core.plain_json import json_text

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class TextTable:
    """Rows of short texts; the first columns have labels, the others numbers.

    Examples
    --------
    >>> print(TextTable("Shares", ("method", "%"), (("ERM", "27.4"),)).markdown())
    ### Shares
    <BLANKLINE>
    | method | % |
    | --- | ---: |
    | ERM | 27.4 |
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    labels: int = 1  # how many columns have labels
    wide: bool = False  # too wide for a terminal: in files alone

    def markdown(self) -> str:
        """As GitHub reads it."""
        lines = [f"### {self.title}", "", f"| {' | '.join(self.columns)} |"]
        lines += [f"| {' | '.join('---' if i < self.labels else '---:' for i in range(len(self.columns)))} |"]
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        lines += ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n".join(lines)

    def show(self, console: Console) -> None:
        """Print it."""
        made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
        for i, column in enumerate(self.columns):
            if i < self.labels:
                made.add_column(Text(column))
            else:  # the heading takes as many lines as it has words: the numbers decide the width
                made.add_column(Text(column.replace(" ", "\n")), justify="right")
        for row in self.rows:
            made.add_row(*map(Text, row))
        console.print(Text(self.title, style="bold"))
        console.print(made)
        for note in self.notes:
            console.print(Padding(Text(note), (0, 0, 0, 2), expand=False))
        console.print()


def tables_markdown(title: str, tables: Iterable[TextTable]) -> str:
    """All tables under one heading."""
    return "\n\n".join([f"## {title}", *(t.markdown() for t in tables)]) + "\n"


def frame_csv(table: pd.DataFrame) -> str:
    """As CSV, every digit kept; labels come from files: signs that hide are replaced as in a terminal."""
    return printable(table.to_csv(index=False, lineterminator="\n"))


def write_tables(
    folder: str | os.PathLike[str], name: str, markdown: str, table: pd.DataFrame, numbers: Mapping[str, Any]
) -> list[Path]:
    """NAME.md, .csv and .json."""
    numbers_text = json_text(numbers, indent=1) + "\n"
    return write_files(folder, {f"{name}.md": markdown, f"{name}.csv": frame_csv(table), f"{name}.json": numbers_text})
