"""EnvironmentInference: environments for rows that have none, as labels that any estimator can use."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted

from irmtv.core.losses import Loss
from irmtv.core.messages import check_length, did_you_mean, shown, users_stacklevel
from irmtv.data.columns import is_frame, match_columns, split
from irmtv.data.environments import as_labels
from irmtv.data.features import as_features
from irmtv.data.rows import check_row_order, count_rows, read_aux
from irmtv.data.scaling import Scaler
from irmtv.data.target import FEW_VALUES
from irmtv.estimators.classifier import InvariantClassifier
from irmtv.estimators.clusters import Clusters, lexicographic
from irmtv.estimators.parameters import as_seed
from irmtv.estimators.regressor import InvariantRegressor
from irmtv.estimators.strength import Strength, split_strength
from irmtv.models.inference import INFERRING, only_inferring
from irmtv.objectives.eiil import exact_split

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
METHODS = ("minimax", "eiil", "clusters")
CLUSTER_ON = ("auto", "aux", "features", "residuals")
TASKS = ("auto", "classification", "regression")


@dataclass(frozen=True)
class _Given:
    """Rows as the methods read them."""

    features: Floats | None  # (N, D)
    aux: Floats | None  # (N, A)
    y: Any


class EnvironmentInference(ClusterMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is not annotated
    """Environments inferred from features, labels and auxiliary variables, for rows that come without any.

    Three ways. They all have ERM as a reference model, over whose slopes environments should differ:

    * "minimax": a network on aux divides the rows so that the reference model has the largest TV-l1 penalty. Needs aux
      (a time, a place); new rows need aux only. One aux column beside a linear reference model (`hidden=()`) is cut
      into stretches instead, where the slopes change most.
    * "eiil": the split of the rows into two with the largest such penalty: by the sign of the reference model's slopes.
      For two classes these are the rows that it gets wrong and those that it gets right. Needs no aux; new rows need y.
    * "clusters": k-means on aux or, without any, on the standardised features. y is not looked at.

    Environments are numbered by where they lie: the first has the smaller mean of the first aux column (or feature).
    For "eiil" the first has the positive slopes.

    Parameters
    ----------
    method : {"minimax", "eiil", "clusters"}, default "minimax"
    n_environments : int, default 2
        How many; "eiil" has two. "minimax" is free to leave some without rows, and mostly does: environments whose
        slopes have the same sign may be merged without loss of penalty, so that two reach all there is. A column that
        is cut has rows in all of them.
    aux : str, list of str or None, default None
        Columns of X (numbers) that environments are inferred from; taken out of X. Values may be passed to `fit`
        instead.
    hidden : sequence of int, default ()
        Widths of the reference model's hidden layers; () is a linear model.
    task : {"auto", "classification", "regression"}, default "auto"
        What y is. "auto" takes numbers with fractions, or with more than 20 distinct values, for regression, all else
        for classes.
    cluster_on : {"auto", "aux", "features", "residuals"}, default "auto"
        What "clusters" clusters: "auto" is aux where it is given, else the features. "residuals" are those of the
        reference model; for classes 1 - the probability of the row's own class, since with their sign they would give
        the classes again. New rows then need y.
    environment_hidden : int, default 16
        Hidden units of the network on aux.
    max_steps : int, default 1000
        Gradient steps of the reference model and of the network on aux. A linear reference model needs none: it is
        trained by Newton's method.
    learning_rate, l2 : float, defaults 5e-3 and 0.0
        Of Adam; the weight of the sum of squares of the reference model's parameters.
    batch_size : int, "auto" or None, default "auto"
        Rows per step; None is all rows, "auto" all rows below 100,000, else 1,024.
    n_shuffles : int, default 100
        Random splits with which `strength_` compares; 0 leaves it out (and with it the reference model of "clusters").
    device : str, default "cpu"
        "cpu", "cuda" or "auto".
    random_state : int, RandomState or None, default None
    verbose : int, default 0
        1 shows a progress bar.

    Attributes
    ----------
    method_
        The method of the last fit, which `predict` goes on with.
    labels_
        The environment of every training row, (N,) integers from 0.
    membership_
        Probability of each environment for every training row, (N, E).
    environments_
        Names of the environments.
    strength_
        `Strength` on the training rows; None without y. See `strength` for other rows.
    reference_
        The reference model, an InvariantClassifier or InvariantRegressor; None where it was not needed.
    divided_by_
        What rows are divided by: "aux", "features", "residuals" or "slopes".
    task_
        "classification" or "regression"; None without y.
    n_features_in_, feature_names_in_
        The features, without aux columns.
    n_aux_
        Number of aux columns, 0 without any.

    Notes
    -----
    Any method finds something in any data. On its own training rows "minimax" may reach several times the penalty of
    random splits where nothing differs at all, and "eiil" always reaches a large one, on new rows too, since it reads
    their y. What tells is `strength` on rows that were held out, for "minimax" and "clusters": a ratio of about 1 is
    nothing. A large one says that environments differ, not that invariance over them helps.

    `strength` looks at the slopes less their mean over all rows: that is 0 for a reference model at the minimum of its
    risk, and with l2 or few steps it would hide, by its size, what differs.

    Examples
    --------
    >>> from irmtv import EnvironmentInference, InvariantClassifier
    >>> from irmtv.datasets import make_simulation
    >>> rows = make_simulation(1000, p_s=(0.999, 0.7), random_state=0).train
    >>> X, y, time = rows.x.numpy(), rows.y.numpy(), rows.aux.numpy()
    >>> inference = EnvironmentInference(max_steps=300, learning_rate=2e-2, random_state=0)
    >>> labels = inference.fit_predict(X, y, aux=time)
    >>> bool((labels == rows.environment.numpy()).mean() > 0.9)  # the true ones change in the middle of the time
    True
    >>> bool(inference.strength_.ratio > 10)
    True
    >>> model = InvariantClassifier("irm-tv-l1", hidden=(), max_steps=300).fit(X, y, environment=labels)
    >>> inference.predict(None, aux=[0.1, 0.9])
    array([0, 1])
    """

    def __init__(
        self,
        method: str = "minimax",
        *,
        n_environments: int = 2,
        aux: str | Sequence[str] | None = None,
        hidden: Sequence[int] = (),
        task: str = "auto",
        cluster_on: str = "auto",
        environment_hidden: int = 16,
        max_steps: int = 1000,
        learning_rate: float = 5e-3,
        l2: float = 0.0,
        batch_size: int | str | None = "auto",
        n_shuffles: int = 100,
        device: str = "cpu",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.method = method
        self.n_environments = n_environments
        self.aux = aux
        self.hidden = hidden
        self.task = task
        self.cluster_on = cluster_on
        self.environment_hidden = environment_hidden
        self.max_steps = max_steps
        self.learning_rate = learning_rate
        self.l2 = l2
        self.batch_size = batch_size
        self.n_shuffles = n_shuffles
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    # ---- fitting ----------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, aux: Any = None) -> EnvironmentInference:
        """Learn environments.

        Parameters
        ----------
        X : DataFrame (pandas, polars), array or sparse matrix, (N, D)
            Numbers. Columns that the constructor names as aux are taken out.
        y : (N,), default None
            Labels of two or more classes, or numbers. "clusters" can do without, and then has no `strength_`.
        aux : (N,) or (N, A) numbers, default None
            What environments may be inferred from, where no columns of X say so. "eiil" ignores it.
        """
        self._check_parameters()
        check_row_order(X, y=y, aux=aux)
        columns = split(X, None, self.aux, {"environment": None, "aux": aux}, fitting=True)
        divided_by = self._divides_by(columns.aux is not None)
        if y is None and (self.method != "clusters" or divided_by == "residuals"):
            raise ValueError(
                f"{self._chosen()} requires y to be passed, but the target y is None. Use fit(X, y); "
                "method='clusters' can do without."
            )
        features = as_features(self, columns.features, reset=True)
        self.n_aux_ = 0
        self._aux_names: list[str] | None = None
        rows = _Given(features, self._read_aux(columns.aux, len(features), reset=True), as_labels(y))
        seed = as_seed(self.random_state)
        self.method_, self.divided_by_ = self.method, divided_by
        self._fitted_as, self._aux_columns = self._chosen(), self.aux  # for `predict`, whatever set_params does later
        self.reference_: InvariantClassifier | InvariantRegressor | None = None
        self.task_: str | None = None
        if y is not None and (self.method != "clusters" or divided_by == "residuals" or self.n_shuffles > 0):
            self._fit_reference(rows, seed)
        if self.method == "clusters":
            values = self._clustered(rows)
            # residuals are one quantity in one unit: nothing to bring into line
            one_unit = Scaler(np.zeros(1), np.ones(1))
            scaler = one_unit if divided_by == "residuals" else Scaler.of(values)
            self._clusters = Clusters.of(values, scaler, int(self.n_environments), seed)
        elif self.method == "minimax":
            assert rows.aux is not None
            self._order = np.arange(self.n_environments)
            q = self._membership(rows)  # (N, E)
            mass = q.sum(0).clip(np.finfo(np.float64).tiny)  # an environment may have none at all
            self._order = lexicographic((q / mass).T @ rows.aux)
        self.environments_ = np.array([f"inferred {e + 1}" for e in range(self.n_environments)])
        self.membership_ = self._membership(rows)
        self.labels_ = self.membership_.argmax(1)
        self._warn_of_empty()
        self.strength_: Strength | None = None
        if self.reference_ is not None and self.n_shuffles > 0:
            honest = divided_by in ("aux", "features") and self.method == "clusters"
            self.strength_ = split_strength(self._slopes(rows), self.labels_, self.n_shuffles, seed, honest)
        return self

    def _fit_reference(self, rows: _Given, seed: int) -> None:
        """The ERM; for "minimax" with the network on aux that climbs its penalty beside it."""
        assert rows.features is not None
        self.task_ = self._task_of(rows.y)
        climbing = self.method == "minimax"
        network = {"n_environments": self.n_environments, "environment_hidden": self.environment_hidden}
        kind: Any = InvariantClassifier if self.task_ == "classification" else InvariantRegressor
        model = kind(
            INFERRING if climbing else "erm",
            hidden=self.hidden,
            max_steps=self.max_steps,
            learning_rate=self.learning_rate,
            l2=self.l2,
            batch_size=self.batch_size,
            device=self.device,
            random_state=seed,
            verbose=self.verbose,
            **({**only_inferring(self.max_steps), "objective_params": network} if climbing else {}),
        )
        self.reference_ = model.fit(rows.features, rows.y, aux=rows.aux if climbing else None)

    def fit_predict(self, X: Any, y: Any = None, aux: Any = None) -> Labels:
        """Learn environments, and give those of the training rows: `labels_`."""
        labels: Labels = self.fit(X, y, aux).labels_
        return labels

    # ---- other rows -------------------------------------------------------------------------------------------

    def predict(self, X: Any, y: Any = None, aux: Any = None) -> Labels:
        """The most probable environment of every row: (N,) integers from 0.

        Parameters
        ----------
        X
            Rows like those of training, with or without the aux columns that the constructor names. May be None where
            rows are divided by aux alone.
        y
            For "eiil", and for "clusters" on residuals.
        aux
            For "minimax", and for "clusters" on aux, where it is not in X.
        """
        labels: Labels = self.predict_proba(X, y, aux).argmax(1)
        return labels

    def predict_proba(self, X: Any, y: Any = None, aux: Any = None) -> Floats:
        """Probability of each environment for every row, (N, E); those of "eiil" are 0 and 1. See `predict`."""
        check_is_fitted(self, "labels_")
        return self._membership(self._rows(X, y, aux))

    def strength(self, X: Any, y: Any, aux: Any = None) -> Strength:
        """How much there is in the environments on these rows, which should be other rows than those of `fit`.

        Needs what `predict` needs, and X and y for the slopes of the reference model. For "eiil", and for "clusters" on
        residuals, it says little: these read y, and beat random splits whether there is anything to find or not.
        """
        check_is_fitted(self, "labels_")
        if self.reference_ is None:
            raise ValueError(
                "strength needs a reference model, and this estimator was fitted without: y was not given, or "
                "n_shuffles=0. Use fit(X, y) with n_shuffles=100."
            )
        if X is None or y is None:
            missing = "X" if X is None else "y"
            raise ValueError(
                f"{missing} must be given: the slopes of the reference model are computed from X and y. Got None. Use "
                "strength(X, y), with aux=... where environments are inferred from it."
            )
        rows = self._rows(X, y, aux)
        honest = self.divided_by_ in ("aux", "features")
        return split_strength(
            self._slopes(rows),
            self._membership(rows).argmax(1),
            max(1, self.n_shuffles),
            as_seed(self.random_state),
            honest,
        )

    def _rows(self, X: Any, y: Any, aux: Any) -> _Given:
        """Checked against what the rows of `fit` were."""
        features = None
        if X is not None:
            check_row_order(X, y=y, aux=aux)
            columns = split(X, None, self._aux_columns, {"environment": None, "aux": aux}, fitting=False)
            features, aux = as_features(self, columns.features, reset=False), columns.aux
        if features is None and self.divided_by_ != "aux":
            raise ValueError(
                f"X must be given: {self._fitted_as} divides rows by their {self.divided_by_}. Got None. Use "
                "predict(X)."
            )
        needs_aux = self.divided_by_ == "aux"
        if needs_aux and aux is None:
            columns_of_x = (
                ""
                if self._aux_columns is None
                else f"keep {shown(np.atleast_1d(self._aux_columns).tolist())} in X, or "
            )
            raise ValueError(
                f"aux must be given: {self._fitted_as} divides rows by aux. Got None. To do: {columns_of_x}pass "
                "values, predict(X, aux=...)."
            )
        if self.divided_by_ in ("slopes", "residuals") and y is None:
            raise ValueError(
                f"y must be given: {self._fitted_as} divides rows by the {self.divided_by_} of the reference model, "
                "which depend on the label of each row. Got None. Use predict(X, y); for rows without labels use "
                "method='minimax', or method='clusters' on aux or features."
            )
        n_rows = None if features is None else len(features)
        return _Given(features, self._read_aux(aux, n_rows, reset=False) if needs_aux else None, as_labels(y))

    def _membership(self, rows: _Given) -> Floats:
        """(N, E), rows sum to 1."""
        if self.method_ == "clusters":
            return self._clusters.membership(self._clustered(rows))
        if self.method_ == "minimax":
            assert self.reference_ is not None and self.reference_.predictor_.rho is not None
            q = self.reference_.predictor_.rho.membership(torch.as_tensor(rows.aux))
            result: Floats = q.numpy()[:, self._order]
            return result
        first = exact_split(torch.as_tensor(self._slopes(rows))).numpy()
        return np.stack([first, 1 - first], 1)

    def _clustered(self, rows: _Given) -> Floats:
        """What k-means sees: (N, A)."""
        if self.divided_by_ == "aux":
            assert rows.aux is not None
            return rows.aux
        if self.divided_by_ == "features":
            assert rows.features is not None
            return rows.features
        f, y, loss = self._reference_outputs(rows)
        if self.task_ == "classification":
            surprise = 1 - torch.exp(-loss.value(f, y))  # 1 - the probability of the row's own class
            return surprise.reshape(-1, 1).numpy()
        return loss.residual(f, y).reshape(f.shape[2], -1).numpy()

    def _slopes(self, rows: _Given) -> Floats:
        """Of the reference model, (N,)."""
        f, y, loss = self._reference_outputs(rows)
        result: Floats = loss.value_and_slope(f, y)[1].flatten().numpy()
        return result

    def _reference_outputs(self, rows: _Given) -> tuple[torch.Tensor, torch.Tensor, Loss]:
        """Logits (1, 1, N) or (1, 1, N, C), targets like them, and the loss; y standardised for regression."""
        assert self.reference_ is not None and rows.features is not None
        predictor = self.reference_.predictor_
        target, loss, n_outputs, *_ = self.reference_._encode(rows.y)
        check_length(len(target), len(rows.features), "y")
        if predictor.y is not None:
            expected = len(predictor.y.mean)
            if n_outputs != expected:
                raise ValueError(f"y must have the targets of fit, {expected}. Got {n_outputs}. Select the same.")
            target = torch.as_tensor(predictor.y(target.numpy().reshape(len(target), -1))).reshape(target.shape)
        logits = torch.as_tensor(replace(predictor, y=None).logits(rows.features))
        return logits[None, None], target[None, None], loss

    # ---- files ------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the fitted estimator to a file that `irmtv.load` reads; it holds no code, and reading runs none.

        Of the training rows it holds `membership_` and nothing else.
        """
        from irmtv.estimators.files import save  # which knows all estimators

        return save(self, path)

    # ---- what was asked for -----------------------------------------------------------------------------------

    def _chosen(self) -> str:
        clusters = self.method == "clusters"
        return f"{type(self).__name__}(method={self.method!r}{f', cluster_on={self.cluster_on!r}' if clusters else ''})"

    def _check_parameters(self) -> None:
        for name, known in (("method", METHODS), ("cluster_on", CLUSTER_ON), ("task", TASKS)):
            value = getattr(self, name)
            if value not in known:
                raise ValueError(f"{name} must be one of {list(known)}. Got {value!r}.{did_you_mean(value, known)}")
        for name, least in (("n_environments", 2), ("n_shuffles", 0)):
            value = getattr(self, name)
            if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}. Got {value!r}.")
        if self.method == "eiil" and self.n_environments != 2:
            raise ValueError(
                f"n_environments must be 2 for method='eiil', which divides rows by the sign of their slopes. Got "
                f"{self.n_environments}. Use method='minimax' or 'clusters' for more."
            )

    def _divides_by(self, has_aux: bool) -> str:
        if self.method == "eiil":
            return "slopes"
        if self.method == "clusters" and self.cluster_on != "aux":
            return ("aux" if has_aux else "features") if self.cluster_on == "auto" else self.cluster_on
        if not has_aux:
            raise ValueError(
                f"aux must be given for {self._chosen()}: numbers that environments are inferred from (a time, a "
                "place). Got none. Name columns of X, aux=['year'], or pass values, fit(X, y, aux=...); method='eiil' "
                "needs none."
            )
        return "aux"

    def _task_of(self, y: Any) -> str:
        if self.task != "auto":
            return self.task
        values = np.asarray(y)
        kind = type_of_target(values, input_name="y")
        numbers = values.dtype.kind in "iuf"
        if kind.startswith("continuous") or (numbers and (values.ndim == 2 and values.shape[1] > 1)):
            return "regression"
        return "regression" if numbers and len(np.unique(values)) > FEW_VALUES else "classification"

    def _read_aux(self, aux: Any, n_rows: int | None, reset: bool) -> Floats | None:
        if aux is None:
            return None
        given = count_rows(aux)
        if reset:
            names = list(aux.columns) if is_frame(aux) else []
            self._aux_names = names if names and all(isinstance(name, str) for name in names) else None
        else:
            aux = match_columns(aux, self._aux_names, "aux")
        tensor = read_aux(aux, given if n_rows is None else n_rows)
        assert tensor is not None
        read: Floats = tensor.numpy()
        if reset:
            self.n_aux_ = read.shape[1]
        elif read.shape[1] != self.n_aux_:
            raise ValueError(
                f"aux must have the columns of fit, {self.n_aux_}. Got {read.shape[1]}. Select the same, in order."
            )
        return read

    def _warn_of_empty(self) -> None:
        counts = np.bincount(self.labels_, minlength=self.n_environments)
        if (counts == 0).any():
            why = {
                "eiil": "The reference model's slopes all have one sign (it may fit every row): set l2 > 0, or fewer "
                "max_steps",
                "minimax": "aux may have nothing to divide rows by, or max_steps may be too few"
                if self.n_environments == 2
                else "Two reach the largest penalty: use n_environments=2, or method='clusters' for more",
                "clusters": "Use fewer n_environments",
            }
            empty = self.environments_[counts == 0].tolist()
            warnings.warn(
                f"{shown(empty)} of {self.n_environments} environments {'is' if len(empty) == 1 else 'are'} the most "
                f"probable of no row. {why[self.method]}.",
                UserWarning,
                stacklevel=users_stacklevel(),
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = self.method != "clusters" or self.cluster_on == "residuals"
        return tags
