"""The plan of a spec: every run with its key, and the groups in which they are trained.

A run's key is a hash of everything that decides its numbers. A group is trained in one tensor program and stored as
a whole: members and their order follow from the spec and what the store has, so that a group that was killed and is
repeated gives the same numbers. (In a group of other members a run's numbers differ by rounding.)
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from irmtv.core.types import Runs, Task
from irmtv.datasets import DATASETS
from irmtv.engine.named_networks import make_network
from irmtv.engine.networks import MLP, Net
from irmtv.engine.settings import check_tasks, resolve_settings
from irmtv.engine.solvers.newton import check_solver
from irmtv.lab.experiments.spec import Method, Spec, without_new_defaults
from irmtv.models.search import MOST_LEFT_OUT
from irmtv.objectives import OBJECTIVES

NUMBERS = 3  # raised when the same settings give other numbers: a generator or the training itself has changed
ALL = "all"  # the part of a run that was trained on all training rows
LEFT_OUT = "without "  # and the name of an environment
RUNS_PER_GROUP = {"cpu": 64, "cuda": 1024}  # a group is what a kill costs; a larger one is faster
# of environments that are inferred as labels
INFERENCE: Mapping[str, Any] = {"n_environments": 2, "steps": 1000, "learning_rate": 5e-3}
STATE_BYTES = 1 << 31  # of the states that a group keeps until it is evaluated
STATISTICS = ("rows", "risk", "risk_cov", "slope", "slope_cov")  # of snapshots, by environment
MEASURED = frozenset({"invariance", "iid", "worst-env"})  # rules that use held-out folds


@dataclass(frozen=True)
class Member:
    """One run of the plan."""

    key: str
    setting: str
    method: Method
    combination: int  # which of the method's hyper-parameter combinations
    keywords: Mapping[str, Any]  # for `train`
    settings: Mapping[str, Any]  # all of them, defaults included; JSON-able
    repetition: int
    seed: int
    part: str


@dataclass(frozen=True)
class Work:
    """A group of runs to be trained together."""

    kind: str  # "all", "folds" or "left-out"
    members: tuple[Member, ...]

    @property
    def label(self) -> str:
        seeds = sorted({m.seed for m in self.members})
        settings = list(dict.fromkeys(m.setting for m in self.members))
        where = settings[0] if len(settings) == 1 else f"{len(settings)} settings"
        which = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]}-{seeds[-1]}"
        return f"{where}, {self.members[0].method.label}, {self.kind}, seeds {which}"


def fold_names(n_folds: int) -> tuple[str, ...]:
    """The parts without one fold each."""
    return tuple(f"fold {k + 1}/{n_folds}" for k in range(n_folds))


def left_out_names(environments: Iterable[Hashable]) -> tuple[str, ...]:
    """The parts without one environment each."""
    return tuple(f"{LEFT_OUT}{name}" for name in environments)


def parts_of(spec: Spec, method: Method, environments: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The parts on which a method must be trained, by kind; `environments` are the names of those left out in turn.

    The rule "invariance" has environments left out, too, where that is cheap: of methods that are solved outright.
    """
    parts: dict[str, tuple[str, ...]] = {"all": (ALL,)}
    if MEASURED & set(spec.selection.rules):
        parts["folds"] = fold_names(spec.selection.folds)
    cheap = method.solved(spec.training) and len(environments) <= MOST_LEFT_OUT
    asked = leaves_out(spec) or ("invariance" in spec.selection.rules and cheap)
    if asked and method.measured_on == "given" and len(environments) > 2:
        parts["left-out"] = left_out_names(environments)
    return parts


def leaves_out(spec: Spec) -> bool:
    """Whether a rule of the spec cannot do without environments that were left out."""
    return "leave-one-env-out" in spec.selection.rules


def members(
    spec: Spec, setting: str, method: Method, kind: str, parts: Sequence[str], repetitions: Sequence[int]
) -> Iterator[Member]:
    """Every run of a method in a setting: repetition by repetition, combination by combination, part by part."""
    combinations = method.combinations(spec.training)
    resolved = [_resolved(method, keywords) for keywords in combinations]
    arguments = DATASETS[spec.data.name].arguments(spec.data.arguments_of(setting))
    network = method.network_of(spec.training)
    named = {} if network is None else {"network": network}  # keys from before there were names stay as they are
    for r in repetitions:
        for c, (keywords, settings) in enumerate(zip(combinations, resolved, strict=True)):
            for part in parts:
                content = {
                    "numbers": NUMBERS,
                    "data": spec.data.name,
                    "arguments": arguments,
                    "objective": method.objective,
                    "environments": INFERENCE if method.environments == "inferred" else "given",
                    "settings": settings,
                    **named,
                    "snapshot_every": spec.training.snapshot_every,
                    "dtype": spec.training.dtype,
                    "seed": spec.seeds[r],
                    "part": part,
                }
                yield Member(key_of(content), setting, method, c, keywords, settings, r, spec.seeds[r], part)


def count_runs(spec: Spec) -> int:
    """How many runs a spec asks for, by arithmetic; environments that are left out in turn come on top."""
    each = sum(
        len(method.combinations(spec.training)) * sum(map(len, parts_of(spec, method, ()).values()))
        for method in spec.methods
    )
    return each * len(spec.data.settings) * spec.repetitions


def plan(
    spec: Spec, finished: Collection[str], device: str, first_task: Callable[[str], Task]
) -> tuple[list[Work], int, int]:
    """Groups that are still to be trained, the number of runs of the spec, and how many of them are stored already.

    `first_task` gives a setting's task, so that data on which a method cannot be trained are an error at the start.
    """
    work: list[Work] = []
    planned: set[str] = set()
    tasks = {setting: first_task(setting) for setting in spec.data.settings}
    for setting, task in tasks.items():
        for method in spec.methods:
            _check_task(spec, setting, method, task)
    for alike in _together(tasks, device):
        for method in spec.methods:
            where = trains_on(spec, method, device)
            for settings in _together({s: tasks[s] for s in alike}, where):
                for kind, group in _groups(spec, settings, method, tasks[settings[0]], where):
                    # two methods may share a run, or a run may be there from a smaller spec
                    missing = tuple(m for m in group if m.key not in finished and m.key not in planned)
                    planned |= {m.key for m in group}
                    if missing:
                        work.append(Work(kind, missing))
    return work, len(planned), len(planned & set(finished))


def trains_on(spec: Spec, method: Method, device: str) -> str:
    """The device on which a method is trained: linear models are solved on the CPU, whatever the device."""
    return "cpu" if method.solved(spec.training) else device


def costliest_first(work: Work) -> tuple[int, int]:
    """To sort groups by, so that processes end at about the same time: on a GPU the common step is few operations, and
    a procedure of its own takes several times as long, whatever the number of runs."""
    method = work.members[0].method
    objective = OBJECTIVES[method.objective]
    own = bool(objective.procedure or objective.row_weights) or objective.infers not in (None, "aux")
    return -2 if own else -1 if method.environments == "inferred" else 0, -len(work.members)


def _together(tasks: Mapping[str, Task], device: str) -> list[list[str]]:
    """Settings whose runs share groups: on a GPU, where steps of many runs take hardly longer, those of one shape."""
    if device == "cpu":
        return [[setting] for setting in tasks]
    found: dict[Hashable, list[str]] = {}
    for setting, task in tasks.items():
        rows = [
            None if r is None else (r.names, tuple(r.x.shape), None if r.aux is None else tuple(r.aux.shape))
            for r in (task.train, task.held_out, task.test)
        ]
        found.setdefault((*rows, repr(task.loss), task.n_outputs), []).append(setting)
    return list(found.values())


def keeps_states(spec: Spec, kind: str, method: Method) -> bool:
    """Whether states of all snapshots are kept: for test results, for outputs of ERM (methods that infer environments
    have an ERM of their own, their warm-up), and for outputs that are stored."""
    has_erm = method.objective == "erm" or method.infers
    return kind == "all" or (kind == "folds" and (has_erm or spec.selection.outputs))


def _groups(
    spec: Spec, settings: Sequence[str], method: Method, task: Task, device: str
) -> Iterator[tuple[str, Sequence[Member]]]:
    """The runs of a method in groups, with their kind; `task` is that of one of the settings."""
    for kind, parts in parts_of(spec, method, [str(name) for name in task.train.names]).items():
        every = [m for s in settings for m in members(spec, s, method, kind, parts, range(spec.repetitions))]
        per_repetition = len(every) // (spec.repetitions * len(settings))
        yield from ((kind, group) for group in _cut(spec, method, kind, parts, every, per_repetition, task, device))


def _cut(
    spec: Spec,
    method: Method,
    kind: str,
    parts: Sequence[str],
    every: Sequence[Member],
    per_repetition: int,
    task: Task,
    device: str,
) -> Iterator[Sequence[Member]]:
    """Whole repetitions where they fit, else some combinations of one, all its parts together."""
    limit = _runs_per_group(spec, method, task, device) if keeps_states(spec, kind, method) else RUNS_PER_GROUP[device]
    whole = limit // per_repetition * per_repetition
    size = whole or max(1, limit // len(parts)) * len(parts)
    step = size if whole else per_repetition
    for start in range(0, len(every), step):
        stop = min(start + step, len(every))
        yield from (every[i : min(i + size, stop)] for i in range(start, stop, size))


def _check_task(spec: Spec, setting: str, method: Method, task: Task) -> None:
    """Raise unless the setting's data have what the method needs."""
    if method.environments == "inferred":
        if task.train.aux is None:
            raise ValueError(
                f'method {method.label!r}: environments = "inferred" needs auxiliary variables. Setting {setting!r} '
                "has none."
            )
        codes = torch.arange(len(task.train)) % INFERENCE["n_environments"]  # as many as there will be
        names = tuple(f"inferred {e + 1}" for e in range(INFERENCE["n_environments"]))
        task = replace(task, train=replace(task.train, environment=codes, names=names))
    combinations = method.combinations(spec.training)
    objective = OBJECTIVES[method.objective]
    net = network_for(spec, method, task)
    settings = [resolve_settings(objective, Runs(), keywords, {}, n_tasks=1)[0] for keywords in combinations]
    try:
        check_tasks([task], objective, settings)
        check_solver(task, objective, settings, net, None)
    except ValueError as error:
        raise ValueError(f"method {method.label!r}, setting {setting!r}: {error}") from None


def _runs_per_group(spec: Spec, method: Method, task: Task, device: str) -> int:
    """Runs of a group: fewer where the states of all their snapshots would fill the memory."""
    parameters, snapshots = 0, 0
    net = network_for(spec, method, task)
    for combination in method.combinations(spec.training):
        widths = [task.train.x[0].numel(), *combination["hidden"], task.n_outputs]
        own = sum((a + 1) * b for a, b in pairwise(widths)) if net is None else sum(map(math.prod, net.shapes.values()))
        parameters = max(parameters, own)
        snapshots = max(snapshots, combination["steps"] // spec.training.snapshot_every + 2)
    size = 8 if spec.training.dtype == "float64" else 4
    return max(1, min(RUNS_PER_GROUP[device], STATE_BYTES // (parameters * snapshots * size)))


def network_for(spec: Spec, method: Method, task: Task) -> Net | None:
    """The network that a method names, for these data; None where `hidden` describes one for a table."""
    name = method.network_of(spec.training)
    if name is None:
        hidden = {tuple(combination["hidden"]) for combination in method.combinations(spec.training)}
        return flat(task, hidden.pop()) if task.train.x.ndim > 2 and len(hidden) == 1 else None
    try:
        return make_network(name, task.train.x.shape[1:], task.n_outputs)
    except ValueError as error:
        raise ValueError(f"method {method.label!r}: {error}") from None


def flat(task: Task, hidden: Sequence[int] = ()) -> MLP:
    """The network that `hidden` describes, for series: it reads them as one long row."""
    return MLP(task.train.x[0].numel(), hidden, task.n_outputs)


def metric_name(array: str) -> str:
    """The metric that an array of results is of: "test/accuracy" is "accuracy"."""
    where, name = array.split("/")
    return name if where == "test" else f"{where} {name}"


def key_of(content: Mapping[str, Any]) -> str:
    """The key of a content; it depends neither on the order of its parts nor on how a number is written."""
    return hashlib.sha256(json.dumps(_canonical(content), sort_keys=True, default=_jsonable).encode()).hexdigest()


def _canonical(value: Any) -> Any:
    """1000.0 as 1000; but a warm-up of 1 is one step, of 1.0 the whole."""
    if isinstance(value, Mapping):
        return {k: repr(v) if k == "warmup" else _canonical(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _resolved(method: Method, keywords: Mapping[str, Any]) -> dict[str, Any]:
    (settings,) = resolve_settings(OBJECTIVES[method.objective], Runs(), keywords, {}, n_tasks=1)
    kept = {k: v for k, v in without_new_defaults(settings).items() if k not in ("seed", "data")}
    return dict(json.loads(json.dumps(kept, default=_jsonable)))


def _jsonable(value: Any) -> Any:
    if isinstance(value, (tuple, range)):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else str(value)
