"""Tables that cannot be read as they are: the message says which column and row, and what to do, which then works."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
import skrub
import torch
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from estimators.rows import arrays
from irmtv.estimators import InvariantClassifier, InvariantClassifierCV, InvariantRegressor

FAST = {"max_steps": 3, "hidden": (), "random_state": 0}
N = 60
X, Y, SITE, YEAR = arrays(N)
FRAME = pd.DataFrame(X, columns=["stable", "fickle"])
DATES = pd.Series(pd.date_range("2020-01-01", periods=N))


def fit(X=FRAME, y=Y, kind=InvariantClassifier, environment=SITE, aux=None, **parameters):
    return kind(**{**FAST, **parameters}).fit(X, y, environment=environment, aux=aux)


# ---- columns ----------------------------------------------------------------------------------------------------


def test_column_names_that_come_twice():
    twice = pd.concat([FRAME, FRAME[["fickle"]]], axis=1)
    message = (
        r"X must have every column name once. Got 'fickle' 2 times. Rename them, or keep the first .*duplicated\(\)"
    )
    with pytest.raises(ValueError, match=message):
        fit(twice)
    with pytest.raises(ValueError, match=message):
        fit().predict(twice)
    assert list(fit(twice.loc[:, ~twice.columns.duplicated()]).feature_names_in_) == ["stable", "fickle"]


@pytest.mark.filterwarnings("error::polars.exceptions.PerformanceWarning")
def test_a_plan_of_a_table():
    lazy = pl.from_pandas(FRAME).lazy()
    with pytest.raises(ValueError, match=r"X must hold its rows. Got LazyFrame, a plan of them. Call .collect\(\)"):
        fit(lazy)
    with pytest.raises(ValueError, match=r"X must hold its rows. Got LazyFrame"):
        fit(pl.from_pandas(FRAME)).predict(lazy)
    for parameter in ("y", "environment", "aux"):
        with pytest.raises(ValueError, match=rf"{parameter} must hold its rows. Got LazyFrame"):
            fit(**{parameter: lazy})


def test_columns_named_by_integers():
    whole = pd.DataFrame(np.c_[X, SITE == "a", YEAR])
    labels, years = whole[2].to_numpy(), whole[3].to_numpy()
    by_name = InvariantClassifier("minimax-tv-l1", environment=2, aux=[3], **FAST).fit(whole, Y)
    by_value = InvariantClassifier("minimax-tv-l1", **FAST).fit(X, Y, environment=labels, aux=years)
    np.testing.assert_array_equal(by_name.decision_function(whole), by_value.decision_function(X))
    np.testing.assert_array_equal(by_name.predict(whole), by_name.predict(X))
    with pytest.raises(ValueError, match=r"X must be a DataFrame with the column 7, .* Got the columns 0, 1, 2, 3"):
        InvariantClassifier(environment=7, **FAST).fit(whole, Y)
    with pytest.raises(ValueError, match=r"environment must be a column name of X, or None. Got 2. Values go to fit"):
        InvariantClassifier(environment=2, **FAST).fit(X, Y)
    with pytest.raises(ValueError, match=r"X must have column names of one kind. Got int and str.*astype\(str\)"):
        fit(whole.rename(columns={0: "stable"}))
    with pytest.raises(
        ValueError, match=r"environment must be a column name.* Got ndarray of shape \(60,\). Values go"
    ):
        InvariantClassifier(environment=SITE, **FAST).fit(X, Y)


def test_a_name_where_values_belong():
    whole = FRAME.assign(site=SITE)
    with pytest.raises(ValueError, match=r"environment must be values here.*Got the name 'site'.*in the constructor"):
        fit(whole, environment="site")
    with pytest.raises(ValueError, match=r"aux must be values here.*Got the name \['year'\]"):
        fit(whole, environment=None, aux=["year"])


def test_evaluate_takes_the_environment_by_name():
    whole = FRAME.assign(site=SITE, region=np.where(SITE == "c", "north", "south"))
    model = fit()
    expected = model.evaluate(FRAME, Y, environment=SITE)
    for frame in (whole[["stable", "fickle", "site"]], pl.from_pandas(whole[["stable", "fickle", "site"]])):
        found = model.evaluate(frame, Y, environment="site")
        assert found.names == ("a", "b", "c")
        np.testing.assert_array_equal(found.by_environment, expected.by_environment)
    by_column = InvariantClassifier(environment="site", **FAST).fit(whole.drop(columns="region"), Y)
    assert by_column.evaluate(whole, Y, environment="region").names == ("north", "south")
    assert by_column.evaluate(whole.drop(columns="region"), Y, environment="site").names == ("a", "b", "c")
    # a feature that serves as environment, too, is still read
    binned = FRAME.assign(bin=np.digitize(FRAME["stable"], [95, 105]))
    reader = fit(binned)
    by_bin = reader.evaluate(binned, Y, environment="bin")
    np.testing.assert_array_equal(
        by_bin.by_environment, reader.evaluate(binned, Y, environment=binned["bin"]).by_environment
    )
    with pytest.raises(
        ValueError, match=r"environment must be labels.* Got 'stie', and X has the.*Did you mean 'site'"
    ):
        model.evaluate(whole, Y, environment="stie")
    with pytest.raises(ValueError, match=r"Got 'site', and X is ndarray without column names"):
        model.evaluate(X, Y, environment="site")


def test_an_environment_that_an_earlier_step_encoded():
    whole = FRAME.assign(site=SITE, colour=np.where(np.arange(N) % 3 == 0, "red", "blue"))
    encode = make_pipeline(skrub.TableVectorizer(), InvariantClassifier(environment="site", **FAST))
    with pytest.raises(
        ValueError, match=r"'site'.*encoded by an earlier step, as 'site_a', 'site_b', 'site_c'. Keep it"
    ):
        encode.fit(whole, Y)
    # what the message advises
    passed = skrub.TableVectorizer(specific_transformers=[("passthrough", ["site"])])
    through = make_pipeline(passed, InvariantClassifier(environment="site", **FAST)).fit(whole, Y)
    beside = make_pipeline(skrub.TableVectorizer(), InvariantClassifier(**FAST))
    beside.fit(whole.drop(columns="site"), Y, invariantclassifier__environment=whole["site"])
    for model in (through, beside):
        assert list(model[-1].environments_) == ["a", "b", "c"]
        assert model[-1].n_features_in_ == 3
    np.testing.assert_array_equal(through.predict(whole), beside.predict(whole.drop(columns="site")))


def test_an_environment_that_an_earlier_step_renamed_or_left_nameless():
    whole = FRAME.assign(site=SITE, colour=np.where(np.arange(N) % 3 == 0, "red", "blue"))
    encoder = make_column_transformer((OneHotEncoder(sparse_output=False), ["colour"]), remainder="passthrough")
    model = make_pipeline(encoder, InvariantClassifier(environment="site", **FAST))
    with pytest.raises(ValueError, match=r"Got ndarray without column names.*\.set_output\(transform='pandas'\)"):
        model.fit(whole, Y)
    encoder.set_output(transform="pandas")
    with pytest.raises(ValueError, match=r"'remainder__site' seems to be it.*verbose_feature_names_out=False"):
        model.fit(whole, Y)
    encoder.set_params(verbose_feature_names_out=False)
    assert list(model.fit(whole, Y)[-1].environments_) == ["a", "b", "c"]


# ---- missing values, dates, series ------------------------------------------------------------------------------


def test_missing_and_infinite_features():
    gaps = FRAME.copy()
    gaps.loc[[3, 9], "fickle"] = np.nan
    both = gaps.copy()
    both.loc[7, "stable"] = -np.inf
    nan = r"Input X contains NaN in 2 of 60 rows: the first is NaN in row 3, column 'fickle'\. Put an imputer before"
    two = (
        r"contains NaN and infinity in 3 of 60 rows: .* row 3, column 'fickle'; 2 columns have some\. "
        r"Make infinite values NaN, numpy"
    )
    for bad, message in (
        (gaps, nan),
        (pl.from_pandas(gaps), nan),
        (gaps.to_numpy(), r"the first is NaN in row 3, column 1\..*SimpleImputer.*TableVectorizer leaves missing"),
        (both, two),
        (
            np.where(np.arange(N)[:, None] == 5, np.inf, X),
            r"infinity in 1 of 60 rows: the first is infinity in row 5, column 0",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            fit(bad)
    with pytest.raises(ValueError, match=nan):
        fit().predict(gaps)
    # what the message says and advises
    assert skrub.TableVectorizer().fit_transform(gaps)["fickle"].isna().sum() == 2
    model = make_pipeline(SimpleImputer(), InvariantClassifier(**FAST))
    assert model.fit(gaps, Y, invariantclassifier__environment=SITE).predict(gaps).shape == (N,)


def test_dates():
    dated = FRAME.assign(when=DATES)
    for bad in (dated, dated[["when"]].to_numpy(), dated.astype(object).to_numpy(), pl.from_pandas(dated)):
        with pytest.raises(ValueError, match=r"X must.*(dates|datetime64|Datetime).*skrub.TableVectorizer"):
            fit(bad)
    with pytest.raises(
        ValueError, match=r"aux must be numbers. Got dates, 'when' \(datetime64.*X\['when'\].astype\('int64'"
    ):
        InvariantClassifier(aux="when", **FAST).fit(dated, Y)
    with pytest.raises(
        ValueError, match=r"aux must be numbers. Got dates, 'when' \(Datetime.*X\['when'\].dt.epoch\(\)"
    ):
        InvariantClassifier(aux="when", **FAST).fit(pl.from_pandas(dated), Y)
    with pytest.raises(ValueError, match=r"Got dates, of dtype \(datetime64.*aux.astype\('int64'\).*aux.dt.year"):
        fit(environment=None, aux=DATES)
    with pytest.raises(ValueError, match=r"y must be numbers or labels. Got dates \(datetime64"):
        fit(y=DATES, kind=InvariantRegressor)
    # what the messages advise
    number = dated.assign(when=dated["when"].astype("int64"))
    one = InvariantClassifier(aux="when", **FAST).fit(number, Y)
    other = fit(environment=None, aux=pl.from_pandas(dated)["when"].dt.epoch())
    np.testing.assert_allclose(one.decision_function(number), other.decision_function(FRAME), rtol=1e-9)


def test_series_and_tables():
    rng = np.random.default_rng(0)
    series = rng.normal(size=(N, 2, 5))

    def reads_series():
        return torch.nn.Sequential(torch.nn.Conv1d(2, 1, 3), torch.nn.AdaptiveAvgPool1d(1), torch.nn.Flatten())

    of_series = fit(series, module=reads_series)
    with pytest.raises(
        ValueError, match=r"X must be \(rows, channels, length\), series, as in training. Got shape \(60, 2\)"
    ):
        of_series.predict(X)
    with pytest.raises(
        ValueError, match=r"the module cannot read X of shape \(60, 2, 2\). Got .*the length of training"
    ):
        of_series.predict(series[:, :, :2])
    of_table = fit(X, module=lambda: torch.nn.Linear(2, 1), warm_start=True)
    for call in (lambda: of_table.predict(series), lambda: of_table.fit(series, Y, environment=SITE)):
        with pytest.raises(ValueError, match=r"X must be \(rows, features\), a table, as in training. Got shape"):
            call()
    with pytest.raises(ValueError, match=r"Found array with dim 3.*module=.*X.reshape\(len\(X\), -1\)"):
        fit(series)
    series[4, 1, 2] = np.nan
    with pytest.raises(ValueError, match=r"the first is NaN in row 4, channel 1, position 2"):
        of_series.predict(series)


# ---- y ----------------------------------------------------------------------------------------------------------


def test_targets():
    numbers = np.linspace(0, 1, N)
    gap = np.where(np.arange(N) == 3, np.nan, numbers)
    for y, kind, message in (
        (
            SITE,
            InvariantRegressor,
            r"y must be numbers for InvariantRegressor. Got text, 'c' .*use InvariantClassifier",
        ),
        (SITE.astype("U1"), InvariantRegressor, r"Got text, 'c' \("),
        (
            gap,
            InvariantRegressor,
            r"y contains NaN in 1 of 60 rows: the first is NaN in row 3. Leave these",
        ),
        (gap.astype(object), InvariantRegressor, r"Input y contains NaN in 1 of 60 rows"),
        (np.where(np.isnan(gap), np.inf, gap), InvariantRegressor, r"Input y contains infinity in 1 of 60 rows"),
        (np.c_[numbers, gap], InvariantRegressor, r"Input y contains NaN in 1 of 60 rows"),
        ([None, *SITE[1:]], InvariantClassifier, r"Input y contains NaN in 1 of 60 rows: the first is NaN in row 0"),
        (
            np.array([1, "b"] * 30, dtype=object),
            InvariantClassifier,
            r"y must hold labels of one kind. Got int and str",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            fit(y=y, kind=kind)
    with pytest.raises(ValueError, match=r"y must have two or more classes. Got 1 class, 'a', in 60 rows"):
        fit(y=np.full(N, "a"))
    with pytest.raises(ValueError, match=r"y must hold classes of the training rows, 0, 1. Got 2\."):
        fit().evaluate(FRAME, Y + 1)


def test_numbers_among_objects_are_numbers():
    fit(y=np.array([np.str_("a"), "b"] * 30, dtype=object))  # text is text
    for y, kind in ((Y, InvariantClassifier), (X[:, 0], InvariantRegressor)):
        as_objects = pd.Series(list(y), dtype=object)
        np.testing.assert_array_equal(fit(y=as_objects, kind=kind).predict(FRAME), fit(y=y, kind=kind).predict(FRAME))
    weighted = {"class_weight": {0: 1, 1: 5}}
    one, other = (fit(y=y, **weighted).decision_function(FRAME) for y in (Y, pd.Series(list(Y), dtype=object)))
    np.testing.assert_array_equal(one, other)


# ---- environments -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            np.arange(N) // 5,
            r"with min_rows=10 rows or more each.*Got 12 labels in 60 rows.*0: 5, 1: 5,.*min_rows=5 keeps",
        ),
        (
            ["a"] * 55 + ["b"] * 5,
            r"Got 2 labels in 60 rows .*'a': 55, 'b': 5\. Those with fewer than min_rows are pooled",
        ),
        (np.arange(N), r"Got 60 labels in 60 rows.*looks like a name of each row.*aux.*pandas.qcut"),
        ([f"patient {i}" for i in range(N)], r"'patient 0': 1,.*use a coarser label"),
        (np.linspace(0, 1, N), r"They look continuous: pass them as aux.*pandas.qcut\(values, 4\)"),
        (DATES, r"Dates are rather aux, as numbers.*astype\('int64'\).*the year, d.dt.year"),
    ],
)
def test_labels_that_leave_nothing_to_compare(environment, message):
    with pytest.raises(ValueError, match=message):
        fit(environment=environment)
    with pytest.raises(ValueError, match=message):
        fit(environment=environment, kind=InvariantClassifierCV)


def test_labels_that_look_like_none_are_told_of():
    X, y, _, _ = arrays(240)
    often = np.where(np.arange(240) < 100, 0.0, 1.0 + np.arange(240) % 70)
    with pytest.warns(UserWarning, match="pooled"), pytest.warns(UserWarning, match=r"71 different labels.*continuous"):
        fit(X, y, environment=often)
    names = [f"id {i}" if i > 99 else "none" for i in range(240)]
    with (
        pytest.warns(UserWarning, match="pooled"),
        pytest.warns(UserWarning, match="141 different labels.*name of each"),
    ):
        fit(X, y, environment=names)
    fit(X, y, environment=np.arange(240) % 4 + 0.5)  # a few numbers are labels


def test_a_feature_that_is_the_environment():
    codes = pd.Series(SITE).map({"a": 5.0, "b": -1.0, "c": 7.0}).to_numpy()
    with pytest.warns(
        UserWarning, match=r"X has the environment among its features: 'place' has one value for each of the 3"
    ):
        fit(FRAME.assign(place=codes))
    with pytest.warns(UserWarning, match="among its features: 1 has one value"):
        fit(np.c_[X[:, 0], codes, X[:, 1]])
    with pytest.warns(UserWarning, match="'place'"):
        InvariantClassifier(environment="site", **FAST).fit(FRAME.assign(place=codes, site=SITE), Y)
    coarse = np.where(SITE == "a", 1.0, 0.0)  # does not tell b from c
    finer = codes + (np.arange(N) == 40)  # one row is another
    fit(FRAME.assign(coarse=coarse, finer=finer))
    fit(FRAME.assign(place=codes), objective="eiil")  # which does not read the labels


def test_a_late_row_that_differs_is_seen():
    """The columns are looked at in two rounds: after the first rows, and all of them."""
    X, y, _, _ = arrays(600)
    site = np.arange(600) % 2
    almost = site.astype(float)
    almost[599] = 0.0
    fit(np.c_[X, almost], y, environment=site)
    with pytest.warns(UserWarning, match="among its features: 2"):
        fit(np.c_[X, site], y, environment=site)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"aux": 3.0}, r"aux must be numbers of shape \(rows,\) or \(rows, columns\). Got 3.0"),
        ({"X": np.zeros((5, 2)), "aux": [3.0]}, "aux must have .*5"),
    ],
)
def test_membership_of_aux_that_is_no_column(given, says):
    X, y, _, year = arrays(60)
    fitted = InvariantClassifier("minimax-tv-l1", max_steps=20, random_state=0).fit(X, y, aux=year)
    with pytest.raises(ValueError, match=says):
        fitted.membership(**given)
