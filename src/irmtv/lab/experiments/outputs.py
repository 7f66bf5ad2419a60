"""Held-out outputs of runs on folds, stored where a spec asks for them (`outputs = true`).

With them the rule "invariance" shows the environments the candidate that it would take, as a search does: added to ERM,
would some of them want more of it and others less (`irmtv.models.own_directions.directions_toward`)?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from irmtv.core.losses import Binary, Loss, Multiclass, Squared
from irmtv.core.types import Rows, Task
from irmtv.engine import FittedRuns
from irmtv.models.networks.predictor import members_of
from irmtv.models.own_directions import directions_toward
from irmtv.selection import Records
from irmtv.selection.invariant import would_be_taken

OUTPUTS = "held-out/outputs"  # (S, N) or (S, N, C) of a run's own fold, by snapshot
LABELS, ENVIRONMENT = "held-out/labels", "held-out/environment"  # (N,) of the same rows

Arrays = Mapping[str, np.ndarray]


def outputs_of(fitted: FittedRuns, r: int, rows: Rows) -> dict[str, np.ndarray]:
    """What a run stores of the rows that it has not seen; the states of its snapshots must have been kept."""
    if rows.environment is None or rows.weight is not None or r in fitted.diverged:
        return {}
    history = fitted.history
    assert history is not None
    steps = [step for k, step in enumerate(history.steps) if bool((history.rows[k, r] > 0).any())]
    models = [members_of(fitted.at(step), [r], "last")[0] for step in steps]
    outputs = torch.stack([model.logits(rows.x.double()).float() for model in models])
    return {OUTPUTS: outputs.numpy(), LABELS: rows.y.cpu().numpy(), ENVIRONMENT: rows.environment.cpu().numpy()}


def with_toward(
    records: Records,
    folds: Sequence[tuple[Sequence[Arrays], int]],
    accuracy: bool,
    options: Mapping[str, Any],
) -> Records:
    """The records with what environments say of the candidate that the rule would take.

    Parameters
    ----------
    folds : of every candidate of the records, the arrays of its folds, and its step.
    accuracy : whether these are classes.
    """
    if not any(OUTPUTS in arrays for of_candidate, _ in folds for arrays in of_candidate):
        return records  # before the rule is asked, which takes its time
    index = would_be_taken(records, **options)
    if index is None or not bool(records.reference.any()):
        return records
    pair = (records.plain, index)
    if not all(OUTPUTS in arrays for i in pair for arrays in folds[i][0]) or not folds[index][0]:
        return records
    outputs = ([a[OUTPUTS][a["steps"] == step][0] for a in arrays] for arrays, step in (folds[i] for i in pair))
    scores = [np.concatenate(of_folds) for of_folds in outputs]
    labels, codes = (np.concatenate([a[name] for a in folds[index][0]]) for name in (LABELS, ENVIRONMENT))
    loss: Loss = Squared()
    if accuracy:
        loss = Multiclass() if scores[0].ndim > 1 else Binary()
    elif scores[0].ndim > 1:
        loss = Squared(scores[0].shape[1])
    rows = Rows(
        x=torch.zeros(len(labels), 1),
        y=torch.as_tensor(labels),
        environment=torch.as_tensor(codes),
        names=tuple(range(int(codes.max()) + 1)),
    )
    task = Task(rows, loss, n_outputs=scores[0].shape[1] if scores[0].ndim > 1 else 1)
    erm, other = (torch.as_tensor(values).double() for values in scores)
    return replace(records, toward=directions_toward(task, erm, other))
