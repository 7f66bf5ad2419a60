"""A ReLU layer of one sorted input, without the hidden activations.

On one real input z a network  V relu(w z + b) + c  is piecewise linear: unit h is active on one side of
z = -b_h / w_h. With the rows sorted by z and cut into blocks of `BLOCK`, a unit switches in one block; it is on
everywhere in those on one side of it and off in those on the other side, so

* forward: the output's slope and intercept in a block are sums of (V w, V b) over the units that are on there;
* backward: a unit needs only the sums of g and g z over the blocks where it is on,

and in the one block in which it switches it is computed row by row. The cost is a few passes over (R, N) whatever the
width H, instead of several over (R, H, N).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

BLOCK = 64


@dataclass(frozen=True)
class SortedBlocks:
    """z (T, N), ascending, in blocks, and what every layer asks of them."""

    rows: Tensor  # (T, B, BLOCK)
    starts: Tensor  # (T, B) the first row of each block
    places: Tensor  # (B,) 0, 1, ... as z's numbers are
    n_rows: int

    @classmethod
    def of(cls, z: Tensor) -> SortedBlocks:
        rows = in_blocks(z)
        places = torch.arange(rows.shape[1], device=z.device, dtype=z.dtype)
        return cls(rows, rows[..., 0].contiguous(), places, z.shape[1])


def sorted_relu_layer(z: Tensor, w: Tensor, b: Tensor, v: Tensor, c: Tensor) -> Tensor:
    """V relu(w z + b) + c for z (T, N) ascending, w, b (R, H), v (R, O, H), c (R, O): (R, O, N)."""
    return _SortedReLU.apply(z, w, b, v, c)  # type: ignore[no-any-return, no-untyped-call]


class _SortedReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, w: Tensor, b: Tensor, v: Tensor, c: Tensor) -> Tensor:
        out, kept = layer_and_kept(SortedBlocks.of(z), w, b, v, c)
        ctx.save_for_backward(*kept)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, *layer_gradient(ctx.saved_tensors, grad)


def layer_and_kept(z: SortedBlocks, w: Tensor, b: Tensor, v: Tensor, c: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The layer, and what its gradient needs."""
    (n_sets, n_blocks, _), (n_runs, n_out, n_units) = z.rows.shape, v.shape
    # where a unit switches. w = 0 gives -inf (b > 0: on everywhere) or inf (nowhere); + 0.0 for w = -0.0
    w = w + 0.0
    kink = b / -w
    rising = w >= 0  # on after its kink, else before it; never at it, as relu'(0) = 0
    kink = torch.where(rising, kink, torch.nextafter(kink, kink.new_full((), -torch.inf)))
    block = torch.searchsorted(z.starts, kink.view(n_sets, -1), right=True).sub_(1).clamp_min_(0)  # in which it does
    near = z.rows.flatten(0, 1).index_select(0, _numbers(block, n_blocks))  # the rows of that block
    near = near.view(n_runs, n_units, BLOCK)
    hidden = torch.addcmul(b.unsqueeze(2), w.unsqueeze(2), near).relu_()  # the unit there
    block = block.view(n_runs, n_units)
    side = torch.copysign(w.new_ones(()), w).unsqueeze(2)  # (R, H, 1)
    on = (z.places - block.unsqueeze(2)).mul_(side).clamp_(0, 1)  # (R, H, B) 1 where a unit is on in a whole block
    line = torch.stack([w, b], 1)  # (R, 2, H)
    pair = (v.unsqueeze(1) * line.unsqueeze(2)).view(n_runs, -1, n_units)  # (R, 2 O, H)
    lines = torch.bmm(pair, on).view(n_sets, -1, 2, n_out, n_blocks, 1)
    slope, intercept = lines.unbind(2)  # (T, K, O, B, 1)
    intercept += c.view(n_sets, -1, n_out, 1, 1)
    out = torch.addcmul(intercept, slope, z.rows[:, None, None]).view(-1, BLOCK)  # (R O B, BLOCK)
    places = _numbers(block.unsqueeze(1).expand(-1, n_out, -1).flatten(0, 1), n_blocks)  # of a unit's block, by output
    out.index_add_(0, places, (v.unsqueeze(3) * hidden.unsqueeze(1)).view(-1, BLOCK))
    return out.view(n_runs, n_out, -1)[..., : z.n_rows], (z.rows, line, v, near, hidden, on, places)


def layer_gradient(kept: Sequence[Tensor], grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """In w, b, v and c, from that in the layer's output (R, O, N)."""
    rows, line, v, near, hidden, on, places = kept
    (n_sets, n_blocks, _), (n_runs, n_out, n_units) = rows.shape, v.shape
    each = in_blocks(grad, 0.0)  # (R, O, B, BLOCK), 0 after the last row
    by_z = each.view(n_sets, -1, n_blocks, BLOCK) * rows.unsqueeze(1)
    sums = each.new_empty(n_runs, 2, n_out, n_blocks)  # of g z and g over the rows of a block
    torch.sum(by_z.view(each.shape), 3, out=sums[:, 0])
    torch.sum(each, 3, out=sums[:, 1])
    # (R, 2, O, H): over the rows where a unit is on, in whole blocks and then in its own
    active = torch.bmm(sums.view(n_runs, -1, n_blocks), on.transpose(1, 2)).view(n_runs, 2, n_out, n_units)
    part = each.view(-1, BLOCK).index_select(0, places).view(n_runs, n_out, n_units, BLOCK)
    part = torch.ops.aten.threshold_backward(part, hidden.unsqueeze(1), 0)  # 0 where the unit is off
    active[:, 1] += part.sum(3)
    active[:, 0] += part.mul_(near.unsqueeze(1)).sum(3)
    by_w, by_b = (v.unsqueeze(1) * active).sum(2).unbind(1)
    return by_w, by_b, (active * line.unsqueeze(2)).sum(1), sums[:, 1].sum(2)


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
