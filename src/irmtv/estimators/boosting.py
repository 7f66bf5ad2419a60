"""Gradient boosting behind the estimators' interface; the CV classes choose their penalty weight and rounds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from irmtv.core.messages import check_positive
from irmtv.data.categories import CategoricalColumns
from irmtv.data.columns import Columns
from irmtv.data.training import TargetKind, TrainingData
from irmtv.estimators.base import InvariantEstimator
from irmtv.estimators.classifier import InvariantClassifier
from irmtv.estimators.parameters import as_seed, check_stopping, held_out_share, stopping_rule
from irmtv.estimators.path import PathEstimator, blocks_alone, reject_single_model_params
from irmtv.estimators.plots import plot_features
from irmtv.estimators.regressor import InvariantRegressor
from irmtv.models.base import FittedModel, KeepOutputs
from irmtv.models.search import Search
from irmtv.models.trees.fit import fit_trees, fold_trees, refit_trees
from irmtv.models.trees.library import lightgbm, threads
from irmtv.models.trees.model import TreeModel, TreePath
from irmtv.models.trees.settings import TreeParameters, check_objective
from irmtv.objectives.base import Objective

Floats = npt.NDArray[np.float64]
LEAVES = (2, 4, 12, 31)  # what num_leaves="auto" chooses from
# from about 1,000 the step rule lets no weight pull harder; below 10 little has changed yet
PATH = (0.0, 10.0, 30.0, 100.0, 300.0, 1e3)


class BoostingEstimator(InvariantEstimator):
    """The part of the boosting estimators that does not depend on what is predicted."""

    module: Any = None  # of a network
    _by_default = "vrex"  # which trees do best with (docs/boosting.md)

    def _fit(self, X: Any, y: Any, environment: Any, aux: Any, sample_weight: Any) -> Any:
        rule, share = stopping_rule(self.early_stopping, type(self).__name__), held_out_share(self.validation_fraction)
        data = self._read(X, y, environment, aux, sample_weight)
        model = self.model(data)
        settings = model.settings(data.objective, self.penalty_weight)
        if rule is not None:
            check_stopping(rule, data)
        self._set_fitted(fit_trees(model, data, settings, rule, share))
        self.selected_ = {"rule": rule or "fixed", "step": self.n_iter_, "objective": data.objective.name}
        return self

    def model(self, data: TrainingData[CategoricalColumns]) -> TreeModel:
        """The model family with this estimator's parameters."""
        names = [f.name for f in fields(TreeParameters) if f.name != "owner"]
        given = {name: getattr(self, name) for name in names}
        parameters = TreeParameters(**given, owner=type(self).__name__)
        return TreeModel(parameters, as_seed(self.random_state), data.x.categorical)

    def _chosen_objective(self, environment: Any, aux: Any) -> Objective:
        lightgbm()  # before anything else fails for want of it
        objective = super()._chosen_objective(environment, aux)
        check_objective(objective)
        threads(self.n_jobs)
        return objective

    def _feature_settings(self, present: Any) -> dict[str, Any]:
        return {"features": "numbers, gaps and categories"}

    def _outputs_of(self, columns: Columns) -> Floats:
        outputs: Floats = self.predictor_.logits(self.predictor_.table(self, columns.features))
        return outputs

    def to_onnx(self, path: str | os.PathLike[str]) -> Path:
        """Not for trees: `predictor_.members[0].booster` is a LightGBM Booster, which onnxmltools converts."""
        raise ValueError(
            "to_onnx writes networks, and this is a booster. onnxmltools.convert_lightgbm reads "
            "predictor_.members[0].booster; add predictor_.members[0].base to its scores."
        )

    def plot_features(self, ax: Any = None, n_features: int = 20) -> Any:
        """The features' shares in how far all of them move the scores (`feature_importances_`), the largest first.

        Parameters
        ----------
        ax : matplotlib Axes or None, default None
            Where to draw; None is a new figure.
        n_features : int, default 20
            How many to show.

        Returns
        -------
        matplotlib Axes
        """
        check_is_fitted(self, "predictor_")
        check_positive(n_features, "n_features")
        axes = plot_features(self.feature_importances_[None], self._feature_names(), int(n_features), ax)
        axes.set(xlabel="share in how far features move the score")
        return axes

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        return tags


class InvariantBoostingClassifier(BoostingEstimator, InvariantClassifier):
    """Gradient boosting whose risk has little total variation over environments, for two or more classes.

    Trees are grown by LightGBM (`pip install 'irmtv[boosting]'`) on the gradient of an invariant objective; see
    `docs/boosting.md`. Categories and missing values are read as they are.

    Parameters
    ----------
    objective : str, default "auto"
        "erm", "irm-tv-l1", "irm-tv-l2", "irmv1", "vrex", "mm-rex", "groupdro", or "minimax-tv-l1", "minimax-tv-l2" and
        "zin", which infer environments from aux; or a sum, "irm-tv-l1+vrex". "auto" is "vrex" where environments are
        given, which trees do best with (docs/boosting.md), "minimax-tv-l1" where only aux is.
    environment : str or None, default None
        The column of X that says where each row came from; it is taken out of X. Values may be passed to `fit`
        instead. Prediction does not need it.
    aux : str, list of str or None, default None
        Columns of X (numbers) that environments are inferred from, where none are given; taken out of X.
    penalty_weight : float, mapping or None, default 100.0
        lambda; a mapping has one number per part of a sum; None is the objective's own default. Any number is safe: a
        penalty never pulls harder than ten times the risk, three times for weights up to 100. Objectives without a
        penalty ignore it.
    n_estimators : int, default 100
        Rounds; each grows one tree, or one per class where there are more than two.
    learning_rate : float, default 0.1
        How much of a tree is added.
    num_leaves : int, default 31
        Leaves of a tree. Few leaves (4) follow a penalty better: large trees learn rows by heart.
    min_child_samples : int, default 20
        Rows that a leaf must have.
    warmup : int, float or None, default None
        Rounds (int), or share of the rounds (float), of plain boosting before the penalty acts. What these use is not
        easily unlearned by trees: None is 0, 1 for penalties on slopes, which need a tree, and a twentieth of all
        where environments are inferred in them.
    reserve : float, default 0.3
        Share of the rows of every environment that say how far environments are apart, where a penalty acts; trees are
        not grown on these. 0 asks the rows that trees are grown on, which they soon know by heart.
    objective_params : dict or None, default None
        Further hyper-parameters of the objective, such as {"measure": "uniform"}.
    lightgbm_params : dict or None, default None
        Further parameters of LightGBM, such as {"lambda_l2": 1.0, "feature_fraction": 0.8}.
    early_stopping : None, bool, "iid" or "worst-env", default None
        Keep the round with the lowest risk on held-out rows: over all of them ("iid", True) or in the worst
        environment. The CV estimators choose by invariance instead.
    validation_fraction : float, default 0.1
        Share of the rows of every environment that `early_stopping` holds out.
    min_rows : int, default 10
        Environments with fewer rows are pooled into one, with a warning.
    class_weight : dict, "balanced" or None, default None
        Weights of the classes, as in scikit-learn.
    n_jobs : int or None, default None
        Threads, and boosters that are grown at the same time on folds, with one thread each; None and -1 are all
        cores.
    random_state : int, RandomState or None, default None
        Of whatever is drawn: held-out rows, the start of inferred environments, LightGBM's samples.

    Attributes
    ----------
    classes_ : the labels.
    n_features_in_, feature_names_in_ : the features, without environment and aux columns.
    feature_importances_ : (D,) how far each feature moves the scores (the mean absolute value of its Shapley values
        over 500 training rows), as shares; they sum to 1.
    environments_, environment_weights_ : the training environments, and what each counts.
    history_ : DataFrame, one row per watched round and environment: risk, slope, accuracy, and on which rows.
    selected_ : which round was kept, and by which rule.
    n_iter_ : the round of the model that is kept.
    objective_ : the name of the objective that was trained.

    Examples
    --------
    >>> import numpy as np
    >>> from irmtv import InvariantBoostingClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, 600)
    >>> site = np.repeat(["a", "b"], 300)
    >>> right = np.where(rng.random(600) < np.repeat([0.95, 0.7], 300), y, 1 - y)  # agrees more often at one site
    >>> X = np.c_[y + rng.normal(size=600), 2 * right + 0.5 * rng.normal(size=600)]
    >>> few = {"num_leaves": 4, "n_estimators": 30, "n_jobs": 1, "random_state": 0}
    >>> plain = InvariantBoostingClassifier("erm", **few).fit(X, y)
    >>> clf = InvariantBoostingClassifier("vrex", **few).fit(X, y, environment=site)
    >>> bool(clf.feature_importances_[1] < plain.feature_importances_[1])
    True
    """

    def __init__(
        self,
        objective: str = "auto",
        *,
        environment: str | None = None,
        aux: str | Sequence[str] | None = None,
        penalty_weight: float | Mapping[str, float] | None = 100.0,
        n_estimators: int = 100,
        learning_rate: float = 0.1,
        num_leaves: int = 31,
        min_child_samples: int = 20,
        warmup: int | float | None = None,
        reserve: float = 0.3,
        objective_params: Mapping[str, Any] | None = None,
        lightgbm_params: Mapping[str, Any] | None = None,
        early_stopping: bool | str | None = None,
        validation_fraction: float = 0.1,
        min_rows: int = 10,
        class_weight: Mapping[Any, float] | str | None = None,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.objective = objective
        self.environment = environment
        self.aux = aux
        self.penalty_weight = penalty_weight
        self.n_estimators = n_estimators
        self.learning_rate = learning_rate
        self.num_leaves = num_leaves
        self.min_child_samples = min_child_samples
        self.warmup = warmup
        self.reserve = reserve
        self.objective_params = objective_params
        self.lightgbm_params = lightgbm_params
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.min_rows = min_rows
        self.class_weight = class_weight
        self.n_jobs = n_jobs
        self.random_state = random_state


class InvariantBoostingRegressor(BoostingEstimator, InvariantRegressor):
    """Gradient boosting whose squared error has little total variation over environments.

    y is standardised on the training rows; predictions are in the user's units. The parameters and attributes are those
    of :class:`InvariantBoostingClassifier`, without `class_weight` and `classes_`.

    Examples
    --------
    >>> import numpy as np
    >>> from irmtv import InvariantBoostingRegressor
    >>> rng = np.random.default_rng(0)
    >>> X, site = rng.normal(size=(300, 3)), np.repeat([0, 1, 2], 100)
    >>> X[::7, 2] = np.nan  # missing values are read as they are
    >>> y = 10 * X[:, 0] + 50 + site * X[:, 1] + rng.normal(size=300)
    >>> reg = InvariantBoostingRegressor("vrex", penalty_weight=1, num_leaves=4, n_jobs=1, random_state=0)
    >>> reg = reg.fit(X, y, environment=site)
    >>> reg.predict(X).shape, int(reg.feature_importances_.argmax())
    ((300,), 0)
    """

    _target: TargetKind = "one number"

    def __init__(
        self,
        objective: str = "auto",
        *,
        environment: str | None = None,
        aux: str | Sequence[str] | None = None,
        penalty_weight: float | Mapping[str, float] | None = 100.0,
        n_estimators: int = 100,
        learning_rate: float = 0.1,
        num_leaves: int = 31,
        min_child_samples: int = 20,
        warmup: int | float | None = None,
        reserve: float = 0.3,
        objective_params: Mapping[str, Any] | None = None,
        lightgbm_params: Mapping[str, Any] | None = None,
        early_stopping: bool | str | None = None,
        validation_fraction: float = 0.1,
        min_rows: int = 10,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.objective = objective
        self.environment = environment
        self.aux = aux
        self.penalty_weight = penalty_weight
        self.n_estimators = n_estimators
        self.learning_rate = learning_rate
        self.num_leaves = num_leaves
        self.min_child_samples = min_child_samples
        self.warmup = warmup
        self.reserve = reserve
        self.objective_params = objective_params
        self.lightgbm_params = lightgbm_params
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.min_rows = min_rows
        self.n_jobs = n_jobs
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = False
        return tags


class BoostingPathEstimator(PathEstimator, BoostingEstimator):
    """The part of the CV estimators of trees that does not depend on what is predicted."""

    verbose = 0
    _path = PATH
    _less_time = "Fewer n_estimators, penalty_weights or folds (cv) take less time."

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if isinstance(self.num_leaves, str) and self.num_leaves != "auto":
            raise ValueError(f"num_leaves must be 'auto' or a whole number of at least 2. Got {self.num_leaves!r}.")

    def model(self, data: TrainingData[CategoricalColumns], keep_outputs: KeepOutputs = False) -> TreeModel:
        model = BoostingEstimator.model(self, data)
        return replace(model, leaves_from=LEAVES) if self.num_leaves == "auto" else model

    def _fitted_choice(self, data: TrainingData[Any], search: Search, *on: Any) -> FittedModel:
        assert isinstance(search.path, TreePath)
        if not self.refit:
            return fold_trees(data, search.path, search.step)
        return refit_trees(data, search.path, search.step, blocks_alone(*on))

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
    time_ordered : bool or "auto", default "auto"
        Whether environments are times, which `new_environment_` then has in their order. It takes four or more. "auto":
        they are where five or more labels are all dates, months ("2011-01"), quarters ("2011Q1") or years, and the rule
        leaves environments out. True sorts numbers as numbers and text as text, "batch 10" after "batch 9".
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
        time_ordered: bool | str = "auto",
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
        self.time_ordered = time_ordered
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
        time_ordered: bool | str = "auto",
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
        self.time_ordered = time_ordered
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
