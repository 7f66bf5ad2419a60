"""The nearest point of a box whose coordinates sum to a given number."""

from __future__ import annotations

import torch
from torch import Tensor

HALVINGS = 60  # of an interval: below the rounding of float64 for any numbers near 1


@torch.no_grad()
def onto_box_with_sum(values: Tensor, low: float, high: float, total: Tensor) -> Tensor:
    """argmin |p - values| over low <= p <= high, sum p = total, in the last axis.

    The minimiser is clip(values - v, low, high) for one number v, which bisection finds: the sum falls in v.
    """
    least = (values.amin(-1, keepdim=True) - high).clone()
    greatest = values.amax(-1, keepdim=True) - low
    total = torch.as_tensor(total, dtype=values.dtype, device=values.device).expand(values.shape[:-1]).unsqueeze(-1)
    for _ in range(HALVINGS):
        middle = (least + greatest) / 2
        above = (values - middle).clamp(low, high).sum(-1, keepdim=True) > total
        least, greatest = torch.where(above, middle, least), torch.where(above, greatest, middle)
    return (values - (least + greatest) / 2).clamp(low, high)
