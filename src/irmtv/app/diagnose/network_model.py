"""A network with one hidden layer as the plain risk minimiser, and what it reads when it is trained to be invariant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from irmtv.app.diagnose.outputs import output_shares
from irmtv.app.diagnose.rows import DiagnosisRows, Floats, Mask
from irmtv.app.fit.networks import BATCH, HIDDEN, MANY_ROWS
from irmtv.core.types import Rows, Runs, Task
from irmtv.engine import FittedRuns, train

L2 = (0.0, 3e-3)
STEPS, LEARNING_RATE, EVERY = 600, 1e-2, 20


def fitted_outputs(rows: DiagnosisRows, trained_on: Sequence[Mask], seed: int) -> list[Floats]:
    """Outputs for all rows, (N, C) or (N, 1), of a network trained on some of them: one for each mask (N,).

    When to stop and the weight of l2 are chosen on a fifth of the training rows, which the gradients do not see. All
    networks are runs of one tensor program.
    """
    n_parts = len(trained_on)
    tasks = [_task(rows.take(part), seed) for part in trained_on]
    runs = Runs(seed=[seed] * (n_parts * len(L2)), data=[k for k in range(n_parts) for _ in L2], l2=[*L2] * n_parts)
    fitted = train(
        tasks, "erm", runs, hidden=HIDDEN, select="iid", snapshot_every=EVERY, **_training(len(tasks[0].train))
    )
    assert fitted.history is not None
    lowest = fitted.history.risk[:, :, 0].nan_to_num(torch.inf).amin(0).reshape(n_parts, len(L2))
    found = _logits(fitted, rows.x)  # (R, N, C)
    return [found[k * len(L2) + best] for k, best in enumerate(lowest.argmin(1).tolist())]


def shares(rows: DiagnosisRows, penalty_weight: float, seed: int) -> tuple[Floats, Floats]:
    """How much the outputs hang on each feature, of plain risk minimisation and under TV-l1: (D,) each."""
    task = Task(_rows(rows, with_environment=True), rows.loss, rows.n_outputs)
    runs = Runs(seed=seed, penalty_weight=[0.0, penalty_weight])
    fitted = train(task, "irm-tv-l1", runs, hidden=HIDDEN, l2=L2[-1], **_training(len(rows)))

    def share(run: int) -> Floats:
        return output_shares(lambda x: np.asarray(_logits(fitted, x)[run]), rows, seed)

    return share(0), share(1)


def _training(n_rows: int) -> dict[str, Any]:
    batch = BATCH if n_rows > MANY_ROWS else None
    return {"steps": STEPS, "learning_rate": LEARNING_RATE, "batch_size": batch}


def _rows(rows: DiagnosisRows, with_environment: bool = False) -> Rows:
    y = torch.as_tensor(rows.y)
    made = Rows(torch.as_tensor(rows.x, dtype=torch.float32), y if rows.task == "multiclass" else y.float())
    if not with_environment:
        return made
    assert rows.environment is not None
    return Rows(made.x, made.y, environment=torch.as_tensor(rows.environment), names=rows.names)


def _task(rows: DiagnosisRows, seed: int) -> Task:
    """A fifth of these rows aside, for when to stop."""
    aside = rows.folds(seed + 1) == 0
    return Task(_rows(rows.take(~aside)), rows.loss, rows.n_outputs, held_out=_rows(rows.take(aside)))


def _logits(fitted: FittedRuns, x: Floats) -> Floats:
    """(R, N, C), or (R, N, 1)."""
    f = fitted.logits(torch.as_tensor(x, dtype=torch.float32)).double().numpy()
    return np.asarray(f if f.ndim == 3 else f[:, :, None])
