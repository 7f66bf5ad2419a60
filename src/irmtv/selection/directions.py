"""Would every environment choose the same linear model, but for its scale and its intercept?

Where environments differ in noise or base rate, the model that suits one of them best is that of another, rescaled.
Where a spurious column works in some of them only, it points in another direction. So ERM theta is rescaled to every
environment, and there its gradient g_e is looked at, without the directions in which it was rescaled. ERM has an error
d of its own, which all environments share; if all would choose the same direction,

    g_e = -a_e H_e d + noise of covariance V_e,        a_e the scale,

with one d for all. The best d leaves Q = sum_e u_e' V_e^-1 u_e, u_e = g_e + a_e H_e d, which is then a chi-square. No
model of a single environment is trained for this, and none has to pay for its few rows: u_e' H_e^-1 u_e / 2, noise
subtracted, is what its own model would gain with rows without end.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from scipy import stats
from torch import Tensor

SINGULAR = 1e-8  # eigenvalues below this share of the largest count as 0


class Directions(NamedTuple):
    p: float  # of "every environment would choose the same direction"
    gain: float  # of risk by models of their own, beyond noise, in the mean over rows
    error: float = 0.0  # standard deviation of that gain where noise is all that there is; older stores have none


def compare_directions(
    gradient: Tensor,
    hessian: Tensor,
    spread: Tensor,
    rows: Tensor,
    scale: Tensor,
    rescaled: Tensor,
) -> Directions:
    """From what each of E environments says at ERM, rescaled to it, of P parameters.

    Parameters
    ----------
    gradient : (E, P), the mean gradient of the rows' losses.
    hessian : (E, P, P), of the risk.
    spread : (E, P, P), second moments of the rows' gradients.
    rows : (E,), or how many rows of equal weight are as sure.
    scale : (E,), what ERM was multiplied by.
    rescaled : (P, K), the directions in which it was rescaled: ERM itself, and the intercepts.
    """
    unit = hessian.diagonal(dim1=1, dim2=2).mean(0).clamp_min(0).sqrt()  # columns of any scale count the same
    unit = torch.where(unit > 0, unit, 1)
    known = rescaled * unit.unsqueeze(1)
    rest = _complement(known)  # (P, M)
    if not rest.shape[1]:  # one column: there is one direction
        return Directions(1.0, 0.0)
    g = gradient / unit
    h, s = (m / (unit.unsqueeze(1) * unit) for m in (hessian, spread))
    # without what the rescaling explains: rest' - H_rk H_kk^-1 known'
    of_known = _inverse(known.T @ h @ known) @ known.T @ h @ rest  # (E, K, M)
    free = rest - known @ of_known  # (E, P, M)
    score = (free.mT @ g.unsqueeze(2)).squeeze(2)  # (E, M)
    curve = free.mT @ h @ free
    noise = free.mT @ (s - g.unsqueeze(2) * g.unsqueeze(1)) @ free / (rows - len(unit)).clamp_min(1).view(-1, 1, 1)
    sure = _inverse(noise)
    pull = scale.view(-1, 1, 1) * curve  # of d
    common = _inverse((pull.mT @ sure @ pull).sum(0)) @ (pull.mT @ sure @ score.unsqueeze(2)).sum(0)  # -d: (M, 1)
    left = score.unsqueeze(2) - pull @ common  # (E, M, 1)
    q = float((left.mT @ sure @ left).sum())
    freedom = int(_rank(noise).sum()) - int(_rank((pull.mT @ sure @ pull).sum(0)))
    if freedom < 1:
        return Directions(1.0, 0.0)
    return Directions(float(stats.chi2.sf(q, freedom)), *_gain(score, curve, noise, scale, rows / rows.sum()))


def _gain(score: Tensor, curve: Tensor, noise: Tensor, scale: Tensor, share: Tensor) -> tuple[float, float]:
    """sum_e share_e u_e' H_e^-1 u_e / 2 with the d that makes it smallest, less what noise alone would give.

    And the standard deviation that noise alone would give: a form z'Bz of normal z with covariance V has the variance
    2 tr(BVBV).
    """
    own, each = _inverse(curve), share.view(-1, 1, 1)
    pull = (share * scale).unsqueeze(1)
    common = _inverse((each * scale.square().view(-1, 1, 1) * curve).sum(0))  # (M, M)
    together = (pull * score).sum(0)  # (M,)
    total = (each * score.unsqueeze(1) @ own @ score.unsqueeze(2)).sum() - together @ common @ together
    apart = each * own @ noise  # (E, M, M)
    shared = common @ (pull.unsqueeze(2).square() * noise).sum(0)
    of_noise = _traces(apart).sum() - _traces(shared)
    both = (pull.square().squeeze(1) * _traces(apart @ common @ noise)).sum()
    variance = _traces(apart @ apart).sum() - 2 * both + _traces(shared @ shared)
    return float(total - of_noise) / 2, float((variance / 2).clamp_min(0).sqrt())


def _traces(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)


def _complement(directions: Tensor) -> Tensor:
    """An orthonormal basis of what is orthogonal to these (P, K)."""
    u, size, _ = torch.linalg.svd(directions, full_matrices=True)
    rest: Tensor = u[:, int((size > SINGULAR * size.max()).sum()) :]
    return rest


def _inverse(matrices: Tensor) -> Tensor:
    """Of symmetric ones (..., M, M); 0 in directions in which they are."""
    values, vectors = torch.linalg.eigh(matrices)
    there = values > SINGULAR * values.amax(-1, keepdim=True).clamp_min(1e-300)
    inverse: Tensor = (vectors * torch.where(there, 1 / torch.where(there, values, 1), 0).unsqueeze(-2)) @ vectors.mT
    return inverse


def _rank(matrices: Tensor) -> Tensor:
    values = torch.linalg.eigvalsh(matrices)
    rank: Tensor = (values > SINGULAR * values.amax(-1, keepdim=True).clamp_min(1e-300)).sum(-1)
    return rank
