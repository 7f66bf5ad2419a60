"""Environments inferred row by row (EIIL): one membership per training row and run, and none for other rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from irmtv.core.membership import SoftPair
from irmtv.engine.components.base import EnvironmentSource, Phase, StepRows
from irmtv.engine.context import Context
from irmtv.engine.optim import Adam, FlatParameters
from irmtv.objectives.eiil import exact_split, inference_gradient
from irmtv.objectives.environments.aux_network import Climbing


class RowEnvironments(EnvironmentSource):
    """Two environments (q, 1 - q) with q (R, N): climbing at every step, or split where a run's warm-up ends.

    The split is by the slope in one w on all logits, whichever classifier the penalty then has.
    """

    n_environments = 2

    def __init__(self, context: Context) -> None:
        self.context = context
        self.joint = context.static["variant"] == "joint"
        self.rate = context.column("environment_learning_rate")
        n_rows = len(context.tasks[0].train)
        # until it is split a run's penalty has weight 0: any finite q will do
        self.q = context.full((context.n_runs, n_rows), 0.5)
        self.known = torch.full((context.n_runs, 1), self.joint, device=context.device)
        self.starts: list[dict[str, Tensor]] = []
        if self.joint or context.static["inference"] == "ascent":
            self.starts = [{"a": torch.randn(n_rows, generator=g, dtype=torch.float64)} for g in context.generators]
        self.parameters = FlatParameters(self.starts, context.device, context.dtype) if self.joint else None
        self.adam = None if self.parameters is None else Adam(self.parameters, self.rate, maximise=True)

    def arrange(self, as_they_are: bool) -> tuple[Tensor | None, tuple[int, ...]]:
        return None, (self.q.shape[1],)

    def rows(self, index: Tensor | None) -> Tensor | None:
        return index

    def membership(self, rows: Tensor | None) -> SoftPair:
        if self.parameters is None:
            q = self.q if rows is None else self.q.gather(1, rows)
        else:
            a = self.parameters.views["a"]
            q = torch.sigmoid(a if rows is None else a.gather(1, rows))
        return SoftPair(q.view(self.context.n_sets, self.context.per_set, -1))

    def climbing(self, rows: StepRows, slope: Tensor) -> Climbing:
        assert self.parameters is not None
        a = self.parameters.views["a"]

        def gradient(by_logits: Tensor) -> dict[str, Tensor]:
            by_row = by_logits.squeeze(1)
            return {"a": by_row if rows.inferred is None else torch.zeros_like(a).scatter_(1, rows.inferred, by_row)}

        return Climbing.of_rows(self.membership(rows.inferred), slope, rows.weight, gradient)

    def begin(self, phase: Phase, slopes: Callable[[], Tensor]) -> None:
        """Split the rows of the runs whose warm-up ends here."""
        ending = (phase.acting & ~phase.before).nonzero().flatten()
        if self.joint or not len(ending):
            return
        slope = slopes()[ending]
        self.q[ending] = self._ascend(slope, ending) if self.starts else exact_split(slope)
        self.known[ending] = True

    def _ascend(self, slope: Tensor, which: Tensor) -> Tensor:
        """Gradient steps on frozen slopes (r, N) of the runs `which`, then a hard split.

        The value that they climb is made of means of the slopes: a row of weight w has w times its slope in them.
        """
        shares = self.context.shares()
        if shares is not None:
            slope = slope * (shares * shares.shape[1])[which // self.context.per_set]
        logits = FlatParameters([self.starts[r] for r in which.tolist()], self.context.device, self.context.dtype)
        adam, a = Adam(logits, self.rate[which], maximise=True), logits.views["a"].detach()
        gradient = logits.gradient.view_as(a)
        for _ in range(self.context.static["inference_steps"]):
            gradient.copy_(inference_gradient(a, slope))
            adam.step()
        return (a > 0).to(slope.dtype)

    def state(self) -> dict[str, Tensor]:
        """Probability of the first environment, for the training rows in their own order; NaN before the split."""
        q = self.q if self.parameters is None else torch.sigmoid(self.parameters.views["a"].detach())
        return {"q": torch.where(self.known, q, torch.nan)}
