"""Fitted estimators as model files: `estimator.save(path)`, `irmtv.save(pipeline, path)`, `irmtv.load(path)`.

A file holds the constructor's parameters, the network's numbers and the fitted attributes; of a Pipeline also its
fitted preprocessing. Nothing in it is executed when it is read (see `irmtv.persistence`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from irmtv.engine.nets import MLP
from irmtv.engine.settings import plain
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
    return plain(value)


def _unplain(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"affine"}:
            return Affine(**value["affine"])
        return {key: _unplain(v) for key, v in value.items()}
    return value


def _net_meta(member: Member) -> dict[str, Any]:
    assert isinstance(member.net, MLP)  # module=... is refused, and there is no other network
    return {"type": "mlp", "widths": member.net.widths}


def _scaler_arrays(name: str, scaler: AuxScaler) -> dict[str, NDArray[Any]]:
    return {f"{name}/mean": scaler.mean.numpy(), f"{name}/deviation": scaler.deviation.numpy()}


# ---- what is read -----------------------------------------------------------------------------------------------


_WRONG = (AttributeError, KeyError, IndexError, TypeError, ValueError, OverflowError, AssertionError, RuntimeError)


def _reader(kind: str) -> Callable[[ModelFile], InvariantEstimator]:
    return lambda file: _read(file, CLASSES[kind])


def _read_pipeline(file: ModelFile) -> Pipeline:
    with _told(file, "Pipeline"):
        file.check(meta=["kind", "steps", "parts"])
        kind, names, parts = file.meta["kind"], file.meta["steps"], file.meta["parts"]
        if kind not in CLASSES or not isinstance(names, list) or not names:
            raise ModelFileError(
                f"{str(file.path)!r} holds a pipeline that ends in {kind!r}, which irmtv does not know."
            )
        file.check(parts=parts)
        if sorted(parts) != sorted(file.parts) or not set(parts) <= set(names[:-1]):
            raise ValueError(f"it has the preprocessing {shown(sorted(file.parts))} for the steps {shown(names[:-1])}")
        steps = [(name, file.parts.get(name, "passthrough")) for name in names[:-1]]
    return Pipeline([*steps, (names[-1], _read(file, CLASSES[kind]))])


@contextmanager
def _told(file: ModelFile, what: str) -> Iterator[None]:
    """A file that is sealed as it should be and still holds something else is an error of the file, not of Python."""
    try:
        yield
    except ModelFileError:
        raise
    except _WRONG as error:
        said = str(error) if type(error) in (ValueError, AssertionError) else f"{type(error).__name__}: {error}"
        raise ModelFileError(
            f"{str(file.path)!r} does not hold a whole {what}: {said.removesuffix('.')}. It was written by irmtv "
            f"{file.version}."
        ) from error


def _read(file: ModelFile, cls: type[InvariantEstimator]) -> InvariantEstimator:
    with _told(file, cls.__name__):
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
        n_features = _count(file.meta["attributes"]["n_features_in_"], "n_features_in_")
        estimator.predictor_ = _predictor(file, n_features, _n_outputs(estimator))
    return estimator


def _n_outputs(estimator: InvariantEstimator) -> int | None:
    """What the fitted attributes ask of the network; None for a regression, whose targets y/mean counts."""
    if isinstance(estimator, InvariantRegressor):
        targets = estimator._targets
        if not isinstance(targets, tuple) or len(targets) > 1:
            raise ValueError(f"_targets must be () or (number of targets,). Got {targets!r}")
        return None
    classes = estimator.classes_
    if classes.ndim != 1 or len(classes) < 2:
        raise ValueError(f"classes_ must be two or more classes. Got an array of shape {classes.shape}")
    return 1 if len(classes) == 2 else len(classes)


def _predictor(file: ModelFile, n_features: int, n_outputs: int | None) -> Predictor:
    arrays = file.arrays

    def tensors(prefix: str, shapes: Mapping[str, tuple[int, ...]], what: str) -> dict[str, torch.Tensor]:
        start = f"{prefix}/"
        found = {k.removeprefix(start): v for k, v in arrays.items() if k.startswith(start)}
        # of one run: (1, ...)
        if {name: v.shape for name, v in found.items()} != {name: (1, *shape) for name, shape in shapes.items()}:
            got = {name: v.shape[1:] for name, v in found.items()}
            raise ValueError(f"{what} has parameters {got} for a network of {dict(shapes)}")
        if any(v.dtype.kind != "f" for v in found.values()):
            raise ValueError(f"{what} has parameters that are not floating point")
        return {name: torch.from_numpy(v) for name, v in found.items()}

    def scaler(prefix: str, shape: tuple[int, ...], may_be_constant: bool) -> Scaler:
        mean, scale = arrays[f"{prefix}/mean"], arrays[f"{prefix}/scale"]
        _check_scale(prefix, mean, scale, [shape], may_be_constant)
        return Scaler(mean, scale)

    def aux_scaler(prefix: str, n_aux: int) -> AuxScaler:
        mean, deviation = arrays[f"{prefix}/mean"], arrays[f"{prefix}/deviation"]
        _check_scale(prefix, mean, deviation, [(), (n_aux,)])  # one for the matrix, or one per column
        return AuxScaler(torch.from_numpy(mean), torch.from_numpy(deviation))

    x = scaler("x", (n_features,), may_be_constant=True)
    members, nets = [], []
    for i, of in enumerate(file.meta["members"]):
        net = _net(of["net"])
        nets.append(net)
        members.append(Member(net, tensors(f"member{i}", net.shapes, f"member {i}"), {}, int(of["step"])))
    if not members:
        raise ValueError("there is no network in it")
    if n_outputs is None:
        n_outputs = arrays["y/mean"].size
    n_inputs = nets[0].widths[0]
    if any((net.widths[0], net.n_outputs) != (n_inputs, n_outputs) for net in nets):
        found = [net.widths for net in nets]
        raise ValueError(f"its networks must have one number of inputs and {n_outputs} outputs. Got widths {found}")
    y = scaler("y", (n_outputs,), may_be_constant=False) if "y/mean" in arrays else None
    n_aux = n_inputs - n_features  # columns that the predictor reads beside x
    if n_aux < 0 or (n_aux > 0) != ("aux/mean" in arrays):
        raise ValueError(f"its network reads {n_inputs} columns, of which {n_features} are features")
    aux = aux_scaler("aux", n_aux) if n_aux else None
    rho = None
    if "rho" in file.meta:
        of = file.meta["rho"]
        numbers = {name: _count(of[name], f"rho's {name}") for name in ("n_aux", "n_environments", "hidden")}
        reads_x, rho_net = of["reads_x"], AuxNetwork(**numbers)
        if not isinstance(reads_x, bool) or rho_net.n_environments < 2:
            raise ValueError(f"rho must divide rows into two or more environments. Got {of}")
        parameters = tensors("rho", rho_net.shapes, "rho")
        rho = Rho(rho_net, parameters, aux_scaler("rho-aux", rho_net.n_aux - n_features * reads_x), reads_x)
    return Predictor(x, tuple(members), y, aux, rho)


def _check_scale(
    name: str, mean: NDArray[Any], scale: NDArray[Any], shapes: Sequence[tuple[int, ...]], may_be_constant: bool = False
) -> None:
    if mean.shape not in shapes or scale.shape != mean.shape:
        raise ValueError(f"{name}/mean and its scale must have the shape {shapes[-1]}. Got {mean.shape}, {scale.shape}")
    usable = (scale > 0) & (np.isfinite(scale) | may_be_constant)  # a constant feature has scale inf, so that z = 0
    if mean.dtype.kind != "f" or scale.dtype.kind != "f" or not np.isfinite(mean).all() or not usable.all():
        raise ValueError(f"{name}/mean must be finite and its scale above 0. Got {mean.tolist()}, {scale.tolist()}")


def _count(value: Any, name: str) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1. Got {value!r}")
    return value


def _net(of: Mapping[str, Any]) -> MLP:
    if of["type"] != "mlp":
        raise ValueError(f"its network is a {of['type']!r}")
    widths = tuple(_count(n, "a width") for n in of["widths"])
    if len(widths) < 2:
        raise ValueError(f"its network has the widths {widths}")
    return MLP(widths[0], widths[1:-1], widths[-1])
