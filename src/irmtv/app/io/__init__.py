"""Tables from files, and from tables to numbers: what stands between a file and an estimator.

To read it: `read` (the front door) with `source` (bytes), `delimited` (CSV), `parquet` and `cells`; `columns` (target,
environment, aux and features, checked) and `steps` (the preprocessing of a Pipeline) with
`align` and `vectorize`; `predict` and `evaluate` (a
fitted model on files, in pieces) with `write`.
"""

from __future__ import annotations

from irmtv.app.io.evaluate import evaluate_file
from irmtv.app.io.predict import TableModel, predict_file
from irmtv.app.io.read import Table, read_table, table_chunks, table_names
from irmtv.data.tables.align import TableColumns
from irmtv.data.tables.columns import Columns, split_columns, task_of
from irmtv.data.tables.errors import TableError, TableNotFoundError
from irmtv.data.tables.vectorize import LevelEncoder, TableNumbers, table_steps

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
