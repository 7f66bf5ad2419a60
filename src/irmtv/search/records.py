"""From fold models to records: which steps are candidates, and what was measured of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from irmtv.core.types import Rows, Task
from irmtv.crossfit import align, constant_risk
from irmtv.engine import FittedRuns
from irmtv.objectives.parameters import warmup_steps
from irmtv.search.families import OF_ALL_OBJECTIVES, Candidate, Family, infers_held_out
from irmtv.selection import Records

STATISTICS = ("rows", "effective", "risk", "risk_cov", "slope", "slope_cov")


def candidate_steps(family: Family, c: int) -> list[int]:
    """When a combination is a candidate: not at its random start, nor before its environments are settled.

    Environments that are still being looked for are others at every step: nothing can be tested on them. Nor in a
    warm-up which a combination of weight 0 has in common with it: that is the same model twice.
    """
    history, settings = family.folds.history, family.folds.settings[c]
    assert history is not None
    begin, steps = 1, int(settings["steps"])
    if infers_held_out(family.objective):
        settles = family.objective.climbs(settings) == "warm-up"
        begin = max(1, warmup_steps(settings["warmup"], steps) if settles else steps)
    others = [p for p in family.plain() if p != c and _same_warm_up(family, c, p)]
    if others and family.plain_until(c) < steps:
        begin = max(begin, family.plain_until(c) + 1)
    found = [step for step in history.steps if step >= begin]
    return found or [history.steps[-1]]


def _same_warm_up(family: Family, c: int, plain: int) -> bool:
    a, b = family.combinations[c], family.combinations[plain]
    names = [n for n in a if n != "penalty_weight"] if infers_held_out(family.objective) else OF_ALL_OBJECTIVES
    return all(a.get(n) == b.get(n) for n in names)


def records_of(task: Task, families: Sequence[Family], candidates: Sequence[Candidate]) -> Records:
    """What was measured of every candidate on every fold."""
    tasks = families[0].folds.tasks
    held: dict[str, list[Tensor]] = {name: [] for name in STATISTICS}
    orders = [_order_of_environments(task, family) for family in families]
    for f in range(len(tasks)):
        for name in STATISTICS:
            parts = []
            for family, order in zip(families, orders, strict=True):
                n = len(family.combinations)
                values = getattr(family.folds.history, name)
                parts.append([_ordered(values[:, f * n + c], name, order[f * n + c]) for c in range(n)])
            place = [{step: s for s, step in enumerate(_steps(family.folds))} for family in families]
            each = [parts[c.family][c.combination][place[c.family][c.step]] for c in candidates]
            held[name].append(torch.stack(each).double())
    stacked = {name: torch.stack(values) for name, values in held.items()}
    lost = torch.tensor([families[c.family].diverged(c.combination) for c in candidates])
    stacked["risk"][:, lost] = torch.nan
    if torch.equal(stacked["effective"], stacked["rows"]):  # no weights
        del stacked["effective"]
    sizes = [_size(t.held_out) for t in tasks]
    left_out = None
    if families[0].left_out is not None:
        left_out = torch.stack([_left_out_risks(families[c.family], c) for c in candidates])  # (C, E)
        left_out[lost] = torch.nan
    return Records(
        **stacked,
        constant=float(np.average([constant_risk(t) for t in tasks], weights=sizes)),
        reference=torch.tensor([c.step <= families[c.family].plain_until(c.combination) for c in candidates]),
        stated=torch.zeros(len(candidates), dtype=torch.bool),
        left_out=left_out,
    )


def _steps(fitted: FittedRuns) -> tuple[int, ...]:
    assert fitted.history is not None
    return fitted.history.steps


def _size(rows: Rows | None) -> float:
    assert rows is not None
    return float(len(rows) if rows.weight is None else rows.weight.double().sum())


def _left_out_risks(family: Family, c: Candidate) -> Tensor:
    """In every environment, of the model that was trained without it: (E,). NaN where it was not measured."""
    assert family.left_out is not None and family.left_out.history is not None
    history, n = family.left_out.history, len(family.combinations)
    runs = [e * n + c.combination for e in range(len(family.left_out.tasks))]
    if c.step not in history.steps:
        return torch.full((len(runs),), torch.nan, dtype=torch.float64)
    return history.risk[history.steps.index(c.step), runs, 0].double()


def _order_of_environments(task: Task, family: Family) -> list[Tensor | None]:
    """Inferred environments of every run in the order of the first fold's run with the same hyper-parameters."""
    fitted, n = family.folds, len(family.combinations)
    if not infers_held_out(family.objective):
        return [None] * len(fitted)
    found: dict[int, Tensor] = {}
    for chunk in fitted.chunks:  # runs of several chunks may differ in the number of environments
        alone = replace(fitted, chunks=(chunk,))
        found |= zip(sorted(chunk.chunk.runs), alone.membership(task.train.aux, x=task.train.x), strict=True)
    return [align(found[run % n], found[run]) for run in range(len(fitted))]


def _ordered(values: Tensor, name: str, order: Tensor | None) -> Tensor:
    """(S, E, ...) with its environments in the given order; covariances of soft ones on both axes."""
    if order is None:
        return values
    values = values[:, order]
    return values[:, :, order] if name.endswith("_cov") else values
