"""Run what a spec asks for and the store does not have yet: group by group, each stored as a whole."""

from __future__ import annotations

import os
import platform
import socket
import time
import traceback
from collections.abc import Callable, Generator, Sequence
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
from irmtv.datasets.sources import SOURCES
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
    costliest_first,
    count_runs,
    flat,
    fold_names,
    keeps_states,
    left_out_names,
    network_for,
    plan,
    trains_on,
)
from irmtv.lab.experiments.spec import Spec
from irmtv.lab.experiments.store import Group, Metric, RunRecord, Store, group_key
from irmtv.lab.on_ray import Cluster, Fetch, check_engine, connected, on_ray
from irmtv.lab.workers import Outcome, one_by_one, side_by_side
from irmtv.models.inference import infer_environments
from irmtv.models.networks.batches import divergence_is_recorded
from irmtv.selection.folds import constant_risk, fold_tasks, left_out_tasks

GPU_BYTES = 4 << 30  # of a GPU's memory for every process that trains on it
KEPT = 64  # settings and seeds whose data a process keeps
MOST_RUNS = 500_000  # that begin without being asked for again
VERSIONS = {
    "irmtv": __version__,
    "torch": str(torch.__version__),
    "numpy": np.__version__,
    "python": platform.python_version(),
}


@dataclass(frozen=True)
class Trained:
    """The runs of a group, and what trained them."""

    runs: list[RunRecord]
    device: str
    host: str
    pid: int
    versions: dict[str, str]


@dataclass(frozen=True)
class Report:
    """What a call of `run_experiment` did."""

    runs: int  # of the spec
    found: int  # of these, stored before
    trained: int
    diverged: int
    failed: tuple[str, ...]  # labels and errors of groups that raised
    seconds: float
    jobs: int  # processes that many groups are trained in


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
    jobs: int | None = None,
    engine: str = "local",
    address: str | None = None,
    yes: bool = False,
) -> Report:
    """Train every run of the spec that the store in `folder` does not have; store group by group.

    Parameters
    ----------
    progress
        Called with a `Progress` over all runs that are still to be trained.
    stage
        Called with the label of each group that begins.
    wait, on_wait
        Whether to wait while another process writes to the folder, and a function to call then.
    jobs
        Processes that train groups side by side, each on one core (small tensors gain little from several threads);
        with several GPUs each group is trained on one of them. Default: 1 on a CPU; on a GPU, which one process leaves
        idle while it measures and solves, one for every core that has 4 GiB of it. Numbers are the same up to rounding.
        A script that uses several needs the usual ``if __name__ == "__main__":``, since they import it. With Ray: the
        number of cores that are used (default: all).
    engine
        "local", or "ray": groups are trained in processes of a Ray cluster (``pip install 'irmtv[ray]'``), each on one
        core and a share of a GPU, and tried again elsewhere where a process or a machine is lost.
    address
        Of an existing Ray cluster, "auto" or "HOST:PORT". Default: the cluster that this process is connected to, else
        one of its own on this machine, for as long as this takes.
    yes
        Begin even where the spec asks for more than 500,000 runs.
    """
    if jobs is not None:
        check_positive(jobs, "jobs")
    check_engine(engine, address)
    if not isinstance(spec, Spec):
        raise ValueError(f"spec must be a Spec: load_spec(path). Got {type(spec).__name__}.")
    if (runs := count_runs(spec)) > MOST_RUNS and not yes:
        raise ValueError(
            f"the spec asks for {runs:,} runs ({spec.repetitions:,} repetitions of {runs // spec.repetitions:,}): at a "
            f"hundredth of a second each that is {runs / 360_000:,.0f} hours, and about {runs / 50_000:,.0f} GB on the "
            "disk. Use fewer repetitions or values; or --yes (yes=True in Python) to begin all the same."
        )
    started = time.perf_counter()
    with ExitStack() as stack:
        store = stack.enter_context(Store.create_or_open(folder, wait=wait, on_wait=on_wait))
        store.check()  # before hours of training rather than after
        cluster = stack.enter_context(connected(address, jobs)) if engine == "ray" else None
        device = pick_device(spec.device) if cluster is None else _device_there(spec.device, cluster)
        tasks = _Tasks(spec, str(device))
        work, total, stored = plan(
            spec, store.finished(), device.type, lambda setting: tasks.whole(setting, spec.seeds[0])
        )
        if spec.hash not in dict(store.specs()):  # with other comments, say, it is the same spec
            store.add_spec(spec.hash, spec.text)
        outcomes = _Outcomes(store, spec)

        def report(p: Progress) -> None:
            if progress is not None:
                seconds = time.perf_counter() - started
                progress(Progress(p.step, p.steps, outcomes.tried + p.runs_done, p.runs_now, total - stored, seconds))

        if cluster is None:
            trained = _train_local(work, spec, tasks, device, jobs, report, stage)
        else:
            trained = _train_on_ray(work, spec, tasks, device, cluster, stage)
        try:
            for group, outcome in stack.enter_context(closing(trained)):
                if outcomes.add(group, outcome):
                    report(Progress(0, 1, 0, 0, total - stored, 0.0))
        except KeyboardInterrupt:
            raise ExperimentInterrupted(stored + outcomes.done, total, Path(folder)) from None
    seconds = time.perf_counter() - started
    processes = _job_count(jobs, device, MOST_RUNS) if cluster is None else 1
    return Report(total, stored, outcomes.done, outcomes.diverged, tuple(outcomes.failed), seconds, processes)


def _train_local(
    work: Sequence[Work],
    spec: Spec,
    tasks: _Tasks,
    device: torch.device,
    jobs: int | None,
    report: Callable[[Progress], None],
    stage: Callable[[str], None] | None,
) -> Generator[tuple[Work, Outcome]]:
    """In this process, or in several on this machine."""

    def train_here(group: Work) -> Trained:
        return _train_group(group, spec, tasks, trains_on(spec, group.members[0].method, str(device)), report)

    processes = _job_count(jobs, device, len(work))
    if processes == 1:
        return one_by_one(work, train_here, stage)
    if device.type == "cuda":  # on a CPU neighbours share their data, and groups are many and small
        work = sorted(work, key=costliest_first)
    return side_by_side(work, partial(_train_elsewhere, spec, _devices(device)), processes, stage)


def _train_on_ray(
    work: Sequence[Work],
    spec: Spec,
    tasks: _Tasks,
    device: torch.device,
    cluster: Cluster,
    stage: Callable[[str], None] | None,
) -> Generator[tuple[Work, Outcome]]:
    """In processes of a Ray cluster. Only this machine needs the files of a data set; what is drawn is drawn there."""
    share = cluster.gpu_share(GPU_BYTES) if device.type == "cuda" else 0.0
    from_files = spec.data.name in SOURCES

    def gpus(group: Work) -> float:
        return 0.0 if trains_on(spec, group.members[0].method, device.type) == "cpu" else share

    def keys_of(group: Work) -> list[tuple[str, int]]:
        return list(dict.fromkeys((m.setting, m.seed) for m in group.members)) if from_files else []

    def load(key: Any) -> Task:
        return tasks.whole(*key)

    return on_ray(
        work,
        partial(_train_in_cluster, spec, device.type, __version__, from_files),
        cluster,
        stage,
        gpus=gpus,
        keys_of=keys_of,
        load=load,
    )


def _device_there(asked: str, cluster: Cluster) -> torch.device:
    """The kind of device on which a cluster trains; Ray says which of its GPUs falls to a group."""
    gpus = cluster.count("GPU")
    if asked in ("auto", "cuda") and gpus:
        return torch.device("cuda")
    if asked.startswith("cuda"):
        raise ValueError(
            f"device must be 'cpu', 'auto' or, where it has GPUs, 'cuda' on a Ray cluster. Got {asked!r}, and the "
            f"cluster has {gpus:g} GPUs."
        )
    return pick_device("cpu" if asked == "auto" else asked)


class _Outcomes:
    """Stores the outcomes of groups as they come, and counts them."""

    def __init__(self, store: Store, spec: Spec) -> None:
        self._store, self._spec_hash = store, spec.hash
        self.tried = self.done = self.diverged = 0  # runs
        self.failed: list[str] = []

    def add(self, group: Work, outcome: Outcome) -> bool:
        """Store the runs of a group, or that it failed; whether they are stored."""
        self.tried += len(group.members)
        key = group_key(m.key for m in group.members)
        if outcome.error is not None:
            self._fail(key, group, outcome.error, outcome.traceback)
            return False
        result: Trained = outcome.result
        trained = Group(
            key=key,
            label=group.label,
            spec_hash=self._spec_hash,
            device=result.device,
            host=result.host,
            pid=result.pid,
            started=outcome.started,
            seconds=outcome.seconds,
            versions=result.versions,
            runs=tuple(result.runs),
        )
        try:
            self._store.add_group(trained)
        except ValueError:
            raise  # the folder cannot be written to: the user should know now
        except Exception as error:
            self._fail(key, group, f"{type(error).__name__}: {error}", traceback.format_exc())
            return False
        self.done += len(result.runs)
        self.diverged += sum(r.status == "diverged" for r in result.runs)
        return True

    def _fail(self, key: str, group: Work, error: str, trace: str) -> None:
        self._store.add_failure(key, group.label, trace)
        self.failed.append(f"{group.label}: {error}")


def _job_count(jobs: int | None, device: torch.device, n_groups: int) -> int:
    """How many processes train: those asked for, or what a GPU is worth, where each has some groups to train."""
    if jobs is None and device.type == "cpu":
        return 1
    if jobs is None:
        there = torch.cuda.get_device_properties(device).total_memory // GPU_BYTES
        jobs = min(there, os.cpu_count() or 1, n_groups // 3)
    return max(1, min(jobs, n_groups))


def _devices(device: torch.device) -> tuple[str, ...]:
    """Where groups are trained in turn: on all GPUs, unless one is named."""
    if device.type == "cpu" or device.index is not None:
        return (str(device),)
    return tuple(f"cuda:{i}" for i in range(torch.cuda.device_count()))


_TASKS_HERE: dict[tuple[str, str], _Tasks] = {}  # by the spec's hash and the device; of a process that trains


def _train_elsewhere(spec: Spec, devices: Sequence[str], group: Work, fetch: Fetch | None = None) -> Trained:
    """In a process of its own, which keeps the data of the groups before, on the device that falls to the group."""
    device = devices[int(group_key(m.key for m in group.members)[:8], 16) % len(devices)]
    device = trains_on(spec, group.members[0].method, device)
    tasks = _TASKS_HERE.setdefault((spec.hash, device), _Tasks(spec, device))
    tasks.fetch = fetch
    return _train_group(group, spec, tasks, device, lambda progress: None)


def _train_in_cluster(spec: Spec, device: str, version: str, from_files: bool, group: Work, fetch: Fetch) -> Trained:
    """In a process of a Ray cluster, which may be on another machine."""
    if version != __version__:
        raise ValueError(
            f"irmtv on {socket.gethostname()} is {__version__}, and {version} where the command runs: numbers may "
            "differ. Install the same version on all machines of the cluster."
        )
    return _train_elsewhere(spec, (device,), group, fetch if from_files else None)


class _Tasks:
    """The data of an experiment; the last few tasks are kept, since groups that follow each other share them."""

    def __init__(self, spec: Spec, device: str) -> None:
        self.spec, self.device = spec, device
        self.dtype = {"float32": torch.float32, "float64": torch.float64}[spec.training.dtype]
        self.fetch: Fetch | None = None  # gets what was loaded elsewhere, where the files are
        self.whole = lru_cache(maxsize=KEPT)(self._whole)
        self.cut = lru_cache(maxsize=KEPT)(self._cut)
        self.labelled: dict[tuple[str, int, str], dict[str, Task]] = {}  # by setting, seed and kind

    def _whole(self, setting: str, seed: int) -> Task:
        if self.fetch is not None:
            task: Task = self.fetch((setting, seed))
            return task
        make = DATASETS[self.spec.data.name].make
        return make(**self.spec.data.arguments_of(setting), random_state=seed)

    def _cut(self, setting: str, seed: int, kind: str) -> dict[str, Task]:
        """By the name of the part."""
        whole, n_folds = self.whole(setting, seed), self.spec.selection.folds
        if kind == "all":
            return {ALL: whole}
        if kind == "folds":
            return dict(zip(fold_names(n_folds), fold_tasks(whole, n_folds, seed), strict=True))
        return dict(zip(left_out_names(whole.train.names), left_out_tasks(whole), strict=True))

    def parts(
        self, keys: Sequence[tuple[str, int]], kind: str, environments: str
    ) -> dict[tuple[str, int], dict[str, Task]]:
        """Of every setting and seed: its parts by their names."""
        if environments == "given":
            return {key: self.cut(*key, kind) for key in keys}
        self._infer([key for key in keys if (*key, kind) not in self.labelled], kind)
        found = {key: self.labelled[*key, kind] for key in keys}
        for oldest in list(self.labelled)[:-KEPT]:
            del self.labelled[oldest]
        return found

    def _infer(self, keys: Sequence[tuple[str, int]], kind: str) -> None:
        """Inferred environments, which are the same for every method, ERM among them."""
        if not keys:
            return
        cut, aux = dict[tuple[str, int], dict[str, Task]](), dict[tuple[str, int], Tensor]()
        for key in keys:  # one after the other: they may be more than are kept
            cut[key], aux[key] = self.cut(*key, kind), aux_of(self.whole(*key))
        tasks = [task for parts in cut.values() for task in parts.values()]
        of_task = [key for key, parts in cut.items() for _ in parts]
        whole = self.whole(*keys[0])
        labelled = iter(
            infer_environments(
                tasks,
                [seed for _, seed in of_task],
                [aux[key] for key in of_task],
                [of_task.index(key) for key in of_task],
                net=flat(whole) if whole.train.x.ndim > 2 else None,
                device=self.device,
                dtype=self.dtype,
                **INFERENCE,
            )
        )
        for key, parts in cut.items():
            self.labelled[*key, kind] = {name: next(labelled) for name in parts}


def _train_group(work: Work, spec: Spec, data: _Tasks, device: str, report: Callable[[Progress], None]) -> Trained:
    method = work.members[0].method
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
        arguments = [spec.data.arguments_of(m.setting) for m in work.members]
        metrics = evaluate_snapshots(fitted, DATASETS[spec.data.name], arguments, arrays)
    records = [
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
    name = torch.cuda.get_device_name(device) if device != "cpu" else device
    return Trained(records, name, socket.gethostname(), os.getpid(), VERSIONS)


def _tasks_and_runs(work: Work, data: _Tasks) -> tuple[list[Task], Runs]:
    """The tasks of a group, each once, and its runs on them."""
    keys = list(dict.fromkeys((m.setting, m.seed) for m in work.members))
    parts = data.parts(keys, work.kind, work.members[0].method.environments)
    places: dict[tuple[str, int, str], int] = {}  # (setting, seed, part) -> position among the tasks
    tasks: list[Task] = []
    for m in work.members:
        if (m.setting, m.seed, m.part) not in places:
            places[m.setting, m.seed, m.part] = len(tasks)
            tasks.append(parts[m.setting, m.seed][m.part])
    runs = Runs(
        seed=[m.seed for m in work.members],
        data=[places[m.setting, m.seed, m.part] for m in work.members],
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
