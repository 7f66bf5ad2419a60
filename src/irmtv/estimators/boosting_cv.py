"""Boosting estimators that choose their penalty weight and rounds themselves, without the test set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from irmtv.data.features import CategoricalColumns
from irmtv.data.training import TrainingData
from irmtv.estimators.attributes import history_frame
from irmtv.estimators.boosting import (
    WATCHED,
    BoostingEstimator,
    InvariantBoostingClassifier,
    InvariantBoostingRegressor,
)
from irmtv.estimators.cv import _Path, _tells_of_one_model
from irmtv.estimators.parameters import as_seed
from irmtv.models.trees.measured import history
from irmtv.models.trees.parameters import Asked, asked_of
from irmtv.models.trees.rounds import Binned
from irmtv.models.trees.search import Found, search_trees
from irmtv.objectives.base import Objective

LEAVES = (2, 4, 12, 31)  # what num_leaves="auto" chooses from
# from about 1,000 the step rule lets no weight pull harder; below 10 little has changed yet
PATH = (0.0, 10.0, 30.0, 100.0, 300.0, 1e3)


class _BoostingPath(BoostingEstimator, _Path):
    """The part of the CV estimators that does not depend on what is predicted."""

    # parameters of networks' paths that boosters do not have
    l2 = 0.0
    n_seeds = 1
    grid = None
    _path = PATH
    _less_time = "Fewer n_estimators, penalty_weights or folds (cv) take less time."

    def _fit(self, X: Any, y: Any, environment: Any, aux: Any, sample_weight: Any) -> Any:
        self._check_parameters()
        ready = self._prepare(X, y, environment, aux, sample_weight)
        self._keep_choice(ready, self._found(ready, as_seed(self.random_state)))
        return self

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if isinstance(self.num_leaves, str) and self.num_leaves != "auto":
            raise ValueError(f"num_leaves must be 'auto' or a whole number of at least 2. Got {self.num_leaves!r}.")

    def _found(self, ready: TrainingData[CategoricalColumns], seed: int, **how: Any) -> Found:
        """The whole path on every fold, and what the rule chooses. `how` is for `search_trees`."""

        def ask(objective: Objective | None, combination: Mapping[str, Any], leaves: int | None) -> Asked:
            of = ready.objective if objective is None else objective
            as_if = copy(self)
            as_if.num_leaves = self.num_leaves if leaves is None else leaves
            if of is not ready.objective:  # plain boosting beside it
                as_if.objective_params = None
            return asked_of(as_if, of, seed, combination.get("penalty_weight"))

        return search_trees(
            ready.task,
            self._combinations(ready.objective),
            ask,
            ready.x.categorical,
            rule=self.rule,
            n_folds=self.cv,
            seed=seed,
            leaves=LEAVES if self.num_leaves == "auto" else (),
            options=self.rule_options,
            **how,
        )

    def _keep_choice(self, ready: TrainingData[CategoricalColumns], found: Found) -> None:
        """Say what was chosen, and keep it: trained on all rows, or the boosters of the folds."""
        self._tell(found.searched, {"num_leaves": found.asked.trees.num_leaves} if self.num_leaves == "auto" else {})
        at, asked = found.searched.step, found.asked
        chosen = replace(ready, objective=asked.objective)
        asked = replace(asked, trees=replace(asked.trees, n_estimators=at))
        if self.refit:
            binned = Binned(ready.task, ready.x.categorical, asked.trees, asked.reserve)
            boosted = self._boost(binned, asked, max(1, at // WATCHED))
            self._keep_trees(chosen, [(boosted, at)])
            seen = history(binned.watched, ready.task.loss, boosted.watched, "train")
        else:
            self._keep_trees(chosen, [(boosted, at) for boosted in found.folds])
            task = replace(ready.task, train=ready.task.train.take((found.searched.fold == 0).nonzero().squeeze(1)))
            upto = [w for w in found.folds[0].watched if w.round <= at]
            seen = history(task.train, ready.task.loss, upto, "held-out")
        self.history_ = history_frame(seen, 0, self.environments_)
        self.selected_["step"] = self.n_iter_


class InvariantBoostingClassifierCV(_BoostingPath, InvariantBoostingClassifier):
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

    @_tells_of_one_model
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


class InvariantBoostingRegressorCV(_BoostingPath, InvariantBoostingRegressor):
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

    @_tells_of_one_model
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
