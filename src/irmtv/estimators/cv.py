"""Estimators of linear models and networks that choose their penalty weight themselves, without the test set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from irmtv.core.messages import check_positive
from irmtv.data.blocks import BlockSource
from irmtv.data.training import TrainingData, WholeRows
from irmtv.engine.solvers.columns import drops_directions
from irmtv.estimators.classifier import InvariantClassifier
from irmtv.estimators.parameters import as_seed
from irmtv.estimators.path import PATH, PathEstimator, check_mapping, reject_single_model_params
from irmtv.estimators.regressor import InvariantRegressor
from irmtv.models.base import FittedModel, KeepOutputs, Report
from irmtv.models.families import FamilyChoice, pick_family
from irmtv.models.networks.fit import fitted_network, refit_network
from irmtv.models.networks.model import NetworkModel, NetworkPath
from irmtv.models.networks.predictor import Predictor
from irmtv.models.networks.settings import (
    DEFAULT_HIDDEN,
    LINEAR_ONLY,
    NetworkParameters,
    batch_size_for,
    training_settings,
    warn_of_endless_warmup,
)
from irmtv.models.search import MOST_LEFT_OUT, Search, search_model
from irmtv.objectives import OBJECTIVES
from irmtv.objectives.base import Objective

ERM = OBJECTIVES["erm"]
OF_NEWTON = (0.0, 10.0, 100.0, 1e3, 1e4, 1e5)
LEAST_OF_VECTOR = 100.0  # weights of the default path below it hardly move a vector classifier
COLUMN_WEIGHTS = (10.0, 100.0, 1e4)  # of "eills", beside the path
DIRECTIONS_WEIGHT = 1e4  # the largest, of its form that leaves out directions
LAYERS = (2, 3, 4, 6, 8)  # directions that layer="auto" tries
OF_ADAM = {"learning_rate", "warmup", "environment_learning_rate"}  # a grid over these is for Adam
L2 = (0.0, 3e-4, 3e-3)  # what l2="auto" chooses from


class NetworkPathEstimator(PathEstimator):
    """The part of the CV estimators of networks that does not depend on what is predicted."""

    l2: Any  # a number, or "auto"
    hidden_: tuple[int, ...]
    family_: FamilyChoice | None = None

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if isinstance(self.hidden, str) and self.hidden != "auto":
            raise ValueError(
                f"hidden must be 'auto' or a sequence of layer widths; () is a linear model. Got {self.hidden!r}. Use "
                "hidden=(32,) for one layer of 32."
            )
        check_positive(self.n_seeds, "n_seeds")
        if isinstance(self.l2, str) and self.l2 != "auto":
            raise ValueError(f"l2 must be 'auto' or a finite number of at least 0. Got {self.l2!r}.")
        check_mapping(self.grid, "grid", "hyper-parameters and lists of their values", "{'learning_rate': [0.01, 0.1]}")

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
        for name in ("hidden_", "family_"):  # of an earlier call
            self.__dict__.pop(name, None)
        data = super().read_data(X, y, environment=environment, aux=aux, sample_weight=sample_weight, whole=whole)
        objective = data.objective
        if not self.refit and (objective.reads_aux or objective.infers == "rows" or objective.finds_clusters):
            raise ValueError(
                f"refit must be True for objective {objective.name!r}, which keeps something of its own training rows "
                "that the models of the folds do not share. Got refit=False."
            )
        return data

    def _settle(self, data: TrainingData[Any], report: Report | None) -> None:
        if self.hidden == "auto" and self.module is None:
            self.hidden_ = self._linear_or_network(data, report)

    def _linear_or_network(self, data: TrainingData[Any], report: Report | None) -> tuple[int, ...]:
        """Which of the two does better in environments that are left out, by ERM or an invariant linear model."""
        linear_only = data.objective.procedure in LINEAR_ONLY or self.solver == "newton" or self.layer is not None
        if linear_only:
            return ()
        rows = data.task.train
        several = not data.objective.infers_held_out and len(rows.names) > 2
        l2_from, seed, searches = L2 if self._chooses_l2() else (), as_seed(self.random_state), []
        for hidden in (shapes := ((), DEFAULT_HIDDEN)):
            self.hidden_ = hidden
            parameters = replace(self._for_all_candidates(), objective_params=None, classifier="scalar")
            settings = training_settings(parameters, ERM, data.task) | {
                "batch_size": self.batch_size if self.batch_size != "auto" else batch_size_for(hidden, len(rows))
            }
            searches.append(
                search_model(
                    NetworkModel(settings, seeds=(seed,), l2_from=l2_from),
                    data.task,
                    ERM,
                    [{}],
                    rule="leave-one-env-out" if several else "iid",
                    n_folds=self.cv,
                    seed=seed,
                    most_left_out=MOST_LEFT_OUT,
                    report=report,
                )
            )
        names = ["linear", "network"]
        self.family_ = pick_family(searches, names)
        if shapes[self.family_.index] and several and self.rule == "invariance":
            self.hidden_ = ()  # does it find something that holds better where it was left out?
            self.family_ = pick_family([self._search(data, report), searches[1]], names)
        return shapes[self.family_.index]

    def _parameters(self) -> NetworkParameters:
        parameters = super()._parameters()
        return replace(parameters, hidden=self._widths()) if self.hidden == "auto" else parameters

    def _widths(self) -> tuple[int, ...]:
        """With hidden="auto": those that were settled on, a network until then."""
        found: tuple[int, ...] = self.__dict__.get("hidden_", DEFAULT_HIDDEN)
        return found

    def _feature_settings(self, present: Predictor | None) -> dict[str, Any]:
        settings = super()._feature_settings(present)
        may_be_linear = self.hidden == "auto" and self.solver not in ("adam", "subgradient")
        return settings | {"dtype": torch.float64} if may_be_linear and self.module is None else settings

    def _describe(self, search: Search) -> None:
        super()._describe(search)
        if self.family_ is not None:
            self.selected_["hidden"], self.selected_["family"] = self.hidden_, self.family_.message

    def model(self, data: TrainingData[Any], keep_outputs: KeepOutputs = False) -> NetworkModel:
        varied = {name for c in self._combinations(data) for name in c}
        settings = self._settings(data)
        warn_of_endless_warmup(settings)
        of_erm = training_settings(replace(self._for_all_candidates(), objective_params=None), ERM, data.task)
        seed = as_seed(self.random_state)
        return NetworkModel(
            {name: value for name, value in settings.items() if name not in varied},
            of_erm={name: of_erm[name] for name in ("solver", "dtype")},
            seeds=tuple(seed + k for k in range(self.n_seeds)),
            l2_from=L2 if self._chooses_l2() else (),
            keep_states=bool(keep_outputs) or not self.refit,
            keep_left_out=keep_outputs == "left-out",
        )

    def _combinations(self, data: TrainingData[Any]) -> list[dict[str, Any]]:
        """With classifier="auto": of ERM once, of every penalty weight with each of `_kinds`."""
        every = super()._combinations(data)
        kinds = self._kinds(data)
        if not kinds:
            return every
        least = LEAST_OF_VECTOR if self.penalty_weights is None else 0.0

        def stands(combination: dict[str, Any], kind: int) -> bool:
            largest = max(data.objective.weights(combination["penalty_weight"]))
            return kind == 0 or (largest > 0 and largest >= least)

        return [{**c, **kind} for k, kind in enumerate(kinds) for c in every if stands(c, k)]

    def _default_path(self, data: TrainingData[Any]) -> tuple[float, ...]:
        """Of Newton's method from 10 on, where weights begin to matter, and further: they cost it nothing."""
        return OF_NEWTON if self._settings(data)["solver"] == "newton" else PATH

    def _kinds(self, data: TrainingData[Any]) -> list[dict[str, Any]]:
        """What stands for choice beside the penalty weight: classifiers, and of Newton's method starts."""
        of_slopes = any("slope" in p.uses for p in data.objective.penalties)
        given = {"classifier", "start"} & set(self.grid or {})
        if self.classifier != "auto" or given or not of_slopes or self.module is not None:
            return []
        if self._settings(data)["solver"] == "newton":
            return [{"classifier": "scalar", "start": "erm"}, {"classifier": "vector", "start": "equal-risks"}]
        return []

    def _beside(self, data: TrainingData[Any]) -> list[tuple[Objective, list[dict[str, Any]]]]:
        """Columns chosen outright, beside a linear model's path; with layer="auto" also directions, for several k."""
        if self.objective != "auto" or self.classifier != "auto" or self._settings(data)["solver"] != "newton":
            return []
        if data.objective.infers is not None:
            return []
        columns = [{"penalty_weight": weight} for weight in COLUMN_WEIGHTS]
        found: list[tuple[Objective, list[dict[str, Any]]]] = [(OBJECTIVES["eills"], columns)]
        if drops_directions(data.task):
            found.append((OBJECTIVES["eills"], [{"penalty_weight": DIRECTIONS_WEIGHT, "form": "directions"}]))
        if self.layer == "auto":
            most = data.task.train.x[0].numel()
            layers = [k for k in LAYERS if k <= most]
            found.append((OBJECTIVES["eills"], [{**c, "layer": k} for k in layers for c in columns]))
        return found

    def _settings(self, data: TrainingData[Any]) -> dict[str, Any]:
        """For `train`, of all candidates."""
        return training_settings(self._for_all_candidates(), data.objective, data.task)

    def _for_all_candidates(self) -> NetworkParameters:
        """The parameters, with the usual values of what is chosen among candidates."""
        parameters = self._parameters()
        if isinstance(self.l2, str):
            parameters = replace(parameters, l2=0.0)  # until it is chosen
        if self.classifier == "auto":
            parameters = replace(parameters, classifier="scalar")
        if self.layer == "auto":
            parameters = replace(parameters, layer=None)
        words = any(isinstance(w, str) for w in _listed(self.penalty_weights))  # weights that follow Phi
        if self.solver == "auto" and (words or OF_ADAM & set(self.grid or {})):
            parameters = replace(parameters, solver="adam")
        return parameters

    def _chooses_l2(self) -> bool:
        return isinstance(self.l2, str) and "l2" not in (self.grid or {})

    def _fitted_choice(
        self, data: TrainingData[Any], search: Search, source: BlockSource | None, how: Mapping[str, Any]
    ) -> FittedModel:
        assert isinstance(search.path, NetworkPath)
        if not self.refit:
            return fitted_network(*search.fold_models(), replace(data, objective=search.path.objective))
        about: dict[str, Any] = {"label": type(self).__name__, "verbose": bool(self.verbose)}
        return refit_network(data, search.path, search.step, blocks=source, **about, **how)

    def _tuned(self, search: Search) -> dict[str, Any]:
        assert isinstance(search.path, NetworkPath)
        return {"l2": search.path.batch.settings["l2"]} if self._chooses_l2() else {}

    def _bar_label(self, data: TrainingData[Any]) -> str:
        seeds = f" x {self.n_seeds} seeds" if self.n_seeds > 1 else ""
        return super()._bar_label(data) + seeds


def _listed(weights: Any) -> Sequence[Any]:
    return weights if isinstance(weights, (list, tuple)) else ()


class InvariantClassifierCV(NetworkPathEstimator, InvariantClassifier):
    """InvariantClassifier over a path of penalty weights, chosen by cross-fitting on the training rows.

    All penalty weights are trained on all folds in one tensor program. Every weight at every one of 40 steps of Adam is
    a candidate, of Newton's method (linear models) every weight with each `classifier` and start once, measured on rows
    that its models have not seen; ERM is among them. With three or more given environments all are also trained
    without each of them. The rule "invariance" asks in turn, and `selected_` holds the answer: is ERM invariant already
    ("erm-invariant": it is kept)? Is there nothing that speaks for another model ("erm-kept")? Is another candidate
    invariant, on each half of the folds, too ("invariant-found": it is taken, with its price in held-out risk, and a
    warning where the price is high)? If not, ERM is kept, with a warning ("none-found").

    Parameters
    ----------
    objective : str, default "auto"
        As for :class:`InvariantClassifier`. Where it has no penalty weight ("groupdro", "lff"), its steps and `grid`
        are chosen among, with ERM beside them for the rule "invariance".
    hidden : "auto" or sequence of int, default "auto"
        Widths of the hidden layers; () is a linear model. "auto" is () or (32,): the one with which ERM does better in
        environments that are left out (where there are three; else on held-out rows), and () where they are within one
        standard error or () has 95 % of the gain over a constant: of a linear model invariance can be tested column by
        column, and it is many times faster. `hidden_` holds it.
    penalty_weights : sequence or None, default None
        The path; None is 0, 1, 10, ..., 1e4, with Newton's method 0, 10, ..., 1e5. 0 (ERM) is always among them. For a
        sum of penalties a number is the weight of every part, a mapping by name gives each its own; "adaptive",
        "adaptive-exact" and "learned" may stand in the list too.
    rule : {"invariance", "iid", "worst-env", "leave-one-env-out"}, default "invariance"
        How to choose among all penalty weights and steps; see :func:`irmtv.selection.choose`. "invariance" and
        "worst-env" need two environments, given or inferred from aux; "leave-one-env-out" three that are given.
    rule_options : dict or None, default None
        Options of the rule "invariance"; see :func:`irmtv.selection.invariance`.
    grid : dict or None, default None
        More hyper-parameters to choose, name -> values, of those that may differ between the runs of one batch, such as
        l2, classifier, start; of Adam also learning_rate and warmup. For others use scikit-learn's GridSearchCV.
    cv : int, default 5
        Folds; each has its share of every environment and, as far as there are rows, of every class.
    n_seeds : int, default 1
        Seeds of every model, of the folds and of the choice. Each combination is trained with all of them on every
        fold, in the same batch, and judged by the mean of their held-out statistics, with the standard errors of one
        model: more seeds are not more rows. The choice is then trained on all rows with each, and the mean of their
        outputs predicts. K seeds take up to K times as long, and make the choice depend less on chance.
    refit : bool, default True
        False keeps the models of the folds, of all seeds, and the mean of their outputs predicts.
    time_ordered : bool or "auto", default "auto"
        Whether environments are times, which `new_environment_` then has in their order. It takes four or more. "auto":
        they are where five or more labels are all dates, months ("2011-01"), quarters ("2011Q1") or years, and the rule
        leaves environments out. True sorts numbers as numbers and text as text, "batch 10" after "batch 9".
    l2 : float or "auto", default "auto"
        "auto" takes that of 0, 3e-4 and 3e-3 with which ERM has the lowest held-out risk, for the
        whole path: a network that overfits before the penalty acts has nothing invariant left to find. It does so for
        every objective; with `grid={"l2": [...]}` it is chosen by the rule instead.
    layer : int, "auto" or None, default None
        As for :class:`InvariantClassifier`; "auto" lets models on 2, 3, 4, 6 and 8 directions stand beside the path of
        a linear model with `objective="auto"`.
    classifier : {"auto", "scalar", "vector"}, default "auto"
        As for :class:`InvariantClassifier`. "auto" is "scalar" with Adam; with Newton's method every penalty weight is
        tried with "scalar" from ERM and (of the default path: from 100 on) with "vector" from equal risks.
    **others
        As for :class:`InvariantClassifier`, without `start`, which `grid` may have.

    Attributes
    ----------
    selected_ : dict
        The rule, its outcome ("erm-invariant", "erm-kept", "invariant-found", "none-found"; None for other rules), the
        message that says why, the objective and the step, the hyper-parameters, and the figures it rests on.
    hidden_ : tuple of int
        With `hidden="auto"`, the widths that were taken; `selected_["family"]` says why.
    best_params_ : dict
        The chosen hyper-parameters.
    cv_results_ : DataFrame
        One row per candidate: hyper-parameters, step, held-out risk overall and in the worst environment, p-values of
        equal slopes and of equal risks, whether it is ERM, and whether it was selected. Means over
        seeds.

    new_environment_ : DataFrame or None
        With three or more given environments (more than ten are left out in ten groups): one row for each, with the
        score of ERM ("plain") and of the choice in it when training had no row of it. Accuracy, of a regressor root
        mean squared error. Penalty weight and step are those that were chosen on all environments. Times
        (`time_ordered`) are in their order, from the third on, each predicted from what came before (more than twelve:
        in ten groups of neighbours). Where environments are inferred from aux, five blocks of its first column.
    expected_score_ : dict or None
        Of the choice in an environment that nobody has seen: mean and worst of that table, and an interval for one more
        environment ("low" to "high", 90 %) if it is drawn as these were. "left_out" says what the table is of:
        "environments", "in order" or "blocks of aux".

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
        hidden: Sequence[int] | str = "auto",
        penalty_weights: Sequence[float | str | Mapping[str, float]] | None = None,
        rule: str = "invariance",
        rule_options: Mapping[str, Any] | None = None,
        grid: Mapping[str, Sequence[Any]] | None = None,
        cv: int = 5,
        n_seeds: int = 1,
        refit: bool = True,
        time_ordered: bool | str = "auto",
        module: Any = None,
        classifier: str = "auto",
        objective_params: Mapping[str, Any] | None = None,
        warmup: int | float | None = 0.5,
        max_steps: int = 2000,
        learning_rate: float = 0.02,
        l2: float | str = "auto",
        batch_size: int | str | None = "auto",
        solver: str = "auto",
        layer: int | str | None = None,
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
            layer=layer,
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
        self.time_ordered = time_ordered


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
        hidden: Sequence[int] | str = "auto",
        penalty_weights: Sequence[float | str | Mapping[str, float]] | None = None,
        rule: str = "invariance",
        rule_options: Mapping[str, Any] | None = None,
        grid: Mapping[str, Sequence[Any]] | None = None,
        cv: int = 5,
        n_seeds: int = 1,
        refit: bool = True,
        time_ordered: bool | str = "auto",
        module: Any = None,
        classifier: str = "auto",
        objective_params: Mapping[str, Any] | None = None,
        warmup: int | float | None = 0.5,
        max_steps: int = 2000,
        learning_rate: float = 0.02,
        l2: float | str = "auto",
        batch_size: int | str | None = "auto",
        solver: str = "auto",
        layer: int | str | None = None,
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
            layer=layer,
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
        self.time_ordered = time_ordered
