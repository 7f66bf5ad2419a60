"""`irmtv evaluate`: how well a model predicts a labelled table, environment by environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from irmtv.cli.options import AsJson, DataPath, Encoding, Environment, Metric, ModelPath, column_names
from irmtv.cli.output import (
    VERDICTS,
    WIDE,
    add_rows,
    notes,
    paragraph,
    print_json,
    progress,
    say,
    sentence,
    terminal,
    text_table,
    written,
)
from irmtv.core.numbers import MetricFormat

if TYPE_CHECKING:
    from irmtv.metrics import EnvironmentTable

MOST = 40  # environments that are printed; --out has all
FEWEST = 10  # rows of an environment: below, draws of them say nothing about others, and there is no interval


def evaluate(
    model: ModelPath,
    data: DataPath,
    environment: Environment = None,
    target: Annotated[str | None, typer.Option(help="Column to predict (default: the model's target).")] = None,
    metric: Metric = None,
    bootstrap: Annotated[int, typer.Option(help="Number of bootstrap draws for the intervals (0: none).")] = 1000,
    seed: Annotated[int, typer.Option(help="Random seed of the draws.")] = 0,
    encoding: Encoding = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Table to write: .csv, .tsv or .parquet.")] = None,
    intervals: Annotated[bool, typer.Option("--intervals", help="Print 95 % intervals of all scores.")] = False,
    as_json: AsJson = False,
) -> None:
    """Score a model on labelled rows: is it what fit promised?

    Prints a verdict against what was expected in a new environment, or measured
    in a known one, and the metric in every environment: in the order of time
    where they are times, else the worst first.
    """
    from irmtv.app.fit.verdict import verdict
    from irmtv.app.io import evaluate_file, open_model, table_names
    from irmtv.app.io.write import TableWriter, check_table_writable
    from irmtv.persistence import reading

    if out is not None:
        check_table_writable(out, inputs=(model, data))
    places = column_names(environment, table_names(data, encoding=encoding))  # first: a model takes longer to load
    ready, file = open_model(model)
    about = file.about() or {}
    with reading(f"the summary in {str(model)!r}"):
        wanted = target if target is not None else about.get("data", {}).get("target")
    if wanted is None:
        raise ValueError(f"--target is missing: {str(model)!r} does not say which column it predicts. Add --target.")
    with progress(data.name) as bar:
        table, remarks = evaluate_file(
            ready,
            data,
            target=wanted,
            environment=places,
            metric=metric if metric is not None else about.get("metric"),
            n_bootstrap=bootstrap,
            seed=seed,
            encoding=encoding,
            progress=lambda share: bar.at(share, data.name),
        )
    with reading(f"the summary in {str(model)!r}"):
        rows = _rows(table, _held_out(about, table.metric, places))
        said = verdict(about, table.metric, places, _scores(rows))
    for row, word in zip(rows["environments"], said["words"], strict=True):
        row["verdict"] = word
    rows["environments"] = _in_order(rows["environments"], table.greater_is_better)
    remarks += _about_values(table)
    if out is not None:
        import pandas as pd

        with TableWriter(out) as writer:
            numbers = dict.fromkeys(("value", "low", "high", "in_training"), "float64")
            writer.write(pd.DataFrame(rows["environments"]).astype(numbers))
    notes(remarks)
    if as_json:
        remarks += [] if rows["worst"]["environment"] is not None else [_nowhere(table.metric)]
        beside = {"rows": int(table.counts.sum()), "target": wanted, "environment": places, "notes": remarks}
        print_json({**beside, "verdict": said["sentences"], **rows})
    else:
        for text in said["sentences"] if rows["worst"]["environment"] is not None else []:
            paragraph(text)
        _show(table, rows, bool(places), intervals)
    if out is not None:
        written(out)


def _held_out(about: dict[str, Any], metric: str, places: list[str]) -> tuple[dict[str, Any], Any]:
    """What training measured on held-out rows, by environment and over all, where it is of the same metric and columns.

    Labels of other columns may be spelt alike and mean something else.
    """
    if about.get("metric") != metric or about.get("data", {}).get("environment") != places:
        return {}, None
    by_name = {row["name"]: row["chosen"]["value"] for row in about.get("environments", [])}
    return by_name, about["overall"]["chosen"]["value"] if "overall" in about else None


def _scores(rows: dict[str, Any]) -> list[Any]:
    """By environment, None where a score is not a number."""
    keys = ("environment", "rows", "value", "low", "high")
    return [
        {key: None if row[key] != row[key] else row[key] for key in keys}  # NaN is not itself
        for row in rows["environments"]
    ]


def _in_order(rows: list[dict[str, Any]], greater_is_better: bool) -> list[dict[str, Any]]:
    """In the order of time where the environments are times, else the worst first; those without a score last."""
    from irmtv.data.times import time_order

    order = time_order([row["environment"] for row in rows]) if len(rows) > 1 else None
    if order is not None:
        return [rows[i] for i in order]
    sign = 1 if greater_is_better else -1
    return sorted(rows, key=lambda row: (row["value"] != row["value"], sign * row["value"]))


def _about_values(table: EnvironmentTable) -> list[str]:
    """What to know about environments without a value, or with hardly any rows."""
    from irmtv.core.messages import shown

    counts, values = table.counts.reshape(-1), table.by_environment[0]
    remarks = []
    without = [name for name, value in zip(table.names, values, strict=True) if value != value]
    if 0 < len(without) < len(values):
        remarks.append(
            f"no {table.metric} in {shown(without)}: {_why_none(table.metric)}; worst and spread are of the others"
        )
    few = [name for name, n, v in zip(table.names, counts, values, strict=True) if n < FEWEST and v == v]
    if few:
        included = "; worst and spread include them" if len(values) > 1 else ""
        remarks.append(f"no interval for environments with fewer than {FEWEST} rows ({shown(few)}){included}")
    return remarks


def _why_none(metric: str) -> str:
    second = "it needs rows of the second class"
    why = {
        "roc_auc": "it needs rows of both classes",
        "f1": second,
        "average_precision": second,
        "r2": "it needs a target that varies",
    }
    return why.get(metric, "it is not a number")


def _nowhere(metric: str) -> str:
    return f"No environment has a value of {metric}: {_why_none(metric)}. Use another --metric."


def _rows(table: EnvironmentTable, held_out: tuple[dict[str, Any], Any]) -> dict[str, Any]:
    """The table as plain data, with the held-out values of training beside."""
    by_name, over_all = held_out
    counts, values = table.counts.reshape(-1).tolist(), table.by_environment[0]
    names = [str(name) for name in table.names]

    def one(quantity: str, index: Any = None, n: int = FEWEST, **more: Any) -> dict[str, Any]:
        """A quantity with its interval, where it is of enough rows."""
        part = (0,) if index is None else (0, index)
        interval = None if table.intervals is None or n < FEWEST else table.intervals[quantity]
        return {
            **more,
            "value": float(getattr(table, quantity)[part]),
            "low": None if interval is None else float(interval.lower[part]),
            "high": None if interval is None else float(interval.upper[part]),
        }

    environments = [
        one("by_environment", e, counts[e], environment=name, rows=counts[e]) | {"in_training": by_name.get(name)}
        for e, name in enumerate(names)
    ]
    valued = [e for e, value in enumerate(values) if value == value]
    ends = sorted(valued, key=lambda e: values[e], reverse=not table.greater_is_better)  # the worst first
    worst = names.index(str(table.worst_environment[0])) if valued else None
    return {
        "metric": table.metric,
        "greater_is_better": table.greater_is_better,
        "overall": one("overall", n=sum(counts)) | {"in_training": over_all},
        "worst": one(
            "worst", n=0 if worst is None else counts[worst], environment=None if worst is None else names[worst]
        ),
        "spread": one("spread", n=min((counts[e] for e in (*ends[:1], *ends[-1:])), default=0)),
        "environments": environments,
    }


def _show(table: EnvironmentTable, rows: dict[str, Any], named: bool, intervals: bool) -> None:
    """The scores by environment; without environments, one line of all rows."""
    form, console = MetricFormat.in_words(table.metric), terminal()
    intervals = intervals or console.width >= WIDE
    each = rows["environments"] if named else []
    trained = any(row["in_training"] is not None for row in each or [rows["overall"]])
    better = "higher" if table.greater_is_better else "lower"
    unit = ", %" if form.percent else ""
    columns = [
        "environment" if named else "",
        "rows",
        f"{table.metric}{unit}",
        *(["95 % interval"] if intervals else []),
    ]
    columns += [*(["in training"] if trained else []), *(["verdict"] if named else [])]
    sentence(f"{form.words} ({better} is better)")
    shown = text_table(columns)

    lines = [*each, rows["overall"], rows["worst"]]
    show = form.column([row[key] for row in lines for key in ("value", "low", "high", "in_training") if row.get(key)])

    def line(name: str, row: dict[str, Any], n: str = "") -> list[str]:
        low, high, own = row["low"], row["high"], row.get("in_training")
        cells = [name, n, show(row["value"])]
        cells += ["" if low is None else f"{show(low)} to {show(high)}"] if intervals else []
        cells += ["" if own is None else show(own)] if trained else []
        return [*cells, *([VERDICTS.get(row.get("verdict", ""), "")] if named else [])]

    add_rows(shown, [line(row["environment"], row, f"{row['rows']:,}") for row in each], MOST, where=": see --out")
    shown.add_section()
    shown.add_row(*line("all rows", rows["overall"], f"{int(table.counts.sum()):,}"))
    worst = rows["worst"]["environment"]
    if len(each) > 1 and worst is not None:
        shown.add_row(*map(escape, line("worst", rows["worst"])))
        shown.add_row(*line(f"spread{', points' if form.percent else ''}", rows["spread"]))
    console.print(shown)
    if worst is None:
        say(_nowhere(table.metric))
