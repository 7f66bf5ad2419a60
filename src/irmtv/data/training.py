"""`read_training_data`: what is given to `fit` -> the rows that a model trains on, for networks and trees alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from irmtv.core.messages import check_length, check_positive
from irmtv.core.types import Rows, Task, that_count
from irmtv.data.columns import refuse_lazy, split
from irmtv.data.environments import as_labels, check_environments, encode_labels, pool, warn_of_copies
from irmtv.data.features import CategoricalColumns, as_features
from irmtv.data.rows import RawRows, check_row_order, read_aux, read_weight
from irmtv.data.scaling import Scaler
from irmtv.data.sklearn_target import EncodedTarget
from irmtv.objectives.base import Objective

Floats = npt.NDArray[np.float64]
X = TypeVar("X", Scaler, CategoricalColumns)


@dataclass(frozen=True)
class TrainingData(Generic[X]):
    """The training rows as a task, how features and target became numbers, and the objective to train."""

    task: Task
    x: X
    y: Scaler | None  # of a regression
    objective: Objective


@dataclass(frozen=True)
class InputSettings:
    """How the input of an estimator is read."""

    features: Literal["standardised numbers", "numbers, gaps and categories"]
    environment: Any  # column name of X, or None
    aux: Any  # one or several column names of X, or None
    min_rows: int  # smaller environments are pooled
    keep_labels: bool = True  # whether environment labels serve training or selection
    dtype: torch.dtype = torch.float64
    series: bool = False  # whether X may be (rows, channels, length)
    present: tuple[Scaler, Scaler | None] | None = None  # of a warm start: scalers of x and y of the present model
    keep_units: bool = False  # whether x and y stay in the units of that model


def read_training_data(
    estimator: BaseEstimator,
    raw: RawRows,
    objective: Objective,
    settings: InputSettings,
    encode: Callable[[Any, bool], EncodedTarget],
    weigh: Callable[[Any, Any], Any],
) -> TrainingData[Any]:
    """Check everything that was given to `fit`, scale it, and make a task of it.

    Parameters
    ----------
    estimator : its `n_features_in_` and `feature_names_in_` are set, by scikit-learn.
    raw : X, y, environment, aux and sample_weight as the user gave them.
    objective : what will be trained; it says whether environments are needed.
    settings : how the input is read.
    encode : (y, whether the rows decide the classes) -> y as the loss wants it.
    weigh : (sample_weight, y) -> what each row counts, before any check.
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
        target = encode(raw.y, settings.present is None)
    except ValueError as error:
        if settings.present is None:
            raise
        raise ValueError(
            f"{error} warm_start=True goes on from a model of other rows; use set_params(warm_start=False) to start "
            "anew."
        ) from error
    check_length(len(target.values), len(features), "y")
    weight = read_weight(weigh(raw.sample_weight, raw.y), len(features))
    _check_weighted_classes(target, weight)
    kept_x, kept_y = settings.present if settings.present is not None and settings.keep_units else (None, None)
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
    rows = _with_environments(rows, columns.environment, objective, settings, names)
    return TrainingData(Task(rows, target.loss, target.n_outputs, name=name), x_reader, y_scaler, objective)


def _read_features(
    estimator: BaseEstimator, x: Any, settings: InputSettings
) -> tuple[Floats, CategoricalColumns | None]:
    if settings.features == "numbers, gaps and categories":
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
        return that_count(rows)
    codes, names = encode_labels(as_labels(labels), "environment", len(rows))
    if not settings.keep_labels:
        return that_count(rows)
    rows = that_count(replace(rows, environment=torch.as_tensor(codes), names=tuple(names)))
    assert rows.environment is not None
    codes, names = rows.environment.numpy(), list(rows.names)
    min_rows = int(settings.min_rows)
    check_environments(codes, names, min_rows, objective.needs == "environment")
    warn_of_copies(rows.x.numpy(), codes, len(names), feature_names)
    pooled, kept, _ = pool(codes, names, min_rows)
    return replace(rows, environment=pooled, names=kept)


def _numpy(weight: Tensor | None) -> Floats | None:
    return None if weight is None else weight.numpy()
