"""What a spec asks for: every run with its key, and the groups in which they are trained.

A run's key is a hash of everything that decides its numbers. A group is trained in one tensor program and stored as
a whole: members and their order follow from the spec, so that a group that is repeated gives the same numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from irmtv.core.types import Runs, Task
from irmtv.datasets import DATASETS
from irmtv.engine.settings import resolve_settings
from irmtv.experiments.spec import Method, Spec
from irmtv.objectives import OBJECTIVES

ALL = "all"  # the part of a run that was trained on all training rows
RUNS_PER_GROUP = {"cpu": 64, "cuda": 1024}  # a group is what a kill costs; a larger one is faster
INFERENCE: Mapping[str, Any] = {
    "n_environments": 2,
    "steps": 1000,
    "learning_rate": 5e-3,
}  # of environments that are inferred as labels
STATE_BYTES = 1 << 31  # of the states that a group keeps until it is evaluated
MEASURED = frozenset({"invariance", "iid", "worst-env"})  # rules that look at held-out folds


@dataclass(frozen=True)
class Member:
    """One run to be."""

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
        first, last = self.members[0], self.members[-1]
        seeds = f"{first.seed}" if first.seed == last.seed else f"{first.seed}-{last.seed}"
        return f"{first.setting}, {first.method.label}, {self.kind}, seeds {seeds}"


def parts_of(spec: Spec, method: Method, environments: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The parts on which a method must be trained, by kind; `environments` are the names of those left out in turn."""
    parts: dict[str, tuple[str, ...]] = {"all": (ALL,)}
    if MEASURED & set(spec.selection.rules):
        parts["folds"] = tuple(f"fold {k + 1}/{spec.selection.folds}" for k in range(spec.selection.folds))
    if "leave-one-env-out" in spec.selection.rules and method.measured_on == "given" and len(environments) > 2:
        parts["left-out"] = tuple(f"without {name}" for name in environments)
    return parts


def members(
    spec: Spec, setting: str, method: Method, kind: str, parts: Sequence[str], repetitions: Sequence[int]
) -> Iterator[Member]:
    """Every run of a method in a setting: repetition by repetition, combination by combination, part by part."""
    combinations = method.combinations(spec.training)
    resolved = [_resolved(method, keywords) for keywords in combinations]
    arguments = DATASETS[spec.data.name].arguments(spec.data.arguments_of(setting))
    for r in repetitions:
        for c, (keywords, settings) in enumerate(zip(combinations, resolved, strict=True)):
            for part in parts:
                # everything that decides the numbers; when the code itself gives others (a generator, the training),
                # add an entry here, so that old runs are not taken for new ones
                what = {
                    "data": spec.data.name,
                    "arguments": arguments,
                    "objective": method.objective,
                    "environments": INFERENCE if method.environments == "inferred" else "given",
                    "settings": settings,
                    "snapshot_every": spec.training.snapshot_every,
                    "dtype": spec.training.dtype,
                    "seed": spec.seeds[r],
                    "part": part,
                }
                yield Member(key_of(what), setting, method, c, keywords, settings, r, spec.seeds[r], part)


def plan(
    spec: Spec, finished: Collection[str], device: str, first_task: Callable[[str], Task]
) -> tuple[list[Work], int, int]:
    """Groups that are still to be trained; how many runs the spec asks for; how many of them are there already.

    `first_task` gives a setting's task, for the names of its environments.
    """
    work: list[Work] = []
    total = 0
    keys = set()
    for setting in spec.data.settings:
        task = first_task(setting)
        names = environment_names(spec, task)
        for method in spec.methods:
            for kind, parts in parts_of(spec, method, names).items():
                per_repetition = len(method.combinations(spec.training)) * len(parts)
                block = max(1, _runs_per_group(spec, method, task, device) // per_repetition)
                for start in range(0, spec.repetitions, block):
                    some = range(start, min(start + block, spec.repetitions))
                    asked = list(members(spec, setting, method, kind, parts, some))
                    total += len(asked)
                    # two methods may share a run, or a run may be there from a smaller spec
                    missing = tuple(m for m in asked if m.key not in finished and m.key not in keys)
                    keys |= {m.key for m in missing}
                    if missing:
                        work.append(Work(kind, missing))
    return work, total, total - sum(len(w.members) for w in work)


def _runs_per_group(spec: Spec, method: Method, task: Task, device: str) -> int:
    """As many as train well together, fewer where the states of all their snapshots would fill the memory."""
    parameters, snapshots = 0, 0
    for combination in method.combinations(spec.training):
        widths = [task.train.x[0].numel(), *combination["hidden"], task.n_outputs]
        parameters = max(parameters, sum((a + 1) * b for a, b in pairwise(widths)))
        snapshots = max(snapshots, combination["steps"] // spec.training.snapshot_every + 2)
    size = 8 if spec.training.dtype == "float64" else 4
    return max(1, min(RUNS_PER_GROUP[device], STATE_BYTES // (parameters * snapshots * size)))


def environment_names(spec: Spec, task: Task) -> list[str]:
    """Names of the environments that "leave-one-env-out" can leave out."""
    return [str(name) for name in task.train.names] if "leave-one-env-out" in spec.selection.rules else []


def metric_name(array: str) -> str:
    """The metric that an array of results is of: "test/accuracy" is "accuracy"."""
    where, name = array.split("/")
    return name if where == "test" else f"{where} {name}"


def key_of(content: Mapping[str, Any]) -> str:
    """One key for one content, whatever the order of its parts."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=_jsonable).encode()).hexdigest()


def _resolved(method: Method, keywords: Mapping[str, Any]) -> dict[str, Any]:
    (settings,) = resolve_settings(OBJECTIVES[method.objective], Runs(), keywords, {}, n_tasks=1)
    kept = {k: v for k, v in settings.items() if k not in ("seed", "data")}
    return dict(json.loads(json.dumps(kept, default=_jsonable)))


def _jsonable(value: Any) -> Any:
    if isinstance(value, (tuple, range)):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else str(value)
