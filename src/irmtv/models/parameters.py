"""Checks of parameters that networks and trees share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from irmtv.core.messages import did_you_mean, plain
from irmtv.objectives.base import Objective

OWN_PARAMETERS = ("learning_rate", "l2", "hidden", "batch_size", "classifier", "penalty_weight", "warmup")


def own_hyperparameters(given: Any, objective: Objective, owner: str) -> dict[str, Any]:
    """`objective_params`: hyper-parameters of the objective that are no parameters of the estimator named `owner`."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValueError(
            f"objective_params must be a dict of hyper-parameters of the objective, or None. Got {given!r}. Use "
            "objective_params={'measure': 'uniform'}, for example."
        )
    known = sorted({h.name for h in objective.hyperparameters} - set(OWN_PARAMETERS))
    for name in given:
        if name in OWN_PARAMETERS:
            raise ValueError(
                f"objective_params must not hold {name!r}, which is a parameter of the estimator. Set it there: "
                f"{owner}({name}=...)."
            )
        if name not in known:
            raise ValueError(
                f"objective_params must name hyper-parameters of {objective.name!r}: {known}. Got {name!r}."
                f"{did_you_mean(name, known)}"
            )
    return {name: plain(value) for name, value in given.items()}
