"""What may act in a step beside Phi, by the names that objectives use; `base` says what the step asks of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from irmtv.engine.components.base import EnvironmentSource, Mask
from irmtv.engine.components.biased_net import RelativeDifficulty
from irmtv.engine.components.rho import RhoOnAux
from irmtv.engine.components.row_environments import RowEnvironments
from irmtv.engine.components.selector import GatedInputs, RhoOnTheRest
from irmtv.engine.components.sparse_mask import SparseMask
from irmtv.engine.context import Context
from irmtv.engine.networks import Net
from irmtv.engine.optim import FlatParameters

ENVIRONMENT_SOURCES: Mapping[str, Callable[[Context], EnvironmentSource]] = {
    "aux": RhoOnAux,
    "rest": RhoOnTheRest,
    "rows": RowEnvironments,
}
MASKS: Mapping[str, Callable[[Context, Net, FlatParameters, EnvironmentSource | None], Mask]] = {
    "gates": GatedInputs,
    "sparse": SparseMask,
}
ROW_WEIGHTS: Mapping[str, Callable[[Context, Net], RelativeDifficulty]] = {"relative-difficulty": RelativeDifficulty}
