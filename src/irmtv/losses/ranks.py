"""Several processes, one batch: sums over environments run over the rows of all ranks.

`irmtv.core.ranks` sums over ranks, each of which goes back through its own rows alone, by F'(T) of the sums T. Since
data-parallel training averages gradients over the N ranks, each rank passes N F'(T) on here: the average is then the
gradient of the whole batch, to rounding. Nothing is sent in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn

from irmtv.core.ranks import sum_over_ranks


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


def adding(ranks: int) -> Callable[[Tensor], Tensor]:
    """The sum over all ranks of a tensor that has one shape on all; its gradient suits averaging over ranks."""
    return _itself if ranks == 1 else partial(sum_over_ranks, factor=ranks)


def _itself(local: Tensor) -> Tensor:
    return local


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
