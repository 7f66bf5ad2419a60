"""Files that are written as a whole, and never in place of those of others."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import pytest

from irmtv.core import files
from irmtv.core.files import WRITTEN, replaced, write_files


def names(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.name != WRITTEN and not p.is_dir())


def test_what_was_written_before_is_replaced(tmp_path):
    folder = tmp_path / "new" / "folder"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for text in ("one", "two", "two", "one"):
            assert write_files(folder, {"a.md": text, "figures/a.png": b"\x00" + text.encode()}) == [
                folder / "a.md",
                folder / "figures" / "a.png",
            ]
            assert (folder / "a.md").read_text() == text and names(folder) == ["a.md", "figures/a.png"]
        write_files(folder, {"b.md": "another"})
        write_files(folder, {"a.md": "three"})
    assert names(folder) == ["a.md", "b.md", "figures/a.png"]


def test_a_file_of_another_is_kept_and_named(tmp_path):
    (tmp_path / "a.md").write_text("notes")
    with pytest.warns(
        UserWarning, match=r"a\.md was not written by irmtv, or was changed since: it is now a\.md\.kept-1"
    ):
        write_files(tmp_path, {"a.md": "table"})
    assert (tmp_path / "a.md.kept-1").read_text() == "notes" and (tmp_path / "a.md").read_text() == "table"
    (tmp_path / "a.md").write_text("table, and a remark")
    with pytest.warns(UserWarning, match=r"a\.md\.kept-2"):
        write_files(tmp_path, {"a.md": "another table"})
    assert (tmp_path / "a.md.kept-2").read_text() == "table, and a remark"


def test_a_link_is_kept_and_what_it_leads_to_stays(tmp_path):
    (tmp_path / "mine").write_text("notes")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.md").symlink_to(tmp_path / "mine")
    with pytest.warns(UserWarning, match="kept-1"):
        write_files(tmp_path / "out", {"a.md": "table"})
    assert (tmp_path / "mine").read_text() == "notes" and not (tmp_path / "out" / "a.md").is_symlink()


@pytest.mark.filterwarnings("error")
def test_the_same_content_and_empty_files_are_nobodys(tmp_path):
    (tmp_path / "a.md").write_text("table")
    (tmp_path / "b.md").write_text("")
    write_files(tmp_path, {"a.md": "table", "b.md": "table"})
    assert names(tmp_path) == ["a.md", "b.md"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("killed_at", range(4))
def test_killed_between_two_files_all_are_still_ours(tmp_path, monkeypatch, killed_at):
    contents = {"a.md": "old", "b.md": "old", "c.md": "old"}
    write_files(tmp_path, contents)
    left = iter(range(killed_at))

    def replace(*paths):
        if next(left, None) is None:
            raise KeyboardInterrupt
        os.rename(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            write_files(tmp_path, dict.fromkeys(contents, "new"))
    write_files(tmp_path, dict.fromkeys(contents, "newer"))
    assert names(tmp_path) == ["a.md", "b.md", "c.md"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a.md": 3}', "[" * 5000])
def test_a_list_of_files_that_is_damaged_makes_all_files_those_of_others(tmp_path, text):
    write_files(tmp_path, {"a.md": "old"})
    (tmp_path / WRITTEN).write_text(text)
    with pytest.warns(UserWarning, match="kept-1"):
        write_files(tmp_path, {"a.md": "new"})
    assert json.loads((tmp_path / WRITTEN).read_text()).keys() == {"a.md"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_what_is_stopped_half_way_leaves_the_file_as_it_was(tmp_path, error):
    (tmp_path / "a").write_text("old")

    def stopped():
        with replaced(tmp_path / "a") as beside:
            beside.write_text("ne")
            raise error

    with pytest.raises(error):
        stopped()
    assert (tmp_path / "a").read_text() == "old" and names(tmp_path) == ["a"]
