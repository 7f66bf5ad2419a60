"""How commands speak: results on standard output, everything else on standard error; JSON for programs; progress."""

from __future__ import annotations

import codecs
import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table

from irmtv.core.messages import printable

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

    from irmtv.core.progress_bar import ProgressBar

WIDE = 110  # columns of a terminal that has room for intervals
# words against what was expected, in a table
VERDICTS = {"worse": "worse", "perhaps worse": "worse?", "as expected": "as expected", "better": "better"}
STOPPED = "stopped; nothing was written. The same command starts again."


def terminal(stderr: bool = False, quiet: bool = False) -> Console:
    """Where commands print. Whatever text comes from files, it is text there: no colours, no cursor that moves."""
    console = Console(stderr=stderr, quiet=quiet, highlight=False)
    console.push_render_hook(_PlainText())
    return console


class _PlainText(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Plain(renderable) for renderable in renderables]


@dataclass(frozen=True)
class _Plain:
    renderable: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for text, style, control in console.render(self.renderable, options):
            yield Segment(text if control else printable(text), style, control)


def say(text: str) -> None:
    """A result: to standard output, in whole lines, so that a path or a label can be copied."""
    terminal().print(text, markup=False, soft_wrap=True)


class TerminalBytes(io.BytesIO):
    """Standard output for a table that is written as UTF-8, where it is a terminal: text there, too."""

    def __init__(self) -> None:
        super().__init__()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, data: Buffer) -> int:
        sys.stdout.write(printable(self._decoder.decode(bytes(data))))
        return len(memoryview(data))


def paragraph(text: str) -> None:
    """A result in words: wrapped at the width of the terminal, with an empty line after it."""
    sentence(f"{text}\n")


def sentence(text: str) -> None:
    """A result in words: wrapped at the width of the terminal, 80 columns where there is none."""
    terminal().print(text, markup=False)


def note(text: str) -> None:
    """What is done, and what went wrong: to standard error."""
    terminal(stderr=True).print(text, markup=False, soft_wrap=True)


def notes(texts: Iterable[str]) -> None:
    """Remarks about a result."""
    for text in texts:
        note(f"note: {text}")


def written(*paths: Path) -> None:
    """Which files were written."""
    note("written: " + ", ".join(map(str, paths)))


def print_json(value: Any) -> None:
    """JSON that every reader takes: numbers that are not finite are null, and signs that hide are written out."""
    from irmtv.core.plain_json import json_text

    text = json_text(value, indent=2)
    hidden = {c for c in set(text) if c != "\n" and printable(c) != c}
    print("".join(f"\\u{ord(c):04x}" if c in hidden else c for c in text) if hidden else text)


def text_table(columns: Sequence[str], title: str | None = None) -> Table:
    """An empty table whose first column has names, which may take several lines, and whose others have numbers."""
    made = Table(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for i, name in enumerate(columns):
        least = None if i else min(len(name), 12)  # a heading of one word is not broken
        made.add_column(name, justify="right" if i else "left", overflow="fold", no_wrap=i > 0, min_width=least)
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
    """A progress bar on standard error; where that is no terminal, a line every ten seconds.

    Ctrl-C ends the command with exit code 130 and says `stopped`.
    """
    from irmtv.core.progress_bar import ProgressBar

    try:
        with ProgressBar(title, console=terminal(stderr=True, quiet=quiet), lines=True) as bar:
            yield bar
    except KeyboardInterrupt:
        note(f"irmtv: {stopped}")
        raise typer.Exit(130) from None
