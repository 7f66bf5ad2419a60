"""Models of single environments, to compare ERM with: does a model of one environment alone predict better there?

Where environments differ in noise or base rate alone, ERM fails a test of invariance although no
environment has a better predictor of its own. The rule "invariance" asks for the gains that are measured here.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from irmtv.core.types import Runs
from irmtv.engine import FittedRuns, train
from irmtv.models.base import mean_gain
from irmtv.selection.folds import gain_over_rescaled, of_few_sizes, own_task


@contextmanager
def divergence_is_recorded() -> Iterator[None]:
    """Training without its warning of runs that diverged: their status says so, or NaN in their place."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*runs diverged.*")
        yield


def gains_of_own_models(fitted: FittedRuns, **settings: Any) -> list[npt.NDArray[np.float64]]:
    """For every run of ERM: by environment, rows, mean gain of its own model, variance: (E, 3).

    `fitted` was trained with select="iid" on tasks with held-out rows; `settings` go to `train`. Both models stop
    where their risk on the held-out rows is lowest. An environment with fewer than two held-out rows, or none to train
    on, has NaN.
    """
    of = fitted.runs.column("data")
    found = [np.full((len(fitted.tasks[d].train.names), 3), np.nan) for d in of]
    for e in range(max(len(t.train.names) for t in fitted.tasks)):
        own = [own_task(task, e) for task in fitted.tasks]
        fewer = [of_few_sizes(o, len(task.train)) for o, task in zip(own, fitted.tasks, strict=True)]
        some = [d for d, t in enumerate(own) if len(t.train) > 1 and t.held_out is not None and len(t.held_out) > 1]
        which = [r for r, d in enumerate(of) if d in some]  # not for all runs of the group: one has no say in another
        if not which:
            continue
        runs = [{**fitted.runs[r], "data": some.index(of[r])} for r in which]
        with divergence_is_recorded():
            alone = train(
                [fewer[d] for d in some],
                "erm",
                Runs(**{name: [run[name] for run in runs] for name in runs[0]}),
                select="iid",
                **settings,
            )
        for d in some:
            task = own[d]
            assert task.held_out is not None
            pooled_train = fitted.logits(task.train.x, aux=task.train.aux)
            pooled_held = fitted.logits(task.held_out.x, aux=task.held_out.aux)
            own_held = alone.logits(task.held_out.x)
            for i, r in enumerate(which):
                if of[r] == d:
                    gain = gain_over_rescaled(task, pooled_train[r].cpu(), pooled_held[r].cpu(), own_held[i].cpu())
                    found[r][e] = mean_gain(gain, task.held_out.weight)
    return found
