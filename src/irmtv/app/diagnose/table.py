"""Diagnosing a raw table with named columns (`diagnose_table`) or arrays of numbers (`diagnose`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.pipeline import Pipeline

from irmtv.app.diagnose.diagnosis import Diagnosis, Progress, diagnose_rows
from irmtv.app.diagnose.erm_model import check_model
from irmtv.app.diagnose.rows import FOLDS, DiagnosisRows, read_rows
from irmtv.app.diagnose.words import NOTHING_TO_COMPARE
from irmtv.app.io import Columns, ParquetTable, Table, TableError, open_table, split_columns, table_steps, task_of
from irmtv.app.io.codes import about_codes, about_few_values
from irmtv.app.io.memory import memory_limit
from irmtv.app.io.stream import open_stream
from irmtv.core.messages import check_length
from irmtv.core.versions import versions
from irmtv.data.environments import as_labels
from irmtv.data.rows import as_matrix, check_row_order, read_aux
from irmtv.data.tables.target import task_of_target
from irmtv.data.target import raw_target

MOST_ROWS = 20_000
FEWEST_ROWS = 100


def diagnose_table(
    source: str | PathLike[str] | Table | ParquetTable | pd.DataFrame,
    target: str,
    environment: Sequence[str] = (),
    aux: Sequence[str] = (),
    *,
    model: str = "auto",
    task: str | None = None,
    drop: Sequence[str] = (),
    features: Sequence[str] = (),
    categorical: Sequence[str] = (),
    random_state: int = 0,
    max_rows: int | None = MOST_ROWS,
    encoding: str | None = None,
    memory: str | int | None = None,
    command: str = "",
    progress: Progress | None = None,
) -> Diagnosis:
    """Diagnose a raw table: shifts between environments, before a model is fitted.

    Parameters
    ----------
    source : path, Table, ParquetTable or DataFrame
        CSV, TSV, Parquet, or a folder of Parquet files; columns of numbers, categories, text and dates, with missing
        values.
    target : str
        The column to be predicted.
    environment : names of columns, default ()
        Where each row came from; several are joined.
    aux : names of columns, default ()
        Columns from which environments are inferred: numbers or dates.
    model : {"auto", "linear", "mlp", "trees"}, default "auto"
        The model of ERM that all parts use: logistic or ridge regression, a network with one hidden layer of 32, or
        boosted trees (`pip install 'irmtv[boosting]'`). "auto" takes the one with the lowest held-out risk, or a
        simpler one whose risk is within 1 % of it.
    task : {"binary", "multiclass", "regression"} or None, default None
        None: by the target's values.
    drop, features, categorical : names of columns, default ()
        Columns that are no features; the only ones that are; features that hold categories, though they are numbers.
    random_state : int, default 0
        Seed of folds, permutations and networks.
    max_rows : int or None, default 20000
        Larger tables are sampled at random to this number of rows; None uses all of them.
    encoding : str or None, default None
        Text encoding, e.g. latin-1; None is UTF-8.
    memory : str, int or None, default None
        "2GB", "500MB" or bytes; None is half of what is available. Of Parquet files that are too large for it only the
        sample is kept in memory.
    command : str, default ""
        The command line, stored in the summary.
    progress : function of (share, what) or None, default None
        Called with the share of the work that is done, 0 to 1, and what is being done.

    Returns
    -------
    Diagnosis

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from irmtv.app.diagnose import diagnose_table
    >>> rng = np.random.default_rng(0)
    >>> frame = pd.DataFrame({"size": rng.normal(size=400), "site": np.repeat(["a", "b"], 200)})
    >>> slope = np.where(frame["site"] == "a", 3.0, -1.0)
    >>> frame["price"] = slope * frame["size"] + rng.normal(size=400)
    >>> diagnosis = diagnose_table(frame, "price", ["site"])
    >>> diagnosis.features.changing[0].name
    'size'
    >>> diagnosis.differ.differs  # the sites have the same sizes
    False
    """
    began = time.perf_counter()
    check_model(model)
    environment, aux = _names(environment), _names(aux)
    if not environment and not aux:
        raise ValueError(NOTHING_TO_COMPARE)
    said, limit = _names(categorical), memory_limit(memory)
    how: dict[str, Any] = {"drop": _names(drop), "features": _names(features), "categorical": said}
    if isinstance(source, (str, PathLike)):
        source = open_table(source, limit, encoding=encoding)
    if isinstance(source, ParquetTable) and not source.fits(limit):
        path: Path | None = source.path
        n_rows = source.n_rows
        rows = _rows_of_stream(source, (target, environment, aux), how, task, max_rows, random_state, limit)
    else:
        table = Table.of(source)
        path, n_rows = table.path, len(table.frame)
        columns = split_columns(table.frame, target=target, environment=environment, aux=aux, **how)
        rows = _rows_of_table(table, columns, task, max_rows, random_state, said)
    about = {
        "command": command,
        "file": "" if path is None else path.name or path.resolve().name,
        "rows_in_file": n_rows,
        "target": target,
        "environment": environment,
        "aux": aux,
        "features_in": len(rows.features),
        "classes": list(rows.classes),
        "versions": versions(),
    }
    diagnosis = diagnose_rows(rows, random_state, progress, tuple(about.items()), model)
    return replace(diagnosis, about=(*diagnosis.about, ("seconds", round(time.perf_counter() - began, 1))))


def _rows_of_table(
    table: Table,
    columns: Columns,
    task: str | None,
    max_rows: int | None,
    random_state: int,
    categorical: Sequence[str],
) -> DiagnosisRows:
    """A sample of the rows, their features as numbers."""
    assert columns.y is not None
    kind, why = task_of(columns.y, task)
    some, sampled = _sample(len(columns.y), max_rows, random_state)
    codes = about_codes(columns.features, categorical)
    notes = [*table.notes, *columns.notes, *([why] if why else []), *codes, *sampled]
    return _prepared_rows(columns, some, kind, categorical, notes)


def _rows_of_stream(
    table: ParquetTable,
    roles: tuple[str, Sequence[str], Sequence[str]],
    how: dict[str, Any],
    task: str | None,
    max_rows: int | None,
    random_state: int,
    memory: int,
) -> DiagnosisRows:
    """The same sample, of a table that is larger than the memory: a pass counts its rows, another one takes them."""
    if max_rows is None:
        raise TableError(
            f"a diagnosis of all rows needs them in memory, and {str(table.path)!r} is larger. Use --max-rows 20000 "
            "(in Python max_rows=20000), or more --memory."
        )
    sampled: list[str] = []

    def sample(n_rows: int, *_: Any) -> Any:
        some, notes = _sample(n_rows, max_rows, random_state)
        sampled.extend(notes)
        return some

    stream = open_stream(table, *roles, options=how, memory=memory, sample=sample, keep_labels=False)
    learned = stream.learned
    kind, why = task_of_target(learned.rows.target, task)
    said = how["categorical"]
    few = {name: n for name, n in learned.few_values.items() if name not in set(said)}
    codes = about_few_values(few, learned.rows.n_kept)
    notes = [*table.notes, *learned.notes, *([why] if why else []), *codes, *sampled]
    return _prepared_rows(stream.columns, np.arange(len(stream.sampled)), kind, said, notes)


def _prepared_rows(
    columns: Columns, some: Any, kind: Any, categorical: Sequence[str], notes: Sequence[str]
) -> DiagnosisRows:
    """Some of the rows, with their features as numbers."""
    assert columns.y is not None
    steps = Pipeline(table_steps(categorical))
    x = steps.fit_transform(columns.features.iloc[some])
    return read_rows(
        x,
        columns.y.iloc[some].to_numpy(),
        kind,
        features=[str(name) for name in steps.get_feature_names_out()],
        environment=None if columns.environment is None else columns.environment.iloc[some].to_numpy(),
        aux=None if columns.aux is None else columns.aux.iloc[some].to_numpy(),
        aux_names=() if columns.aux is None else [str(name) for name in columns.aux.columns],
        aux_is_date=columns.aux_is_date,
        notes=notes,
    )


def diagnose(
    X: Any,
    y: Any,
    environment: Any = None,
    aux: Any = None,
    *,
    model: str = "auto",
    task: str | None = None,
    random_state: int = 0,
    max_rows: int | None = MOST_ROWS,
    progress: Progress | None = None,
) -> Diagnosis:
    """Diagnose arrays of numbers; see :func:`diagnose_table` for raw tables.

    Parameters
    ----------
    X : array or DataFrame of numbers, (N, D)
        None missing or infinite.
    y : (N,)
        Classes, or numbers.
    environment : (N,) labels, default None
        Where each row came from.
    aux : (N,) or (N, A) numbers, default None
        Columns from which environments are inferred.
    model : {"auto", "linear", "mlp", "trees"}, default "auto"
        The model of ERM that all parts use; see :func:`diagnose_table`.
    task : {"binary", "multiclass", "regression"} or None, default None
        None: by the values of y.
    random_state : int, default 0
    max_rows : int or None, default 20000
        Larger arrays are sampled at random to this number of rows.
    progress : function of (share, what) or None, default None

    Returns
    -------
    Diagnosis

    Examples
    --------
    >>> from irmtv.datasets import make_simulation
    >>> from irmtv.app.diagnose import diagnose
    >>> rows = make_simulation(1000, p_s=(0.999, 0.7), random_state=0).train
    >>> diagnosis = diagnose(rows.x.numpy(), rows.y.numpy(), aux=rows.aux.numpy())
    >>> round(diagnosis.found.crossings[0], 1)  # the spurious columns change in the middle of the time
    0.5
    >>> diagnosis.informative[0].informative
    True
    """
    check_model(model)
    if environment is None and aux is None:
        raise ValueError(NOTHING_TO_COMPARE)
    rows = _rows_of_arrays(X, y, environment, aux, task, max_rows, random_state)
    about = {"classes": list(rows.classes), "features_in": len(rows.features), "versions": versions()}
    return diagnose_rows(rows, random_state, progress, tuple(about.items()), model)


def _rows_of_arrays(
    X: Any, y: Any, environment: Any, aux: Any, task: str | None, max_rows: int | None, random_state: int
) -> DiagnosisRows:
    """A sample of the rows, checked."""
    check_row_order(X, y=y, environment=environment, aux=aux)
    matrix = as_matrix(X, "X", torch.float64, (2, 2)).numpy()
    target = raw_target(y, "y", len(matrix))
    if target.ndim != 1:
        raise ValueError(f"y must be one target per row. Got shape {target.shape}. Diagnose one target at a time.")
    kind, why = task_of(pd.Series(target, name="y"), task)
    some, sampled = _sample(len(matrix), max_rows, random_state)
    beside = read_aux(aux, len(matrix))
    labels = None
    if environment is not None:
        labels = pd.Series(as_labels(environment)).to_numpy()
        check_length(len(labels), len(matrix), "environment")
    return read_rows(
        matrix[some],
        np.asarray(target)[some],
        kind,
        features=_column_names(X) or [f"x{j}" for j in range(matrix.shape[1])],
        environment=None if labels is None else labels[some],
        aux=None if beside is None else beside.numpy()[some],
        aux_names=_column_names(aux),
        notes=[*([why] if why else []), *sampled],
    )


def _column_names(values: Any) -> list[str]:
    """Of a DataFrame; none of anything else."""
    return [str(c) for c in values.columns] if hasattr(values, "columns") else []


def _names(given: Sequence[str]) -> list[str]:
    """A single name is one name, not its letters."""
    return [given] if isinstance(given, str) else list(given)


def _sample(n: int, most: int | None, seed: int) -> tuple[Any, list[str]]:
    """The rows to use, in their order, and a note where these are not all."""
    if n < FEWEST_ROWS:
        raise ValueError(
            f"a diagnosis needs at least {FEWEST_ROWS} rows, of which every {FOLDS}th is held out in turn. Got {n}."
        )
    if most is None or n <= most:
        return np.arange(n), []
    some = np.sort(np.random.default_rng(seed).choice(n, most, replace=False))
    return some, [f"A random sample of {most:,} of the {n:,} rows was looked at."]
