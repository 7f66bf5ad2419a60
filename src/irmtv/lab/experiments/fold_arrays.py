"""What runs on folds store for the rule "invariance" beside the statistics of their snapshots.

It is what the CV estimators measure of theirs, by the same functions (`irmtv.models`). Of linear models that are solved
outright the slopes in every column; such a run has one candidate, its solution, step 1. Of ERM, where its held-out risk
is lowest, whether all environments would choose the same direction; of methods that infer environments themselves, at
the end of their warm-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from irmtv.core.membership import Membership, Soft
from irmtv.core.types import Rows, Task, weights_of
from irmtv.engine import FittedRuns
from irmtv.engine.snapshots import given_environments, measure
from irmtv.lab.experiments.inferred import Whole, memberships
from irmtv.lab.experiments.outputs import outputs_of
from irmtv.lab.experiments.plan import Member, Work, fold_names
from irmtv.lab.experiments.spec import Selection, settled_from
from irmtv.models.base import lowest_overall_risk
from irmtv.models.networks.linear import MOST_COLUMNS, is_solved, linear_models, middle_model, slopes_of
from irmtv.models.networks.predictor import members_of
from irmtv.models.own_directions import directions_beside, own_directions
from irmtv.selection.directions import Directions
from irmtv.selection.folds import deal_folds

DIRECTIONS = "held-out/directions"  # (3,) of ERM, the same in all folds: `selection.directions.Directions`
OWN = "held-out/own"  # (E, 3) of ERM in stores of older versions: what the models of single environments gain
SCALAR_SLOPES = ("held-out/scalar_slope", "held-out/scalar_slope_cov")  # like the slopes of a scalar classifier
CPU = torch.device("cpu")

Arrays = dict[str, np.ndarray]


def arrays_of_folds(
    fitted: FittedRuns, work: Work, order: Sequence[Tensor] | None, whole: Whole, selection: Selection
) -> list[Arrays]:
    """One mapping for every run of a group on folds, often empty.

    "held-out/column_slope" (E, J) and "held-out/column_slope_cov" (E, J, J) of solved runs. Of a vector classifier
    SCALAR_SLOPES, too: candidates that differ in the classifier are compared by the slopes that all have. Of ERM,
    DIRECTIONS. Where the spec asks for them, held-out outputs. `order` is that of inferred environments.
    """
    group = _Folds(fitted, work, order, whole, selection.folds)
    arrays: list[Arrays] = [{} for _ in work.members]
    if group.order is None and group.held_out(0).environment is None:
        return arrays
    if group.solved and fitted.tasks[0].train.x[0].numel() <= MOST_COLUMNS:
        for runs in group.on_the_same_rows():
            for r, found in zip(runs, _slopes(group, runs), strict=True):
                arrays[r] |= found
    for r in range(len(fitted)) if selection.outputs else ():
        if order is None or r in group.solved:  # else environments differ from step to step
            arrays[r] |= outputs_of(fitted, r, group.held_out(r))
    for runs in group.erm():
        directions = _directions(group, runs)
        for r in runs if directions is not None else ():
            arrays[r][DIRECTIONS] = np.array(directions)
    return arrays


@dataclass(frozen=True)
class _Folds:
    """A group of runs that were trained outside folds, and the rows that they were measured on."""

    fitted: FittedRuns
    work: Work
    order: Sequence[Tensor] | None
    whole: Whole
    n_folds: int

    @cached_property
    def solved(self) -> list[int]:
        """The runs that are at a stationary point."""
        return [r for r, s in enumerate(self.fitted.settings) if is_solved(self.fitted.objective, s)]

    @cached_property
    def models(self) -> Tensor:
        """(R, C, D + 1)"""
        return linear_models(self.fitted)

    @cached_property
    def q(self) -> dict[int, Tensor]:
        """Of runs that infer their environments: memberships of their held-out rows, (N, E)."""
        assert self.order is not None
        every = memberships(self.fitted, self.work, self.whole)
        return {r: q[self.fold_of_rows(r) == self.fold_of(r)][:, self.order[r]].cpu() for r, q in every.items()}

    def member(self, r: int) -> Member:
        return self.work.members[r]

    def task(self, r: int) -> Task:
        data: int = self.fitted.runs[r]["data"]
        return self.fitted.tasks[data]

    def whole_of(self, r: int) -> Task:
        return self.whole(self.member(r).setting, self.member(r).seed)

    def fold_of_rows(self, r: int) -> Tensor:
        """(N,)"""
        return deal_folds(self.whole_of(r), self.n_folds, self.member(r).seed)

    def fold_of(self, r: int) -> int:
        """The fold that a run has not seen."""
        return fold_names(self.n_folds).index(self.member(r).part)

    def held_out(self, r: int) -> Rows:
        """The rows of that fold, each in the environment in which it is measured."""
        rows = self.task(r).held_out
        assert rows is not None
        if self.order is None:
            return rows
        q = self.q[r]
        return replace(rows, environment=q.argmax(1), names=tuple(str(e) for e in range(q.shape[1])))

    def outputs(self, runs: Sequence[int]) -> Tensor:
        """Of the runs on all folds, for the rows that each has not seen: (N,) or (N, C).

        At the step at which their risk on these rows is lowest; their states must have been kept.
        """
        fold, fitted = self.fold_of_rows(runs[0]), self.fitted
        if runs[0] not in self.solved:
            history, steps = fitted.history, self.steps_of_erm(runs[0])
            assert history is not None
            at = [history.steps.index(step) for step in steps]
            rows, risk = (v[at][:, list(runs)].transpose(0, 1) for v in (history.rows, history.risk))
            fitted = fitted.at(steps[int(lowest_overall_risk(rows, risk).argmin())])
        members = dict(zip(runs, members_of(fitted, runs, "last"), strict=True))
        parts = {r: member.logits(self.held_out(r).x.double()) for r, member in members.items()}
        found = parts[runs[0]].new_empty(len(fold), *parts[runs[0]].shape[1:])
        for r, part in parts.items():
            found[fold == self.fold_of(r)] = part
        return found

    def on_the_same_rows(self) -> list[list[int]]:
        """Solved runs, those together that are measured on the same rows in the same environments."""
        found: dict[int, list[int]] = {}
        for r in self.solved:
            found.setdefault(self.fitted.runs[r]["data"] if self.order is None else r, []).append(r)
        return list(found.values())

    def erm(self) -> list[list[int]]:
        """Runs that are ERM at some step: of one combination on all its folds together, in their order."""
        found: dict[tuple[str, int, int], list[int]] = {}
        for r, m in enumerate(self.work.members):
            if self.steps_of_erm(r):
                found.setdefault((m.setting, m.seed, m.combination), []).append(r)
        return [sorted(runs, key=self.fold_of) for runs in found.values() if len(runs) == self.n_folds]

    def steps_of_erm(self, r: int) -> list[int]:
        """Snapshots at which a run is ERM. A penalised run that is trained step by step is, in its warm-up, but has an
        ERM beside it; one that infers its environments does not, and there it counts once these are settled."""
        objective, settings, history = self.fitted.objective, self.fitted.settings[r], self.fitted.history
        assert history is not None
        if objective.reads_aux:  # its outputs are no function of the columns alone
            return []
        until = objective.plain_until(settings)
        if objective.name == "erm" or r in self.solved:
            return list(history.steps[1:]) if until >= int(settings["steps"]) else []
        begin = settled_from(objective, settings) if self.order is not None else until + 1
        return [step for step in history.steps if max(1, begin) <= step <= until]


def _slopes(group: _Folds, runs: Sequence[int]) -> list[Arrays]:
    """In every column, and of vector classifiers those of a scalar one."""
    rows, task = group.held_out(runs[0]), group.task(runs[0])
    mean, cov = slopes_of(group.fitted, runs, rows, group.models[list(runs)], task.loss)
    found: list[Arrays] = [
        {"held-out/column_slope": m.numpy(), "held-out/column_slope_cov": c.numpy()}
        for m, c in zip(mean, cov, strict=True)
    ]
    vector = [i for i, r in enumerate(runs) if group.fitted.settings[r]["classifier"] == "vector"]
    if vector:
        q = None if group.order is None else group.q[runs[0]]
        slopes = _scalar_slopes(rows, group.models[[runs[i] for i in vector]], task, q)
        for k, i in enumerate(vector):
            found[i] |= {name: values[k].numpy() for name, values in zip(SCALAR_SLOPES, slopes, strict=True)}
    return found


def _scalar_slopes(rows: Rows, models: Tensor, task: Task, q: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean slopes (K, E) in a scalar classifier, and their squared standard errors; covariances of shared rows."""
    x = torch.cat([rows.x.double().flatten(1), torch.ones(len(rows), 1, dtype=torch.float64)], 1)
    f = (x @ models.mT).unsqueeze(0)  # (1, K, N, C)
    f = f.squeeze(-1) if task.n_outputs == 1 else f
    y = rows.y.double() if rows.y.is_floating_point() else rows.y
    weights = weights_of([rows], across_sets=True)
    weight = None if weights is None else weights.unsqueeze(1)  # (1, 1, N)
    environments: Membership = given_environments([rows], len(models), len(rows.names), CPU)
    if q is not None:
        environments = Soft(q.double().T.expand(1, len(models), -1, -1))
    found = measure(1, "held-out", task.loss, f, y.view(1, 1, *y.shape), environments, weight)
    return found.slope, found.slope_cov


def _directions(group: _Folds, runs: Sequence[int]) -> Directions | None:
    """Whether all environments would choose the same direction as ERM, by the runs on all folds of a combination.

    Every row is in the environment in which it was held out: inferred ones are tested on rows that did not infer them.
    None for want of rows, and where a run diverged.
    """
    if any(r in group.fitted.diverged for r in runs):
        return None
    whole, fold = group.whole_of(runs[0]), group.fold_of_rows(runs[0])
    codes = torch.zeros(len(whole.train), dtype=torch.long)
    for r in runs:
        environment = group.held_out(r).environment
        assert environment is not None
        codes[fold == group.fold_of(r)] = environment
    task = replace(whole, train=replace(whole.train, environment=codes, names=group.held_out(runs[0]).names))
    exact = None
    if runs[0] in group.solved and group.fitted.settings[runs[0]]["layer"] is None:
        exact = own_directions(task, middle_model(group.models[list(runs)]).flatten())
    return directions_beside(task, group.outputs(runs)) if exact is None else exact
