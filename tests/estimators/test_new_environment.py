"""What to expect in an environment that nobody has seen, against models that others train without it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, LogisticRegression

from irmtv.estimators import (
    InvariantBoostingClassifierCV,
    InvariantBoostingRegressorCV,
    InvariantClassifierCV,
    InvariantRegressorCV,
)
from irmtv.estimators.files import load, save
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


TIMES = {
    "years": [2009, 2010, 2011, 2020, 2021],
    "months without a zero": ["2011-2", "2011-9", "2011-10", "2011-11", "2012-1"],
    "dates": list(pd.date_range("2011-09-01", periods=5, freq="MS")),
}


@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES.keys())
def test_every_time_is_predicted_from_those_before(times):
    X, y, _ = lines(5)
    place = np.repeat(range(5), 60)
    when = pd.Series(times)[place]
    model = InvariantRegressorCV(objective="erm", **QUICK).fit(X, y, environment=when.to_numpy())
    table = model.new_environment_
    assert table is not None and model.expected_score_ is not None
    assert table["environment"].tolist() == [str(t).removesuffix(" 00:00:00") for t in times[2:]]
    before = [LinearRegression().fit(X[place < e], y[place < e]) for e in range(2, 5)]
    by_hand = [root_mean_square(line, X[place == e], y[place == e]) for e, line in enumerate(before, start=2)]
    np.testing.assert_allclose(table["plain"], by_hand, rtol=1e-4)
    assert model.expected_score_["mean"] == pytest.approx(np.mean(by_hand), rel=1e-4)
    assert model.expected_score_["left_out"] == "in order"


def test_it_can_be_denied_and_what_the_rule_sees_is_the_same():
    X, y, _ = lines(5)
    year = np.repeat([2009, 2010, 2011, 2020, 2021], 60)
    found = {}
    for told in ("auto", True, False):
        model = InvariantRegressorCV(**QUICK, penalty_weights=[10], time_ordered=told)
        data = model.read_data(X, y, environment=year)
        found[told] = model.search(data), model.fit_choice(data, model.search(data))
    in_turn, auto = found[False][0], found["auto"][0]
    assert in_turn.elsewhere is None and auto.elsewhere is not None
    assert in_turn.choice == auto.choice
    np.testing.assert_array_equal(in_turn.records.left_out, auto.records.left_out)
    tables = {told: model.new_environment_ for told, (_, model) in found.items()}
    assert len(tables[False]) == 5 and found[False][1].expected_score_["left_out"] == "environments"
    pd.testing.assert_frame_equal(tables["auto"], tables[True])
    assert tables["auto"]["plain"].iloc[-1] == pytest.approx(tables[False]["plain"].iloc[-1], rel=1e-4)


@pytest.mark.parametrize(
    ("labels", "order"),
    [([8, 9, 10, 11], ["10", "11"]), (["batch8", "batch9", "batch10", "batch11"], ["batch10", "batch11"])],
)
def test_other_labels_are_times_only_where_it_is_said(labels, order):
    X, y, _ = lines(4)
    batch = np.repeat(labels, 60)
    model = InvariantRegressorCV(objective="erm", **QUICK).fit(X, y, environment=batch)
    assert len(model.new_environment_) == 4
    model.set_params(time_ordered=True).fit(X, y, environment=batch)
    assert model.new_environment_["environment"].tolist() == order
    np.testing.assert_allclose(
        model.new_environment_["plain"].iloc[0],
        root_mean_square(LinearRegression().fit(X[:120], y[:120]), X[120:180], y[120:180]),
        rtol=1e-4,
    )


def test_many_times_are_predicted_in_groups_of_neighbours():
    X, y, _ = lines(24, 20)
    month = np.repeat([f"{2011 + m // 12}-{1 + m % 12:02d}" for m in range(24)], 20)
    table = InvariantRegressorCV(objective="erm", **QUICK).fit(X, y, environment=month).new_environment_
    assert len(table) == 10 and table["n"].sum() == 22 * 20
    assert table["environment"].iloc[[0, -1]].tolist() == ["2011-03 to 2011-05", "2012-11 to 2012-12"]


def test_where_auto_does_nothing():
    """Three years; pooled years; a rule that leaves nothing out; a weight for every environment."""
    X, y, _ = lines(4)
    year = np.repeat([2009, 2010, 2011, 2012], 60)
    model = InvariantRegressorCV(**QUICK, penalty_weights=[10])
    assert len(model.fit(X[:180], y[:180], environment=year[:180]).new_environment_) == 3
    with pytest.warns(UserWarning, match="are pooled"):
        pooled = model.fit(X[:185], y[:185], environment=year[:185])
    assert len(pooled.new_environment_) == 3
    assert clone(model).set_params(rule="iid").fit(X, y, environment=year).new_environment_ is None
    by_place = clone(model).set_params(objective_params={"measure": (0.1, 0.2, 0.3, 0.4)})
    assert by_place.fit(X, y, environment=year).new_environment_ is None
    with pytest.raises(ValueError, match=r"time_ordered .* measure must be a word"):
        by_place.set_params(time_ordered=True).fit(X, y, environment=year)


def test_pooled_times_have_no_order():
    X, y, _ = lines(5)
    year = np.repeat(["2009", "2010", "2011", "2012", "2013"], 60)
    model = InvariantRegressorCV(objective="erm", time_ordered=True, **QUICK)
    with (
        pytest.warns(UserWarning, match="are pooled"),
        pytest.raises(ValueError, match=r"Got 'pooled\(2009, 2013\)'.* no place in the order of time. Use min_rows=1"),
    ):
        model.fit(X[:245], y[:245], environment=year[:245])


@pytest.mark.parametrize("rule", ["iid", "leave-one-env-out"])
def test_an_objective_without_erm_beside_it_has_scores_of_the_choice_alone(rule):
    X, y, site = lines(4)
    model = InvariantRegressorCV("groupdro", rule=rule, max_steps=20, **QUICK).fit(X, y, environment=site)
    assert (model.new_environment_ is None) == (rule == "iid")
    model.set_params(time_ordered=True).fit(X, y, environment=site)
    assert model.new_environment_["plain"].isna().all() and model.new_environment_["chosen"].notna().all()


@pytest.mark.parametrize(
    "kind",
    [InvariantClassifierCV, InvariantRegressorCV, InvariantBoostingClassifierCV, InvariantBoostingRegressorCV],
)
@pytest.mark.parametrize("wrong", ["yes", 1, None, "Auto"])
def test_what_else_is_said_of_time_is_refused(kind, wrong):
    X, y, site = lines(2)
    with pytest.raises(ValueError, match=rf"time_ordered must be 'auto', True or False\. Got {wrong!r}\. Use True"):
        kind(time_ordered=wrong).fit(X, y > 100, environment=site)


def test_the_order_is_in_a_file(tmp_path):
    X, y, _ = lines(4)
    year = np.repeat([2009, 2010, 2011, 2012], 60)
    model = InvariantRegressorCV(objective="erm", time_ordered=True, **QUICK).fit(X, y, environment=year)
    assert clone(model).get_params()["time_ordered"] is True
    read = load(save(model, tmp_path / "model.irmtv"))
    assert read.time_ordered is True and read.expected_score_ == model.expected_score_
    pd.testing.assert_frame_equal(read.new_environment_, model.new_environment_)


@pytest.mark.parametrize("kind", ["network", "trees"])
def test_what_came_before_the_last_year_is_all_but_the_last_year(kind):
    """So the last row is that of leaving it out, which the search trains in another way."""
    X, y, site = lines(4)
    how = {"cv": 2, "penalty_weights": [10], "random_state": 0, "time_ordered": True}
    model = (
        InvariantRegressorCV(hidden=(4,), max_steps=60, l2=0.0, n_seeds=2, **how)
        if kind == "network"
        else InvariantBoostingRegressorCV(n_estimators=20, **how)
    )
    search = model.search(model.read_data(X, y, environment=site))
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
    model = InvariantRegressorCV(**QUICK, penalty_weights=[10], time_ordered=True, rule="leave-one-env-out")
    data = model.read_data(X, y, environment=site)
    search = model.search(data)
    other = replace(search, choice=replace(search.choice, index=(search.choice.index + 1) % len(search.candidates)))
    assert len(model.fit_choice(data, search).new_environment_) == 2
    assert len(model.fit_choice(data, other).new_environment_) == 4  # every environment that was left out


def test_an_order_of_three_is_refused():
    X, y, site = lines(3)
    model = InvariantRegressorCV(objective="erm", time_ordered=True, **QUICK)
    with pytest.raises(ValueError, match=r"time_ordered .* four or more that are given\. Got 3"):
        model.fit(X, y, environment=site)


@pytest.mark.parametrize("test", ["both", "slopes", "risks"])
def test_whatever_was_chosen_was_left_out_too(test):
    """A column that says y in each of four sites in its own way; ERM uses it."""
    rng = np.random.default_rng(706)
    site, X = np.repeat(range(4), 300), rng.normal(size=(1200, 2))
    y = X[:, 0] + rng.normal(size=1200)
    X[:, 1] = np.array([1.0, 0.7, 0.4, 0.1])[site] * y + 0.5 * rng.normal(size=1200)
    model = InvariantRegressorCV(**QUICK, penalty_weights=[10, 1000], rule_options={"test": test})
    search = model.search(data := model.read_data(X, y, environment=site))
    assert search.choice.outcome == "invariant-found"
    table = model.fit_choice(data, search).new_environment_
    assert table is not None and len(table) == 4 and (table["chosen"] != table["plain"]).all()
    assert search.choice.figures["left_out"] == pytest.approx(
        float(search.records.left_out[search.choice.index].mean())
    )
    assert search.records.left_out[search.erm].isfinite().all()
