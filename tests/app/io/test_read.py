"""Tables from files: what is read, and what every kind of damage says."""

from __future__ import annotations

import codecs
import doctest
import gzip
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from skrub._clean_null_strings import STR_NA_VALUES

from irmtv.app.io import (
    TableError,
    delimited,
    read,
    read_table,
    table_chunks,
    table_names,
    write,
)
from irmtv.app.io.source import TextSource
from irmtv.data.tables import columns, steps


def written(folder: Path, content: str | bytes, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# ---- what is read -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [read, columns, steps, write])
def test_examples_in_the_documentation(module):
    assert doctest.testmod(module).failed == 0


ODD = {
    "plain": ("a,b\n1,x\n2,y\n", {"a": [1, 2], "b": ["x", "y"]}),
    "byte-order mark": (codecs.BOM_UTF8 + b"a,b\n1,x\n", {"a": [1], "b": ["x"]}),
    "windows line ends": ("a,b\r\n1,x\r\n2,y\r\n", {"a": [1, 2], "b": ["x", "y"]}),
    "old line ends": ("a,b\r1,x\r2,y\r", {"a": [1, 2], "b": ["x", "y"]}),
    "no last line end": ("a,b\n1,x\n2,y", {"a": [1, 2], "b": ["x", "y"]}),
    "quoted line end": ('a,b\n1,"x\nz"\n2,y\n', {"a": [1, 2], "b": ["x\nz", "y"]}),
    "quoted comma and quote": ('a,b\n1,"x, ""z"""\n', {"a": [1], "b": ['x, "z"']}),
    "quoted numbers": ('"a","b"\n"1","x"\n', {"a": [1], "b": ["x"]}),
    "quote later than the sample": ("a,b\n" + "1,x\n" * 300_000 + '2,"y\nz"\n', None),
    "spaces in names": ("house price , where from\n1,x\n", {"house price": [1], "where from": ["x"]}),
    "quoted line end in a name": ('"house\nprice",b\n1,x\n', {"house price": [1], "b": ["x"]}),
    "empty lines": ("\n\na,b\n1,x\n\n2,y\n\n", {"a": [1, 2], "b": ["x", "y"]}),
    "semicolons": ("a;b\n1;x,z\n", {"a": [1], "b": ["x,z"]}),
    "tabs": ("a\tb\n1\tx\n", {"a": [1], "b": ["x"]}),
    "decimal commas": ("a;b\n1,5;x\n-2,25;y\n", {"a": [1.5, -2.25], "b": ["x", "y"]}),
    "spaces and signs": ("a,b\n +1.5 , x \n-2e3,y\n", {"a": [1.5, -2000.0], "b": ["x", "y"]}),
    "true and false are text": ("a,b\nTrue,1\nFalse,2\n", {"a": ["True", "False"], "b": [1, 2]}),
    "dates are text": ("a,b\n2014-05-02,1\n2014-05-03,2\n", {"a": ["2014-05-02", "2014-05-03"], "b": [1, 2]}),
    "unicode": ("größe,ort\n1,Zürich\n", {"größe": [1], "ort": ["Zürich"]}),
    "row numbers of pandas": (",a,b\n0,1,x\n1,5,y\n", {"a": [1, 5], "b": ["x", "y"]}),
    "large integers": ("a,b\n9223372036854775807,1\n3,2\n", {"a": [9223372036854775807, 3], "b": [1, 2]}),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_but_valid(tmp_path, case):
    content, expected = ODD[case]
    frame = read_table(written(tmp_path, content)).frame
    if expected is None:
        assert len(frame) == 300_001 and frame["b"].iloc[-1] == "y\nz"
        expected = {"a": [1] * 300_000 + [2]}
    for name, values in expected.items():
        assert frame[name].tolist() == values
    again = pd.concat(table_chunks(tmp_path / "table.csv", rows=2 if len(frame) < 9 else 70_000))
    for name in frame.columns:  # in pieces as in a whole
        assert again[name].tolist() == frame[name].tolist()


def test_against_pandas(tmp_path):
    rng = np.random.default_rng(0)
    own = pd.DataFrame({"n": rng.normal(size=500), "i": rng.integers(-9, 9, 500), "t": rng.choice(["a", "b c"], 500)})
    own.loc[::7, "n"] = np.nan
    own.loc[::3, "t"] = None
    for name, options in (("t.csv", {}), ("t.csv.gz", {}), ("t.tsv", {"sep": "\t"}), ("t.tsv.gz", {"sep": "\t"})):
        own.to_csv(tmp_path / name, index=False, **options)
        pd.testing.assert_frame_equal(read_table(tmp_path / name).frame, own.astype({"t": pd.Series(["a"]).dtype}))
    own.to_parquet(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(read_table(tmp_path / "t.parquet").frame, own.astype({"t": pd.Series(["a"]).dtype}))


def test_the_first_lines_do_not_decide(tmp_path):
    """A column of a million integers and then a text is text, every value as it stands; with 1.5 it is numbers."""
    for last, kind in (("x", str), ("1.5", float)):
        path = written(tmp_path, "a,b\n" + "007,1\n" * 200_000 + f"{last},2\n")
        values = read_table(path).frame["a"]
        assert isinstance(values.iloc[-1], kind)
        assert values.iloc[0] == ("007" if kind is str else 7.0)


def test_what_counts_as_missing(tmp_path):
    """Of numbers and of text; of text a note says so. skrub's own list is longer by none, None and leftovers of C."""
    told = [*delimited.MISSING, "", " "]
    path = written(tmp_path, "n,t,k\n" + "".join(f"{word},{word},x\n" for word in told) + "1,none,x\n")
    table = read_table(path)
    assert table.frame["n"].isna().sum() == len(told) == table.frame["t"].isna().sum()
    assert table.frame["n"].iloc[-1] == 1 and table.frame["t"].iloc[-1] == "none"
    (note,) = table.notes
    assert note == "read as missing: " + "; ".join(f"{mark} in t (1 cell)" for mark in delimited.MISSING)
    assert {"none", "None", "..."} <= set(STR_NA_VALUES) - set(delimited.MISSING)


def test_notes(tmp_path):
    assert read_table(written(tmp_path, "a,b\n1,2\n")).notes == ()
    assert "semicolon" in read_table(written(tmp_path, "a;b\n1;2\n")).notes[0]
    assert read_table(written(tmp_path, "a\tb\n1\t2\n", "t.tsv")).notes == ()
    assert "1.5 in 'a'" in read_table(written(tmp_path, "a;b\n1,5;2\n")).notes[1]
    assert "all of them are numbers" in read_table(written(tmp_path, "1,2\n3,4\n")).notes[0]
    assert "left out" in read_table(written(tmp_path, "a,b,\n1,2,\n")).notes[0]
    assert "called 'Unnamed: 0'" in read_table(written(tmp_path, ",b,c\n7,2,3\n8,1,1\n")).notes[0]


def test_text_that_stays_text(tmp_path):
    path = written(tmp_path, "id,b\n00123,1\n00124,2\n")
    assert read_table(path).frame["id"].tolist() == [123, 124]
    assert read_table(path, text=["id"]).frame["id"].tolist() == ["00123", "00124"]
    assert next(table_chunks(path, text=["id"]))["id"].tolist() == ["00123", "00124"]
    assert read_table(path, columns=["b"]).frame.columns.tolist() == ["b"]
    assert table_names(path) == ["id", "b"]


def test_thousands_of_columns_and_long_values(tmp_path):
    names = [f"column {j}" for j in range(5000)]
    path = written(tmp_path, ",".join(names) + "\n" + 3 * (",".join(["1.5"] * 5000) + "\n"))
    assert read_table(path).frame.shape == (3, 5000)
    path = written(tmp_path, f'a,b\n"{"x" * 3_000_000}",1\ny,2\n')
    assert read_table(path).frame["a"].str.len().tolist() == [3_000_000, 1]


def test_encodings(tmp_path):
    path = written(tmp_path, "größe,b\n1,é\n".encode("latin-1"))
    with pytest.raises(TableError, match=r"not UTF-8 text: byte 0xf6 in line 1 .*--encoding latin-1"):
        read_table(path)
    assert read_table(path, encoding="latin-1").frame.to_dict("list") == {"größe": [1], "b": ["é"]}
    path = written(tmp_path, "a,b\n1,é\n".encode("utf-16"))
    with pytest.raises(TableError, match="Use --encoding utf-16"):
        read_table(path)
    assert read_table(path, encoding="utf-16").frame["b"].tolist() == ["é"]
    with pytest.raises(TableError, match=r"name that Python knows.*Did you mean 'latin-1'"):
        read_table(path, encoding="latin-11")
    with pytest.raises(TableError, match="one of text"):
        read_table(path, encoding="hex")
    with pytest.raises(TableError, match=r"is not ascii text: byte 0xc3 in line 3"):
        read_table(written(tmp_path, "a,b\n1,e\n1,é\n"), encoding="ascii")


# ---- damage -------------------------------------------------------------------------------------------------------

GZ = gzip.compress(b"a,b\n" + "".join(f"{i},{i % 97}\n" for i in range(1000)).encode(), mtime=0)
DAMAGED = {
    "empty": (b"", "is empty"),
    "spaces": (b" \n \n", "has no text"),
    "header only": (b"a,b\n", "no rows"),
    "header without line end": (b"a,b", "no rows"),
    "one column": (b"a\n1\n", "one column only, 'a'.*check the separator"),
    "duplicate names": (b"a,b,a\n1,2,3\n", "every column name once. Got 'a' 2 times"),
    "duplicate names but for spaces": (b"a,b, a \n1,2,3\n", "Got 'a' 2 times"),
    "empty names": (b",,\n1,2,3\n", "empty names"),
    "a row too short": (b"a,b,c\n1,2,3\n4,5\n", "line 3: 2 values where the first line names 3 columns"),
    "a row too long": (b"a,b,c\n1,2,3\n4,5,6,7\n", "line 3: 4 values"),
    "a row too short after a quoted line end": (b'a,b,c\n1,"2\n\n",3\n4,5\n', "line 5: 2 values"),
    "an open quote": (b'a,b\n1,"x\n2,y\n', "line 2: a quote is opened and never closed"),
    "an open quote later than the sample": (
        b"a,b\n" + b"1,x\n" * 300_000 + b'1,"x\n2,y\n',
        "line 300002: a quote is opened and never closed",
    ),
    "an open quote in the names": (b'a,"b\n1,2\n', "broken quoting in its first line"),
    "text after a quote": (b'a,b\n"5" pipe",3\n4,5\n', r"line 2: broken quoting"),
    "an open quote far from the end": (b'a,b\n1,2\n"\n' + b"x,1\n" * 5_000_000, "line 3: a value of more than"),
    "no UTF-8 deep inside": (b"a,b\n" + b"1,2\n" * 600_000 + b"1,\xff\n", "byte 0xff in line 600002"),
    "a NUL": (b"a,b\n1,2\n3,\0\n", "NUL byte in line 3"),
    "control characters in names": (b"a,b\x07\n1,2\n", "control characters"),
    "Parquet": (b"PAR1....PAR1", "a Parquet file: rename"),
    "Excel": (b"PK\x03\x04....", "save the sheet as CSV"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_told(tmp_path, case):
    content, message = DAMAGED[case]
    path = written(tmp_path, content)
    for read_it in (read_table, lambda p: list(table_chunks(p))):
        with pytest.raises(TableError, match=f"(?s){message}") as told:
            read_it(path)
        assert "table.csv" in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv.gz", GZ[:-12], "gzip stopped about line .*Copy it again"),
        ("t.csv.gz", GZ[:60], "gzip stopped"),
        ("t.csv.gz", GZ[:30] + b"\0\0\0" + GZ[33:], "gzip stopped"),
        ("t.csv.gz", b"a,b\n1,2\n", "not compressed by gzip"),
        ("t.csv.gz", b"", "is empty"),
        ("t.parquet", b"a,b\n1,2\n", "not a whole Parquet file"),
        ("t.parquet", b"", "is empty"),
        ("t.parquet.gz", b"", "compressed inside"),
        ("t.xlsx", b"PK", r"must end in one of .csv"),
        ("t.irmtv", b"PK", "is a model, not a table. Name the model first"),
        ("t", b"a,b\n1,2\n", "Got no suffix"),
        ("t.data.gz", GZ, "Got .data.gz. Rename it"),
    ],
    ids=range(12),
)
def test_damage_by_suffix(tmp_path, name, content, message):
    path = written(tmp_path, content, name)
    for read_it in (read_table, lambda p: list(table_chunks(p)), table_names):
        if read_it is table_names and "gzip stopped" in message:
            continue  # the header may be whole
        with pytest.raises(TableError, match=message):
            read_it(path)


def test_gzip_that_is_not_called_so(tmp_path):
    assert len(read_table(written(tmp_path, GZ)).frame) == 1000


def test_damaged_parquet(tmp_path):
    path = tmp_path / "t.parquet"
    pd.DataFrame({"a": np.random.default_rng(0).normal(size=5000), "b": 1}).to_parquet(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TableError, match="not a whole Parquet file"):
        read_table(path)
    path.write_bytes(whole[:4] + b"\xff" * 40 + whole[44:])
    with pytest.raises(TableError, match="damaged"):
        read_table(path)
    with pytest.raises(TableError, match="damaged"):
        list(table_chunks(path))


def test_kinds_of_parquet(tmp_path):
    path = tmp_path / "t.parquet"
    table = pa.table(
        {
            "whole": pa.array([1, None, 3]),
            "money": pa.array([1, 2, 3], pa.decimal128(9, 2)),
            "day": pa.array([0, 1, None], pa.date32()),
            "word": pa.array(["a", None, "b"]).dictionary_encode(),
            "true": pa.array([True, False, True]),
            "list": pa.array([[1], [2], [3]]),
            "bytes": pa.array([b"a", b"b", b"c"]),
            "nothing": pa.nulls(3),
            "__index_level_0__": pa.array([0, 1, 2]),
        }
    )
    pq.write_table(table, path)
    read_back = read_table(path)
    assert read_back.frame.columns.tolist() == ["whole", "money", "day", "word", "true", "nothing"]
    assert "'list', 'bytes'" in read_back.notes[0]
    assert read_back.frame["money"].tolist() == [1, 2, 3] and read_back.frame["money"].dtype == np.float64
    assert read_back.frame["day"].dt.year.tolist()[:2] == [1970, 1970]
    assert not isinstance(read_back.frame["word"].dtype, pd.CategoricalDtype)
    assert [len(piece) for piece in table_chunks(path, rows=2)] == [2, 1]
    for bad, message in ((table.slice(0, 0), "no rows"), (table.select(["whole"]), "1 columns")):
        pq.write_table(bad, path)
        with pytest.raises(TableError, match=message):
            read_table(path)
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), path)
    with pytest.raises(TableError, match="every column name once"):
        read_table(path)


def test_paths(tmp_path):
    written(tmp_path, "a,b\n1,2\n", "houses.csv")
    with pytest.raises(FileNotFoundError, match=r"no file .*Did you mean 'houses.csv'"):
        read_table(tmp_path / "house.csv")
    with pytest.raises(TableError, match=r"is a folder without Parquet files.*such as .*houses.csv"):
        read_table(tmp_path)
    with pytest.raises(TableError, match=r"folder .* does not exist"):
        read_table(tmp_path / "no" / "houses.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(TableError, match="neither a file nor a folder"):
        read_table(tmp_path / "pipe.csv")
    with pytest.raises(TableError, match=r"no column 'aa'.*Did you mean 'a'"):
        read_table(tmp_path / "houses.csv", columns=["aa"])
    with pytest.raises(ValueError, match="rows must be a positive integer"):
        list(table_chunks(tmp_path / "houses.csv", rows=0))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path):
    path = written(tmp_path, "a,b\n1,2\n")
    path.chmod(0)
    with pytest.raises(TableError, match="permission denied"):
        read_table(path)


def test_permission_is_told(tmp_path, monkeypatch):
    path = written(tmp_path, "a,b\n1,2\n")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(TableError, match="permission denied"):
        read_table(path)


def test_pieces_are_as_asked_and_progress_ends_at_one(tmp_path):
    path = written(tmp_path, "a,b\n" + "".join(f"{i},x{i}\n" for i in range(1000)))
    shares: list[float] = []
    pieces = list(table_chunks(path, rows=300, progress=shares.append))
    assert [len(piece) for piece in pieces] == [300, 300, 300, 100]
    assert pd.concat(pieces)["a"].tolist() == list(range(1000)) == pd.concat(pieces).index.tolist()
    assert shares[-1] == 1.0


def test_lines_of_any_length_are_read_in_blocks(tmp_path, monkeypatch):
    """Whatever the size of the blocks, a character or a record may be cut by their ends."""
    from irmtv.app.io import source

    path = written(tmp_path, "ä,b\n" + "".join(f'{i},"ü\n{i}"\n' for i in range(200)))
    expected = read_table(path).frame
    for size in (64, 65, 67):
        monkeypatch.setattr(source, "BLOCK", size)
        pd.testing.assert_frame_equal(read_table(path).frame, expected)


def test_half_a_character_before_a_block_of_plain_letters(tmp_path, monkeypatch):
    from irmtv.app.io import source

    content = b"a,b\n" + b"1,x\n" * 30
    monkeypatch.setattr(source, "BLOCK", 64)
    with pytest.raises(TableError, match="not UTF-8 text: byte 0xc3 in line 16"):
        read_table(written(tmp_path, content[:63] + b"\xc3" + content[63:]))


def test_an_unusual_file_is_read_with_care_after_all(tmp_path, monkeypatch):
    """The quick way is taken for simple files, and given up where a later line is not as the first ones."""
    taken = []
    real = delimited._read_simple
    monkeypatch.setattr(delimited, "_read_simple", lambda *a: taken.append(real(*a)) or taken[-1])
    read_table(written(tmp_path, "a,b\n" + "1,2\n" * 400_000))
    assert taken.pop() is not None
    frame = read_table(written(tmp_path, "a,b\n" + "1,2\n" * 400_000 + "x,3\n")).frame
    assert taken.pop() is None and frame["a"].iloc[-1] == "x"


def test_a_gzip_file_that_unfolds_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("irmtv.app.io.source.MOST_UNPACKED", 3_000_000)
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n" + b"0,0\n" * 2_000_000))
    with pytest.raises(TableError, match=r"unfolds to more than 200 times its size, as no table does"):
        read_table(path)
    path.write_bytes(gzip.compress(b"a,b\n" + b"0,0\n" * 500_000))
    assert len(read_table(path).frame) == 500_000


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("a,b\n" + "1,2\n" * 1000)
    source = TextSource(path, None)
    source.read(10)
    with path.open("a") as file:
        file.write("3,4\n")
    with pytest.raises(TableError, match=r"changed while it was read"):
        source.read()


def test_names_of_parquet_columns_can_be_seen(tmp_path):
    path = tmp_path / "t.parquet"
    pd.DataFrame({"a\x1b[31m": [1.0, 2.0], "b": [1.0, 2.0]}).to_parquet(path)
    with pytest.raises(TableError, match=r"has column names with control characters: 'a\\x1b\[31m'"):
        read_table(path)
