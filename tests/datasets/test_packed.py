"""Packed files that unfold without end are refused before they fill the memory."""

from __future__ import annotations

import gzip
import io
import zipfile

import numpy as np
import pytest

from irmtv.datasets import fetch
from irmtv.datasets.common import FileLayout
from irmtv.datasets.fetch import open_unpacked, read_npz
from irmtv.datasets.safe_pickle import read_pickle

ZEROS = bytes(300_000)


@pytest.fixture(autouse=True)
def small_limits(monkeypatch):
    monkeypatch.setattr(fetch, "MOST_UNPACKED", 100_000)


def zipped(data, name="a"):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
    return file.getvalue()


def put(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else zipped(data))
    return path


@pytest.mark.parametrize("name", ["a.csv.gz", "a.csv.zip"])
def test_any_reader_stops(tmp_path, name):
    path = put(tmp_path, name, b"a,b\n" + b"0,0\n" * 75_000)
    with pytest.raises(ValueError, match="unfolds to more than 200 times its"), open_unpacked(path) as file:
        file.read()
    with pytest.raises(ValueError, match=r"must be rows. Got ValueError: it unfolds to more than 200 times"):
        FileLayout("FILE must be rows", "Take it again.").read(path)


@pytest.mark.parametrize("name", ["a.pkl.gz", "a.pkl.zip"])
def test_pickles(tmp_path, name):
    path = put(tmp_path, name, b"\x8e" + len(ZEROS).to_bytes(8, "little") + ZEROS + b".")  # BINBYTES8
    with pytest.raises(ValueError, match="unfolds to more than 200 times"):
        read_pickle(path)


def test_arrays(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(300_000, "u1"))
    with pytest.raises(ValueError, match=r"not a whole \.npz file.* it unfolds to more than 200 times"):
        read_npz(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=np.zeros(300_000, "u1"))
    with pytest.raises(ValueError, match="unfolds to more than 200 times"):
        read_npz(put(tmp_path, "b.npz.gz", (tmp_path / "b.npz").read_bytes()))


def test_usual_files_unfold(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=50_000)
    np.savez_compressed(tmp_path / "a.npz", x=x)
    np.testing.assert_array_equal(read_npz(tmp_path / "a.npz")["x"], x)
    text = "\n".join(map(str, x[:20_000])).encode()
    for name in ("a.csv.gz", "a.csv.zip"):
        with open_unpacked(put(tmp_path, name, text)) as file:
            assert file.read() == text
