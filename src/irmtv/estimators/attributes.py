"""What a fitted estimator tells of training: its environments, what each counts, its history."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from irmtv.core.messages import users_stacklevel
from irmtv.core.types import Rows, Task
from irmtv.engine import FittedRuns
from irmtv.engine.snapshots import History
from irmtv.models.networks.predictor import Predictor
from irmtv.objectives.base import warmup_steps

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.object_]
# shares of a constant's training risk: a model at the first or above predicts nothing, one below the second did
NOTHING, SOMETHING = 0.98, 0.95
ENOUGH_STEPS = 100  # fewer train nothing, with or without a penalty
FLAT = 0.2  # standard deviation of outputs (logits, or standardised predictions) of a model that hardly moves


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


def warn_of_a_constant(fitted: FittedRuns, run: int, history: pd.DataFrame, predictor: Predictor, task: Task) -> None:
    """Warn where the penalty has made a constant of the model: that is invariant, and rarely wanted.

    What tells is the training risk in the history, so that it costs next to nothing: it is again that of the best
    constant, though before the penalty acted it was well below. On rows from which nothing can be predicted it never
    was, and nothing is said; without a warm-up there is no before, and the warning says that it may be either. A model
    whose risk is as large for another reason (it diverges, it predicts wildly) is told by how far its outputs differ.
    """
    settings, objective = fitted.settings[run], fitted.objective
    weight = settings.get("penalty_weight")
    acts = objective.penalties and "warmup" in settings and any(objective.weights(weight))
    if not acts or settings["steps"] < ENOUGH_STEPS or history.empty or (history["on"] != "train").any():
        return
    risks = _risk_by_step(history)
    constant = _risk_of_a_constant(task)
    final, lowest = risks.get(predictor.members[0].step, np.nan), risks.min()
    if not (final >= NOTHING * constant and _is_flat(predictor, task.train)):  # NaN: it was not measured
        return
    by_chance = 2 * task.train.x[0].numel() / len(task.train)  # about what a linear model gains from noise, twice
    figures = f"its training risk is {final:.3g}, that of the best constant {constant:.3g}"
    smaller = "a number" if isinstance(weight, str) else "a smaller one"
    if lowest <= (SOMETHING - by_chance) * constant:
        what = (
            f"{figures}, and it was {lowest:.3g} before the penalty had its effect. A constant is invariant: "
            f"penalty_weight={weight!r} is too much for these rows. Use {smaller},"
        )
    elif warmup_steps(settings["warmup"], settings["steps"]) == 0:
        what = (
            f"{figures}. Either X says little about y, or penalty_weight={weight!r} is too much where it acts from the "
            f"first step. Use {smaller}, warmup=0.5,"
        )
    else:
        return
    path = "InvariantRegressorCV" if task.loss.name == "squared" else "InvariantClassifierCV"
    warnings.warn(
        f"the model predicts nearly a constant: {what} or {path}, which looks at a path of weights.",
        UserWarning,
        stacklevel=users_stacklevel(),
    )


def _is_flat(predictor: Predictor, rows: Rows) -> bool:
    """Whether the outputs for a thousand of these rows are nearly the same."""
    some = rows.take(torch.arange(0, len(rows), max(1, len(rows) // 1000)))
    inputs = some.x.double()
    if predictor.aux is not None and some.aux is not None:
        inputs = torch.cat([inputs, predictor.aux(some.aux)], 1)
    outputs = predictor.members[0].logits(inputs).reshape(len(some), -1)  # (n, C)
    return bool((outputs.std(0, correction=0) < FLAT).all())


def _risk_by_step(history: pd.DataFrame) -> pd.Series[float]:
    """Mean over all rows at every step; environments without rows have no risk and count nothing."""
    known = history[history["rows"] > 0]
    total = (known["risk"] * known["rows"]).groupby(known["step"]).sum(min_count=1)
    return total / known.groupby("step")["rows"].sum()


def _risk_of_a_constant(task: Task) -> float:
    """The lowest training risk that outputs without X can have, by the weights of the rows."""
    rows, loss = task.train, task.loss
    y = rows.y.double()
    weight = torch.ones(len(rows), dtype=torch.float64) if rows.weight is None else rows.weight.double()
    share = weight / weight.sum()
    if loss.name == "squared":
        y = y.reshape(len(rows), -1)
        return float((share[:, None] * (y - share @ y).square()).sum(0).mean())
    mass = torch.bincount(rows.y.long(), share)
    mass = mass[mass > 0]
    return float(-(mass * mass.log()).sum())


def _floats(values: Tensor) -> Floats:
    result: Floats = values.double().numpy()
    return result
