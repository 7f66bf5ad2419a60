"""The parameters of linear models and networks, checked when `fit` is called, and what they mean for `train`."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from irmtv.core.losses import Binary
from irmtv.core.messages import check_positive, did_you_mean, plain, plain_repr, users_stacklevel
from irmtv.core.types import Rows, Task
from irmtv.engine.settings import ENGINE_CHECKS, STARTS, pick_device
from irmtv.engine.solvers.newton import why_not
from irmtv.models.base import own_hyperparameters
from irmtv.objectives.base import Objective

# what estimators do otherwise than `train`, which keeps to the authors: measured on networks (docs/solving.md)
OF_ESTIMATORS: Mapping[str, Any] = {"normalise": False, "environment_learning_rate": 0.02}
SOLVERS = ("auto", "newton", "adam", "subgradient")
# a Newton step of one model costs about rows x parameters^2 products: beyond these Adam takes no longer
MOST_PARAMETERS, MOST_WORK = 256, 2e8
BINARY = Binary()
DTYPES = {"float32": torch.float32, "float64": torch.float64}
DEFAULT_HIDDEN = (32,)
# training on batches above so many rows, for a network and for a linear model
BATCH, MANY_ROWS, VERY_MANY_ROWS = 2048, 10_000, 100_000
LINEAR_ONLY = ("columns", "hrm")  # procedures that train a linear model whatever `hidden` is by default
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


@dataclass(frozen=True)
class NetworkParameters:
    """The parameters of an estimator of networks, as they were given."""

    penalty_weight: Any = 1e3
    hidden: Any = DEFAULT_HIDDEN
    module: Any = None
    classifier: Any = "scalar"
    objective_params: Any = None
    warmup: Any = 0.5
    max_steps: Any = 2000
    learning_rate: Any = 0.02
    l2: Any = 0.0
    batch_size: Any = "auto"
    solver: Any = "auto"
    start: Any = None
    layer: Any = None
    device: Any = "cpu"
    dtype: Any = "float32"
    owner: str = "InvariantClassifier"  # whose they are, for messages

    @classmethod
    def of(cls, estimator: Any) -> NetworkParameters:
        """Those of an estimator, whose attributes have the same names."""
        names = [f.name for f in fields(cls) if hasattr(estimator, f.name)]
        return cls(**{name: getattr(estimator, name) for name in names}, owner=type(estimator).__name__)


def training_settings(parameters: NetworkParameters, objective: Objective, task: Task | None = None) -> dict[str, Any]:
    """For `train`: the engine's settings, and those of the objective's hyper-parameters that it has.

    `task` is what will be trained on: with it the solver is chosen, where that is left to us.
    """
    check_positive(parameters.max_steps, "max_steps")
    known = {h.name: h for h in objective.hyperparameters}
    common = {"penalty_weight": parameters.penalty_weight, "warmup": parameters.warmup}
    given = {name: plain(value) for name, value in common.items() if name in known and value is not None}
    for name, value in given.items():
        try:
            known[name].validate(value, objective.name)
        except ValueError as error:
            raise ValueError(f"{error} {TO_DO[name]}") from error
    engine = {
        "classifier": parameters.classifier,
        "learning_rate": plain(parameters.learning_rate),
        "l2": plain(parameters.l2),
        "batch_size": plain(parameters.batch_size),
        **({"hidden": as_hidden(parameters.hidden, objective)} if parameters.module is None else {}),
    }
    for name, value in engine.items():
        good, expected = ENGINE_CHECKS[name]
        if not good(value):
            raise ValueError(f"{name} must be {expected}. Got {plain_repr(value)}. {TO_DO[name]}")
    start = parameters.start
    if start is not None and not (isinstance(start, str) and start in STARTS):
        raise ValueError(f"start must be one of {list(STARTS)}, or None. Got {start!r}.{did_you_mean(start, STARTS)}")
    _check_device(parameters.device)
    usual = {name: value for name, value in OF_ESTIMATORS.items() if name in known}
    own = usual | own_hyperparameters(parameters.objective_params, objective, parameters.owner)
    solver = chosen_solver(parameters, objective, {**given, **own, **engine}, task)
    return {
        **given,
        **own,
        **engine,
        **({} if parameters.module is None else {"net": as_net(parameters.module)}),
        "steps": int(parameters.max_steps),
        "solver": solver,
        "start": start,
        "layer": parameters.layer,
        "device": parameters.device,
        "dtype": torch.float64 if solver == "newton" else as_dtype(parameters.dtype),
    }


def chosen_solver(
    parameters: NetworkParameters, objective: Objective, settings: Mapping[str, Any], task: Task | None
) -> str:
    """ "newton" or "adam"; "auto" is Newton's method for linear models that are not too large for it."""
    solver: str = parameters.solver
    if solver not in SOLVERS:
        raise ValueError(f"solver must be one of {list(SOLVERS)}. Got {solver!r}.{did_you_mean(solver, SOLVERS)}")
    solver = "adam" if solver == "subgradient" else solver  # Adam takes those at the kinks
    if objective.procedure == "columns" and parameters.module is None:
        return "newton"  # whatever was asked for: it has no other
    if solver == "adam" or (solver == "auto" and task is None):
        return "adam"
    own_module = parameters.module is not None
    loss = BINARY if task is None else task.loss
    why = "the network is given by module=" if own_module else why_not(objective, settings, loss)
    if solver == "newton":
        if why is not None:
            raise ValueError(f"solver='newton' is not for this: {why}. Use solver='auto' or 'adam'.")
        return solver
    if why is not None or task is None:
        return "adam"
    n_rows, n_parameters = len(task.train), task.n_outputs * (task.train.x[0].numel() + 1)
    fits = n_parameters <= MOST_PARAMETERS and n_rows * n_parameters**2 <= MOST_WORK
    return "newton" if fits else "adam"


def warn_of_endless_warmup(settings: Mapping[str, Any]) -> None:
    """A penalty that never acts is ERM under another name; Newton's method has no warm-up."""
    steps, weight, warmup = settings["steps"], settings.get("penalty_weight"), settings.get("warmup")
    if settings["solver"] == "newton":
        return
    whole = (isinstance(warmup, int) and warmup >= steps) or warmup == 1.0
    if weight not in (None, 0) and warmup is not None and whole:
        warnings.warn(
            f"warmup={warmup!r} is all of max_steps={steps}: the penalty never acts, and what is trained is ERM. "
            "Use a smaller warmup, more steps, or objective='erm'.",
            UserWarning,
            stacklevel=users_stacklevel(),
        )


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


def as_hidden(value: Any, objective: Objective) -> tuple[Any, ...]:
    """Widths as a tuple. An objective that is linear by nature takes the default for (), others it refuses itself."""
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        raise ValueError(
            f"hidden must be a sequence of layer widths; () is a linear model. Got {value!r}. Use hidden=(32,) for one "
            "layer of 32."
        )
    widths = tuple(plain(width) for width in value)
    return () if objective.procedure in LINEAR_ONLY and widths == DEFAULT_HIDDEN else widths


def batch_size_for(hidden: Sequence[int], n_rows: int) -> int | str:
    """Batches where there are many rows; a linear model takes more at once."""
    return BATCH if n_rows > (MANY_ROWS if hidden else VERY_MANY_ROWS) else "auto"


def as_net(module: Any) -> Any:
    """What `train` takes as net: a function that makes modules, or a network of irmtv.engine."""
    if isinstance(module, torch.nn.Module) or not (callable(module) or hasattr(module, "shapes")):
        raise ValueError(
            "module must be a function (or class) without arguments that returns a new torch.nn.Module, since every "
            f"fit starts its own. Got {type(module).__name__}. Use module=lambda: MyModule(...), or a named function, "
            "which can be pickled."
        )
    return module


def check_module(module: Any, rows: Rows, objective: Objective, n_outputs: int, regression: bool) -> None:
    """Build a user's network once and give it a few rows, so that what does not fit is said in terms of X and y."""
    module = as_net(module)
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
    _check_outputs(out, len(inputs), n_outputs, regression, type(net).__name__)


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
