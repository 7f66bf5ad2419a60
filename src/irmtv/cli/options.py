"""Arguments and options that several commands have: one meaning, one help text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from irmtv.app.io import ParquetTable, Table

ModelPath = Annotated[Path, typer.Argument(help="Model file written by irmtv fit.")]
DataPath = Annotated[Path, typer.Argument(help="Table: CSV or TSV (also .gz), Parquet, or a folder of Parquet files.")]
Target = Annotated[str, typer.Option(help="Column to predict.")]
Environment = Annotated[
    list[str] | None,
    typer.Option("--environment", "-e", help="Column (or columns, a,b) that says where each row comes from."),
]
Drop = Annotated[list[str] | None, typer.Option(help="Columns (a,b) that are no features, e.g. an id.")]
Features = Annotated[list[str] | None, typer.Option(help="Only these columns (a,b) are features.")]
Categorical = Annotated[
    list[str] | None, typer.Option(help="Features (a,b) that hold categories, though they look like numbers (codes).")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the answer alone: no notes, no progress.")]
TaskKind = Annotated[
    str | None, typer.Option("--task", help="binary, multiclass or regression (default: read off the target).")
]
Metric = Annotated[
    str | None,
    typer.Option(
        help="accuracy, log_loss, roc_auc, f1, balanced_accuracy or average_precision; rmse, mae, mse or r2 (default: "
        "accuracy or rmse; of a fitted model that of its training)."
    ),
]
Encoding = Annotated[str | None, typer.Option(help="Text encoding, e.g. latin-1 (default: UTF-8).")]
Memory = Annotated[
    str | None,
    typer.Option(
        help="Memory for the table, e.g. 2GB: larger Parquet files and folders are read block by block (default: half "
        "of what is available)."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def column_names(given: Sequence[str] | None, columns: Iterable[object]) -> list[str]:
    """Options such as `--aux year,lat` or `--aux year --aux lat`; a column whose own name has a comma is one name."""
    known = {str(c) for c in columns}
    names = [
        part.strip() if part not in known else part
        for text in given or ()
        for part in ([text] if text in known else text.split(","))
    ]
    return list(dict.fromkeys(name for name in names if name))


def read_columns(
    path: Path,
    encoding: str | None,
    environment: Sequence[str] | None,
    aux: Sequence[str] | None,
    memory: str | None = None,
    in_blocks: bool = False,
) -> tuple[Table | ParquetTable, list[str], list[str]]:
    """The table of a file, and the columns of it that `--environment` and `--aux` name."""
    from irmtv.app.io import names_of, open_table

    table = open_table(path, memory, encoding=encoding, in_blocks=in_blocks)
    present = names_of(table)
    return table, column_names(environment, present), column_names(aux, present)
