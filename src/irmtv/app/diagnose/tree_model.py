"""Boosted trees as the plain risk minimiser, and what they read when they are grown to be invariant."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from irmtv.app.diagnose.outputs import every_class, output_shares
from irmtv.app.diagnose.rows import DiagnosisRows, Floats, Mask
from irmtv.estimators import InvariantBoostingClassifier, InvariantBoostingRegressor

LEAVES = (4, 16)
ROUNDS, ASIDE = 200, 0.2  # at most so many; a fifth of the training rows says when to stop


Size: TypeAlias = tuple[int, int]  # leaves, rounds


def fitted_outputs(rows: DiagnosisRows, trained_on: Sequence[Mask], seed: int) -> tuple[list[Floats], Size]:
    """Outputs for all rows, (N, C) or (N, 1), of plain boosting on some of them: one for each mask (N,).

    Leaves and rounds are chosen on a fifth of the rows of a mask, which no tree is grown on; then trees are grown on
    all of these. Rows outside have no part in it. Also the median of the sizes.
    """
    outputs, sizes = [], []
    for part in trained_on:
        some = rows.take(part)
        leaves, rounds = _size(some, seed)
        model = _fitted(some, "erm", num_leaves=leaves, n_estimators=rounds, random_state=seed)
        outputs.append(_outputs(model, rows.x, rows))
        sizes.append((leaves, rounds))
    leaves, rounds = (int(v) for v in np.median(sizes, axis=0))
    return outputs, (leaves, rounds)


def _size(rows: DiagnosisRows, seed: int) -> Size:
    """Leaves and rounds with the lowest risk on rows that were set aside."""
    stopping = {"early_stopping": "iid", "validation_fraction": ASIDE, "n_estimators": ROUNDS, "random_state": seed}
    tried = [(leaves, _fitted(rows, "erm", num_leaves=leaves, **stopping)) for leaves in LEAVES]
    leaves, best = min(tried, key=lambda one: float(one[1].history_["risk"].min()))
    return leaves, max(1, int(best.n_iter_))


def shares(rows: DiagnosisRows, leaves: int, rounds: int, penalty_weight: float, seed: int) -> tuple[Floats, Floats]:
    """How much the outputs hang on each feature, of plain boosting and under TV-l1: (D,) each."""
    # the first round of a penalty on slopes is plain boosting
    settings = {"n_estimators": max(2, rounds), "num_leaves": leaves, "min_rows": 1, "random_state": seed}

    def share(weight: float) -> Floats:
        model = _fitted(rows, "irm-tv-l1", penalty_weight=weight, **settings)
        return output_shares(lambda x: _outputs(model, x, rows), rows, seed)

    return share(0.0), share(penalty_weight)


def _fitted(rows: DiagnosisRows, objective: str, **settings: Any) -> Any:
    made = InvariantBoostingRegressor if rows.task == "regression" else InvariantBoostingClassifier
    y = rows.y if rows.task == "regression" else rows.y.astype(np.int64)
    environment = None if objective == "erm" else rows.environment
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a model that is kept; nothing is kept here
        return made(objective, **settings).fit(rows.x, y, environment=environment)


def _outputs(model: Any, x: Floats, rows: DiagnosisRows) -> Floats:
    if rows.task == "regression":
        return np.asarray(model.predict(x)).reshape(-1, 1)
    return every_class(model.decision_function(x), model.classes_, rows)
