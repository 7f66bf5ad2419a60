"""Environments that runs infer while they train: which rows are in which, and in the same order in all folds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from irmtv.core.types import Task
from irmtv.engine import FittedRuns
from irmtv.lab.experiments.plan import Work
from irmtv.selection.folds import align

Whole = Callable[[str, int], Task]  # the task of a setting and a seed, on all rows


def aux_of(task: Task) -> Tensor:
    """The auxiliary variables of the training rows; raises where there are none."""
    if task.train.aux is None:
        raise ValueError(f'environments = "inferred" needs auxiliary variables. Task {task.name!r} has none.')
    return task.train.aux


def order_of_environments(fitted: FittedRuns, work: Work, whole: Whole) -> list[Tensor] | None:
    """The order in which each run's inferred environments are stored; None where environments are not inferred.

    On folds it is that of the first fold's run, so that an environment has the same place in all of them.
    """
    if not work.members[0].method.infers:
        return None
    if work.kind != "folds":  # runs may have fewer environments than others of the group
        return [torch.arange(m.settings["n_environments"]) for m in work.members]
    first: dict[tuple[int, int], Tensor] = {}
    order = []
    by_run: dict[int, dict[int, Tensor]] = {}
    for r, m in enumerate(work.members):
        if m.seed not in by_run:  # members come repetition by repetition
            by_run = {m.seed: memberships(fitted, whole(m.setting, m.seed))}
        q = by_run[m.seed][r]
        reference = first.setdefault((m.seed, m.combination), q)
        order.append(align(reference, q))
    return order


def memberships(fitted: FittedRuns, task: Task) -> dict[int, Tensor]:
    """Of every run (N, E): chunk by chunk, since runs may differ in the number of environments."""
    found: dict[int, Tensor] = {}
    for chunk in fitted.chunks:
        alone = replace(fitted, chunks=(chunk,))
        found |= zip(sorted(chunk.chunk.runs), alone.membership(aux_of(task), x=task.train.x), strict=True)
    return found
