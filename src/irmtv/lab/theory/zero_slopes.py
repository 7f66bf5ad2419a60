"""A penalty of 0 does not say that the risk is constant (Theorem 3.8, item 2, second sentence; Theorem 3.9 likewise).

The proof: "When R is Lipschitz continuous w.r.t. w, E |dR/dw| = 0 implies that R is constant w.r.t. w." It does where
Omega is an interval (in general: open and connected) and nu misses no part of it of positive length. On the finite sets
of environments of practice it does not:

    Omega = {0, 1},  R(w) = 3 w^2 - 2 w^3        R'(0) = R'(1) = 0,  R(0) = 0,  R(1) = 1

so that E R + lambda * 0 = 1/2 for every lambda, and max R = 1. For R convex in w it does on finite Omega too, if nu
misses none of it: each w of slope 0 is then a minimiser. With the dummy classifier, w = 1 for all e and R_e(w Phi) in
place of R(w Phi), convexity does not help either: R_e = (Phi - a)^2 + v_e at Phi = a.
"""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from irmtv.core.types import Statistics
from irmtv.lab.theory.classifiers import (
    RiskFunction,
    WeightFunction,
    adaptive_value,
    nearest_with_any_weight,
    on_classifiers,
    worst_measure,
    worst_risk,
)
from irmtv.lab.theory.figures import BAD, ERM, LEFT, RIGHT, TRUTH, legend, plain
from irmtv.lab.theory.finding import Result, Sides, at_least, beyond, claim, equal, ours, statement
from irmtv.lab.theory.sides import ROUNDING, PenaltyFunction, uniform_measure
from irmtv.objectives.irm_tv_l1 import tv_l1
from irmtv.objectives.lambda_phi import lambda_phi
from irmtv.objectives.vrex import risk_variance

TARGET = 1.5  # a of the example with the dummy classifier


def smooth_step(w: Tensor) -> Tensor:
    """3 w^2 - 2 w^3 between 0 and 1, constant outside: slope 0 at both ends and beyond them, 3/2 at most."""
    w = w.clamp(0, 1)
    return 3 * w**2 - 2 * w**3


def _late_step(w: Tensor) -> Tensor:
    """0 up to 1/4, 1 from 3/4 on, smooth between."""
    return smooth_step(2 * w - 0.5)


def _row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


@statement(
    "A penalty of 0 does not make the risks equal",
    "Theorems 3.8 and 3.9, item 2, second sentence (thm:OODwequiv)",
    formula=r"$\mathrm{E}|\nabla_w R|=0\;\Rightarrow\;\mathrm{E}R=\max_{w\in\Omega} R\quad(R\ \mathrm{Lipschitz})$",
)
def zero_penalty_without_constancy(
    noise: tuple[float, ...] = (0.25, 1.0),
    step: RiskFunction = smooth_step,
    weight: WeightFunction = lambda_phi,
    penalty: PenaltyFunction = tv_l1,
) -> Result:
    """If the risk is Lipschitz in w and the penalty is 0, mean risk plus weighted penalty is said to equal the worst
    risk still, since the risk would then be constant in w.

    Lipschitz risks of slope 0 on all of Omega that are not constant there; then where the conclusion is true. `noise`
    are the noise levels v_e of the example with the dummy classifier. Under test are `step`, the risk on Omega = {0, 1}
    that is to break the printed sentence, `weight` (lambda_Phi) and `penalty`.
    """
    if len(noise) < 2 or min(noise) < 0:
        raise ValueError(f"noise must be two or more variances, none negative, one per environment. Got {noise}.")
    two_points = on_classifiers(step, _row(0, 1), uniform_measure(2))
    quarter = torch.linspace(0, 0.25, 50, dtype=torch.float64)
    outer = torch.cat([quarter, 0.75 + quarter]).unsqueeze(0)
    two_intervals = on_classifiers(_late_step, outer, uniform_measure(100))
    middle = torch.linspace(0.26, 0.74, 49, dtype=torch.float64).unsqueeze(0)
    no_weight = torch.zeros(49, dtype=torch.float64)
    hole = on_classifiers(_late_step, torch.cat([outer, middle], -1), torch.cat([uniform_measure(100), no_weight]))
    _, (hole_minimax,) = adaptive_value(hole, worst_measure(hole), weight, penalty)

    # convex in w: the mean of |w| and |w - 1|, flat between its two kinks
    convex = on_classifiers(lambda w: (w.abs() + (w - 1).abs()) / 2, _row(0.2, 0.5, 0.9), uniform_measure(3))
    # connected, nu everywhere: a risk that climbs by 1 somewhere on [0, 1] has E |dR/dw| >= 1 however it does so
    nodes = torch.linspace(0, 1, 10_001, dtype=torch.float64).unsqueeze(0)

    def variation(width: float) -> float:  # of a climb from 0.3 on, to 1 if there is room, over its height
        e = on_classifiers(lambda w: smooth_step((w - 0.3) / width), nodes, uniform_measure(10_001))
        assert e.slope is not None and e.risk is not None
        return (e.slope.abs().mean() / (e.risk.max() - e.risk.min())).item()

    variations = [variation(width) for width in (1.0, 0.1, 0.01)]
    beside = 1e-6
    around = step(_row(beside, 1 + beside)) - step(_row(-beside, 1 - beside))
    # the dummy classifier: R_e = (w Phi - a)^2 + v_e at w = 1 and Phi = a
    levels = torch.tensor(noise, dtype=torch.float64)
    ones = torch.ones(1, len(noise), dtype=torch.float64)
    dummy = on_classifiers(lambda w: (w * TARGET - TARGET) ** 2 + levels, ones, uniform_measure(len(noise)))
    _, (with_vrex,) = adaptive_value(dummy, dummy.mass, weight, risk_variance)

    def any_weight(e: Statistics, minimax: bool = False) -> Sides:
        near = nearest_with_any_weight(e, worst_measure(e) if minimax else e.mass, penalty)
        return equal("nearest that any lambda comes", near, "worst risk", worst_risk(e), ROUNDING)

    comparisons = (
        claim("slope 0 on Omega = {0, 1}", any_weight(two_points)),
        claim("slope 0 on Omega = {0, 1}, minimax form", any_weight(two_points, minimax=True)),
        claim("slope 0 on Omega = two intervals", any_weight(two_intervals)),
        claim("slope 0 on [0, 1] but for the middle, which nu misses", any_weight(hole)),
        beyond("w = 1 everywhere, noise levels differ (Condition 2a violated)", any_weight(dummy)),
        # 1e-5: the third derivative is 12, the second 6, so central differences of step 1e-6 are off by some 1e-6
        ours(
            "slopes on {0, 1}, by differences", equal("largest", (around.abs().max() / (2 * beside)), "zero", 0, 1e-5)
        ),
        ours(
            "the middle that nu misses: minimax form",
            equal("with lambda_Phi", hole_minimax, "worst risk", worst_risk(hole), ROUNDING),
        ),
        ours("slope 0 on three points, R convex in w", any_weight(convex)),
        # 1e-3: the mean over 10,001 nodes of a slope that lives on 100 of them
        ours("[0, 1], nu uniform: E|dR/dw| over the climb of R", at_least("least", min(variations), "one", 1, 1e-3)),
        ours(
            "noise levels differ: V-REx's penalty",
            equal("with lambda_Phi", with_vrex, "worst risk", worst_risk(dummy), ROUNDING),
        ),
    )
    near, top = comparisons[0].left, comparisons[0].right
    mean_noise = dummy.mean_risk.item()

    lipschitz = float(np.abs(np.gradient(step(torch.linspace(0, 1, 1001).double()).numpy(), 1e-3)).max())

    def paint(figure: Figure) -> None:
        left, centre, right = figure.subplots(1, 3)
        w = torch.linspace(-0.15, 1.15, 300)
        for axes, risk, title, row in (
            (left, step, "two environments", comparisons[0]),
            (centre, _late_step, "a middle that ν misses", comparisons[3]),
        ):
            plain(axes, title, "w", r"$R(w\,\Phi)$", ylim=(-0.1, 1.2))
            axes.plot(w, risk(w), color=ERM, lw=1, ls="--")
            for height, text in ((row.left, "objective, any λ"), (row.right, "worst risk")):
                axes.axhline(height, color=TRUTH, lw=0.8, ls=":")
                axes.text(-0.15, height + 0.03, text, fontsize=7)
        for at in (0.0, 1.0):
            left.plot([at - 0.14, at + 0.14], [at, at], color=BAD, lw=1.5)
            left.plot([at], [at], "o", color=LEFT, ms=5)
        for low in (0.0, 0.75):
            part = torch.linspace(low, low + 0.25, 2)
            centre.plot(part, _late_step(part), color=LEFT, lw=4)
        plain(right, "w = 1, noise differs", "w", r"$R_e(w\,\Phi)$ at Φ = a")
        w = torch.linspace(0.5, 1.5, 100)
        for v, colour in zip((min(noise), max(noise)), (LEFT, RIGHT), strict=True):
            right.plot(w, (w * TARGET - TARGET) ** 2 + v, color=colour, lw=1, label=f"noise {v:g}")
            right.plot([0.85, 1.15], [v, v], color=BAD, lw=1.5)
            right.plot([1], [v], "o", color=colour, ms=5)
        right.axhline(mean_noise, color=TRUTH, lw=0.8, ls=":")
        right.text(1, mean_noise + 0.03, "objective, any λ", fontsize=7, ha="center")
        right.set_ylim(0, (max(noise) + 0.6) * 1.25)
        legend(right, loc="upper center", ncols=2)

    return Result(
        comparisons,
        f"3w^2 - 2w^3 is Lipschitz (steepest slope {lipschitz:.2g}) and has slope 0 at both points of Omega = {{0, "
        f"1}}, yet is {top - 2 * (top - near):g} at one and {top:g} at the other: every lambda leaves the objective at "
        f"{near:g} and the worst risk is {top:g}. The proof's 'implies that R is constant' needs more than is printed: "
        "an open connected Omega (an interval, say) of which nu misses no part (a climb of 1 on [0, 1] then costs a "
        f"penalty of {min(variations):.3f} at least); or, again with nu missing none of Omega, a risk convex in w, as "
        "the squared and the logistic one are.\n\n"
        "For a user the dummy classifier counts, w = 1 everywhere: environments of noise "
        f"{' and '.join(f'{v:g}' for v in noise)} have slope 0 at the same Phi, no lambda lifts the mean risk "
        f"{mean_noise:.3g} to the worst, {worst_risk(dummy):g}, and a TV penalty cannot see them. V-REx's can.",
        paint,
    )
