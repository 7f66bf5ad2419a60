"""Results of trained runs on test rows at every snapshot: the arrays that tables are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from irmtv.datasets import DataSet
from irmtv.engine import FittedRuns
from irmtv.engine.networks import MLP
from irmtv.lab.experiments.plan import metric_name
from irmtv.lab.experiments.store import Metric

TEST_ROWS = "rows/test"  # (E,) rows of each test environment
IN_TABLES = ("test/", "population/")  # arrays (S, E), by test environment
COEFFICIENTS = "coefficients"  # (S, D) of a linear model, where the distribution of the data is known
OF_LINEAR = ("population/", COEFFICIENTS)


def evaluate_snapshots(
    fitted: FittedRuns,
    data_set: DataSet,
    arguments: Sequence[Mapping[str, Any]],
    arrays: Sequence[dict[str, np.ndarray]],
) -> list[tuple[Metric, ...]]:
    """Add the results at every snapshot to the arrays of each run; return those of the last step by environment.

    `arguments` are those that made the data of each run.

    "test/METRIC" and "population/accuracy" (S, E): by test environment. "iid/METRIC" (S,): over the test rows that are
    drawn as the training rows are, which are no test environment. "training/METRIC" (S,): over the training rows.
    "coefficients" (S, D): of linear models, where the distribution is known, and with it which columns are invariant.
    """
    last: list[tuple[Metric, ...]] = [()] * len(fitted)
    test = fitted.tasks[0].test
    if test is None:
        return last
    shifted = [e for e, name in enumerate(test.names) if name not in data_set.iid]
    exact = _exact_runs(fitted) if data_set.population is not None else []
    assert fitted.history is not None
    results: dict[str, list[np.ndarray]] = {}
    for step in fitted.history.steps:
        then = fitted.at(step)
        for name, values in _test_results(then, shifted):
            results.setdefault(name, []).append(values)
        for name, values in _linear_results(then, data_set, arguments, exact):
            results.setdefault(name, []).append(values)
    rows = results.pop(TEST_ROWS)[0]
    for r in range(len(fitted)):
        own = np.isin(fitted.history.steps, arrays[r]["steps"])  # those that this run was measured at
        of_run = {name: values for name, values in results.items() if not name.startswith(OF_LINEAR) or r in exact}
        arrays[r] |= {name: np.stack(values)[own, r] for name, values in of_run.items()}
        arrays[r][TEST_ROWS] = rows[r]
        last[r] = tuple(
            Metric(str(test.names[e]), metric_name(name), float(values[-1][r, i]))
            for name, values in of_run.items()
            if name.startswith(IN_TABLES)
            for i, e in enumerate(shifted)
        )
    return last


def _test_results(fitted: FittedRuns, shifted: Sequence[int]) -> Iterator[tuple[str, np.ndarray]]:
    """One value per run and test environment, (R, E), or one per run, (R,)."""
    table = fitted.evaluate()
    rows = np.broadcast_to(table.counts, table.by_environment.shape).astype(np.float64)  # (R, E)
    yield f"test/{table.metric}", table.by_environment[:, shifted]
    yield TEST_ROWS, rows[:, shifted]
    alike = np.delete(np.arange(len(table.names)), shifted)
    if len(alike):
        yield f"iid/{table.metric}", np.average(table.by_environment[:, alike], 1, rows[:, alike])
    training = fitted.evaluate([task.train for task in fitted.tasks], metric=table.metric)
    yield f"training/{table.metric}", training.overall


def _exact_runs(fitted: FittedRuns) -> list[int]:
    """Runs whose accuracy in the population is known: linear in x alone."""
    if fitted.objective.reads_aux:
        return []
    return sorted(r for c in fitted.chunks if _is_linear(c.net) for r in c.chunk.runs)


def _linear_results(
    fitted: FittedRuns, data_set: DataSet, arguments: Sequence[Mapping[str, Any]], runs: Sequence[int]
) -> Iterator[tuple[str, np.ndarray]]:
    """What is known of linear runs alone, (R, E) and (R, D); NaN for other runs."""
    if not runs:
        return
    assert data_set.population is not None
    coef, intercept = replace(fitted, chunks=tuple(c for c in fitted.chunks if _is_linear(c.net))).coefficients()
    alike: dict[str, list[int]] = {}  # positions of runs on data of one distribution
    for i, r in enumerate(runs):
        alike.setdefault(repr(arguments[r]), []).append(i)
    accuracy = np.concatenate(
        [data_set.population(coef[i], intercept[i], arguments[runs[i[0]]]) for i in alike.values()]
    )
    there = np.argsort([i for own in alike.values() for i in own])
    known = {"population/accuracy": accuracy[there], COEFFICIENTS: coef.numpy()}
    for name, of_runs in known.items():
        values = np.full((len(fitted), *of_runs.shape[1:]), np.nan, dtype=of_runs.dtype)
        values[runs] = of_runs
        yield name, values


def _is_linear(net: Any) -> bool:
    return isinstance(net, MLP) and len(net.widths) == 2
