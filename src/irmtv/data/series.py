"""Series, (rows, channels, length), for a network of the user's own: whether new rows are like those of training."""

from __future__ import annotations

from typing import Any

import numpy as np


def check_channels(estimator: Any, x: Any) -> None:
    """scikit-learn would call the channels of series features."""
    shape = np.shape(x)
    trained = estimator.predictor_.x.mean.shape  # (D,), or (channels, 1) of series
    if len(shape) != 3 or len(trained) != 2 or shape[1] == trained[0]:
        return
    to_do = "Select the channels of training."
    if shape[2] == trained[0]:
        to_do = "If the last two axes are swapped, use X.transpose(0, 2, 1)."
    raise ValueError(
        f"X must be (rows, channels, length) with (channels, length) = {series_shape(estimator)} as in training. Got "
        f"{shape[1:]}. {to_do}"
    )


def series_shape(estimator: Any) -> str:
    """(channels, length) of the training rows; of a model from a file the length is not known."""
    channels, length = estimator.predictor_.x.mean.shape[0], getattr(estimator, "_length_in", None)
    return f"({channels}, {'any that the module reads' if length is None else length})"
