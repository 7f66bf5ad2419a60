"""Where inferred environments come from: somebody beside Phi who says which row belongs where."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from irmtv.core.membership import Membership
from irmtv.core.types import Rows
from irmtv.engine.components.rho import RhoOnAux
from irmtv.engine.components.row_environments import RowEnvironments
from irmtv.engine.components.selector import RhoOnTheRest
from irmtv.engine.context import Stage
from irmtv.engine.optim import Adam, FlatParameters


class Source(Protocol):
    """What the loop asks of it. `rows` below is what `rows()` gave: the source's own view of a step's rows."""

    n_environments: int

    @property
    def parameters(self) -> FlatParameters | None:
        """What climbs the penalties; None where nothing does."""
        ...

    @property
    def adam(self) -> Adam | None: ...

    @property
    def rate(self) -> Tensor:
        """Of Adam: (R,)."""
        ...

    def arrange(self, as_they_are: bool) -> tuple[Tensor | None, tuple[int, ...]]:
        """Full batch: the order (T, N') in which it wants the rows (None: as they are), and their shape."""
        ...

    def rows(self, index: Tensor | None) -> Any:
        """What it reads of all rows (None), or of the rows (R, b) of a mini-batch."""
        ...

    def mean(self, value: Tensor) -> Tensor:
        """Mean over the rows of every run, pads left out: (R,). Of rows without weights of their own."""
        ...

    def before_climbing(self, rows: Any, y: Tensor, weight: Tensor | None) -> None:
        """Whatever it does at every step at which it climbs, before it climbs the penalties.

        `weight` (T, 1 or K, N) is what each row counts, summing to 1; None where all count the same.
        """
        ...

    def membership(self, rows: Any) -> Membership:
        """Their q; with the rows' weights in it only where the rows come in blocks."""
        ...

    def begin(self, acting: Tensor, before: Tensor, slopes: Callable[[], Tensor]) -> None:
        """A phase begins in which the penalty acts on the runs `acting` (R,), as it did on those `before`.

        `slopes()` are the slopes of all training rows in their own order under the present Phi: (R, N).
        """
        ...

    def of(self, rows: Sequence[Rows]) -> Callable[[], Membership] | None:
        """For other rows (one set per data set): a function that gives their present membership.

        None where only training rows have one.
        """
        ...

    def state(self) -> dict[str, Tensor]:
        """What a fitted model keeps of it: (R, ...)."""
        ...


SOURCES: Mapping[str, Callable[[Stage], Source]] = {"aux": RhoOnAux, "rest": RhoOnTheRest, "rows": RowEnvironments}
