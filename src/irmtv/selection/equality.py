"""Are the means of several environments equal, and if not, how far apart are they beyond noise?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats
from torch import Tensor


def equal_means(mean: Tensor, cov: Tensor, rows: Tensor | None = None) -> Tensor:
    """p-value of "all environments have the same mean", for every candidate: (C,).

    mean is (C, E), cov the squared standard errors (C, E) or covariances (C, E, E). The generalised least-squares
    test, (m - m0)' cov^-1 (m - m0) at the best common value m0: chi-square with one degree of freedom less than
    environments. Environments without rows (NaN) drop out; with fewer than two left, or where soft ones coincide, so
    that nothing was told apart, p is NaN.

    Chi-square takes the standard errors for known. Estimated from few rows each they make the statistic larger, with
    many environments far too large. So give `rows`, (C, E) or (E,): how many each mean was taken over. The reference
    is then that of Welch's analysis of variance; environments of one row drop out. A vector of slopes, (C, E, J), is
    tested by component, so the same holds for each. Covariances that are not diagonal keep chi-square: environments
    that share rows have no Welch test.

    Rejected at level 0.01 though all means are equal (2,000 draws or more), chi-square -> Welch:

        environments x rows   normal rows      log losses       squared normal rows
        2 x 1,000             1 % -> 1 %       1 % -> 1 %       1 % -> 1 %
        10 x 20               3 % -> 1.3 %     5 % -> 2 %       8 % -> 4 %
        100 x 20              9 % -> 1.2 %     21 % -> 7 %      54 % -> 31 %
        100 x 30              5 % -> 1.3 %     11 % -> 5 %      34 % -> 19 %
        300 x 50              4 % -> 1.2 %     11 % -> 4 %      40 % -> 25 %

    What is left is skewness: the mean and the variance of the same few rows are then correlated. It grows as
    sqrt(E) / rows: see `enough_rows`.
    """
    return _each(mean, cov, True, rows)


def zero_means(mean: Tensor, cov: Tensor, rows: Tensor | None = None) -> Tensor:
    """p-value of "every environment's mean is zero": chi-square with as many degrees of freedom as environments.

    With `rows` (as in `equal_means`) each mean's t statistic is replaced by the normal one of the same p-value first,
    which is exact for normal rows (100 environments of 20 rows: 9 % -> 1 % rejected at level 0.01). Skewed rows are
    rejected too often all the same (10 x 20 squared normal ones: 30 % -> 20 %): against zero skews never cancel.
    """
    return _each(mean, cov, False, rows)


def enough_rows(rows: Tensor, least: float, per_root: float) -> Tensor:
    """Which environments to test, by their rows alone: bool, the shape of `rows` (..., E).

    Those with at least `least` rows; and of these the k largest such that each has per_root * sqrt(k) or more. Why
    the root: skewness makes every environment's part of the statistic of `equal_means` too large by about 1 / rows,
    k of them by k / rows, and only compared to its standard deviation, sqrt(2 k), does that matter. Of environments
    of equal size the first ones are taken. Two with `least` rows are enough where per_root is at most
    least / sqrt(2).
    """
    ordered, order = torch.sort(rows.double().nan_to_num(0), dim=-1, descending=True, stable=True)
    number = torch.arange(1, rows.shape[-1] + 1, dtype=torch.float64)
    # the thresholds rise and the rows fall: once one is too small, all after it are
    taken = (ordered >= least) & (ordered >= per_root * number.sqrt())
    return torch.zeros_like(taken).scatter(-1, order, taken)


def _each(mean: Tensor, cov: Tensor, common: bool, rows: Tensor | None) -> Tensor:
    if mean.ndim == 3:  # a vector of slopes: each component is tested, the smallest p counts (Bonferroni)
        parts = torch.stack([_each(mean[..., j], cov[..., j], common, rows) for j in range(mean.shape[-1])])
        known = parts.isfinite()  # a narrower network has fewer components
        p = (torch.where(known, parts, 1.0).amin(0) * known.sum(0)).clamp_max(1)
        return torch.where(known.any(0), p, torch.nan)
    m, v = mean.double(), cov.double()
    there = m.isfinite() & (v if v.ndim == 2 else v.diagonal(dim1=-2, dim2=-1)).isfinite()
    spare = None if rows is None or v.ndim == 3 else rows.double() - 1  # degrees of freedom of each variance
    if spare is not None:
        there = there & (spare > 0)
        spare = torch.where(there, spare, 1.0)  # (C, E)
    one, value = there.double(), torch.where(there, m, 0.0)
    weighted, rank = _weights(value, v, there)
    if common:
        best = (one * weighted(value)).sum(-1) / (one * weighted(one)).sum(-1).clamp_min(1e-300)
        value = torch.where(there, m - best.unsqueeze(-1), 0.0)
    freedom = rank - int(common)
    if spare is None or common:
        statistic = (value * weighted(value)).sum(-1).clamp_min(0)
    else:
        statistic = _normal_score(value * weighted(one).sqrt(), spare).square().sum(-1)
    if spare is not None and common:
        p = _welch(statistic, weighted(one), spare)
    else:
        p = torch.as_tensor(stats.chi2.sf(statistic.numpy(), np.maximum(freedom.numpy(), 1)))
    return torch.where(freedom > 0, p, torch.nan)


def _welch(statistic: Tensor, weight: Tensor, spare: Tensor) -> Tensor:
    """p-value of the weighted sum of squares around the common mean: (C,). `weight` is 0 for those left out (C, E).

    B. L. Welch, On the comparison of several mean values, Biometrika 38 (1951). With two environments the t test for
    unequal variances; with variances that are known (`spare` infinite) the chi-square test.
    """
    there = weight > 0
    n = there.sum(-1).clamp_min(2).double()
    share = weight / weight.sum(-1, keepdim=True).clamp_min(1e-300)
    unsure = torch.where(there, (1 - share).square() / spare, 0.0).sum(-1).clamp_min(1e-12)
    larger = 1 + 2 * (n - 2) / (n.square() - 1) * unsure
    second = (n.square() - 1) / (3 * unsure)
    return torch.as_tensor(stats.f.sf((statistic / (n - 1) / larger).numpy(), (n - 1).numpy(), second.numpy()))


def _normal_score(t: Tensor, spare: Tensor) -> Tensor:
    """|z| of the same p-value as t with `spare` degrees of freedom."""
    return torch.as_tensor(stats.norm.isf(stats.t.sf(t.abs().numpy(), spare.numpy())))


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


def holm(p: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Holm's step-down correction: the i-th smallest of m p-values times m - i + 1, made monotone, at most 1.

    NaN stays NaN and does not count.

    >>> holm([0.01, 0.04, 0.03]).round(12).tolist()
    [0.03, 0.06, 0.06]
    """
    raw = np.asarray(p, dtype=np.float64)
    corrected = np.full_like(raw, np.nan)
    order = np.argsort(raw, kind="stable")[: np.count_nonzero(~np.isnan(raw))]  # NaN sorts last
    steps = np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(raw[order] * steps), 1.0)
    return corrected
