"""What the coarea formula (section TV and the proposition on IRM-TV-l1) says where the risk is not Lipschitz.

Two things can be meant by the left side, and two by the right:

| side  | reading                  | a ramp | a step | the Cantor function |
|-------|--------------------------|--------|--------|---------------------|
| left  | integral of the gradient | 1      | 0      | 0                   |
| left  | total variation, by (TV) | 1      | 1      | 1                   |
| right | preimages {R = gamma}    | 1      | 0      | 1                   |
| right | boundaries of {R > gamma}| 1      | 1      | 1                   |

Total variation equals the boundaries for every integrable function (the theorem for bounded variation). The printed
right side is the one with preimages; it agrees with either left side for Lipschitz functions, with the gradient for
steps and not for Cantor, with the total variation for Cantor and not for steps. Lipschitz is sufficient and not needed:
sqrt(w) on [0, 1] is not, and has 1 on both sides. In one dimension a continuous R needs to be absolutely continuous.

The Cantor function is evaluated exactly: w = k / 3^m with whole numbers k, whose digits in base 3 up to the first 1,
halved, are the digits of the value in base 2. It is constant on gaps of total length 1 and takes every value in [0, 1].
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.integrate import quad

from irmtv.datasets import make_simulation
from irmtv.engine import train
from irmtv.lab.theory.coarea import FORMULA, LABEL, Crossings, crossings, every_crossing, level_side
from irmtv.lab.theory.figures import L1, L2, LEFT, OTHER, RIGHT, TRUTH, legend, plain
from irmtv.lab.theory.finding import Result, claim, equal, ours, statement
from irmtv.lab.theory.sides import Floats, Integers
from irmtv.lab.theory.variation import dual_value, pixel_centres

LevelSizes = Callable[[Floats, Floats], Floats]  # plateaus of a step function, levels (M,) -> (M,)
PIXELS = 1 << 18  # at which a risk is sampled for its total variation
DIGITS = 39  # 3^39 < 2^63


def on_plateaus(plateaus: Floats, levels: Floats) -> Floats:
    """The number of w at which a step function with these values takes each level: infinitely many, or none."""
    return np.where(np.isin(levels, plateaus), np.inf, 0.0)


def _boundaries(plateaus: Floats, levels: Floats) -> Floats:
    """The number of boundary points of {R > gamma} for a step function with these values, in the order of w."""
    above = plateaus[None, :] > levels[:, None]  # (M, K)
    changes: Floats = (above[:, 1:] != above[:, :-1]).sum(1).astype(float)
    return changes


def _climb(x: Floats, width: float) -> Floats:
    """From 0 to 1 in a straight line of this width about x = 1/2."""
    return np.asarray(np.clip((x - 0.5) / width + 0.5, 0, 1))


def _almost_everywhere(f: Callable[[Floats], Floats], w: Floats, step: float) -> float:
    """The mean of |f'| over points w, by central differences."""
    return float(np.abs((f(w + step) - f(w - step)) / (2 * step)).mean())


@statement(
    "Coarea formula for a blocky risk",
    "section 2.2 and Proposition 3.6 (eqn:coarea)",
    formula=r"$\int_\Omega|\nabla f|:=\int_{-\infty}^{\infty}\int_{f^{-1}(\gamma)}ds\,d\gamma$",
    size=(7.2, 2.9),
)
def coarea_piecewise_constant(
    rows: int = 60, preimages: LevelSizes = on_plateaus, boundaries: LevelSizes = _boundaries, random_state: int = 0
) -> Result:
    """Total variation is the integral over the levels of the size of the preimages, also where the function is
    piecewise constant.

    The 0-1 error of a trained linear model as a function of its threshold w: flat pieces and jumps. `rows` is the
    number of rows whose error is taken. Under test: `preimages(plateaus, levels)`, the size of {R = gamma}, and
    `boundaries(plateaus, levels)`, the number of boundary points of {R > gamma}.
    """
    if rows < 10:
        raise ValueError(f"rows must be at least 10, or the error has hardly a level. Got {rows!r}. Use 60.")
    task = make_simulation(rows, p_s=(0.9, 0.7), p_v=0.9, random_state=random_state, n_test=4)
    fitted = train(task, "erm", steps=100, learning_rate=0.02, dtype=torch.float64)
    scores = np.asarray(fitted.logits(task.train.x)[0])
    label = np.asarray(task.train.y) > 0.5
    low, high = scores.min() - 0.5, scores.max() + 0.5

    def error(w: Floats) -> Floats:  # the share of rows on the wrong side of the threshold
        wrong: Floats = ((scores > w[..., None]) != label).mean(-1)
        return wrong

    places = np.sort(scores)
    plateaus = error(np.concatenate([[low], (places[1:] + places[:-1]) / 2, [high]]))  # (rows + 1,)
    # Sum of jumps: one row changes sides at a time, so each is 1 / rows.
    jumps = float(np.abs(np.diff(plateaus)).sum())

    # Left side, almost everywhere, on 20,000 points; and by the sup over test fields.
    grid = low + (high - low) * pixel_centres(20_000)
    gradient = _almost_everywhere(error, grid, 1e-9) * (high - low)
    x = low + (high - low) * pixel_centres(PIXELS)
    sampled = plateaus[np.searchsorted(places, x)]
    supremum = dual_value(sampled, PIXELS // 4)
    # Right side: levels between the multiples of 1 / rows, shifted so that none is hit by rounding.
    count = round((plateaus.max() - plateaus.min()) * rows) * 16
    printed = level_side(plateaus, count, partial(preimages, plateaus))
    repaired = level_side(plateaus, count, partial(boundaries, plateaus))

    unit, widths = pixel_centres(1 << 14), 0.5 / 2.0 ** np.arange(7)
    slant = _climb(unit, widths[0])
    ramp, ramp_levels = dual_value(slant, 1024), level_side(slant, 1024, every_crossing(crossings, slant))
    l1_price = np.array([dual_value(_climb(unit, d), 1024) for d in widths])
    l2_price = np.array([(np.diff(_climb(unit, d)) ** 2).sum() * len(unit) for d in widths])

    comparisons = (
        # Each side is exactly 0: R does not move between jumps, and finitely many levels are a null set.
        claim("Proposition 3.6, gradient a.e.", equal("∫|R'| dw", gradient, "{R = γ}", printed, 1e-12)),
        claim("section 2.2, total variation", equal("sup (TV)", supremum, "{R = γ}", printed, 0.01)),
        # Jumps farther apart than three cells are exact; the closest two cost at most 2 / rows each.
        ours("total variation", equal("sup (TV)", supremum, "sum of jumps", jumps, 0.01)),
        ours("total variation", equal("sup (TV)", supremum, "boundary of {R > γ}", repaired, 0.01)),
        ours("size of the preimages", equal("{R = γ}", printed, "finitely many levels", 0.0, 1e-12)),
        ours("a ramp", equal("sup (TV)", ramp, "{R = γ}", ramp_levels, 1e-3)),
        ours("l1 price of one step, wide and narrow", equal("narrow", l1_price[-1], "wide", l1_price[0], 1e-9)),
        ours(
            "l2 price of one step grows like 1 / width",
            equal("price times width", l2_price[-1] * widths[-1], "constant", 1.0, 0.02),
        ),
    )

    def paint(figure: Figure) -> None:
        curve, counts, prices = figure.subplots(1, 3, width_ratios=[1.2, 0.8, 1])
        counts.sharey(curve)
        plain(curve, f"0-1 error of {rows} rows", "threshold w", "R(w) and γ")
        curve.stairs(plateaus, [low, *places, high], color=TRUTH, lw=1.1, baseline=None)
        ladder = np.linspace(plateaus.min() - 0.02, plateaus.max() + 0.02, 600)
        number = boundaries(plateaus, ladder)
        plain(counts, "points per level", "number")
        counts.fill_betweenx(ladder, 0, number, color=OTHER, alpha=0.25, lw=0, step="mid")
        counts.plot(number, ladder, color=OTHER, lw=1, label="boundary of {R > γ}")
        counts.plot(np.zeros_like(ladder), ladder, color=RIGHT, lw=2, label="{R = γ}", clip_on=False)
        counts.set_xlim(0, 1.35 * number.max())
        legend(counts, loc="upper right", bbox_to_anchor=(1.06, 0.88), handlelength=0.8)
        plain(prices, "price of a step of height 1", "its width", "price")
        prices.loglog(widths, l1_price, "o-", color=L1, ms=3, label=r"$\int|\nabla f|$")
        prices.loglog(widths, l2_price, "s-", color=L2, ms=3, label=r"$\int|\nabla f|^2$")
        legend(prices)

    return Result(
        comparisons,
        f"The 0-1 error of {rows} rows is flat between {len(places)} jumps. Read with the gradient almost everywhere, "
        f"as the proof of the proposition reads it, the formula says {gradient:g} = {printed:g}: true and empty, since "
        f"no level other than the {len(np.unique(plateaus))} values of R is taken. Read with the total variation that "
        f"section 2.2 defines, the left side is the sum of the jumps, {supremum:.4f}, while the printed preimages "
        f"still give {printed:g}; the boundaries of the sets where R exceeds gamma give {repaired:.4f} and are what "
        "belongs there. Where section 2.2 says that a more blocky function has a smaller total variation, it is these "
        "empty preimages that speak (see 'A blocky function does not have the smaller total variation').\n\n"
        "What is true is that l1 asks the same price for a sharp step as for a gentle one, while the l2 price rises "
        f"from {l2_price[0]:.1f} to {l2_price[-1]:.0f} as a step narrows to {widths[-1]:.2g}: l1 tolerates jumps, l2 "
        "does not.",
        paint,
    )


def cantor(k: Integers, digits: int, of: int | None = None) -> tuple[Floats, NDArray[np.bool_]]:
    """The Cantor function at w = k / 3^of (default: of = digits) from its first `digits` digits in base 3.

    Also returns whether none of them is a 1: then w lies in none of the gaps cut so far. It is 0 below 0, 1 above 1.
    """
    of = digits if of is None else of
    value, open_ = np.zeros(k.shape), (k >= 0) & (k < 3**of)
    for j in range(digits):
        digit = (k // 3 ** (of - 1 - j)) % 3
        value += np.where(open_ & (digit > 0), 0.5 ** (j + 1), 0.0)
        open_ &= digit != 1
    return np.where(k >= 3**of, 1.0, value), open_


def iterate(k: Integers, digits: int, of: int) -> Floats:
    """The continuous function at k / 3^of that is Cantor's outside the first gaps and linear in what is left."""
    value, left = cantor(k, digits, of)
    rest = (k % 3 ** (of - digits)) / 3.0 ** (of - digits)
    return value + np.where(left, rest * 0.5**digits, 0.0)


def iterate_slope(digits: int, in_a_gap: NDArray[np.bool_]) -> Floats:
    """Its derivative: 0 in the gaps, (3/2)^digits elsewhere."""
    return np.where(in_a_gap, 0.0, 1.5**digits)


class _Readings(NamedTuple):
    """The two readings of the left side and the two of the right."""

    gradient: float
    supremum: float
    preimages: float
    boundary: float


@statement("The coarea formula needs more than its conditions", LABEL, formula=FORMULA, size=(7.2, 2.9))
def coarea_needs_lipschitz(
    depth: int = 12,
    slope: Callable[[int, NDArray[np.bool_]], Floats] = iterate_slope,
    level_size: Crossings = crossings,
    levels: int = 4096,
) -> Result:
    """The coarea formula is stated for every risk that is integrable together with the modulus of its gradient
    (Conditions 1 to 3 and 4b), without asking for continuity or a Lipschitz constant.

    The Cantor function satisfies the printed conditions and not the formula; its Lipschitz approximations do. `depth`
    is the number of approximations, `levels` that of the levels. Under test: `slope(digits, in_a_gap)`, the derivative
    of the approximations, and `level_size(values, levels, weight)`, the number of w at each level.
    """
    if not 4 <= depth <= 13:
        raise ValueError(f"depth must be from 4 to 13, the grid has 3^depth points. Got {depth!r}.")
    # both sides for the Lipschitz approximations 1 to `depth`
    k = np.arange(3**depth + 1, dtype=np.int64)
    middle = 3 * k[:-1] + 1  # numerators over 3^(depth + 1): inside every cell
    left, right = [], []
    for digits in range(1, depth + 1):
        values = iterate(k, digits, depth)
        left.append(float(slope(digits, ~cantor(middle, digits, depth + 1)[1]).mean()))
        right.append(level_side(values, levels, every_crossing(level_size, values)))
    # The Cantor function itself. Gradient: central differences of width 2 / 3^39 at 20,000 points; one of them would
    # have to miss all gaps of 38 digits, which has probability 20,000 (2/3)^38 = 0.004, to see anything but 0.
    at = np.random.default_rng(0).integers(1, 3**DIGITS - 1, 20_000)
    rise = cantor(at + 1, DIGITS)[0] - cantor(at - 1, DIGITS)[0]
    gradient = float(np.abs(rise).mean() * 3.0**DIGITS / 2)
    values = cantor(k, depth)[0]
    preimages = level_side(values, levels, every_crossing(level_size, values))
    x = 2 * pixel_centres(PIXELS) - 0.5  # Omega = (-1/2, 3/2)
    numerator = np.floor(x * 3.0**30).astype(np.int64)
    supremum = dual_value(cantor(numerator, 30)[0], PIXELS // 16)
    first_supremum = dual_value(iterate(numerator, 1, 30), PIXELS // 16)
    # Is it Lipschitz on some band {a < R < b}? The steepest chord of one cell, in each of 16 bands.
    chord = np.diff(values) * 3.0**depth
    band = np.minimum((values[:-1] * 16).astype(int), 15)
    steepest = min(float(chord[band == b].max()) for b in range(16))
    constant = 1.5**depth
    # Not Lipschitz either, but absolutely continuous.
    root_left = quad(lambda w: 0.5 / np.sqrt(w), 0, 1)[0]
    root_values = np.sqrt(np.linspace(0, 1, 4097))
    root_right = level_side(root_values, levels, every_crossing(level_size, root_values))
    first = _Readings(left[0], first_supremum, right[0], right[0])
    cantors = _Readings(gradient, supremum, preimages, preimages)
    two = np.array([0.0, 1.0])  # the plateaus of a step at 1/2
    step = _Readings(
        _almost_everywhere(lambda w: (w > 0.5).astype(float), x[::8], 1e-9),
        dual_value((x > 0.5).astype(float), PIXELS // 16),
        level_side(two, levels, partial(on_plateaus, two)),
        level_side(two, levels, partial(_boundaries, two)),
    )

    comparisons = (
        # Both sides are exact up to rounding, the levels being shifted away from the values: every one is met once.
        claim("Cantor function, gradient a.e.", equal("∫|R'| dw", gradient, "{R = γ}", preimages, 1e-6)),
        claim(
            "a step, total variation in place of the gradient",
            equal("sup (TV)", step.supremum, "{R = γ}", step.preimages, 1e-6),
        ),
        ours("a step, gradient a.e.", equal("∫|R'| dw", step.gradient, "{R = γ}", step.preimages, 1e-6)),
        ours("a step, total variation", equal("sup (TV)", step.supremum, "boundary of {R > γ}", step.boundary, 1e-6)),
        ours("Cantor function, total variation", equal("sup (TV)", supremum, "{R = γ}", preimages, 1e-6)),
        # the integral is improper at 0; of values on a grid the count is exact
        ours("sqrt(w) on [0, 1], not Lipschitz", equal("∫|R'| dw", root_left, "{R = γ}", root_right, 1e-8)),
        ours(
            f"Lipschitz approximations 1 to {depth}: largest difference",
            equal("∫|R'| dw - {R = γ}", np.abs(np.subtract(left, right)).max(), "none", 0.0, 1e-9),
        ),
        ours("the first of them", equal("∫|R'| dw", left[0], "sup (TV)", first_supremum, 1e-9)),
        ours(
            f"steepest chord over 3^-{depth} in any of 16 bands of levels",
            equal("smallest", steepest, f"(3/2)^{depth}", constant, 1e-6 * constant),
        ),
    )

    def paint(figure: Figure) -> None:
        readings_of = {"Lipschitz": first, "step": step, "Cantor": cantors}
        curve, limit, readings = figure.subplots(1, 3, width_ratios=[1, 1, 1.25])
        plain(curve, "Cantor function", "w", "R(w)")
        shown = np.arange(3**7 + 1, dtype=np.int64)
        for digits, colour in ((1, "#CCCCCC"), (3, "#999999")):
            curve.plot(shown / 3**7, iterate(shown, digits, 7), color=colour, lw=0.9, label=f"approximation {digits}")
        curve.plot(shown / 3**7, cantor(shown, 7)[0], color=TRUTH, lw=1.1, label="limit")
        legend(curve, loc="lower right")
        plain(limit, "both sides", "approximation", ylim=(-0.1, 1.2))
        steps = np.arange(1, depth + 1)
        limit.plot(steps, left, "o", color=LEFT, ms=5, label=r"$\int|\nabla R|$")
        limit.plot(steps, right, "x", color=RIGHT, ms=5, label="levels")
        limit.plot([depth + 2], [cantors.gradient], "o", color=LEFT, ms=7)
        limit.plot([depth + 2], [cantors.preimages], "x", color=RIGHT, ms=7)
        limit.axvline(depth + 1, color="#999999", lw=0.8, ls=":")
        limit.set_xticks([1, 4, 8, depth, depth + 2], ["1", "4", "8", f"{depth}", "∞"])
        legend(limit, loc="center")
        plain(readings, "what each reading gives", ylim=(0, 1.65))
        names = ("gradient a.e.", "sup (TV)", "{R = γ}", "boundary of {R > γ}")
        bars = zip(names, (LEFT, L2, RIGHT, OTHER), zip(*readings_of.values(), strict=True), strict=True)
        for i, (name, colour, heights) in enumerate(bars):
            readings.bar(np.arange(3) + 0.2 * (i - 1.5), heights, 0.18, color=colour, label=name)
            for j, height in enumerate(heights):
                if height == 0:
                    readings.plot(j + 0.2 * (i - 1.5), 0.015, "v", color=colour, ms=4)
        readings.set_xticks(range(3), list(readings_of))
        legend(readings, ncols=2, loc="upper center", columnspacing=1.0, handlelength=1.2)

    return Result(
        comparisons,
        "The Cantor function climbs from 0 to 1 with gradient 0 almost everywhere, so it meets the conditions; its "
        f"left side is {gradient:g} and its right side {preimages:.4f}: almost every value is taken once. The proof "
        "cuts the risk into pieces on which it is Lipschitz and says 'if none of such interval B_k exists, it is "
        f"obvious that the integral ... equals 0'; here none exists (every band of levels has chords {steepest:.0f} "
        f"steep at scale 3^-{depth}), the left side is {gradient:g} and the right side is {preimages:.4g}.\n\n"
        "The proposition fails under either reading of its left side: total variation mends this function "
        f"({supremum:.4f}) and breaks a step ({step.supremum:.4f} against {step.preimages:g}), for which the "
        "boundaries of {R > gamma} must replace the preimages. A Lipschitz risk is sufficient (the approximations "
        f"have {left[-1]:.4f} on both sides) and not needed (sqrt w on [0, 1]: {root_left:.4f} and {root_right:.4f}); "
        "in one dimension absolute continuity is what a continuous risk needs. For a user little is lost: a risk that "
        "is trained by gradients is as a rule locally Lipschitz in w, and there the formula is true.",
        paint,
    )
