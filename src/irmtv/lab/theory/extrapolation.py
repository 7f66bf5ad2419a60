"""V-REx with any measure (proposition VREx), what its proof does to lambda, and how far its risks can be extrapolated.

V-REx-l2, for a probability measure mu on the environments, finite or not:

    min_Phi  E_e R  +  lambda E_e (R - E_e R)^2,        E_e (R - E_e R)^2 = E_e R^2 - (E_e R)^2      (eq. varRe)

Condition 4a, R square integrable, is what makes the variance finite: R = u^-0.6 with u uniform on (0, 1) has none.
A mean-risk environment, R(e) = E R, exists where R is continuous and the set of environments is connected.

V-REx has the sum of the risks over the |E| environments in place of E_e R, and the variance as it is:

    sum_e R_e + lambda Var(R)  =  |E| { E_e R + (lambda / |E|) Var(R) },   mu uniform: the same lambda is another model.

In the paper's simulation the risk of any predictor is linear in p_s, how often the spurious sign agrees with the label:

    R(p) = p A + (1 - p) B,

so two environments determine it everywhere (figure riskextra), as long as nothing but p_s changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.optimize import brentq
from scipy.special import roots_jacobi

from irmtv.core.types import Runs, Statistics
from irmtv.datasets import make_simulation
from irmtv.engine import train
from irmtv.lab.theory.figures import BAD, ERM, L1, L2, LEFT, OTHER, RIGHT, TRUTH, legend, plain
from irmtv.lab.theory.finding import Result, all_equal, at_most, beyond, claim, equal, less, ours, statement
from irmtv.lab.theory.sides import Floats, PenaltyFunction, check_above, fitted_order
from irmtv.lab.theory.simulated_risk import LEARNING_RATE, Linear, risk_line
from irmtv.lab.theory.variation import pixel_centres
from irmtv.objectives.vrex import risk_variance


def _variance(risks: Floats, mu: Floats, variance: PenaltyFunction) -> Floats:
    """Var_mu of risks (R, E): (R,)."""
    risk, measure = torch.from_numpy(np.atleast_2d(risks)), torch.from_numpy(np.atleast_2d(mu))
    return np.asarray(variance(Statistics((measure * risk).sum(-1), measure, risk), measure))


# --- the proposition ----------------------------------------------------------------------------------------------


def _drifting_risk(e: Floats, shift: float = 3.0) -> Floats:
    """The logistic risk of f(x) = x - 1 on rows x that drift by e: smooth in e, not linear. (...) -> (...)."""
    x = np.linspace(-2, 2, 9)  # (N,)
    y = x > 0.3
    f = x + shift * np.asarray(e)[..., None] - 1  # (..., N)
    result: Floats = np.logaddexp(0, np.where(y, -f, f)).mean(-1)
    return result


@statement(
    "V-REx with any measure on the environments",
    "Proposition 3.3 (cor:VREx)",
    formula=r"$\min_\Phi\ \mathbb{E}_e[R]+\lambda\,\mathbb{E}_e[(R-\mathbb{E}_e[R])^2]$",
)
def vrex_l2(
    variance: PenaltyFunction = risk_variance,
    risk: Callable[[Floats], Floats] = _drifting_risk,
    beta: tuple[float, float] = (2.0, 5.0),
    environments: tuple[int, ...] = (10, 20, 40, 80, 160, 320, 640),
    seed: int = 0,
) -> Result:
    """V-REx generalises to any probability measure on the environments, finite or not: mean risk plus lambda times the
    variance of the risk. Where the risk is continuous in e some environment has the mean risk.

    The variance under finite measures and under a Beta measure on [0, 1], by two formulas and two quadratures.
    `variance` (Statistics, mu) -> (R,) is under test. `risk` is R(e), continuous in e on [0, 1]; `beta` are the two
    parameters of the measure.
    """
    if not all(np.isfinite(parameter) and parameter >= 2 for parameter in beta):
        raise ValueError(f"beta must be two numbers of at least 2. Got {beta!r}. Use (2.0, 5.0).")
    rng = np.random.default_rng(seed)
    risks, mu = rng.exponential(size=(50, 4)), rng.dirichlet(np.ones(4), 50)  # (50, E)
    by_moments = np.einsum("re,re->r", mu, risks**2) - np.einsum("re,re->r", mu, risks) ** 2

    a, b = beta

    def density(e: Floats) -> Floats:
        return np.asarray(e ** (a - 1) * (1 - e) ** (b - 1))

    # under the Beta measure by Gauss's rule, and by environments on a grid that are weighed by the density
    nodes, weights = roots_jacobi(60, b - 1, a - 1)
    nodes, weights = (1 + nodes) / 2, weights / weights.sum()
    mean = float(weights @ risk(nodes))
    exact = float(weights @ risk(nodes) ** 2) - mean**2
    finite = []
    for n in environments:
        e = pixel_centres(n)
        finite.append(_variance(risk(e), density(e) / density(e).sum(), variance)[0])
    errors = np.abs(np.array(finite) - exact)
    rate = -fitted_order(environments[-2:], errors[-2:])

    # an environment whose risk is the mean
    e = np.linspace(0, 1, 101)  # the mean lies between the least and the largest risk
    ends = e[risk(e).argmin()], e[risk(e).argmax()]
    middle = float(brentq(lambda e: float(risk(np.array(e))) - mean, *ends))
    few = np.array([0.1, 0.5, 0.9])
    on_few = risk(few)
    nearest = float(on_few[np.abs(on_few - on_few.mean()).argmin()])

    # a risk in L^1 and not in L^2: the variance of more and more environments
    many = (100_000, 1_000_000)
    heavy = [float(_variance(pixel_centres(n) ** -0.6, np.full(n, 1 / n), variance)[0]) for n in many]

    # V-REx itself, and its multiple of |E|
    w = np.linspace(-4, 4, 401)[:, None]
    line = (w - np.array([0.5, 1.0, 2.5])) ** 2 * np.array([1.0, 0.5, 0.4])  # (G, E)
    weight = 3.0
    uniform = np.full((1, 3), 1 / 3)
    original = line.sum(-1) + weight * line.var(-1)
    general = line.mean(-1) + weight / 3 * _variance(line, uniform, variance)

    # the rule of midpoints leaves d / (24 n^2), d the slope of density times squared deviation at the ends: 30 R^2
    close = 2 * (float(np.ptp(risk(nodes))) / environments[-1]) ** 2
    comparisons = (
        claim(
            "variance of 4 risks, measure not uniform",
            all_equal("E(R - ER)^2", _variance(risks, mu, variance), "E R^2 - (E R)^2", by_moments, 1e-13),
        ),
        claim(
            f"variance under Beta({a:g}, {b:g})",
            equal(f"{environments[-1]} environments", finite[-1], "Gauss's rule", exact, close),
        ),
        ours(
            "V-REx with lambda and V-REx-l2 with lambda / |E|, uniform",
            all_equal("sum R + lambda Var", original, "|E| times V-REx-l2", 3 * general, 1e-10),
        ),
        claim(
            "continuous in e: risk of a mean-risk environment",
            equal(f"R at e = {middle:.4f}", risk(np.array(middle)), "E R", mean, 1e-10),
        ),
        beyond(
            "finitely many e: risk nearest to the mean",
            equal(f"R at e in {', '.join(f'{e:g}' for e in few)}", nearest, "E R", on_few.mean(), 1e-6),
        ),
        beyond(
            "R = u^-0.6, not square integrable (Condition 4a violated): variance",
            equal(f"{many[1]:,} environments", heavy[1], f"{many[0]:,}", heavy[0], 0.01 * heavy[0]),
        ),
        ours("rate of the finite measures, as a power of n", at_most("measured", rate, "midpoints", -2, 0.05)),
    )

    def paint(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        plain(left, f"risk over e, and the measure Beta({a:g}, {b:g})", "environment e", "risk R(e)")
        e = np.linspace(0, 1, 301)
        height = density(e) / density(e).max() * float(risk(e).max()) * 0.5
        left.fill_between(e, 0, height, color=OTHER, alpha=0.25, lw=0, label="density")
        left.plot(e, risk(e), color=LEFT, lw=1.5, label="R(e)")
        left.axhline(mean, color=TRUTH, lw=0.8, ls=":", label=f"E R = {mean:.3f}")
        left.plot(middle, mean, "o", color=BAD, ms=5, label=f"mean-risk e = {middle:.3f}")
        legend(left)
        plain(right, "n environments, weighed by the density", "environments n", "error of the variance")
        right.loglog(environments, errors, "o-", color=LEFT, ms=4, label="measured")
        guide = errors[0] * (environments[0] / np.array(environments, dtype=float)) ** 2
        right.loglog(environments, guide, color=TRUTH, lw=0.8, ls=":", label=r"$n^{-2}$")
        legend(right)

    return Result(
        comparisons,
        f"Over 50 random risks and measures the two forms of the variance agree to {comparisons[0].error:.0e}. Under a "
        f"Beta({a:g}, {b:g}) measure the variance of a risk that drifts with e is {exact:.6f}; {environments[-1]} "
        f"environments weighed by the density give {finite[-1]:.6f}, with an error that falls like n^{rate:.2f}. V-REx "
        "itself is |E| times V-REx-l2 with lambda / |E| and the uniform measure.\n\n"
        f"The environment e = {middle:.3f} has the mean risk, as the proof says 'under some mild assumptions (such as "
        "the continuity of R ...)'. Continuity alone is not enough: on the three environments "
        f"{', '.join(f'{e:g}' for e in few)} every risk is continuous and none has the mean ({on_few.mean():.3f}, "
        f"nearest {nearest:.3f}); the set of environments must be connected. And Condition 4a is needed: with R = "
        f"u^-0.6, which is integrable and not square integrable, the variance is {heavy[0]:.0f} over {many[0]:,} "
        f"environments and {heavy[1]:.0f} over {many[1]:,}.",
        paint,
    )


def same_lambda(weight: float, count: int) -> float:
    """The lambda of V-REx-l2 as the paper prints it: that of V-REx."""
    return weight


def divided_lambda(weight: float, count: int) -> float:
    """The lambda of V-REx-l2 that belongs to V-REx's."""
    return weight / count


@statement(
    "V-REx's sum of risks is not their expectation",
    "proof of Proposition 3.3 (eqn:sumRe)",
    formula=r"$\sum_{e} R(\Phi,e):=\mathbb{E}_e[R(\Phi,e)]$",
)
def vrex_sum_is_no_expectation(
    penalty_weight: float = 1.0,
    curvatures: tuple[float, ...] = (1.0, 0.2, 0.2, 0.2, 0.2),
    centres: tuple[float, ...] = (0.0, 2.4, 2.8, 3.2, 3.6),
    printed: Callable[[float, int], float] = same_lambda,
    corrected: Callable[[float, int], float] = divided_lambda,
    variance: PenaltyFunction = risk_variance,
) -> Result:
    """The proof identifies (it writes ':=') the sum of the risks in V-REx with their expectation under a probability
    measure and keeps lambda.

    V-REx against V-REx-l2 with the uniform measure, in one parameter w with R_e(w) = curvature (w - centre)^2.
    `printed` and `corrected` (lambda, |E|) -> the lambda of V-REx-l2, and `variance`, are under test.
    """
    check_above(penalty_weight, 0, "penalty_weight", "At 0 there is no variance to compare.")
    if len(curvatures) != len(centres) or len(centres) < 2:
        raise ValueError(
            "curvatures and centres must have one value per environment each, and two or more environments. Got "
            f"{len(curvatures)} and {len(centres)}. Give both for every environment."
        )
    count = len(centres)
    w = np.linspace(-3, 5, 80_001)  # by steps of 1e-4
    risks = np.array(curvatures) * (w[:, None] - np.array(centres)) ** 2  # (G, E)
    spread = _variance(risks, np.full((1, count), 1 / count), variance)
    original = risks.sum(-1) + penalty_weight * risks.var(-1)  # V-REx
    weights = {"printed": printed(penalty_weight, count), "corrected": corrected(penalty_weight, count)}
    general = {name: risks.mean(-1) + weight * spread for name, weight in weights.items()}  # V-REx-l2
    best = w[original.argmin()]
    chosen = {name: float(w[values.argmin()]) for name, values in general.items()}
    # IRMv1 has a sum in both terms, so nothing of the kind happens there
    slopes = 2 * w[:, None] * np.array(curvatures) * (w[:, None] - np.array(centres))
    irm = w[(risks + penalty_weight * slopes**2).sum(-1).argmin()]
    irm_expected = w[(risks + penalty_weight * slopes**2).mean(-1).argmin()]

    step = 1.5e-4  # the grid's, and rounding
    at = int(original.argmin())
    comparisons = (
        claim("first term at V-REx's minimiser", equal("sum of risks", risks[at].sum(), "E R", risks[at].mean(), 1e-9)),
        claim(
            f"minimiser, lambda = {weights['printed']:g} in both",
            equal("V-REx", best, "V-REx-l2", chosen["printed"], step),
        ),
        ours(
            f"minimiser, lambda = {weights['corrected']:.3g} in V-REx-l2",
            equal("V-REx", best, "V-REx-l2", chosen["corrected"], step),
        ),
        ours(
            "objective over w",
            all_equal(
                "V-REx",
                original,
                "|E| times V-REx-l2, lambda / |E|",
                count * general["corrected"],
                1e-12 * float(original.max()),
            ),
        ),
        ours("IRMv1: minimiser with sums and with means", equal("sums", irm, "means", irm_expected, step)),
    )

    def paint(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        plain(left, f"risks of {count} environments", "parameter w", "risk", ylim=(0, 4))
        near = (w > -1) & (w < 3.5)
        for e in range(count):
            left.plot(
                w[near],
                risks[near, e],
                color=(LEFT, RIGHT, OTHER, ERM, L2)[e % 5],
                lw=1.2,
                label=f"environment {e + 1}",
            )
        legend(left)
        plain(right, "objectives above their minimum", "parameter w", "value, V-REx divided by |E|", ylim=(-0.02, 0.5))
        curves = (
            (original / count, TRUTH, "-", "V-REx", 3.0),
            (general["corrected"], OTHER, "--", r"V-REx-l2, $\lambda/|E|$", 1.5),
            (general["printed"], BAD, "-", r"V-REx-l2, $\lambda$", 1.5),
        )
        for values, colour, style, name, width in curves:
            right.plot(w[near], values[near] - values.min(), color=colour, ls=style, lw=width, label=name)
            right.plot(w[values.argmin()], 0, "v", color=colour, ms=6)
        right.set_xlim(best - 0.8, best + 0.8)
        legend(right, loc="upper center")

    return Result(
        comparisons,
        f"With {count} environments the sum is {count} times the expectation, while the variance stays as it is: V-REx "
        f"with lambda = {penalty_weight:g} has its minimum at w = {best:.4f}, V-REx-l2 with the same lambda at w = "
        f"{chosen['printed']:.4f}, and with lambda / {count} at w = {chosen['corrected']:.4f}, where V-REx has it. So "
        "the proposition stands, with another lambda: the weight of a V-REx that sums the risks is to be divided by "
        "the number of environments. IRMv1 sums both terms, so there the number of environments drops out (minimiser "
        f"{irm:.4f} with sums, {irm_expected:.4f} with means).",
        paint,
    )


# --- the figure of the proof ----------------------------------------------------------------------------------------


def straight_line(p: Floats, at: tuple[float, float], risks: Floats) -> Floats:
    """Risks at p (k,) from those of two environments, risks (R, 2): (R, k)."""
    step = (risks[:, 1:] - risks[:, :1]) / (at[1] - at[0])
    return risks[:, :1] + step * (p - at[0])


def _measured(model: Linear, p_s: Floats, p_v: float, rows: int, seed: int) -> tuple[Floats, Floats]:
    """Mean and standard error of the loss on fresh rows of agreement p_v, an equal number at every p_s: (R, k) each."""
    drawn = make_simulation(
        2, 0.5, p_v, random_state=seed, n_test=rows * len(p_s), test_p_s=tuple(float(p) for p in p_s)
    ).test
    assert drawn is not None
    loss = model.losses(drawn).reshape(-1, len(p_s), rows)  # rows lie in the order of p_s
    return loss.mean(-1), loss.std(-1) / np.sqrt(rows)


PREDICTORS = ("ERM", "V-REx", "IRM-TV-l1")
ELSEWHERE = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])  # the p_s at which risks are extrapolated


@statement(
    "Two environments tell the risk of all those on their line",
    "proof of Proposition 3.3 (fig:riskextra)",
    formula=r"$R(\Phi,p)=R(\Phi,p_1)+\frac{p-p_1}{p_2-p_1}\,[R(\Phi,p_2)-R(\Phi,p_1)]$",
)
def risk_extrapolation(
    p_s: tuple[float, float] = (0.9, 0.7),
    p_v: float = 0.8,
    penalty_weight: float = 100.0,
    rows: int = 50_000,
    steps: int = 800,
    extrapolate: Callable[[Floats, tuple[float, float], Floats], Floats] = straight_line,
    seed: int = 0,
) -> Result:
    """The deviations of the training risks from their mean span a linear space along which the risk extrapolates to a
    larger region; making them small makes the risk flat there too.

    ERM, V-REx and IRM-TV-l1 trained on two environments; their risks at every p_s from these two. `extrapolate` (p, the
    two p_s, risks (R, 2)) -> (R, k) is under test. `rows` are fresh ones per environment.
    """
    if len(p_s) != 2 or p_s[0] == p_s[1]:
        raise ValueError(f"p_s must be two different numbers, for a line. Got {p_s!r}. Use (0.9, 0.7), say.")
    check_above(penalty_weight, 0, "penalty_weight", "At 0 all three are ERM.")
    # the three predictors, trained as one on two environments
    weights: list[Mapping[str, Any]] = [
        {"vrex": v, "irm-tv-l1": s} for v, s in ((0.0, 0.0), (penalty_weight, 0.0), (0.0, penalty_weight))
    ]
    settings: dict[str, Any] = {"steps": steps, "learning_rate": LEARNING_RATE, "warmup": 0.25, "dtype": torch.float64}
    task = make_simulation(5000, p_s, p_v, random_state=seed)
    fitted = train(task, "irm-tv-l1+vrex", Runs(penalty_weight=weights), **settings)
    coef, intercept = (np.asarray(t, dtype=float) for t in fitted.coefficients())
    model = Linear(coef.reshape(len(PREDICTORS), -1), intercept.reshape(len(PREDICTORS)), p_v)
    seen, seen_error = _measured(model, np.array(p_s), p_v, rows, seed + 1)
    fresh, fresh_error = _measured(model, ELSEWHERE, p_v, rows, seed + 2)
    predicted = extrapolate(ELSEWHERE, p_s, seen)
    # the line's own standard error: its two points count (1 - t) and t
    t = (ELSEWHERE - p_s[0]) / (p_s[1] - p_s[0])
    line_error = np.sqrt(((1 - t) * seen_error[:, :1]) ** 2 + (t * seen_error[:, 1:]) ** 2)  # (R, k)
    score = np.abs(fresh - predicted) / np.hypot(line_error, fresh_error)
    exact = risk_line(*model.risk_by_agreement(), ELSEWHERE)
    exact_score = np.abs(fresh - exact) / fresh_error
    slopes = dict(zip(PREDICTORS, exact[:, 0] - exact[:, -1], strict=True))  # risk at p_s = 0 minus that at 1
    worst = dict(zip(PREDICTORS, exact.max(1), strict=True))

    other_p_v = 1 - (1 - p_v) * 2
    off, off_error = _measured(model, ELSEWHERE, other_p_v, rows, seed + 3)
    off_score = np.abs(off - predicted) / np.hypot(line_error, off_error)
    middle = int(np.abs(ELSEWHERE - np.mean(p_s)).argmin())

    comparisons = (
        # 18 scores of about normal size: the largest exceeds 4 with probability 0.001
        claim(
            f"largest |measured - extrapolated| over {score.size} risks, in standard errors",
            at_most(f"{rows:,} fresh rows each", score.max(), "chance", 4.0),
        ),
        ours(
            "largest |measured - population|, in standard errors",
            at_most(f"{rows:,} fresh rows each", exact_score.max(), "chance", 4.0),
        ),
        claim("rise of the risk from p_s = 1 to 0", less("V-REx", abs(slopes["V-REx"]), "ERM", abs(slopes["ERM"]))),
        claim("largest risk over p_s in [0, 1]", less("V-REx", worst["V-REx"], "ERM", worst["ERM"])),
        beyond(
            f"p_v = {other_p_v:g}: |measured - extrapolated| at p_s = {ELSEWHERE[middle]:g}, in standard errors",
            at_most(f"ERM, {rows:,} fresh rows", off_score[0, middle], "chance", 4.0),
        ),
        ours(
            "rise of the risk from p_s = 1 to 0", less("IRM-TV-l1", abs(slopes["IRM-TV-l1"]), "ERM", abs(slopes["ERM"]))
        ),
    )

    def paint(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        p = np.linspace(0, 1, 101)
        line = extrapolate(p, p_s, seen)
        plain(left, "risk, extrapolated and measured", r"$p_s$ of the environment", "risk")
        for k, (name, colour) in enumerate(zip(PREDICTORS, (ERM, L2, L1), strict=True)):
            left.plot(p, line[k], color=colour, lw=1.3, label=name)
            left.plot(ELSEWHERE, fresh[k], "o", color=colour, ms=4, mfc="white")
            left.plot(p_s, seen[k], "s", color=colour, ms=4)
        left.plot([], [], "s", color=TRUTH, ms=4, label="training environments")
        left.plot([], [], "o", color=TRUTH, ms=4, mfc="white", label="measured elsewhere")
        legend(left)
        plain(right, f"off the line: $p_v$ = {other_p_v:g} instead of {p_v:g}", r"$p_s$ of the environment", "risk")
        for k, (name, colour) in enumerate(zip(PREDICTORS, (ERM, L2, L1), strict=True)):
            right.plot(p, line[k], color=colour, lw=1.3, label=f"{name}, extrapolated")
            right.plot(ELSEWHERE, off[k], "x", color=colour, ms=5, mew=1.5)
        right.plot([], [], "x", color=TRUTH, ms=5, mew=1.5, label="measured")
        low, high = min(fresh.min(), off.min()), max(fresh.max(), off.max())
        for axes in (left, right):
            axes.set_ylim(low - 0.05, high + 0.05)
        legend(right)

    return Result(
        comparisons,
        f"Three predictors are trained at p_s = {p_s[0]:g} and {p_s[1]:g}. The line through the two risks tells the "
        f"risk on {rows:,} fresh rows at each of {len(ELSEWHERE)} other p_s in [0, 1] up to {score.max():.1f} standard "
        "errors: here the risk is exactly linear in p_s. V-REx flattens it: from p_s = 1 to 0 the risk rises by "
        f"{slopes['ERM']:.2f} for ERM, {slopes['V-REx']:.2f} for V-REx and {slopes['IRM-TV-l1']:.2f} for IRM-TV-l1, "
        f"and the largest risk is {worst['ERM']:.2f}, {worst['V-REx']:.2f} and {worst['IRM-TV-l1']:.2f}. An "
        f"environment off the line is not predicted: with p_v = {other_p_v:g} in place of {p_v:g} ERM's risk at p_s = "
        f"{ELSEWHERE[middle]:g} is {off[0, middle]:.3f}, {off_score[0, middle]:.0f} standard errors from the "
        f"{predicted[0, middle]:.3f} predicted.",
        paint,
    )
