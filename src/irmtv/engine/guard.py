"""A run that turns non-finite is frozen at its last finite state and reported; the others go on.

Runs share no parameter, so a bad gradient stays within its run. The guard looks before the optimizer does.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from irmtv.engine.optim import Adam, FlatParameters


class Guard:
    def __init__(self, phi: FlatParameters) -> None:
        self.phi = phi
        self.dead = torch.zeros(phi.n_runs, dtype=torch.bool, device=phi.vector.device)
        self.since = torch.full((phi.n_runs,), -1, device=phi.vector.device)
        self.on_cpu = phi.vector.device.type == "cpu"
        self.any_dead = False

    @property
    def all_dead(self) -> bool:
        return self.any_dead and self.on_cpu and bool(self.dead.all())

    @torch.no_grad()
    def check(self, total: Tensor, step: int | Tensor, *optimizers: Adam | None) -> None:
        """Before Phi's update: freeze the runs whose objective is not finite, or whose gradient has no finite square.

        Adam divides by the root of the mean square: with an infinite one a run would stand still for ever after
        and say nothing.
        """
        g = self.phi.gradient
        # one number tells whether anything is wrong; asking every run costs more and is rarely needed.
        # A sum of finite numbers can itself overflow, which only leads to the exact check below.
        if self.on_cpu and not self.any_dead and math.isfinite((total.sum() + torch.dot(g, g)).item()):
            return
        self._freeze(~total.isfinite() | _overflows(self.phi), step, *optimizers)

    @torch.no_grad()
    def check_other(self, parameters: FlatParameters, step: int | Tensor, optimizer: Adam) -> None:
        """Before the update of somebody beside Phi (rho, gates, a learned weight)."""
        g = parameters.gradient
        if self.on_cpu and not self.any_dead and math.isfinite(torch.dot(g, g).item()):
            return
        self._freeze(_overflows(parameters), step, optimizer)

    def follow(self, other: Guard, place: Tensor) -> None:
        """Freeze the runs whose leaders, at `place` among another's, are frozen."""
        place = place.to(self.dead.device)
        self.dead.copy_(other.dead[place])
        self.since.copy_(other.since[place])
        self.any_dead = other.any_dead

    def _freeze(self, bad: Tensor, step: int | Tensor, *optimizers: Adam | None) -> None:
        # in place throughout, so that a recorded step keeps working on the same tensors
        new = bad & ~self.dead
        self.dead |= new
        self.since.copy_(torch.where(new, step, self.since))
        self.any_dead = self.any_dead or not self.on_cpu or bool(self.dead.any())
        for optimizer in optimizers:
            if optimizer is not None:
                held = self.dead[optimizer.parameters.owner]
                optimizer.parameters.gradient.masked_fill_(held, 0)
                optimizer.rate.masked_fill_(held, 0)

    def report(self) -> dict[int, int]:
        """Frozen runs and the step at which each was frozen."""
        since = self.since.tolist()
        return {r: int(since[r]) for r in range(len(since)) if since[r] >= 0}


def _overflows(parameters: FlatParameters) -> Tensor:
    """(R,): the runs with a gradient whose square is not finite."""
    bad = ~parameters.gradient.square().isfinite()
    return parameters.by_run(bad.to(parameters.gradient.dtype)) > 0
