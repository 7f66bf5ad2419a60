"""Adam over the parameters of all runs at once, each run with its own learning rate; and a guard that freezes runs.

All parameters live in one flat vector, and so do their gradients: a step is a handful of operations
whatever the network, and a run's settings are spread over its elements once. Runs share no parameter, so a gradient
that is not finite stays within its run: the guard freezes that run before the optimizer moves it. Autograd knows the
views alone, not the two vectors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


class FlatParameters:
    """Stacked parameters (R, ...) as views of one vector, with gradients as views of another."""

    def __init__(self, starts: Sequence[Mapping[str, Tensor]], device: torch.device, dtype: torch.dtype) -> None:
        stacked = {name: torch.stack([s[name] for s in starts]) for name in starts[0]}
        sizes = [t.numel() for t in stacked.values()]
        self.n_runs = len(starts)
        self.vector = torch.cat([t.flatten() for t in stacked.values()]).to(device, dtype)
        self.gradient = torch.zeros_like(self.vector)
        self.views: dict[str, Tensor] = {}
        owners, pieces = [], zip(torch.split(self.vector, sizes), torch.split(self.gradient, sizes), strict=True)
        for (name, tensor), (value, gradient) in zip(stacked.items(), pieces, strict=True):
            view = value.view(tensor.shape).detach().requires_grad_()
            view.grad = gradient.view(tensor.shape)
            self.views[name] = view
            owners.append(torch.arange(self.n_runs).repeat_interleave(tensor[0].numel()))
        self.owner = torch.cat(owners).to(device)  # (P,) which run an element belongs to

    def write(self, gradient: Mapping[str, Tensor]) -> None:
        """The gradient, from that in every parameter."""
        torch.cat([gradient[name].reshape(-1) for name in self.views], out=self.gradient)

    def spread(self, per_run: Tensor) -> Tensor:
        """(R,) -> (P,): a run's value at each of its elements."""
        return per_run.to(self.vector)[self.owner]

    def by_run(self, per_element: Tensor) -> Tensor:
        """(P,) -> (R,): the sum over a run's elements."""
        return per_element.new_zeros(self.n_runs).index_add_(0, self.owner, per_element)

    def by_name(self, vector: Tensor) -> dict[str, Tensor]:
        """(P,) numbers, one for every element, as the parameters are: name -> (R, ...), views."""
        pieces = torch.split(vector, [view.numel() for view in self.views.values()])
        return {name: piece.view(view.shape) for (name, view), piece in zip(self.views.items(), pieces, strict=True)}

    def state(self) -> dict[str, Tensor]:
        """A copy of the stacked parameters."""
        return {name: view.detach().clone() for name, view in self.views.items()}


class Adam:
    """Adam (Kingma & Ba 2015) with the usual constants; `rate` is (R,), 0 holds a run still.

    Where runs begin at different steps, `count_for` gives each a count of its own.
    """

    beta1, beta2, epsilon = 0.9, 0.999, 1e-8

    def __init__(self, parameters: FlatParameters, rate: Tensor, maximise: bool = False) -> None:
        self.parameters = parameters
        self.first = torch.zeros_like(parameters.vector)
        self.second = torch.zeros_like(parameters.vector)
        on_cpu = parameters.vector.device.type == "cpu"
        # on a GPU the count lives there, so that a recorded step counts on
        self.steps: int | Tensor = 0 if on_cpu else parameters.vector.new_zeros((), dtype=torch.float64)
        self.acting: Tensor | None = None
        self.sign = 1.0 if maximise else -1.0
        self.set_rate(rate)

    def set_rate(self, rate: Tensor) -> None:
        self.rate = self.parameters.spread(rate)

    def count_for(self, acting: Tensor) -> None:
        """From now on only these runs, (R,) bool, count steps; the others must have gradient 0."""
        self.acting = self.parameters.spread(acting)
        if not isinstance(self.steps, Tensor) or self.steps.ndim == 0:
            self.steps = torch.zeros_like(self.parameters.vector)

    @torch.no_grad()
    def take(self, other: Adam, index: Tensor) -> None:
        """Become, with the parameters, what the runs at `index` (R,) of another optimizer are."""
        mine, theirs = self.parameters, other.parameters
        for own, others in (
            (mine.vector, theirs.vector),
            (self.first, other.first),
            (self.second, other.second),
        ):
            by_name = theirs.by_name(others)
            for name, values in mine.by_name(own).items():
                values.copy_(by_name[name][index.to(values.device)])
        if isinstance(self.steps, Tensor):
            self.steps.copy_(torch.as_tensor(other.steps))
        else:
            self.steps = other.steps

    def step(self) -> None:
        g = self.parameters.gradient
        self.steps += 1 if self.acting is None else self.acting
        self.first.lerp_(g, 1 - self.beta1)
        self.second.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
        steps = self.steps.clamp_min(1) if isinstance(self.steps, Tensor) else self.steps
        root = (1 - self.beta2**steps) ** 0.5  # of the second moment's correction, here on both sides of the division
        factor = root * self.sign / (1 - self.beta1**steps)
        denominator = self.second.sqrt().add_(root * self.epsilon)
        move = self.first * self.rate
        if isinstance(factor, Tensor):
            self.parameters.vector.addcdiv_(move.mul_(factor), denominator)
        else:
            self.parameters.vector.addcdiv_(move, denominator, value=factor)


class Guard:
    """A run that turns non-finite is frozen at its last finite state and reported; the others go on."""

    def __init__(self, phi: FlatParameters) -> None:
        self.phi = phi
        self.dead = torch.zeros(phi.n_runs, dtype=torch.bool, device=phi.vector.device)
        self.since = torch.full((phi.n_runs,), -1, device=phi.vector.device)
        self.on_cpu = phi.vector.device.type == "cpu"
        self.any_dead = False

    @property
    def all_dead(self) -> bool:
        return self.any_dead and self.on_cpu and bool(self.dead.all())

    def check(self, total: Tensor | None, step: int | Tensor, *optimizers: Adam | None) -> None:
        """Before Phi's update: freeze the runs whose objective is not finite, or whose gradient has no finite square.

        `total` is None where the objective is known to be finite.

        Adam divides by the root of the mean square: with an infinite one a run would stand still for ever after
        and say nothing.
        """
        g = self.phi.gradient
        # one number tells whether anything is wrong; asking every run costs more and is rarely needed.
        # A sum of finite numbers can itself overflow, which only leads to the exact check below.
        if self.on_cpu and not self.any_dead:
            number = torch.dot(g, g) if total is None else total.sum() + torch.dot(g, g)
            if math.isfinite(number.item()):
                return
        bad = _overflows(self.phi)
        self._freeze(bad if total is None else bad | ~total.isfinite(), step, *optimizers)

    def check_other(self, parameters: FlatParameters, step: int | Tensor, optimizer: Adam) -> None:
        """Before the update of a component with parameters of its own (rho, gates, a learned weight)."""
        g = parameters.gradient
        if self.on_cpu and not self.any_dead and math.isfinite(torch.dot(g, g).item()):
            return
        self._freeze(_overflows(parameters), step, optimizer)

    def take(self, other: Guard, index: Tensor) -> None:
        """Freeze every run that is frozen at its `index` (R,) in another guard."""
        index = index.to(self.dead.device)
        self.dead.copy_(other.dead[index])
        self.since.copy_(other.since[index])
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
