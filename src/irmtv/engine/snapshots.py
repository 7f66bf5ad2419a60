"""What is measured during training: per environment, for all runs, sums that later tests can be made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

from irmtv.core.losses import Loss
from irmtv.core.membership import Codes, Membership
from irmtv.core.risk import divide, per_sample
from irmtv.core.types import Rows
from irmtv.engine.nets import Net, Parameters
from irmtv.environments.aux_network import AuxNetwork


@dataclass(frozen=True)
class Snapshot:
    """One moment of R runs. Means over the rows of each environment; `rows` says how many there are."""

    step: int
    on: Literal["held-out", "train"]
    rows: Tensor  # (R, E) q-weighted number of rows
    risk: Tensor  # (R, E) mean loss
    risk_square: Tensor  # (R, E) mean squared loss: with `risk` it gives the standard error
    slope: Tensor  # (R, E) mean slope, (R, E, J) for a vector classifier
    slope_square: Tensor  # like slope: mean squared slope
    accuracy: Tensor  # (R, E); NaN where the loss is not a classification loss


@dataclass(frozen=True)
class History:
    """All snapshots of all runs, stacked: (S, R, E)."""

    steps: tuple[int, ...]
    on: str
    rows: Tensor
    risk: Tensor
    risk_square: Tensor
    slope: Tensor
    slope_square: Tensor
    accuracy: Tensor

    @classmethod
    def of(cls, chunks: Sequence[Sequence[Snapshot]], order: Tensor) -> History | None:
        """From the snapshots of every chunk of runs; `order` puts runs back as they were asked for."""
        if not chunks or not chunks[0]:
            return None
        names = [f.name for f in fields(Snapshot) if f.name not in ("step", "on")]
        stacked = {
            name: torch.cat([torch.stack([getattr(s, name) for s in chunk]) for chunk in chunks], 1)[:, order]
            for name in names
        }
        first = chunks[0]
        return cls(steps=tuple(s.step for s in first), on=first[0].on, **stacked)


def correct(loss: Loss, f: Tensor, y: Tensor) -> Tensor | None:
    """1 where the prediction is right, 0 elsewhere: (T, K, N); None where there are no classes."""
    if loss.name == "binary":
        return ((f > 0) == (y > 0.5)).to(f.dtype)
    if loss.name == "multiclass":
        return (f.argmax(-1) == y).to(f.dtype)
    return None


class Watcher:
    """Rows to measure on, prepared once, and the measuring."""

    def __init__(
        self,
        rows: Sequence[Rows],  # one per data set
        per_set: int,
        on: Literal["held-out", "train"],
        net: Net,
        loss: Loss,
        rho: AuxNetwork | None,
        aux: Tensor | None,  # (T, N, A) standardised
        n_environments: int,
        vector: bool,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.on, self.net, self.loss, self.rho, self.vector = on, net, loss, rho, vector
        self.n_sets, self.per_set = len(rows), per_set
        self.x = net.prepare(torch.stack([r.x for r in rows]).to(device, dtype))
        y = torch.stack([r.y for r in rows]).to(device)
        self.y = (y.to(dtype) if y.is_floating_point() else y).unsqueeze(1)  # (T, 1, N, ...)
        self.z = None if aux is None else aux.to(device, dtype).transpose(1, 2).contiguous()
        self.codes: Membership | None = None
        if rho is None:
            given = [r.environment if r.environment is not None else torch.zeros(len(r)).long() for r in rows]
            codes = torch.stack(given).to(device).unsqueeze(1).expand(-1, per_set, -1)
            self.codes = Codes(codes, n_environments)

    @torch.no_grad()
    def look(self, step: int, p: Parameters, rho: Parameters | None) -> Snapshot:
        out = self.net.forward(p, self.x)
        f = out.logits.view(self.n_sets, self.per_set, *out.logits.shape[1:])
        value, slope = per_sample(self.loss, f, self.y, True, out.last, self.vector)
        assert slope is not None
        membership = self.codes
        if membership is None:
            assert self.rho is not None and rho is not None and self.z is not None
            membership = self.rho.from_logits(self.rho.logits(rho, self.z), self.n_sets)
        rows = membership.rows.to(f.dtype)

        def mean(v: Tensor) -> Tensor:
            return divide(membership.sums(v), rows).cpu()

        right = correct(self.loss, f, self.y)
        risk = mean(value)
        return Snapshot(
            step=step,
            on=self.on,
            rows=rows.expand(len(risk), -1).cpu(),
            risk=risk,
            risk_square=mean(value.square()),
            slope=mean(slope),
            slope_square=mean(slope.square()),
            accuracy=torch.full_like(risk, torch.nan) if right is None else mean(right),
        )
