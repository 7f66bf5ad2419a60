"""What to expect in an environment that nobody has seen, against models that others train without it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression

from irmtv.estimators import InvariantClassifierCV, InvariantRegressorCV
from irmtv.estimators.new_environment import expected_score

QUICK = {"hidden": (), "cv": 2, "l2": 0.0, "random_state": 0}


def lines(n_sites: int, n: int = 60):
    """y follows a line whose intercept differs from site to site."""
    rng = np.random.default_rng(701)
    site = np.repeat(np.arange(n_sites), n)
    X = rng.normal(size=(n_sites * n, 2))
    y = 100 + 30 * X[:, 0] + 10 * np.sin(site) + 5 * rng.normal(size=len(X))
    return X, y, np.array([f"site {s}" for s in site])


def test_errors_are_those_of_a_line_fitted_without_each_site_in_the_units_of_y():
    X, y, site = lines(4)
    model = InvariantRegressorCV(objective="erm", **QUICK).fit(X, y, environment=site)
    table, expected = model.new_environment_, model.expected_score_
    assert table is not None and expected is not None
    assert table["environment"].tolist() == sorted(set(site)) and table["n"].tolist() == [60] * 4
    by_hand = []
    for name in table["environment"]:
        here = site == name
        wrong = LinearRegression().fit(X[~here], y[~here]).predict(X[here]) - y[here]
        by_hand.append(np.sqrt(np.mean(wrong**2)))
    np.testing.assert_allclose(table["plain"], by_hand, rtol=1e-4)
    assert (table["chosen"] == table["plain"]).all() and "missing" not in table
    assert expected["mean"] == pytest.approx(np.mean(by_hand), rel=1e-4)
    assert expected["worst"] == pytest.approx(max(by_hand), rel=1e-4)


def test_more_than_ten_environments_are_left_out_in_groups_whose_members_are_named():
    X, y, site = lines(12, 20)
    table = InvariantRegressorCV(objective="erm", **QUICK).fit(X, y, environment=site).new_environment_
    assert table is not None and len(table) == 10 and table["n"].sum() == len(X)
    names = [name for group in table["environment"] for name in group.split(", ")]
    assert sorted(names) == sorted(set(site))
    group = table.loc[table["n"] == 40].iloc[0]
    here = np.isin(site, group["environment"].split(", "))
    wrong = LinearRegression().fit(X[~here], y[~here]).predict(X[here]) - y[here]
    assert group["plain"] == pytest.approx(np.sqrt(np.mean(wrong**2)), rel=1e-4)


def test_a_class_of_one_environment_alone_is_named_and_counted_as_wrong():
    rng = np.random.default_rng(702)
    site = np.repeat(["a", "b", "c"], 90)
    X = rng.normal(size=(270, 2))
    y = np.where(X[:, 0] + 0.5 * rng.normal(size=270) > 0, "high", "low").astype(object)
    rare = (site == "c") & (np.arange(270) % 3 == 0)
    y[rare] = "other"
    X[rare, 1] += 4
    model = InvariantClassifierCV(objective="erm", **QUICK).fit(X, y, environment=site)
    table = model.new_environment_
    assert table is not None
    assert table["missing"].tolist() == ["", "", "other"]
    here = site == "c"
    line = LogisticRegression(C=1e6, max_iter=1000).fit(X[~here], y[~here])
    assert table["plain"][2] == pytest.approx(np.mean(line.predict(X[here]) == y[here]), abs=0.012)
    assert table["plain"][2] < 2 / 3 < table["plain"][:2].min()


def test_two_environments_and_an_earlier_fit_leave_nothing():
    X, y, site = lines(3)
    model = InvariantRegressorCV(objective="erm", **QUICK).fit(X, y, environment=site)
    assert model.expected_score_ is not None
    two = site != "site 2"
    model.fit(X[two], y[two], environment=site[two])
    assert model.new_environment_ is None and model.expected_score_ is None


def test_the_interval_is_students_for_one_more():
    values = [0.7, 0.8, 0.75]
    found = expected_score(pd.DataFrame({"chosen": values}), "accuracy")
    half = 2.91998558 * 0.05 * np.sqrt(4 / 3)  # t of 2 degrees of freedom at 95 %, the standard deviation
    assert (found["low"], found["high"]) == pytest.approx((0.75 - half, 0.75 + half))
    assert (found["mean"], found["worst"]) == pytest.approx((0.75, 0.7))
    far = expected_score(pd.DataFrame({"chosen": [0.1, 0.9, 0.99]}), "accuracy")
    assert (far["low"], far["high"]) == (0.0, 1.0)
    errors = expected_score(pd.DataFrame({"chosen": [1.0, 5.0, 30.0]}), "rmse")
    assert errors["low"] == 0.0 and errors["high"] > 30 and errors["worst"] == 30


def test_the_time_of_leaving_out_is_known_where_environments_are_left_out():
    for n, spent in ((3, True), (2, False)):
        X, y, site = lines(n)
        model = InvariantRegressorCV(objective="erm", **QUICK)
        assert (model.search(model.read_data(X, y, environment=site)).left_out_seconds > 0) == spent
