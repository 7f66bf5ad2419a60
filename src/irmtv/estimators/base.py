"""What the estimators share: from X, y, environment and aux to a trained predictor, and back to the user's units."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from irmtv.core.losses import Loss
from irmtv.core.messages import check_length, check_positive, shown, users_stacklevel
from irmtv.core.types import Rows, Runs, Task, drop_zero_weight
from irmtv.data.aux_rows import rows_in
from irmtv.data.columns import (
    Columns,
    as_aux,
    as_features,
    as_labels,
    as_names,
    check_environments,
    is_column_name,
    labels_by_name,
    refuse_lazy,
    split,
    warn_of_copies,
)
from irmtv.data.environments import factorize, pool
from irmtv.data.row_order import warn_of_another_order
from irmtv.data.rows import Part, read_weight
from irmtv.data.scaling import Scaler
from irmtv.data.series import series_shape
from irmtv.engine import FittedRuns, train
from irmtv.engine.networks import MLP, Module
from irmtv.engine.progress_bar import ProgressBar
from irmtv.engine.train import TrainingInterrupted
from irmtv.estimators.attributes import environment_names, environment_weights, history_frame, warn_of_a_constant
from irmtv.estimators.parameters import (
    as_dtype,
    as_seed,
    check_module,
    chosen_objective,
    held_out_share,
    stopping_rule,
    training_settings,
)
from irmtv.estimators.plots import plot_environments, plot_features, plot_history
from irmtv.metrics import EnvironmentTable, evaluate_environments, metric_for
from irmtv.models.networks.predictor import Predictor, carried_over, keep
from irmtv.objectives.base import Objective
from irmtv.objectives.environments.aux_network import AuxScaler
from irmtv.selection.folds import fold_of_rows

Floats = npt.NDArray[np.float64]
SNAPSHOTS = 50  # of training, for `history_` and early stopping


@dataclass(frozen=True)
class Prepared:
    """The training rows as a task, and how they were scaled."""

    task: Task
    x: Scaler
    y: Scaler | None
    objective: Objective


class InvariantEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn is not annotated
    """The part of the estimators that does not depend on what is predicted."""

    # ---- what subclasses say ----------------------------------------------------------------------------------

    _loss_name = "squared"

    def _encode(self, y: Any, reset: bool) -> tuple[torch.Tensor, Loss, int, Scaler | None]:
        """y as the loss wants it, the loss, the number of outputs, and the scaler of y where it has one."""
        raise NotImplementedError

    def _count(self, sample_weight: Any, y: Any) -> Any:
        """What each row counts: (N,), or None where all count the same."""
        return sample_weight

    def _set_linear(self, coef: Floats, intercept: Floats) -> None:
        self.coef_, self.intercept_ = coef, intercept

    # ---- fitting ----------------------------------------------------------------------------------------------

    def _fit(self, X: Any, y: Any, environment: Any, aux: Any, sample_weight: Any) -> Any:
        rule, share = stopping_rule(self.early_stopping, self), held_out_share(self.validation_fraction)
        going_on = bool(self.warm_start) and hasattr(self, "predictor_")
        prepared = self._prepare(X, y, environment, aux, sample_weight, self.predictor_ if going_on else None)
        seed = as_seed(self.random_state)
        settings = self._settings(prepared.objective)
        settings["snapshot_every"] = max(5, int(self.max_steps) // SNAPSHOTS)  # a snapshot costs about a step
        if rule is not None:
            known = prepared.objective.infers in ("aux", "rest") or len(prepared.task.train.names) > 1
            if rule == "worst-env" and not known:
                raise ValueError(
                    "early_stopping='worst-env' looks at the worst environment of the held-out rows and needs two or "
                    f"more that are given, or inferred from aux. Got objective {prepared.objective.name!r} without. "
                    "Give them, or use early_stopping='iid'."
                )
            prepared = replace(prepared, task=_held_out(prepared.task, share.numerator, share.denominator, seed))
            settings["select"] = rule
        if going_on:
            settings["start"] = self._start(prepared, settings)
        fitted = self._train(prepared, Runs(seed=seed), **settings)
        self._keep(fitted, prepared, [0])
        self.selected_ = {"rule": rule or "fixed", "step": self.n_iter_, "objective": prepared.objective.name}
        warn_of_a_constant(fitted, 0, self.history_, self.predictor_, prepared.task)
        return self

    def _prepare(
        self, X: Any, y: Any, environment: Any, aux: Any, sample_weight: Any, present: Predictor | None = None
    ) -> Prepared:
        """Check everything, scale, and make a task of it. `present` is the model that a warm start goes on from."""
        if present is None:  # a fit that fails leaves no model: attributes of two tables do not go together
            self.__dict__.pop("predictor_", None)
        objective = chosen_objective(
            self.objective,
            environment is not None or self.environment is not None,
            aux is not None or self.aux is not None,
        )
        warn_of_another_order(X, y=y, environment=environment, aux=aux, sample_weight=sample_weight)
        columns = split(X, self.environment, self.aux, {"environment": environment, "aux": aux}, fitting=True)
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None. Use fit(X, y).")
        refuse_lazy(y=y)
        dtype = as_dtype(self.dtype)
        try:
            features = as_features(self, columns.features, present is None, series=self.module is not None)
            if present is not None:
                present.check_axes(features)
            target, loss, n_outputs, y_scaler = self._encode(y, reset=present is None)
        except ValueError as error:
            if present is None:
                raise
            raise ValueError(
                f"{error} warm_start=True goes on from a model of other rows; use set_params(warm_start=False) to "
                "start anew."
            ) from error
        n = len(features)
        check_length(len(target), n, "y")
        weight = read_weight(Part("", None, None, sample_weight=self._count(sample_weight, y)), n)
        if weight is not None and loss.name != "squared" and len(np.unique(target[weight > 0].numpy())) < 2:
            raise ValueError(
                "y must have two or more classes among the rows that count. Got 1 class: rows of others have weight 0."
            )
        by_row = None if weight is None else weight.numpy()
        # a user's module cannot be carried over to other units: it goes on in those that it has
        keeps_units = present is not None and self.module is not None
        if y_scaler is not None:
            values = target.numpy().reshape(n, -1)
            y_scaler = present.y if keeps_units and present is not None else Scaler.of(values, by_row, constant=1.0)
            assert y_scaler is not None
            target = torch.as_tensor(y_scaler(values).reshape(target.shape))
        x_scaler = present.x if keeps_units and present is not None else Scaler.of(features, by_row)
        rows = Rows(
            x_scaler.tensor(features, dtype),
            target.to(dtype) if target.is_floating_point() else target,
            aux=as_aux(columns.aux, n),
            weight=weight,
        )
        rows = self._with_environment(rows, columns.environment, objective)
        if self.module is not None:
            check_module(self, rows, objective, n_outputs)
        return Prepared(Task(rows, loss, n_outputs, name=type(self).__name__), x_scaler, y_scaler, objective)

    def _with_environment(self, rows: Rows, labels: Any, objective: Objective) -> Rows:
        """Rows that count, with their environments. A row of weight 0 is as if it were not there."""
        check_positive(self.min_rows, "min_rows")
        if labels is None:
            return drop_zero_weight(rows)
        codes, names = factorize(as_labels(labels), "environment", len(rows))
        if objective.infers is not None or objective.procedure is not None:  # it looks for its own
            return drop_zero_weight(rows)
        rows = drop_zero_weight(replace(rows, environment=torch.as_tensor(codes), names=tuple(names)))
        assert rows.environment is not None
        codes, names = rows.environment.numpy(), list(rows.names)
        check_environments(codes, names, int(self.min_rows), objective.needs == "environment")
        warn_of_copies(rows.x.numpy(), codes, len(names), getattr(self, "feature_names_in_", None))
        pooled, kept, _ = pool(codes, names, int(self.min_rows), "environment")
        return replace(rows, environment=pooled, names=kept)

    def _settings(self, objective: Objective) -> dict[str, Any]:
        """For `train`: the engine's, and those of the objective's hyper-parameters that it has."""
        return training_settings(self, objective)

    def _train(self, prepared: Prepared, runs: Runs, **settings: Any) -> FittedRuns:
        """Through the engine; after Ctrl-C the runs as they were, with a warning."""
        name = prepared.objective.name
        shown_bar = ProgressBar(f"{type(self).__name__}, {name}") if self.verbose else nullcontext()
        try:
            with shown_bar as bar:
                return train(prepared.task, prepared.objective, runs, progress=bar, **settings)
        except TrainingInterrupted as stopped:
            steps = shown(stopped.partial.steps.tolist(), form=lambda s: f"{int(s)}")
            warnings.warn(
                f"training was interrupted at step {steps}: the estimator is fitted as it was then.",
                UserWarning,
                stacklevel=users_stacklevel(),
            )
            return stopped.partial

    def _start(self, prepared: Prepared, settings: Mapping[str, Any]) -> Mapping[str, torch.Tensor]:
        """The present parameters, to go on from, in the units of the present rows."""
        present, rows = self.predictor_, prepared.task.train
        member = present.members[0]
        n_inputs = rows.x[0].numel()
        if prepared.objective.reads_aux:
            assert rows.aux is not None
            n_inputs += rows.aux.shape[1]
        if self.module is None:
            new: Any = MLP(n_inputs, settings["hidden"], prepared.task.n_outputs)
        else:
            net = settings["net"]
            new = net if hasattr(net, "shapes") else Module(net, prepared.task.n_outputs)
        reads_same = (present.aux is not None) == prepared.objective.reads_aux
        if new.shapes != member.net.shapes or not reads_same or (present.y is None) != (prepared.y is None):
            raise ValueError(
                f"warm_start=True goes on with the present network, whose parameters are {_shapes(member.net)}. Got "
                f"rows and parameters that ask for {_shapes(new)}. Use set_params(warm_start=False) to start anew."
            )
        if member.buffers or prepared.objective.procedure is not None:
            what = "a module with state of its own (batch norm)" if member.buffers else f"objective {self.objective_!r}"
            raise ValueError(
                f"warm_start=True goes on from parameters alone, and {what} is more than those: it would not begin as "
                "the present model. Use set_params(warm_start=False)."
            )
        if not isinstance(member.net, MLP) or self.module is not None:
            return member.parameters
        scaler = None
        if present.aux is not None:
            assert rows.aux is not None
            scaler = AuxScaler.of(rows.aux, settings.get("aux_scaling", "column"), rows.weight)
        return carried_over(present, prepared.x, prepared.y, scaler)

    def _keep(self, fitted: FittedRuns, prepared: Prepared, runs: Sequence[int]) -> None:
        """Fitted attributes; nothing of the training rows stays."""
        self.predictor_: Predictor = keep(fitted, runs, prepared.x, prepared.y)
        self.objective_ = prepared.objective.name
        self.n_iter_ = self.predictor_.members[0].step
        about = fitted, runs[0], prepared.task.train, self.predictor_
        self.environments_ = environment_names(*about)
        self.environment_weights_ = environment_weights(*about, len(self.environments_))
        self.history_ = history_frame(fitted.history, runs[0], self.environments_)
        linear = self.predictor_.linear()
        for name in ("coef_", "intercept_"):
            self.__dict__.pop(name, None)
        if linear is not None:
            self._set_linear(*linear)

    # ---- prediction -------------------------------------------------------------------------------------------

    def _outputs(self, X: Any, aux: Any = None) -> Floats:
        check_is_fitted(self, "predictor_")
        columns = split(X, self.environment, self.aux, {"environment": None, "aux": aux}, fitting=False)
        return self._outputs_of(columns)

    def _outputs_of(self, columns: Columns) -> Floats:
        features = as_features(self, columns.features, reset=False, series=self.module is not None)
        self.predictor_.check_axes(features)
        beside = None
        if self.predictor_.aux is not None:
            beside = self._aux_of(columns, len(features), f"the predictor of objective {self.objective_!r}").numpy()
        try:
            return self.predictor_.logits(features, beside)
        except RuntimeError as error:
            if self.module is None:
                raise
            trained = f", (channels, length) = {series_shape(self)}" if features.ndim == 3 else ""
            raise ValueError(
                f"X must be rows like those of training{trained}: the module cannot read X of shape {features.shape}. "
                f"Got {error}. Bring the rows to the length of training."
            ) from error

    def _aux_of(self, columns: Columns, n_rows: int, reader: str) -> torch.Tensor:
        read = as_aux(columns.aux, n_rows)
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
            "accuracy", "log_loss" or, of two classes, "roc_auc"; for regression "mse", "rmse", "mae" or "r2". None is
            the first of them. An environment of one class has no "roc_auc", one whose y does not vary no "r2": NaN.
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
        warn_of_another_order(X, y=y, environment=environment, aux=aux)
        if is_column_name(environment):
            named = [*as_names(self.environment, "environment"), *as_names(self.aux, "aux")]
            X, environment = labels_by_name(X, environment, [*named, *getattr(self, "feature_names_in_", ())])
        columns = split(X, self.environment, self.aux, {"environment": environment, "aux": aux}, fitting=False)
        outputs = self._outputs_of(columns)
        labels = None
        if columns.environment is not None:
            labels = factorize(as_labels(columns.environment), "environment", len(outputs))
        refuse_lazy(y=y)
        target, loss, *_ = self._encode(y, reset=False)
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
        n_rows = rows_in(columns.aux) if columns.aux is not None else 0
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
        from irmtv.estimators.onnx_files import write_onnx

        check_is_fitted(self, "predictor_")
        return write_onnx(self, path)

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


def _held_out(task: Task, kept_out: int, of: int, seed: int) -> Task:
    """`kept_out` of every `of` rows of every environment aside, for early stopping."""
    n = len(task.train)
    if n < 2:
        raise ValueError(f"early_stopping holds rows out and needs 2 or more. Got n_samples={n}.")
    fold = fold_of_rows(task.train, min(of, n), seed)
    aside = fold < max(1, min(kept_out, min(of, n) - 1))
    return replace(
        task,
        train=task.train.take((~aside).nonzero().squeeze(1)),
        held_out=task.train.take(aside.nonzero().squeeze(1)),
    )


def _shapes(net: Any) -> str:
    return shown(net.shapes.items(), form=lambda item: f"{item[0]} {item[1]}")
