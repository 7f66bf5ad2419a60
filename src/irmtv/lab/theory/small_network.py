"""A small network on a small data set, with every derivative written out: what closed forms are checked on.

Phi is f(x) = sum_j a_j tanh(b_j . x) with parameters (b, a). A scalar w multiplies f; a vector w the units
h_j = tanh(b_j . x). With l the loss, r = l'(f), u_j = a_j h_j and means over an environment's rows,

    scalar:  S = mean(r f),      J   = mean( (r' f + r) df )
    vector:  S_j = mean(r u_j),  J_j = mean( r' u_j df + r du_j ).

`by_hand` computes these; `statistics` has the same numbers S from the library (`irmtv.core.risk`), without J. A
`Problem` has the subgradients of |S_e| and of IRM-TV-l1 in three ways: by a rule from `by_hand`, by central differences
of the library's values, and by backpropagation through them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor

from irmtv.core.losses import as_loss
from irmtv.core.membership import Codes
from irmtv.core.risk import LastLayer, modulus, per_sample, summarise
from irmtv.core.types import Statistics
from irmtv.lab.theory.sides import Floats, Integers
from irmtv.objectives import OBJECTIVES

Classifier = Literal["scalar", "vector"]

ModulusRule = Callable[[Floats, Floats], Floats]  # S (J,), Jacobian (J, P) -> (P,)
# gradients of the risks (E, P), |S| (E,), subgradients of |S| (E, P), mu (E,), lambda -> (P,)
ObjectiveRule = Callable[[Floats, Floats, Floats, Floats, float], Floats]

FEATURES, UNITS, ENVIRONMENTS, ROWS = 4, 4, 3, 40


class ExampleRows(NamedTuple):
    """ExampleRows of three environments; those of the first have only the first half of the features."""

    x: Floats  # (N, D)
    y: Floats  # (N,)
    codes: Integers  # (N,)

    @property
    def mu(self) -> Floats:
        return np.bincount(self.codes) / len(self.codes)


def make_rows(loss: str, seed: int) -> ExampleRows:
    generator = np.random.default_rng(seed)
    counts = ROWS + 10 * np.arange(ENVIRONMENTS)  # unequal, so that the measure matters
    codes = np.repeat(np.arange(ENVIRONMENTS), counts)
    x = generator.standard_normal((len(codes), FEATURES))
    x[codes == 0, FEATURES // 2 :] = 0.0
    noise = generator.standard_normal(len(codes))
    score = x @ np.linspace(1.0, 0.4, FEATURES) + 0.5 * codes * x[:, -1] + 0.5 * noise
    return ExampleRows(x, (score > 0).astype(float) if loss == "binary" else score, codes)


def split(theta: Floats) -> tuple[Floats, Floats]:
    """The parameters (P,) as b (units, features) and a (units,)."""
    return theta[:-UNITS].reshape(UNITS, FEATURES), theta[-UNITS:]


class ByHand(NamedTuple):
    """What the closed form is made of, per environment."""

    risks: Floats  # (E, P)   grad R_e
    slopes: list[Floats]  # E times (J,)
    jacobians: list[Floats]  # E times (J, P)

    @property
    def moduli(self) -> Floats:
        return np.array([np.linalg.norm(s) for s in self.slopes])


def by_hand(theta: Floats, data: ExampleRows, loss: str, classifier: Classifier) -> ByHand:
    b, a = split(theta)
    risks, slopes, jacobians = [], [], []
    for e in range(ENVIRONMENTS):
        x, y = data.x[data.codes == e], data.y[data.codes == e]
        h = np.tanh(x @ b.T)  # (n, units)
        u = a * h
        du = np.zeros((len(x), UNITS, len(theta)))
        for j in range(UNITS):
            du[:, j, j * FEATURES : (j + 1) * FEATURES] = (a[j] * (1 - h[:, j] ** 2))[:, None] * x
            du[:, j, UNITS * FEATURES + j] = h[:, j]
        f, df = u.sum(1), du.sum(1)  # (n,), (n, P)
        p = expit(f)
        r, bend = (p - y, p * (1 - p)) if loss == "binary" else (2 * (f - y), np.full(len(f), 2.0))
        risks.append((r[:, None] * df).mean(0))
        if classifier == "scalar":
            slopes.append(np.array([(r * f).mean()]))
            jacobians.append(((bend * f + r)[:, None] * df).mean(0)[None])
        else:
            slopes.append((r[:, None] * u).mean(0))
            turned = (bend[:, None] * u)[:, :, None] * df[:, None, :]
            jacobians.append((turned + r[:, None, None] * du).mean(0))
    return ByHand(np.array(risks), slopes, jacobians)


def statistics(theta: Tensor, data: ExampleRows, loss: str, classifier: Classifier) -> Statistics:
    """Risks and slopes of many parameter vectors (K, P) at once, as the library computes them."""
    x, y, codes = torch.from_numpy(data.x), torch.from_numpy(data.y), torch.from_numpy(data.codes)
    b = theta[:, :-UNITS].reshape(-1, UNITS, FEATURES)
    a = theta[:, -UNITS:]
    h = torch.tanh(b @ x.T)  # (K, units, N)
    f = (a.unsqueeze(1) @ h).squeeze(1).unsqueeze(0)  # (1, K, N)
    vector = classifier == "vector"
    value, slope = per_sample(as_loss(loss), f, y.view(1, 1, -1), True, LastLayer(h, a) if vector else None, vector)
    return summarise(value, slope, Codes(codes.expand(1, len(theta), -1), ENVIRONMENTS), {"risk", "slope"})


def smooth_point(seed: int) -> Floats:
    """Parameters at which every slope is far from 0."""
    return np.random.default_rng(seed).uniform(0.3, 1.0, UNITS * FEATURES + UNITS)


def kink_point(seed: int) -> Floats:
    """Parameters at which the slope of the first environment is exactly 0, and no other.

    Half of the units have no weight in f, the other half does not see the features that this environment has: so
    f = 0 on all of its rows.
    """
    theta = smooth_point(seed)
    b, a = split(theta)
    b[UNITS // 2 :, : FEATURES // 2] = 0.0
    a[: UNITS // 2] = 0.0
    return theta


def flat_point(seed: int) -> Floats:
    """Parameters at which every slope is exactly 0: f = 0."""
    theta = smooth_point(seed)
    theta[-UNITS:] = 0.0
    return theta


@dataclass(frozen=True)
class Problem:
    """One loss and one kind of classifier on one data set."""

    data: ExampleRows
    loss: str
    classifier: Classifier
    weight: float  # lambda
    modulus_rule: ModulusRule
    objective_rule: ObjectiveRule

    def values(self, theta: Floats) -> tuple[Floats, Floats, Floats]:
        """|S_e| (K, E), the penalty (K,) and the objective (K,) of parameters (K, P), by the library."""
        e = statistics(torch.from_numpy(np.atleast_2d(theta)), self.data, self.loss, self.classifier)
        (penalty,) = OBJECTIVES["irm-tv-l1"].penalty_values(e, {})
        return modulus(e).numpy(), penalty.numpy(), (e.mean_risk + self.weight * penalty).numpy()

    def closed_form(self, theta: Floats) -> tuple[Floats, Floats]:
        """The paper's subgradients of every |S_e| (E, P) and of the objective (P,)."""
        parts = by_hand(theta, self.data, self.loss, self.classifier)
        each = np.array([self.modulus_rule(s, j) for s, j in zip(parts.slopes, parts.jacobians, strict=True)])
        return each, self.objective_rule(parts.risks, parts.moduli, each, self.data.mu, self.weight)

    def finite_differences(self, theta: Floats, h: float) -> tuple[Floats, Floats]:
        """The same by central differences of step h."""
        moves = h * np.eye(len(theta))
        up, down = self.values(theta + moves), self.values(theta - moves)
        return (up[0] - down[0]).T / (2 * h), (up[2] - down[2]) / (2 * h)

    def autograd(self, theta: Floats) -> tuple[Floats, Floats]:
        """The same by backpropagation through the library's values."""
        at = torch.from_numpy(theta).requires_grad_()
        e = statistics(at.unsqueeze(0), self.data, self.loss, self.classifier)
        (penalty,) = OBJECTIVES["irm-tv-l1"].penalty_values(e, {})
        each = [torch.autograd.grad(m, at, retain_graph=True)[0] for m in modulus(e)[0]]
        (whole,) = torch.autograd.grad((e.mean_risk + self.weight * penalty).sum(), at)
        return torch.stack(each).numpy(), whole.numpy()

    def library_closed_form(self, theta: Floats) -> Floats:
        """The objective's subgradient from `value_and_gradient`, which never sees a graph through |.|: scalar w."""
        at = torch.from_numpy(theta).requires_grad_()
        e = statistics(at.unsqueeze(0), self.data, self.loss, self.classifier)
        assert e.slope is not None
        plain_numbers = Statistics(e.mean_risk.detach(), e.mass, e.risk, e.slope.detach())
        weight, scale = torch.full((1,), self.weight, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        _, by_mean, _, by_slope = OBJECTIVES["irm-tv-l1"].value_and_gradient(
            plain_numbers, {}, [(weight, weight.unsqueeze(1))], scale
        )
        assert by_mean is not None and by_slope is not None
        (whole,) = torch.autograd.grad((e.mean_risk * by_mean).sum() + (e.slope * by_slope).sum(), at)
        return whole.numpy()
