"""What to expect in an environment that nobody has seen: models trained without each environment, scored on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import Tensor

from irmtv.core.types import Rows, Task
from irmtv.data.scaling import Scaler
from irmtv.data.training import TrainingData
from irmtv.metrics import evaluate_environments
from irmtv.metrics.definitions import as_metric
from irmtv.models.base import Outputs
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


def what_was_left_out(search: Search) -> str:
    """ "in order" (each environment predicted from what came before), "blocks of aux", or "environments" in turn."""
    other = search.elsewhere
    return other.kind if other is not None and other.choice == search.choice.index else "environments"


def left_out_table(data: TrainingData[Any], search: Search, metric: str) -> pd.DataFrame | None:
    """One row for every part that was left out (environments, groups of them, blocks of aux); None where none was.

    Times are in their order, from the third on, each predicted from what came before.

    Columns: environment, n (rows), plain (of ERM; NaN where it is not among the candidates) and chosen (the metric in
    the units of y; NaN where these rows have no value of it), missing (classes that training had no row of: every
    prediction of these is wrong). Metrics other than `SCORES` need the outputs there
    (`search(..., keep_outputs="left-out")`); rows then count alike, whatever their weight.
    """
    parts = _parts(search)
    if parts is None:
        return None
    scale = 1.0 if data.y is None else float(np.sqrt(np.mean(np.square(data.y.scale))))
    table = []
    for k, (task, name) in enumerate(zip(parts.tasks, parts.names, strict=True)):
        assert task.held_out is not None
        row: dict[str, Any] = {"environment": name, "n": len(task.held_out)}
        for column, (measured, outputs) in parts.models.items():
            if metric in SCORES:
                risk, accuracy = (float(v) for v in measured[k])
                row[column] = SCORES[metric](risk, accuracy, scale)
            else:
                row[column] = np.nan if outputs is None else _measured(metric, outputs[k], task.held_out, data.y)
        if data.task.loss.name != "squared" and data.classes is not None:
            there, known = (set(part.y.long().tolist()) for part in (task.held_out, task.train))
            row["missing"] = ", ".join(str(data.classes[c]) for c in sorted(there - known))
        table.append(row)
    return pd.DataFrame(table)


def _measured(metric: str, outputs: Tensor, rows: Rows, y: Scaler | None) -> float:
    """A metric of outputs in units of training."""
    f, target = outputs.double().numpy(), rows.y.numpy()
    if y is not None:
        f, target = (y.back(v.reshape(len(v), -1).astype(np.float64)).reshape(v.shape) for v in (f, target))
    return float(evaluate_environments(f[None], target, metric=metric).by_environment[0, 0])


class _Parts(NamedTuple):
    """What was left out, and by "plain" (ERM) and "chosen": risk and accuracy (parts, 2), and outputs if kept."""

    names: Sequence[str]
    tasks: Sequence[Task]
    models: Mapping[str, tuple[Tensor, Outputs | None]]


def _parts(search: Search) -> _Parts | None:
    """In order of time, of blocks of aux, or of every environment that was left out."""
    other, split = search.elsewhere, search.split
    if other is not None and what_was_left_out(search) == other.kind:
        models = {"plain": (other.plain, other.plain_outputs), "chosen": (other.chosen, other.chosen_outputs)}
        return _Parts(other.names, other.tasks, models)
    chosen = search.path.left_out(search.step)
    if chosen is None:
        return None
    plain, of_plain = None, None
    if search.has_erm:
        path, step = search.path_of(search.erm), search.candidates[search.erm].step
        plain, of_plain = path.left_out(step), path.left_out_outputs(step)
    if plain is None:
        plain = torch.full_like(chosen, torch.nan)
    names = [", ".join(str(split.task.train.names[e]) for e in group) for group in split.groups]
    of_choice = search.path.left_out_outputs(search.step)
    return _Parts(names, split.left_out, {"plain": (plain, of_plain), "chosen": (chosen, of_choice)})


def expected_score(table: pd.DataFrame, metric: str, column: str = "chosen") -> dict[str, Any]:
    """Mean and worst over the environments that were left out, and an interval for one more.

    The interval is that of Student's t for a new draw, mean +- t sd sqrt(1 + 1 / n), kept to what the metric can be. An
    environment without a value (an area of one class) does not count; with fewer than two values there is none.
    """
    values = table[column].dropna().to_numpy(dtype=float)
    higher = as_metric(metric).greater_is_better
    lowest, highest = (-np.inf if metric == "r2" else 0.0), (1.0 if higher else np.inf)
    n = len(values)
    mean, sd = (float(values.mean()), float(values.std(ddof=1))) if n > 1 else (np.nan, np.nan)
    half = float(stats.t.ppf((1 + COVERAGE) / 2, n - 1)) * sd * float(np.sqrt(1 + 1 / n)) if n > 1 else np.nan
    return {
        "metric": metric,
        "mean": mean,
        "worst": float(values.min() if higher else values.max()) if n > 1 else np.nan,
        "low": max(lowest, mean - half) if n > 1 else np.nan,
        "high": min(highest, mean + half) if n > 1 else np.nan,
        "coverage": COVERAGE,
        "assumption": ASSUMPTION,
        "n_environments": n,
    }
