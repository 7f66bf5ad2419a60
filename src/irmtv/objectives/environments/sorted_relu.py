"""A ReLU layer of one sorted input, without the hidden activations.

On one real input z a network  V relu(w z + b) + c  is piecewise linear: unit h is active on one side of
z = -b_h / w_h. With the rows sorted by z, a unit is active on a prefix or on a suffix of the rows, so

* forward: the output's slope and intercept at a row are sums of each unit's (V w, V b) over the units that are
  active there;
* backward: a unit needs only the sums of g and g z over its active rows.

Rows are cut into blocks of `BLOCK`. Both ways a unit acts on whole blocks, through sums over blocks, and on a part of
the one block in which it switches. The cost is a few passes over (R, N) whatever the width H, instead of several over
(R, H, N); cumulative sums over all rows would cost three times as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

BLOCK = 64


def sorted_relu_layer(z: Tensor, w: Tensor, b: Tensor, v: Tensor, c: Tensor) -> Tensor:
    """V relu(w z + b) + c for z (T, N) ascending, w, b (R, H), v (R, O, H), c (R, O): (R, O, N)."""
    return _SortedReLU.apply(z, w, b, v, c)  # type: ignore[no-any-return, no-untyped-call]


class _SortedReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, w: Tensor, b: Tensor, v: Tensor, c: Tensor) -> Tensor:
        out, kept = layer_and_kept(z, w, b, v, c, in_blocks(z))
        ctx.save_for_backward(*kept)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, *layer_gradient(ctx.saved_tensors, grad)


def layer_and_kept(
    z: Tensor, w: Tensor, b: Tensor, v: Tensor, c: Tensor, rows: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The layer, and what its gradient needs; `rows` are z in blocks."""
    (n_sets, n_rows), (n_runs, n_out, n_units) = z.shape, v.shape
    n_blocks = rows.shape[1]
    # where a unit switches. w = 0 gives -inf (b > 0: on everywhere) or inf (nowhere); + 0.0 for w = -0.0
    w = w + 0.0
    kink = b / -w
    rising = w >= 0  # active after its kink, else before it; never at it, as relu'(0) = 0
    kink = torch.where(rising, kink, torch.nextafter(kink, kink.new_full((), -torch.inf)))
    position = torch.searchsorted(z, kink.view(n_sets, -1), right=True)  # in 0 ... N
    block = (position >> BLOCK.bit_length() - 1).clamp_max_(n_blocks - 1)  # in which a unit switches
    near = rows.flatten(0, 1).index_select(0, _numbers(block, n_blocks))  # the rows of that block
    near = near.view(n_runs, n_units, BLOCK)
    hidden = torch.addcmul(b.unsqueeze(2), w.unsqueeze(2), near).relu_()  # the unit there
    block = block.view(n_runs, n_units)
    # the output's slope and intercept at the first row, of units that fall; then what changes from a block on: rising
    # units begin after their own, falling ones end with the one before. The last place takes what changes after the end
    sign = torch.copysign(w.new_ones(()), w).unsqueeze(1)  # (R, 1, H)
    line = torch.stack([w, b])  # (2, R, H)
    pair = v * line.unsqueeze(2)  # (2, R, O, H)
    signed = pair * sign
    change = pair.new_zeros(2, n_runs, n_out, n_blocks + 1)
    torch.sum(pair - signed, -1, out=change[..., 0]).mul_(0.5)
    change[1, ..., 0] += c
    after = (block + rising).unsqueeze(1)  # (R, 1, H) the place from which on a unit's state is another one
    change.scatter_add_(3, after.expand_as(pair), signed)
    lines = change[..., :-1].cumsum(3).view(2, n_sets, -1, n_blocks, 1)  # (2, T, K O, n_blocks, 1)
    out = torch.addcmul(lines[1], lines[0], rows.unsqueeze(1)).view(-1, BLOCK)  # (R O n_blocks, BLOCK)
    places = _numbers(block.unsqueeze(1).expand(-1, n_out, -1).flatten(0, 1), n_blocks)  # of a unit's block, by output
    out.index_add_(0, places, (v.unsqueeze(3) * hidden.unsqueeze(1)).view(-1, BLOCK))
    kept = (rows, line, v, near.unsqueeze(1), hidden.unsqueeze(1), rising.unsqueeze(1), after, places)
    return out.view(n_runs, n_out, -1)[..., :n_rows], kept


def layer_gradient(kept: Sequence[Tensor], grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """In w, b, v and c, from that in the layer's output (R, O, N)."""
    rows, line, v, near, hidden, rising, after, places = kept
    (n_sets, n_blocks, _), (n_runs, n_out, n_units) = rows.shape, v.shape
    each = in_blocks(grad, 0.0)  # (R, O, n_blocks, BLOCK), 0 after the last row
    by_z = each.view(n_sets, -1, n_blocks, BLOCK) * rows.unsqueeze(1)
    until = each.new_zeros(2, n_runs, n_out, n_blocks + 1)  # place i: sums over the blocks before block i
    torch.cumsum(by_z.sum(3).view(n_runs, n_out, n_blocks), 2, out=until[0, ..., 1:])
    torch.cumsum(each.sum(3), 2, out=until[1, ..., 1:])
    total = until[..., -1:]  # (2, R, O, 1)
    before = until.gather(3, after.expand(2, n_runs, n_out, n_units))
    active = torch.where(rising, total - before, before)  # (2, R, O, H) over a unit's blocks, then its own one
    part = each.view(-1, BLOCK).index_select(0, places).view(n_runs, n_out, n_units, BLOCK)
    part = torch.ops.aten.threshold_backward(part, hidden, 0)  # 0 where the unit is off
    active[1] += part.sum(3)
    active[0] += part.mul_(near).sum(3)
    by_line = (v * active).sum(2)
    return by_line[0], by_line[1], (active * line.unsqueeze(2)).sum(0), total[1, ..., 0]


def _numbers(block: Tensor, n_blocks: int) -> Tensor:
    """Blocks (L, M) by their numbers among those of all L rows of blocks: (L M,)."""
    first = torch.arange(0, len(block) * n_blocks, n_blocks, device=block.device)
    return (block + first.unsqueeze(1)).flatten()


def in_blocks(rows: Tensor, fill: float | None = None) -> Tensor:
    """(..., N) -> (..., n_blocks, BLOCK); places after the last row have `fill`, or the last row again."""
    missing = -rows.shape[-1] % BLOCK
    if missing:
        more = rows[..., -1:].expand(*rows.shape[:-1], missing) if fill is None else None
        rows = functional.pad(rows, (0, missing), value=fill or 0.0) if more is None else torch.cat([rows, more], -1)
    return rows.reshape(*rows.shape[:-1], -1, BLOCK)
