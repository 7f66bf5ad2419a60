"""Two models on the same rows: values, intervals and differences against textbook computations."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, balanced_accuracy_score, f1_score, roc_auc_score

from irmtv.app.fit.comparison import SCORES, compare, score_for


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    n = 900
    codes = np.sort(rng.integers(0, 3, n))
    y = rng.integers(0, 2, n)
    erm = rng.normal(size=n) + (2 * y - 1) * np.array([2.0, 1.0, 0.2])[codes]
    chosen = erm + 0.5 * rng.normal(size=n)
    return erm, chosen, y, codes


def test_values_are_means_of_the_rows(rows):
    erm, chosen, y, codes = rows
    by, overall, worst = compare(erm, chosen, y, codes, ["a", "b", "c"], SCORES["accuracy"])
    right = {"erm": (erm > 0) == y, "chosen": (chosen > 0) == y}
    for e, row in enumerate(by):
        assert row["rows"] == (codes == e).sum()
        for name, r in right.items():
            assert row[name]["value"] == pytest.approx(r[codes == e].mean())
        assert row["difference"]["value"] == pytest.approx((right["chosen"] * 1.0 - right["erm"])[codes == e].mean())
    assert overall["erm"]["value"] == pytest.approx(right["erm"].mean())
    assert worst["erm"]["value"] == min(row["erm"]["value"] for row in by)
    assert worst["chosen"]["value"] == min(row["chosen"]["value"] for row in by)


def test_intervals_are_those_of_a_bootstrap_of_the_rows(rows):
    erm, chosen, y, codes = rows
    by, overall, worst = compare(erm, chosen, y, codes, ["a", "b", "c"], SCORES["accuracy"])
    rng = np.random.default_rng(1)
    right = np.stack([(erm > 0) == y, (chosen > 0) == y]) * 1.0
    drawn = []
    for _ in range(3000):  # the textbook: rows of every environment drawn with replacement, both models on the same
        means, weights = [], []
        for e in range(3):
            there = np.flatnonzero(codes == e)
            take = rng.choice(there, len(there))
            means.append(right[:, take].mean(1))
            weights.append(len(there))
        m = np.array(means)  # (E, 2)
        all_rows = np.average(m, axis=0, weights=weights)
        drawn.append([*(m[:, 1] - m[:, 0]), all_rows[1] - all_rows[0], m[:, 1].min() - m[:, 0].min()])
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    found = [row["difference"] for row in (*by, overall, worst)]
    np.testing.assert_allclose([d["low"] for d in found], low, atol=0.006)
    np.testing.assert_allclose([d["high"] for d in found], high, atol=0.006)


def test_intervals_of_losses_are_those_of_a_bootstrap_too(rows):
    erm, chosen, y, codes = rows
    by, _, _ = compare(erm, chosen, y, codes, ["a", "b", "c"], SCORES["log_loss"])
    rng = np.random.default_rng(1)
    loss = np.logaddexp(0, np.where(y == 1, -chosen, chosen))
    for e, row in enumerate(by):
        there = loss[codes == e]
        low, high = np.quantile([rng.choice(there, len(there)).mean() for _ in range(3000)], [0.025, 0.975])
        assert row["chosen"]["low"] == pytest.approx(low, abs=0.1 * (high - low))
        assert row["chosen"]["high"] == pytest.approx(high, abs=0.1 * (high - low))


def test_a_loss_with_few_large_values_keeps_a_positive_interval():
    y, codes = np.zeros(30), np.zeros(30, dtype=np.int64)
    outputs = np.r_[np.full(29, 0.1), 10.0]
    (row,), _, _ = compare(outputs, outputs, y, codes, ["a"], SCORES["rmse"])
    assert 0 < row["erm"]["low"] < row["erm"]["value"] < row["erm"]["high"]


def test_the_root_of_squared_errors_is_taken_of_the_mean_and_less_is_better():
    y, codes = np.array([0.0, 0.0, 0.0, 0.0]), np.array([0, 0, 1, 1])
    erm, chosen = np.array([1.0, 3.0, 0.0, 2.0]), np.array([2.0, 2.0, 1.0, 1.0])
    by, overall, worst = compare(erm, chosen, y, codes, ["a", "b"], SCORES["rmse"])
    assert [row["erm"]["value"] for row in by] == pytest.approx([np.sqrt(5), np.sqrt(2)])
    assert overall["erm"]["value"] == pytest.approx(np.sqrt(14 / 4))
    assert worst["erm"]["value"] == pytest.approx(np.sqrt(5))
    assert worst["chosen"]["value"] == pytest.approx(2.0)


def test_an_environment_without_rows_is_left_out():
    by, _, _ = compare(
        np.ones(4), np.ones(4), np.array([1, 1, 0, 1]), np.array([0, 0, 2, 2]), list("abc"), SCORES["accuracy"]
    )
    assert [row["name"] for row in by] == ["a", "c"]


def test_a_metric_of_another_task_is_refused_with_those_that_fit():
    assert score_for("multiclass", None).name == "accuracy"
    with pytest.raises(ValueError, match=r"metric must be one of .*'rmse'.* for regression"):
        score_for("regression", "accuracy")


def test_the_same_model_twice_differs_by_exactly_nothing(rows):
    erm, _, y, codes = rows
    for score in (SCORES["accuracy"], SCORES["log_loss"]):
        by, overall, worst = compare(erm, erm, y, codes, ["a", "b", "c"], score)
        for row in (*by, overall, worst):
            assert row["difference"]["value"] == 0
            assert abs(row["difference"]["low"]) < 1e-12 and abs(row["difference"]["high"]) < 1e-12
            assert row["erm"]["low"] < row["erm"]["high"]


def test_a_model_that_is_always_right_is_not_sure_to_be():
    y = np.tile([0, 1], 20)
    outputs = np.where(y, 1.0, -1.0)
    (row,), overall, worst = compare(outputs, outputs, y, np.zeros(40, dtype=np.int64), ["a"], SCORES["accuracy"])
    for r in (row, overall, worst):
        assert r["erm"]["value"] == 1
        assert 0.85 < r["erm"]["low"] < 0.97  # Jeffreys' interval of 40 of 40 begins at 0.94
        assert r["difference"] == {"value": 0.0, "low": 0.0, "high": 0.0}


def test_intervals_of_few_rows_cover_the_truth():
    """20 rows, right with probability 0.95: the interval covers it nearly always; a normal one covers 61 %."""
    rng = np.random.default_rng(0)
    covered = []
    for seed in range(300):
        right = rng.random(20) < 0.95
        outputs = np.where(right, 1.0, -1.0)
        _, overall, _ = compare(outputs, outputs, np.ones(20, int), np.zeros(20, int), ["a"], SCORES["accuracy"], seed)
        covered.append(overall["erm"]["low"] <= 0.95 <= overall["erm"]["high"])
    assert np.mean(covered) > 0.9


def test_all_rows_are_the_same_however_they_are_divided():
    rng = np.random.default_rng(0)
    y, outputs = np.zeros(7000), rng.standard_t(4, 7000)
    found = []
    for n in (1, 70, 350):
        _, overall, _ = compare(outputs, outputs, y, np.arange(7000) % n, [str(e) for e in range(n)], SCORES["rmse"])
        found.append([overall["erm"][key] for key in ("value", "low", "high")])
    np.testing.assert_allclose(found, [found[0]] * 3, rtol=0.015)


def test_the_worst_of_many_environments_lies_in_its_own_interval():
    rng = np.random.default_rng(0)
    codes, y = np.arange(6000) % 300, rng.integers(0, 2, 6000)
    outputs = np.where(rng.random(6000) < 0.7, 2 * y - 1, 1 - 2 * y).astype(float)
    by, _, worst = compare(outputs, outputs, y, codes, [str(e) for e in range(300)], SCORES["accuracy"])
    low = min(by, key=lambda row: row["erm"]["value"])
    assert worst["erm"] == low["erm"]
    assert worst["erm"]["low"] < worst["erm"]["value"] < worst["erm"]["high"]
    assert worst["rows"] == 20


@pytest.mark.parametrize("metric", ["roc_auc", "f1", "balanced_accuracy", "average_precision"])
def test_statistics_are_those_of_scikit_learn_with_paired_draws(rows, metric):
    erm, chosen, y, codes = rows
    score = {
        "roc_auc": roc_auc_score,
        "average_precision": average_precision_score,
        "f1": lambda y, f: f1_score(y, f > 0),
        "balanced_accuracy": lambda y, f: balanced_accuracy_score(y, f > 0),
    }[metric]
    by, overall, worst = compare(erm, chosen, y, codes, ["a", "b", "c"], SCORES[metric])
    for e, row in enumerate(by):
        for name, f in (("erm", erm), ("chosen", chosen)):
            assert row[name]["value"] == pytest.approx(score(y[codes == e], f[codes == e]))
        assert row["difference"]["low"] <= row["difference"]["value"] <= row["difference"]["high"]
    assert overall["chosen"]["value"] == pytest.approx(score(y, chosen))
    assert worst["chosen"]["value"] == min(row["chosen"]["value"] for row in by)
    rng = np.random.default_rng(1)
    there = np.flatnonzero(codes == 0)
    drawn = [rng.choice(there, len(there)) for _ in range(400)]
    limits = np.quantile([score(y[d], chosen[d]) - score(y[d], erm[d]) for d in drawn], [0.025, 0.975])
    assert [by[0]["difference"][k] for k in ("low", "high")] == pytest.approx(limits, abs=0.015)
    twice = compare(erm, erm, y, codes, ["a", "b", "c"], SCORES[metric])[1]
    assert twice["difference"] == {"value": 0, "low": 0, "high": 0}


def test_an_environment_without_a_value_is_none_and_never_the_worst(rows):
    erm, chosen, y, codes = rows
    by, overall, worst = compare(erm, chosen, np.where(codes == 2, 1, y), codes, ["a", "b", "c"], SCORES["roc_auc"])
    nothing = {"value": None, "low": None, "high": None}
    assert by[2]["erm"] == by[2]["chosen"] == by[2]["difference"] == nothing
    assert worst["erm"]["value"] == by[1]["erm"]["value"] and overall["erm"]["value"] > 0.5
