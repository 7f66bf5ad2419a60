"""Metrics of all rows of an environment together, against scikit-learn: the value, and every draw of a bootstrap."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import r2_score, roc_auc_score, root_mean_squared_error

from irmtv.metrics import STATISTICS, evaluate_environments
from irmtv.metrics.table import QUANTITIES

R, N, C = 3, 90, 2
SITE = np.repeat(["north", "south", "west"], [40, 30, 20])
SCORES = {"roc_auc": roc_auc_score, "r2": r2_score, "rmse": root_mean_squared_error}


def rows(metric, several=False, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=N) if metric == "roc_auc" else rng.normal(size=(N, C) if several else N) + 100
    f = y + rng.normal(size=(R, *y.shape))
    return np.round(f, 1), y  # rounded: outputs tie


@pytest.mark.parametrize(
    ("metric", "several"), [("roc_auc", False), ("r2", False), ("rmse", False), ("r2", True), ("rmse", True)]
)
def test_agrees_with_scikit_learn(metric, several):
    f, y = rows(metric, several)
    table = evaluate_environments(f, y, SITE, metric=metric)
    expected = np.array([[SCORES[metric](y[site == SITE], g[site == SITE]) for site in table.names] for g in f])
    np.testing.assert_allclose(table.by_environment, expected, rtol=1e-10)
    np.testing.assert_allclose(table.overall, [SCORES[metric](y, g) for g in f], rtol=1e-10)
    np.testing.assert_allclose(table.mean, expected.mean(1), rtol=1e-10)
    worst = expected.min(1) if metric != "rmse" else expected.max(1)
    np.testing.assert_allclose(table.worst, worst, rtol=1e-10)
    np.testing.assert_allclose(table.spread, np.ptp(expected, axis=1), rtol=1e-10)
    assert STATISTICS[metric].greater_is_better == (metric != "rmse") == table.greater_is_better


@pytest.mark.parametrize("metric", sorted(SCORES))
def test_rows_that_count_several_times_are_repeated_rows(metric):
    f, y = rows(metric)
    times = np.random.default_rng(1).integers(0, 4, size=(2, N))
    found = STATISTICS[metric].value(f, y[None], times.astype(float))
    expected = [[SCORES[metric](np.repeat(y, t), np.repeat(g, t)) for t in times] for g in f]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("metric", ["roc_auc", "r2"])
def test_an_environment_without_a_value_is_nan_and_left_out(metric):
    f, y = rows(metric)
    y = np.where(SITE == "south", 1.0, y)
    table = evaluate_environments(f, y, SITE, metric=metric, n_bootstrap=20, random_state=0)
    assert np.isnan(table.by_environment).tolist() == [[False, True, False]] * R
    others = table.by_environment[:, [0, 2]]
    np.testing.assert_allclose(table.mean, others.mean(1))
    np.testing.assert_allclose(table.worst, others.min(1))
    np.testing.assert_allclose(table.spread, np.ptp(others, axis=1))
    assert set(table.worst_environment) <= {"north", "west"}
    assert np.isnan(table.intervals["by_environment"].lower[:, 1]).all()
    assert np.isfinite(table.intervals["worst"].lower).all()
    np.testing.assert_array_equal(table[1].mean, table.mean[1:2])
    assert "nan" in str(table[0])
    nowhere = evaluate_environments(f, np.ones(N), SITE, metric=metric, n_bootstrap=5)
    for q in QUANTITIES:
        assert np.isnan(getattr(nowhere, q)).all()


@pytest.mark.parametrize("metric", sorted(SCORES))
def test_intervals(metric):
    """Quantiles of the metric over rows drawn again within environments; a run has the same alone and among others."""
    f, y = rows(metric)
    how = {"metric": metric, "n_bootstrap": 600, "random_state": 0}
    table = evaluate_environments(f, y, SITE, **how)
    alone = evaluate_environments(f[1], y, SITE, **how)
    own = evaluate_environments(f, y, np.stack([SITE] * R), **how)
    rng = np.random.default_rng(5)
    groups = [np.flatnonzero(s == SITE) for s in table.names]
    draws = [np.concatenate([rng.choice(g, len(g)) for g in groups]) for _ in range(600)]
    by_hand = np.quantile([SCORES[metric](y[d], f[1][d]) for d in draws], [0.025, 0.975])
    width = by_hand[1] - by_hand[0]
    for q in ("by_environment", *QUANTITIES):
        for which in (0, 1):
            np.testing.assert_array_equal(table.intervals[q][which][1], alone.intervals[q][which][0])
            np.testing.assert_array_equal(table.intervals[q][which], own.intervals[q][which])
        assert (table.intervals[q].lower <= getattr(table, q)).all() or q in ("worst", "spread")
    found = [limit[1] for limit in table.intervals["overall"]]
    np.testing.assert_allclose(found, by_hand, atol=0.2 * width)


@pytest.mark.parametrize("metric", sorted(SCORES))
def test_a_run_that_diverged_is_nan_alone(metric):
    f, y = rows(metric)
    f[1, 5] = np.nan
    table = evaluate_environments(f, y, SITE, metric=metric, n_bootstrap=10)
    assert np.isnan(table.by_environment).tolist() == [[False] * 3, [True, False, False], [False] * 3]
    for q in QUANTITIES:
        assert np.isnan(getattr(table, q)).tolist() == [False, True, False]
        assert np.isnan(table.intervals[q].lower).tolist() == [False, True, False]


def test_errors():
    of_two = replace(STATISTICS["roc_auc"], losses=("binary",))
    with pytest.raises(ValueError, match=r"metric 'roc_auc' is for two classes, one logit. Got logits of 3 outputs"):
        evaluate_environments(np.zeros((1, 4, 3)), [0, 1, 2, 1], metric=of_two)
    with pytest.raises(
        ValueError, match=r"metric must be one of .*'roc_auc', .*'r2', 'rmse'\]. Got 'rsme'. Did you mean 'rmse'"
    ):
        evaluate_environments([1.0], [1.0], metric="rsme")
