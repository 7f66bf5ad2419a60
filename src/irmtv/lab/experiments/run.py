"""Run what a spec asks for and the store does not have yet: group by group, each stored as a whole."""

from __future__ import annotations

import os
import platform
import socket
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from irmtv._version import __version__
from irmtv.core.messages import check_positive
from irmtv.core.types import Runs, Task
from irmtv.datasets import DATASETS
from irmtv.engine import Progress, train
from irmtv.engine.settings import pick_device
from irmtv.engine.snapshots import History
from irmtv.lab.experiments.evaluation import evaluate_snapshots
from irmtv.lab.experiments.fold_arrays import arrays_of_folds
from irmtv.lab.experiments.inferred import aux_of, order_of_environments
from irmtv.lab.experiments.plan import (
    ALL,
    INFERENCE,
    STATISTICS,
    Work,
    count_runs,
    flat,
    fold_names,
    keeps_states,
    left_out_names,
    network_for,
    plan,
)
from irmtv.lab.experiments.spec import Spec
from irmtv.lab.experiments.store import Group, Metric, RunRecord, Store, group_key
from irmtv.lab.workers import Outcome, one_by_one, side_by_side
from irmtv.models.inference import infer_environments
from irmtv.models.networks.batches import divergence_is_recorded
from irmtv.selection.folds import constant_risk, fold_tasks, left_out_tasks

MOST_RUNS = 500_000  # that begin without being asked for again
VERSIONS = {
    "irmtv": __version__,
    "torch": str(torch.__version__),
    "numpy": np.__version__,
    "python": platform.python_version(),
}


@dataclass(frozen=True)
class Report:
    """What a call of `run_experiment` did."""

    runs: int  # of the spec
    found: int  # of these, stored before
    trained: int
    diverged: int
    failed: tuple[str, ...]  # labels and errors of groups that raised
    seconds: float


class ExperimentInterrupted(KeyboardInterrupt):
    """Ctrl-C: what was finished is stored; the same call goes on from there."""

    def __init__(self, done: int, total: int, folder: Path) -> None:
        super().__init__(f"stopped: {done} of {total} runs are stored in {folder}; the same command continues.")


def run_experiment(
    spec: Spec,
    folder: str | Path,
    *,
    progress: Callable[[Progress], None] | None = None,
    stage: Callable[[str], None] | None = None,
    wait: bool = False,
    on_wait: Callable[[str], None] | None = None,
    jobs: int = 1,
    yes: bool = False,
) -> Report:
    """Train every run of the spec that the store in `folder` does not have; store group by group.

    Parameters
    ----------
    progress : called with a `Progress` over all runs that are still to be trained.
    stage : called with the label of each group that begins.
    wait, on_wait : whether to wait while another process writes to the folder, and a function to call then.
    jobs : processes that train groups side by side, each on one core; for the CPU. Small tensors gain little from
        several threads. Numbers are the same up to rounding. A script that uses several needs the usual
        ``if __name__ == "__main__":``, since they import it.
    yes : begin even where the spec asks for more than 500,000 runs.
    """
    check_positive(jobs, "jobs")
    if not isinstance(spec, Spec):
        raise ValueError(f"spec must be a Spec: load_spec(path). Got {type(spec).__name__}.")
    if (runs := count_runs(spec)) > MOST_RUNS and not yes:
        raise ValueError(
            f"the spec asks for {runs:,} runs ({spec.repetitions:,} repetitions of {runs // spec.repetitions:,}): at a "
            f"hundredth of a second each that is {runs / 360_000:,.0f} hours, and about {runs / 50_000:,.0f} GB on the "
            "disk. Use fewer repetitions or values; or --yes (yes=True in Python) to begin all the same."
        )
    device = pick_device(spec.device)
    started = time.perf_counter()
    tasks = _Tasks(spec, str(device))
    with ExitStack() as stack:
        store = stack.enter_context(Store.create_or_open(folder, wait=wait, on_wait=on_wait))
        store.check()  # before hours of training rather than after
        work, total, stored = plan(
            spec, store.finished(), device.type, lambda setting: tasks.whole(setting, spec.seeds[0])
        )
        if spec.hash not in dict(store.specs()):  # with other comments, say, it is the same spec
            store.add_spec(spec.hash, spec.text)
        outcomes = _Outcomes(store, spec, device)

        def report(p: Progress) -> None:
            if progress is not None:
                seconds = time.perf_counter() - started
                progress(Progress(p.step, p.steps, outcomes.tried + p.runs_done, p.runs_now, total - stored, seconds))

        def train_here(group: Work) -> list[RunRecord]:
            return _train_group(group, spec, tasks, str(device), report)

        jobs = min(jobs, len(work))
        if jobs <= 1 or device.type != "cpu":
            trained = one_by_one(work, train_here, stage)
        else:
            trained = side_by_side(work, partial(_train_elsewhere, spec), jobs, stage)
        try:
            for group, outcome in stack.enter_context(closing(trained)):
                if outcomes.add(group, outcome):
                    report(Progress(0, 1, 0, 0, total - stored, 0.0))
        except KeyboardInterrupt:
            raise ExperimentInterrupted(stored + outcomes.done, total, Path(folder)) from None
    seconds = time.perf_counter() - started
    return Report(total, stored, outcomes.done, outcomes.diverged, tuple(outcomes.failed), seconds)


class _Outcomes:
    """Stores the outcomes of groups as they come, and counts them."""

    def __init__(self, store: Store, spec: Spec, device: torch.device) -> None:
        self._store, self._spec_hash = store, spec.hash
        self._device = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        self.tried = self.done = self.diverged = 0  # runs
        self.failed: list[str] = []

    def add(self, group: Work, outcome: Outcome) -> bool:
        """Store the runs of a group, or that it failed; whether they are stored."""
        self.tried += len(group.members)
        key = group_key(m.key for m in group.members)
        if outcome.error is not None:
            self._fail(key, group, outcome.error, outcome.traceback)
            return False
        trained = Group(
            key=key,
            label=group.label,
            spec_hash=self._spec_hash,
            device=self._device,
            host=socket.gethostname(),
            pid=os.getpid(),
            started=outcome.started,
            seconds=outcome.seconds,
            versions=VERSIONS,
            runs=tuple(outcome.result),
        )
        try:
            self._store.add_group(trained)
        except ValueError:
            raise  # the folder cannot be written to: the user should know now
        except Exception as error:
            self._fail(key, group, f"{type(error).__name__}: {error}", traceback.format_exc())
            return False
        self.done += len(outcome.result)
        self.diverged += sum(r.status == "diverged" for r in outcome.result)
        return True

    def _fail(self, key: str, group: Work, error: str, trace: str) -> None:
        self._store.add_failure(key, group.label, trace)
        self.failed.append(f"{group.label}: {error}")


_TASKS_HERE: dict[str, _Tasks] = {}  # by the spec's hash; of a process that trains for another


def _train_elsewhere(spec: Spec, group: Work) -> list[RunRecord]:
    """In a process of its own, which keeps the data of the groups before."""
    tasks = _TASKS_HERE.setdefault(spec.hash, _Tasks(spec, "cpu"))
    return _train_group(group, spec, tasks, "cpu", lambda progress: None)


class _Tasks:
    """The data of an experiment; the last few tasks are kept, since groups that follow each other share them."""

    def __init__(self, spec: Spec, device: str) -> None:
        self.spec, self.device = spec, device
        self.dtype = {"float32": torch.float32, "float64": torch.float64}[spec.training.dtype]
        self.whole = lru_cache(maxsize=32)(self._whole)
        self.parts = lru_cache(maxsize=32)(self._parts)

    def _whole(self, setting: str, seed: int) -> Task:
        make = DATASETS[self.spec.data.name].make
        return make(**self.spec.data.arguments_of(setting), random_state=seed)

    def _parts(self, setting: str, seed: int, kind: str, environments: str) -> dict[str, Task]:
        """By the name of the part. Inferred environments are the same for every method, ERM among them."""
        whole, n_folds = self.whole(setting, seed), self.spec.selection.folds
        if kind == "all":
            parts = {ALL: whole}
        elif kind == "folds":
            parts = dict(zip(fold_names(n_folds), fold_tasks(whole, n_folds, seed), strict=True))
        else:
            parts = dict(zip(left_out_names(whole.train.names), left_out_tasks(whole), strict=True))
        if environments == "given":
            return parts
        n = len(parts)
        labelled = infer_environments(
            list(parts.values()), [seed] * n, [aux_of(whole)] * n, [0] * n,
            net=flat(whole) if whole.train.x.ndim > 2 else None, device=self.device, dtype=self.dtype, **INFERENCE,
        )  # fmt: skip
        return dict(zip(parts, labelled, strict=True))


def _train_group(
    work: Work, spec: Spec, data: _Tasks, device: str, report: Callable[[Progress], None]
) -> list[RunRecord]:
    method, setting = work.members[0].method, work.members[0].setting
    tasks, runs = _tasks_and_runs(work, data)
    common: dict[str, Any] = {
        "net": network_for(spec, method, tasks[0]),
        "snapshot_every": spec.training.snapshot_every,
        "device": device,
        "dtype": data.dtype,
    }
    with divergence_is_recorded():
        fitted = train(
            tasks,
            method.objective,
            runs,
            keep_states=keeps_states(spec, work.kind, method),
            progress=report,
            **common,
        )
    history, order = fitted.history, order_of_environments(fitted, work, data.whole)
    assert history is not None
    arrays = [_statistics(history, r, work.kind, None if order is None else order[r]) for r in range(len(runs))]
    metrics: list[tuple[Metric, ...]] = [()] * len(runs)
    if work.kind == "folds":
        constants = [constant_risk(t) for t in tasks]
        others = arrays_of_folds(fitted, work, order, data.whole, spec.selection)
        for r, d in enumerate(runs.column("data")):
            arrays[r]["held-out/constant"] = np.array([constants[d], float(len(tasks[d].held_out or ()))])
            arrays[r] |= others[r]
    if work.kind == "all":
        metrics = evaluate_snapshots(fitted, DATASETS[spec.data.name], spec.data.arguments_of(setting), arrays)
    return [
        RunRecord(
            key=m.key,
            setting=m.setting,
            method=m.method.label,
            objective=m.method.objective,
            repetition=m.repetition,
            seed=m.seed,
            part=m.part,
            hyperparameters=m.settings,
            status="diverged" if r in fitted.diverged else "finished",
            diverged_at=fitted.diverged.get(r),
            arrays=arrays[r],
            metrics=metrics[r],
        )
        for r, m in enumerate(work.members)
    ]


def _tasks_and_runs(work: Work, data: _Tasks) -> tuple[list[Task], Runs]:
    """The tasks of a group, each once, and its runs on them."""
    places: dict[tuple[int, str], int] = {}  # (seed, part) -> position among the tasks
    tasks: list[Task] = []
    for m in work.members:
        if (m.seed, m.part) not in places:
            places[m.seed, m.part] = len(tasks)
            tasks.append(data.parts(m.setting, m.seed, work.kind, m.method.environments)[m.part])
    runs = Runs(
        seed=[m.seed for m in work.members],
        data=[places[m.seed, m.part] for m in work.members],
        **{name: [m.keywords[name] for m in work.members] for name in work.members[0].keywords},
    )
    return tasks, runs


def _statistics(history: History, run: int, kind: str, order: Tensor | None) -> dict[str, np.ndarray]:
    """Snapshot statistics of one run, environments in the given order, as arrays (S, E, ...)."""
    where = {"all": "train", "folds": "held-out", "left-out": "left-out"}[kind]
    measured = (history.rows[:, run] > 0).any(1)  # runs of a group may differ in their steps
    arrays = {"steps": np.array(history.steps, dtype=np.int64)[measured.numpy()]}
    if kind == "left-out":
        return arrays | {"left-out/risk": history.risk[measured, run, 0].double().numpy()}
    for name in STATISTICS:
        values = getattr(history, name)[measured, run]  # (S, E), (S, E, J), (S, E, E) or (S, E, E, J)
        if order is not None:
            values = values[:, order]
            if name.endswith("_cov"):  # the order of soft environments: both axes of their covariances
                values = values[:, :, order]
        arrays[f"{where}/{name}"] = values.numpy()
    return arrays
