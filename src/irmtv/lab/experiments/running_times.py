"""How long the paper's four methods train on its five data sets, alone and ten runs together.

What a step costs depends on shapes, not on values: where the data are not at hand, random numbers of the same shape
stand in. Steps of the warm-up and penalised ones are timed apart and added up as the published schedule mixes them.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from irmtv.core.losses import Binary, Loss, Multiclass, Squared
from irmtv.core.messages import check_positive, did_you_mean
from irmtv.core.types import Rows, Runs, Task
from irmtv.datasets.adult import adult_task
from irmtv.datasets.fetch import VARIABLE
from irmtv.datasets.house_prices import house_prices_task
from irmtv.datasets.simulation import make_simulation
from irmtv.engine import Progress, train
from irmtv.engine.named_networks import make_network
from irmtv.engine.settings import pick_device

EPOCHS = 5300  # of the paper's table, where a step counts as an epoch
TOGETHER = 10  # runs of a batch
SETTLED = 0.2  # share of a phase that is not timed: a GPU records its steps there, caches fill
LEAST_STEPS = 5

# label -> objective and what is its own; the l2 methods have the reduction of the published code
METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "ZIN (authors)": ("zin", {}),
    "Minimax-TV-l1": ("minimax-tv-l1", {}),
    "IRM-TV-l2 (authors)": ("irm-tv-l2", {"reduction": "authors"}),
    "IRM-TV-l1": ("irm-tv-l1", {}),
}
PAIRS = (("Minimax-TV-l1", "ZIN (authors)"), ("IRM-TV-l1", "IRM-TV-l2 (authors)"))


@dataclass(frozen=True)
class Column:
    """A data set of the paper's table: its shape, its network, and the mix of its published schedule."""

    published: str  # its name in the table
    shape: str
    stand_in: Callable[[int], Task]  # seed -> random numbers of its shape
    real: Callable[[int], Task] | None  # seed -> the data, where they can be had
    warmup: int  # steps of the published schedule before the penalty acts, and all of them
    total: int
    settings: Mapping[str, Any]  # of every method
    inferred: Mapping[str, Any]  # of methods that infer environments
    share: float  # of the asked steps that are enough here: a step takes long
    network: str | None = None
    redrawn: bool = False  # whether every repetition has rows of its own
    given: bool = True  # whether environments are given


def _random(
    name: str,
    loss: Loss,
    features: tuple[int, ...],
    n_rows: int,
    n_aux: int,
    n_environments: int = 0,
    n_outputs: int = 1,
) -> Callable[[int], Task]:
    """A task of random numbers: where n_environments is 0, none are given."""

    def make(seed: int) -> Task:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(n_rows, *features, generator=generator)
        if isinstance(loss, Squared):
            y = torch.randn(n_rows, generator=generator)
        else:
            y = torch.randint(max(2, n_outputs), (n_rows,), generator=generator)
            y = y if isinstance(loss, Multiclass) else y.float()
        aux = torch.randn(n_rows, n_aux, generator=generator).double()
        codes = torch.randint(n_environments, (n_rows,), generator=generator) if n_environments else None
        rows = Rows(x, y, codes, aux, tuple(f"environment {e}" for e in range(n_environments)))
        return Task(rows, loss, n_outputs, name=name)

    return make


def _simulation(seed: int) -> Task:
    return make_simulation(5000, (0.999, 0.9), 0.8, random_state=seed, n_test=8)


COLUMNS: Mapping[str, Column] = {
    "simulation": Column(
        "simulation", "5,000 rows, 15-1", _simulation, _simulation, 5000, 5300,
        {"learning_rate": 5e-3, "penalty_weight": 1e4}, {}, 1.0, redrawn=True,
    ),
    "house-prices": Column(
        "house_prices", "5,187 rows, 15-32-1", _random("house prices", Squared(), (15,), 5187, 1, 5),
        lambda seed: house_prices_task(seed), 5000, 5901,
        {"hidden": (32,), "learning_rate": 5e-3, "penalty_weight": 1e3},
        {"n_environments": 4, "environment_hidden": 64}, 0.5,
    ),
    "celeba": Column(
        "celeba", "40,000 rows, 512-16-1", _random("CelebA features", Binary(), (512,), 40_000, 7, 2),
        None, 8000, 8500, {"hidden": (16,), "learning_rate": 1e-3, "penalty_weight": 1e4}, {}, 0.05,
    ),
    "landcover": Column(
        "landcover", "16,000 rows in batches of 1,024, 8 x 46, CNN",
        _random("Landcover", Multiclass(), (8, 46), 16_000, 2, n_outputs=6),
        None, 40, 400, {"batch_size": 1024, "learning_rate": 1e-3, "penalty_weight": 10.0}, {"n_environments": 2}, 0.05,
        network="landcover-cnn", given=False,
    ),
    "adult": Column(
        "adult", "10,840 rows, 59-16-1", _random("Adult", Binary(), (59,), 10_840, 6, 2),
        lambda seed: adult_task(seed), 8000, 8300,
        {"hidden": (16,), "learning_rate": 4e-3, "penalty_weight": 2e3}, {"n_environments": 4}, 0.3, redrawn=True,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """Seconds of a step of the warm-up and of a penalised one, of all runs that trained together."""

    warmup: float
    penalised: float

    def of(self, column: Column, epochs: int = EPOCHS) -> float:
        """Seconds of `epochs` steps, mixed as in the column's published schedule."""
        before = column.warmup / column.total
        return epochs * (before * self.warmup + (1 - before) * self.penalised)


@dataclass(frozen=True)
class Timing:
    """All measurements of one data set. Times are of 5,300 steps; those of a batch are divided by its runs."""

    column: str
    stand_in: bool
    steps: tuple[int, int]  # of each phase that were trained for a measurement: of one run, of ten
    alone: Mapping[str, tuple[float, ...]]  # method -> seconds of one run, one per repetition
    together: Mapping[str, tuple[float, ...]]  # method -> seconds per run of ten


@dataclass(frozen=True)
class RunningTimes:
    """All measurements, and the machine that they were made on."""

    timings: tuple[Timing, ...]
    machine: str
    repetitions: int
    runs_together: int = TOGETHER
    versions: Mapping[str, str] = field(default_factory=dict)


def measure_running_times(
    columns: Sequence[str] | None = None,
    *,
    steps: int = 300,
    repetitions: int = 5,
    device: str = "cpu",
    progress: Callable[[float, str], None] | None = None,
) -> RunningTimes:
    """Time the paper's four methods.

    Parameters
    ----------
    columns : sequence of str or None, default None
        Data sets, names of `COLUMNS`; None is all of them.
    steps : int, default 300
        Steps of the warm-up, and as many penalised ones, that are trained for a measurement; fewer on the larger data
        sets, and a fifth of that where ten runs train together, but all of them on a GPU. The first fifth of each
        phase is not timed.
    repetitions : int, default 5
        Measurements of each, method after method and then again, so that a slow moment hits all of them.
    device : str, default "cpu"
        "cpu", "cuda" or "auto".
    progress : function (share done, what is being done) or None

    Returns
    -------
    RunningTimes

    Examples
    --------
    >>> times = measure_running_times(["simulation"], steps=5, repetitions=1)
    >>> sorted(times.timings[0].alone)
    ['IRM-TV-l1', 'IRM-TV-l2 (authors)', 'Minimax-TV-l1', 'ZIN (authors)']
    """
    check_positive(steps, "steps")
    check_positive(repetitions, "repetitions")
    names = list(COLUMNS) if columns is None else list(columns)
    for name in names:
        if name not in COLUMNS:
            raise ValueError(
                f"settings must be data sets of the paper's table, {list(COLUMNS)}. Got {name!r}."
                f"{did_you_mean(name, COLUMNS)}"
            )
    if not names:
        raise ValueError(f"settings must name at least one data set of {list(COLUMNS)}. Got none.")
    where = pick_device(device)
    timings = []
    for k, name in enumerate(names):

        def report(share: float, k: int = k, name: str = name) -> None:
            if progress is not None:
                progress((k + share) / len(names), name)

        timings.append(_timed(name, steps, repetitions, where, report))
    versions = {"torch": str(torch.__version__), "python": platform.python_version()}
    return RunningTimes(tuple(timings), machine_name(where), repetitions, TOGETHER, versions)


def _timed(name: str, steps: int, repetitions: int, device: torch.device, report: Callable[[float], None]) -> Timing:
    column = COLUMNS[name]
    report(0.0)
    tasks, stand_in = tasks_of(column)
    if device.type == "cpu":
        sizes = {1: _even(steps * column.share), TOGETHER: _even(steps * column.share / 5)}
    else:  # steps are short there, and the first ones of a phase are recorded
        sizes = dict.fromkeys((1, TOGETHER), _even(max(steps, 5 * LEAST_STEPS)))
    methods = [m for m in METHODS if column.given or not m.startswith("IRM")]
    seconds: dict[tuple[str, int], list[float]] = {(m, n): [] for m in methods for n in sizes}
    todo = [(m, n) for n in sizes for _ in range(repetitions) for m in methods]
    for m in methods:  # once without a clock: what is compiled or looked up at first use
        cost_of_a_step(tasks[:1], column, m, 1, LEAST_STEPS, device)
    for i, (m, n) in enumerate(todo):
        report(i / len(todo))
        seconds[m, n].append(cost_of_a_step(tasks, column, m, n, sizes[n], device).of(column) / n)
    alone, together = ({m: tuple(seconds[m, n]) for m in methods} for n in sizes)
    return Timing(name, stand_in, (sizes[1], sizes[TOGETHER]), alone, together)


def _even(steps: float) -> int:
    """A number of steps such that `train`, which reports progress at most 100 times, does at a fifth and at the end."""
    whole = max(LEAST_STEPS, round(steps))
    return whole if whole < 100 else whole // 50 * 50


def tasks_of(column: Column) -> tuple[list[Task], bool]:
    """The tasks of ten repetitions, one where all have the same rows; and whether random numbers stand in.

    Nothing is downloaded for a measurement: the data are read where the environment variable IRMTV_DATA names the
    folder that holds them.
    """
    seeds = range(TOGETHER) if column.redrawn else range(1)
    if column.real is not None and (column.real is column.stand_in or os.environ.get(VARIABLE)):
        try:
            return [column.real(seed) for seed in seeds], False
        except FileNotFoundError:
            pass
    return [column.stand_in(seed) for seed in seeds], True


def cost_of_a_step(
    tasks: Sequence[Task], column: Column, method: str, n_runs: int, steps: int, device: torch.device
) -> Cost:
    """Train `steps` steps of warm-up and as many penalised ones; what one of each costs."""
    objective, own = METHODS[method]
    infers = column.inferred if objective in ("zin", "minimax-tv-l1") else {}
    task = tasks[0]
    net = None if column.network is None else make_network(column.network, task.train.x.shape[1:], task.n_outputs)
    runs = Runs(seed=range(n_runs), data=[r % len(tasks) for r in range(n_runs)])
    first = max(1, round(SETTLED * steps))
    marks = (first, steps, steps + first, 2 * steps)
    clock: dict[int, float] = {}
    chunks: list[dict[int, float]] = []  # runs that do not fit into one program train one after the other

    def look(p: Progress) -> None:
        if p.step < (max(clock) if clock else 0):
            chunks.append(dict(clock))
            clock.clear()
        if p.step in marks and p.step not in clock:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            clock[p.step] = time.perf_counter()

    train(
        list(tasks[:n_runs]), objective, runs, net=net, steps=2 * steps, warmup=steps, progress=look, device=device,
        **{"l2": 1e-3, **column.settings, **infers, **own},
    )  # fmt: skip
    chunks.append(clock)
    each = [[c[m] for m in marks] for c in chunks]
    warmup, penalised = sum(b - a for a, b, _, _ in each), sum(d - c for _, _, c, d in each)
    return Cost(warmup / (steps - first), penalised / (steps - first))


def machine_name(device: torch.device) -> str:
    """What computes, in words."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    threads = torch.get_num_threads()
    return f"{platform.machine()} CPU, {threads} {'thread' if threads == 1 else 'threads'}"
