"""The closed-form subgradient of IRM-TV-l1 (appendix B.1), against finite differences, autograd and the definition.

    d |S_e|  =  J_e' S_e / |S_e|,   0 where S_e = 0           (eq. subgradnabR; J_e: Jacobian of S_e in Phi)
    d |S_e|  =  sign(S_e) grad S_e  for a scalar w            (eq. subgradnabR1dim)
    d g      =  E grad R  +  2 lambda E|S| E d|S|             (eq. IRMTVL1objsubgrad)

on a small network with several environments (`irmtv.lab.theory.small_network`), for binary and squared losses. Finite
differences see only values that the library computes (`irmtv.core.risk`); the closed form only derivatives that are
written out by hand.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from irmtv.core.losses import as_loss
from irmtv.lab.theory.figures import BAD, L1, L2, LEFT, OTHER, RIGHT, TRUTH, legend, plain
from irmtv.lab.theory.finding import Comparison, Result, at_least, beyond, claim, equal, less, ours, statement
from irmtv.lab.theory.sides import Floats, Function
from irmtv.lab.theory.small_network import (
    ENVIRONMENTS,
    UNITS,
    Classifier,
    ModulusRule,
    ObjectiveRule,
    Problem,
    by_hand,
    flat_point,
    kink_point,
    make_rows,
    smooth_point,
    statistics,
)

LOSSES = ("binary", "squared")
STEPS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)  # of the finite differences
ORDER_FROM, BEST = 1, 4  # the error falls like h^2 from STEPS[1] to STEPS[2]; rounding takes over after STEPS[4]


def sign_rule(slope: Floats, jacobian: Floats) -> Floats:
    """sign(S) grad S, for a scalar w (eq. subgradnabR1dim)."""
    return np.asarray(np.sign(slope[0]) * jacobian[0])


def norm_rule(slope: Floats, jacobian: Floats) -> Floats:
    """J' S / |S|, and 0 where S = 0 (eq. subgradnabR)."""
    size = np.linalg.norm(slope)
    return np.asarray(jacobian.T @ slope / size) if size > 0 else np.zeros(jacobian.shape[1])


def squared_tv_rule(risks: Floats, moduli: Floats, subgradients: Floats, mu: Floats, weight: float) -> Floats:
    """E grad R + 2 lambda E|S| E d|S| (eq. IRMTVL1objsubgrad)."""
    return np.asarray(mu @ risks + 2 * weight * (mu @ moduli) * (mu @ subgradients))


def _directions(size: int, count: int, seed: int) -> Floats:
    """Random unit vectors: (count, size)."""
    drawn = np.random.default_rng(seed).standard_normal((count, size))
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))


def frechet_quotients(values: Floats, at: float, v: Floats, moves: Floats) -> Floats:
    """[f(w + d) - f(w) - v . d] / |d| for moves d (K, P): negative in the limit where v is no subgradient."""
    return np.asarray((values - at - moves @ v) / np.linalg.norm(moves, axis=1))


class _Study(NamedTuple):
    """What the two statements share, the least favourable of both losses."""

    comparisons: list[Comparison]
    errors: dict[str, tuple[Floats, Floats]]  # loss -> relative errors of finite differences by step: |S|, objective
    order: float  # the power of h at which they fall, the lowest
    autograd: float  # relative distance of autograd from the closed form, smooth point and kink
    long_quotient: float  # smallest Frechet quotient of |S_0| for a v that is half as long again as it may be
    one_sided: tuple[float, float]  # derivatives of |S_0| along one direction, from the left and from the right
    flat_variation: tuple[float, float]  # of E|S| where every slope is 0
    flat_penalty: tuple[float, float]  # of (E|S|)^2 there

    @property
    def best(self) -> float:
        """The largest relative error at the best step."""
        return float(max(pair[k][BEST] for pair in self.errors.values() for k in (0, 1)))


MOVE = 1e-6  # length of the moves with which limits are taken


def _relative(a: Floats, b: Floats) -> float:
    return float(np.abs(a - b).max() / np.abs(b).max())


def _one_sided(function: Function, theta: Floats, direction: Floats) -> tuple[float, float]:
    """Derivatives of a function of parameters (K, P) -> (K,) along `direction`, from the left and from the right."""
    left, middle, right = function(np.array([theta - MOVE * direction, theta, theta + MOVE * direction]))
    return float((middle - left) / MOVE), float((right - middle) / MOVE)


def _slope_error(problem: Problem, theta: Floats) -> float:
    """The library's S_e against central differences of R_e in w (for a vector w: in each component)."""
    e = statistics(torch.from_numpy(theta[None]), problem.data, problem.loss, problem.classifier)
    assert e.slope is not None
    slope = e.slope[0].numpy().reshape(ENVIRONMENTS, -1)  # (E, J)
    step, columns = 1e-5, []
    for j in range(slope.shape[1]):
        risks = []
        for sign in (1, -1):
            moved = theta.copy()  # f is linear in a: w multiplies it
            moved[-UNITS:] *= 1 + sign * step * (np.arange(UNITS) == j if problem.classifier == "vector" else 1)
            at = statistics(torch.from_numpy(moved[None]), problem.data, problem.loss, problem.classifier)
            assert at.risk is not None
            risks.append(at.risk[0].numpy())
        columns.append((risks[0] - risks[1]) / (2 * step))
    return _relative(np.stack(columns, 1), slope)


def _study(problems: list[Problem], relu: tuple[float, float], seed: int) -> _Study:
    """The closed form where no slope is 0, where one is and where all are, against all that it can be held to.

    `relu` are the one-sided derivatives of |S| at the kink of a ReLU.
    """
    errors: dict[str, tuple[Floats, Floats]] = {}
    orders: list[float] = []
    far: list[float] = []
    at_kink: list[float] = []
    quotients: dict[str, list[float]] = {"zero": [], "objective": [], "long": []}  # the smallest of each problem
    theta, kink, flat = smooth_point(seed), kink_point(seed), flat_point(seed)
    for problem in problems:
        exact = problem.closed_form(theta)
        approximate = [problem.finite_differences(theta, h) for h in STEPS]
        pair = [np.array([_relative(side[k], exact[k]) for side in approximate]) for k in (0, 1)]
        errors[problem.loss] = pair[0], pair[1]
        orders += [float(np.log10(p[ORDER_FROM] / p[ORDER_FROM + 1])) for p in pair]

        each, whole = problem.closed_form(kink)
        for point in (theta, kink):
            exact_here, by_autograd = problem.closed_form(point), problem.autograd(point)
            far += [_relative(by_autograd[k], exact_here[k]) for k in (0, 1)]
            if problem.classifier == "scalar":
                far.append(_relative(problem.library_closed_form(point), exact_here[1]))
        jacobian = by_hand(kink, problem.data, problem.loss, problem.classifier).jacobians[0]
        steepest = np.linalg.svd(jacobian)[2][0]  # the direction in which S_0 moves fastest
        moves = MOVE * np.concatenate([_directions(len(kink), 500, seed), [steepest, -steepest]])
        moduli, _, objective = problem.values(kink + moves)
        here = problem.values(kink)
        too_long = 1.5 * np.linalg.norm(jacobian @ steepest) * steepest
        at_kink.append(float(np.abs(each[0]).max()))
        quotients["zero"].append(frechet_quotients(moduli[:, 0], here[0][0, 0], each[0], moves).min())
        quotients["long"].append(frechet_quotients(moduli[:, 0], here[0][0, 0], too_long, moves).min())
        quotients["objective"].append(frechet_quotients(objective, here[2][0], whole, moves).min())
    last, mu = problems[-1], problems[-1].data.mu
    downhill = _directions(len(kink), 1, seed + 1)[0]
    one_sided = _one_sided(lambda t: last.values(t)[0][:, 0], kink, downhill)
    flat_variation = _one_sided(lambda t: last.values(t)[0] @ mu, flat, downhill)
    flat_penalty = _one_sided(lambda t: last.values(t)[1], flat, downhill)
    order, autograd, long_quotient = (float(v) for v in (np.min(orders), np.max(far), np.max(quotients["long"])))
    central = f"relative error of central differences, h = {STEPS[BEST]:g}"
    best = [[pair[k][BEST] for pair in errors.values()] for k in (0, 1)]
    smallest = "smallest Fréchet quotient of"
    comparisons = [
        # h^2 times third derivatives is 1e-10 or so; rounding adds 1e-16 / h
        *(
            claim(f"{what}: {central}", equal("largest", np.max(best[k]), "zero", 0.0, 1e-8))
            for k, what in enumerate(("|S_e| of every environment", "the objective"))
        ),
        claim("at the kink S_0 = 0: largest entry", equal("closed form", max(at_kink), "zero", 0.0)),
        claim(f"at the kink: {smallest} |S_0|", at_least("closed form", np.min(quotients["zero"]), "zero", 0.0, 1e-12)),
        # moves of length MOVE see curvature times MOVE beside the limit
        claim(
            f"at the kink: {smallest} the objective",
            at_least("closed form", np.min(quotients["objective"]), "zero", 0.0, 1e3 * MOVE),
        ),
        ours("order at which the error falls with h", equal("lowest", order, "two", 2.0, 0.05)),
        ours("order at which the error falls with h", equal("highest", np.max(orders), "two", 2.0, 0.05)),
        ours(
            "backpropagation against the closed form, at the kink too: relative distance",
            equal("largest", autograd, "zero", 0.0, 1e-12),
        ),
        ours(
            "slopes S_e against central differences of R_e in w: relative distance",
            equal("largest", max(_slope_error(p, theta) for p in problems), "zero", 0.0, 1e-8),
        ),
        ours(
            "at the kink |S_0| has no gradient: derivative along a line",
            less("from the left", one_sided[0], "from the right", one_sided[1], 1e-3),
        ),
        ours(
            f"a vector half as long again as allowed: {smallest} |S_0|",
            less("1.5 |J|", long_quotient, "zero", 0.0, 1e-3),
        ),
        ours(
            "where every S_e = 0 the kink of E|S| is squared away: derivative of (E|S|)^2",
            equal("from the left", flat_penalty[0], "from the right", flat_penalty[1], 10 * MOVE),
        ),
        # v is a subgradient if right - v >= 0 and v - left >= 0: the best v makes the smaller one (right - left) / 2
        beyond(
            f"Phi with a ReLU at its own kink: {smallest} |S|, for the best v there is",
            at_least("best v", (relu[1] - relu[0]) / 2, "zero", 0.0, 1e-3),
        ),
    ]
    return _Study(comparisons, errors, order, autograd, long_quotient, one_sided, flat_variation, flat_penalty)


def _problems(
    classifier: Classifier, seed: int, weight: float, modulus_rule: ModulusRule, objective_rule: ObjectiveRule
) -> list[Problem]:
    if not weight > 0:
        raise ValueError(f"penalty_weight must be a positive number, or there is no |S|. Got {weight!r}. Use 10.")
    return [Problem(make_rows(loss, seed), loss, classifier, weight, modulus_rule, objective_rule) for loss in LOSSES]


def _draw_errors(axes: Axes, study: _Study) -> None:
    """Finite differences against the closed form, by step."""
    plain(axes, "closed form - differences", "step h", "relative error")
    h = np.array(STEPS)
    for (name, pair), colour in zip(study.errors.items(), (LEFT, RIGHT), strict=True):
        axes.loglog(h, pair[0], "o-", color=colour, ms=3, label=rf"$|S_e|$, {name}")
        axes.loglog(h, pair[1], "s--", color=colour, ms=3, label=f"objective, {name}")
    start = max(pair[1][0] for pair in study.errors.values())
    axes.loglog(h[:5], start * (h[:5] / h[0]) ** 2, ":", color=TRUTH, lw=1, label=r"$h^2$")
    axes.set_ylim(top=1e4)  # room for the legend
    legend(axes, loc="upper left")


def concave_kink(vector: bool = False, step: float = 1e-6) -> tuple[float, float]:
    """One-sided derivatives at b = 0 of |S| for f = relu(b) - 1, one row with y = 1 and the squared loss.

    S = 2 (f - y) f falls in f there, so that the kink of relu makes one of |S| that opens downwards. With a vector w,
    f = w_1 relu(b) - w_2 at w = (1, 1) and S = 2 (f - y) (relu(b), -1).
    """
    b = torch.tensor([-step, 0.0, step], dtype=torch.float64)
    inputs = torch.stack([torch.relu(b), -torch.ones_like(b)], -1)  # (3, 2)
    inputs = inputs if vector else inputs.sum(-1, keepdim=True)
    w = torch.ones_like(inputs, requires_grad=True)
    value, _ = as_loss("squared").value_and_slope((w * inputs).sum(-1), torch.ones_like(b))
    (slope,) = torch.autograd.grad(value.sum(), w)  # row by row
    left, middle, right = slope.norm(dim=-1).tolist()
    return (middle - left) / step, (right - middle) / step


@statement(
    "The closed-form subgradient for a scalar w",
    "appendix B.1 (eqn:subgradnabR1dim)",
    formula=(
        r"$\partial_\Phi|R'_w|=\mathrm{sign}(R'_w)\,\nabla_\Phi R'_w,\quad "
        r"\partial_\Phi g=E[\nabla_\Phi R]+2\lambda\,E|R'_w|\,E[\partial_\Phi|R'_w|]$"
    ),
    size=(7.2, 2.9),
)
def subgradient_scalar(
    seed: int = 0,
    penalty_weight: float = 10.0,
    modulus_rule: ModulusRule = sign_rule,
    objective_rule: ObjectiveRule = squared_tv_rule,
) -> Result:
    """For a scalar w the subgradient of |S_e| in Phi's parameters is sign(S_e) times the gradient of S_e, 0 where S_e =
    0; the objective's follows by the chain rule.

    The closed form for a scalar w, away from the kinks of |S_e| and at them. `modulus_rule(S, J)` gives the subgradient
    of |S| from S (1,) and its Jacobian (1, P); `objective_rule(grad R, |S|, d|S|, mu, lambda)` that of the objective:
    the formulas under test.
    """
    problems = _problems("scalar", seed, penalty_weight, modulus_rule, objective_rule)
    left, right = concave_kink()
    study = _study(problems, (left, right), seed)
    squared = problems[-1]

    def paint(figure: Figure) -> None:
        errors, kink, flat = figure.subplots(1, 3)
        _draw_errors(errors, study)
        line = np.linspace(-0.3, 0.3, 121)
        point = kink_point(seed)
        jacobian = by_hand(point, squared.data, squared.loss, "scalar").jacobians[0][0]
        along = jacobian / np.linalg.norm(jacobian)
        plain(kink, "one slope is 0", r"distance along $\nabla S_0$", r"$|S_0|$", ylim=(-0.6, 1.9))
        kink.plot(line, squared.values(point + line[:, None] * along)[0][:, 0], color=L1, label=r"$|S_0|$")
        kink.axhline(0, color=OTHER, lw=1, label="v = 0: a subgradient")
        for share, colour, name in (
            (0.5, TRUTH, r"$v=\nabla S_0/2$: one too"),
            (1.5, BAD, r"$v=1.5\,\nabla S_0$: none"),
        ):
            kink.plot(line, share * np.linalg.norm(jacobian) * line, color=colour, lw=0.8, ls="--", label=name)
        legend(kink, loc="upper left")
        plain(flat, "every slope is 0", "distance along a line")
        direction = _directions(len(point), 1, seed + 1)[0]
        moduli, penalty, _ = squared.values(flat_point(seed) + line[:, None] * direction)
        flat.plot(line, moduli @ squared.data.mu, color=L2, label=r"$E|S|$: a kink")
        flat.plot(line, penalty, color=L1, label=r"$(E|S|)^2$: none")
        legend(flat, loc="upper center")

    return Result(
        study.comparisons,
        f"On a small network with {ENVIRONMENTS} environments the closed form agrees with central differences to "
        f"{study.best:.0e}, and the error falls like h^{study.order:.2f}. Where a slope is 0 the one-sided derivatives "
        f"are {study.one_sided[0]:.3f} and {study.one_sided[1]:.3f}, so no gradient exists, but 0 is a subgradient: "
        "|S_0| has its minimum there. The paper says that backpropagation cannot be used; autograd, which takes 0 for "
        f"the derivative of |.| at 0, gives the same numbers to {study.autograd:.0e}, at the kink too. Where every "
        f"slope is 0 the square removes the kink: E|S| has derivatives {study.flat_variation[0]:.2f} and "
        f"{study.flat_variation[1]:.2f}, (E|S|)^2 has {study.flat_penalty[0]:.0e} and {study.flat_penalty[1]:.0e}. The "
        f"rule needs a slope that is differentiable in Phi: at the kink of a ReLU |S| can have derivatives {left:.1f} "
        f"and {right:.1f}, and then no subgradient exists at all.",
        paint,
    )


@statement(
    "The closed-form subgradient for a vector w",
    "appendix B.1 (eqn:subgradnabR)",
    formula=(
        r"$\partial_\Phi|\nabla_w R|=J_\Phi^{\,T}[\nabla_w R]\,\nabla_w R\,/\,|\nabla_w R|,\quad "
        r"\partial_\Phi|\nabla_w R|=0\ \mathrm{where}\ \nabla_w R=0$"
    ),
    size=(7.2, 2.9),
)
def subgradient_vector(
    seed: int = 0,
    penalty_weight: float = 10.0,
    modulus_rule: ModulusRule = norm_rule,
    objective_rule: ObjectiveRule = squared_tv_rule,
) -> Result:
    """For a vector w the subgradient of |grad_w R| in Phi's parameters is J' grad_w R / |grad_w R|, 0 where grad_w R =
    0; the objective's follows by the chain rule.

    The closed form for a vector w that multiplies the inputs of the last layer, away from the kinks and at them.
    `modulus_rule(S, J)` gives the subgradient of |S| from S (J,) and its Jacobian (J, P); `objective_rule(grad R, |S|,
    d|S|, mu, lambda)` that of the objective: the formulas under test.
    """
    problems = _problems("vector", seed, penalty_weight, modulus_rule, objective_rule)
    left, right = concave_kink(vector=True)
    study = _study(problems, (left, right), seed)
    squared = problems[-1]
    point = kink_point(seed)
    jacobian = by_hand(point, squared.data, squared.loss, "vector").jacobians[0]
    plane = np.eye(len(point))[-UNITS : -UNITS + 2]  # the two weights a_j that are 0 at the kink

    def paint(figure: Figure) -> None:
        errors, cone, circle = figure.subplots(1, 3)
        _draw_errors(errors, study)
        line = np.linspace(-0.3, 0.3, 61)
        one, two = np.meshgrid(line, line)
        grid = np.stack([one.ravel(), two.ravel()], 1)
        values = squared.values(point + grid @ plane)[0][:, 0].reshape(one.shape)
        plain(cone, r"$|\nabla_w R_0|$ around the kink", r"$a_1$", r"$a_2$")
        levels = cone.contour(one, two, values, levels=8, colors=L1, linewidths=0.8)
        cone.clabel(levels, fontsize=6)
        cone.plot(0, 0, "x", color=BAD)
        angle = np.linspace(-np.pi, np.pi, 361)
        moves = MOVE * np.stack([np.cos(angle), np.sin(angle)], 1) @ plane
        moduli = squared.values(point + moves)[0][:, 0]
        towards = jacobian @ plane[0] / np.linalg.norm(jacobian @ plane[0])
        plain(circle, "quotient by direction", "angle in the plane", "Fréchet quotient")
        for share, colour in ((0.0, OTHER), (0.5, TRUTH), (1.5, BAD)):
            quotient = frechet_quotients(moduli, 0.0, share * jacobian.T @ towards, moves)
            circle.plot(angle, quotient, color=colour, label=rf"$v=J^T s,\ |s|={share:g}$")
        circle.axhline(0, color=TRUTH, lw=0.6, ls=":")
        circle.set_ylim(top=1.6 * circle.get_ylim()[1])
        legend(circle, loc="upper center")

    return Result(
        study.comparisons,
        f"w multiplies the {UNITS} inputs of the last layer. The closed form agrees with central differences to "
        f"{study.best:.0e} and the error falls like h^{study.order:.2f}. Where grad_w R_0 = 0 the modulus is the tip "
        f"of a cone with one-sided derivatives {study.one_sided[0]:.3f} and {study.one_sided[1]:.3f}: every vector J^T "
        "s with |s| <= 1 is a subgradient there, the paper takes s = 0, and one with |s| = 1.5 is none (quotient "
        f"{study.long_quotient:.2f}). Backpropagation through the norm gives the same numbers to {study.autograd:.0e}, "
        "at the tip too, so that nothing but automatic differentiation is needed in practice. As for a scalar w, "
        f"grad_w R must be differentiable in Phi: at the kink of a ReLU |grad_w R| can have derivatives {left:.1f} and "
        f"{right:.1f}, and then no subgradient exists at all.",
        paint,
    )
