"""What is measured of linear models that were solved outright, beside the statistics of their history.

The CV estimators measure it while they search, and experiments store it: both by these functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from irmtv.core.losses import Loss
from irmtv.core.types import Rows
from irmtv.engine import FittedRuns
from irmtv.engine.solvers.linear_risks import row_slopes
from irmtv.engine.solvers.second_order import NUMBERS_AT_ONCE
from irmtv.objectives.base import Objective
from irmtv.selection.variation import slope_moments

MOST_COLUMNS = 100  # up to which the slope of a linear model is looked at column by column


def is_solved(objective: Objective, settings: Mapping[str, Any]) -> bool:
    """Whether a run with these settings is a linear model at a stationary point: by Newton's method, or "eills"."""
    return settings["solver"] == "newton" or objective.procedure == "columns"


def linear_models(fitted: FittedRuns) -> Tensor:
    """Of all runs, the intercept last: (R, C, D + 1)."""
    coef, intercept = fitted.coefficients(which="last")
    shape = len(coef), fitted.tasks[0].n_outputs
    return torch.cat([coef.double().view(*shape, -1), intercept.double().view(*shape, 1)], 2)


def kept_directions(fitted: FittedRuns) -> dict[int, Tensor]:
    """Of runs that leave out directions of x: what each projects x on, (D, D)."""
    found: dict[int, Tensor] = {}
    for chunk in fitted.chunks:
        if "kept_directions" in chunk.last.learned:
            found |= zip(chunk.chunk.runs, chunk.last.learned["kept_directions"], strict=True)
    return found


def slopes_of(fitted: FittedRuns, runs: Sequence[int], rows: Rows, models: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """`column_slopes` of some runs with these models (K, C, D + 1); where directions are left out, in what is kept."""
    kept = kept_directions(fitted)
    if not kept:
        return column_slopes(rows, models, loss)
    x = rows.x.double().cpu().flatten(1)
    projected = [replace(rows, x=x @ kept[r]) if r in kept else rows for r in runs]
    each = [column_slopes(one, models[[k]], loss) for k, one in enumerate(projected)]
    return torch.cat([mean for mean, _ in each]), torch.cat([cov for _, cov in each])


def column_slopes(rows: Rows, models: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """Mean slopes of linear models (K, C, D + 1) in every column, by environment (K, E, J), and their covariances.

    In a vector classifier: of several outputs J counts these, else the columns.
    """
    assert rows.environment is not None
    at_once = max(1, NUMBERS_AT_ONCE // max(1, rows.x.numel()))
    parts = [
        slope_moments(row_slopes(rows, some, loss, models.shape[1]), rows.environment, len(rows.names), rows.weight)
        for some in torch.split(models.flatten(1), at_once)
    ]
    return torch.cat([mean for mean, _ in parts]), torch.cat([cov for _, cov in parts])


def middle_model(models: Tensor) -> Tensor:
    """Of the models of all folds (F, C, D + 1) the one that is nearest to their mean."""
    return models[(models - models.mean(0)).square().sum((1, 2)).argmin()]
