"""What a user asked `train` for, checked and completed, before anything is computed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from irmtv.core.messages import did_you_mean, plain, shown, users_stacklevel
from irmtv.core.types import Runs, Task
from irmtv.objectives.base import Objective
from irmtv.objectives.parameters import is_non_negative

# what other libraries call the same thing
OTHER_NAMES = {"lr": "learning_rate", "epochs": "steps", "max_steps": "steps", "lambda_": "penalty_weight"}
OTHER_NAMES |= {"weight_decay": "l2", "anneal_steps": "warmup", "random_state": "seed"}
PER_RUN = frozenset({"seed", "data", "learning_rate", "l2"})


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


ENGINE_CHECKS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "seed": (lambda v: _whole(v, 0) and v < 2**63, "a whole number of at least 0"),
    "steps": (lambda v: _whole(v, 1), "a whole number of at least 1"),
    "learning_rate": (lambda v: is_non_negative(v) and v > 0, "a finite number above 0"),
    "l2": (is_non_negative, "a finite number of at least 0"),
    "batch_size": (
        lambda v: v in (None, "auto") or _whole(v, 2),
        "None, 'auto' or a whole number of at least 2",
    ),
    "classifier": (lambda v: v in ("scalar", "vector"), "'scalar' or 'vector'"),
    "hidden": (
        lambda v: isinstance(v, tuple) and all(_whole(w, 1) for w in v),
        "a tuple of whole numbers of at least 1; () is a linear model",
    ),
}


def resolve_settings(
    objective: Objective,
    runs: Runs,
    engine: Mapping[str, Any],
    hyperparameters: Mapping[str, Any],
    n_tasks: int,
) -> list[dict[str, Any]]:
    """Every setting of every run. A run's own value goes before the call's, the call's before the default."""
    known = {h.name for h in objective.hyperparameters}
    for name in ("seed", "data"):  # every run has its own, which would go before the call's
        if name in hyperparameters:
            raise ValueError(f"{name} belongs to the runs. Use runs=Runs({name}={hyperparameters[name]!r}).")
    settings = []
    for r, row in enumerate(runs):
        asked = {k: plain(v) for k, v in {**engine, **hyperparameters, **row}.items()}
        if isinstance(asked["hidden"], list):
            asked["hidden"] = tuple(asked["hidden"])
        own = {k: v for k, v in asked.items() if k not in ENGINE_CHECKS and k != "data"}
        for name in own:
            if name not in known:
                everything = [*known, *ENGINE_CHECKS, "data"]
                hint = did_you_mean(OTHER_NAMES.get(name, name), everything)
                raise ValueError(
                    f"{name!r} is neither a setting of train() nor a hyper-parameter of {objective.name!r}, which "
                    f"has {sorted(known)}.{hint}"
                )
        for name, (good, expected) in ENGINE_CHECKS.items():
            if not good(asked[name]):
                raise ValueError(f"{name} must be {expected}. Got {asked[name]!r} (run {r}).")
        if not _whole(asked["data"], 0) or asked["data"] >= n_tasks:
            raise ValueError(
                f"data must be the number of a task, 0 to {n_tasks - 1}. Got {asked['data']!r} (run {r}); give train() "
                "a list of tasks to train on several."
            )
        kept = {k: asked[k] for k in (*ENGINE_CHECKS, "data")}
        settings.append({**kept, **objective.resolve(own)})
        if (refused := objective.refuses(settings[-1])) is not None:
            raise ValueError(f"{refused} (run {r})" if len(runs) > 1 else refused)
    return settings


def as_tasks(task: Any) -> tuple[Task, ...]:
    """The tasks of a call: one, or several that the same networks can read."""
    tasks = tuple(task) if isinstance(task, Iterable) else (task,)
    if not tasks:
        raise ValueError("task must be a Task or a non-empty list of them. Got an empty list.")
    for one in tasks:
        if not isinstance(one, Task):
            raise ValueError(
                f"task must be an irmtv.Task. Got {type(one).__name__}; make one with make_task(x, y, ...)."
            )
    for what, of in _ALIKE.items():
        found = [of(one) for one in tasks]
        if any(f != found[0] for f in found):
            raise ValueError(f"tasks of one call must have the same {what}. Got {found}; use one call for each.")
    return tasks


_ALIKE: Mapping[str, Callable[[Task], Any]] = {
    "features": lambda task: tuple(task.train.x.shape[1:]),
    "number of outputs": lambda task: task.n_outputs,
    "loss": lambda task: task.loss.name,
}


def check_tasks(tasks: Sequence[Task], objective: Objective, settings: Sequence[Mapping[str, Any]]) -> None:
    """Whether these tasks have what the objective needs."""
    for task in tasks:
        kind = {"squared": "regression"}.get(task.loss.name, task.loss.name)
        if kind in ("binary", "multiclass", "regression") and kind not in objective.tasks:
            raise ValueError(
                f"objective {objective.name!r} is for {list(objective.tasks)}"
                f"{_because(objective.undefined.get(kind))}. Task {task.name!r} is {kind}."
            )
        if objective.needs == "aux":
            if task.train.aux is None:
                raise ValueError(
                    f"objective {objective.name!r} infers environments from auxiliary variables: give "
                    f"make_task(..., aux=...), or use an objective for given environments such as 'irm-tv-l1'. Task "
                    f"{task.name!r} has no aux."
                )
            if task.held_out is not None and task.held_out.aux is None:
                raise ValueError(f"objective {objective.name!r} needs aux for the held-out rows too. Got none.")
        if objective.reads_aux:
            _check_reads_aux(task, objective)
    if objective.needs == "aux":
        widths = [t.train.aux.shape[1] for t in tasks if t.train.aux is not None]
        if len(set(widths)) > 1:
            raise ValueError(f"tasks of one call must have the same number of aux columns. Got {widths}.")
    if objective.infers is not None:
        for s in settings:
            inferred = s.get("n_environments", 2)  # two where no setting says how many
            if isinstance(s.get("measure"), tuple) and len(s["measure"]) != inferred:
                raise ValueError(
                    f"measure must have one weight per environment, n_environments={inferred}. "
                    f"Got {len(s['measure'])} weights."
                )
    used = [s.get("measure") for s in settings]
    weighs_given = objective.infers is None and any(m not in (None, "empirical") for m in used)
    needs = objective.needs == "environment" or (objective.needs == "nothing" and weighs_given)
    if not needs:
        return
    for task in tasks:
        names = task.train.names
        if task.train.environment is None:
            raise ValueError(
                f"objective {objective.name!r} needs to know the environment of every row: give "
                f"make_task(..., environment=...), or, where only auxiliary variables are known, use 'minimax-tv-l1' "
                f"with aux. Task {task.name!r} has no environment."
            )
        if len(names) < 2:
            raise ValueError(
                f"objective {objective.name!r} compares environments and needs at least 2. Task {task.name!r} has "
                f"only {list(names)}; use 'erm', or infer environments from aux with 'minimax-tv-l1'."
            )
        if task.held_out is not None and task.held_out.environment is None:
            raise ValueError(f"objective {objective.name!r} needs the environment of the held-out rows too. Got none.")
        for measure in used:
            if isinstance(measure, tuple) and len(measure) != len(names):
                raise ValueError(
                    f"measure must have one weight per environment, {len(names)} for {list(names)[:8]}. "
                    f"Got {len(measure)} weights."
                )


def _check_reads_aux(task: Task, objective: Objective) -> None:
    """Whether a predictor can read x and aux side by side, in the test rows too."""
    if task.train.x.ndim != 2:
        raise ValueError(
            f"objective {objective.name!r} reads x and aux as one table: x must be (rows, features). Task "
            f"{task.name!r} has x of shape {tuple(task.train.x.shape)}."
        )
    if task.test is not None and task.test.aux is None:
        raise ValueError(
            f"objective {objective.name!r} predicts from aux beside x and needs aux for the test rows too. Task "
            f"{task.name!r} has none there: give make_task(..., test={{..., 'aux': ...}}), or leave the test rows out."
        )


def _because(reason: str | None) -> str:
    return f": {reason}" if reason else ""


def warn_of_frozen_rho(settings: Sequence[Mapping[str, Any]]) -> None:
    """Annealed, rho climbs in the warm-up only: without one the environments stay at their random start."""
    stuck = [r for r, s in enumerate(settings) if s.get("schedule") == "annealed" and s["warmup"] == 0]
    if stuck:
        warnings.warn(
            f"warmup=0 with schedule='annealed' leaves the inferred environments at their random start (runs "
            f"{shown(stuck)}). Use warmup > 0, or schedule='alternating'.",
            stacklevel=users_stacklevel(),
        )


def check_watched_environments(tasks: Sequence[Task], objective: Objective) -> None:
    """Whether there is a worst environment to look at."""
    for task in tasks:
        rows = task.train if task.held_out is None else task.held_out
        if objective.infers not in ("aux", "rest") and (rows.environment is None or len(task.train.names) < 2):
            raise ValueError(
                "select='worst-env' looks at the worst environment of the held-out rows (without them, the training "
                f"rows), and needs their environments. Task {task.name!r} has none; give them, or use select='iid'."
            )


def check_call(
    snapshot_every: Any, max_chunk: Any, dtype: Any, objective: Any = "erm", runs: Any = None, progress: Any = None
) -> None:
    """What holds for all runs of a call."""
    if not isinstance(objective, (str, Objective)):
        raise ValueError(
            f"objective must be a name such as 'irm-tv-l1' or an Objective. Got {type(objective).__name__}."
        )
    if not isinstance(runs, Runs | None):
        raise ValueError(f"runs must be irmtv.Runs, for example Runs(seed=range(3)). Got {type(runs).__name__}.")
    if not (progress is None or callable(progress)):
        raise ValueError(
            f"progress must be a function of a Progress, e.g. irmtv.engine.progress_bar.ProgressBar. Got {progress!r}."
        )
    for name, value in (("snapshot_every", snapshot_every), ("max_chunk", max_chunk)):
        if not (value is None or _whole(value, 1)):
            raise ValueError(f"{name} must be None or a whole number of at least 1. Got {value!r}.")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64. Got {dtype!r}.")


def pick_device(device: str | torch.device) -> torch.device:
    device = str(device)
    available = torch.cuda.is_available()
    if device == "auto":
        return torch.device("cuda" if available else "cpu")
    if not (device == "cpu" or device.split(":")[0] == "cuda"):
        raise ValueError(
            f"device must be 'cpu', 'cuda' or 'auto'. Got {device!r}.{did_you_mean(device, ['cpu', 'cuda', 'auto'])}"
        )
    if device != "cpu" and not available:
        raise ValueError(f"device={device!r} was asked for, but torch sees no CUDA device. Use device='cpu' or 'auto'.")
    return torch.device(device)


def free_memory(device: torch.device) -> float:
    """Bytes that can be had, roughly."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):  # no such figure on this system
        return 4e9
