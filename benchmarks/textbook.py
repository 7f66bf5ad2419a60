"""The textbook implementation: one run at a time, the slope by differentiating a gradient.

Written line by line from the formulas, for two uses: the contract tests compare one gradient step of the
engine with it, and `benchmarks/speed.py` measures how much faster the engine is.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def sample_losses(loss: str, f: Tensor, y: Tensor) -> Tensor:
    """Per-sample losses (N,) of logits (N,) or (N, C)."""
    if loss == "binary":
        return functional.binary_cross_entropy_with_logits(f, y, reduction="none")
    if loss == "multiclass":
        return functional.cross_entropy(f, y, reduction="none")
    return (f - y) ** 2


def risk_and_slope(loss: str, f: Tensor, y: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """R_e and S_e of one environment with row weights q (N,): the slope as a differentiable gradient in w."""
    w = torch.ones((), dtype=f.dtype, requires_grad=True)
    risk = (q * sample_losses(loss, f * w, y)).sum() / q.sum()
    (slope,) = torch.autograd.grad(risk, w, create_graph=True)
    return risk, slope


def penalty(kind: str, risks: Tensor, slopes: Tensor, mass: Tensor, mu: Tensor, reduction: str) -> Tensor:
    """A penalty from E risks and slopes."""
    if kind == "l1":
        return (mass * slopes).abs().sum() ** 2 if reduction == "authors" else (mu * slopes.abs()).sum() ** 2
    if kind == "l2":
        return ((mass * slopes) ** 2).sum() if reduction == "authors" else (mu * slopes**2).sum()
    if kind == "variance":
        return (mu * (risks - (mu * risks).sum()) ** 2).sum()
    if kind == "worst":
        return risks.max() - (mu * risks).sum()
    raise ValueError(f"write the penalty {kind!r} from its definition here")


def objective(
    loss: str,
    f: Tensor,
    y: Tensor,
    q: Tensor,  # (N, E), rows summing to 1
    kind: str,
    weight: float,
    measure: str = "empirical",
    reduction: str = "expectation",
    mean_loss: bool = False,  # the risk term of minimax objectives
) -> Tensor:
    """risk + lambda penalty, as written in the design."""
    pairs = [risk_and_slope(loss, f, y, q[:, e]) for e in range(q.shape[1])]
    risks, slopes = torch.stack([r for r, _ in pairs]), torch.stack([s for _, s in pairs])
    mass = q.mean(0)
    mu = mass if measure == "empirical" else torch.full_like(mass, 1 / len(mass))
    risk = sample_losses(loss, f, y).mean() if mean_loss else (mu * risks).sum()
    return risk + weight * penalty(kind, risks, slopes, mass, mu, reduction)


def squares(module: nn.Module) -> Tensor:
    """The sum of squares of all parameters, biases too."""
    return torch.stack([p.square().sum() for p in module.parameters()]).sum()


def train_irm(
    x: Tensor,
    y: Tensor,
    rows: list[Tensor],  # row numbers of each environment
    *,
    steps: int,
    warmup: int,
    weight: float = 1e4,
    rate: float = 5e-3,
    l2: float = 1e-3,
) -> nn.Module:
    """IRM-TV-l1 with a linear Phi, full batch, the authors' two phases.

    As in the first IRM code, the penalty is computed at every step and its weight is 0 in the warm-up.
    """
    phi = nn.Linear(x.shape[1], 1)
    adam = torch.optim.Adam(phi.parameters(), lr=rate)
    n = len(x)
    for step in range(steps):
        f = phi(x).squeeze(1)
        risk = functional.binary_cross_entropy_with_logits(f, y)
        variation = torch.zeros(())
        for index in rows:
            w = torch.ones((), requires_grad=True)
            part = functional.binary_cross_entropy_with_logits(f[index] * w, y[index])
            (slope,) = torch.autograd.grad(part, w, create_graph=True)
            variation = variation + len(index) / n * slope.abs()
        lam = weight if step >= warmup else 0.0
        loss = (risk + l2 * squares(phi) + lam * variation**2) / (1 + lam)
        adam.zero_grad()
        loss.backward()
        adam.step()
    return phi


def train_minimax(
    x: Tensor,
    y: Tensor,
    z: Tensor,  # (N, A), standardised
    *,
    steps: int,
    warmup: int,
    weight: float = 1e4,
    rate: float = 5e-3,
    l2: float = 1e-3,
    hidden: int = 16,
) -> nn.Module:
    """Minimax-TV-l1 with a linear Phi, two inferred environments, full batch, the authors' two phases."""
    phi = nn.Linear(x.shape[1], 1)
    rho = nn.Sequential(nn.Linear(z.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, 1), nn.Sigmoid())
    adam = torch.optim.Adam(phi.parameters(), lr=rate)
    adam_rho = torch.optim.Adam(rho.parameters(), lr=1e-3)

    def variation(f: Tensor, q: Tensor) -> Tensor:
        total = torch.zeros(())
        for share in (q, 1 - q):
            w = torch.ones((), requires_grad=True)
            losses = functional.binary_cross_entropy_with_logits(f * w, y, reduction="none")
            (slope,) = torch.autograd.grad((share * losses).mean(), w, create_graph=True)
            total = total + slope.abs()
        return total**2

    for step in range(steps):
        f = phi(x).squeeze(1)
        loss = functional.binary_cross_entropy_with_logits(f, y) + l2 * squares(phi)
        if step < warmup:
            adam_rho.zero_grad()
            (-variation(f.detach(), rho(z).squeeze(1))).backward()
            adam_rho.step()
        else:
            loss = (loss + weight * variation(f, rho(z).squeeze(1).detach())) / (1 + weight)
        adam.zero_grad()
        loss.backward()
        adam.step()
    return phi
