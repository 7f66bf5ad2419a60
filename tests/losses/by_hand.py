"""The objectives of `irmtv.losses` written line by line, slopes by differentiating a gradient (double backward)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

LOSSES = ("binary", "multiclass", "squared", "several")


def absolute(f: Tensor, y: Tensor) -> Tensor:
    """A function as a loss, smooth enough to compare slopes."""
    return (f - y).abs() ** 1.5


def sample_losses(loss: str | Callable, f: Tensor, y: Tensor) -> Tensor:
    if loss == "binary":
        return functional.binary_cross_entropy_with_logits(f, y, reduction="none")
    if loss == "multiclass":
        return functional.cross_entropy(f, y, reduction="none")
    if loss == "squared":
        return (f - y) ** 2
    if loss == "several":
        return ((f - y) ** 2).mean(1)
    return loss(f, y)


def penalised(
    loss: str | Callable,
    predict: Callable[[Tensor], Tensor],  # dummy classifier w -> logits
    w: Tensor,
    y: Tensor,
    q: Tensor,  # (N, E)
    norm: str,
    weight: float,
    mu: Tensor | None = None,  # (E,), the shares of the rows by default
    authors: bool = False,
    mean_loss: bool = False,
) -> Tensor:
    """sum_e mu_e R_e + weight * penalty; environments without rows are left out."""
    there = [e for e in range(q.shape[1]) if q[:, e].sum() > 0]
    mass = q.mean(0)[there]
    mu = mass if mu is None else mu[there] / mu[there].sum()
    risks, moduli = [], []
    for e in there:
        one = w.clone().requires_grad_()
        risk = (q[:, e] * sample_losses(loss, predict(one), y)).sum() / q[:, e].sum()
        (slope,) = torch.autograd.grad(risk, one, create_graph=True)
        risks.append(risk)
        moduli.append((slope**2).sum().sqrt())
    size = torch.stack(moduli)
    if authors:
        penalty = (mass * size).sum() ** 2 if norm == "l1" else ((mass * size) ** 2).sum()
    else:
        penalty = (mu * size).sum() ** 2 if norm == "l1" else (mu * size**2).sum()
    mean = sample_losses(loss, predict(w), y).mean() if mean_loss else (mu * torch.stack(risks)).sum()
    return mean + weight * penalty


def problem(loss: str, n: int = 40, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Logits that ask for a gradient, labels, and codes of three environments, in float64."""
    g = torch.Generator().manual_seed(seed)
    several = loss in ("multiclass", "several")
    f = torch.randn((n, 3) if several else (n,), generator=g, dtype=torch.float64).requires_grad_()
    if loss == "multiclass":
        y = torch.randint(3, (n,), generator=g)
    elif loss == "binary":
        y = torch.randint(2, (n,), generator=g).double()
    else:
        y = torch.randn(f.shape, generator=g, dtype=torch.float64)
    return f, y, torch.randint(3, (n,), generator=g)


def one_hot(codes: Tensor, n: int = 3) -> Tensor:
    return functional.one_hot(codes, n).double()


def named(loss: str) -> str:
    """What `irmtv.losses` calls it."""
    return "squared" if loss == "several" else loss
