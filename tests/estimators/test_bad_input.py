"""What is wrong with the input is said: which parameter, what was expected, what came, what to do."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.exceptions import NotFittedError

from estimators.rows import arrays, table
from irmtv.estimators import InvariantClassifier, InvariantRegressor

FAST = {"max_steps": 3, "hidden": (), "random_state": 0}


def fit(X=None, y=None, kind=InvariantClassifier, objective="auto", environment=None, aux=None, **parameters):
    features, labels, _, _ = arrays(60)
    X, y = features if X is None else X, labels if y is None else y
    return kind(objective, **{**FAST, **parameters}).fit(X, y, environment=environment, aux=aux)


SITE, YEAR = arrays(60)[2:]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"constructor": {"environment": "stie"}}, r"X must be a DataFrame with the column 'stie', which environment"),
        ({"constructor": {"environment": "stie"}}, r"Did you mean 'site'\?"),
        ({"constructor": {"aux": ["year", "month"]}}, r"the column 'month', which aux names. Got the columns"),
        ({"constructor": {"environment": 3}}, r"environment must be a column name of X, or None. Got 3"),
        ({"constructor": {"aux": [1.0, 2.0]}}, r"aux must be a column name or a list of column names"),
        ({"constructor": {"environment": "site"}, "environment": SITE}, "environment must come from one place"),
        ({"constructor": {"environment": "site", "aux": ["stable", "fickle", "year"]}}, "X must have features besides"),
    ],
)
def test_columns(call, message):
    frame, y = table(60)
    with pytest.raises(ValueError, match=message):
        InvariantClassifier(**call["constructor"], **FAST).fit(frame, y, environment=call.get("environment"))


def test_a_column_name_needs_a_table_with_names():
    with pytest.raises(ValueError, match=r"Got ndarray without column names. Name a column of X, or pass values"):
        InvariantClassifier(environment="site", **FAST).fit(*arrays(60)[:2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({}, r"objective='auto' needs environment or aux.*'irm-tv-l1'.*'minimax-tv-l1'.*Got neither"),
        ({"objective": "irm-tv-l1"}, "'irm-tv-l1' needs environment: a label for every row. Got none. Name a column"),
        ({"objective": "irm-tv-l1", "aux": YEAR}, "aux was given: 'minimax-tv-l1' infers environments from it"),
        ({"objective": "minimax-tv-l1", "environment": SITE}, "environment was given: 'irm-tv-l1' takes it as it is"),
        ({"objective": "zin"}, "'zin' needs aux: numbers that environments are inferred from. Got none. Name columns"),
        ({"objective": "irm-tv-l3", "environment": SITE}, r"objective must be one of .* Did you mean 'irm-tv-l\d'\?"),
        ({"objective": 3}, "objective must be a name of irmtv.OBJECTIVES or 'auto'. Got 3"),
        ({"environment": ["a"] * 60}, r"environment must have two or more different labels.*Got only 'a' \(n_samples"),
        ({"environment": ["a"] * 59 + ["b"]}, r"rows of each: 'a': 59, 'b': 1\. Those with fewer than min_rows are"),
        ({"environment": [None, *SITE[1:]]}, "environment must be known for every row. Got 1 missing"),
        ({"environment": SITE[:-1]}, "environment must have one entry per row of x: expected 60. Got 59"),
        ({"environment": np.stack([SITE, SITE], 1)}, "environment must be one label per row. Got shape"),
        ({"aux": YEAR[:-1]}, "aux must have one entry per row of x: expected 60. Got 59"),
        (
            {"aux": np.where(np.arange(60) == 3, np.nan, YEAR)},
            "aux must be finite. .* NaN in 1 of 60 rows: .* row 3",
        ),
        ({"aux": SITE}, "aux must be numbers"),
        ({"environment": SITE, "objective_params": {"measur": "uniform"}}, r"objective_params must .*'measure'\?"),
        ({"environment": SITE, "objective_params": {"l2": 1}}, "which is a parameter of the estimator. Set it there"),
        ({"environment": SITE, "objective_params": [1]}, "objective_params must be a dict"),
        ({"environment": SITE, "objective_params": {"measure": "even"}}, "measure of 'irm-tv-l1' must be"),
        ({"environment": SITE, "penalty_weight": -1.0}, "penalty_weight of 'irm-tv-l1' must be a finite number of at"),
        ({"environment": SITE, "penalty_weight": "adaptiv"}, "penalty_weight of 'irm-tv-l1' must be"),
        ({"environment": SITE, "warmup": 1.5}, "warmup of 'irm-tv-l1' must be a whole number of steps, or a share"),
        ({"environment": SITE, "hidden": 32}, r"hidden must be a sequence of layer widths.*Use hidden=\(32,\)"),
        ({"environment": SITE, "hidden": "32"}, "hidden must be a sequence of layer widths"),
        ({"environment": SITE, "hidden": (0,)}, "hidden must be a tuple of whole numbers of at least 1"),
        ({"environment": SITE, "module": torch.nn.Linear(2, 1)}, "module must be a function .* Got Linear"),
        ({"environment": SITE, "module": 3}, "module must be a function .* Got int"),
        ({"environment": SITE, "module": lambda: 3}, "must be a function that returns a torch.nn.Module"),
        ({"environment": SITE, "module": lambda: torch.nn.Linear(2, 3)}, "module must give 1 output per row"),
        ({"environment": SITE, "classifier": "tensor"}, "classifier must be 'scalar' or 'vector'. Got 'tensor'"),
        ({"environment": SITE, "max_steps": 0}, "max_steps must be a positive integer. Got 0"),
        ({"environment": SITE, "learning_rate": 0}, "learning_rate must be a finite number above 0. Got 0"),
        ({"environment": SITE, "l2": -1}, "l2 must be a finite number of at least 0"),
        ({"environment": SITE, "batch_size": 1}, "batch_size must be None, 'auto' or a whole number of at least 2"),
        ({"environment": SITE, "min_rows": 0}, "min_rows must be a positive integer"),
        ({"environment": SITE, "validation_fraction": 1.0}, "validation_fraction must be a number between 0 and 1"),
        ({"environment": SITE, "validation_fraction": "a"}, "validation_fraction must be a number between 0 and 1"),
        ({"environment": SITE, "early_stopping": "invariance"}, "InvariantClassifierCV chooses by 'invariance'"),
        (
            {"objective": "eiil", "early_stopping": "worst-env"},
            "needs two or more that are given, or inferred from aux",
        ),
        ({"environment": SITE, "device": "gpu"}, "device must be 'cpu', 'cuda' or 'auto'"),
        ({"environment": SITE, "dtype": "float16"}, r"dtype must be one of \['float32', 'float64'\]"),
        ({"environment": SITE, "random_state": -1}, "random_state must not be negative"),
        ({"environment": SITE, "random_state": "now"}, "cannot be used to seed"),
        ({"objective": "hrm", "hidden": (4,)}, "hidden must be empty"),
    ],
)
def test_parameters(call, message):
    with pytest.raises(ValueError, match=message):
        fit(**call)


def test_rows():
    X, y, site, _ = arrays(60)
    frame, _ = table(60)
    gap, text = X.copy(), frame.assign(colour="red", when=pd.Timestamp("2020-01-01"))
    gap[3, 1] = np.nan
    for bad, message in (
        ({"X": gap}, "Input X contains NaN"),
        ({"X": np.where(np.isnan(gap), np.inf, gap)}, "Input X contains infinity"),
        ({"X": text.drop(columns="site")}, r"'colour' \((str|object)\), 'when' \(datetime64.*skrub.TableVectorizer"),
        ({"X": text[["stable", "colour"]].astype({"colour": object})}, r"'colour' \(object\).*skrub.TableVectorizer"),
        ({"X": frame[["stable", "site"]].astype({"site": "category"})}, r"'site' \(category\).*skrub.TableVectorizer"),
        ({"X": pl.from_pandas(text[["stable", "colour"]])}, r"'colour' \(String\).*skrub.TableVectorizer"),
        ({"X": text[["stable", "colour"]].to_numpy()}, "X must be numbers. Got text .*skrub.TableVectorizer"),
        ({"X": np.array([["a", "b"]] * 60)}, "X must be numbers. Got text .*skrub.TableVectorizer"),
        ({"X": X[:, 0]}, "Expected 2D array, got 1D array instead"),
        ({"X": np.stack([X, X], 1)}, "Found array with dim 3"),
        ({"X": X[:0], "y": y[:0]}, "0 sample"),
        ({"y": y[:-1]}, "y must have one entry per row of x: expected 60. Got 59"),
        ({"y": np.zeros(60)}, "y must have two or more classes. Got 1 class, .*0.0.*, in 60 rows"),
        ({"y": np.where(np.arange(60) == 1, np.nan, y)}, "Input y contains NaN"),
        ({"y": np.linspace(0, 1, 60)}, "Unknown label type: continuous"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(**bad, environment=site)
    with pytest.raises(ValueError, match="requires y to be passed, but the target y is None"):
        InvariantClassifier("erm", **FAST).fit(X, None)
    with pytest.raises(ValueError, match=r"sample_weight must not be negative. Got -1 at row 0"):
        InvariantClassifier("erm", **FAST).fit(X, y, sample_weight=np.r_[-1, np.ones(59)])
    with pytest.raises(ValueError, match=r"sample_weight must be above 0 for some row. Got zeros only"):
        InvariantClassifier("erm", **FAST).fit(X, y, sample_weight=np.zeros(60))
    with pytest.raises(ValueError, match=r"two or more classes among the rows that count. Got 1 class"):
        InvariantClassifier("erm", **FAST).fit(X, y, sample_weight=y)
    with pytest.raises(ValueError, match="could not convert string to float"):
        fit(y=site, kind=InvariantRegressor, environment=site)


def test_prediction():
    frame, y = table(60)
    X = frame[["stable", "fickle"]]
    for call in ("predict", "predict_proba", "decision_function", "plot_history", "plot_features", "membership"):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            getattr(InvariantClassifier(), call)(X)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        InvariantClassifier().evaluate(X, y)
    clf = InvariantClassifier(environment="site", **FAST).fit(frame.drop(columns="year"), y)
    with pytest.raises(ValueError, match="X has 3 features, but InvariantClassifier is expecting 2 features"):
        InvariantClassifier("erm", **FAST).fit(X.to_numpy(), y).predict(np.ones((4, 3)))
    with pytest.raises(ValueError, match="Feature names unseen at fit time"):
        clf.predict(frame)
    with pytest.raises(ValueError, match=r"'fickle' \((str|object)\).*new at prediction"):
        clf.predict(X.assign(fickle="new"))
    with pytest.raises(ValueError, match="Input X contains NaN"):
        clf.predict(X.assign(fickle=np.nan))
    with pytest.raises(ValueError, match=r"y must hold classes of the training rows, .*0.*, .*1.*. Got .*2"):
        clf.evaluate(X, y + 1)
    with pytest.raises(ValueError, match=r"y must have one entry per row of x: expected 60. Got 59"):
        clf.evaluate(X, y[1:])
    with pytest.raises(ValueError, match=r"environment must have one entry per row of x: expected 60. Got 2"):
        InvariantClassifier("erm", **FAST).fit(X, y).evaluate(X, y, environment=["a", "b"])
    with pytest.raises(ValueError, match="metric must be"):
        clf.evaluate(X, y, metric="f2")
    with pytest.raises(ValueError, match="'irm-tv-l1' does not"):
        clf.membership(X)


def test_aux_at_prediction():
    X, y, _, year = arrays(60)
    tiva = InvariantClassifier("tiva", **FAST).fit(X, y, aux=np.c_[year, year**2])
    with pytest.raises(ValueError, match="aux must be given: the predictor of objective 'tiva' reads aux"):
        tiva.predict(X)
    with pytest.raises(ValueError, match=r"aux must have the 2 columns of training. Got 1"):
        tiva.predict(X, aux=year)
    with pytest.raises(ValueError, match="X must be given: 'tiva' infers environments from X and aux together"):
        tiva.membership(aux=np.c_[year, year])
    zin = InvariantClassifier("zin", **FAST).fit(X, y, aux=year)
    with pytest.raises(ValueError, match="aux must be given: the environment network reads aux"):
        zin.membership(X)


def test_warm_start_refuses_another_network():
    X, y, site, _ = arrays(60)
    clf = InvariantClassifier(warm_start=True, **FAST).fit(X, y, environment=site)
    before = clf.decision_function(X)
    with pytest.raises(ValueError, match=r"warm_start=True goes on with the present network, whose .* W0 \(1, 2\)"):
        clf.set_params(hidden=(3,)).fit(X, y, environment=site)
    clf.set_params(hidden=())
    with pytest.raises(ValueError, match=r"X has 1 features.*warm_start=True goes on from a model of other rows"):
        clf.fit(X[:, :1], y, environment=site)
    with pytest.raises(ValueError, match=r"y must hold classes of the training rows.*set_params\(warm_start=False\)"):
        clf.fit(X, y + 1, environment=site)
    np.testing.assert_array_equal(clf.decision_function(X), before)  # the model is as it was
    reg = InvariantRegressor(warm_start=True, **FAST).fit(X, y, environment=site)
    with pytest.raises(ValueError, match="warm_start=True goes on with the present network"):
        reg.fit(X, np.c_[y, y], environment=site)


def test_pictures():
    _, y, site, _ = arrays(60)
    reg = fit(kind=InvariantRegressor, y=y, environment=site, hidden=(2,))
    with pytest.raises(ValueError, match=r"needs a linear model, hidden=\(\)"):
        reg.plot_features()
    with pytest.raises(ValueError, match=r"quantity must be one of .*Did you mean 'slope'\?"):
        reg.plot_history(quantity="slopes")
    with pytest.raises(ValueError, match="the history holds no accuracy"):
        reg.plot_history(quantity="accuracy")
    with pytest.raises(ValueError, match="n_features must be a positive integer"):
        fit(environment=site).plot_features(n_features=0)


def test_numbers_whose_sums_are_infinite():
    y = np.arange(60) % 2
    X = np.column_stack([np.linspace(-1, 1, 60) * 1e300, y])
    with pytest.raises(
        ValueError, match=r"X must have numbers of at most 1e\+290: .* Got 1e\+300. Divide such columns"
    ):
        InvariantClassifier(objective="erm").fit(X, y)
    fitted = InvariantClassifier(objective="erm", hidden=(), max_steps=20).fit(X * 1e-20, y)
    with pytest.raises(ValueError, match=r"at most 1e\+290"):
        fitted.predict(X)
