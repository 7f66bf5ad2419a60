"""What a model file holds of a fitted EnvironmentInference, and how it is read."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np

from irmtv.data.columns import as_names
from irmtv.data.scaling import Scaler
from irmtv.estimators.classifier import InvariantClassifier
from irmtv.estimators.clusters import Clusters
from irmtv.estimators.environment_inference import METHODS, EnvironmentInference
from irmtv.estimators.estimator_content import (
    Content,
    as_plain,
    constructed,
    estimator_content,
    parameters_of,
    read_estimator,
    read_scaler,
    scaler_arrays,
)
from irmtv.estimators.module_content import check_same_module
from irmtv.estimators.regressor import InvariantRegressor
from irmtv.estimators.strength import Strength
from irmtv.models.stored import count
from irmtv.persistence import ModelFile, file_errors

_PLAIN = ("n_features_in_", "n_aux_", "method_", "divided_by_", "task_", "_fitted_as", "_aux_columns", "_aux_names")
_ARRAYS = ("environments_", "feature_names_in_", "membership_")
_REFERENCES = {"classification": InvariantClassifier, "regression": InvariantRegressor}
# what each method may divide rows by
_DIVIDES = {"minimax": ("aux",), "eiil": ("slopes",), "clusters": ("aux", "features", "residuals")}
_REFERENCE = "reference/"  # where the arrays of the reference model stand


def inference_content(estimator: EnvironmentInference) -> Content:
    """What `predict` and `strength` need, and the environments of the training rows; not these rows themselves."""
    meta: dict[str, Any] = {
        "parameters": parameters_of(estimator),
        "attributes": {name: as_plain(getattr(estimator, name)) for name in _PLAIN},
        "strength": None if estimator.strength_ is None else as_plain(asdict(estimator.strength_)),
        "reference": None,
    }
    arrays = {f"attribute/{name}": getattr(estimator, name) for name in _ARRAYS if hasattr(estimator, name)}
    if estimator.reference_ is not None:
        numbers, meta["reference"] = estimator_content(estimator.reference_)
        arrays |= {_REFERENCE + name: value for name, value in numbers.items()}
    if estimator.method_ == "minimax":
        arrays["order"] = estimator._order
    if estimator.method_ == "clusters":
        clusters = estimator._clusters
        arrays |= {"clusters/centres": clusters.centres, **scaler_arrays("clusters", clusters.scaler)}
        meta["variance"] = clusters.variance
    return arrays, meta


def read_inference(file: ModelFile, cls: type[EnvironmentInference], module: Any = None) -> EnvironmentInference:
    """The fitted estimator; `module` must be None, since its reference model is always one of irmtv."""
    check_same_module(file, [], module)
    with file_errors(file, cls.__name__):
        file.check(
            arrays=["attribute/environments_", "attribute/membership_"],
            meta=["parameters", "attributes", "strength", "reference"],
        )
        found = constructed(file, cls)
        for name in _PLAIN:
            setattr(found, name, file.meta["attributes"][name])
        for name in _ARRAYS:
            if f"attribute/{name}" in file.arrays:
                setattr(found, name, file.arrays[f"attribute/{name}"])
        _check_attributes(found)
        found.labels_ = found.membership_.argmax(1)
        found.strength_ = None if file.meta["strength"] is None else _strength(file.meta["strength"])
        found.reference_ = None
        if file.meta["reference"] is not None:
            found.reference_ = _reference(file, found)
        elif found.method_ != "clusters" or found.divided_by_ == "residuals":
            raise ValueError(
                f"method {found.method_!r} divides by {found.divided_by_}, and there is no reference model"
            )
        if found.method_ == "minimax":
            found._order = _order(file, found)
        if found.method_ == "clusters":
            found._clusters = _clusters(file, found)
    return found


def _check_attributes(found: EnvironmentInference) -> None:
    if found.method_ not in METHODS or found.divided_by_ not in _DIVIDES[found.method_]:
        raise ValueError(f"method_ and divided_by_ must fit. Got {found.method_!r} and {found.divided_by_!r}")
    count(found.n_features_in_, "n_features_in_")
    if found.n_aux_ != 0 or found.divided_by_ == "aux":
        count(found.n_aux_, "n_aux_")
    as_names(found._aux_columns, "aux")
    names = found._aux_names
    if names is not None and (not isinstance(names, list) or len(names) != found.n_aux_):
        raise ValueError(f"_aux_names must be {found.n_aux_} names, or none. Got {names!r}")
    if not isinstance(found._fitted_as, str):
        raise ValueError(f"_fitted_as must be text. Got {found._fitted_as!r}")
    q = found.membership_
    if q.ndim != 2 or q.shape[1] < 2 or q.dtype != np.float64 or found.environments_.shape != q.shape[1:]:
        raise ValueError(
            f"membership_ must be (rows, environments) of environments_. Got {q.dtype} of shape {q.shape} for "
            f"{found.environments_.shape}"
        )


def _strength(values: dict[str, Any]) -> Strength:
    strength = Strength(**values)
    if type(strength.penalty) is not float or type(strength.shuffled) is not float:
        raise ValueError(f"strength must be numbers. Got {values}")
    return strength


def _reference(file: ModelFile, found: EnvironmentInference) -> InvariantClassifier | InvariantRegressor:
    if found.task_ not in _REFERENCES:
        raise ValueError(f"task_ must be one of {list(_REFERENCES)}. Got {found.task_!r}")
    arrays = {k.removeprefix(_REFERENCE): v for k, v in file.arrays.items() if k.startswith(_REFERENCE)}
    inner = replace(file, arrays=arrays, meta=file.meta["reference"])
    reference: Any = read_estimator(inner, _REFERENCES[found.task_])
    rho = reference.predictor_.rho
    asked = (found.n_features_in_, (found.n_aux_, found.membership_.shape[1]) if found.method_ == "minimax" else None)
    got = (reference.n_features_in_, None if rho is None else (rho.net.n_aux, rho.net.n_environments))
    if asked != got:
        raise ValueError(f"its reference model must read (features, (aux, environments)) {asked}. Got {got}")
    model: InvariantClassifier | InvariantRegressor = reference
    return model


def _order(file: ModelFile, found: EnvironmentInference) -> Any:
    order = file.arrays["order"]
    if order.dtype.kind not in "iu" or sorted(order.tolist()) != list(range(found.membership_.shape[1])):
        raise ValueError(f"order must hold every environment once. Got {order.tolist()}")
    return order


def _clusters(file: ModelFile, found: EnvironmentInference) -> Clusters:
    centres, variance = file.arrays["clusters/centres"], file.meta["variance"]
    if found.divided_by_ == "residuals":  # in one unit; one column, or one per target
        assert found.reference_ is not None
        y = found.reference_.predictor_.y
        n_columns, shape = 1 if y is None else len(y.mean), (1,)
    else:
        n_columns = found.n_aux_ if found.divided_by_ == "aux" else found.n_features_in_
        shape = (n_columns,)
    scaler = read_scaler(Scaler, file.arrays, "clusters", [shape], may_be_constant=True)
    expected = (found.membership_.shape[1], n_columns)
    if centres.shape != expected or centres.dtype != np.float64 or not np.isfinite(centres).all():
        raise ValueError(f"clusters/centres must be {expected} finite numbers. Got {centres.dtype} {centres.shape}")
    if type(variance) is not float or not 0 < variance < float("inf"):
        raise ValueError(f"variance must be a finite number above 0. Got {variance!r}")
    return Clusters(scaler, centres, variance)
