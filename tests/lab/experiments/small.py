"""Specs of experiments that train in a fraction of a second."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from irmtv.lab.experiments import Spec, parse_spec

ERM: Mapping[str, Any] = {"objective": "erm"}
TV: Mapping[str, Any] = {"objective": "irm-tv-l1", "penalty_weight": [1.0, 100.0], "warmup": 10}
MINIMAX: Mapping[str, Any] = {"objective": "minimax-tv-l1", "penalty_weight": [0.0, 100.0], "warmup": 10}
THREE = {"p_s": [0.999, 0.8, 0.6]}


def toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + " }"
    return json.dumps(value)


def small_text(
    *methods: Mapping[str, Any],
    rules: Sequence[str] = ("iid",),
    repetitions: int = 1,
    folds: int = 2,
    data: str = "simulation",
    arguments: Mapping[str, Any] | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    training: Mapping[str, Any] | None = None,
    pools: Mapping[str, Sequence[str]] | None = None,
    invariance: Mapping[str, Any] | None = None,
    outputs: bool | None = None,
    **head: Any,
) -> str:
    """The TOML text; `arguments` and `training` go before the defaults below."""
    arguments = {"n_samples": 240, "n_test": 120, **(arguments or {})}
    training = {"steps": 30, "snapshot_every": 5, "learning_rate": 0.05, **(training or {})}
    selection = {"rules": list(rules), "folds": folds, "pools": pools or {}, "invariance": invariance or {}}
    selection |= {} if outputs is None else {"outputs": outputs}
    sections: dict[str, Any] = {"data": {"name": data, "arguments": arguments}}
    if settings is not None:
        sections["data"]["settings"] = settings
    lines = [f"{k} = {toml(v)}" for k, v in {"name": "small", "repetitions": repetitions, **head}.items()]
    for name, content in {**sections, "training": training, "selection": selection}.items():
        lines += [f"[{name}]", *(f"{k} = {toml(v)}" for k, v in content.items())]
    for method in methods or (ERM,):
        lines += ["[[methods]]", *(f"{k} = {toml(v)}" for k, v in method.items())]
    return "\n".join(lines) + "\n"


def small(*methods: Mapping[str, Any], **options: Any) -> Spec:
    return parse_spec(small_text(*methods, **options))
