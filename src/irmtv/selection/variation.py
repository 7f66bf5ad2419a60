"""Is the slope of a linear model's risk, column by column, the same in every environment?

In a vector classifier, w multiplying the columns, an environment's slope is a vector S_e. A model that is invariant has
the same one everywhere (zero, but for a ridge). Its variation over the environments,

    T = sum_e mu_e |S_e - sum_f mu_f S_f|^2,      mu_e the share of the rows,

is compared with what noise alone would give. That is a sum of chi-squares, weighted by the eigenvalues of its
covariance, and is taken for one chi-square of the same mean and variance (Satterthwaite). Columns are not divided by
their own standard errors: a spurious column whose weight is next to nothing varies by next to nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from scipy import special, stats
from torch import Tensor

POWER = 0.8


class Variation(NamedTuple):
    """Of C candidates."""

    beyond_noise: Tensor  # (C,) sqrt(T - its mean under noise alone), 0 where it is below: in units of the risk
    p: Tensor  # (C,) of "nothing but noise"
    detectable: Tensor  # (C,) the variation that the test at `level` would reject four times in five


def slope_moments(slopes: Tensor, codes: Tensor, n_environments: int, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Means (..., E, J) of the rows' slopes (..., N, J) in their environments (N,), and their covariances (..., J, J).

    NaN where an environment has fewer than two rows.
    """
    means, covariances = [], []
    w = torch.ones(slopes.shape[-2], dtype=torch.float64) if weight is None else weight.double()
    for e in range(n_environments):
        mine = ((codes == e) & (w > 0)).nonzero().squeeze(1)
        if len(mine) < 2:
            nothing = slopes[..., 0, :].new_full((), torch.nan).expand_as(slopes[..., 0, :])
            means.append(nothing)
            covariances.append(nothing.unsqueeze(-1) * nothing.unsqueeze(-2))
            continue
        share = (w[mine] / w[mine].sum()).unsqueeze(1)
        own = slopes[..., mine, :]
        mean = (own * share).sum(-2)
        off = (own - mean.unsqueeze(-2)) * share
        effective = float(1 / share.square().sum())
        means.append(mean)
        covariances.append(off.mT @ off * (effective / max(effective - 1, 1e-9)))
    return torch.stack(means, -2), torch.stack(covariances, -3)


def variation(slope: Tensor, cov: Tensor, rows: Tensor, level: float) -> Variation:
    """Of mean slopes (C, E, J) with covariances (C, E, J, J) over `rows` (C, E); those of 0 rows count nothing."""
    there = (rows > 0) & slope.isfinite().all(-1) & cov.isfinite().all(-1).all(-1)
    mu = torch.where(there, rows, 0.0)
    mu = mu / mu.sum(1, keepdim=True).clamp_min(1e-300)
    s = torch.where(there.unsqueeze(-1), slope, 0.0)
    c = torch.where(there[..., None, None], cov, 0.0)
    off = s - (mu.unsqueeze(-1) * s).sum(1, keepdim=True)
    total = (mu.unsqueeze(-1) * off.square()).sum((1, 2))
    # T = u' B u with u the stacked slopes and B = A'A, A = sqrt(mu) (1 - 1 mu')
    eye = torch.eye(mu.shape[1], dtype=mu.dtype)
    a = mu.sqrt().unsqueeze(2) * (eye - mu.unsqueeze(1))
    b = a.mT @ a  # (C, E, E)
    trace = c.diagonal(dim1=2, dim2=3).sum(2)  # (C, E)
    mean = (b.diagonal(dim1=1, dim2=2) * trace).sum(1)
    crossed = torch.einsum("ceij,cfji->cef", c, c)
    spread = (b.square() * crossed).sum((1, 2))  # half of the variance
    degrees = mean.square() / spread.clamp_min(1e-300)
    known = (there.sum(1) > 1) & (spread > 0)
    tail = stats.chi2.sf((total * degrees / mean.clamp_min(1e-300)).numpy(), degrees.clamp_min(1e-9).numpy())
    p = torch.where(known, torch.as_tensor(tail), torch.where(there.sum(1) > 1, 1.0, torch.nan))
    freedom = degrees.clamp_min(1e-9).numpy()
    needed = torch.as_tensor(special.chndtrinc(stats.chi2.isf(level, freedom), freedom, 1 - POWER)) * mean / degrees
    return Variation((total - mean).clamp_min(0).sqrt(), p, needed.sqrt())
