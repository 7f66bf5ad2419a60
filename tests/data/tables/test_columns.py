"""Target, environment, aux and features of a table: what is taken, what is left out, what is refused."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pytest

from irmtv.app.io import TableError, split_columns, task_of


def table(**more: object) -> pd.DataFrame:
    frame = pd.DataFrame({"x": [1.0, 2, 3, 4], "t": list("abab"), "site": list("ppqq"), "y": [0, 1, 0, 1]})
    return frame.assign(**more)


def test_parts_have_the_same_rows():
    when = ["2014-01-01", "2014-07-02", "2015-01-01", None, "2015-01-02", "2015-01-03"]
    frame = pd.concat([table(), table().iloc[:2]], ignore_index=True)
    frame = frame.assign(site=["p", None, "q", "q", "p", "p"], y=[0, 1, None, 1, 1, 0], when=when)
    found = split_columns(frame, target="y", environment="site", aux="when")
    assert found.kept.tolist() == [0, 4, 5]
    assert found.features["x"].tolist() == [1, 1, 2] and found.features.columns.tolist() == ["x", "t"]
    assert found.y.tolist() == [0, 1, 0] and found.environment.tolist() == ["p"] * 3 and len(found.aux) == 3


def test_left_out_rows_are_counted():
    frame = table(site=["p", None, "q", None], y=[0, 1, None, 1])
    frame = pd.concat([frame] * 3, ignore_index=True)
    found = split_columns(pd.concat([frame, table()], ignore_index=True), target="y", environment=["site"])
    assert found.notes == ("9 of 16 rows left out, since 'y' is missing there (3), 'site' is missing there (6)",)
    assert found.y.tolist() == [0, 0, 0, 0, 1, 0, 1] and found.y.dtype == np.int64  # not 0.0 and 1.0


@pytest.mark.skipif(int(pd.__version__.split(".")[0]) < 3, reason="pandas 2 copies columns")
def test_nothing_is_copied_where_nothing_is_left_out():
    frame = table()
    found = split_columns(frame, target="y")
    assert np.shares_memory(found.features["x"].to_numpy(), frame["x"].to_numpy())
    assert found.environment is None and found.aux is None and found.missing == {}


def test_shares_of_missing_values():
    found = split_columns(table(x=[1.0, None, None, 4], z=[None] * 4), target="y")
    assert found.missing == {"x": 0.5, "z": 1.0}
    assert "without any value, and so without use: 'z'" in found.notes[0]


def test_several_environments_are_joined():
    frame = table(year=[2014.0, 2015, 2014, np.nan])
    found = split_columns(frame, target="y", environment=["site", "year"])
    assert found.environment.tolist() == ["p / 2014", "p / 2015", "q / 2014"]
    assert split_columns(frame, target="y", environment="year").environment.tolist() == [2014, 2015, 2014]
    dated = table(day=pd.to_datetime(["2014-05-02"] * 2 + ["2014-05-03"] * 2))
    labels = split_columns(dated, target="y", environment="day").environment
    assert labels.tolist() == ["2014-05-02"] * 2 + ["2014-05-03"] * 2


@pytest.mark.parametrize("as_text", [True, False])
def test_dates_in_aux_are_decimal_years(as_text):
    days = [datetime.datetime(2014, 1, 1), datetime.datetime(2014, 7, 2, 12), datetime.datetime(2016, 12, 31)]
    days.append(datetime.datetime(2015, 3, 1, 6))
    frame = table(when=[f"{d:%Y%m%dT%H%M%S}" for d in days] if as_text else days, lat=[1, 2, 3, 4])
    found = split_columns(frame, target="y", aux=["when", "lat"])
    assert found.aux_is_date == (True, False)
    for day, value in zip(days, found.aux["when"], strict=True):
        year = datetime.datetime(day.year, 1, 1)
        length = datetime.datetime(day.year + 1, 1, 1) - year
        assert value == pytest.approx(day.year + (day - year) / length, abs=1e-9)
    assert found.aux.dtypes.tolist() == [np.float64, np.float64]


def refusal(frame: pd.DataFrame, **names: object) -> str:
    with pytest.raises(TableError) as told:
        split_columns(frame, **{"target": "y", **names})
    return str(told.value)


def test_refusals_name_the_column_and_what_to_do():
    assert "Did you mean 'site'? The columns are 'x', 't', 'site', 'y'" in refusal(table(), environment="Site")
    assert "target must be a column" in refusal(table(), target="price")
    assert "both target and environment" in refusal(table(), environment="y")
    assert "both target and aux" in refusal(table(), aux=["x", "y"])
    assert "has one value only, 1, in all 4 rows" in refusal(table(y=1))
    assert "has one value only, 'a'" in refusal(table(y=["a", "a", None, "a"]))
    assert "features besides" in refusal(table()[["y", "site"]], environment="site")
    assert "1 column(s), 'y'" in refusal(table()[["y"]])
    assert "no rows" in refusal(table().iloc[:0])
    assert "no row has all of 'y', 'site'" in refusal(table(site=[None] * 4), environment="site")
    assert "target 'y' is a date" in refusal(table(y=pd.Timestamp("2014-01-01")))
    assert "all features are missing" in refusal(table(x=np.nan, t=None, site=None))
    assert "aux must vary" in refusal(table(z=1), aux="z")
    told = refusal(table(), aux="t")
    assert "aux 't' must be numbers or dates. Got 4 of 4" in told and "'a', 'b'" in told
    twice = pd.concat([table(), table()["x"]], axis=1)
    assert "every column name once. Got 'x'" in refusal(twice)


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e39])
def test_infinities_and_what_32_bits_cannot_hold(value):
    assert "feature columns must hold finite" in refusal(table(x=[1.0, value, value, np.nan]))
    assert "'x' (2 of 4 rows)" in refusal(table(x=[1.0, value, value, np.nan]))
    assert "target columns must" in refusal(table(y=[1.0, value, 2, 3]))
    assert "aux columns must" in refusal(table(x=[1.0, value, 2, 3]), aux="x")


def test_without_fitting_a_constant_target_will_do():
    found = split_columns(table(y=1)[["y", "site"]], target="y", environment="site", fitting=False)
    assert found.y.tolist() == [1] * 4
    assert split_columns(table()[["y"]], target="y", fitting=False).y.tolist() == [0, 1, 0, 1]


def test_tasks():
    for values, task in (
        ([0, 1, 1], "binary"),
        (["a", "b", "a"], "binary"),
        ([True, False, True], "binary"),
        ([1.5, 2.5, 1.5], "binary"),
        (["a", "b", "c"] * 2, "multiclass"),
        ([1, 2, 3, 4] * 3, "multiclass"),
        (list(range(20)), "multiclass"),
        (list(range(21)), "regression"),
        ([1.5, 2.5, 3.0], "regression"),
    ):
        found, why = task_of(pd.Series(values, name="y"))
        assert found == task and "'y'" in why, values
    assert "--task regression" in task_of(pd.Series([1, 2, 3], name="y"))[1]


def test_a_task_that_is_asked_for():
    three, words = pd.Series([1, 2, 3], name="y"), pd.Series(["a", "b", "a"], name="y")
    assert task_of(three, "regression") == ("regression", "")
    assert task_of(words, "multiclass")[0] == "binary"
    assert task_of(three, "multiclass")[0] == "multiclass"
    for y, asked, message in (
        (three, "regresion", "Did you mean 'regression'"),
        (words, "regression", "needs numbers. 'y' is text, such as 'a'"),
        (three, "binary", "needs two classes. 'y' has 3"),
    ):
        with pytest.raises(TableError, match=message):
            task_of(y, asked)


def test_too_many_texts_are_no_classes():
    with pytest.raises(TableError, match="500 different texts in 500 rows"):
        task_of(pd.Series([f"name {i}" for i in range(500)], name="y"))
    nearly = pd.Series([*map(str, range(100)), "unknown", "n.a."], name="y")
    with pytest.raises(TableError, match=r"is numbers but for 2 of 102 rows, such as 'unknown', 'n.a.'"):
        task_of(nearly)


DAYS = pd.date_range("2020-01-01", periods=1500)


@pytest.mark.parametrize("n", [60, 1500])
@pytest.mark.parametrize(
    "form", ["%d/%m/%Y", "%d.%m.%Y", "%m/%d/%Y", "%d-%m-%Y %H:%M", "%d/%m/%y", "%Y-%m-%d", "%d %b %Y"]
)
def test_all_dates_of_a_column_are_read_in_the_same_order(form, n):
    frame = pd.DataFrame({"x": np.arange(n), "when": DAYS[:n].strftime(form), "y": np.arange(n) % 2})
    for order in (slice(None), slice(None, None, -1)):  # the first value may be ambiguous, or not
        found = split_columns(frame[order], target="y", aux="when")
        year = DAYS[:n].year + (DAYS[:n].day_of_year - 1) / np.where(DAYS[:n].is_leap_year, 366, 365)
        np.testing.assert_allclose(found.aux["when"], year[order], rtol=0, atol=1e-9)
        assert found.notes == ()


def test_dates_of_which_the_order_is_not_known():
    found = split_columns(table(when=["01/02/2020", "03/04/2020", "05/06/2020", "05/05/2020"]), target="y", aux="when")
    assert found.aux["when"].iloc[0] == pytest.approx(2020 + 1 / 366)
    assert "'when': all dates can be read with the day or the month first; read with the month first" in found.notes[0]
    assert "'01/02/2020' as 2020-01-02" in found.notes[0]
    same = split_columns(table(when=["01/01/2020", "02/02/2020", "03/03/2020", "04/04/2020"]), target="y", aux="when")
    assert same.notes == ()


def test_dates_in_two_orders_are_refused():
    told = refusal(table(when=["13/01/2020", "14/01/2020", "01/15/2020", "15/01/2020"]), aux="when")
    assert "Got 1 of 4 values" in told and "'01/15/2020'" in told and "write dates as 2014-12-31" in told
    assert "Got 1 of 4" in refusal(table(when=["soon", "14/01/2020", "01/01/2020", "15/01/2020"]), aux="when")


def test_features_by_name():
    frame = table(id=[1, 2, 3, 4])
    how = {"target": "y", "environment": "site"}
    assert split_columns(frame, **how, drop="id").features.columns.tolist() == ["x", "t"]
    assert split_columns(frame, **how, features=["t", "x"]).features.columns.tolist() == ["x", "t"]
    assert split_columns(frame, **how, drop=["id"], categorical=["x"]).features["x"].tolist() == [1, 2, 3, 4]
    for wrong, message in (
        ({"drop": "idd"}, "drop must be a column of the table. Got 'idd'. Did you mean 'id'"),
        ({"drop": "id", "features": "x"}, "drop and features say the same in two ways"),
        ({"drop": "site"}, "drop names 'site', which is the environment and so no feature in any case"),
        ({"features": ["x", "y"]}, "features cannot hold 'y', which is the target"),
        ({"drop": ["x", "t", "id"]}, "drop must leave some features. Got all of them"),
        ({"categorical": "y"}, "'y' is the target, which needs no such word"),
        ({"features": "x", "categorical": "t"}, "'t' is not a feature here"),
    ):
        with pytest.raises(TableError, match=message):
            split_columns(frame, **how, **wrong)
