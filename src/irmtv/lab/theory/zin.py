"""ZIN and TIVA against Minimax-TV-l2 (theorem ZIN): the definition, by autograd, and the proof's rewriting of it.

ZIN weighs the loss of every row by a vector rho(z_i) in the simplex of E environments,

    R~(w Phi, rho) = 1/n sum_i l(w Phi(x_i), y_i) rho(z_i)  in R^E,      penalty  max_rho || grad_w R~ ||^2 .

TIVA is the same with rho(x (1 - u)) and Phi(x u), u the gates. Two readings of "environment e" are possible:

- a basis that is given: R~_e = rho_e R_e, with R_e the risk of basis environment e (what makes eq. ZINrewrite true);
- rows that are assigned: q_ie = rho_e(z_i), R~_e = m_e R_e, with m_e = mean_i q_ie and R_e the q-weighted mean loss.

In both || grad R~ ||^2 = sum_e rho_e^2 |S_e|^2 (m_e for rho_e), where the proof prints sum_e rho_e |S_e|^2 (eq.
ZINrewrite2). What the maximum over rho makes of that is in `irmtv.lab.theory.minimax`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.optimize import brentq
from torch import Tensor
from torch.nn import functional

from irmtv.core.losses import Binary
from irmtv.core.membership import Codes, Soft
from irmtv.core.messages import check_positive
from irmtv.core.risk import LastLayer, modulus_squared, per_sample, summarise
from irmtv.core.types import Statistics
from irmtv.lab.theory.figures import BAD, L2, LEFT, OTHER, RIGHT, TRUTH, legend, plain
from irmtv.lab.theory.finding import Result, all_equal, claim, equal, ours, statement
from irmtv.lab.theory.minimax import authors_l2
from irmtv.lab.theory.sides import Floats, PenaltyFunction, check_above, statistics_of
from irmtv.objectives import OBJECTIVES
from irmtv.objectives.gates import gate
from irmtv.objectives.irm_tv_l2 import tv_l2

# --- the rewriting ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Classifier:
    """Rows with features H = Phi(x) of two numbers, and a classifier w of two numbers on them."""

    features: Tensor  # (N, 2)
    y: Tensor  # (N,)
    w: Tensor  # (2,)

    @classmethod
    def draw(cls, rows: int, rng: np.random.Generator) -> _Classifier:
        y = rng.integers(0, 2, rows).astype(float)
        features = rng.normal(size=(rows, 2)) + (2 * y[:, None] - 1) * rng.normal(size=2)
        return cls(torch.from_numpy(features), torch.from_numpy(y), torch.tensor([1.3, -0.4], dtype=torch.float64))

    def risks(self, w: Tensor, weights: Tensor) -> Tensor:
        """ZIN's definition: 1/n sum_i l_i weights_i, weights (N, E): (E,)."""
        loss = functional.binary_cross_entropy_with_logits(self.features @ w, self.y, reduction="none")
        return loss @ weights / len(loss)

    def squared_norm(self, weights: Tensor) -> float:
        """|| grad_w R~ ||^2, the Frobenius norm of a matrix E x 2, by autograd."""
        jacobian = torch.func.jacrev(lambda w: self.risks(w, weights))(self.w)
        return float(jacobian.square().sum())

    def statistics(self, codes: Tensor, count: int) -> Statistics:
        """R_e and S_e of given environments by the library: w multiplies the features, entry by entry."""
        last = LastLayer(self.features.T.unsqueeze(0), torch.ones(1, 2, dtype=torch.float64))
        f = (self.features @ self.w).view(1, 1, -1)
        value, slope = per_sample(Binary(), f, self.y.view(1, 1, -1), True, last, vector=True)
        return summarise(value, slope, Codes(codes.view(1, 1, -1), count), ("risk", "slope"))


def printed_weights(rho: Floats) -> Floats:
    """What |S_e|^2 counts in the proof (eq. ZINrewrite2)."""
    return rho


def squared_weights(rho: Floats) -> Floats:
    """What |S_e|^2 counts by the definition of ZIN."""
    return rho**2


@statement(
    "ZIN's penalty squares the probabilities",
    "proof of Theorem 3.4 (eqn:ZINrewrite2)",
    formula=r"$\|\nabla_w \tilde{R}(w\circ\Phi,\rho)\|_2^2=\sum_{i=1}^{E}|\nabla_w R(w\circ\Phi,e_i)|^2\,\rho_i$",
)
def zin_rewriting(
    environments: int = 3,
    rows: int = 60,
    points: int = 60,
    printed: Callable[[Floats], Floats] = printed_weights,
    definition: Callable[[Floats], Floats] = squared_weights,
    seed: int = 0,
) -> Result:
    """The proof rewrites the squared norm of ZIN's gradient as the expectation, under rho, of the squared slopes of the
    basis environments.

    The norm of ZIN's gradient by autograd, at random rho, against sum rho |S|^2 and sum rho^2 |S|^2. The reading is
    that of a given basis: `environments` sets of `rows` rows with a risk each, rho one probability per set. `printed`
    and `definition`, rho -> the weights of |S_e|^2, are under test.
    """
    for name, value in (("environments", environments), ("rows", rows), ("points", points)):
        check_positive(value, name)
    if environments < 2:
        raise ValueError(f"environments must be 2 or more: one has no probabilities to weigh. Got {environments}.")
    rng = np.random.default_rng(seed)
    model = _Classifier.draw(environments * rows, rng)
    codes = torch.arange(environments).repeat_interleave(rows)
    e = model.statistics(codes, environments)
    assert e.risk is not None
    squares = modulus_squared(e)[0].numpy()  # (E,)
    own_rows = functional.one_hot(codes, environments).double()  # (N, E)

    def by_autograd(rho: Floats) -> float:
        # all sets have n / E rows, so that 1/n sum_i l_i (E rho_e) over those of e is rho_e R_e
        return model.squared_norm(own_rows * torch.from_numpy(rho) * environments)

    inside = rng.dirichlet(np.ones(environments), points)  # (P, E)
    vertices = np.eye(environments)
    measured = np.array([by_autograd(r) for r in inside])
    at_vertices = np.array([by_autograd(r) for r in vertices])
    even = np.full(environments, 1 / environments)
    first = float(model.risks(model.w, own_rows * torch.from_numpy(even) * environments).sum())
    # the same rho for every row, to the letter of the definition: all environments are then the whole sample
    everywhere = np.array([model.squared_norm(torch.from_numpy(r).expand(len(own_rows), -1)) for r in inside[:10]])
    pooled = modulus_squared(model.statistics(torch.zeros_like(codes), 1))[0, 0].item()

    def weighed(weights: Callable[[Floats], Floats], rho: Floats) -> Floats:
        total: Floats = weights(rho) @ squares
        return total

    tight = 1e-12 * float(squares.max())  # rounding
    comparisons = (
        claim(
            "first term (eq. ZINrewrite)", equal("R~ at 1/E, summed", first, "mean of the R_e", e.risk.mean(), 1e-12)
        ),
        claim(
            "second term at rho inside the simplex",
            all_equal("autograd", measured, "sum rho |S|^2, printed", weighed(printed, inside), tight),
        ),
        ours(
            "second term at rho inside the simplex",
            all_equal("autograd", measured, "sum rho^2 |S|^2", weighed(definition, inside), tight),
        ),
        ours(
            "second term at the vertices",
            all_equal("autograd", at_vertices, "sum rho |S|^2, printed", weighed(printed, vertices), tight),
        ),
        ours(
            "the same rho for every row, S the slope of all rows",
            all_equal("autograd", everywhere, "|S|^2 sum rho^2", pooled * definition(inside[:10]).sum(-1), tight),
        ),
    )
    ratio = weighed(printed, inside) / measured

    def paint(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        plain(left, "from one vertex to the next", r"$\rho_1 = 1 - \rho_2$", "second term")
        t = np.linspace(0, 1, 41)
        path = np.zeros((len(t), environments))
        path[:, 0], path[:, 1] = t, 1 - t
        left.plot(t, weighed(printed, path), color=RIGHT, lw=1.5, label=r"printed: $\sum\rho_e|S_e|^2$")
        left.plot(t, weighed(definition, path), color=OTHER, lw=1.5, label=r"$\sum\rho_e^2|S_e|^2$")
        left.plot(t[::2], [by_autograd(r) for r in path[::2]], ".", color=LEFT, ms=5, label="definition, autograd")
        left.set_ylim(0, 1.5 * float(squares[:2].max()))
        legend(left, loc="upper center")
        plain(right, f"{points} random probabilities", "definition of ZIN, by autograd", "formula")
        right.axline((0, 0), slope=1, color=TRUTH, lw=0.8, ls=":")
        right.plot(measured, weighed(printed, inside), ".", color=RIGHT, ms=5, label=r"printed: $\sum\rho_e|S_e|^2$")
        right.plot(measured, weighed(definition, inside), ".", color=OTHER, ms=5, label=r"$\sum\rho_e^2|S_e|^2$")
        right.xaxis.set_major_locator(MaxNLocator(4))
        legend(right)

    return Result(
        comparisons,
        f"R~ has one entry per environment, rho_e R_e; that reading makes the first term right ({first:.4f} on both "
        f"sides). The norm squares each entry, and with it rho_e: at {points} random rho the gradient by autograd is "
        f"the sum of rho_e^2 |S_e|^2 to {comparisons[2].error:.0e}, while the printed sum of rho_e |S_e|^2 is "
        f"{ratio.min():.1f} to {ratio.max():.1f} times as large. They agree where rho is 1 on one environment and 0 "
        "elsewhere. For a user a lambda that was chosen for one of the two penalties is not one for the other.",
        paint,
    )


# --- rows that are assigned: ZIN and TIVA -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Gated:
    """Rows x~ = (x, z) with gates u: Phi reads x~ u, rho reads x~ (1 - u) (eq. TIVA)."""

    inputs: Tensor  # (N, D)
    gates: Tensor  # (D,)
    phi: Tensor  # (D,)
    y: Tensor  # (N,)

    @classmethod
    def draw(cls, rows: int, rng: np.random.Generator) -> _Gated:
        inputs = torch.from_numpy(rng.normal(size=(rows, 6)))
        gates = gate(torch.tensor([0.9, 0.2, 0.0, -0.3, -0.6, -0.6], dtype=torch.float64))  # open, half open, shut
        phi = torch.tensor([1.0, -0.8, 0.7, 0.5, 1.0, 1.0], dtype=torch.float64)
        # the effect of the first input turns with the last: environments that differ
        noise = torch.from_numpy(rng.logistic(size=rows))
        y = (inputs[:, 0] * (0.8 + 1.5 * inputs[:, 5]) - inputs[:, 1] + 0.8 + noise > 0).double()
        return cls(inputs, gates, phi, y)

    @property
    def logits(self) -> Tensor:
        return (self.inputs * self.gates) @ self.phi

    def rho(self, weights: tuple[Tensor, Tensor], bias: float = 0.0, gated: bool = True) -> Tensor:
        """Two environments from a network with one hidden layer, by hand: q (N, 2)."""
        read = self.inputs * (1 - self.gates) if gated else self.inputs[:, 4:]  # TIVA; ZIN: the last two are z
        first, second = weights
        score = functional.relu(read @ first) @ second + bias
        return torch.stack([torch.sigmoid(score), torch.sigmoid(-score)], -1)

    def squared_norm(self, q: Tensor) -> float:
        """|| grad_w R~ ||^2 at w = 1 from the definition, by autograd."""

        def risks(w: Tensor) -> Tensor:
            loss = functional.binary_cross_entropy_with_logits(w * self.logits, self.y, reduction="none")
            return loss @ q / len(loss)

        return float(torch.func.jacrev(risks)(torch.ones((), dtype=torch.float64)).square().sum())

    def statistics(self, q: Tensor) -> Statistics:
        return statistics_of(Binary(), self.logits.unsqueeze(0), self.y, Soft(q.T.view(1, 1, 2, -1)))

    def both_forms(self, q: Tensor, expectation: PenaltyFunction) -> tuple[float, float, float, float]:
        """Definition and expectation of the penalty; mean loss and uniform mean of the risks."""
        e = self.statistics(q)
        assert e.risk is not None
        return self.squared_norm(q), expectation(e, e.mass).item(), e.mean_risk.item(), e.risk.mean().item()


@statement(
    "ZIN and TIVA assign rows: Minimax-TV-l2 for equal masses only, with another lambda",
    "Theorem 3.4 (prop:ZIN)",
    formula=(
        r"$\|\nabla_w\frac{1}{n}\sum_i \ell(w\circ\Phi(x_i\odot u),y_i)\,\rho(x_i\odot(1-u))\|_2^2"
        r"=\sum_e m_e|S_e|^2$"
    ),
)
def tiva_is_minimax_tv_l2(
    rows: int = 200,
    draws: int = 40,
    bias: float = 1.5,
    authors: PenaltyFunction = authors_l2,
    expectation: PenaltyFunction = tv_l2,
    seed: int = 0,
) -> Result:
    """ZIN and TIVA learn a probability measure rho and are Minimax-TV-l2: uniform expectation of the risks, and
    expectation under rho of the squared slopes. They differ in what rho reads.

    ZIN and TIVA assign rows: their penalty by definition, against the library's and against Minimax-TV-l2's. `authors`
    and `expectation`, (Statistics, mu) -> (R,), are under test. `bias` moves rows into the first environment, so that
    the two have unequal masses.
    """
    check_positive(rows, "rows")
    check_positive(draws, "draws")
    check_above(bias, 0, "bias", "At 0 the masses are whatever the network gives.")
    rng = np.random.default_rng(seed)
    model = _Gated.draw(rows, rng)

    def network(width: int) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(rng.normal(size=(width, 8))), torch.from_numpy(rng.normal(size=8))

    random_rho = [model.rho(network(6 if gated else 2), gated=gated) for gated in (True, False) for _ in range(draws)]
    defined = np.array([model.squared_norm(q) for q in random_rho])
    weights = network(6)
    balance = float(brentq(lambda b: model.rho(weights, b)[:, 0].mean().item() - 0.5, -50, 50, xtol=1e-14))
    balanced, unbalanced = (model.both_forms(model.rho(weights, balance + shift), expectation) for shift in (0.0, bias))
    share = model.rho(weights, balance + bias)[:, 0].mean().item()
    even = model.rho(weights, balance)

    def by_library(name: str, q: Tensor) -> float:
        """The penalty of one of the library's objectives."""
        objective = OBJECTIVES[name]
        return objective.penalty_values(model.statistics(q), objective.resolve({}))[0].item()

    comparisons = (
        claim(
            f"masses {share:.2f} and {1 - share:.2f}: penalty",
            equal("definition", unbalanced[0], "sum m |S|^2", unbalanced[1], 1e-6),
        ),
        claim(
            f"masses {share:.2f} and {1 - share:.2f}: first term",
            equal("R~ at 1/E, summed", unbalanced[2], "mean of the R_e", unbalanced[3], 1e-6),
        ),
        # the masses are equal up to 1e-14
        ours(
            "equal masses: penalty", equal("E times the definition", 2 * balanced[0], "sum m |S|^2", balanced[1], 1e-12)
        ),
        ours(
            "equal masses: first term", equal("R~ at 1/E, summed", balanced[2], "mean of the R_e", balanced[3], 1e-12)
        ),
        ours(
            "ZIN and TIVA, random rho",
            all_equal(
                "definition, autograd",
                defined,
                "sum m^2 |S|^2",
                [authors(e, e.mass).item() for e in map(model.statistics, random_rho)],
                1e-14,
            ),
        ),
        *(
            ours(
                f"{name.upper()}, random rho",
                all_equal(
                    "definition, autograd", defined[part], name, [by_library(name, q) for q in random_rho[part]], 1e-14
                ),
            )
            for name, part in (("tiva", slice(draws)), ("zin", slice(draws, None)))
        ),
        ours(
            "Minimax-TV-l2 at equal masses",
            equal("sum m |S|^2", balanced[1], "minimax-tv-l2", by_library("minimax-tv-l2", even), 1e-14),
        ),
    )

    def paint(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        balanced = model.both_forms(model.rho(weights, balance), expectation)
        biases = balance + np.linspace(-6, 6, 61)
        masses = [model.rho(weights, b)[:, 0].mean().item() for b in biases]
        table = np.array([model.both_forms(model.rho(weights, b), expectation) for b in biases])
        plain(left, "penalty as rows move to environment 1", r"mass $m_1$", "penalty")
        left.plot(masses, table[:, 1], color=L2, lw=1.5, label=r"Minimax-TV-l2: $\sum m_e|S_e|^2$")
        left.plot(masses, 2 * table[:, 0], color=OTHER, lw=1.5, label="E times ZIN's / TIVA's")
        left.plot(0.5, balanced[1], "o", color=BAD, ms=5, label="equal masses")
        legend(left)
        plain(right, "first term", r"mass $m_1$", "risk")
        right.plot(masses, table[:, 3], color=L2, lw=1.5, label=r"Minimax-TV-l2: $\frac{1}{E}\sum R_e$")
        right.plot(masses, table[:, 2], color=OTHER, lw=1.5, label="ZIN, TIVA: mean loss")
        right.plot(0.5, balanced[3], "o", color=BAD, ms=5, label="equal masses")
        legend(right)

    return Result(
        comparisons,
        "In use rho gives every row a probability of each environment, so the environments have masses m_e. Over "
        f"{2 * draws} random rho, on gated inputs (TIVA) and on auxiliary ones (ZIN), the definition by autograd is "
        f"the sum of m_e^2 |S_e|^2 to {comparisons[4].error:.0e}; the library's tiva and zin are the same. Where the "
        "masses are equal that is Minimax-TV-l2's penalty divided by the number of environments "
        f"({2 * balanced[0]:.5f} and {balanced[1]:.5f} after multiplying), so both are the same model with another "
        "lambda.\n\n"
        f"The theorem asks for no equal masses and prints no such factor. With masses {share:.2f} and {1 - share:.2f} "
        f"the penalty is {unbalanced[0]:.5f} by definition and {unbalanced[1]:.5f} in Minimax-TV-l2, and the first "
        f"term, the mean loss {unbalanced[2]:.3f}, is not the uniform mean of the risks {unbalanced[3]:.3f}. "
        "reduction='authors' or 'expectation' chooses between the two penalties.",
        paint,
    )
