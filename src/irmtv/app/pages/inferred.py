"""The environments that were found: over one aux column as curves, over two as a map, over more one by one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from irmtv.app.fit.summary import Inferred
from irmtv.core.numbers import several, short
from irmtv.html import drawing, page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS, FEW_BINS = 60, 24  # of a curve; of each where there are several
MOST_PANELS = 9  # aux columns that are drawn
# probability of the first of two environments, in classes that differ in colour and in shape
CLASSES = (
    (0.2, drawing.BLUE, "o"),
    (0.4, drawing.SKY, "^"),
    (0.6, "#8a8a8a", "s"),
    (0.8, drawing.ORANGE, "v"),
    (1.0, drawing.VERMILION, "D"),
)


def inferred_figure(inferred: Inferred) -> page.Block:
    """Membership of the environments against aux: a curve, a map, or small multiples."""
    points = _matrix(inferred["points"], len(inferred["aux"]))
    membership = _matrix(inferred["membership"], len(inferred["names"]))
    whole = np.isfinite(points).all(1) & np.isfinite(membership).all(1)
    points, membership = points[whole], membership[whole]
    n_aux = len(inferred["aux"])
    if n_aux == 2:
        north_up = [name.lower()[:3] for name in inferred["aux"]] in (["lat", "lon"], ["lat", "lng"])
        made, text = _map(inferred, points, membership, (1, 0) if north_up else (0, 1))
    else:
        made, text = _curves(inferred, points, membership)
    shares = membership.mean(0) if len(membership) else np.full(len(inferred["names"]), np.nan)
    by_name = "; ".join(
        f"{name}: {short(float(s), 100, ' %')} of the rows" for name, s in zip(inferred["names"], shares, strict=True)
    )
    kind = "A map" if n_aux == 2 else "A curve" if n_aux == 1 else "Curves"
    aux = " and ".join(inferred["aux"][:3]) + (" and others" if n_aux > 3 else "")
    alt = (
        f"{kind} of the probability of {several(len(inferred['names']), 'environment')} that were found, "
        f"against {aux}, at {several(len(points), 'row')}. {by_name}. "
        f"{_where(inferred, points, membership)}"
    )
    columns = [*inferred["aux"], *(f"probability of {name}" for name in inferred["names"])]
    rows = [[*map(float, p), *map(float, q)] for p, q in zip(points, membership, strict=True)]
    return page.figure(
        made, alt.strip(), name="inferred-environments", data={"columns": columns, "rows": rows}, text=text
    )


def _matrix(rows: Sequence[Sequence[float | None]], width: int) -> drawing.Floats:
    return np.array([drawing.floats(row) for row in rows], dtype=np.float64).reshape(len(rows), width)


def binned(x: drawing.Floats, y: drawing.Floats, bins: int = BINS) -> tuple[drawing.Floats, drawing.Floats]:
    """Means of y over at most `bins` groups of neighbouring x: a curve, whatever else y depends on.

    Examples
    --------
    >>> x, y = binned(np.array([2.0, 1.0, 1.0]), np.array([5.0, 0.0, 1.0]))
    >>> x.tolist(), y.tolist()
    ([1.0, 2.0], [0.5, 5.0])
    """
    values, group = np.unique(x, return_inverse=True)
    if len(values) > bins:
        edges = np.unique(np.quantile(x, np.linspace(0, 1, bins + 1)))
        group = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, len(edges) - 2)
    n = np.bincount(group)
    there = n > 0
    at, mean = (np.bincount(group, v)[there] / n[there] for v in (x, y))
    return at, mean


def _curves(inferred: Inferred, points: drawing.Floats, membership: drawing.Floats) -> tuple[Figure, str]:
    n = min(len(inferred["aux"]), MOST_PANELS)
    columns = 1 if n <= 1 else 2 if n <= 4 else 3
    rows = max(1, -(-n // columns))
    made = drawing.new_figure(3.3 if rows == 1 and columns == 1 else 0.6 + 1.9 * rows)
    axes = made.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    handles: list[Any] = []
    for a in range(n):
        handles = _curve(axes[a], points[:, a], membership, BINS if n == 1 else FEW_BINS)
        title = _axis(inferred, a)
        drawing.plain_axes(axes[a], x=title, y="probability" if a % columns == 0 else "", grid="y")
        axes[a].set_ylim(-0.04, 1.04)
        axes[a].locator_params(axis="x", nbins=5 if columns == 1 else 3)
    for empty in axes[n:]:
        empty.set_visible(False)
    if handles:
        drawing.legend(made, handles, [drawing.label(name, 20) for name in inferred["names"][: len(handles)]])
    text = "Probability of each environment, averaged over neighbouring rows."
    if len(inferred["aux"]) > 1:
        text += " Each panel shows one aux column; the others vary as they do in the data."
    if len(inferred["aux"]) > n:
        text += f" The first {n} of {len(inferred['aux'])} columns; the CSV has all."
    return made, text


def _curve(ax: Axes, x: drawing.Floats, membership: drawing.Floats, bins: int) -> list[Any]:
    handles = []
    for e in range(membership.shape[1]):
        style = drawing.STYLES[e % len(drawing.STYLES)]
        at, mean = binned(x, membership[:, e], bins) if len(x) else (x, x)
        every = (e % 4, max(1, len(at) // 8))
        handles.append(drawing.line(ax, at, mean, style, lw=1.6, ms=3.5, markevery=every))
    return handles


def _map(
    inferred: Inferred, points: drawing.Floats, membership: drawing.Floats, axes: tuple[int, int]
) -> tuple[Figure, str]:
    """`axes`: which aux column runs to the right, and which one up."""
    points = points[:, axes]
    made = drawing.new_figure(4.3)
    ax = made.subplots()
    handles, names = [], []
    size = 3.8 if len(points) > 300 else 5
    if len(inferred["names"]) == 2:
        group = np.digitize(membership[:, 0], [upper for upper, _, _ in CLASSES[:-1]])
        kinds = [
            (f"{100 * upper - 20:.0f} to {100 * upper:.0f} %", colour, marker) for upper, colour, marker in CLASSES
        ]
        text = f"Each point is a row; colour and shape say how likely it belongs to {inferred['names'][0]}."
    else:
        group = membership.argmax(1) if len(membership) else np.zeros(0, dtype=np.intp)
        styles = itertools.cycle(drawing.STYLES)
        kinds = [
            (drawing.label(name, 20), style.colour, style.marker)
            for name, style in zip(inferred["names"], styles, strict=False)
        ]
        text = "Each point is a row; colour and shape say to which environment it most likely belongs."
    for k, (name, colour, marker) in enumerate(kinds):
        x, y = points[group == k].T
        (dots,) = ax.plot(x, y, marker, color=colour, ms=size, mec="#ffffff", mew=0.3, ls="none")
        handles.append(dots)
        names.append(name)
    drawing.plain_axes(ax, x=_axis(inferred, axes[0]), y=_axis(inferred, axes[1]))
    ax.grid(color="#eceff2", lw=0.7)
    ax.locator_params(axis="x", nbins=5)
    drawing.legend(made, handles, names, columns=3)
    return made, text


def _axis(inferred: Inferred, a: int) -> str:
    is_date = a < len(inferred["is_date"]) and inferred["is_date"][a]
    return drawing.label(inferred["aux"][a]) + (" (year)" if is_date else "")


def _where(inferred: Inferred, points: drawing.Floats, membership: drawing.Floats) -> str:
    """In words: where along the aux column that tells most the first environment is likely and where not."""
    if len(points) < 3 or membership.shape[1] < 2:
        return ""
    q = membership[:, 0]
    with np.errstate(invalid="ignore", divide="ignore"):
        related = np.array([abs(np.corrcoef(x, q)[0, 1]) if x.std() > 0 and q.std() > 0 else 0.0 for x in points.T])
    a = int(np.argmax(related))
    likely = q > 0.5
    if not likely.any() or likely.all() or related[a] < 0.2:
        return ""
    medians = [float(np.median(points[rows, a])) for rows in (likely, ~likely)]
    return (
        f"Rows of {inferred['names'][0]} have a median {inferred['aux'][a]} of {short(medians[0])}, others of "
        f"{short(medians[1])}."
    )
