"""The settings of a call of `train`, checked and completed before anything is computed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from irmtv.core.messages import check_positive, did_you_mean, is_non_negative, plain, shown, users_stacklevel
from irmtv.core.types import Runs, Task
from irmtv.objectives.base import Objective

# what other libraries call the same thing
OTHER_NAMES = {"lr": "learning_rate", "epochs": "steps", "max_steps": "steps", "lambda_": "penalty_weight"}
OTHER_NAMES |= {"weight_decay": "l2", "anneal_steps": "warmup", "random_state": "seed"}
# settings that came later: a caller that does not know them means these
NEW_SETTINGS: Mapping[str, Any] = {"solver": "adam", "start": None, "layer": None}
STARTS = ("erm", "equal-risks", "environment", "small", "random")
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
    "solver": (lambda v: v in ("adam", "newton"), "'adam' or 'newton'"),
    "start": (lambda v: v is None or v in STARTS, f"one of {STARTS}, or None"),
    "layer": (lambda v: v is None or _whole(v, 1), "None or a whole number of at least 1"),
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
    for name in ("seed", "data"):  # every run has its own, which would go before the call's
        if name in hyperparameters:
            raise ValueError(f"{name} belongs to the runs. Use runs=Runs({name}={hyperparameters[name]!r}).")
    settings = []
    for r, row in enumerate(runs):
        given = {k: plain(v) for k, v in {**NEW_SETTINGS, **engine, **hyperparameters, **row}.items()}
        if isinstance(given["hidden"], list):
            given["hidden"] = tuple(given["hidden"])
        of_engine = {k: given[k] for k in (*ENGINE_CHECKS, "data")}
        of_objective = {k: v for k, v in given.items() if k not in of_engine}
        _check_names(of_objective, objective)
        _check_engine_settings(of_engine, r, n_tasks)
        resolved = {**of_engine, **objective.resolve(of_objective)}
        if (refusal := objective.refuses(resolved)) is not None:
            raise ValueError(f"{refusal} (run {r})" if len(runs) > 1 else refusal)
        settings.append(resolved)
    return settings


def _check_names(given: Iterable[str], objective: Objective) -> None:
    """Whether these are hyper-parameters of the objective."""
    known = {h.name for h in objective.hyperparameters}
    for name in given:
        if name not in known:
            hint = did_you_mean(OTHER_NAMES.get(name, name), [*known, *ENGINE_CHECKS, "data"])
            raise ValueError(
                f"{name!r} is neither a setting of train() nor a hyper-parameter of {objective.name!r}, which "
                f"has {sorted(known)}.{hint}"
            )


def _check_engine_settings(given: Mapping[str, Any], run: int, n_tasks: int) -> None:
    for name, (good, expected) in ENGINE_CHECKS.items():
        if not good(given[name]):
            raise ValueError(f"{name} must be {expected}. Got {given[name]!r} (run {run}).")
    if not _whole(given["data"], 0) or given["data"] >= n_tasks:
        raise ValueError(
            f"data must be the number of a task, 0 to {n_tasks - 1}. Got {given['data']!r} (run {run}); give train() "
            "a list of tasks to train on several."
        )


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
        if len(one.train) == 0:
            raise ValueError(f"task must have training rows. Got none in {one.name!r}; leave it out.")
    for what, of in _ALIKE.items():
        values = [of(one) for one in tasks]
        if any(v != values[0] for v in values):
            raise ValueError(f"tasks of one call must have the same {what}. Got {values}; use one call for each.")
    return tasks


_ALIKE: Mapping[str, Callable[[Task], Any]] = {
    "features": lambda task: tuple(task.train.x.shape[1:]),
    "number of outputs": lambda task: task.n_outputs,
    "loss": lambda task: task.loss.name,
}


def check_tasks(tasks: Sequence[Task], objective: Objective, settings: Sequence[Mapping[str, Any]]) -> None:
    """Whether these tasks have what the objective needs."""
    for task in tasks:
        _check_kind(task, objective)
        if objective.needs == "aux":
            _check_aux(task, objective)
        if objective.reads_aux:
            _check_reads_aux(task, objective)
    if objective.needs == "aux":
        widths = [t.train.aux.shape[1] for t in tasks if t.train.aux is not None]
        if len(set(widths)) > 1:
            raise ValueError(f"tasks of one call must have the same number of aux columns. Got {widths}.")
    measures = [s.get("measure") for s in settings]
    if objective.infers is not None:
        for s, measure in zip(settings, measures, strict=True):
            inferred = s.get("n_environments", 2)  # two where no setting says how many
            if isinstance(measure, tuple) and len(measure) != inferred:
                raise ValueError(
                    f"measure must have one weight per environment, n_environments={inferred}. "
                    f"Got {len(measure)} weights."
                )
    weighs_given = objective.infers is None and any(m not in (None, "empirical") for m in measures)
    if objective.needs == "environment" or (objective.needs == "nothing" and weighs_given):
        for task in tasks:
            _check_environments(task, objective, measures)


def _check_kind(task: Task, objective: Objective) -> None:
    kind = {"squared": "regression"}.get(task.loss.name, task.loss.name)
    if kind in ("binary", "multiclass", "regression") and kind not in objective.tasks:
        reason = objective.undefined.get(kind)
        raise ValueError(
            f"objective {objective.name!r} is for {list(objective.tasks)}{f': {reason}' if reason else ''}. "
            f"Task {task.name!r} is {kind}."
        )


def _check_aux(task: Task, objective: Objective) -> None:
    """Whether environments can be inferred from aux, in the held-out rows too."""
    if task.train.aux is None:
        raise ValueError(
            f"objective {objective.name!r} infers environments from auxiliary variables: give "
            f"make_task(..., aux=...), or use an objective for given environments such as 'irm-tv-l1'. Task "
            f"{task.name!r} has no aux."
        )
    if task.held_out is not None and task.held_out.aux is None:
        raise ValueError(f"objective {objective.name!r} needs aux for the held-out rows too. Got none.")


def _check_environments(task: Task, objective: Objective, measures: Sequence[Any]) -> None:
    """Whether environments are given, at least two, in the held-out rows too, and as many as a measure has weights."""
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
    for measure in measures:
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
        if not objective.infers_held_out and (rows.environment is None or len(task.train.names) < 2):
            raise ValueError(
                "select='worst-env' looks at the worst environment of the held-out rows (without them, the training "
                f"rows), and needs their environments. Task {task.name!r} has none; give them, or use select='iid'."
            )


def check_call(
    snapshot_every: Any,
    max_chunk: Any,
    checkpoint_every: Any,
    dtype: Any,
    objective: Any,
    runs: Any,
    progress: Any,
    net: Any,
    hidden: Any,
) -> None:
    """What holds for all runs of a call."""
    if not isinstance(objective, (str, Objective)):
        raise ValueError(
            f"objective must be a name such as 'irm-tv-l1' or an Objective. Got {type(objective).__name__}."
        )
    if not isinstance(runs, Runs):
        raise ValueError(f"runs must be irmtv.Runs, for example Runs(seed=range(3)). Got {type(runs).__name__}.")
    if not (progress is None or callable(progress)):
        raise ValueError(
            f"progress must be a function of a Progress, e.g. irmtv.core.progress_bar.ProgressBar. Got {progress!r}."
        )
    for name, value in (("snapshot_every", snapshot_every), ("max_chunk", max_chunk)):
        if not (value is None or _whole(value, 1)):
            raise ValueError(f"{name} must be None or a whole number of at least 1. Got {value!r}.")
    if not _whole(checkpoint_every, 1):
        raise ValueError(f"checkpoint_every must be a whole number of at least 1. Got {checkpoint_every!r}.")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64. Got {dtype!r}.")
    if net is not None and hidden != ():
        raise ValueError(f"hidden describes the network that net= replaces: give one of them. Got hidden={hidden!r}.")


def snapshot_interval(
    snapshot_every: int | None, selects: bool, keep_states: bool, settings: Sequence[Mapping[str, Any]]
) -> int | None:
    """Steps between snapshots; where a rule selects among snapshots and nothing is said, fifty in the longest run."""
    if selects and snapshot_every is None:
        return int(max(1, max(s["steps"] for s in settings) // 50))
    if keep_states and snapshot_every is None:
        raise ValueError("keep_states=True keeps the states of the snapshots: say how often, snapshot_every=...")
    return snapshot_every


def check_patience(patience: Any, snapshot_every: int | None, objective: Objective) -> None:
    """Whether training can end early by the risks of its snapshots."""
    if patience is None:
        return
    check_positive(patience, "patience")
    if snapshot_every is None:
        raise ValueError("patience counts snapshots: say how often they are taken, snapshot_every=...")
    if objective.penalties:
        raise ValueError(
            f"patience is for objectives without a penalty: a risk that rises may be what a penalty costs. Got "
            f"{objective.name!r}; use 'erm', or patience=None."
        )


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
    """Bytes of memory that are free, roughly."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):  # no such figure on this system
        return 4e9
