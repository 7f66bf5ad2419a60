"""What to expect in an environment that nobody has seen, against models that others train without it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression

from irmtv.estimators import InvariantBoostingRegressorCV, InvariantClassifierCV, InvariantRegressorCV
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


def root_mean_square(model, X, y) -> float:
    return float(np.sqrt(np.mean((model.predict(X) - y) ** 2)))


def test_in_the_order_of_time_every_year_is_predicted_from_those_before():
    X, y, _ = lines(5)
    year = np.repeat([2009, 2010, 2011, 2020, 2021], 60)
    model = InvariantRegressorCV(objective="erm", **QUICK)
    data = model.read_data(X, y, environment=year)
    table = model.fit_choice(data, model.search(data, time_ordered=True)).new_environment_
    assert table["environment"].tolist() == ["2011", "2020", "2021"]
    before = {str(now): LinearRegression().fit(X[year < now], y[year < now]) for now in (2011, 2020, 2021)}
    by_hand = [root_mean_square(line, X[year == int(now)], y[year == int(now)]) for now, line in before.items()]
    np.testing.assert_allclose(table["plain"], by_hand, rtol=1e-4)
    plain = model.fit_choice(data, model.search(data)).new_environment_
    assert len(plain) == 5, "nothing is left of the order"


@pytest.mark.parametrize("kind", ["network", "trees"])
def test_what_came_before_the_last_year_is_all_but_the_last_year(kind):
    """So the last row is that of leaving it out, which the search trains in another way."""
    X, y, site = lines(4)
    how = {"cv": 2, "penalty_weights": [10], "random_state": 0}
    model = (
        InvariantRegressorCV(hidden=(4,), max_steps=60, l2=0.0, n_seeds=2, **how)
        if kind == "network"
        else InvariantBoostingRegressorCV(n_estimators=20, **how)
    )
    search = model.search(model.read_data(X, y, environment=site), time_ordered=True)
    assert search.elsewhere is not None and search.elsewhere.kind == "in order"
    for i, scores in ((search.erm, search.elsewhere.plain), (search.choice.index, search.elsewhere.chosen)):
        without = search.path_of(i).left_out(search.candidates[i].step)
        assert without is not None and scores.shape == (2, 2)
        np.testing.assert_allclose(scores[-1], without[-1], rtol=1e-5)
        assert float(scores[0, 0]) != pytest.approx(float(without[2, 0]), rel=1e-3)


def test_where_environments_are_inferred_blocks_of_aux_are_left_out():
    rng = np.random.default_rng(705)
    X, when = rng.normal(size=(300, 2)), np.sort(rng.uniform(1990, 2020, 300))
    y = 5 * X[:, 0] + 0.3 * (when - 1990) + rng.normal(size=300)
    model = InvariantRegressorCV(**QUICK, penalty_weights=[10]).fit(X, y, aux=when)
    table = model.new_environment_
    assert table is not None and table["n"].tolist() == [60] * 5
    by_hand = []
    for k in range(5):
        inside = np.arange(300) // 60 == k
        by_hand.append(root_mean_square(LinearRegression().fit(X[~inside], y[~inside]), X[inside], y[inside]))
    np.testing.assert_allclose(table["plain"], by_hand, rtol=1e-3)
    low, high = (float(v) for v in table["environment"][0].split(" to "))
    assert (low, high) == pytest.approx((when[0], when[59]), abs=0.01)
    same = InvariantRegressorCV(**QUICK, penalty_weights=[10]).fit(X, y, aux=np.repeat([0, 1], 150))
    assert same.new_environment_ is None, "two values are no three blocks"


def test_scores_elsewhere_are_of_the_choice_they_were_made_for():
    X, y, site = lines(4)
    model = InvariantRegressorCV(**QUICK, penalty_weights=[10])
    data = model.read_data(X, y, environment=site)
    search = model.search(data, time_ordered=True)
    other = replace(search, choice=replace(search.choice, index=(search.choice.index + 1) % len(search.candidates)))
    assert len(model.fit_choice(data, search).new_environment_) == 2
    assert len(model.fit_choice(data, other).new_environment_) == 4  # every environment that was left out


def test_an_order_of_three_is_refused():
    X, y, site = lines(3)
    model = InvariantRegressorCV(objective="erm", **QUICK)
    with pytest.raises(ValueError, match=r"time_ordered .* four or more that are given\. Got 3"):
        model.search(model.read_data(X, y, environment=site), time_ordered=True)
