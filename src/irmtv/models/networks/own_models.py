"""Would an environment rather have a model of its own? That of linear models, and of networks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from irmtv.core.types import Runs, Task
from irmtv.engine import FittedRuns, train
from irmtv.engine.solvers.rescaled import rescale, rescaling
from irmtv.models.base import mean_gain
from irmtv.selection.directions import Directions, compare_directions
from irmtv.selection.folds import gain_over_rescaled, of_few_sizes, own_task

ROWS_PER_PARAMETER = 5  # that an environment must have, for its direction to count


@contextmanager
def divergence_is_recorded() -> Iterator[None]:
    """Training without its warning of runs that diverged: their status says so, or NaN in their place."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*runs diverged.*")
        yield


def gains_of_own_models(
    fitted: FittedRuns, l2_from: Sequence[float] = (), runs: Sequence[int] | None = None, **settings: Any
) -> list[npt.NDArray[np.float64]]:
    """For every run of ERM, or these of them: by environment, rows, mean gain of its own model, variance: (E, 3).

    `fitted` was trained with select="iid" on tasks with held-out rows; `settings` go to `train`. Both models stop
    where their risk on the held-out rows is lowest; with `l2_from`, own models have that of these l2. An environment
    with fewer than two held-out rows, or none to train on, has NaN.
    """
    of = dict(enumerate(fitted.runs.column("data")))
    of = of if runs is None else {r: of[r] for r in runs}  # run -> data set
    gains = {r: np.full((len(fitted.tasks[d].train.names), 3), np.nan) for r, d in of.items()}
    for e in range(max(len(t.train.names) for t in fitted.tasks)):
        own = [own_task(task, e) for task in fitted.tasks]
        fewer = [of_few_sizes(o, len(task.train)) for o, task in zip(own, fitted.tasks, strict=True)]
        some = [d for d, t in enumerate(own) if len(t.train) > 1 and t.held_out is not None and len(t.held_out) > 1]
        which = [r for r, d in of.items() if d in some]  # not for all runs of the group: one has no say in another
        if not which:
            continue
        values = [{"l2": v} for v in l2_from] or [{}]
        trained = [{**fitted.runs[r], "data": some.index(of[r]), **value} for r in which for value in values]
        with divergence_is_recorded():
            alone = train(
                [fewer[d] for d in some],
                "erm",
                Runs(**{name: [run[name] for run in trained] for name in trained[0]}),
                select="iid",
                **{name: value for name, value in settings.items() if name != "l2" or not l2_from},
            )
        for d in some:
            task = own[d]
            assert task.held_out is not None
            pooled_train = fitted.logits(task.train.x, aux=task.train.aux)
            pooled_held = fitted.logits(task.held_out.x, aux=task.held_out.aux)
            own_held = alone.logits(task.held_out.x)
            for i, r in enumerate(which):
                if of[r] == d:
                    pooled = pooled_train[r].cpu(), pooled_held[r].cpu()
                    each = own_held[i * len(values) : (i + 1) * len(values)].cpu()
                    every = [mean_gain(g, task.held_out.weight) for g in gain_over_rescaled(task, *pooled, each)]
                    gains[r][e] = max(every, key=lambda g: float(g[1]))  # (rows, mean gain, variance)
    return list(gains.values())


def own_directions(task: Task, theta: Tensor) -> Directions | None:
    """Whether all environments would choose the direction of a linear model near ERM (P,); None for want of rows."""
    rows, n_outputs = task.train, task.n_outputs
    assert rows.environment is not None
    parts = [rows.take((rows.environment == e).nonzero().squeeze(1)) for e in range(len(rows.names))]
    enough = [part for part in parts if len(part) >= ROWS_PER_PARAMETER * len(theta)]
    each = [rescale(part, theta, task.loss, n_outputs) for part in enough]
    each = [one for one in each if one.rows >= ROWS_PER_PARAMETER * len(theta)]
    if len(each) < 2:
        return None
    return compare_directions(
        torch.stack([one.gradient for one in each]),
        torch.stack([one.hessian for one in each]),
        torch.stack([one.spread for one in each]),
        torch.tensor([one.rows for one in each], dtype=torch.float64),
        torch.tensor([one.scale for one in each], dtype=torch.float64),
        rescaling(theta, n_outputs),
    )


def rows_per_parameter(tasks: Sequence[Task]) -> float:
    """Of linear models, in the smallest environment of them all."""
    counts = [torch.bincount(t.train.environment).min() for t in tasks if t.train.environment is not None]
    parameters = (tasks[0].train.x[0].numel() + 1) * tasks[0].n_outputs
    return int(min(counts)) / parameters if counts else 0.0
