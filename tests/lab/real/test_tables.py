"""Tables are read as they are described, their splits hold every row once, and a missing file is named."""

from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import pytest

from irmtv.lab.real.splits import FEWEST, first_then, leave_each_out, some_rows
from irmtv.lab.real.tables import TABLES, load_table, table_names
from lab.real.small import write_heart


def test_every_part_is_unseen_once():
    part = np.array(["b", "a", "b", "c"])
    splits = leave_each_out(part, last="c")
    assert [(s.label, s.in_time) for s in splits] == [("a", False), ("b", False), ("c", True)]
    for split in splits:
        assert set(part[split.unseen]) == {split.label} and split.label not in part[split.train]
        assert sorted([*split.train, *split.unseen]) == [0, 1, 2, 3]


def test_a_split_in_time_leaves_out_what_is_neither_first_nor_then():
    split = first_then("3", ["1", "3", "2", "4", "1"], ["1", "2"], ["3"])
    assert (split.train.tolist(), split.unseen.tolist(), split.in_time) == ([0, 2, 4], [1], True)


def test_fewer_rows_keep_the_small_environments():
    environment = np.repeat(["large", "middle", "small"], [5000, 2000, 200])
    rows = np.arange(0, 7200)
    kept = some_rows(rows, environment, 3000)
    counts = pd.Series(environment[kept]).value_counts()
    assert len(kept) <= 3000 and counts["small"] == 200  # all of them
    left = (3000 - 2 * FEWEST - 200) / (4700 + 1700)
    assert counts["large"] == FEWEST + int(left * 4700) and counts["middle"] == FEWEST + int(left * 1700)
    assert (np.diff(kept) > 0).all()
    assert np.array_equal(kept, some_rows(rows, environment, 3000))
    assert not np.array_equal(kept, some_rows(rows, environment, 3000, seed=1))
    assert some_rows(rows, environment, 7200) is rows


def test_heart_is_read_with_its_gaps(tmp_path):
    rows = write_heart(tmp_path)
    table = load_table("heart", tmp_path)
    assert table.metric == "accuracy" and [s.label for s in table.splits] == sorted(rows["hospital"].unique())
    assert np.array_equal(table.features["chol"].isna(), rows["chol"] == 0)
    assert table.features["thal is"].isna().sum() == rows["thal"].isna().sum() > 0
    assert set(table.features["cp is"]) == {"cp 1", "cp 2", "cp 3", "cp 4"}
    assert "hospital" not in table.features and "disease" not in table.features


def write_bikes(folder):
    rng = np.random.default_rng(720)
    n = 64
    rows = pd.DataFrame({"instant": np.arange(n), "dteday": "1/1/2011", "mnth": 1, "cnt": rng.integers(0, 50, n)})
    rows["season"], rows["yr"] = np.arange(n) % 4 + 1, np.arange(n) // 32
    for name, most in (("hr", 24), ("holiday", 2), ("weekday", 7), ("workingday", 2), ("weathersit", 4)):
        rows[name] = rng.integers(0, most, n)
    for name in ("temp", "atemp", "hum", "windspeed"):
        rows[name] = rng.random(n)
    folder.mkdir(exist_ok=True)
    (folder / "bike_sharing.csv.gz").write_bytes(gzip.compress(rows.to_csv(index=False).encode()))
    return rows


def test_bikes_are_never_predicted_from_their_date(tmp_path):
    rows = write_bikes(tmp_path)
    season, year = load_table("bike-season", tmp_path), load_table("bike-year", tmp_path)
    common = {
        "hr",
        "holiday",
        "workingday",
        "temp",
        "atemp",
        "hum",
        "windspeed",
        "hr is",
        "weekday is",
        "weathersit is",
    }
    assert set(season.features) == common | {"yr"} and set(year.features) == common | {"season is"}
    assert season.metric == "rmse" and np.allclose(np.expm1(season.target), rows["cnt"])
    assert [s.label for s in season.splits] == ["autumn", "spring", "summer", "winter"]
    assert [(s.label, s.in_time) for s in year.splits] == [("2011", False), ("2012", True)]
    later = year.splits[1]
    assert set(rows["yr"].iloc[later.train]) == {0} and set(rows["yr"].iloc[later.unseen]) == {1}
    assert set(year.environment[later.train]) == {"autumn", "spring", "summer", "winter"}


def test_another_preparation_has_another_fingerprint(tmp_path):
    write_heart(tmp_path / "one")
    write_heart(tmp_path / "two", seed=703)
    same, again, other = (load_table("heart", tmp_path / name).fingerprint for name in ("one", "one", "two"))
    assert same == again != other


def test_a_missing_file_and_a_wrong_one(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gas_drift\.csv of data set 'gas_drift'"):
        load_table("gas", tmp_path)
    (tmp_path / "gas_drift.csv").write_text("batch,s1\nbatch1,0.5\n")
    with pytest.raises(ValueError, match="Got a header without 'gas'"):
        load_table("gas", tmp_path)


def test_tables_by_name_and_number():
    assert table_names(None) == list(TABLES)
    assert table_names(["1", "adult", "heart"]) == ["heart", "adult"]
    with pytest.raises(ValueError, match="Did you mean 'bike-year'"):
        table_names(["bike-yaer"])


@pytest.mark.data
def test_the_real_files():
    rows = {"heart": 920, "gas": 6697, "gas-time": 6697, "bike-season": 17379, "bike-year": 17379, "adult": 48842}
    rows["king-county"] = 21613
    splits = {"heart": 4, "gas": 8, "gas-time": 1, "bike-season": 4, "bike-year": 2, "adult": 8, "king-county": 12}
    for name in TABLES:
        table = load_table(name)
        assert (len(table.features), len(table.splits)) == (rows[name], splits[name])
        for split in table.splits:
            assert len(np.intersect1d(split.train, split.unseen)) == 0
            assert len(np.unique(table.environment[split.train])) >= 3
