"""What a model file holds of a fitted InvariantClassifier or InvariantRegressor, and how it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from irmtv.core.messages import plain, shown
from irmtv.data.scaling import Scaler
from irmtv.engine.networks import MLP
from irmtv.estimators.base import InvariantEstimator
from irmtv.estimators.module_content import Shapes, check_same_module, described, module_content, read_module
from irmtv.estimators.regressor import InvariantRegressor
from irmtv.models.networks.predictor import Member, Predictor, Rho
from irmtv.models.stored import count, n_outputs_of, network_arrays, read_networks, scaler_numbers
from irmtv.objectives.environments.affine import Affine
from irmtv.objectives.environments.aux_network import AuxNetwork, AuxScaler
from irmtv.persistence import ModelFile, ModelFileError, file_errors

Content = tuple[dict[str, NDArray[Any] | torch.Tensor], dict[str, Any]]  # arrays, and what else there is
# fitted attributes beside the predictor, where an estimator has them: as they are, as arrays, as tables
_PLAIN = (
    "n_features_in_",
    "n_iter_",
    "objective_",
    "selected_",
    "best_params_",
    "expected_score_",
    "intercept_",
    "_targets",
)
_ARRAYS = ("classes_", "feature_names_in_", "environments_", "environment_weights_", "coef_", "intercept_")
_TABLES = ("history_", "cv_results_", "new_environment_")
Estimator = TypeVar("Estimator", bound=BaseEstimator)
AnyScaler = TypeVar("AnyScaler", Scaler, AuxScaler)


# ---- what is written --------------------------------------------------------------------------------------------


def estimator_content(estimator: InvariantEstimator) -> Content:
    """Parameters of the constructor, fitted attributes, networks. No training row."""
    predictor: Predictor = estimator.predictor_
    arrays, meta = attributes_content(estimator)
    for name, scaler in (("x", predictor.x), ("y", predictor.y), ("aux", predictor.aux)):
        arrays |= scaler_arrays(name, scaler)
    members = []
    for i, member in enumerate(predictor.members):
        if isinstance(member.net, MLP):
            description: dict[str, Any] = {"type": "mlp", "widths": member.net.widths}
            numbers = {f"member{i}/{name}": value for name, value in member.parameters.items()}
        else:
            numbers, description = module_content(member, i)
        members.append({"step": member.step, "net": description})
        arrays |= numbers
    meta["members"] = members
    if predictor.rho is not None:
        of_rho, meta["rho"] = rho_content(predictor.rho)
        arrays |= of_rho
    return arrays, meta


def attributes_content(estimator: BaseEstimator) -> Content:
    """Parameters of the constructor and fitted attributes, without what predicts."""
    meta: dict[str, Any] = {"parameters": parameters_of(estimator), "attributes": {}, "tables": {}}
    arrays: dict[str, NDArray[Any] | torch.Tensor] = {}
    for name in _PLAIN:
        value = getattr(estimator, name, None)
        if value is not None and not isinstance(value, np.ndarray):
            meta["attributes"][name] = as_plain(value)
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
    return arrays, meta


def rho_content(rho: Rho) -> Content:
    """The environment network, and what it reads."""
    net = rho.net
    about = {"n_aux": net.n_aux, "n_environments": net.n_environments, "hidden": net.hidden, "reads_x": rho.reads_x}
    numbers: dict[str, Any] = {f"rho/{name}": value for name, value in rho.parameters.items()}
    return numbers | scaler_arrays("rho-aux", rho.scaler), about


def parameters_of(estimator: BaseEstimator) -> dict[str, Any]:
    """The constructor's, but for a module of the user's own, which is code: it is given to `load` again."""
    found = {}
    for name, value in estimator.get_params(deep=False).items():
        if name == "module":
            continue
        if name == "random_state" and value is not None and not isinstance(value, (int, np.integer)):
            value = None  # a generator has moved on since: its state would say nothing
        found[name] = as_plain(value)
    return found


def as_plain(value: Any) -> Any:
    """Python's own types: numbers of NumPy and mappings of other kinds are read back as these."""
    if isinstance(value, Affine):
        return {"affine": {"n": value.n, "reach": value.reach}}
    if isinstance(value, Mapping):
        return {key: as_plain(v) for key, v in value.items()}
    if isinstance(value, (list, np.ndarray)):
        return [as_plain(v) for v in value]
    if isinstance(value, tuple):
        return tuple(as_plain(v) for v in value)
    return plain(value)


def _unplain(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"affine"}:
            return Affine(**value["affine"])
        return {key: _unplain(v) for key, v in value.items()}
    return value


def scaler_arrays(name: str, scaler: Scaler | AuxScaler | None) -> dict[str, Any]:
    """`name`/mean and `name`/scale, of an AuxScaler `name`/deviation; nothing where there is none."""
    return {} if scaler is None else {f"{name}/{field}": value for field, value in vars(scaler).items()}


# ---- what is read -----------------------------------------------------------------------------------------------


def constructed(file: ModelFile, cls: type[Estimator], **more: Any) -> Estimator:
    """The estimator as its constructor made it; nothing of the file but known parameters reaches it."""
    given = file.meta["parameters"]
    unknown = sorted(set(given) - set(cls._get_param_names()))
    if unknown:
        raise ModelFileError(
            f"{str(file.path)!r} has the parameters {shown(unknown)}, which {cls.__name__} does not have. It was "
            f"written by irmtv {file.version}."
        )
    made: Estimator = cls(**{name: _unplain(value) for name, value in given.items()}, **more)
    return made


def read_estimator(file: ModelFile, cls: type[InvariantEstimator], module: Any = None) -> InvariantEstimator:
    """The fitted estimator; `module` is the function that makes its network, where that is the user's own."""
    with file_errors(file, cls.__name__):
        file.check(arrays=["x/mean", "x/scale"], meta=["parameters", "attributes", "tables", "members"])
        own = described([of["net"] for of in file.meta["members"]])
    check_same_module(file, own, module)  # what it finds is not the file's fault
    with file_errors(file, cls.__name__):
        estimator = constructed(file, cls, **({} if module is None else {"module": module}))
        n_features = set_attributes(estimator, file)
        estimator.predictor_ = _predictor(file, n_features, asked_outputs(estimator), own, module)
    return estimator


def set_attributes(estimator: BaseEstimator, file: ModelFile) -> int:
    """The fitted attributes, without what predicts; returns the number of features."""
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
    return count(file.meta["attributes"]["n_features_in_"], "n_features_in_")


def asked_outputs(estimator: BaseEstimator) -> int | None:
    """How many outputs the fitted attributes ask of the model; None for a regression."""
    regression = isinstance(estimator, InvariantRegressor)
    return n_outputs_of(None, estimator._targets) if regression else n_outputs_of(estimator.classes_, None)


def _predictor(
    file: ModelFile, n_features: int, n_outputs: int | None, own: Sequence[Shapes], module: Any
) -> Predictor:
    arrays = file.arrays
    of_series = [(n_features, 1)] if own else []  # per channel
    x = read_scaler(Scaler, arrays, "x", [*of_series, (n_features,)], may_be_constant=True)
    if not file.meta["members"]:
        raise ValueError("there is no network in it")
    if n_outputs is None:
        n_outputs = arrays["y/mean"].size
    if not own:
        members, n_inputs = _members(file, n_outputs)
    else:
        members = [read_module(file, i, shapes, module, n_outputs) for i, shapes in enumerate(own)]
        n_inputs = n_features + (arrays["aux/mean"].size if "aux/mean" in arrays else 0)  # nobody else knows
    y = read_scaler(Scaler, arrays, "y", [(n_outputs,)]) if "y/mean" in arrays else None
    n_aux = n_inputs - n_features  # columns that the predictor reads beside x
    if n_aux < 0 or (n_aux > 0) != ("aux/mean" in arrays):
        raise ValueError(f"its network reads {n_inputs} columns, of which {n_features} are features")
    aux = read_scaler(AuxScaler, arrays, "aux", [(), (n_aux,)]) if n_aux else None  # one for the matrix, or per column
    return Predictor(x, tuple(members), y, aux, read_rho(file, n_features))


def read_scaler(
    cls: type[AnyScaler],
    arrays: Mapping[str, NDArray[Any]],
    name: str,
    shapes: Sequence[tuple[int, ...]],
    may_be_constant: bool = False,
) -> AnyScaler:
    """The scaler under `name`; raises unless it can be computed for columns of one of these shapes."""
    names = [field.name for field in fields(cls)]
    mean, scale = scaler_numbers(arrays, name, names, shapes, may_be_constant)
    make: Any = torch.from_numpy if cls is AuxScaler else np.asarray
    return cls(make(mean), make(scale))


def read_rho(file: ModelFile, n_features: int) -> Rho | None:
    """The environment network, where there is one."""
    if "rho" not in file.meta:
        return None
    of = file.meta["rho"]
    numbers = {name: count(of[name], f"rho's {name}") for name in ("n_aux", "n_environments", "hidden")}
    reads_x, rho_net = of["reads_x"], AuxNetwork(**numbers)
    if not isinstance(reads_x, bool) or rho_net.n_environments < 2:
        raise ValueError(f"rho must divide rows into two or more environments. Got {of}")
    parameters = _tensors(network_arrays(file.arrays, "rho", rho_net.shapes, "rho"))
    n_aux = rho_net.n_aux - n_features * reads_x
    return Rho(rho_net, parameters, read_scaler(AuxScaler, file.arrays, "rho-aux", [(), (n_aux,)]), reads_x)


def _members(file: ModelFile, n_outputs: int) -> tuple[list[Member], int]:
    """irmtv's own networks, and how many columns they read."""
    stored = read_networks(file, n_outputs)
    members = [
        Member(MLP(of.widths[0], of.widths[1:-1], of.widths[-1]), _tensors(of.parameters), {}, of.step) for of in stored
    ]
    return members, stored[0].widths[0]


def _tensors(parameters: Mapping[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value) for name, value in parameters.items()}
