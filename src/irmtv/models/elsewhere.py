"""Where ERM and the choice are trained beside the search: on what came before each time, without each block of aux."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from irmtv.core.types import Task
from irmtv.data.environments import is_pooled
from irmtv.data.times import time_name, time_order
from irmtv.selection.folds import aux_blocks, groups_in_order, tasks_in_order

AUX_BLOCKS = 5  # of the first auxiliary variable, that are left out in turn
LEAST_TIMES = 4  # the first two are never predicted, and one number has no spread
ENOUGH_TIMES = 5  # for "auto": two numbers have a spread, but an interval from them says nothing
Parts = tuple[Sequence[str], Sequence[Task]]  # what is predicted: names, and tasks whose held-out rows it is


@dataclass(frozen=True)
class Elsewhere:
    """ERM and the choice, trained without some rows that the rule did not leave out, and measured on them."""

    kind: Literal["in order", "blocks of aux"]
    choice: int  # the candidate that was chosen
    names: Sequence[str]
    tasks: Sequence[Task]
    plain: Tensor  # (tasks, 2) risk and accuracy; NaN where ERM is not among the candidates
    chosen: Tensor
    plain_outputs: Sequence[Tensor] | None = None  # by task: on its held-out rows, where these are kept
    chosen_outputs: Sequence[Tensor] | None = None


def check_times(names: Sequence[Hashable], given: bool, by_place: bool) -> None:
    """Raise where environments that are said to be times cannot be predicted from what came before."""
    pooled = next((name for name in names if is_pooled(name)), None)
    if pooled is not None:
        raise ValueError(
            f"time_ordered needs every environment apart. Got {pooled!r}: those with fewer than min_rows rows are "
            "pooled, and have no place in the order of time. Use min_rows=1, or a coarser label."
        )
    if len(names) < LEAST_TIMES or not given:
        raise ValueError(
            "time_ordered trains on what came before each environment, from the third on, and needs four or more that "
            f"are given. Got {len(names) or 'none'}. Leave time_ordered out, or use a finer label."
        )
    if by_place:
        raise ValueError(
            "time_ordered trains without some environments: measure must be a word, such as 'uniform'. Got one weight "
            "per environment. Use time_ordered=False to keep these."
        )


def order_of_time(
    names: Sequence[Hashable], time_ordered: bool | Literal["auto"], are_left_out: bool
) -> list[int] | None:
    """Environments in the order of time, where they are to be predicted in it; None where they are not.

    "auto" asks the labels, where there are five or more and environments are left out in any case.
    """
    if time_ordered == "auto":
        return time_order(names) if are_left_out and len(names) >= ENOUGH_TIMES else None
    return time_order(names, told=True) if time_ordered else None


def parts_in_order(task: Task, order: Sequence[int], most: int) -> Parts:
    """Environments from the third on, or groups of neighbours where there are more than `most`: trained on what came
    before."""
    rows = task.train
    assert rows.environment is not None
    place = torch.empty(len(order), dtype=torch.int64)
    place[torch.tensor(order)] = torch.arange(len(order))
    sorted_names = tuple(rows.names[e] for e in order)
    sorted_task = replace(task, train=replace(rows, environment=place[rows.environment], names=sorted_names))
    groups = groups_in_order(len(order), most)
    ends = [[time_name(sorted_names[e]) for e in dict.fromkeys((group[0], group[-1]))] for group in groups]
    return [" to ".join(names) for names in ends], tasks_in_order(sorted_task, groups)


def parts_of_aux(task: Task) -> Parts | None:
    """Blocks of the first auxiliary variable; None where it has too few values for three."""
    names, tasks = aux_blocks(task, AUX_BLOCKS)
    return (names, tasks) if len(tasks) >= 3 else None
