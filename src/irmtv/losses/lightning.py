"""The losses in a Lightning training: a module that calls them, and a callback for the warm-up.

>>> import torch
>>> from lightning import Trainer
>>> from irmtv.losses.lightning import InvariantModule, PenaltyWarmup
>>> from irmtv.losses import IRMTVLoss
>>> module = InvariantModule(torch.nn.Linear(3, 1), IRMTVLoss("binary", n_environments=2), lr=1e-2)
>>> trainer = Trainer(max_epochs=20, callbacks=[PenaltyWarmup(warmup=10)])  # doctest: +SKIP
>>> trainer.fit(module, loader)  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from irmtv.core.messages import did_you_mean
from irmtv.losses import EnvironmentLoss, MinimaxTVLoss, warmup_weight
from irmtv.losses.base import PenalisedLoss, known

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError("irmtv.losses.lightning needs lightning. Install it: pip install 'irmtv[lightning]'.") from error

_PARTS = ("x", "y", "environment", "aux", "membership")


class InvariantModule(LightningModule):
    """A predictor trained with a loss of :mod:`irmtv.losses`.

    A batch is a dict with "x", "y" and what the loss reads ("environment", "membership" or "aux"), or a tuple
    (x, y, environment), (x, y, environment, aux), or, with :class:`MinimaxTVLoss`, (x, y, aux). What the loss does not
    read is left alone.

    Logged, with "train", "val" or "test" before them: ``_loss``, ``_risk``, ``_penalty`` (without its weight; where
    there is one) and, in training, ``_risk_environment_<code>`` for the environments of the batch.

    Parameters
    ----------
    predictor : nn.Module
        x -> logits.
    loss : EnvironmentLoss
        Of :mod:`irmtv.losses`. Where batches vary in their environments give it ``n_environments``.
    optimizer : function, default torch.optim.Adam
        Called with the parameter groups and the settings; returns the optimizer.
    environment_lr : float or None, default None
        The rate of the loss's own network (:class:`MinimaxTVLoss`), if it differs; it never has weight decay.
    **settings
        For the optimizer: ``lr``, ``weight_decay``, ...

    Examples
    --------
    >>> import torch
    >>> from irmtv.losses import MinimaxTVLoss
    >>> module = InvariantModule(torch.nn.Linear(3, 1), MinimaxTVLoss(n_aux=1), lr=1e-3, environment_lr=1e-2)
    >>> [group["lr"] for group in module.configure_optimizers().param_groups]
    [0.001, 0.01]
    """

    def __init__(
        self,
        predictor: nn.Module,
        loss: EnvironmentLoss,
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
        environment_lr: float | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        if not isinstance(loss, EnvironmentLoss):
            raise ValueError(
                f"loss must be a loss of irmtv.losses, e.g. IRMTVLoss('binary'). Got {type(loss).__name__}. A loss "
                "function of your own goes into it: IRMTVLoss(my_function)."
            )
        self.predictor = predictor
        self.loss = loss
        self.optimizer = optimizer
        self.environment_lr = environment_lr
        self.settings = settings

    def forward(self, x: Any) -> Any:
        """The logits."""
        return self.predictor(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of a batch; logs the risk of every environment too."""
        return self._step(batch, "train")

    def validation_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of a batch of validation."""
        return self._step(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of a batch of the test."""
        return self._step(batch, "test")

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        """The logits of a batch: a dict or tuple as in training, or x alone."""
        x = batch["x"] if isinstance(batch, Mapping) else batch[0] if isinstance(batch, (tuple, list)) else batch
        return self.predictor(x)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer: one group of parameters for the predictor, one for the loss's own network if it has one."""
        groups: list[dict[str, Any]] = [{"params": list(self.predictor.parameters())}]
        own = list(self.loss.parameters())
        if own:
            rate = {} if self.environment_lr is None else {"lr": self.environment_lr}
            groups.append({"params": own, "weight_decay": 0.0, **rate})
        return self.optimizer(groups, **self.settings)

    def _step(self, batch: Any, stage: Literal["train", "val", "test"]) -> Tensor:
        parts = self._parts(batch)
        x, y = parts.pop("x"), parts.pop("y")
        total: Tensor = self.loss(self.predictor(x), y, **parts)
        # the statistics of a training step are those of all ranks already
        evaluates = stage != "train"
        settings: dict[str, Any] = {"batch_size": len(y), "sync_dist": evaluates, "on_epoch": evaluates}
        self.log(f"{stage}_loss", total.detach(), **settings)
        self.log(f"{stage}_risk", self.loss.risk_, **settings)
        if isinstance(self.loss, PenalisedLoss):
            self.log(f"{stage}_penalty", self.loss.penalty_, **settings)
        kept = self.loss.by_environment_
        if not evaluates:  # ranks may lack different environments in validation: there is no mean to log
            for code, risk in zip(kept["environment"].tolist(), kept["risk"], strict=True):
                self.log(f"{stage}_risk_environment_{code}", risk, batch_size=len(y))
        return total

    def _parts(self, batch: Any) -> dict[str, Any]:
        """The batch by name, without what the loss does not read."""
        minimax = isinstance(self.loss, MinimaxTVLoss)
        if isinstance(batch, Mapping):
            unknown = [name for name in batch if name not in _PARTS]
            if unknown or not {"x", "y"} <= set(batch):
                near = did_you_mean(unknown[0], _PARTS) if unknown else ""
                raise ValueError(
                    f"a batch must be a dict with 'x', 'y' and some of {_PARTS[2:]}. Got the keys {sorted(batch)}."
                    f"{near}"
                )
            parts = dict(batch)
        elif isinstance(batch, (tuple, list)) and len(batch) in (3, 4):
            third = ("aux",) if minimax and len(batch) == 3 else ("environment", "aux")
            parts = dict(zip(("x", "y", *third), batch, strict=False))
        else:
            got = f"{type(batch).__name__} of {len(batch)}" if hasattr(batch, "__len__") else type(batch).__name__
            raise ValueError(
                "a batch must be (x, y, environment), (x, y, environment, aux), (x, y, aux) for MinimaxTVLoss, or a "
                f"dict. Got {got}."
            )
        unread = ("environment", "membership") if minimax else ("aux",)
        return {name: value for name, value in parts.items() if name not in unread}


class PenaltyWarmup(Callback):
    """Weight 0 first, then the loss's own ``penalty_weight``; inferred environments are frozen with the change.

    The weight is a function of the epoch (or step) alone, so that a training that is resumed goes on where it was. The
    loss has its own weight again when the fit ends, also by an error or an interrupt.

    Parameters
    ----------
    warmup : int
        Epochs (or steps) of ERM.
    ramp : int, default 0
        Epochs (or steps) over which the weight then rises, linearly; 0: at once.
    unit : {"epoch", "step"}, default "epoch"
        What is counted.
    freeze_environments : bool, default True
        Freeze the network of a :class:`MinimaxTVLoss` at the end of the warm-up (the published schedule). A fit that
        begins with a warm-up lets it learn again. False leaves it as it is, frozen or not. Under
        DistributedDataParallel this needs ``strategy="ddp_find_unused_parameters_true"``.

    Examples
    --------
    >>> PenaltyWarmup(warmup=10, ramp=5).warmup
    10
    """

    def __init__(
        self, warmup: int, ramp: int = 0, unit: Literal["epoch", "step"] = "epoch", freeze_environments: bool = True
    ) -> None:
        for name, value in (("warmup", warmup), ("ramp", ramp)):
            if not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} must be a whole number of at least 0. Got {value!r}.")
        self.warmup = warmup
        self.ramp = ramp
        self.unit = known(unit, ("epoch", "step"), "unit")
        self.freeze_environments = freeze_environments
        self._weight: float | None = None  # the loss's own, once the training has begun

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loss = _penalised(pl_module)
        self._weight = loss.penalty_weight
        # an earlier fit left it frozen; where a checkpoint is resumed behind the warm-up, the first batch freezes again
        if isinstance(loss, MinimaxTVLoss) and self.freeze_environments and self._done(trainer) < self.warmup:
            loss.unfreeze_environments()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        loss = _penalised(pl_module)
        done = self._done(trainer)
        assert self._weight is not None
        loss.penalty_weight = warmup_weight(done, self._weight, self.warmup, self.ramp)
        if isinstance(loss, MinimaxTVLoss) and self.freeze_environments and done >= self.warmup:
            loss.freeze_environments()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._restore(pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._restore(pl_module)  # lightning calls neither on_fit_end nor teardown then

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._restore(pl_module)

    def _done(self, trainer: Trainer) -> int:
        return trainer.current_epoch if self.unit == "epoch" else trainer.global_step

    def _restore(self, module: LightningModule) -> None:
        if self._weight is not None:
            _penalised(module).penalty_weight = self._weight  # a second fit warms up to the same weight
            self._weight = None


def _penalised(module: LightningModule) -> PenalisedLoss:
    loss = getattr(module, "loss", None)
    if not isinstance(loss, PenalisedLoss):
        raise ValueError(
            "PenaltyWarmup needs a module whose `loss` has a penalty (IRMTVLoss, VRExLoss, MinimaxTVLoss). Got "
            f"{type(loss).__name__}."
        )
    return loss


__all__ = ["InvariantModule", "PenaltyWarmup"]
