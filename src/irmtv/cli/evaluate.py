"""`irmtv evaluate`: how well a model predicts a labelled table, environment by environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Shown

from irmtv.cli.names import column_names
from irmtv.cli.output import AsJson, note, print_json, say
from irmtv.cli.predict import DataPath, Encoding, ModelPath

if TYPE_CHECKING:
    from irmtv.metrics import EnvironmentTable

MOST = 40  # environments that are printed; --out has all


def register(app: typer.Typer) -> None:
    app.command("evaluate")(evaluate)


def evaluate(
    model: ModelPath,
    data: DataPath,
    environment: Annotated[
        list[str] | None,
        typer.Option("--environment", "-e", help="Column (or columns, a,b) that says where a row is from."),
    ] = None,
    target: Annotated[str | None, typer.Option(help="The column to be predicted; else that of the model.")] = None,
    metric: Annotated[
        str | None, typer.Option(help="accuracy, log_loss or roc_auc; rmse, mse, mae or r2. Else that of training.")
    ] = None,
    bootstrap: Annotated[int, typer.Option(help="Draws for the intervals; 0 for none.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    encoding: Encoding = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also write the table: .csv, .tsv or .parquet.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The metric in every environment of a labelled table, with 95 % intervals; the worst, the spread."""
    from irmtv import load
    from irmtv.estimators.files import read_about
    from irmtv.progress import ProgressBar
    from irmtv.tabular import TableModel, evaluate_file, table_names
    from irmtv.tabular.write import TableWriter, check_table_writable

    if out is not None:
        check_table_writable(out)
    places = column_names(environment, table_names(data, encoding=encoding))  # first: a model takes longer to load
    ready, about = TableModel(load(model)), read_about(model) or {}
    wanted = target if target is not None else about.get("data", {}).get("target")
    if wanted is None:
        raise ValueError(f"--target is missing: {str(model)!r} does not say which column it predicts. Add --target.")
    try:
        with ProgressBar(data.name, console=Console(stderr=True, highlight=False)) as bar:
            table, told = evaluate_file(
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
    except KeyboardInterrupt:
        note("irmtv: stopped; nothing was written. The same command starts again.")
        raise typer.Exit(130) from None
    rows = _rows(table, about)
    if out is not None:
        import pandas as pd

        with TableWriter(out) as writer:
            writer.write(pd.DataFrame(rows["environments"]))
    for text in told:
        note(f"note: {text}")
    if as_json:
        print_json({"rows": int(table.counts.sum()), "target": wanted, "environment": places, "notes": told, **rows})
    else:
        _show(table, rows)
    if out is not None:
        note(f"written: {out}")


def _rows(table: EnvironmentTable, about: dict[str, Any]) -> dict[str, Any]:
    """The table as plain data, with the held-out values of training beside where they are of the same metric."""
    before: dict[str, Any] = {}
    known = about.get("environments", []) if about.get("metric") == table.metric else []
    for row in [*known, *([about["overall"]] if known else [])]:
        before[row["name"] if row is not about.get("overall") else "overall"] = row["chosen"]["value"]

    def one(quantity: str, index: Any = None, **more: Any) -> dict[str, Any]:
        part = (0,) if index is None else (0, index)
        interval = None if table.intervals is None else table.intervals[quantity]
        return {
            **more,
            "value": float(getattr(table, quantity)[part]),
            "low": None if interval is None else float(interval.lower[part]),
            "high": None if interval is None else float(interval.upper[part]),
        }

    counts = table.counts.reshape(-1).tolist()
    environments = [
        one("by_environment", e, environment=str(name), rows=counts[e]) | {"in_training": before.get(str(name))}
        for e, name in enumerate(table.names)
    ]
    return {
        "metric": table.metric,
        "greater_is_better": table.greater_is_better,
        "overall": one("overall") | {"in_training": before.get("overall")},
        "worst": one("worst", environment=str(table.worst_environment[0])),
        "spread": one("spread"),
        "environments": environments,
    }


def _show(table: EnvironmentTable, rows: dict[str, Any]) -> None:
    from irmtv.answer.words import number_format

    form = number_format(table.metric)
    trained = any(row["in_training"] is not None for row in [*rows["environments"], rows["overall"]])
    better = "higher" if table.greater_is_better else "lower"
    shown = Shown(title=f"{table.metric} ({better} is better)", title_justify="left", title_style="")
    shown.add_column("environment")
    for name in ("rows", table.metric, "95 % interval", *(["held out in training"] if trained else [])):
        shown.add_column(name, justify="right")

    def line(name: str, row: dict[str, Any], n: str) -> None:
        low, high = row["low"], row["high"]
        cells = [name, n, form(row["value"]), "" if low is None else f"{form(low)} to {form(high)}"]
        if trained:
            own = row.get("in_training")
            cells.append("" if own is None else form(own))
        shown.add_row(*map(escape, cells))

    for row in rows["environments"][:MOST]:
        line(row["environment"], row, f"{row['rows']:,}")
    if len(rows["environments"]) > MOST:
        shown.add_row(f"... and {len(rows['environments']) - MOST} more: see --out", *[""] * (len(shown.columns) - 1))
    shown.add_section()
    line("all rows", rows["overall"], f"{int(table.counts.sum()):,}")
    if len(rows["environments"]) > 1:
        line(f"worst ({rows['worst']['environment']})", rows["worst"], "")
        line("spread (best to worst)", rows["spread"], "")
    Console(highlight=False).print(shown)
    if len(rows["environments"]) > 1:
        say(f"Worst environment: {rows['worst']['environment']}, {table.metric} {form(rows['worst']['value'])}.")
