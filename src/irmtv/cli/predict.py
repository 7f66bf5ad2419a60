"""`irmtv predict`: the predictions of a model for every row of a file, however long."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from irmtv.cli.options import AsJson, DataPath, Encoding, ModelPath, column_names
from irmtv.cli.output import TerminalBytes, note, notes, print_json, progress


def predict(
    model: ModelPath,
    data: DataPath,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File to write: .csv, .tsv (also .gz) or .parquet (default: CSV to stdout)."),
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(help="Column to copy beside the predictions, e.g. an id. Repeat for more.")
    ] = None,
    encoding: Encoding = None,
    as_json: AsJson = False,
) -> None:
    """Predict every row of a table of any length.

    Writes `prediction` and, for classifiers, `probability_CLASS` of every class.
    Environment, aux and target columns are not needed.
    """
    if as_json and out is None:
        raise ValueError("--json prints a summary, and so do the predictions without --out. Add --out FILE.")
    from irmtv.app.io import open_model, predict_file, table_names
    from irmtv.app.io.write import check_table_writable

    if out is not None:
        check_table_writable(out, inputs=(model, data))
    kept = column_names(keep, table_names(data, encoding=encoding))  # the table first: a model takes longer to load
    ready, _ = open_model(model)
    # on a terminal the bar would be drawn between the lines of the table
    quiet = out is None and sys.stdout.isatty()
    try:
        with progress(data.name, quiet=quiet) as bar:
            target = out if out is not None else TerminalBytes() if quiet else sys.stdout.buffer
            rows = predict_file(
                ready, data, target, keep=kept, encoding=encoding, progress=lambda share: bar.at(share, data.name)
            )
    except BrokenPipeError:  # the reader of the lines has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    remarks = ready.notes()
    notes(remarks)
    if as_json:
        columns = [*kept, "prediction", *(f"probability_{label}" for label in ready.classes)]
        print_json({"rows": rows, "path": str(out), "columns": columns, "notes": remarks})
    elif out is not None:
        note(f"written: {out}, {rows:,} rows")
