"""`irmtv data`: what it prints where, and its exit codes."""

from __future__ import annotations

import json
import sys
import types
from dataclasses import replace

import pytest

from house_files import TINY, tiny_houses, write
from irmtv.datasets import house_prices, sources
from irmtv.datasets.fetch import VARIABLE


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with a small file of house sales and no other data set."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(house_prices, "ROWS", TINY)
    years = tiny_houses()["yr_built"]
    counts = {"n_train": int((years <= 1950).sum()), "n_test": int(years.between(1951, 2000).sum())}
    small = replace(sources.SOURCES["house-prices"], **counts)
    monkeypatch.setattr(sources, "SOURCES", {**sources.SOURCES, "house-prices": small})
    folder = tmp_path / "a [folder]"  # printed as it is, not as markup
    folder.mkdir()
    write(folder / "house_prices", tiny_houses(), ".gz")
    return folder


def lines_of(text, name):
    """What is said of one data set in `list`."""
    return next(line for line in text.splitlines() if line.split()[:1] == [name])


def test_list_says_what_where_and_under_which_licence(command, home):
    ended = command("data", "list", "--data-home", home)
    assert (ended.code, ended.err) == (0, "")
    for source in sources.SOURCES.values():
        line = lines_of(ended.out, source.name)
        after = ended.out[ended.out.index(line) :].splitlines()[1:3]
        assert [text.strip() for text in after] == [source.title, f"licence: {source.licence}"]
        assert source.rows is None or f"{source.rows:,} rows" in line
    assert lines_of(ended.out, "house-prices").endswith(str(home / "house_prices"))
    assert lines_of(ended.out, "adult").endswith("not here")


def test_the_variable_names_the_folder_too(command, home, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(home))
    assert command("data", "list").out == command("data", "list", "--data-home", home).out
    assert "(environment variable IRMTV_DATA)" in command("data", "path").out


def test_list_as_json(command, home):
    ended = command("data", "list", "--data-home", home, "--json")
    assert (ended.code, ended.err) == (0, "")
    found = {entry["name"]: entry for entry in json.loads(ended.out)}
    assert list(found) == list(sources.SOURCES)
    entry = found["house-prices"]
    assert entry["here"] is True and entry["rows"] == 21_613 and entry["licence"] == "CC0 1.0"
    assert entry["loader"] == "irmtv.datasets.load_house_prices" and "harlfoxem" in entry["citation"]
    path = str(home / "house_prices" / "kc_house_data.csv.gz")
    assert [file["path"] for file in entry["files"]] == [path]
    assert found["adult"]["here"] is False and found["adult"]["files"][0]["path"] is None
    assert found["adult"]["files"][0]["url"].startswith("https://archive.ics.uci.edu/")


def test_path_says_what_is_there_and_what_belongs_there(command, home):
    ended = command("data", "path", "--data-home", home)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[0] == f"{home} (data_home)"
    assert f"kc_house_data.csv: {home / 'house_prices' / 'kc_house_data.csv.gz'}\n" in ended.out
    assert "adult.data: not here\n" in ended.out
    assert f"Put adult.data and adult.test into {home / 'adult'}, from https://archive" in ended.out
    one = command("data", "path", "adult", "--data-home", home)
    assert "adult.data" in one.out and "kc_house_data.csv" not in one.out
    parsed = json.loads(command("data", "path", "adult", "--data-home", home, "--json").out)
    assert (parsed["folder"], parsed["said_by"]) == (str(home), "data_home")
    assert [entry["name"] for entry in parsed["data_sets"]] == ["adult"]


def test_check_reads_what_is_there(command, home):
    ended = command("data", "check", "--data-home", home)
    assert ended.code == 0
    assert ended.out.startswith("house-prices: good, ") and "another copy than the source's" in ended.out
    assert "adult" not in ended.out
    assert ended.err == "reading house-prices ...\n"
    again = command("data", "check", "house-prices", "house-prices", "--data-home", home, "--json")
    (entry,) = json.loads(again.out)
    assert again.code == 0 and entry["good"] is True and entry["problem"] is None
    assert entry["n_train"] + entry["n_test"] == TINY - 2 and entry["files"][0]["original"] is False


def test_a_named_data_set_that_is_not_there_is_wrong(command, home):
    ended = command("data", "check", "adult", "house-prices", "--data-home", home)
    assert ended.code == 1
    assert "adult: WRONG. adult.data and adult.test of data set 'adult' is not in" in ended.out
    assert "house-prices: good" in ended.out


def test_a_damaged_file_is_exit_code_1_and_says_what_to_do(command, home):
    path = home / "house_prices" / "kc_house_data.csv.gz"
    path.write_bytes(path.read_bytes()[:-200])
    ended = command("data", "check", "--data-home", home)
    assert ended.code == 1
    assert f"house-prices: WRONG. {path} must be the file of King County house sales" in ended.out
    assert "Take kc_house_data.csv again, from https://" in ended.out
    ended = command("data", "check", "--data-home", home, "--json")
    (entry,) = json.loads(ended.out)
    assert ended.code == 1 and entry["good"] is False and "must be the file" in entry["problem"]


def test_nothing_to_check_is_not_success(command, home, tmp_path):
    (tmp_path / "empty").mkdir()
    ended = command("data", "check", "--data-home", tmp_path / "empty")
    assert (ended.code, ended.out) == (1, "")
    assert f"irmtv: no data set is in {tmp_path / 'empty'} (data_home)" in ended.err
    ended = command("data", "check", "--data-home", tmp_path / "empty", "--json")
    assert (ended.code, json.loads(ended.out)) == (1, [])


@pytest.mark.parametrize("verb", ["list", "path", "check"])
def test_a_folder_that_is_none_is_exit_code_2(command, home, verb):
    ended = command("data", verb, "--data-home", home / "nowhere")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("irmtv: data_home must be a folder that holds data sets. Got ")


@pytest.mark.parametrize("verb", ["path", "check"])
def test_a_misspelt_name_is_exit_code_2(command, home, verb):
    ended = command("data", verb, "house_prices", "--data-home", home)
    assert (ended.code, ended.out) == (1, "")
    assert "NAME must be one of" in ended.err and "Did you mean 'house-prices'?" in ended.err


# ---- features of images


@pytest.fixture
def builder(monkeypatch):
    """In place of the one that reads images: what it was given."""
    given = {}

    def build_celeba_features(images, attributes, network, out, *, batch_size, progress):
        given.update(images=images, attributes=attributes, network=network, out=out, batch_size=batch_size)
        progress(3, 1234)
        if given["out"].name == "stop":
            raise KeyboardInterrupt
        if not images.is_dir():
            raise FileNotFoundError(f"images must be a folder. Got {str(images)!r}.")
        return 1234

    module = types.ModuleType("irmtv.datasets.celeba_builder")
    module.build_celeba_features = build_celeba_features
    monkeypatch.setitem(sys.modules, "irmtv.datasets.celeba_builder", module)
    return given


def test_celeba_features_hands_its_options_over(command, builder, tmp_path):
    options = ["--images", tmp_path, "--attributes", tmp_path / "a.txt", "--out", tmp_path / "x.csv"]
    ended = command("data", "celeba-features", *options, "--network", tmp_path / "net.onnx", "--batch-size", "8")
    assert (ended.code, ended.out) == (0, "")
    assert "1,234 rows" in ended.err and f"written: {tmp_path / 'x.csv'}" in ended.err
    assert builder == {
        "images": tmp_path,
        "attributes": tmp_path / "a.txt",
        "network": tmp_path / "net.onnx",
        "out": tmp_path / "x.csv",
        "batch_size": 8,
    }
    assert command("data", "celeba-features", *options).code == 0
    assert (builder["network"], builder["batch_size"]) == (None, 64)


def test_celeba_features_stopped_or_wrong(command, builder, tmp_path):
    options = ["--images", tmp_path / "no", "--attributes", tmp_path / "a.txt", "--out"]
    ended = command("data", "celeba-features", *options, tmp_path / "x.csv")
    assert ended.code == 1 and "irmtv: images must be a folder." in ended.err
    assert command("data", "celeba-features", *options, tmp_path / "stop").code == 130
    assert command("data", "celeba-features", "--out", tmp_path / "x.csv").code == 2
