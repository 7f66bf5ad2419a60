"""Random numbers by counting: a hash of (seed, stream, step, place), the same alone, in a batch, on CPU and GPU.

Methods with noise at every step need numbers that a recorded step on a GPU can make anew at each replay, and that
do not depend on who trains beside a run. A stateful generator gives neither.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

MASK = 0xFFFFFFFF  # arithmetic on 32 bits inside int64: a product keeps its low bits when it overflows


def _mix(x: Tensor) -> Tensor:
    """A 32-bit integer hash (xor-shift-multiply) that changes half of the bits for each bit of x."""
    x = (x ^ (x >> 16)) * 0x7FEB352D & MASK
    x = (x ^ (x >> 15)) * 0x846CA68B & MASK
    return x ^ (x >> 16)


class Noise:
    """One stream per run; `stream` sets apart the players of one run."""

    def __init__(self, seeds: Sequence[int], device: torch.device, stream: int = 0) -> None:
        keys = torch.tensor([[s & MASK, s >> 32 & MASK] for s in seeds], dtype=torch.int64, device=device)
        low_and_high = _mix(_mix(keys[:, 0] + 0x9E3779B9 & MASK) + keys[:, 1] & MASK)
        self.key = _mix(low_and_high + stream & MASK)  # (R,)

    def uniform(self, step: int | Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """(R, *shape) in (0, 1), never 0 or 1."""
        place = torch.arange(math.prod(shape), device=self.key.device)
        at_step = _mix(self.key + _mix(torch.as_tensor(step, device=self.key.device) & MASK) & MASK)  # (R,)
        bits = _mix(_mix(place + 0x85EBCA6B & MASK) + at_step.unsqueeze(1) & MASK)  # (R, n)
        # 23 bits and the half: what float32 can hold apart, from 0 and 1 too
        return (((bits >> 9).to(dtype) + 0.5) / 2**23).view(len(self.key), *shape)

    def normal(self, step: int | Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Standard normal, (R, *shape)."""
        normal: Tensor = torch.special.ndtri(self.uniform(step, shape, torch.float64))
        return normal.to(dtype)

    def logistic(self, step: int | Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Standard logistic, the difference of two Gumbel variables: (R, *shape)."""
        return torch.logit(self.uniform(step, shape, torch.float64)).to(dtype)
