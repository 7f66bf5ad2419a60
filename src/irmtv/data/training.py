"""`read_training_data`: what is given to `fit` -> the rows that a model trains on, for networks and trees alike."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_y, column_or_1d
from torch import Tensor

from irmtv.core.losses import Loss, as_loss
from irmtv.core.messages import check_length, check_positive, did_you_mean, plain, plain_repr, shown
from irmtv.core.types import Rows, Task, drop_zero_weight
from irmtv.data.categories import CategoricalColumns
from irmtv.data.columns import refuse_lazy, split
from irmtv.data.environments import as_labels, check_environments, encode_labels, pool, warn_of_copies
from irmtv.data.features import as_features
from irmtv.data.rows import LEAVE_OUT, RawRows, check_finite, check_row_order, read_aux, read_weight, readable
from irmtv.data.scaling import Scaler
from irmtv.objectives.base import Objective

Floats = npt.NDArray[np.float64]
Array = npt.NDArray[Any]
X = TypeVar("X", Scaler, CategoricalColumns)
TargetKind = Literal["classes", "numbers", "one number"]


@dataclass(frozen=True)
class TrainingData(Generic[X]):
    """The training rows as a task, how features and target became numbers, and the objective to train."""

    task: Task
    x: X
    y: Scaler | None  # of a regression
    objective: Objective
    classes: Array | None = None  # of a classification
    y_shape: tuple[int, ...] = ()  # of one row's y, as the user gave it: () or (targets,)


@dataclass(frozen=True)
class WholeRows:
    """What a sample of rows has of all rows that it was drawn from, in place of its own."""

    x: Scaler | CategoricalColumns
    y: Scaler | None  # of a regression
    classes: Array | None  # of a classification
    names: tuple[Hashable, ...]  # of environments, after small ones were pooled; () without


class EncodedTarget(NamedTuple):
    """y as the loss wants it, in the user's units."""

    values: Tensor  # (N,) or (N, C) float64, or (N,) int64 classes
    loss: Loss
    n_outputs: int
    classes: Array | None = None
    shape: tuple[int, ...] = ()  # of one row, before (N, 1) became (N,)


@dataclass(frozen=True)
class InputSettings:
    """How the input of an estimator is read."""

    environment: Any  # column name of X, or None
    aux: Any  # one or several column names of X, or None
    min_rows: int  # smaller environments are pooled
    keep_labels: bool  # whether environment labels serve training or selection
    target: TargetKind
    features: Literal["standardised numbers", "numbers, gaps and categories"]
    class_weight: Any = None  # as in scikit-learn
    classes: Array | None = None  # of a warm start: those of the present model
    dtype: torch.dtype = torch.float64
    series: bool = False  # whether X may be (rows, channels, length)
    present: tuple[Scaler, Scaler | None] | None = None  # of a warm start: scalers of x and y of the present model
    keep_units: bool = False  # whether x and y stay in the units of that model
    whole: WholeRows | None = None  # the rows are a sample of these; environments are codes into its names


def read_training_data(
    estimator: BaseEstimator,
    raw: RawRows,
    objective: Objective,
    settings: InputSettings,
) -> TrainingData[Any]:
    """Check everything that was given to `fit`, scale it, and make a task of it.

    Parameters
    ----------
    estimator : its `n_features_in_` and `feature_names_in_` are set, by scikit-learn.
    raw : X, y, environment, aux and sample_weight as the user gave them.
    objective : what will be trained; it says whether environments are needed.
    settings : how the input is read.
    """
    beside = {"environment": raw.environment, "aux": raw.aux}
    check_row_order(raw.x, y=raw.y, **beside, sample_weight=raw.sample_weight)
    columns = split(raw.x, settings.environment, settings.aux, beside, fitting=True)
    name = type(estimator).__name__
    if raw.y is None:
        raise ValueError(f"{name} requires y to be passed, but the target y is None. Use fit(X, y).")
    refuse_lazy(y=raw.y)
    check_positive(settings.min_rows, "min_rows")
    try:
        features, categories = _read_features(estimator, columns.features, settings)
        with readable("y"):
            classes = settings.classes if settings.whole is None else settings.whole.classes
            target = read_y(raw.y, estimator, settings.target, classes)
    except ValueError as error:
        if settings.present is None:
            raise
        raise ValueError(
            f"{error} warm_start=True goes on from a model of other rows; use set_params(warm_start=False) to start "
            "anew."
        ) from error
    check_length(len(target.values), len(features), "y")
    counts = raw.sample_weight
    if settings.class_weight is not None and target.classes is not None:
        counts = _weigh_classes(counts, raw.y, settings.class_weight, target.classes)
    weight = read_weight(counts, len(features))
    _check_weighted_classes(target, weight)
    kept_x, kept_y = _kept_scalers(settings)
    x_reader: Scaler | CategoricalColumns
    if categories is None:
        x_reader = kept_x or Scaler.of(features, _numpy(weight))
        x = x_reader.tensor(features, settings.dtype)
    else:
        x_reader = categories
        # torch takes no array that must not be written to
        x = torch.from_numpy(features if features.flags.writeable else features.copy())
    y, y_scaler = target.values, None
    if target.loss.name == "squared":
        numbers = y.numpy().reshape(len(y), -1)
        y_scaler = kept_y or Scaler.of(numbers, _numpy(weight), constant=1.0)
        y = torch.as_tensor(y_scaler(numbers).reshape(y.shape))
    y = y.to(settings.dtype) if y.is_floating_point() else y
    rows = Rows(x, y, aux=read_aux(columns.aux, len(features)), weight=weight)
    names = getattr(estimator, "feature_names_in_", None)
    with readable("environment"):
        rows = _with_environments(rows, columns.environment, objective, settings, names)
    task = Task(rows, target.loss, target.n_outputs, name=name)
    return TrainingData(task, x_reader, y_scaler, objective, target.classes, target.shape)


def _kept_scalers(settings: InputSettings) -> tuple[Scaler | None, Scaler | None]:
    """Of x and y, where they are not those of these rows."""
    whole = settings.whole
    if whole is not None:
        return whole.x if isinstance(whole.x, Scaler) else None, whole.y
    return settings.present if settings.present is not None and settings.keep_units else (None, None)


def _read_features(
    estimator: BaseEstimator, x: Any, settings: InputSettings
) -> tuple[Floats, CategoricalColumns | None]:
    if settings.features == "numbers, gaps and categories":
        if settings.whole is not None and isinstance(settings.whole.x, CategoricalColumns):
            return settings.whole.x.fitted(estimator, x), settings.whole.x
        columns, values = CategoricalColumns.of(estimator, x)
        return values, columns
    like = None if settings.present is None else settings.present[0]
    return as_features(estimator, x, like is None, settings.series, like), None


def _check_weighted_classes(target: EncodedTarget, weight: Tensor | None) -> None:
    if weight is None or target.loss.name == "squared":
        return
    if len(np.unique(target.values[weight > 0].numpy())) < 2:
        raise ValueError(
            "y must have two or more classes among the rows that count. Got 1 class: rows of others have weight 0."
        )


def _with_environments(
    rows: Rows, labels: Any, objective: Objective, settings: InputSettings, feature_names: Sequence[Any] | None
) -> Rows:
    """Rows that count, with their environments. A row of weight 0 is as if it were not there."""
    if labels is None:
        return drop_zero_weight(rows)
    if settings.whole is not None:
        codes, of_all = np.asarray(labels, dtype=np.int64), settings.whole.names
        if not settings.keep_labels or not of_all:
            return rows
        warn_of_copies(rows.x.numpy(), codes, len(of_all), feature_names)
        return replace(rows, environment=torch.from_numpy(codes), names=of_all)
    codes, names = encode_labels(as_labels(labels), "environment", len(rows))
    if not settings.keep_labels:
        return drop_zero_weight(rows)
    rows = drop_zero_weight(replace(rows, environment=torch.as_tensor(codes), names=tuple(names)))
    assert rows.environment is not None
    codes, names = rows.environment.numpy(), list(rows.names)
    min_rows = int(settings.min_rows)
    check_environments(codes, names, min_rows, objective.needs == "environment")
    warn_of_copies(rows.x.numpy(), codes, len(names), feature_names)
    pooled, kept, _ = pool(codes, names, min_rows)
    return replace(rows, environment=pooled, names=kept)


def _numpy(weight: Tensor | None) -> Floats | None:
    return None if weight is None else weight.numpy()


# ---- y, as scikit-learn checks it ---------------------------------------------------------------------------------


def read_y(y: Any, estimator: BaseEstimator, kind: TargetKind, classes: Array | None = None) -> EncodedTarget:
    """y as the loss wants it; without `classes` these rows decide what classes there are."""
    if kind != "classes":
        return _encode_numbers(_read_numbers(y, estimator, kind == "one number"))
    labels = _one_kind(_check_y(_known(y), estimator=estimator))  # (N,), nothing missing
    return _encode_classes(labels, _distinct_classes(labels, estimator) if classes is None else classes)


def _distinct_classes(labels: Array, estimator: BaseEstimator) -> Array:
    """The classes of the training rows, sorted: two or more."""
    try:
        check_classification_targets(labels)
    except ValueError as error:
        if "continuous" not in str(error):
            raise
        regressor = type(estimator).__name__.replace("Classifier", "Regressor")
        raise ValueError(f"{error} Use {regressor}, or make classes of them: pandas.qcut(y, 4).") from error
    classes: Array = np.unique(labels)
    if not len(labels):
        raise ValueError("y must have a class for every row of X. Got 0 rows. Check the filter that made it.")
    if len(classes) < 2:
        raise ValueError(
            f"y must have two or more classes. Got 1 class, {plain_repr(classes[0])}, in {len(labels)} rows. "
            "Check the filter that made it."
        )
    return classes


def _encode_classes(labels: Array, classes: Array) -> EncodedTarget:
    """Labels as positions in `classes`: floats 0 and 1 of two classes, integers of more."""
    codes = np.searchsorted(classes, labels).clip(0, len(classes) - 1)
    unknown = classes[codes] != labels
    if unknown.any():
        raise ValueError(
            f"y must hold classes of the training rows, {shown(classes)}. Got {shown(np.unique(labels[unknown]))}."
        )
    if len(classes) == 2:
        return EncodedTarget(torch.as_tensor(codes.astype(np.float64)), as_loss("binary", 1), 1, classes)
    n = len(classes)
    return EncodedTarget(torch.as_tensor(codes.astype(np.int64)), as_loss("multiclass", n), n, classes)


def _read_numbers(y: Any, estimator: BaseEstimator, one_target: bool) -> Floats:
    """Numbers (N,) or (N, T); text and dates are refused with what to do instead."""
    shape = np.asarray(y).shape if one_target else ()
    if len(shape) == 2 and shape[1] > 1:
        raise ValueError(
            f"y must be (rows,), one target. Got shape {shape}. Fit one booster per target: "
            "sklearn.multioutput.MultiOutputRegressor(estimator)."
        )
    y = column_or_1d(y, warn=True) if len(shape) == 2 else y
    try:
        array = _check_y(_known(y), multi_output=True, y_numeric=True, estimator=estimator)
        # a copy: torch takes no array that must not be written to
        return np.array(array, dtype=np.float64)
    except ValueError as error:
        if "could not convert string" not in str(error):
            raise
        text = str(error).split(":")[-1].strip().removeprefix("np.str_(").removesuffix(")")
        raise ValueError(
            f"y must be numbers for {type(estimator).__name__}. Got text, {text} (could not convert string to float). "
            f"For classes use {type(estimator).__name__.replace('Regressor', 'Classifier')}."
        ) from error


def _encode_numbers(values: Floats) -> EncodedTarget:
    """One or several targets; (N, 1) is (N,)."""
    shape = values.shape[1:]
    if shape == (1,):
        values = values[:, 0]
    outputs = 1 if values.ndim == 1 else values.shape[1]
    return EncodedTarget(torch.as_tensor(values), as_loss("squared", outputs), outputs, shape=shape)


def _weigh_classes(sample_weight: Any, y: Any, class_weight: Any, classes: Array) -> Any:
    """What each row counts, times the weight of its class; "balanced" counts rows by their `sample_weight`."""
    _check_class_weight(class_weight, classes)
    labels = _one_kind(column_or_1d(y))
    weight = read_weight(sample_weight, len(labels))
    if weight is None:
        return compute_sample_weight(class_weight, labels)
    if class_weight != "balanced":
        return compute_sample_weight(class_weight, labels) * weight.numpy()
    _, codes = np.unique(labels, return_inverse=True)
    total = np.bincount(codes, weight.numpy())  # a row of weight 2 counts as two rows
    return weight.numpy() * (total.sum() / ((total > 0).sum() * np.where(total > 0, total, 1)))[codes]


def _known(y: Any) -> Any:
    """y as it came, if nothing is missing and it holds no dates; else an error that says where."""
    refuse_lazy(y=y)
    array = np.asarray(as_labels(y)) if hasattr(y, "__len__") else None
    if array is None or array.ndim == 0:
        return y
    if array.dtype.kind in "mM":
        raise ValueError(
            f"y must be numbers or labels. Got dates ({array.dtype}). Make numbers of them: y.astype('int64'), or the "
            "year, y.dt.year."
        )
    check_finite(array, "y", to_do=LEAVE_OUT)
    return y


def _one_kind(y: Any) -> Array:
    """y with Python numbers among objects as numbers, as a column of a table may hold them; labels of one kind."""
    array = np.asarray(y)
    if array.dtype != object:
        return array
    labels: Array = pd.Series(array).infer_objects().to_numpy()
    kinds = {type(plain(label)).__name__ for label in labels} if labels.dtype == object else set()
    if len(kinds) > 1:
        raise ValueError(
            f"y must hold labels of one kind. Got {' and '.join(sorted(kinds))}. Use y.astype(str), for example."
        )
    return labels


def _check_class_weight(weight: Any, classes: Array) -> None:
    """Before scikit-learn reads it, whose messages name a function of its own."""
    if isinstance(weight, str) and weight != "balanced":
        raise ValueError(
            f"class_weight must be 'balanced', a dict or None. Got {weight!r}.{did_you_mean(weight, ['balanced'])}"
        )
    if isinstance(weight, str):
        return
    if not isinstance(weight, Mapping):
        raise ValueError(
            f"class_weight must be 'balanced', a dict of class to weight, or None. Got {weight!r}. Use "
            f"class_weight={{{plain_repr(classes[0])}: 1, {plain_repr(classes[1])}: 2}}, for example."
        )
    known = classes.tolist()
    unknown = [label for label in weight if label not in known]
    # a class that these rows happen not to have is no error where all others have their weight, as in scikit-learn
    if unknown and any(label not in weight for label in known):
        raise ValueError(
            f"class_weight must name classes of y, {shown(known)}. Got {shown(unknown)}."
            f"{did_you_mean(unknown[0], known)} Classes that are left out have weight 1."
        )
    for label, value in weight.items():
        good = isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and 0 <= value < np.inf
        if not good:
            raise ValueError(
                f"class_weight must be finite numbers of at least 0. Got {plain_repr(value)} for class "
                f"{plain_repr(label)}. Use 0 to leave a class out."
            )
