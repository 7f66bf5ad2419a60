"""A line-by-line training loop, one run at a time, for the contract tests to compare the engine with.

Slopes by double backward (benchmarks/textbook.py), optimizers from torch, nothing shared with the engine but
the starting parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from benchmarks import textbook
from torch import Tensor, nn

from irmtv.core.types import Task
from irmtv.engine.networks import MLP
from irmtv.objectives.environments.aux_network import AuxNetwork

KINDS = {
    "irmv1": "l2",
    "irm-tv-l2": "l2",
    "irm-tv-l1": "l1",
    "vrex": "variance",
    "mm-rex": "worst",
    "minimax-tv-l2": "l2",
    "zin": "l2",
    "minimax-tv-l1": "l1",
    "eiil": "l2",
    "tiva": "l2",
    "sparse-irm": "l2",
    "ood-tv-irm-l2": "l2",
    "ood-tv-irm-l1": "l1",
    "ood-tv-minimax-l2": "l2",
    "ood-tv-minimax-l1": "l1",
}
AUTHORS = {"zin", "eiil", "tiva"}  # whose reduction is that of the published code
UNIFORM = {"irmv1", "mm-rex"}
MINIMAX = {"minimax-tv-l2", "zin", "minimax-tv-l1"}


@dataclass
class Settings:
    seed: int = 0
    steps: int = 12
    warmup: int = 5
    weight: float = 100.0
    rate: float = 5e-3
    l2: float = 1e-3
    rho_rate: float = 1e-2
    alternating: bool = False


def one_hot(codes: Tensor) -> Tensor:
    return nn.functional.one_hot(codes).double()


def train_reference(task: Task, name: str, s: Settings) -> tuple[Tensor, Tensor]:
    """Coefficients and intercept of a linear Phi after training; `name` may be a sum."""
    x, y = task.train.x.double(), task.train.y
    y = y.double() if y.is_floating_point() else y
    n_outputs = task.n_outputs
    generator = torch.Generator().manual_seed(s.seed)
    start = MLP(x.shape[1], (), n_outputs).init(s.seed, generator)
    w, b = start["W0"].clone().requires_grad_(), start["b0"].squeeze(1).clone().requires_grad_()
    adam = torch.optim.Adam([w, b], lr=s.rate)
    parts = [p for p in name.split("+") if p != "erm"]
    minimax = any(p in MINIMAX for p in parts)
    if minimax:
        net = AuxNetwork(task.train.aux.shape[1])
        rho = {k: v.clone().requires_grad_() for k, v in net.init(generator).items()}
        rho_adam = torch.optim.Adam(list(rho.values()), lr=s.rho_rate, maximize=True)
        z = task.train.aux.double()
        z = (z - z.mean(0)) / z.std(0, correction=0)

    def memberships() -> Tensor:
        first = torch.sigmoid((z @ rho["W"].T + rho["b"]).relu() @ rho["V"].T + rho["c"])
        return torch.cat([first, 1 - first], 1)

    def penalties(f: Tensor, q: Tensor) -> Tensor:
        """The sum of the penalties, each with weight 1."""
        total = torch.zeros((), dtype=torch.float64)
        for p in parts:
            measure = "uniform" if p in UNIFORM else "empirical"
            reduction = "authors" if p in AUTHORS else "expectation"
            args = (task.loss.name, f, y, q, KINDS[p])
            total = total + textbook.objective(*args, 1.0, measure, reduction)
            total = total - textbook.objective(*args, 0.0, measure, reduction)
        return total

    def risk(f: Tensor, q: Tensor) -> Tensor:
        measure = "uniform" if parts and parts[0] in UNIFORM else "empirical"
        return textbook.objective(task.loss.name, f, y, q, "variance", 0.0, measure, mean_loss=minimax)

    for step in range(s.steps):
        f = (x @ w.T + b).squeeze(1)
        if minimax and (s.alternating or step < s.warmup):
            rho_adam.zero_grad()
            penalties(f.detach(), memberships()).backward()
            rho_adam.step()
        q = memberships().detach() if minimax else one_hot(task.train.environment)
        acting = step >= s.warmup
        lam = s.weight if acting else (min(1.0, s.weight) if name == "irmv1" else 0.0)
        divisor = 1.0
        if acting:
            divisor = max(1.0, lam) if name == "irmv1" else 1 + lam * len(parts)
        loss = risk(f, q) + s.l2 * ((w**2).sum() + (b**2).sum())
        if lam and parts:
            loss = loss + lam * penalties(f, q)
        adam.zero_grad()
        (loss / divisor).backward()
        adam.step()
    return w.detach(), b.detach()
