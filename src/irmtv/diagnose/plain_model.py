"""Plain risk minimisation, cross-fitted: for every row the outputs of a linear model that was not trained on it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge

from irmtv.diagnose.rows import DiagnosisRows, Floats, Ints


@dataclass(frozen=True)
class PlainModel:
    """What a linear risk minimiser does on rows that it has not seen."""

    outputs: Floats  # (N,) logits or predictions; (N, C) logits of several classes
    loss: Floats  # (N,) log loss; squared error in units of the variance of y
    slope: Floats  # (N,) derivative of the loss as the outputs are multiplied by w, at w = 1
    fold: Ints  # (N,)


def fit_plain_model(rows: DiagnosisRows, seed: int) -> PlainModel:
    """Logistic or ridge regression on standardised features, trained on four fifths of the rows at a time."""
    fold = rows.folds(seed)
    outputs = np.empty((len(rows), rows.n_outputs))
    for k in range(int(fold.max()) + 1):
        held = fold == k
        outputs[held] = _fitted_outputs(rows.x[~held], rows.y[~held], rows.x[held], rows)
    f = outputs if rows.task == "multiclass" else outputs[:, 0]
    target = torch.as_tensor(rows.y)[None, None]
    value, slope = rows.loss.value_and_slope(torch.as_tensor(f)[None, None], target)
    return PlainModel(f, np.asarray(value[0, 0].numpy()), np.asarray(slope[0, 0].numpy()), fold)


def logistic(c: float = 1.0) -> Any:
    """scikit-learn's, with enough steps for standardised features."""
    return LogisticRegression(C=c, max_iter=300)


def fit_quietly(model: Any, x: Floats, y: Any) -> Any:
    """Fitted; that the last digit has not converged changes no finding, and is not the user's concern."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(x, y)


def _fitted_outputs(x: Floats, y: Any, new: Floats, rows: DiagnosisRows) -> Floats:
    """(n, C) or (n, 1)."""
    if rows.task == "regression":
        return np.asarray(Ridge(alpha=1.0).fit(x, y).predict(new)).reshape(-1, 1)
    model = fit_quietly(logistic(), x, y.astype(np.int64))
    decided = np.asarray(model.decision_function(new)).reshape(len(new), -1)
    if rows.task == "binary" or decided.shape[1] == rows.n_outputs:
        return decided
    # fewer classes in these folds than there are (or two of them): the absent ones get what is least
    found = np.full((len(new), rows.n_outputs), decided.min() - 3.0)
    found[:, model.classes_] = np.hstack([-decided / 2, decided / 2]) if decided.shape[1] == 1 else decided
    return found
