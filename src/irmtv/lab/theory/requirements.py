"""What the measure on the environments must be (Corollary OODsufficient, eq. probesta).

On a finite set a sigma-algebra is a partition. A measure mu on it tells the masses of its atoms, and of a risk R its
conditional expectation

    E[R | F]  =  sum_{e in A} mu_e R_e / mu(A)      on every atom A,

which is what pooled environments give, R being linear in the measure. So both sides of the corollary can be computed,
one point by point and one atom by atom, for *all* sigma-algebras on a few environments:

    global:    E R + lambda (E|S|)^2 ,             max R              (points)
    training:  E R + lambda (E|E[S | F_tr]|)^2 ,   max E[R | F_tr]    (atoms of F_tr)

A finite measure nu becomes a probability by division by m = nu(Omega). Risk and l2 penalty are linear in nu, the
squared l1 penalty is quadratic:

    int R dnu + lambda int |S|^2 dnu    =  m ( E R + lambda E|S|^2 )           the same minimisers
    int R dnu + lambda (int |S| dnu)^2  =  m ( E R + lambda m (E|S|)^2 )       those of lambda m
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from scipy.special import expit
from torch import Tensor

from irmtv.core.messages import check_positive
from irmtv.lab.theory.figures import BAD, L2, LEFT, OTHER, RIGHT, TRUTH, legend, plain
from irmtv.lab.theory.finding import Result, all_equal, at_most, beyond, claim, equal, less, ours, statement
from irmtv.lab.theory.sides import ROUNDING, Floats, PenaltyFunction, statistics_from
from irmtv.lab.theory.sigma_algebras import Family, Partition, atom_masses, by_atom, generated, on_points, partitions
from irmtv.objectives.irm_tv_l1 import tv_l1
from irmtv.objectives.irm_tv_l2 import tv_l2


def _one_side(risk: Floats, slope: Floats, l1: PenaltyFunction, partition: Partition, mass: Floats) -> Floats:
    """What training sees through F_tr: E R, l1 penalty, worst risk, worst squared slope (minimax penalty): (4, B)."""
    r, s = by_atom(risk, partition, mass), by_atom(slope, partition, mass)
    e = statistics_from(r, s, atom_masses(partition, mass))
    return np.stack([e.mean_risk.numpy(), l1(e, e.mass).numpy(), r.max(-1), np.square(s).max(-1)])


def _global(risk: Floats, slope: Floats, mass: Floats) -> Floats:
    """The same four from the points."""
    return np.stack([risk @ mass, (np.abs(slope) @ mass) ** 2, risk.max(-1), np.abs(slope).max(-1) ** 2])


def contains(training: Family, everything: Family) -> bool:
    """Every set of F_all is one of F_tr."""
    return training >= everything


@statement(
    "When the training measure knows the global objective",
    "Corollary 3.12 (cor:OODsufficient)",
    formula=(
        r"$\mathcal{F}_{tr}\supseteq\mathcal{F}_{all}\;\Rightarrow\;"
        r"\int R\,d\mu_{tr}=\int R\,d\mu_{all},\ \ldots$"
    ),
    size=(7.2, 2.9),
)
def sufficient_condition(
    n_points: int = 4,
    n_families: int = 20,
    n_models: int = 12,
    penalty_weight: float = 1.0,
    condition: Callable[[Family, Family], bool] = contains,
    l1: PenaltyFunction = tv_l1,
) -> Result:
    """If every set of environments that matters in the test is measurable in training, the training model is the global
    one.

    Every pair of sigma-algebras (F_tr, F_all) on a few environments: is the global objective known from F_tr? The
    reading: risks and slopes are F_all-measurable; training has mu on F_tr only, so of a risk that F_tr does not see it
    has the conditional expectation. Formulas under test: `condition`, which is said to suffice, and `l1`. Every 0/1
    risk with slopes +1/-1 is tried, and `n_families` random families of `n_models` Phi for the minimisers.
    """
    for value, name in ((n_points, "n_points"), (n_families, "n_families"), (n_models, "n_models")):
        check_positive(value, name)
    if not 2 <= n_points <= 5:
        raise ValueError(f"n_points must be 2 to 5: all pairs of partitions are tried. Got {n_points}. Use 4.")
    rng = np.random.default_rng(0)
    mass = np.arange(1.0, n_points + 1) / np.arange(1, n_points + 1).sum()
    algebras = sorted(partitions(range(n_points)), key=lambda p: (len(p), p))
    shape = n_families, n_models
    family = {p: generated(p) for p in algebras}
    objectives = np.array([[1.0, penalty_weight, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, penalty_weight]])
    # of every pair (F_tr, F_all), 0: F_tr sees all of F_all; 1: it does not, but no worst risk is changed; 2: some are
    kind = np.zeros((len(algebras), len(algebras)), dtype=int)
    error, moved = np.zeros(4), 0  # where the condition holds: largest error of the four, minimisers that move
    # where it does not: pairs, those with one of the four changed, those with an atom of F_all that has none of F_tr
    without, lost, predicted = 0, np.zeros(4, dtype=int), 0
    above = -np.inf  # how far a penalty or a worst risk seen through F_tr exceeds the global one, at most
    sides: dict[bool, list[Floats]] = {True: [], False: []}  # seen and true values of some risks (2, 4, B)
    for j, total in enumerate(algebras):
        # random risks for the minimisers, then every 0/1 risk
        values = np.array(list(product((0.0, 1.0), repeat=len(total))))
        drawn = rng.exponential(size=(*shape, len(total))), rng.standard_normal((*shape, len(total)))
        risk, slope = (on_points(v.reshape(-1, len(total)), total) for v in drawn)  # (families * models, n)
        n_random = len(risk)
        risk = np.concatenate([risk, on_points(values, total)])
        slope = np.concatenate([slope, on_points(2 * values - 1, total)])
        truth = _global(risk, slope, mass)  # (4, B)
        for i, some in enumerate(algebras):
            seen = _one_side(risk, slope, l1, some, mass)
            holds = condition(family[some], family[total])
            gap = np.abs(seen - truth).max(1)
            if holds:
                best = [(objectives @ v[:, :n_random]).reshape(3, *shape).argmin(-1) for v in (seen, truth)]
                moved += int((best[0] != best[1]).any(0).sum())
                error = np.maximum(error, gap)
            else:
                without += 1
                lost += gap > ROUNDING
                predicted += any(not any(set(a) <= set(b) for a in some) for b in total)
            above = max(above, float((seen[1:] - truth[1:]).max()))
            kind[i, j] = 0 if holds else 1 + int(gap[2] > ROUNDING)
            sides[holds].append(np.stack([seen[:, :8], truth[:, :8]]))

    # the condition holds (both are the power set), the measures differ
    finest = algebras[-1]
    risk, slope = rng.exponential(size=(200, n_points)), rng.standard_normal((200, n_points))
    other, own = _one_side(risk, slope, l1, finest, mass[::-1].copy()), _global(risk, slope, mass)
    remeasured = beyond(
        "objective, F_tr contains F_all, other measure on it",
        all_equal(
            "training", other[0] + penalty_weight * other[1], "global", own[0] + penalty_weight * own[1], ROUNDING
        ),
    )
    still = float(np.abs(other[2] - own[2]).max())
    elsewhere = float(mass[1:].sum())  # E_all lacks a training environment that has mass

    names = ("E R", "l1 penalty", "worst risk", "minimax penalty")
    satisfied = len(algebras) ** 2 - without
    comparisons = (
        *(
            claim(
                f"{name}, F_tr contains F_all: training less global", equal("largest error", e, "none", 0.0, ROUNDING)
            )
            for name, e in zip(names, error.tolist(), strict=True)
        ),
        claim("F_tr contains F_all: families whose minimisers move", equal("counted", moved, "none", 0)),
        remeasured,
        beyond(
            "mu(E_all), a training environment with mass outside", equal("mu_tr", elsewhere, "mu_all", 1.0, ROUNDING)
        ),
        ours("other measure: worst risk, training less global", equal("largest error", still, "none", 0.0, ROUNDING)),
        ours("no containment: pairs that change E R", equal("counted", int(lost[0]), "none", 0)),
        ours("no containment: pairs that change l1", equal("counted", int(lost[1]), "all", without)),
        ours(
            "no containment: pairs that change the worst risk",
            equal("counted", int(lost[2]), "an atom of F_all without one of F_tr in it", predicted),
        ),
        ours("of all pairs without containment", less("changed worst risk", predicted, "all", without)),
        ours("largest penalty or worst risk", at_most("training less global", above, "Jensen", 0.0, ROUNDING)),
    )

    def paint(figure: Figure) -> None:
        grid, *scatter = figure.subplots(1, 3)
        plain(grid, f"{len(algebras)} x {len(algebras)} pairs", "F_all, coarse to fine", "F_tr, coarse to fine")
        grid.imshow(kind, cmap=ListedColormap([OTHER, L2, BAD]), vmin=-0.5, vmax=2.5, origin="lower", alpha=0.8)
        grid.set_xticks([])
        grid.set_yticks([])
        keys = ((OTHER, "F_tr contains F_all"), (L2, "penalty lost"), (BAD, "worst risk lost too"))
        for place, (colour, text) in enumerate(keys):
            grid.text(0, -0.22 - 0.09 * place, f"■ {text}", color=colour, fontsize=7, transform=grid.transAxes)
        for axes, row, title in zip(scatter, (1, 2), ("l1 penalty", "worst risk"), strict=True):
            plain(axes, f"{title} of random risks", "global", "seen through F_tr")
            for holds, colour, text in ((False, BAD, "not contained"), (True, OTHER, "F_tr contains F_all")):
                if sides[holds]:
                    seen, truth = np.concatenate(sides[holds], -1)[:, row]
                    axes.plot(truth, seen, ".", ms=3, color=colour, label=text, rasterized=True)
            axes.axline((0, 0), slope=1, color=TRUTH, lw=0.6)
            legend(axes, loc="upper left", markerscale=2)

    return Result(
        comparisons,
        f"All {len(algebras) ** 2} pairs of sigma-algebras on {n_points} environments: in the {satisfied} with F_tr "
        "containing F_all, expectation, both penalties, worst risk and every minimiser agree (largest error "
        f"{error.max():.0e}). In the other {without} the l1 penalty of some risk is too small in {lost[1]}, so for the "
        f"penalised objective the condition is necessary too; the worst risk is too small in only {lost[2]}, so for "
        "the OOD aim itself it is sufficient and not necessary.\n\n"
        "That both measures agree on F_all is not printed in the corollary; it comes from the proof ('It can be "
        "anticipated that nu_tr(A) = nu_all(A)'). With another measure on the same sets and a fixed lambda the "
        f"objective of one Phi is {remeasured.left:.2f} in training and {remeasured.right:.2f} in the test; with "
        "lambda_Phi the objective is the worst risk, which does not depend on the measure.\n\n"
        "For a user: pooled labels make a model look more invariant than it is, never less (largest excess of a "
        f"penalty or worst risk seen in training: {max(above, 0.0):.0e}).",
        paint,
    )


def to_probability(weights: Tensor) -> Tensor:
    """nu / nu(Omega)."""
    return weights / weights.sum()


LOW = (-0.9, 0.0)  # the corner of the box
BOXES = 10.0 ** np.arange(1, 7)  # sides of boxes [0, side]^2, longer and longer


@statement(
    "A finite measure, normalised",
    "appendix A, the extension at the end of the proof of Theorem 3.1 (eqn:probesta)",
    formula=r"$\nu^{*}(\cdot)=\nu(\cdot)\,/\,\nu(\Omega),\quad 0<\nu(\Omega)<\infty$",
)
def normalised_measure(
    mass: float = 4.0,
    penalty_weight: float = 1.0,
    n_models: int = 2001,
    normalise: Callable[[Tensor], Tensor] = to_probability,
    l1: PenaltyFunction = tv_l1,
    l2: PenaltyFunction = tv_l2,
) -> Result:
    """A measure of finite positive total becomes a probability when it is divided by its total.

    Lebesgue measure on the box [-0.9, 0.1] x [0, mass], as it is and normalised: integrals, then minimisers. The models
    are those of the paper's counterexample, R = |1 + w_1 Phi| with 0 <= Phi <= 1, so the minimisers are known: Phi = 1
    / (5 lambda) under a probability. Formulas under test: `normalise`, `l1`, `l2`.
    """
    check_positive(n_models, "n_models")
    if not (np.isfinite(mass) and mass > 0):
        raise ValueError(f"mass must be positive and finite: nothing else can be normalised. Got {mass!r}. Use 4.0.")
    if not penalty_weight * min(mass, 1) > 0.2:
        raise ValueError(
            f"penalty_weight must exceed 0.2 / min(mass, 1) = {0.2 / min(mass, 1):.3g}, so that the minimiser lies "
            f"below 1. Got {penalty_weight!r}. Use 1.0."
        )
    sides = (1.0, float(mass))
    # Gauss-Legendre nodes (24^2, 2) on the box and their Lebesgue weights, which sum to its area
    nodes, width = np.polynomial.legendre.leggauss(24)
    x, y = ((nodes + 1) / 2 * side + start for side, start in zip(sides, LOW, strict=True))
    w = np.stack(np.meshgrid(x, y, indexing="ij"), -1).reshape(-1, 2)
    weights = torch.from_numpy(np.outer(width, width).ravel() / 4 * sides[0] * sides[1])
    probability = normalise(weights)

    # logistic risk of one row with features (1.5, -0.5): R = log(1 + exp(-w . x)), |grad_w R| = sigmoid(-w . x) |x|
    features = np.array([1.5, -0.5])

    def three(nodes: Floats) -> Floats:  # R, |grad R| and |grad R|^2
        margin = nodes @ features
        slope = expit(-margin) * np.linalg.norm(features)
        return np.stack([np.logaddexp(0, -margin), slope, slope**2])

    expected = three(w) @ probability.numpy()
    ticks = [(np.arange(800) + 0.5) / 800 * side + start for side, start in zip(sides, LOW, strict=True)]
    averages = three(np.stack(np.meshgrid(*ticks, indexing="ij"), -1).reshape(-1, 2)).mean(1)
    phi = np.linspace(0, 1, n_models)
    risk = np.abs(1 + np.outer(phi, w[:, 0]))  # (models, nodes)
    slope = np.stack([np.outer(phi, np.ones(len(w))), np.zeros((n_models, len(w)))], -1)  # grad_w R = (Phi, 0)
    objective: dict[tuple[str, str], Floats] = {}
    for measure, m, lam in (
        ("as it is", weights, penalty_weight),
        ("normalised", probability, penalty_weight),
        ("normalised, lambda m", probability, penalty_weight * mass),
    ):
        e = statistics_from(risk, slope, m.numpy())
        for name, penalty in (("l1", l1), ("l2", l2)):
            objective[name, measure] = (e.mean_risk + lam * penalty(e, e.mass)).numpy()
    best = {key: float(phi[value.argmin()]) for key, value in objective.items()}
    known = 1 / (5 * penalty_weight)  # E R = 1 - 0.4 Phi, both penalties Phi^2
    step = 1 / (n_models - 1) if n_models > 1 else 1.0

    # what a hundred unit squares weigh in every box: under Lebesgue's measure, and [0, 10]^2 under exp(-x - y)
    inside = (1 - np.exp(-10.0)) ** 2
    share, finite = (
        np.array([normalise(torch.tensor([part, total - part], dtype=torch.float64))[0].item() for total in totals])
        for part, totals in ((100.0, BOXES**2), (inside, (1 - np.exp(-BOXES)) ** 2))
    )

    ratio = f"ratio, {BOXES[-1]:.0e} to {BOXES[-2]:.0e}"
    comparisons = (
        claim("mass after normalising", equal("sum of the weights", probability.sum(), "one", 1.0, 1e-12)),
        *(
            # midpoints: h^2 / 24 times a second derivative of order 1, h = mass / 800
            claim(f"E {name}", equal("Gauss-Legendre", a, "mean of midpoints", b, (mass / 800) ** 2 / 10))
            for name, a, b in zip(("R", "|grad R|", "|grad R|^2"), expected, averages, strict=True)
        ),
        beyond(
            "Lebesgue's measure on the plane: weight of 100 unit squares when the side of the box grows tenfold",
            equal(ratio, share[-1] / share[-2], "as under a finite measure", 1.0, 1e-6),
        ),
        ours(
            "density exp(-x - y), a finite measure: the same ratio",
            equal(ratio, finite[-1] / finite[-2], "one", 1.0, 1e-9),
        ),
        *(
            ours(f"{name}, {measure}", equal("brute force", best[name, measure], closed_form, value, step))
            for name, measure, closed_form, value in (
                ("l2", "as it is", "1 / (5 lambda)", known),
                ("l2", "normalised", "1 / (5 lambda)", known),
                ("l1", "as it is", "1 / (5 lambda m)", known / mass),
                ("l1", "normalised", "1 / (5 lambda)", known),
                ("l1", "normalised, lambda m", "1 / (5 lambda m)", known / mass),
            )
        ),
    )

    def paint(figure: Figure) -> None:
        first, second, third = figure.subplots(1, 3)
        styles = {"as it is": (LEFT, "-"), "normalised": (RIGHT, "-"), "normalised, lambda m": (TRUTH, ":")}
        for axes, name, shown in ((first, "l1", tuple(styles)), (second, "l2", tuple(styles)[:2])):
            plain(
                axes,
                f"IRM-TV-{name}, $\\nu(\\Omega)={mass:g}$",
                "Phi",
                "objective less its minimum",
                ylim=(-0.02, 0.5),
                xlim=(0, 1),
            )
            for measure in shown:
                value = objective[name, measure] / (mass if measure == "as it is" else 1)
                colour, style = styles[measure]
                label = f"{measure}, / m" if measure == "as it is" else measure
                wide = 3.0 if measure == "as it is" else 1.3
                axes.plot(phi, value - value.min(), color=colour, ls=style, lw=wide, label=label, alpha=0.9)
                axes.plot([phi[objective[name, measure].argmin()]], [0], "o", color=colour, ms=4)
        figure.legend(*first.get_legend_handles_labels(), loc="outside lower left", ncols=3, fontsize=7, frameon=False)
        plain(third, "an infinite measure vanishes", "side of the box", "weight of 100 unit squares")
        third.loglog(BOXES, share, "o-", color=BAD, label="Lebesgue")
        third.loglog(BOXES, finite, "s-", color=OTHER, ms=4, label="density $e^{-x-y}$")
        legend(third)

    return Result(
        comparisons,
        f"On a box of area {mass:g} the normalised integrals of a logistic risk and of its slope are the averages over "
        f"the box (E R = {expected[0]:.6f} by one quadrature, {averages[0]:.6f} by another). What the paper leaves "
        "out: risk and l2 penalty shrink alike, so normalising does not move the minimiser of IRM-TV-l2 (Phi = "
        f"{best['l2', 'as it is']:.3f} and {best['l2', 'normalised']:.3f}), but the squared l1 penalty shrinks twice, "
        f"and that of IRM-TV-l1 goes from {best['l1', 'as it is']:.3f} to {best['l1', 'normalised']:.3f} unless lambda "
        f"is multiplied by {mass:g} ({best['l1', 'normalised, lambda m']:.3f}). So a lambda for l1 belongs to a total "
        "mass. Lebesgue's measure on the whole plane cannot be normalised: in boxes whose side grows tenfold the "
        f"weight of a set goes down to {share[-1] / share[-2]:.2g} of itself each time, so every bounded set ends with "
        "weight 0.",
        paint,
    )
