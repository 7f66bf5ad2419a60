"""A fitted model on a labelled table: a metric in every environment, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from irmtv.app.io.predict import TableModel
from irmtv.app.io.read import ROWS, table_chunks, table_names
from irmtv.core.messages import did_you_mean, shown
from irmtv.data.tables.align import check_names
from irmtv.data.tables.columns import split_columns
from irmtv.data.tables.errors import TableError
from irmtv.metrics import EnvironmentTable, evaluate_environments, metric_for


def evaluate_file(
    model: TableModel,
    path: str | PathLike[str],
    *,
    target: str,
    environment: Sequence[str] = (),
    metric: str | None = None,
    n_bootstrap: int = 1000,
    seed: int = 0,
    encoding: str | None = None,
    rows: int = ROWS,
    progress: Callable[[float], None] | None = None,
) -> tuple[EnvironmentTable, list[str]]:
    """The metric of a model in every environment of a file.

    Parameters
    ----------
    model : TableModel
    path : str or Path
        A table with the columns of training, the target and the environments.
    target : str
        The column that the model predicts.
    environment : sequence of str, default ()
        Columns; those of several are joined. Without, all rows are one environment.
    metric : str or None, default None
        "accuracy", "log_loss", "roc_auc"; "mse", "rmse", "mae", "r2". None is the first that fits.
    n_bootstrap, seed : int, default 1000 and 0
        Draws for the intervals of 95 %.
    encoding : str or None, default None
        Of a text file.
    rows : int, default 50,000
        Rows at a time.
    progress : callable or None, default None
        Called with the share of the file that was read.

    Returns
    -------
    EnvironmentTable, list of str
        The table of one run, and what to know about it.
    """
    loss = "squared" if not model.classes else "binary" if len(model.classes) == 2 else "multiclass"
    chosen = metric_for(loss, metric)
    labels = [target] * bool(model.classes) + list(environment)
    present = table_names(path, encoding=encoding)
    _check_columns(present, target, environment)
    check_names(model.columns, present)
    wanted = [name for name in present if name in {*model.columns, target, *environment}]
    reading: dict[str, Any] = {"encoding": encoding, "columns": wanted, "text": [*model.text, *labels]}
    beside, outputs = [], []
    for frame in table_chunks(path, rows, **reading, progress=progress):
        outputs.append(model.outputs(frame))
        beside.append(frame[list(dict.fromkeys([target, *environment]))])
    model.check_read()
    columns = split_columns(pd.concat(beside, ignore_index=True), target=target, environment=environment, fitting=False)
    assert columns.y is not None
    y = _codes(columns.y, model.classes) if model.classes else _numbers(columns.y)
    table = evaluate_environments(
        np.concatenate(outputs)[columns.kept][None],
        y,
        None if columns.environment is None else columns.environment.astype(str).to_numpy(dtype=object),
        metric=chosen,
        n_bootstrap=n_bootstrap,
        random_state=seed,
    )
    return table, [*columns.notes, *model.notes()]


def _check_columns(present: list[str], target: str, environment: Sequence[str]) -> None:
    for option, name in [("--target", target), *(("--environment", name) for name in environment)]:
        if name not in present:
            raise TableError(
                f"{option} must be a column of the table. Got {name!r}.{did_you_mean(name, present)} The columns are "
                f"{shown(present, 20)}. Name one of them."
            )


def _codes(y: pd.Series, classes: Sequence[Any]) -> Any:
    """Positions of the labels among the classes of training: 1, 1.0 and "1" are the same, where that is one class."""
    exact = {_words(label): c for c, label in enumerate(classes)}
    numbers: list[float | None] = [_number(label) for label in classes]
    alike: dict[float | None, int] = {
        n: c for c, n in enumerate(numbers) if n is not None and numbers.count(n) == 1
    }  # not of "01" and "1"
    distinct = {value: exact.get(_words(value), alike.get(_number(value))) for value in y.unique()}
    new = [value for value, code in distinct.items() if code is None]
    if new:
        n = int(y.isin(new).sum())
        raise TableError(
            f"target {y.name!r} must hold the classes of training, {shown(classes, 10)}. Got {shown(new)} in {n:,} of "
            f"{len(y):,} rows. Leave these rows out, rename the classes, or name another target."
        )
    return y.map(distinct).to_numpy(dtype=np.int64)


def _words(label: Any) -> str:
    return str(label).strip()


def _number(label: Any) -> float | None:
    if isinstance(label, (bool, np.bool_)):
        return None
    try:
        return float(label)
    except ValueError:
        return None


def _numbers(y: pd.Series) -> Any:
    if not is_numeric_dtype(y.dtype):
        unread = y[pd.to_numeric(y.astype(str), errors="coerce").isna()]
        raise TableError(
            f"target {y.name!r} must be numbers, as in training. Got {len(unread):,} of {len(y):,} values that are "
            f"none, such as {shown(unread.unique(), 3)}. Make them numbers, or empty these cells."
        )
    return y.to_numpy(dtype=np.float64)
