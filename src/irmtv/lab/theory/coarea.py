"""The coarea formula of the risk (proposition on IRM-TV-l1) for risks in closed form, on one and two classifier axes.

    int_Omega |grad R(w)| dw  =  int size{ w in Omega : R(w) = gamma } dgamma

with size the number of points in one dimension and the length of the contour in two. The left side is a quadrature of
the gradient over w. The right side never sees a gradient: it counts crossings, or measures contours that marching
squares finds from values of R, and integrates over gamma. What the errors must do as the grid of n cells is refined:

- left: order 2, the midpoint rule; a kink of |grad R|, where R turns, costs h^2 as well.
- right, one dimension, n levels: order 1. The number of crossings is a step function of gamma, with a step at every
  critical value of R; a rule with equal steps misses each by at most one step.
- right, two dimensions, n^(4/3) levels: order 2. Chords are shorter than arcs by h^2; near an extreme value of R the
  length goes like the square root of gamma, for which the midpoint rule has order 3/2 in the step, (n^(4/3))^(3/2).

In one dimension an error depends on where the grid happens to lie: root mean squares over shifted grids are taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
from contourpy import contour_generator
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.integrate import quad
from scipy.optimize import minimize_scalar

from irmtv.lab.theory.figures import LEFT, RIGHT, TRUTH, grid_axis, legend, plain
from irmtv.lab.theory.finding import Result, beyond, claim, equal, ours, statement
from irmtv.lab.theory.sides import Floats, Function, Surface, fitted_order, length
from irmtv.lab.theory.variation import pixel_centres

LABEL = "Proposition 3.6 (prop:IRMTVL1coarea)"
FORMULA = (
    r"$\int_\Omega|\nabla_w R|\,d\nu=\int_{-\infty}^{\infty}\int_{\{w\in\Omega:\,R(w\circ\Phi)=\gamma\}}ds\,d\gamma$"
)
Crossings = Callable[[Floats, Floats, Floats | None], Floats]
ContourLengths = Callable[[Floats, Floats, Floats], Floats]
SHIFTS = 64  # of the grid, over which an error in one dimension is averaged


def crossings(values: Floats, levels: Floats, weight: Floats | None = None) -> Floats:
    """How often the polygon through `values` (n + 1,) takes each of the `levels` (M,): (M,).

    `weight` (n,) is what a crossing in each cell counts. A level that is itself one of the values is met on one side.
    """
    each = np.ones(len(values) - 1) if weight is None else weight

    def below(ends: Floats) -> Floats:  # the weight of the cells whose end lies below each level
        by_end = np.argsort(ends)
        passed = np.concatenate([[0.0], np.cumsum(each[by_end])])
        total: Floats = passed[np.searchsorted(ends[by_end], levels)]
        return total

    return below(np.minimum(values[1:], values[:-1])) - below(np.maximum(values[1:], values[:-1]))


def contour_lengths(axis: Floats, values: Floats, levels: Floats) -> Floats:
    """Lengths of the contours of `values` (n, n) over `axis` x `axis` at each of the `levels`, by marching squares."""
    contours = contour_generator(axis, axis, values)

    def total(level: float) -> float:
        lines = cast("list[Floats]", contours.lines(level))
        return sum(float(np.hypot(*np.diff(line, axis=0).T).sum()) for line in lines)

    return np.array([total(level) for level in levels])


def level_side(values: Floats, count: int, size: Function, shift: float = 0.5) -> float:
    """int size dgamma over the range of `values`, by `count` equally spaced levels."""
    low, high = float(values.min()), float(values.max())
    levels = low + (high - low) * (np.arange(count) + shift) / count
    return float((high - low) * np.mean(size(levels)))


def every_crossing(level_size: Crossings, values: Floats) -> Function:
    """Levels to their number of crossings, each counted as one."""
    return lambda levels: level_size(values, levels, None)


def between_turns(risk: Function, domain: tuple[float, float]) -> tuple[float, Floats]:
    """Total variation on an interval from values alone: what R climbs and falls between its turning points.

    Also returns the turning points, found by refining the extremes of a fine grid.
    """
    w = np.linspace(*domain, 4001)
    rising = np.diff(risk(w)) > 0
    turns = [domain[0]]
    for i in np.flatnonzero(rising[1:] != rising[:-1]):
        sign = -1.0 if rising[i] else 1.0  # a maximum is the minimum of -R
        found = minimize_scalar(
            lambda t, sign=sign: sign * float(risk(np.array([t]))[0]),
            bounds=(w[i], w[i + 2]),
            method="bounded",
            options={"xatol": 1e-9},
        )
        turns.append(float(found.x))
    at = np.array([*turns, domain[1]])
    return float(np.abs(np.diff(risk(at))).sum()), at[1:-1]


def _risk_1d(w: Floats) -> Floats:
    return 0.25 * (w**2 - 1) ** 2 + 0.3 * np.sin(4 * w) + 0.1 * w


def _gradient_1d(w: Floats) -> Floats:
    return w * (w**2 - 1) + 1.2 * np.cos(4 * w) + 0.1


def _risk_2d(a: Floats, b: Floats) -> Floats:
    return 0.25 * (a**2 - 1) ** 2 + 0.4 * b**2 + 0.3 * np.sin(3 * a) * np.cos(2 * b)


def _gradient_2d(a: Floats, b: Floats) -> Floats:
    return np.stack(
        [a * (a**2 - 1) + 0.9 * np.cos(3 * a) * np.cos(2 * b), 0.8 * b - 0.6 * np.sin(3 * a) * np.sin(2 * b)]
    )


def _around_one(w: Floats) -> Floats:
    """A density on the classifiers: most environments have w near 1."""
    return np.exp(-8 * (w - 1) ** 2)


@statement("Coarea formula, one classifier variable", LABEL, formula=FORMULA, size=(7.2, 2.7))
def coarea_1d(
    risk: Function = _risk_1d,
    gradient: Function = _gradient_1d,
    domain: tuple[float, float] = (-1.8, 1.8),
    level_size: Crossings = crossings,
    density: Function = _around_one,
    cells: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048),
    levels: int = 1 << 17,
) -> Result:
    """With Lebesgue's measure on the classifiers w, the integral of |dR/dw| equals the integral over all levels gamma
    of the number of w at which the risk is gamma.

    Both sides of the coarea formula for a risk R(w) of one variable that rises and falls several times. `risk` and its
    derivative `gradient` map (n,) to (n,). `density` is another measure on `domain`, for the case in which nu is not
    Lebesgue's (rescaled here to the same total mass). Under test: `gradient`, and `level_size(values, levels, weight)`,
    which counts the w with R(w) = gamma from values on a grid (weight None).
    """
    _check(domain, cells)
    low, high = domain
    left, right = np.empty((len(cells), SHIFTS)), np.empty((len(cells), SHIFTS))
    for i, n in enumerate(cells):
        for k in range(SHIFTS):
            w = np.concatenate([[low], low + (high - low) / n * (np.arange(n) + (k + 0.5) / SHIFTS), [high]])
            left[i, k] = np.abs(gradient((w[1:] + w[:-1]) / 2)) @ np.diff(w)
            values = risk(w)  # (n + 2,)
            shift = (k + 0.5) * (np.sqrt(5) - 1) / 2 % 1  # spread evenly, out of step with the shifts of w
            right[i, k] = level_side(values, n, every_crossing(level_size, values), shift)
    exact, turns = between_turns(risk, domain)
    rms_left, rms_right = (np.sqrt(((side - exact) ** 2).mean(1)) for side in (left, right))
    orders = fitted_order(cells, rms_left), fitted_order(cells, rms_right)

    w = np.linspace(low, high, cells[-1] + 1)
    middle, width = (w[1:] + w[:-1]) / 2, (high - low) / cells[-1]
    values = risk(w)
    fine_left = float(np.abs(gradient(middle)).sum() * width)
    fine_right = level_side(values, levels, every_crossing(level_size, values))
    # Another measure: nu has density p against Lebesgue's, with the same mass.
    mass = quad(lambda t: float(density(np.array([t]))[0]), low, high)[0]
    p = density(middle) * (high - low) / mass
    dense_left = float((np.abs(gradient(middle)) * p).sum() * width)
    dense_right = level_side(values, levels, lambda g: level_size(values, g, p))

    name = f"counting, {levels:,} levels"
    # At most one level step is missed per end of a monotone piece, and h^2 |R''| / 8 of w at every turn: below 1e-4.
    close = 1e-4 * exact
    comparisons = (
        claim("Lebesgue measure", equal("∫|R'| dw", fine_left, name, fine_right, close)),
        ours("left side", equal("∫|R'| dw", fine_left, "rise and fall of R", exact, close)),
        ours("order of the left side", equal("measured", orders[0], "midpoint rule", 2.0, 0.15)),
        ours("order of the right side", equal("measured", orders[1], "step function", 1.0, 0.1)),
        beyond("nu with density p", equal("∫|R'| p dw", dense_left, name, fine_right, close)),
        ours("nu with density p", equal("∫|R'| p dw", dense_left, "counting p(w)", dense_right, close)),
    )

    def paint(figure: Figure) -> None:
        curve, counts, errors = figure.subplots(1, 3, width_ratios=[1.2, 0.8, 1])
        counts.sharey(curve)
        plain(curve, "risk", "w", "R(w) and γ")
        curve.plot(w, values, color=TRUTH, lw=1.4)
        level = float(np.quantile(values, 0.3))
        at = np.flatnonzero((values[1:] > level) != (values[:-1] > level))
        curve.axhline(level, color=RIGHT, lw=0.9)
        curve.plot(w[at], np.full(len(at), level), "o", color=RIGHT, ms=4)
        ladder = np.linspace(values.min() - 0.05, values.max() + 0.05, 800)
        number = level_size(values, ladder, None)
        plain(counts, "number of w with R(w) = γ", "number")
        counts.fill_betweenx(ladder, 0, number, color=RIGHT, alpha=0.25, lw=0, step="mid")
        counts.plot(number, ladder, color=RIGHT, lw=1)
        counts.set_xlim(left=0)
        counts.text(0.97, 0.95, f"area {fine_right:.4f}", transform=counts.transAxes, ha="right", va="top", fontsize=7)
        _paint_errors(errors, cells, (rms_left, rms_right), orders, "cells and levels n")

    return Result(
        comparisons,
        f"For a risk that turns {len(turns)} times the quadrature of |R'| gives {fine_left:.5f} and counting solutions "
        f"of R(w) = gamma gives {fine_right:.5f}; the errors fall like n^-{orders[0]:.2f} and n^-{orders[1]:.2f}. The "
        "assumption that nu is Lebesgue's measure matters: with a density of equal mass that prefers w near 1 the "
        f"left side is {dense_left:.4f}, and only a count in which every w weighs as much as its density, "
        f"{dense_right:.4f}, equals it. Training sees finitely many environments, so its nu is a sum of atoms and the "
        "printed formula does not describe the penalty that is computed there.",
        paint,
    )


@statement("Coarea formula, two classifier variables", LABEL, formula=FORMULA, size=(7.2, 2.9))
def coarea_2d(
    risk: Surface = _risk_2d,
    gradient: Surface = _gradient_2d,
    reach: float = 1.6,
    modulus: Function = length,
    level_size: ContourLengths = contour_lengths,
    cells: tuple[int, ...] = (16, 32, 64, 128, 256),
) -> Result:
    """With Lebesgue's measure on the classifiers w, the integral of |grad R| equals the integral over all levels gamma
    of the length of the contour on which the risk is gamma.

    Both sides of the coarea formula for a risk R(w) of two variables on [-reach, reach]^2. `risk` maps two arrays to
    one of their shape, `gradient` to (2, ...). Under test: `gradient`, `modulus`, which makes one number of it (first
    axis), and `level_size(axis, values, levels)`, the size of each level set.
    """
    _check((-reach, reach), cells)

    def left_side(n: int) -> float:
        middle = reach * (2 * pixel_centres(n) - 1)
        return float(modulus(gradient(middle[None, :], middle[:, None])).mean() * (2 * reach) ** 2)

    def right_side(n: int) -> float:
        axis = np.linspace(-reach, reach, n + 1)
        values = risk(axis[None, :], axis[:, None])
        return level_side(values, round(2 * n ** (4 / 3)), lambda levels: level_size(axis, values, levels))

    left, right = (np.array([side(n) for n in cells]) for side in (left_side, right_side))
    reference = left_side(8 * cells[-1])  # its own error is 1/64 of the last one's
    orders = fitted_order(cells, left - reference), fitted_order(cells, right - reference)
    comparisons = (
        # Both errors are c h^2, together below 1e-4 of the value on 256 cells.
        claim(
            f"{cells[-1]} cells per axis",
            equal("∫|∇R| dw", left[-1], "contour lengths", right[-1], 1e-4 * reference * (256 / cells[-1]) ** 2),
        ),
        ours("order of the left side", equal("measured", orders[0], "midpoint rule", 2.0, 0.1)),
        ours("order of the right side", equal("measured", orders[1], "chords and levels", 2.0, 0.2)),
    )

    def paint(figure: Figure) -> None:
        level_sets, lengths, errors = figure.subplots(1, 3)
        axis = np.linspace(-reach, reach, 129)
        values = risk(axis[None, :], axis[:, None])
        plain(level_sets, "contours of R", "$w_1$", "$w_2$")
        shades = level_sets.contour(axis, axis, values, levels=14, cmap="viridis", linewidths=0.9)
        level_sets.set_aspect("equal")
        figure.colorbar(shades, ax=level_sets, orientation="horizontal", shrink=0.85, aspect=25).ax.tick_params(
            labelsize=6
        )
        ladder = np.linspace(values.min(), values.max(), 300)
        sizes = level_size(axis, values, ladder)
        plain(lengths, "length of {R = γ}", "γ", "length")
        lengths.fill_between(ladder, 0, sizes, color=RIGHT, alpha=0.25, lw=0)
        lengths.plot(ladder, sizes, color=RIGHT, lw=1)
        lengths.set_ylim(bottom=0)
        lengths.text(0.97, 0.95, f"area {right[-1]:.3f}", transform=lengths.transAxes, ha="right", va="top", fontsize=7)
        _paint_errors(errors, cells, (np.abs(left - reference), np.abs(right - reference)), orders, "cells per axis n")

    return Result(
        comparisons,
        f"The quadrature of |grad R| gives {left[-1]:.4f}; the lengths of contours, found from values of R only and "
        f"added up over the levels, give {right[-1]:.4f} (limit {reference:.4f}). Both errors fall with the square of "
        f"the grid, measured n^-{orders[0]:.2f} and n^-{orders[1]:.2f}, so what is left is the grid and not the "
        "formula. The total variation of a risk is the length of all contour lines on its map, each weighted with the "
        "step in risk from one to the next.",
        paint,
    )


def _paint_errors(
    axes: Axes, cells: tuple[int, ...], errors: tuple[Floats, Floats], orders: tuple[float, float], x: str
) -> None:
    plain(axes, "error", x, "error")
    for side, colour, name, size in zip(errors, (LEFT, RIGHT), ("gradient", "levels"), orders, strict=True):
        axes.loglog(cells, side, "o-", color=colour, ms=3, label=f"{name}: $n^{{-{size:.2f}}}$")
    grid_axis(axes, cells[::2])
    legend(axes, loc="lower left")


def _check(domain: tuple[float, float], cells: tuple[int, ...]) -> None:
    if not (len(domain) == 2 and np.isfinite(domain).all() and domain[0] < domain[1]):
        raise ValueError(f"the domain of w must be a bounded interval (low, high) with low < high. Got {domain!r}.")
    if len(cells) < 3 or min(cells) < 8 or sorted(set(cells)) != list(cells):
        raise ValueError(f"cells must be three or more rising numbers of at least 8. Got {cells!r}. Use (16, 32, 64).")
