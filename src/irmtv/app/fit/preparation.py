"""A raw table, prepared for the model families of `fit`: roles of columns, the task, features as each reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype
from sklearn.pipeline import Pipeline

from irmtv.app.fit.comparison import Score, score_for
from irmtv.app.fit.summary import Data
from irmtv.app.io import Columns, Table, TableError, split_columns, table_steps, task_of
from irmtv.app.io.codes import about_codes, about_few_values
from irmtv.app.io.parquet import ParquetTable
from irmtv.app.io.stream import Progress, Reading, Sample, Stream, caught, open_stream
from irmtv.core.messages import shown
from irmtv.data.tables.target import task_of_target
from irmtv.data.training import WholeRows
from irmtv.objectives import OBJECTIVES


@dataclass
class Prepared:
    """A table, divided by roles; features are made when a family asks for them."""

    columns: Columns
    task: Literal["binary", "multiclass", "regression"]
    score: Score
    data: Data
    categorical: Sequence[str] = ()
    steps: dict[Reading, Pipeline] = field(default_factory=dict)  # fitted preprocessing
    features: dict[Reading, Any] = field(default_factory=dict)  # (N, D); emptied once the families have read them
    stream: Stream | None = None  # all rows, where `columns` are a sample

    @property
    def has_environments(self) -> bool:
        return self.columns.environment is not None and self.columns.environment.nunique() > 1

    def table(self, reading: Reading) -> tuple[Any, Any, Any, Any]:
        """Features, target, environment and aux."""
        if reading not in self.features:
            if self.stream is None:
                steps = Pipeline(table_steps(self.categorical, for_trees=reading == "gaps and categories"))
                self.features[reading] = steps.fit_transform(self.columns.features)
            else:
                steps = self.stream.fitted_steps(reading)
                self.features[reading] = steps.transform(self.columns.features)
            self.steps[reading] = steps
        assert self.columns.y is not None
        environment: Any = self.columns.environment
        if self.stream is not None and self.stream.codes is not None:
            environment = self.stream.codes[self.stream.sampled]
        return self.features[reading], target_values(self.columns.y), environment, self.columns.aux

    def whole(self, reading: Reading) -> WholeRows | None:
        """What is known of all rows, where the table is a sample of them."""
        return None if self.stream is None else self.stream.whole(reading)

    @property
    def classes(self) -> list[Any]:
        """The labels of all rows; none of a regression."""
        if self.task == "regression":
            return []
        if self.stream is not None and self.stream.classes is not None:
            return list(self.stream.classes.tolist())
        assert self.columns.y is not None
        return list(np.unique(target_values(self.columns.y)).tolist())


def prepare(
    table: Table,
    target: str,
    environment: Sequence[str],
    aux: Sequence[str],
    *,
    drop: Sequence[str] = (),
    features: Sequence[str] = (),
    categorical: Sequence[str] = (),
    task: str | None = None,
    metric: str | None = None,
    encoding: str | None = None,
) -> Prepared:
    """Columns by their role, and what is said of them. `encoding` is that the table was read with."""
    columns = split_columns(
        table.frame,
        target=target,
        environment=environment,
        aux=aux,
        drop=drop,
        features=features,
        categorical=categorical,
    )
    assert columns.y is not None
    kind, why = task_of(columns.y, task)
    score = score_for(kind, metric)
    options = {"drop": drop, "features": features, "categorical": categorical, "task": task, "encoding": encoding}
    notes = [
        *table.notes,
        *columns.notes,
        *([why] if why else []),
        *about_codes(columns.features, categorical),
        *_about_metric(score, columns.y.unique().tolist(), kind),
    ]
    roles = target, environment, aux
    data = _about(table.path, table.frame.columns, len(table.frame), len(columns.kept), roles, columns, options, notes)
    return Prepared(columns, kind, score, data, categorical)


def prepare_stream(
    table: ParquetTable,
    target: str,
    environment: Sequence[str],
    aux: Sequence[str],
    *,
    memory: int,
    sample: Sample,
    drop: Sequence[str] = (),
    features: Sequence[str] = (),
    categorical: Sequence[str] = (),
    task: str | None = None,
    metric: str | None = None,
    keep_labels: bool = True,
    needed: bool = False,
    min_rows: int = 10,
    processes: int = 1,
    progress: Progress | None = None,
) -> Prepared:
    """The same of a table that is read in passes; see `open_stream` for the other parameters."""
    reading = {"drop": drop, "features": features, "categorical": categorical}
    stream, warned = caught(
        lambda: open_stream(
            table,
            target,
            environment,
            aux,
            options=reading,
            memory=memory,
            sample=sample,
            keep_labels=keep_labels,
            min_rows=min_rows,
            needed=needed,
            processes=processes,
            progress=progress,
        )
    )
    learned, rows = stream.learned, stream.learned.rows
    kind, why = task_of_target(rows.target, task)
    score = score_for(kind, metric)
    if kind == "regression":
        assert rows.moments is not None
        stream.y = rows.moments.scaler(constant=1.0)
    elif rows.target.has_more:
        raise TableError(
            f"target {target!r} has more than {len(rows.target.values):,} different values: too many for classes. "
            "Use --task regression (in Python task='regression'), or choose another target."
        )
    else:
        stream.classes = np.unique(target_values(pd.Series(rows.target.values)))
    few = {name: n for name, n in learned.few_values.items() if name not in set(categorical)}
    notes = [
        *table.notes,
        *learned.notes,
        *([why] if why else []),
        *about_few_values(few, rows.n_kept),
        *_about_metric(score, list(rows.target.values), kind),
        *warned,
    ]
    options = {**reading, "task": task, "encoding": None}
    roles = target, environment, aux
    data = _about(table.path, table.names, rows.n_rows, rows.n_kept, roles, stream.columns, options, notes)
    return Prepared(stream.columns, kind, score, data, categorical, stream=stream)


def _about(
    path: Path | None,
    present: Iterable[Any],
    rows: int,
    rows_used: int,
    roles: tuple[str, Sequence[str], Sequence[str]],
    columns: Columns,
    options: Mapping[str, Any],
    notes: list[str],
) -> Data:
    """What the summary says of the table."""
    target, environment, aux = roles
    used = [str(c) for c in columns.features.columns]
    several = {n: [] if v is None else [v] if isinstance(v, str) else list(v) for n, v in options.items()}
    known = {target, *environment, *aux, *used}
    return {
        "file": "a DataFrame" if path is None else path.name or path.resolve().name,
        "path": str(path) if path is not None else "TABLE",
        "rows": rows,
        "rows_used": rows_used,
        "target": target,
        "environment": list(environment),
        "aux": list(aux),
        "columns": used,
        "dropped": [str(c) for c in present if str(c) not in known],
        "categorical": list(options["categorical"]),
        "options": {name: given for name, given in several.items() if given},
        "features": 0,
        "missing": dict(columns.missing),
        "notes": notes,
    }


def target_values(y: pd.Series) -> Any:
    """Numbers as they are; anything else as text of a fixed width, which is looked through far faster than objects."""
    return y.to_numpy() if is_numeric_dtype(y.dtype) else y.to_numpy(dtype=str)


def about_gaps(columns: Columns, reading: Reading) -> list[str]:
    """Which features have gaps, and what is done about them."""
    if not columns.missing:
        return []
    most_first = sorted(columns.missing.items(), key=lambda column: -column[1])
    gaps = shown([f"{name} ({100 * share:.2g} %)" for name, share in most_first], form=str)
    if reading == "gaps and categories":
        return [f"missing values stay missing, which trees can read: {gaps}"]
    return [f"missing values are filled (numbers with their mean, categories with none of them) and marked: {gaps}"]


def _about_metric(score: Score, labels: list[Any], task: str) -> list[str]:
    """What of several readings of a metric is meant."""
    if score.name in ("f1", "average_precision") and task == "binary":
        return [f"{score.name} is that of finding {sorted(labels)[1]!r}"]
    if score.name in ("f1", "average_precision", "roc_auc") and task == "multiclass":
        return [f"{score.name} is the mean over the classes, each against the rest"]
    return []


def looks_at_labels(objective: str) -> bool:
    """Whether environments that are given serve this objective; one that looks for its own has no use for them."""
    of = OBJECTIVES["irm-tv-l1" if objective == "auto" else objective]
    return of.infers is None and not of.finds_clusters


def needs_labels(objective: str, given: bool) -> bool:
    """Whether there must be two environments."""
    return given if objective == "auto" else OBJECTIVES[objective].needs == "environment"
