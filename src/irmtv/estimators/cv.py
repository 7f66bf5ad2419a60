"""Estimators that choose their penalty weight themselves: a whole path in one batch, chosen without the test set."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted

from irmtv.core.messages import check_positive, did_you_mean, users_stacklevel
from irmtv.data.training import TrainingData
from irmtv.engine.progress_bar import ProgressBar
from irmtv.estimators.base import InvariantEstimator
from irmtv.estimators.classifier import InvariantClassifier
from irmtv.estimators.parameters import as_seed, grid_axes, path_combinations
from irmtv.estimators.plots import plot_path
from irmtv.estimators.regressor import InvariantRegressor
from irmtv.models.base import FittedModel, Report
from irmtv.models.networks.fit import fitted_network, refit_network
from irmtv.models.networks.model import NetworkModel, NetworkPath
from irmtv.models.networks.settings import training_settings
from irmtv.models.search import RULES, Search, search_model
from irmtv.objectives.base import Objective

P = ParamSpec("P")
PATH = (0.0, 1.0, 10.0, 100.0, 1e3, 1e4)
OF_ADAM = {"learning_rate", "warmup", "environment_learning_rate"}  # a grid over these is for Adam
L2 = (0.0, 3e-4, 3e-3)  # what l2="auto" chooses from
# parameters of a single model that have no place here, and what serves instead
OF_ONE_MODEL = {
    "penalty_weight": "it chooses among penalty_weights=[...]",
    "early_stopping": "it chooses the step too, by rule=...",
    "validation_fraction": "it holds every row out once, in cv=... folds",
    "warm_start": "it starts anew, on every fold",
}


def reject_single_model_params(init: Callable[P, None]) -> Callable[P, None]:
    """A constructor that refuses parameters of a single model and says what to use instead; its signature stays."""

    @wraps(init)
    def checked(*args: P.args, **parameters: P.kwargs) -> None:
        for name, instead in OF_ONE_MODEL.items():
            if name in parameters:
                kind = type(args[0]).__name__
                single = kind.removesuffix("CV")
                of_one = next((c for c in type(args[0]).__mro__ if c.__name__ == single), None)
                has_it = of_one is not None and name in signature(of_one).parameters
                raise TypeError(
                    f"{kind} has no parameter {name}: {instead}. Got {name}={parameters[name]!r}. Leave it out"
                    + (f", or use {single}({name}=...)." if has_it else ".")
                )
        init(*args, **parameters)

    return checked


class PathEstimator(InvariantEstimator):
    """The part of the CV estimators that does not depend on what is predicted."""

    grid: Any = None  # networks alone have one
    _path: tuple[float, ...] = PATH  # where penalty_weights is None
    _less_time = (
        "Fewer max_steps, penalty_weights, folds (cv) or n_seeds take less time; verbose=1 shows how much is left."
    )

    def fit(self, X: Any, y: Any, *, environment: Any = None, aux: Any = None, sample_weight: Any = None) -> Any:
        """Train the path on every fold, choose, and train the choice on all rows.

        Parameters
        ----------
        X : DataFrame (pandas, polars), array or sparse matrix, (N, D)
            Numbers. Columns that the constructor names as environment and aux are taken out. A sparse matrix is made
            dense, here with a warning, in predictions without.
        y : (N,), of a regressor also (N, T)
            What is to be predicted: labels of two or more classes, or numbers.
        environment : (N,) labels, default None
            Where each row came from, where no column of X says so.
        aux : (N,) or (N, A) numbers, default None
            What environments may be inferred from, where no columns of X say so.
        sample_weight : (N,), default None
            What each row counts, in training and in every measurement that the choice rests on.

        Returns
        -------
        self
            Fitted. After Ctrl-C while the path is trained there is nothing to keep: it is not fitted, and
            KeyboardInterrupt goes on. After Ctrl-C while the choice is trained on all rows it is fitted as it was at
            that step, with a warning; `selected_["step"]` and `n_iter_` tell which.
        """
        try:
            return self._fit(X, y, environment, aux, sample_weight)
        except KeyboardInterrupt:
            self.__dict__.pop("predictor_", None)  # of an earlier call: what was read of these rows is not its own
            raise KeyboardInterrupt(
                f"{type(self).__name__} was interrupted before it had chosen and is not fitted. {self._less_time}"
            ) from None

    def _fit(self, X: Any, y: Any, environment: Any, aux: Any, sample_weight: Any) -> Any:
        data = self.read_data(X, y, environment=environment, aux=aux, sample_weight=sample_weight)
        bar = ProgressBar(self._bar_label(data)) if self.verbose else nullcontext()
        with bar as report:
            search = self.search(data, report=report)
        return self.fit_choice(data, search)

    # ---- the three steps of `fit`, for those who want to look between them ---------------------------------------

    def read_data(
        self, X: Any, y: Any, *, environment: Any = None, aux: Any = None, sample_weight: Any = None
    ) -> TrainingData[Any]:
        """The first step of `fit`: check parameters and rows, and make training data of them."""
        self._check_parameters()
        return self._read(X, y, environment, aux, sample_weight)

    def search(
        self,
        data: TrainingData[Any],
        *,
        report: Report | None = None,
        erm_beside: bool = False,
        keep_outputs: bool = False,
    ) -> Search:
        """The second step of `fit`: train the path on every fold, and choose.

        Parameters
        ----------
        data : from `read_data`.
        report : callable or None, default None
            Called with a `Progress`.
        erm_beside : bool, default False
            Have ERM among the candidates also where the objective has no weight of 0 and the rule does not need it.
        keep_outputs : bool, default False
            Keep what `Search.held_out_outputs` needs.

        Returns
        -------
        Search
            The candidates, their records, and the choice.
        """
        combinations = self._combinations(data)
        model = self.model(data, keep_outputs)
        return search_model(
            model,
            data.task,
            data.objective,
            combinations,
            rule=self.rule,
            n_folds=self.cv,
            seed=model.seed,
            options=self.rule_options,
            erm_beside=erm_beside,
            report=report,
        )

    def fit_choice(self, data: TrainingData[Any], search: Search) -> Any:
        """The last step of `fit`: train what was chosen on all rows (or keep the models of the folds).

        Parameters
        ----------
        data : the rows to train on; they may be more than those of the search.
        search : from `search`, maybe with another choice among its candidates.

        Returns
        -------
        self
        """
        self._describe(search)
        self._set_fitted(self._fitted_choice(data, search))
        self.selected_["step"] = self.n_iter_
        return self

    # ---- what networks and trees do differently --------------------------------------------------------------------

    def model(self, data: TrainingData[Any], keep_outputs: bool = False) -> Any:
        """The model family with this estimator's parameters."""
        raise NotImplementedError

    def _fitted_choice(self, data: TrainingData[Any], search: Search) -> FittedModel:
        raise NotImplementedError

    def _tuned(self, search: Search) -> dict[str, Any]:
        """Hyper-parameters that were chosen before the path, by ERM."""
        raise NotImplementedError

    def _bar_label(self, data: TrainingData[Any]) -> str:
        return f"{type(self).__name__}, {len(self._combinations(data))} x {self.cv}"

    def _check_parameters(self) -> None:
        """Check what does not depend on the rows; `search` checks the rest."""
        if self.rule not in RULES:
            raise ValueError(f"rule must be one of {list(RULES)}. Got {self.rule!r}.{did_you_mean(self.rule, RULES)}")
        if isinstance(self.cv, bool) or not isinstance(self.cv, (int, np.integer)) or self.cv < 2:
            raise ValueError(f"cv must be a number of folds, 2 or more. Got {self.cv!r}.")
        _check_mapping(
            self.objective_params, "objective_params", "hyper-parameters of the objective", "{'measure': 'uniform'}"
        )
        _check_mapping(self.rule_options, "rule_options", "options of rule 'invariance'", "{'level': 0.01}")
        if "penalty_weight" in (self.objective_params or {}):
            raise ValueError("objective_params must not hold 'penalty_weight': the path is penalty_weights=[...].")

    def _keeps_labels(self, objective: Objective) -> bool:
        """Labels serve the rule also where training itself looks for environments, among training rows alone."""
        return objective.infers == "rows" or objective.finds_clusters or super()._keeps_labels(objective)

    def _combinations(self, data: TrainingData[Any]) -> list[dict[str, Any]]:
        """The grid: penalty weights, 0 among them, and whatever else may differ inside one batch."""
        grid, params, objective = dict(self.grid or {}), self.objective_params or {}, data.objective
        axes = grid_axes(grid, params, objective, set(self.get_params(deep=False)))
        return path_combinations(objective, self.penalty_weights, self._path, axes)

    def _describe(self, search: Search) -> None:
        """Attributes that tell of the search, and a warning where the choice is bad news."""
        choice = search.choice
        self.cv_results_ = search.table()
        self.best_params_ = {**search.combination, **self._tuned(search)}
        is_erm = bool(search.records.reference[choice.index])
        lowest = f"the lowest risk by {self.rule!r} among {len(search.candidates)} candidates"
        self.selected_ = {
            "rule": self.rule,
            "outcome": choice.outcome,
            "message": choice.message or lowest + (": ERM." if is_erm else "."),
            "objective": search.path.objective.name,
            "step": search.step,
            **self.best_params_,
            "figures": dict(choice.figures),
        }
        pays_at = choice.figures.get("pays_at")
        dear = choice.outcome == "invariant-found" and pays_at is not None and pays_at > 1
        if choice.outcome == "none-found" or dear:
            warnings.warn(f"{type(self).__name__}: {choice.message}", UserWarning, stacklevel=users_stacklevel())

    def plot_path(self, ax: Any = None) -> Any:
        """Held-out risk of every penalty weight at its best step, overall and in the worst environment.

        The choice is marked by stars: a rule that looks at invariance need not take the lowest risk.
        """
        check_is_fitted(self, "predictor_")
        results: pd.DataFrame = self.cv_results_
        return plot_path(results, ax)


class NetworkPathEstimator(PathEstimator):
    """The part of the CV estimators of networks that does not depend on what is predicted."""

    l2: Any  # a number, or "auto"

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_positive(self.n_seeds, "n_seeds")
        if isinstance(self.l2, str) and self.l2 != "auto":
            raise ValueError(f"l2 must be 'auto' or a finite number of at least 0. Got {self.l2!r}.")
        _check_mapping(
            self.grid, "grid", "hyper-parameters and lists of their values", "{'learning_rate': [0.01, 0.1]}"
        )

    def read_data(
        self, X: Any, y: Any, *, environment: Any = None, aux: Any = None, sample_weight: Any = None
    ) -> TrainingData[Any]:
        data = super().read_data(X, y, environment=environment, aux=aux, sample_weight=sample_weight)
        objective = data.objective
        if not self.refit and (objective.reads_aux or objective.infers == "rows" or objective.finds_clusters):
            raise ValueError(
                f"refit must be True for objective {objective.name!r}, which keeps something of its own training rows "
                "that the models of the folds do not share. Got refit=False."
            )
        return data

    def model(self, data: TrainingData[Any], keep_outputs: bool = False) -> NetworkModel:
        varied = {name for c in self._combinations(data) for name in c}
        settings = self._settings(data)
        seed = as_seed(self.random_state)
        return NetworkModel(
            {name: value for name, value in settings.items() if name not in varied},
            seeds=tuple(seed + k for k in range(self.n_seeds)),
            l2_from=L2 if self._chooses_l2() else (),
            keep_states=keep_outputs or not self.refit,
        )

    def _combinations(self, data: TrainingData[Any]) -> list[dict[str, Any]]:
        """With classifier="auto": of ERM once, of every penalty weight with each of `_kinds`."""
        every = super()._combinations(data)
        kinds = self._kinds(data)
        if not kinds:
            return every
        weights = data.objective.weights
        return [
            {**c, **kind} for k, kind in enumerate(kinds) for c in every if k == 0 or any(weights(c["penalty_weight"]))
        ]

    def _kinds(self, data: TrainingData[Any]) -> list[dict[str, Any]]:
        """What stands for choice beside the penalty weight: classifiers, and of Newton's method starts."""
        of_slopes = any("slope" in p.uses for p in data.objective.penalties)
        given = dict.fromkeys(("classifier", "start")).keys() & set(self.grid or {})
        if self.classifier != "auto" or given or not of_slopes or self.module is not None:
            return []
        if self._settings(data)["solver"] == "newton":
            return [
                {"classifier": "scalar", "start": "erm"},
                {"classifier": "vector", "start": "erm"},
                {"classifier": "vector", "start": "equal-risks"},
            ]
        return []

    def _settings(self, data: TrainingData[Any]) -> dict[str, Any]:
        """For `train`, of all candidates."""
        parameters = self._parameters()
        if isinstance(self.l2, str):
            parameters = replace(parameters, l2=0.0)  # until it is chosen
        if self.classifier == "auto":
            parameters = replace(parameters, classifier="scalar")
        words = any(isinstance(w, str) for w in _listed(self.penalty_weights))  # weights that follow Phi
        if self.solver == "auto" and (words or OF_ADAM & set(self.grid or {})):
            parameters = replace(parameters, solver="adam")
        return training_settings(parameters, data.objective, data.task)

    def _chooses_l2(self) -> bool:
        return isinstance(self.l2, str) and "l2" not in (self.grid or {})

    def _fitted_choice(self, data: TrainingData[Any], search: Search) -> FittedModel:
        assert isinstance(search.path, NetworkPath)
        if not self.refit:
            return fitted_network(*search.fold_models(), replace(data, objective=search.path.objective))
        return refit_network(data, search.path, search.step, label=type(self).__name__, verbose=bool(self.verbose))

    def _tuned(self, search: Search) -> dict[str, Any]:
        assert isinstance(search.path, NetworkPath)
        return {"l2": search.path.batch.settings["l2"]} if self._chooses_l2() else {}

    def _bar_label(self, data: TrainingData[Any]) -> str:
        seeds = f" x {self.n_seeds} seeds" if self.n_seeds > 1 else ""
        return super()._bar_label(data) + seeds


def _listed(weights: Any) -> Sequence[Any]:
    return weights if isinstance(weights, (list, tuple)) else ()


def _check_mapping(value: Any, parameter: str, of: str, example: str) -> None:
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{parameter} must be a dict of {of}, or None. Got {value!r}. Use {parameter}={example}.")


class InvariantClassifierCV(NetworkPathEstimator, InvariantClassifier):
    """InvariantClassifier over a path of penalty weights, chosen by cross-fitting on the training rows.

    All penalty weights are trained on all folds in one tensor program. Every weight at every one of 40 steps is a
    candidate, measured on rows that its models have not seen; ERM is among them. The rule
    "invariance" asks three questions in turn, and `selected_` holds the answer: is ERM invariant
    already ("erm-invariant": it is kept)? If not, is another candidate ("invariant-found": it is taken, with its price
    in held-out risk, and a warning where the price is high)? If not, ERM is kept, with a warning
    ("none-found").

    Parameters
    ----------
    objective : str, default "auto"
        As for :class:`InvariantClassifier`. Where it has no penalty weight ("groupdro", "lff"), its steps and `grid`
        are chosen among, with ERM beside them for the rule "invariance".
    penalty_weights : sequence or None, default None
        The path; None is 0, 1, 10, ..., 1e4. 0 (ERM) is always among them. For a sum of penalties a
        number is the weight of every part, a mapping by name gives each its own; "adaptive", "adaptive-exact" and
        "learned" may stand in the list too.
    rule : {"invariance", "iid", "worst-env", "leave-one-env-out"}, default "invariance"
        How to choose among all penalty weights and steps; see :func:`irmtv.selection.choose`. "invariance" and
        "worst-env" need two environments, given or inferred from aux; "leave-one-env-out" three that are given.
    rule_options : dict or None, default None
        Options of the rule "invariance"; see :func:`irmtv.selection.invariance`.
    grid : dict or None, default None
        More hyper-parameters to choose, name -> values, of those that may differ between the runs of one batch, such as
        learning_rate, l2, warmup. For others use scikit-learn's GridSearchCV.
    cv : int, default 5
        Folds; each has its share of every environment and, as far as there are rows, of every class.
    n_seeds : int, default 1
        Seeds of every model, of the folds and of the choice. Each combination is trained with all of them on every
        fold, in the same batch, and judged by the mean of their held-out statistics, with the standard errors of one
        model: more seeds are not more rows. The choice is then trained on all rows with each, and the mean of their
        outputs predicts. K seeds take up to K times as long, and make the choice depend less on chance.
    refit : bool, default True
        False keeps the models of the folds, of all seeds, and the mean of their outputs predicts.
    l2 : float or "auto", default "auto"
        "auto" takes that of 0, 3e-4 and 3e-3 with which ERM has the lowest held-out risk, for the
        whole path: a network that overfits before the penalty acts has nothing invariant left to find. It does so for
        every objective; with `grid={"l2": [...]}` it is chosen by the rule instead.
    **others
        As for :class:`InvariantClassifier`.

    Attributes
    ----------
    selected_ : dict
        The rule, its outcome ("erm-invariant", "invariant-found" or "none-found"; None for other rules), the message
        that says why, the objective and the step, the hyper-parameters, and the figures it rests on.
    best_params_ : dict
        The chosen hyper-parameters.
    cv_results_ : DataFrame
        One row per candidate: hyper-parameters, step, held-out risk overall and in the worst environment, p-values of
        equal slopes and of equal risks, whether it is ERM, and whether it was selected. Means over
        seeds.

    Examples
    --------
    >>> from irmtv import InvariantClassifierCV
    >>> from irmtv.datasets import make_simulation
    >>> rows = make_simulation(1000, (0.999, 0.7), 0.8, random_state=0).train
    >>> clf = InvariantClassifierCV(hidden=(), penalty_weights=[100, 1e4], max_steps=400, learning_rate=0.02,
    ...                             l2=0.0, random_state=0)
    >>> clf = clf.fit(rows.x.numpy(), rows.y.numpy(), environment=rows.environment.numpy())
    >>> clf.selected_["outcome"], clf.best_params_["penalty_weight"] > 0
    ('invariant-found', True)
    """

    @reject_single_model_params
    def __init__(
        self,
        objective: str = "auto",
        *,
        environment: str | None = None,
        aux: str | Sequence[str] | None = None,
        hidden: Sequence[int] = (32,),
        penalty_weights: Sequence[float | str | Mapping[str, float]] | None = None,
        rule: str = "invariance",
        rule_options: Mapping[str, Any] | None = None,
        grid: Mapping[str, Sequence[Any]] | None = None,
        cv: int = 5,
        n_seeds: int = 1,
        refit: bool = True,
        module: Any = None,
        classifier: str = "auto",
        objective_params: Mapping[str, Any] | None = None,
        warmup: int | float | None = 0.5,
        max_steps: int = 2000,
        learning_rate: float = 0.02,
        l2: float | str = "auto",
        batch_size: int | str | None = "auto",
        solver: str = "auto",
        min_rows: int = 10,
        class_weight: Mapping[Any, float] | str | None = None,
        device: str = "cpu",
        dtype: str = "float32",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            objective,
            environment=environment,
            aux=aux,
            hidden=hidden,
            module=module,
            classifier=classifier,
            objective_params=objective_params,
            warmup=warmup,
            max_steps=max_steps,
            learning_rate=learning_rate,
            l2=0.0,
            batch_size=batch_size,
            solver=solver,
            min_rows=min_rows,
            class_weight=class_weight,
            device=device,
            dtype=dtype,
            random_state=random_state,
            verbose=verbose,
        )
        self.l2 = l2
        self.penalty_weights = penalty_weights
        self.rule = rule
        self.rule_options = rule_options
        self.grid = grid
        self.cv = cv
        self.n_seeds = n_seeds
        self.refit = refit


class InvariantRegressorCV(NetworkPathEstimator, InvariantRegressor):
    """InvariantRegressor over a path of penalty weights, chosen by cross-fitting on the training rows.

    The parameters and attributes are those of :class:`InvariantClassifierCV`, without `class_weight`. Risks are of
    standardised y.

    Examples
    --------
    >>> import numpy as np
    >>> from irmtv import InvariantRegressorCV
    >>> rng = np.random.default_rng(0)
    >>> X, site = rng.normal(size=(300, 3)), np.repeat(["a", "b"], 150)
    >>> y = 10 * X[:, 0] + 50 + rng.normal(size=300)  # the same at both sites
    >>> reg = InvariantRegressorCV(hidden=(), max_steps=400, learning_rate=0.02, l2=0.0, random_state=0)
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
        hidden: Sequence[int] = (32,),
        penalty_weights: Sequence[float | str | Mapping[str, float]] | None = None,
        rule: str = "invariance",
        rule_options: Mapping[str, Any] | None = None,
        grid: Mapping[str, Sequence[Any]] | None = None,
        cv: int = 5,
        n_seeds: int = 1,
        refit: bool = True,
        module: Any = None,
        classifier: str = "auto",
        objective_params: Mapping[str, Any] | None = None,
        warmup: int | float | None = 0.5,
        max_steps: int = 2000,
        learning_rate: float = 0.02,
        l2: float | str = "auto",
        batch_size: int | str | None = "auto",
        solver: str = "auto",
        min_rows: int = 10,
        device: str = "cpu",
        dtype: str = "float32",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            objective,
            environment=environment,
            aux=aux,
            hidden=hidden,
            module=module,
            classifier=classifier,
            objective_params=objective_params,
            warmup=warmup,
            max_steps=max_steps,
            learning_rate=learning_rate,
            l2=0.0,
            batch_size=batch_size,
            solver=solver,
            min_rows=min_rows,
            device=device,
            dtype=dtype,
            random_state=random_state,
            verbose=verbose,
        )
        self.l2 = l2
        self.penalty_weights = penalty_weights
        self.rule = rule
        self.rule_options = rule_options
        self.grid = grid
        self.cv = cv
        self.n_seeds = n_seeds
        self.refit = refit
