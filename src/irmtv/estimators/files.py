"""Fitted estimators as model files: `estimator.save(path)`, `irmtv.save(pipeline, path)`, `irmtv.load(path)`.

A file holds the constructor's parameters, the network's numbers and the fitted attributes; of a Pipeline also its
fitted preprocessing. Nothing in it is executed when it is read (see `irmtv.persistence`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from irmtv.core.messages import shown
from irmtv.engine.nets import MLP, Conv1d
from irmtv.environments.affine import Affine
from irmtv.environments.aux_network import AuxNetwork, AuxScaler
from irmtv.estimators.base import InvariantEstimator
from irmtv.estimators.classifier import InvariantClassifier
from irmtv.estimators.cv import InvariantClassifierCV, InvariantRegressorCV
from irmtv.estimators.predictor import Member, Predictor, Rho
from irmtv.estimators.regressor import InvariantRegressor
from irmtv.estimators.scaling import Scaler
from irmtv.persistence import ModelFile, ModelFileError, load_model, write_model

CLASSES: Mapping[str, type[InvariantEstimator]] = {
    "invariant-classifier": InvariantClassifier,
    "invariant-classifier-cv": InvariantClassifierCV,
    "invariant-regressor": InvariantRegressor,
    "invariant-regressor-cv": InvariantRegressorCV,
}
_KINDS = {cls: kind for kind, cls in CLASSES.items()}
_PIPELINE = "pipeline"
# fitted attributes beside the predictor, where an estimator has them: as they are, as arrays, as tables
_PLAIN = ("n_features_in_", "n_iter_", "objective_", "selected_", "best_params_", "intercept_", "_targets")
_ARRAYS = ("classes_", "feature_names_in_", "environments_", "environment_weights_", "coef_", "intercept_")
_TABLES = ("history_", "cv_results_")


def save(model: Any, path: str | PathLike[str]) -> Path:
    """Write a fitted estimator of irmtv, or a Pipeline that ends in one, to a file.

    Parameters
    ----------
    model : InvariantClassifier, InvariantRegressor, their CV versions, or Pipeline
        The steps of a Pipeline before the last must be preprocessing of scikit-learn or skrub.
    path : str or Path
        By custom it ends in .irmtv. An existing file is replaced once the new one is complete.

    Returns
    -------
    Path
        The file; `irmtv.load(path)` reads it.
    """
    steps: list[tuple[str, Any]] = []
    estimator = model
    if isinstance(model, Pipeline):
        steps, estimator = list(model.steps[:-1]), model.steps[-1][1]
    if type(estimator) not in _KINDS:
        known = shown([cls.__name__ for cls in _KINDS], form=str)
        raise ValueError(
            f"model must be one of {known}, or a Pipeline that ends in one. Got {type(estimator).__name__}. Save "
            "others with their own library."
        )
    check_is_fitted(estimator)
    kind = _KINDS[type(estimator)]
    arrays, meta = _content(estimator)
    if isinstance(model, Pipeline):
        parts = {name: step for name, step in steps if step not in (None, "passthrough")}
        meta = {**meta, "kind": kind, "steps": [name for name, _ in model.steps], "parts": sorted(parts)}
        return write_model(path, _PIPELINE, arrays, meta, parts)
    return write_model(path, kind, arrays, meta)


def load(path: str | PathLike[str]) -> Any:
    """Read what `save` wrote: a fitted estimator, or a fitted Pipeline.

    Nothing in the file is executed; a damaged or foreign file, or one of a newer irmtv, is an error that says so.
    """
    readers: dict[str, Callable[[ModelFile], Any]] = {kind: _reader(kind) for kind in CLASSES}
    return load_model(path, {**readers, _PIPELINE: _read_pipeline})


# ---- what is written --------------------------------------------------------------------------------------------


def _content(estimator: InvariantEstimator) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    predictor: Predictor = estimator.predictor_
    meta: dict[str, Any] = {"parameters": _parameters(estimator), "attributes": {}, "tables": {}}
    arrays: dict[str, NDArray[Any]] = {}
    for name in _PLAIN:
        value = getattr(estimator, name, None)
        if value is not None and not isinstance(value, np.ndarray):
            meta["attributes"][name] = _plain(value)
    for name in _ARRAYS:
        value = getattr(estimator, name, None)
        if isinstance(value, np.ndarray):
            arrays[f"attribute/{name}"] = value
    for name in _TABLES:
        frame = getattr(estimator, name, None)
        if frame is not None:
            meta["tables"][name] = list(frame.columns)
            for column in frame.columns:
                arrays[f"table/{name}/{column}"] = frame[column].to_numpy()
    arrays |= {"x/mean": predictor.x.mean, "x/scale": predictor.x.scale}
    if predictor.y is not None:
        arrays |= {"y/mean": predictor.y.mean, "y/scale": predictor.y.scale}
    if predictor.aux is not None:
        arrays |= _scaler_arrays("aux", predictor.aux)
    members = []
    for i, member in enumerate(predictor.members):
        members.append({"step": member.step, "net": _net_meta(member)})
        arrays |= {f"member{i}/{name}": value.numpy() for name, value in member.parameters.items()}
    meta["members"] = members
    if predictor.rho is not None:
        net = predictor.rho.net
        meta["rho"] = {
            "n_aux": net.n_aux,
            "n_environments": net.n_environments,
            "hidden": net.hidden,
            "reads_x": predictor.rho.reads_x,
        }
        arrays |= {f"rho/{name}": value.numpy() for name, value in predictor.rho.parameters.items()}
        arrays |= _scaler_arrays("rho-aux", predictor.rho.scaler)
    return arrays, meta


def _parameters(estimator: InvariantEstimator) -> dict[str, Any]:
    found = {}
    for name, value in estimator.get_params(deep=False).items():
        if name == "module" and value is not None:
            raise ModelFileError(
                "a model file holds no code, so an estimator with module=... cannot be saved: the file could not make "
                "its network again. Save its numbers with torch.save(...state_dict()), or use hidden=(...)."
            )
        if name == "random_state" and value is not None and not isinstance(value, (int, np.integer)):
            value = None  # a generator has moved on since: its state would say nothing
        found[name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    """Python's own types: numbers of NumPy and mappings of other kinds are read back as these."""
    if isinstance(value, Affine):
        return {"affine": {"n": value.n, "reach": value.reach}}
    if isinstance(value, Mapping):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, (list, np.ndarray)):
        return [_plain(v) for v in value]
    if isinstance(value, tuple):
        return tuple(_plain(v) for v in value)
    return value.item() if isinstance(value, np.generic) else value


def _unplain(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"affine"}:
            return Affine(**value["affine"])
        return {key: _unplain(v) for key, v in value.items()}
    return value


def _net_meta(member: Member) -> dict[str, Any]:
    net = member.net
    if isinstance(net, Conv1d):
        return {
            "type": "conv1d",
            "widths": net.widths,
            "kernels": net.kernels,
            "pool_after": tuple(sorted(net.pool_after)),
            "last_relu": net.last_relu,
        }
    assert isinstance(net, MLP)
    return {"type": "mlp", "widths": net.widths}


def _scaler_arrays(name: str, scaler: AuxScaler) -> dict[str, NDArray[Any]]:
    return {f"{name}/mean": scaler.mean.numpy(), f"{name}/deviation": scaler.deviation.numpy()}


# ---- what is read -----------------------------------------------------------------------------------------------


def _reader(kind: str) -> Callable[[ModelFile], InvariantEstimator]:
    return lambda file: _read(file, CLASSES[kind])


def _read_pipeline(file: ModelFile) -> Pipeline:
    file.check(meta=["kind", "steps", "parts"])
    kind, names = file.meta["kind"], file.meta["steps"]
    if kind not in CLASSES or not isinstance(names, list) or not names:
        raise ModelFileError(f"{str(file.path)!r} holds a pipeline that ends in {kind!r}, which irmtv does not know.")
    file.check(parts=file.meta["parts"])
    steps = [(name, file.parts.get(name, "passthrough")) for name in names[:-1]]
    return Pipeline([*steps, (names[-1], _read(file, CLASSES[kind]))])


def _read(file: ModelFile, cls: type[InvariantEstimator]) -> InvariantEstimator:
    file.check(arrays=["x/mean", "x/scale"], meta=["parameters", "attributes", "tables", "members"])
    known = cls._get_param_names()
    given = file.meta["parameters"]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ModelFileError(
            f"{str(file.path)!r} has the parameters {shown(unknown)}, which {cls.__name__} does not have. It was "
            f"written by irmtv {file.version}."
        )
    estimator = cls(**{name: _unplain(value) for name, value in given.items()})
    try:
        estimator.predictor_ = _predictor(file)
    except (KeyError, TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise ModelFileError(f"{str(file.path)!r} does not hold a whole {cls.__name__}: {error}.") from error
    for name, value in file.meta["attributes"].items():
        if name in _PLAIN:
            setattr(estimator, name, value)
    for name in _ARRAYS:
        if f"attribute/{name}" in file.arrays:
            setattr(estimator, name, file.arrays[f"attribute/{name}"])
    for name, columns in file.meta["tables"].items():
        if name in _TABLES:
            frame = {c: file.arrays[f"table/{name}/{c}"] for c in columns}
            setattr(estimator, name, pd.DataFrame(frame, columns=columns))
    return estimator


def _predictor(file: ModelFile) -> Predictor:
    arrays = file.arrays

    def tensors(prefix: str) -> dict[str, torch.Tensor]:
        start = f"{prefix}/"
        return {k.removeprefix(start): torch.from_numpy(v) for k, v in arrays.items() if k.startswith(start)}

    def scaler(prefix: str) -> AuxScaler | None:
        found = tensors(prefix)
        return AuxScaler(found["mean"], found["deviation"]) if found else None

    members = []
    for i, of in enumerate(file.meta["members"]):
        net, parameters = _net(of["net"]), tensors(f"member{i}")
        shapes = {name: tuple(value.shape[1:]) for name, value in parameters.items()}
        if shapes != net.shapes:
            raise ValueError(f"member {i} has parameters {shapes} for a network of {net.shapes}")
        members.append(Member(net, parameters, {}, int(of["step"])))
    if not members:
        raise ValueError("there is no network in it")
    rho = None
    if "rho" in file.meta:
        of = dict(file.meta["rho"])
        reads_x = bool(of.pop("reads_x"))
        own = scaler("rho-aux")
        assert own is not None
        rho = Rho(AuxNetwork(**of), tensors("rho"), own, reads_x)
    y = Scaler(arrays["y/mean"], arrays["y/scale"]) if "y/mean" in arrays else None
    return Predictor(Scaler(arrays["x/mean"], arrays["x/scale"]), tuple(members), y, scaler("aux"), rho)


def _net(of: Mapping[str, Any]) -> MLP | Conv1d:
    widths = tuple(int(n) for n in of["widths"])
    if of["type"] == "mlp":
        return MLP(widths[0], widths[1:-1], widths[-1])
    if of["type"] == "conv1d":
        return Conv1d(widths[0], widths[-1], widths[1:-1], of["kernels"], of["pool_after"], bool(of["last_relu"]))
    raise ValueError(f"its network is a {of['type']!r}")
