"""What is measured of a booster after some of its rounds: the same numbers as of a network after its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from irmtv.core.losses import Loss
from irmtv.core.types import Rows, weights_of
from irmtv.engine.snapshots import History, Snapshot, given_environments, measure
from irmtv.models.trees.rounds import Watched

AT_ONCE = 1_000_000  # scores


def snapshots(rows: Rows, loss: Loss, watched: Sequence[Watched], on: Any) -> list[Snapshot]:
    """Risks and slopes by environment, and how sure they are, after every round that was watched."""
    weights, y = weights_of([rows], across_sets=True), rows.y[None, None]
    y = y.double() if y.is_floating_point() else y
    every: list[Snapshot] = []
    # environments that are inferred differ from round to round; with those given many rounds are measured at once
    most = max(1, AT_ONCE // max(1, watched[0].scores.numel())) if watched[0].membership is None else 1
    for begin in range(0, len(watched), most):
        part = watched[begin : begin + most]
        given = given_environments([rows], len(part), max(1, len(rows.names)), torch.device("cpu"))
        scores = torch.stack([w.scores for w in part])[None]  # (1, K, N) or (1, K, N, C)
        weight = None if weights is None else weights[None]
        together = measure(0, on, loss, scores, y, part[0].membership or given, weight)
        every += [replace(together.take(torch.tensor([i])), step=w.round) for i, w in enumerate(part)]
    return every


def history(rows: Rows, loss: Loss, watched: Sequence[Watched], on: Any) -> History:
    """The same as the history of one run."""
    run = History.of([snapshots(rows, loss, watched, on)], torch.tensor([0]))
    assert run is not None  # the last round is always watched
    return run
