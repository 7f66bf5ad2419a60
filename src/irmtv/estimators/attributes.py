"""What a fitted estimator tells of training: its environments, what each counts, its history."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from irmtv.core.types import Rows
from irmtv.engine import FittedRuns
from irmtv.engine.snapshots import History
from irmtv.estimators.predictor import Predictor

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.object_]


def environment_names(fitted: FittedRuns, run: int, rows: Rows, predictor: Predictor) -> Labels:
    """Those given, "inferred 1", ... where they were inferred, "all" where there are none."""
    names: list[Any] = list(rows.names)
    if fitted.objective.infers is not None:
        n = 2 if predictor.rho is None else predictor.rho.net.n_environments  # row by row: two
        names = [f"inferred {e + 1}" for e in range(n)]
    elif fitted.objective.procedure is not None and "n_clusters" in fitted.settings[run]:
        names = [f"inferred {e + 1}" for e in range(fitted.settings[run]["n_clusters"])]
    array = np.empty(max(1, len(names)), dtype=object)  # element by element: labels may be tuples
    array[:] = ["all"]
    for e, name in enumerate(names):
        array[e] = name
    return array


def environment_weights(fitted: FittedRuns, run: int, rows: Rows, predictor: Predictor, n: int) -> Floats:
    """mu: what each of the n environments counts; NaN where nothing is known of inferred ones."""
    settings, objective = fitted.settings[run], fitted.objective
    weight = torch.ones(len(rows), dtype=torch.float64) if rows.weight is None else rows.weight.double()
    kind = objective.measure_of(settings)
    if kind == "learned":
        return _floats(fitted.learned("measure")[run])
    if objective.infers is None and objective.procedure is None and rows.environment is None:
        return np.ones(1)
    if kind == "uniform" or (isinstance(kind, tuple) and len(kind) == n):
        given = np.ones(n) if kind == "uniform" else np.asarray(kind, dtype=np.float64)
        return np.asarray(given / given.sum())
    membership = _membership(fitted, run, rows, predictor, n)
    if membership is None or len(membership) != len(rows):
        return np.full(n, np.nan)
    return _floats((weight[:, None] * membership).sum(0) / weight.sum())


def _membership(fitted: FittedRuns, run: int, rows: Rows, predictor: Predictor, n: int) -> Tensor | None:
    """q of the training rows: (N, E)."""
    if predictor.rho is not None:
        assert rows.aux is not None
        return predictor.rho.membership(rows.aux, rows.x)
    codes = rows.environment
    if fitted.objective.infers is not None:
        return fitted.membership()[run].double()
    if fitted.objective.procedure is not None:
        codes = fitted.learned("clusters")[run].long()
    return None if codes is None else torch.nn.functional.one_hot(codes, n).double()


def history_frame(history: History | None, run: int, environments: Any) -> pd.DataFrame:
    """Snapshots of one run: step, environment, on, rows, risk, slope, accuracy.

    `on` says which rows were measured, "train" or "held-out"; of a vector classifier `slope` is the length. Where
    environments are inferred row by row, or by clusters, only all rows together are measured: "all".
    """
    columns = ["step", "environment", "on", "rows", "risk", "slope", "accuracy"]
    if history is None:
        return pd.DataFrame(columns=columns)
    slope = history.slope[:, run]
    slope = slope if slope.ndim == 2 else torch.linalg.vector_norm(slope, dim=-1)
    n = history.risk.shape[-1]
    names = environments if len(environments) == n else ["all"] * n
    records = [
        {
            "step": step,
            "environment": names[e],
            "on": history.on,
            "rows": float(history.rows[s, run, e]),
            "risk": float(history.risk[s, run, e]),
            "slope": float(slope[s, e]),
            "accuracy": float(history.accuracy[s, run, e]),
        }
        for s, step in enumerate(history.steps)
        for e in range(n)
    ]
    return pd.DataFrame(records, columns=columns)


def _floats(values: Tensor) -> Floats:
    result: Floats = values.double().numpy()
    return result
