"""Arguments and options that several commands have: one meaning, one help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelPath = Annotated[Path, typer.Argument(help="A model file, as irmtv fit writes it.")]
DataPath = Annotated[Path, typer.Argument(help="CSV, TSV or Parquet; text also as .gz.")]
Target = Annotated[str, typer.Option(help="The column to be predicted.")]
Environment = Annotated[
    list[str] | None,
    typer.Option("--environment", "-e", help="Column (or columns, a,b) that says where a row is from."),
]
TaskKind = Annotated[str | None, typer.Option("--task", help="binary, multiclass or regression; else by the target.")]
Encoding = Annotated[str | None, typer.Option(help="Of a text file, such as latin-1; UTF-8 without.")]
