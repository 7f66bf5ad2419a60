"""Are the means of several environments equal, and if not, how far apart are they beyond noise?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy import stats
from torch import Tensor


def equal_means(mean: Tensor, cov: Tensor) -> Tensor:
    """p-value of "all environments have the same mean", for every candidate: (C,).

    mean is (C, E), cov the squared standard errors (C, E) or covariances (C, E, E). The generalised least-squares
    test, (m - m0)' cov^-1 (m - m0) at the best common value m0: chi-square with one degree of freedom less than
    environments. Environments without rows (NaN) drop out; with fewer than two left, or where soft ones coincide, so
    that nothing was told apart, p is NaN.
    """
    return _each(mean, cov, common=True)


def zero_means(mean: Tensor, cov: Tensor) -> Tensor:
    """p-value of "every environment's mean is zero": chi-square with as many degrees of freedom as environments."""
    return _each(mean, cov, common=False)


def _each(mean: Tensor, cov: Tensor, common: bool) -> Tensor:
    if mean.ndim == 3:  # a vector of slopes: each component is tested, the smallest p counts (Bonferroni)
        parts = torch.stack([_each(mean[..., j], cov[..., j], common) for j in range(mean.shape[-1])])
        known = parts.isfinite()  # a narrower network has fewer components
        p = (torch.where(known, parts, 1.0).amin(0) * known.sum(0)).clamp_max(1)
        return torch.where(known.any(0), p, torch.nan)
    m, v = mean.double(), cov.double()
    there = m.isfinite() & (v if v.ndim == 2 else v.diagonal(dim1=-2, dim2=-1)).isfinite()
    one, value = there.double(), torch.where(there, m, 0.0)
    weighted, rank = _weights(value, v, there)
    if common:
        best = (one * weighted(value)).sum(-1) / (one * weighted(one)).sum(-1).clamp_min(1e-300)
        value = torch.where(there, m - best.unsqueeze(-1), 0.0)
    statistic = (value * weighted(value)).sum(-1)
    freedom = rank - int(common)
    p = torch.as_tensor(stats.chi2.sf(statistic.clamp_min(0).numpy(), np.maximum(freedom.numpy(), 1)))
    return torch.where(freedom > 0, p, torch.nan)


def _weights(value: Tensor, cov: Tensor, there: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """v -> cov^-1 v for (C, E), absent environments left out; and how many independent ones there are: (C,)."""
    # a variance of 0 (a constant model) must not divide, and means in float32 are not sure beyond 1e-6 of their size
    floor = 1e-12 * value.square().amax(-1, keepdim=True) + 1e-300
    if cov.ndim == 2:
        inverse = torch.where(there, 1 / (cov + floor), 0.0)
        return lambda v: inverse * v, there.sum(-1)
    eye = torch.eye(value.shape[-1], dtype=torch.float64)
    both = there.unsqueeze(-1) & there.unsqueeze(-2)
    matrix = torch.where(both, cov, eye) + floor.unsqueeze(-1) * eye
    unknown = ~matrix.isfinite().all(-1).all(-1)
    matrix = torch.where(unknown[:, None, None], eye, matrix)
    size = matrix.diagonal(dim1=-2, dim2=-1).sqrt()  # (C, E)
    sizes = size.unsqueeze(-1) * size.unsqueeze(-2)
    # soft environments may coincide: their difference, which rounding alone makes, counts for nothing
    pseudo = torch.linalg.pinv(matrix / sizes, rtol=1e-6, hermitian=True) / sizes * both
    pseudo = torch.where(unknown[:, None, None], torch.nan, pseudo)
    rank = torch.linalg.matrix_rank(matrix / sizes, rtol=1e-6, hermitian=True) - (~there).sum(-1)
    return lambda v: torch.einsum("cef,cf->ce", pseudo, v), rank


def spread(mean: Tensor, cov: Tensor, slack: float, around_zero: bool = False) -> Tensor:
    """How far apart the environments' means typically lie, less what noise explains: (C,).

    For two environments sqrt(D^2 - slack^2 Var D), 0 where D is within `slack` standard errors; for more, the same of
    the average pair: sqrt(2 (s^2 - slack^2 E noise)), s^2 the variance of the means. Components of a vector add up.
    `around_zero`: how far from zero instead, each environment against itself.
    """
    if mean.ndim == 3:
        parts = [spread(mean[..., j], cov[..., j], slack, around_zero).square() for j in range(mean.shape[-1])]
        return torch.stack(parts).nan_to_num(0).sum(0).sqrt()
    m, v = mean.double(), cov.double()
    variance = v if v.ndim == 2 else torch.diagonal(v, dim1=-2, dim2=-1)
    there = m.isfinite() & variance.isfinite()
    n = there.sum(-1).double()
    own = torch.where(there, variance, 0.0).sum(-1)
    value = torch.where(there, m, 0.0)
    if around_zero:
        off = (value.square().sum(-1) - slack**2 * own) / n.clamp_min(1)
        return torch.where(n > 0, off.clamp_min(0).sqrt(), torch.nan)
    both = there.unsqueeze(-1) & there.unsqueeze(-2)
    shared = own if v.ndim == 2 else torch.where(both, v, 0.0).sum((-1, -2))
    centred = torch.where(there, m - (value.sum(-1) / n.clamp_min(1)).unsqueeze(-1), 0.0)
    noise = own - shared / n.clamp_min(1)
    off = 2 * (centred.square().sum(-1) - slack**2 * noise) / (n - 1).clamp_min(1)
    return torch.where(n > 1, off.clamp_min(0).sqrt(), torch.nan)
