"""The state of built parts, checked parameter by parameter against `parameters` before anything uses it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from irmtv.persistence.parameters import ANYWHERE, PARAMETERS, TOGETHER
from irmtv.persistence.rules import is_plain_scalar
from irmtv.persistence.trusted import TRUSTED

__all__ = ["check_state", "constructor_parameters"]


def check_state(part: Any) -> None:
    """Raise a ValueError that names class, parameter and value where a part, or anything in it, has a state that
    could do more than transform rows."""
    seen: dict[int, Any] = {}  # by id, kept alive
    waiting = [part]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if f"{type(value).__module__}.{type(value).__qualname__}" in TRUSTED["ObjectNode"]:
            _check_object(value)
        waiting.extend(_inside(value))


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.keys()
        yield from value.values()
    elif isinstance(value, (list, tuple, set)):
        yield from value
    elif isinstance(value, np.ndarray):
        if value.dtype == object:
            yield from value.ravel()
    elif not isinstance(value, type):
        yield from getattr(value, "__dict__", {}).values()


def _check_object(value: Any) -> None:
    name, state = type(value).__name__, getattr(value, "__dict__", {})
    general = {key: rule for key in state for pattern, rule in ANYWHERE.items() if re.fullmatch(pattern, str(key))}
    rules = {**general, **PARAMETERS.get(name, {})}
    defaults = constructor_parameters(type(value))
    for key, given in state.items():
        if not isinstance(key, str) or callable(getattr(type(value), key, None)):
            raise ValueError(f"{name} has an attribute {key!r} in place of its own method")
        if key in rules:
            if not rules[key].allows(given):
                raise ValueError(f"{name}'s {key} must be {rules[key].expected}. Got {_shown(given)}")
        elif key in defaults and not _same(given, defaults[key]):  # of a version whose parameters nobody has judged
            raise ValueError(f"{name}'s {key} must have its default value. Got {_shown(given)}")
    if name in TOGETHER and (_is_fitted(state) or name == "BSpline"):  # which has its arrays from the start
        expected, fits = TOGETHER[name]
        if not fits(state):
            raise ValueError(f"{name} must be {expected}")


def constructor_parameters(cls: type) -> dict[str, Any]:
    """Names of the parameters of a class, with their defaults."""
    try:
        listed = inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc]
    except (TypeError, ValueError):  # of a class in C
        return {}
    if cls.__init__ is object.__init__:  # type: ignore[misc]
        return {}
    return {p.name: p.default for p in list(listed)[1:]}


def _is_fitted(state: Mapping[str, Any]) -> bool:
    return any(key.startswith("_") or key.endswith("_") for key in state if key != "_sklearn_output_config")


def _same(given: Any, default: Any) -> bool:
    return given is default or (is_plain_scalar(given) and type(given) is type(default) and given == default)


def _shown(value: Any) -> str:
    text = repr(value) if is_plain_scalar(value) or type(value) in (tuple, type) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}…"
