"""`solver`, `start` and `classifier="auto"`: what each value does, when "auto" is which, and what is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import log_loss

from engine.problems import refuse
from estimators.rows import arrays
from irmtv.estimators import InvariantClassifier, InvariantClassifierCV, InvariantRegressor, InvariantRegressorCV
from irmtv.models.networks import settings

X, Y, SITE, YEAR = arrays()
LINEAR = {"hidden": (), "random_state": 0, "max_steps": 20}
PATH = {**LINEAR, "cv": 2, "penalty_weights": [10.0, 1e3], "l2": 0.0}
NO_MATTER = pytest.mark.filterwarnings("ignore:.*ERM is kept, though it is not invariant")


def fit(objective="irm-tv-l1", kind=InvariantClassifier, **parameters):
    given = {} if objective == "erm" else {"environment": SITE}
    return kind(objective, **{**LINEAR, **parameters}).fit(X, Y, **given)


def path(objective="irm-tv-l1", **parameters):
    return InvariantClassifierCV(objective, **{**PATH, **parameters}).fit(X, Y, environment=SITE)


def by_newton(model):
    """Of its history: ERM and the solution, whatever max_steps is."""
    return list(model.history_["step"].unique()) == [0, 1]


def linear_module():
    return torch.nn.Linear(2, 1)


# ---- exact models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [None, np.linspace(0.1, 3, len(Y))])
def test_erm_is_logistic_regression_and_least_squares(weight):
    z = (X - X.mean(0)) / X.std(0)  # scikit-learn's solver wants columns of one size
    ours = InvariantClassifier("erm", l2=0.0, **LINEAR).fit(z, Y, sample_weight=weight)
    theirs = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-12).fit(z, Y, sample_weight=weight)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-6)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-6)
    three = np.digitize(X[:, 0] + 1e4 * X[:, 1], [95, 105])
    ours = InvariantClassifier("erm", l2=0.0, **LINEAR).fit(z, three, sample_weight=weight)
    theirs = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-12).fit(z, three, sample_weight=weight)
    np.testing.assert_allclose(ours.predict_proba(z), theirs.predict_proba(z), atol=1e-6)
    targets = np.c_[3 * X[:, 0] + Y, 1e3 * X[:, 1] - 7 * Y]
    ours = InvariantRegressor("erm", l2=0.0, **LINEAR).fit(X, targets, sample_weight=weight)
    theirs = LinearRegression().fit(X, targets, sample_weight=weight)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-6)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-6)


def test_the_penalised_risk_is_at_a_minimum():
    """No small step in any direction leads lower, in lambda (sum_e m_e |S_e|)^2 + R + l2 |theta|^2 itself."""
    model = fit(l2=1e-3, penalty_weight=10.0)
    z = (X - X.mean(0)) / X.std(0)
    theta = np.append(model.coef_[0] * X.std(0), model.intercept_[0] + model.coef_[0] @ X.mean(0))

    def value(theta):
        f = z @ theta[:-1] + theta[-1]
        slope = (1 / (1 + np.exp(-f)) - Y) * f
        tv = sum(abs(slope[site == SITE].sum()) for site in "abc") / len(Y)
        return log_loss(Y, 1 / (1 + np.exp(-f))) + 1e-3 * theta @ theta + 10 * tv**2

    around = np.random.default_rng(0).normal(size=(200, 3))
    lowest = min(value(theta + 0.02 * d / np.linalg.norm(d)) for d in around)
    assert value(theta) < lowest
    assert value(theta) < value(np.append(fit("erm", l2=1e-3).coef_[0] * X.std(0), theta[-1]))


def test_neither_seed_nor_steps_nor_rate_nor_batches_matter():
    expected = fit().coef_
    for other in ({"random_state": 5}, {"max_steps": 7}, {"learning_rate": 0.5}, {"batch_size": 8}, {"warmup": 0}):
        np.testing.assert_array_equal(fit(**other).coef_, expected)
    for dtype in ("float32", "float64"):
        model = fit(dtype=dtype)
        assert model.predictor_.members[0].parameters["W0"].dtype == torch.float64
        np.testing.assert_array_equal(model.coef_, expected)


# ---- which solver ---------------------------------------------------------------------------------------------------


def test_each_solver():
    assert by_newton(fit()) and by_newton(fit(solver="newton"))
    np.testing.assert_array_equal(fit().coef_, fit(solver="newton").coef_)
    adam = fit(solver="adam")
    assert adam.history_["step"].max() == adam.n_iter_ == 20
    assert adam.predictor_.members[0].parameters["W0"].dtype == torch.float32
    long = fit("erm", solver="adam", max_steps=2000, learning_rate=0.05, dtype="float64")
    np.testing.assert_allclose(long.coef_, fit("erm").coef_, rtol=1e-4)  # both reach ERM


@pytest.mark.parametrize(
    "parameters",
    [
        {"hidden": (3,)},
        {"hidden": (32,), "module": linear_module},
        {"penalty_weight": "adaptive"},
        {"penalty_weight": "learned"},
        {"objective": "groupdro"},
        {"objective": "lff"},
        {"objective": "eiil"},
        {"objective": "sparse-irm"},
        {"objective_params": {"measure": "learned"}},
        {"warm_start": True},
    ],
)
def test_auto_is_adam_for_what_newtons_method_cannot_do(parameters):
    model = fit(**parameters)
    assert model.history_["step"].max() == 20 == model.n_iter_
    adam = fit(solver="adam", **parameters)
    np.testing.assert_array_equal(model.decision_function(X), adam.decision_function(X))
    if "warm_start" not in parameters:
        with refuse("solver='newton' is not for this", "Use solver='auto' or 'adam'"):
            fit(solver="newton", **parameters)


def test_auto_is_adam_for_large_tables(monkeypatch):
    assert by_newton(fit()) and by_newton(path())
    monkeypatch.setattr(settings, "MOST_WORK", len(Y) * 3**2 - 1)  # rows x parameters^2
    assert not by_newton(fit()) and fit().n_iter_ == 20
    assert set(path(rule="iid").cv_results_["step"]) == set(range(1, 21))
    assert by_newton(fit(solver="newton"))  # where it is asked for it is done
    monkeypatch.undo()
    monkeypatch.setattr(settings, "MOST_PARAMETERS", 2)
    assert not by_newton(fit())


@NO_MATTER
@pytest.mark.parametrize(
    "parameters",
    [
        {"hidden": (3,)},
        {"hidden": (32,), "module": linear_module},
        {"grid": {"learning_rate": [0.01, 0.1]}},
        {"grid": {"warmup": [0.2, 0.5]}},
        {"penalty_weights": [10.0, "adaptive"]},
        {"objective": "groupdro", "penalty_weights": None},
        {"solver": "adam"},
    ],
)
def test_a_path_by_adam_has_many_steps_and_one_classifier(parameters):
    model = path(**parameters)
    assert len(set(model.cv_results_["step"])) > 10
    assert not {"classifier", "start"} & ({*model.best_params_} | {*model.cv_results_})


def test_a_module_is_trained_by_adam_though_it_is_linear():
    with refuse("solver='newton' is not for this: the network is given by module="):
        fit(solver="newton", hidden=(32,), module=linear_module)


def test_early_stopping_chooses_between_erm_and_the_solution():
    model = fit(early_stopping="iid", validation_fraction=0.3)
    held_out = model.history_
    assert set(held_out["on"]) == {"held-out"} and by_newton(model)
    risk = held_out.groupby("step")[["risk", "rows"]].apply(lambda p: np.average(p["risk"], weights=p["rows"]))
    erm = risk[0] < risk[1]
    assert model.predictor_.members[0].step == (0 if erm else 1)


# ---- where it starts ------------------------------------------------------------------------------------------------


def test_starts_by_name():
    starts = ("erm", "equal-risks", "environment", "small", "random")
    found = {start: fit(start=start, penalty_weight=100.0) for start in starts}
    np.testing.assert_array_equal(found["erm"].coef_, fit(penalty_weight=100.0).coef_)  # the default
    assert all(by_newton(model) for model in found.values())
    np.testing.assert_array_equal(found["random"].coef_, fit(start="random", penalty_weight=100.0).coef_)
    for start in starts:  # nothing to choose from where there is no penalty
        np.testing.assert_allclose(fit("erm", start=start).coef_, fit("erm").coef_, rtol=1e-9)


def test_starts_of_adam():
    """With almost no step the model is its start."""
    still = {"solver": "adam", "max_steps": 1, "learning_rate": 1e-12, "dtype": "float64", "l2": 0.0}
    np.testing.assert_allclose(fit(start="erm", **still).coef_, fit("erm", l2=0.0).coef_, rtol=1e-5)
    np.testing.assert_array_equal(fit(start="random", **still).coef_, fit(**still).coef_)
    small = fit(start="small", **still).coef_ / fit("erm", l2=0.0).coef_
    assert (small > 0).all() and (small < 0.2).all()
    worst = fit("erm", l2=0.0).evaluate(X, Y, environment=SITE, metric="log_loss")
    site = worst.names[int(worst.by_environment[0].argmax())]
    alone = InvariantClassifier("erm", l2=0.0, **LINEAR).fit(X[site == SITE], Y[site == SITE])
    np.testing.assert_allclose(fit(start="environment", **still).coef_, alone.coef_, rtol=1e-4)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"solver": "newtn"},
            ("solver must be one of ['auto', 'newton', 'adam', 'subgradient']", "Did you mean 'newton'?"),
        ),
        ({"solver": None}, ("solver must be one of", "Got None")),
        ({"start": "ermm"}, ("start must be one of ['erm', 'equal-risks',", "Got 'ermm'", "Did you mean 'erm'?")),
        ({"start": 3}, ("start must be one of", "Got 3")),
        ({"start": ["erm"]}, ("start must be one of", "Got ['erm']")),
        ({"solver": "newton", "hidden": (3,)}, ("it is for linear models, hidden=(), and hidden is (3,)",)),
        ({"solver": "newton", "objective": "groupdro"}, ("the measure is learned",)),
        ({"solver": "newton", "objective": "lff"}, ("'lff' is a way of training of its own",)),
        ({"solver": "newton", "penalty_weight": "adaptive"}, ("the penalty weight follows Phi",)),
        ({"solver": "adam", "start": "equal-risks"}, ("is a path of Newton's method. Use solver='newton'",)),
        ({"hidden": (3,), "start": "erm"}, ("start='erm' is for linear models", "warmup=0.5")),
        ({"classifier": "auto"}, ("classifier must be 'scalar' or 'vector'. Got 'auto'",)),
    ],
)  # fmt: skip
def test_what_is_refused(parameters, message):
    with refuse(*message):
        fit(**parameters)


def test_newtons_method_goes_on_from_a_model():
    model = InvariantClassifier("irm-tv-l1", solver="newton", warm_start=True, **LINEAR).fit(X, Y, environment=SITE)
    steps, coef = model.n_iter_, model.coef_.copy()
    model.fit(X, Y, environment=SITE)
    assert model.n_iter_ < steps
    np.testing.assert_allclose(model.coef_, coef, rtol=1e-3, atol=1e-4)


# ---- CV: classifiers and starts stand for choice --------------------------------------------------------------------

TWO = [("scalar", "erm"), ("vector", "equal-risks")]


@NO_MATTER
def test_every_penalty_weight_stands_twice_and_erm_once():
    model = path()
    table = model.cv_results_[model.cv_results_["objective"] == "irm-tv-l1"]
    found = set(zip(table["penalty_weight"], table["classifier"], table["start"], strict=True))
    assert found == {(0.0, "scalar", "erm"), *((w, *kind) for w in (10.0, 1e3) for kind in TWO)}
    assert len(table) == 5 and set(table["step"]) == {1}
    assert {"penalty_weight", "classifier", "start"} <= {*model.best_params_}
    assert model.selected_["classifier"] == model.best_params_["classifier"]


@NO_MATTER
def test_a_classifier_that_is_given_is_the_only_one():
    for classifier in ("scalar", "vector"):
        model = path(classifier=classifier)
        assert len(model.cv_results_) == 3 and not {"classifier", "start"} & {*model.best_params_}
    objective = path(objective="vrex")  # no slopes in its penalty
    assert len(objective.cv_results_) == 3 and "classifier" not in objective.best_params_


@NO_MATTER
@pytest.mark.filterwarnings("ignore:solver='newton'")  # from a small start the tolerance may be missed
def test_a_grid_of_classifiers_and_starts():
    grid = {"start": ["erm", "small"], "classifier": ["vector", "scalar"]}
    model = path(grid=grid)
    table = model.cv_results_
    found = set(zip(table["penalty_weight"], table["start"], table["classifier"], strict=True))
    assert {f for f in found if f[0]} == {*itertools.product((10.0, 1e3), *grid.values())}
    assert {f[2] for f in found if not f[0]} == {"vector"}  # ERM has no slopes to take
    assert model.best_params_["start"] in grid["start"]
    starts = path(grid={"start": ["erm", "equal-risks"]}).cv_results_
    assert set(starts["start"]) == {"erm", "equal-risks"} and "classifier" not in starts
    both = path(grid={"classifier": ["scalar", "vector"]}, solver="adam").cv_results_
    assert set(both["classifier"]) == {"scalar", "vector"} and len(set(both["step"])) == 20


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"grid": {"start": ["ermm"]}}, ("start must be one of", "Got 'ermm'")),
        ({"grid": {"classifier": ["both"]}}, ("classifier must be 'scalar' or 'vector'", "Got 'both'")),
        ({"grid": {"start": ["equal-risks"]}, "solver": "adam"}, ("is a path of Newton's method",)),
        ({"grid": {"solver": ["adam"]}}, ("Got 'solver'", "GridSearchCV")),
        ({"solver": "newton", "grid": {"penalty_ramp": [0.5]}, "hidden": (3,)}, ("it is for linear models",)),
        ({"solver": "newton", "penalty_weights": ["adaptive"]}, ("the penalty weight follows Phi",)),
        ({"classifier": "both"}, ("classifier must be", "Got 'both'")),
    ],
)
def test_what_a_path_refuses(parameters, message):
    with refuse(*message):
        path(**parameters)


@NO_MATTER
def test_inferred_environments_are_the_same_for_every_classifier_and_start():
    model = InvariantClassifierCV("minimax-tv-l1", **PATH).fit(X, Y, aux=YEAR)
    table = model.cv_results_
    assert set(zip(table["classifier"], table["start"], strict=True)) == {*TWO} and len(table) == 5
    assert model.membership(aux=YEAR).shape == (len(Y), 2)
    with refuse("a grid over 'classifier' would give them different ones"):
        grid = {"classifier": ["scalar", "vector"]}
        InvariantClassifierCV("minimax-tv-l1", **{**PATH, "solver": "adam", "grid": grid}).fit(X, Y, aux=YEAR)


@NO_MATTER
def test_seeds_of_newtons_method_are_one_model():
    one, two = path(), path(n_seeds=2)
    assert len(two.predictor_.members) == 2 and one.best_params_ == two.best_params_
    np.testing.assert_allclose(two.decision_function(X), one.decision_function(X), rtol=1e-9)
    np.testing.assert_allclose(one.cv_results_["risk"], two.cv_results_["risk"], rtol=1e-9)


@NO_MATTER
def test_regression():
    model = InvariantRegressorCV("irm-tv-l1", **PATH).fit(X, 3 * X[:, 0] + Y, environment=SITE)
    table = model.cv_results_
    assert set(zip(table["classifier"], table["start"], strict=True)) == {*TWO} and len(table) == 5
