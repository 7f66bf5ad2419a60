"""Linear models and networks as a model family: all combinations, folds and seeds are trained in one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from irmtv.core.types import Rows, Task
from irmtv.engine import FittedRuns, Progress, train
from irmtv.models.base import (
    Combination,
    Model,
    Outputs,
    PathTrainer,
    Report,
    Split,
    TrainedPath,
    over_environments,
)
from irmtv.models.networks.batches import divergence_is_recorded, every_run, lowest_risk
from irmtv.models.networks.linear import MOST_COLUMNS, is_solved, linear_models, middle_model, slopes_of
from irmtv.models.networks.predictor import members_of
from irmtv.models.own_directions import directions_beside, directions_toward, own_directions
from irmtv.objectives import OBJECTIVES
from irmtv.objectives.base import Objective, warmup_steps
from irmtv.selection import Measurements
from irmtv.selection.directions import Directions
from irmtv.selection.folds import align
from irmtv.selection.records import STATISTICS, in_order

SNAPSHOTS = 40  # steps at which every run is a candidate
HELD_OUT = 1 << 14  # rows that are predicted at a time
PATIENCE = 10  # of these, without a lower risk of any run, after which a search for l2 ends
ERM_DIFFERS_IN = ("learning_rate", "l2")  # what may differ between runs of ERM
ENGINE = (
    "hidden",
    "net",
    "classifier",
    "steps",
    *ERM_DIFFERS_IN,
    "batch_size",
    "solver",
    "device",
    "dtype",
    "max_chunk",
)
ERM = OBJECTIVES["erm"]


@dataclass(frozen=True)
class NetworkModel(Model):
    """How networks are trained: `settings` go to `train` and are the same for all combinations.

    With several `seeds` every combination is trained with each of them, and judged by the mean of their statistics.
    `l2_from` holds values of l2, of which ERM chooses one for the whole path. `of_erm` are settings of ERM beside the
    objective that differ from these: a linear model that Adam trains for the objective's sake is compared with the ERM
    that Newton's method finds.
    """

    settings: Mapping[str, Any]
    seeds: tuple[int, ...] = (0,)
    l2_from: tuple[float, ...] = ()
    snapshot_every: int | None = None  # None: at 40 steps
    keep_states: bool = False  # for `held_out_outputs` and `fold_models`
    keep_left_out: bool = False  # for `left_out_outputs`
    of_erm: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        """Of the folds, and of the first model."""
        return self.seeds[0]

    def common_settings(self, objective: Objective, combination: Combination) -> Mapping[str, Any]:
        return self.settings

    def like(self, path: TrainedPath) -> NetworkModel:
        assert isinstance(path, NetworkPath)
        return replace(self, settings={**self.settings, "l2": path.batch.settings.get("l2", 0.0)}, l2_from=())

    def trainer(
        self,
        split: Split,
        objective: Objective,
        combinations: Sequence[Combination],
        report: Report | None = None,
    ) -> NetworkTrainer:
        if not self.seeds:
            raise ValueError("seeds must be at least one whole number, or None for `seed` alone. Got none.")
        return NetworkTrainer(self, split, len(combinations), report)


class NetworkTrainer(PathTrainer):
    """Trains the paths of one search; an l2 that is not given is chosen first."""

    def __init__(self, model: NetworkModel, split: Split, n_combinations: int, report: Report | None) -> None:
        self.model, self.split, self.seeds = model, split, model.seeds
        steps = int(model.settings["steps"])
        self.every = max(1, steps // SNAPSHOTS) if model.snapshot_every is None else model.snapshot_every
        self.settings = dict(model.settings)
        n_parts, n_l2 = len(split.folds) + len(split.left_out), len(model.l2_from)
        self.stages = _Stages(report, len(self.seeds) * (n_parts * n_combinations + len(split.folds) * n_l2))
        if model.l2_from:
            report = self.stages.next(len(self.seeds) * len(split.folds) * n_l2)
            self.settings["l2"] = self._best_l2(model.l2_from, report)

    def train(self, objective: Objective, combinations: Sequence[Combination]) -> list[TrainedPath]:
        known = {*ENGINE, "start", "layer", *(h.name for h in objective.hyperparameters)}
        return self._train(objective, combinations, {k: v for k, v in self.settings.items() if k in known})

    def train_erm(self, combinations: Sequence[Combination]) -> list[TrainedPath]:
        rates = [{name: c[name] for name in ERM_DIFFERS_IN if name in c} for c in combinations]
        distinct = [c for i, c in enumerate(rates) if c not in rates[:i]]
        return self._train(ERM, distinct, self._settings_of_erm())

    def _settings_of_erm(self) -> dict[str, Any]:
        return {name: self.settings[name] for name in ENGINE if name in self.settings} | dict(self.model.of_erm)

    def _train(
        self, objective: Objective, combinations: Sequence[Combination], settings: Mapping[str, Any]
    ) -> list[TrainedPath]:
        folds = self._fitted(self.split.folds, objective, combinations, settings, self.model.keep_states)
        batch = Batch(self.model, objective, tuple(combinations), settings, self.split, folds)
        return [NetworkPath(batch, c) for c in range(len(combinations))]

    def _fitted(
        self,
        parts: Sequence[Task],
        objective: Objective,
        combinations: Sequence[Combination],
        settings: Mapping[str, Any],
        keep_states: bool,
    ) -> FittedRuns:
        runs = every_run(parts, self.seeds, combinations)
        with divergence_is_recorded():
            return train(
                list(parts),
                objective,
                runs,
                snapshot_every=self.every,
                # where candidates differ in the classifier, all are measured with the one that all have
                slopes="scalar" if "classifier" in runs.names else None,
                keep_states=keep_states,
                progress=self.stages.next(len(runs)),
                **settings,
            )

    def leave_out(self, paths: Sequence[TrainedPath]) -> None:
        """In one call for all paths that were trained together; in the mean over seeds."""
        parts, together = self.split.left_out, dict[int, list[NetworkPath]]()
        for path in paths:
            assert isinstance(path, NetworkPath)
            together.setdefault(id(path.batch), []).append(path)
        for group in together.values():
            combinations = [path.combination for path in group]
            keep = self.model.keep_left_out
            fitted = self._fitted(parts, group[0].objective, combinations, group[0].batch.settings, keep)
            assert fitted.history is not None
            for c, path in enumerate(group):
                path.without = torch.full((len(path.steps), len(parts), 2), torch.nan, dtype=torch.float64)
                for s, step in enumerate(path.steps):
                    if step in fitted.history.steps and not any(r % len(group) == c for r in fitted.diverged):
                        each = scores_at(fitted, step).view(len(parts), len(self.seeds), len(group), 2)
                        path.without[s] = each[:, :, c].mean(1)
                if keep and not any(r % len(group) == c for r in fitted.diverged):
                    path.outputs_without = partial(left_out_outputs, fitted, c, len(group))

    def elsewhere(self, path: TrainedPath, step: int, tasks: Sequence[Task]) -> tuple[Tensor, Outputs | None]:
        assert isinstance(path, NetworkPath)
        runs, keep = every_run(tasks, self.seeds, [path.combination]), self.model.keep_left_out
        how = {"snapshot_every": self.every, "keep_states": keep, **path.batch.settings}
        with divergence_is_recorded():
            fitted = train(list(tasks), path.objective, runs, **how)
        outputs = left_out_outputs(fitted, 0, 1, step) if keep and not fitted.diverged else None
        return scores_at(fitted, step).view(len(tasks), len(self.seeds), 2).mean(1), outputs

    def _best_l2(self, values: Sequence[float], report: Report | None = None) -> float:
        """That of ERM with the lowest risk on held-out rows, each at its best step."""
        folds = self.split.folds
        runs = every_run(folds, self.seeds, [{"l2": value} for value in values])
        settings = {name: value for name, value in self._settings_of_erm().items() if name != "l2"}
        with divergence_is_recorded():
            fitted = train(
                list(folds), "erm", runs, snapshot_every=self.every, patience=PATIENCE, progress=report, **settings
            )
        return float(values[lowest_risk(fitted, len(values))])

    def directions(self, erm: TrainedPath, step: int) -> Directions | None:
        assert isinstance(erm, NetworkPath)
        if erm.objective.reads_aux:  # its scores are no function of the columns alone
            return None
        theta, task = erm.middle_model, self._task_of(erm)
        exact = None if theta is None else own_directions(task, theta.flatten())
        return directions_beside(task, self._outputs(erm, step)) if exact is None else exact

    def toward(self, erm: TrainedPath, step: int, other: TrainedPath, other_step: int) -> Directions | None:
        assert isinstance(erm, NetworkPath) and isinstance(other, NetworkPath)
        if other.objective.reads_aux:
            return None
        return directions_toward(self._task_of(erm), self._outputs(erm, step), self._outputs(other, other_step))

    def _task_of(self, path: NetworkPath) -> Task:
        """The rows in their environments, also where these are inferred."""
        inferred = path.objective.infers_held_out
        return replace(self.split.task, train=path.batch.with_inferred(path.place)) if inferred else self.split.task

    def _outputs(self, path: NetworkPath, step: int) -> Tensor:
        """Held-out outputs; the models are trained once more where they were not kept."""
        if not self.model.keep_states:
            combinations, settings = (path.combination,), path.batch.settings
            folds = self._fitted(self.split.folds, path.objective, combinations, settings, True)
            path = NetworkPath(Batch(self.model, path.objective, combinations, settings, self.split, folds), 0)
        return path.held_out_outputs(step)


@dataclass(frozen=True)
class Batch:
    """All combinations of one objective, trained together: fold by fold, in it seed by seed, in it by combination."""

    model: NetworkModel
    objective: Objective
    combinations: tuple[Combination, ...]
    settings: Mapping[str, Any]  # for `train`, the same for all
    split: Split
    folds: FittedRuns

    def runs_of(self, fold: int, c: int) -> list[int]:
        """Where a combination's runs on one fold stand, one per seed."""
        per_fold = len(self.folds) // len(self.folds.tasks)
        return list(range(fold * per_fold + c, (fold + 1) * per_fold, len(self.combinations)))

    @cached_property
    def coefficients(self) -> Tensor:
        """Of linear models, all runs, the intercept last: (R, C, D + 1)."""
        return linear_models(self.folds)

    @cached_property
    def column_slopes(self) -> list[tuple[Tensor, Tensor]]:
        """By fold: mean slopes in every column on its held-out rows, of all combinations (C, E, J), and covariances."""
        found = []
        every = range(len(self.combinations))
        groups = [[c] for c in every] if self.objective.infers_held_out else [list(every)]  # in the same environments
        for f, task in enumerate(self.folds.tasks):
            parts = []
            for group in groups:
                rows = task.held_out
                assert rows is not None
                if self.objective.infers_held_out:
                    rows = self.with_inferred(group[0]).take((self.split.fold == f).nonzero().squeeze(1))
                runs = [self.runs_of(f, c)[0] for c in group]
                parts.append(slopes_of(self.folds, runs, rows, self.coefficients[runs], task.loss))
            found.append((torch.cat([mean for mean, _ in parts]), torch.cat([cov for _, cov in parts])))
        return found

    def erm_until(self, c: int) -> int:
        """Up to which step a combination is ERM."""
        return self.objective.plain_until(self.folds.settings[c])

    @cached_property
    def erm(self) -> list[int]:
        """Combinations that are ERM to the end."""
        ends = [int(s["steps"]) for s in self.folds.settings[: len(self.combinations)]]
        return [c for c, steps in enumerate(ends) if self.erm_until(c) >= steps]

    def diverged(self, c: int) -> bool:
        """Whether one of a combination's runs did."""
        return any(run % len(self.combinations) == c for run in self.folds.diverged)

    @cached_property
    def membership(self) -> dict[int, Tensor]:
        """By run: inferred environments of all rows, (N, E)."""
        fitted, rows = self.folds, self.split.task.train
        found: dict[int, Tensor] = {}
        for chunk in fitted.chunks:  # runs of several chunks may differ in the number of environments
            alone = replace(fitted, chunks=(chunk,))
            found |= zip(sorted(chunk.chunk.runs), alone.membership(rows.aux, x=rows.x), strict=True)
        return found

    @cached_property
    def orders(self) -> list[Tensor | None]:
        """By run: its inferred environments in the order of the first run with the same hyper-parameters."""
        if not self.objective.infers_held_out:
            return [None] * len(self.folds)
        n = len(self.combinations)
        return [align(self.membership[run % n], self.membership[run]) for run in range(len(self.folds))]

    def with_inferred(self, c: int) -> Rows:
        """All rows, each in the environment that a combination infers for it without having seen it."""
        rows, fold = self.split.task.train, self.split.fold
        codes = torch.zeros(len(rows), dtype=torch.long)
        for f in range(len(self.folds.tasks)):
            run = self.runs_of(f, c)[0]
            here, order = fold == f, self.orders[run]
            assert order is not None
            codes[here] = self.membership[run][:, order][here].argmax(1).cpu()
        n = self.membership[self.runs_of(0, c)[0]].shape[1]
        return replace(rows, environment=codes, names=tuple(str(k) for k in range(n)))

    def candidate_steps(self, c: int) -> list[int]:
        """When a combination is a candidate: not at its random start, nor before its environments are settled.

        Environments that are still being inferred are others at every step: nothing can be tested on them. Nor in a
        warm-up which a combination of weight 0 has in common with it: that is the same model twice.
        """
        history, settings = self.folds.history, self.folds.settings[c]
        assert history is not None
        begin, steps = 1, int(settings["steps"])
        if self.objective.infers_held_out:
            settles = self.objective.climbs(settings) == "warm-up"
            begin = max(1, warmup_steps(settings["warmup"], steps) if settles else steps)
        if self.erm_until(c) < steps and any(p != c and self._same_warmup(c, p) for p in self.erm):
            begin = max(begin, self.erm_until(c) + 1)
        return [step for step in history.steps if step >= begin] or [history.steps[-1]]

    def _same_warmup(self, c: int, erm: int) -> bool:
        a, b = self.combinations[c], self.combinations[erm]
        names = [n for n in a if n != "penalty_weight"] if self.objective.infers_held_out else ERM_DIFFERS_IN
        return all(a.get(n) == b.get(n) for n in names)


class NetworkPath(TrainedPath):
    """One combination of a batch."""

    def __init__(self, batch: Batch, place: int) -> None:
        self.batch, self.place = batch, place
        super().__init__(
            batch.objective,
            batch.combinations[place],
            batch.candidate_steps(place),
            erm_until=batch.erm_until(place),
            is_erm=place in batch.erm,
        )

    @property
    def settings(self) -> Mapping[str, Any]:
        """What its runs were trained with."""
        return self.batch.folds.settings[self.place]

    @property
    def diverged(self) -> bool:
        return self.batch.diverged(self.place)

    def measurements(self) -> Measurements:
        return Measurements(
            self.steps,
            [self._on_fold(f) for f in range(len(self.batch.folds.tasks))],
            self.erm_until,
            diverged=self.diverged,
        )

    def _on_fold(self, f: int) -> dict[str, Tensor]:
        """In the mean over its seeds: (S, E, ...) each."""
        history = self.batch.folds.history
        assert history is not None
        at = torch.tensor([history.steps.index(step) for step in self.steps])
        each = [
            in_order({name: getattr(history, name)[at, r].double() for name in STATISTICS}, self.batch.orders[r])
            for r in self.batch.runs_of(f, self.place)
        ]
        if len(each) > 1:
            each = [mean_of_seeds({name: torch.stack([one[name] for one in each]) for name in STATISTICS})]
        return {**each[0], **self._by_column(f)}  # Newton's method has one model for all seeds

    def _by_column(self, f: int) -> dict[str, Tensor]:
        """Slopes in every column on the held-out rows of a fold, of a linear model by Newton's method: (1, E, J)."""
        rows, inferred = self.batch.split.task.train, self.batch.objective.infers_held_out
        solved = is_solved(self.batch.objective, self.settings) and self.steps == (1,)
        if not solved or rows.x[0].numel() > MOST_COLUMNS:
            return {}
        if rows.environment is None and not inferred:
            return {}
        mean, cov = self.batch.column_slopes[f]
        return {"column_slope": mean[[self.place]], "column_slope_cov": cov[[self.place]]}

    def fold_models(self, step: int) -> tuple[FittedRuns, list[int]]:
        """The models of all folds and seeds at a step, and which runs they are; their states must have been kept."""
        folds = self.batch.folds
        return folds.at(step), [run for f in range(len(folds.tasks)) for run in self.batch.runs_of(f, self.place)]

    @property
    def middle_model(self) -> Tensor | None:
        """Of linear models by Newton's method: that of the fold which is nearest to their mean, (C, D + 1)."""
        if self.settings["solver"] != "newton" or self.settings["layer"] is not None:
            return None
        runs = [self.batch.runs_of(f, self.place)[0] for f in range(len(self.batch.folds.tasks))]
        return middle_model(self.batch.coefficients[runs])

    def held_out_outputs(self, step: int) -> Tensor:
        outputs = left_out_outputs(self.batch.folds, self.place, len(self.batch.combinations), step)
        return self.batch.split.together(outputs)


def left_out_outputs(fitted: FittedRuns, c: int, n_combinations: int, step: int) -> list[Tensor]:
    """Outputs of a combination's models at a step for the held-out rows of every task, in the mean over seeds; runs
    stand task by task, in it seed by seed, in it by combination, and their states must have been kept."""
    at, per_task, outputs = fitted.at(step), len(fitted) // len(fitted.tasks), []
    for k, task in enumerate(fitted.tasks):
        assert task.held_out is not None
        members = members_of(at, list(range(k * per_task + c, (k + 1) * per_task, n_combinations)))
        # some rows at a time, so that no second table in float64 is made
        parts = (
            torch.stack([m.logits(rows.double()) for m in members]) for rows in torch.split(task.held_out.x, HELD_OUT)
        )
        outputs.append(torch.cat([part.mean(0) for part in parts]))
    return outputs


def scores_at(fitted: FittedRuns, step: int) -> Tensor:
    """Risk and accuracy of every run on its held-out rows after a step: (R, 2)."""
    history = fitted.history
    assert history is not None
    at = history.steps.index(step)
    return torch.stack([over_environments(v[at], history.rows[at]) for v in (history.risk, history.accuracy)], 1)


def mean_of_seeds(seeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Statistics of the same rows under K models, (K, ..., E[, E][, J]) each, as those of one.

    Every environment has the mean of its rows under the models, and its risk and slope the means over those rows, so
    that the mean risk over all rows is the mean of theirs.

    The models are measured on the same rows: K of them are no more rows than one. The covariance here is the mean of
    theirs, K * sum_k w_k w_k' cov_k with w_k = 1 / K. That of the mean itself, sum_kl w_k w_l' cov_kl, is at most that
    (Cauchy-Schwarz), and exactly that where the models are alike. So no test gets sharper by seeds.
    """
    rows = seeds["rows"]
    k = len(rows)
    total = rows.sum(0)  # (..., E)
    share = torch.where(total > 0, rows / total, 1 / k)  # (K, ..., E), sums to 1 over K
    is_vector = seeds["slope"].ndim > rows.ndim
    mean = {name: seeds[name].mean(0) for name in ("rows", "effective")}
    for name in ("risk", "slope"):
        vector = is_vector and name == "slope"
        weight = share.unsqueeze(-1) if vector else share
        cov = seeds[f"{name}_cov"]
        both = share.square()
        if cov.ndim - vector > share.ndim:  # environments that share rows: (K, ..., E, E[, J])
            both = share.unsqueeze(-1) * share.unsqueeze(-2)
        both = both.unsqueeze(-1) if vector else both
        mean[name] = torch.where(weight > 0, weight * seeds[name], 0).sum(0)
        mean[f"{name}_cov"] = k * torch.where(both > 0, both * cov, 0).sum(0)
    return mean


class _Stages:
    """Reports several calls of `train` as one."""

    def __init__(self, report: Report | None, runs: int) -> None:
        self.report, self.runs, self.done, self.seconds = report, runs, 0, 0.0

    def next(self, runs: int) -> Report | None:
        report, before, earlier = self.report, self.done, self.seconds
        self.done += runs
        self.runs = max(self.runs, self.done)
        if report is None:
            return None

        def tell(p: Progress) -> None:
            self.seconds = earlier + p.seconds
            report(Progress(p.step, p.steps, before + p.runs_done, p.runs_now, self.runs, self.seconds))

        return tell
