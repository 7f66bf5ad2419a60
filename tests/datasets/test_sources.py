"""The registry of files: complete, equal to the cards; looking and checking on small files, whole and broken."""

from __future__ import annotations

import doctest
import gzip
import hashlib
import os
from dataclasses import replace

import pooch
import pytest

from house_files import TINY, tiny_houses, write
from irmtv import datasets
from irmtv.datasets import house_prices, sources
from irmtv.datasets.fetch import VARIABLE, DataFile
from irmtv.datasets.sources import CACHE, SOURCES, check, data_folder, get_source, look

HOUSES = SOURCES["house-prices"]


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A data set of 140 sales, whose checksum is known; its plain file lies in tmp_path / "home" / "house_prices"."""
    monkeypatch.delenv(VARIABLE, raising=False)
    (tmp_path / "home").mkdir()
    content = write(tmp_path / "home" / "house_prices", tiny_houses()).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    monkeypatch.setattr(house_prices, "ROWS", TINY)
    files = (replace(HOUSES.files[0], sha256=digest),)
    years = tiny_houses()["yr_built"]
    n_train, n_test = int((years <= 1950).sum()), int(years.between(1951, 2000).sum())
    return replace(HOUSES, files=files, n_train=n_train, n_test=n_test)


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


# ---- the registry


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_is_complete(name):
    source = SOURCES[name]
    assert source.name == name and source.files and all(isinstance(file, DataFile) for file in source.files)
    assert all(file.sha256 is not None for file in source.files if file.url is not None)
    assert callable(getattr(datasets, source.loader))
    assert source.title and source.licence and source.source and source.citation


@pytest.mark.data
@pytest.mark.parametrize("name", SOURCES)
def test_the_registry_says_what_the_card_says(name):
    source = SOURCES[name]
    if not look(source).here:
        pytest.skip(f"{name} is not in the folder of {VARIABLE}")
    checked = check(source)
    assert checked.good, checked.problem
    task = source.load(os.environ[VARIABLE])
    assert (source.title, source.licence) == (task.card["description"], task.card["licence"])
    assert (source.source, source.citation) == (task.card["source"], task.card["citation"])
    assert (checked.n_train, checked.n_test) == (len(task.train), len(task.test))
    if "rows" in task.card:
        assert source.rows == task.card["rows"]


def test_an_unknown_name():
    with pytest.raises(ValueError, match=r"NAME must be one of \['adult', .*Got 'adlut'\. Did you mean 'adult'\?"):
        get_source("adlut")


# ---- where


def test_which_folder_is_looked_in(tmp_path, monkeypatch):
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    monkeypatch.delenv(VARIABLE, raising=False)
    assert (data_folder().path, data_folder().said_by) == (tmp_path / "cache" / "irmtv", CACHE)
    monkeypatch.setenv(VARIABLE, "")
    assert data_folder().said_by == CACHE
    (tmp_path / "said").mkdir()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "said"))
    assert (data_folder().path, data_folder().said_by) == (tmp_path / "said", "environment variable IRMTV_DATA")
    assert (data_folder(tmp_path).path, data_folder(tmp_path).said_by) == (tmp_path, "data_home")


def test_a_folder_that_is_none(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match=r"data_home must be a folder .*nowhere', which does not exist"):
        data_folder(tmp_path / "nowhere")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file"))
    with pytest.raises(FileNotFoundError, match=r"environment variable IRMTV_DATA must be .*file', which is a file"):
        look(HOUSES)


def test_looking_finds_what_the_loader_reads(tiny, home):
    found = look(tiny, home)
    path = home / "house_prices" / "kc_house_data.csv"
    assert found.here and found.paths == (path,) and found.where == str(path.parent) and found.missing == ()
    path.rename(home / "kc_house_data.csv")
    assert look(tiny, home).paths == (home / "kc_house_data.csv",)
    (home / "kc_house_data.csv").unlink()
    found = look(tiny, home)
    assert not found.here and found.paths == (None,) and found.where == "not here"
    assert found.advice == (
        f"Put kc_house_data.csv into {home / 'house_prices'}, from {tiny.files[0].url}; "
        "or name the folder that holds it."
    )


def test_a_part_of_the_files(tmp_path):
    (tmp_path / "adult.data").touch()
    found = look(SOURCES["adult"], tmp_path)
    assert not found.here and found.where == f"{tmp_path}, without adult.test"
    assert found.advice.startswith(f"Put adult.test into {tmp_path / 'adult'}, from https://archive.ics.uci.edu/")


def test_what_was_downloaded_is_found_in_the_cache(tiny, home, tmp_path, monkeypatch):
    """The loader puts it there: the same place is looked in."""
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    assert look(tiny).advice.startswith(
        "It is downloaded when it is first loaded; or put kc_house_data.csv into FOLDER"
    )

    def retrieve(url, known_hash, fname, path, downloader):
        path.mkdir(parents=True)
        (home / "house_prices" / fname).rename(path / fname)
        return str(path / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    house_prices.load_house_prices()
    assert look(tiny).paths == (tmp_path / "cache" / "irmtv" / "house_prices" / "kc_house_data.csv",)
    monkeypatch.setattr(pooch, "retrieve", None)  # checking does not download
    assert check(tiny).good


def test_what_cannot_be_downloaded(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    tiny = replace(tiny, files=(DataFile("house_prices", "kc_house_data.csv"),))
    advice = look(tiny).advice
    assert advice.startswith("It cannot be downloaded: put kc_house_data.csv into FOLDER/house_prices, from Kaggle")
    assert advice.endswith("and set IRMTV_DATA to FOLDER.")
    assert look(replace(tiny, cure="Ask the county.")).advice == "Ask the county."


def test_one_of_several_layouts_will_do(tiny, home, tmp_path, monkeypatch):
    other = DataFile("house_prices", "houses.npz")
    tiny = replace(tiny, files=(other, *tiny.files))
    assert look(tiny, home).missing == (other,) and not look(tiny, home).here
    either = replace(tiny, any_file=True)
    found = look(either, home)
    assert found.here and found.missing == () and found.where == str(home / "house_prices")
    monkeypatch.setattr(datasets, "load_house_prices", lambda *a, **k: Split())
    assert [file.path.name for file in check(either, home).files] == ["kc_house_data.csv"]
    (home / "house_prices" / "kc_house_data.csv").unlink()
    found = look(either, home)
    assert not found.here and found.missing == tiny.files
    assert found.advice.startswith(f"Put houses.npz or kc_house_data.csv into {home / 'house_prices'}, from Kaggle")
    assert f" or {tiny.files[1].url};" in found.advice


# ---- whole or not


class Split:
    """What a loader gives, as far as it is counted."""

    train, test = range(3), range(4)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zip"])
def test_a_whole_file_packed_or_not(tiny, home, suffix):
    (home / "house_prices" / "kc_house_data.csv").unlink()
    path = write(home / "house_prices", tiny_houses(), suffix)
    checked = check(tiny, home)
    assert checked.good and (checked.n_train, checked.n_test) == (tiny.n_train, tiny.n_test)
    (file,) = checked.files
    assert file.path == path and file.original is True
    assert file.note == ("packed; " if suffix else "") + "the source's file, byte for byte"


def test_an_edited_copy_that_reads_well_is_good_and_said_to_be_one(tiny, home):
    path = home / "house_prices" / "kc_house_data.csv"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    checked = check(tiny, home)
    assert checked.good and checked.files[0].original is False
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert checked.files[0].note == f"another copy than the source's (sha256 {digest})"


def test_a_file_without_a_known_checksum(tiny, home):
    tiny = replace(tiny, files=(DataFile("house_prices", "kc_house_data.csv"),))
    (file,) = check(tiny, home).files
    assert file.original is None and file.note == "no checksum is known"


def test_a_long_file_is_hashed_whole(tiny, home, tmp_path):
    """More than one block of what is read at once."""
    path = tmp_path / "long.gz"
    content = bytes(range(256)) * 10_000
    path.write_bytes(gzip.compress(content, 1))
    file = DataFile("x", "long", "http://source.invalid", hashlib.sha256(content).hexdigest())
    assert sources._compared(file, path).original is True


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: b[: len(b) // 2], "must be "),
        (lambda b: b.replace(b"grade", b"mark"), "Got a header without ['grade']. Take kc_house_data.csv again"),
        (lambda b: b"", "EmptyDataError"),
    ],
)
def test_a_broken_file_is_told_with_what_to_do(tiny, home, damage, message):
    path = home / "house_prices" / "kc_house_data.csv"
    path.write_bytes(damage(path.read_bytes()))
    checked = check(tiny, home)
    assert not checked.good and checked.problem.startswith(str(path)) and message in checked.problem


def test_whatever_a_reader_raises_is_told(tiny, home, monkeypatch):
    def load(*args, **settings):
        raise KeyError("grade")

    monkeypatch.setattr(datasets, "load_house_prices", load)
    assert check(tiny, home).problem == "KeyError: 'grade'"


@pytest.mark.parametrize(("part", "word"), [("n_train", "training"), ("n_test", "test")])
def test_another_number_of_rows(tiny, home, part, word):
    right = getattr(tiny, part)
    checked = check(replace(tiny, **{part: 4321}), home)
    assert not checked.good
    assert f"must give 4,321 {word} rows. Got {right:,}: the files are not those of the source." in checked.problem
    assert checked.problem.endswith(f"Take them again, from {tiny.files[0].url}.")
    assert check(replace(tiny, **{part: None}), home).good


def test_files_that_are_not_here(tiny, tmp_path):
    (tmp_path / "empty").mkdir()
    checked = check(tiny, tmp_path / "empty")
    assert not checked.good and checked.files == ()
    start = f"kc_house_data.csv of data set 'house-prices' is not in {tmp_path / 'empty'} (data_home). Put kc_house"
    assert checked.problem.startswith(start)


def test_docstring_examples():
    outcome = doctest.testmod(sources)
    assert outcome.attempted > 4
    assert outcome.failed == 0
