"""Who may act beside Phi and the source of inferred environments, and what the loop asks of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor

from irmtv.engine.components.biased_net import RelativeDifficulty
from irmtv.engine.components.selector import GatedInputs
from irmtv.engine.components.sources import Source
from irmtv.engine.components.sparse_mask import SparseMask
from irmtv.engine.context import Stage
from irmtv.engine.networks import Net, Parameters
from irmtv.engine.optim import Adam, FlatParameters
from irmtv.engine.rows import StepRows


class Mask(Protocol):
    """Switches parameters of Phi off, or partly off."""

    adam: Adam | None  # of what it learns in Phi's own backward pass; None where it learns nothing there

    def apply(self, views: Parameters) -> Parameters:
        """What a training step computes with in place of Phi's parameters (R, ...): differentiable in them."""
        ...

    def after(self) -> None:
        """After Phi's backward pass and step: its own step."""
        ...

    def settled(self, views: Parameters) -> dict[str, Tensor]:
        """What a fitted model predicts with: no noise, no graph."""
        ...

    def state(self) -> dict[str, Tensor]:
        """What a fitted model tells of it: (R, ...) each."""
        ...


class RowWeights(Protocol):
    """Says how much each row counts in Phi's risk."""

    def weigh(self, rows: StepRows, f: Tensor, value: Tensor) -> Tensor:
        """(T, K, *shape), from Phi's logits and losses of these rows, both without a graph; takes its own step too."""
        ...

    def state(self) -> dict[str, Tensor]: ...


# by the names that objectives use; `phi` is Phi's parameters
MASKS: Mapping[str, Callable[[Stage, Net, FlatParameters, Source | None], Mask]] = {
    "gates": GatedInputs,
    "sparse": SparseMask,
}
ROW_WEIGHTS: Mapping[str, Callable[[Stage, Net], RowWeights]] = {"relative-difficulty": RelativeDifficulty}
