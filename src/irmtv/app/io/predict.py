"""A fitted model on raw tables, whole or in pieces: the columns it needs, their types, and what could not be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import IO, Any

import pandas as pd
from sklearn.base import is_classifier
from sklearn.pipeline import Pipeline

from irmtv.app.io.read import ROWS, chunks_as_they_stand, table_names
from irmtv.app.io.write import TableWriter, check_table_writable
from irmtv.core.messages import did_you_mean, shown
from irmtv.data.tables.align import TableColumns, check_names
from irmtv.data.tables.columns import refuse_infinite
from irmtv.data.tables.errors import TableError
from irmtv.data.tables.vectorize import TableNumbers


class TableModel:
    """A fitted Pipeline or estimator that reads tables; it counts what it could not read.

    Attributes
    ----------
    columns : list of str
        The features, by name.
    kinds : dict of str to str
        "number", "date" or "text", by column; empty where the model does not say.
    text : list of str
        Columns that are to be read as text: all but numbers.
    estimator : the last step.
    classes : list
        Labels of a classifier; empty otherwise.

    Parameters
    ----------
    model : what `irmtv.load` returns.
    """

    def __init__(self, model: Any) -> None:
        self.steps: list[tuple[str, Any]] = list(model.steps) if isinstance(model, Pipeline) else [("model", model)]
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
        own = dict(first.kinds_) if isinstance(first, TableColumns) else {}
        self.kinds = own | _kinds(self.steps)
        self.text = [name for name, kind in (own or self.kinds).items() if kind != "number"]
        self.classes: list[Any] = self.estimator.classes_.tolist() if is_classifier(self.estimator) else []
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
            if isinstance(step, TableColumns):
                values, unread = step.align(values)
                self._unread.update(unread)
                refuse_infinite(values, "feature")
            elif isinstance(step, TableNumbers):
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
        made = {"prediction": self.estimator.predict(values)}
        if self.classes:
            shares = self.estimator.predict_proba(values)  # (N, C)
            made |= {f"probability_{label}": shares[:, c] for c, label in enumerate(self.classes)}
        elif made["prediction"].ndim == 2:
            made = {f"prediction_{t}": values for t, values in enumerate(made["prediction"].T)}
        return pd.DataFrame(made, index=frame.index, copy=False)

    def outputs(self, frame: pd.DataFrame) -> Any:
        """Logits of a classifier, predictions of a regressor: (N,) or (N, C)."""
        values = self.numbers(frame)
        return self.estimator.decision_function(values) if self.classes else self.estimator.predict(values)

    def check_read(self) -> None:
        """Raise where no value of a column could be read, so far: then predictions would be of something else."""
        nothing = [name for name, n in self._unread.items() if n == self._given[name]]
        if nothing:
            kinds = [f"{name!r} ({'dates' if self.kinds.get(name) == 'date' else 'numbers'})" for name in nothing]
            raise TableError(
                f"no value of {shown(kinds, form=str)} is of the kind that the model was trained on. Check the "
                "columns, the format of dates and the decimal point."
            )

    def notes(self) -> list[str]:
        """What could not be read, so far."""
        told = [
            f"{name!r}: {n:,} of {self._given[name]:,} values are not of the kind of training, and count as missing"
            for name, n in self._unread.items()
        ]
        told += [
            f"{name!r}: {sum(new.values()):,} values that training did not have ({shown(new, 3)}), read as none of the "
            "known ones"
            for name, new in self._new.items()
        ]
        return told


def _kinds(steps: Sequence[tuple[str, Any]]) -> dict[str, str]:
    """What a TableVectorizer took the columns for, where there is one."""
    names = {"numeric": "number", "datetime": "date"}
    found: dict[str, str] = next((step.column_to_kind_ for _, step in steps if hasattr(step, "column_to_kind_")), {})
    return {name: names.get(kind, "text") for name, kind in found.items()}


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
        Of a text file.
    rows : int, default 50,000
        Rows at a time.
    progress : callable or None, default None
        Called with the share of the file that was read.

    Returns
    -------
    int
        Rows.
    """
    if isinstance(out, Path):
        check_table_writable(out, inputs=(path,))
    present, kept = table_names(path, encoding=encoding), list(dict.fromkeys(keep))
    check_names(model.columns, present)
    _check_keep(model, present, kept)
    wanted = [name for name in present if name in {*model.columns, *kept}]
    reading: dict[str, Any] = {"encoding": encoding, "columns": wanted, "text": model.text}
    total = 0
    with TableWriter(out) as writer:
        for frame, cells in chunks_as_they_stand(path, rows, **reading, progress=progress):
            made = model.predict(frame)
            writer.write(made, cells.select(kept) if kept else None)
            total += len(made)
        model.check_read()  # before the file gets its name: nothing is written where nothing could be read
    return total


def _check_keep(model: TableModel, present: list[str], keep: Sequence[str]) -> None:
    for name in keep:
        if name not in present:
            raise TableError(
                f"--keep must be a column of the table. Got {name!r}.{did_you_mean(name, present)} The columns are "
                f"{shown(present, 20)}. Name one of them."
            )
    made = {"prediction", *(f"probability_{label}" for label in model.classes)}
    clash = [name for name in keep if name in made]
    if clash:
        raise TableError(f"--keep {shown(clash)} has the name of a column that is written. Rename it in the table.")
