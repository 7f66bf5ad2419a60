"""V-REx for a user's own loop: sum_e mu_e R_e + lambda Var_mu(R_e)."""

from __future__ import annotations

from torch import Tensor

from irmtv.core.risk import summarise
from irmtv.core.types import Measure
from irmtv.losses.base import PenalisedLoss, check_measure, full_precision, tells_of_aux, under_measure
from irmtv.losses.batch import LossFunction
from irmtv.objectives.vrex import VREX


class VRExLoss(PenalisedLoss):
    """Risk extrapolation: the risk, and lambda times its variance over the environments.

    risk + lambda sum_e mu_e (R_e - sum_e mu_e R_e)^2. Published codes differ by constant factors (the unbiased variance
    of two environments is twice this one), so their lambda cannot be carried over as it is.

    Parameters
    ----------
    loss : {"binary", "multiclass", "squared"} or function, default "binary"
    penalty_weight : float, default 1e3
    measure : {"empirical", "uniform"} or tuple of float, default "empirical"
    normalise : bool, default True
    n_environments : int or None, default None
    reduce_across_ranks : bool or None, default None
    check_values : bool, default True
        All as in :class:`IRMTVLoss`; so are ``risk_``, ``penalty_`` and ``by_environment_``, without slopes.

    Examples
    --------
    >>> import torch
    >>> from irmtv.losses import VRExLoss
    >>> criterion = VRExLoss(loss="squared", penalty_weight=1.0, normalise=False)
    >>> prediction, y = torch.tensor([1.0, 2.0, 0.0, 0.0]), torch.zeros(4)
    >>> criterion(prediction, y, environment=torch.tensor([0, 1, 0, 1]))  # risks 0.5 and 2, mean 1.25
    tensor(1.8125)
    """

    def __init__(
        self,
        loss: str | LossFunction = "binary",
        penalty_weight: float = 1e3,
        measure: Measure = "empirical",
        normalise: bool = True,
        *,
        n_environments: int | None = None,
        reduce_across_ranks: bool | None = None,
        check_values: bool = True,
    ) -> None:
        n_environments = check_measure(measure, n_environments)
        super().__init__(loss, penalty_weight, normalise, n_environments, reduce_across_ranks, check_values)
        self.measure: Measure = measure

    @tells_of_aux
    def forward(
        self, logits: Tensor, y: Tensor, environment: Tensor | None = None, *, membership: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch, (); arguments as those of :meth:`IRMTVLoss.forward`."""
        with full_precision(logits):
            rows, environments = self._batch(logits, y, environment, membership)
            e, measure = under_measure(summarise(rows.values(), None, environments, ("risk",)), self.measure)
            risk, penalty = e.expected_risk(measure)[0], VREX.penalties[0](e, measure)[0]
            self._keep(e, environments, risk, penalty)
            return self._total(risk, penalty)

    def extra_repr(self) -> str:
        return f"measure={self.measure!r}, {super().extra_repr()}"
