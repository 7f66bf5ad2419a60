"""A fitted model on raw tables, whole or in pieces: predictions, and a metric in every environment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from irmtv.app.io.read import ROWS, chunks_as_they_stand, read_table, table_chunks, table_names
from irmtv.app.io.source import changed
from irmtv.app.io.write import TableWriter, check_table_writable
from irmtv.core.messages import did_you_mean, shown
from irmtv.data.tables.columns import refuse_infinite, split_columns
from irmtv.data.tables.errors import TableError
from irmtv.data.tables.kinds import check_names
from irmtv.data.tables.reading import ReadColumns, ReadNumbers
from irmtv.metrics import EnvironmentTable, evaluate_environments, metric_for
from irmtv.models.light import FILE_KINDS, light_steps, most_probable, probabilities
from irmtv.persistence import ModelFile, read_model


class TableModel:
    """A fitted Pipeline or estimator that reads tables, and counts the values that it could not read.

    Attributes
    ----------
    columns : list of str
        The features, by name.
    kinds : dict of str to str
        "number", "date", "text" or "category", by column; empty where the model does not say.
    text : list of str
        Columns to read as text: all that are not numbers.
    estimator : the last step.
    classes : list
        Labels of a classifier; empty otherwise.

    Parameters
    ----------
    model : what `irmtv.load` returns, or the steps of a Pipeline; `open_model` reads a file.
    """

    def __init__(self, model: Any) -> None:
        steps = model if isinstance(model, list) else getattr(model, "steps", [("model", model)])
        self.steps: list[tuple[str, Any]] = list(steps)
        self.estimator = self.steps[-1][1]
        if not hasattr(self.estimator, "predict"):
            raise TableError(f"the model must predict. {type(self.estimator).__name__} does not; use it in Python.")
        first = self.steps[0][1]
        names = getattr(first, "feature_names_in_", None)
        if names is None:
            raise TableError(
                "the model was fitted on an array without names of columns: which columns of a table it reads is not "
                "known. Predict in Python, or fit it again on a table: irmtv fit."
            )
        self.columns = [str(name) for name in names]
        own = dict(first.kinds_) if isinstance(first, ReadColumns) else {}
        self.kinds = own | {name: kind for name, kind in _kinds(self.steps).items() if own.get(name) != "category"}
        self.text = [name for name, kind in (own or self.kinds).items() if kind != "number"]
        self.classes: list[Any] = self.estimator.classes_.tolist() if hasattr(self.estimator, "classes_") else []
        self._given: Counter[str] = Counter()  # values that are not missing
        self._unread: Counter[str] = Counter()
        self._new: dict[str, Counter[str]] = {}  # categories that training did not have

    def numbers(self, frame: pd.DataFrame) -> Any:
        """What the last step reads, of a piece of a raw table."""
        check_names(self.columns, list(frame.columns))
        for name in self.columns:
            self._given[name] += int(frame[name].notna().sum())
        values: Any = frame
        for _, step in self.steps[:-1]:
            if isinstance(step, ReadColumns):
                values, unread = step.align(values)
                self._unread.update(unread)
                refuse_infinite(values, "feature")
            elif isinstance(step, ReadNumbers):
                values, surprises = step.read(values)
                self._unread.update(surprises.unread)
                for name, new in surprises.new.items():
                    self._new.setdefault(name, Counter()).update(new)
            elif step not in (None, "passthrough"):
                values = step.transform(values[self.columns] if values is frame else values)
        return values[self.columns] if values is frame else values

    def predict(self, frame: pd.DataFrame) -> pd.DataFrame:
        """`prediction`, and `probability_CLASS` of every class."""
        values = self.numbers(frame)
        if self.classes:
            logits = self.estimator.decision_function(values)  # once, for both
            columns = {"prediction": self.estimator.classes_[most_probable(logits)]}
            columns |= {f"probability_{k}": p for k, p in zip(self.classes, probabilities(logits).T, strict=True)}
        else:
            made = self.estimator.predict(values)
            several = {f"prediction_{t}": column for t, column in enumerate(made.T)} if made.ndim == 2 else {}
            columns = several or {"prediction": made}
        return pd.DataFrame(columns, index=frame.index, copy=False)

    def outputs(self, frame: pd.DataFrame) -> Any:
        """Logits of a classifier, predictions of a regressor: (N,) or (N, C)."""
        values = self.numbers(frame)
        return self.estimator.decision_function(values) if self.classes else self.estimator.predict(values)

    def check_read(self) -> None:
        """Raise where no value of a column could be read so far: the table then has something else in that column."""
        unread = [name for name, n in self._unread.items() if n == self._given[name]]
        if unread:
            kinds = [f"{name!r} ({'dates' if self.kinds.get(name) == 'date' else 'numbers'})" for name in unread]
            raise TableError(
                f"no value of {shown(kinds, form=str)} is of the kind that the model was trained on. Check the "
                "columns, the format of dates and the decimal point."
            )

    def notes(self) -> list[str]:
        """What could not be read, so far."""
        notes = [
            f"{name!r}: {n:,} of {self._given[name]:,} values are not of the kind of training, and count as missing"
            for name, n in self._unread.items()
        ]
        notes += [
            f"{name!r}: {sum(new.values()):,} values that training did not have ({shown(new, 3)}), read as none of the "
            "known ones"
            for name, new in self._new.items()
        ]
        return notes


def open_model(path: str | PathLike[str]) -> tuple[TableModel, ModelFile]:
    """The model of a file, and what else the file holds; without torch and scikit-learn where it needs neither."""
    file = read_model(path, FILE_KINDS)
    steps = light_steps(file)
    if steps is None:
        from irmtv.estimators.files import loaded  # with all estimators

        return TableModel(loaded(file)), file
    return TableModel(steps), file


def _kinds(steps: Sequence[tuple[str, Any]]) -> dict[str, str]:
    """Kinds of columns as a TableVectorizer among the steps determined them; empty without one."""
    names = {"numeric": "number", "datetime": "date"}
    kinds: dict[str, str] = next((step.column_to_kind_ for _, step in steps if hasattr(step, "column_to_kind_")), {})
    return {name: names.get(kind, "text") for name, kind in kinds.items()}


def predict_file(
    model: TableModel,
    path: str | PathLike[str],
    out: Path | IO[bytes],
    *,
    keep: Sequence[str] = (),
    encoding: str | None = None,
    rows: int = ROWS,
    progress: Callable[[float], None] | None = None,
) -> int:
    """Predict every row of a file, in memory that does not grow with it.

    Parameters
    ----------
    model : TableModel
    path : str or Path
        A table with the columns of training; others are ignored.
    out : Path or stream of bytes
        What is written: .csv, .tsv (also .gz) or .parquet; CSV to a stream.
    keep : sequence of str, default ()
        Columns of the table that are copied beside the predictions, as they stand in the file.
    encoding : str or None, default None
        Text encoding; None is UTF-8.
    rows : int, default 50,000
        Rows at a time.
    progress : callable or None, default None
        Called with the share of the file that was read.

    Returns
    -------
    int
        Number of rows.
    """
    if isinstance(out, Path):
        check_table_writable(out, inputs=(path,))
    present, kept = table_names(path, encoding=encoding), list(dict.fromkeys(keep))
    check_names(model.columns, present)
    _check_kept_columns(model, present, kept)
    wanted = [name for name in present if name in {*model.columns, *kept}]
    reading: dict[str, Any] = {"encoding": encoding, "columns": wanted, "text": model.text}
    total = 0
    with TableWriter(out) as writer:
        for frame, cells in chunks_as_they_stand(path, rows, **reading, progress=progress):
            with _predicting(path):
                predictions = model.predict(frame)
            writer.write(predictions, cells.select(kept) if kept else None)
            total += len(predictions)
        model.check_read()  # before the file gets its name: nothing is written where nothing could be read
    return total


@contextmanager
def _predicting(path: str | PathLike[str]) -> Iterator[None]:
    """A model file may say of its steps whatever passes its checks: what fails in them is one error, of any kind."""
    try:
        yield
    except Exception as error:
        own = isinstance(error, (ValueError, OSError, ImportError, MemoryError))
        if own and "\n" not in str(error).strip():  # steps of other libraries list what they miss, line by line
            raise
        reason = " ".join(str(error).split())[:300]
        raise TableError(
            f"the model cannot predict the rows of {str(path)!r} ({type(error).__name__}: {reason}). Check its columns "
            "with irmtv verify, or fit it again."
        ) from error


def _check_column(option: str, name: str, present: list[str]) -> None:
    if name not in present:
        raise TableError(
            f"{option} must be a column of the table. Got {name!r}.{did_you_mean(name, present)} The columns are "
            f"{shown(present, 20)}. Name one of them."
        )


def _check_kept_columns(model: TableModel, present: list[str], keep: Sequence[str]) -> None:
    for name in keep:
        _check_column("--keep", name, present)
    written = {"prediction", *(f"probability_{label}" for label in model.classes)}
    clash = [name for name in keep if name in written]
    if clash:
        raise TableError(f"--keep {shown(clash)} has the name of a column that is written. Rename it in the table.")


# ---- a metric in every environment ----------------------------------------------------------------------------------


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
    """The metric of a model in every environment of a file, with bootstrap intervals.

    Parameters
    ----------
    model, path, encoding, rows, progress : as in `predict_file`.
    target : str
        The column that the model predicts.
    environment : sequence of str, default ()
        Columns; those of several are joined. Without, all rows are one environment.
    metric : str or None, default None
        "accuracy", "log_loss", "roc_auc", "f1", "balanced_accuracy", "average_precision"; "mse", "rmse", "mae", "r2".
        None is the first that fits. Two classes: "f1" and "average_precision" look for the second, in sorted order;
        several: each against the rest, and their mean.
    n_bootstrap, seed : int, default 1000 and 0
        Draws for the intervals of 95 %.

    Returns
    -------
    EnvironmentTable, list of str
        The table of one run, and notes about it.
    """
    loss = "squared" if not model.classes else "binary" if len(model.classes) == 2 else "multiclass"
    chosen = metric_for(loss, metric)
    present = table_names(path, encoding=encoding)
    for option, name in [("--target", target), *(("--environment", name) for name in environment)]:
        _check_column(option, name, present)
    check_names(model.columns, present)
    # whole, as in training: whether 01 is a number depends on all rows
    columns_of_place = [name for name in environment if name != target]
    places = read_table(path, encoding=encoding, columns=columns_of_place).frame if columns_of_place else None
    wanted = [name for name in present if name in {*model.columns, target}]
    text = [*model.text, target] if model.classes else model.text
    outputs, truth = [], []
    for frame in table_chunks(path, rows, encoding=encoding, columns=wanted, text=text, progress=progress):
        with _predicting(path):
            outputs.append(model.outputs(frame))
        truth.append(frame[target])
    model.check_read()
    labels = pd.concat(truth, ignore_index=True).to_frame()
    if places is not None:
        if len(places) != len(labels):
            raise changed(Path(path))
        labels = pd.concat([labels, places], axis=1)
    columns = split_columns(labels, target=target, environment=environment, fitting=False)
    assert columns.y is not None
    table = evaluate_environments(
        np.concatenate(outputs)[columns.kept][None],
        class_codes(columns.y, model.classes) if model.classes else target_numbers(columns.y),
        None if columns.environment is None else columns.environment.astype(str).to_numpy(dtype=object),
        metric=chosen,
        n_bootstrap=n_bootstrap,
        random_state=seed,
    )
    return table, [*columns.notes, *model.notes()]


def class_codes(y: pd.Series, classes: Sequence[Any]) -> Any:
    """Positions of the labels among the classes of training: 1, 1.0 and "1" are the same, where that is one class."""
    exact = {str(label).strip(): c for c, label in enumerate(classes)}
    numbers: list[float | None] = [_number(label) for label in classes]
    alike: dict[float | None, int] = {
        n: c for c, n in enumerate(numbers) if n is not None and numbers.count(n) == 1
    }  # not of "01" and "1"
    distinct = {value: exact.get(str(value).strip(), alike.get(_number(value))) for value in y.unique()}
    new = [value for value, code in distinct.items() if code is None]
    if new:
        n = int(y.isin(new).sum())
        raise TableError(
            f"target {y.name!r} must hold the classes of training, {shown(classes, 10)}. Got {shown(new)} in {n:,} of "
            f"{len(y):,} rows. Leave these rows out, rename the classes, or name another target."
        )
    return y.map(distinct).to_numpy(dtype=np.int64)


def _number(label: Any) -> float | None:
    if isinstance(label, (bool, np.bool_)):
        return None
    try:
        return float(label)
    except (TypeError, ValueError):  # a date
        return None


def target_numbers(y: pd.Series) -> Any:
    """The target of a regression as float64."""
    if not is_numeric_dtype(y.dtype):
        unread = y[pd.to_numeric(y.astype(str), errors="coerce").isna()]
        raise TableError(
            f"target {y.name!r} must be numbers, as in training. Got {len(unread):,} of {len(y):,} values that are "
            f"none, such as {shown(unread.unique(), 3)}. Make them numbers, or empty these cells."
        )
    return y.to_numpy(dtype=np.float64)
