"""`irmtv verify`: whether a model file is intact, what it is, and what it expects of a table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer

from irmtv.cli.options import AsJson, ModelPath
from irmtv.cli.output import print_json, say
from irmtv.core.outcomes import KEEP_ERM

_TEXTS = ("created", "task", "objective", "model", "outcome", "headline")
MOST = 30  # columns that are printed; --json has all


def verify(model: ModelPath, as_json: AsJson = False) -> None:
    """Check a model file: is it whole, and what does it need?

    Nothing in the file is executed. Exit code 1, with the reason, if it is damaged, foreign or of a newer irmtv.
    """
    report: dict[str, Any] = {"path": str(model), "good": False, "problem": None}
    try:
        report |= _checked(model)
    except ValueError as error:
        if not as_json:
            raise
        print_json({**report, "problem": str(error)})
        raise typer.Exit(1) from None
    report["good"] = True
    if as_json:
        print_json(report)
    else:
        _show(report)


def _checked(path: Path) -> dict[str, Any]:
    """What a model file says about itself; raises if it is damaged or does not predict."""
    from irmtv.app.io import open_model
    from irmtv.persistence import FORMAT, reading

    with reading(f"the model in {str(path)!r}"):
        ready, file = open_model(path)  # checksum, format and content
    about = file.about() or {}
    data = about.get("data", {})
    _check_about(about, data, path)
    with reading(f"the model in {str(path)!r}"):
        predicted = _predicts(ready)
    return {
        "checksum": "good",
        "bytes": os.path.getsize(path),
        "format": FORMAT,
        "written_by": file.version,
        "kind": file.kind,
        "created": about.get("created"),
        "task": about.get("task") or _task(ready),
        "objective": about.get("objective") or getattr(ready.estimator, "objective_", None),
        "model": about.get("model"),
        "outcome": about.get("outcome"),
        "headline": about.get("headline"),
        "target": data.get("target"),
        "classes": ready.classes,
        "environment": data.get("environment", []),
        "aux": data.get("aux", []),
        "columns": [{"name": name, "kind": ready.kinds.get(name, "number")} for name in ready.columns],
        "rows_of_training": data.get("rows_used"),
        "predicts": predicted,
    }


def _check_about(about: dict[str, Any], data: Any, path: Path) -> None:
    """Raise where what is shown of a summary is of another type than `irmtv fit` writes."""
    from irmtv.persistence import ModelFileError

    wrong = [name for name in _TEXTS if not isinstance(about.get(name), (str, type(None)))]
    if not isinstance(data, dict):
        wrong.append("data")
    else:
        lists = {name: data.get(name, []) for name in ("environment", "aux")}
        wrong += [n for n, v in lists.items() if not (isinstance(v, list) and all(isinstance(text, str) for text in v))]
        wrong += [
            n for n, kind in (("target", str), ("rows_used", int)) if not isinstance(data.get(n), (kind, type(None)))
        ]
    if wrong:
        raise ModelFileError(f"the summary in {str(path)!r} is not as irmtv writes it: wrong {', '.join(wrong)}.")


def _task(ready: Any) -> str:
    return "regression" if not ready.classes else "binary" if len(ready.classes) == 2 else "multiclass"


def _predicts(ready: Any) -> str:
    """What a row gives in which everything is missing; of zeros where the model takes no missing values."""
    import numpy as np
    import pandas as pd

    from irmtv.data.tables.reading import ReadColumns
    from irmtv.persistence import ModelFileError

    takes_gaps = isinstance(ready.steps[0][1], ReadColumns)
    row = pd.DataFrame({name: [np.nan if takes_gaps else 0.0] for name in ready.columns})
    try:
        made = ready.predict(row)
    except TypeError:  # a Pipeline of the user's own, whose file does not say which of its columns are text
        if takes_gaps or len(ready.steps) == 1:
            raise
        return "not tried: the preprocessing in it takes no row of zeros"
    numbers = made.drop(columns="prediction") if ready.classes else made
    if not np.isfinite(numbers.astype(float)).all(axis=None):
        raise ModelFileError(f"the model predicts no finite number ({made.iloc[0].to_dict()}). Fit it again.")
    # of its own column: a row of several would be of one type, and class 0 be 0.0
    return f"a row without any value gives {made.iloc[:, 0].iloc[0]}" if takes_gaps else "a row of zeros predicts"


def _objective(report: dict[str, Any]) -> str | None:
    name: str | None = report["objective"]
    if name in (None, "erm") or report["outcome"] not in KEEP_ERM:
        return name
    return f"{name}, of whose path ERM was kept"


def _show(report: dict[str, Any]) -> None:
    say(f"{report['path']}: good ({report['bytes']:,} bytes, checksum fits)")
    lines = {
        "written by": f"irmtv {report['written_by']}, format {report['format']}"
        + (f", {report['created']}" if report["created"] else ""),
        "task": report["task"]
        + (f", classes {', '.join(map(str, report['classes'][:MOST]))}" if report["classes"] else ""),
        "target": report["target"],
        "objective": _objective(report),
        "model": report["model"],
        "outcome": report["headline"],
        "environment": ", ".join(report["environment"]) + " (not needed to predict)" if report["environment"] else None,
        "aux": ", ".join(report["aux"]) + " (not needed to predict)" if report["aux"] else None,
        "predicts": report["predicts"],
    }
    for name, value in lines.items():
        if value:
            say(f"  {name:12s} {value}")
    columns = report["columns"]
    say(f"  expects      {len(columns)} columns:")
    for column in columns[:MOST]:
        say(f"               {column['name']} ({column['kind']})")
    if len(columns) > MOST:
        say(f"               ... and {len(columns) - MOST} more: see --json")
