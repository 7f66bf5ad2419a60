"""Tables of every kind, columns by name, routed metadata: the same rows give the same model."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import sklearn
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from estimators.rows import arrays, table
from irmtv.estimators import InvariantClassifier, InvariantRegressor

FAST = {"max_steps": 30, "hidden": (), "random_state": 0}


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def test_columns_by_name_equal_arrays_beside_x():
    frame, y = table()
    X, _, site, year = arrays()
    by_array = InvariantClassifier(**FAST).fit(X, y, environment=site)
    by_name = InvariantClassifier(environment="site", **FAST).fit(frame.drop(columns="year"), y)
    np.testing.assert_array_equal(by_array.decision_function(X), by_name.decision_function(frame[["stable", "fickle"]]))
    np.testing.assert_array_equal(by_name.feature_names_in_, ["stable", "fickle"])
    assert by_name.n_features_in_ == 2
    inferred = InvariantClassifier(aux=["year"], environment=None, **FAST).fit(frame.drop(columns="site"), y)
    np.testing.assert_array_equal(
        InvariantClassifier(**FAST).fit(X, y, aux=year).decision_function(X),
        inferred.decision_function(frame[["stable", "fickle"]]),
    )
    assert (by_array.objective_, inferred.objective_) == ("irm-tv-l1", "minimax-tv-l1")


def test_named_columns_may_be_there_or_not_when_predicting():
    frame, y = table()
    clf = InvariantClassifier(environment="site", aux="year", **FAST).fit(frame, y)
    full = clf.predict_proba(frame)
    np.testing.assert_array_equal(full, clf.predict_proba(frame.drop(columns=["site", "year"])))
    np.testing.assert_array_equal(full, clf.predict_proba(frame.assign(site="nowhere", year=np.nan)))


@pytest.mark.parametrize("as_environment", [pd.Series, pd.Categorical, list, pl.Series, np.asarray])
def test_environment_of_any_kind(as_environment):
    X, y, site, _ = arrays()
    clf = InvariantClassifier(**FAST).fit(X, y, environment=as_environment(site))
    assert list(clf.environments_) == ["a", "b", "c"]
    np.testing.assert_allclose(clf.environment_weights_, [np.mean(site == e) for e in "abc"])


def test_polars_equals_pandas():
    frame, y = table()
    ours = InvariantClassifier(environment="site", aux=["year"], **FAST)
    one, other = clone(ours).fit(frame, y), clone(ours).fit(pl.from_pandas(frame), pl.Series(y))
    np.testing.assert_array_equal(one.decision_function(frame), other.decision_function(pl.from_pandas(frame)))
    np.testing.assert_array_equal(other.feature_names_in_, ["stable", "fickle"])
    assert other.evaluate(pl.from_pandas(frame), pl.Series(y)).names == ("a", "b", "c")
    minimax = clone(ours).set_params(objective="minimax-tv-l1")
    q = [minimax.fit(t, y).membership(t) for t in (frame, pl.from_pandas(frame))]
    np.testing.assert_array_equal(*q)


def test_sparse_is_made_dense_with_a_warning():
    X, y, site, _ = arrays()
    dense = InvariantClassifier(**FAST).fit(X, y, environment=site)
    with pytest.warns(UserWarning, match=r"X is sparse and was made dense \(240 x 2, 0 MiB\)"):
        sparse = InvariantClassifier(**FAST).fit(scipy.sparse.csr_array(X), y, environment=site)
    got = sparse.decision_function(scipy.sparse.csc_matrix(X))  # without another warning
    np.testing.assert_allclose(got, dense.decision_function(X), rtol=1e-10)


def test_bools_and_nullable_integers_are_numbers():
    frame, y = table()
    X = pd.DataFrame({"b": frame["stable"] > 100, "i": pd.array(range(len(y)), dtype="Int64")})
    plain = pd.DataFrame({"b": X["b"].astype(float), "i": np.arange(float(len(y)))})
    one, other = (InvariantClassifier("erm", **FAST).fit(t, y).decision_function(t) for t in (X, plain))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", [InvariantClassifier, InvariantRegressor])
def test_clone_and_pickle(kind):
    frame, y = table()
    fitted = kind(environment="site", aux=["year"], **FAST).fit(frame, y)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(frame), fitted.predict(frame))
    assert again.history_.equals(fitted.history_)
    fresh = clone(fitted)
    assert not hasattr(fresh, "predictor_")
    assert fresh.get_params() == fitted.get_params()


# ---- routed metadata --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("routing")
def test_environment_goes_through_a_pipeline():
    X, y, site, _ = arrays()
    weight = np.linspace(1, 2, len(y))
    clf = InvariantClassifier(**FAST)
    alone = clone(clf).fit(StandardScaler().fit_transform(X), y, environment=site, sample_weight=weight)
    requested = clf.set_fit_request(environment=True, sample_weight=True)
    pipe = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), requested)
    pipe.fit(X, y, environment=site, sample_weight=weight)
    np.testing.assert_allclose(pipe.predict_proba(X), alone.predict_proba(StandardScaler().fit_transform(X)))
    assert list(pipe[-1].environments_) == ["a", "b", "c"]


@pytest.mark.usefixtures("routing")
def test_environment_goes_through_grid_search_and_cross_validation_leaving_environments_out():
    X, y, site, _ = arrays()
    clf = InvariantClassifier(**FAST).set_fit_request(environment=True)
    search = GridSearchCV(clf, {"penalty_weight": [0.0, 100.0]}, cv=LeaveOneGroupOut(), error_score="raise")
    search.fit(X, y, environment=site, groups=site)
    assert search.n_splits_ == 3
    assert list(search.best_estimator_.environments_) == ["a", "b", "c"]
    pipe = make_pipeline(StandardScaler(), clf)
    found = cross_validate(
        pipe, X, y, cv=LeaveOneGroupOut(), params={"environment": site, "groups": site}, return_estimator=True
    )
    trained_on = [set(p[-1].environments_) for p in found["estimator"]]
    assert trained_on == [{"b", "c"}, {"a", "c"}, {"a", "b"}]


@pytest.mark.usefixtures("routing")
def test_aux_of_a_predictor_that_reads_it_is_routed():
    X, y, _, year = arrays()
    clf = InvariantClassifier("tiva", **FAST)
    requested = clf.set_fit_request(aux=True).set_predict_request(aux=True).set_score_request(aux=True)
    pipe = make_pipeline(StandardScaler(), requested).fit(X, y, aux=year)
    moved = pipe.predict(X, aux=year + 100)
    assert (moved != pipe.predict(X, aux=year)).any()
    assert pipe.score(X, y, aux=year) == np.mean(pipe.predict(X, aux=year) == y)


def test_a_mixed_table_through_a_table_vectorizer():
    skrub = pytest.importorskip("skrub")
    frame, y = table()
    frame["colour"] = np.where(np.arange(len(y)) % 3 == 0, "red", "blue")
    with sklearn.config_context(enable_metadata_routing=True):
        clf = InvariantClassifier(**FAST).set_fit_request(environment=True)
        pipe = make_pipeline(skrub.TableVectorizer(), clf)
        pipe.fit(frame.drop(columns="site"), y, environment=frame["site"])
    new = frame.drop(columns="site").assign(colour="green")  # a category that training has not seen
    with pytest.warns(UserWarning, match="Found unknown categories"):
        assert pipe.predict(new).shape == (len(y),)


def test_new_rows_may_have_environments_that_no_column_holds():
    """Trained on a column, evaluated on rows without it or with other labels: what is passed goes first."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(60, 2)), columns=["a", "b"]).assign(site=np.repeat(["x", "y"], 30))
    y = (table["a"] > 0).astype(int)
    model = InvariantClassifier(environment="site", hidden=(), max_steps=5, random_state=0).fit(table, y)
    other = np.repeat(["u", "v", "w"], 20)
    without = model.evaluate(table.drop(columns="site"), y, environment=other)
    assert without.names == ("u", "v", "w")
    np.testing.assert_array_equal(without.by_environment, model.evaluate(table, y, environment=other).by_environment)
    assert model.evaluate(table, y).names == ("x", "y")
