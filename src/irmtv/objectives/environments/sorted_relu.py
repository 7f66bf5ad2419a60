"""A ReLU layer of one sorted input, without the hidden activations.

On one real input z a network  V relu(w z + b) + c  is piecewise linear: unit h is active on one side of
z = -b_h / w_h. With the rows sorted by z, a unit is active on a prefix or on a suffix of the rows, so

* forward: add each unit's (V w, V b) where it switches and take cumulative sums: slope and intercept of
  the output at every row;
* backward: a unit needs only the sums of g and g z over its active rows, differences of cumulative sums.

The cost is a few passes over (R, N) whatever the width H, instead of several over (R, H, N).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def sorted_relu_layer(z: Tensor, w: Tensor, b: Tensor, v: Tensor, c: Tensor) -> Tensor:
    """V relu(w z + b) + c for z (T, N) ascending, w, b (R, H), v (R, O, H), c (R, O): (R, O, N)."""
    return _SortedReLU.apply(z, w, b, v, c)  # type: ignore[no-any-return, no-untyped-call]


class _SortedReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, w: Tensor, b: Tensor, v: Tensor, c: Tensor) -> Tensor:
        (n_sets, n_rows), (n_runs, n_out, _) = z.shape, v.shape
        # where a unit switches. w = 0 gives -inf (b > 0: on everywhere) or inf (nowhere); + 0.0 for w = -0.0
        kink = b / -(w + 0.0)
        rising = w >= 0  # active after its kink, else before it; never at it, as relu'(0) = 0
        kink = torch.where(rising, kink, torch.nextafter(kink, kink.new_full((), -torch.inf)))
        position = torch.searchsorted(z, kink.view(n_sets, -1), right=True).view(n_runs, 1, -1)  # (R, 1, H) in 0 ... N
        rising = rising.unsqueeze(1)  # (R, 1, H)
        sign = rising.to(w.dtype).mul_(2).sub_(1)
        pair = torch.stack([v * w.unsqueeze(1), v * b.unsqueeze(1)])  # (2, R, O, H) slope and intercept
        # the output's slope and intercept at the first row, then what changes at each kink; the last place
        # takes what changes after the last row
        change = pair.new_zeros(2, n_runs, n_out, n_rows + 1)
        change[..., 0] = (pair * (sign < 0)).sum(-1)
        change[1, ..., 0] += c
        change.scatter_add_(3, position.expand_as(pair), pair * sign)
        line = change[..., :-1].cumsum(3).view(2, n_sets, -1, n_rows)  # (2, T, K O, N)
        ctx.save_for_backward(z, w, b, v, position, rising)
        return torch.addcmul(line[1], line[0], z.unsqueeze(1)).view(n_runs, n_out, n_rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z, w, b, v, position, rising = ctx.saved_tensors
        n_sets, n_rows = z.shape
        shaped = grad.reshape(n_sets, -1, n_rows)
        until = grad.new_zeros(2, *grad.shape[:2], n_rows + 1)  # place i: sums over the rows before row i
        torch.cumsum(shaped * z.unsqueeze(1), 2, out=until[0].view(n_sets, -1, n_rows + 1)[..., 1:])
        torch.cumsum(shaped, 2, out=until[1].view(n_sets, -1, n_rows + 1)[..., 1:])
        total = until[..., -1:]  # (2, R, O, 1)
        before = until.gather(3, position.expand(*until.shape[:3], -1))  # (2, R, O, H)
        gz, g = torch.where(rising, total - before, before)  # (R, O, H) sums over each unit's active rows
        grad_v = gz * w.unsqueeze(1) + g * b.unsqueeze(1)
        return None, (v * gz).sum(1), (v * g).sum(1), grad_v, total[1, ..., 0]
