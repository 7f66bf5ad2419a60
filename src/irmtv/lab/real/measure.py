"""One family of models on one split: trained on what is known, scored on what is unseen. The result is plain data."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # no stubs; scikit-learn brings it

from irmtv.data.tables.steps import table_steps
from irmtv.data.training import TrainingData
from irmtv.estimators import (
    InvariantBoostingClassifierCV,
    InvariantBoostingRegressorCV,
    InvariantClassifierCV,
    InvariantRegressorCV,
)
from irmtv.estimators.new_environment import expected_score
from irmtv.lab.real.scores import Floats, paired_gain, score, score_error
from irmtv.lab.real.splits import RowSplit, some_rows
from irmtv.lab.real.tables import RealTable
from irmtv.metrics import evaluate_environments
from irmtv.models.search import Search
from irmtv.selection.choose import Choice

LINEAR, TREES, SCIKIT_LEARN = "linear", "trees", "scikit-learn"
OURS = (LINEAR, TREES)  # the simpler first: it is picked where both are alike
FAMILIES = (*OURS, SCIKIT_LEARN)
LEAST_PROBABILITY = 1e-12  # of a class that training did not have, for the log loss


@dataclass(frozen=True)
class Rows:
    """Training rows and unseen rows as numbers. What makes them numbers was fitted on the training rows."""

    x: NDArray[np.float32]  # (N, D)
    y: NDArray[Any]  # (N,)
    environment: NDArray[Any]  # (N,)
    unseen_x: NDArray[np.float32]
    unseen_y: NDArray[Any]
    unseen_environment: NDArray[Any]
    metric: str

    @classmethod
    def of(cls, table: RealTable, split: RowSplit) -> Rows:
        train, unseen = split.train, split.unseen
        if table.most_rows is not None:
            train = some_rows(train, table.environment, table.most_rows)
        steps = Pipeline(table_steps())
        x = steps.fit_transform(table.features.iloc[train])
        unseen_x = steps.transform(table.features.iloc[unseen])
        parts = [column[rows] for rows in (train, unseen) for column in (table.target, table.environment)]
        return cls(x, parts[0], parts[1], unseen_x, parts[2], parts[3], table.metric)

    @property
    def is_regression(self) -> bool:
        return self.metric == "rmse"


def measure(
    table: RealTable, split: RowSplit, family: str, seed: int = 0, threads: int | None = None
) -> dict[str, Any]:
    """Train a family and score it.

    Parameters
    ----------
    table, split : what is known, and what is unseen.
    family : "linear" or "trees" (plain and chosen by the rule), or "scikit-learn" (two models to compare with).
    seed : of the folds.
    threads : at most; None is all cores.

    Returns
    -------
    dict
        Of plain data. Scores of each model on the unseen rows, overall and by environment; of our families also the
        outcome of the rule, what the choice gained over ERM, and both intervals.
    """
    rows = Rows.of(table, split)
    start = time.perf_counter()
    with warnings.catch_warnings(), threadpool_limits(threads):
        warnings.simplefilter("ignore")  # the outcome and its message are kept
        found = _baselines(rows, seed) if family == SCIKIT_LEARN else _choose(rows, family, seed, threads)
    sizes = {"n_train": len(rows.x), "n_unseen": len(rows.unseen_x), "n_features": rows.x.shape[1]}
    counted = {"n_environments": len(np.unique(rows.environment)), "in_time": split.in_time}
    return {"metric": table.metric, **sizes, **counted, "seconds": time.perf_counter() - start, **found}


# --- ours ----------------------------------------------------------------------------------------------------------


def _choose(rows: Rows, family: str, seed: int, threads: int | None) -> dict[str, Any]:
    chosen: Any = _estimator(rows, family, seed, threads)
    begin = time.perf_counter()
    data = chosen.read_data(rows.x, rows.y, environment=rows.environment)
    search = chosen.search(data, keep_outputs=True)
    chosen.fit_choice(data, search)
    fit_seconds = time.perf_counter() - begin
    kept = search.choice.index == search.erm
    plain = chosen if kept else clone(chosen)
    if not kept:
        same = plain.read_data(rows.x, rows.y, environment=rows.environment)
        plain.fit_choice(same, replace(search, choice=Choice("iid", search.erm)))
    right = {name: _per_row(model, rows) for name, model in (("plain", plain), ("chosen", chosen))}
    gain, se = paired_gain(right["plain"], right["chosen"], rows.metric)
    left_out = chosen.new_environment_
    held_out = {
        name: _held_out_scores(data, search, index, rows.metric)
        for name, index in (("plain", search.erm), ("chosen", search.choice.index))
    }
    several = len(held_out["chosen"]) > 1
    return {
        "outcome": search.choice.outcome,
        "message": search.choice.message,
        "objective": search.path.objective.name,
        "parameters": {name: str(value) for name, value in chosen.best_params_.items()},
        "kept_plain": kept,
        "fit_seconds": fit_seconds,
        "left_out_seconds": search.left_out_seconds,
        "plain": _scores(plain, right["plain"], rows),
        "chosen": _scores(chosen, right["chosen"], rows),
        "gain": gain,
        "se": se,
        "left_out": None if left_out is None else _left_out_means(left_out, search),
        "held_out": {name: float(np.mean(scores)) for name, scores in held_out.items()},
        "expected": chosen.expected_score_,
        "expected_held_out": (
            expected_score(pd.DataFrame({"chosen": held_out["chosen"]}), rows.metric) if several else None
        ),
    }


def _left_out_means(table: pd.DataFrame, search: Search) -> dict[str, float]:
    """Over the training environments: scores of ERM and of the choice where they were left out, and ERM's risk."""
    means = {name: float(table[name].mean()) for name in ("plain", "chosen")}
    risk = search.records.left_out
    return means if risk is None else {**means, "plain_risk": float(risk[search.erm].mean())}


def _estimator(rows: Rows, family: str, seed: int, threads: int | None) -> Any:
    """Environments that are times are left out in turn, as all others are: most splits are not in time."""
    if family == LINEAR:
        kind = InvariantRegressorCV if rows.is_regression else InvariantClassifierCV
        return kind(hidden=(), time_ordered=False, random_state=seed)
    boosting = InvariantBoostingRegressorCV if rows.is_regression else InvariantBoostingClassifierCV
    return boosting(n_jobs=threads, time_ordered=False, random_state=seed)


def _held_out_scores(data: TrainingData[Any], search: Search, index: int, metric: str) -> Floats:
    """Of a candidate in every training environment, on rows that its fold models have not seen: (E,)."""
    train = search.split.task.train
    outputs = search.held_out_outputs(index)
    if metric == "accuracy" and outputs.ndim == 2 and outputs.shape[1] == 1:
        outputs = outputs[:, 0]
    table = evaluate_environments(outputs[None], train.y, train.environment, metric=metric)
    scale = 1.0 if data.y is None else float(np.sqrt(np.mean(np.square(data.y.scale))))
    return np.asarray(table.by_environment[0] * scale, dtype=np.float64)


# --- scikit-learn's ------------------------------------------------------------------------------------------------


def _baselines(rows: Rows, seed: int) -> dict[str, Any]:
    linear = Ridge() if rows.is_regression else LogisticRegression(max_iter=2000)
    boosting = HistGradientBoostingRegressor if rows.is_regression else HistGradientBoostingClassifier
    models = {LINEAR: make_pipeline(StandardScaler(), linear), TREES: boosting(random_state=seed)}
    scores = {}
    for name, model in models.items():
        model.fit(rows.x, rows.y)
        scores[name] = _scores(model, _per_row(model, rows), rows)
    return {"models": scores}


# --- scores --------------------------------------------------------------------------------------------------------


def _per_row(model: Any, rows: Rows) -> Floats:
    """1 where the model is right, or its squared error, of every unseen row; a class it does not know is wrong."""
    predicted = np.asarray(model.predict(rows.unseen_x))
    if rows.is_regression:
        return np.asarray(np.square(predicted.astype(np.float64) - rows.unseen_y))
    return np.asarray(predicted == rows.unseen_y, dtype=np.float64)


def _scores(model: Any, per_row: Floats, rows: Rows) -> dict[str, Any]:
    where = rows.unseen_environment
    by_environment = {str(e): score(per_row[where == e], rows.metric) for e in np.unique(where)}
    more: Mapping[str, float] = {}
    if not rows.is_regression:
        recall = [float(per_row[rows.unseen_y == c].mean()) for c in np.unique(rows.unseen_y)]
        more = {"balanced_accuracy": float(np.mean(recall)), "log_loss": _log_loss(model, rows)}
    overall = {"score": score(per_row, rows.metric), "se": score_error(per_row, rows.metric)}
    return {**overall, "by_environment": by_environment, **more}


def _log_loss(model: Any, rows: Rows) -> float:
    probability = np.asarray(model.predict_proba(rows.unseen_x), dtype=np.float64)  # (N, C)
    of_truth = (probability * (rows.unseen_y[:, None] == np.asarray(model.classes_)[None])).sum(1)
    return float(-np.log(of_truth.clip(LEAST_PROBABILITY, 1.0)).mean())
