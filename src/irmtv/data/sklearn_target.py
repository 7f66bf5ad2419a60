"""y of an estimator, as scikit-learn checks it: classes or numbers, and the weights of classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

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
from irmtv.core.messages import did_you_mean, plain, plain_repr, shown
from irmtv.data.columns import refuse_lazy
from irmtv.data.environments import as_labels
from irmtv.data.numeric import LEAVE_OUT, check_finite
from irmtv.data.rows import read_weight

Floats = npt.NDArray[np.float64]
Array = npt.NDArray[Any]


class EncodedTarget(NamedTuple):
    """y as the loss wants it, in the user's units."""

    values: Tensor  # (N,) or (N, C) float64, or (N,) int64 classes
    loss: Loss
    n_outputs: int


def read_classes(y: Any, estimator: BaseEstimator) -> Array:
    """Labels (N,) of one kind, nothing missing."""
    return _one_kind(_check_y(_known(y), estimator=estimator))


def distinct_classes(labels: Array, estimator: BaseEstimator) -> Array:
    """The classes of the training rows, sorted: two or more."""
    try:
        check_classification_targets(labels)
    except ValueError as error:
        if "continuous" not in str(error):
            raise
        regressor = type(estimator).__name__.replace("Classifier", "Regressor")
        raise ValueError(f"{error} Use {regressor}, or make classes of them: pandas.qcut(y, 4).") from error
    classes: Array = np.unique(labels)
    if len(classes) < 2:
        raise ValueError(
            f"y must have two or more classes. Got 1 class, {plain_repr(classes[0])}, in {len(labels)} rows. "
            "Check the filter that made it."
        )
    return classes


def encode_classes(labels: Array, classes: Array) -> EncodedTarget:
    """Labels as positions in `classes`: floats 0 and 1 of two classes, integers of more."""
    codes = np.searchsorted(classes, labels).clip(0, len(classes) - 1)
    unknown = classes[codes] != labels
    if unknown.any():
        raise ValueError(
            f"y must hold classes of the training rows, {shown(classes)}. Got {shown(np.unique(labels[unknown]))}."
        )
    if len(classes) == 2:
        return EncodedTarget(torch.as_tensor(codes.astype(np.float64)), as_loss("binary", 1), 1)
    n = len(classes)
    return EncodedTarget(torch.as_tensor(codes.astype(np.int64)), as_loss("multiclass", n), n)


def read_numbers(y: Any, estimator: BaseEstimator) -> Floats:
    """Numbers (N,) or (N, T); text and dates are refused with what to do instead."""
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


def encode_numbers(values: Floats) -> EncodedTarget:
    """One or several targets; (N, 1) is (N,)."""
    if values.shape[1:] == (1,):
        values = values[:, 0]
    outputs = 1 if values.ndim == 1 else values.shape[1]
    return EncodedTarget(torch.as_tensor(values), as_loss("squared", outputs), outputs)


def weigh_classes(sample_weight: Any, y: Any, class_weight: Any, classes: Array) -> Any:
    """What each row counts, times the weight of its class; "balanced" counts rows by their `sample_weight`."""
    if class_weight is None:
        return sample_weight
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
