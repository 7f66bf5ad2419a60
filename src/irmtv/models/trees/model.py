"""Boosted trees as a model family: every combination is a booster outside every fold, a candidate at its rounds.

The records are those that networks have, so that the rules mean the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import count
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from irmtv.core.types import Task
from irmtv.engine import Progress
from irmtv.engine.snapshots import Snapshot
from irmtv.models.base import (
    Combination,
    Model,
    PathTrainer,
    Report,
    Split,
    TrainedPath,
    lowest_overall_risk,
    mean_gain,
    over_environments,
)
from irmtv.models.trees.measured import snapshots
from irmtv.models.trees.rounds import Binned, Boosted, boost
from irmtv.models.trees.settings import BoostingSettings, TreeParameters, boosting_settings
from irmtv.objectives import OBJECTIVES
from irmtv.objectives.base import Objective
from irmtv.selection import Measurements
from irmtv.selection.folds import align, constant_risk, gain_over_rescaled, own_task
from irmtv.selection.records import STATISTICS, in_order

SNAPSHOTS = 40  # rounds at which every booster is a candidate
KEPT, KEPT_WITH_PENALTY = 0.98, 0.9  # share of the best gain that fewer leaves must have
COMPARED = 2  # folds on which leaves are compared
ERM = OBJECTIVES["erm"]


class Measured(NamedTuple):
    """A booster, and what was measured of it on the rows held out."""

    booster: Boosted
    seen: list[Snapshot]

    def at(self, step: int) -> Snapshot:
        return next(s for s in self.seen if s.step == step)

    def scores_at(self, step: int) -> Tensor:
        """Risk and accuracy on the held-out rows after a round: (2,)."""
        seen = self.at(step)
        return torch.stack([over_environments(v[0], seen.rows[0]) for v in (seen.risk, seen.accuracy)])

    def scores(self, step: int) -> Tensor:
        """Of the held-out rows after a round."""
        return next(w for w in self.booster.watched if w.round == step).scores


@dataclass(frozen=True)
class TreeModel(Model):
    """How trees are grown.

    `leaves_from` holds numbers of leaves. ERM has the fewest with which it gains 98 % of what it gains with the best,
    on held-out rows of two folds. Where a penalty acts 90 % must do: it makes the gradient of the rows noisier, and
    large trees follow the noise.
    """

    parameters: TreeParameters
    seed: int = 0
    categorical: Sequence[int] = ()  # columns that hold codes
    leaves_from: Sequence[int] = ()

    def settings(
        self, objective: Objective, penalty_weight: Any = None, num_leaves: int | None = None
    ) -> BoostingSettings:
        """For `boost`; `num_leaves` in place of that of the parameters."""
        parameters = self.parameters if num_leaves is None else replace(self.parameters, num_leaves=num_leaves)
        return boosting_settings(parameters, objective, self.seed, penalty_weight)

    def common_settings(self, objective: Objective, combination: Combination) -> Mapping[str, Any]:
        leaves = self.leaves_from[0] if self.leaves_from else None
        return self.settings(objective, combination.get("penalty_weight"), leaves).settings

    def trainer(
        self,
        split: Split,
        objective: Objective,
        combinations: Sequence[Combination],
        report: Report | None = None,
        compares_own: bool = False,
    ) -> TreeTrainer:
        return TreeTrainer(self, split, objective, len(combinations), report, compares_own)

    def boost(self, task: Task, settings: BoostingSettings, every: int) -> tuple[Boosted, Binned]:
        """One booster, and its rows in bins."""
        binned = Binned(task, self.categorical, settings.trees, settings.reserve)
        return grow(binned, settings, every), binned


def grow(binned: Binned, settings: BoostingSettings, every: int) -> Boosted:
    """One booster on rows that are in bins already."""
    return boost(
        binned,
        settings.objective,
        settings.settings,
        settings.trees,
        weights=settings.weights,
        warmup=settings.warmup,
        every=every,
    )


class TreeTrainer(PathTrainer):
    """Trains the boosters of one search; ERM is trained once, and chooses the leaves where they are not given."""

    def __init__(
        self,
        model: TreeModel,
        split: Split,
        objective: Objective,
        n_combinations: int,
        report: Report | None,
        compares_own: bool,
    ) -> None:
        self.model, self.split, self.objective = model, split, objective
        rounds = int(model.parameters.n_estimators)
        n_folds, n_environments = len(split.folds), len(split.task.train.names)
        boosters = min(COMPARED, n_folds) * max(0, len(model.leaves_from) - 1)
        boosters += (n_folds + len(split.left_out)) * n_combinations
        boosters += n_folds * n_environments * compares_own
        self.tell = _teller(report, boosters, rounds)
        self.every = max(1, rounds // SNAPSHOTS)
        self.folds = _Parts(split.folds, model.categorical, self.every, self.tell)
        self.left_out = _Parts(split.left_out, model.categorical, self.every, self.tell) if split.left_out else None
        self.leaves = self._best_leaves(model.leaves_from) if model.leaves_from else _Leaves()

    def train(self, objective: Objective, combinations: Sequence[Combination]) -> list[TrainedPath]:
        return self._train(objective, combinations)

    def train_erm(self, combinations: Sequence[Combination]) -> list[TrainedPath]:
        return self._train(ERM, [{}])

    def _train(self, objective: Objective, combinations: Sequence[Combination]) -> list[TrainedPath]:
        settings = [self._settings(objective, c) for c in combinations]
        trained = [self.folds.trained(s) for s in settings]
        left_out: list[list[Measured] | None] = [None] * len(settings)
        if self.left_out is not None:
            begin = perf_counter()
            left_out = [self.left_out.trained(s) for s in settings]
            self.left_out_seconds += perf_counter() - begin
        has_erm = not all(has_penalty(s) for s in settings)
        return [
            TreePath(self.model, c, s, self.split, folds, without, _candidate_rounds(s, folds[0].booster, has_erm))
            for c, s, folds, without in zip(combinations, settings, trained, left_out, strict=True)
        ]

    def _settings(self, objective: Objective, combination: Combination) -> BoostingSettings:
        weight = combination.get("penalty_weight")
        model = self.model
        if objective is not self.objective:  # ERM beside it
            model = replace(model, parameters=replace(model.parameters, objective_params=None))
        settings = model.settings(objective, weight, self.leaves.erm)
        return model.settings(objective, weight, self.leaves.penalised) if has_penalty(settings) else settings

    def _best_leaves(self, leaves: Sequence[int]) -> _Leaves:
        """The fewest with which ERM, at its best round, gains nearly what it does with the best."""
        plain = replace(self.model, parameters=replace(self.model.parameters, objective_params=None))
        lowest = []
        for n in leaves:
            trained = self.folds.trained(plain.settings(ERM, num_leaves=n), COMPARED)
            rows, risk = (
                torch.stack([torch.stack([getattr(s, name)[0] for s in one.seen]) for one in trained])  # (F, S, E)
                for name in ("rows", "risk")
            )
            lowest.append(float(lowest_overall_risk(rows, risk).amin()))
        constant = float(np.mean([constant_risk(t) for t in self.split.folds[:COMPARED]]))
        best = min(lowest)

        def fewest(kept: float) -> int:
            enough = max(best, constant - kept * max(0.0, constant - best))
            return next(n for n, risk in zip(leaves, lowest, strict=True) if risk <= enough)

        return _Leaves(fewest(KEPT), fewest(KEPT_WITH_PENALTY))

    def elsewhere(self, path: TrainedPath, step: int, tasks: Sequence[Task]) -> Tensor:
        assert isinstance(path, TreePath)
        boosters = [self.folds.one(self.folds.bins(task, path.settings), path.settings) for task in tasks]
        return torch.stack([one.scores_at(step) for one in boosters])

    def own_gains(self, erm: TrainedPath, step: int) -> Tensor:
        """Unlike networks, trees are far too sure of the rows that they were grown on: the scale that suits an
        environment is looked for in scores that were cross-fitted, of the other folds. An environment's own boosters
        stop at one round for all folds, the best, as ERM does.
        """
        assert isinstance(erm, TreePath) and self.split.task.train.environment is not None
        settings = replace(
            erm.settings, objective=ERM, settings=ERM.resolve({}), weights=(), warmup=0, reserve=Fraction(0)
        )
        fold, scores = self.split.fold, erm.held_out_outputs(step)
        n_environments = len(self.split.task.train.names)
        gains = torch.full((len(self.split.folds), n_environments, 3), torch.nan, dtype=torch.float64)
        for e in range(n_environments):
            own = [own_task(t, e) for t in self.split.folds]
            some = [k for k, t in enumerate(own) if _can_be_learned(t)]
            if not some:
                continue
            alone = {k: self.folds.one(self.folds.bins(_as_one_environment(own[k]), settings), settings) for k in some}
            totals = [torch.stack([s.rows[0, 0] * s.risk[0, 0] for s in one.seen]) for one in alone.values()]
            best = int(torch.stack(totals).sum(0).argmin())
            here = self.split.task.train.environment == e
            for k, one in alone.items():
                held_out = own[k].held_out
                assert held_out is not None
                pooled = scores[here & (fold != k)], scores[here & (fold == k)]
                gain = gain_over_rescaled(own[k], *pooled, one.booster.watched[best].scores)
                gains[k, e] = torch.tensor(mean_gain(gain, held_out.weight))
        return gains


class TreePath(TrainedPath):
    """The boosters of one combination."""

    def __init__(
        self,
        model: TreeModel,
        combination: Combination,
        settings: BoostingSettings,
        split: Split,
        folds: Sequence[Measured],
        without: Sequence[Measured] | None,
        steps: Sequence[int],
    ) -> None:
        self.model, self.settings, self.split = model, settings, split
        self.folds, self.without = folds, without  # by fold; by part of the environments that was left out
        is_erm = not has_penalty(settings)
        warmup = settings.warmup if settings.objective.silent_in_warmup and any(settings.weights) else 0
        until = settings.trees.n_estimators if is_erm else warmup
        super().__init__(settings.objective, combination, steps, erm_until=until, is_erm=is_erm)

    @property
    def diverged(self) -> bool:
        return False

    @property
    def boosters(self) -> list[Boosted]:
        """By fold."""
        return [one.booster for one in self.folds]

    def measurements(self) -> Measurements:
        folds = []
        for one in self.folds:
            seen = [one.at(step) for step in self.steps]
            statistics = {name: torch.stack([getattr(s, name)[0] for s in seen]) for name in STATISTICS}
            folds.append(in_order(statistics, self._order(one.booster)))
        each = [self.left_out(step) for step in self.steps]
        left_out = torch.stack([one[:, 0] for one in each if one is not None]) if self.without is not None else None
        return Measurements(self.steps, folds, self.erm_until, left_out=left_out)

    def left_out(self, step: int) -> Tensor | None:
        if self.without is None:
            return None
        return torch.stack([one.scores_at(step) for one in self.without])

    def _order(self, booster: Boosted) -> Tensor | None:
        """Its inferred environments in the order of the first fold's."""
        first, aux = self.folds[0].booster.rho, self.split.task.train.aux
        if first is None or booster.rho is None:
            return None
        assert aux is not None
        return align(first.membership(aux), booster.rho.membership(aux))

    def held_out_outputs(self, step: int) -> Tensor:
        return self.split.together([one.scores(step) for one in self.folds])


def has_penalty(settings: BoostingSettings) -> bool:
    """Whether it is more than ERM, at some round."""
    learned = settings.objective.infers is None and settings.objective.measure_of(settings.settings) == "learned"
    return learned or any(settings.weights)


def _candidate_rounds(settings: BoostingSettings, booster: Boosted, has_erm: bool) -> list[int]:
    """Not before environments are settled, nor in a warm-up that ERM has in common with it."""
    rounds = [w.round for w in booster.watched]
    begin = 1
    if settings.objective.infers is not None:
        settled = settings.warmup if settings.objective.climbs(settings.settings) == "warm-up" else rounds[-1]
        begin = min(settled, rounds[-1])
    if has_erm and any(settings.weights) and settings.objective.silent_in_warmup:
        begin = max(begin, settings.warmup + 1)
    return [r for r in rounds if r >= begin]


@dataclass(frozen=True)
class _Leaves:
    """How many a tree has, in ERM and where a penalty acts; None where that is not chosen here."""

    erm: int | None = None
    penalised: int | None = None


class _Parts:
    """Folds (or what is left out) in bins, and the boosters that were trained outside each."""

    def __init__(self, tasks: Sequence[Task], categorical: Sequence[int], every: int, tell: Callable[[], None]) -> None:
        self.tasks, self.categorical, self.every, self.tell = tasks, categorical, every, tell
        self._binned: dict[Fraction, list[Binned]] = {}  # by what is set aside for penalties
        self._erm: dict[int, list[Measured]] = {}  # by leaves

    def trained(self, settings: BoostingSettings, most: int | None = None) -> list[Measured]:
        """Per part; `most` asks for the first ones only. ERM is trained once."""
        n = len(self.tasks) if most is None else min(most, len(self.tasks))
        is_erm = settings.objective.infers is None and not has_penalty(settings)
        is_erm = is_erm and settings.objective.measure_of(settings.settings) == "empirical"
        known = self._erm.get(settings.trees.num_leaves, []) if is_erm else []
        if settings.reserve not in self._binned:
            self._binned[settings.reserve] = [self.bins(task, settings) for task in self.tasks]
        trained = known + [self.one(binned, settings) for binned in self._binned[settings.reserve][len(known) : n]]
        if is_erm:
            self._erm[settings.trees.num_leaves] = trained
        return trained

    def bins(self, task: Task, settings: BoostingSettings) -> Binned:
        return Binned(task, self.categorical, settings.trees, settings.reserve)

    def one(self, binned: Binned, settings: BoostingSettings) -> Measured:
        booster = grow(binned, settings, self.every)
        self.tell()
        return Measured(booster, snapshots(binned.watched, binned.task.loss, booster.watched, "held-out"))


def _teller(report: Report | None, boosters: int, rounds: int) -> Callable[[], None]:
    """To be called after every booster; there may be more of them than were expected."""
    done, begin = count(1), perf_counter()

    def tell() -> None:
        n = next(done)
        if report is not None:
            report(Progress(rounds, rounds, n, 0, max(n, boosters), perf_counter() - begin))

    return tell


def _can_be_learned(task: Task) -> bool:
    """Whether there are rows to train on and to measure on, and, of a classification, two classes."""
    if len(task.train) < 2 or task.held_out is None or len(task.held_out) < 2:
        return False
    return task.loss.name == "squared" or bool((task.train.y != task.train.y[0]).any())


def _as_one_environment(task: Task) -> Task:
    assert task.held_out is not None
    train, held_out = (replace(rows, environment=None, names=()) for rows in (task.train, task.held_out))
    return replace(task, train=train, held_out=held_out)
