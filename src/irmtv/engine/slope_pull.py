"""How one penalty on slopes pulls at the environments, with all that does not change from step to step worked out.

    l1:  P = ( sum_e c_e |G_e| )^2,  c_e = mu_e / n_e          G_e = sum_i q_ie s_i,  n_e = sum_i q_ie
    l2:  P = sum_e c_e G_e^2,        c_e = mu_e / n_e^2

The same as `Objective.value_and_gradient` in fewer operations: on a small model a dozen of them on a few numbers take
as long as all rows do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from irmtv.core.membership import RowMembership
from irmtv.core.risk import divide
from irmtv.core.types import Statistics
from irmtv.engine.components.base import Phase
from irmtv.objectives.base import Objective, Penalty


def pulling_penalty(objective: Objective) -> Penalty | None:
    """The one penalty of an objective whose risk is the mean loss, if it is a norm of slopes."""
    if len(objective.penalties) != 1:
        return None
    (penalty,) = objective.penalties
    return penalty if penalty.norm is not None and penalty.uses == {"slope"} else None


class SlopePull:
    """The gradient of lambda P in the sums G_e, in a `unit` (R, 1), while lambda and the environments stay."""

    def __init__(
        self,
        penalty: Penalty,
        membership: RowMembership,
        phase: Phase,
        static: Mapping[str, Any],
        unit: Tensor | float = 1.0,
    ) -> None:
        factor = phase.weights[0][1] / unit  # (R, 1) lambda times the scale of the gradient
        self.membership, self.l1 = membership, penalty.norm == "l1"
        mass = membership.mass.to(factor.dtype)
        e = Statistics(mass[:, 0], mass)
        mu = penalty.weights(e, static.get("measure"), static.get("reduction"))
        rows = membership.rows.to(factor.dtype)
        if self.l1:  # half of lambda on each side of the square: one operation fewer at every step
            self.share = divide(mu, rows) * (2 * factor).sqrt()  # (R, E)
        else:
            self.share = divide(divide(mu, rows), rows) * (2 * factor)

    def __call__(self, sums: Tensor) -> Tensor:
        """(R, E) -> (R, E)"""
        if not self.l1:
            return sums * self.share
        signs = sums.sign().mul_(self.share)
        return signs.mul_((signs * sums).sum(1, keepdim=True))
