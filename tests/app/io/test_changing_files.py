"""Tables that are replaced while they are read, and tables that the memory does not hold."""

from __future__ import annotations

import pyarrow as pa
import pytest

from irmtv.app.io import TableError, delimited, read, read_table


def test_a_file_that_is_replaced_between_two_passes(tmp_path, monkeypatch):
    """Its columns would be read under the names of the file before."""
    path, other = tmp_path / "x.csv", tmp_path / "other.csv"
    path.write_text('a,b\n1,2\n3,"4"\n')
    other.write_text('b,a\n1,2\n3,"4"\n')
    before = delimited._guessed_numbers

    def replaced(*arguments):
        other.replace(path)
        return before(*arguments)

    monkeypatch.setattr(delimited, "_guessed_numbers", replaced)
    with pytest.raises(TableError, match=r"x\.csv' changed while it was read. Wait until it is written, then repeat"):
        read_table(path)


@pytest.mark.parametrize(
    "error", [MemoryError("no"), pa.ArrowMemoryError("malloc of size 1 failed")], ids=["py", "arrow"]
)
def test_a_table_that_is_too_large_says_so(tmp_path, monkeypatch, error):
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n")

    def fail(*_):
        raise error

    monkeypatch.setattr(read, "read_text", fail)
    with pytest.raises(TableError, match=r"x\.csv' has 8 bytes, and as a table more than there is memory for"):
        read_table(path)
