"""What a gradient step tells its components, and what it asks of them.

A component acts in a step beside Phi, the predictor. There are five kinds, each with its place in `engine/step.py`:

| kind                 | what it does                                       | where                                 |
|----------------------|----------------------------------------------------|---------------------------------------|
| `EnvironmentSource`  | infers environments during training                | `rho`, `selector`, `row_environments` |
| `Mask`               | switches parameters of Phi off, or partly off      | `sparse_mask`, `selector`             |
| `RelativeDifficulty` | gives every row a weight in Phi's risk             | `biased_net`                          |
| `PenaltyWeights`     | gives lambda at a step                             | `penalty_weights`                     |
| `LearnedMeasure`     | moves the measure on environments up the objective | `learned_measure`                     |

Every component has `state()`: what a fitted model keeps of it, a name and a tensor (R, ...) each.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from irmtv.core.membership import RowMembership, mean_over_rows
from irmtv.core.types import Reduction, Rows
from irmtv.engine.networks import Parameters
from irmtv.engine.optim import Adam, FlatParameters
from irmtv.objectives.base import Penalty, Weight
from irmtv.objectives.environments.aux_network import Climbing


@dataclass(frozen=True)
class Phase:
    """A stretch of steps over which nothing changes but the parameters."""

    start: int
    stop: int
    acting: Tensor  # (R,) bool: on which runs the penalty acts fully
    before: Tensor  # (R,) bool: ... in the phase before
    full: Tensor  # (R, P) the weights of this phase
    weights: tuple[Weight, ...]  # the same, as a step wants them; where they do not change within the phase
    scale: Tensor  # (R,) 1 / divisor
    penalised: bool  # some run has a penalty that acts
    climbing: Tensor | None  # (R,) of 0 and 1: whose environments are being inferred; None if no run's are


class StepRows(NamedTuple):
    """The rows of one step."""

    x: Tensor  # prepared for the network
    y: Tensor  # (T, 1 or K, *shape), with C for several targets
    shape: tuple[int, ...]  # of one run's rows
    numbers: Tensor | None  # (R, b) which rows they are; None for all rows
    given: RowMembership | None  # given environments; None where they are inferred
    inferred: Any  # what the source of inferred environments reads of them
    weight: Tensor | None = None  # (T, 1 or K, *shape) the rows' weights, summing to 1; None where all are equal

    @property
    def share(self) -> Tensor | float:
        """Of each row in the mean."""
        return 1 / math.prod(self.shape) if self.weight is None else self.weight


class EnvironmentSource(ABC):
    """Infers environments during training. `rows` below is what `rows()` gave: its own view of a step's rows."""

    n_environments: int
    parameters: FlatParameters | None  # what climbs the penalties; None where nothing does
    adam: Adam | None
    rate: Tensor  # (R,) of Adam

    @abstractmethod
    def arrange(self, as_they_are: bool) -> tuple[Tensor | None, tuple[int, ...]]:
        """Full batch: the order (T, N') in which it wants the rows (None: as they are), and their shape."""

    @abstractmethod
    def rows(self, index: Tensor | None) -> Any:
        """What it reads of all rows (None), or of the rows (R, b) of a mini-batch."""

    def mean(self, value: Tensor) -> Tensor:
        """Mean over the rows of every run, pads left out: (R,). Of rows without weights of their own."""
        return mean_over_rows(value, None)

    def begin(self, phase: Phase, slopes: Callable[[], Tensor]) -> None:
        """Before a phase. `slopes()` are those of all training rows, in their order, under the present Phi: (R, N)."""
        return

    def before_climbing(self, rows: Any, y: Tensor, weight: Tensor | None) -> None:
        """What it does at every step at which it climbs, before it climbs the penalties.

        `weight` (T, 1 or K, N) are the rows' weights, summing to 1; None where all are equal.
        """
        return

    @abstractmethod
    def climbing(self, rows: StepRows, slope: Tensor) -> Climbing:
        """A step up a penalty on slopes (T, K, *rows.shape), written out."""

    @torch.no_grad()
    def climb(self, rows: StepRows, slope: Tensor, penalty: Penalty, reduction: Reduction | None) -> None:
        """The gradient of a penalty on slopes in the parameters, written into them."""
        assert self.parameters is not None and penalty.by_sums is not None
        climbing = self.climbing(rows, slope)
        by_sum, by_mass = penalty.by_sums(climbing.sums(), climbing.mass, reduction or penalty.reduction)
        self.parameters.write(climbing.pull_back(by_sum, by_mass))

    @abstractmethod
    def membership(self, rows: Any) -> RowMembership:
        """The rows' q; with the rows' weights in it only where the rows come in blocks."""

    def membership_of(self, rows: Sequence[Rows]) -> Callable[[], RowMembership] | None:
        """For other rows (one set per data set): a function that gives their present membership.

        None where only training rows have one.
        """
        return None

    def optimizers(self) -> list[Adam]:
        """Of all that it learns."""
        return [] if self.adam is None else [self.adam]

    def learned(self) -> dict[str, Tensor]:
        """What it learns beside its memberships, by name."""
        return {}

    @abstractmethod
    def state(self) -> dict[str, Tensor]: ...


class Mask(ABC):
    """Switches parameters of Phi off, or partly off."""

    adam: Adam | None = None  # of what it learns in Phi's own backward pass; None where it learns nothing there

    @abstractmethod
    def apply(self, views: Parameters) -> Parameters:
        """What a training step computes with in place of Phi's parameters (R, ...): differentiable in them."""

    def step(self) -> None:
        """Its own step, after Phi's."""
        return

    @abstractmethod
    def fitted(self, views: Parameters) -> dict[str, Tensor]:
        """What a fitted model predicts with: no noise, no graph."""

    def state(self) -> dict[str, Tensor]:
        return {}


def gated(views: Parameters, name: str, gates: Tensor) -> dict[str, Tensor]:
    """A network that reads gated inputs: its first layer's weights (R, out, in), each column times its gate."""
    return {**views, name: views[name] * gates.unsqueeze(1)}
