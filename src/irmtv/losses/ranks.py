"""Several processes, one batch: sums over environments run over the rows of all ranks.

An objective is a function F of a few sums T = sum_r T_r, where rank r holds T_r of its own rows. Its gradient is
F'(T) sum_r dT_r. Every rank knows F'(T) once T is summed, so rank r can go back through its own rows alone; and since
data-parallel training averages gradients over the N ranks, each rank passes N F'(T) on: the average is then the
gradient of the whole batch, to rounding. Nothing is sent in the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, distributed, nn


def n_ranks(setting: bool | None, training: bool) -> int:
    """Over how many processes sums run: 1 where there is one, or where each looks at its own rows.

    None: over all of them in training. Evaluation often runs on one rank only, which would then wait for the others
    for ever, so it looks at its own rows (as batch normalisation over ranks does).
    """
    initialised = distributed.is_available() and distributed.is_initialized()
    if setting and not initialised:
        raise ValueError(
            "reduce_across_ranks=True needs an initialised process group. Got none. Call "
            "torch.distributed.init_process_group(...) before the loss, or use reduce_across_ranks=None (automatic)."
        )
    wanted = training if setting is None else setting
    return distributed.get_world_size() if initialised and wanted else 1


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, ranks: int) -> Tensor:
        ctx.ranks = ranks
        total = local.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.ranks, None


def sum_over_ranks(local: Tensor, ranks: int) -> Tensor:
    """The sum over all ranks of a tensor that has one shape on all; its gradient suits averaging over ranks."""
    if ranks == 1:
        return local
    return _SumOverRanks.apply(local, ranks)  # type: ignore[no-untyped-call, no-any-return]  # torch does not annotate it


class _AverageGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, ranks: int) -> Tensor:
        ctx.ranks = ranks
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        mean = grad / ctx.ranks
        distributed.all_reduce(mean)
        return mean, None


def with_averaged_gradient(named: Iterable[tuple[str, nn.Parameter]], ranks: int) -> dict[str, Tensor]:
    """Parameters whose gradients come back averaged over the ranks, in one message.

    For a network inside a loss, which as a rule is not wrapped in DistributedDataParallel. Where it is, nothing
    changes: the average of equal gradients is what they are.
    """
    parameters = dict(named)
    if ranks == 1 or not any(p.requires_grad for p in parameters.values()):
        return dict(parameters)
    flat = torch.cat([p.flatten() for p in parameters.values()])
    averaged = _AverageGradient.apply(flat, ranks)  # type: ignore[no-untyped-call]  # torch does not annotate it
    parts = averaged.split([p.numel() for p in parameters.values()])
    return {name: part.view_as(p) for (name, p), part in zip(parameters.items(), parts, strict=True)}
