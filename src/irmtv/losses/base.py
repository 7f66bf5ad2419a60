"""What the losses share: from a batch to a few numbers per environment, and those numbers kept for logging."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec

import torch
from torch import Tensor, nn

from irmtv.core.messages import check_positive, did_you_mean, plain
from irmtv.core.types import Measure, Statistics
from irmtv.losses.batch import BatchRows, LossFunction, OfBatch, given_environments, read_rows, require_tensor
from irmtv.losses.ranks import n_ranks

P = ParamSpec("P")
NAMED_LOSSES = ("binary", "multiclass", "squared")


def known(value: Any, choices: tuple[str, ...], parameter: str) -> Any:
    """`value`, if it is one of the choices."""
    if value not in choices:
        near = did_you_mean(value, choices)
        raise ValueError(f"{parameter} must be one of {', '.join(map(repr, choices))}. Got {value!r}.{near}")
    return value


def at_least_zero(value: Any, parameter: str) -> float:
    """`value` as a finite number of at least 0; True and "1" are no numbers, but mistakes."""
    value = plain(value)
    try:
        number = math.nan if isinstance(value, (bool, str, bytes)) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError(f"{parameter} must be a finite number of at least 0. Got {value!r}.")
    return number


def warmup_weight(step: int, penalty_weight: float, warmup: int, ramp: int = 0) -> float:
    """A penalty weight that is 0 while the predictor learns to predict at all, then rises to its value.

    A strong penalty from the start is best met by a predictor that is constant; the usual schedule is ERM
    first.

    Parameters
    ----------
    step : int
        How many steps (or epochs) are done: 0 in the first.
    penalty_weight : float
        The weight in the end.
    warmup : int
        Steps with weight 0.
    ramp : int, default 0
        Steps over which the weight then rises, linearly; 0: at once.

    Returns
    -------
    float

    Examples
    --------
    >>> [warmup_weight(step, 100.0, warmup=2, ramp=2) for step in range(5)]
    [0.0, 0.0, 50.0, 100.0, 100.0]
    """
    if step < warmup:
        return 0.0
    return float(penalty_weight) * min(1.0, (step - warmup + 1) / max(ramp, 1))


def tells_of_aux(forward: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Make a loss of known environments say what to do where aux is given; its signature stays as it is."""

    @wraps(forward)
    def checked(*args: P.args, **given: P.kwargs) -> Tensor:
        if "aux" in given:
            raise TypeError(
                f"{type(args[0]).__name__} has no argument aux: it takes known environments, environment=codes. Got a "
                f"{type(given['aux']).__name__}. To infer environments from aux use MinimaxTVLoss(...)(logits, y, "
                "aux=...)."
            )
        return forward(*args, **given)

    return checked


class EnvironmentLoss(nn.Module):
    """The base of the losses: reads batches, pools ranks, keeps what a log wants.

    After every call, detached: ``risk_`` (the risk term), ``penalty_`` (where there is one, without its weight) and
    ``by_environment_``, a dict of tensors over the environments: ``environment`` (codes), ``mass`` (share of the rows),
    ``risk`` and, where the objective has slopes, ``slope``. An environment that the batch does not have has NaN.
    """

    risk_: Tensor
    penalty_: Tensor
    by_environment_: dict[str, Tensor]

    def __init__(
        self,
        loss: str | LossFunction,
        n_environments: int | None,
        reduce_across_ranks: bool | None,
        check_values: bool,
    ) -> None:
        super().__init__()
        if isinstance(loss, str):
            known(loss, NAMED_LOSSES, "loss")
        elif not callable(loss) or isinstance(loss, type):
            raise ValueError(
                f"loss must be one of {', '.join(map(repr, NAMED_LOSSES))} or a function (logits, y) -> one number per "
                f"row. Got {loss!r}."
            )
        if n_environments is not None:
            check_positive(n_environments, "n_environments")
        self.loss: str | LossFunction = loss  # a module among them is registered, and moves along
        self.n_environments = n_environments
        self.reduce_across_ranks = reduce_across_ranks
        self.check_values = check_values

    @property
    def _checks(self) -> bool:
        return self.check_values and not torch.compiler.is_compiling()

    def _ranks(self) -> int:
        return n_ranks(self.reduce_across_ranks, self.training)

    def _rows(self, logits: Tensor, y: Tensor, ranks: int) -> BatchRows:
        return read_rows(self.loss, logits, y, self._checks, may_be_empty=ranks > 1)

    def _batch(
        self, logits: Tensor, y: Tensor, environment: Tensor | None, membership: Tensor | None
    ) -> tuple[BatchRows, OfBatch]:
        """The rows, and the environments that are given for them."""
        ranks = self._ranks()
        rows = self._rows(logits, y, ranks)
        return rows, given_environments(environment, membership, rows, self.n_environments, self._checks, ranks)

    def _keep(self, e: Statistics, environments: OfBatch, risk: Tensor, penalty: Tensor | None = None) -> None:
        """For logging: nothing here keeps a graph alive."""
        there = e.mass.detach()[0] > 0
        kept = {"environment": environments.codes, "mass": e.mass.detach()[0]}
        for name, values in (("risk", e.risk), ("slope", e.slope)):
            if values is not None:
                shown = values.detach()[0]  # (E,) or (E, J)
                kept[name] = torch.where(there if shown.ndim == 1 else there.unsqueeze(1), shown, math.nan)
        self.by_environment_ = kept
        self.risk_ = risk.detach().clone()  # the user may divide a returned loss in place
        if penalty is not None:
            self.penalty_ = penalty.detach()

    def extra_repr(self) -> str:
        loss = self.loss if isinstance(self.loss, str) else getattr(self.loss, "__name__", type(self.loss).__name__)
        return f"loss={loss!r}, n_environments={self.n_environments}"


def full_precision(logits: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Autocast off: it would take the sums over environments back to half precision."""
    require_tensor(logits, "logits")
    return torch.autocast(device_type=logits.device.type, enabled=False)


class PenalisedLoss(EnvironmentLoss):
    """risk + lambda penalty, divided by 1 + lambda where `normalise`; lambda may be set at any time."""

    def __init__(
        self,
        loss: str | LossFunction,
        penalty_weight: float,
        normalise: bool,
        n_environments: int | None,
        reduce_across_ranks: bool | None,
        check_values: bool,
    ) -> None:
        super().__init__(loss, n_environments, reduce_across_ranks, check_values)
        self.penalty_weight = penalty_weight
        self.normalise = normalise

    @property
    def penalty_weight(self) -> float:
        """lambda. Set it during training for a warm-up, see :func:`irmtv.losses.warmup_weight`."""
        return self._penalty_weight

    @penalty_weight.setter
    def penalty_weight(self, value: float) -> None:
        self._penalty_weight = at_least_zero(value, "penalty_weight")

    def _total(self, risk: Tensor, penalty: Tensor) -> Tensor:
        total = risk + self._penalty_weight * penalty
        return total / (1 + self._penalty_weight) if self.normalise else total

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, penalty_weight={self.penalty_weight:g}, normalise={self.normalise}"


def check_measure(measure: Any, n_environments: int | None) -> int | None:
    """The number of environments, which a given measure tells; raises if the measure is none."""
    if isinstance(measure, str):
        known(measure, ("empirical", "uniform"), "measure")
        return n_environments
    good = isinstance(measure, tuple) and all(isinstance(w, (int, float)) and 0 <= w < math.inf for w in measure)
    if not good or not sum(measure) > 0:
        raise ValueError(
            "measure must be 'empirical', 'uniform' or a tuple with one weight of at least 0 per environment. Got "
            f"{measure!r}."
        )
    if n_environments is not None and n_environments != len(measure):
        raise ValueError(
            f"measure must have one weight per environment: n_environments is {n_environments}. Got {len(measure)} "
            "weights. Leave n_environments out, or give as many weights."
        )
    return len(measure)


def under_measure(e: Statistics, measure: Measure) -> tuple[Statistics, Measure]:
    """The statistics with a given measure beside them (as a learned one would be held), and its kind."""
    if isinstance(measure, str):
        return e, measure
    return replace(e, learned=e.mass.new_tensor(measure).unsqueeze(0)), "learned"
