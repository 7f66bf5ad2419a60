"""What all estimators share that choose among candidates: the three steps of `fit`, and what is told of the choice."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import wraps
from inspect import signature
from types import MappingProxyType
from typing import Any, ParamSpec

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted

from irmtv.core.messages import did_you_mean, users_stacklevel
from irmtv.core.progress_bar import ProgressBar
from irmtv.data.blocks import BlockSource
from irmtv.data.training import TrainingData, WholeRows
from irmtv.estimators.base import InvariantEstimator
from irmtv.estimators.new_environment import expected_score, left_out_table, what_was_left_out
from irmtv.estimators.parameters import grid_axes, path_combinations
from irmtv.estimators.plots import plot_path
from irmtv.models.base import FittedModel, KeepOutputs, Report
from irmtv.models.search import RULES, Search, search_model
from irmtv.objectives.base import Objective

P = ParamSpec("P")
PATH = (0.0, 1.0, 10.0, 100.0, 1e3, 1e4)
# parameters of a single model that have no place here, and what serves instead
OF_ONE_MODEL = {
    "penalty_weight": "it chooses among penalty_weights=[...]",
    "early_stopping": "it chooses the step too, by rule=...",
    "validation_fraction": "it holds every row out once, in cv=... folds",
    "warm_start": "it starts anew, on every fold",
    "start": "it tries more than one, or those of grid={'start': [...]}",
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
                if name == "start" and not has_it:  # trees: no parameter of theirs at all
                    continue
                raise TypeError(
                    f"{kind} has no parameter {name}: {instead}. Got {name}={parameters[name]!r}. Leave it out"
                    + (f", or use {single}({name}=...)." if has_it else ".")
                )
        init(*args, **parameters)

    return checked


class PathEstimator(InvariantEstimator):
    """The part of the CV estimators that does not depend on what is predicted."""

    grid: Any = None  # networks alone have one
    refit: bool
    _path: tuple[float, ...] = PATH  # where penalty_weights is None
    new_environment_: pd.DataFrame | None = None
    expected_score_: dict[str, Any] | None = None
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
        self,
        X: Any,
        y: Any,
        *,
        environment: Any = None,
        aux: Any = None,
        sample_weight: Any = None,
        whole: WholeRows | None = None,
    ) -> TrainingData[Any]:
        """The first step of `fit`: check parameters and rows, and make training data of them.

        Parameters
        ----------
        X, y, environment, aux, sample_weight : as in `fit`.
        whole : WholeRows or None, default None
            The rows are a sample of others, from which units, classes and environments are taken; `environment` are
            then codes into its names.
        """
        self._check_parameters()
        return self._read(X, y, environment, aux, sample_weight, whole=whole)

    def search(
        self,
        data: TrainingData[Any],
        *,
        report: Report | None = None,
        erm_beside: bool = False,
        keep_outputs: KeepOutputs = False,
    ) -> Search:
        """The second step of `fit`: train the path on every fold, and choose.

        Parameters
        ----------
        data : from `read_data`.
        report : callable or None, default None
            Called with a `Progress`.
        erm_beside : bool, default False
            Have ERM among the candidates also where the objective has no weight of 0 and the rule does not need it.
        keep_outputs : bool or "left-out", default False
            Keep what `Search.held_out_outputs` needs; "left-out": also the outputs in environments that were left out,
            so that `irmtv.estimators.new_environment.left_out_table` has any metric.

        Returns
        -------
        Search
            The candidates, their records, and the choice.
        """
        self._settle(data, report)
        return self._search(data, report, erm_beside, keep_outputs)

    def _search(
        self,
        data: TrainingData[Any],
        report: Report | None,
        erm_beside: bool = False,
        keep_outputs: KeepOutputs = False,
    ) -> Search:
        """The search of the family that was settled on."""
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
            beside=self._beside(data),
            time_ordered="auto" if isinstance(self.time_ordered, str) else bool(self.time_ordered),
            aux_left_out=True,
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
        return self._fit_choice(data, search)

    def fit_choice_on(
        self,
        source: BlockSource,
        data: TrainingData[Any],
        search: Search,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        process_group: Any = None,
    ) -> Any:
        """The same on rows that come in blocks: for tables that are larger than the memory.

        Linear models by Newton's method have the coefficients that all rows in memory would give. Networks take
        mini-batches of the blocks. Trees keep the bins of all rows. What is measured on the way (`history_`, the
        environments that are inferred) is of the sample.

        Parameters
        ----------
        source : all rows, read in passes (:class:`irmtv.data.blocks.BlockSource`).
        data : a sample of them, scaled as they are.
        search : from `search` on the sample.
        checkpoint : a file from which a training that was stopped continues. Not of trees.
        process_group : a group of torch.distributed whose processes each have a source of their own, and the same
            sample and search. Not of trees.

        Returns
        -------
        self
        """
        if not self.refit:
            raise ValueError(
                "refit must be True to train on all rows of a source. Got refit=False, models of the folds."
            )
        return self._fit_choice(data, search, source, {"checkpoint": checkpoint, "process_group": process_group})

    def _fit_choice(
        self,
        data: TrainingData[Any],
        search: Search,
        source: BlockSource | None = None,
        how: Mapping[str, Any] = MappingProxyType({}),
    ) -> Any:
        self._describe(search)
        self._expect(data, search)
        self._set_fitted(self._fitted_choice(data, search, source, how))
        self.selected_["step"] = self.n_iter_
        return self

    # ---- what networks and trees do differently --------------------------------------------------------------------

    def model(self, data: TrainingData[Any], keep_outputs: KeepOutputs = False) -> Any:
        """The model family with this estimator's parameters."""
        raise NotImplementedError

    def _settle(self, data: TrainingData[Any], report: Report | None) -> None:
        """What is chosen before the path, by ERM alone."""

    def _beside(self, data: TrainingData[Any]) -> list[tuple[Objective, list[dict[str, Any]]]]:
        """Other objectives whose candidates stand for choice too."""
        return []

    def _fitted_choice(
        self, data: TrainingData[Any], search: Search, source: BlockSource | None, how: Mapping[str, Any]
    ) -> FittedModel:
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
        is_auto = isinstance(self.time_ordered, str) and self.time_ordered == "auto"
        if not is_auto and not isinstance(self.time_ordered, (bool, np.bool_)):
            raise ValueError(
                f"time_ordered must be 'auto', True or False. Got {self.time_ordered!r}. Use True where these are "
                "times, False where they are not; 'auto' looks whether their labels are dates or years."
            )
        check_mapping(
            self.objective_params, "objective_params", "hyper-parameters of the objective", "{'measure': 'uniform'}"
        )
        check_mapping(self.rule_options, "rule_options", "options of rule 'invariance'", "{'level': 0.01}")
        if "penalty_weight" in (self.objective_params or {}):
            raise ValueError("objective_params must not hold 'penalty_weight': the path is penalty_weights=[...].")

    def _keeps_labels(self, objective: Objective) -> bool:
        """Labels serve the rule also where training itself looks for environments, among training rows alone."""
        return objective.infers == "rows" or objective.finds_clusters or super()._keeps_labels(objective)

    def _combinations(self, data: TrainingData[Any]) -> list[dict[str, Any]]:
        """The grid: penalty weights, 0 among them, and whatever else may differ inside one batch."""
        grid, params, objective = dict(self.grid or {}), self.objective_params or {}, data.objective
        axes = grid_axes(grid, params, objective, set(self.get_params(deep=False)))
        return path_combinations(objective, self.penalty_weights, self._default_path(data), axes)

    def _default_path(self, data: TrainingData[Any]) -> tuple[float, ...]:
        """Penalty weights, where none are given."""
        return self._path

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

    def _expect(self, data: TrainingData[Any], search: Search) -> None:
        """What to expect in a new environment, where three or more were there to be left out; of times, at a later
        one."""
        metric = "rmse" if data.task.loss.name == "squared" else "accuracy"
        table = left_out_table(data, search, metric)
        for name in ("new_environment_", "expected_score_"):  # of an earlier call
            self.__dict__.pop(name, None)
        if table is not None:
            self.new_environment_ = table
            self.expected_score_ = {**expected_score(table, metric), "left_out": what_was_left_out(search)}

    def plot_path(self, ax: Any = None) -> Any:
        """Held-out risk of every penalty weight at its best step, overall and in the worst environment.

        The choice is marked by stars: a rule that looks at invariance need not take the lowest risk.
        """
        check_is_fitted(self, "predictor_")
        results: pd.DataFrame = self.cv_results_
        return plot_path(results, ax)


def check_mapping(value: Any, parameter: str, of: str, example: str) -> None:
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{parameter} must be a dict of {of}, or None. Got {value!r}. Use {parameter}={example}.")


def blocks_alone(source: BlockSource | None, how: Mapping[str, Any]) -> BlockSource | None:
    """The rows to train on, of a model family that is trained at a stretch in one process."""
    given = [name for name, value in how.items() if value is not None]
    if given:
        raise ValueError(f"{given[0]} must be None for trees. Got {how[given[0]]!r}; leave it out.")
    return source
