"""One penalty: a function of a few numbers per environment, and of what each environment counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from irmtv.core.types import Measure, Reduction, Statistics

Uses = Literal["risk", "slope"]
Subgradient = tuple[Tensor, Tensor | None, Tensor | None]  # value (R,), d/dR_e (R, E), d/dS_e (R, E)


@dataclass(frozen=True)
class Penalty:
    """One penalty: a function of the statistics and of weights on the environments.

    `power` says how the authors' reduction weighs an environment: their mass-weighted slopes
    G_e = m_e S_e give the l1 form weight m_e and the l2 form weight m_e^2.
    """

    name: str
    function: Callable[[Statistics, Tensor], Tensor] = field(repr=False)  # (R, E) numbers, (R, E) mu -> (R,)
    uses: frozenset[Uses] = frozenset({"slope"})
    power: int = 1
    default_weight: float = 1e3
    measure: Measure = "empirical"
    reduction: Reduction = "expectation"
    # the penalty, and its (sub)gradient in R_e and S_e, in closed form; without it autograd is asked
    subgradient: Callable[[Statistics, Tensor], Subgradient] | None = field(default=None, repr=False)

    def wants_halves(self, estimator: str | None) -> bool:
        return "slope" in self.uses and (estimator == "halves" or (estimator == "auto" and self.power == 2))

    def __call__(self, e: Statistics, measure: Measure | None = None, reduction: Reduction | None = None) -> Tensor:
        return self.function(e, self.weights(e, measure, reduction))

    def weights(self, e: Statistics, measure: Measure | None, reduction: Reduction | None) -> Tensor:
        """What each environment counts: mu_e, or the authors' powers of the masses."""
        if (reduction or self.reduction) == "authors" and "slope" in self.uses:
            return e.mass**self.power
        return e.measure(measure or self.measure)
