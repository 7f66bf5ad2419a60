"""InvariantClassifier: a scikit-learn classifier that keeps working when the environment changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score

from irmtv.data.training import TargetKind, TrainingData
from irmtv.estimators.base import InvariantEstimator

Floats = npt.NDArray[np.float64]


class InvariantClassifier(ClassifierMixin, InvariantEstimator):  # type: ignore[misc]  # scikit-learn is not annotated
    """A classifier whose risk has little total variation over environments.

    Parameters
    ----------
    objective : str, default "auto"
        A name in `irmtv.OBJECTIVES` or a sum of them ("irm-tv-l1+vrex"). "auto" is "irm-tv-l1" where environments are
        given, "minimax-tv-l1" where only aux is.
    environment : str or None, default None
        The column of X that says where each row came from; it is taken out of X. Values may be passed to `fit`
        instead. Prediction does not need it. An integer is a name, too, where columns are named so.
    aux : str, list of str or None, default None
        Columns of X (numbers) that environments are inferred from, where none are given; taken out of X. Prediction
        does not need them, except for "tiva".
    hidden : sequence of int, default (32,)
        Widths of the hidden layers; () is a linear model. "eills" and "hrm", which are linear, take the default for ().
    penalty_weight : float, mapping, str or None, default 1e3
        lambda; "adaptive", "adaptive-exact" and "learned" let it follow the model; a mapping has one number per part
        of a sum; None is the objective's own default, which is not 1e3 for "mm-rex", "sparse-irm" and "ood-tv-...".
        Objectives without a penalty ignore it.
    module : callable or None, default None
        A function without arguments that returns a new `torch.nn.Module`, in place of `hidden`: rows to (N,) or (N, C).
        X may then be (rows, channels, length). A function that can be imported can be pickled; a lambda cannot.
    classifier : {"scalar", "vector"}, default "scalar"
        What the risk's slope is taken in: one factor of the outputs, or one per input of the last layer.
    objective_params : dict or None, default None
        Further hyper-parameters of the objective; `irmtv list NAME` shows them.
    warmup : int, float or None, default 0.5
        Steps (int), or share of the steps (float), before the penalty acts; None is the objective's own default.
    max_steps : int, default 2000
        Gradient steps.
    learning_rate : float, default 0.02
        Of Adam.
    l2 : float, default 1e-3
        Weight of the sum of squares of all parameters, biases too. Without it a network with hidden layers learns a few
        thousand rows by heart in the default steps.
    batch_size : int, "auto" or None, default "auto"
        Rows per step; None is all rows, "auto" all rows below 100,000, else 1,024.
    solver : {"auto", "newton", "adam", "subgradient"}, default "auto"
        "newton" is for linear models: second-order steps along a path of rising penalty weights, to a stationary
        point. It needs no learning rate, steps, warm-up or batches, and computes in float64. "auto" takes it where
        `hidden=()`, the objective is smooth enough and the table not too large; else Adam. "eills" always takes it.
    start : str or None, default None
        Where training starts: "erm", "small", "random", "environment" (the model of the environment on which ERM is
        worst) or, of Newton's method, "equal-risks". None is "erm" for Newton's method, else "random". The penalised
        risk has several minima, and the start decides which is found; the CV estimators try more than one.
    layer : int or None, default None
        For linear models on columns that are mixtures of others (sensors, pixels, embeddings): read this many
        directions of X, the principal ones, turned so that those which differ most between environments come first.
    early_stopping : None, bool, "iid" or "worst-env", default None
        Keep the step with the lowest risk on held-out rows: over all of them ("iid", True) or in the worst environment.
        Such rows look like those of training: steps before the penalty acts often win. The CV estimators choose by
        invariance instead.
    validation_fraction : float, default 0.1
        Share of the rows of every environment that `early_stopping` holds out.
    min_rows : int, default 10
        Environments with fewer rows are pooled into one, with a warning.
    class_weight : dict, "balanced" or None, default None
        Weights of the classes, as in scikit-learn; "balanced" counts rows by their `sample_weight`.
    warm_start : bool, default False
        Whether another call of `fit` goes on from the present model; it may have other rows, in other units, but the
        same features and outputs. Inferred environments and the optimizer start anew.
    device : str, default "cpu"
        "cpu", "cuda" or "auto".
    dtype : {"float32", "float64"}, default "float32"
        Precision of training. "float64" is slower, and repeats a fit to many digits where rows come in another order or
        as weights.
    random_state : int, RandomState or None, default None
        Where the parameters start, and whatever else is drawn.
    verbose : int, default 0
        1 shows a progress bar.

    Attributes
    ----------
    classes_
        The labels.
    n_features_in_, feature_names_in_
        The features, without environment and aux columns.
    coef_, intercept_
        Of a linear model, in the user's units: (1, D) or (C, D), and (1,) or (C,).
    environments_, environment_weights_
        The training environments, and what each counts (its share of the rows, unless the measure is another); of a
        mean of several models with inferred environments, those of the first.
    history_ : DataFrame
        One row per snapshot and environment: risk, slope, accuracy, and on which rows; of the first model where several
        are averaged.
    selected_
        Which step was kept, and by which rule.
    n_iter_
        The step of the model that is kept.
    objective_
        The name of the objective that was trained.

    Examples
    --------
    >>> import numpy as np
    >>> from irmtv import InvariantClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, 600)
    >>> site = np.repeat(["a", "b"], 300)
    >>> right = np.where(rng.random(600) < np.repeat([0.95, 0.7], 300), y, 1 - y)  # agrees more often at one site
    >>> X = np.c_[y + rng.normal(size=600), 2 * right + 0.5 * rng.normal(size=600)]
    >>> clf = InvariantClassifier(hidden=(), max_steps=500, random_state=0).fit(X, y, environment=site)
    >>> bool(abs(clf.coef_[0, 0]) > abs(clf.coef_[0, 1]))
    True

    A table with the sites in one of its columns, which prediction does not need:

    >>> import pandas as pd
    >>> table = pd.DataFrame({"marker": X[:, 0], "scanner": X[:, 1], "site": site})
    >>> clf = InvariantClassifier(environment="site", hidden=(), max_steps=500, random_state=0).fit(table, y)
    >>> clf.predict(table[["marker", "scanner"]]).shape, clf.evaluate(table, y).names
    ((600,), ('a', 'b'))
    """

    _loss_name = "binary"
    _target: TargetKind = "classes"

    def __init__(
        self,
        objective: str = "auto",
        *,
        environment: str | None = None,
        aux: str | Sequence[str] | None = None,
        hidden: Sequence[int] | str = (32,),
        penalty_weight: float | str | Mapping[str, float] | None = 1e3,
        module: Callable[[], torch.nn.Module] | None = None,
        classifier: str = "scalar",
        objective_params: Mapping[str, Any] | None = None,
        warmup: int | float | None = 0.5,
        max_steps: int = 2000,
        learning_rate: float = 0.02,
        l2: float = 1e-3,
        batch_size: int | str | None = "auto",
        solver: str = "auto",
        start: str | None = None,
        layer: Any = None,
        early_stopping: bool | str | None = None,
        validation_fraction: float = 0.1,
        min_rows: int = 10,
        class_weight: Mapping[Any, float] | str | None = None,
        warm_start: bool = False,
        device: str = "cpu",
        dtype: str = "float32",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.objective = objective
        self.environment = environment
        self.aux = aux
        self.hidden = hidden
        self.penalty_weight = penalty_weight
        self.module = module
        self.classifier = classifier
        self.objective_params = objective_params
        self.warmup = warmup
        self.max_steps = max_steps
        self.learning_rate = learning_rate
        self.l2 = l2
        self.batch_size = batch_size
        self.solver = solver
        self.start = start
        self.layer = layer
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.min_rows = min_rows
        self.class_weight = class_weight
        self.warm_start = warm_start
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self, X: Any, y: Any, *, environment: Any = None, aux: Any = None, sample_weight: Any = None
    ) -> InvariantClassifier:
        """Train.

        Parameters
        ----------
        X : DataFrame (pandas, polars), array or sparse matrix, (N, D)
            Numbers. Columns that the constructor names as environment and aux are taken out. A sparse matrix is made
            dense, here with a warning, in predictions without.
        y : (N,)
            Labels of two or more classes.
        environment : (N,) labels, default None
            Where each row came from, where no column of X says so.
        aux : (N,) or (N, A) numbers, default None
            What environments may be inferred from, where no columns of X say so.
        sample_weight : (N,), default None
            What each row counts, in the risk, the slopes and the masses of environments.

        Returns
        -------
        InvariantClassifier
            Itself, fitted. After Ctrl-C it is fitted as it was at that step, with a warning.
        """
        result: InvariantClassifier = self._fit(X, y, environment, aux, sample_weight)
        return result

    def _keep_target(self, data: TrainingData[Any]) -> None:
        assert data.classes is not None
        self.classes_ = data.classes

    def _output_names(self) -> list[str]:
        return [str(label) for label in self.classes_]

    def decision_function(self, X: Any, aux: Any = None) -> Floats:
        """The logits: (N,) for two classes, positive for `classes_[1]`; (N, C) for more.

        Parameters
        ----------
        X : DataFrame, array or sparse matrix
            Rows like those of training; environment and aux columns may be there and are ignored.
        aux : (N,) or (N, A) numbers, default None
            For objectives whose predictor reads it beside X ("tiva"), where no columns of X say so.
        """
        return self._outputs(X, aux)

    def predict_proba(self, X: Any, aux: Any = None) -> Floats:
        """Probabilities of the classes: (N, C), columns in the order of `classes_`; see :meth:`decision_function`."""
        logits = self._outputs(X, aux)
        if logits.ndim == 1:
            return np.stack([expit(-logits), expit(logits)], 1)
        result: Floats = softmax(logits, axis=1)
        return result

    def predict(self, X: Any, aux: Any = None) -> npt.NDArray[Any]:
        """The most probable class of every row: (N,); see :meth:`decision_function`."""
        logits = self._outputs(X, aux)
        codes = (logits > 0).astype(int) if logits.ndim == 1 else logits.argmax(1)
        result: npt.NDArray[Any] = self.classes_[codes]
        return result

    def score(self, X: Any, y: Any, sample_weight: Any = None, aux: Any = None) -> float:
        """Share of the rows whose class is predicted; `evaluate` tells it by environment."""
        return float(accuracy_score(y, self.predict(X, aux), sample_weight=sample_weight))
