"""Texts among the values of a column, and lists of texts in model files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def nulls_among(values: Any, nulls: Sequence[str]) -> list[bool]:
    """By value, whether it is a text that stands for a missing one; spaces alone are an empty one."""
    gone = set(nulls)
    return [isinstance(value, str) and ("" if value.isspace() else value) in gone for value in values]


def check_texts(values: Any, name: str) -> None:
    """Raise unless it is a list of different texts."""
    if not isinstance(values, list) or any(type(value) is not str for value in values):
        raise ValueError(f"{name} must be a list of texts")
    if len(set(values)) < len(values):
        raise ValueError(f"{name} must be different from each other")
