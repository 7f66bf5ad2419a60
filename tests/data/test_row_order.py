"""pandas objects beside X with its row labels in another order: taken by position, and told."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from estimators.rows import table
from irmtv import EnvironmentInference, InvariantClassifier, InvariantClassifierCV

FAST = {"hidden": (), "max_steps": 5, "random_state": 0}
FRAME, Y = table(60)
X = FRAME[["stable", "fickle"]]
BESIDE = {
    "y": pd.Series(Y),
    "environment": FRAME["site"],
    "sample_weight": pd.Series(np.linspace(1, 2, 60)),
    "aux": FRAME[["year"]],
}
SHUFFLED = np.random.default_rng(0).permutation(60)
MESSAGE = (
    r"{0} has the row labels of X in another order \(row 0 is .*by position.*pass {0}\.loc\[X\.index\]; .*to_numpy"
)


def fit(model, X=X, **changed):
    y = changed.pop("y", Y)
    return model.fit(X, y, **{"environment": BESIDE["environment"], **changed})


@pytest.mark.parametrize("name", BESIDE)
def test_fit_tells_and_takes_rows_by_position(name):
    moved = BESIDE[name].iloc[SHUFFLED]
    with pytest.warns(UserWarning, match=MESSAGE.format(name)) as record:
        told = fit(InvariantClassifier("irm-tv-l1", **FAST), **{name: moved})
    assert len(record) == 1 and record[0].filename == __file__
    plain = fit(InvariantClassifier("irm-tv-l1", **FAST), **{name: moved.to_numpy()})
    np.testing.assert_array_equal(told.coef_, plain.coef_)


def test_the_advice_works():
    moved = BESIDE["environment"].iloc[SHUFFLED]
    aligned = fit(InvariantClassifier("irm-tv-l1", **FAST), environment=moved.loc[X.index])
    np.testing.assert_array_equal(aligned.coef_, fit(InvariantClassifier("irm-tv-l1", **FAST)).coef_)


@pytest.mark.parametrize("name", ["y", "environment"])
def test_evaluate_tells(name):
    model = fit(InvariantClassifier("irm-tv-l1", **FAST))
    given = {"y": BESIDE["y"], "environment": BESIDE["environment"]}
    given[name] = given[name].iloc[SHUFFLED]
    with pytest.warns(UserWarning, match=MESSAGE.format(name)) as record:
        model.evaluate(X, **given)
    assert len(record) == 1 and record[0].filename == __file__


def test_other_estimators_tell():
    moved = BESIDE["environment"].iloc[SHUFFLED]
    with pytest.warns(UserWarning, match=MESSAGE.format("environment")):
        fit(InvariantClassifierCV(**FAST, cv=2, penalty_weights=[1.0], l2=0.0, rule="iid"), environment=moved)
    inference = EnvironmentInference("clusters", n_shuffles=0, random_state=0)
    with pytest.warns(UserWarning, match=MESSAGE.format("aux")):
        inference.fit(X, aux=BESIDE["aux"].iloc[SHUFFLED])
    with pytest.warns(UserWarning, match=MESSAGE.format("aux")):
        inference.predict(X, aux=BESIDE["aux"].iloc[SHUFFLED])


@pytest.mark.parametrize(
    "environment",
    [
        BESIDE["environment"],
        BESIDE["environment"].set_axis(np.arange(100, 160)),  # labels that are not those of X say nothing
        BESIDE["environment"].set_axis(np.arange(1, 61)),
        BESIDE["environment"].set_axis([0] * 60),
        BESIDE["environment"].iloc[SHUFFLED].to_numpy(),
        list(BESIDE["environment"]),
    ],
)
def test_nothing_is_said_of_others(environment):
    fit(InvariantClassifier("irm-tv-l1", **FAST), environment=environment)  # warnings are errors
    fit(InvariantClassifier("irm-tv-l1", **FAST), X=X.to_numpy(), environment=environment)
    fit(
        InvariantClassifier("irm-tv-l1", **FAST),
        X=X.iloc[SHUFFLED],
        y=BESIDE["y"].iloc[SHUFFLED],
        environment=FRAME["site"].iloc[SHUFFLED],
    )
