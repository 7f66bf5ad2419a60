"""Files that are not as they should be: each is one clear ModelFileError, and nothing of it is used."""

from __future__ import annotations

import os
import pickle
import re
import struct
import warnings
import zipfile

import numpy as np
import pytest
import torch

from irmtv.persistence import ModelFileError, read_model, write_model
from irmtv.persistence.archive import pack, unpack, write_bytes
from persistence.files import by_hand, entries, reseal, resum, small


class Bomb:
    """Whoever unpickles it is told so."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('a pickle was executed')",))


@pytest.fixture
def file(tmp_path):
    return small(tmp_path / "model.irmtv")


def refused(path, message):
    with pytest.raises(ModelFileError, match=message):
        read_model(path)


def test_every_truncation_is_noticed(file):
    data = file.read_bytes()
    assert len(data) < 2000
    for length in range(len(data)):
        file.write_bytes(data[:length])
        refused(file, "is empty" if length == 0 else "is incomplete")
    file.write_bytes(data)
    read_model(file)


def test_every_flipped_byte_is_noticed(file):
    data = file.read_bytes()
    for position in range(len(data)):
        for mask in (0x01, 0x80):
            changed = bytearray(data)
            changed[position] ^= mask
            file.write_bytes(changed)
            refused(file, "is damaged|is incomplete|is not a model file of irmtv")


def test_more_bytes_at_either_end_are_noticed(file):
    data = file.read_bytes()
    file.write_bytes(data + b"\n")
    refused(file, "is incomplete|is damaged")
    file.write_bytes(b"#!/bin/sh\n" + data)
    refused(file, "is not a model file of irmtv: it is of another format")


def test_no_file_and_a_folder(tmp_path):
    missing = tmp_path / "modle.irmtv"
    refused(missing, f"path must be a model file. There is no file {re.escape(repr(str(missing)))}; check the spelling")
    with pytest.raises(FileNotFoundError, match="There is no file"):  # also caught as what it is
        read_model(missing)
    refused(tmp_path, "is a folder; name the file in it")


def test_a_file_that_may_not_be_read(file, monkeypatch):
    def fail(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(file), "open", fail)
    refused(file, "cannot be read: .*Permission denied")


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_is_refused_and_not_run(tmp_path, protocol):
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(Bomb(), protocol))
    refused(path, "it is a pickle" if protocol >= 2 else "it is of another format")


@pytest.mark.parametrize("new_zip", [True, False])
def test_a_torch_file_is_refused_and_not_run(tmp_path, new_zip):
    path = tmp_path / "model.pt"
    torch.save({"w": torch.zeros(2), "bomb": Bomb()}, path, _use_new_zipfile_serialization=new_zip)
    refused(path, r"it is a file of torch.save" if new_zip else r"it is a pickle \(pickle, joblib or an old torch.save")


def test_other_formats_are_named(tmp_path, file):
    path = tmp_path / "other"
    path.write_bytes(entries(file)["arrays.safetensors"])
    refused(path, "it is a safetensors file. Give a file that save")
    for data, name in ((b"\x1f\x8b\x08", "gzip"), (b"\x93NUMPY", "a numpy array"), (b'{"a": 1}', "JSON")):
        path.write_bytes(data)
        refused(path, f"is not a model file of irmtv: it is .*{name}")


def test_a_foreign_zip(tmp_path):
    path = tmp_path / "foreign.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello " * 99)
    refused(path, "it is another zip archive")


@pytest.mark.parametrize("name", ["../evil.txt", "/etc/passwd", "..\\evil.txt", "C:\\evil", "a/b", "__init__.PY", "é"])
def test_names_that_lead_elsewhere(tmp_path, file, name):
    folder = tmp_path / "read_here"
    folder.mkdir()
    path = by_hand(folder / "m.irmtv", [(n, d) for n, d in entries(file).items() if n != "mimetype"] + [(name, b"x")])
    refused(path, "contains entries that no model file has")
    assert [p.name for p in folder.iterdir()] == ["m.irmtv"]  # nothing was extracted
    assert not (tmp_path / "evil.txt").exists()


def test_an_entry_too_many_or_too_few(file):
    good = file.read_bytes()
    reseal(file, {"notes.txt": b"x"})
    refused(file, r"must have the entries .* Missing: \[\]; more: \['notes.txt'\]")
    file.write_bytes(good)
    reseal(file, {"arrays.safetensors": None})
    refused(file, r"Missing: \['arrays.safetensors'\]")
    file.write_bytes(good)
    reseal(file, {"irmtv.json": None})
    refused(file, "it lacks irmtv.json")


def test_duplicate_entries(tmp_path, file):
    listed = [(n, d) for n, d in entries(file).items() if n != "mimetype"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile warns its writer
        path = by_hand(tmp_path / "m.irmtv", [*listed, ("irmtv.json", b"{}")])
    refused(path, "contains entries more than once: 'irmtv.json'")


def test_a_zip_bomb(tmp_path, file):
    zeros = b"\0" * 10_000_000
    listed = [(n, d) for n, d in entries(file).items() if n != "mimetype"]
    path = by_hand(tmp_path / "m.irmtv", [*listed, ("bomb", zeros)], zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 100_000
    refused(path, "contains a compressed entry")


def test_declared_sizes_are_checked_against_the_file(tmp_path, file):
    """Two entries of the directory that share the same bytes: each fits, together they do not."""
    data = b"x" * 4000
    path = by_hand(tmp_path / "m.irmtv", [("a", data), ("b", b"")])
    raw = path.read_bytes()
    directory = raw.index(b"PK\x01\x02", raw.rindex(data))
    where = {
        raw[m.end() + 42 : m.end() + 43]: m.start() for m in re.finditer(b"PK\x01\x02", raw) if m.start() >= directory
    }
    a, b = where[b"a"], where[b"b"]
    changed = bytearray(raw)
    changed[b + 16 : b + 28] = raw[a + 16 : a + 28]  # checksum and both sizes
    changed[b + 42 : b + 46] = raw[a + 42 : a + 46]  # where it begins
    resum(path, bytes(changed))
    refused(path, "declares [0-9]+ bytes of content, but has only|is not a zip archive as irmtv writes it")
    changed[a + 20 : a + 28] = struct.pack("<II", 2**31, 2**31)
    resum(path, bytes(changed))
    refused(path, "declares [0-9]+ bytes of content, but has only")


def test_a_wrong_zip_with_the_right_checksum_is_one_clear_error(file):
    """Every byte of the file changed by somebody who also corrects the checksum: an answer or a ModelFileError."""
    data = file.read_bytes()
    outcomes = set()
    for position in range(len(data) - 64):
        changed = bytearray(data)
        changed[position] ^= 0xFF
        resum(file, bytes(changed))
        try:
            read_model(file)
            outcomes.add("read")
        except ModelFileError as error:
            outcomes.add(type(error).__name__)
    assert outcomes == {"read", "ModelFileError"}


def test_the_same_entries_give_the_same_bytes(monkeypatch):
    once = pack({"a": b"1", "b": b"2"})
    monkeypatch.setattr("time.time", lambda: 0.0)
    monkeypatch.setattr("time.localtime", lambda *_: (1999, 1, 1, 0, 0, 0, 0, 1, 0))
    assert pack({"a": b"1", "b": b"2"}) == once
    assert unpack(once, re.compile("[ab]"), "x") == {"a": b"1", "b": b"2"}


def test_anybody_can_look_inside(file):
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["mimetype", "irmtv.json", "arrays.safetensors"]
        assert archive.read("mimetype") == b"application/vnd.irmtv.model"


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(file, monkeypatch, step):
    before = file.read_bytes()

    def fail(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="No space left"):
        write_model(file, "demo", {"w": np.ones(3)}, {})
    assert file.read_bytes() == before
    assert [p.name for p in file.parent.iterdir()] == [file.name]


def test_what_cannot_be_stored_leaves_the_old_file(file):
    before = file.read_bytes()
    with pytest.raises(ModelFileError):
        write_model(file, "demo", {}, {"a": object()})
    assert file.read_bytes() == before


def test_writing_to_a_folder_or_into_none(tmp_path):
    with pytest.raises(ModelFileError, match="is a folder; add a file name"):
        write_bytes(tmp_path, b"")
    with pytest.raises(ModelFileError, match=r"There is no folder .*; make it first"):
        write_bytes(tmp_path / "none" / "m.irmtv", b"")


def test_the_temporary_file_lies_beside_its_target(tmp_path, monkeypatch):
    seen = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (seen.append((a, b)), replace(a, b)))
    write_bytes(tmp_path / "m", b"x")
    assert seen[0][0].parent == seen[0][1].parent and seen[0][0] != seen[0][1]
    assert (tmp_path / "m").read_bytes() == b"x"


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "models").mkdir()
    target, link = tmp_path / "models" / "first.irmtv", tmp_path / "latest.irmtv"
    target.write_bytes(b"old")
    link.symlink_to("models/first.irmtv")
    assert write_bytes(link, b"new") == link
    assert link.is_symlink() and target.read_bytes() == b"new"
    target.unlink()  # a link that leads nowhere yet
    write_bytes(link, b"newer")
    assert link.is_symlink() and target.read_bytes() == b"newer"
    assert [p.name for p in (tmp_path / "models").iterdir()] == ["first.irmtv"]


def test_names_as_long_as_the_file_system_takes(tmp_path):
    longest = os.pathconf(tmp_path, "PC_NAME_MAX")
    path = tmp_path / ("m" * (longest - 6) + ".irmtv")
    assert write_bytes(path, b"x").read_bytes() == b"x"
    message = rf"takes.*Got one of {longest + 1} bytes, 'm+'\.\.\.; use a shorter one"
    with pytest.raises(ModelFileError, match=message) as caught:
        write_bytes(tmp_path / ("m" * (longest - 5) + ".irmtv"), b"x")
    assert ".tmp" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_said_to_have_terabytes_is_not_read(file):
    """A model file that was made longer, without a byte on the disk."""
    os.truncate(file, 2**40)
    refused(file, "is incomplete: it does not end with its checksum")


def test_a_file_of_terabytes_is_refused_by_its_size(file):
    data = file.read_bytes()
    with file.open("r+b") as sparse:  # nothing on the disk; begins and ends as a model file does
        sparse.seek(2**40)
        sparse.write(data[-77:])
    refused(file, r"has 1,099,511,627,853 bytes, more than the 4,294,967,296 of any model file")


def test_a_file_beyond_the_memory_says_so(file, monkeypatch):
    monkeypatch.setattr("irmtv.persistence.archive._check_head", lambda *_: (_ for _ in ()).throw(MemoryError))
    refused(file, r"has \d+ bytes, more than there is memory for")
