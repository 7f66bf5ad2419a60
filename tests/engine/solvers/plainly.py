"""The objective of linear models, written plainly for torch to differentiate: nothing is shared with the solver."""

from __future__ import annotations

import numpy as np
import torch
from torch.autograd.functional import hessian

from engine.problems import losses

LOSS = {"binary": "binary", "multiclass": "multiclass"}  # else squared


def mu_of(mass, measure):
    """What environments count: a word, or weights."""
    if measure == "empirical":
        return mass
    present = (mass > 0).double()
    given = present if measure == "uniform" else present * torch.tensor(measure, dtype=torch.float64)
    return given / given.sum()


class Plain:
    """risk + l2 |theta|^2 + sum of weight x penalty of one data set, at theta (P,): outputs, each columns + intercept.

    `penalties` are (kind, weight) with the kinds "l1", "l2" (of slopes) and "variance" (of risks); `eps` smooths l1.
    """

    def __init__(
        self, rows, kind, penalties=(), *, vector=False, l2=0.0, eps=0.0, measure="empirical", counts=None, n_env=None
    ):
        self.x, self.loss, self.vector = rows.x.double(), LOSS.get(kind, "squared"), vector
        self.y = rows.y.double() if rows.y.is_floating_point() else rows.y
        weight = torch.ones(len(rows), dtype=torch.float64) if rows.weight is None else rows.weight.double()
        codes = torch.zeros(len(rows), dtype=torch.long) if rows.environment is None else rows.environment
        n_env = n_env or max(1, len(rows.names))
        q = torch.nn.functional.one_hot(codes, n_env).double() * weight.unsqueeze(1)  # (N, E)
        self.mass = q.sum(0) / q.sum()
        self.q = q / torch.where(q.sum(0) > 0, q.sum(0), 1)
        self.mu = mu_of(self.mass, measure)  # of the risk
        self.counts = self.mu if counts is None else counts  # of the penalties
        self.penalties, self.l2, self.eps = penalties, l2, eps

    def each(self, theta, w):
        """The loss of every row, where the classifier is w: (N,)."""
        d = self.x.shape[1]
        layer = theta.view(-1, d + 1)
        one = len(layer) == 1
        x = self.x * w if self.vector and one else self.x
        f = x @ layer[:, :d].T + layer[:, d]
        f = f if self.vector and one else f * w
        return losses(self.loss, f.squeeze(1) if one else f, self.y)

    def classifier(self, theta):
        n, d = len(theta) // (self.x.shape[1] + 1), self.x.shape[1]
        size = (d if n == 1 else n,) if self.vector else ()
        return torch.ones(size, dtype=torch.float64)

    def risks(self, theta):
        return self.q.T @ self.each(theta, self.classifier(theta))  # (E,)

    def slopes(self, theta):
        """(E, J)"""
        w = self.classifier(theta).requires_grad_()
        with torch.enable_grad():
            risks = self.q.T @ self.each(theta, w)
            rows = [torch.autograd.grad(r, w, create_graph=True)[0].reshape(-1) for r in risks]
        return torch.stack(rows)

    def penalty(self, kind, theta):
        if kind == "variance":
            risks = self.risks(theta)
            return self.counts @ (risks - self.counts @ risks).square()
        squares = self.slopes(theta).square().sum(1)
        if kind == "l2":
            return self.counts @ squares
        return (self.counts @ (squares + self.eps**2).sqrt()).square()

    def __call__(self, theta):
        total = self.mu @ self.risks(theta) + self.l2 * theta.square().sum()
        for kind, weight in self.penalties:
            total = total + weight * self.penalty(kind, theta)
        return total

    def value(self, theta):
        return self(theta).item()

    def gradient(self, theta):
        theta = theta.detach().clone().requires_grad_()
        return torch.autograd.grad(self(theta), theta)[0]

    def hessian(self, theta):
        return hessian(self, theta)

    # for scipy

    def value_and_gradient(self, theta):
        theta = torch.from_numpy(np.array(theta)).requires_grad_()
        value = self(theta)
        return value.item(), torch.autograd.grad(value, theta)[0].numpy()

    def finite_differences(self, theta, step=1e-5):
        """The gradient by central differences."""
        moves = step * torch.eye(len(theta), dtype=torch.float64)
        return torch.stack([(self(theta + m) - self(theta - m)) / (2 * step) for m in moves]).detach()
