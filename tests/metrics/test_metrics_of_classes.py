"""Metrics of classes, two and several, against scikit-learn: the value, every draw of a bootstrap, rows without one."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, balanced_accuracy_score, f1_score, roc_auc_score

from irmtv.metrics import STATISTICS, evaluate_environments, metric_for

R, N, C = 2, 120, 4
SITE = np.repeat(["north", "south", "west"], 40)
METRICS = ("roc_auc", "f1", "balanced_accuracy", "average_precision")


def softmax(f):
    e = np.exp(f)
    return e / e.sum(-1, keepdims=True)


def rows(several, seed=0):
    rng = np.random.default_rng(seed)
    if not several:
        y = rng.integers(2, size=N)
        return np.round(y - 0.5 + rng.normal(size=(R, N)), 1), y  # rounded: outputs tie
    y = rng.integers(C, size=N)
    return np.eye(C)[y] + rng.normal(size=(R, N, C)), y


def peer(metric, y, f):
    """By scikit-learn; of several classes "macro" and one against the rest."""
    several = f.ndim == 2
    labels = f.argmax(1) if several else (f > 0).astype(int)
    scores = softmax(f) if several else f
    if metric == "roc_auc":
        return roc_auc_score(y, scores, multi_class="ovr") if several else roc_auc_score(y, scores)
    if metric == "f1":
        return f1_score(y, labels, average="macro" if several else "binary")
    if metric == "average_precision":
        return average_precision_score(np.eye(C)[y] if several else y, scores, average="macro")
    return balanced_accuracy_score(y, labels)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("metric", METRICS)
def test_agrees_with_scikit_learn(metric, several):
    f, y = rows(several)
    table = evaluate_environments(f, y, SITE, metric=metric)
    by_hand = [[peer(metric, y[site == SITE], g[site == SITE]) for site in table.names] for g in f]
    np.testing.assert_allclose(table.by_environment, by_hand, rtol=1e-10)
    np.testing.assert_allclose(table.overall, [peer(metric, y, g) for g in f], rtol=1e-10)
    assert table.greater_is_better and table.percent == (metric == "balanced_accuracy")


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("metric", METRICS)
def test_rows_that_count_several_times_are_repeated_rows(metric, several):
    f, y = rows(several)
    times = np.random.default_rng(1).integers(0, 4, size=(3, N))
    found = STATISTICS[metric].value(f, y[None], times.astype(float))
    by_hand = [[peer(metric, np.repeat(y, t), np.repeat(g, t, axis=0)) for t in times] for g in f]
    np.testing.assert_allclose(found, by_hand, rtol=1e-9)


@pytest.mark.parametrize(("metric", "only"), [("roc_auc", 0), ("roc_auc", 1), ("f1", 0), ("average_precision", 0)])
def test_an_environment_of_one_class_has_no_value(metric, only):
    f, y = rows(False)
    y = np.where(SITE == "south", only, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = evaluate_environments(f, y, SITE, metric=metric, n_bootstrap=30, random_state=0)
    assert np.isnan(table.by_environment).tolist() == [[False, True, False]] * R
    assert np.isfinite(table.worst).all() and set(table.worst_environment) <= {"north", "west"}


@pytest.mark.parametrize("metric", METRICS)
def test_a_class_that_an_environment_lacks_does_not_enter_its_mean(metric):
    """The overall value has all classes, as scikit-learn has; F1 counts a class that is predicted there, wrongly."""
    f, y = rows(True)
    y = np.where((SITE == "south") & (y == 3), 0, y)
    table = evaluate_environments(f, y, SITE, metric=metric)
    here = SITE == "south"
    own, g = y[here], f[0][here]
    p, guess = softmax(g), g.argmax(1)
    by_class = {
        "roc_auc": [roc_auc_score(own == c, p[:, c]) for c in range(3)],
        "average_precision": [average_precision_score(own == c, p[:, c]) for c in range(3)],
        "balanced_accuracy": [np.mean(guess[own == c] == c) for c in range(3)],
        "f1": [f1_score(own == c, guess == c) for c in range(3)] + [0.0] * bool((guess == 3).any()),
    }
    assert table.by_environment[0, 1] == pytest.approx(np.mean(by_class[metric]))


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("metric", METRICS)
def test_a_run_without_outputs_has_no_value(metric, several):
    f, y = rows(several)
    f[0, 3] = np.nan
    table = evaluate_environments(f, y, SITE, metric=metric)
    assert np.isnan(table.overall[0]) and np.isfinite(table.overall[1])
    assert np.isnan(table.by_environment[0]).tolist() == [True, False, False]


@pytest.mark.parametrize("loss", ["binary", "multiclass"])
def test_names_of_metrics_by_task(loss):
    for metric in METRICS:
        assert metric_for(loss, metric) == metric
    with pytest.raises(ValueError, match=r"Did you mean 'balanced_accuracy'"):
        metric_for(loss, "balanced_acuracy")
    with pytest.raises(ValueError, match=r"must be one of \['mse', 'mae', 'r2', 'rmse'\] for a regression"):
        metric_for("squared", "f1")
