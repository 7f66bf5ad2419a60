"""A folder of Parquet files is a table: what is read, and what every kind of damage says."""

from __future__ import annotations

import threading

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from app.io.folders import table, write, write_folder
from irmtv.app.io import TableError, TableNotFoundError, read_table, table_chunks, table_names
from irmtv.app.io.read import chunks_as_they_stand
from irmtv.app.io.write import check_writable

READ = (read_table, lambda path: list(table_chunks(path, rows=40)))


def refused(path, message, readers=READ):
    for read in readers:
        with pytest.raises(TableError, match=message):
            read(path)


def test_a_folder_is_the_table_of_its_files_in_the_order_of_their_paths(tmp_path):
    whole = table(200).assign(site=np.repeat(["north", "south", "été=1"], [100, 60, 40]))
    for label, part in whole.groupby("site"):
        name = "%C3%A9t%C3%A9%3D1" if label == "été=1" else label
        half = len(part) // 2
        write(part.drop(columns="site")[half:], tmp_path / f"site={name}" / "b.parquet")
        write(part.drop(columns="site")[:half], tmp_path / f"site={name}" / "a.pq")
    write(whole[:5], tmp_path / "_hidden.parquet")
    write(whole[:5], tmp_path / ".hidden" / "x.parquet")
    (tmp_path / "_SUCCESS").touch()
    in_order = pd.concat([whole[whole["site"] == label] for label in ("été=1", "north", "south")], ignore_index=True)
    read = read_table(tmp_path)
    pd.testing.assert_frame_equal(read.frame, in_order, check_dtype=False)
    assert read.notes == () and table_names(tmp_path) == list(whole.columns)
    chunks = list(table_chunks(tmp_path, rows=30))
    assert [len(chunk) for chunk in chunks] == [30] * 6 + [20]
    pd.testing.assert_frame_equal(pd.concat(chunks), read.frame)
    some = read_table(tmp_path, columns=["site", "id"]).frame
    pd.testing.assert_frame_equal(some, in_order[["id", "site"]], check_dtype=False)
    assert read_table(tmp_path, columns=["site"]).frame["site"].tolist() == in_order["site"].tolist()


def test_partitions_are_whole_numbers_or_text_or_missing(tmp_path):
    for year, code, place in ((2019, "01", "a"), (2020, "12", "__HIVE_DEFAULT_PARTITION__")):
        write(table(4), tmp_path / f"year={year}" / f"code={code}" / f"place={place}" / "x.parquet")
    frame = read_table(tmp_path).frame
    assert frame["year"].tolist() == [2019] * 4 + [2020] * 4 and frame["year"].dtype == np.int64
    assert frame["code"].tolist() == ["01"] * 4 + ["12"] * 4
    assert frame["place"].isna().tolist() == [False] * 4 + [True] * 4
    assert read_table(tmp_path, text=["year"]).frame["year"].tolist()[:1] == ["2019"]
    assert next(iter(table_chunks(tmp_path, rows=1, text=["year"])))["year"].tolist() == ["2019"]


def test_types_of_one_kind_go_together(tmp_path):
    first = pa.table(
        {
            "number": pa.array([1, 2], pa.int32()),
            "word": pa.array(["a", "b"]).dictionary_encode(),
            "time": pa.array([0, 1], pa.timestamp("s")),
            "gone": pa.nulls(2),
        }
    )
    second = pa.table(
        {
            "time": pa.array([1500, None], pa.timestamp("ms")),
            "gone": pa.array([5.0, None]),
            "word": pa.array(["c", None], pa.large_string()),
            "number": pa.array([0.5, None]),
        }
    )
    write(first, tmp_path / "a.parquet")
    write(second, tmp_path / "b.parquet")
    for frame in (read_table(tmp_path).frame, pd.concat(table_chunks(tmp_path, rows=1))):
        assert frame.columns.tolist() == ["number", "word", "time", "gone"]
        assert frame["number"].tolist()[:3] == [1, 2, 0.5] and frame["word"].tolist()[:3] == ["a", "b", "c"]
        assert frame["time"].tolist()[:3] == [pd.Timestamp(value, unit="ms") for value in (0, 1000, 1500)]
        assert frame["gone"].isna().tolist() == [True, True, False, True]
    whole = pa.table(
        {"number": pa.array([3], pa.uint8()), "word": ["d"], "time": pa.array([0], pa.date32()), "gone": [1]}
    )
    write(whole, tmp_path / "c.parquet")
    assert read_table(tmp_path).frame["number"].tolist()[-1] == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"size": lambda f: f["size"].astype(str)},
            r"'size' must be of one kind.*text \(.*b.parquet.*numbers \(",
        ),
        ({"day": lambda f: f["day"].dt.tz_localize("UTC")}, r"'day' must be of one kind.*dates with a time zone"),
        ({"more": lambda f: 1}, r"b.parquet' must have the columns of the other files. It has 'more'"),
        ({"colour": None, "color": lambda f: "red"}, r"b.parquet' .*no column 'colour', .*Did you mean 'color'"),
    ],
    ids=["numbers and text", "time zone", "one more", "another name"],
)
def test_a_shard_with_other_columns_or_types(tmp_path, change, message):
    write(table(), tmp_path / "a.parquet")
    other = table()
    for name, make in change.items():
        other = other.drop(columns=name) if make is None else other.assign(**{name: make})
    write(other, tmp_path / "b.parquet")
    refused(tmp_path, message, (*READ, table_names))


def test_damaged_files_are_named_with_their_row_group(tmp_path):
    write(table(), tmp_path / "a.parquet")
    path = write(table(), tmp_path / "b.parquet")
    whole = path.read_bytes()
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        start = file.metadata.row_group(2).column(1).dictionary_page_offset or (
            file.metadata.row_group(2).column(1).data_page_offset
        )
    path.write_bytes(whole[:start] + b"\xff" * 40 + whole[start + 40 :])
    refused(tmp_path, r"b.parquet' is damaged: its rows cannot be decoded \(row group 3 of 4\)")
    path.write_bytes(whole[: len(whole) // 2])
    refused(tmp_path, "b.parquet' is not a whole Parquet file", (*READ, table_names))
    path.write_bytes(b"")
    refused(tmp_path, "b.parquet' is empty", (*READ, table_names))


def test_folders_without_parquet_files_say_what_to_do(tmp_path):
    refused(tmp_path, "is a folder without Parquet files", (*READ, table_names))
    (tmp_path / "sales.csv").write_text("a,b\n1,2\n")
    refused(tmp_path, r"It has 'sales.csv'. Name one file, such as '.*sales.csv', or write the files as Parquet")
    write(table(), tmp_path / "a.parquet")
    assert read_table(tmp_path).notes == ("1 file of the folder is no Parquet and not read: 'sales.csv'",)


def test_folders_name_columns_once(tmp_path):
    write(table().assign(site="north"), tmp_path / "site=north" / "a.parquet")
    refused(tmp_path, r"'site' is a column of .*a.parquet' and the name of the folders around it")
    write(table(), tmp_path / "site=north" / "a.parquet")
    write(table(), tmp_path / "b.parquet")
    refused(
        tmp_path, "must lie in folders of the same columns. Got site=... for .*a.parquet' and none for .*b.parquet'"
    )
    write(table(), tmp_path / "twice" / "site=1" / "site=2" / "a.parquet")
    refused(tmp_path / "twice", "name a column twice")


def test_files_that_change_or_vanish_while_they_are_read(tmp_path):
    write_folder(tmp_path, table().assign(site=np.repeat(["a", "b"], 50)), "site", files=1)
    last = tmp_path / "site=b" / "part-0.parquet"
    chunks = table_chunks(tmp_path, rows=1)
    next(chunks)
    write(table(50), last)
    with pytest.raises(TableError, match=r"part-0.parquet' changed while it was read"):
        list(chunks)
    chunks = table_chunks(tmp_path, rows=1)
    next(chunks)
    last.unlink()
    with pytest.raises(TableNotFoundError, match=r"part-0.parquet' cannot be found any more"):
        list(chunks)
    assert not [thread for thread in threading.enumerate() if thread.name == "read-ahead"]


def test_cells_are_those_of_the_files(tmp_path):
    write(pa.table({"a": pa.array([1, None], pa.int16()), "b": ["x", "y"]}), tmp_path / "n=1" / "a.parquet")
    _, cells = next(chunks_as_they_stand(tmp_path))
    assert cells.to_pydict() == {"a": [1, None], "b": ["x", "y"], "n": [1, 1]}


def test_what_is_written_must_not_be_a_part_of_the_table(tmp_path):
    write(table(), tmp_path / "a.parquet")
    with pytest.raises(TableError, match="must not be a Parquet file in the folder that is read"):
        check_writable(tmp_path / "out.parquet", inputs=[tmp_path])
    check_writable(tmp_path / "out.csv", inputs=[tmp_path])
