"""Environments inferred from aux while trees are grown: the network of `irmtv.environments`, climbing between rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from irmtv.boosting.gradients import ScoreObjective
from irmtv.core.membership import Soft, SoftPair, Weighted
from irmtv.core.risk import summarise
from irmtv.core.types import Rows
from irmtv.environments.aux_network import AuxNetwork, AuxScaler
from irmtv.estimators.predictor import Rho

STEPS_PER_ROUND = 25  # of Adam: a round moves the scores as far as so many steps of a network do


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
        self.z = self._read(rows)

    def _read(self, rows: Rows) -> Tensor:
        assert rows.aux is not None
        return self.scaler(rows.aux, torch.float64).T.unsqueeze(0)  # (1, A, N)

    def membership(self, rows: Rows | None = None) -> Soft | SoftPair:
        """q of these rows, by default those of training: (1, 1, ...), without a graph."""
        with torch.no_grad():
            return self._membership(self.z if rows is None else self._read(rows))

    def _membership(self, z: Tensor) -> Soft | SoftPair:
        return self.net.from_logits(self.net.logits(self.parameters, z), 1)

    def climb(self, of: ScoreObjective, f: Tensor, weights: Sequence[float], steps: int = STEPS_PER_ROUND) -> None:
        """Some steps up the penalties at f; where all weights are 0 (plain boosting beside others) up their sum."""
        value, residual, _ = of.loss.forward(f[None, None], of.y)
        slope = residual * f[None, None]
        slope = slope.sum(-1) if slope.ndim > 3 else slope
        each = list(weights) if any(weights) else [1.0] * len(weights)
        for _ in range(steps):
            q = self._membership(self.z)
            e = summarise(value, slope, q if of.weight is None else Weighted(q, of.weight), of.uses)
            values = of.objective.penalty_values(e, of.settings)
            total = torch.stack([w / sum(each) * v[0] for w, v in zip(each, values, strict=True)]).sum()
            if not total.requires_grad:
                return
            self.adam.zero_grad()
            torch.autograd.backward(total)
            self.adam.step()

    def fitted(self) -> Rho:
        """As a fitted model keeps it."""
        return Rho(self.net, {name: v.detach().clone() for name, v in self.parameters.items()}, self.scaler)
