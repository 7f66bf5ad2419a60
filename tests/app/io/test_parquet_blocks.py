"""Blocks of a Parquet table: all rows once, in their order, and every block by itself."""

from __future__ import annotations

import pandas as pd
import pytest

from app.io.folders import table, write
from irmtv.app.io import TableError, read_table
from irmtv.app.io.parquet import open_parquet
from irmtv.app.io.parquet_blocks import ParquetBlocks


@pytest.mark.parametrize(("group", "rows"), [(7, 30), (30, 7), (100, 33), (30, 1000), (1, 4)])
def test_blocks_are_the_table(tmp_path, group, rows):
    for i, n in enumerate((100, 1, 64)):
        write(table(n, seed=i), tmp_path / f"site={i}" / "a.parquet", rows=group)
    blocks = ParquetBlocks.of(open_parquet(tmp_path), rows)
    frames = list(blocks.frames())
    assert [len(frame) for frame in frames] == blocks.sizes() and max(blocks.sizes()) <= rows
    assert len(blocks) <= 2 * (165 // rows) + 4
    pd.testing.assert_frame_equal(pd.concat(frames, ignore_index=True), read_table(tmp_path).frame)
    for i, frame in enumerate(frames):
        pd.testing.assert_frame_equal(blocks.frame(i), frame)
    some = blocks.select(["size", "site"])
    assert next(some.frames()).columns.tolist() == ["size", "site"]


def test_a_file_that_changes_between_two_passes(tmp_path):
    path = write(table(), tmp_path / "a.parquet")
    blocks = ParquetBlocks.of(open_parquet(tmp_path), 10)
    assert len(list(blocks.frames())) == len(blocks)
    write(table(200), path)
    for read in (lambda: list(blocks.frames()), lambda: blocks.frame(0)):
        with pytest.raises(TableError, match="changed while it was read"):
            read()
