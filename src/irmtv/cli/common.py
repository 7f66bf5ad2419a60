"""What the commands share: options with one meaning and one help text, printing, progress.

Results go to standard output, everything else to standard error; `--json` prints JSON for programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from irmtv.engine.progress_bar import ProgressBar

ModelPath = Annotated[Path, typer.Argument(help="Model file written by irmtv fit.")]
DataPath = Annotated[Path, typer.Argument(help="Table: CSV or TSV (also .gz), or Parquet.")]
Target = Annotated[str, typer.Option(help="Column to predict.")]
Environment = Annotated[
    list[str] | None,
    typer.Option("--environment", "-e", help="Column (or columns, a,b) that says where each row comes from."),
]
TaskKind = Annotated[
    str | None, typer.Option("--task", help="binary, multiclass or regression (default: read off the target).")
]
Encoding = Annotated[str | None, typer.Option(help="Text encoding, e.g. latin-1 (default: UTF-8).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

STOPPED = "stopped; nothing was written. The same command starts again."


def column_names(given: Sequence[str] | None, columns: Iterable[object]) -> list[str]:
    """Options such as `--aux year,lat` or `--aux year --aux lat`; a column whose own name has a comma is one name."""
    known = {str(c) for c in columns}
    names = [
        part.strip() if part not in known else part
        for text in given or ()
        for part in ([text] if text in known else text.split(","))
    ]
    return list(dict.fromkeys(name for name in names if name))


# --- printing -----------------------------------------------------------------------------------------------


def say(text: str) -> None:
    """A result: to standard output, as it is, in whole lines, so that a path or a label can be copied."""
    Console(highlight=False).print(text, markup=False, soft_wrap=True)


def note(text: str) -> None:
    """What is done, and what went wrong: to standard error."""
    Console(stderr=True, highlight=False).print(text, markup=False, soft_wrap=True)


def notes(texts: Iterable[str]) -> None:
    """Remarks about a result."""
    for text in texts:
        note(f"note: {text}")


def written(*paths: Path) -> None:
    """Which files were written."""
    note("written: " + ", ".join(map(str, paths)))


def print_json(value: Any) -> None:
    """JSON that every reader takes: numbers that are not finite are null."""
    from irmtv.core.plain_json import json_text

    print(json_text(value, indent=2))


def text_table(columns: Sequence[str], title: str | None = None) -> Table:
    """An empty table whose first column has names and whose others have numbers."""
    made = Table(title=title, title_justify="left", title_style="")
    for i, name in enumerate(columns):
        made.add_column(name, justify="right" if i else "left", overflow="fold")
    return made


def add_rows(table: Table, rows: Sequence[Sequence[str]], most: int, where: str = "") -> None:
    """The first rows of a long table, and how many more there are; `where`: they are to be found."""
    for row in rows[:most]:
        table.add_row(*map(escape, row))
    if len(rows) > most:
        table.add_row(f"... and {len(rows) - most} more{where}")


# --- progress -----------------------------------------------------------------------------------------------


@contextmanager
def progress(title: str, stopped: str = STOPPED, quiet: bool = False) -> Iterator[ProgressBar]:
    """A progress bar on standard error; Ctrl-C ends the command with exit code 130 and says `stopped`."""
    from irmtv.engine.progress_bar import ProgressBar

    try:
        with ProgressBar(title, console=Console(stderr=True, highlight=False, quiet=quiet)) as bar:
            yield bar
    except KeyboardInterrupt as error:
        note(f"irmtv: {error if str(error) else stopped}")
        raise typer.Exit(130) from None
