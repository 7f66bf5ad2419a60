"""Environments from auxiliary variables, as labels: for methods that need them given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from irmtv.core.types import Rows, Runs, Task
from irmtv.engine import train
from irmtv.selection.folds import align

INFERRING = "minimax-tv-l1"  # the objective whose network on aux divides the rows


def only_inferring(steps: int) -> dict[str, Any]:
    """Settings of that objective with which Phi is ERM to the last step, and rho climbs as long.

    The penalty has weight 0 for Phi, and the warm-up, in which rho climbs, does not end.
    """
    return {"penalty_weight": 0.0, "warmup": steps}


def infer_environments(
    tasks: Sequence[Task],
    seeds: Sequence[int],
    all_aux: Sequence[Tensor],
    alike: Sequence[int],
    *,
    n_environments: int = 2,
    steps: int = 1000,
    learning_rate: float = 5e-3,
    **settings: Any,
) -> list[Task]:
    """The tasks with environments inferred from aux on their training rows, instead of those given.

    A network on aux divides the training rows so that ERM has the largest TV-l1 penalty; every
    row, held-out ones too, then belongs to its most probable environment. Labels of held-out rows are never used.

    Parameters
    ----------
    tasks : tasks with aux. Test rows are left as they are.
    seeds : one per task.
    all_aux : for each task the aux (N, A) of the rows by which environments of alike tasks are matched, the same
        rows for all tasks that are alike.
    alike : for each task the position of the task whose order of environments it takes (its own for the first).
    n_environments, steps, learning_rate : of the inference; `settings` goes on to `train` (device, dtype).
    """
    runs = Runs(seed=list(seeds), data=list(range(len(tasks))))
    fitted = train(
        tasks,
        INFERRING,
        runs,
        **only_inferring(int(steps)),
        steps=steps,
        learning_rate=learning_rate,
        n_environments=n_environments,
        **settings,
    )
    names = tuple(f"inferred {e + 1}" for e in range(n_environments))

    def memberships(aux: Sequence[Tensor]) -> list[Tensor]:  # of every task: (N, E)
        longest = max(map(len, aux))  # folds differ by a row: the last one again, in their place
        filled = [torch.cat([a, a[-1:].expand(longest - len(a), -1)]) for a in aux]
        found = fitted.membership(filled if len(tasks) > 1 else filled[0])
        return [q[: len(a)] for q, a in zip(found, aux, strict=True)]

    shared = memberships(all_aux)
    order = [align(shared[alike[i]], shared[i]) for i in range(len(tasks))]

    def labelled(rows: list[Rows]) -> list[Rows]:
        q = memberships([r.aux for r in rows if r.aux is not None])
        codes = [qi[:, o].argmax(1) for qi, o in zip(q, order, strict=True)]
        return [replace(r, environment=c, names=names) for r, c in zip(rows, codes, strict=True)]

    trained = labelled([t.train for t in tasks])
    held = [t.held_out for t in tasks if t.held_out is not None]
    if not held:
        return [replace(t, train=rows) for t, rows in zip(tasks, trained, strict=True)]
    return [replace(t, train=a, held_out=b) for t, a, b in zip(tasks, trained, labelled(held), strict=True)]
