"""Adam over the parameters of all runs at once, each run with its own learning rate.

All parameters live in one flat vector, and so do their gradients: a step is a handful of operations
whatever the network, and a run's settings are spread over its elements once.
"""

from __future__ import annotations

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
    def step(self) -> None:
        g = self.parameters.gradient
        self.steps += 1 if self.acting is None else self.acting
        self.first.lerp_(g, 1 - self.beta1)
        self.second.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
        steps = self.steps.clamp_min(1) if isinstance(self.steps, Tensor) else self.steps
        correction1 = 1 - self.beta1**steps
        correction2 = 1 - self.beta2**steps
        denominator = self.second.sqrt().div_(correction2**0.5).add_(self.epsilon)
        if isinstance(correction1, Tensor):
            move = (self.first * self.rate).mul_(self.sign / correction1)
            self.parameters.vector.addcdiv_(move, denominator)
        else:
            self.parameters.vector.addcdiv_(self.first * self.rate, denominator, value=self.sign / correction1)
