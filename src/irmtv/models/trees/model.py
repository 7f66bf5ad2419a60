"""Boosted trees as a model family: every combination is a booster outside every fold, a candidate at its rounds.

The records are those that networks have, so that the rules mean the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import count
from threading import Lock
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from irmtv.core.cores import cores, side_by_side
from irmtv.core.types import Rows, Task
from irmtv.data.blocks import BlockSource
from irmtv.engine import Progress
from irmtv.engine.snapshots import Snapshot
from irmtv.models.base import (
    Combination,
    Model,
    Outputs,
    PathTrainer,
    Report,
    Split,
    TrainedPath,
    lowest_overall_risk,
    over_environments,
)
from irmtv.models.own_directions import directions_beside, directions_toward
from irmtv.models.trees.measured import snapshots
from irmtv.models.trees.rounds import Binned, Boosted, boost, its_errors_explained
from irmtv.models.trees.settings import BoostingSettings, TreeParameters, boosting_settings
from irmtv.objectives import OBJECTIVES
from irmtv.objectives.base import Objective
from irmtv.selection import Measurements
from irmtv.selection.directions import Directions
from irmtv.selection.folds import align, constant_risk
from irmtv.selection.records import STATISTICS, in_order

SNAPSHOTS = 40  # rounds at which every booster is a candidate
NEARLY = 0.02  # by which fewer leaves of ERM may be behind the best, of its gain and of its risk
KEPT_WITH_PENALTY = 0.9  # share of the best gain that fewer leaves must have
COMPARED = 2  # folds on which leaves are compared
WORK_FOR_A_CORE = 1 << 15  # numbers in the features of training rows, from which on a round of trees is
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

    `leaves_from` holds numbers of leaves. ERM has the fewest with which it is behind the best by at most 2 % of its
    gain over a constant, and of its risk, on held-out rows of two folds. Where a penalty acts 90 % of the gain must do:
    it makes the gradient of the rows noisier, and large trees follow the noise.
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

    def like(self, path: TrainedPath) -> TreeModel:
        assert isinstance(path, TreePath)
        leaves = path.settings.trees.num_leaves
        return replace(self, parameters=replace(self.parameters, num_leaves=leaves), leaves_from=())

    def trainer(
        self,
        split: Split,
        objective: Objective,
        combinations: Sequence[Combination],
        report: Report | None = None,
    ) -> TreeTrainer:
        return TreeTrainer(self, split, objective, len(combinations), report)

    def boost(
        self, task: Task, settings: BoostingSettings, every: int, blocks: BlockSource | None = None
    ) -> tuple[Boosted, Binned]:
        """One booster, and its rows in bins."""
        if not (settings.trees.n_jobs or is_work_for_a_core(task)):
            settings = one_thread(settings)
        binned = Binned(task, self.categorical, settings.trees, settings.reserve, blocks)
        return grow(binned, settings, every), binned


def grow(binned: Binned, settings: BoostingSettings, every: int) -> Boosted:
    """One booster on rows that are in bins already."""
    with its_errors_explained():
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
    ) -> None:
        self.model, self.split, self.objective = model, split, objective
        rounds = int(model.parameters.n_estimators)
        n_folds = len(split.folds)
        boosters = min(COMPARED, n_folds) * max(0, len(model.leaves_from) - 1)
        boosters += (n_folds + len(split.left_out)) * n_combinations
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
        trained = self.folds.trained(settings)
        has_erm = not all(has_penalty(s) for s in settings)
        return [
            TreePath(self.model, c, s, self.split, folds, _candidate_rounds(s, folds[0].booster, has_erm))
            for c, s, folds in zip(combinations, settings, trained, strict=True)
        ]

    def leave_out(self, paths: Sequence[TrainedPath]) -> None:
        assert self.left_out is not None
        known = [path for path in paths if isinstance(path, TreePath)]
        trained = self.left_out.trained([path.settings for path in known])
        for path, boosters in zip(known, trained, strict=True):
            path.without = torch.stack([torch.stack([one.scores_at(step) for one in boosters]) for step in path.steps])
            path.outputs_without = partial(_scores, boosters)

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
        for trained in self.folds.trained([plain.settings(ERM, num_leaves=n) for n in leaves], COMPARED):
            rows, risk = (
                torch.stack([torch.stack([getattr(s, name)[0] for s in one.seen]) for one in trained])  # (F, S, E)
                for name in ("rows", "risk")
            )
            lowest.append(float(lowest_overall_risk(rows, risk).amin()))
        constant = float(np.mean([constant_risk(t) for t in self.split.folds[:COMPARED]]))
        best = min(lowest)
        gain = max(0.0, constant - best)

        def fewest(behind: float) -> int:
            return next(n for n, risk in zip(leaves, lowest, strict=True) if risk <= best + behind)

        # of a large gain 2 % may be a large part of the risk that is left
        return _Leaves(fewest(NEARLY * min(gain, best)), fewest((1 - KEPT_WITH_PENALTY) * gain))

    def elsewhere(self, path: TrainedPath, step: int, tasks: Sequence[Task]) -> tuple[Tensor, Outputs]:
        assert isinstance(path, TreePath)
        parts = _Parts(tasks, self.model.categorical, self.every, self.tell)
        (boosters,) = parts.trained([path.settings])
        return torch.stack([one.scores_at(step) for one in boosters]), _scores(boosters, step)

    def directions(self, erm: TrainedPath, step: int) -> Directions | None:
        return directions_beside(self._task_of(erm), erm.held_out_outputs(step))

    def toward(self, erm: TrainedPath, step: int, other: TrainedPath, other_step: int) -> Directions | None:
        return directions_toward(self._task_of(erm), erm.held_out_outputs(step), other.held_out_outputs(other_step))

    def _task_of(self, path: TrainedPath) -> Task:
        """The rows in their environments, also where these are inferred."""
        assert isinstance(path, TreePath)
        inferred = path.objective.infers_held_out
        return replace(self.split.task, train=path.with_inferred()) if inferred else self.split.task


class TreePath(TrainedPath):
    """The boosters of one combination."""

    def __init__(
        self,
        model: TreeModel,
        combination: Combination,
        settings: BoostingSettings,
        split: Split,
        folds: Sequence[Measured],
        steps: Sequence[int],
    ) -> None:
        self.model, self.settings, self.split = model, settings, split
        self.folds = folds
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
        return Measurements(self.steps, folds, self.erm_until)

    def _order(self, booster: Boosted) -> Tensor | None:
        """Its inferred environments in the order of the first fold's."""
        first, aux = self.folds[0].booster.rho, self.split.task.train.aux
        if first is None or booster.rho is None:
            return None
        assert aux is not None
        return align(first.membership(aux), booster.rho.membership(aux))

    def with_inferred(self) -> Rows:
        """All rows, each in the environment that is inferred for it by a booster that has not seen it."""
        rows = self.split.task.train
        parts = []
        for k, booster in enumerate(self.boosters):
            order = self._order(booster)
            assert order is not None and booster.rho is not None and rows.aux is not None
            parts.append(booster.rho.membership(rows.aux[self.split.fold == k])[:, order].argmax(1))
            n = len(order)
        return replace(rows, environment=self.split.together(parts), names=tuple(str(e) for e in range(n)))

    def held_out_outputs(self, step: int) -> Tensor:
        return self.split.together([one.scores(step) for one in self.folds])


def _scores(boosters: Sequence[Measured], step: int) -> Outputs:
    return [one.scores(step) for one in boosters]


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
        self._binned: dict[tuple[Fraction, int], Binned] = {}  # by what is set aside for penalties, and part
        self._erm: dict[tuple[int, int], Measured] = {}  # by leaves and part

    def trained(self, settings: Sequence[BoostingSettings], most: int | None = None) -> list[list[Measured]]:
        """By setting, and by part; `most` asks for the first parts only. ERM is trained once.

        Parts are trained side by side, so that LightGBM never has the same rows in two threads.
        """
        if not settings:
            return []
        n = len(self.tasks) if most is None else min(most, len(self.tasks))
        each = [one_thread(s) for s in settings]
        wanted = settings[0].trees.n_jobs or cores()
        at_a_time = min(wanted, cores()) if is_work_for_a_core(self.tasks[0]) else 1
        parts = side_by_side(lambda k: [self._trained(k, s) for s in each], range(n), at_a_time)
        return [list(boosters) for boosters in zip(*parts, strict=True)]

    def _trained(self, k: int, settings: BoostingSettings) -> Measured:
        """On one part."""
        is_erm = settings.objective.infers is None and not has_penalty(settings)
        is_erm = is_erm and settings.objective.measure_of(settings.settings) == "empirical"
        leaves = settings.trees.num_leaves
        if is_erm and (leaves, k) in self._erm:
            return self._erm[leaves, k]
        if (settings.reserve, k) not in self._binned:
            self._binned[settings.reserve, k] = Binned(
                self.tasks[k], self.categorical, settings.trees, settings.reserve
            )
        trained = self.one(self._binned[settings.reserve, k], settings)
        if is_erm:
            self._erm[leaves, k] = trained
        return trained

    def one(self, binned: Binned, settings: BoostingSettings) -> Measured:
        booster = grow(binned, settings, self.every)
        self.tell()
        return Measured(booster, snapshots(binned.watched, binned.task.loss, booster.watched, "held-out"))


def one_thread(settings: BoostingSettings) -> BoostingSettings:
    """With boosters of one thread each."""
    return replace(settings, trees=replace(settings.trees, n_jobs=1))


def is_work_for_a_core(task: Task) -> bool:
    """Whether a round of trees on these rows is; below, threads wait for each other."""
    return task.train.x.numel() >= WORK_FOR_A_CORE


def _teller(report: Report | None, boosters: int, rounds: int) -> Callable[[], None]:
    """To be called after every booster; there may be more of them than were expected."""
    done, begin, one_at_a_time = count(1), perf_counter(), Lock()

    def tell() -> None:
        with one_at_a_time:
            _told(next(done))

    def _told(n: int) -> None:
        if report is not None:
            report(Progress(rounds, rounds, n, 0, max(n, boosters), perf_counter() - begin))

    return tell
