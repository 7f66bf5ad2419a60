"""Starts by name: where the training of Phi may begin, other than at random.

"small" is a hundredth of what it would be. "erm" and "environment" are of linear models, by Newton's method: the model
of all rows, and that of the environment in which the first one's risk is largest.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from irmtv.engine.solvers.linear_risks import LinearRisks
from irmtv.engine.solvers.second_order import Problem, Solution

SMALL = 0.01


def solve_erm(problem: Problem, owner: Tensor, l2: Tensor) -> Solution:
    """ERM on the data sets `owner` (K,), with l2 (K,)."""
    begin = torch.zeros(len(owner), problem.sets[0].n_parameters, dtype=torch.float64)
    models = [(problem.sets[t], shrink) for t, shrink in zip(owner.tolist(), l2.tolist(), strict=True)]
    for row, (risks, shrink) in zip(begin, models, strict=True):
        known = risks.known_erm(shrink)
        if known is not None:
            row.copy_(known)
    solved = problem.without_penalties().minimise(begin, owner, l2, begin[:, :0], torch.zeros_like(l2))
    for theta, (risks, shrink) in zip(solved.theta, models, strict=True):
        risks.keep_erm(shrink, theta)
    return solved


def worst_own(problem: Problem, owner: Tensor, l2: Tensor, erm: Tensor) -> Tensor:
    """By run: the model of the environment in which the risk of ERM (K, P) is largest, (K, P).

    Runs on one data set with one l2 have one ERM, and one model here.
    """
    keys = list(zip(owner.tolist(), l2.tolist(), strict=True))
    own: dict[tuple[int, float], Tensor] = {}
    for theta, (t, shrink) in zip(erm, keys, strict=True):
        if (t, shrink) in own:
            continue
        risks = problem.sets[t]
        worst = int(risks.at(theta.unsqueeze(0)).risk.masked_fill(risks.mass <= 0, -torch.inf).argmax())
        alone = torch.nn.functional.one_hot(torch.tensor(worst), risks.n_environments).double()
        one = Problem([risks], [alone], (), problem.components)
        begin, none = theta.unsqueeze(0), theta.new_zeros(1)
        solved = one.minimise(begin, none.long(), theta.new_tensor([shrink]), begin[:, :0], none)
        own[t, shrink] = solved.theta[0]
    return torch.stack([own[key] for key in keys])


def linear_start(name: str, sets: Sequence[LinearRisks], owner: Tensor, l2: Tensor) -> Tensor:
    """The start "erm" or "environment" of runs on the data sets `owner` (K,): (K, C, D + 1)."""
    nothing = torch.zeros(sets[0].n_parameters, 0, dtype=torch.float64)
    problem = Problem(sets, [one.mass for one in sets], (), nothing)
    # runs on one data set with one l2 have one start
    distinct, place = torch.unique(torch.stack([owner.double(), l2], 1), dim=0, return_inverse=True)
    owner, l2 = distinct[:, 0].long(), distinct[:, 1].contiguous()
    theta = solve_erm(problem, owner, l2).theta
    theta = worst_own(problem, owner, l2, theta) if name == "environment" else theta
    return theta[place].view(-1, sets[0].n_outputs, sets[0].size)
