"""The nearest point of a box whose coordinates sum to a given number."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def onto_box_with_sum(values: Tensor, low: float, high: float, total: Tensor) -> Tensor:
    """argmin |p - values| over low <= p <= high, sum p = total, in the last axis.

    The minimiser is clip(values - v, low, high) for one number v. Its sum falls in v on straight pieces: coordinate i
    leaves the upper bound at v = values_i - high and reaches the lower one at v = values_i - low. Sorting these
    points finds the piece on which the sum is `total`, and v on it. A total out of reach gives the nearest bound.
    """
    n = values.shape[-1]
    total = torch.as_tensor(total, dtype=values.dtype, device=values.device).expand(values.shape[:-1]).unsqueeze(-1)
    points, order = torch.cat([values - high, values - low], -1).sort(-1)  # (..., 2n)
    falling = torch.where(order < n, 1, -1).cumsum(-1)  # coordinates strictly inside the box after each point
    fallen = torch.zeros_like(points)
    fallen[..., 1:] = (falling[..., :-1] * points.diff(dim=-1)).cumsum(-1)
    sums = n * high - fallen  # at each point
    piece = ((sums > total).sum(-1, keepdim=True) - 1).clamp_min(0)
    v = points.gather(-1, piece) + (sums.gather(-1, piece) - total) / falling.gather(-1, piece).clamp_min(1)
    return (values - v).clamp(low, high)
