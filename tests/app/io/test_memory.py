"""How much memory may be used, and which tables are read in blocks for it."""

from __future__ import annotations

import doctest
import gc
import os
import sys
from pathlib import Path

import pytest

from app.io.folders import table, write
from irmtv.app.io import ParquetTable, Table, TableError, memory, open_table
from irmtv.app.io.memory import available_memory, give_back_memory, memory_limit


def test_examples_in_the_documentation():
    assert doctest.testmod(memory).failed == 0


def test_sizes():
    assert [memory_limit(size) for size in ("2 gb", "500MB", "1.5GiB", "10K", 7)] == [
        2_000_000_000,
        500_000_000,
        1_610_612_736,
        10_000,
        7,
    ]
    assert abs(memory_limit(None) - available_memory() // 2) < available_memory() // 4
    for bad in ("much", "-1GB", "0", "2 PB", True):
        with pytest.raises(TableError, match="memory must be a size such as 2GB"):
            memory_limit(bad)


def test_the_share_of_a_container(tmp_path):
    for name, content in (
        ("memory.max", "1000\n"),
        ("memory.current", "700\n"),
        ("memory.stat", "anon 500\ninactive_file 200\n"),
    ):
        (tmp_path / name).write_text(content)
    assert memory._of_container(tmp_path) == 500
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._of_container(tmp_path) > 1 << 60 and memory._of_container(tmp_path / "none") > 1 << 60


def test_parquet_that_is_too_large_is_not_read(tmp_path):
    path = write(table(1000), tmp_path / "a.parquet")
    assert isinstance(open_table(path, "1GB"), Table) and isinstance(open_table(tmp_path, "10KB"), ParquetTable)
    assert isinstance(open_table(path, "10KB"), ParquetTable)
    frame = open_table(path, "1GB").frame
    size = open_table(path, "10KB").bytes_in_memory()
    assert 0.5 < size / frame.memory_usage(index=False, deep=True).sum() < 2
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    assert isinstance(open_table(tmp_path / "a.csv", "1"), Table)


@pytest.mark.skipif(sys.platform != "linux", reason="by the GNU C library and /proc")
def test_memory_that_is_not_used_any_more_is_given_back():
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    class Node:
        """In a cycle with itself."""

    gc.disable()
    try:
        kept = []
        for _ in range(2000):
            node = Node()
            node.itself, node.rows = node, bytearray(60_000)  # smaller than what the allocator maps by itself
            kept.append(bytearray(10))
        del node
        before = resident()
        give_back_memory()
        assert before - resident() > 60_000_000 and len(kept) == 2000
    finally:
        gc.enable()
