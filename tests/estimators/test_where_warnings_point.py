"""Warnings point at the user's own line, whichever way the call took; of sparse tables they come in `fit` alone."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse
from sklearn import set_config
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from estimators.rows import arrays
from irmtv import EnvironmentInference, InvariantClassifier, InvariantClassifierCV, InvariantRegressor
from irmtv.core.messages import users_stacklevel

FAST = {"hidden": (), "max_steps": 5, "random_state": 0}
X, Y, SITE, YEAR = arrays(120)
FEW = np.where(np.arange(120) < 4, "rare", SITE)  # four rows: pooled
SPARSE = scipy.sparse.csr_array(np.abs(X))


def caught(call):
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        call()
    assert record
    return record


@pytest.mark.parametrize(
    "model",
    [
        InvariantClassifier(**FAST),
        InvariantRegressor(**FAST, penalty_weight=1.0),  # 1000 leaves a constant, which has a warning of its own
        InvariantClassifierCV(**FAST, cv=2, penalty_weights=[1.0], rule="iid", l2=0.0),
    ],
)
@pytest.mark.parametrize(
    ("rows", "message"), [({"environment": FEW}, "are pooled"), ({"environment": SITE, "X": SPARSE}, "made dense")]
)
def test_at_the_call_of_fit(model, rows, message):
    record = caught(lambda: model.fit(**{"X": X, "y": Y, **rows}))
    assert len(record) == 1 and message in str(record[0].message)
    assert record[0].filename == __file__


def test_through_a_pipeline_and_a_search():
    model = make_pipeline(StandardScaler(), InvariantClassifier(**FAST))
    record = caught(lambda: model.fit(X, Y, invariantclassifier__environment=FEW))
    assert {w.filename for w in record} == {__file__}
    set_config(enable_metadata_routing=True)
    try:
        one = InvariantClassifier(**FAST).set_fit_request(environment=True)
        search = GridSearchCV(one, {"penalty_weight": [1.0]}, cv=2)
        record = caught(lambda: search.fit(X, Y, environment=FEW))
    finally:
        set_config(enable_metadata_routing=False)
    assert len(record) >= 2 and {w.filename for w in record} == {__file__}


def test_a_warmup_without_end_and_a_rule_that_cannot_test():
    site = np.where(np.arange(120) < 60, "a", "b")
    record = caught(
        lambda: InvariantClassifier("irm-tv-l1", solver="adam", warmup=5, **FAST).fit(X, Y, environment=site)
    )
    assert "the penalty never acts" in str(record[0].message) and record[0].filename == __file__
    rare = np.where(np.arange(120) < 12, "rare", site)
    path = InvariantClassifierCV(**FAST, cv=2, penalty_weights=[1.0], l2=0.0)
    record = caught(lambda: path.fit(X, Y, environment=rare))
    assert any("does not test environments" in str(w.message) for w in record)
    assert {w.filename for w in record} == {__file__}


def test_sparse_tables_are_told_of_in_fit_alone():
    rare = np.random.default_rng(0).integers(0, 4, (120, 2))
    model = make_pipeline(OneHotEncoder(), InvariantClassifier(**FAST))
    with pytest.warns(UserWarning, match="in fit and in every prediction"):
        model.fit(rare, Y, invariantclassifier__environment=SITE)
    model.predict(rare)  # warnings are errors
    model.predict_proba(rare)
    model[-1].evaluate(model[:-1].transform(rare), Y, environment=SITE)
    inference = EnvironmentInference("clusters", n_shuffles=0, random_state=0)
    with pytest.warns(UserWarning, match="made dense"):
        inference.fit(SPARSE)
    inference.predict(SPARSE)


def test_a_stack_of_libraries_alone_has_an_end():
    made = {"__name__": "irmtv.somewhere", "users_stacklevel": users_stacklevel, "warnings": warnings}
    exec("def level():\n    return users_stacklevel()\ndef deeper():\n    return level()", made)
    assert made["level"]() == 2 and made["deeper"]() == 3
