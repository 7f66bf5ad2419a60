"""A penalty weight that follows Phi, as the paper's theorem on OOD generalization asks (eq. for lambda_Phi).

    lambda_Phi = ( max_e R_e - E R ) / penalty          so that   E R + lambda_Phi penalty = max_e R_e

"adaptive": computed anew at each step and held fixed in the gradient, a heuristic. "adaptive-exact": differentiated
too; the objective then *is* the worst risk. Both end at a cap, beyond which a penalty of 0 would take them.
"""

from __future__ import annotations

import torch
from torch import Tensor


def lambda_phi(worst: Tensor, expected: Tensor, penalty: Tensor, cap: Tensor | float) -> Tensor:
    """min( (max_e R_e - E R) / penalty, cap ), at least 0: (R,).

    Where the penalty is 0 the quotient's limit, the cap; where it is negative (an unbiased estimate may be) 0.
    """
    gap = (worst - expected).clamp_min(0)
    tiny = torch.finfo(penalty.dtype).tiny
    at_zero = torch.where((penalty == 0) & (gap > 0), torch.inf, 0.0).to(penalty.dtype)
    quotient = torch.where(penalty > 0, gap / penalty.clamp_min(tiny), at_zero)
    return torch.minimum(quotient, torch.as_tensor(cap, dtype=penalty.dtype, device=penalty.device))


def worst_risk_objective(worst: Tensor, expected: Tensor, penalty: Tensor, cap: Tensor | float) -> Tensor:
    """E R + lambda_Phi penalty with lambda_Phi differentiated: the worst risk, where the cap does not act: (R,).

    An estimate of the penalty below 0 says nothing about the cap: the worst risk there too.
    """
    cap = torch.as_tensor(cap, dtype=penalty.dtype, device=penalty.device)
    capped = lambda_phi(worst.detach(), expected.detach(), penalty.detach(), cap) >= cap
    return torch.where(capped, expected + cap * penalty, torch.maximum(worst, expected))
