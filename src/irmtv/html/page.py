"""One self-contained HTML page: content as plain data in, text out. Nothing is computed or fetched here.

The page opens offline, in light and dark, on a phone and on paper: its style and its script stand inside, its figures
are inline SVG, and a content security policy forbids it to load or run anything else. Without the script everything is
there to read; the script sorts tables, saves figures and opens what is folded before it is printed. `Content` is JSON
apart from the SVG strings, so what a page shows can be stored and compared.
"""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from irmtv.core.files import write_text
from irmtv.core.messages import readable
from irmtv.core.numbers import NO_VALUE
from irmtv.html.texts import MOST_ROWS, FigureData, csv_uri, file_name, numeric_columns, shown_cells
from irmtv.html.theme import definitions, on_dark, themed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")
Kind = Literal["good", "partly", "bad", "unknown", "plain"]
# pixels per point of a figure: where a screen has room for fewer, the figure scrolls in its box
READABLE, LARGEST = 0.8, 1.8
GENERATOR = '<meta name="generator" content="irmtv">'  # by which a page of ours is known


class Badge(TypedDict):
    """A verdict in a word or two."""

    text: str
    kind: Kind  # its colour; the text says the same, for those who do not see colours


class Block(TypedDict):
    """One thing in a section. Which keys it needs depends on `kind`; see `text`, `table`, `figure`, ..."""

    kind: Literal["text", "table", "figure", "formula", "code", "fold"]
    text: NotRequired[str]
    columns: NotRequired[Sequence[str]]
    numeric: NotRequired[Sequence[bool]]  # by column: set flush right
    rows: NotRequired[Sequence[Sequence[str]]]
    marks: NotRequired[Sequence[Kind]]  # by row: "plain" for none
    svg: NotRequired[str]
    alt: NotRequired[str]
    name: NotRequired[str]  # of the files of a figure; else that of its section
    data: NotRequired[FigureData]  # of a figure, for its CSV
    numbers: NotRequired[Block]  # of a figure: the table that is folded under it, else that of its data
    blocks: NotRequired[Sequence[Block]]  # that are folded away under `text`


class Section(TypedDict):
    """A part of a page with a title, to which a link leads."""

    id: str  # of the link to it
    title: str
    note: str  # beside the title: where it comes from
    badge: Badge | None
    blocks: Sequence[Block]


class Chapter(TypedDict):
    """Sections under one heading."""

    title: str
    sections: Sequence[Section]


class Number(TypedDict):
    """A number that says much, large."""

    name: str
    value: str
    note: str


class Headline(TypedDict):
    """The answer, before everything else."""

    badge: Badge
    text: str
    more: str  # "" for nothing; an empty line begins another paragraph
    numbers: Sequence[Number]
    command: NotRequired[str]  # to be copied


class Content(TypedDict):
    """Everything that a page shows."""

    title: str
    headline: NotRequired[Headline]
    lead: Sequence[str]  # paragraphs
    facts: Sequence[tuple[str, str]]  # name and value, at the top; a word and what it means here
    chapters: Sequence[Chapter]
    foot: str


def content(
    title: str,
    headline: Headline | None,
    facts: Sequence[tuple[str, str]],
    chapters: Mapping[str, Sequence[Section]],
    version: str,
    *,
    lead: Sequence[str] = (),
    source: str = "",
) -> Content:
    """A page of parts; facts without a value and chapters without a section are left out.

    `chapters`: sections by title; `version` of irmtv and `source` (" from the stored summary") stand in the foot.
    """
    made: Content = {
        "title": title,
        "lead": lead,
        "facts": [(name, value) for name, value in facts if value],
        "chapters": [{"title": name, "sections": sections} for name, sections in chapters.items() if sections],
        "foot": f"Made by irmtv {version}{source}. Nothing in this page was loaded from elsewhere.",
    }
    if headline is not None:
        made["headline"] = headline
    return made


def section(name: str, title: str, note: str, blocks: Sequence[Block], badge: Badge | None = None) -> Section:
    """A section; `name` is the end of the link to it, and `note` stands beside its title."""
    return {"id": name, "title": title, "note": note, "badge": badge, "blocks": blocks}


def text(paragraph: str) -> Block:
    """A paragraph."""
    return {"kind": "text", "text": paragraph}


def code(lines: str) -> Block:
    """Lines to be copied: a command, a settings file."""
    return {"kind": "code", "text": lines}


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: Sequence[bool] | None = None,
    marks: Sequence[Kind] | None = None,
) -> Block:
    """A table of texts; `numeric` columns are set flush right, and `marks` colour rows."""
    numeric = numeric or [False] * len(columns)
    marks = marks or ["plain"] * len(rows)
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"rows must have one cell per column: expected {len(columns)}. Got {len(row)}: {row!r}.")
    if len(numeric) != len(columns) or len(marks) != len(rows):
        raise ValueError(
            f"numeric must have one entry per column and marks one per row: expected {len(columns)} and {len(rows)}. "
            f"Got {len(numeric)} and {len(marks)}."
        )
    return {"kind": "table", "columns": columns, "rows": rows, "numeric": numeric, "marks": marks}


def table_of(
    items: Iterable[T],
    columns: Mapping[str, Callable[[T], str]],
    words: Collection[str] = (),
    marks: Sequence[Kind] | None = None,
) -> Block:
    """A table with a row per item: `columns` has each column's title and its cell; those in `words` are no numbers."""
    rows = [[cell(item) for cell in columns.values()] for item in items]
    return table(list(columns), rows, [title not in words for title in columns], marks)


def settings_table(settings: Mapping[str, Any]) -> Block:
    """Settings by their names."""
    return table(["setting", "value"], [[str(name), value_text(value)] for name, value in settings.items()])


def versions_table(*versions: Mapping[str, str]) -> Block:
    """Versions of packages; several sets stand side by side."""
    names = dict.fromkeys(name for one in versions for name in one)
    heads = ["version"] if len(versions) == 1 else [f"version {i + 1}" for i in range(len(versions))]
    return table(["package", *heads], [[name, *(one.get(name, NO_VALUE) for one in versions)] for name in names])


def value_text(value: Any) -> str:
    """A setting as text.

    >>> value_text([1, 0.5]), value_text({"a": None}), value_text(True)
    ('1, 0.5', 'a = none', 'yes')
    """
    if isinstance(value, (list, tuple)):
        return ", ".join(map(value_text, value)) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {value_text(v)}" for key, v in value.items()) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def fold(title: str, blocks: Sequence[Block]) -> Block:
    """Detail that a reader unfolds; it is printed."""
    return {"kind": "fold", "text": title, "blocks": blocks}


def figure(
    drawn: Figure,
    alt: str,
    *,
    name: str = "",
    data: FigureData | None = None,
    text: str = "",
    numbers: Block | None = None,
) -> Block:
    """A matplotlib figure, drawn as for white paper; the page gives it the reader's theme.

    `alt`: what it shows, for those who do not see it; `name`: of the files in which a reader may keep it, else that of
    its section; `data`: its numbers, a table in the page and a CSV to keep; `text`: how to read it, stands under it;
    `numbers`: a table in place of that of `data`, rounded and with units.
    """
    block: Block = {"kind": "figure", "svg": figure_svg(drawn, letters=True), "alt": alt, "text": text}
    if name:
        block["name"] = name
    if data is not None:
        block["data"] = data
    if numbers is not None:
        block["numbers"] = numbers
    return block


def formula(mathtext: str) -> Block:
    """A formula in matplotlib's mathtext, as a drawing; its source is what a screen reader gets."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(0.1, 0.1))
    drawn.text(0, 0, mathtext, fontsize=13, math_fontfamily="cm")
    return {"kind": "formula", "svg": figure_svg(drawn, tight=True), "alt": mathtext.replace("$", "")}


def figure_svg(drawn: Figure, tight: bool = False, letters: bool = False) -> str:
    """The figure as an SVG element that can stand in a page: no XML header, no date, the same at every call.

    `tight`: cut to what is drawn, without a ground, to stand among text. `letters`: texts stay texts, in whatever font
    the reader has, rather than outlines of letters: not for formulas, which need the fonts they are set in.
    """
    import matplotlib

    buffer = io.StringIO()
    without = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with (
        matplotlib.rc_context({"svg.hashsalt": "irmtv", "svg.fonttype": "none" if letters else "path"}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", r"Glyph \d+ ", UserWarning)  # the reader's fonts may have what ours have not
        warnings.filterwarnings("ignore", "constrained_layout not applied", UserWarning)  # labels leave little room
        drawn.savefig(
            buffer,
            format="svg",
            metadata=without,
            transparent=tight,
            bbox_inches="tight" if tight else None,
            pad_inches=0.01 if tight else 0.1,
        )
    found = re.search(r"<svg.*</svg>", buffer.getvalue(), re.DOTALL)
    assert found is not None
    return found.group()


class _Drawings:
    """The drawings of one page: each gets names of its own, and the colours of all are collected."""

    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self.colours: set[str] = set()

    def __call__(self, svg: str, letters_inside: bool = False) -> Markup:
        made, colours = themed(svg, f"d{next(self.numbers)}")
        self.colours |= colours
        width = re.search(r'<svg[^>]*?width="([\d.]+)pt"', made)
        if letters_inside and width is not None:
            least, most = READABLE * float(width[1]), LARGEST * float(width[1])
            made = made.replace("<svg ", f'<svg style="min-width: {least:.0f}px; max-width: {most:.0f}px" ', 1)
        return Markup(made)


@cache
def _resource(name: str) -> str:
    return resources.files("irmtv.html").joinpath("templates", name).read_text(encoding="utf-8")


@cache
def _template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader("irmtv.html"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: readable(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def page(content: Content) -> str:
    """The whole page as HTML text."""
    ids = [part["id"] for chapter in content["chapters"] for part in chapter["sections"]]
    twice = sorted({i for i in ids if ids.count(i) > 1})
    if twice:
        raise ValueError(f"every section's id must be its own, since links lead to it. Got more than one {twice[0]!r}.")
    drawing = _Drawings()
    body = _template("body.html").render(
        content=content,
        drawing=drawing,
        csv_uri=csv_uri,
        file_name=file_name,
        numeric_columns=numeric_columns,
        shown_cells=shown_cells,
        most_rows=MOST_ROWS,
    )
    script = _resource("page.js")
    return _template("page.html").render(
        title=content["title"],
        generator=Markup(GENERATOR),
        policy=_policy(script),
        style=Markup(_resource("page.css")),
        colours=Markup(definitions(drawing.colours)),
        dark_colours=Markup(definitions(drawing.colours, on_dark)),
        body=Markup(body),
        script=Markup(script),
    )


def write_page(content: Content, path: str | os.PathLike[str]) -> Path:
    """Write a page as a whole: the file is the old one or the new one, whatever happens meanwhile."""
    return write_text(Path(path), page(content))


def page_beside(model: Path) -> Path:
    """The page of a model file: "sales.irmtv" has "sales.html".

    >>> page_beside(Path("a/sales.irmtv")).name, page_beside(Path("sales.v2")).name
    ('sales.html', 'sales.v2.html')
    """
    return model.with_name(f"{model.name.removesuffix('.irmtv')}.html")


def check_page(path: Path, option: str = "--out") -> None:
    """Raise where a page would replace a file that is no page of ours; called before any work."""
    if path.is_file() and path.stat().st_size and not _is_our_page(path):
        raise ValueError(
            f"{option} must not replace a file that irmtv did not write. Got {str(path)!r}, which is another one. "
            f"Name another file with {option}, or move that one away."
        )


def _is_our_page(path: Path) -> bool:
    """By the mark in its head; by their foot, pages of versions that did not mark them."""
    written = path.read_bytes()
    return GENERATOR.encode() in written[:2000] or b"Nothing in this page was loaded from elsewhere." in written


def _policy(script: str) -> str:
    """Nothing is loaded, nothing is sent, and no script runs but the page's own."""
    own = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{own}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
