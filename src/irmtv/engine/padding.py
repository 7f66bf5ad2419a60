"""Data sets of nearly equal length made equally long, so that their runs are one tensor program.

Folds differ by a few rows, and what is left of a table without one of its environments by more. A step of a small
program costs what its calls cost, however few rows it has: three data sets in one program take a third of the time of
three programs. Rows that fill up have weight 0 and a row's own values: no mean and no standard error depends on them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from irmtv.core.types import Rows, Task
from irmtv.engine.plan import rows_per_step
from irmtv.objectives.base import Objective

# What the calls of a step cost, in products: more than so many on rows that only fill up are not worth one call less.
# A value that a layer puts out costs about 50 products more than those of its weights: what is done element by element.
CALLS, ELEMENTWISE = 4_000_000, 50


def equally_long(
    tasks: Sequence[Task], objective: Objective, settings: Sequence[Mapping[str, Any]], widths: Sequence[int]
) -> list[Task]:
    """The tasks, where it pays filled up to the length of others; `widths` are those of a network's layers, and of its
    input."""
    if len(tasks) < 2 or not _may_be_filled(tasks, objective, settings):
        return list(tasks)
    runs = Counter(s["data"] for s in settings)
    each_row = sum(out * (into + ELEMENTWISE) for into, out in pairwise(widths))
    alike: dict[Any, list[int]] = defaultdict(list)
    for d, task in enumerate(tasks):
        alike[runs[d], task.train.x.shape[1:], len(task.train.names), task.n_outputs].append(d)
    filled = list(tasks)
    for (n_runs, *_), members in alike.items():
        in_order = sorted(members, key=lambda d: -len(tasks[d].train))
        while in_order:
            most = len(tasks[in_order[0]].train)
            near = [d for d in in_order if (most - len(tasks[d].train)) * n_runs * each_row <= CALLS]
            held_out = [rows for d in near if (rows := tasks[d].held_out) is not None]
            longest = max(map(len, held_out), default=0)
            for d in near:
                train, measured = tasks[d].train, tasks[d].held_out
                filled[d] = replace(
                    tasks[d],
                    train=_filled(train, most),
                    held_out=None if measured is None else _filled(measured, longest),
                )
            in_order = [d for d in in_order if d not in near]
    return filled


def _may_be_filled(tasks: Sequence[Task], objective: Objective, settings: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all rows are read at every step, by nothing that looks at them beyond means: no inferred environments."""
    own = objective.infers or objective.mask or objective.row_weights or objective.procedure or objective.reads_aux
    measured = {task.held_out is None for task in tasks}
    shortest = min(len(task.train) for task in tasks)  # whether there are batches must not depend on what is filled up
    longest = max(len(task.train) for task in tasks)
    whole = all(rows_per_step(s["batch_size"], n) == n for s in settings for n in (shortest, longest))
    return not own and len(measured) == 1 and whole and all(s["solver"] == "adam" for s in settings)


def _filled(rows: Rows, n: int) -> Rows:
    """With its first row repeated up to n rows, weight 0."""
    missing = n - len(rows)
    if not missing:
        return rows
    again = rows.take(torch.cat([torch.arange(len(rows)), torch.zeros(missing, dtype=torch.int64)]))
    weight = torch.ones(n, dtype=torch.float64) if rows.weight is None else again.weight
    assert weight is not None
    weight = weight.double().clone()
    weight[len(rows) :] = 0
    return replace(again, weight=weight)
