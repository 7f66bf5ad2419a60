"""What EnvironmentInference reads: tables of pandas and polars, columns by name, and how scikit-learn passes them."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from irmtv.estimators import EnvironmentInference

RNG = np.random.default_rng(0)
N = 240
X = RNG.normal(size=(N, 3))
Y = np.where(RNG.random(N) < np.repeat([0.01, 0.4], N // 2), X[:, 0] < 0, X[:, 0] > 0).astype(int)  # less sure in time
AUX = np.c_[np.linspace(2000, 2020, N), 5 * RNG.normal(size=N)]
SMALL = {"max_steps": 120, "learning_rate": 0.02, "n_shuffles": 5, "random_state": 0}
FRAMES = {"pandas": pd.DataFrame, "polars": pl.DataFrame}
METHODS = ("minimax", "eiil", "clusters")


def table(library, columns=("a", "year", "b", "place", "c")):
    values = {**dict(zip("abc", X.T, strict=True)), "year": AUX[:, 0], "place": AUX[:, 1]}
    return FRAMES[library]({name: values[name] for name in columns})


def without(frame, *names):
    return frame.drop(columns=list(names)) if hasattr(frame, "iloc") else frame.drop(names)


@pytest.fixture(scope="module")
def plain():
    """Of arrays."""
    return {m: EnvironmentInference(m, **SMALL).fit(X, Y, aux=AUX) for m in METHODS}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("library", FRAMES)
def test_several_columns_by_name(method, library, plain):
    expected, frame = plain[method], table(library)
    found = EnvironmentInference(method, aux=["year", "place"], **SMALL).fit(frame, Y)
    np.testing.assert_array_equal(found.membership_, expected.membership_)
    assert list(found.feature_names_in_) == ["a", "b", "c"] and found.n_features_in_ == 3 and found.n_aux_ == 2
    # aux columns are found by their names, wherever they stand, and in the order of the constructor
    moved = table(library, ("place", "a", "b", "year", "c"))
    np.testing.assert_array_equal(found.predict_proba(moved, Y), expected.membership_)
    assert found.strength(moved, Y).penalty == pytest.approx(expected.strength_.penalty)
    # features are held to theirs, by scikit-learn
    with pytest.raises(ValueError, match="feature names should match"):
        found.predict(table(library, ("c", "b", "a", "year", "place")), Y)
    with pytest.raises(ValueError, match="feature names should match"):
        found.predict(without(frame, "c"), Y)
    if method != "eiil":
        with pytest.raises(ValueError, match=r"aux must be given: .*keep 'year', 'place' in X, or pass values"):
            found.predict(without(frame, "place"), Y)


@pytest.mark.parametrize("library", FRAMES)
def test_a_frame_of_aux_is_read_by_its_names(library, plain):
    frame = table(library)
    found = EnvironmentInference("clusters", **SMALL).fit(X, Y, aux=frame[["year", "place"]])
    for aux in (frame[["place", "year"]], frame[["year", "place"]], AUX):
        np.testing.assert_array_equal(found.predict_proba(None, aux=aux), plain["clusters"].membership_)
    with pytest.raises(
        ValueError,
        match=r"aux must have the columns of training, 'year', 'place'. .* 'place'; extra: 'a'. Select",
    ):
        found.predict(None, aux=frame[["year", "a"]])
    with pytest.raises(
        ValueError,
        match=r"aux must have the columns of training, 'year', 'place'. .* 'place'; extra: none. Select",
    ):
        found.predict(None, aux=frame[["year"]])
    # columns of X at fit, a frame beside it later
    found = EnvironmentInference("clusters", aux=["year", "place"], **SMALL).fit(frame, Y)
    swapped = found.predict_proba(without(frame, "year", "place"), aux=frame[["place", "year"]])
    np.testing.assert_array_equal(swapped, plain["clusters"].membership_)
    # numbers are no names: pandas gives them where nobody did
    found = EnvironmentInference("clusters", **SMALL).fit(X, aux=pd.DataFrame(AUX, columns=[3, 4]))
    expected = plain["clusters"].membership_
    np.testing.assert_array_equal(found.predict_proba(None, aux=pd.DataFrame(AUX)), expected)


@pytest.mark.parametrize("library", FRAMES)
def test_series(library):
    frame = table(library)
    y = {"pandas": pd.Series, "polars": pl.Series}[library](np.where(Y, "yes", "no"))
    found = EnvironmentInference(**SMALL).fit(frame[["a", "b", "c"]], y, aux=frame["year"])
    expected = EnvironmentInference(**SMALL).fit(X, Y, aux=AUX[:, 0])
    np.testing.assert_array_equal(found.membership_, expected.membership_)
    assert list(found.reference_.classes_) == ["no", "yes"] and found.n_aux_ == 1
    np.testing.assert_array_equal(found.predict(None, aux=frame["year"]), expected.labels_)


@pytest.mark.parametrize("method", METHODS)
def test_clones_and_pickles(method, plain):
    found = EnvironmentInference(method, aux=["year", "place"], **SMALL).fit(table("pandas"), Y)
    again = pickle.loads(pickle.dumps(found))
    new = table("pandas", ("place", "a", "year", "b", "c"))
    np.testing.assert_array_equal(again.predict_proba(new, Y), found.predict_proba(new, Y))
    assert again.strength(new, Y) == found.strength(new, Y)
    copied = clone(found)
    assert copied.get_params() == found.get_params() and not hasattr(copied, "labels_")
    np.testing.assert_array_equal(copied.fit(table("polars"), Y).membership_, plain[method].membership_)


def test_at_the_end_of_a_pipeline(plain):
    """It has no transform, so `set_output` is for the steps before it, which then hand on names."""
    assert not hasattr(EnvironmentInference(), "set_output") and not hasattr(EnvironmentInference(), "transform")
    scale = make_column_transformer(
        (StandardScaler(), ["a", "b", "c"]), remainder="passthrough", verbose_feature_names_out=False
    )
    found = make_pipeline(scale, EnvironmentInference(aux=["year", "place"], **SMALL))
    found.set_output(transform="pandas").fit(table("pandas"), Y)
    assert list(found[-1].feature_names_in_) == ["a", "b", "c"]
    assert np.mean(found.predict(table("pandas")) == plain["minimax"].labels_) > 0.99
    values = make_pipeline(StandardScaler(), EnvironmentInference("clusters", **SMALL))
    values.fit(X, Y, environmentinference__aux=AUX)
    np.testing.assert_array_equal(values.predict(X, aux=AUX), plain["clusters"].labels_)


def test_routed_metadata(plain):
    with sklearn.config_context(enable_metadata_routing=True):
        step = EnvironmentInference("clusters", **SMALL).set_fit_request(aux=True).set_predict_request(aux=True)
        found = make_pipeline(StandardScaler(), step).fit(X, Y, aux=AUX)
        np.testing.assert_array_equal(found.predict(X, aux=AUX), plain["clusters"].labels_)


@pytest.mark.parametrize("aux", [3.0, 3, np.float64(3), np.array(3.0), torch.tensor(3.0), True, iter([3.0])])
def test_one_number_is_no_column(plain, aux):
    message = r"aux must be numbers of shape \(rows,\) or \(rows, columns\). Got .*For one row pass a list, aux=\[...\]"
    for call in (
        lambda: plain["minimax"].predict(None, aux=aux),
        lambda: plain["minimax"].predict(X, aux=aux),
        lambda: plain["clusters"].predict_proba(X[:1], aux=aux),
        lambda: plain["minimax"].strength(X, Y, aux=aux),
        lambda: EnvironmentInference(**SMALL).fit(X, Y, aux=aux),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert plain["minimax"].predict(None, aux=[[2001.0, 0.0]]).shape == (1,)


@pytest.mark.parametrize("method", METHODS)
def test_a_second_fit_forgets_the_first(method, plain):
    """Names and numbers of aux columns are those of the last fit."""
    found = EnvironmentInference(method, aux=["year", "place"], **SMALL).fit(table("pandas"), Y)
    found.set_params(aux=None).fit(X, Y, aux=AUX)
    assert not hasattr(found, "feature_names_in_")
    other = pd.DataFrame(AUX, columns=["t", "p"])
    np.testing.assert_array_equal(found.predict_proba(X, Y, aux=other), plain[method].membership_)
