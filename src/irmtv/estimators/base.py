"""What the estimators share: from X, y, environment and aux to a trained predictor, and back to the user's units."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from irmtv.core.messages import check_length, check_positive
from irmtv.core.types import Runs
from irmtv.data.columns import Columns, as_names, is_column_name, labels_by_name, refuse_lazy, split
from irmtv.data.environments import as_labels, encode_labels
from irmtv.data.features import as_features, series_shape
from irmtv.data.rows import RawRows, check_row_order, count_rows, read_aux
from irmtv.data.training import (
    EncodedTarget,
    InputSettings,
    TargetKind,
    TrainingData,
    WholeRows,
    read_training_data,
    read_y,
)
from irmtv.estimators.parameters import as_seed, check_stopping, chosen_objective, held_out_share, stopping_rule
from irmtv.estimators.plots import plot_environments, plot_features, plot_history
from irmtv.metrics import EnvironmentTable, evaluate_environments, metric_for
from irmtv.models.base import FittedModel
from irmtv.models.networks.fit import fitted_network, train_network, warm_start, warn_of_a_constant
from irmtv.models.networks.predictor import Predictor
from irmtv.models.networks.settings import (
    NetworkParameters,
    as_dtype,
    check_module,
    training_settings,
    warn_of_endless_warmup,
)
from irmtv.objectives.base import Objective
from irmtv.selection.folds import hold_out

Floats = npt.NDArray[np.float64]
SNAPSHOTS = 50  # of training, for `history_` and early stopping


class InvariantEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn is not annotated
    """The part of the estimators that does not depend on what is predicted."""

    _by_default = "irm-tv-l1"  # what objective="auto" is, where environments are given

    # ---- what subclasses say ----------------------------------------------------------------------------------

    _loss_name = "squared"
    _target: TargetKind = "numbers"

    def _keep_target(self, data: TrainingData[Any]) -> None:
        """What the training rows decided about y."""
        raise NotImplementedError

    def _set_linear(self, coef: Floats, intercept: Floats) -> None:
        self.coef_, self.intercept_ = coef, intercept

    # ---- fitting ----------------------------------------------------------------------------------------------

    def _fit(self, X: Any, y: Any, environment: Any, aux: Any, sample_weight: Any) -> Any:
        rule, share = stopping_rule(self.early_stopping, type(self).__name__), held_out_share(self.validation_fraction)
        present = self.predictor_ if bool(self.warm_start) and hasattr(self, "predictor_") else None
        data = self._read(X, y, environment, aux, sample_weight, present)
        seed = as_seed(self.random_state)
        settings = training_settings(self._parameters(), data.objective, data.task)
        warn_of_endless_warmup(settings)
        settings["snapshot_every"] = max(5, int(self.max_steps) // SNAPSHOTS)  # a snapshot costs about a step
        if rule is not None:
            check_stopping(rule, data)
            data = replace(data, task=hold_out(data.task, share.numerator, share.denominator, seed))
            settings["select"] = rule
        if present is not None:
            settings["start"] = warm_start(present, data, settings)
        fitted = train_network(data, Runs(seed=seed), label=type(self).__name__, verbose=self.verbose, **settings)
        self._set_fitted(fitted_network(fitted, [0], data))
        self.selected_ = {"rule": rule or "fixed", "step": self.n_iter_, "objective": data.objective.name}
        warn_of_a_constant(fitted, 0, self.history_, self.predictor_, data.task)
        return self

    def _read(
        self,
        X: Any,
        y: Any,
        environment: Any,
        aux: Any,
        sample_weight: Any,
        present: Predictor | None = None,
        whole: WholeRows | None = None,
    ) -> TrainingData[Any]:
        """Check everything, scale, and make a task of it. `present` is the model that a warm start goes on from,
        `whole` what is known of all rows where these are a sample."""
        if present is None:  # a fit that fails leaves no model: attributes of two tables do not go together
            self.__dict__.pop("predictor_", None)
        objective = self._chosen_objective(environment, aux)
        raw = RawRows(X, y, environment, aux, sample_weight)
        settings = replace(self._input_settings(objective, present), whole=whole)
        data = read_training_data(self, raw, objective, settings)
        if present is None:
            self._keep_target(data)
        if self.module is not None:
            check_module(self.module, data.task.train, objective, data.task.n_outputs, self._loss_name == "squared")
        return data

    def _chosen_objective(self, environment: Any, aux: Any) -> Objective:
        return chosen_objective(
            self.objective,
            environment is not None or self.environment is not None,
            aux is not None or self.aux is not None,
            self._by_default,
        )

    def _input_settings(self, objective: Objective, present: Predictor | None) -> InputSettings:
        return InputSettings(
            self.environment,
            self.aux,
            self.min_rows,
            self._keeps_labels(objective),
            self._target,
            class_weight=getattr(self, "class_weight", None),
            classes=None if present is None else getattr(self, "classes_", None),
            **self._feature_settings(present),
        )

    def _parameters(self) -> NetworkParameters:
        """Those of this estimator; a warm start takes more steps of Adam, unless Newton's method is asked for."""
        parameters = NetworkParameters.of(self)
        goes_on = bool(getattr(self, "warm_start", False)) and self.solver == "auto"
        return replace(parameters, solver="adam") if goes_on else parameters

    def _feature_settings(self, present: Predictor | None) -> dict[str, Any]:
        dtype, hidden = as_dtype(self.dtype), self.hidden if isinstance(self.hidden, Sequence) else (0,)
        return {
            "features": "standardised numbers",
            # Newton's method, which linear models may have, computes in float64
            "dtype": torch.float64 if self.solver not in ("adam", "subgradient") and tuple(hidden) == () else dtype,
            "series": self.module is not None,
            "present": None if present is None else (present.x, present.y),
            # a user's module cannot be carried over to other units: it goes on in those that it has
            "keep_units": self.module is not None,
        }

    def _keeps_labels(self, objective: Objective) -> bool:
        """Whether environment labels are of use; an objective that looks for its own has none for them."""
        return objective.infers is None and not objective.finds_clusters

    def _set_fitted(self, model: FittedModel) -> None:
        """Fitted attributes; nothing of the training rows stays."""
        self.predictor_: Any = model.predictor
        self.objective_ = model.objective.name
        self.n_iter_ = model.step
        self.environments_ = model.environments
        self.environment_weights_ = model.environment_weights
        self.history_ = model.history
        for name in ("coef_", "intercept_"):
            self.__dict__.pop(name, None)
        linear = model.predictor.linear()
        if linear is not None:
            self._set_linear(*linear)
        if model.importances is not None:
            self.feature_importances_ = model.importances

    def _encode(self, y: Any) -> EncodedTarget:
        """y of other rows as the loss wants it."""
        return read_y(y, self, self._target, getattr(self, "classes_", None))

    # ---- prediction -------------------------------------------------------------------------------------------

    def _outputs(self, X: Any, aux: Any = None) -> Floats:
        check_is_fitted(self, "predictor_")
        columns = split(X, self.environment, self.aux, {"environment": None, "aux": aux}, fitting=False)
        return self._outputs_of(columns)

    def _outputs_of(self, columns: Columns) -> Floats:
        scaler = self.predictor_.x
        features = as_features(self, columns.features, reset=False, series=self.module is not None, like=scaler)
        beside = None
        if self.predictor_.aux is not None:
            beside = self._aux_of(columns, len(features), f"the predictor of objective {self.objective_!r}").numpy()
        try:
            outputs: Floats = self.predictor_.logits(features, beside)
            return outputs
        except RuntimeError as error:
            if self.module is None:
                raise
            shape = series_shape(scaler, getattr(self, "_length_in", None)) if features.ndim == 3 else ""
            trained = f", (channels, length) = {shape}" if shape else ""
            raise ValueError(
                f"X must be rows like those of training{trained}: the module cannot read X of shape {features.shape}. "
                f"Got {error}. Bring the rows to the length of training."
            ) from error

    def _aux_of(self, columns: Columns, n_rows: int, reader: str) -> torch.Tensor:
        read = read_aux(columns.aux, n_rows)
        if read is None:
            raise ValueError(
                f"aux must be given: {reader} reads aux. Keep its columns in X, or pass values: aux=... beside X."
            )
        scaler = self.predictor_.aux
        if scaler is None and self.predictor_.rho is not None:
            scaler = self.predictor_.rho.scaler
        if scaler is not None and scaler.mean.ndim and len(scaler.mean) != read.shape[1]:
            raise ValueError(f"aux must have the {len(scaler.mean)} columns of training. Got {read.shape[1]}.")
        return read

    def evaluate(
        self,
        X: Any,
        y: Any,
        *,
        environment: Any = None,
        aux: Any = None,
        metric: str | None = None,
        n_bootstrap: int = 0,
        random_state: int | None = 0,
    ) -> EnvironmentTable:
        """The metric in every environment of these rows, the worst, the spread.

        Parameters
        ----------
        X : DataFrame, array or sparse matrix
            Rows like those of training.
        y : (N,) or (N, T)
            What is to be predicted.
        environment : (N,) labels or the name of a column of X, default None
            Any: these environments need not be those of training. A column that the constructor names is taken from X.
            Without either, all rows are one environment.
        aux : (N,) or (N, A) numbers, default None
            For predictors that read it beside X ("tiva").
        metric : str or None, default None
            "accuracy", "log_loss", "roc_auc", "f1", "balanced_accuracy" or "average_precision"; for regression "mse",
            "rmse", "mae" or "r2". None is the first of them. As in scikit-learn: "f1" and "average_precision" of two
            classes are of the second of `classes_`; of several classes each stands against the rest, and the mean over
            classes is taken. An environment of one class has no "roc_auc", one without the second class no "f1" and no
            "average_precision", one whose y does not vary no "r2": NaN.
        n_bootstrap : int, default 0
            Draws for intervals; 0 for none, 1000 for 95 %.
        random_state : int or None, default 0
            Seed of the draws.

        Returns
        -------
        EnvironmentTable
            Its `by_environment`, `worst`, `spread`, `overall` are arrays with one entry per model, here one.
        """
        check_is_fitted(self, "predictor_")
        check_row_order(X, y=y, environment=environment, aux=aux)
        if is_column_name(environment):
            named = [*as_names(self.environment, "environment"), *as_names(self.aux, "aux")]
            X, environment = labels_by_name(X, environment, [*named, *getattr(self, "feature_names_in_", ())])
        columns = split(X, self.environment, self.aux, {"environment": environment, "aux": aux}, fitting=False)
        outputs = self._outputs_of(columns)
        labels = None
        if columns.environment is not None:
            labels = encode_labels(as_labels(columns.environment), "environment", len(outputs))
        refuse_lazy(y=y)
        target, loss, *_ = self._encode(y)
        check_length(len(target), len(outputs), "y")
        return evaluate_environments(
            outputs[None],
            target.numpy(),
            None if labels is None else labels[0],
            metric=metric_for(loss.name, metric),
            names=None if labels is None else labels[1],
            n_bootstrap=n_bootstrap,
            random_state=random_state,
        )

    def membership(self, X: Any = None, *, aux: Any = None) -> Floats:
        """Probability of each inferred environment, for objectives that infer them from aux: (N, E).

        Of a mean of several models (`n_seeds`, `refit=False`) these are the environments of the first: each model
        infers its own, in an order of its own.

        Parameters
        ----------
        X : DataFrame or array, default None
            Holds the aux columns that the constructor names; "tiva" reads its features, too.
        aux : (N,) or (N, A) numbers, default None
            Where no columns of X say so.

        Returns
        -------
        array (N, E)
            Rows sum to 1; columns in the order of `environments_`.
        """
        check_is_fitted(self, "predictor_")
        rho = self.predictor_.rho
        if rho is None:
            raise ValueError(
                f"membership is for objectives that infer environments from aux. {self.objective_!r} does not."
            )
        columns = Columns(None, None, aux)
        if X is not None:
            columns = split(X, self.environment, self.aux, {"environment": None, "aux": aux}, fitting=False)
        features = None
        if rho.reads_x:
            if X is None:
                raise ValueError(f"X must be given: {self.objective_!r} infers environments from X and aux together.")
            features = torch.as_tensor(self.predictor_.x(as_features(self, columns.features, reset=False)))
        n_rows = count_rows(columns.aux) if columns.aux is not None else 0
        if X is not None:
            n_rows = X.shape[0] if hasattr(X, "shape") else len(X)
        read = self._aux_of(columns, n_rows, "the environment network")
        result: Floats = rho.membership(read, features).numpy()
        return result

    # ---- files ------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the fitted estimator to a file that `irmtv.load` reads; it holds no code, and reading runs none."""
        from irmtv.estimators.files import save  # which knows all estimators

        return save(self, path)

    def to_onnx(self, path: str | os.PathLike[str]) -> Path:
        """Write the predictor as an ONNX graph: x (N, D) float64 -> `probabilities` and `label`, or `prediction`.

        Scaling is inside; columns in the order of training; `label` is a position in `classes_`. Needs
        `pip install 'irmtv[onnx]'`.
        """
        from irmtv.models.networks.onnx_export import write_onnx

        check_is_fitted(self, "predictor_")
        return write_onnx(self.predictor_, getattr(self, "classes_", None), path)

    # ---- pictures ---------------------------------------------------------------------------------------------

    def plot_history(self, ax: Any = None, quantity: str = "risk") -> Any:
        """The risk (or "slope", "accuracy") of every environment over the steps of training.

        Parameters
        ----------
        ax : matplotlib Axes or None, default None
            Where to draw; None is a new figure.
        quantity : {"risk", "slope", "accuracy"}, default "risk"
            What to show; accuracy is for classifiers. An invariant model's slopes are all 0.

        Returns
        -------
        matplotlib Axes
        """
        check_is_fitted(self, "predictor_")
        return plot_history(self.history_, quantity, ax)

    def plot_environments(self, X: Any, y: Any, *, ax: Any = None, **how: Any) -> Any:
        """The metric in every environment of these rows, as bars, the worst in another colour.

        Parameters
        ----------
        X, y : as for `evaluate`
        ax : matplotlib Axes or None, default None
            Where to draw; None is a new figure.
        **how
            For `evaluate`: environment, aux, metric, n_bootstrap (which adds intervals), random_state.

        Returns
        -------
        matplotlib Axes
        """
        return plot_environments(self.evaluate(X, y, **how), ax)

    def plot_features(self, ax: Any = None, n_features: int = 20) -> Any:
        """The coefficients of a linear model per standard deviation of each feature, the largest first.

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
        linear = self.predictor_.linear()
        if linear is None:
            raise ValueError(
                "plot_features shows coefficients and needs a linear model, hidden=(), of X alone. This one is "
                "another: use sklearn.inspection.permutation_importance."
            )
        check_positive(n_features, "n_features")
        scale = self.predictor_.x.scale
        per_deviation = linear[0] * np.where(np.isfinite(scale), scale, 0.0)
        return plot_features(per_deviation, self._feature_names(), int(n_features), ax, self._output_names())

    def _feature_names(self) -> list[str]:
        names = getattr(self, "feature_names_in_", None)
        return [f"x{i}" for i in range(self.n_features_in_)] if names is None else list(names)

    def _output_names(self) -> list[str]:
        """Of the rows of `coef_`, where there are several."""
        raise NotImplementedError

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.three_d_array = self.module is not None
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "predictor_")
