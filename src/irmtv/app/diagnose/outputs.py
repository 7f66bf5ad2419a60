"""What the kinds of models share: outputs for every class, and how much they hang on each feature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from irmtv.app.diagnose.rows import DiagnosisRows, Floats

MOST_ROWS = 2000  # in which features are shuffled


def every_class(decided: Any, classes: Any, rows: DiagnosisRows) -> Floats:
    """(n,) or (n, c) of a classifier -> (n, 1), or (n, C) with every class that the rows have."""
    found = np.asarray(decided, dtype=np.float64).reshape(len(decided), -1)
    if rows.task != "multiclass" or found.shape[1] == rows.n_outputs:
        return found
    # fewer classes in these folds than there are (or two of them): the absent ones get what is least
    filled = np.full((len(found), rows.n_outputs), found.min() - 3.0)
    filled[:, np.asarray(classes, dtype=np.int64)] = (
        np.hstack([-found / 2, found / 2]) if found.shape[1] == 1 else found
    )
    return filled


def output_shares(outputs: Callable[[Floats], Floats], rows: DiagnosisRows, seed: int) -> Floats:
    """How far the outputs (n, C) move when one feature is shuffled, as a share of what all features move them: (D,).

    The root of the mean square; of a linear model on standardised features that is the share of the absolute weights.
    Labels are not looked at, so that it tells what the model reads and not how well.
    """
    rng = np.random.default_rng(seed)
    x = rows.x[rng.permutation(len(rows))[:MOST_ROWS]]
    order = rng.permutation(len(x))
    before = outputs(x)
    moved = np.zeros(x.shape[1])
    for j in range(x.shape[1]):
        shuffled = x.copy()
        shuffled[:, j] = x[order, j]
        change = outputs(shuffled) - before
        if change.shape[1] > 1:  # a constant added to all classes changes nothing
            change = change - change.mean(1, keepdims=True)
        moved[j] = np.sqrt(np.square(change).sum(1).mean())
    return np.asarray(moved / max(moved.sum(), 1e-300))
