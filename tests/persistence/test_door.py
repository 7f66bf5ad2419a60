"""Hostile content behind a right checksum: whatever goes wrong inside is one ModelFileError that names the place."""

from __future__ import annotations

import io
import json
import zipfile

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import StandardScaler

from irmtv.persistence import ModelFileError, read_model, reading, write_model
from irmtv.persistence.archive import pack
from irmtv.persistence.parts import dump_parts, load_parts
from persistence.files import entries, reheader, small


@pytest.fixture
def file(tmp_path):
    return small(tmp_path / "m.irmtv")


def timestamp(value, zone, unit="s"):
    return {"$": "timestamp", "value": value, "unit": unit, "zone": zone}


def times(dtype):
    return {"dtype": dtype, "shape": [1], "values": [1]}


@pytest.mark.parametrize(
    "value",
    [
        {"$": "numpy", "type": ",i4", "value": 1},
        {"$": "numpy", "type": "(1,i4", "value": 1},
        {"$": "numpy", "type": "M8[D", "value": 1},
        {"$": "numpy", "type": "f8", "value": 1},
        {"$": "numpy", "type": {}, "value": 1},
        {"$": ["numpy"]},
        timestamp(2**62, "Europe/Paris"),
        timestamp(-(2**62), "UTC"),
        timestamp(2**62, 3600),
        timestamp(2**70, None),
        timestamp(1, 1e30),
        timestamp(1, "../../etc/passwd"),
        timestamp(1, "x\0y"),
        timestamp(1, [1]),
        timestamp("a", None),
        {"$": "datetime", "value": "2020-01-01", "fold": 7, "zone": None},
        {"$": "dict", "items": [[[1], 2]]},
        {"$": "tuple"},
    ],
    ids=str,
)
def test_a_wrong_tag(file, value):
    reheader(file, meta={"a": {"deep": [value]}})
    with pytest.raises(ModelFileError, match=r"meta\['a'\] of .*m\.irmtv.* is not as irmtv writes it"):
        read_model(file)


@pytest.mark.parametrize(
    "entry",
    [times(",i4"), times("M8[s],i4"), times("("), times(None), {**times("M8[s]"), "shape": 5}, [], None, 5],
    ids=str,
)
def test_a_wrong_array_of_labels(file, entry):
    reheader(file, labels={"classes": entry})
    with pytest.raises(ModelFileError, match=r"array 'classes' of .*m\.irmtv.* is not as irmtv writes it"):
        read_model(file)


def test_a_time_that_could_not_be_read_is_not_written(tmp_path):
    with pytest.raises(ModelFileError, match=r"must be a time in the years 1 to 9999. Got the year 20000"):
        write_model(tmp_path / "m.irmtv", "demo", {}, {"a": pd.Timestamp(np.datetime64("20000-01-01", "s"))})


def npy(header):
    text = header.encode("latin1")
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (3,",
        "{'descr': ',i4', 'fortran_order': False, 'shape': (3,)}",
        "'''",
        "\\",
        "(" * 300,
        "{'descr': '<f8', 'fortran_order': False, 'shape': ('a',)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': 3}",
        "  x\n y\n",
    ],
)
def test_a_wrong_header_of_an_array(header):
    with zipfile.ZipFile(io.BytesIO(dump_parts({"p": np.arange(3)}))) as archive:
        content = {n: archive.read(n) for n in archive.namelist()}
    with pytest.raises(ModelFileError, match=r"0\.npy of x is not a numpy array as irmtv writes it"):
        load_parts(pack({**content, "0.npy": npy(header)}), ["p"], "x")


@pytest.mark.parametrize("key", ["irmtv", "kind", "written_with", "meta", "labels", "parts"])
@pytest.mark.parametrize("value", [None, 5, "a", [1], {"a": [1]}, [[]], {"": {}}], ids=str)
def test_a_header_with_anything_anywhere(tmp_path, key, value):
    path = write_model(tmp_path / "m.irmtv", "demo", {"w": np.ones(1)}, {"a": 1}, {"s": StandardScaler()})
    if type(json.loads(entries(path)["irmtv.json"])[key]) is str and type(value) is str:
        pytest.skip("as it should be")
    reheader(path, **{key: value})
    if key in ("written_with", "meta") and isinstance(value, dict):  # what nobody needs to load it
        read_model(path)
        return
    with pytest.raises(ModelFileError, match=r"m\.irmtv"):
        read_model(path)


class StrangeError(Exception):
    pass


def test_the_door_itself(file, monkeypatch):
    def fail(*_args, **_kwargs):
        raise StrangeError("of a parser")

    monkeypatch.setattr("irmtv.persistence.model.unpack", fail)
    with pytest.raises(ModelFileError, match=r"m\.irmtv' is not as irmtv writes it \(StrangeError: of a parser\)"):
        read_model(file)
    with pytest.raises(ImportError, match="no such package"), reading("x"):  # nothing is wrong with the file
        raise ImportError("no such package")
    with pytest.raises(KeyboardInterrupt), reading("x"):
        raise KeyboardInterrupt
