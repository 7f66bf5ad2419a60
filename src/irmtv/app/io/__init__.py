"""Table files: reading them, writing them, and applying a fitted model to them in pieces.

Start with `read` (CSV, TSV and Parquet files as a `Table`), which uses `delimited` (CSV and TSV), `source` (bytes,
encodings, gzip) and `parquet` (a file, or a folder of them: `shards`; `parquet_blocks` reads one again and again);
`text_columns` decides which columns of text are numbers.
`table_model` predicts and evaluates files with a fitted model; `write` writes tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from irmtv.app.io.parquet import ParquetTable
from irmtv.app.io.read import Table, names_of, open_table, read_table, table_chunks, table_names
from irmtv.app.io.table_model import TableModel, evaluate_file, open_model, predict_file
from irmtv.data.tables.columns import Columns, split_columns, task_of
from irmtv.data.tables.errors import TableError, TableNotFoundError

if TYPE_CHECKING:
    from irmtv.data.tables.steps import LevelEncoder, TableColumns, TableNumbers, table_steps

__all__ = [
    "Columns",
    "LevelEncoder",
    "ParquetTable",
    "Table",
    "TableColumns",
    "TableError",
    "TableModel",
    "TableNotFoundError",
    "TableNumbers",
    "evaluate_file",
    "names_of",
    "open_model",
    "open_table",
    "predict_file",
    "read_table",
    "split_columns",
    "table_chunks",
    "table_names",
    "table_steps",
    "task_of",
]


def __getattr__(name: str) -> Any:
    if name not in {"LevelEncoder", "TableColumns", "TableNumbers", "table_steps"}:
        raise AttributeError(f"module 'irmtv.app.io' has no attribute {name!r}")
    from irmtv.data.tables import steps  # what learns needs scikit-learn; what predicts does not

    return getattr(steps, name)
