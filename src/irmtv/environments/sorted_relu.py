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
        (n_sets, n_rows), n_runs, n_out = z.shape, len(w), v.shape[1]
        # where a unit switches; a unit with w = 0 is on everywhere (b > 0) or nowhere
        kink = torch.where(w == 0, torch.where(b > 0, -torch.inf, torch.inf), -b / torch.where(w == 0, 1, w))
        position = torch.searchsorted(z, kink.view(n_sets, -1).contiguous(), right=True).view(n_runs, 1, -1)
        rising = (w >= 0).unsqueeze(1)  # (R, 1, H): active after its kink, else before it
        pair = torch.stack([v * w.unsqueeze(1), v * b.unsqueeze(1)], 1)  # (R, 2, O, H) slope and intercept
        # the output's slope and intercept before the first row, then what changes at each kink
        change = pair.new_zeros(n_runs, 2, n_out, n_rows + 1)
        change[..., 0] = torch.where(rising.unsqueeze(1), 0, pair).sum(-1)
        change[:, 1, :, 0] += c
        signed = torch.where(rising.unsqueeze(1), pair, -pair)
        change.scatter_add_(3, position.unsqueeze(1).expand_as(signed), signed)
        line = change[..., :-1].cumsum(3)  # (R, 2, O, N)
        zz = z.repeat_interleave(n_runs // n_sets, 0).unsqueeze(1) if n_sets > 1 else z.unsqueeze(1)  # (R|1, 1, N)
        ctx.save_for_backward(zz, w, b, v, position, rising)
        return torch.addcmul(line[:, 1], line[:, 0], zz)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        zz, w, b, v, position, rising = ctx.saved_tensors
        both = torch.stack([grad * zz, grad], 1)  # (R, 2, O, N)
        before = torch.nn.functional.pad(both.cumsum(3, dtype=torch.float64), (1, 0))  # sums of the rows before
        total = before[..., -1:]
        at = before.gather(3, position.unsqueeze(1).expand(*before.shape[:3], -1))  # (R, 2, O, H)
        active = torch.where(rising.unsqueeze(1), total - at, at).to(grad.dtype)
        gz, g = active[:, 0], active[:, 1]  # (R, O, H): sums of g z and of g over each unit's active rows
        grad_v = gz * w.unsqueeze(1) + g * b.unsqueeze(1)
        return None, (v * gz).sum(1), (v * g).sum(1), grad_v, total[:, 1, :, 0].to(grad.dtype)
