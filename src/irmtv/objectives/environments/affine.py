"""More environments than were seen: affine mixtures of the given (or inferred) ones.

R_e and S_e are linear in the measure of the rows, so those of the mixture sum_e c_e P_e, sum_e c_e = 1, are
sum_e c_e R_e and sum_e c_e S_e: nothing has to be computed from the rows again. Coefficients below 0 or above 1
extrapolate beyond what was seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from irmtv.core.messages import check_positive
from irmtv.core.projection import onto_box_with_sum
from irmtv.core.types import Statistics


@dataclass(frozen=True)
class Affine:
    """`n` mixtures with coefficients in [-reach, 1 + reach] that sum to 1, drawn once per run.

    A mixture is the point of that set nearest to one drawn uniformly from the box [-reach, 1 + reach]^E.
    """

    n: int = 64
    reach: float = 0.5

    def __post_init__(self) -> None:
        check_positive(self.n, "n of Affine")
        if not isinstance(self.reach, (int, float)) or isinstance(self.reach, bool) or not 0 <= self.reach < 1e6:
            raise ValueError(
                f"reach of Affine must be a finite number of at least 0 (0 only interpolates). Got {self.reach!r}."
            )

    def draw(self, n_environments: int, generators: Sequence[torch.Generator]) -> Tensor:
        """Coefficients for every run, from its own generator: (R, n, E), float64."""
        width = 1 + 2 * self.reach
        box = [
            torch.rand(self.n, n_environments, generator=g, dtype=torch.float64) * width - self.reach
            for g in generators
        ]
        return onto_box_with_sum(torch.stack(box), -self.reach, 1 + self.reach, torch.ones(()))


def expanded(e: Statistics) -> Statistics:
    """The same numbers over the environments and their mixtures, each of which counts the same: (R, E + M).

    A mixture that an environment absent from a mini-batch belongs to drops out, as that environment does.
    """
    mixtures = e.mixtures
    if mixtures is None:
        return e
    present = (e.mass > 0).expand(len(mixtures), -1)  # (R, E)
    whole = ((mixtures == 0) | present.unsqueeze(1)).all(-1)  # (R, M)
    there = torch.cat([present, whole], 1).to(e.mass.dtype)

    def both(values: Tensor | None) -> Tensor | None:
        if values is None:
            return None
        mixed = torch.einsum("rme,re...->rm...", mixtures, values)
        return torch.cat([values, mixed], 1)

    halves = None
    if e.slope_halves is not None:
        even, odd = both(e.slope_halves[0]), both(e.slope_halves[1])
        assert even is not None and odd is not None
        halves = (even, odd)
    return replace(
        e,
        mass=there / there.sum(1, keepdim=True),
        risk=both(e.risk),
        slope=both(e.slope),
        slope_halves=halves,
        learned=None,
        mixtures=None,
    )


def gathered(gradient: Tensor, mixtures: Tensor) -> Tensor:
    """From the gradient in the expanded numbers (R, E + M) to that in the environments' own (R, E)."""
    n_environments = mixtures.shape[-1]
    return gradient[:, :n_environments] + torch.einsum("rm,rme->re", gradient[:, n_environments:], mixtures)
