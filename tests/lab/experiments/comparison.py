"""Comparing two stores, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from irmtv.lab.experiments.store import RunRecord, Store, as_json, run_name


def store_differences(a: Store, b: Store) -> list[str]:
    """What differs between the specs and the runs of two stores, one text each; an empty list where nothing does.

    Runs are compared by their keys, their numbers bit for bit. When, where, in which order and in which groups they
    were trained, and what failed on the way, does not count.
    """
    differences = []
    specs, other_specs = dict(a.specs()), dict(b.specs())
    for hash in [*specs, *(h for h in other_specs if h not in specs)]:
        if hash not in specs or hash not in other_specs:
            differences.append(f"spec {hash[:12]}: only in {(a if hash in specs else b).folder}")
        elif specs[hash] != other_specs[hash]:
            differences.append(f"spec {hash[:12]}: the texts differ")
    runs, other_runs = ({run.key: run for run in store.runs()} for store in (a, b))
    for key, run in {**other_runs, **runs}.items():
        name = f"run {key[:12]} ({run_name(run)})"
        if key not in runs or key not in other_runs:
            differences.append(f"{name}: only in {(a if key in runs else b).folder}")
        else:
            differences += [f"{name}: {text}" for text in _run_differences(run, other_runs[key])]
    return differences


def _run_differences(a: RunRecord, b: RunRecord) -> Iterator[str]:
    """What differs between two records of one run, numbers compared bit for bit."""
    for field in ("setting", "method", "objective", "repetition", "seed", "part", "status", "diverged_at"):
        if getattr(a, field) != getattr(b, field):
            yield f"{field} is {getattr(a, field)!r} and {getattr(b, field)!r}"
    if as_json(a.hyperparameters, "hyperparameters") != as_json(b.hyperparameters, "hyperparameters"):
        yield f"hyperparameters are {a.hyperparameters} and {b.hyperparameters}"
    for name in sorted({*a.arrays, *b.arrays}):
        if name not in a.arrays or name not in b.arrays:
            yield f"array {name!r} is in one store only"
        else:
            yield from _array_differences(name, a.arrays[name], b.arrays[name])
    one, two = ({(m.environment, m.metric): m.value for m in run.metrics} for run in (a, b))
    for metric in sorted({*one, *two}):
        here, there = one.get(metric), two.get(metric)
        if repr(here) != repr(there):  # as texts: NaN is NaN
            yield f"metric {metric} is {here} and {there}"


def _array_differences(name: str, a: np.ndarray, b: np.ndarray) -> Iterator[str]:
    if a.dtype != b.dtype or a.shape != b.shape:
        yield f"array {name!r} is {a.dtype} {a.shape} and {b.dtype} {b.shape}"
        return
    bits = np.dtype(f"u{a.itemsize}")
    count = int(np.count_nonzero(a.view(bits) != b.view(bits)))
    if count:
        yield f"array {name!r} differs in {count} of {a.size} values"


def content(folder: Path) -> tuple[object, ...]:
    """All that results are made of."""
    with Store.read(folder) as store:
        runs = [
            (run.key, run.setting, run.method, run.part, run.repetition, run.seed, run.status, run.diverged_at,
             sorted(run.hyperparameters.items(), key=str), run.metrics,
             [(name, array.dtype.name, array.shape, array.tobytes()) for name, array in run.arrays.items()])
            for run in store.runs()
        ]  # fmt: skip
        return runs, store.specs(), store.versions(), sorted(store.finished())
