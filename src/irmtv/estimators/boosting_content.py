"""What a model file holds of a fitted boosting estimator, and how it is read; `irmtv.save` and `irmtv.load` ask it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from irmtv.data.features import CategoricalColumns, Scaler
from irmtv.estimators.boosting import BoostingEstimator
from irmtv.estimators.estimator_content import (
    Content,
    attributes_content,
    constructed,
    file_errors,
    n_outputs_of,
    read_rho,
    read_scaler,
    rho_content,
    scaler_arrays,
    set_attributes,
)
from irmtv.models.trees.predictor import TreeMember, TreePredictor
from irmtv.models.trees.rounds import lightgbm
from irmtv.models.trees.settings import threads
from irmtv.models.trees.text import check_trees, trees_alone
from irmtv.persistence import ModelFile


def boosting_content(estimator: Any) -> Content:
    """Parameters of the constructor, fitted attributes, trees as LightGBM's text. No training row."""
    predictor: TreePredictor = estimator.predictor_
    arrays, meta = attributes_content(estimator)
    meta["categories"] = [None if labels is None else list(labels) for labels in predictor.table.categories]
    meta["members"] = [
        {
            "iterations": member.iterations,
            "trees": trees_alone(member.booster.model_to_string(num_iteration=max(1, member.iterations))),
        }
        for member in predictor.members
    ]
    arrays["importances"] = estimator.feature_importances_
    arrays |= {f"member{i}/base": member.base for i, member in enumerate(predictor.members)}
    arrays |= scaler_arrays("y", predictor.y)
    if predictor.rho is not None:
        numbers, meta["rho"] = rho_content(predictor.rho)
        arrays |= numbers
    return arrays, meta


def read_boosting(file: ModelFile, cls: type[BoostingEstimator], module: Any = None) -> BoostingEstimator:
    """The fitted estimator; it has no `module`. Every number of its trees is checked before LightGBM sees any."""
    lightgbm()
    with file_errors(file, cls.__name__):
        file.check(meta=["parameters", "attributes", "tables", "categories", "members"])
        estimator = constructed(file, cls)
        n_features = set_attributes(estimator, file)
        n_outputs = n_outputs_of(estimator) or 1
        table = _table(file.meta["categories"], n_features)
        members = tuple(_member(file, i, of, n_features, n_outputs) for i, of in enumerate(file.meta["members"]))
        if not members:
            raise ValueError("there is no booster in it")
        y = read_scaler(Scaler, file.arrays, "y", [(1,)]) if "y/mean" in file.arrays else None
        rho = read_rho(file, n_features)
        estimator.predictor_ = TreePredictor(table, members, y, rho, threads(estimator.n_jobs))
        importances = file.arrays["importances"]
        if importances.shape != (n_features,) or importances.dtype != np.float64 or not (importances >= 0).all():
            raise ValueError(f"importances must be {n_features} numbers of at least 0. Got {importances!r}")
        estimator.feature_importances_ = importances
    return estimator


def _table(categories: Any, n_features: int) -> CategoricalColumns:
    if not isinstance(categories, list) or len(categories) != n_features:
        raise ValueError(f"categories must be those of {n_features} columns. Got {categories!r}")
    for labels in categories:
        if labels is not None and (not isinstance(labels, list) or len(set(labels)) < len(labels)):
            raise ValueError(f"categories must be different labels. Got {labels!r}")
    return CategoricalColumns(tuple(None if labels is None else tuple(labels) for labels in categories))


def _member(file: ModelFile, i: int, of: Mapping[str, Any], n_features: int, n_outputs: int) -> TreeMember:
    base, text, iterations = file.arrays[f"member{i}/base"], of["trees"], of["iterations"]
    if base.shape != (n_outputs,) or base.dtype != np.float64 or not np.isfinite(base).all():
        raise ValueError(f"member{i}/base must be {n_outputs} finite numbers. Got {base!r}")
    if not isinstance(text, str):
        raise ValueError(f"the trees of member {i} must be text. Got {type(text).__name__}")
    rounds = check_trees(text, n_features, n_outputs)
    if type(iterations) is not int or not 0 <= iterations <= rounds:
        raise ValueError(f"iterations must be a whole number from 0 to {rounds}. Got {iterations!r}")
    return TreeMember(lightgbm().Booster(model_str=text), base, iterations)
