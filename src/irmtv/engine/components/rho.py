"""Environments inferred from auxiliary variables: a network rho climbs the penalties while Phi descends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from irmtv.core.membership import RowMembership
from irmtv.core.types import Rows
from irmtv.engine.components.base import EnvironmentSource, StepRows
from irmtv.engine.context import Context
from irmtv.engine.optim import Adam, FlatParameters
from irmtv.objectives.environments.aux_network import AuxNetwork, AuxRows, Climbing, GroupedRows, PlainRows, lay_out


class RhoOnAux(EnvironmentSource):
    """rho, a network on auxiliary variables, climbs the penalties."""

    parameters: FlatParameters
    adam: Adam

    def __init__(self, context: Context) -> None:
        self.context, static = context, context.static
        self.aux = self.read([t.train for t in context.tasks])  # (T, N, A)
        self.net = AuxNetwork(self.aux.shape[2], static["n_environments"], static["environment_hidden"])
        self.n_environments = self.net.n_environments
        self.parameters = FlatParameters([self.net.init(g) for g in context.generators], context.device, context.dtype)
        self.rate = context.column("environment_learning_rate")
        self.adam = Adam(self.parameters, self.rate, maximise=True)
        self.all_rows: AuxRows | None = None

    def read(self, rows: Sequence[Rows]) -> Tensor:
        """What rho reads of one data set's rows each: (T, N, A)."""
        return self.context.scaled_aux(rows)  # `check_tasks` saw to it that there is aux

    def arrange(self, as_they_are: bool) -> tuple[Tensor | None, tuple[int, ...]]:
        if as_they_are:
            self.all_rows = PlainRows(self.aux.transpose(1, 2).contiguous())
        else:
            self.all_rows = lay_out(self.aux, self.context.per_set, self.context.weights)
        if isinstance(self.all_rows, GroupedRows):
            return self.all_rows.order, self.all_rows.blocks.rows_shape
        return self.all_rows.order, (self.aux.shape[1],)

    def rows(self, index: Tensor | None) -> AuxRows:
        if index is None:
            assert self.all_rows is not None
            return self.all_rows
        return PlainRows(self.aux[self.context.sets, index].transpose(1, 2).contiguous(), None, self.context.n_sets)

    def mean(self, value: Tensor) -> Tensor:
        if isinstance(self.all_rows, GroupedRows):
            return self.all_rows.blocks.mean(value)
        return super().mean(value)

    def views(self) -> Mapping[str, Tensor]:
        """The parameters that the network computes with: (R, ...), differentiable in those that climb."""
        return self.parameters.views

    def membership(self, rows: AuxRows) -> RowMembership:
        return rows.membership(self.net, self.views())

    def climbing(self, rows: StepRows, slope: Tensor) -> Climbing:
        places: AuxRows = rows.inferred
        return places.climbing(self.net, self.parameters.views, slope, rows.weight)

    def membership_of(self, rows: Sequence[Rows]) -> Callable[[], RowMembership]:
        z = self.read(rows).transpose(1, 2).contiguous()
        return lambda: self.net.from_logits(self.net.logits(self.views(), z), self.context.n_sets)

    def state(self) -> dict[str, Tensor]:
        return {name: view.detach().clone() for name, view in self.views().items()}
