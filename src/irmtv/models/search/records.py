"""From fold models to records: which steps are candidates, and what was measured of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from irmtv.core.types import Rows, Task
from irmtv.engine import FittedRuns
from irmtv.models.search.families import OF_ALL_OBJECTIVES, Candidate, Family, infers_held_out
from irmtv.objectives.base import warmup_steps
from irmtv.selection import Records
from irmtv.selection.folds import align, constant_risk

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
    """What was measured of every candidate on every fold, in the mean over its seeds."""
    tasks = families[0].folds.tasks
    held: dict[str, list[Tensor]] = {name: [] for name in STATISTICS}
    orders = [_order_of_environments(task, family) for family in families]
    place = [{step: s for s, step in enumerate(_steps(family.folds))} for family in families]
    for f in range(len(tasks)):
        parts = [
            [_measured(family, f, c, order) for c in range(len(family.combinations))]
            for family, order in zip(families, orders, strict=True)
        ]
        for name in STATISTICS:
            each = [parts[c.family][c.combination][name][place[c.family][c.step]] for c in candidates]
            held[name].append(torch.stack(each))
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
        inferred=infers_held_out(families[0].objective),
    )


def _measured(family: Family, f: int, c: int, order: Sequence[Tensor | None]) -> dict[str, Tensor]:
    """Statistics of one combination on one fold at all steps, (S, E, ...) each."""
    runs = family.runs_of(f, c)
    seeds = {
        name: torch.stack([_ordered(getattr(family.folds.history, name)[:, r], name, order[r]) for r in runs]).double()
        for name in STATISTICS
    }  # (K, S, E, ...)
    return {name: v[0] for name, v in seeds.items()} if len(runs) == 1 else mean_of_seeds(seeds)


def mean_of_seeds(seeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """STATISTICS of K models of the same rows, (K, ..., E[, E][, J]) each, as those of one.

    Means over the models; where they disagree on who is in an environment (inferred ones), by what it weighs in each,
    so that the mean risk over all rows is the mean of theirs.

    The models are measured on the same rows: K of them are no more rows than one. What is written as covariance is
    the mean of theirs, K * sum_k w_k w_k' cov_k with w_k = 1 / K. That of the mean itself, sum_kl w_k w_l' cov_kl, is
    at most that (Cauchy-Schwarz), and exactly that where the models are alike. So no test gets sharper by seeds.
    """
    rows = seeds["rows"]
    k = len(rows)
    total = rows.sum(0)  # (..., E)
    share = torch.where(total > 0, rows / total, 1 / k)  # (K, ..., E), sums to 1 over K
    is_vector = seeds["slope"].ndim > rows.ndim
    found = {name: seeds[name].mean(0) for name in ("rows", "effective")}
    for name in ("risk", "slope"):
        vector = is_vector and name == "slope"
        weight = share.unsqueeze(-1) if vector else share
        cov = seeds[f"{name}_cov"]
        both = share.square()
        if cov.ndim - vector > share.ndim:  # environments that share rows: (K, ..., E, E[, J])
            both = share.unsqueeze(-1) * share.unsqueeze(-2)
        both = both.unsqueeze(-1) if vector else both
        found[name] = torch.where(weight > 0, weight * seeds[name], 0).sum(0)
        found[f"{name}_cov"] = k * torch.where(both > 0, both * cov, 0).sum(0)
    return found


def _steps(fitted: FittedRuns) -> tuple[int, ...]:
    assert fitted.history is not None
    return fitted.history.steps


def _size(rows: Rows | None) -> float:
    assert rows is not None
    return float(len(rows) if rows.weight is None else rows.weight.double().sum())


def _left_out_risks(family: Family, c: Candidate) -> Tensor:
    """In every environment, of the models that were trained without it: (E,). NaN where it was not measured."""
    assert family.left_out is not None and family.left_out.history is not None
    history, n_environments = family.left_out.history, len(family.left_out.tasks)
    if c.step not in history.steps:
        return torch.full((n_environments,), torch.nan, dtype=torch.float64)
    runs = [family.runs_of(e, c.combination, of=family.left_out) for e in range(n_environments)]  # (E, K)
    return history.risk[history.steps.index(c.step), :, 0].double()[torch.tensor(runs)].mean(1)


def _order_of_environments(task: Task, family: Family) -> list[Tensor | None]:
    """Inferred environments of every run in the order of the first run with the same hyper-parameters."""
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
