"""Fitted steps of tables as plain data and back: what a model file holds of them as JSON, checked on the way in.

Steps that need skrub to predict, because no recipe says the same of a column, are no plain data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from irmtv.data.tables.reading import ReadColumns, ReadForTrees, ReadNumbers

KINDS = ("number", "date", "text", "category")
MADE_OF = ("numeric", "datetime", "low_cardinality", "high_cardinality")  # skrub's words for the kinds of columns
# by the name of the class of a step: what predicts with its attributes
READERS: Mapping[str, type] = {
    "TableColumns": ReadColumns,
    "TableNumbers": ReadNumbers,
    "TableForTrees": ReadForTrees,
}
_OF_NUMBERS = ("column_to_kind_", "input_to_outputs_", "recipes_", "units_", "fill_")  # by column


def as_plain_data(step: Any) -> dict[str, Any] | None:
    """A fitted step as a dict of lists, texts and numbers; None of other steps, and where it needs skrub."""
    name, reader = type(step).__name__, READERS.get(type(step).__name__)
    attributes = ("kinds_",) if reader is ReadColumns else (*_OF_NUMBERS, "indicated_", "groups_")
    needed = ("feature_names_in_", *attributes)
    if reader is None or not isinstance(step, reader) or not all(hasattr(step, key) for key in needed):
        return None
    of: Any = step
    stored = {"class": name, "columns": [str(column) for column in of.feature_names_in_]}
    if reader is ReadColumns:
        return {**stored, "kinds": dict(of.kinds_), "categorical": list(of.categorical)}
    if of.groups_:
        return None
    by_column = {key.rstrip("_"): dict(getattr(of, key)) for key in _OF_NUMBERS}
    return {**stored, **by_column, "indicated": list(of.indicated_)}


def from_plain_data(stored: Any, make: Callable[[str], Any] = lambda name: READERS[name]()) -> Any:
    """The step again, or whatever `make` gives for the name of its class, with its attributes.

    A ValueError says what is wrong with data that no fitted step has.
    """
    if not isinstance(stored, dict) or stored.get("class") not in READERS:
        raise ValueError("a step must be columns or numbers of a table")
    name = stored["class"]
    columns = _texts(stored, "columns")
    step = make(name)
    step.feature_names_in_ = np.array(columns, dtype=object)
    step.n_features_in_ = len(columns)
    if name == "TableColumns":
        kinds = _by_column(stored, "kinds", columns, lambda v: v in KINDS)
        if list(kinds) != columns:
            raise ValueError("kinds must be of every column, in their order")
        step.kinds_, step.categorical = kinds, tuple(_texts(stored, "categorical"))
        return step
    _set_numbers(step, stored, columns)
    return step


def _set_numbers(step: Any, stored: Mapping[str, Any], columns: Sequence[str]) -> None:
    """The attributes of `TableNumbers`, each of the form that it needs, and all of them of the same columns."""
    for_trees = stored["class"] == "TableForTrees"
    step.groups_, step.vectorizers_ = [], []
    step.column_to_kind_ = _by_column(stored, "column_to_kind", columns, lambda v: v in MADE_OF)
    step.input_to_outputs_ = _by_column(stored, "input_to_outputs", columns, _are_texts)
    step.recipes_ = _by_column(stored, "recipes", columns, lambda v: isinstance(v, dict))
    step.units_ = _by_column(stored, "units", columns, lambda v: _are_numbers(v, 2) and v[1] > 0)
    step.fill_ = _by_column(stored, "fill", columns, lambda v: _are_numbers(v, len(v)))
    step.indicated_ = _texts(stored, "indicated")
    outputs, recipes = step.input_to_outputs_, step.recipes
    if set(outputs) != set(step.column_to_kind_) or not {*recipes, *step.units_, *step.indicated_} <= set(outputs):
        raise ValueError("columns must have a kind where numbers are made of them")
    made_of_numbers = {name for name, kind in step.column_to_kind_.items() if kind == "numeric"}
    if set(outputs) - made_of_numbers != set(recipes) or not set(step.units_) <= made_of_numbers:
        raise ValueError("columns must be numbers or have a recipe")
    for name, made in outputs.items():
        own = 1 if name not in recipes else recipes[name].n_outputs
        if len(made) != own or ((not for_trees or name not in recipes) and len(step.fill_.get(name, ())) != own):
            raise ValueError(f"{name!r} must become {own} numbers, each with what stands for a missing value")
        if name in recipes and (getattr(recipes[name], "places", ()) is None) != (for_trees and _is_word(step, name)):
            raise ValueError(f"{name!r} must have the recipe of its kind")
    if len(set(step.outputs())) < len(step.outputs()):
        raise ValueError("the numbers that are made must have different names")


def _is_word(step: Any, name: str) -> bool:
    return bool(step.column_to_kind_[name] == "low_cardinality")


def _by_column(stored: Mapping[str, Any], key: str, columns: Sequence[str], fits: Callable[[Any], bool]) -> Any:
    value = stored.get(key)
    known = set(columns)
    if not isinstance(value, dict) or not set(value) <= known or not all(_safely(fits, v) for v in value.values()):
        raise ValueError(f"{key} must be of columns, and as a fitted step has it")
    return value


def _safely(fits: Callable[[Any], bool], value: Any) -> bool:
    try:
        return bool(fits(value))
    except TypeError:  # what has no length, or cannot be looked up
        return False


def _texts(stored: Mapping[str, Any], key: str) -> list[str]:
    value = stored.get(key)
    if not _are_texts(value) or len(set(value or ())) < len(value or ()):
        raise ValueError(f"{key} must be different texts")
    return list(value or ())


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(type(text) is str for text in value)


def _are_numbers(value: Any, n: int) -> bool:
    return isinstance(value, list) and len(value) == n and all(type(v) is float and math.isfinite(v) for v in value)
