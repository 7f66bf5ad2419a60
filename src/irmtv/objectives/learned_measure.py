"""A measure on the environments that is learned: exponentiated gradient ascent, within a distance of the shares.

    mu_e <- mu_e exp(rate * g_e) / sum_f mu_f exp(rate * g_f),      g_e = d objective / d mu_e

then, where KL(mu || m) exceeds the distance, the nearest measure (in KL) that does not: mu^a m^(1-a), normalised.
With no bound and no penalty this is groupDRO's update.
"""

from __future__ import annotations

import torch
from torch import Tensor

HALVINGS = 25  # of [0, 1]


def exponentiated_ascent(mu: Tensor, gradient: Tensor, rate: Tensor) -> Tensor:
    """One step on the simplex: (R, E), (R, E), (R, 1). In logarithms, so that no gradient overflows."""
    return torch.softmax(mu.clamp_min(torch.finfo(mu.dtype).tiny).log() + rate * gradient, -1)


def divergence(mu: Tensor, centre: Tensor) -> Tensor:
    """KL(mu || centre): (R, 1), over the environments that the centre has."""
    tiny = torch.finfo(mu.dtype).tiny
    terms = torch.special.xlogy(mu, mu / centre.clamp_min(tiny))
    return torch.where(centre > 0, terms, 0).sum(-1, keepdim=True)


def within_distance(mu: Tensor, centre: Tensor, distance: Tensor) -> Tensor:
    """The measure nearest to mu in KL(. || mu) among those with KL(. || centre) <= distance, (R, 1).

    Lagrange: log p = (a log mu + (1 - a) log centre) + const. The divergence rises with a: bisection.
    """
    tiny = torch.finfo(mu.dtype).tiny
    log_mu, log_centre = mu.clamp_min(tiny).log(), centre.clamp_min(tiny).log()
    least, greatest = torch.zeros_like(distance), torch.ones_like(distance)
    for _ in range(HALVINGS):
        middle = (least + greatest) / 2
        trial = torch.softmax(middle * log_mu + (1 - middle) * log_centre, -1)
        outside = divergence(trial, centre) > distance
        least, greatest = torch.where(outside, least, middle), torch.where(outside, middle, greatest)
    nearest = torch.softmax(least * log_mu + (1 - least) * log_centre, -1)
    return torch.where(divergence(mu, centre) > distance, nearest, mu)
