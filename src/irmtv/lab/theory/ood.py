"""When the worst risk can be written as mean risk plus weighted penalty (section OOD, appendix A.6 to A.8).

    (OOD)     min_Phi max_e R(Phi, e)  =  min_Phi max_{w in w(E)} R(w Phi)     (OOD-w), if R(Phi, e) = R(w(e) Phi)

    lambda_Phi  =  ( max_w R - E R ) / ( E |dR/dw| )^2     so that     E R + lambda_Phi ( E |dR/dw| )^2  =  max_w R

The minimax form has max_rho ( E_rho |dR/dw| )^2 below and the uniform measure in E R. Where E |dR/dw| = 0 see
`zero_slopes`. With lambda_Phi the model's objective is the worst risk, hence has its optima. How large lambda_Phi may
become: with nu uniform on an interval of length L, and R Lipschitz,

    max_w R - E R  <=  L E |dR/dw|          hence          lambda_Phi  <=  L / E |dR/dw|.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.optimize import root_scalar
from torch import Tensor

from irmtv.core.losses import Custom, Loss, as_loss
from irmtv.core.messages import check_positive
from irmtv.core.types import Statistics
from irmtv.lab.theory.classifiers import (
    TIE,
    RiskFunction,
    WeightFunction,
    adaptive_value,
    angle_error,
    nearest_with_any_weight,
    on_classifiers,
    worst_measure,
    worst_risk,
)
from irmtv.lab.theory.figures import BAD, ERM, L1, LEFT, RIGHT, TRUTH, legend, plain
from irmtv.lab.theory.finding import (
    Result,
    all_equal,
    at_least,
    at_most,
    beyond,
    claim,
    equal,
    greater,
    ours,
    statement,
)
from irmtv.lab.theory.sides import ROUNDING, Floats, PenaltyFunction, largest_on_simplex, uniform_measure
from irmtv.objectives.irm_tv_l1 import tv_l1
from irmtv.objectives.lambda_phi import lambda_phi

# ---- Theorem 3.7 ----


def _wave(height: Floats, phase: Floats, t: float) -> float:
    """A risk that is neither convex nor monotone, of one prediction."""
    terms = enumerate(zip(height, phase, strict=True), start=1)
    return float(sum(h * (1 + math.cos(k * t + s)) for k, (h, s) in terms))


def _waves(height: Floats, phase: Floats, t: Floats) -> Floats:
    """The same of many."""
    order = np.arange(1, len(height) + 1)
    result: Floats = (height * (1 + np.cos(order * t[..., None] + phase))).sum(-1)
    return result


@statement(
    "The worst environment is the worst classifier",
    "Theorem 3.7 (thm:OODwfrome)",
    formula=r"$\min_\Phi\max_{e}\, R(\Phi,e)=\min_\Phi\max_{w\in w(\mathcal{E})} R(w\circ\Phi)$",
)
def ood_over_w(
    sets: int = 200,
    environments: int = 8,
    classifiers: int = 4,
    points: int = 41,
    seed: int = 0,
    image: Callable[[Floats], Floats] = np.unique,
) -> Result:
    """If the risk depends on the environment e only through the classifier w(e), then the worst risk over environments
    and the worst risk over classifiers are the same function of Phi, with the same optima.

    Random risks, and random maps e -> w(e) of many environments on few classifiers; both sides by enumeration. `image`
    is what is under test: Omega, made of the w(e) (E,).
    """
    for value, parameter in ((sets, "sets"), (classifiers, "classifiers"), (points, "points")):
        check_positive(value, parameter)
    if environments <= classifiers:
        raise ValueError(
            f"environments must exceed classifiers, so that some environments share a w. Got {environments} "
            f"environments and {classifiers} classifiers. Raise the one or lower the other."
        )
    random = np.random.default_rng(seed)
    every_phi = np.linspace(-2, 2, points)
    over_e, over_w, beyond_e, beyond_w = (np.empty((sets, points)) for _ in range(4))
    mean_e, mean_induced, mean_alike = (np.empty(sets) for _ in range(3))
    argmax_differ = 0
    one_set: list[Floats] = []  # w(e), the risks of one Phi, and the same with what e adds by itself
    for k in range(sets):
        height, phase = random.uniform(0.2, 1, 3), random.uniform(0, 2 * np.pi, 3)
        w_of = random.uniform(-1, 1, classifiers)[random.integers(0, classifiers, environments)]
        own = random.uniform(0, 1, environments)  # added where Condition 2a is violated
        table = np.array([[_wave(height, phase, w * phi) for w in w_of] for phi in every_phi])  # (P, E)
        omega = image(w_of)
        values = _waves(height, phase, every_phi[:, None] * omega)  # (P, |Omega|)
        # a function of w alone has one value per w: there the mean over its environments
        members = w_of == omega[:, None]  # (|Omega|, E)
        shared = (members * own).sum(1) / members.sum(1).clip(1)
        over_e[k], over_w[k] = table.max(1), values.max(1)
        beyond_e[k], beyond_w[k] = (table + own).max(1), (values + shared).max(1)
        for per_e, per_w in zip(table, values, strict=True):
            argmax_differ += set(w_of[per_e >= per_e.max() - TIE]) != set(omega[per_w >= per_w.max() - TIE])
        mean_e[k], mean_alike[k] = table[0].mean(), values[0].mean()
        mean_induced[k] = members.mean(1) @ values[0]
        one_set = one_set or [w_of, table[0], table[0] + own]
    least_e, least_w, least_beyond_e, least_beyond_w = (a.min(1) for a in (over_e, over_w, beyond_e, beyond_w))
    argmin_differ = int(((over_e <= least_e[:, None] + TIE) != (over_w <= least_w[:, None] + TIE)).any(1).sum())
    moved = float(np.mean(beyond_e.argmin(1) != beyond_w.argmin(1)))
    off_alike = float(np.abs(mean_e - mean_alike).max())

    comparisons = (
        claim(f"min max of {sets} sets", all_equal("over e", least_e, "over w", least_w, ROUNDING)),
        claim(
            f"max at {sets * points:,} pairs of set and Phi", all_equal("over e", over_e, "over w", over_w, ROUNDING)
        ),
        claim("sets whose optimal Phi differ", equal("counted", argmin_differ, "none", 0)),
        claim("pairs whose worst e are not those of the worst w", equal("counted", argmax_differ, "none", 0)),
        beyond(
            "min max where R depends on e beyond w(e) (Condition 2a violated)",
            all_equal("over e", least_beyond_e, "over w", least_beyond_w, ROUNDING),
        ),
        ours("mean risk", all_equal("over e", mean_e, "over w, induced measure", mean_induced, ROUNDING)),
        ours("mean risk with every w weighted alike", greater("off by up to", off_alike, "nothing", 0, 0.05)),
    )

    def paint(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        w_of, risk, noisy = one_set
        plain(left, "one set, one Φ", "w(e)", "risk of each environment e")
        left.plot(w_of, noisy, "x", color=BAD, ms=6, label="R depends on e beyond w(e)")
        left.plot(w_of, risk, "o", color=LEFT, ms=6, label="R depends on e through w(e) alone")
        left.axhline(noisy.max(), color=BAD, lw=0.8, ls=":")
        left.axhline(risk.max(), color=LEFT, lw=0.8, ls=":")
        left.set_ylim(0, noisy.max() * 1.4)
        legend(left, loc="upper left")
        plain(right, f"min max of {sets} random sets", "over w", "over e")
        right.plot(least_beyond_w, least_beyond_e, "x", color=BAD, ms=4, alpha=0.7, label="beyond w(e)")
        right.plot(least_w, least_e, "o", color=LEFT, ms=3, alpha=0.7, label="through w(e) alone")
        right.axline((1, 1), slope=1, color=TRUTH, lw=0.8, ls=":")
        legend(right, loc="upper left")

    return Result(
        comparisons,
        f"In {sets} random sets of {environments} environments that share at most {classifiers} classifiers, the two "
        f"differ by at most {np.abs(over_e - over_w).max():.1g} at any of {points} values of Phi; {argmin_differ} sets "
        f"have other optima and at {argmax_differ} of {sets * points:,} pairs the worst environments lie elsewhere. "
        "Condition 2a is needed: once environments also differ by themselves (by their noise level, say), a risk that "
        f"knows only w misses up to {(least_beyond_e - least_beyond_w).max():.2f} of the least worst risk and has its "
        f"optimum elsewhere in {moved:.0%} of the sets. The usual dummy classifier, w = 1 in all environments, "
        "violates it as soon as their risks differ: there the maximum has to run over e. A mean, unlike a maximum, "
        f"needs the measure that the map induces: weighting every w alike is off by up to {off_alike:.2f}.",
        paint,
    )


# ---- Theorems 3.8 and 3.9, item 2 ----


@dataclass(frozen=True)
class _Drawn:
    """A random problem: a loss on random predictions, at random classifiers."""

    loss: Loss
    f: Tensor  # (N,) predictions of a random linear Phi
    y: Tensor  # (N,)
    w: Tensor  # (1, W)
    mass: Tensor  # (W,)

    def risk(self, w: Tensor) -> Tensor:
        """R(w Phi), the mean loss of the predictions w f: (P, W)."""
        return self.loss.value(w.unsqueeze(-1) * self.f, self.y.expand(*w.shape, -1)).mean(-1)

    def risk_again(self, w: Floats) -> Floats:
        """The same without a line of the library: (W,)."""
        f, y = w[:, None] * self.f.numpy(), self.y.numpy()
        match self.loss.name:
            case "squared":
                each = (f - y) ** 2
            case "binary":
                each = np.logaddexp(0, f) - y * f
            case _:
                each = np.sin((f - y) / 2) ** 2
        return np.asarray(each.mean(1))


def _draw(random: np.random.Generator, classifiers: int, kind: int) -> _Drawn:
    x, beta = random.normal(size=(20, 3)), random.normal(size=3)
    f = x @ beta
    loss = (as_loss("squared"), as_loss("binary"), Custom(angle_error))[kind % 3]
    y = (f + random.normal(size=20) > 0).astype(float) if loss.name == "binary" else f + random.normal(size=20)
    mass = random.dirichlet(np.ones(classifiers))
    w = random.uniform(-1, 2, (1, classifiers))
    return _Drawn(loss, *(torch.as_tensor(a, dtype=torch.float64) for a in (f, y, w, mass)))


def _shares_of_the_bound(random: np.random.Generator, tries: int) -> Floats:
    """lambda_Phi over L / E |dR/dw| for random risks on intervals, and last for one that is nearly a step."""
    nodes = torch.linspace(0, 1, 4001, dtype=torch.float64).unsqueeze(0)
    trapezoid = uniform_measure(4000)[[0, *range(4000)]].clone()
    trapezoid[[0, -1]] /= 2

    def share(low: float, length: float, risk: RiskFunction) -> float:
        e = on_classifiers(risk, low + length * nodes, trapezoid)
        assert e.slope is not None
        variation = (e.mass * e.slope.abs()).sum().item()
        return (worst_risk(e) - e.mean_risk.item()) / (length * variation)

    # the random risks are of angles: the loss that is not convex
    drawn = [(random.uniform(-1, 0), random.uniform(0.5, 2), _draw(random, 1, 2)) for _ in range(tries + 1)]
    low, length, _ = drawn[-1]
    late = share(low, length, lambda w: (w - (low + 0.98 * length)).clamp_min(0))
    return np.array([*(share(low, length, problem.risk) for low, length, problem in drawn[:-1]), late])


@statement(
    "A penalty weight that makes the objective the worst risk",
    "Theorems 3.8 and 3.9, item 2, first sentence (thm:OODwequiv)",
    formula=(
        r"$\mathrm{E}R+\lambda_\Phi\,(\mathrm{E}|\nabla_w R|)^2=\max_w R,\quad "
        r"\lambda_\Phi=(\max_w R-\mathrm{E}R)\,/\,(\mathrm{E}|\nabla_w R|)^2\geq 0$"
    ),
)
def lambda_phi_makes_worst_risk(
    sets: int = 150,
    classifiers: int = 6,
    seed: int = 0,
    weight: WeightFunction = lambda_phi,
    penalty: PenaltyFunction = tv_l1,
) -> Result:
    """Where the penalty is positive, a weight lambda_Phi >= 0 that depends on Phi alone makes mean risk plus weighted
    penalty equal to the worst risk, in the IRM and in the minimax form.

    lambda_Phi on random finite sets of classifiers, with the library's losses, in the IRM and the minimax form. Under
    test: `weight` (lambda_Phi) and `penalty`.
    """
    check_positive(sets, "sets")
    if classifiers < 2:
        raise ValueError(f"classifiers must be at least 2: one alone has no worst. Got {classifiers}. Use 2 or more.")
    random = np.random.default_rng(seed)
    worst, mean, value, value_minimax, ratio, ratio_minimax = (np.empty(sets) for _ in range(6))
    smallest = math.inf
    step = 1e-5  # of the central differences: error about step^2, and 1e-16 / step of rounding
    for k in range(sets):
        drawn = _draw(random, classifiers, k)
        e = on_classifiers(drawn.risk, drawn.w, drawn.mass)
        uniform = on_classifiers(drawn.risk, drawn.w, uniform_measure(classifiers))
        (chosen,), (value[k],) = adaptive_value(e, e.mass, weight, penalty)
        (chosen_minimax,), (value_minimax[k],) = adaptive_value(uniform, worst_measure(uniform), weight, penalty)
        # the other side: other code for the risk, slopes by differences, max_rho by a linear program, lambda as a root
        w, mass = drawn.w[0].numpy(), drawn.mass.numpy()
        risk = drawn.risk_again(w)
        slope = (drawn.risk_again(w + step) - drawn.risk_again(w - step)) / (2 * step)
        worst[k], mean[k] = max(risk), mass @ risk
        ratio[k] = chosen / _root(worst[k], mean[k], float(mass @ np.abs(slope)))
        ratio_minimax[k] = chosen_minimax / _root(worst[k], risk.mean(), largest_on_simplex(np.abs(slope))[0])
        smallest = min(smallest, chosen, chosen_minimax)
    shares = _shares_of_the_bound(random, 50)
    # R -> flatter R: what lambda_Phi becomes
    flatter = 0.01
    flat = on_classifiers(lambda w: flatter * drawn.risk(w), drawn.w, drawn.mass)
    ((before,), _), ((after,), _) = (adaptive_value(s, s.mass, weight, penalty) for s in (e, flat))
    raised = float(after) / float(before) if before else math.nan
    # the error rate of the rule "w f > 1" at w in (0, 2): steps, and beside them a slope of 0
    f, y = random.uniform(0.6, 3, 15), random.integers(0, 2, 15)
    nodes = np.linspace(0.001, 1.999, 999)
    rate, rate_beside = (torch.as_tensor(((np.outer(w, f) > 1) != y).mean(1)) for w in (nodes, nodes + 1e-9))
    steps = Statistics(rate.mean(-1, True), uniform_measure(999)[None], rate[None], (rate_beside - rate)[None] / 1e-9)
    stuck = nearest_with_any_weight(steps, steps.mass, penalty)

    comparisons = (
        claim(f"E R + lambda_Phi penalty, {sets} sets", all_equal("IRM form", value, "worst risk", worst, ROUNDING)),
        claim(
            f"E R + lambda_Phi penalty, {sets} sets",
            all_equal("minimax form", value_minimax, "worst risk", worst, ROUNDING),
        ),
        # 1e-6: the differences leave about 1e-9 of a slope, more where the slopes of the rows nearly cancel
        claim("lambda_Phi / its value by root finding", all_equal("IRM form", ratio, "one", 1.0, 1e-6)),
        claim("lambda_Phi / its value by root finding", all_equal("minimax form", ratio_minimax, "one", 1.0, 1e-6)),
        claim("smallest lambda_Phi", at_least("measured", smallest, "zero", 0.0)),
        beyond(
            "penalty 0: the 0-1 error, a step function of w",
            equal("nearest that any lambda comes", stuck, "worst risk", worst_risk(steps), ROUNDING),
        ),
        ours(
            f"R made flatter by {flatter:g}: lambda_Phi grows",
            equal("by the factor", raised, "1 / eps", 1 / flatter, 1e-9 / flatter),
        ),
        # 1e-3: trapezoids of step L / 4000 across the kinks of |dR/dw|
        ours("intervals: lambda_Phi / (L / E|dR/dw|)", at_most("largest", shares.max(), "one", 1, 1e-3)),
        ours("the same for nearly a step", greater("measured", shares[-1], "a sharp bound", 0.98)),
    )

    def paint(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        plain(left, f"{sets} random sets of {classifiers} classifiers", "worst risk", "objective")
        left.loglog(worst, mean, ".", color=ERM, ms=4, label="mean risk alone")
        left.loglog(worst, value, "o", color=L1, ms=5, mfc="none", label=r"with $\lambda_\Phi$, IRM form")
        left.loglog(worst, value_minimax, ".", color=RIGHT, ms=3, label=r"with $\lambda_\Phi$, minimax form")
        legend(left, loc="lower right")
        plain(right, "0-1 error: slope 0, no λ helps", "w", "error rate")
        right.step(nodes, rate, color=LEFT, lw=1.2)
        for height, text in ((stuck, "objective, any λ"), (worst_risk(steps), "worst risk")):
            right.axhline(height, color=TRUTH, lw=0.8, ls=":")
            right.text(2, height + 0.01, text, fontsize=7, ha="right")
        right.set_ylim(0, worst_risk(steps) * 1.15)

    return Result(
        comparisons,
        f"On {sets} random sets with squared, logistic and angular losses the objective with lambda_Phi is the worst "
        f"risk to {max(np.abs(value - worst).max(), np.abs(value_minimax - worst).max()):.0e}, in both forms; the mean "
        f"risk alone is up to {(1 - mean / worst).max():.0%} below it. A positive penalty is needed: the 0-1 error is "
        f"a step function of w with slope 0 almost everywhere, and every lambda leaves the objective at {stuck:.3f} "
        f"where the worst is {worst_risk(steps):.3f}.\n\n"
        "Nor need lambda_Phi be moderate: a risk made flatter by a factor eps needs a lambda 1/eps times as large "
        f"(eps = {flatter:g}: {raised:.3g} times); on an interval with nu uniform it never exceeds L / E|dR/dw|, L its "
        f"length (largest share of that bound seen: {shares.max():.2f}). The quotient is bookkeeping: whoever can "
        "compute it knows the worst risk already and may as well minimise that.",
        paint,
    )


def _root(worst: float, mean: float, variation: float) -> float:
    """The lambda at which mean + lambda variation^2 reaches the worst risk, by search in an interval."""
    high = 1.0
    while mean + high * variation**2 < worst:
        high *= 2
    return float(root_scalar(lambda weight: mean + weight * variation**2 - worst, bracket=(0, high)).root)
