"""Boosted trees on all training rows, and what a fitted model tells of its training."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import torch

from irmtv.core.messages import users_stacklevel
from irmtv.core.types import Rows
from irmtv.data.blocks import BlockSource
from irmtv.data.categories import CategoricalColumns
from irmtv.data.training import TrainingData
from irmtv.engine.snapshots import History
from irmtv.models.base import FittedModel, environment_labels, history_frame
from irmtv.models.trees.blocks import task_of_blocks
from irmtv.models.trees.library import threads
from irmtv.models.trees.measured import history
from irmtv.models.trees.model import TreeModel, TreePath
from irmtv.models.trees.predictor import TreeMember, TreePredictor
from irmtv.models.trees.rounds import Boosted
from irmtv.models.trees.settings import BoostingSettings
from irmtv.selection.folds import hold_out
from irmtv.selection.records import STREAMING

WATCHED = 100  # rounds of which `history_` and early stopping know
EXPLAINED = 500  # training rows, evenly spaced, that importances are measured on

Data = TrainingData[CategoricalColumns]


def fit_trees(
    model: TreeModel, data: Data, settings: BoostingSettings, stop_by: str | None = None, share: Fraction = Fraction(0)
) -> FittedModel:
    """One booster, to its last round; with `stop_by`, to the round that this rule finds best on a held-out share."""
    task = data.task if stop_by is None else hold_out(data.task, share.numerator, share.denominator, model.seed)
    booster, binned = model.boost(task, settings, max(1, settings.trees.n_estimators // WATCHED))
    seen = history(binned.watched, task.loss, booster.watched, "train" if stop_by is None else "held-out")
    at = settings.trees.n_estimators
    if stop_by is not None:
        score = STREAMING[stop_by]
        assert score is not None
        records = replace(seen, rows=seen.rows[:, 0], risk=seen.risk[:, 0])  # (S, E): every round a candidate
        at = seen.steps[int(score(records).nan_to_num(torch.inf).argmin())]
    return fitted_trees(model, data, [(booster, at)], seen)


def refit_trees(data: Data, path: TreePath, step: int, blocks: BlockSource | None = None) -> FittedModel:
    """A combination that was searched, up to a round, on all rows: those of `data`, or of blocks, where `data` has a
    sample. Of blocks the last round alone is measured: every round that is would keep the scores of all rows."""
    data, model = replace(data, objective=path.objective), path.model
    settings = replace(path.settings, trees=replace(path.settings.trees, n_estimators=step))
    task = data.task if blocks is None else task_of_blocks(blocks, data.task)
    every = max(1, step // WATCHED) if blocks is None else step
    booster, binned = model.boost(task, settings, every, blocks)
    seen = history(binned.watched, task.loss, booster.watched, "train")
    return fitted_trees(model, data, [(booster, step)], seen)


def fold_trees(data: Data, path: TreePath, step: int) -> FittedModel:
    """The boosters of the folds, up to a round; the mean of their outputs predicts."""
    data = replace(data, objective=path.objective)
    first_fold = data.task.train.take((path.split.fold == 0).nonzero().squeeze(1))
    watched = [w for w in path.boosters[0].watched if w.round <= step]
    seen = history(first_fold, data.task.loss, watched, "held-out")
    return fitted_trees(path.model, data, [(booster, step) for booster in path.boosters], seen)


def fitted_trees(model: TreeModel, data: Data, trained: Sequence[tuple[Boosted, int]], seen: History) -> FittedModel:
    """From boosters and the round of each that is kept, as an estimator keeps them."""
    members = tuple(TreeMember(b.booster, b.base, b.iterations(at)) for b, at in trained)
    first, step = trained[0]
    predictor = TreePredictor(data.x, members, data.y, first.rho, threads(model.parameters.n_jobs))
    environments = environment_labels(_environment_names(data.task.train, first))
    x = data.task.train.x.numpy()
    importances = predictor.importances(x[np.linspace(0, len(x) - 1, EXPLAINED).astype(int)])
    if not importances.any():
        _warn_of_no_split(model, data.task.train)
    return FittedModel(
        predictor,
        data.objective,
        step=step,
        environments=environments,
        environment_weights=first.measure,
        history=history_frame(seen, 0, environments),
        importances=importances,
    )


def _warn_of_no_split(model: TreeModel, rows: Rows) -> None:
    """No tree found a split: too few rows for leaves of that size, or a target that no feature tells anything of."""
    least = model.parameters.min_child_samples
    warnings.warn(
        f"{model.parameters.owner}: no tree found a split, and the model predicts a constant. Usual reasons: few rows "
        f"(a leaf needs min_child_samples={least} of them, and there are {len(rows)}), or features that say nothing of "
        "y. Use a smaller min_child_samples, or a linear model (InvariantClassifierCV or InvariantRegressorCV with "
        "hidden=()).",
        UserWarning,
        stacklevel=users_stacklevel(),
    )


def _environment_names(rows: Rows, booster: Boosted) -> list[object]:
    """Those given, "inferred 1", ... where they were inferred."""
    if booster.rho is None:
        return list(rows.names)
    return [f"inferred {e + 1}" for e in range(booster.rho.net.n_environments)]
