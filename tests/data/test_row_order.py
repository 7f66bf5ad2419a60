"""pandas objects beside X with its row labels in another order are refused: by position they mean other rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from estimators.rows import table
from irmtv import (
    EnvironmentInference,
    InvariantBoostingClassifier,
    InvariantClassifier,
    InvariantClassifierCV,
)
from irmtv.app.diagnose import diagnose
from irmtv.metrics import evaluate_environments

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
    r"{0} must have its rows in the order of X: .*by position.*another order \(row 0 is .* in {0} and .* in X\)"
    r".*use {0}\.loc\[X\.index\]; .*{0}\.to_numpy"
)


def fit(model, X=X, **changed):
    y = changed.pop("y", Y)
    return model.fit(X, y, **{"environment": BESIDE["environment"], **changed})


def refused(name):
    return pytest.raises(ValueError, match=MESSAGE.format(name))


@pytest.mark.parametrize("name", BESIDE)
def test_fit_refuses(name):
    with refused(name):
        fit(InvariantClassifier("irm-tv-l1", **FAST), **{name: BESIDE[name].iloc[SHUFFLED]})
    with refused(name):
        fit(InvariantBoostingClassifier("irm-tv-l1", n_estimators=2), **{name: BESIDE[name].iloc[SHUFFLED]})


def test_the_advice_works():
    moved = BESIDE["environment"].iloc[SHUFFLED]
    as_it_was, other_rows = fit(InvariantClassifier("irm-tv-l1", **FAST)), moved.to_numpy()
    aligned = fit(InvariantClassifier("irm-tv-l1", **FAST), environment=moved.loc[X.index])
    np.testing.assert_array_equal(aligned.coef_, as_it_was.coef_)
    by_position = fit(InvariantClassifier("irm-tv-l1", **FAST), environment=other_rows)
    expected = fit(InvariantClassifier("irm-tv-l1", **FAST), environment=list(other_rows))
    np.testing.assert_array_equal(by_position.coef_, expected.coef_)


@pytest.mark.parametrize("name", ["y", "environment"])
def test_evaluate_refuses(name):
    model = fit(InvariantClassifier("irm-tv-l1", **FAST))
    given = {"y": BESIDE["y"], "environment": BESIDE["environment"]}
    given[name] = given[name].iloc[SHUFFLED]
    with refused(name):
        model.evaluate(X, **given)


def test_other_estimators_refuse():
    moved = BESIDE["environment"].iloc[SHUFFLED]
    with refused("environment"):
        fit(InvariantClassifierCV(**FAST, cv=2, penalty_weights=[1.0], l2=0.0, rule="iid"), environment=moved)
    inference = EnvironmentInference("clusters", n_shuffles=0, random_state=0)
    with refused("aux"):
        inference.fit(X, aux=BESIDE["aux"].iloc[SHUFFLED])
    inference.fit(X, aux=BESIDE["aux"])
    with refused("aux"):
        inference.predict(X, aux=BESIDE["aux"].iloc[SHUFFLED])


def test_metrics_and_diagnosis_refuse():
    with pytest.raises(ValueError, match=r"environment must have its rows in the order of y"):
        evaluate_environments(np.zeros(60), pd.Series(Y), FRAME["site"].iloc[SHUFFLED])
    for name in ("y", "environment", "aux"):
        given = {"y": BESIDE["y"], "environment": BESIDE["environment"], "aux": BESIDE["aux"]}
        given[name] = given[name].iloc[SHUFFLED]
        with refused(name):
            diagnose(X, **given)


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
def test_others_are_taken_by_position(environment):
    fit(InvariantClassifier("irm-tv-l1", **FAST), environment=environment)  # warnings are errors
    fit(InvariantClassifier("irm-tv-l1", **FAST), X=X.to_numpy(), environment=environment)
    fit(
        InvariantClassifier("irm-tv-l1", **FAST),
        X=X.iloc[SHUFFLED],
        y=BESIDE["y"].iloc[SHUFFLED],
        environment=FRAME["site"].iloc[SHUFFLED],
    )
