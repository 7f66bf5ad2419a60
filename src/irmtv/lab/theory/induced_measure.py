"""The measure that the environments induce on the classifiers (appendix A.1), and which sets it can measure.

A map e -> w(e) and a measure mu on the environments give nu(G) = mu(w^-1(G)) on Omega = w(E), and for a risk that
depends on e through w(e) alone (Condition 2)

    int_Omega R(w) dnu  =  int_E R(w(e)) dmu        (eq. intchangew)        and the same with |R'|, |R'|^2.

Finite E, w not injective:    nu({w}) = sum of mu over the environments with that w.
e uniform on (-1, 1), w = e^2:  nu has the density 1 / (2 sqrt(w)) on (0, 1), both branches together.

Which sets G? The proof takes { w(F) : F in F_tr }; the family on which nu is defined is { G : w^-1(G) in F_tr }. They
are the same exactly where w^-1(w(F)) is in F_tr for every F. On a finite E that is so where w is measurable with
respect to all subsets of Omega, that is constant on the atoms of F_tr. On an
infinite one they need not be: let E = [0, 1] with its Lebesgue measurable sets, w the Cantor function on the Cantor set
C and w(e) = e elsewhere. Every V within [0, 1] is w(F) for some F within C, which is measurable as C is a null set; but
w^-1(V), which is F and V without C together, is as little measurable as V.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from itertools import pairwise

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import expit

from irmtv.core.losses import as_loss
from irmtv.core.messages import check_positive
from irmtv.lab.theory.figures import BAD, ERM, LEFT, OTHER, RIGHT, TRUTH, legend, plain
from irmtv.lab.theory.finding import Result, beyond, claim, equal, less, ours, statement
from irmtv.lab.theory.sides import Floats
from irmtv.lab.theory.sigma_algebras import (
    Family,
    generated,
    image,
    images,
    is_sigma_algebra,
    measurable,
    partitions,
    preimage,
    pushforward,
)

Induced = Callable[[Floats, Floats], tuple[Floats, Floats]]  # masses mu_e and w(e), (E,) each -> values of w, their nu
Density = Callable[[float], float]
FamilyRule = Callable[[Mapping[Hashable, Hashable], Family, frozenset[Hashable]], Family]

MASSES = np.array([0.1, 0.25, 0.05, 0.2, 0.3, 0.1])
CLASSIFIERS = np.array([0.5, 1.5, 0.5, 1.0, 1.5, 1.5])  # w(e): three values for six environments
QUANTITIES = ("R", "|R'|", "|R'|^2")
FAULTS = {  # of a family of sets of classifiers
    "undefined": "with a G whose preimage is not in F_tr",
    "not closed": "in which the family is no sigma-algebra",
}


def sum_over_preimages(mu: Floats, w: Floats) -> tuple[Floats, Floats]:
    """The values of w and nu({w}) = sum of mu over the environments that have it."""
    values, which = np.unique(w, return_inverse=True)
    return values, np.bincount(which, weights=mu).astype(float)


def two_branches(w: float) -> float:
    """The density of w = e^2 for e uniform on (-1, 1): 1/2 times |de/dw| = 1 / (2 sqrt(w)), from both signs of e."""
    return 2 * 0.5 / (2 * math.sqrt(w))


def printed_family(w: Mapping[Hashable, Hashable], family: Family, whole: frozenset[Hashable]) -> Family:
    """{ w(F) : F in F_tr }, as in the proof."""
    return images(w, family)


class _Risk:
    """A logistic risk R(w) = mean l(w f_i, y_i), twice: from the library at w(e), and written out at w."""

    def __init__(self, seed: int, rows: int = 60) -> None:
        generator = np.random.default_rng(seed)
        self.f = generator.standard_normal(rows) * 1.5
        self.y = (self.f + 2.5 * generator.standard_normal(rows) > 0).astype(float)

    def by_library(self, w: Floats) -> Floats:
        """R, |R'| and |R'|^2 at every w: (3, K). The slope at w f is w R'(w)."""
        scaled = torch.from_numpy(np.outer(w, self.f))
        loss, slope = as_loss("binary").value_and_slope(scaled, torch.from_numpy(self.y).expand_as(scaled))
        derivative = slope.mean(1).numpy() / w
        return np.stack([loss.mean(1).numpy(), np.abs(derivative), derivative**2])

    def derivative(self, w: float) -> float:
        return float(np.mean((expit(w * self.f) - self.y) * self.f))

    def written_out(self, w: float) -> tuple[float, float, float]:
        margin = (2 * self.y - 1) * self.f * w
        slope = self.derivative(w)
        return float(np.logaddexp(0, -margin).mean()), abs(slope), slope**2


def _continuous(risk: _Risk, density: Density, turning: float) -> tuple[Floats, Floats, float]:
    """Gauss and Legendre's rule over e and adaptive quadrature over w, (3,) each, and the error they see themselves.

    Both split at w = `turning`, where R' changes its sign.
    """
    cuts = np.unique([-1.0, -np.sqrt(turning), 0.0, np.sqrt(turning), 1.0])

    def over_e(nodes: int) -> Floats:
        x, weight = np.polynomial.legendre.leggauss(nodes)
        total = np.zeros(3)
        for low, high in pairwise(cuts):
            e = (low + high) / 2 + x * (high - low) / 2
            total += risk.by_library(e**2) @ (0.5 * weight * (high - low) / 2)
        return total

    pieces = [0.0, turning, 1.0] if turning < 1 else [0.0, 1.0]
    parts = [
        [
            quad(lambda w, k=k: risk.written_out(w)[k] * density(w), low, high, epsabs=1e-12, epsrel=1e-11)
            for k in range(3)
        ]
        for low, high in pairwise(pieces)
    ]
    over_w, estimate = (np.array([[part[i] for part in piece] for piece in parts]).sum(0) for i in (0, 1))
    coarse, fine = over_e(20), over_e(40)
    return fine, over_w, float((np.abs(fine - coarse) + estimate).max())


def _census(points: int, rule: FamilyRule) -> Counter[tuple[str, bool]]:
    """Every F_tr on a few points with every w on them (up to the names of its values), by what goes wrong.

    Counted by whether w is measurable in the ordinary sense: "cases"; the FAULTS of the family under test; "differ",
    not the push-forward; "torn", where no preimage is missing and they differ, or the other way round.
    """
    whole = frozenset[Hashable](range(points))
    census: Counter[tuple[str, bool]] = Counter()
    blocks = list(partitions(range(points)))
    for atoms in blocks:
        family = generated(atoms)
        for fibres in blocks:
            w: dict[Hashable, Hashable] = {point: k for k, fibre in enumerate(fibres) for point in fibre}
            ordinary = all(measurable(fibre, family) for fibre in fibres)
            omega = image(w, whole)

            def wrong(sets: Family, w: Mapping[Hashable, Hashable] = w, family: Family = family) -> bool:
                return not all(measurable(preimage(w, g, whole), family) for g in sets)

            tested, right = rule(w, family, whole), pushforward(w, family, whole)
            census["cases", ordinary] += 1
            census["undefined", ordinary] += wrong(tested)
            census["not closed", ordinary] += not is_sigma_algebra(tested, omega)
            census["push-forward fails", ordinary] += wrong(right) or not is_sigma_algebra(right, omega)
            census["differ", ordinary] += tested != right
            census["torn", ordinary] += wrong(tested) == (tested == right)
    return census


def smallest_failure() -> tuple[Family, Family]:
    """F_tr with atoms {1}, {2, 3} and w = a, a, b: the printed family and the one on which nu is defined."""
    w: dict[Hashable, Hashable] = {1: "a", 2: "a", 3: "b"}
    family, whole = generated([{1}, {2, 3}]), frozenset(w)
    return printed_family(w, family, whole), pushforward(w, family, whole)


def _same_classifier(seed: int) -> tuple[Floats, Floats]:
    """Risks and slopes at w = 1 of three environments in which a feature means different things: (3,) each."""
    generator = np.random.default_rng(seed)
    risks, slopes = [], []
    for meaning in (1.0, 0.3, -0.5):
        f = generator.standard_normal(200)
        y = (meaning * f + 0.5 * generator.standard_normal(200) > 0).astype(float)
        loss, slope = as_loss("binary").value_and_slope(torch.from_numpy(f), torch.from_numpy(y))
        risks.append(loss.mean().item())
        slopes.append(slope.mean().item())
    return np.array(risks), np.array(slopes)


def _shown(family: Family) -> str:
    """A family of sets, smallest first: "{}, {a}, {a, b}"."""
    ordered = sorted((sorted(map(str, member)) for member in family), key=lambda names: (len(names), names))
    return ", ".join("{" + ", ".join(names) + "}" for names in ordered)


@statement(
    "The measure that environments induce on classifiers",
    "appendix A.1.1 (proof:thmIRMTVL2inducemeasure)",
    formula=r"$\nu(G)=\mu(w^{-1}(G)),\quad \int_\Omega R(w\circ\Phi)\,d\nu=\int_{E_{tr}}R(w(e)\circ\Phi)\,d\mu$",
)
def induced_measure(
    seed: int = 0,
    points: int = 4,
    induced: Induced = sum_over_preimages,
    density: Density = two_branches,
    family: FamilyRule = printed_family,
) -> Result:
    """A map from environments to classifiers carries mu over to a measure nu, and integrals of the risk and of its
    gradient over the classifiers equal those over the environments.

    Integrals over environments against integrals over classifiers, and the sets on which nu is defined. Under test:
    `induced(mu, w)` gives the values of w and their masses, `density(w)` the density of w = e^2 for e uniform on (-1,
    1), `family(w, F_tr, E)` the sets of Omega (default: as the proof has them). `points` is the largest E on which
    every case is enumerated.
    """
    check_positive(points, "points")
    if points > 5:
        raise ValueError(f"points must be at most 5, for 52 x 52 cases. Got {points}. Use 4.")
    risk = _Risk(seed)
    values, nu = induced(MASSES, CLASSIFIERS)
    finite_e = risk.by_library(CLASSIFIERS) @ MASSES  # (3,)
    finite_w = np.array([np.dot(nu, [risk.written_out(float(w))[k] for w in values]) for k in range(3)])
    turning = float(brentq(risk.derivative, 1e-9, 1.0)) if risk.derivative(1e-9) * risk.derivative(1.0) < 0 else 1.0
    smooth_e, smooth_w, own_error = _continuous(risk, density, turning)
    census = _census(points, family)
    count = {ordinary: census["cases", ordinary] for ordinary in (True, False)}
    risks, slopes = _same_classifier(seed)
    failing = census["undefined", False]
    comparisons = (
        # sums of a few numbers of size 1
        *(
            claim(
                f"six environments, three classifiers: {name}",
                equal("over w", finite_w[k], "over e", finite_e[k], 1e-12),
            )
            for k, name in enumerate(QUANTITIES)
        ),
        claim("total mass", equal("of nu", nu.sum(), "of mu", MASSES.sum(), 1e-12)),
        # both quadratures say less than this of themselves, which is a comparison below
        *(
            claim(f"e uniform, w = e^2: {name}", equal("over w", smooth_w[k], "over e", smooth_e[k], 1e-10))
            for k, name in enumerate(QUANTITIES)
        ),
        *(
            claim(f"w measurable: cases of {count[True]} {what}", equal("printed", census[fault, True], "none", 0))
            for fault, what in FAULTS.items()
        ),
        ours("quadrature", equal("own error", own_error, "zero", 0.0, 1e-10)),
        ours(
            f"all {sum(count.values())} cases: nu undefined or no sigma-algebra",
            equal("push-forward", census["push-forward fails", True] + census["push-forward fails", False], "none", 0),
        ),
        ours("w measurable: cases in which both families differ", equal("cases", census["differ", True], "none", 0)),
        ours(
            f"all {sum(count.values())} cases: {{w(F)}} is the push-forward exactly where w^-1(w(F)) is in F_tr",
            equal("exceptions", census["torn", True] + census["torn", False], "none", 0),
        ),
        ours(
            "three environments, w = 1 for all: variation",
            less("of the mean risk", abs(slopes.mean()), "over environments", np.abs(slopes).mean(), 0.01),
        ),
        *(
            beyond(
                f"w not measurable: cases of {count[False]} {what}", equal("printed", census[fault, False], "none", 0)
            )
            for fault, what in FAULTS.items()
        ),
        beyond(
            "three environments, w = 1 for all (Condition 2 violated): R(w)",
            equal("largest", risks.max(), "smallest", risks.min(), 1e-6),
        ),
    )

    def paint(figure: Figure) -> None:
        masses, smooth, example = figure.subplots(1, 3)
        plain(masses, "six environments, three w", "w", "mass")
        floor: dict[float, float] = {}
        for e, (mass, w) in enumerate(zip(MASSES, CLASSIFIERS, strict=True)):
            bottom = floor.get(w, 0.0)
            masses.bar(w, mass, 0.16, bottom=bottom, color=LEFT, alpha=0.35, ec="white")
            masses.text(w, bottom + mass / 2, f"e={e + 1}", ha="center", va="center", fontsize=6)
            floor[w] = bottom + mass
        masses.plot(values, nu, "o", color=RIGHT, label=r"$\nu(\{w\})$")
        masses.set_xticks(np.unique(CLASSIFIERS))
        legend(masses, loc="upper left")
        plain(smooth, r"e uniform, $w=e^2$", "w", ylim=(0, 2.5))
        grid = np.linspace(0.01, 1, 200)
        smooth.plot(grid, [density(float(w)) for w in grid], color=RIGHT, label=r"density of $\nu$")
        curve = np.array([risk.written_out(float(w)) for w in grid])
        smooth.plot(grid, curve[:, 0], color=TRUTH, label="R(w)")
        smooth.plot(grid, curve[:, 1], color=TRUTH, ls="--", label="|R'(w)|")
        if turning < 1:
            smooth.axvline(turning, color=ERM, lw=0.6, ls=":")
        legend(smooth)
        plain(example, r"$\{w(F)\}$ need not be a $\sigma$-algebra", xlim=(-0.6, 2.6), ylim=(-0.9, 3.2))
        example.set_axis_off()
        for low, high in ((2.55, 3.05), (0.55, 2.05)):
            example.add_patch(Rectangle((-0.35, low), 0.7, high - low, fill=False, ec=ERM, lw=1))
        heights = {1: 2.8, 2: 1.8, 3: 0.8}
        targets = {"a": 2.3, "b": 0.8}
        for e, to in ((1, "a"), (2, "a"), (3, "b")):
            example.annotate("", (1.8, targets[to]), (0.2, heights[e]), arrowprops={"arrowstyle": "->", "color": LEFT})
            example.text(0, heights[e], str(e), ha="center", va="center", fontsize=9)
        for name, height in targets.items():
            example.text(2, height, name, ha="center", va="center", fontsize=9, color=RIGHT)
        example.text(1, 2.95, "w", ha="center", fontsize=9, color=LEFT)
        printed, right = smallest_failure()
        example.text(-0.5, 0.1, "boxes: atoms of the training sets", fontsize=7, color=ERM)
        example.text(-0.5, -0.3, f"printed: {_shown(printed)}", fontsize=7, color=BAD)
        example.text(-0.5, -0.7, f"push-forward: {_shown(right)}", fontsize=7, color=OTHER)

    return Result(
        comparisons,
        f"The integrals agree: to {np.abs(finite_w - finite_e).max():.0e} for six environments that share three "
        f"classifiers, to {np.abs(smooth_w - smooth_e).max():.0e} for a continuum with w = e^2.\n\n"
        "The proof's sets {w(F)} are the right ones exactly where w^-1(w(F)) is in F_tr for every F. Condition 3 "
        "calls w measurable without naming the sets of classifiers; if these are all subsets, finite cases are safe "
        f"({census['undefined', True]} of {count[True]} fail on {points} points) and infinite ones are not. Of the "
        f"{count[False]} finite cases with another w {failing} have a set whose preimage cannot be measured; {{G : "
        f"w^-1(G) in F_tr}} is right in all {sum(count.values())}.\n\n"
        "For a user Condition 2 is no formality: with the dummy w = 1 for all, three environments have risks from "
        f"{risks.min():.2f} to {risks.max():.2f} at one and the same w, so that R(w) does not exist, and the variation "
        f"must be taken over environments ({np.abs(slopes).mean():.3f}), not of the mean risk "
        f"({abs(slopes.mean()):.3f}).",
        paint,
    )
