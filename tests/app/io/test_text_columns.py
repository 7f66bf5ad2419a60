"""Columns of text are the same from a text file and from Parquet: numbers, gaps, infinities."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pytest

from app.io.folders import write
from irmtv.app.io import TableError, open_table, read_table, split_columns, table_chunks
from irmtv.app.io.parquet import with_number_types
from irmtv.app.io.parquet_blocks import ParquetBlocks
from irmtv.data.tables.kinds import as_text

N = 4000
CELLS = {
    "whole": ["12", "-3", "+4", " 5 "],
    "size": ["3.5", "1e3", "?", "7"],
    "late": [*["1"] * (N - 1), "x"],
    "ward": ["a", " b", "NA", "a "],
    "infinite": ["1", "inf", "2", ""],
    "none": ["", "?", "NA", " "],
}
TEXTS = (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string()))


def cells() -> pd.DataFrame:
    return pd.DataFrame({name: (values * N)[:N] for name, values in CELLS.items()})


@pytest.mark.parametrize("kind", TEXTS, ids=str)
def test_parquet_is_read_as_the_same_text_file(tmp_path, kind):
    path = tmp_path / "t.csv"
    cells().to_csv(path, index=False)
    arrays = {name: pa.array(column.tolist()).cast(kind) for name, column in cells().items()}
    parquet = write(pa.table(arrays), tmp_path / "t.parquet", rows=900)
    text, other = read_table(path), read_table(parquet)
    pd.testing.assert_frame_equal(other.frame, text.frame)
    assert other.notes == text.notes and text.notes[0] == "read as missing: NA in ward (1,000 cells)"
    assert len(text.notes) == 2 and ": late (1 cell such as 'x'). If" in text.notes[1]
    whole = text.frame.dtypes.to_dict()
    assert whole["whole"] == "int64" and whole["size"] == "float64" and text.frame["none"].isna().all()
    pieces = zip(table_chunks(parquet, 1000), table_chunks(path, 1000), strict=True)
    for mine, expected in pieces:
        pd.testing.assert_frame_equal(mine, expected)
    for table in (text, other):
        with pytest.raises(TableError, match=r"must hold finite numbers.*'infinite' \(1,000 of 4,000 rows\)"):
            split_columns(table.frame, target="late", environment="whole")
    blocks = ParquetBlocks.of(open_table(parquet, in_blocks=True), 700)  # as of a table larger than the memory
    read = pd.concat([frame.apply(as_text) for frame in blocks.frames()], ignore_index=True)
    pd.testing.assert_frame_equal(read, text.frame, check_dtype=False)
    assert read.dtypes[["whole", "size", "infinite"]].tolist() == ["int64", "float64", "float64"]


def test_text_that_is_to_stay_text_stays_so_and_folders_too(tmp_path):
    write(pa.table({"zip": ["00123", "?"], "b": [1, 2]}), tmp_path / "month=01" / "a.parquet")
    assert read_table(tmp_path).frame["zip"].tolist()[0] == 123
    frame = read_table(tmp_path, text=["zip"]).frame
    assert frame["zip"].tolist()[0] == "00123" and frame["zip"].isna().tolist() == [False, True]
    assert frame["month"].tolist() == ["01", "01"]
    table = open_table(tmp_path, in_blocks=True)
    assert table.types["zip"] == pa.int64() and table.types["month"] == pa.string()
    assert with_number_types(table) is table  # nothing is left to look at


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (["1.5", "2", "#DIV/0!", "1e3", ""], "a (1 cell such as '#DIV/0!')"),
        (["1,200", "3,400.5", "7", "-8"], "a (2 cells such as '1,200')"),
        (["1,5", "2,5"], "a (2 cells such as '1,5')"),  # where a comma divides columns
        (["2020-01-01", "3.5.2020"], None),
        (["heart", "lung", "7"], None),
        (["A1", "?", "NA"], None),
    ],
)
def test_text_that_is_mostly_numbers_is_named(tmp_path, cells, told):
    frame = pd.DataFrame({"a": cells, "b": [str(i) for i in range(len(cells))]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    for name in ("t.csv", "t.parquet"):
        notes = [note for note in read_table(tmp_path / name).notes if note.startswith("read as text, since")]
        assert [note.split(": ", 1)[1].split(". If")[0] for note in notes] == ([] if told is None else [told])
    assert not any("read as text" in n for n in read_table(tmp_path / "t.csv", text=["a"]).notes)


def test_decimal_commas_with_a_word_among_them(tmp_path):
    (tmp_path / "t.csv").write_text("a;b\n1,5;1\n2,5;2\nnone;3\n")
    assert "a (1 cell such as 'none')" in read_table(tmp_path / "t.csv").notes[-1]
