"""Environments inferred row by row (EIIL): one membership per training row and run, and none for other rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from irmtv.core.membership import SoftPair
from irmtv.core.types import Rows
from irmtv.engine.context import Stage
from irmtv.engine.optim import Adam, FlatParameters
from irmtv.objectives.eiil import exact_split, inference_gradient


class RowEnvironments:
    """Two environments (q, 1 - q) with q (R, N): climbing at every step, or split where a run's warm-up ends.

    The split is by the slope in one w on all logits, whichever classifier the penalty then has.
    """

    n_environments = 2

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.joint = stage.static["variant"] == "joint"
        self.rate = stage.column("environment_learning_rate")
        n_rows = len(stage.tasks[0].train)
        # until it is split a run's penalty has weight 0: any finite q will do
        self.q = torch.full((stage.n_runs, n_rows), 0.5, device=stage.device, dtype=stage.dtype)
        self.known = torch.full((stage.n_runs, 1), self.joint, device=stage.device)
        self.starts: list[dict[str, Tensor]] = []
        if self.joint or stage.static["inference"] == "ascent":
            self.starts = [{"a": torch.randn(n_rows, generator=g, dtype=torch.float64)} for g in stage.generators]
        self.parameters = FlatParameters(self.starts, stage.device, stage.dtype) if self.joint else None
        self.adam = None if self.parameters is None else Adam(self.parameters, self.rate, maximise=True)

    def arrange(self, as_they_are: bool) -> tuple[Tensor | None, tuple[int, ...]]:
        return None, (self.q.shape[1],)

    def rows(self, index: Tensor | None) -> Tensor | None:
        return index

    def mean(self, value: Tensor) -> Tensor:
        return value.flatten(2).mean(2).flatten()

    def before_climbing(self, rows: Tensor | None, y: Tensor, weight: Tensor | None) -> None:
        pass

    def membership(self, rows: Tensor | None) -> SoftPair:
        if self.parameters is None:
            q = self.q if rows is None else self.q.gather(1, rows)
        else:
            a = self.parameters.views["a"]
            q = torch.sigmoid(a if rows is None else a.gather(1, rows))
        return SoftPair(q.view(self.stage.n_sets, self.stage.per_set, -1))

    def begin(self, acting: Tensor, before: Tensor, slopes: Callable[[], Tensor]) -> None:
        """Split the rows of the runs whose warm-up ends here."""
        ending = (acting & ~before).nonzero().flatten()
        if self.joint or not len(ending):
            return
        slope = slopes()[ending]
        self.q[ending] = self._ascend(slope, ending) if self.starts else exact_split(slope)
        self.known[ending] = True

    def _ascend(self, slope: Tensor, which: Tensor) -> Tensor:
        """Gradient steps on frozen slopes (r, N) of the runs `which`, then a hard split.

        The value that they climb is made of means of the slopes: a row of weight w has w times its slope in them.
        """
        shares = self.stage.shares()
        if shares is not None:
            slope = slope * (shares * shares.shape[1])[which // self.stage.per_set]
        starts = [self.starts[r] for r in which.tolist()]
        logits = FlatParameters(starts, self.stage.device, self.stage.dtype)
        adam, a = Adam(logits, self.rate[which], maximise=True), logits.views["a"].detach()
        gradient = logits.gradient.view_as(a)
        for _ in range(self.stage.static["inference_steps"]):
            gradient.copy_(inference_gradient(a, slope))
            adam.step()
        return (a > 0).to(slope.dtype)

    def of(self, rows: Sequence[Rows]) -> None:
        return None

    def state(self) -> dict[str, Tensor]:
        """Probability of the first environment, for the training rows in their own order; NaN before the split."""
        q = self.q if self.parameters is None else torch.sigmoid(self.parameters.views["a"].detach())
        return {"q": torch.where(self.known, q, torch.nan)}
