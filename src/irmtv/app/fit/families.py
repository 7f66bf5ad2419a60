"""Model families that `fit` compares. Each searches a path of penalty weights on the same held-out rows."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from irmtv.app.fit.sample import drawn, some_rows
from irmtv.app.fit.summary import FeaturesKind
from irmtv.app.io.stream import Environments, Reading, Sample
from irmtv.core.progress_bar import ProgressBar
from irmtv.core.types import Runs
from irmtv.data.training import TrainingData, WholeRows
from irmtv.estimators import (
    InvariantBoostingClassifierCV,
    InvariantBoostingRegressorCV,
    InvariantClassifierCV,
    InvariantRegressorCV,
)
from irmtv.models.base import KeepOutputs, Model, TrainedPath
from irmtv.models.erm import ALIKE
from irmtv.models.importances import network_importances
from irmtv.models.networks.fit import train_network
from irmtv.models.networks.model import NetworkPath
from irmtv.models.networks.predictor import Predictor, keep
from irmtv.models.networks.settings import DEFAULT_HIDDEN, NetworkParameters, batch_size_for, training_settings
from irmtv.models.search import Search, search_model
from irmtv.models.search import search as search_networks
from irmtv.models.trees.fit import fit_trees
from irmtv.models.trees.model import TreePath
from irmtv.models.trees.predictor import TreePredictor
from irmtv.objectives import OBJECTIVES

Floats = npt.NDArray[np.float64]
HIDDEN = DEFAULT_HIDDEN
SEARCHED_ROWS = 200_000  # at most as many rows are searched; the choice is trained on all
SEARCH_BYTES, FEWEST_SEARCHED = 450, 20_000  # a number of a row in the search; rows, however small the memory is
COMPARED_ROWS = 50_000  # at most as many rows serve to compare families by ERM
BOTH_ROWS = 20_000  # up to which linear models and networks both have a path
ERM = OBJECTIVES["erm"]


class Family(ABC):
    """One model family, with the rows as it reads them."""

    reads: ClassVar[Reading]
    _erm: Any = None  # what `erm_predictor` has made

    def __init__(self, estimator: Any, table: Sequence[Any], whole: WholeRows | None = None) -> None:
        """`whole`: the table is a sample of these rows, on which all is done but to train the choice."""
        features, target, environment, aux = table
        self.estimator = estimator  # an Invariant*CV, which is fitted in the end
        self.all_rows: TrainingData[Any] = estimator.read_data(
            features, target, environment=environment, aux=aux, whole=whole
        )
        self.rows: TrainingData[Any] = self.all_rows  # those of the search
        if whole is None:
            self.rows = some_rows(self.all_rows, SEARCHED_ROWS, estimator.random_state)

    @property
    @abstractmethod
    def name(self) -> str:
        """In a word, once it was searched: "linear", "mlp" or "trees"."""

    @property
    @abstractmethod
    def features_kind(self) -> FeaturesKind:
        """What `feature_weights` are."""

    @abstractmethod
    def describe(self, path: TrainedPath) -> str:
        """The family and its size: "mlp 32" (hidden units), "trees (12 leaves)"."""

    @abstractmethod
    def erm_risk(self, bar: ProgressBar | None, share: float) -> float:
        """Of ERM on held-out rows: how this family suits the rows, before any penalty."""

    def search(self, bar: ProgressBar | None, share: float, keep_outputs: KeepOutputs = True) -> Search:
        """The whole path on every fold, with what the rule chooses from it. `share` is that of the bar."""
        start_stage(bar, f"penalty path, {self.name}", share)
        search: Search = self.estimator.search(self.rows, report=bar, erm_beside=True, keep_outputs=keep_outputs)
        return search

    def erm_predictor(self, search: Search) -> Any:
        """ERM, stopped where it did best on held-out rows, trained on all rows of the search; the choice where that is
        ERM."""
        if search.candidates[search.erm] == search.chosen:
            return self.estimator.predictor_
        if self._erm is None:
            self._erm = self._train_erm(search)
        return self._erm

    @abstractmethod
    def _train_erm(self, search: Search) -> Any: ...

    def erm_estimator(self, search: Search) -> Any:
        """The fitted estimator with ERM in place of the choice."""
        estimator = copy.copy(self.estimator)
        estimator.predictor_ = self.erm_predictor(search)
        return estimator

    @abstractmethod
    def feature_weights(self, search: Search) -> tuple[Floats, Floats]:
        """Of ERM and of the fitted choice: (D,) each, shares of all absolute weights."""

    @abstractmethod
    def settings(self, path: TrainedPath) -> dict[str, Any]:
        """How it was trained, for the summary."""

    def solver(self, path: TrainedPath) -> str | None:
        """ "newton" or "adam", of linear models and networks."""
        return None


class Networks(Family):
    """A linear model or a network; of "auto" the one with which ERM predicts better.

    Parameters
    ----------
    model : "linear", "mlp", or "auto" for the better of the two.
    task : "binary", "multiclass" or "regression".
    table : features, target, environment, aux.
    steps : of training.
    parameters : further parameters of the estimator.
    whole : of all rows, where the table is a sample of them.
    """

    reads = "numbers"

    def __init__(
        self,
        model: str,
        task: str,
        table: Sequence[Any],
        *,
        steps: int,
        parameters: Mapping[str, Any],
        whole: WholeRows | None = None,
    ) -> None:
        estimator = InvariantRegressorCV if task == "regression" else InvariantClassifierCV
        hidden = () if model == "linear" else HIDDEN
        super().__init__(estimator(hidden=hidden, max_steps=steps, **parameters), table, whole)
        self.undecided = model == "auto"
        objective = self.all_rows.objective
        if objective.reads_aux or objective.finds_clusters:
            raise ValueError(
                f"objective {objective.name!r} keeps more than a predictor of the features: it cannot be compared on "
                "held-out rows here. Use 'minimax-tv-l1' or 'irm-tv-l1', or the class InvariantClassifierCV in Python."
            )

    @property
    def name(self) -> str:
        return "mlp" if self.estimator.hidden else "linear"

    def describe(self, path: TrainedPath) -> str:
        return " ".join([self.name, *map(str, self.estimator.hidden)])

    @property
    def features_kind(self) -> FeaturesKind:
        return "shuffling" if self.estimator.hidden else "coefficients"

    def erm_risk(self, bar: ProgressBar | None, share: float) -> float:
        """Of the network that was asked for, or of the better one, which is then settled.

        The choice rests on rows of the training environments alone, as that of l2 does: it is made before any penalty.
        """
        compared = ((), HIDDEN) if self.undecided else (self.estimator.hidden,)
        start_stage(bar, "linear or network" if self.undecided else "plain networks", share / len(compared))
        task = replace(some_rows(self.rows, COMPARED_ROWS, self.estimator.random_state).task, test=None)
        lowest = {}
        for hidden in compared:
            parameters = replace(NetworkParameters.of(self.estimator), hidden=hidden, l2=0.0, classifier="scalar")
            settings = training_settings(parameters, ERM, task)
            del settings["l2"]
            search = search_networks(
                task,
                "erm",
                [{"l2": value} for value in (0.0, 3e-3)],
                rule="iid",
                n_folds=2,
                seed=self.estimator.random_state,
                by_class=True,
                progress=bar,
                **{**settings, "batch_size": batch_size_for(hidden, len(task.train))},
            )
            lowest[hidden] = _lowest_risk(search)
        if self.undecided:
            self.estimator.hidden = HIDDEN if lowest[HIDDEN] < ALIKE * lowest[()] else ()
            self.undecided = False
        return lowest[self.estimator.hidden]

    def search(self, bar: ProgressBar | None, share: float, keep_outputs: KeepOutputs = True) -> Search:
        if self.undecided:
            self.erm_risk(bar, 0.2 * share)
            share *= 0.8
        self.estimator.batch_size = batch_size_for(self.estimator.hidden, len(self.rows.task.train))
        return super().search(bar, share, keep_outputs)

    def settings(self, path: TrainedPath) -> dict[str, Any]:
        """Newton's method needs no steps, learning rate and batches."""
        solver = self.solver(path)
        names = {"steps": "max_steps", "learning_rate": "learning_rate", "batch_size": "batch_size"}
        of_adam = {name: getattr(self.estimator, attribute) for name, attribute in names.items()}
        return {"folds": self.estimator.cv, "solver": solver, **(of_adam if solver == "adam" else {})}

    def solver(self, path: TrainedPath) -> str | None:
        assert isinstance(path, NetworkPath)
        solver: str = path.settings["solver"]
        return solver

    def feature_weights(self, search: Search) -> tuple[Floats, Floats]:
        """A linear model: coefficient x standard deviation. Others: how much risk rises when a feature is shuffled."""
        models = self.erm_predictor(search), self.estimator.predictor_
        erm, chosen = (network_importances(m, self.rows.task, self.estimator.random_state) for m in models)
        return erm, chosen

    def _train_erm(self, search: Search) -> Predictor:
        candidate, path = search.candidates[search.erm], search.path_of(search.erm)
        assert isinstance(path, NetworkPath)
        parameters = replace(
            NetworkParameters.of(self.estimator),
            l2=path.settings["l2"],
            solver=self.solver(path),
            classifier="scalar",
        )
        settings = {**training_settings(parameters, ERM), "steps": max(1, candidate.step)}
        seed = Runs(seed=self.estimator.random_state)
        fitted = train_network(replace(self.rows, objective=ERM), seed, label=self.name, **settings)
        return keep(fitted, [0], self.rows.x, self.rows.y)


class Trees(Family):
    """Gradient boosting. It reads gaps and categories as they are.

    Parameters
    ----------
    task : "binary", "multiclass" or "regression".
    table : features, target, environment, aux.
    rounds : of boosting.
    parameters : further parameters of the estimator.
    whole : of all rows, where the table is a sample of them.
    """

    name = "trees"
    reads = "gaps and categories"
    features_kind = "contributions"
    _importances: Floats | None = None  # of ERM

    def __init__(
        self,
        task: str,
        table: Sequence[Any],
        *,
        rounds: int,
        parameters: Mapping[str, Any],
        whole: WholeRows | None = None,
    ) -> None:
        estimator = InvariantBoostingRegressorCV if task == "regression" else InvariantBoostingClassifierCV
        super().__init__(estimator(n_estimators=rounds, **parameters), table, whole)

    def describe(self, path: TrainedPath) -> str:
        return f"{self.name} ({_leaves(path)} leaves)"

    def erm_risk(self, bar: ProgressBar | None, share: float) -> float:
        start_stage(bar, "plain trees", share)
        data = replace(some_rows(self.rows, COMPARED_ROWS, self.estimator.random_state), objective=ERM)
        model: Model = self.estimator.model(data)
        seed = self.estimator.random_state
        return _lowest_risk(search_model(model, data.task, ERM, [{}], rule="iid", n_folds=2, seed=seed, report=bar))

    def settings(self, path: TrainedPath) -> dict[str, Any]:
        names = {"folds": "cv", "rounds": "n_estimators", "learning_rate": "learning_rate", "reserve": "reserve"}
        return {name: getattr(self.estimator, attribute) for name, attribute in names.items()}

    def feature_weights(self, search: Search) -> tuple[Floats, Floats]:
        """How far features move the score, as shares. ERM stops where it did best on held-out rows."""
        chosen: Floats = self.estimator.feature_importances_
        if search.candidates[search.erm] == search.chosen:
            return chosen, chosen
        self.erm_predictor(search)
        assert self._importances is not None
        return self._importances, chosen

    def _train_erm(self, search: Search) -> TreePredictor:
        data = replace(self.all_rows, objective=ERM)
        model = self.estimator.model(data).like(search.path_of(search.erm))
        model = replace(model, parameters=replace(model.parameters, n_estimators=search.candidates[search.erm].step))
        fitted = fit_trees(model, data, model.settings(ERM))
        self._importances = fitted.importances
        predictor: TreePredictor = fitted.predictor
        return predictor


def comparable_families(families: Sequence[Family], bar: ProgressBar | None) -> list[Family]:
    """All families where environments are given.

    Inferred environments are each model's own, and their risks mean different things: then the family that ERM suits
    best, a simpler one where they are alike.
    """
    best = families[0]
    if len(families) == 1 or not best.rows.objective.infers_held_out:
        return list(families)
    lowest = best.erm_risk(bar, 0.1)
    for other in families[1:]:
        risk = other.erm_risk(bar, 0.1)
        if risk < ALIKE * lowest:
            best, lowest = other, risk
    return [best]


def searched_rows(seed: int, memory: int) -> Sample:
    """Which rows of a table that is larger than the memory are searched: those that would be of one in memory, or
    fewer, so that the search has room."""

    def sample(n_rows: int, n_columns: int, places: Environments | None) -> npt.NDArray[np.int64]:
        room = max(FEWEST_SEARCHED, memory // (SEARCH_BYTES * max(1, n_columns)))
        codes = None if places is None else places.codes
        return drawn(codes, n_rows, min(SEARCHED_ROWS, room), seed)

    return sample


def start_stage(bar: ProgressBar | None, name: str, share: float) -> None:
    """Tell the bar what comes next, and its share of the whole."""
    if bar is not None:
        bar.stage(name, share)


def _leaves(path: TrainedPath) -> int:
    assert isinstance(path, TreePath)
    return path.settings.trees.num_leaves


def _lowest_risk(search: Search) -> float:
    return float(search.records.pooled().overall.nan_to_num(np.inf).min())
