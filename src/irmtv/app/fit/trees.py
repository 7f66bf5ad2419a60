"""Boosted trees, as one kind of model for `fit_table`. They read the same numbers as networks do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from irmtv.app.fit.contenders import COMPARED_ROWS, SEARCHED_ROWS, Contender, Floats, Path, some_rows, stage
from irmtv.app.fit.held_out import in_units_of_y
from irmtv.app.fit.summary import FeaturesKind
from irmtv.data.features import CategoricalColumns
from irmtv.data.training import TrainingData
from irmtv.engine.progress_bar import ProgressBar
from irmtv.estimators import InvariantBoostingClassifierCV, InvariantBoostingRegressorCV
from irmtv.models.search import Searched
from irmtv.models.trees.parameters import asked_of
from irmtv.models.trees.rounds import Binned
from irmtv.models.trees.search import Found, cross_fitted
from irmtv.objectives import OBJECTIVES
from irmtv.objectives.base import Objective

ERM = OBJECTIVES["erm"]


class Trees(Contender[TrainingData[CategoricalColumns]]):
    """Gradient boosting.

    Parameters
    ----------
    kind : "binary", "multiclass" or "regression".
    table : what `_prepare` of an estimator takes: features, target, environment, aux, weights.
    rounds : of boosting.
    how : further parameters of the estimator.
    """

    rhythm = "round"
    kind = "trees"
    features_kind: FeaturesKind = "contributions"

    def __init__(self, kind: str, table: Sequence[Any], *, rounds: int, how: Mapping[str, Any]) -> None:
        made = InvariantBoostingRegressorCV if kind == "regression" else InvariantBoostingClassifierCV
        super().__init__(made(n_estimators=rounds, **how), how["random_state"])
        self.estimator._check_parameters()
        self.everything = self.estimator._prepare(*table)
        self.rows = some_rows(self.everything, SEARCHED_ROWS, self.random_state)
        self._boosters: Found | None = None  # of the path

    @property
    def found(self) -> Found:
        assert self._boosters is not None, "search comes first"
        return self._boosters

    def name_of(self, searched: Searched, index: int) -> str:
        return f"{self.kind} ({self._leaves(searched, index)} leaves)"

    def _leaves(self, searched: Searched, index: int) -> int:
        of = searched.candidates[index]
        return self.found.asked_of[of.family][of.combination].trees.num_leaves

    def plain_risk(self, bar: ProgressBar | None, share: float) -> float:
        stage(bar, "plain trees", share)
        ready = replace(some_rows(self.rows, COMPARED_ROWS, self.random_state), objective=ERM)
        found = self._twin(objective="erm", penalty_weights=None, rule="iid", cv=2)._found(
            ready, self.seed, progress=bar
        )
        return float(found.searched.records.pooled().overall.nan_to_num(np.inf).min())

    def search(self, bar: ProgressBar | None, share: float) -> Path:
        stage(bar, "penalty path, trees", share)
        self._boosters = self.estimator._found(self.rows, self.seed, plain_beside=True, progress=bar)
        return _path(self.found, self.rows)

    def _path_of(self, objective: Objective, weight: Any, like: Searched, index: int) -> Path:
        leaves = self._leaves(like, index)
        twin = self._twin(objective=objective.name, penalty_weights=[weight], rule="iid", num_leaves=leaves)
        ready = replace(self.rows, objective=objective)
        return _path(twin._found(ready, self.seed), ready)

    def finish(self, searched: Searched) -> None:
        self.estimator._keep_choice(self.everything, replace(self.found, searched=searched))

    def settings(self) -> dict[str, Any]:
        names = {"folds": "cv", "rounds": "n_estimators", "learning_rate": "learning_rate", "reserve": "reserve"}
        return {name: getattr(self.estimator, attribute) for name, attribute in names.items()}

    def feature_weights(self, searched: Searched) -> tuple[Floats, Floats]:
        """How far features move the score, as shares. Plain boosting stops where it did best on held-out rows."""
        chosen: Floats = self.estimator.feature_importances_
        plain = searched.candidates[searched.plain]
        if plain == searched.chosen:
            return chosen, chosen
        as_if = copy(self.estimator)
        as_if.set_params(n_estimators=plain.step, num_leaves=self._leaves(searched, searched.plain))
        asked = asked_of(as_if, ERM, self.seed, None)
        binned = Binned(self.everything.task, self.everything.x.categorical, asked.trees)
        as_if._keep_trees(self.everything, [(as_if._boost(binned, asked, plain.step), plain.step)])
        return as_if.feature_importances_, chosen


def _path(found: Found, ready: TrainingData[CategoricalColumns]) -> Path:
    searched = found.searched

    def outputs(index: int) -> Floats:
        of = searched.candidates[index]
        scores = cross_fitted(searched.fold, found.folds_of[of.family][of.combination], of.step)
        return in_units_of_y(scores.numpy(), ready.y)

    return Path(searched, outputs)
