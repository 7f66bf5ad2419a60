"""Environments inferred from aux while trees grow: a network that climbs between rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from irmtv.core.membership import Soft, SoftPair, Weighted
from irmtv.core.risk import summarise
from irmtv.core.types import Rows
from irmtv.models.networks.predictor import Rho
from irmtv.models.trees.gradients import ScoreObjective
from irmtv.objectives.environments.aux_network import AuxNetwork, AuxScaler

STEPS_PER_ROUND = 50  # of Adam: a round moves the scores as far as many steps of a network do
RATE = 1e-2  # of Adam, for the same reason: rounds are fewer than steps


class RhoOnRounds:
    """rho climbs the penalties at the present scores, some steps before every round."""

    def __init__(self, rows: Rows, settings: Mapping[str, Any], seed: int) -> None:
        assert rows.aux is not None
        self.scaler = AuxScaler.of(rows.aux, settings["aux_scaling"], rows.weight)
        self.net = AuxNetwork(rows.aux.shape[1], settings["n_environments"], settings["environment_hidden"])
        start = self.net.init(torch.Generator().manual_seed(seed))
        self.parameters = {name: value.unsqueeze(0).requires_grad_() for name, value in start.items()}
        rate = float(settings["environment_learning_rate"])
        self.adam = torch.optim.Adam(list(self.parameters.values()), lr=rate, maximize=True)

    def _read(self, rows: Rows) -> Tensor:
        assert rows.aux is not None
        return self.scaler(rows.aux, torch.float64).T.unsqueeze(0)  # (1, A, N)

    def membership(self, rows: Rows) -> Soft | SoftPair:
        """q of these rows: (1, 1, ...), without a graph."""
        with torch.no_grad():
            return self._membership(self._read(rows))

    def _membership(self, z: Tensor) -> Soft | SoftPair:
        return self.net.from_logits(self.net.logits(self.parameters, z), 1)

    def climb(
        self, of: ScoreObjective, f: Tensor, rows: Rows, weights: Sequence[float], steps: int = STEPS_PER_ROUND
    ) -> None:
        """Some steps up the penalties at the scores f of these rows, whose objective is `of`.

        Where all weights are 0 (plain boosting beside others) up their sum.
        """
        value, slope = of.losses_and_slopes(f)
        z = self._read(rows)
        each = list(weights) if any(weights) else [1.0] * len(weights)
        for _ in range(steps):
            q = self._membership(z)
            e = summarise(value, slope, q if of.weight is None else Weighted(q, of.weight), of.uses)
            values = of.objective.penalty_values(replace(e, mixtures=of.mixtures), of.settings)
            total = torch.stack([w / sum(each) * v[0] for w, v in zip(each, values, strict=True)]).sum()
            self.adam.zero_grad()
            torch.autograd.backward(total)
            self.adam.step()

    def fitted(self) -> Rho:
        """As a fitted model keeps it."""
        return Rho(self.net, {name: v.detach().clone() for name, v in self.parameters.items()}, self.scaler)
