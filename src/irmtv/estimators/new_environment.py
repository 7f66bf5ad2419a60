"""What to expect in an environment that nobody has seen: models trained without each environment, scored on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from irmtv.models.search import MOST_LEFT_OUT, Search
from irmtv.selection.folds import left_out_groups

COVERAGE = 0.9  # of the interval for one more environment
ASSUMPTION = "if it is drawn as these were: at random from the same kind of environments"


def left_out_table(search: Search, classes: Sequence[Any] | None, scale: float | None) -> pd.DataFrame | None:
    """One row for every part of the environments that was left out; None where none was.

    Columns: environment, n (rows), plain and chosen (accuracy, of numbers root mean squared error in their own units),
    missing (classes that no other environment has: every prediction of such rows is wrong).
    """
    rows = search.split.task.train
    plain, chosen = (search.path_of(i).left_out(search.candidates[i].step) for i in (search.erm, search.choice.index))
    if plain is None or chosen is None or rows.environment is None:
        return None
    groups = left_out_groups(rows, MOST_LEFT_OUT)
    if len(groups) != len(plain):
        groups = [[e] for e in range(len(rows.names))]
    table = []
    for k, group in enumerate(groups):
        here = np.isin(rows.environment.numpy(), group)
        row: dict[str, Any] = {"environment": ", ".join(str(rows.names[e]) for e in group), "n": int(here.sum())}
        for name, measured in (("plain", plain), ("chosen", chosen)):
            risk, accuracy = (float(v) for v in measured[k])
            row[name] = accuracy if scale is None else float(np.sqrt(risk)) * scale
        if classes is not None:
            y = rows.y.numpy().astype(np.int64)
            row["missing"] = ", ".join(str(classes[c]) for c in sorted({*y[here].tolist()} - {*y[~here].tolist()}))
        table.append(row)
    return pd.DataFrame(table)


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
