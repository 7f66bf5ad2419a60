"""The risks of a linear model in every environment, with their derivatives up to the third, in closed form.

A model is theta (P,), for every output the weights of the columns and then the intercept: P = C (D + 1). With
f_i = theta . x_i, and l', l'' the derivatives of the loss in f,

    R_e = mean_e l_i,   g_e = mean_e l'_i x_i,   H_e = mean_e l''_i x_i x_i',

and `along(v)` is the Hessian of sum_e v_e . g_e, for which the third derivative of the loss is needed. Squared errors
need the rows once: their second moments say everything.

Everything is float64. Means count rows by their weights, where they have any.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from irmtv.core.losses import Binary, Loss, Multiclass, Squared
from irmtv.core.types import Rows

SMOOTH = (Binary, Multiclass, Squared)  # losses whose derivatives are known here
PRODUCTS_KEPT = 1 << 23  # products of two columns that are kept for all rows, at most: 64 MiB


@dataclass(frozen=True)
class Point:
    """K models, and the risks of all environments around them."""

    theta: Tensor  # (K, P)
    risk: Tensor  # (K, E)
    gradient: Tensor  # (K, E, P)
    hessian: Tensor  # (K, E, P, P)
    probability: Tensor | None = None  # (K, C, N) of the classes; of one output (K, 1, N)


class LinearRisks:
    """The rows of one data set, environment by environment."""

    def __init__(
        self, rows: Rows, codes: Tensor, n_environments: int, loss: Loss, n_outputs: int, many: bool = True
    ) -> None:
        """`codes` (N,) are the environments: those of `rows`, or others that were inferred.

        `many` says that many models will be looked at: then products of columns are kept.
        """
        order = torch.argsort(codes, stable=True)
        weight = torch.ones(len(rows)) if rows.weight is None else rows.weight
        weight, codes = weight.double().cpu()[order], codes[order]
        total = torch.zeros(n_environments, dtype=torch.float64).index_add(0, codes, weight)
        x = rows.x.double().cpu().flatten(1)[order]
        self.x = torch.cat([x, torch.ones_like(x[:, :1])], 1)  # (N, D + 1)
        self.y = rows.y.cpu()[order]
        if isinstance(loss, Multiclass):
            self.one_hot = torch.nn.functional.one_hot(self.y, n_outputs).T.double()  # (C, N)
        else:
            self.y = self.y.double()
            self.sign = 2 * self.y - 1  # of binary labels
        self.loss, self.n_outputs, self.n_environments = loss, n_outputs, n_environments
        self.share = weight / torch.where(total > 0, total, 1)[codes]  # (N,), sums to 1 in every environment
        self.mass = total / total.sum()  # (E,)
        ends = torch.bincount(codes, minlength=n_environments).cumsum(0).tolist()
        self.parts = [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]
        self.size = self.x.shape[1]  # D + 1
        self.n_parameters = n_outputs * self.size
        upper = torch.triu_indices(self.size, self.size)
        place = torch.zeros(self.size, self.size, dtype=torch.long)
        place[upper[0], upper[1]] = place[upper[1], upper[0]] = torch.arange(upper.shape[1])
        self.upper, self.place = upper, place.flatten()
        keep = many and len(rows) * upper.shape[1] <= PRODUCTS_KEPT and not isinstance(loss, Squared)
        self.products = self.x[:, upper[0]] * self.x[:, upper[1]] if keep else None  # (N, pairs)
        if isinstance(loss, Squared):
            self._make_moments()

    # ---- squared errors: second moments ------------------------------------------------------------------------

    def _make_moments(self) -> None:
        y = self.y.reshape(len(self.x), -1)  # (N, C)
        weighted = self.x * self.share.unsqueeze(1)
        self.xx = torch.stack([weighted[part].T @ self.x[part] for part in self.parts])  # (E, D + 1, D + 1)
        self.xy = torch.stack([y[part].T @ weighted[part] for part in self.parts])  # (E, C, D + 1)
        self.yy = torch.stack([(self.share[part] @ y[part].square()) for part in self.parts])  # (E, C)

    def _squared(self, theta: Tensor) -> Point:
        """R_e = mean over the C targets of w' A_e w - 2 w' c_e + yy_e."""
        w = theta.view(-1, 1, self.n_outputs, self.size)  # (K, 1, C, D + 1)
        pulled = w @ self.xx  # (K, E, C, D + 1)
        risk = ((pulled - 2 * self.xy) * w).sum((2, 3)) + self.yy.sum(1)
        gradient = (pulled - self.xy) * (2 / self.n_outputs)
        eye = torch.eye(self.n_outputs, dtype=torch.float64) * (2 / self.n_outputs)
        hessian = torch.einsum("cd,eij->ecidj", eye, self.xx).reshape(-1, self.n_parameters, self.n_parameters)
        many = hessian.expand(len(theta), *hessian.shape)
        return Point(theta, risk / self.n_outputs, gradient.flatten(2), many)

    # ---- any loss ----------------------------------------------------------------------------------------------

    def at(self, theta: Tensor) -> Point:
        """Risks, gradients and Hessians at theta (K, P)."""
        if isinstance(self.loss, Squared):
            return self._squared(theta)
        f = self._outputs(theta)
        if self.n_outputs == 1:
            p = torch.sigmoid(f)
            value = -torch.nn.functional.logsigmoid(f * self.sign).squeeze(1)
            residual = p - self.y
            curve = [p * (1 - p)]
        else:
            log_p = torch.log_softmax(f, 1)
            value = -log_p.gather(1, self.y.expand(len(f), 1, -1)).squeeze(1)
            p = log_p.exp()
            residual = p - self.one_hot
            curve = [p[:, c : c + 1] * (float(c == d) - p[:, d : d + 1]) for c, d in self._pairs()]
        value, residual = value * self.share, residual * self.share
        risk = torch.stack([value[:, part].sum(1) for part in self.parts], 1)
        gradient = torch.stack([residual[..., part] @ self.x[part] for part in self.parts], 1)  # (K, E, C, D + 1)
        weights = torch.cat(curve, 1) * self.share  # (K, pairs of outputs, N)
        hessian = torch.stack([self._second_moments(weights, part) for part in self.parts], 1)
        return Point(theta, risk, gradient.flatten(2), hessian, p)

    def spread(self, theta: Tensor) -> Tensor:
        """Second moments of the rows' gradients, mean_e of l'_i x_i (l'_i x_i)', at theta (K, P): (K, E, P, P)."""
        residual = self._residual(self._outputs(theta))
        weights = torch.stack([residual[:, c] * residual[:, d] for c, d in self._pairs()], 1) * self.share
        return torch.stack([self._second_moments(weights, part) for part in self.parts], 1)

    def _outputs(self, theta: Tensor) -> Tensor:
        """(K, C, N)."""
        return (theta.view(-1, self.size) @ self.x.T).view(-1, self.n_outputs, len(self.x))

    def _residual(self, f: Tensor) -> Tensor:
        """l' of the outputs (K, C, N): (K, C, N)."""
        if self.n_outputs == 1:
            return self.loss.residual(f.squeeze(1), self.y.flatten()).unsqueeze(1)
        return self.loss.residual(f.transpose(1, 2), self.y).transpose(1, 2)

    def along(self, point: Point, v: Tensor) -> Tensor:
        """The Hessian of sum_e v_e . g_e at this point, v (K, E, P) held fixed: (K, P, P)."""
        if point.probability is None:
            return v.new_zeros(()).expand(len(v), self.n_parameters, self.n_parameters)
        p = point.probability  # (K, C, N)
        shaped = v.view(len(v), self.n_environments, self.n_outputs, self.size)
        z = torch.cat([shaped[:, e] @ self.x[part].T for e, part in enumerate(self.parts)], 2)  # (K, C, N) v_e . x_i
        if self.n_outputs == 1:
            curve = p * (1 - p) * (1 - 2 * p) * z
        else:
            mean = (p * z).sum(1, keepdim=True)  # (K, 1, N)
            curve = torch.cat([self._third(p, z, mean, c, d) for c, d in self._pairs()], 1)
        return self._second_moments(curve * self.share, slice(0, len(self.x)))

    @staticmethod
    def _third(p: Tensor, z: Tensor, mean: Tensor, c: int, d: int) -> Tensor:
        """d^2 (z . p) / df_c df_d of the softmax p: (K, 1, N)."""
        at_c, at_d = slice(c, c + 1), slice(d, d + 1)
        twice = -p[:, at_c] * p[:, at_d] * (z[:, at_c] + z[:, at_d] - 2 * mean)
        return twice + p[:, at_c] * (z[:, at_c] - mean) if c == d else twice

    def _pairs(self) -> list[tuple[int, int]]:
        return [(c, d) for c in range(self.n_outputs) for d in range(c, self.n_outputs)]

    def _second_moments(self, weights: Tensor, part: slice) -> Tensor:
        """sum_i w_i x_i x_i' over a part of the rows, for pairs of outputs (K, pairs, N): (K, P, P)."""
        n, w = len(weights), weights[..., part]
        if self.products is not None:
            blocks = (w.flatten(0, 1) @ self.products[part])[:, self.place]  # (K pairs, (D + 1)^2)
        else:
            x = self.x[part]
            blocks = torch.stack([(one.unsqueeze(1) * x).T @ x for one in w.flatten(0, 1)])
        blocks = blocks.view(n, -1, self.size, self.size)
        if self.n_outputs == 1:
            return blocks.squeeze(1)
        moments = blocks.new_empty(n, self.n_outputs, self.size, self.n_outputs, self.size)
        for k, (c, d) in enumerate(self._pairs()):
            moments[:, c, :, d] = moments[:, d, :, c] = blocks[:, k]
        return moments.view(n, self.n_parameters, self.n_parameters)


def row_slopes(rows: Rows, theta: Tensor, loss: Loss, n_outputs: int) -> Tensor:
    """Slopes of a linear model (P,) in a vector classifier, row by row: (N, J)."""
    x = rows.x.double().cpu().flatten(1)
    w = theta.view(n_outputs, -1)
    f = x @ w[:, :-1].T + w[:, -1]  # (N, C)
    if n_outputs > 1:
        y = rows.y.cpu()
        return loss.residual(f, y.double() if y.is_floating_point() else y) * f
    return loss.residual(f.squeeze(1), rows.y.double().cpu()).unsqueeze(1) * x * w[0, :-1]
