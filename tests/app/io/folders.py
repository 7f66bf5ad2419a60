"""Folders of Parquet files for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq


def table(n: int = 100, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "id": np.arange(n),
            "size": rng.normal(size=n),
            "colour": rng.choice(["red", "green", "blue"], n),
            "day": pd.date_range("2020-01-01", periods=n, freq="h"),
        }
    )


def write(frame: pd.DataFrame | pa.Table, path: Path, rows: int = 30) -> Path:
    """A file, with row groups of `rows` rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = frame if isinstance(frame, pa.Table) else pa.Table.from_pandas(frame, preserve_index=False)
    pq.write_table(content, path, row_group_size=rows)
    return path


def write_folder(folder: Path, frame: pd.DataFrame, by: str, files: int = 2, rows: int = 30) -> Path:
    """`by=LABEL/part-N.parquet`, with the rows of every label in their order."""
    for label, part in frame.groupby(by, sort=True):
        cuts = np.array_split(np.arange(len(part)), files)
        for i, index in enumerate(cuts):
            write(part.drop(columns=by).iloc[index], folder / f"{by}={label}" / f"part-{i}.parquet", rows)
    return folder
