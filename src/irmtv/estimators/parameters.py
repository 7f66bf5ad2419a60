"""The estimators' parameters, checked when `fit` is called, and what they mean for `train`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import torch
from sklearn.utils import check_random_state

from irmtv.core.messages import check_positive, did_you_mean
from irmtv.engine.settings import ENGINE_CHECKS, pick_device, plain
from irmtv.objectives import OBJECTIVES
from irmtv.objectives.base import Objective

DTYPES = {"float32": torch.float32, "float64": torch.float64}
RULES_WHILE_TRAINING = ("iid", "worst-env")
OWN_PARAMETERS = ("learning_rate", "l2", "hidden", "batch_size", "classifier", "penalty_weight", "warmup")


def chosen_objective(asked: Any, has_environment: bool, has_aux: bool) -> Objective:
    """By name; "auto" by what is there to learn from."""
    if isinstance(asked, str) and asked == "auto":
        if has_environment or has_aux:
            return OBJECTIVES["irm-tv-l1" if has_environment else "minimax-tv-l1"]
        raise ValueError(
            "objective='auto' needs environment or aux. With environment (a label that says where each row came "
            "from: a site, a year) it is 'irm-tv-l1'; with aux (numbers that environments may be inferred from: a "
            "time, a place) it is 'minimax-tv-l1'. Got neither. Name a column, environment='site', or pass values, "
            "fit(X, y, environment=...); objective='erm' needs nothing."
        )
    if isinstance(asked, Objective):
        chosen = asked
    elif isinstance(asked, str):
        chosen = OBJECTIVES[asked]
    else:
        raise ValueError(f"objective must be a name of irmtv.OBJECTIVES or 'auto'. Got {asked!r}.")
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


def _warn_of_endless_warmup(estimator: Any, asked: Mapping[str, Any]) -> None:
    """A penalty that never acts is plain risk minimisation under another name."""
    weight, warmup, steps = asked.get("penalty_weight"), asked.get("warmup"), int(estimator.max_steps)
    whole = (isinstance(warmup, int) and warmup >= steps) or warmup == 1.0
    if weight not in (None, 0) and warmup is not None and whole:
        warnings.warn(
            f"warmup={warmup!r} is all of max_steps={steps}: the penalty never acts, and what is trained is plain risk "
            "minimisation. Use a smaller warmup, more steps, or objective='erm'.",
            UserWarning,
            stacklevel=6,
        )


def training_settings(estimator: Any, objective: Objective) -> dict[str, Any]:
    """For `train`: the engine's settings, and those of the objective's hyper-parameters that it has."""
    check_positive(estimator.max_steps, "max_steps")
    known = {h.name: h for h in objective.hyperparameters}
    common = {"penalty_weight": estimator.penalty_weight, "warmup": estimator.warmup}
    asked = {name: plain(value) for name, value in common.items() if name in known and value is not None}
    for name, value in asked.items():
        known[name].validate(value, objective.name)
    _warn_of_endless_warmup(estimator, asked)
    if not isinstance(estimator.dtype, str) or estimator.dtype not in DTYPES:
        near = did_you_mean(estimator.dtype, DTYPES)
        raise ValueError(f"dtype must be one of {list(DTYPES)}. Got {estimator.dtype!r}.{near}")
    engine = {
        "classifier": estimator.classifier,
        "learning_rate": plain(estimator.learning_rate),
        "l2": plain(estimator.l2),
        "batch_size": plain(estimator.batch_size),
        **({"hidden": as_hidden(estimator.hidden)} if estimator.module is None else {}),
    }
    for name, value in engine.items():
        good, expected = ENGINE_CHECKS[name]
        if not good(value):
            raise ValueError(f"{name} must be {expected}. Got {value!r}.")
    pick_device(estimator.device)
    return {
        **asked,
        **own_hyperparameters(estimator, objective),
        **engine,
        **({} if estimator.module is None else {"net": as_net(estimator.module)}),
        "steps": int(estimator.max_steps),
        "device": estimator.device,
        "dtype": DTYPES[estimator.dtype],
    }


def own_hyperparameters(estimator: Any, objective: Objective) -> dict[str, Any]:
    """`objective_params`: hyper-parameters of the objective that are no parameters of the estimator."""
    given = estimator.objective_params
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
                f"{type(estimator).__name__}({name}=...)."
            )
        if name not in known:
            raise ValueError(
                f"objective_params must name hyper-parameters of {objective.name!r}: {known}. Got {name!r}."
                f"{did_you_mean(name, known)}"
            )
    return {name: plain(value) for name, value in given.items()}


def as_hidden(value: Any) -> tuple[Any, ...]:
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        raise ValueError(
            f"hidden must be a sequence of layer widths; () is a linear model. Got {value!r}. Use hidden=(32,) for one "
            "layer of 32."
        )
    return tuple(plain(width) for width in value)


def as_net(module: Any) -> Any:
    """What `train` takes as net: a function that makes modules, or a network of irmtv.engine."""
    if isinstance(module, torch.nn.Module) or not (callable(module) or hasattr(module, "shapes")):
        raise ValueError(
            "module must be a function (or class) without arguments that returns a new torch.nn.Module, since every "
            f"fit starts its own. Got {type(module).__name__}. Use module=lambda: MyModule(...), or a named function, "
            "which can be pickled."
        )
    return module


def stopping_rule(value: Any, estimator: Any) -> str | None:
    """`early_stopping` as a rule; None where the last step is kept."""
    if value is None or value is False:
        return None
    rule = "iid" if value is True else value
    if not isinstance(rule, str) or rule not in RULES_WHILE_TRAINING:
        name = type(estimator).__name__
        raise ValueError(
            f"early_stopping must be None, True or one of {list(RULES_WHILE_TRAINING)}, the rule that says which step "
            f"is kept. Got {value!r}.{did_you_mean(rule, RULES_WHILE_TRAINING)} {name}CV chooses by 'invariance'."
        )
    return rule


def held_out_share(value: Any) -> Fraction:
    """`validation_fraction` as p / q with a small q, so that p of every q rows of an environment are held out."""
    number = plain(value)
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number < 1:
        raise ValueError(
            f"validation_fraction must be a number between 0 and 1, both excluded. Got {value!r}. Use 0.1 for a tenth."
        )
    near = Fraction(number).limit_denominator(20)
    least = Fraction(1, 1000)
    return near if 0 < near < 1 else min(max(Fraction(number).limit_denominator(1000), least), 1 - least)


def as_seed(random_state: Any) -> int:
    """A whole number as it is; else a draw, as scikit-learn's estimators do."""
    number = plain(random_state)
    if isinstance(number, int) and not isinstance(number, bool):
        if number < 0:
            raise ValueError(f"random_state must not be negative. Got {random_state!r}. Use 0 or more.")
        return number
    return int(check_random_state(random_state).randint(2**31 - 1))
