"""InvariantRegressor: a scikit-learn regressor that keeps working when the environment changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score

from irmtv.data.training import TrainingData
from irmtv.estimators.base import InvariantEstimator

Floats = npt.NDArray[np.float64]


class InvariantRegressor(RegressorMixin, InvariantEstimator):  # type: ignore[misc]  # scikit-learn is not annotated
    """A regressor, for one or several targets, whose squared error has little total variation over environments.

    y is standardised on the training rows; predictions and `coef_` are in the user's units.

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
    n_features_in_, feature_names_in_
        The features, without environment and aux columns.
    coef_, intercept_
        Of a linear model, in the user's units: (D,) and a number, or (T, D) and (T,).
    environments_, environment_weights_
        The training environments, and what each counts (its share of the rows, unless the measure is another); of a
        mean of several models with inferred environments, those of the first.
    history_ : DataFrame
        One row per snapshot and environment: risk and slope of standardised y, and on which rows; of the first model
        where several are averaged.
    selected_
        Which step was kept, and by which rule.
    n_iter_
        The step of the model that is kept.
    objective_
        The name of the objective that was trained.

    Examples
    --------
    >>> import numpy as np
    >>> from irmtv import InvariantRegressor
    >>> rng = np.random.default_rng(0)
    >>> X, site = rng.normal(size=(300, 3)), np.repeat([0, 1, 2], 100)
    >>> y = 10 * X[:, 0] + 50 + site * X[:, 1] + rng.normal(size=300)
    >>> reg = InvariantRegressor("irm-tv-l1", hidden=(), max_steps=500, random_state=0).fit(X, y, environment=site)
    >>> reg.coef_.shape, bool(abs(reg.intercept_ - 50) < 2)
    ((3,), True)
    """

    _loss_name = "squared"

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
        self.warm_start = warm_start
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self, X: Any, y: Any, *, environment: Any = None, aux: Any = None, sample_weight: Any = None
    ) -> InvariantRegressor:
        """Train.

        Parameters
        ----------
        X : DataFrame (pandas, polars), array or sparse matrix, (N, D)
            Numbers. Columns that the constructor names as environment and aux are taken out. A sparse matrix is made
            dense, here with a warning, in predictions without.
        y : (N,) or (N, T)
            Numbers; several columns are several targets.
        environment : (N,) labels, default None
            Where each row came from, where no column of X says so.
        aux : (N,) or (N, A) numbers, default None
            What environments may be inferred from, where no columns of X say so.
        sample_weight : (N,), default None
            What each row counts, in the risk, the slopes and the masses of environments.

        Returns
        -------
        InvariantRegressor
            Itself, fitted. After Ctrl-C it is fitted as it was at that step, with a warning.
        """
        result: InvariantRegressor = self._fit(X, y, environment, aux, sample_weight)
        return result

    def _keep_target(self, data: TrainingData[Any]) -> None:
        self._targets = data.y_shape

    def _set_linear(self, coef: Floats, intercept: Floats) -> None:
        one = self._targets == ()
        self.coef_ = coef[0] if one else coef
        self.intercept_: Any = float(intercept[0]) if one else intercept

    def _output_names(self) -> list[str]:
        return [f"target {k}" for k in range(self._targets[0] if self._targets else 1)]

    def predict(self, X: Any, aux: Any = None) -> Floats:
        """Predictions in the units of y: (N,) or (N, T).

        Parameters
        ----------
        X : DataFrame, array or sparse matrix
            Rows like those of training; environment and aux columns may be there and are ignored.
        aux : (N,) or (N, A) numbers, default None
            For objectives whose predictor reads it beside X ("tiva"), where no columns of X say so.
        """
        outputs = self._outputs(X, aux)
        return outputs[:, None] if self._targets == (1,) else outputs

    def score(self, X: Any, y: Any, sample_weight: Any = None, aux: Any = None) -> float:
        """R^2, the mean over several targets; `evaluate` tells the squared error by environment."""
        return float(r2_score(y, self.predict(X, aux), sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags
