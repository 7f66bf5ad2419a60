"""Stochastic gates on features: one number per feature that training can push to fully open or fully closed.

A gate is a clipped normal variable, so that it is exactly 0 or 1 with positive probability, and the probability that
it is not 0 (its density) is smooth in mu: what a penalty on the number of open gates needs.
"""

import torch
from torch import Tensor


def gate(mu: Tensor, noise: Tensor | None = None, sigma: Tensor | float = 1.0) -> Tensor:
    """clip(mu + 0.5 + sigma noise, 0, 1), noise standard normal; without noise the gate that a fitted model uses."""
    open_by = mu + 0.5 if noise is None else mu + 0.5 + sigma * noise
    return open_by.clamp(0, 1)


def density(mu: Tensor, sigma: Tensor | float) -> Tensor:
    """P(gate > 0) = NormalCDF((mu + 0.5) / sigma)."""
    probability: Tensor = torch.special.ndtr((mu + 0.5) / sigma)
    return probability
