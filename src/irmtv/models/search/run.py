"""A grid of hyper-parameters, cross-fitted as one batch, and a rule that chooses among all combinations and steps.

Every combination is trained on the rows outside each fold, with every seed, and measured on the fold; a candidate is a
combination at one of its snapshots, judged on rows that its models have not seen, in the mean over seeds. Test rows
play no part. The rules are those of :mod:`irmtv.selection`, and mean what they mean in an experiment
(:mod:`irmtv.lab.experiments`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from irmtv.core.types import Runs, Task, drop_zero_weight
from irmtv.engine import FittedRuns, Progress, train
from irmtv.models.own_models import MOST_OWN, divergence_is_recorded, gains_of_own_models
from irmtv.models.search.checks import check_search, check_trained
from irmtv.models.search.families import ENGINE, OF_ALL_OBJECTIVES, Candidate, Family, Searched, infers_held_out
from irmtv.models.search.records import candidate_steps, records_of
from irmtv.objectives import OBJECTIVES
from irmtv.objectives.base import Objective
from irmtv.selection import Records, choose
from irmtv.selection.folds import deal_folds, left_out_tasks, tasks_outside

SNAPSHOTS = 40  # steps at which every run is a candidate


def search(
    task: Task,
    objective: str | Objective,
    combinations: Sequence[Mapping[str, Any]],
    *,
    rule: str = "invariance",
    n_folds: int = 5,
    seed: int = 0,
    seeds: Sequence[int] | None = None,
    by_class: bool = False,
    options: Mapping[str, Any] | None = None,
    l2_from: Sequence[float] = (),
    steps: int = 2000,
    snapshot_every: int | None = None,
    keep_states: bool = False,
    plain_beside: bool = False,
    progress: Callable[[Progress], None] | None = None,
    **settings: Any,
) -> Searched:
    """Train every combination outside every fold, and choose.

    Parameters
    ----------
    task : training rows; held-out and test rows are not looked at, nor are rows of weight 0.
    objective : a name in `irmtv.OBJECTIVES`, a sum, or an Objective.
    combinations : hyper-parameters of the objective (and learning_rate, l2) that differ, one mapping each with the same
        names. A penalty weight of 0 among them stands for plain risk minimisation; where no combination does, the rule
        "invariance" has plain risk minimisation trained beside them.
    rule : "invariance", "iid", "worst-env" or "leave-one-env-out".
    n_folds, seed : of the folds.
    seeds : of the models; None is `seed` alone. With several, every combination is trained with each of them on every
        fold, in the same batch, and judged by the mean of their statistics. They are measured on the same rows, so that
        standard errors stay those of one model. A combination that diverges with one of them cannot be chosen.
    by_class : whether every fold has its share of each class, as far as there are rows. Experiments deal rows by
        environment alone.
    options : of the rule "invariance".
    l2_from : values of l2; the one with which plain risk minimisation has the lowest held-out risk is used for all
        combinations. How much a network must be shrunk depends on its size and on the rows, not on the penalty; without
        it, a large one overfits in the warm-up, before any penalty acts.
    steps, snapshot_every : gradient steps, and every how many a run is a candidate (None: 40 times).
    keep_states : keep the fold models of all candidates, for `Searched.fold_models`.
    plain_beside : have plain risk minimisation among the candidates also where the objective has no weight that could
        be 0 and the rule does not ask for it ("invariance" does).
    progress : called with a `Progress`.
    settings : for `train`, the same for all.

    Returns
    -------
    Searched

    Examples
    --------
    >>> from irmtv.datasets import make_simulation
    >>> from irmtv.models.search import search
    >>> task = make_simulation(1000, (0.999, 0.7), 0.8, random_state=0)
    >>> weights = [{"penalty_weight": w} for w in (0.0, 100.0, 1e4)]
    >>> found = search(task, "irm-tv-l1", weights, steps=400, learning_rate=0.02)
    >>> found.choice.outcome, found.combination["penalty_weight"] > 0
    ('invariant-found', True)
    """
    chosen = OBJECTIVES[objective] if isinstance(objective, str) else objective
    has_places = any(isinstance(c.get("measure"), tuple) for c in (settings, *combinations))  # one per environment
    task = replace(task, train=drop_zero_weight(task.train, every_environment=has_places))
    check_search(task, chosen, combinations, rule=rule, n_folds=n_folds, options=options, settings=settings)
    every = max(1, steps // SNAPSHOTS) if snapshot_every is None else snapshot_every
    fold = deal_folds(task, n_folds, seed, by_class)
    folds = tasks_outside(task, fold, n_folds)
    without = left_out_tasks(task) if rule == "leave-one-env-out" else []
    how = {**settings, "steps": steps}
    each = _as_seeds(seed, seeds)
    n_parts = len(folds) + len(without)
    tell = _Stages(progress, len(each) * (n_parts * len(combinations) + len(folds) * len(l2_from)))
    if l2_from:
        told = tell.next(len(each) * len(folds) * len(l2_from))
        how["l2"] = _best_l2(folds, each, l2_from, how, snapshot_every=every, progress=told)

    def family(o: Objective, some: Sequence[Mapping[str, Any]], how: Mapping[str, Any]) -> Family:
        def trained(parts: list[Task], keep: bool) -> FittedRuns:
            runs = _every(parts, each, some)
            more: dict[str, Any] = {"snapshot_every": every, "keep_states": keep, "progress": tell.next(len(runs))}
            return train(parts, o, runs, **more, **how)

        with divergence_is_recorded():
            return Family(
                o, tuple(some), how, trained(folds, keep_states), trained(without, False) if without else None
            )

    families = [family(chosen, combinations, how)]
    wanted = plain_beside or rule == "invariance"
    if wanted and not infers_held_out(chosen) and not families[0].plain():
        rates = [{name: c[name] for name in OF_ALL_OBJECTIVES if name in c} for c in combinations]
        distinct = [c for i, c in enumerate(rates) if c not in rates[:i]]
        families.append(family(OBJECTIVES["erm"], distinct, {name: how[name] for name in ENGINE if name in how}))
    candidates = tuple(
        Candidate(f, c, step)
        for f, one in enumerate(families)
        for c in range(len(one.combinations))
        for step in candidate_steps(one, c)
    )
    records = records_of(task, families, candidates)
    check_trained(records, families, rule)
    if rule == "invariance" and not infers_held_out(chosen):
        records = replace(records, own=_own(families, candidates, records, folds, each, every))
    given = dict(options or {}) if rule == "invariance" else {}
    return Searched(choose(rule, records, **given), tuple(families), candidates, records, fold)


def _as_seeds(seed: int, seeds: Sequence[int] | None) -> list[int]:
    found = [seed] if seeds is None else list(seeds)
    if not found:
        raise ValueError("seeds must be at least one whole number, or None for `seed` alone. Got none.")
    return found


def _every(parts: Sequence[Task], seeds: Sequence[int], combinations: Sequence[Mapping[str, Any]]) -> Runs:
    """Every combination with every seed on every data set, in the order that `Family` expects."""
    all_of = [(d, seed, c) for d in range(len(parts)) for seed in seeds for c in combinations]
    columns = {name: [c[name] for _, _, c in all_of] for name in combinations[0]}
    return Runs(seed=[seed for _, seed, _ in all_of], data=[d for d, _, _ in all_of], **columns)


def _best_l2(
    folds: list[Task], seeds: Sequence[int], values: Sequence[float], how: Mapping[str, Any], **more: Any
) -> float:
    """That of plain risk minimisation with the lowest risk on held-out rows, each at its best step."""
    n = len(values)
    runs = _every(folds, seeds, [{"l2": value} for value in values])
    engine = {name: how[name] for name in ENGINE if name in how and name != "l2"}
    with divergence_is_recorded():
        fitted = train(folds, "erm", runs, **more, **engine)
    assert fitted.history is not None
    steps = len(fitted.history.steps)
    rows, risk = (v.double().reshape(steps, -1, n, v.shape[-1]) for v in (fitted.history.rows, fitted.history.risk))
    overall = torch.where(rows > 0, rows * risk, 0).sum((1, 3)) / rows.sum((1, 3))  # (S, L)
    complete = (rows.sum(3) > 0).all(1)
    overall = torch.where(complete, overall, torch.inf).nan_to_num(torch.inf)
    for run in fitted.diverged:
        overall[:, run % n] = torch.inf
    return float(values[int(overall[1:].amin(0).argmin())])


def _own(
    families: Sequence[Family],
    candidates: Sequence[Candidate],
    records: Records,
    folds: list[Task],
    seeds: Sequence[int],
    every: int,
) -> Tensor | None:
    """Gains of every environment's own model over plain risk minimisation, on every fold: (F, E, 3).

    With the learning rate and l2 of the best combination of plain risk minimisation. Over seeds the mean, of the
    variance too: they are compared on the same rows.
    """
    if not 1 < len(folds[0].train.names) <= MOST_OWN:
        return None
    best = candidates[records.plain]
    family = families[best.family]
    chosen = {**family.settings, **family.combinations[best.combination]}
    how = {name: chosen[name] for name in ENGINE if name in chosen} | {"snapshot_every": every}
    with divergence_is_recorded():
        erm = train(folds, "erm", _every(folds, seeds, [{}]), select="iid", **how)
    gains = np.stack(gains_of_own_models(erm, **how))  # (F K, E, 3)
    return torch.as_tensor(gains.reshape(len(folds), len(seeds), *gains.shape[1:]).mean(1))


class _Stages:
    """Several calls of `train` as one to whoever watches."""

    def __init__(self, progress: Callable[[Progress], None] | None, runs: int) -> None:
        self.progress, self.runs, self.done, self.seconds = progress, runs, 0, 0.0

    def next(self, runs: int) -> Callable[[Progress], None] | None:
        progress, before, earlier = self.progress, self.done, self.seconds
        self.done += runs
        self.runs = max(self.runs, self.done)
        if progress is None:
            return None

        def tell(p: Progress) -> None:
            self.seconds = earlier + p.seconds
            progress(Progress(p.step, p.steps, before + p.runs_done, p.runs_now, self.runs, self.seconds))

        return tell
