"""Blocks of a Parquet table: all rows once, in their order, and every block by itself."""

from __future__ import annotations

import pandas as pd
import pytest

from app.io.folders import table, write
from irmtv.app.io import TableError, read_table
from irmtv.app.io.parquet import open_parquet
from irmtv.app.io.parquet_blocks import ParquetBlocks
from irmtv.data.tables.kinds import as_text


def plain(frame):
    """Text as it is in memory."""
    return pd.DataFrame({name: as_text(frame[name]) for name in frame})


@pytest.mark.parametrize(("group", "rows"), [(7, 30), (30, 7), (100, 33), (30, 1000), (1, 4)])
def test_blocks_are_the_table(tmp_path, group, rows):
    for i, n in enumerate((100, 1, 64)):
        write(table(n, seed=i), tmp_path / f"site={i}" / "a.parquet", rows=group)
    blocks = ParquetBlocks.of(open_parquet(tmp_path), rows)
    frames = [plain(frame) for frame in blocks.frames()]
    assert [len(frame) for frame in frames] == blocks.sizes() and max(blocks.sizes()) <= rows
    assert len(blocks) <= 2 * (165 // rows) + 4
    pd.testing.assert_frame_equal(pd.concat(frames, ignore_index=True), read_table(tmp_path).frame)
    for i, frame in enumerate(frames):
        pd.testing.assert_frame_equal(plain(blocks.frame(i)), frame)
    some = blocks.select(["size", "site"])
    assert next(some.frames()).columns.tolist() == ["size", "site"]


@pytest.mark.parametrize(("group", "rows"), [(7, 30), (30, 7), (100, 33), (1, 4)])
@pytest.mark.parametrize("most", [1, 3, 1000])
def test_spans_are_all_blocks_and_begin_with_row_groups(tmp_path, group, rows, most):
    for i, n in enumerate((100, 1, 64)):
        write(table(n, seed=i), tmp_path / f"site={i}" / "a.parquet", rows=group)
    blocks = ParquetBlocks.of(open_parquet(tmp_path), rows)
    spans = blocks.spans(most)
    assert len(spans) <= most and (most == 1 or len(spans) > 1)
    assert [i for span in spans for i in range(*span)] == list(range(len(blocks)))
    assert all(blocks.parts[first][0].first == 0 for first, _ in spans)
    read = [plain(frame) for span in spans for frame in blocks.between(*span).frames()]
    pd.testing.assert_frame_equal(pd.concat(read, ignore_index=True), read_table(tmp_path).frame)
    assert len(blocks.between(1, len(blocks)).spans(most)) <= most  # a process may begin within a row group


def test_text_is_by_its_different_values_unless_there_are_more_of_them_than_rows(tmp_path):
    frame = table(90).assign(
        name=[f"row {i}" for i in range(90)], empty=None, colour=table(90)["colour"].where(lambda c: c != "red")
    )
    write(frame, tmp_path / "site=a" / "a.parquet", rows=90)
    blocks = ParquetBlocks.of(open_parquet(tmp_path), 30)
    first = blocks.frame(0)
    assert isinstance(first["colour"].dtype, pd.CategoricalDtype) and isinstance(
        first["site"].dtype, pd.CategoricalDtype
    )
    assert not isinstance(first["name"].dtype, pd.CategoricalDtype)
    read = pd.concat([plain(frame) for frame in blocks.frames()], ignore_index=True)
    pd.testing.assert_frame_equal(read, read_table(tmp_path).frame)


def test_a_file_that_changes_between_two_passes(tmp_path):
    path = write(table(), tmp_path / "a.parquet")
    blocks = ParquetBlocks.of(open_parquet(tmp_path), 10)
    assert len(list(blocks.frames())) == len(blocks)
    write(table(200), path)
    for read in (lambda: list(blocks.frames()), lambda: blocks.frame(0)):
        with pytest.raises(TableError, match="changed while it was read"):
            read()
