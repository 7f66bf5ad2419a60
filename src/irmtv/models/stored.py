"""What a model file holds of networks and trees, checked number by number before anything is built of it.

By NumPy alone: the estimators make tensors and boosters of what comes out, `light` predicts with it as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from irmtv.core.layers import layer_shapes
from irmtv.data.categories import CategoricalColumns
from irmtv.models.trees.text import check_trees
from irmtv.persistence import ModelFile

Array = npt.NDArray[Any]


def count(value: Any, name: str) -> int:
    """`value`, if it is a whole number of at least 1."""
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1. Got {value!r}")
    return value


def n_outputs_of(classes: Array | None, targets: Any) -> int | None:
    """What the fitted attributes ask of a model; None for a regression (no `classes`), whose targets y/mean counts."""
    if classes is None:
        if not isinstance(targets, tuple) or len(targets) > 1:
            raise ValueError(f"_targets must be () or (number of targets,). Got {targets!r}")
        return None
    if classes.ndim != 1 or len(classes) < 2:
        raise ValueError(f"classes_ must be two or more classes. Got an array of shape {classes.shape}")
    if classes.dtype == object and any(label is None or isinstance(label, tuple) for label in classes):
        raise ValueError("classes_ must be numbers, text or dates. Got None or a tuple among them")
    return 1 if len(classes) == 2 else len(classes)


def scaler_numbers(
    arrays: Mapping[str, Array],
    name: str,
    fields: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    may_be_constant: bool = False,
) -> tuple[Array, Array]:
    """Mean and scale under `name`; raises unless they can be computed for columns of one of these shapes."""
    mean, scale = (arrays[f"{name}/{field}"] for field in fields)
    if mean.shape not in shapes or scale.shape != mean.shape:
        raise ValueError(f"{name}/mean and its scale must have the shape {shapes[-1]}. Got {mean.shape}, {scale.shape}")
    usable = (scale > 0) & (np.isfinite(scale) | may_be_constant)  # a constant feature has scale inf, so that z = 0
    if mean.dtype.kind != "f" or scale.dtype.kind != "f" or not np.isfinite(mean).all() or not usable.all():
        raise ValueError(f"{name}/mean must be finite and its scale above 0. Got {mean.tolist()}, {scale.tolist()}")
    return mean, scale


# ---- networks -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredNetwork:
    """One of irmtv's own networks."""

    widths: tuple[int, ...]
    parameters: Mapping[str, Array]  # (1, ...) each: of one run
    step: int


def read_networks(file: ModelFile, n_outputs: int) -> list[StoredNetwork]:
    """The networks of a file, which have one number of inputs and `n_outputs` outputs."""
    described = file.meta["members"]
    if not described:
        raise ValueError("there is no network in it")
    widths = [_widths(of["net"]) for of in described]
    if any((own[0], own[-1]) != (widths[0][0], n_outputs) for own in widths):
        raise ValueError(f"its networks must have one number of inputs and {n_outputs} outputs. Got widths {widths}")
    return [
        StoredNetwork(own, network_arrays(file.arrays, f"member{i}", layer_shapes(own), f"member {i}"), int(of["step"]))
        for i, (own, of) in enumerate(zip(widths, described, strict=True))
    ]


def network_arrays(
    arrays: Mapping[str, Array], prefix: str, shapes: Mapping[str, tuple[int, ...]], what: str
) -> dict[str, Array]:
    """The parameters of one network, (1, ...) each: of one run."""
    start = f"{prefix}/"
    found = {k.removeprefix(start): v for k, v in arrays.items() if k.startswith(start)}
    if {name: v.shape for name, v in found.items()} != {name: (1, *shape) for name, shape in shapes.items()}:
        got = {name: v.shape[1:] for name, v in found.items()}
        raise ValueError(f"{what} has parameters {got} for a network of {dict(shapes)}")
    if any(v.dtype.kind != "f" for v in found.values()):
        raise ValueError(f"{what} has parameters that are not floating point")
    return found


def _widths(of: Mapping[str, Any]) -> tuple[int, ...]:
    if of["type"] != "mlp":
        raise ValueError(f"its network is a {of['type']!r}")
    widths = tuple(count(n, "a width") for n in of["widths"])
    if len(widths) < 2:
        raise ValueError(f"its network has the widths {widths}")
    return widths


# ---- trees --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredTrees:
    """One booster: trees as LightGBM's text, which may be given to LightGBM."""

    text: str
    base: Array  # (C,)
    iterations: int


def read_trees(file: ModelFile, n_features: int, n_outputs: int) -> list[StoredTrees]:
    """The boosters of a file; every number of their trees is checked."""
    found = [_trees(file, i, of, n_features, n_outputs) for i, of in enumerate(file.meta["members"])]
    if not found:
        raise ValueError("there is no booster in it")
    return found


def _trees(file: ModelFile, i: int, of: Mapping[str, Any], n_features: int, n_outputs: int) -> StoredTrees:
    base, text, iterations = file.arrays[f"member{i}/base"], of["trees"], of["iterations"]
    if base.shape != (n_outputs,) or base.dtype != np.float64 or not np.isfinite(base).all():
        raise ValueError(f"member{i}/base must be {n_outputs} finite numbers. Got {base!r}")
    if not isinstance(text, str):
        raise ValueError(f"the trees of member {i} must be text. Got {type(text).__name__}")
    rounds = check_trees(text, n_features, n_outputs)
    if type(iterations) is not int or not 0 <= iterations <= rounds:
        raise ValueError(f"iterations must be a whole number from 0 to {rounds}. Got {iterations!r}")
    return StoredTrees(text, base, iterations)


def read_categories(categories: Any, n_features: int) -> CategoricalColumns:
    """How the columns of training become numbers."""
    if not isinstance(categories, list) or len(categories) != n_features:
        raise ValueError(f"categories must be those of {n_features} columns. Got {categories!r}")
    for labels in categories:
        if labels is not None and (not isinstance(labels, list) or len(set(labels)) < len(labels)):
            raise ValueError(f"categories must be different labels. Got {labels!r}")
    return CategoricalColumns(tuple(None if labels is None else tuple(labels) for labels in categories))
