"""Boosting estimators that choose their penalty weight and rounds themselves, without the test set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from irmtv.data.features import CategoricalColumns
from irmtv.data.training import TrainingData
from irmtv.estimators.boosting import BoostingEstimator, InvariantBoostingClassifier, InvariantBoostingRegressor
from irmtv.estimators.cv import PathEstimator, reject_single_model_params
from irmtv.models.base import FittedModel
from irmtv.models.search import Search
from irmtv.models.trees.fit import fold_trees, refit_trees
from irmtv.models.trees.model import TreeModel, TreePath

LEAVES = (2, 4, 12, 31)  # what num_leaves="auto" chooses from
# from about 1,000 the step rule lets no weight pull harder; below 10 little has changed yet
PATH = (0.0, 10.0, 30.0, 100.0, 300.0, 1e3)


class BoostingPathEstimator(PathEstimator, BoostingEstimator):
    """The part of the CV estimators of trees that does not depend on what is predicted."""

    verbose = 0
    _path = PATH
    _less_time = "Fewer n_estimators, penalty_weights or folds (cv) take less time."

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if isinstance(self.num_leaves, str) and self.num_leaves != "auto":
            raise ValueError(f"num_leaves must be 'auto' or a whole number of at least 2. Got {self.num_leaves!r}.")

    def model(self, data: TrainingData[CategoricalColumns], keep_outputs: bool = False) -> TreeModel:
        model = BoostingEstimator.model(self, data)
        return replace(model, leaves_from=LEAVES) if self.num_leaves == "auto" else model

    def _fitted_choice(self, data: TrainingData[CategoricalColumns], search: Search) -> FittedModel:
        assert isinstance(search.path, TreePath)
        fit = refit_trees if self.refit else fold_trees
        return fit(data, search.path, search.step)

    def _tuned(self, search: Search) -> dict[str, Any]:
        assert isinstance(search.path, TreePath)
        return {"num_leaves": search.path.settings.trees.num_leaves} if self.num_leaves == "auto" else {}


class InvariantBoostingClassifierCV(BoostingPathEstimator, InvariantBoostingClassifier):
    """InvariantBoostingClassifier over a path of penalty weights, chosen by cross-fitting on the training rows.

    Every weight is trained outside every fold; every weight at up to 50 of its rounds is a candidate, measured on rows
    that its boosters have not seen. Plain boosting is among them. See :class:`irmtv.InvariantClassifierCV` for what the
    rules ask and what `selected_` tells.

    Parameters
    ----------
    objective : str, default "auto"
        As for :class:`InvariantBoostingClassifier`.
    penalty_weights : sequence or None, default None
        The path; None is 0, 10, 30, 100, 300, 1000. 0 (plain boosting) is always among them. For a sum of penalties a
        number is the weight of every part, a mapping by name gives each its own.
    rule : {"invariance", "iid", "worst-env", "leave-one-env-out"}, default "invariance"
        How to choose among all penalty weights and rounds.
    rule_options : dict or None, default None
        Options of the rule "invariance"; see :func:`irmtv.selection.invariance`.
    cv : int, default 5
        Folds; each has its share of every environment and, as far as there are rows, of every class.
    refit : bool, default True
        False keeps the boosters of the folds, and the mean of their outputs predicts.
    num_leaves : int or "auto", default "auto"
        "auto" takes the smallest of 2, 4, 12 and 31 with which plain boosting gains on held-out rows (of two folds) at
        least 98 % of what it gains with the best of them over a constant prediction; 90 % where a penalty acts, which
        makes the gradient noisier, so that large trees would follow the noise.
    **others
        As for :class:`InvariantBoostingClassifier`.

    Attributes
    ----------
    selected_ : dict
        The rule, its outcome, the message that says why, the objective and the round, the hyper-parameters, and the
        figures it rests on.
    best_params_ : dict
        The chosen hyper-parameters.
    cv_results_ : DataFrame
        One row per candidate: hyper-parameters, round, held-out risk overall and in the worst environment, p-values of
        equal slopes and of equal risks, whether it is plain boosting, and whether it was selected.

    Examples
    --------
    >>> from irmtv import InvariantBoostingClassifierCV
    >>> from irmtv.datasets import make_simulation
    >>> rows = make_simulation(2000, (0.999, 0.7), 0.9, random_state=0).train
    >>> clf = InvariantBoostingClassifierCV("vrex", penalty_weights=[100], num_leaves=4, n_estimators=40, n_jobs=1,
    ...                                     random_state=0)
    >>> clf = clf.fit(rows.x.numpy(), rows.y.numpy(), environment=rows.environment.numpy())
    >>> clf.selected_["outcome"], clf.best_params_["penalty_weight"]
    ('invariant-found', 100.0)
    """

    @reject_single_model_params
    def __init__(
        self,
        objective: str = "auto",
        *,
        environment: str | None = None,
        aux: str | Sequence[str] | None = None,
        penalty_weights: Sequence[float | Mapping[str, float]] | None = None,
        rule: str = "invariance",
        rule_options: Mapping[str, Any] | None = None,
        cv: int = 5,
        refit: bool = True,
        n_estimators: int = 100,
        learning_rate: float = 0.1,
        num_leaves: int | str = "auto",
        min_child_samples: int = 20,
        warmup: int | float | None = None,
        reserve: float = 0.3,
        objective_params: Mapping[str, Any] | None = None,
        lightgbm_params: Mapping[str, Any] | None = None,
        min_rows: int = 10,
        class_weight: Mapping[Any, float] | str | None = None,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.objective = objective
        self.environment = environment
        self.aux = aux
        self.penalty_weights = penalty_weights
        self.rule = rule
        self.rule_options = rule_options
        self.cv = cv
        self.refit = refit
        self.n_estimators = n_estimators
        self.learning_rate = learning_rate
        self.num_leaves: Any = num_leaves
        self.min_child_samples = min_child_samples
        self.warmup = warmup
        self.reserve = reserve
        self.objective_params = objective_params
        self.lightgbm_params = lightgbm_params
        self.min_rows = min_rows
        self.class_weight = class_weight
        self.n_jobs = n_jobs
        self.random_state = random_state


class InvariantBoostingRegressorCV(BoostingPathEstimator, InvariantBoostingRegressor):
    """InvariantBoostingRegressor over a path of penalty weights, chosen by cross-fitting on the training rows.

    The parameters and attributes are those of :class:`InvariantBoostingClassifierCV`, without `class_weight`. Risks are
    of standardised y.

    Examples
    --------
    >>> import numpy as np
    >>> from irmtv import InvariantBoostingRegressorCV
    >>> rng = np.random.default_rng(0)
    >>> X, site = rng.normal(size=(400, 3)), np.repeat(["a", "b"], 200)
    >>> y = 10 * X[:, 0] + 50 + rng.normal(size=400)  # the same at both sites
    >>> reg = InvariantBoostingRegressorCV("vrex", penalty_weights=[10], num_leaves=4, n_estimators=60, n_jobs=1,
    ...                                    random_state=0)
    >>> reg = reg.fit(X, y, environment=site)
    >>> reg.selected_["outcome"], reg.best_params_
    ('erm-invariant', {'penalty_weight': 0.0})
    """

    @reject_single_model_params
    def __init__(
        self,
        objective: str = "auto",
        *,
        environment: str | None = None,
        aux: str | Sequence[str] | None = None,
        penalty_weights: Sequence[float | Mapping[str, float]] | None = None,
        rule: str = "invariance",
        rule_options: Mapping[str, Any] | None = None,
        cv: int = 5,
        refit: bool = True,
        n_estimators: int = 100,
        learning_rate: float = 0.1,
        num_leaves: int | str = "auto",
        min_child_samples: int = 20,
        warmup: int | float | None = None,
        reserve: float = 0.3,
        objective_params: Mapping[str, Any] | None = None,
        lightgbm_params: Mapping[str, Any] | None = None,
        min_rows: int = 10,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.objective = objective
        self.environment = environment
        self.aux = aux
        self.penalty_weights = penalty_weights
        self.rule = rule
        self.rule_options = rule_options
        self.cv = cv
        self.refit = refit
        self.n_estimators = n_estimators
        self.learning_rate = learning_rate
        self.num_leaves: Any = num_leaves
        self.min_child_samples = min_child_samples
        self.warmup = warmup
        self.reserve = reserve
        self.objective_params = objective_params
        self.lightgbm_params = lightgbm_params
        self.min_rows = min_rows
        self.n_jobs = n_jobs
        self.random_state = random_state
