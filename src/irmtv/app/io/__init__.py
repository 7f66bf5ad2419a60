"""Table files: reading them, writing them, and applying a fitted model to them in pieces.

Start with `read` (CSV, TSV and Parquet files as a `Table`), which uses `delimited` (CSV and TSV) and `source` (bytes,
encodings, gzip). `table_model` predicts and evaluates files with a fitted model; `write` writes tables.
"""

from __future__ import annotations

from irmtv.app.io.read import Table, read_table, table_chunks, table_names
from irmtv.app.io.table_model import TableModel, evaluate_file, predict_file
from irmtv.data.tables.columns import Columns, split_columns, task_of
from irmtv.data.tables.errors import TableError, TableNotFoundError
from irmtv.data.tables.steps import LevelEncoder, TableColumns, TableNumbers, table_steps

__all__ = [
    "Columns",
    "LevelEncoder",
    "Table",
    "TableColumns",
    "TableError",
    "TableModel",
    "TableNotFoundError",
    "TableNumbers",
    "evaluate_file",
    "predict_file",
    "read_table",
    "split_columns",
    "table_chunks",
    "table_names",
    "table_steps",
    "task_of",
]
