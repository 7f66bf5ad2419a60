"""House prices: the reader on whole and broken files, every scaling with pandas, the split by counting."""

from __future__ import annotations

import csv
import doctest
import gzip
import hashlib
import io
import json
import os
import re
import zipfile
from collections import Counter

import numpy as np
import pandas as pd
import pooch
import pytest
import torch

from house_files import TINY, tiny_houses, write
from irmtv import InvariantRegressor, Task, train
from irmtv.core.losses import Squared
from irmtv.datasets import Tables, house_prices
from irmtv.datasets.catalogue import DataSet
from irmtv.datasets.fetch import VARIABLE, find_files
from irmtv.datasets.house_prices import FEATURES, FILES, house_prices_task, load_house_prices, read_house_prices

SCALINGS = ("train", "all", "year", "minmax", "none")
SEGMENTS = [
    "1900-1910", "1911-1920", "1921-1930", "1931-1940", "1941-1950",
    "1951-1960", "1961-1970", "1971-1980", "1981-1990", "1991-2000",
]  # fmt: skip


def segment_of(year):
    """By looking the year up, not by arithmetic."""
    (name,) = [s for s in SEGMENTS if int(s[:4]) <= year <= int(s[-4:])]
    return name


def scaled_by_pandas(values, year, trained, how):
    """The scalings as they are described, in pandas."""
    if how == "none":
        return values
    if how == "year":
        groups = values.groupby(year)
        spread = groups.transform("std", ddof=0)
        return ((values - groups.transform("mean")) / spread.where(groups.transform("nunique") > 1, 1)).fillna(0)
    part = values if how == "all" else values[trained]
    if how == "minmax":
        return (values - part.min()) / (part.max() - part.min())
    return (values - part.mean()) / part.std(ddof=0)


# ---- the real file


@pytest.fixture(scope="session")
def real():
    """kc_house_data.csv."""
    if not os.environ.get(VARIABLE):
        pytest.skip(f"kc_house_data.csv is needed: set {VARIABLE} to the folder that holds it")
    try:
        (path,) = find_files(FILES)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    return path


@pytest.fixture(scope="session")
def used(real):
    """The rows built until 2000, read by pandas alone."""
    table = pd.read_csv(real)
    return table[table["yr_built"] <= 2000].astype(dict.fromkeys(FEATURES, float))


@pytest.fixture(scope="session")
def task(real):
    return load_house_prices()


@pytest.fixture(scope="session")
def tables(real):
    return load_house_prices(as_frame=True)


def test_the_checksum_is_that_of_the_unpacked_file(real):
    content = gzip.decompress(real.read_bytes()) if real.suffix == ".gz" else real.read_bytes()
    assert hashlib.sha256(content).hexdigest() == FILES[0].sha256


def test_shapes(task):
    assert isinstance(task, Task) and isinstance(task.loss, Squared) and task.n_outputs == 1
    assert task.train.x.shape == (5187, 15) and task.test.x.shape == (11_885, 15)
    assert task.train.aux.shape == (5187, 1) and task.test.aux.shape == (11_885, 1)
    assert task.train.x.dtype == task.train.y.dtype == torch.float32
    assert task.train.aux.dtype == torch.float64 and task.train.environment.dtype == torch.int64
    assert list(task.train.names + task.test.names) == SEGMENTS


def test_segments_counted_by_hand(task, real):
    with (gzip.open if real.suffix == ".gz" else open)(real, "rt") as lines:
        years = [int(row["yr_built"]) for row in csv.DictReader(lines)]
    assert len(years) == 21_613
    counted = Counter(segment_of(y) for y in years if y <= 2000)
    for rows, card in ((task.train, task.card["n_train"]), (task.test, task.card["n_test"])):
        found = dict(zip(rows.names, torch.bincount(rows.environment).tolist(), strict=True))
        assert found == {name: counted[name] for name in rows.names} == card
        names = [rows.names[e] for e in rows.environment.tolist()]
        assert names == [segment_of(y) for y in rows.aux[:, 0].tolist()]


@pytest.mark.parametrize("scaling", SCALINGS)
def test_features_by_pandas(used, scaling):
    task = load_house_prices(scaling=scaling)
    trained = used["yr_built"] <= 1950
    expected = scaled_by_pandas(used[list(FEATURES)], used["yr_built"], trained, scaling)
    assert np.isfinite(expected.to_numpy()).all()
    for rows, part in ((task.train, expected[trained]), (task.test, expected[~trained])):
        np.testing.assert_allclose(rows.x.numpy(), part.to_numpy(), rtol=1e-5, atol=1e-5)
        assert torch.isfinite(rows.x).all()


@pytest.mark.parametrize("target", ["year", "train"])
def test_prices_by_pandas(used, target):
    task = load_house_prices(target=target)
    trained = used["yr_built"] <= 1950
    expected = scaled_by_pandas(used["price"], used["yr_built"], trained, target)
    for rows, part in ((task.train, expected[trained]), (task.test, expected[~trained])):
        np.testing.assert_allclose(rows.y.numpy(), part.to_numpy(), rtol=1e-5, atol=1e-6)


def test_predicting_the_mean_of_the_year_has_error_one_in_every_segment(task):
    for rows in (task.train, task.test):
        for e in range(5):
            assert float(rows.y[rows.environment == e].double().square().mean()) == pytest.approx(1, abs=1e-5)


def test_tables_are_the_file(tables, used):
    assert isinstance(tables, Tables) and tables.name == "house-prices"
    for x, y, environment, part in (
        (tables.X_train, tables.y_train, tables.environment_train, used[used["yr_built"] <= 1950]),
        (tables.X_test, tables.y_test, tables.environment_test, used[used["yr_built"] > 1950]),
    ):
        assert list(x.columns) == [*FEATURES, "yr_built"]
        pd.testing.assert_frame_equal(x.astype(float), part[[*FEATURES, "yr_built"]].astype(float))
        assert y.tolist() == part["price"].tolist() and y.name == "price"
        assert environment.tolist() == [segment_of(v) for v in part["yr_built"]]
        assert x.index.equals(y.index) and x.index.equals(environment.index)


def test_tables_and_task_have_the_same_rows(tables, real):
    task = load_house_prices(scaling="none")
    for x, environment, rows in (
        (tables.X_train, tables.environment_train, task.train),
        (tables.X_test, tables.environment_test, task.test),
    ):
        np.testing.assert_array_equal(x[list(FEATURES)].to_numpy(np.float32), rows.x.numpy())
        np.testing.assert_array_equal(x["yr_built"].to_numpy(float), rows.aux[:, 0].numpy())
        assert environment.tolist() == [rows.names[e] for e in rows.environment.tolist()]


def test_no_house_is_in_both_parts(tables, real):
    """As the card says of houses sold twice."""
    ids = pd.read_csv(real)["id"]
    assert not set(ids[tables.X_train.index]) & set(ids[tables.X_test.index])
    assert ids[tables.X_train.index].duplicated().any()
    both = pd.concat([tables.X_train, tables.X_test])
    assert (both["sqft_above"] + both["sqft_basement"] == both["sqft_living"]).all()
    assert both["bedrooms"].max() == 33


def test_what_the_card_says_of_the_shift(task):
    floors, lat = FEATURES.index("floors"), FEATURES.index("lat")
    found = {
        (part, j): np.corrcoef(rows.x[:, j], rows.y)[0, 1]
        for part, rows in (("train", task.train), ("test", task.test))
        for j in (floors, lat)
    }
    assert f"correlation {found['test', floors]:.2f} rather than {found['train', floors]:.2f}" in task.card["shift"]
    assert found["test", lat] > found["train", lat]


def test_the_card_says_what_was_looked_at(task, tables, real):
    needed = {
        "description", "source", "licence", "citation", "n_train", "n_test", "random_state", "shift", "looks_at_test",
        "differs_from_paper", "limits", "columns", "rows",
    }  # fmt: skip
    assert needed | {"aux", "scaling", "target"} <= set(task.card) and needed <= set(tables.card)
    assert task.card["columns"] == FEATURES and task.card["aux"] == ("yr_built",)
    assert "prices of test rows" in task.card["looks_at_test"]
    assert "a price in dollars cannot be had" in task.card["looks_at_test"]
    other = load_house_prices(scaling="all", target="train").card
    assert "training and test rows together" in other["looks_at_test"]
    assert "prices of test rows" not in other["looks_at_test"] and "target='year'" in other["differs_from_paper"]
    assert tables.card["looks_at_test"].startswith("Nothing")
    assert "Ames" in task.card["differs_from_paper"] and "Ames" in tables.card["differs_from_paper"]
    json.dumps([task.card, tables.card, other])


def test_it_trains_with_given_and_with_inferred_environments(task):
    for objective in ("irm-tv-l1", "minimax-tv-l1"):
        fitted = train(task, objective, steps=3, warmup=1, hidden=(16,), snapshot_every=None)
        assert list(fitted.evaluate().names) == SEGMENTS[5:]


def test_the_tables_fit_an_estimator_that_takes_the_built_year_out(tables):
    model = InvariantRegressor("minimax-tv-l1", aux="yr_built", max_steps=4, warmup=0.5, random_state=0)
    model.fit(tables.X_train, tables.y_train)
    assert list(model.feature_names_in_) == list(FEATURES)
    assert model.predict(tables.X_test.drop(columns="yr_built")).shape == (11_885,)
    model = InvariantRegressor("irm-tv-l1", max_steps=4, warmup=0.5, random_state=0)
    model.fit(tables.X_train[list(FEATURES)], tables.y_train, environment=tables.environment_train)
    assert len(model.environments_) == 5


def test_docstring_examples(real):
    outcome = doctest.testmod(house_prices)
    assert outcome.attempted == 5
    assert outcome.failed == 0


# ---- tiny files


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.setattr(house_prices, "ROWS", TINY)
    return write(tmp_path / "tiny", tiny_houses()).parent


@pytest.mark.parametrize("scaling", SCALINGS)
def test_tiny_features_by_pandas(tiny, scaling):
    task = load_house_prices(data_home=tiny, scaling=scaling)
    houses = tiny_houses()
    houses = houses[houses["yr_built"] <= 2000].astype(dict.fromkeys(FEATURES, float))
    trained = houses["yr_built"] <= 1950
    assert len(task.train) == trained.sum() and len(task.test) == (~trained).sum()
    expected = scaled_by_pandas(houses[list(FEATURES)], houses["yr_built"], trained, scaling)
    for rows, part in ((task.train, expected[trained]), (task.test, expected[~trained])):
        np.testing.assert_allclose(rows.x.numpy(), part.to_numpy(), rtol=1e-5, atol=1e-5)
    if scaling == "year":  # one house in its year, and a feature that all houses of a year share
        assert (task.train.x[task.train.aux[:, 0] == 1910] == 0).all()
        assert (task.train.x[task.train.aux[:, 0] == 1950][:, FEATURES.index("waterfront")] == 0).all()
        assert (task.train.y[task.train.aux[:, 0] == 1910] == 0).all()


def test_the_cuts_between_segments(tiny):
    tables = load_house_prices(data_home=tiny, as_frame=True)
    environment = pd.concat([tables.environment_train, tables.environment_test])
    year = pd.concat([tables.X_train, tables.X_test])["yr_built"]
    assert {1900, 1910, 1911, 1950, 1951, 1960, 1961, 2000} <= set(year)
    assert environment.tolist() == [segment_of(v) for v in year]
    assert set(tables.environment_train) <= set(SEGMENTS[:5]) and set(tables.environment_test) <= set(SEGMENTS[5:])
    assert not {4, 5} & set(year.index)  # built in 2001 and 2015


@pytest.mark.parametrize(("scaling", "target"), [("train", "year"), ("minmax", "train"), ("none", "train")])
def test_training_rows_do_not_see_test_rows(tmp_path, tiny, scaling, target):
    houses = tiny_houses()
    other = houses.index[houses["yr_built"].between(1951, 2000)][3]
    houses.loc[other, [*FEATURES, "price"]] = 77_000
    changed = write(tmp_path / "changed", houses).parent
    a, b = (load_house_prices(data_home=home, scaling=scaling, target=target) for home in (tiny, changed))
    assert torch.equal(a.train.x, b.train.x) and torch.equal(a.train.y, b.train.y)
    assert not torch.equal(a.test.x, b.test.x)
    a, b = (load_house_prices(data_home=home, scaling="all") for home in (tiny, changed))
    assert not torch.equal(a.train.x, b.train.x)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zip"])
def test_packed_and_plain_files_are_read(tmp_path, tiny, suffix):
    folder = tmp_path / "home" / "house_prices"
    folder.parent.mkdir()
    write(folder, tiny_houses(), suffix)
    a, b = (load_house_prices(data_home=home) for home in (folder.parent, tiny))
    assert torch.equal(a.train.x, b.train.x) and torch.equal(a.test.y, b.test.y)


def test_the_seed_changes_nothing(tiny):
    a, b = load_house_prices(0, data_home=tiny), load_house_prices(1, data_home=tiny)
    assert torch.equal(a.train.x, b.train.x) and a.card == b.card and a.card["random_state"] is None
    generator = np.random.default_rng(0)
    load_house_prices(generator, data_home=tiny)
    assert generator.integers(2**60) == np.random.default_rng(0).integers(2**60)
    for as_frame in (False, True):  # a folder in the place of the seed is not overlooked
        with pytest.raises(ValueError, match="random_state must be None, an integer"):
            load_house_prices(str(tiny), as_frame=as_frame)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scaling": "trian"}, "scaling must be one of ['train', 'all', 'year', 'minmax', 'none']. Got 'trian'. Did"),
        ({"scaling": 3}, "Got 3. Use 'train'."),
        ({"target": "all"}, "target must be one of ['year', 'train']. Got 'all'."),
        ({"as_frame": True, "scaling": "none"}, "scaling and target must be left out with as_frame=True"),
        ({"as_frame": True, "target": "train"}, "Got scaling='train' and target='train'. Leave them out, or as_frame."),
    ],
)
def test_errors_say_what_to_do(tiny, settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        load_house_prices(data_home=tiny, **settings)


def test_specs_may_ask_for_it(tiny):
    entry = DataSet(house_prices_task)
    assert entry.arguments({}) == {"scaling": "train", "target": "year"}  # where the file lies decides nothing
    a = entry.make(**entry.arguments({"data_home": str(tiny), "scaling": "year"}), random_state=4)
    assert torch.equal(a.train.x, load_house_prices(data_home=tiny, scaling="year").train.x)


# ---- broken files


def lines(change=lambda table: table, rows=3):
    return change(tiny_houses().head(rows)).to_csv(index=False)


def replaced(column, value, row=1):
    def change(table):
        table = table.astype({column: object})
        table.loc[row, column] = value
        return table

    return change


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lines(lambda t: t.drop(columns=["grade", "price"])), "Got a header without ['grade', 'price']. Take"),
        (lines(lambda t: t.drop(columns="yr_built")), "Got a header without ['yr_built']."),
        (lines(replaced("sqft_living", "large")), "'sqft_living' must be a number. Got 'large', first in row 2. Take"),
        (lines(replaced("waterfront", "")), "'waterfront' must be a number. Got nan, first in row 2."),
        (lines(replaced("lat", "inf")), "'lat' must be a number. Got inf, first in row 2."),
        (lines(replaced("price", 0)), "'price' must be above 0. Got 0, first in row 2."),
        (lines(replaced("yr_built", 1950.5)), "'yr_built' must be a year. Got 1950.5, first in row 2."),
        (lines(replaced("yr_built", 50)), "'yr_built' must be a year. Got 50"),
        (lines()[:-40], "must be a number. Got nan, first in row 3."),
        (lines(rows=2), "one line for each of 3 sales. Got 2. Take kc_house_data.csv again"),
        (lines(rows=0), "one line for each of 3 sales. Got 0."),
        ("<html>\n<p>Moved</p>\n", "Got a header without ['bedrooms', "),
        ("", "Got EmptyDataError"),
        (lines() + "1,2,3" * 20 + "\n", "Got ParserError"),
        (lines().replace("\n", ",\n").replace(",\n", "\n", 1), "'yr_built' must be a year. Got 98178"),
        ("\x00\x01" * 30, "Got a header without ['bedrooms', "),
    ],
)
def test_a_file_of_something_else(tmp_path, content, message):
    path = tmp_path / "kc_house_data.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read_house_prices(path, 3)
    assert str(caught.value).startswith(f"{path} must be the file of King County house sales")
    assert FILES[0].url in str(caught.value) and "Kaggle" in str(caught.value)


def packed(suffix):
    file = io.BytesIO()
    if suffix == ".gz":
        return gzip.compress(tiny_houses().to_csv(index=False).encode())
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("kc_house_data.csv", tiny_houses().to_csv(index=False))
    return file.getvalue()


@pytest.mark.parametrize("suffix", [".gz", ".zip"])
@pytest.mark.parametrize(
    "damage",
    [lambda b: b[: len(b) // 2], lambda b: b"no archive", lambda b: b"", lambda b: b[:99] + b"\0" * 99 + b[198:]],
    ids=["truncated", "something else", "empty", "overwritten"],
)
def test_a_damaged_packed_file(tmp_path, suffix, damage):
    path = tmp_path / f"kc_house_data.csv{suffix}"
    path.write_bytes(packed(suffix))
    assert len(read_house_prices(path)) == TINY
    path.write_bytes(damage(packed(suffix)))
    with pytest.raises(ValueError, match=r"must be the file of King County.* Take kc_house_data\.csv again, from http"):
        read_house_prices(path)


def test_without_the_file_the_error_says_where_to_get_it_and_where_to_put_it(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        load_house_prices(data_home=tmp_path)
    assert str(tmp_path / "house_prices" / "kc_house_data.csv.gz") in str(caught.value)
    assert f"Put there {FILES[0].url}" in str(caught.value)


def test_without_a_folder_it_is_downloaded_and_checked(tiny, monkeypatch):
    asked = []

    def retrieve(url, known_hash, fname, path, downloader):
        asked.append((url, known_hash, fname, path.name))
        return str(tiny / "kc_house_data.csv")

    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert len(load_house_prices().train) == len(load_house_prices(data_home=tiny).train)
    assert asked == [(FILES[0].url, f"sha256:{FILES[0].sha256}", "kc_house_data.csv", "house_prices")]
