"""What to expect in an environment that nobody has seen: models trained without each environment, scored on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from torch import Tensor

from irmtv.core.types import Task
from irmtv.data.training import TrainingData
from irmtv.models.search import Search

COVERAGE = 0.9  # of the interval for one more environment
ASSUMPTION = "if it is drawn as these were: at random from the same kind of environments"
# from risk, accuracy and the scale of y
SCORES: Mapping[str, Callable[[float, float, float], float]] = {
    "accuracy": lambda risk, accuracy, scale: accuracy,
    "log_loss": lambda risk, accuracy, scale: risk,
    "rmse": lambda risk, accuracy, scale: float(np.sqrt(risk)) * scale,
    "mse": lambda risk, accuracy, scale: risk * scale**2,
}


def left_out_table(data: TrainingData[Any], search: Search, metric: str) -> pd.DataFrame | None:
    """One row for every part that was left out (environments, groups of them, blocks of aux); None where none was.

    Columns: environment, n (rows), plain and chosen (the metric, one of `SCORES`, in the units of y), missing (classes
    that no other environment has: every prediction of such rows is wrong).
    """
    parts = _parts(search)
    if parts is None:
        return None
    names, tasks, plain, chosen = parts
    scale = 1.0 if data.y is None else float(np.sqrt(np.mean(np.square(data.y.scale))))
    table = []
    for k, (task, name) in enumerate(zip(tasks, names, strict=True)):
        assert task.held_out is not None
        row: dict[str, Any] = {"environment": name, "n": len(task.held_out)}
        for column, measured in (("plain", plain), ("chosen", chosen)):
            risk, accuracy = (float(v) for v in measured[k])
            row[column] = SCORES[metric](risk, accuracy, scale)
        if data.task.loss.name != "squared" and data.classes is not None:
            there, known = (set(part.y.long().tolist()) for part in (task.held_out, task.train))
            row["missing"] = ", ".join(str(data.classes[c]) for c in sorted(there - known))
        table.append(row)
    return pd.DataFrame(table)


def _parts(search: Search) -> tuple[Sequence[str], Sequence[Task], Tensor, Tensor] | None:
    """Names, tasks, and risk and accuracy of ERM and of the choice: in order of time, of blocks of aux, or of every
    environment that was left out."""
    other, split = search.elsewhere, search.split
    if other is not None and other.choice == search.choice.index:
        return other.names, other.tasks, other.plain, other.chosen
    plain, chosen = (search.path_of(i).left_out(search.candidates[i].step) for i in (search.erm, search.choice.index))
    if plain is None or chosen is None:
        return None
    names = [", ".join(str(split.task.train.names[e]) for e in group) for group in split.groups]
    return names, split.left_out, plain, chosen


def expected_score(table: pd.DataFrame, metric: str, column: str = "chosen") -> dict[str, Any]:
    """Mean and worst over the environments that were left out, and an interval for one more.

    The interval is that of Student's t for a new draw, mean +- t sd sqrt(1 + 1 / n), kept to what the metric can be.
    """
    values = table[column].to_numpy(dtype=float)
    higher = metric == "accuracy"
    n, mean, sd = len(values), float(values.mean()), float(values.std(ddof=1))
    half = float(stats.t.ppf((1 + COVERAGE) / 2, n - 1)) * sd * float(np.sqrt(1 + 1 / n))
    return {
        "metric": metric,
        "mean": mean,
        "worst": float(values.min() if higher else values.max()),
        "low": max(0.0, mean - half),
        "high": min(1.0, mean + half) if higher else mean + half,
        "coverage": COVERAGE,
        "assumption": ASSUMPTION,
        "n_environments": n,
    }
