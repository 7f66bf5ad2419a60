"""From logits to the few numbers per environment that every objective is made of.

m_e = mean_i q_ie,   R_e = sum_i q_ie l_i / sum_i q_ie,   S_e = sum_i q_ie s_i / sum_i q_ie.

Rows with weights w of their own count w_i each, in the mean too: w_i q_ie stands for q_ie, sum_i w_i for N.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from irmtv.core.losses import ClosedForm, Loss
from irmtv.core.membership import Codes, Membership, Pooled, RowMembership, Soft, SoftPair, Weighted
from irmtv.core.types import Statistics


class LastLayer(NamedTuple):
    """What a vector classifier multiplies: the inputs of the last layer, and that layer's weights."""

    inputs: Tensor  # (T or R, J, N)
    weights: Tensor  # (R, J)


def slopes_by_component(loss: Loss, f: Tensor, y: Tensor, last: LastLayer | None) -> Tensor:
    """Slopes for a vector classifier, one per component of w: (T, K, *rows_shape, J).

    Several outputs: one w per logit, s_ic = r_ic f_ic. One output: w multiplies the inputs h of the
    last layer elementwise, so s_ij = r_i a_j h_ij with a that layer's weights.
    """
    residual = loss.residual(f, y)
    if last is None:
        return residual * f
    n_sets, n_runs = f.shape[:2]
    rows = f.shape[2:]
    h = last.inputs.transpose(1, 2)  # (T or R, N, J)
    h = h.reshape(n_sets, -1, *rows, h.shape[-1])  # (T, 1 or K, *rows, J)
    a = last.weights.view(n_sets, n_runs, *(1,) * len(rows), -1)
    return residual.unsqueeze(-1) * h * a


def per_sample(
    loss: Loss, f: Tensor, y: Tensor, want_slope: bool, last: LastLayer | None = None, vector: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Loss and (where wanted) slope of every row: (T, K, *rows_shape), slopes of a vector classifier (..., J).

    f is (T, K, *rows_shape) or (T, K, *rows_shape, C); y is (T, 1 or K, *rows_shape), or with C for several
    targets.
    """
    if not want_slope:
        return loss.value(f, y), None
    if vector:
        return loss.value(f, y), slopes_by_component(loss, f, y, last)
    return loss.value_and_slope(f, y)


def summarise(
    value: Tensor, slope: Tensor | None, membership: Membership, uses: Collection[str], halves: bool = False
) -> Statistics:
    """Masses, risks and slopes per environment; only what `uses` ("risk", "slope") names is computed."""
    sums = membership.sums(value) if _needs_environment_sums(membership, uses) else None
    total = value.flatten(2).sum(-1).flatten() if sums is None else sums.sum(-1)  # (R,)
    slope_sums, pair = None, None
    if slope is not None and "slope" in uses:
        slope_sums = membership.sums(slope)
        if halves:
            assert isinstance(membership, (Codes, Pooled, Soft, SoftPair, Weighted)), "halves are for mini-batches"
            even, odd = membership.half(False), membership.half(True)
            pair = (
                divide(even.sums(slope[:, :, 0::2]), even.rows),
                divide(odd.sums(slope[:, :, 1::2]), odd.rows),
            )
    return Statistics(
        mean_risk=total / membership.total,
        mass=membership.mass.to(value.dtype),
        risk=divide(sums, membership.rows) if sums is not None and "risk" in uses else None,
        slope=None if slope_sums is None else divide(slope_sums, membership.rows),
        slope_halves=pair,
    )


class Head:
    """Losses and slopes of the rows of a full batch, and the gradient in the logits, both by hand.

    The same as `per_sample` and autograd for a scalar classifier and a loss in closed form; f is (T, K, *rows_shape) or
    (..., C). On small networks the bookkeeping of a dozen graph nodes over a few numbers costs as much as the rows do.
    Plain tensors in and out: no graph is built.

    A gradient needs no loss, and the logarithm in it costs more than anything else here: where no loss is wanted,
    `value` has the logits in its place, which are finite where the losses are.
    """

    def __init__(self, loss: ClosedForm, f: Tensor, y: Tensor, want_value: bool, want_slope: bool) -> None:
        if want_value or loss.several:
            self.value, residual, kept = loss.forward(f, y)
        else:
            self.value, (residual, kept) = f, loss.derivatives(f, y)
        self.loss, self.saved = loss, (f, residual, kept)
        self.slope: Tensor | None = None  # (T, K, *rows_shape)
        if want_slope:
            self.slope = (residual * f).sum(-1) if loss.several else residual * f

    def pull_back(
        self,
        membership: RowMembership | None,
        share: Tensor,  # (T, 1, *rows_shape) or what broadcasts: of each row in the mean
        mean: Tensor | None,
        risk: Tensor | None = None,
        slope: Tensor | None = None,
    ) -> Tensor | None:
        """The gradient in f, from those in the mean loss (R,), in R_e and in S_e (R, E)."""
        f = self.saved[0]
        grad_loss, grad_slope = (
            None if g is None or membership is None else membership.spread(divide(g, membership.rows), f.shape)
            for g in (risk, slope)
        )
        if mean is not None:
            each = mean.view(*f.shape[:2], *(1,) * (share.ndim - 2)) * share
            grad_loss = each if grad_loss is None else grad_loss + each
        return self.pull_back_rows(grad_loss, grad_slope)

    def pull_back_rows(self, grad_loss: Tensor | None, grad_slope: Tensor | None) -> Tensor | None:
        """The gradient in f, from those in the loss and the slope of every row."""
        if self.loss.several:
            grad_loss = None if grad_loss is None else grad_loss.unsqueeze(-1)
            grad_slope = None if grad_slope is None else grad_slope.unsqueeze(-1)
        return self.loss.pull_back(*self.saved, grad_loss, grad_slope)


def _needs_environment_sums(membership: Membership, uses: Collection[str]) -> bool:
    # padded rows must not enter the mean, others by their weights, those of other processes too: the sums per
    # environment see to it
    return "risk" in uses or isinstance(membership, Pooled) or getattr(membership, "weight", None) is not None


def divide(sums: Tensor, rows: Tensor) -> Tensor:
    """Means from sums: (R, E) or (R, E, J). An environment without rows has mean 0, and passes no gradient on."""
    rows = torch.where(rows > torch.finfo(rows.dtype).tiny, rows, 1)
    return sums / (rows if sums.ndim == rows.ndim else rows.unsqueeze(-1))


def modulus(e: Statistics) -> Tensor:
    """|S_e|: absolute value for a scalar classifier, Euclidean norm for a vector one: (R, E).

    The subgradient at 0 is 0, as the paper chooses (eq. subgradnabR). On a mini-batch with halves,
    sqrt|S_even . S_odd| (the authors' form; biased, as any |.| of a noisy mean is).
    """
    if e.slope_halves is not None:
        product = modulus_squared(e).abs()
        away = product > 0  # the square root has no finite derivative at 0: take 0 there
        return torch.where(away, product, 1).sqrt() * away
    assert e.slope is not None, "the objective must name 'slope' among what it uses"
    return e.slope.abs() if e.slope.ndim == 2 else torch.linalg.vector_norm(e.slope, dim=-1)


def modulus_squared(e: Statistics) -> Tensor:
    """|S_e|^2: (R, E). On a mini-batch with halves S_even . S_odd: unbiased, may be negative."""
    if e.slope_halves is not None:
        product = e.slope_halves[0] * e.slope_halves[1]
        return product if product.ndim == 2 else product.sum(-1)
    assert e.slope is not None, "the objective must name 'slope' among what it uses"
    return e.slope.square() if e.slope.ndim == 2 else e.slope.square().sum(-1)
