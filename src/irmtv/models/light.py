"""A model file that predicts by NumPy, pandas and LightGBM's library: torch and scikit-learn take seconds to load.

`light_steps` gives what `irmtv.load` gives, as far as predictions of tables need it, of files whose preprocessing is
plain data (`irmtv.data.tables.stored`). It reads the same entries of the file as `irmtv.load`, by the same checks
(`stored`): a file holds nothing twice, so the two cannot differ in what they know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from irmtv.data.rows import check_finite
from irmtv.data.scaling import Scaler
from irmtv.data.tables.reading import ReadNumbers
from irmtv.data.tables.stored import from_plain_data
from irmtv.models.stored import (
    StoredNetwork,
    count,
    n_outputs_of,
    read_categories,
    read_networks,
    read_trees,
    scaler_numbers,
)
from irmtv.models.trees.library import booster_of, threads
from irmtv.models.trees.predictor import TreeMember, TreePredictor
from irmtv.persistence import ModelFile, file_errors

Floats = npt.NDArray[np.float64]
PIPELINE = "pipeline"


class _Kind(NamedTuple):
    trees: bool
    classifies: bool


_KINDS = {
    f"invariant-{trees}{what}{cv}": _Kind(bool(trees), what == "classifier")
    for trees in ("", "boosting-")
    for what in ("classifier", "regressor")
    for cv in ("", "-cv")
}
FILE_KINDS = (*_KINDS, "environment-inference", PIPELINE)  # all that a file may hold; a kind never changes
ROWS = 1 << 11  # at a time, which stay in the cache


@dataclass(frozen=True)
class LightRegressor:
    """Predictions of a file: what `InvariantRegressor` and its relatives give."""

    outputs: Callable[[Any], Floats]  # what the last step reads -> (N,) or (N, T)
    one_column: bool  # of targets: (N, 1)
    objective_: str | None

    def predict(self, values: Any) -> Floats:
        """Predictions in the units of y: (N,) or (N, T)."""
        outputs = self.outputs(values)
        return outputs[:, None] if self.one_column else outputs


@dataclass(frozen=True)
class LightClassifier:
    """Predictions of a file: what `InvariantClassifier` and its relatives give."""

    outputs: Callable[[Any], Floats]  # what the last step reads -> (N,) or (N, C)
    classes_: npt.NDArray[Any]
    objective_: str | None

    def decision_function(self, values: Any) -> Floats:
        """The logits: (N,) for two classes, (N, C) for more."""
        return self.outputs(values)

    def predict(self, values: Any) -> npt.NDArray[Any]:
        """The most probable class of every row: (N,)."""
        labels: npt.NDArray[Any] = self.classes_[most_probable(self.outputs(values))]
        return labels


def most_probable(logits: Floats) -> npt.NDArray[np.intp]:
    """The most probable class of every row, by its place: (N,)."""
    return (logits > 0).astype(np.intp) if logits.ndim == 1 else logits.argmax(1)


def probabilities(logits: Floats) -> Floats:
    """Probabilities of the classes: (N, C)."""
    if logits.ndim == 1:
        logits = np.stack([np.zeros_like(logits), logits], 1)
    powers = np.exp(logits - logits.max(1, keepdims=True))
    shares: Floats = powers / powers.sum(1, keepdims=True)
    return shares


@dataclass(frozen=True)
class LightNetworks:
    """From features in the user's units to outputs in the user's units, as `networks.predictor.Predictor` does."""

    x: Scaler
    members: tuple[StoredNetwork, ...]
    y: Scaler | None

    def logits(self, values: Any) -> Floats:
        """Mean over the members: (N,) or (N, C), float64. For regression in the user's units."""
        features = np.asarray(values)
        check_finite(features, "X")
        starts = range(0, max(1, len(features)), ROWS)
        outputs = np.concatenate([self._some(features[start : start + ROWS]) for start in starts])
        if outputs.shape[1] == 1:
            return outputs[:, 0] if self.y is None else self.y.back(outputs)[:, 0]
        return outputs if self.y is None else self.y.back(outputs)

    def _some(self, features: npt.NDArray[np.floating]) -> Floats:
        z = self.x(features)
        made: Floats = np.mean([_forward(member.parameters, z) for member in self.members], 0)
        return made


def _forward(parameters: Mapping[str, npt.NDArray[Any]], z: Floats) -> Floats:
    """(N, D) -> (N, C), with ReLU between the layers."""
    h = z
    for i in range(len(parameters) // 2):
        weight, bias = (parameters[f"{letter}{i}"][0].astype(np.float64) for letter in "Wb")
        h = (np.maximum(h, 0) if i else h) @ weight.T + bias[:, 0]
    return h


# ---- reading ------------------------------------------------------------------------------------------------------


def light_steps(file: ModelFile) -> list[tuple[str, Any]] | None:
    """The steps of a Pipeline with its estimator, light; None where a file needs `irmtv.load`."""
    with file_errors(file, "Pipeline"):
        kind = _KINDS.get(file.meta.get("kind", "")) if file.kind == PIPELINE else None
        if kind is None or not _is_light(file, kind):
            return None
        *names, last = file.meta["steps"]
        steps = [(name, from_plain_data(file.meta["plain"][name])) for name in names]
        if not all(set(step.feature_names_in_) <= set(steps[0][1].feature_names_in_) for _, step in steps):
            raise ValueError("a step of its preprocessing reads columns that the first does not")
        made = steps[-1][1].outputs() if isinstance(steps[-1][1], ReadNumbers) else steps[-1][1].feature_names_in_
        n_features = count(file.meta["attributes"]["n_features_in_"], "n_features_in_")
        if n_features != len(made):
            raise ValueError(f"its model reads {n_features} columns, and its preprocessing makes {len(made)}")
        return [*steps, (last, _estimator(file, kind, n_features))]


def _is_light(file: ModelFile, kind: _Kind) -> bool:
    """Whether all of a Pipeline is plain data, irmtv's own networks or trees, and reads nothing beside the features."""
    file.check(meta=["steps", "parts", "parameters", "attributes", "members"])
    *names, _ = file.meta["steps"]
    if not names or set(names) != set(file.meta.get("plain", ())):
        return False
    if "aux/mean" in file.arrays or any(file.meta["parameters"].get(name) for name in ("environment", "aux")):
        return False  # columns beside the features are told apart by the estimators
    return kind.trees or all(member["net"]["type"] == "mlp" for member in file.meta["members"])


def _estimator(file: ModelFile, kind: _Kind, n_features: int) -> LightClassifier | LightRegressor:
    attributes = file.meta["attributes"]
    objective = attributes.get("objective_")
    if not isinstance(objective, (str, type(None))):
        raise ValueError(f"objective_ must be a name. Got {objective!r}")
    read = _trees if kind.trees else _networks
    if kind.classifies:
        file.check(arrays=["attribute/classes_"])
        classes = file.arrays["attribute/classes_"]
        return LightClassifier(read(file, n_features, n_outputs_of(classes, None)), classes, objective)
    targets = attributes.get("_targets")
    return LightRegressor(read(file, n_features, n_outputs_of(None, targets)), targets == (1,), objective)


def _networks(file: ModelFile, n_features: int, n_outputs: int | None) -> Callable[[Any], Floats]:
    file.check(arrays=["x/mean", "x/scale"])
    arrays = file.arrays
    x = Scaler(*scaler_numbers(arrays, "x", ("mean", "scale"), [(n_features,)], may_be_constant=True))
    n_outputs = arrays["y/mean"].size if n_outputs is None else n_outputs
    members = tuple(read_networks(file, n_outputs))
    if members[0].widths[0] != n_features:
        raise ValueError(f"its network reads {members[0].widths[0]} columns, of which {n_features} are features")
    return LightNetworks(x, members, _y(file, n_outputs)).logits


def _trees(file: ModelFile, n_features: int, n_outputs: int | None) -> Callable[[Any], Floats]:
    file.check(meta=["categories", "parameters"])
    table = read_categories(file.meta["categories"], n_features)
    members = tuple(
        TreeMember(booster_of(of.text), of.base, of.iterations) for of in read_trees(file, n_features, n_outputs or 1)
    )
    predictor = TreePredictor(table, members, _y(file, 1), n_jobs=threads(file.meta["parameters"].get("n_jobs")))
    return lambda frame: predictor.logits(table.read(frame))


def _y(file: ModelFile, n_outputs: int) -> Scaler | None:
    if "y/mean" not in file.arrays:
        return None
    return Scaler(*scaler_numbers(file.arrays, "y", ("mean", "scale"), [(n_outputs,)]))
