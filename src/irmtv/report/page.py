"""One self-contained HTML page: content as plain data in, text out. Nothing is computed or fetched here.

The page opens offline, in light and dark, on a phone and on paper: its style stands inside, its figures are inline SVG,
and there is no script. `Content` is JSON apart from the SVG strings, so what a page shows can be stored and compared.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kind = Literal["good", "partly", "bad", "unknown", "plain"]


class Badge(TypedDict):
    text: str
    kind: Kind  # its colour; the text says the same, for those who do not see colours


class Block(TypedDict):
    """One thing in a section. Which keys it needs depends on `kind`; see `text`, `table`, `figure`, `formula`."""

    kind: Literal["text", "table", "figure", "formula"]
    text: NotRequired[str]
    columns: NotRequired[Sequence[str]]
    numeric: NotRequired[Sequence[bool]]  # by column: set flush right
    rows: NotRequired[Sequence[Sequence[str]]]
    marks: NotRequired[Sequence[Kind]]  # by row: "plain" for none
    svg: NotRequired[str]
    alt: NotRequired[str]


class Section(TypedDict):
    id: str  # of the link to it
    title: str
    note: str  # beside the title: where it comes from
    badge: Badge | None
    blocks: Sequence[Block]


class Chapter(TypedDict):
    title: str
    sections: Sequence[Section]


class Content(TypedDict):
    title: str
    lead: Sequence[str]  # paragraphs
    facts: Sequence[tuple[str, str]]  # name and value, at the top
    chapters: Sequence[Chapter]
    foot: str


def text(paragraph: str) -> Block:
    return {"kind": "text", "text": paragraph}


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: Sequence[bool] | None = None,
    marks: Sequence[Kind] | None = None,
) -> Block:
    """Cells are text: how a number is rounded is known to whoever made it."""
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


def figure(drawn: Figure, alt: str) -> Block:
    """A matplotlib figure; `alt` says in words what it shows, for those who do not see it."""
    return {"kind": "figure", "svg": figure_svg(drawn), "alt": alt}


def formula(mathtext: str) -> Block:
    """A formula in matplotlib's mathtext, as a drawing; its source is what a screen reader gets."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(0.1, 0.1))
    drawn.text(0, 0, mathtext, fontsize=13, math_fontfamily="cm")
    return {"kind": "formula", "svg": figure_svg(drawn, tight=True), "alt": mathtext.replace("$", "")}


def figure_svg(drawn: Figure, tight: bool = False) -> str:
    """The figure as an SVG element that can stand in a page: no XML header, no date, the same at every call.

    `tight`: cut to what is drawn, without a ground, to stand among text.
    """
    import matplotlib

    buffer = io.StringIO()
    without = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context({"svg.hashsalt": "irmtv"}):
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


def _with_own_names(svg: str, prefix: str) -> str:
    """Its ids, and what refers to them, with a prefix: two drawings in one page must not share names."""
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    return re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", svg)


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("irmtv.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")


def page(content: Content) -> str:
    """The whole page as HTML text."""
    ids = [section["id"] for chapter in content["chapters"] for section in chapter["sections"]]
    twice = sorted({i for i in ids if ids.count(i) > 1})
    if twice:
        raise ValueError(f"every section's id must be its own, since links lead to it. Got more than one {twice[0]!r}.")
    numbers = itertools.count(1)

    def drawing(svg: str) -> Markup:
        return Markup(_with_own_names(svg, f"d{next(numbers)}"))

    return _template().render(content=content, drawing=drawing)
