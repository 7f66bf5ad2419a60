"""A raw table, prepared for the model families of `fit`: roles of columns, the task, features as each reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd
from pandas.api.types import is_numeric_dtype
from sklearn.pipeline import Pipeline

from irmtv.app.fit.comparison import Score, score_for
from irmtv.app.fit.summary import Data
from irmtv.app.io import Columns, Table, split_columns, table_steps, task_of
from irmtv.app.io.codes import about_codes
from irmtv.core.messages import shown

Reading = Literal["numbers", "gaps and categories"]  # how a family reads features


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

    @property
    def has_environments(self) -> bool:
        return self.columns.environment is not None and self.columns.environment.nunique() > 1

    def table(self, reading: Reading) -> tuple[Any, Any, Any, Any]:
        """Features, target, environment and aux."""
        if reading not in self.features:
            steps = Pipeline(table_steps(self.categorical, for_trees=reading == "gaps and categories"))
            self.features[reading] = steps.fit_transform(self.columns.features)
            self.steps[reading] = steps
        assert self.columns.y is not None
        return self.features[reading], target_values(self.columns.y), self.columns.environment, self.columns.aux


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
    used = [str(c) for c in columns.features.columns]
    alone = {name: [] if given is None else [given] for name, given in (("task", task), ("encoding", encoding))}
    options = {"drop": drop, "features": features, "categorical": categorical, **alone}
    roles = {target, *environment, *aux, *used}
    data: Data = {
        "file": table.path.name if table.path is not None else "a DataFrame",
        "path": str(table.path) if table.path is not None else "TABLE",
        "rows": len(table.frame),
        "rows_used": len(columns.kept),
        "target": target,
        "environment": list(environment),
        "aux": list(aux),
        "columns": used,
        "dropped": [str(c) for c in table.frame.columns if str(c) not in roles],
        "categorical": list(categorical),
        "options": {name: list(given) for name, given in options.items() if given},
        "features": 0,
        "missing": dict(columns.missing),
        "notes": [
            *table.notes,
            *columns.notes,
            *([why] if why else []),
            *about_codes(columns.features, categorical),
            *_about_metric(score, columns.y, kind),
        ],
    }
    return Prepared(columns, kind, score, data, categorical)


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


def _about_metric(score: Score, y: pd.Series, task: str) -> list[str]:
    """What of several readings of a metric is meant."""
    if score.name in ("f1", "average_precision") and task == "binary":
        return [f"{score.name} is that of finding {sorted(y.unique().tolist())[1]!r}"]
    if score.name in ("f1", "average_precision", "roc_auc") and task == "multiclass":
        return [f"{score.name} is the mean over the classes, each against the rest"]
    return []
