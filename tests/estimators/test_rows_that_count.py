"""Rows of weight 0, environments of few rows that count, labels of any kind, and what a failed fit leaves."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.utils.class_weight import compute_sample_weight

import irmtv
from estimators.rows import arrays
from irmtv.estimators import InvariantClassifier, InvariantClassifierCV

FAST = {"hidden": (), "max_steps": 60, "random_state": 0}


def test_balanced_classes_count_rows_by_their_weights():
    """As scikit-learn's LogisticRegression: a row of weight 2 is two rows, one of weight 0 none."""
    X, y, site, _ = arrays(90)
    weight = np.arange(len(y)) % 3
    rows = np.repeat(np.arange(len(y)), weight)
    how = {**FAST, "class_weight": "balanced", "dtype": "float64"}
    weighted = InvariantClassifier(**how).fit(X, y, environment=site, sample_weight=weight)
    repeated = InvariantClassifier(**how).fit(X[rows], y[rows], environment=site[rows])
    np.testing.assert_allclose(weighted.decision_function(X), repeated.decision_function(X), rtol=1e-8)
    alone = InvariantClassifier("erm", **how).fit(X, y)
    by_hand = InvariantClassifier("erm", **{**how, "class_weight": None}).fit(
        X, y, sample_weight=compute_sample_weight("balanced", y)
    )
    np.testing.assert_allclose(alone.decision_function(X), by_hand.decision_function(X), rtol=1e-8)


@pytest.mark.parametrize("early_stopping", [None, "iid"])
def test_a_row_of_weight_0_is_as_if_it_were_not_there(early_stopping):
    X, y, site, _ = arrays(120)
    kept = np.arange(len(y)) % 3 > 0
    how = {**FAST, "dtype": "float64", "early_stopping": early_stopping}
    weighted = InvariantClassifier(**how).fit(X, y, environment=site, sample_weight=kept.astype(float))
    without = InvariantClassifier(**how).fit(X[kept], y[kept], environment=site[kept])
    np.testing.assert_allclose(weighted.decision_function(X), without.decision_function(X), rtol=1e-8)
    assert weighted.selected_ == without.selected_


def test_environments_are_counted_by_rows_that_count():
    X, y, site, _ = arrays(120)
    with pytest.raises(ValueError, match="environment"):
        InvariantClassifier("irm-tv-l1", **FAST).fit(X, y, environment=site, sample_weight=(site == "a") * 1.0)
    few = np.where((site == "c") & (np.cumsum(site == "c") > 3), 0.0, 1.0)  # three rows of c are left
    with pytest.warns(UserWarning, match="pool"):
        fitted = InvariantClassifier("irm-tv-l1", **{**FAST, "min_rows": 10}).fit(
            X, y, environment=site, sample_weight=few
        )
    assert len(fitted.environments_) == 2


def test_after_a_fit_that_failed_there_is_no_model():
    X, y, site, _ = arrays()
    fitted = InvariantClassifier(**FAST).fit(X, y, environment=site)
    with pytest.raises(ValueError, match="environment"):
        fitted.fit(X, np.where(y, "x", "y"), environment=np.zeros(len(y)))
    with pytest.raises(NotFittedError):
        fitted.predict(X)


def test_after_a_warm_start_that_failed_the_model_is_the_old_one():
    X, y, site, _ = arrays()
    fitted = InvariantClassifier(warm_start=True, **FAST).fit(X, y, environment=site)
    before = fitted.decision_function(X)
    with pytest.raises(ValueError, match="warm_start=True"):
        fitted.fit(X[:, :1], y, environment=site)
    np.testing.assert_array_equal(fitted.decision_function(X), before)


@pytest.mark.parametrize("kind", ["intervals", "periods"])
def test_intervals_and_periods_as_environments(kind, tmp_path):
    X, y, _, year = arrays()
    if kind == "intervals":
        labels = pd.qcut(pd.Series(year), 3)
    else:
        labels = pd.Series(pd.PeriodIndex((np.floor(year / 7) * 7).astype(int).astype(str), freq="Y"))
    fitted = InvariantClassifier(**{**FAST, "min_rows": 1}).fit(X, y, environment=labels)
    assert all(isinstance(name, str) for name in fitted.environments_) and len(fitted.environments_) >= 2
    fitted.save(tmp_path / "model.irmtv")
    assert list(irmtv.load(tmp_path / "model.irmtv").environments_) == list(fitted.environments_)
    assert set(fitted.evaluate(X, y, environment=labels).names) == set(fitted.environments_)


@pytest.mark.parametrize("refit", [True, False])
def test_the_objective_of_what_was_chosen(refit):
    """Beside groupdro, ERM is trained, and kept where it is invariant."""
    rng = np.random.default_rng(0)
    X, site = rng.normal(size=(300, 3)), np.repeat(["a", "b"], 150)
    y = (X[:, 0] + 0.5 * rng.normal(size=300) > 0).astype(int)
    fitted = InvariantClassifierCV("groupdro", hidden=(), max_steps=100, random_state=0, refit=refit)
    fitted.fit(X, y, environment=site)
    assert fitted.selected_["objective"] == fitted.objective_ == "erm"
