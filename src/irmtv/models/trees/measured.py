"""What is measured of a booster after some of its rounds: the same numbers as of a network after its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from irmtv.core.losses import Loss
from irmtv.core.types import Rows
from irmtv.engine.networks import Output
from irmtv.engine.snapshots import History, Snapshot, Watcher
from irmtv.models.trees.rounds import Watched

AT_ONCE = 1_000_000  # scores


class _AsTheyAre:
    """A network for `Watcher` whose outputs are known already."""

    n_outputs = 1
    shapes: Mapping[str, tuple[int, ...]] = {}

    def init(self, seed: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {}

    def prepare(self, x: Tensor) -> Tensor:
        return x

    def forward(self, p: Mapping[str, Tensor], x: Tensor, training: bool = False) -> Output:
        return Output(p["scores"], None)


def snapshots(rows: Rows, loss: Loss, watched: Sequence[Watched], on: Any) -> list[Snapshot]:
    """Risks and slopes by environment, and how sure they are, after every round that was watched."""
    found: list[Snapshot] = []
    # environments that are inferred differ from round to round; with those given many rounds are measured at once
    most = max(1, AT_ONCE // max(1, watched[0].scores.numel())) if watched[0].membership is None else 1
    for begin in range(0, len(watched), most):
        found += _measured(rows, loss, watched[begin : begin + most], on)
    return found


def _measured(rows: Rows, loss: Loss, watched: Sequence[Watched], on: Any) -> list[Snapshot]:
    net: Any = _AsTheyAre()
    first = watched[0].membership
    inferred = None if first is None else (lambda: first)
    nothing = torch.zeros(1, len(rows), 1, dtype=torch.float64)
    y = rows.y.double() if rows.y.is_floating_point() else rows.y
    environments = max(1, len(rows.names))
    watcher = Watcher([rows], nothing, y[None], len(watched), on, net, loss, inferred, environments, False)
    seen = watcher.look(0, {"scores": torch.stack([w.scores for w in watched])})
    numbers = {f.name: getattr(seen, f.name) for f in fields(seen) if f.name not in ("step", "on")}
    return [
        Snapshot(step=w.round, on=on, **{name: v[i : i + 1] for name, v in numbers.items()})
        for i, w in enumerate(watched)
    ]


def history(rows: Rows, loss: Loss, watched: Sequence[Watched], on: Any) -> History:
    """The same as the history of one run."""
    found = History.of([snapshots(rows, loss, watched, on)], torch.tensor([0]))
    assert found is not None  # the last round is always watched
    return found
