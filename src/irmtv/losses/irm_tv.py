"""Penalties on known environments for a user's own loop: sum_e mu_e R_e + lambda times a total variation, or V-REx."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from irmtv.core.risk import summarise
from irmtv.core.types import Measure, Reduction
from irmtv.losses.base import PenalisedLoss, check_measure, full_precision, known, tells_of_aux, under_measure
from irmtv.losses.batch import LossFunction, read_last_layer
from irmtv.objectives.irm_tv_l1 import IRM_TV_L1
from irmtv.objectives.irm_tv_l2 import IRM_TV_L2
from irmtv.objectives.vrex import VREX

Norm = Literal["l1", "l2"]
Classifier = Literal["scalar", "vector"]
PENALTIES = {"l1": IRM_TV_L1.penalties[0], "l2": IRM_TV_L2.penalties[0]}


class IRMTVLoss(PenalisedLoss):
    """Invariant risk minimisation as a total variation model, environments given.

    ``norm="l1"``: ``risk + lambda (sum_e mu_e |S_e|)^2``; ``norm="l2"``: ``risk + lambda sum_e mu_e |S_e|^2`` (under
    the uniform measure IRMv1). The risk is sum_e mu_e R_e, R_e being the mean loss in environment e, and S_e is the
    slope of R_e in a classifier w that multiplies the logits, at w = 1. Slopes are closed forms of the logits, so one
    ordinary backward is exact: no gradient is differentiated, and ``create_graph`` is not needed.

    Batches may be whole or mini. An environment that a batch does not have drops out, and the measure on the others is
    renormalised. On mini-batches the slope of few rows is mostly noise: give every environment of a batch dozens of
    rows.

    Parameters
    ----------
    loss : {"binary", "multiclass", "squared"} or function, default "binary"
        "binary": cross-entropy on one logit; "multiclass": on one per class; "squared": the squared error, averaged
        over targets. A function (logits, y) -> one number per row sees both as they were passed; its slope is a
        forward-mode derivative.
    norm : {"l1", "l2"}, default "l1"
        Which total variation.
    penalty_weight : float, default 1e3
        lambda; an attribute that may be set at any time, e.g. by :func:`warmup_weight`.
    measure : {"empirical", "uniform"} or tuple of float, default "empirical"
        mu: each environment's share of the rows, equal, or given.
    normalise : bool, default True
        Divide by 1 + lambda, so that the size of the loss, and with it the fitting learning rate, does not depend on
        lambda.
    classifier : {"scalar", "vector"}, default "scalar"
        "vector": one w per logit, or, where there is one output, one per input of the last layer; then pass `features`
        (those inputs) and `weight` (the layer's weights) too.
    reduction : {"expectation", "authors"}, default "expectation"
        "authors" sums mass-weighted slopes, as the published code does; it fixes the measure.
    n_environments : int or None, default None
        E, for codes 0..E-1. None: any integers, those of the batch are the environments (waits for a GPU once a call).
        Needed under ``torch.compile(fullgraph=True)`` and on several ranks.
    reduce_across_ranks : bool or None, default None
        Under torch.distributed, take the means over the rows of all ranks; with DistributedDataParallel, N ranks then
        give the gradients of one process with the whole batch. None: in training mode, yes; in evaluation each rank by
        itself.
    check_values : bool, default True
        Look for codes and labels out of range. False saves the host a wait for the GPU.

    Attributes
    ----------
    risk_, penalty_ : Tensor, ()
        Of the last call, detached; the penalty without lambda.
    by_environment_ : dict of Tensor
        "environment" (codes), "mass", "risk", "slope", each (E,), or (E, J) for the slope of a vector classifier; NaN
        where the batch has no rows.

    Examples
    --------
    >>> import torch
    >>> from irmtv.losses import IRMTVLoss
    >>> criterion = IRMTVLoss(loss="binary", penalty_weight=10.0)
    >>> logits = torch.tensor([2.0, -1.0, 1.0, 0.5], requires_grad=True)
    >>> y, environment = torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([0, 0, 1, 1])
    >>> criterion(logits, y, environment=environment).backward()
    >>> criterion.by_environment_["risk"]
    tensor([0.2201, 0.6437])
    """

    def __init__(
        self,
        loss: str | LossFunction = "binary",
        norm: Norm = "l1",
        penalty_weight: float = 1e3,
        measure: Measure = "empirical",
        normalise: bool = True,
        classifier: Classifier = "scalar",
        *,
        reduction: Reduction = "expectation",
        n_environments: int | None = None,
        reduce_across_ranks: bool | None = None,
        check_values: bool = True,
    ) -> None:
        n_environments = check_measure(measure, n_environments)
        super().__init__(loss, penalty_weight, normalise, n_environments, reduce_across_ranks, check_values)
        self.norm: Norm = known(norm, ("l1", "l2"), "norm")
        self.measure: Measure = measure
        self.classifier: Classifier = known(classifier, ("scalar", "vector"), "classifier")
        self.reduction: Reduction = known(reduction, ("expectation", "authors"), "reduction")
        if reduction == "authors" and measure != "empirical":
            raise ValueError(
                "measure must be 'empirical' with reduction='authors', whose slopes are weighted by the shares of the "
                f"rows. Got {measure!r}. Use reduction='expectation'."
            )

    @tells_of_aux
    def forward(
        self,
        logits: Tensor,
        y: Tensor,
        environment: Tensor | None = None,
        *,
        membership: Tensor | None = None,
        features: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch.

        Parameters
        ----------
        logits : Tensor, (N,), (N, 1) or (N, C)
            The network's outputs, before any sigmoid or softmax; half precision is widened to float32.
        y : Tensor, (N,), (N, 1), or (N, C) for several targets
        environment : Tensor, (N,), integers
            The environment of every row; or
        membership : Tensor, (N, E)
            its probability of each; gradients reach it.
        features, weight : Tensor, (N, J) and (J,) or (1, J)
            Inputs and weights of the last layer, for a vector classifier and one output.

        Returns
        -------
        Tensor, ()
        """
        with full_precision(logits):
            rows, environments = self._batch(logits, y, environment, membership)
            vector = self.classifier == "vector"
            value, slope = rows.values_and_slopes(vector, read_last_layer(rows, vector, features, weight))
            e, measure = under_measure(summarise(value, slope, environments, ("risk", "slope")), self.measure)
            risk, penalty = e.expected_risk(measure)[0], PENALTIES[self.norm](e, measure, self.reduction)[0]
            self._keep(e, environments, risk, penalty)
            return self._total(risk, penalty)

    def extra_repr(self) -> str:
        own = f"norm={self.norm!r}, measure={self.measure!r}, classifier={self.classifier!r}"
        return f"{own}, reduction={self.reduction!r}, {super().extra_repr()}"


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
