"""Total variation by its dual definition (section TV), solved numerically, against the integral of the gradient.

    TV(f)  =  sup { int f div g  :  g continuously differentiable, compact support inside Omega, |g| <= 1 }

On a grid of n cells per axis, h = 1 / n, take g = sum_i c_i B_i with quadratic tensor-product B-splines B_i: they are
C^1, those used here vanish outside [h, 1 - h]^d, and they are non-negative with sum_i B_i <= 1. So |c_i| <= 1 for every
i makes |g| <= 1 everywhere: **every value below is int f div g of an admissible g, a lower bound of TV(f)** (in two
dimensions of the TV of the sampled f, which is constant on pixels and may exceed that of f). With the
moments m_i = int f grad B_i (vectors, from values of f alone)

    sup over the c_i  =  max { sum_i c_i . m_i : |c_i| <= 1 }  =  sum_i |m_i|,        c_i = m_i / |m_i|,

a linear program in one dimension. How fast it rises to TV(f):

- smooth f: order 1. Near the boundary g has to fall to 0 within about 3 h, where |grad f| is then partly lost.
- jumps in one dimension, 3 h apart and 4 h inside: none is lost, since the B_i that see a jump sum to 1.
- a disc: order 2. Inside one B_i the normal turns by an angle of order h, and the modulus of a mean loses its square.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from scipy.integrate import quad
from scipy.optimize import linprog

from irmtv.lab.theory.figures import BAD, LEFT, OTHER, RIGHT, TRUTH, grid_axis, legend, plain
from irmtv.lab.theory.finding import Result, at_most, beyond, claim, equal, ours, statement
from irmtv.lab.theory.sides import Floats, Function, Surface, fitted_order, length

PIXELS_1D, PIXELS_WILD, PIXELS_2D = 2**14, 2**18, 2**11  # pixels per axis, at whose middles f is sampled
CELLS_WILD = tuple(2**k for k in range(7, 14))


def pixel_centres(count: int) -> Floats:
    """The middles of `count` equal parts of (0, 1)."""
    return (np.arange(count) + 0.5) / count


def _pieces(q: int) -> tuple[Floats, Floats]:
    """B and B' on the three cells of the support, times 1/q: (3, q) each, at the middles of q pixels per cell."""
    u = pixel_centres(q)
    return np.stack([u**2, 1 + 2 * u - 2 * u**2, (1 - u) ** 2]) / (2 * q), np.stack([u, 1 - 2 * u, u - 1]) / q


def _against(values: Floats, cells: int, pieces: Floats) -> Floats:
    """Sums of values (M, ...) along the first axis against every spline that vanishes outside [h, 1 - h]: (n - 4, ...).

    The derivative is linear on a cell, so against B' the sum is the exact integral of the sampled f, which is constant
    on every pixel; in one dimension sampling cannot raise the total variation, and the lower bound stays one.
    """
    part = np.tensordot(pieces, values.reshape(cells, -1, *values.shape[1:]), ([1], [1]))  # (3, n, ...)
    total: Floats = part[0, 1 : cells - 3] + part[1, 2 : cells - 2] + part[2, 3 : cells - 1]
    return total


def moments(values: Floats, cells: int) -> Floats:
    """m_i = int f grad B_i from the values of f at the pixels, (M,) or (M, M): (n - 4, 1) or (n - 4, n - 4, 2)."""
    if cells < 5 or values.shape[0] % cells:
        raise ValueError(f"cells must be at least 5 and divide the {values.shape[0]} pixels per axis. Got {cells}.")
    spline, derivative = _pieces(values.shape[0] // cells)
    if values.ndim == 1:
        return _against(values, cells, derivative)[:, None]
    along_x = _against(_against(values, cells, derivative).T, cells, spline).T
    along_y = _against(_against(values, cells, spline).T, cells, derivative).T
    return np.stack([along_x, along_y], -1) / cells


def steepest(m: Floats) -> Floats:
    """The coefficients that attain the sup, c_i = m_i / |m_i| (0 where m_i is 0): (..., d) to (..., d)."""
    size = np.sqrt((m**2).sum(-1, keepdims=True))
    return np.where(size > 0, m / np.where(size > 0, size, 1.0), 0.0)


def dual_value(values: Floats, cells: int, field: Function = steepest) -> float:
    """The sup of int f div g over the fields of one grid; `field` chooses the coefficients from the moments."""
    m = moments(values, cells)
    return float((field(m) * m).sum())


def field_on_pixels(c: Floats, pixels: int) -> Floats:
    """g = sum_i c_i B_i itself at the pixels: (n - 4, d) to (M, d), or (n - 4, n - 4, d) to (M, M, d)."""
    q = pixels // (c.shape[0] + 4)
    spline = _pieces(q)[0] * q  # (3, q)

    def spread(a: Floats) -> Floats:  # along the first axis
        padded = np.pad(a, [(3, 3)] + [(0, 0)] * (a.ndim - 1))  # (n + 2, ...): spline i begins in cell i
        cells = len(a) + 4
        on = sum(np.einsum("q,n...->nq...", spline[k], padded[2 - k : 2 - k + cells]) for k in range(3))
        return np.asarray(on).reshape(cells * q, *a.shape[1:])

    return spread(c) if c.ndim == 2 else spread(spread(c).swapaxes(0, 1)).swapaxes(0, 1)


def by_linear_program(m: Floats) -> float:
    """max c . m over |c_i| <= 1 by a solver that knows nothing of the closed form; one dimension."""
    solved = linprog(-m[:, 0], bounds=(-1, 1), method="highs")
    return -float(np.asarray(solved.fun))


@dataclass(frozen=True)
class _Rise:
    """The sup over the fields of finer and finer grids, and what it should rise to."""

    cells: tuple[int, ...]
    sup: Floats
    total: float  # by quadrature of the modulus of the gradient, by the heights of jumps, or by a perimeter

    @classmethod
    def of(cls, values: Floats, cells: tuple[int, ...], field: Function, total: float) -> _Rise:
        return cls(cells, np.array([dual_value(values, n, field) for n in cells]), total)

    @property
    def below(self) -> Floats:
        """How far the sup is below."""
        return self.total - self.sup

    @property
    def order(self) -> float:
        return fitted_order(self.cells, self.below)


def _curve(x: Floats) -> Floats:
    return np.sin(7 * x) * np.exp(-x) + 0.3 * x


def _curve_slope(x: Floats) -> Floats:
    return (7 * np.cos(7 * x) - np.sin(7 * x)) * np.exp(-x) + 0.3


def _surface(x: Floats, y: Floats) -> Floats:
    return np.sin(5 * x) * np.cos(4 * y) + x * y


def _surface_gradient(x: Floats, y: Floats) -> Floats:
    return np.stack([5 * np.cos(5 * x) * np.cos(4 * y) + y, -4 * np.sin(5 * x) * np.sin(4 * y) + x])


def _wild(x: Floats) -> Floats:
    return np.sin(1 / x)


@statement(
    "Total variation is a supremum over test fields",
    "section 2.2 (eqn:TV)",
    formula=r"$\int_\Omega|\nabla f|:=\sup\{\int_\Omega f\,\mathrm{div}\,g\,dx:\ g\in C_c^1,\ |g|\leq 1\}$",
    size=(7.2, 5.4),
)
def dual_total_variation(
    curve: Function = _curve,
    slope: Function = _curve_slope,
    surface: Surface = _surface,
    gradient: Surface = _surface_gradient,
    jumps: Sequence[tuple[float, float]] = ((0.2, 1.0), (0.45, -0.6), (0.8, 0.3)),
    radius: float = 0.3,
    wild: Function = _wild,
    field: Function = steepest,
    modulus: Function = length,
    cells_1d: tuple[int, ...] = (32, 64, 128, 256, 512),
    cells_2d: tuple[int, ...] = (16, 32, 64, 128),
) -> Result:
    """The total variation of an integrable f is the largest value of the integral of f div g over smooth fields g that
    are at most 1 long and vanish near the boundary; for a differentiable f it is the integral of the modulus of the
    gradient, and it also makes sense for functions that jump. Only functions for which it is finite (bounded variation)
    are considered.

    The sup over test fields rises to the integral of |grad f|, to the jumps, to the perimeter; or without bound.
    `curve` with `slope` and `surface` with `gradient` (which returns (2, ...)) are smooth functions on the unit
    interval and square; `jumps` are (place, height) of a step function, `radius` of a disc of height 1 in the middle of
    the square, `wild` has unbounded variation at 0. Under test: `field`, the coefficients of the best field from the
    moments (last axis d), and `modulus`, what |grad f| means for a gradient (first axis d).
    """
    _check(jumps, radius, cells_1d, cells_2d)
    x = pixel_centres(PIXELS_1D)
    steps: Floats = np.asarray(sum(height * (x > place) for place, height in jumps), dtype=float)
    line = _Rise.of(
        curve(x), cells_1d, field, quad(lambda t: float(modulus(slope(np.array([[t]])))[0]), 0, 1, limit=500)[0]
    )
    stepped = _Rise.of(steps, cells_1d, field, sum(abs(height) for _, height in jumps))
    X, Y = np.meshgrid(pixel_centres(PIXELS_2D), pixel_centres(PIXELS_2D), indexing="ij")
    disc = (np.hypot(X - 0.5, Y - 0.5) < radius).astype(float)
    plane = _Rise.of(surface(X, Y), cells_2d, field, _gauss(lambda a, b: modulus(gradient(a, b))))
    circle = _Rise.of(disc, cells_2d, field, 2 * np.pi * radius)
    unbounded = _Rise.of(wild(pixel_centres(PIXELS_WILD)), CELLS_WILD, field, np.inf)

    # Errors are a h + b h^2 + ...: two grids remove the first term, three the second. In one dimension the second is
    # no constant (it depends on where in a cell f turns), in two it is an average over many cells.
    limit_1d = 2 * line.sup[-1] - line.sup[-2]
    limit_2d = (8 * plane.sup[-1] - 6 * plane.sup[-2] + plane.sup[-3]) / 3
    program = by_linear_program(moments(curve(x), cells_1d[-1]))
    best = field_on_pixels(field(moments(disc, cells_2d[1])), 256)  # (256, 256, 2)
    largest = float(np.sqrt((best**2).sum(-1)).max())
    rate_disc = fitted_order(cells_2d[:-1], circle.below[:-1])  # the last one is near what the pixels resolve
    growth = -fitted_order(CELLS_WILD, unbounded.sup)
    last_doubling = f"{CELLS_WILD[-1]:,} cells"

    grid = f"sup, limit of {cells_1d[-1]} cells"
    grid_2d = f"sup, limit of {cells_2d[-1]} cells per axis"
    comparisons = (
        # What the extrapolation leaves: h^2 times a second derivative of some tens; h^3 times a third one.
        claim("smooth f in one dimension", equal(grid, limit_1d, "∫|f'|", line.total, 2e-4 * line.total)),
        claim("smooth f in two dimensions", equal(grid_2d, limit_2d, "∫|∇f|", plane.total, 5e-4 * plane.total)),
        claim("step function", equal("sup", stepped.sup[-1], "sum of the jumps", stepped.total, 1e-9)),
        # order 2: (h / radius)^2 / 12 of the circle.total, and the pixels' staircase
        claim("disc", equal("sup", circle.sup[-1], "perimeter", circle.total, 3e-4 * circle.total)),
        ours("smooth f: a lower bound", at_most("sup", line.sup.max(), "∫|f'|", line.total)),
        ours("the sup once more", equal("linear program", program, "Σ|m|", line.sup[-1], 1e-9)),
        ours("the best field of the disc is admissible", at_most("largest |g|", largest, "1", 1.0, 1e-12)),
        ours("order, smooth f, one dimension", equal("measured", line.order, "boundary layer", 1.0, 0.05)),
        ours("order, smooth f, two dimensions", equal("measured", plane.order, "boundary layer", 1.0, 0.1)),
        ours("order, disc", equal("measured", rate_disc, "turning normal", 2.0, 0.15)),
        beyond(
            "f = sin(1/x), not of bounded variation: the sup is finite, so refining changes little",
            equal(last_doubling, unbounded.sup[-1], "half of them", unbounded.sup[-2], 0.05 * unbounded.sup[-2]),
        ),
        # half-waves of width pi x^2 are seen down to x ~ sqrt(h), and there are 1 / (pi x) of them
        ours("growth of that sup, as a power of n", equal("measured", growth, "half-waves", 0.5, 0.05)),
    )

    def paint(figure: Figure) -> None:
        (top, round_one), (errors, grows) = figure.subplots(2, 2)
        x = pixel_centres(1024)
        g = field_on_pixels(field(moments(curve(x), cells_1d[0])), 1024)[:, 0]
        plain(top, f"a curve and its best field, {cells_1d[0]} cells", "x", "", ylim=(-1.15, 1.75))
        top.plot(x, curve(x), color=TRUTH, lw=1.4, label="f")
        top.plot(x, g, color=RIGHT, lw=1.2, label="g, with |g| ≤ 1")
        legend(top, ncols=2, loc="upper right")
        plain(round_one, "a disc and its best field", "x", "y")
        round_one.add_patch(Circle((0.5, 0.5), radius, facecolor="#CCCCCC", edgecolor=TRUTH, lw=0.8))
        thin = best[6::12, 6::12]
        at = pixel_centres(256)[6::12]
        X, Y = np.meshgrid(at, at, indexing="ij")
        seen = np.sqrt((thin**2).sum(-1)) > 0.05
        round_one.quiver(
            X[seen], Y[seen], thin[seen, 0], thin[seen, 1], color=RIGHT, scale=14, width=0.006, pivot="mid"
        )
        round_one.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        round_one.set_xticks([0, 0.5, 1])
        round_one.set_yticks([0, 0.5, 1])
        plain(errors, "how far the sup is below", "cells per axis n", "TV - sup")
        errors.loglog(line.cells, line.below, "o-", color=LEFT, ms=3, label=f"curve: $n^{{-{line.order:.2f}}}$")
        errors.loglog(plane.cells, plane.below, "s-", color=OTHER, ms=3, label=f"surface: $n^{{-{plane.order:.2f}}}$")
        errors.loglog(plane.cells, circle.below, "d-", color=RIGHT, ms=3, label=f"disc: $n^{{-{rate_disc:.2f}}}$")
        errors.set_ylim(bottom=4e-6)
        grid_axis(errors, sorted({*line.cells, *plane.cells}))
        legend(errors, loc="lower left")
        plain(grows, "sin(1/x): no bound", "cells n", "sup")
        grows.loglog(CELLS_WILD, unbounded.sup, "o-", color=BAD, ms=3, label=f"sup: $n^{{{growth:.2f}}}$")
        grows.loglog(line.cells, line.sup, "o-", color=LEFT, ms=3, label="the curve above")
        grows.axhline(line.total, color=TRUTH, lw=0.8, ls=":")
        legend(grows)

    return Result(
        comparisons,
        "Smooth fields of length at most 1, built from bumps, give lower bounds that need values of f only. For a "
        f"smooth curve they rise to {limit_1d:.4f}, where the integral of |f'| is {line.total:.4f}; for a surface to "
        f"{limit_2d:.4f} against {plane.total:.4f}. A step function gives exactly its jumps, {stepped.sup[-1]:g}, and "
        f"a disc of radius {radius:g} gives {circle.sup[-1]:.4f}, its perimeter being {circle.total:.4f}, although the "
        "gradient of both is 0 almost everywhere: here |grad f| is a symbol, as the paper says. Bounded variation is "
        f"a real restriction: for sin(1/x) the sup is {unbounded.sup[-1]:.1f} on {CELLS_WILD[-1]:,} cells and grows "
        f"like n^{growth:.2f}.",
        paint,
    )


def _check(
    jumps: Sequence[tuple[float, float]], radius: float, cells_1d: tuple[int, ...], cells_2d: tuple[int, ...]
) -> None:
    for name, cells, pixels in (("cells_1d", cells_1d, PIXELS_1D), ("cells_2d", cells_2d, PIXELS_2D)):
        doubled = [cells[0] * 2**k for k in range(len(cells))] if cells else []
        if len(cells) < 3 or list(cells) != doubled or any(n < 16 or pixels % n for n in cells):
            raise ValueError(
                f"{name} must be three or more powers of 2, each twice the one before, from 16 to {pixels}. "
                f"Got {cells!r}. Use for example (16, 32, 64)."
            )
    if not 0 < radius < 0.5:
        raise ValueError(f"radius must lie between 0 and 0.5, the disc inside the unit square. Got {radius!r}.")
    if not jumps or any(not 0 < place < 1 for place, _ in jumps):
        raise ValueError(f"jumps must be (place, height) with places between 0 and 1. Got {jumps!r}.")


def _gauss(f: Surface, panels: int = 64, nodes: int = 5) -> float:
    """int f over the unit square by Gauss-Legendre in squares."""
    node, weight = np.polynomial.legendre.leggauss(nodes)
    at = ((np.arange(panels)[:, None] + (node + 1) / 2) / panels).ravel()
    w = np.tile(weight / 2 / panels, panels)
    return float(w @ f(at[:, None], at[None, :]) @ w)
