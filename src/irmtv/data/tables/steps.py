"""From a raw table to numbers: the steps of a Pipeline before its estimator.

`TableColumns` picks the columns of training and gives them the types of training, so that a table in pieces, or from
another kind of file, means the same; `TableNumbers` reads dates, categories and text by skrub's `TableVectorizer` and
fills what is missing. Nothing missing comes out, whatever goes in:

- a column without any value in training is left out;
- a number or date that is missing: the mean of training, and 1 in the column's indicator, which is there where
  training had missing values, too;
- a category that is missing: a category of its own where training had it, else as one that training did not have;
- a category that training did not have: none of the known ones (all zeros), or by its letters where there are many;
- a date in another format, or text where numbers were: as missing; `TableColumns` warns of text among numbers.
"""

from __future__ import annotations

from typing import Any

from irmtv.data.tables.align import TableColumns
from irmtv.data.tables.vectorize import TableNumbers


def table_steps() -> list[tuple[str, Any]]:
    """The preprocessing of a Pipeline: a raw DataFrame in, float32 numbers without missing values out.

    Returns
    -------
    list of (name, transformer)
        "columns" and "numbers".

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from sklearn.pipeline import Pipeline
    >>> frame = pd.DataFrame({"size": [1.0, None, 3.0], "where": ["north", "south", None]})
    >>> pipeline = Pipeline(table_steps())
    >>> pipeline.fit_transform(frame)
    array([[1., 1., 0., 0., 0.],
           [2., 0., 1., 0., 1.],
           [3., 0., 0., 1., 0.]], dtype=float32)
    >>> pipeline.get_feature_names_out().tolist()
    ['size', 'where_north', 'where_south', 'where_nan', 'size missing']
    """
    return [("columns", TableColumns()), ("numbers", TableNumbers())]
