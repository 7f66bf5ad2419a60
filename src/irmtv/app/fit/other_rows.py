"""Other rows with the target (`fit --test`): read and checked before training, scored after it."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
from sklearn.pipeline import Pipeline

from irmtv.app.fit.comparing import against, better_or_worse, erm_is_kept
from irmtv.app.fit.comparison import compare
from irmtv.app.fit.preparation import Prepared
from irmtv.app.fit.summary import FitSummary, TestScores
from irmtv.app.fit.summary_parts import Searches
from irmtv.app.fit.verdict import Score, verdict
from irmtv.app.io import Table, TableModel, read_table, split_columns
from irmtv.app.io.table_model import class_codes, target_numbers
from irmtv.core.messages import shown
from irmtv.core.numbers import MetricFormat
from irmtv.data.tables.errors import TableError
from irmtv.data.tables.kinds import check_names, kind_of


@dataclass(frozen=True, eq=False)
class OtherRows:
    """Rows that play no part in training."""

    file: str
    features: pd.DataFrame
    y: Any  # (N,) codes of classes, or numbers
    environment: pd.Series | None  # (N,) where all columns of it are there
    notes: tuple[str, ...]


def read_other_rows(
    source: str | PathLike[str] | Table | pd.DataFrame, prepared: Prepared, encoding: str | None
) -> OtherRows:
    """The rows, with the columns of training; what is wrong with them is said before anything is trained."""
    data, features = prepared.data, prepared.columns.features
    if isinstance(source, (Table, pd.DataFrame)):
        table = Table.of(source)
    else:
        text = [str(name) for name in features.columns if kind_of(features[name]) != "number"]
        table = read_table(source, encoding=encoding, text=[*text, *data["environment"]])
    file = "a DataFrame" if table.path is None else table.path.name
    try:
        return _with_roles(table.frame, file, prepared)
    except TableError as error:
        raise TableError(f"test, {file}: {error}") from error


def _with_roles(frame: pd.DataFrame, file: str, prepared: Prepared) -> OtherRows:
    data, present = prepared.data, [str(c) for c in frame.columns]
    if data["target"] not in present:
        raise TableError(
            f"the target {data['target']!r} must be there, to compare predictions with. Got the columns "
            f"{shown(present, 10)}. Add it, or use irmtv predict for rows without it."
        )
    check_names(data["columns"], present)
    absent = [name for name in data["environment"] if name not in present]
    places = [] if absent else data["environment"]
    # only these columns: others may hold anything
    frame = frame[list(dict.fromkeys([data["target"], *places, *data["columns"]]))]
    columns = split_columns(frame, target=data["target"], environment=places, fitting=False)
    assert columns.y is not None
    classes = prepared.classes
    y = class_codes(columns.y, classes) if classes else target_numbers(columns.y)
    missing = [f"{file} has no column {shown(absent)}: all of its rows are scored together"] if absent else []
    return OtherRows(file, columns.features, y, columns.environment, (*columns.notes, *missing))


def score_other_rows(rows: OtherRows, prepared: Prepared, searches: Searches) -> TestScores:
    """ERM and the chosen model there, with 95 % intervals."""
    steps, family = prepared.steps[searches.family.reads].steps, searches.family
    chosen = TableModel(Pipeline([*steps, ("model", searches.estimator)]))
    erm = TableModel(Pipeline([*steps, ("model", family.erm_estimator(searches.search))]))
    outputs = [model.outputs(rows.features) for model in (erm, chosen)]
    chosen.check_read()
    labels = np.full(len(rows.y), "all") if rows.environment is None else rows.environment.astype(str).to_numpy()
    names, codes = np.unique(labels.astype(str), return_inverse=True)
    each, overall, worst = compare(
        outputs[0], outputs[1], rows.y, codes, names.tolist(), prepared.score, searches.random_state
    )
    return {
        "file": rows.file,
        "rows": len(rows.y),
        "environments": [] if rows.environment is None else each,
        "overall": overall,
        "worst": None if rows.environment is None else worst,
        "notes": [*rows.notes, *chosen.notes()],
    }


def judged(scores: TestScores, summary: FitSummary) -> TestScores:
    """With a verdict against what was expected, as `irmtv evaluate` gives it: sentences, and a word for every row."""
    rows = scores["environments"] or [scores["overall"]]
    places = summary["data"]["environment"] if scores["environments"] else []
    of_rows: list[Score] = [{"environment": row["name"], "rows": row["rows"], **row["chosen"]} for row in rows]
    said = verdict(summary, summary["metric"], places, of_rows)
    for row, word in zip(rows, said["words"], strict=True):
        row["verdict"] = word
    return {**scores, "verdict": [*said["sentences"], *_against_plain(scores, summary)]}


def _against_plain(scores: TestScores, summary: FitSummary) -> list[str]:
    """Better or worse than the plain model there, where another one was chosen."""
    if erm_is_kept(summary):
        return []
    form, greater = MetricFormat.in_words(summary["metric"]), summary["greater_is_better"]
    places = [("over all of these rows", scores["overall"])]
    places += [("in the worst environment of them", scores["worst"])] if scores["worst"] is not None else []
    told = []
    for where, row in places:
        word = better_or_worse(row, greater, form)
        than = "as" if word == "about as good" else "than"
        told.append(f"{word} {than} the plain model {where} ({against(row, form)})")
    return [f"By {form.words} the chosen model is {' and '.join(told)}."]
