"""A measure on the environments that is learned: exponentiated gradient ascent, within a distance of the shares.

    mu_e <- mu_e exp(rate * g_e) / sum_f mu_f exp(rate * g_f),      g_e = d objective / d mu_e

then, where KL(mu || m) exceeds the distance, the nearest measure (in KL) that does not: mu^a m^(1-a), normalised.
With no bound and no penalty this is groupDRO's update.
"""

from __future__ import annotations

import torch
from torch import Tensor

ITERATIONS = 16  # Newton's; most measures need three to six, one that jumped to a corner up to fifteen


def exponentiated_ascent(mu: Tensor, gradient: Tensor, rate: Tensor) -> Tensor:
    """One step on the simplex: (R, E), (R, E), (R, 1). In logarithms, so that no gradient overflows."""
    return torch.softmax(mu.clamp_min(torch.finfo(mu.dtype).tiny).log() + rate * gradient, -1)


def divergence(mu: Tensor, centre: Tensor) -> Tensor:
    """KL(mu || centre): (R, 1), over the environments that the centre has.

    As sum_e m_e (r log r - r + 1), r = mu_e / m_e: no term is below 0, so that nothing cancels where the two are close.
    """
    there = torch.where(centre > 0, centre, 1)
    excess = (mu - there) / there
    logarithm = torch.log1p(excess.clamp_min(torch.finfo(mu.dtype).eps - 1))  # r log r = 0 at 0
    terms = there * (mu / there * logarithm - excess)
    return torch.where(centre > 0, terms, 0).sum(-1, keepdim=True)


def within_distance(mu: Tensor, centre: Tensor, distance: Tensor) -> Tensor:
    """The measure nearest to mu in KL(. || mu) among those with KL(. || centre) <= distance, (R, 1).

    Lagrange: p = mu^a centre^(1-a) / const. The root of the divergence is nearly linear in a, from 0 at a = 0:
    Newton's steps on it, and halvings where one of them would leave what is known to hold the solution.
    """
    full = divergence(mu, centre)
    outside = full > distance
    on_cpu = mu.device.type == "cpu"
    if on_cpu and not bool(outside.any()):
        return mu
    tiny = torch.finfo(mu.dtype).tiny
    log_centre = centre.clamp_min(tiny).log()
    tilt = mu.clamp_min(tiny).log() - log_centre
    goal = distance.clamp_min(0).sqrt()
    tolerance = torch.finfo(mu.dtype).eps ** 0.8  # of the root: 3e-13 in float64, 3e-6 in float32
    least, greatest = torch.zeros_like(distance), torch.ones_like(distance)
    power = torch.where(outside, goal / full.clamp_min(tiny).sqrt(), torch.ones_like(goal))  # inf: no bound
    nearest, done = mu, ~outside
    for _ in range(ITERATIONS):
        trial = torch.softmax(torch.addcmul(log_centre, power, tilt), -1)
        mean = (trial * tilt).sum(-1, keepdim=True)
        spread = (trial * (tilt - mean).square()).sum(-1, keepdim=True)
        root = divergence(trial, centre).clamp_min(0).sqrt()
        too_far = root > goal
        # what is found stays: the number of steps that others need must not change it
        nearest = torch.where(done, nearest, trial)
        done = done | ((root - goal).abs() <= tolerance * goal) | (root == 0)
        if on_cpu and bool(done.all()):
            return nearest
        greatest, least = torch.where(too_far, power, greatest), torch.where(too_far, least, power)
        step = 2 * root * (root - goal) / (power * spread).clamp_min(tiny)  # d root / d a = a spread / (2 root)
        newton = power - step
        inside = (newton > least) & (newton < greatest)
        power = torch.where(inside, newton, (least + greatest) / 2)
    return torch.where(done, nearest, torch.softmax(log_centre + least * tilt, -1))  # not found: at least inside
