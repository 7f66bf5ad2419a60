"""Rows with known answers."""

from __future__ import annotations

import numpy as np

from irmtv.app.diagnose.rows import DiagnosisRows, read_rows


def rows_of(x, y, task="regression", **more) -> DiagnosisRows:
    x = np.asarray(x, dtype=np.float64)
    x = x[:, None] if x.ndim == 1 else x
    return read_rows(x, y, task, features=[f"x{j}" for j in range(x.shape[1])], **more)


def task_rows(task, *, aux=False, environment=True) -> DiagnosisRows:
    """Training rows of a generated task."""
    rows = task.train
    kind = "regression" if task.loss.name == "squared" else task.loss.name
    names = [str(rows.names[e]) for e in rows.environment] if environment else None
    return rows_of(rows.x.numpy(), rows.y.numpy(), kind, environment=names, aux=rows.aux.numpy() if aux else None)


def regression(n=400, slopes=(1.0, 1.0), shift=(0.0, 0.0), level=(0.0, 0.0), noise=(1.0, 1.0), d=3, seed=0):
    """Two environments; the first feature has a slope, a mean, a level and a noise of its own in each."""
    rng = np.random.default_rng(seed)
    e = np.repeat([0, 1], [n // 2, n - n // 2])
    x = rng.normal(size=(n, d))
    x[:, 0] += np.asarray(shift)[e]
    y = (
        np.asarray(slopes)[e] * x[:, 0]
        + x[:, 1:].sum(1)
        + np.asarray(level)[e]
        + np.asarray(noise)[e] * rng.normal(size=n)
    )
    return rows_of(x, y, environment=np.array(["a", "b"])[e])
