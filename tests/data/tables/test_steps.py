"""From raw tables to numbers: nothing missing comes out, and pieces of a table give what the whole gives."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import skrub
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline

import irmtv
from irmtv.app.io import TableColumns, TableError, TableNumbers, read_table, table_chunks, table_steps
from irmtv.data.tables import level_encoder
from irmtv.data.tables import steps as table_numbers


def mixed(n: int = 400, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "number": rng.normal(size=n),
            "whole": rng.integers(0, 5, n),
            "true": rng.random(n) < 0.5,
            "few": rng.choice(["a", "b", "c"], n),
            "two": rng.choice(["yes", "no"], n),
            "many": [f"street {k} of {k % 7}" for k in rng.integers(0, 90, n)],
            "day": pd.Timestamp("2014-01-01") + pd.to_timedelta(rng.integers(0, 900, n), "D"),
            "code": rng.choice(["01", "02", "x"], n),
        }
    )
    frame["date"] = frame["day"].dt.strftime("%d.%m.%Y")
    for name in ("number", "few", "many", "date", "day"):
        frame[name] = frame[name].mask(rng.random(n) < 0.1)
    frame["never"] = np.nan
    return frame


def fitted(frame: pd.DataFrame) -> Pipeline:
    return Pipeline(table_steps()).fit(frame)


def test_against_skrub_and_scikit_learn():
    """Value by value what TableVectorizer and SimpleImputer give, but for one indicator per date and not four."""
    frame = mixed().drop(columns="many")  # whose encoding learns from every text once
    made = pd.DataFrame((steps := fitted(frame)).transform(frame), columns=steps.get_feature_names_out())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        raw = skrub.TableVectorizer().fit_transform(frame)
    imputer = SimpleImputer(add_indicator=True)
    other = pd.DataFrame(imputer.fit_transform(raw), columns=imputer.get_feature_names_out())
    same = list(raw.columns)
    assert made.columns.tolist()[: len(same)] == same
    np.testing.assert_allclose(made[same], other[same], rtol=1e-6)
    assert made.columns.tolist()[len(same) :] == ["number missing", "day missing", "date missing"]
    for name, twin in (("number missing", "missingindicator_number"), ("day missing", "missingindicator_day_year")):
        np.testing.assert_array_equal(made[name], other[twin])


def test_numbers_without_gaps_whatever_comes():
    steps = fitted(mixed())
    strange = mixed(50, seed=1).astype({"few": object, "number": object, "whole": object, "true": object})
    strange["few"] = "never seen"
    strange["many"] = [f"entirely new {i}" for i in range(50)]
    strange["date"] = "2014/31/12"
    strange["day"] = pd.NaT
    strange.loc[:10, ["number", "whole"]] = "text"
    strange["two"] = None
    strange["never"] = 3.0
    with pytest.warns(UserWarning, match=r"text where .* numbers.*'number' \(11 of 50\), 'whole' \(11 of 50\)"):
        numbers = steps.transform(strange)
    assert numbers.dtype == np.float32 and np.isfinite(numbers).all()
    made = pd.DataFrame(numbers, columns=steps.get_feature_names_out())
    assert (made[["few_a", "few_b", "few_c"]] == 0).all(axis=None)
    assert made.loc[0, "number"] == pytest.approx(mixed()["number"].mean(), rel=1e-5)
    assert made.loc[0, "number missing"] == 1 and made["date missing"].all() and made["day missing"].all()
    assert not any("never" in name for name in made.columns)


@pytest.mark.filterwarnings("ignore:text where")
def test_in_pieces_as_a_whole(tmp_path):
    """A piece may have no value of a column, or integers alone, or codes that look like numbers: as in the whole."""
    frame = mixed(300)
    frame.loc[:59, ["number", "few", "many", "date", "day"]] = None
    frame.loc[60:119, "number"] = 7
    frame.loc[60:179, "code"] = "02"
    frame.loc[120:179, "few"] = "a"
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    for name in ("t.csv", "t.parquet"):
        whole = read_table(tmp_path / name).frame
        steps = fitted(whole)
        expected = steps.transform(whole)
        for rows in (60, 47, 1000):
            text = [name for name, kind in steps.named_steps["columns"].kinds_.items() if kind != "number"]
            pieces = [steps.transform(piece) for piece in table_chunks(tmp_path / name, rows, text=text)]
            np.testing.assert_array_equal(np.concatenate(pieces), expected)


def test_another_kind_of_file_means_the_same(tmp_path):
    frame = mixed(300).drop(columns=["day", "true", "never"])
    frame.to_csv(tmp_path / "t.csv", index=False)
    steps = fitted(read_table(tmp_path / "t.csv").frame)
    np.testing.assert_array_equal(
        steps.transform(read_table(tmp_path / "t.csv").frame), steps.transform(frame.astype({"whole": np.float32}))
    )


def test_codes_that_became_numbers():
    """ "1" was text in training, since another row had "x"; a table without that row has 1, or 1.0 with a gap."""
    steps = fitted(pd.DataFrame({"code": ["1", "2", "x", None] * 5, "n": 1.0}))
    expected = steps.transform(pd.DataFrame({"code": ["1", "2", None], "n": 1.0}))
    np.testing.assert_array_equal(steps.transform(pd.DataFrame({"code": [1.0, 2.0, np.nan], "n": 1.0})), expected)
    np.testing.assert_array_equal(steps.transform(pd.DataFrame({"code": [1, 2], "n": 1.0})), expected[:2])


def test_truth_values_durations_and_nullable_types():
    n = 40
    frame = pd.DataFrame(
        {
            "true": pd.Series([True, None, False, True] * 10, dtype="boolean"),
            "whole": pd.Series([1, None, 3, 4] * 10, dtype="Int64"),
            "lasts": pd.to_timedelta(np.arange(n), "h"),
            "kind": pd.Categorical(["a", "b"] * 20),
        }
    )
    steps = fitted(frame)
    made = pd.DataFrame(steps.transform(frame), columns=steps.get_feature_names_out())
    assert made["lasts"].tolist() == [3600.0 * h for h in range(n)]
    assert made["whole"].iloc[1] == pytest.approx(8 / 3)
    assert made["true"].iloc[1] == pytest.approx(2 / 3)
    assert made["kind_b"].tolist() == [0, 1] * 20
    words = frame.assign(true=["True", None, "false", "TRUE"] * 10)
    np.testing.assert_array_equal(steps.transform(words), made.to_numpy())


def test_columns_by_name():
    frame = mixed(100)
    steps = fitted(frame)
    expected = steps.transform(frame)
    np.testing.assert_array_equal(steps.transform(frame[frame.columns[::-1]].assign(more=1)), expected)
    with pytest.raises(TableError, match=r"Missing: 'few', 'date'\. Did you mean 'Few'\? It has"):
        steps.transform(frame.rename(columns={"few": "Few"}).drop(columns="date"))
    with pytest.raises(TableError, match="must be a DataFrame"):
        steps.transform(frame.to_numpy())
    pl = pytest.importorskip("polars")
    plain = frame.drop(columns=["never"])
    steps = fitted(plain)
    np.testing.assert_array_equal(steps.transform(pl.from_pandas(plain)), steps.transform(plain))


def test_columns_with_names_that_skrub_makes():
    """A column may have the name of what another one becomes."""
    frame = pd.DataFrame({"few_a": [1.0, 2, 3, 4], "few": list("abca"), "few_b": list("xyxz")})
    steps = fitted(frame)
    made = steps.transform(frame)
    assert made.shape == (4, 7)
    np.testing.assert_array_equal(made[:, 0], frame["few_a"])
    np.testing.assert_array_equal(made[:, 1:4], pd.get_dummies(frame["few"]).to_numpy())
    np.testing.assert_array_equal(made[:, 4:], pd.get_dummies(frame["few_b"]).to_numpy())


def test_saved_and_loaded(tmp_path):
    frame = mixed(300)
    y = (frame["number"].fillna(0) > 0).to_numpy()
    model = Pipeline([*table_steps(), ("model", irmtv.InvariantClassifier("erm", hidden=(), max_steps=20))])
    model.fit(frame, y)
    again = irmtv.load(irmtv.save(model, tmp_path / "m.irmtv"))
    new = mixed(200, seed=3)
    np.testing.assert_array_equal(again.predict_proba(new), model.predict_proba(new))
    assert isinstance(again.steps[0][1], TableColumns) and isinstance(again.steps[1][1], TableNumbers)


def test_ten_thousand_levels():
    levels = np.array([f"{k} Long Street, Town {k % 13}" for k in range(10_000)])
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"street": levels[rng.integers(0, 10_000, 30_000)], "x": rng.normal(size=30_000)})
    numbers = fitted(frame).transform(frame)
    assert numbers.shape == (30_000, level_encoder.COMPONENTS + 1)
    same = frame["street"] == frame["street"].iloc[0]
    assert np.ptp(numbers[same.to_numpy()][:, : level_encoder.COMPONENTS], axis=0).max() == 0


def test_many_levels_stand_alone(monkeypatch):
    """Columns with very many values have their own TableVectorizer; the numbers are the same."""
    frame = mixed(300)
    expected = fitted(frame).transform(frame)
    monkeypatch.setattr(table_numbers, "TOGETHER", 5)
    steps = fitted(frame)
    assert all(len(group) == 1 for group in steps.named_steps["numbers"].groups_)
    assert len(steps.named_steps["numbers"].recipes_) >= 2
    np.testing.assert_allclose(steps.transform(frame), expected, rtol=1e-5, atol=1e-5)


def test_texts_are_learned_from_a_sample_of_the_levels(monkeypatch):
    frame = pd.DataFrame({"t": [f"word {k}" for k in range(500)], "x": 1.0})
    monkeypatch.setattr(level_encoder, "LEVELS", 100)
    assert np.isfinite(fitted(frame).transform(frame)).all()


def test_surprises_are_told():
    frame = mixed(300)
    steps = fitted(frame)
    new = frame.head(20).assign(few="z", date="31/12/14")
    aligned, unread = steps.named_steps["columns"].align(new)
    _, surprises = steps.named_steps["numbers"].read(aligned)
    assert unread == {}
    assert surprises.unread == {"date": 20} and surprises.new == {"few": {"z": 20}}


# ---- categories on demand, and what trees read -----------------------------------------------------------------------


def test_codes_are_categories_on_demand_however_they_are_written():
    frame = mixed()
    steps = Pipeline(table_steps(["whole", "code"])).fit(frame)
    names = steps.get_feature_names_out().tolist()
    assert [n for n in names if n.startswith("whole")] == [f"whole_{k}" for k in range(5)]
    assert [n for n in names if n.startswith("code")] == ["code_1", "code_2", "code_x"]  # "01" is 1
    for same in (frame["whole"].astype(float), frame["whole"].astype(str), frame["whole"].astype("category")):
        np.testing.assert_array_equal(steps.transform(frame.assign(whole=same)), steps.transform(frame))
    new, surprises = steps[1].read(steps[0].transform(frame.assign(whole=9).iloc[:3]))
    assert surprises.new["whole"] == {"9": 3} and (new[:, [names.index(f"whole_{k}") for k in range(5)]] == 0).all()


def test_many_categories_are_one_number_each_on_demand_and_too_many_are_refused():
    frame = pd.DataFrame({"zip": np.arange(600) % 300, "x": 1.5 * np.arange(600)})
    assert Pipeline(table_steps(["zip"])).fit_transform(frame).shape == (600, 301)
    wide = pd.DataFrame({"zip": np.arange(1200), "x": 1.0})
    with pytest.raises(TableError, match=r"'zip' has 1,200 different values; at most 1,000 can be categories"):
        Pipeline(table_steps(["zip"])).fit(wide)


def test_trees_read_gaps_and_categories_as_they_are():
    frame = mixed()
    steps = Pipeline(table_steps(["whole"], for_trees=True))
    made = steps.fit_transform(frame)
    assert made.columns.tolist() == steps.get_feature_names_out().tolist() and "never" not in made
    np.testing.assert_array_equal(made["number"], frame["number"])
    for name in ("few", "two", "many"):  # as the table has them, also where there are 90
        assert isinstance(made[name].dtype, pd.CategoricalDtype)
        assert made[name].astype(object).where(made[name].notna(), None).tolist() == (
            frame[name].astype(object).where(frame[name].notna(), None).tolist()
        )
    assert made["whole"].astype(str).tolist() == frame["whole"].astype(str).tolist()
    np.testing.assert_array_equal(made["day_year"].isna(), frame["day"].isna())
    pd.testing.assert_frame_equal(steps.transform(frame), made)
    piece = steps.transform(frame.iloc[100:103])
    pd.testing.assert_frame_equal(piece, made.iloc[100:103])


def test_trees_do_not_know_new_categories_and_take_rows_without_any_value():
    frame = mixed()
    steps = Pipeline(table_steps(for_trees=True)).fit(frame)
    new, surprises = steps[1].read(steps[0].transform(frame.assign(few="z").iloc[:2]))
    assert new["few"].isna().all() and surprises.new["few"] == {"z": 2}
    empty = pd.DataFrame({name: [np.nan] for name in frame.columns})
    assert steps.transform(empty).isna().all(axis=None)


def test_more_texts_than_trees_take_as_categories_are_numbers_with_gaps():
    texts = [f"street {k}" for k in range(300)]
    made = Pipeline(table_steps(for_trees=True)).fit_transform(pd.DataFrame({"t": [*texts, None], "x": 1.0}))
    letters = made.filter(like="t_")
    assert letters.shape == (301, 16) and letters.iloc[-1].isna().all() and letters.iloc[:-1].notna().all(axis=None)
