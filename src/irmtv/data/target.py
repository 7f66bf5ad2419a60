"""y: which loss it asks for, and how that loss wants it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from irmtv.core.losses import Binary, Loss, Multiclass, Squared, as_loss
from irmtv.core.messages import check_length, check_positive, did_you_mean, shown, users_stacklevel
from irmtv.data.rows import LEAVE_OUT, NUMBER_KINDS, as_array, as_numbers, as_tensor, check_finite

# floats with at most FEW_VALUES values, and ROWS_PER_VALUE rows of each, may be classes that became floats
FEW_VALUES, ROWS_PER_VALUE = 20, 5
_LOSSES = ("auto", "binary", "multiclass", "squared")


@dataclass(frozen=True)
class Target:
    """What the training y decided, and what every other y is held to."""

    kind: str  # "binary", "multiclass", "squared" or "custom"
    loss: Loss
    n_outputs: int
    shape: tuple[int, ...]  # of one row's y: () or (C,)
    dtype: torch.dtype


def raw_target(values: Any, parameter: str, n_rows: int) -> Any:
    """y as an array of any dtype, (N,) or (N, C), nothing missing."""
    if isinstance(values, pd.DataFrame):
        values = values.iloc[:, 0] if values.shape[1] == 1 else as_numbers(values, parameter)
    array = as_array(values, parameter)
    if array.ndim not in (1, 2) or array.shape[1:] == (0,):
        got = f"{type(values).__name__} of shape {array.shape}"
        raise ValueError(f"{parameter} must be (rows,) or (rows, targets). Got {got}. Pass one value per row.")
    check_length(len(array), n_rows, parameter)
    array = array[:, 0] if array.shape[1:] == (1,) else array
    if array.dtype == object and array.ndim == 1:
        array = pd.Series(array).infer_objects().to_numpy()  # Python bools or ints among objects
    check_finite(array, parameter, to_do=LEAVE_OUT)
    return array


def read_target(y: Any, loss: Any, n_outputs: int | None, dtype: torch.dtype) -> tuple[Target, Tensor]:
    """Decide the loss from the training y, and encode it."""
    kind = _kind(loss, y)
    classes = kind in ("binary", "multiclass")
    outputs = len(pd.unique(y.ravel())) if kind == "multiclass" else 1 if classes or y.ndim == 1 else y.shape[1]
    if n_outputs is not None:
        check_positive(n_outputs, "n_outputs")
        if kind != "custom" and n_outputs != outputs:
            raise ValueError(f"n_outputs must be {outputs} for this y and loss {kind!r}. Got {n_outputs}. Omit it.")
        outputs = int(n_outputs)
    made = as_loss(loss if kind == "custom" else kind, outputs)
    target = Target(kind, made, outputs, () if classes else y.shape[1:], dtype)
    encoded = encode_target(y, target, "y")
    if classes and (encoded == encoded[0]).all():
        raise ValueError(
            f"y must have at least two classes for loss {kind!r}. Got only {y[0]!s} in {len(y)} rows. "
            "Check the filter that made it, or use loss='squared' for numbers."
        )
    return target, encoded


def _kind(loss: Any, y: Any) -> str:
    if isinstance(loss, str) and loss in _LOSSES:
        return _guess(y) if loss == "auto" else loss
    if isinstance(loss, (Binary, Multiclass, Squared)):
        return loss.name
    if isinstance(loss, Loss) or callable(loss):
        return "custom"
    near = did_you_mean(loss, _LOSSES)
    raise ValueError(f"loss must be one of {shown(_LOSSES)} or a function (f, y) -> loss. Got {loss!r}.{near}")


def _guess(y: Any) -> str:
    """The loss that the labels ask for, as `make_task` documents it."""
    if y.ndim == 2:
        return "squared"
    labels = set(pd.unique(y).tolist())
    if y.dtype.kind not in NUMBER_KINDS:  # refused later, with the labels shown
        return "binary" if len(labels) <= 2 else "multiclass"
    if labels == {0, 1} or (y.dtype.kind != "f" and labels <= {0, 1}):
        return "binary"
    if y.dtype.kind != "f" and len(labels) == 2:
        raise ValueError(
            "y must be 0 and 1 for two classes: loss='auto' cannot tell classes from numbers. Got only "
            f"{shown(sorted(labels))}. Use y = (y == {max(labels)}), or loss='squared' for numbers."
        )
    contiguous = 3 <= len(labels) <= 100 and labels == set(range(len(labels)))
    if contiguous and y.dtype.kind != "f":
        return "multiclass"
    if contiguous and len(labels) <= FEW_VALUES and len(y) >= ROWS_PER_VALUE * len(labels):
        warnings.warn(
            f"y has only the whole numbers {shown(sorted(labels))}, as floats, and is taken for numbers "
            "(loss='squared'). For classes use loss='multiclass' or y.astype(int); loss='squared' says that numbers "
            "are meant.",
            stacklevel=users_stacklevel(),
        )
    return "squared"


def encode_target(y: Any, target: Target, parameter: str) -> Tensor:
    """y as the loss wants it: (N,) or (N, C) floats, or (N,) int64 classes."""
    if y.shape[1:] != target.shape:
        raise ValueError(
            f"{parameter} must be {('rows', *target.shape)} for loss {target.kind!r}. Got shape {y.shape}. "
            f"Select the same targets; for one column per class use {parameter}.argmax(axis=1)."
        )
    if target.kind in ("binary", "multiclass"):
        _check_labels(y, target.kind, max(2, target.n_outputs), parameter)
    if target.kind == "multiclass":
        return torch.from_numpy(y.astype(np.int64))
    return as_tensor(as_numbers(y, parameter), parameter, target.dtype)


def _check_labels(y: Any, kind: str, classes: int, parameter: str) -> None:
    labels = pd.unique(y).tolist()
    if set(labels) <= set(range(classes)):
        return
    if parameter != "y":
        advice = "Recode the labels like those of the training y, or drop the rows of unknown classes"
    elif kind == "binary" and len(labels) == 2:
        advice = f"Use y = (y == {labels[1]!r})"
    else:
        several = " with loss='multiclass', or loss='squared' for numbers" if kind == "binary" else ""
        advice = f"Use classes, y = numpy.unique(y, return_inverse=True){several}"
    wanted = "0 and 1" if classes == 2 else f"the integers 0..{classes - 1}"
    raise ValueError(f"{parameter} must be {wanted} for loss {kind!r}. Got the labels {shown(labels)}. {advice}.")
