"""Parameters that all estimators have, checked when `fit` is called."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from irmtv.core.messages import did_you_mean, is_non_negative, plain
from irmtv.data.training import TrainingData
from irmtv.engine.settings import PER_RUN
from irmtv.objectives import OBJECTIVES
from irmtv.objectives.base import FOLLOWS_PHI, HyperParameter, Objective

RULES_WHILE_TRAINING = ("iid", "worst-env")
NOT_IN_GRID = ("seed", "data", "penalty_weight")
# at weight 0 these change nothing, where environments are given: one combination stands for all
IDLE_WITHOUT_PENALTY = ("warmup", "max_penalty_weight", "weight_learning_rate", "penalty_ramp", "classifier")
LARGEST_SEED = 2**62  # torch's generators take 63 bits; seeds beside it are counted on from it


def chosen_objective(given: Any, has_environment: bool, has_aux: bool, by_default: str = "irm-tv-l1") -> Objective:
    """By name; "auto" by what is there to learn from: `by_default` where environments are given."""
    if isinstance(given, str) and given == "auto":
        if has_environment or has_aux:
            return OBJECTIVES[by_default if has_environment else "minimax-tv-l1"]
        raise ValueError(
            "objective='auto' needs environment or aux. With environment (a label that says where each row came "
            f"from: a site, a year) it is {by_default!r}; with aux (numbers that environments may be inferred from: a "
            "time, a place) it is 'minimax-tv-l1'. Got neither. Name a column, environment='site', or pass values, "
            "fit(X, y, environment=...); objective='erm' needs nothing."
        )
    if isinstance(given, Objective):
        chosen = given
    elif isinstance(given, str):
        chosen = OBJECTIVES[given]
    else:
        raise ValueError(f"objective must be a name of irmtv.OBJECTIVES or 'auto'. Got {given!r}.")
    if chosen.needs == "environment" and not has_environment:
        other = " aux was given: 'minimax-tv-l1' infers environments from it." if has_aux else ""
        raise ValueError(
            f"objective {chosen.name!r} needs environment: a label for every row. Got none.{other} Name a column, "
            "environment='site', or pass values, fit(X, y, environment=...)."
        )
    if chosen.needs == "aux" and not has_aux:
        other = " environment was given: 'irm-tv-l1' takes it as it is." if has_environment else ""
        raise ValueError(
            f"objective {chosen.name!r} needs aux: numbers that environments are inferred from. Got none.{other} "
            "Name columns, aux=['year'], or pass values, fit(X, y, aux=...)."
        )
    return chosen


def stopping_rule(value: Any, owner: str) -> str | None:
    """`early_stopping` as a rule; None where the last step is kept."""
    if value is None or value is False:
        return None
    rule = "iid" if value is True else value
    if not isinstance(rule, str) or rule not in RULES_WHILE_TRAINING:
        raise ValueError(
            f"early_stopping must be None, True or one of {list(RULES_WHILE_TRAINING)}, the rule that says which step "
            f"is kept. Got {value!r}.{did_you_mean(rule, RULES_WHILE_TRAINING)} {owner}CV chooses by 'invariance'."
        )
    return rule


def check_stopping(rule: str, data: TrainingData[Any]) -> None:
    """Raise where early stopping looks at environments that the held-out rows do not have."""
    known = data.objective.infers_held_out or len(data.task.train.names) > 1
    if rule == "worst-env" and not known:
        raise ValueError(
            "early_stopping='worst-env' looks at the worst environment of the held-out rows and needs two or more that "
            f"are given, or inferred from aux. Got objective {data.objective.name!r} without. Give them, or use "
            "early_stopping='iid'."
        )


def held_out_share(value: Any) -> Fraction:
    """`validation_fraction` as p / q with a small q, so that p of every q rows of an environment are held out."""
    number = plain(value)
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number < 1:
        raise ValueError(
            f"validation_fraction must be a number between 0 and 1, both excluded. Got {number!r}. Use 0.1 for a tenth."
        )
    near = Fraction(number).limit_denominator(20)
    least = Fraction(1, 1000)
    return near if 0 < near < 1 else min(max(Fraction(number).limit_denominator(1000), least), 1 - least)


def as_seed(random_state: Any) -> int:
    """A whole number as it is; else a draw, as scikit-learn's estimators do."""
    number = plain(random_state)
    if isinstance(number, int) and not isinstance(number, bool):
        if number < 0:
            raise ValueError(f"random_state must not be negative. Got {number}. Use 0 or more.")
        if number > LARGEST_SEED:
            raise ValueError(f"random_state must be at most 2**62. Got {number}. Use a smaller one, such as 0.")
        return number
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError as error:
        raise ValueError(
            f"random_state must be a whole number of at least 0, a numpy RandomState or None. Got {number!r}, which "
            "cannot be used to seed. Use 0, for example."
        ) from error


# ---- the path of a CV estimator -----------------------------------------------------------------------------------


def grid_axes(
    grid: Mapping[str, Any], objective_params: Mapping[str, Any], objective: Objective, own: Collection[str]
) -> dict[str, list[Any]]:
    """Name -> values of `grid`, checked; `own` are the names of the estimator's parameters."""
    known = {h.name: h for h in objective.hyperparameters}
    several = {"start", "classifier"} if "classifier" in own else set()  # runs that differ in these are groups
    allowed = sorted((PER_RUN | several | {h.name for h in known.values() if h.per_run}) - set(NOT_IN_GRID))
    axes: dict[str, list[Any]] = {}
    for name, values in grid.items():
        if name not in allowed:
            raise ValueError(_not_in_grid(name, allowed, known, own))
        if name in objective_params:
            raise ValueError(f"grid and objective_params both have {name!r}. Leave it out of one of them.")
        axes[name] = _as_list(values, f"grid[{name!r}]")
        if name in known:
            for value in axes[name]:
                known[name].validate(value, objective.name)
    return axes


def path_combinations(
    objective: Objective, weights: Any, default: Sequence[float], axes: Mapping[str, list[Any]]
) -> list[dict[str, Any]]:
    """Every penalty weight (0 among them) with every combination of the other axes."""
    known = {h.name: h for h in objective.hyperparameters}
    if "penalty_weight" in known:
        path = _penalty_path(objective, known["penalty_weight"], default if weights is None else weights)
        axes = {"penalty_weight": path, **axes}
    elif weights is not None:
        raise ValueError(f"penalty_weights must be None: objective {objective.name!r} has no penalty weight.")
    every = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    idle = [n for n in axes if n in IDLE_WITHOUT_PENALTY] if objective.penalties and not objective.infers else []
    return [
        c
        for c in every
        if not idle or any(objective.weights(c["penalty_weight"])) or all(c[n] == axes[n][0] for n in idle)
    ]


def _penalty_path(objective: Objective, parameter: HyperParameter, given: Any) -> list[Any]:
    """0, so that nothing is lost where nothing is gained; numbers in order; then whatever else there is."""
    weights = _as_list(given, "penalty_weights")
    for w in weights:
        good = is_non_negative(w) or w in FOLLOWS_PHI if isinstance(w, (int, float, str)) else True
        if not good:
            raise ValueError(
                f"penalty_weights must be finite numbers of at least 0, or of {list(FOLLOWS_PHI)}. Got {w!r}."
            )
        parameter.validate(w, objective.name)
    numbers = sorted({float(w) for w in weights if isinstance(w, (int, float))} | {0.0})
    others = [w for w in weights if not isinstance(w, (int, float))]  # by part of a sum, or following the model
    return numbers + [w for i, w in enumerate(others) if w not in others[:i]]


def _as_list(values: Any, parameter: str) -> list[Any]:
    """Values to choose from, numbers as Python's."""
    several = isinstance(values, (Sequence, np.ndarray, range)) and not isinstance(values, str)
    if not several or len(values) == 0 or (isinstance(values, np.ndarray) and values.ndim != 1):
        raise ValueError(f"{parameter} must be a list with at least one value. Got {values!r}.")
    return [plain(v) for v in values]


def _not_in_grid(name: Any, allowed: Collection[str], of_objective: Collection[str], own: Collection[str]) -> str:
    """Why `grid` of a CV estimator cannot have this name, and what to do."""
    wanted = f"grid must name hyper-parameters that may differ between the runs of one batch, of {list(allowed)}."
    if name in ("penalty_weight", "penalty_weights"):
        return f"{wanted} Got {name!r}. The penalty weights are penalty_weights=[...]."
    if name in ("seed", "random_state", "data"):
        return f"{wanted} Got {name!r}. The seeds that are averaged over are n_seeds=..."
    if name in own or name in of_objective:
        values = f"{{{name!r}: [...]}}" if name in own else f"{{'objective_params': [{{{name!r}: ...}}, ...]}}"
        return (
            f"{wanted} Got {name!r}, which is the same for all of them. To choose it use "
            f"sklearn.model_selection.GridSearchCV(estimator, {values})."
        )
    return f"{wanted} Got {name!r}.{did_you_mean(name, [*allowed, *own, *of_objective])}"
