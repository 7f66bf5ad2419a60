"""Fitted estimators as model files: `estimator.save(path)`, `irmtv.save(pipeline, path)`, `irmtv.load(path)`.

A file holds the constructor's parameters, the network's numbers and the fitted attributes; of a Pipeline also its
fitted preprocessing. Nothing in it is executed when it is read (see `irmtv.persistence`). What exactly is in it stands
in `estimator_content`, `module_content`, `boosting_content` and `inference_content`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from irmtv.core.messages import shown
from irmtv.data.tables.stored import as_plain_data, from_plain_data
from irmtv.estimators.boosting import (
    InvariantBoostingClassifier,
    InvariantBoostingClassifierCV,
    InvariantBoostingRegressor,
    InvariantBoostingRegressorCV,
)
from irmtv.estimators.boosting_content import boosting_content, read_boosting
from irmtv.estimators.classifier import InvariantClassifier
from irmtv.estimators.cv import InvariantClassifierCV, InvariantRegressorCV
from irmtv.estimators.environment_inference import EnvironmentInference
from irmtv.estimators.estimator_content import Content, estimator_content, read_estimator
from irmtv.estimators.inference_content import inference_content, read_inference
from irmtv.estimators.regressor import InvariantRegressor
from irmtv.models.light import FILE_KINDS, PIPELINE
from irmtv.persistence import ModelFile, ModelFileError, file_errors, read_model, write_model


class Kind(NamedTuple):
    """What a file may hold: the class, its content, and how the content becomes a fitted estimator again."""

    cls: type
    content: Callable[[Any], Content]
    read: Callable[[ModelFile, Any, Any], Any]  # file, class, module


_NETWORK = (estimator_content, read_estimator)
_BOOSTER = (boosting_content, read_boosting)
# by what a file says it holds, one of FILE_KINDS
KINDS: Mapping[str, Kind] = {
    "invariant-classifier": Kind(InvariantClassifier, *_NETWORK),
    "invariant-classifier-cv": Kind(InvariantClassifierCV, *_NETWORK),
    "invariant-regressor": Kind(InvariantRegressor, *_NETWORK),
    "invariant-regressor-cv": Kind(InvariantRegressorCV, *_NETWORK),
    "invariant-boosting-classifier": Kind(InvariantBoostingClassifier, *_BOOSTER),
    "invariant-boosting-classifier-cv": Kind(InvariantBoostingClassifierCV, *_BOOSTER),
    "invariant-boosting-regressor": Kind(InvariantBoostingRegressor, *_BOOSTER),
    "invariant-boosting-regressor-cv": Kind(InvariantBoostingRegressorCV, *_BOOSTER),
    "environment-inference": Kind(EnvironmentInference, inference_content, read_inference),
}


def save(model: Any, path: str | PathLike[str], about: Mapping[str, Any] | None = None) -> Path:
    """Write a fitted estimator of irmtv, or a Pipeline that ends in one, to a file.

    Parameters
    ----------
    model : InvariantClassifier, InvariantRegressor, their CV and boosting versions, EnvironmentInference, or Pipeline
        The steps of a Pipeline before the last must be preprocessing of scikit-learn or skrub. Of a module of your own
        the numbers are written, and `load` asks for its function again.
    path : str or Path
        By custom it ends in .irmtv. An existing file is replaced once the new one is complete; a link stays one.
    about : dict or None, default None
        What else is known of the model, as JSON: `irmtv fit` puts its findings here. `read_about` reads it.

    Returns
    -------
    Path
        The file; `irmtv.load(path)` reads it.
    """
    steps: list[tuple[str, Any]] = []
    estimator = model
    if isinstance(model, Pipeline):
        steps, estimator = list(model.steps[:-1]), model.steps[-1][1]
    kind = next((name for name, kind in KINDS.items() if kind.cls is type(estimator)), None)
    if kind is None:
        known = shown([kind.cls.__name__ for kind in KINDS.values()], limit=len(KINDS), form=str)
        raise ValueError(
            f"model must be one of {known}, or a Pipeline that ends in one. Got {type(estimator).__name__}. Save "
            "others with their own library."
        )
    check_is_fitted(estimator)
    arrays, meta = KINDS[kind].content(estimator)
    if about is not None:
        meta = {**meta, "about": dict(about)}
    if isinstance(model, Pipeline):
        parts = {name: step for name, step in steps if step not in (None, "passthrough")}
        plain = {name: data for name, step in parts.items() if (data := as_plain_data(step)) is not None}
        meta = {**meta, "kind": kind, "steps": [name for name, _ in model.steps], "parts": sorted(parts)}
        meta |= {"plain": plain} if plain else {}
        rest = {name: part for name, part in parts.items() if name not in plain}
        return write_model(path, PIPELINE, arrays, meta, rest)
    return write_model(path, kind, arrays, meta)


def load(path: str | PathLike[str], module: Callable[[], Any] | None = None) -> Any:
    """Read what `save` wrote: a fitted estimator, or a fitted Pipeline.

    Nothing in the file is executed; a damaged or foreign file, or one of a newer irmtv, is an error that says so.

    Parameters
    ----------
    path : str or Path
        The file.
    module : callable or None, default None
        Where the estimator was fitted with module=...: the same function again, since a file holds no code. Its network
        must have the parameters that the file holds.

    Returns
    -------
    estimator or Pipeline
        Predicts as it did.
    """
    return loaded(read_model(path, FILE_KINDS), module)


def loaded(file: ModelFile, module: Callable[[], Any] | None = None) -> Any:
    """What `load` gives, of a file that was read."""
    if file.kind == PIPELINE:
        return _read_pipeline(file, module)
    return _read(file, file.kind, module)


def read_about(path: str | PathLike[str]) -> dict[str, Any] | None:
    """The `about` that `save` was given, or None. The estimator is not built."""
    return read_model(path, FILE_KINDS).about()


def _read(file: ModelFile, kind: str, module: Any) -> Any:
    return KINDS[kind].read(file, KINDS[kind].cls, module)


def _step(name: str) -> Any:
    """A step of a table, not fitted, by the name of its class."""
    from irmtv.data.tables.steps import TableColumns, TableForTrees, TableNumbers

    return {"TableColumns": TableColumns, "TableNumbers": TableNumbers, "TableForTrees": TableForTrees}[name]()


def _read_pipeline(file: ModelFile, module: Any) -> Pipeline:
    with file_errors(file, "Pipeline"):
        file.check(meta=["kind", "steps", "parts"])
        kind, names, parts = file.meta["kind"], file.meta["steps"], file.meta["parts"]
        if kind not in KINDS or not isinstance(names, list) or not names:
            raise ModelFileError(
                f"{str(file.path)!r} holds a pipeline that ends in {kind!r}, which irmtv does not know."
            )
        plain = {name: from_plain_data(data, _step) for name, data in file.meta.get("plain", {}).items()}
        file.check(parts=[name for name in parts if name not in plain])
        if not all(isinstance(name, str) for name in names):
            raise ValueError(f"its steps must have names that are text. Got {shown(names)}")
        found = {**plain, **file.parts}
        if sorted(parts) != sorted([*plain, *file.parts]) or not set(parts) <= set(names[:-1]):
            raise ValueError(f"it has the preprocessing {shown(sorted(found))} for the steps {shown(names[:-1])}")
        steps = [(name, found.get(name, "passthrough")) for name in names[:-1]]
    return Pipeline([*steps, (names[-1], _read(file, kind, module))])
