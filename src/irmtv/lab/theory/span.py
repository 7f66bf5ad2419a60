"""What training environments span, and what happens inside and outside of it (section OOD, eq. basisspan).

A label, an invariant sign that agrees with it with probability p_v everywhere, and two spurious signs that agree with
probabilities p1 and p2; each sign moves `COLUMNS` columns, N(sign, 1). An environment is (p1, p2), and everything about
it is linear in the four probabilities with which the two spurious signs agree:

    theta(p1, p2)  =  ( p1 p2,  p1 (1 - p2),  (1 - p1) p2,  (1 - p1)(1 - p2) )
    R(Phi, e)      =  sum_k theta_k(e) r_k(Phi),  the same for slopes and accuracies

So where theta(e) = sum_i c_i theta(e_i), with sum_i c_i = 1, also R(Phi, e) = sum_i c_i R(Phi, e_i), for every Phi:
the training environments determine the risk in all of their affine span, and nothing outside. The paper writes the
linear span L(B_tr); coefficients that do not sum to 1 give no probability, and so no environment. For REx its section
2.1 says affine combinations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.special import expit, ndtr

from irmtv.core.membership import Codes
from irmtv.core.messages import check_positive
from irmtv.core.risk import summarise
from irmtv.core.types import Statistics, Task
from irmtv.data import make_task
from irmtv.lab.theory.figures import BAD, ERM, L1, L2, OTHER, TRUTH, legend, plain
from irmtv.lab.theory.finding import (
    Result,
    Sides,
    all_equal,
    beyond,
    claim,
    equal,
    greater,
    less,
    ours,
    statement,
    unequal,
)
from irmtv.lab.theory.sides import Floats
from irmtv.lab.theory.simulated_risk import gauss_hermite, train_linear
from irmtv.objectives.environments.affine import Affine, expanded
from irmtv.objectives.vrex import risk_variance

Environment = tuple[float, float]  # p1, p2
Expansion = Callable[[Statistics], Statistics]

COLUMNS = 5  # that each of the three signs moves
P_V = 0.8  # how often the invariant sign agrees, everywhere
TRAINING: tuple[Environment, ...] = ((0.9, 0.9), (0.7, 0.9))  # the second block agrees equally often in both
THIRD: Environment = (0.8, 0.7)  # the one in which it does not
BETWEEN, BEYOND, OUTSIDE, CORNER = (0.8, 0.9), (0.1, 0.9), (0.8, 0.1), (0.1, 0.1)
TESTS: tuple[Environment, ...] = (BETWEEN, BEYOND, OUTSIDE, CORNER)
REACH = 3.0  # (0.1, 0.9) is -3 (0.9, 0.9) + 4 (0.7, 0.9): coefficients in [-3, 4]

METHODS: Mapping[str, tuple[str, bool]] = {  # shown name -> objective, whether it is expanded
    "ERM": ("erm", False),
    "groupDRO": ("groupdro", False),
    "V-REx": ("vrex", False),
    "TV-l2": ("irm-tv-l2", False),
    "TV-l1": ("irm-tv-l1", False),
    "V-REx, expanded": ("vrex", True),
    "TV-l1, expanded": ("irm-tv-l1", True),
}
PENALISED = tuple(name for name in METHODS if name not in ("ERM", "groupDRO"))
COLOURS = {"ERM": ERM, "groupDRO": BAD, "V-REx": OTHER, "TV-l2": L2, "TV-l1": L1}


def theta(environment: Environment) -> Floats:
    """How often both spurious signs agree, only the first, only the second, neither: (4,)."""
    p1, p2 = environment
    return np.array([p1 * p2, p1 * (1 - p2), (1 - p1) * p2, (1 - p1) * (1 - p2)])


def affine_coefficients(training: Sequence[Environment], target: Environment) -> tuple[Floats, float]:
    """The affine mixture of `training` that comes nearest to `target`, and its distance in theta: (E,), number."""
    points = np.array([theta(e) for e in training])  # (E, 4)
    apart = points[1:] - points[0]
    rest = np.linalg.lstsq(apart.T, theta(target) - points[0], rcond=None)[0]  # (E - 1,)
    c = np.concatenate([[1 - rest.sum()], rest])
    return c, float(np.linalg.norm(c @ points - theta(target)))


@dataclass(frozen=True)
class Predictors:
    """R linear predictors on the three blocks of columns; their risk and accuracy in the population are known."""

    coef: Floats  # (R, 3 COLUMNS)
    intercept: Floats  # (R,)

    def _by_sign(self) -> tuple[Floats, Floats]:
        """Mean of y f given which signs agree: (R, y, invariant, first, second), index 0 agrees; noise (R,)."""
        blocks = self.coef.reshape(len(self.coef), 3, COLUMNS).sum(-1)  # (R, 3)
        agree = np.array(list(product((1.0, -1.0), repeat=3)))  # (8, 3)
        label = np.array([1.0, -1.0])
        mean = (blocks @ agree.T)[:, None] + label[:, None] * self.intercept[:, None, None]  # (R, 2, 8)
        return mean.reshape(-1, 2, 2, 2, 2), np.linalg.norm(self.coef, axis=1)

    def _expected(self, value: Floats, environments: Sequence[Environment]) -> Floats:
        """Mean over labels and signs of `value` (R, 2, 2, 2, 2) in every environment: (R, n)."""
        invariant = np.array([P_V, 1 - P_V])
        by_pair = np.einsum("ryvab,v->rab", value, invariant).reshape(len(value), 4) / 2  # r_k of the docstring
        weights: Floats = by_pair @ np.array([theta(e) for e in environments]).T
        return weights

    def accuracy(self, environments: Sequence[Environment]) -> Floats:
        """Exact: (R, n)."""
        mean, noise = self._by_sign()
        return self._expected(ndtr(mean / noise[:, None, None, None, None]), environments)

    def risk(self, environments: Sequence[Environment], rule: tuple[Floats, Floats]) -> Floats:
        """Logistic risk, by a quadrature `rule` (nodes, weights) for the standard normal distribution: (R, n)."""
        mean, noise = self._by_sign()
        nodes, weights = rule
        margin = mean[..., None] + noise[:, None, None, None, None, None] * nodes  # (R, 2, 2, 2, 2, nodes)
        return self._expected(np.logaddexp(0, -margin) @ weights, environments)


def trapezoid(n: int = 801, reach: float = 10.0) -> tuple[Floats, Floats]:
    """Exponentially accurate for a smooth integrand that vanishes at both ends."""
    nodes = np.linspace(-reach, reach, n)
    return nodes, np.exp(-(nodes**2) / 2) / np.sqrt(2 * np.pi) * (nodes[1] - nodes[0])


def make_blocks(training: Sequence[Environment], n_rows: int, seed: int) -> Task:
    """Rows of the training environments, in equal number."""
    rng = np.random.default_rng(seed)
    code = np.arange(n_rows) * len(training) // n_rows  # (N,)
    agreement = np.insert(np.array(training)[code], 0, P_V, axis=1)  # (N, 3)
    y = np.where(rng.random(n_rows) < 0.5, 1.0, -1.0)
    signs = y[:, None] * np.where(rng.random((n_rows, 3)) < agreement, 1.0, -1.0)  # (N, 3)
    x = np.repeat(signs, COLUMNS, axis=1) + rng.standard_normal((n_rows, 3 * COLUMNS))
    return make_task(x, (y > 0).astype(float), environment=code, min_rows=1, dtype=torch.float64, name="blocks")


def _fit(tasks: Sequence[Task], method: str, steps: int, penalty_weight: float) -> Predictors:
    objective, expand = METHODS[method]
    weights = [penalty_weight] if method in PENALISED else None
    settings: dict[str, Any] = {"expand": Affine(n=64, reach=REACH)} if expand else {}
    coef, intercept = train_linear(tasks, objective, steps, weights, **settings)
    return Predictors(coef[0], intercept[0])


def _mixtures_from_rows(task: Task, predictors: Predictors, expansion: Expansion) -> tuple[Floats, Floats, Statistics]:
    """Risks and slopes of affine mixtures, by the engine's numbers and by signed weights on the rows: (2, R, M)."""
    rows, n_runs = task.train, len(predictors.coef)
    assert rows.environment is not None
    x, y, code = rows.x.numpy(), rows.y.numpy(), rows.environment.numpy()
    f = predictors.coef @ x.T + predictors.intercept[:, None]  # (R, N)
    c = Affine(n=32, reach=REACH).draw(len(rows.names), [torch.Generator().manual_seed(r) for r in range(n_runs)])

    value, slope = task.loss.value_and_slope(torch.from_numpy(f)[None], rows.y.view(1, 1, -1))
    members = Codes(rows.environment.expand(1, n_runs, -1), len(rows.names))
    plain_numbers = summarise(value, slope, members, ("risk", "slope"))
    e = expansion(replace(plain_numbers, mixtures=c))
    assert e.risk is not None and e.slope is not None
    n_plain = len(rows.names)
    by_engine = np.stack([e.risk[:, n_plain:].numpy(), e.slope[:, n_plain:].numpy()])

    signed = c.numpy()[..., code] / np.bincount(code)[code]  # (R, M, N): what each row counts, negative ones too
    by_rows = [np.logaddexp(0, f) - y * f, (expit(f) - y) * f]
    return by_engine, np.stack([np.einsum("rmn,rn->rm", signed, v) for v in by_rows]), plain_numbers


@statement(
    "Inside and outside the span of the training environments",
    "section 3.3, the linear environment space and its figure (eqn:basisspan)",
    formula=r"$R(\Phi,\,\sum_i c_i e_i)=\sum_i c_i R(\Phi,e_i),\quad \sum_i c_i=1$",
    size=(7.2, 2.9),
)
def environment_span(
    n_rows: int = 4000, steps: int = 1500, seeds: int = 4, penalty_weight: float = 1e3, expansion: Expansion = expanded
) -> Result:
    """Mixtures of the training environments are known as well as these, extrapolated ones too, so a method can work
    there; an environment outside their span cannot be foreseen.

    Seven methods trained on two environments, then on three; accuracy inside and outside what these span. `expansion`
    is the formula under test: from the numbers of the environments to those of the mixtures. Settings were fixed
    beforehand: full batch, learning rate 0.02, `penalty_weight` 1e3, everything else the engine's default.
    """
    for value, name in ((n_rows, "n_rows"), (steps, "steps"), (seeds, "seeds")):
        check_positive(value, name)
    if n_rows < 100:
        raise ValueError(f"n_rows must be at least 100, some dozens per environment. Got {n_rows}. Use 1000 or more.")
    more = (*TRAINING, THIRD)
    tasks_of = {places: [make_blocks(places, n_rows, seed) for seed in range(seeds)] for places in (TRAINING, more)}
    fits = {
        (name, places): _fit(tasks, name, steps, penalty_weight)
        for places, tasks in tasks_of.items()
        for name in (METHODS if places == TRAINING else PENALISED)
    }
    accuracy = {key: dict(zip(TESTS, fit.accuracy(TESTS).mean(0), strict=True)) for key, fit in fits.items()}

    def lowest(test: Environment, places: tuple[Environment, ...] = TRAINING) -> float:
        return float(min(accuracy[name, places][test] for name in PENALISED))

    def highest(test: Environment) -> float:
        return float(max(accuracy[name, TRAINING][test] for name in METHODS))

    erm = accuracy["ERM", TRAINING]
    penalised_outside = max(accuracy[name, TRAINING][OUTSIDE] for name in PENALISED)

    # linearity, from rows and in the population; predictors: every method's first run
    everyone = Predictors(
        np.stack([fits[name, TRAINING].coef[0] for name in METHODS]),
        np.stack([fits[name, TRAINING].intercept[0] for name in METHODS]),
    )
    by_engine, by_rows, numbers = _mixtures_from_rows(tasks_of[TRAINING][0], everyone, expansion)

    def predicted(test: Environment, places: Sequence[Environment], mixture: str) -> Sides:
        """The risk in `test`, directly and from the environments `places` by the best affine mixture."""
        c, _ = affine_coefficients(places, test)
        direct, mixed = everyone.risk([test], gauss_hermite(80))[:, 0], everyone.risk(places, trapezoid()) @ c
        # both quadratures are exact to about 1e-12 for these analytic integrands, times coefficients up to 4
        return all_equal("directly", direct, mixture, mixed, 1e-9)

    hull = everyone.risk([(p, 0.9) for p in np.linspace(0.7, 0.9, 101)], gauss_hermite(80)).max(1)
    ends = everyone.risk(TRAINING, trapezoid()).max(1)
    segment = ours("worst risk", all_equal("over the hull", hull, "over the two ends", ends, 1e-9))
    mass_of_sum = float(np.sum(theta(TRAINING[0]) + theta(TRAINING[1])))  # coefficients (1, 1) of the linear span

    far_away = affine_coefficients(more, CORNER)[1]

    # V-REx's penalty over two environments: the variance over mixtures c R_1 + (1 - c) R_2 is Var(c) (R_1 - R_2)^2, the
    # plain one a quarter of the square
    c = Affine(n=64, reach=REACH).draw(2, [torch.Generator().manual_seed(0)])
    wide = expansion(replace(numbers, mixtures=c.expand(len(numbers.mass), -1, -1)))
    factor = (risk_variance(wide, wide.mass) / risk_variance(numbers, numbers.mass))[0].item()
    expected_factor = 4 * float(np.var([1.0, 0.0, *c[0, :, 0].numpy()]))
    gain = {
        name: 100 * (accuracy[f"{name}, expanded", TRAINING][BEYOND] - accuracy[name, TRAINING][BEYOND])
        for name in ("TV-l1", "V-REx")
    }

    comparisons = (
        # sums of thousands of rows, coefficients up to 4: rounding
        claim(
            "risks and slopes of 32 affine mixtures", all_equal("expansion", by_engine, "signed rows", by_rows, 1e-12)
        ),
        claim("risk at p1 = 0.1, inside the span", predicted(BEYOND, TRAINING, "-3 R1 + 4 R2")),
        claim(
            "accuracy inside the span, outside the hull (p1 = 0.1)",
            greater("lowest of the penalised", lowest(BEYOND), "ERM", erm[BEYOND], 0.03),
        ),
        claim(
            "accuracy outside the span (p2 = 0.1)",
            less("best of all methods", highest(OUTSIDE), "lowest of the penalised inside", lowest(BEYOND), 0.2),
        ),
        claim(
            "accuracy at p2 = 0.1 once a third training environment brings it into the span",
            greater("lowest of the penalised", lowest(OUTSIDE, more), "best of all without it", highest(OUTSIDE), 0.1),
        ),
        beyond("risk outside the span (p2 = 0.1)", predicted(OUTSIDE, TRAINING, "nearest affine mixture")),
        ours(
            "mass of the linear combination 1 e1 + 1 e2",
            unequal("computed", mass_of_sum, "an environment's", 1.0, 1e-9),
        ),
        ours(
            "distance in theta of (0.1, 0.1) from what three environments span",
            greater("least squares", far_away, "inside", 0.0, 0.1),
        ),
        ours("the same risk, once a third environment is there", predicted(OUTSIDE, more, "affine mixture")),
        ours("accuracy outside the span", less("best of the penalised", penalised_outside, "ERM", erm[OUTSIDE], 0.05)),
        segment,
        ours(
            "V-REx penalty, expanded over plain, two environments",
            equal("measured", factor, "4 Var(c)", expected_factor, 1e-9 * expected_factor),
        ),
        ours(
            "three environments, (0.1, 0.1), which even they do not span: accuracy",
            greater("lowest of the penalised", lowest(CORNER, more), "best of all from two", highest(CORNER), 0.05),
        ),
    )

    def paint(figure: Figure) -> None:
        where, along, across = figure.subplots(1, 3, width_ratios=(1, 1.1, 1.1))
        plain(where, "o trained on, x tested", "p1", "p2", xlim=(0, 1), ylim=(0, 1.08))
        where.axhline(0.9, color=TRUTH, lw=0.9, ls="--")
        where.plot([0.7, 0.9], [0.9, 0.9], color=TRUTH, lw=3, alpha=0.35)
        where.plot(*zip(*TRAINING, strict=True), "o", color=TRUTH, ms=5)
        where.plot(*THIRD, "o", mfc="white", color=TRUTH, ms=5)
        for place, colour in ((BETWEEN, OTHER), (BEYOND, OTHER), (OUTSIDE, BAD), (CORNER, BAD)):
            where.plot(*place, "X", color=colour, ms=6)
        for (p1, p2), text, shift in (
            (THIRD, "a third", -0.06),
            (OUTSIDE, "outside", -0.06),
            (CORNER, "outside", 0.06),
        ):
            where.text(p1 + shift, p2, text, fontsize=6.5, ha="right" if shift < 0 else "left", va="center")
        where.text(0.1, 0.95, "inside the span", fontsize=6.5, ha="left", va="bottom")
        grid = np.linspace(0, 1, 41)
        for axes, title, x, path in (
            (along, "the first block turns: inside", "p1  (p2 = 0.9)", [(p, 0.9) for p in grid]),
            (across, "the second block turns: outside", "p2  (p1 = 0.8)", [(0.8, p) for p in grid]),
        ):
            plain(axes, title, x, "", ylim=(0, 1))
            for name, colour in COLOURS.items():
                style = (0, (3, 3)) if name == "TV-l1" else "-"  # it lies on TV-l2
                line = fits[name, TRAINING].accuracy(path).mean(0)
                axes.plot(grid, line, color=colour, lw=1.4, ls=style, label=name)
        along.axvspan(0.7, 0.9, color="#dddddd", lw=0)
        along.text(0.8, 0.03, "hull", fontsize=6.5, ha="center")
        along.set_ylabel("accuracy", fontsize=8)
        legend(along, loc="lower left")
        path = [(0.8, p) for p in grid]
        for name in ("V-REx", "TV-l1"):
            again = fits[name, more].accuracy(path).mean(0)
            across.plot(grid, again, color=COLOURS[name], lw=1.4, ls=":", label=f"{name}, with a third")
        handles, labels = across.get_legend_handles_labels()
        across.legend(handles[-2:], labels[-2:], fontsize=7, frameon=False, loc="lower right")

    return Result(
        comparisons,
        "What holds: risks inside the affine span are mixtures of the training risks, extrapolated ones too. When the "
        "spurious block that differed in training turns round (p1 = 0.1, beyond the hull) the penalised methods keep "
        f"{100 * lowest(BEYOND):.1f} % accuracy or more, ERM {100 * erm[BEYOND]:.1f} %; when the block turns that "
        f"never varied, nobody has more than {100 * highest(OUTSIDE):.1f} %.\n\n"
        "What does not: the paper says linear span, but coefficients must sum to 1 (e1 + e2 has mass "
        f"{mass_of_sum:.0f}): the span is affine (as section 2.1 says of REx). For the worst risk of a segment its "
        f"ends are enough; and good predictions are possible outside the span: (0.1, 0.1) lies {far_away:.2f} from "
        f"what even three environments span, and is predicted with {100 * lowest(CORNER, more):.1f} % or more once "
        "both blocks have varied.\n\n"
        "For a user: one more training environment in which the other block varies lifts the penalised methods from "
        f"{100 * penalised_outside:.1f} % at most to {100 * lowest(OUTSIDE, more):.1f} % or more; affine mixtures of "
        f"the known ones add weight and no direction (TV-l1 {gain['TV-l1']:+.1f}, V-REx {gain['V-REx']:+.1f} points at "
        "p1 = 0.1).",
        paint,
    )
