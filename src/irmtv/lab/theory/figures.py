"""How the figures of the statements look: wider than those of reports, with two or three panels side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from irmtv.html.drawing import BLUE, GREEN, ORANGE, VERMILION

# The colours of all reports, by what they stand for throughout.
LEFT, RIGHT = BLUE, VERMILION  # the two sides of an equation
L1, L2, ERM, TRUTH, OTHER = BLUE, ORANGE, "#777777", "#222222", GREEN
BAD = "#CC3311"


def new_figure(size: tuple[float, float]) -> Figure:
    """An empty figure that finds its own margins."""
    return Figure(figsize=size, layout="constrained")


def plain(axes: Axes, title: str = "", x: str = "", y: str = "", **limits: tuple[float, float]) -> Axes:
    """Axes with labels and without a box; `xlim` and `ylim` are their limits."""
    axes.set(**limits)
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def legend(axes: Axes, **settings: Any) -> None:
    """A small legend without a box."""
    axes.legend(fontsize=7, frameon=False, **settings)


def grid_axis(axes: Axes, counts: Sequence[int]) -> None:
    """A logarithmic x axis that names the grids and nothing else."""
    axes.set_xticks(list(counts), [f"{n}" for n in counts])
    axes.set_xticks([], minor=True)
