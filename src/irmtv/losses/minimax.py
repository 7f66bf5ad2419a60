"""Minimax-TV for a user's own loop: environments inferred from auxiliary variables, one optimizer for both sides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from irmtv.core.membership import Soft, SoftPair
from irmtv.core.messages import check_positive
from irmtv.core.risk import summarise
from irmtv.core.types import Reduction
from irmtv.losses.base import PenalisedLoss, full_precision, known
from irmtv.losses.batch import BatchRows, LossFunction, pooled_soft, read_last_layer, require_tensor
from irmtv.losses.irm_tv import PENALTIES, Classifier, Norm
from irmtv.losses.ranks import with_averaged_gradient
from irmtv.objectives.environments import AuxNetwork, AuxScaler


class MinimaxTVLoss(PenalisedLoss):
    """Invariant risk minimisation where environments are not known, only what they may depend on.

    mean loss + lambda max_rho of the total variation penalty, with environments q = rho(aux): a small network inside
    this module reads the auxiliary variables (time, place, ...) of a row and gives its probability of each environment.

    One optimizer serves both: hand it the predictor's parameters and this module's. The gradient of rho is reversed,
    so that the same descent step lowers the loss in the predictor and raises the penalty in rho; it does not depend on
    lambda, so that rho learns in a warm-up with ``penalty_weight = 0`` too. The usual schedule: a warm-up with weight
    0, in which rho finds environments, then :meth:`freeze_environments` and the full weight.

    rho's parameters fare best with a rate of their own and without weight decay (a parameter group). On several ranks
    its gradients are averaged by the module itself: do not wrap it in DistributedDataParallel.

    Parameters
    ----------
    loss : {"binary", "multiclass", "squared"} or function, default "binary"
        As in :class:`IRMTVLoss`.
    norm : {"l1", "l2"}, default "l1"
        ``(sum_e m_e |S_e|)^2`` or ``sum_e m_e |S_e|^2``, m_e the mean of q_e.
    penalty_weight : float, default 1e3
        lambda of the predictor; may be set at any time.
    n_aux : int or None, default None
        Columns of aux. Needed unless `network` is given.
    n_environments : int, default 2
        Environments to infer.
    hidden : int, default 16
        Hidden units of rho.
    network : nn.Module or None, default None
        An own rho: aux -> logits (N, n_environments), or (N, 1) for two. Its start should be one on all ranks.
    normalise : bool, default True
    classifier : {"scalar", "vector"}, default "scalar"
    reduction : {"expectation", "authors"}, default "expectation"
        "authors" with "l2" is ZIN.
    seed : int, default 0
        Of rho's start: the same on every rank.
    reduce_across_ranks : bool or None, default None
    check_values : bool, default True
        The others as in :class:`IRMTVLoss`; so are ``risk_``, ``penalty_`` and ``by_environment_``.

    Examples
    --------
    >>> import torch
    >>> from irmtv.losses import MinimaxTVLoss
    >>> x, time = torch.randn(64, 3), torch.linspace(2000.0, 2020.0, 64)
    >>> y = (x[:, 0] > 0).float()
    >>> model, criterion = torch.nn.Linear(3, 1), MinimaxTVLoss(n_aux=1, penalty_weight=0.0).standardise(time)
    >>> optimizer = torch.optim.Adam([{"params": model.parameters()}, {"params": criterion.parameters(), "lr": 0.01}])
    >>> for step in range(20):
    ...     if step == 10:
    ...         criterion.penalty_weight = 1e3
    ...         criterion.freeze_environments()
    ...     optimizer.zero_grad()
    ...     criterion(model(x), y, aux=time).backward()
    ...     optimizer.step()
    >>> criterion.membership(time).shape
    torch.Size([64, 2])
    """

    aux_mean: Tensor  # (A,) or (), float64 whatever the precision of the network
    aux_deviation: Tensor

    def __init__(
        self,
        loss: str | LossFunction = "binary",
        norm: Norm = "l1",
        penalty_weight: float = 1e3,
        n_aux: int | None = None,
        n_environments: int = 2,
        *,
        hidden: int = 16,
        network: nn.Module | None = None,
        normalise: bool = True,
        classifier: Classifier = "scalar",
        reduction: Reduction = "expectation",
        seed: int = 0,
        reduce_across_ranks: bool | None = None,
        check_values: bool = True,
    ) -> None:
        super().__init__(loss, penalty_weight, normalise, n_environments, reduce_across_ranks, check_values)
        self.norm: Norm = known(norm, ("l1", "l2"), "norm")
        self.classifier: Classifier = known(classifier, ("scalar", "vector"), "classifier")
        self.reduction: Reduction = known(reduction, ("expectation", "authors"), "reduction")
        if n_environments < 2:
            raise ValueError(f"n_environments must be at least 2: one is no choice. Got {n_environments}.")
        if n_aux is None and network is None:
            raise ValueError(
                "n_aux must be given: rho reads that many auxiliary columns. Got None. Pass n_aux=aux.shape[1] (1 for "
                "a time), or network= with a module of your own."
            )
        if n_aux is not None:
            check_positive(n_aux, "n_aux")
        self.n_aux = n_aux
        if network is None:
            assert n_aux is not None
            network = _environment_network(AuxNetwork(n_aux, n_environments, hidden), seed)
        self.network = network
        self.register_buffer("aux_mean", torch.zeros(n_aux or (), dtype=torch.float64))
        self.register_buffer("aux_deviation", torch.ones(n_aux or (), dtype=torch.float64))

    def standardise(self, aux: Tensor) -> Self:
        """Take the mean and deviation of every column of the training rows' aux, (N, A) or (N,), off from now on.

        rho starts with weights made for numbers of size 1. Call it once before training; the numbers are saved with
        the state, in float64: ``.half()`` and the like leave them as they are, since a time in seconds has no digits to
        spare. Pass such a time as float64, too. Without this call aux is read as it is.
        """
        if self.n_aux is None:
            raise ValueError("n_aux must be given to the loss to standardise aux. Got None. Pass n_aux=aux.shape[1].")
        scaler = AuxScaler.of(self._columns(aux, None))
        self.aux_mean = scaler.mean.to(self.aux_mean.device)
        self.aux_deviation = scaler.deviation.to(self.aux_deviation.device)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """As any module moves and changes its precision, but for the mean and deviation of aux, which only move."""
        kept = (self.aux_mean, self.aux_deviation)

        def moved(t: Tensor) -> Tensor:
            if not any(t is k for k in kept):
                return fn(t)
            try:
                there = fn(t)
            except TypeError:  # a device without float64
                return fn(t.float())
            return there if there.dtype == t.dtype else t.to(there.device)

        super()._apply(moved, recurse)  # type: ignore[no-untyped-call]  # torch does not annotate it
        return self

    def freeze_environments(self) -> None:
        """Keep rho as it is: no gradient from now on, and no step of the optimizer, momentum or decay either."""
        for p in self.network.parameters():
            p.requires_grad_(False)
            p.grad = None

    def unfreeze_environments(self) -> None:
        """Let rho learn (again)."""
        for p in self.network.parameters():
            p.requires_grad_(True)

    @property
    def environments_frozen(self) -> bool:
        return not any(p.requires_grad for p in self.network.parameters())

    @torch.no_grad()
    def membership(self, aux: Tensor) -> Tensor:
        """The inferred probability of each environment: aux (N, A) or (N,) -> (N, E)."""
        with full_precision(aux):
            return self._infer(aux, None, 1).q[0, 0].T

    def forward(
        self,
        logits: Tensor,
        y: Tensor,
        aux: Tensor | None = None,
        *,
        features: Tensor | None = None,
        weight: Tensor | None = None,
        environment: None = None,
        membership: None = None,
    ) -> Tensor:
        """The loss of a batch: its gradient descends in the predictor and ascends in rho.

        Parameters
        ----------
        logits, y, features, weight : Tensor
            As in :meth:`IRMTVLoss.forward`.
        aux : Tensor, (N, A) or (N,)
            The auxiliary variables of the rows.
        environment, membership : None
            Not read: known environments are for :class:`IRMTVLoss`.

        Returns
        -------
        Tensor, ()
        """
        for name, given in (("environment", environment), ("membership", membership)):
            if given is not None:
                raise ValueError(
                    f"{name} must be left out: MinimaxTVLoss infers environments from aux, (rows, columns). Got a "
                    f"{type(given).__name__}. Where environments are known use IRMTVLoss(...)(logits, y, {name}=...)."
                )
        ranks = self._ranks()
        with full_precision(logits):
            rows = self._rows(logits, y, ranks)
            q = self._infer(aux, rows, ranks)
            vector = self.classifier == "vector"
            value, slope = rows.values_and_slopes(vector, read_last_layer(rows, vector, features, weight))
            still = pooled_soft(_detached(q), rows, ranks)
            e = summarise(value, slope, still, ("risk", "slope"))
            risk, penalty = e.mean_risk[0], PENALTIES[self.norm](e, "empirical", self.reduction)[0]
            self._keep(e, still, risk, penalty)
            total = self._total(risk, penalty)
            if torch.is_grad_enabled() and not self.environments_frozen:
                moving = summarise(value.detach(), slope.detach(), pooled_soft(q, rows, ranks), ("slope",))
                climbed = PENALTIES[self.norm](moving, "empirical", self.reduction)[0]
                total = total - (climbed - climbed.detach())  # adds 0, and the reversed gradient of rho
            return total

    def _columns(self, aux: Tensor | None, rows: BatchRows | None) -> Tensor:
        """aux as (N, A)."""
        if aux is None:
            raise ValueError(
                "aux must be given: environments are inferred from it. Got None. Pass aux=z, (rows, columns); where "
                "environments are known use IRMTVLoss(...)(logits, y, environment=e)."
            )
        require_tensor(aux, "aux")
        columns = aux.unsqueeze(1) if aux.ndim == 1 else aux
        wrong_width = self.n_aux is not None and (columns.ndim != 2 or columns.shape[1] != self.n_aux)
        if wrong_width or (rows is not None and len(columns) != len(rows)):
            n = "rows" if rows is None else len(rows)
            raise ValueError(
                f"aux must have shape ({n}, {self.n_aux or '...'}): one row per sample, n_aux columns. Got "
                f"{tuple(aux.shape)}. Select the same rows as in logits, or set n_aux."
            )
        if self._checks and not bool(columns.isfinite().all()):
            raise ValueError("aux must be finite. Got NaN or infinite values. Impute them or drop these rows.")
        return columns if columns.is_floating_point() else columns.double()

    def _infer(self, aux: Tensor | None, rows: BatchRows | None, ranks: int) -> Soft | SoftPair:
        """rho(aux), with the run axes."""
        columns = self._columns(aux, rows)
        first = next(self.network.parameters(), None)
        dtype = torch.get_default_dtype() if first is None else first.dtype
        # the mean is float64, and so is the difference: a time in seconds has no digits to spare in float32
        mean, deviation = self.aux_mean.to(columns.device), self.aux_deviation.to(columns.device)
        z = ((columns - mean) / deviation).to(dtype)
        parameters = with_averaged_gradient(self.network.named_parameters(), ranks)
        logits = torch.func.functional_call(self.network, parameters, (z,))  # (N, E), or (N, 1) for two
        if logits.ndim != 2 or (
            logits.shape[1] != self.n_environments and (logits.shape[1], self.n_environments) != (1, 2)
        ):
            raise ValueError(
                f"network must give logits of shape ({len(z)}, {self.n_environments}). Got {tuple(logits.shape)}. Give "
                "its last layer n_environments outputs."
            )
        logits = logits.to(dtype if rows is None else rows.f.dtype)
        if logits.shape[1] == 1:
            return SoftPair(torch.sigmoid(logits.T[None]))
        return Soft(torch.softmax(logits.T[None, None], 2))

    def extra_repr(self) -> str:
        own = f"norm={self.norm!r}, n_aux={self.n_aux}, classifier={self.classifier!r}, reduction={self.reduction!r}"
        return f"{own}, {super().extra_repr()}"


def _environment_network(net: AuxNetwork, seed: int) -> nn.Sequential:
    """rho as a module, with the engine's start."""
    start = net.init(torch.Generator().manual_seed(seed))
    # without a start of their own: that would draw from the global generator, for nothing
    first = nn.utils.skip_init(nn.Linear, net.n_aux, net.hidden)  # type: ignore[no-untyped-call]  # torch does not annotate it
    last = nn.utils.skip_init(nn.Linear, net.hidden, net.n_outputs)  # type: ignore[no-untyped-call]  # nor here
    with torch.no_grad():
        for layer, weight, bias in ((first, "W", "b"), (last, "V", "c")):
            layer.weight.copy_(start[weight])
            layer.bias.copy_(start[bias])
    return nn.Sequential(first, nn.ReLU(), last)


def _detached(q: Soft | SoftPair) -> Soft | SoftPair:
    return SoftPair(q.rho.detach()) if isinstance(q, SoftPair) else Soft(q.q.detach())
