"""A selector of the inputs that predict y, and environments inferred from the rest of them (TIVA).

Every input of u = [x, standardised aux] has a gate. The selector's gates are noisy at each of its steps; all others
see the gates without noise: rho climbs on what Phi will see after the warm-up and what other rows get.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from irmtv.core.membership import mean_over_rows
from irmtv.core.types import Rows
from irmtv.engine.components.base import Mask, StepRows, gated
from irmtv.engine.components.rho import RhoOnAux
from irmtv.engine.context import Context
from irmtv.engine.networks import MLP, Net, Parameters
from irmtv.engine.optim import Adam, FlatParameters
from irmtv.objectives.environments.aux_network import AuxRows, Climbing, PlainRows
from irmtv.objectives.gates import density, gate
from irmtv.objectives.tiva import selector_loss

NOISE_STREAM = 1


class Selector:
    """Gates, and a linear model h of its own on the gated inputs: both descend the loss of h and close gates."""

    def __init__(self, context: Context, n_inputs: int) -> None:
        self.context, self.n_inputs = context, n_inputs
        self.h = MLP(n_inputs, (), context.n_outputs)
        zero = torch.zeros(n_inputs, dtype=torch.float64)
        both = zip(context.settings, context.generators, strict=True)
        starts = [{**self.h.init(int(s["seed"]), g), "mu": zero} for s, g in both]
        self.parameters = FlatParameters(starts, context.device, context.dtype)
        self.rate = self.parameters.spread(context.column("selector_learning_rate"))  # (P,)
        self.adam = Adam(self.parameters, context.column("selector_learning_rate"))
        self.sigma = context.column("gate_noise").unsqueeze(1)  # (R, 1)
        self.weight = context.column("gate_weight")
        self.noise = context.noise(NOISE_STREAM)

    def gates(self) -> Tensor:
        """Without noise and without a graph: (R, D + A), 0 closed, 1 open."""
        return gate(self.parameters.views["mu"].detach())

    @torch.enable_grad()
    def step(self, z: Tensor, y: Tensor, moves: Tensor, weight: Tensor | None) -> None:
        """One step on inputs (T or R, D + A, N) by the runs that `moves` (R,) names; the others stand still."""
        context, views = self.context, self.parameters.views
        self.parameters.gradient.zero_()
        noise = self.noise.normal(context.now, (self.n_inputs,), context.dtype)  # (R, D + A)
        noisy = gate(views["mu"], noise, self.sigma)
        f = self.h.forward(gated(views, "W0", noisy), z).logits
        value = context.loss.value(f.view(context.n_sets, context.per_set, *f.shape[1:]), y)  # (T, K, N)
        total = selector_loss(mean_over_rows(value, weight), density(views["mu"], self.sigma), self.weight)
        torch.autograd.backward(total.sum())
        # what is not finite here is not finite in Phi, which reads the same inputs: the guard reports it there
        self.parameters.gradient.nan_to_num_(0, 0, 0)
        self.adam.rate.copy_(self.rate * self.parameters.spread(moves))
        self.adam.step()

    def state(self) -> dict[str, Tensor]:
        return {"gates": self.gates()}


class RhoOnTheRest(RhoOnAux):
    """rho reads (1 - gate) u: what the selector leaves."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.selector = Selector(context, self.net.n_aux)

    def read(self, rows: Sequence[Rows]) -> Tensor:
        return self.context.inputs(rows)  # x and aux: the objective reads both

    def arrange(self, as_they_are: bool) -> tuple[Tensor | None, tuple[int, ...]]:
        return super().arrange(True)  # every run has gates of its own: rows that agree in some columns save nothing

    def before_climbing(self, rows: AuxRows, y: Tensor, weight: Tensor | None) -> None:
        assert isinstance(rows, PlainRows)
        # a run that is held still in rho, after its warm-up or for being frozen, is held still in the selector
        rates = self.parameters.by_name(self.adam.rate)["W"][:, 0, 0]
        self.selector.step(rows.z, y, rates > 0, weight)

    def optimizers(self) -> list[Adam]:
        return [self.adam, self.selector.adam]

    def learned(self) -> dict[str, Tensor]:
        return self.selector.state()

    def climbing(self, rows: StepRows, slope: Tensor) -> Climbing:
        gates, places = 1 - self.selector.gates(), rows.inferred
        through_gates = gated(self.parameters.views, "W", gates)
        climbing: Climbing = places.climbing(self.net, through_gates, slope, rows.weight)
        return replace(climbing, gradient=lambda by_logits: gated(climbing.gradient(by_logits), "W", gates))

    def views(self) -> Mapping[str, Tensor]:
        return gated(super().views(), "W", 1 - self.selector.gates())


class GatedInputs(Mask):
    """Phi reads gate * u: the gates are the selector's, Phi does not move them."""

    def __init__(self, context: Context, net: Net, phi: FlatParameters, source: object) -> None:
        assert isinstance(source, RhoOnTheRest)
        if not isinstance(net, MLP):
            raise ValueError(
                "gated=True puts the gates on the first layer's weights, which the network must show: use hidden=... "
                f"or irmtv.engine.MLP with it, or gated=False. Got net={type(net).__name__}."
            )
        self.selector = source.selector

    def apply(self, views: Parameters) -> Parameters:
        return gated(views, "W0", self.selector.gates())

    def fitted(self, views: Parameters) -> dict[str, Tensor]:
        return {name: view.detach().clone() for name, view in self.apply(views).items()}
