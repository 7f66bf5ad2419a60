"""How different are the environments: areas against scikit-learn, errors by brute force, the level of the test."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, norm
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score

from app.diagnose.worlds import regression, rows_of, task_rows
from irmtv.app.diagnose import two_sample
from irmtv.app.diagnose.two_sample import quadratic_basis, two_sample_test
from irmtv.datasets import make_simulation


def test_areas_are_those_of_a_ridge_regression_on_the_other_folds():
    rows = regression(n=300, shift=(0.0, 0.7))
    found = two_sample_test(rows, seed=0, permutations=9)
    z, fold, here = quadratic_basis(rows.x), rows.folds(0), rows.environment == 1
    won = pairs = 0.0
    for k in range(5):
        held = fold == k
        model = Ridge(alpha=two_sample.RIDGE * int((~held).sum())).fit(z[~held], here[~held])
        n_pairs = here[held].sum() * (~here[held]).sum()
        won += n_pairs * roc_auc_score(here[held], model.predict(z[held]))
        pairs += n_pairs
    assert found.by_environment[1]["value"] == pytest.approx(won / pairs, abs=1e-9)
    assert found.auc["value"] == pytest.approx(won / pairs, abs=1e-9)  # two environments: one area


def test_the_area_is_that_of_two_normal_distributions():
    rng = np.random.default_rng(0)
    x = rng.normal(size=4000) + np.repeat([0.0, 1.0], 2000)
    found = two_sample_test(rows_of(x, rng.normal(size=4000), environment=np.repeat(["a", "b"], 2000)), seed=0)
    known = norm.cdf(1 / np.sqrt(2))
    assert found.auc["low"] < known < found.auc["high"]
    assert found.auc["high"] - found.auc["low"] < 0.04
    assert found.p == 1 / 100 and found.differs
    assert "clearly" in found.sentence and "p = 0.01" in found.sentence


def test_delong_by_brute_force():
    rng = np.random.default_rng(1)
    score = np.round(rng.normal(size=(60, 2)), 1)  # with ties
    inside = rng.random((60, 2)) < 0.4
    ranks = np.apply_along_axis(two_sample.rankdata, 0, score)
    for j, variance in enumerate(two_sample._delong(score, inside, ranks)):
        first, second = score[inside[:, j], j], score[~inside[:, j], j]
        wins = (first[:, None] > second) + 0.5 * (first[:, None] == second)
        expected = wins.mean(1).var(ddof=1) / len(first) + wins.mean(0).var(ddof=1) / len(second)
        assert variance == pytest.approx(expected, rel=1e-12)


def test_where_nothing_differs_the_test_errs_as_often_as_it_says():
    """39 permutations: p <= 0.05 has probability 2/40 exactly; the interval covers 1/2."""
    n, rejected, covered = 200, 0, 0
    for seed in range(n):
        rng = np.random.default_rng(seed)
        labels = rng.permutation(np.repeat(["a", "b"], 60))
        rows = rows_of(rng.normal(size=(120, 6)) ** 3, rng.normal(size=120), environment=labels)
        found = two_sample_test(rows, seed, permutations=39)
        rejected += found.p <= 0.05
        covered += found.auc["low"] <= 0.5 <= found.auc["high"]
    assert binom.ppf(0.001, n, 0.05) <= rejected <= binom.ppf(0.999, n, 0.05)
    assert covered >= binom.ppf(0.005, n, 0.94)


def test_the_usual_error_alone_would_be_too_small():
    """Why permutations: folds share training rows, so that areas vary more than DeLong's error says."""
    values, errors = [], []
    for seed in range(150):
        rng = np.random.default_rng(seed)
        rows = rows_of(rng.normal(size=(120, 6)), rng.normal(size=120), environment=np.repeat(["a", "b"], 60))
        z, fold = quadratic_basis(rows.x), rows.folds(seed)
        hats = [two_sample._hat(z, fold == k) for k in range(5)]
        area, error = two_sample._areas(z, fold, hats, rows.environment[:, None], 2, with_errors=True)
        values.append(area[0, 0])
        errors.append(error[0, 0])
    assert np.std(values) > 1.2 * np.mean(errors)


def test_it_sees_columns_that_go_together_differently():
    """The simulation: every column has one distribution in both environments; pairs of columns do not."""
    found = two_sample_test(task_rows(make_simulation(4000, p_s=(0.999, 0.6), random_state=0)), seed=0)
    assert found.differs and found.auc["value"] > 0.55


def test_one_environment_among_three():
    rng = np.random.default_rng(3)
    labels = np.repeat(["a", "b", "c"], 200)
    x = rng.normal(size=(600, 2))
    x[labels == "c"] += 2
    found = two_sample_test(rows_of(x, rng.normal(size=600), environment=labels), seed=0)
    a, b, c = (e["value"] for e in found.by_environment)
    assert c > 0.95 > max(a, b)
    assert "most of all c" in found.sentence
    assert found.auc["value"] == pytest.approx((a + b + c) / 3)
    summary = found.summary()
    assert [row["name"] for row in summary["environments"]] == ["a", "b", "c"] and summary["average"] == "by rows"


def test_more_rows_than_needed_are_sampled(monkeypatch):
    monkeypatch.setattr(two_sample, "MOST_ROWS", 150)
    assert two_sample_test(regression(n=400), seed=0, permutations=9).rows == 150
