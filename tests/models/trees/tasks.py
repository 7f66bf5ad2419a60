"""Small tasks for the tests of boosting."""

from __future__ import annotations

import numpy as np
import torch

from irmtv.core.losses import as_loss
from irmtv.core.types import Rows, Task

N_OUTPUTS = {"binary": 1, "squared": 1, "multiclass": 3}


def small_task(loss="binary", n=240, seed=0, weighted=False, held_out=False):
    """Three columns: one that always tells y, one that tells it in the first of two environments, noise."""
    rng = np.random.default_rng(seed)
    environment = np.repeat([0, 1], n // 2)
    truth = rng.normal(size=n)
    spurious = np.where(environment == 0, truth, rng.normal(size=n)) + 0.3 * rng.normal(size=n)
    x = np.c_[truth + rng.normal(size=n), spurious, rng.normal(size=n)]
    if loss == "binary":
        y = torch.as_tensor((truth > 0).astype(float))
    elif loss == "multiclass":
        y = torch.as_tensor(np.digitize(truth, [-0.5, 0.5]))
    else:
        y = torch.as_tensor(truth)
    rows = Rows(
        torch.as_tensor(x),
        y,
        environment=torch.as_tensor(environment),
        aux=torch.as_tensor(np.linspace(0, 1, n)[:, None]),
        names=("a", "b"),
        weight=torch.as_tensor(rng.uniform(0.5, 2, n)) if weighted else None,
    )
    odd = torch.arange(n) % 2 == 1
    task = Task(rows, as_loss(loss, N_OUTPUTS[loss]), N_OUTPUTS[loss])
    if not held_out:
        return task
    parts = [rows.take(which.nonzero().squeeze(1)) for which in (~odd, odd)]
    return Task(parts[0], task.loss, task.n_outputs, held_out=parts[1])
