"""The estimators' parameters, checked when `fit` is called, and what they mean for `train`."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection, Mapping
from fractions import Fraction
from typing import Any

import torch
from sklearn.utils import check_random_state

from irmtv.core.messages import check_positive, did_you_mean, plain, plain_repr, users_stacklevel
from irmtv.core.types import Rows
from irmtv.engine.settings import ENGINE_CHECKS, pick_device
from irmtv.objectives import OBJECTIVES
from irmtv.objectives.base import Objective

DTYPES = {"float32": torch.float32, "float64": torch.float64}
RULES_WHILE_TRAINING = ("iid", "worst-env")
LARGEST_SEED = 2**62  # torch's generators take 63 bits; seeds beside it are counted on from it
DEFAULT_HIDDEN = (32,)
LINEAR_ONLY = ("hrm",)  # procedures that train a linear model whatever `hidden` is by default
# what to do, after what was expected and what came
TO_DO = {
    "learning_rate": "Use 0.02, or less where training diverges.",
    "l2": "Use 0 for none, 1e-3 for a little.",
    "batch_size": "Use None for all rows, 'auto' to leave it to the number of rows.",
    "hidden": "Use hidden=(32,) for one layer of 32.",
    "classifier": "Use 'scalar' unless the last layer's inputs should each have a slope.",
    "warmup": "Use 0.5 for half of max_steps, 100 for a hundred steps.",
    "penalty_weight": "Use 1 to 1e4, or a CV estimator, which chooses it.",
}
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
            stacklevel=users_stacklevel(),
        )


def training_settings(estimator: Any, objective: Objective) -> dict[str, Any]:
    """For `train`: the engine's settings, and those of the objective's hyper-parameters that it has."""
    check_positive(estimator.max_steps, "max_steps")
    known = {h.name: h for h in objective.hyperparameters}
    common = {"penalty_weight": estimator.penalty_weight, "warmup": estimator.warmup}
    asked = {name: plain(value) for name, value in common.items() if name in known and value is not None}
    for name, value in asked.items():
        try:
            known[name].validate(value, objective.name)
        except ValueError as error:
            raise ValueError(f"{error} {TO_DO[name]}") from error
    _warn_of_endless_warmup(estimator, asked)
    engine = {
        "classifier": estimator.classifier,
        "learning_rate": plain(estimator.learning_rate),
        "l2": plain(estimator.l2),
        "batch_size": plain(estimator.batch_size),
        **({"hidden": as_hidden(estimator.hidden, objective)} if estimator.module is None else {}),
    }
    for name, value in engine.items():
        good, expected = ENGINE_CHECKS[name]
        if not good(value):
            raise ValueError(f"{name} must be {expected}. Got {plain_repr(value)}. {TO_DO[name]}")
    _check_device(estimator.device)
    return {
        **asked,
        **own_hyperparameters(estimator, objective),
        **engine,
        **({} if estimator.module is None else {"net": as_net(estimator.module)}),
        "steps": int(estimator.max_steps),
        "device": estimator.device,
        "dtype": as_dtype(estimator.dtype),
    }


def as_dtype(value: Any) -> torch.dtype:
    if not isinstance(value, str) or value not in DTYPES:
        raise ValueError(f"dtype must be one of {list(DTYPES)}. Got {value!r}.{did_you_mean(value, DTYPES)}")
    return DTYPES[value]


def _check_device(device: Any) -> None:
    if isinstance(device, str) and device.lower() in ("gpu", "nvidia", "mps"):
        raise ValueError(
            f"device must be 'cpu', 'cuda' or 'auto'. Got {device!r}. Use 'cuda' for an NVIDIA GPU, 'auto' for one if "
            "there is any."
        )
    pick_device(device)


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


def not_in_grid(name: Any, allowed: Collection[str], of_objective: Collection[str], estimator: Any) -> str:
    """Why `grid` of a CV estimator cannot have this name, and what to do."""
    wanted = f"grid must name hyper-parameters that may differ between the runs of one batch, of {list(allowed)}."
    own = set(estimator.get_params(deep=False))
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


def as_hidden(value: Any, objective: Objective) -> tuple[Any, ...]:
    """Widths as a tuple. An objective that is linear by nature takes the default for (), others it refuses itself."""
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        raise ValueError(
            f"hidden must be a sequence of layer widths; () is a linear model. Got {value!r}. Use hidden=(32,) for one "
            "layer of 32."
        )
    widths = tuple(plain(width) for width in value)
    return () if objective.procedure in LINEAR_ONLY and widths == DEFAULT_HIDDEN else widths


def as_net(module: Any) -> Any:
    """What `train` takes as net: a function that makes modules, or a network of irmtv.engine."""
    if isinstance(module, torch.nn.Module) or not (callable(module) or hasattr(module, "shapes")):
        raise ValueError(
            "module must be a function (or class) without arguments that returns a new torch.nn.Module, since every "
            f"fit starts its own. Got {type(module).__name__}. Use module=lambda: MyModule(...), or a named function, "
            "which can be pickled."
        )
    return module


def check_module(estimator: Any, rows: Rows, objective: Objective, n_outputs: int) -> None:
    """Build a user's network once and give it a few rows, so that what does not fit is said in terms of X and y."""
    module = as_net(estimator.module)
    if not callable(module) or hasattr(module, "shapes"):
        return  # a network of irmtv.engine
    name = getattr(module, "__name__", type(module).__name__)
    try:
        inspect.signature(module).bind()
    except TypeError as error:
        wrapped = "MyModule" if name == "<lambda>" else name
        raise ValueError(
            f"module must be a function (or class) without arguments. Got {name}, called without any: {error}. Use "
            f"module=lambda: {wrapped}(...), or a named function, which can be pickled."
        ) from error
    except ValueError:  # no signature to look at
        pass
    with torch.random.fork_rng(devices=[]):
        net = module()
    if not isinstance(net, torch.nn.Module):
        raise ValueError(
            f"module must be a function that returns a torch.nn.Module. Got {type(net).__name__} from {name}(). Return "
            "the network itself."
        )
    few = rows.take(torch.arange(min(8, len(rows))))
    inputs = few.x  # (n, D) or (n, channels, length)
    if objective.reads_aux and few.aux is not None and inputs.ndim == 2:
        inputs = torch.cat([inputs, few.aux.to(inputs)], 1)
    per_row = tuple(inputs.shape[1:])
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            out = net.to(inputs.dtype).eval()(inputs)
    except Exception as error:
        what = f"{per_row[0]} columns" if len(per_row) == 1 else f"{per_row[0]} channels of length {per_row[1]}"
        layer = f"torch.nn.Linear({per_row[0]}, ...)" if len(per_row) == 1 else f"torch.nn.Conv1d({per_row[0]}, ...)"
        raise ValueError(
            f"module must read rows of X, {what} (environment columns are none of them), as a batch of shape "
            f"(rows, {', '.join(map(str, per_row))}). Got {type(error).__name__} from {type(net).__name__}: {error}. "
            f"Its first layer may be {layer}."
        ) from error
    _check_outputs(out, len(inputs), n_outputs, estimator._loss_name == "squared", type(net).__name__)


def _check_outputs(out: Any, n_rows: int, n_outputs: int, regression: bool, name: str) -> None:
    """Whether a network has given (n,), (n, 1) or (n, C)."""
    shape = tuple(out.shape) if isinstance(out, torch.Tensor) else None
    if shape in (((n_rows,), (n_rows, 1)) if n_outputs == 1 else ((n_rows, n_outputs),)):
        return
    wanted = "1 output per row" if n_outputs == 1 else f"{n_outputs} outputs per row"
    if regression:
        meaning = "the prediction" if n_outputs == 1 else "one for each target"
    else:
        meaning = "the logit of the second of two classes" if n_outputs == 1 else "a logit for each class"
    got = type(out).__name__ if shape is None else f"shape {shape} for {n_rows} rows"
    raise ValueError(
        f"module must give {wanted}, {meaning}. Got {got} from {name}. Its last layer may be torch.nn.Linear(..., "
        f"{n_outputs})."
    )


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
