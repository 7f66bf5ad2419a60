"""The one style of figures: a width that a phone shows in full; colours, markers and dashes that all can tell apart.

No pyplot: nothing global is touched, and a figure is freed by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from irmtv.core.messages import readable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

WIDTH = 4.8  # inches: a phone shows a point as about a pixel
INK, SOFT, LINE, TINT = "#1c2126", "#59636e", "#d9dee3", "#fdf3d0"
# colours that can be told apart by everyone (Okabe and Ito)
BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE = "#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7"
SMALL, TEXT = 8.2, 9.2  # points


class Style(NamedTuple):
    """How one kind of thing is drawn, in every figure: it differs from others in more than its colour."""

    colour: str
    marker: str
    dash: Any
    hatch: str


PLAIN = Style(ORANGE, "s", (0, (4, 2)), "////")  # ERM
CHOSEN = Style(BLUE, "o", "solid", "")
STYLES = (
    CHOSEN,
    Style(VERMILION, "^", (0, (5, 2)), "\\\\\\\\"),
    Style(GREEN, "D", (0, (1, 1.5)), "...."),
    Style(PURPLE, "v", (0, (5, 2, 1, 2)), "xxxx"),
    Style(ORANGE, "s", (0, (8, 2)), "////"),
    Style(SKY, "P", (0, (3, 1, 1, 1, 1, 1)), "++++"),
    Style(SOFT, "X", (0, (2, 2)), "||||"),
)


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """An empty figure that finds its own margins; `height` in inches."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained", facecolor="#ffffff")
    engine = made.get_layout_engine()
    assert engine is not None
    engine.set(w_pad=0.07, h_pad=0.06)  # type: ignore[call-arg]  # of the constrained layout
    return made


def plain_axes(axes: Axes, title: str = "", x: str = "", y: str = "", grid: str = "") -> Axes:
    """Axes with labels, without a box; `grid`: the lines that help to read off "x" or "y"."""
    axes.set_title(title, fontsize=TEXT, color=INK, loc="left", fontweight="bold")
    axes.set_xlabel(x, fontsize=TEXT, color=SOFT)
    axes.set_ylabel(y, fontsize=TEXT, color=SOFT)
    axes.tick_params(labelsize=SMALL, colors=SOFT, labelcolor=INK, length=3)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(SOFT)
        spine.set_linewidth(0.8)
    if grid:
        axes.grid(axis="x" if grid == "x" else "y", color=LINE, lw=0.7)
    axes.set_axisbelow(True)
    return axes


def legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str], columns: int = 3) -> None:
    """A legend above everything, where it hides nothing."""
    figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=min(columns, len(labels)),
        frameon=False,
        fontsize=SMALL,
        labelcolor=INK,
        handlelength=2.6,
        columnspacing=1.4,
        markerscale=1.3,
    )


def label(name: object, most: int = 26) -> str:
    """A name of the user's in a figure: one line, not too long, and no formula.

    Examples
    --------
    >>> label("a rather long name of a feature"), label("5 $"), label("two\\nlines")
    ('a rather long name of a fe…', '5 \\\\$', 'two lines')
    """
    text = printable(name)
    return (text if len(text) <= most + 1 else text[:most].rstrip() + "…").replace("$", r"\$")


def printable(name: object) -> str:
    """A text in one line, without what cannot stand in a drawing."""
    return readable(" ".join(str(name).split()))


def floats(values: Sequence[float | None]) -> Floats:
    """An array with NaN for None."""
    return np.array([math.nan if v is None else float(v) for v in values], dtype=np.float64)


def known(values: Sequence[float | None]) -> bool:
    """Whether there is any number among the values."""
    return bool(np.isfinite(floats(values)).any()) if len(values) else False


def error_bars(values: Floats, low: Floats, high: Floats) -> Floats:
    """(2, n): how far an interval reaches to either side, 0 where there is none."""
    reach = np.stack([values - low, high - values])
    return np.asarray(np.where(np.isfinite(reach), np.maximum(reach, 0.0), 0.0))


def estimates(rows: Sequence[Any], factor: float = 1.0) -> tuple[Floats, Floats, Floats]:
    """Values, lower and upper ends of estimates (`irmtv.core.numbers.Estimate`), NaN for None."""
    value, low, high = (factor * floats([row[key] for row in rows]) for key in ("value", "low", "high"))
    return value, low, high


def row_figure(n: int, margin: float, per_row: float) -> tuple[Figure, Axes, Floats]:
    """A figure of n rows one below the other, its axes, and where the rows stand; heights in inches."""
    made = new_figure(margin + per_row * n)
    return made, made.subplots(), -np.arange(n, dtype=np.float64)


def line(axes: Axes, x: Floats, y: Floats, style: Style, **more: Any) -> Any:
    """A line with markers. Returns what a legend shows."""
    (drawn,) = axes.plot(x, y, color=style.colour, ls=style.dash, marker=style.marker, **more)
    return drawn


def bars(
    axes: Axes, place: Floats, values: Floats, height: float, style: Style, ends: tuple[Floats, Floats] | None = None
) -> Any:
    """Horizontal bars, none where there is no value; `ends` of their intervals. Returns what a legend shows."""
    there = np.isfinite(values)
    whiskers: dict[str, Any] = {}
    if ends is not None:
        whiskers = {"xerr": error_bars(values, *ends)[:, there], "error_kw": {"ecolor": INK, "lw": 0.9, "capsize": 1.8}}
    return axes.barh(
        place[there],
        values[there],
        height,
        color=style.colour,
        hatch=style.hatch,
        edgecolor="#ffffff",
        linewidth=0.0,
        **whiskers,
    )


def points(axes: Axes, place: Floats, rows: tuple[Floats, Floats, Floats], colour: str, size: float) -> None:
    """Points with intervals, one above the other; `rows` as `estimates` gives them."""
    value, low, high = rows
    axes.errorbar(
        value,
        place,
        xerr=error_bars(value, low, high),
        fmt="o",
        color=colour,
        ms=size,
        elinewidth=1.1,
        capsize=2,
        ls="none",
    )


def name_rows(axes: Axes, place: Floats, names: Sequence[str], air: float = 0.6) -> None:
    """Names beside the rows of a figure, the first on top."""
    axes.set_yticks(place, names)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(place[-1] - air, place[0] + air)


def zero_line(axes: Axes) -> None:
    axes.axvline(0, color=SOFT, lw=0.8)


def second_panel(axes: Axes, x: str, most_ticks: int) -> None:
    """A panel of differences beside one that already names the rows."""
    plain_axes(axes, x=x, grid="x")
    zero_line(axes)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0, labelleft=False)
    few_ticks(axes, most_ticks)


def turn_ticks(axes: Axes, degrees: float) -> None:
    """Names under the x axis that are too long to stand side by side."""
    axes.tick_params(axis="x", rotation=degrees)
    for tick in axes.get_xticklabels():
        tick.set_horizontalalignment("right")
        tick.set_rotation_mode("anchor")


def few_ticks(axes: Axes, most: int) -> None:
    """At most `most` numbers along x, written out, so that they do not touch."""
    axes.locator_params(axis="x", nbins=most)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}".replace("-", "−"))


def room(axes: Axes, values: Floats, zero: bool = False) -> None:
    """Limits of x with some air around the values; `zero`: from zero on, as bars need."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    width = (high - low) or abs(high) or 1.0
    axes.set_xlim(low - (0.0 if zero and low == 0.0 else 0.06 * width), high + 0.06 * width)
