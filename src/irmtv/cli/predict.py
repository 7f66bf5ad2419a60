"""`irmtv predict`: the predictions of a model for every row of a file, however long."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from irmtv.cli.names import column_names
from irmtv.cli.options import DataPath, Encoding, ModelPath
from irmtv.cli.output import AsJson, note, print_json


def register(app: typer.Typer) -> None:
    app.command("predict")(predict)


def predict(
    model: ModelPath,
    data: DataPath,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A file that ends in .csv, .tsv (also .gz) or .parquet; else CSV to stdout."),
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(help="A column of the table to copy beside, such as an id. Repeat for more.")
    ] = None,
    encoding: Encoding = None,
    as_json: AsJson = False,
) -> None:
    """Predict every row of a table, in memory that does not grow with it.

    Writes `prediction` and, of a classifier, `probability_CLASS` for every class. Environment, aux and target columns
    are not needed.
    """
    if as_json and out is None:
        raise ValueError("--json prints a summary, and so do the predictions without --out. Add --out FILE.")
    from irmtv import load
    from irmtv.app.io import TableModel, predict_file, table_names
    from irmtv.app.io.write import check_table_writable
    from irmtv.engine.progress_bar import ProgressBar

    if out is not None:
        check_table_writable(out, inputs=(model, data))
    kept = column_names(keep, table_names(data, encoding=encoding))  # the table first: a model takes longer to load
    ready = TableModel(load(model))
    # the bar would be drawn between the lines of the table
    quiet = out is None and sys.stdout.isatty()
    try:
        with ProgressBar(data.name, console=Console(stderr=True, highlight=False, quiet=quiet)) as bar:
            target = out if out is not None else sys.stdout.buffer
            rows = predict_file(
                ready, data, target, keep=kept, encoding=encoding, progress=lambda share: bar.at(share, data.name)
            )
    except KeyboardInterrupt:
        note("irmtv: stopped; nothing was written. The same command starts again.")
        raise typer.Exit(130) from None
    except BrokenPipeError:  # whoever read the lines has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    told = ready.notes()
    for text in told:
        note(f"note: {text}")
    if as_json:
        columns = [*kept, "prediction", *(f"probability_{label}" for label in ready.classes)]
        print_json({"rows": rows, "path": str(out), "columns": columns, "notes": told})
    elif out is not None:
        note(f"written: {out}, {rows:,} rows")
