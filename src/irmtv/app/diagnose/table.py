"""The two ways in: a raw table with named columns, and arrays of numbers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.pipeline import Pipeline

from irmtv.app.diagnose.diagnosis import Diagnosis, Tell, diagnose_rows
from irmtv.app.diagnose.plain_model import check_model
from irmtv.app.diagnose.rows import FOLDS, read_rows
from irmtv.app.diagnose.words import NOTHING_TO_COMPARE
from irmtv.app.fit.words import versions
from irmtv.app.io import Table, split_columns, table_steps, task_of
from irmtv.core.messages import check_length
from irmtv.data.environments import as_labels
from irmtv.data.rows import as_matrix, check_row_order, read_aux
from irmtv.data.target import raw_target

MOST_ROWS = 20_000
FEWEST_ROWS = 100


def diagnose_table(
    source: str | PathLike[str] | Table | pd.DataFrame,
    target: str,
    environment: Sequence[str] = (),
    aux: Sequence[str] = (),
    *,
    model: str = "auto",
    task: str | None = None,
    random_state: int = 0,
    max_rows: int | None = MOST_ROWS,
    encoding: str | None = None,
    command: str = "",
    progress: Tell | None = None,
) -> Diagnosis:
    """What a raw table says about shifts, before any model is fitted to keep.

    Parameters
    ----------
    source : path, Table or DataFrame
        CSV, TSV, Parquet; columns of numbers, categories, text and dates, with missing values.
    target : str
        The column to be predicted.
    environment : names of columns, default ()
        Where each row came from; several are joined.
    aux : names of columns, default ()
        In what environments are looked for: numbers or dates.
    model : {"auto", "linear", "mlp", "trees"}, default "auto"
        The plain risk minimiser that everything rests on: logistic or ridge regression, a network with one hidden layer
        of 32, or boosted trees (`pip install 'irmtv[boosting]'`). "auto" takes the one with the lowest risk on rows it
        was not trained on, and a simpler one that comes within 1 % of it.
    task : {"binary", "multiclass", "regression"} or None, default None
        None: by the target's values.
    random_state : int, default 0
        Seed of folds, permutations and networks.
    max_rows : int or None, default 20000
        A random sample of so many rows is looked at where there are more; None is all of them.
    encoding : str or None, default None
        Of a text file; None is UTF-8.
    command : str, default ""
        What to write into the summary as the way to run this again.
    progress : function of (share, what) or None, default None
        Hears how much is done, 0 to 1, and what is being done.

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
    >>> found = diagnose_table(frame, "price", ["site"])
    >>> found.features.changing[0].name
    'size'
    >>> found.differ.differs  # the sites have the same sizes
    False
    """
    began = time.perf_counter()
    check_model(model)
    environment, aux = _names(environment), _names(aux)
    if not environment and not aux:
        raise ValueError(NOTHING_TO_COMPARE)
    table = Table.of(source, encoding)
    notes = list(table.notes)
    columns = split_columns(table.frame, target=target, environment=environment, aux=aux)
    assert columns.y is not None
    notes += columns.notes
    kind, why = task_of(columns.y, task)
    notes += [why] if why else []
    some, sampled = _sample(len(columns.y), max_rows, random_state)
    notes += sampled
    features = columns.features.iloc[some]
    steps = Pipeline(table_steps())
    x = steps.fit_transform(features)
    rows = read_rows(
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
    about = {
        "command": command,
        "file": "" if table.path is None else table.path.name,
        "rows_in_file": len(table.frame),
        "target": target,
        "environment": environment,
        "aux": aux,
        "features_in": len(rows.features),
        "classes": list(rows.classes),
        "versions": versions(),
    }
    made = diagnose_rows(rows, random_state, progress, tuple(about.items()), model)
    return replace(made, about=(*made.about, ("seconds", round(time.perf_counter() - began, 1))))


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
    progress: Tell | None = None,
) -> Diagnosis:
    """The same for features that are numbers already.

    Parameters
    ----------
    X : array or DataFrame of numbers, (N, D)
        None missing or infinite.
    y : (N,)
        Classes, or numbers.
    environment : (N,) labels, default None
        Where each row came from.
    aux : (N,) or (N, A) numbers, default None
        In what environments are looked for.
    model : {"auto", "linear", "mlp", "trees"}, default "auto"
        The plain risk minimiser that everything rests on; see :func:`diagnose_table`.
    task : {"binary", "multiclass", "regression"} or None, default None
        None: by the values of y.
    random_state : int, default 0
    max_rows : int or None, default 20000
        A random sample of so many rows is looked at where there are more.
    progress : function of (share, what) or None, default None

    Returns
    -------
    Diagnosis

    Examples
    --------
    >>> from irmtv.datasets import make_simulation
    >>> from irmtv.app.diagnose import diagnose
    >>> rows = make_simulation(1000, p_s=(0.999, 0.7), random_state=0).train
    >>> found = diagnose(rows.x.numpy(), rows.y.numpy(), aux=rows.aux.numpy())
    >>> round(found.found.crossings[0], 1)  # the spurious columns change in the middle of the time
    0.5
    >>> found.informative[0].informative
    True
    """
    check_model(model)
    if environment is None and aux is None:
        raise ValueError(NOTHING_TO_COMPARE)
    check_row_order(X, y=y, environment=environment, aux=aux)
    names = [str(c) for c in X.columns] if hasattr(X, "columns") else None
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
    rows = read_rows(
        matrix[some],
        np.asarray(target)[some],
        kind,
        features=names or [f"x{j}" for j in range(matrix.shape[1])],
        environment=None if labels is None else labels[some],
        aux=None if beside is None else beside.numpy()[some],
        aux_names=[str(c) for c in aux.columns] if hasattr(aux, "columns") else (),
        notes=[*([why] if why else []), *sampled],
    )
    about = {"classes": list(rows.classes), "features_in": len(rows.features), "versions": versions()}
    return diagnose_rows(rows, random_state, progress, tuple(about.items()), model)


def _names(given: Sequence[str]) -> list[str]:
    """A single name is one name, not its letters."""
    return [given] if isinstance(given, str) else list(given)


def _sample(n: int, most: int | None, seed: int) -> tuple[Any, list[str]]:
    """Which rows are looked at, in their order, and a note where these are not all."""
    if n < FEWEST_ROWS:
        raise ValueError(
            f"a diagnosis needs at least {FEWEST_ROWS} rows, of which every {FOLDS}th is held out in turn. Got {n}."
        )
    if most is None or n <= most:
        return np.arange(n), []
    some = np.sort(np.random.default_rng(seed).choice(n, most, replace=False))
    return some, [f"A random sample of {most:,} of the {n:,} rows was looked at."]
