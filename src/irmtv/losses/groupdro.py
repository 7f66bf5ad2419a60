"""groupDRO for a user's own loop: the risk under weights that follow the worst environments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from irmtv.core.messages import check_positive
from irmtv.core.risk import summarise
from irmtv.core.types import Statistics
from irmtv.losses.base import EnvironmentLoss, at_least_zero, full_precision, tells_of_aux
from irmtv.losses.batch import LossFunction
from irmtv.objectives.learned_measure import exponentiated_ascent


class GroupDROLoss(EnvironmentLoss):
    """Group distributionally robust optimisation: minimise the risk of the worst environments.

    At every call in training mode ``weights`` moves, q_e <- q_e exp(step_size (R_e + C / sqrt(n_e))), normalised; the
    loss is sum_e q_e R_e with the new weights, which pass no gradient on. An environment that a batch does not have
    counts risk 0 in the move (as published) and drops out of the loss. In evaluation mode the weights stand still.

    ``weights`` is a buffer: it is saved with the state and moves between devices.

    Parameters
    ----------
    loss : {"binary", "multiclass", "squared"} or function, default "binary"
        As in :class:`IRMTVLoss`.
    n_environments : int
        E; codes are 0..E-1.
    step_size : float, default 0.01
        Of the weights, on the scale of their logarithm. An attribute that may be set at any time.
    adjustment : float, default 0.0
        C: what a small environment's risk on new rows may exceed that on its own by. Needs `n_rows`.
    n_rows : sequence of int or None, default None
        Rows of each environment in the whole training set, for the adjustment.
    reduce_across_ranks : bool or None, default None
    check_values : bool, default True
        As in :class:`IRMTVLoss`; so are ``risk_`` (here under the weights) and ``by_environment_``, without slopes.

    Examples
    --------
    >>> import torch
    >>> from irmtv.losses import GroupDROLoss
    >>> criterion = GroupDROLoss(loss="squared", n_environments=2, step_size=1.0)
    >>> _ = criterion(torch.tensor([1.0, 0.0]), torch.zeros(2), environment=torch.tensor([0, 1]))
    >>> criterion.weights  # e / (e + 1) and 1 / (e + 1)
    tensor([0.7311, 0.2689])
    """

    weights: Tensor  # (E,)
    margins: Tensor  # (E,) C / sqrt(n_e)

    def __init__(
        self,
        loss: str | LossFunction = "binary",
        n_environments: int | None = None,
        step_size: float = 0.01,
        adjustment: float = 0.0,
        n_rows: Sequence[int] | None = None,
        *,
        reduce_across_ranks: bool | None = None,
        check_values: bool = True,
    ) -> None:
        if n_environments is None:
            raise ValueError(
                "n_environments must be given: every environment has a weight that is carried from batch to batch. "
                "Got None. Pass the number of environments; codes are 0..n_environments-1."
            )
        super().__init__(loss, n_environments, reduce_across_ranks, check_values)
        self.step_size = step_size
        self.adjustment = at_least_zero(adjustment, "adjustment")
        self.register_buffer("weights", torch.full((n_environments,), 1 / n_environments))
        self.register_buffer("margins", _margins(self.adjustment, n_rows, n_environments), persistent=False)

    @property
    def step_size(self) -> float:
        """How far the weights move at a call."""
        return self._step_size

    @step_size.setter
    def step_size(self, value: float) -> None:
        self._step_size = at_least_zero(value, "step_size")

    @tells_of_aux
    def forward(
        self, logits: Tensor, y: Tensor, environment: Tensor | None = None, *, membership: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch, (); arguments as those of :meth:`IRMTVLoss.forward`."""
        with full_precision(logits):
            rows, environments = self._batch(logits, y, environment, membership)
            e = summarise(rows.values(), None, environments, ("risk",))
            if self.training:
                self._move(e)
            e = replace(e, learned=self.weights.to(e.mass.dtype).unsqueeze(0))
            risk = e.expected_risk("learned")[0]
            self._keep(e, environments, risk)
            return risk

    @torch.no_grad()
    def _move(self, e: Statistics) -> None:
        assert e.risk is not None
        gain = e.risk.detach() + self.margins.to(e.risk.dtype)  # (1, E)
        old = self.weights.to(gain.dtype).unsqueeze(0)
        moved = exponentiated_ascent(old, gain, gain.new_full((1, 1), self._step_size))
        # a risk that is not finite (a step that a gradient scaler will skip): the weights wait
        self.weights.copy_(torch.where(moved.isfinite().all(), moved, old)[0])

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, step_size={self.step_size:g}, adjustment={self.adjustment:g}"


def _margins(adjustment: float, n_rows: Any, n_environments: int) -> Tensor:
    """C / sqrt(n_e): (E,)."""
    if not adjustment:
        return torch.zeros(n_environments)
    if n_rows is None or len(n_rows) != n_environments:
        got = "None" if n_rows is None else f"{len(n_rows)} numbers"
        raise ValueError(
            f"n_rows must be {n_environments} numbers with adjustment={adjustment:g}: the rows of each environment in "
            f"the training set. Got {got}. E.g. n_rows=torch.bincount(environment).tolist()."
        )
    counts = [int(n) for n in n_rows]
    for count in counts:
        check_positive(count, "n_rows")
    return adjustment / torch.tensor(counts, dtype=torch.get_default_dtype()).sqrt()
