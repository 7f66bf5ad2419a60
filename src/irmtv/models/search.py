"""The search: combinations of hyper-parameters are trained outside every fold, and a rule chooses among their steps.

A candidate is a combination at one of its steps, judged on rows that its models have not seen; test rows play no part.
The search is the same for every model family (`irmtv.models.base`). The rules are those of :mod:`irmtv.selection`, and
mean what they mean in an experiment (:mod:`irmtv.lab.experiments`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from irmtv.core.cores import one_thread_each
from irmtv.core.messages import did_you_mean, shown, users_stacklevel
from irmtv.core.types import Rows, Task, drop_zero_weight
from irmtv.engine import FittedRuns, Progress
from irmtv.engine.solvers.linear_risks import rows_read_once
from irmtv.models.base import Combination, Model, PathTrainer, Report, Split, TrainedPath
from irmtv.models.elsewhere import Elsewhere, check_times, order_of_time, parts_in_order, parts_of_aux
from irmtv.models.left_out import Candidate, asked_again, with_left_out
from irmtv.models.networks.model import SNAPSHOTS, NetworkModel, NetworkPath
from irmtv.objectives import OBJECTIVES
from irmtv.objectives.base import Objective
from irmtv.selection import Choice, Records, build_records, check_options, choose, p_values, worst_environment
from irmtv.selection.folds import deal_folds, left_out_groups, left_out_tasks, tasks_outside
from irmtv.selection.views import MIN_ROWS

MOST_LEFT_OUT = 10  # parts of the environments that are left out in turn for the rule "invariance"
RULES = ("invariance", "iid", "worst-env", "leave-one-env-out")

__all__ = ["RULES", "SNAPSHOTS", "Candidate", "Search", "check_search", "search", "search_model"]


@dataclass(frozen=True)
class Search:
    """What was trained, what was measured, and what the rule chose."""

    choice: Choice
    paths: tuple[TrainedPath, ...]  # one per combination; those of ERM beside the objective come last
    candidates: tuple[Candidate, ...]  # in the order of the records
    records: Records
    split: Split
    left_out_seconds: float = 0.0  # of the search, spent on models without some environments
    elsewhere: Elsewhere | None = None  # of this choice; None where only the environments of `split` were left out

    @property
    def fold(self) -> Tensor:
        """Which fold holds a training row out, of the rows that count: (N,)."""
        return self.split.fold

    @property
    def chosen(self) -> Candidate:
        return self.candidates[self.choice.index]

    @property
    def path(self) -> TrainedPath:
        """The chosen combination, as it was trained."""
        return self.paths[self.chosen.combination]

    @property
    def combination(self) -> Combination:
        """The chosen hyper-parameters."""
        return self.path.combination

    @property
    def step(self) -> int:
        """The chosen step."""
        return self.chosen.step

    @property
    def has_erm(self) -> bool:
        """Whether ERM is among the candidates: of objectives without a penalty weight only where it was asked for."""
        return bool(self.records.reference.any())

    @property
    def erm(self) -> int:
        """The candidate of ERM that others are compared with."""
        return self.records.plain

    def path_of(self, index: int) -> TrainedPath:
        """The combination of a candidate."""
        return self.paths[self.candidates[index].combination]

    def held_out_outputs(self, index: int) -> Tensor:
        """Outputs of a candidate for every training row, of models that have not seen it; in units of training."""
        return self.path_of(index).held_out_outputs(self.candidates[index].step)

    def fold_models(self) -> tuple[FittedRuns, list[int]]:
        """The chosen networks of all folds and seeds, at the chosen step, and which runs they are."""
        assert isinstance(self.path, NetworkPath)
        return self.path.fold_models(self.step)

    def table(self) -> pd.DataFrame:
        """Every candidate: hyper-parameters, step, held-out risk over all rows and in the worst environment, p."""
        pooled = self.records.pooled()
        several = self.records.risk.shape[-1] > 1
        nothing = torch.full((len(self.candidates),), torch.nan)
        paths = [self.paths[c.combination] for c in self.candidates]
        frame = pd.DataFrame([dict(path.combination) for path in paths])
        frame.insert(0, "objective", [path.objective.name for path in paths])
        frame["step"] = [c.step for c in self.candidates]
        frame["risk"] = pooled.overall.numpy()
        frame["worst_risk"] = (worst_environment(pooled) if several else pooled.overall).numpy()
        frame["p_slopes"] = (p_values(pooled, "slopes") if several else nothing).numpy()
        frame["p_risks"] = (p_values(pooled, "risks") if several else nothing).numpy()
        if self.records.left_out is not None:
            frame["left_out_risk"] = self.records.left_out.mean(1).numpy()
        frame["plain"] = self.records.reference.numpy()
        frame["selected"] = np.arange(len(frame)) == self.choice.index
        return frame


def search_model(
    model: Model,
    task: Task,
    objective: Objective,
    combinations: Sequence[Combination],
    *,
    rule: str = "invariance",
    n_folds: int = 5,
    seed: int = 0,
    by_class: bool = True,
    options: Mapping[str, Any] | None = None,
    erm_beside: bool = False,
    beside: Sequence[tuple[Objective, Sequence[Combination]]] = (),
    most_left_out: int | None = None,
    time_ordered: bool | Literal["auto"] = False,
    aux_left_out: bool = False,
    report: Report | None = None,
) -> Search:
    """Train every combination outside every fold, and choose.

    Parameters
    ----------
    model : a model family with its settings.
    task : training rows; held-out and test rows are not looked at, nor are rows of weight 0.
    objective : what is minimised.
    combinations : hyper-parameters that differ, one mapping each with the same names. A penalty weight of 0 among them
        stands for ERM; where no combination does, the rule "invariance" has ERM trained beside them.
    rule : "invariance", "iid", "worst-env" or "leave-one-env-out".
    n_folds, seed : of the folds.
    by_class : whether every fold has its share of each class, as far as there are rows. Experiments deal rows by
        environment alone.
    options : of the rule "invariance".
    erm_beside : have ERM among the candidates also where the objective has no weight that could be 0 and the rule does
        not ask for it ("invariance" does).
    beside : further objectives whose candidates stand for choice too, with combinations of their own.
    most_left_out : parts into which the rule "leave-one-env-out" puts environments, to leave each out; None: all apart.
    time_ordered : environments are times: ERM and the choice are also trained on what came before each environment from
        the third on (`Search.elsewhere`). It takes four or more. "auto": where five or more have names
        that are times (:func:`irmtv.data.times.time_order`) and the rule leaves environments out.
    aux_left_out : where environments are inferred, train ERM and the choice also without each of five blocks of the
        first auxiliary variable.
    report : called with a `Progress`.
    """
    if not combinations:
        raise ValueError("combinations must be at least one mapping of hyper-parameters. Got none; use [{}].")
    common = model.common_settings(objective, combinations[0])
    by_place = any(isinstance(c.get("measure"), tuple) for c in (common, *combinations))  # one weight per environment
    task = replace(task, train=drop_zero_weight(task.train, every_environment=by_place))
    check_search(
        task,
        objective,
        combinations,
        rule=rule,
        n_folds=n_folds,
        options=options,
        settings=common,
        time_ordered=time_ordered is True,
    )
    fold = deal_folds(task, n_folds, seed, by_class)
    several = len(task.train.names) > 2 and not objective.infers_held_out and not by_place
    groups: list[list[int]] = []
    if rule == "leave-one-env-out" or (rule == "invariance" and several):
        most = MOST_LEFT_OUT if rule == "invariance" else most_left_out
        groups = left_out_groups(task.train, len(task.train.names) if most is None else most)
    left_out = left_out_tasks(task, groups) if groups else []
    split = Split(task, fold, tasks_outside(task, fold, n_folds), left_out, groups)
    with rows_read_once(), one_thread_each():
        trainer = model.trainer(split, objective, combinations, report)
        paths = trainer.train(objective, combinations)
        for other, its_own in beside:
            paths += trainer.train(other, its_own)
        wanted = erm_beside or rule == "invariance"
        if wanted and not objective.infers_held_out and not any(path.is_erm for path in paths):
            paths += trainer.train_erm(combinations)
        records = build_records(
            [path.measurements() for path in paths], split.constants(), inferred=objective.infers_held_out
        )
        check_trained(records, paths, rule)
        candidates = tuple(Candidate(c, step) for c, path in enumerate(paths) for step in path.steps)
        if rule == "invariance" and bool(records.reference.any()):
            erm = candidates[records.plain]
            records = replace(records, directions=trainer.directions(paths[erm.combination], erm.step))
        if split.left_out:
            records = with_left_out(trainer, records, paths, candidates, rule, options or {})
        if rule == "invariance":
            records = asked_again(trainer, records, paths, candidates, options or {})
        choice = choose(rule, records, **(dict(options or {}) if rule == "invariance" else {}))
        found = Search(choice, tuple(paths), candidates, records, split)
        begin = perf_counter()
        order = order_of_time(task.train.names, time_ordered, bool(groups))
        elsewhere = _elsewhere(trainer, found, order, aux_left_out and objective.infers_held_out)
        if elsewhere is not None:
            trainer.left_out_seconds += perf_counter() - begin
    return replace(found, left_out_seconds=trainer.left_out_seconds, elsewhere=elsewhere)


def _elsewhere(trainer: PathTrainer, search: Search, order: Sequence[int] | None, of_aux: bool) -> Elsewhere | None:
    """ERM and the choice where the rule did not look: in the order of time, or without blocks of aux."""
    task, parts = search.split.task, None
    kind: Literal["in order", "blocks of aux"] = "blocks of aux" if order is None else "in order"
    if order is not None:
        parts = parts_in_order(task, order, MOST_LEFT_OUT)
    elif of_aux and task.train.aux is not None:
        parts = parts_of_aux(task)
    if parts is None:
        return None
    names, tasks = parts
    index = search.choice.index
    chosen = plain = trainer.elsewhere(search.path, search.step, tasks)
    if not search.has_erm:
        plain = torch.full_like(chosen[0], torch.nan), None
    elif search.erm != index:
        plain = trainer.elsewhere(search.path_of(search.erm), search.candidates[search.erm].step, tasks)
    return Elsewhere(kind, index, names, tasks, plain[0], chosen[0], plain[1], chosen[1])


def search(
    task: Task,
    objective: str | Objective,
    combinations: Sequence[Combination],
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
) -> Search:
    """Search linear models or networks: train every combination outside every fold in one batch, and choose.

    Parameters
    ----------
    task : training rows; held-out and test rows are not looked at, nor are rows of weight 0.
    objective : a name in `irmtv.OBJECTIVES`, a sum, or an Objective.
    combinations, rule, n_folds, seed, by_class, options : as for `search_model`.
    seeds : of the models; None is `seed` alone. With several, every combination is trained with each of them on every
        fold, in the same batch, and judged by the mean of their statistics. They are measured on the same rows, so that
        standard errors stay those of one model. A combination that diverges with one of them cannot be chosen.
    l2_from : values of l2; the one with which ERM has the lowest held-out risk is used for all combinations. How much a
        network must be shrunk depends on its size and on the rows, not on the penalty; without it, a large one overfits
        in the warm-up, before any penalty acts.
    steps, snapshot_every : gradient steps, and every how many a run is a candidate (None: 40 times).
    keep_states : keep the fold models of all candidates, for `Search.fold_models` and `Search.held_out_outputs`.
    plain_beside : as `erm_beside` of `search_model`.
    progress : called with a `Progress`.
    settings : for `train`, the same for all.

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
    model = NetworkModel(
        settings={**settings, "steps": steps},
        seeds=(seed,) if seeds is None else tuple(seeds),
        l2_from=tuple(l2_from),
        snapshot_every=snapshot_every,
        keep_states=keep_states,
    )
    return search_model(
        model,
        task,
        OBJECTIVES[objective] if isinstance(objective, str) else objective,
        combinations,
        rule=rule,
        n_folds=n_folds,
        seed=seed,
        by_class=by_class,
        options=options,
        erm_beside=plain_beside,
        report=progress,
    )


def check_search(
    task: Task,
    objective: Objective,
    combinations: Sequence[Mapping[str, Any]],
    *,
    rule: str,
    n_folds: int,
    options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    time_ordered: bool = False,
) -> None:
    """Whether the rule can choose on these rows; a warning where it cannot see all of their environments."""
    if rule not in RULES:
        raise ValueError(f"rule must be one of {list(RULES)}. Got {rule!r}.{did_you_mean(rule, RULES)}")
    if options is not None and not isinstance(options, Mapping):
        raise ValueError(
            f"rule_options must be a dict of options of rule 'invariance', or None. Got {options!r}. Use "
            "rule_options={'level': 0.01}, for example."
        )
    if options and rule != "invariance":
        raise ValueError(f"only rule 'invariance' has options. Got {sorted(options)} for {rule!r}.")
    check_options(**(options or {}))
    rows = task.train
    counts = [] if rows.environment is None else torch.bincount(rows.environment, minlength=len(rows.names)).tolist()
    _check_folds(rows, n_folds, counts)
    if time_ordered:
        by_place = any(isinstance(c.get("measure"), tuple) for c in (settings or {}, *combinations))
        check_times(rows.names[: len(counts)], not objective.infers_held_out, by_place)
    if rule == "iid":
        return
    if objective.infers_held_out:
        _check_inferred(objective, combinations, rule, settings or {})
        return
    if len(counts) < 2:
        why = (
            f"objective {objective.name!r} infers environments of training rows alone"
            if objective.infers is not None
            else f"Got {len(counts) or 'no'} environment{'' if len(counts) == 1 else 's'}"
        )
        raise ValueError(
            f"rule {rule!r} compares environments of held-out rows and needs at least 2. {why}; pass environment=..., "
            "or use rule='iid'."
        )
    if rule == "leave-one-env-out":
        left_out_tasks(task)  # says what is missing
        if isinstance((settings or {}).get("measure"), tuple):
            raise ValueError(
                "rule 'leave-one-env-out' trains without each environment in turn: measure must be a word, such as "
                f"'uniform'. Got measure={(settings or {})['measure']!r}, one weight per environment."
            )
    if rule == "invariance":
        _check_rows_to_test(rows)


def _check_folds(rows: Rows, n_folds: int, counts: Sequence[int]) -> None:
    if isinstance(n_folds, bool) or not isinstance(n_folds, (int, np.integer)) or n_folds < 2:
        raise ValueError(f"cv must be a number of folds, 2 or more. Got {n_folds!r}.")
    if n_folds > len(rows):
        raise ValueError(
            f"cv must be at most the number of rows. Got cv={n_folds} and n_samples={len(rows)}. Use fewer folds."
        )
    small = [f"{name!r} ({n} rows)" for name, n in zip(rows.names, counts, strict=False) if n < n_folds]
    if small:
        sizes = torch.tensor(counts, dtype=torch.float64)
        pooling = _pooling_leaves_two(sizes, sizes, sizes, n_folds)
        ways = [f"cv={min(counts)}"] if min(counts) >= 2 else []
        ways += [f"min_rows={n_folds}, which pools small environments"] if pooling else []
        raise ValueError(
            f"cv must be at most the rows of the smallest environment, so that every fold has some of each. Got "
            f"cv={n_folds}, and {shown(small, form=str)}. Use {', or '.join(ways) or 'a coarser label'}."
        )


def _pooling_leaves_two(n_rows: Tensor, total: Tensor, squares: Tensor, least: int) -> bool:
    """Whether two environments worth `least` rows are there once those with fewer rows are pooled into one.

    `total` and `squares` are sums of the rows' weights and of their squares, (E,).
    """
    few = n_rows < least
    worth = torch.cat([total, total[few].sum(0, keepdim=True)]).square()
    worth = worth / torch.cat([squares, squares[few].sum(0, keepdim=True)])  # NaN without any
    return int((worth >= least)[torch.cat([~few, few.new_ones(1)])].sum()) >= 2


def _check_inferred(
    objective: Objective, combinations: Sequence[Mapping[str, Any]], rule: str, settings: Mapping[str, Any]
) -> None:
    if rule == "leave-one-env-out":
        raise ValueError(
            "rule 'leave-one-env-out' is for given environments. Objective "
            f"{objective.name!r} infers its own; use 'invariance' or 'iid'."
        )
    # Newton's method infers environments from ERM, which has neither
    same = {"penalty_weight", *(("classifier", "start") if settings.get("solver") == "newton" else ())}
    differ = [n for n in combinations[0] if n not in same and any(c[n] != combinations[0][n] for c in combinations)]
    if differ and rule == "invariance":
        raise ValueError(
            "rule 'invariance' tests all candidates on the same inferred environments; a grid over "
            f"{differ[0]!r} would give them different ones. Leave it out of the grid, or use rule='iid'."
        )


def _check_rows_to_test(rows: Rows) -> None:
    """Every row is held out once: the rows of an environment are those that it is tested on."""
    assert rows.environment is not None
    weight = torch.ones(len(rows), dtype=torch.float64) if rows.weight is None else rows.weight.double()
    nothing = torch.zeros(len(rows.names), dtype=torch.float64)
    total, squares = (nothing.index_add(0, rows.environment, w) for w in (weight, weight.square()))
    counted = torch.where(total > 0, total.square() / squares, 0)
    small = [f"{name!r} ({n:.4g})" for name, n in zip(rows.names, counted.tolist(), strict=True) if n < MIN_ROWS]
    how = "" if rows.weight is None else " Rows with weights w are worth (sum w)^2 / sum w^2 rows of equal weight."
    if len(rows.names) - len(small) < 2:
        pooling = f"Pool small environments (min_rows={MIN_ROWS}), or use rule='iid'."
        n_rows = torch.bincount(rows.environment, minlength=len(rows.names))
        if not _pooling_leaves_two(n_rows, total, squares, MIN_ROWS):
            pooling = "Pooling would not leave two such either: use rule='iid', or more rows."
        raise ValueError(
            f"rule 'invariance' tests environments with at least {MIN_ROWS} rows and needs 2 such. Got too few rows in "
            f"{shown(small, form=str)}.{how} {pooling}"
        )
    if small:
        warnings.warn(
            f"rule 'invariance' does not test environments with fewer than {MIN_ROWS} rows: {shown(small, form=str)}. "
            f"They are trained on all the same; min_rows={MIN_ROWS} pools them.{how}",
            UserWarning,
            stacklevel=users_stacklevel(),
        )


def check_trained(records: Records, paths: Sequence[TrainedPath], rule: str) -> None:
    """Whether something is left to choose from; a warning where combinations are lost."""
    lost = [dict(path.combination) for path in paths if path.diverged]
    if not lost:
        return
    total = len(paths)
    hint = "Lower learning_rate or the penalty weights, or look for extreme values in X and y."
    overall = records.pooled().overall
    if not bool(overall.isfinite().any()):
        raise ValueError(f"training diverged with all {total} combinations of hyper-parameters. {hint}")
    if rule == "invariance" and not bool(overall[records.reference].isfinite().any()):
        raise ValueError(f"ERM, which rule 'invariance' compares with, diverged. {hint}")
    warnings.warn(
        f"training diverged with {len(lost)} of {total} combinations of hyper-parameters, which cannot be chosen: "
        f"{shown(lost, limit=3)}. {hint}",
        UserWarning,
        stacklevel=users_stacklevel(),
    )
