"""TV-l1 allows more functions than TV-l2 (section IRM-TVL1): L^2 lies strictly inside L^1 on a finite measure.

Environments u uniform on (0, 1) with slopes S(u) = u^-a. For 1/2 < a < 1 the l1 penalty has a limit and the l2 penalty
has none. With n equally likely environments, u_i = (i - 1/2) / n,

    E |S|  =  1 / (1 - a)  +  O(n^-(1 - a))
    E S^2  =  n^(2a - 1) zeta(2a, 1/2)  -  1 / (2a - 1)  +  o(1)           (zeta: Hurwitz)
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from scipy.special import zeta

from irmtv.objectives.irm_tv_l1 import tv_l1
from irmtv.objectives.irm_tv_l2 import tv_l2
from irmtv.theory.figures import L1, L2, TRUTH, legend, plain
from irmtv.theory.finding import Comparison, Finding
from irmtv.theory.sides import PenaltyFunction, fitted_order, slope_penalties


def l1_allows_more(
    exponent: float = 0.6,
    environments: tuple[int, ...] = (10, 100, 1000, 10_000, 100_000, 1_000_000),
    l1: PenaltyFunction = tv_l1,
    l2: PenaltyFunction = tv_l2,
) -> Finding:
    """Slopes u^-exponent over more and more environments: the l1 penalty converges, the l2 penalty diverges.

    `l1` and `l2` are the penalties under test.
    """
    values = []
    for count in environments:
        u = (np.arange(count) + 0.5) / count
        values.append(slope_penalties(u**-exponent, np.full(count, 1 / count), l1, l2))
    small, large = (np.array(side) for side in zip(*values, strict=True))
    n = np.array(environments, dtype=float)

    limit = (1 / (1 - exponent)) ** 2
    rate = -fitted_order(environments[-2:], limit - small[-2:])
    growth = -fitted_order(environments[-2:], large[-2:])
    predicted = n[-1] ** (2 * exponent - 1) * zeta(2 * exponent, 0.5) - 1 / (2 * exponent - 1)
    # an infinite measure, u in [1, n] with weight 1 each and S(u) = 1 / u: the inclusion turns round
    u = np.arange(1.0, environments[-1] + 1)
    without_end = [slope_penalties(1 / u[:k], np.ones(k), l1, l2) for k in environments[-2:]]
    turned_l1, turned_l2 = (np.diff(np.array(side))[0] for side in zip(*without_end, strict=True))

    comparisons = (
        Comparison(
            "l1 penalty", f"{environments[-1]:,} environments", small[-1], "=", "its limit", limit, 0.01 * limit
        ),
        Comparison("growth of the l2 penalty, as a power of n", "measured", growth, ">", "bounded", 0.0, 0.05),
        Comparison("rate of the l1 error, as a power of n", "measured", rate, "=", "a - 1", exponent - 1, 0.02, "ours"),
        Comparison("l2 penalty", "measured", large[-1], "=", "zeta's", predicted, 1e-4 * predicted, "ours"),
        Comparison(
            "infinite measure, S = 1/u: what the last tenfold adds to the l1 penalty",
            "l1 adds",
            turned_l1,
            "≤",
            "l2 adds",
            turned_l2,
            1e-3,
            "beyond",
        ),
    )

    def paint(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        plain(left, f"slopes $u^{{-{exponent:g}}}$, u uniform on (0, 1)", "environments n", "penalty")
        left.loglog(n, small, "o-", color=L1, label=r"l1: $(E|S|)^2$")
        left.axhline(limit, color=TRUTH, lw=0.8, ls=":", label=f"limit {limit:g}")
        left.loglog(n, large, "s-", color=L2, label=r"l2: $E|S|^2$")
        legend(left)
        plain(right, "share of the penalty that the steepest 1 % carry", "environments n", "share")
        for power, colour, name in ((1, L1, "l1"), (2, L2, "l2")):
            shares = []
            for count in environments[1:]:
                steep = ((np.arange(count) + 0.5) / count) ** (-exponent * power)
                shares.append(steep[: max(1, count // 100)].sum() / steep.sum())
            right.semilogx(n[1:], shares, "o-", color=colour, label=name)
        right.set_ylim(0, 1)
        legend(right)

    return Finding(
        name="l1-allows-more",
        title="TV-l1 allows more risks than TV-l2",
        label="section 3.2, Condition 4b (thm:IRMTVL1)",
        statement=(
            "On a finite measure every square-integrable slope is integrable but not the other way round, so the l1 "
            "penalty is finite for risks for which the l2 penalty is not."
        ),
        formula=r"$L^2(\Omega,\nu)\subsetneq L^1(\Omega,\nu),\quad \nu(\Omega)<\infty$",
        comparisons=comparisons,
        meaning=(
            f"With slopes u^-{exponent:g} the l1 penalty of {environments[-1]:,} environments is {small[-1]:.4f}, on "
            f"its way to {limit:g}; the l2 penalty is {large[-1]:.3g} and grows like n^{growth:.2f}. A finite measure "
            f"is needed: on [1, n] with S = 1/u it is the l1 penalty that grows (the last tenfold adds "
            f"{turned_l1:.1f} to it and {turned_l2:.1e} to l2)."
        ),
        paint=paint,
    )
