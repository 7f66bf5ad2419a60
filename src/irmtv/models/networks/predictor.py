"""What a fitted estimator keeps of training: networks, their parameters, and how rows become inputs. No data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from irmtv.data.scaling import Scaler
from irmtv.engine.fitted import FittedRuns
from irmtv.engine.networks import MLP, Module, Net
from irmtv.objectives.environments.aux_network import AuxNetwork, AuxScaler

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Member:
    """One trained model; an ensemble has several."""

    net: Net
    parameters: Mapping[str, Tensor]  # (1, ...)
    buffers: Mapping[str, Tensor]  # of a module with state of its own
    step: int

    def logits(self, x: Tensor) -> Tensor:
        """(N, ...) float64 -> (N,) or (N, C) float64.

        Our own networks compute in float64, so that a row's output does not depend on the rows beside it; a user's
        module in the precision it was trained in, since it may hold numbers of its own.
        """
        dtype = next(iter(self.parameters.values())).dtype if isinstance(self.net, Module) else torch.float64
        parameters = {name: value.to(dtype) for name, value in self.parameters.items()}
        if isinstance(self.net, Module) and self.buffers:
            self.net.load_buffers([dict(self.buffers)])
        with torch.no_grad():
            inputs = self.net.prepare(x.to(dtype).unsqueeze(0))
            return self.net.forward(parameters, inputs).logits[0].double()


@dataclass(frozen=True)
class Rho:
    """The environment network of a fitted model, where environments were inferred from aux."""

    net: AuxNetwork
    parameters: Mapping[str, Tensor]  # (1, ...)
    scaler: AuxScaler
    reads_x: bool = False  # whether it reads standardised x before aux

    def membership(self, aux: Tensor, x: Tensor | None = None) -> Tensor:
        """aux (N, A), and x (N, D) where it is read -> (N, E) float64, rows sum to 1."""
        z = self.scaler(aux, torch.float64)
        if self.reads_x:
            assert x is not None
            z = torch.cat([x.double(), z], 1)
        parameters = {name: value.double() for name, value in self.parameters.items()}
        with torch.no_grad():
            logits = self.net.logits(parameters, z.T.unsqueeze(0))[0].T  # (N, outputs)
        if self.net.n_outputs > 1:
            return torch.softmax(logits, 1)
        first = torch.sigmoid(logits)
        return torch.cat([first, 1 - first], 1)


@dataclass(frozen=True)
class Predictor:
    """From features in the user's units to outputs in the user's units."""

    x: Scaler
    members: tuple[Member, ...]
    y: Scaler | None = None  # regression
    aux: AuxScaler | None = None  # where the predictor reads aux beside x
    rho: Rho | None = None
    batch_rows: int = 1 << 14

    def logits(self, features: Floats, aux: Floats | None = None) -> Floats:
        """Mean over the members: (N,) or (N, C), float64. For regression in the user's units."""
        parts = []
        for start in range(0, max(1, len(features)), self.batch_rows):
            rows = slice(start, start + self.batch_rows)
            inputs = torch.as_tensor(self.x(features[rows]))
            if self.aux is not None:
                assert aux is not None
                inputs = torch.cat([inputs, self.aux(torch.as_tensor(aux[rows]))], 1)
            parts.append(torch.stack([m.logits(inputs) for m in self.members]).mean(0))
        outputs: Floats = torch.cat(parts).numpy()
        if self.y is None:
            return outputs
        return self.y.back(outputs[:, None])[:, 0] if outputs.ndim == 1 else self.y.back(outputs)

    def linear(self) -> tuple[Floats, Floats] | None:
        """Coefficients (C, D) and intercepts (C,) in the user's units; None where the model is not linear in x."""
        if self.aux is not None or self.x.mean.ndim > 1:
            return None
        coef, intercept = [], []
        for m in self.members:
            if not isinstance(m.net, MLP) or len(m.net.widths) > 2:
                return None
            coef.append(m.parameters["W0"][0].double().numpy())
            intercept.append(m.parameters["b0"][0, :, 0].double().numpy())
        w, b = np.mean(coef, 0) / self.x.scale, np.mean(intercept, 0)
        b = b - w @ self.x.mean
        if self.y is not None:
            w, b = w * self.y.scale[:, None], b * self.y.scale + self.y.mean
        return w, b


def keep(fitted: FittedRuns, runs: Sequence[int], x: Scaler, y: Scaler | None, which: Any = "selected") -> Predictor:
    """The predictor of some runs of one task: their mean."""
    rho, aux = None, None
    for run, chunk, own in _states(fitted, runs, which):
        scaler = chunk.aux_scalers[chunk.chunk.data.index(fitted.runs[run]["data"])] if chunk.aux_scalers else None
        aux = scaler if fitted.objective.reads_aux else None
        if rho is None and chunk.rho is not None and own.rho is not None and scaler is not None:
            rho = Rho(chunk.rho, own.rho, scaler, reads_x=fitted.objective.infers == "rest")
    return Predictor(x, members_of(fitted, runs, which), y, aux, rho)


def members_of(fitted: FittedRuns, runs: Sequence[int], which: Any = "selected") -> tuple[Member, ...]:
    """Some runs as models that predict from standardised inputs."""
    members = []
    for run, chunk, own in _states(fitted, runs, which):
        net = chunk.net
        if isinstance(net, Module):  # the chunk's network holds all its runs' copies: one of its own
            net = Module(net.factory, net.n_outputs)
            net.init(int(fitted.settings[run]["seed"]), torch.Generator())
        buffers = {name: value.cpu() for name, value in own.buffers[0].items()} if own.buffers else {}
        members.append(Member(net, own.parameters, buffers, int(own.steps[0])))
    return tuple(members)


def _states(fitted: FittedRuns, runs: Sequence[int], which: Any) -> Iterator[tuple[int, Any, Any]]:
    """Every run with its chunk and its own state."""
    for run in runs:
        for chunk, state in zip(fitted.chunks, fitted.state(which), strict=True):
            if run in chunk.chunk.runs:
                yield run, chunk, state.take(torch.tensor([chunk.chunk.runs.index(run)]))


def carried_over(predictor: Predictor, x: Scaler, y: Scaler | None, aux: AuxScaler | None) -> dict[str, Tensor]:
    """The first member's parameters (1, ...) for rows in other units: with these scalers it is the same function.

    Only the first layer (inputs) and, for regression, the last (outputs) change: with z = (v - m) / s the old and
    z' = (v - m') / s' the new units, z = z' s' / s + (m' - m) / s.
    """
    member = predictor.members[0]
    assert isinstance(member.net, MLP)
    parameters = {name: value.double().clone() for name, value in member.parameters.items()}
    varied, varies = np.isfinite(predictor.x.scale), np.isfinite(x.scale)  # a constant column is z = 0
    ratio = np.where(varied & varies, x.scale, 0.0) / predictor.x.scale  # (D,)
    shift = (x.mean - predictor.x.mean) / predictor.x.scale
    if predictor.aux is not None:
        assert aux is not None
        n_aux = member.net.widths[0] - len(ratio)
        old = [np.broadcast_to(v.numpy(), n_aux) for v in (predictor.aux.mean, predictor.aux.deviation)]
        new = [np.broadcast_to(v.numpy(), n_aux) for v in (aux.mean, aux.deviation)]
        ratio = np.concatenate([ratio, new[1] / old[1]])
        shift = np.concatenate([shift, (new[0] - old[0]) / old[1]])
    w = parameters["W0"]  # (1, out, in)
    parameters["b0"] += w @ torch.as_tensor(shift)[:, None]
    parameters["W0"] = w * torch.as_tensor(ratio)
    if y is not None and predictor.y is not None:
        last = len(member.net.widths) - 2
        ratio, shift = predictor.y.scale / y.scale, (predictor.y.mean - y.mean) / y.scale  # (C,)
        factor = torch.as_tensor(ratio)[:, None]
        parameters[f"W{last}"] = parameters[f"W{last}"] * factor
        parameters[f"b{last}"] = parameters[f"b{last}"] * factor + torch.as_tensor(shift)[:, None]
    return parameters
