"""Environments that runs infer while they train: which rows are in which, and in the same order in all folds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    first: dict[tuple[str, int, int], Tensor] = {}
    order = []
    q = memberships(fitted, work, whole)
    for r, m in enumerate(work.members):
        reference = first.setdefault((m.setting, m.seed, m.combination), q[r])
        order.append(align(reference, q[r]))
    return order


def memberships(fitted: FittedRuns, work: Work, whole: Whole) -> dict[int, Tensor]:
    """Of every run, for all rows of its setting and seed (N, E): chunk by chunk, since runs may differ in E."""
    found: dict[int, Tensor] = {}
    of_task = {fitted.runs[r]["data"]: whole(m.setting, m.seed) for r, m in enumerate(work.members)}
    tasks = [of_task[d] for d in range(len(fitted.tasks))]
    aux, x = _each([aux_of(task) for task in tasks]), _each([task.train.x for task in tasks])
    for chunk in fitted.chunks:
        alone = replace(fitted, chunks=(chunk,))
        found |= zip(sorted(chunk.chunk.runs), alone.membership(aux, x=x), strict=True)
    return found


def _each(arrays: Sequence[Tensor]) -> Tensor | Sequence[Tensor]:
    """One array per data set, or the array of the only one."""
    return arrays if len(arrays) > 1 else arrays[0]
