"""Where a file may be written: what is refused before any work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from irmtv.app.io import TableError
from irmtv.app.io.write import check_table_writable, check_writable


def test_what_is_refused(tmp_path, monkeypatch):
    data = tmp_path / "data.csv"
    data.write_text("a\n1\n")
    (tmp_path / "hard.csv").hardlink_to(data)
    monkeypatch.chdir(tmp_path)
    for path, message in (
        (tmp_path, "--page must be a file"),
        (tmp_path / "no" / "a.csv", "--page must be in a folder that exists"),
        (data, "--page must not be a file that is read"),
        (tmp_path / ".." / tmp_path.name / "data.csv", "--page must not be a file that is read"),
        (tmp_path / "hard.csv", "--page must not be a file that is read"),
        (type(tmp_path)("data.csv"), "--page must not be a file that is read"),
        (type(tmp_path)(os.devnull), "--page must be an ordinary file"),
    ):
        with pytest.raises((TableError, FileNotFoundError), match=message):
            check_writable(path, "--page", inputs=("missing.csv", str(data)))
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda *_: False)
        with pytest.raises(TableError, match="--out cannot be written: no right"):
            check_writable(tmp_path / "a.html")


def test_what_is_not(tmp_path):
    old = tmp_path / "old.html"
    old.write_text("")
    check_writable(old, inputs=(tmp_path / "data.csv",))
    check_writable(tmp_path / "new.irmtv")
    check_table_writable(tmp_path / "new.csv.gz")
    with pytest.raises(TableError, match="--out must end in one of"):
        check_table_writable(old)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="a folder that promises to be written to and is not")
def test_a_folder_that_cannot_be_written_to_is_found_before_any_work():
    with pytest.raises(TableError, match=r"--out cannot be written: .* in '/proc'. Name another folder."):
        check_writable(Path("/proc/x"))
