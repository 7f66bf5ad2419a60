"""Linear predictors on the simulation: trained, and their risk in the population.

Given the label y and the two signs (a invariant, b spurious) the logit is Gaussian, so a risk is a one-dimensional
Gauss-Hermite sum, for every classifier w = (w_v, w_s, w_0) that multiplies the invariant part of the logit, its
spurious part and its intercept (w_v = w_s = w_0 is the scalar classifier):

    logit | y, a, b  ~  N( w_v a V + w_s b S + w_0 c,  w_v^2 |beta_v|^2 + w_s^2 |beta_s|^2 )
    R(w; p_s)  =  p_s R(w; b = y)  +  (1 - p_s) R(w; b = -y)

beta_v and beta_s are the coefficients of the two kinds of columns, V and S their sums, c the intercept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import expit

from irmtv.core.types import Rows, Runs, Task
from irmtv.engine import train
from irmtv.lab.theory.sides import Floats

N_INVARIANT = 5
# The same for every method. The weight of l2 is that of the paper's simulation; the rate is four times its rate, so
# that 1,500 steps come near to convergence (the paper takes 5,300). Nothing is chosen by its result on test rows.
STEPS = 1500
LEARNING_RATE = 2e-2
L2_WEIGHT = 1e-3
WARMUP = 500


def gauss_hermite(n: int) -> tuple[Floats, Floats]:
    """Nodes and weights for the expectation of a smooth function of a standard normal variable."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n)
    return nodes, weights / np.sqrt(2 * np.pi)


NODES, WEIGHTS = gauss_hermite(60)


@dataclass(frozen=True)
class Linear:
    """Linear predictors of the simulation's columns: coefficients (..., D), intercepts (...)."""

    coef: Floats
    intercept: Floats
    p_v: float

    def __getitem__(self, index: Any) -> Linear:
        return Linear(self.coef[index], self.intercept[index], self.p_v)

    def _cases(self, w: Floats) -> Iterator[tuple[int, float, float, Floats, Floats]]:
        """Index of (b = y, b = -y), y, probability, logits (..., W, nodes), their slopes in w (..., 3, W, nodes)."""
        v, s = self.coef[..., :N_INVARIANT], self.coef[..., N_INVARIANT:]
        scale = np.stack([np.square(v).sum(-1), np.square(s).sum(-1), 0 * self.intercept], -1)[..., None, None]
        noise = np.sqrt((scale * np.square(w.T)[:, :, None]).sum(-3, keepdims=True))  # (..., 1, W, 1)
        # the standard deviation's own derivative, w |beta|^2 / noise; 0 / 0 at w = 0, where it is taken as 0
        widening = scale * w.T[:, :, None] / np.where(noise > 0, noise, 1)
        for (other, spurious), y, (p, invariant) in product(
            ((0, 1), (1, -1)), (1, -1), ((self.p_v, 1), (1 - self.p_v, -1))
        ):
            mean = np.stack([invariant * y * v.sum(-1), spurious * y * s.sum(-1), self.intercept], -1)[..., None, None]
            logit = (mean * w.T[:, :, None]).sum(-3) + noise[..., 0, :, :] * NODES
            yield other, y, p / 2, logit, mean + widening * NODES

    def risk(self, w: ArrayLike = ((1.0, 1.0, 1.0),)) -> Floats:
        """Cross-entropy for W classifiers w (W, 3), where the spurious sign agrees and where not: (..., 2, W)."""
        w = np.asarray(w, dtype=np.float64)
        total = np.zeros((*self.intercept.shape, 2, len(w)))
        for other, y, p, logit, _ in self._cases(w):
            total[..., other, :] += p * (np.logaddexp(0, -y * logit) @ WEIGHTS)
        return total

    def risk_by_agreement(self) -> tuple[Floats, Floats]:
        """The risk at w = 1 where the spurious sign agrees with the label, and where it does not: (...) each."""
        risk = self.risk()[..., 0]
        return risk[..., 0], risk[..., 1]

    def losses(self, rows: Rows) -> Floats:
        """The cross-entropy of rows that were drawn: (..., N)."""
        logit = self.coef @ rows.x.double().numpy().T + self.intercept[..., None]
        return np.asarray(np.logaddexp(0, (1 - 2 * rows.y.numpy()) * logit))


def risk_gradient(model: Linear, w: Floats) -> Floats:
    """Gradient of `model.risk(w)` in (w_v, w_s, w_0): (..., 2, W, 3). Each w must have w_v or w_s other than 0."""
    total = np.zeros((*model.intercept.shape, 2, 3, len(w)))
    for other, y, p, logit, slope in model._cases(w):
        total[..., other, :, :] += p * ((-y * expit(-y * logit))[..., None, :, :] * slope) @ WEIGHTS
    return np.asarray(np.swapaxes(total, -1, -2))


def mixed(by_agreement: Floats, p_s: float, axis: int) -> Floats:
    """What holds at agreement p_s, from what holds where the signs agree and where not, along `axis`."""
    agree, disagree = np.moveaxis(by_agreement, axis, 0)
    return np.asarray(p_s * agree + (1 - p_s) * disagree)


def risk_line(agree: Floats, disagree: Floats, p_s: Floats) -> Floats:
    """Risk of predictors (...) at each agreement p_s (T,): linear in p_s, whatever the predictor. (..., T)."""
    return np.asarray(agree[..., None] * p_s + disagree[..., None] * (1 - p_s))


def train_linear(
    tasks: Sequence[Task], objective: str, steps: int, weights: Sequence[float] | None = None, **settings: Any
) -> tuple[Floats, Floats]:
    """One run per task and penalty weight, trained as one: coefficients (weights, tasks, D), intercepts likewise."""
    n, k = len(tasks), 1 if weights is None else len(weights)
    which = list(range(n)) * k
    runs = Runs(seed=which, data=which, **({} if weights is None else {"penalty_weight": list(np.repeat(weights, n))}))
    settings = {"learning_rate": LEARNING_RATE, "dtype": torch.float64, "steps": steps, **settings}
    coef, intercept = train(list(tasks), objective, runs, **settings).coefficients()
    return coef.numpy().reshape(k, n, -1), intercept.numpy().reshape(k, n)


def fit(
    tasks: Sequence[Task], objective: str, p_v: float, steps: int, weights: Sequence[float] | None = None, **more: Any
) -> Linear:
    """The same on the simulation, with its l2 and a warmup where there is a penalty: coef (weights, tasks, D)."""
    if weights is not None:
        more |= {"warmup": min(WARMUP, steps // 3)}
    return Linear(*train_linear(tasks, objective, steps, weights, l2=L2_WEIGHT, **more), p_v)


def least_logistic_risk(x: Floats, y: Floats, mass: Floats | float = 1.0) -> Floats:
    """The coefficients of least logistic risk of rows x (N, D) with labels 0 and 1, by Newton's method: (D,).

    `mass` is what each row counts. Thirty steps are far more than these small problems need.
    """
    b = np.zeros(x.shape[1])
    for _ in range(30):
        p = expit(x @ b)
        b -= np.linalg.solve((x.T * (mass * p * (1 - p))) @ x, x.T @ (mass * (p - y)))
    return b


def check_repetitions(repetitions: int) -> None:
    if not isinstance(repetitions, int) or repetitions < 2:
        raise ValueError(f"repetitions must be an integer of at least 2, for a scatter. Got {repetitions!r}. Use 5.")
