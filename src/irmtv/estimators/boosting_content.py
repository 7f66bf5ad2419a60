"""What a model file holds of a fitted boosting estimator, and how it is read; `irmtv.save` and `irmtv.load` ask it."""

from __future__ import annotations

from typing import Any

import numpy as np

from irmtv.data.scaling import Scaler
from irmtv.estimators.boosting import BoostingEstimator
from irmtv.estimators.estimator_content import (
    Content,
    asked_outputs,
    attributes_content,
    constructed,
    read_rho,
    read_scaler,
    rho_content,
    scaler_arrays,
    set_attributes,
)
from irmtv.models.stored import read_categories, read_trees
from irmtv.models.trees.library import lightgbm, threads
from irmtv.models.trees.predictor import TreeMember, TreePredictor
from irmtv.models.trees.text import trees_alone
from irmtv.persistence import ModelFile, file_errors


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
        table = read_categories(file.meta["categories"], n_features)
        members = tuple(
            TreeMember(lightgbm().Booster(model_str=of.text), of.base, of.iterations)
            for of in read_trees(file, n_features, asked_outputs(estimator) or 1)
        )
        y = read_scaler(Scaler, file.arrays, "y", [(1,)]) if "y/mean" in file.arrays else None
        rho = read_rho(file, n_features)
        estimator.predictor_ = TreePredictor(table, members, y, rho, threads(estimator.n_jobs))
        importances = file.arrays["importances"]
        if importances.shape != (n_features,) or importances.dtype != np.float64 or not (importances >= 0).all():
            raise ValueError(f"importances must be {n_features} numbers of at least 0. Got {importances!r}")
        estimator.feature_importances_ = importances
    return estimator
