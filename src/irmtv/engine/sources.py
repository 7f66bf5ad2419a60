"""Where inferred environments come from: somebody beside Phi who says which row belongs where."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from irmtv.core.membership import Membership
from irmtv.core.types import Rows
from irmtv.engine.optim import Adam, FlatParameters
from irmtv.engine.stage import Stage
from irmtv.environments.aux_network import AuxNetwork, AuxRows, GroupedRows, PlainRows, lay_out


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
        """Mean over the rows of every run, pads left out: (R,)."""
        ...

    def before_climbing(self, rows: Any, y: Tensor) -> None:
        """Whatever it does at every step at which it climbs, before it climbs the penalties."""
        ...

    def membership(self, rows: Any) -> Membership: ...

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


class RhoOnAux:
    """rho, a network on auxiliary variables, climbs the penalties."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        static, aux = stage.static, stage.tasks[0].train.aux
        assert aux is not None  # `check_tasks` saw to it
        self.net = AuxNetwork(aux.shape[1], static["n_environments"], static["environment_hidden"])
        self.n_environments: int = self.net.n_environments
        self.parameters = FlatParameters([self.net.init(g) for g in stage.generators], stage.device, stage.dtype)
        self.rate = stage.column("environment_learning_rate")
        self.adam = Adam(self.parameters, self.rate, maximise=True)
        self.aux = stage.scaled_aux([t.train for t in stage.tasks])  # (T, N, A)
        self.all_rows: AuxRows | None = None

    def arrange(self, as_they_are: bool) -> tuple[Tensor | None, tuple[int, ...]]:
        if as_they_are:
            self.all_rows = PlainRows(self.aux.transpose(1, 2).contiguous())
        else:
            self.all_rows = lay_out(self.aux, self.stage.per_set)
        grouped = isinstance(self.all_rows, GroupedRows)
        return self.all_rows.order, self.all_rows.blocks.rows_shape if grouped else (self.aux.shape[1],)  # type: ignore[union-attr]

    def rows(self, index: Tensor | None) -> AuxRows:
        if index is None:
            assert self.all_rows is not None
            return self.all_rows
        sets = torch.arange(self.stage.n_sets, device=index.device).repeat_interleave(self.stage.per_set).unsqueeze(1)
        return PlainRows(self.aux[sets, index].transpose(1, 2).contiguous(), None, self.stage.n_sets)

    def mean(self, value: Tensor) -> Tensor:
        if isinstance(self.all_rows, GroupedRows):
            return self.all_rows.blocks.mean(value)
        return value.flatten(2).mean(2).flatten()

    def before_climbing(self, rows: AuxRows, y: Tensor) -> None:
        pass

    def membership(self, rows: AuxRows) -> Membership:
        return self.net.membership(self.parameters.views, rows)

    def begin(self, acting: Tensor, before: Tensor, slopes: Callable[[], Tensor]) -> None:
        pass

    def of(self, rows: Sequence[Rows]) -> Callable[[], Membership]:
        z = self.stage.scaled_aux(rows).transpose(1, 2).contiguous()
        return lambda: self.net.from_logits(self.net.logits(self.parameters.views, z), self.stage.n_sets)

    def state(self) -> dict[str, Tensor]:
        return self.parameters.state()


SOURCES: Mapping[str, Callable[[Stage], Source]] = {"aux": RhoOnAux}
