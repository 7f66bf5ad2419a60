"""The CV estimators: what they choose, what they keep, what they refuse."""

from __future__ import annotations

import inspect
from dataclasses import replace

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from engine.problems import arrays, refuse
from irmtv import Runs, train
from irmtv.core.losses import as_loss
from irmtv.core.progress_bar import ProgressBar
from irmtv.core.types import Rows, Task
from irmtv.datasets import make_control, make_simulation
from irmtv.estimators import InvariantClassifierCV, InvariantRegressorCV
from irmtv.estimators.path import PATH
from irmtv.models.networks import fit as fit_module
from irmtv.models.search import search
from irmtv.selection.folds import fold_tasks

matplotlib.use("Agg")
NO_MATTER = pytest.mark.filterwarnings("ignore:.*ERM is kept, though it is not invariant")
QUICK = {
    "hidden": (),
    "max_steps": 80,
    "learning_rate": 0.05,
    "random_state": 0,
    "cv": 2,
    "l2": 0.0,
    "penalty_weights": [10, 1e3],
}


def spurious(n=400, p_s=(0.999, 0.7)):
    rows = make_simulation(n, p_s, 0.8, random_state=0, n_test=8).train
    return rows.x.double().numpy(), rows.y.numpy(), rows.environment.numpy(), rows.aux.numpy()


X, Y, E, AUX = spurious()


def classifier(**more):
    return InvariantClassifierCV(**{**QUICK, **more})


def fit(**more):
    return classifier(**more).fit(X, Y, environment=E)


def standardised(x):
    return (x - x.mean(0)) / x.std(0)


def as_task(x, y, e, loss="binary", dtype=torch.float32, **more):
    x, y = torch.tensor(standardised(x)).to(dtype), torch.tensor(y).float()
    return Task(Rows(x, y, torch.tensor(e), names=(0, 1), **more), as_loss(loss, 1))


def path(*weights):
    return [{"penalty_weight": w} for w in weights]


def path_of_newton(*weights):
    """What classifier="auto" makes of a path: ERM once, every other weight twice."""
    first, *others = [{"classifier": "scalar", "start": "erm"}, *({"classifier": "vector", "start": s} for s in STARTS)]
    return [c | first for c in path(*weights)] + [c | kind for kind in others for c in path(*weights[1:])]


STARTS = ("equal-risks",)
ADAM = {"solver": "adam"}
SAME = {"steps": 80, "learning_rate": 0.05, "warmup": 0.5, "normalise": False}
BY_CLASS = {**SAME, "by_class": True}  # as a search of a classifier deals its folds
NEWTON = {"by_class": True, "solver": "newton", "dtype": torch.float64, "n_folds": 2}


# ---- what is chosen -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found():
    return fit(objective="irm-tv-l1", penalty_weights=[100, 1e4])


@pytest.fixture(scope="module")
def by_adam():
    return fit(**ADAM, max_steps=200, penalty_weights=[100, 1e4])


@pytest.mark.parametrize("solver", ["found", "by_adam"])
def test_invariance_is_found_where_it_is_needed(request, solver):
    found = request.getfixturevalue(solver)
    assert found.selected_["outcome"] == "invariant-found" and found.best_params_["penalty_weight"] >= 100
    assert "an invariant model was found" in found.selected_["message"]
    assert found.selected_["figures"]["p_erm"] < 0.01 <= found.selected_["figures"]["p"]
    assert found.selected_["step"] == found.n_iter_ and found.selected_["rule"] == "invariance"
    assert found.selected_["penalty_weight"] == found.best_params_["penalty_weight"]
    erm = clone(found).set_params(rule="iid").fit(X, Y, environment=E)
    assert erm.best_params_["penalty_weight"] == 0 and "ERM" in erm.selected_["message"]
    test = make_simulation(8, (0.999, 0.7), 0.8, random_state=0, n_test=2000).test
    worst = [
        float(m.evaluate(test.x.numpy(), test.y.numpy(), environment=test.environment.numpy()).worst[0])
        for m in (found, erm)
    ]
    assert worst[0] > worst[1] + 0.2


def test_the_defaults_find_it_too():
    x, y, e, _ = spurious(1000)
    clf = InvariantClassifierCV(hidden=(), random_state=0).fit(x, y, environment=e)
    assert clf.selected_["outcome"] == "invariant-found"
    test = make_simulation(8, (0.999, 0.7), 0.8, random_state=0, n_test=2000).test
    by_place = clf.evaluate(test.x.numpy(), test.y.numpy(), environment=test.environment.numpy())
    assert float(by_place.worst[0]) > 0.7  # the five stable columns alone reach 0.8


@pytest.mark.parametrize("solver", ["auto", "adam"])
@pytest.mark.parametrize("differ", ["nothing", "feature-noise", "outcome-noise"])
def test_no_harm_is_done_where_it_is_not(differ, solver):
    rows = make_control(600, differ, random_state=0, n_test=8).train
    estimator = InvariantRegressorCV if differ == "outcome-noise" else InvariantClassifierCV
    x, y, e = rows.x.numpy(), rows.y.numpy(), rows.environment.numpy()
    model = estimator(solver=solver, **QUICK).fit(x, y, environment=e)
    assert model.selected_["outcome"] in ("erm-invariant", "erm-kept") and model.best_params_["penalty_weight"] == 0
    erm = estimator("erm", **{**QUICK, "penalty_weights": None, "rule": "iid", "solver": solver}).fit(x, y)
    if solver == "auto":  # not stopped at another step
        np.testing.assert_allclose(model.coef_, erm.coef_, rtol=1e-6)
    said = {"erm-invariant": "ERM passed the invariance test", "erm-kept": "ERM is kept"}
    assert said[model.selected_["outcome"]] in model.selected_["message"]


def test_where_none_is_found_plain_risk_minimisation_is_kept_with_a_warning():
    with pytest.warns(UserWarning, match="InvariantClassifierCV: .*no candidate that predicts anything passes"):
        clf = fit(objective="irm-tv-l1", penalty_weights=[1e-3])
    assert clf.selected_["outcome"] == "none-found" and clf.best_params_["penalty_weight"] == 0
    assert clf.cv_results_.loc[clf.cv_results_["selected"], "plain"].all()


def test_the_choice_is_that_of_search(found, by_adam):
    expected = search(as_task(X, Y, E), "irm-tv-l1", path(0.0, 100.0, 1e4), n_folds=2, **{**BY_CLASS, "steps": 200})
    pd.testing.assert_frame_equal(by_adam.cv_results_, expected.table(), rtol=1e-3, atol=1e-5)
    assert (by_adam.best_params_, by_adam.n_iter_) == (expected.combination, expected.step)
    expected = search(as_task(X, Y, E, dtype=torch.float64), "irm-tv-l1", path_of_newton(0.0, 100.0, 1e4), **NEWTON)
    pd.testing.assert_frame_equal(found.cv_results_, expected.table(), rtol=1e-6, atol=1e-8)
    assert found.best_params_ == expected.combination


@pytest.mark.parametrize("rule", ["iid", "worst-env", "leave-one-env-out"])
def test_the_other_rules_take_the_lowest_risk(rule):
    x, y, e, _ = spurious(400, (0.999, 0.7, 0.8))
    clf = classifier(rule=rule).fit(x, y, environment=e)
    column = {"iid": "risk", "worst-env": "worst_risk", "leave-one-env-out": "left_out_risk"}[rule]
    table = clf.cv_results_
    assert table.loc[table["selected"], column].item() == table[column].min()
    assert clf.selected_["outcome"] is None and repr(rule) in clf.selected_["message"]


@pytest.mark.filterwarnings("ignore:InvariantRegressorCV")  # none is found
def test_rescaling_does_not_change_the_choice(found):
    units = 10.0 ** np.arange(-4, 11)
    scaled = clone(found).fit(X * units + 7 * units, Y, environment=E)
    # several starts may lead to one minimum, and rounding then decides which is named
    assert {**scaled.best_params_, "start": 0} == {**found.best_params_, "start": 0}
    np.testing.assert_allclose(scaled.coef_ * units, found.coef_, rtol=1e-5, atol=1e-7)
    x, y, e, _ = arrays("squared", 300, environments=2)
    regs = [
        InvariantRegressorCV(**QUICK).fit(a * x - 5, b * y + b, environment=e)
        for a, b in ((1, 1), (1e5, 1e-6), (1, 3e7))
    ]
    assert len({(r.best_params_["penalty_weight"], r.best_params_.get("classifier")) for r in regs}) == 1
    np.testing.assert_allclose(regs[1].predict(1e5 * x - 5), 1e-6 * regs[0].predict(x - 5), rtol=1e-5, atol=1e-12)


def test_rescaling_does_not_change_the_choice_by_adam(by_adam):
    units = 10.0 ** np.arange(-4, 11)
    scaled = clone(by_adam).fit(X * units + 7 * units, Y, environment=E)
    assert (scaled.best_params_, scaled.n_iter_) == (by_adam.best_params_, by_adam.n_iter_)
    np.testing.assert_allclose(scaled.coef_ * units, by_adam.coef_, rtol=2e-2, atol=2e-3)


def test_the_same_call_gives_the_same():
    a, b = fit(n_seeds=2), fit(n_seeds=2)
    assert a.cv_results_.equals(b.cv_results_) and np.array_equal(a.decision_function(X), b.decision_function(X))
    assert a.selected_ == b.selected_


# ---- what is kept -------------------------------------------------------------------------------------------------


def test_refitting_is_training_the_choice_up_to_its_step():
    clf = fit(**ADAM)
    weight, step = clf.best_params_["penalty_weight"], clf.n_iter_
    assert 0 < step < 80 and weight > 0
    direct = train(
        as_task(X, Y, E), "irm-tv-l1", Runs(penalty_weight=[weight]), **{**SAME, "steps": step, "warmup": 40}
    )
    np.testing.assert_allclose(
        clf.decision_function(X), direct.logits(torch.tensor(standardised(X)).float())[0], atol=2e-3
    )


def test_refitting_is_the_chosen_minimum_on_all_rows(found):
    task = as_task(X, Y, E, dtype=torch.float64)
    runs = Runs(**{name: [value] for name, value in found.best_params_.items()})
    direct = train(task, "irm-tv-l1", runs, solver="newton", dtype=torch.float64)
    np.testing.assert_allclose(found.decision_function(X), direct.logits(task.train.x)[0], rtol=1e-5, atol=1e-8)
    # it goes on from a fold's model, which takes fewer steps than the path
    assert 0 < found.n_iter_ == found.selected_["step"] < int(direct.learned("newton_steps")[0])
    assert sorted(set(found.history_["step"])) == [0, 1]


def test_seeds_are_averaged():
    three = fit(n_seeds=3, hidden=(4,), rule="iid")
    assert len(three.predictor_.members) == 3
    task = as_task(X, Y, E)
    fitted = train(
        task, "irm-tv-l1", Runs(seed=range(3), penalty_weight=three.best_params_["penalty_weight"]), hidden=(4,),
        snapshot_every=2, keep_states=True, **SAME,
    )  # fmt: skip
    each = fitted.at(three.n_iter_).logits(task.train.x)
    assert float((each[0] - each[1]).abs().max()) > 0.01
    np.testing.assert_allclose(three.decision_function(X), each.mean(0), atol=2e-3)


@NO_MATTER
def test_the_choice_rests_on_all_seeds():
    how = {"hidden": (4,), "random_state": 7}
    clf = fit(n_seeds=3, **how)
    expected = search(
        as_task(X, Y, E), "irm-tv-l1", path(0.0, 10.0, 1e3), n_folds=2, seed=7, seeds=[7, 8, 9], hidden=(4,), **BY_CLASS
    )
    pd.testing.assert_frame_equal(clf.cv_results_, expected.table(), rtol=1e-3, atol=1e-4)
    assert (clf.best_params_, clf.selected_["step"]) == (expected.combination, expected.step)
    assert not np.allclose(clf.cv_results_["risk"], fit(**how).cv_results_["risk"], rtol=1e-3)


@NO_MATTER
@pytest.mark.parametrize("l2", [0.0, "auto"])
def test_models_of_all_seeds_and_folds_are_averaged(l2):
    clf = fit(refit=False, n_seeds=3, hidden=(4,), l2=l2)
    assert len(clf.predictor_.members) == 6
    task, chosen = as_task(X, Y, E), {"l2": 0.0, **clf.best_params_}
    runs = Runs(seed=[k for _ in range(2) for k in range(3)], data=[f for f in range(2) for _ in range(3)], **chosen)
    folds = fold_tasks(task, 2, 0, by_class=True)
    fitted = train(folds, "irm-tv-l1", runs, hidden=(4,), snapshot_every=2, keep_states=True, **SAME)
    each = fitted.at(clf.n_iter_).logits(task.train.x)
    assert float((each[0] - each[1]).abs().max()) > 0.01 < float((each[0] - each[3]).abs().max())
    np.testing.assert_allclose(clf.decision_function(X), each.mean(0), atol=2e-3)


def test_fold_models_are_averaged():
    clf = fit(refit=False, **ADAM)
    expected = search(as_task(X, Y, E), "irm-tv-l1", path(0.0, 10.0, 1e3), n_folds=2, keep_states=True, **BY_CLASS)
    fitted, which = expected.fold_models()
    assert len(clf.predictor_.members) == 2 and clf.n_iter_ == expected.step
    logits = fitted.logits(torch.tensor(standardised(X)).float())[which].mean(0)
    np.testing.assert_allclose(clf.decision_function(X), logits, atol=2e-3)
    clf, task = fit(objective="irm-tv-l1", refit=False), as_task(X, Y, E, dtype=torch.float64)
    expected = search(task, "irm-tv-l1", path_of_newton(0.0, 10.0, 1e3), keep_states=True, **NEWTON)
    fitted, which = expected.fold_models()
    # two starts may reach one minimum, and rounding says which of them is named
    chosen, same = ({k: v for k, v in c.items() if k != "start"} for c in (clf.best_params_, expected.combination))
    assert len(clf.predictor_.members) == 2 and chosen == same
    np.testing.assert_allclose(clf.decision_function(X), fitted.logits(task.train.x)[which].mean(0), rtol=1e-5)


def test_models_that_diverge_when_refitted_are_left_out(monkeypatch):
    whole = fit_module.train_network

    def some_diverge(*args, **settings):
        return replace(whole(*args, **settings), diverged=lost)

    monkeypatch.setattr(fit_module, "train_network", some_diverge)
    lost = {1: 1}
    with pytest.warns(UserWarning, match="1 of 3 models diverged and are left out"):
        assert len(fit(n_seeds=3, rule="iid", **ADAM).predictor_.members) == 2
    lost = {0: 1000}  # after the chosen step
    assert len(fit(rule="iid", **ADAM).predictor_.members) == 1
    lost = {0: 1}
    with refuse("training diverged on all rows", "Lower learning_rate"):
        fit(rule="iid", **ADAM)


@NO_MATTER
@pytest.mark.parametrize("solver", ["newton", "adam"])
def test_sample_weights_reach_the_folds(solver):
    weight = np.random.default_rng(0).uniform(0.1, 2.0, len(Y))
    how = {"objective": "irm-tv-l1", "solver": solver}
    clf = classifier(**how).fit(X, Y, environment=E, sample_weight=weight)
    mean = np.average(X, weights=weight, axis=0)
    scaled = torch.tensor((X - mean) / np.sqrt(np.average((X - mean) ** 2, weights=weight, axis=0)))
    rows = replace(as_task(X, Y, E).train, x=scaled, weight=torch.tensor(weight / weight.mean()))
    if solver == "newton":
        weights, settings = path_of_newton(0.0, 10.0, 1e3), NEWTON
    else:
        rows, weights, settings = replace(rows, x=scaled.float()), path(0.0, 10.0, 1e3), {**BY_CLASS, "n_folds": 2}
    expected = search(Task(rows, as_loss("binary", 1)), "irm-tv-l1", weights, **settings)
    pd.testing.assert_frame_equal(clf.cv_results_, expected.table(), rtol=1e-3, atol=1e-5)
    assert not np.allclose(clf.cv_results_["risk"], fit(**how).cv_results_["risk"], rtol=1e-3)
    half = np.where(np.arange(len(Y)) % 2, 1.0, 0.0)
    a = classifier(dtype="float64", **how).fit(X, Y, environment=E, sample_weight=half)
    b = classifier(dtype="float64", **how).fit(X[half > 0], Y[half > 0], environment=E[half > 0])
    np.testing.assert_allclose(a.decision_function(X), b.decision_function(X), rtol=1e-6, atol=1e-8)


# ---- the grid -----------------------------------------------------------------------------------------------------


def combinations(objective="irm-tv-l1", **more):
    clf = classifier(objective=objective, **{**ADAM, **more})
    return clf._combinations(clf.read_data(X, Y, environment=E, aux=AUX))


def test_zero_is_always_on_the_path():
    assert [c["penalty_weight"] for c in combinations(penalty_weights=[100, 1, 1])] == [0, 1, 100]
    assert [c["penalty_weight"] for c in combinations(penalty_weights=None)] == list(PATH)
    assert [c["penalty_weight"] for c in combinations(penalty_weights=np.array([0, 3]))] == [0, 3]
    assert [c["penalty_weight"] for c in combinations(penalty_weights=["adaptive", 5])] == [0, 5, "adaptive"]
    parts = {"irm-tv-l1": 1.0, "vrex": 50.0}
    got = combinations("irm-tv-l1+vrex", penalty_weights=[parts, 10])
    assert [c["penalty_weight"] for c in got] == [0, 10, parts]
    assert combinations("groupdro", penalty_weights=None) == [{}]


def test_a_grid_is_every_combination_but_none_twice():
    got = combinations(penalty_weights=[10], grid={"warmup": [0.2, 0.5], "l2": np.array([0.0, 1e-3])})
    plain = [{"penalty_weight": 0.0, "warmup": 0.2, "l2": l2} for l2 in (0.0, 1e-3)]  # the warm-up never ends
    assert got[:2] == plain and len(got) == 6 and all(type(c["l2"]) is float for c in got)
    assert len(combinations("minimax-tv-l1", penalty_weights=[10], grid={"warmup": [0.2, 0.5]})) == 4
    assert len(combinations("groupdro", penalty_weights=None, grid={"measure_rate": [0.01, 0.1]})) == 2


def test_more_hyper_parameters_are_chosen_too():
    clf = fit(rule="iid", grid={"learning_rate": [1e-5, 0.05]})  # a grid of Adam's: "auto" is Adam
    assert clf.best_params_["learning_rate"] == 0.05 and set(clf.cv_results_["learning_rate"]) == {1e-5, 0.05}


@NO_MATTER
def test_l2_is_that_which_serves_plain_risk_minimisation_best():
    rng = np.random.default_rng(0)
    x, e = rng.normal(size=(120, 30)), np.arange(120) % 2
    y = (x[:, 0] + 2 * rng.normal(size=120) > 0).astype(int)  # much noise, many columns: shrinking helps
    how = {"l2": "auto", "max_steps": 200, "penalty_weights": [10]}
    clf = classifier(**how).fit(x, y, environment=e)
    erm = classifier(objective="erm", rule="iid", **{**how, "penalty_weights": None, "grid": {"l2": [0, 3e-4, 3e-3]}})
    risk = erm.fit(x, y, environment=e).cv_results_.groupby("l2")["risk"].min()
    assert clf.best_params_["l2"] == clf.selected_["l2"] == risk.idxmin() > 0
    same = classifier(**{**how, "l2": float(risk.idxmin())}).fit(x, y, environment=e)
    pd.testing.assert_frame_equal(clf.cv_results_, same.cv_results_)
    assert np.array_equal(clf.predict_proba(x), same.predict_proba(x))
    chosen = classifier(**how, grid={"l2": [0.5]}).fit(x, y, environment=e)  # a grid goes before
    assert chosen.best_params_["l2"] == 0.5


@NO_MATTER
@pytest.mark.parametrize(
    ("objective", "penalty_weights"),
    [
        ("irm-tv-l1+vrex", [10.0, {"irm-tv-l1": 1.0, "vrex": 100.0}]),
        ("irm-tv-l1", ["adaptive", 10.0]),
        ("groupdro", None),
        ("lff", None),
        ("eiil", [10.0]),
    ],
)
def test_other_objectives(objective, penalty_weights):
    x, y, e, _ = spurious(200)
    clf = classifier(objective=objective, penalty_weights=penalty_weights, max_steps=20).fit(x, y, environment=e)
    assert clf.selected_["outcome"] is not None
    assert clf.predict(x).shape == (200,)
    assert clf.objective_ == clf.selected_["objective"] in (objective, "erm")


@NO_MATTER
@pytest.mark.parametrize("objective", ["auto", "tiva"])
def test_environments_inferred_from_aux(objective):
    clf = classifier(objective=objective, penalty_weights=[100], max_steps=40).fit(X, Y, aux=AUX)
    assert clf.objective_ == ("minimax-tv-l1" if objective == "auto" else "tiva")
    assert clf.selected_["outcome"] is not None and clf.membership(X, aux=AUX).shape == (400, 2)
    if clf.objective_ == "tiva":  # by Adam: where the warm-up ends, and the environments are settled
        assert clf.cv_results_["step"].min() == 20


def test_a_module_of_the_users_own():
    def net():
        return torch.nn.Sequential(torch.nn.Linear(15, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))

    clf = classifier(module=net, max_steps=10, penalty_weights=[10], cv=2, n_seeds=2)
    clf = clf.fit(X, Y, environment=np.arange(400) % 2)
    assert clf.predict_proba(X).shape == (400, 2) and len(clf.predictor_.members) == 2


# ---- the table and the picture ------------------------------------------------------------------------------------


def test_results_have_one_row_per_candidate(found, by_adam):
    """Adam's at 40 steps, those of the warm-up being ERM's alone; of Newton's method every combination is one."""
    assert len(by_adam.cv_results_) == 40 + 2 * 20
    assert len(found.cv_results_) == 1 + 2 * 2 and set(found.cv_results_["step"]) == {1}
    for model, step in ((found, 1), (by_adam, by_adam.n_iter_)):
        table = model.cv_results_
        assert table["selected"].sum() == 1 and table["plain"].eq(table["penalty_weight"] == 0).all()
        chosen = table[table["selected"]].iloc[0]
        assert chosen["step"] == step and dict(chosen[list(model.best_params_)]) == model.best_params_
        assert chosen["risk"] == pytest.approx(model.selected_["figures"]["risk"])
        assert (table["worst_risk"] >= table["risk"] - 1e-9).all() and table["p_slopes"].between(0, 1).all()


def test_the_path_is_drawn(found):
    ax = found.plot_path()
    (overall, star, *_) = ax.lines
    best = found.cv_results_.groupby("penalty_weight")["risk"].min()
    np.testing.assert_allclose(overall.get_ydata(), best)
    chosen = found.cv_results_[found.cv_results_["selected"]].iloc[0]
    assert star.get_xdata()[0] == list(best.index).index(chosen["penalty_weight"])
    assert star.get_ydata()[0] == chosen["risk"]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0", "100", "10000"]
    _, other = matplotlib.pyplot.subplots()
    assert found.plot_path(other) is other
    matplotlib.pyplot.close("all")


@NO_MATTER
def test_paths_of_sums_and_words_are_drawn_too():
    weights = [{"irm-tv-l1": 1.0, "vrex": 100.0}, "adaptive"]
    ax = fit(objective="irm-tv-l1+vrex", penalty_weights=weights, max_steps=20).plot_path()
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0", "irm-tv-l1 1\nvrex 100", "adaptive"]
    with refuse("plot_path shows penalty weights", "cv_results_"):
        fit(objective="erm", rule="iid", penalty_weights=None, max_steps=20).plot_path()
    matplotlib.pyplot.close("all")


# ---- what goes wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rule": "invariant"}, ("rule must be one of", "Did you mean 'invariance'?")),
        ({"rule": "iid", "rule_options": {"level": 0.1}}, ("only rule 'invariance' has options",)),
        ({"rule": "leave-one-env-out"}, ("needs three or more", "use 'invariance'")),
        ({"rule_options": {"level": 2}}, ("level must be a number from 0 to 1",)),
        ({"cv": 1}, ("cv must be a number of folds, 2 or more. Got 1.",)),
        ({"cv": True}, ("cv must be a number of folds",)),
        ({"cv": 251}, ("smallest environment", "Got cv=251")),
        ({"n_seeds": 0}, ("n_seeds must be a positive integer",)),
        ({"objective": "eiil", "refit": False}, ("refit must be True for objective 'eiil'",)),
        ({"grid": {"hidden": [(), (4,)]}}, ("runs of one batch", "Got 'hidden'", "GridSearchCV")),
        ({"grid": {"penalty_weight": [1]}}, ("Got 'penalty_weight'", "penalty_weights=[...]")),
        ({"grid": {"seed": [1]}}, ("Got 'seed'", "n_seeds")),
        ({"grid": {"learning_rat": [1]}}, ("Did you mean 'learning_rate'?",)),
        ({"grid": {"l2": 0.1}}, ("grid['l2'] must be a list",)),
        ({"grid": {"l2": []}}, ("grid['l2'] must be a list",)),
        ({"grid": {"warmup": [2.5]}}, ("warmup of 'irm-tv-l1' must be",)),
        ({"grid": {"penalty_ramp": [0.5]}, "objective_params": {"penalty_ramp": 1.0}}, ("both have 'penalty_ramp'",)),
        ({"grid": [1]}, ("grid must be a dict", "Got [1]", "grid={'learning_rate'")),
        ({"rule_options": "x"}, ("rule_options must be a dict", "Got 'x'", "rule_options={'level': 0.01}")),
        ({"rule_options": []}, ("rule_options must be a dict", "Got []")),
        ({"objective_params": 5}, ("objective_params must be a dict", "Got 5", "objective_params={'measure'")),
        ({"penalty_weights": 10}, ("penalty_weights must be a list",)),
        ({"penalty_weights": []}, ("penalty_weights must be a list",)),
        ({"penalty_weights": "adaptive"}, ("penalty_weights must be a list",)),
        ({"penalty_weights": [-1]}, ("penalty_weights must be finite numbers of at least 0", "Got -1")),
        ({"penalty_weights": [np.inf]}, ("penalty_weights must be finite",)),
        ({"penalty_weights": ["adaptiv"]}, ("penalty_weights must be", "Got 'adaptiv'")),
        ({"penalty_weights": [{"vrx": 1.0}]}, ("penalty_weight of 'irm-tv-l1' must be a mapping over ['irm-tv-l1']",)),
        ({"l2": "some"}, ("l2 must be 'auto' or a finite number", "Got 'some'")),
        ({"l2": -1.0}, ("l2 must be a finite number of at least 0",)),
        ({"objective": "erm"}, ("penalty_weights must be None", "'erm'")),
        ({"objective_params": {"penalty_weight": 1}}, ("the path is penalty_weights",)),
    ],
)  # fmt: skip
def test_what_is_refused_before_training(monkeypatch, parameters, message):
    monkeypatch.setattr("irmtv.models.networks.model.train", None)
    with refuse(*message):
        fit(**parameters)


def test_rules_without_environments(monkeypatch):
    monkeypatch.setattr("irmtv.models.networks.model.train", None)
    for objective in ("erm", "lff", "eiil"):
        weights = [1] if objective == "eiil" else None
        with refuse("rule 'invariance' compares environments", "use rule='iid'"):
            classifier(objective=objective, penalty_weights=weights).fit(X, Y)


def test_rows_too_few_to_test():
    few, e = np.arange(252), np.where(np.arange(252) < 240, 0, 1)
    with refuse("at least 20 rows", "1 (12)", "rule='iid'"):
        classifier().fit(X[few], Y[few], environment=e)
    clf = classifier(rule="iid", max_steps=20).fit(X[few], Y[few], environment=e)
    assert clf.selected_["rule"] == "iid"


def test_a_rare_class_is_in_every_fold():
    y = np.zeros(len(Y))
    y[[5, 150, 390]] = 1
    clf = classifier(cv=3, rule="iid", max_steps=4, class_weight="balanced")
    found = clf.search(clf.read_data(X, y, environment=E))
    tasks = found.split.folds
    assert [int(t.held_out.y.sum()) for t in tasks] == [1, 1, 1]
    sizes = [float(t.held_out.weight.sum()) for t in tasks]
    np.testing.assert_allclose(found.records.rows[:, 0].sum(-1), sizes, rtol=1e-5)


# ---- Ctrl-C -------------------------------------------------------------------------------------------------------


class _CtrlC(ProgressBar):
    """A progress bar during which somebody presses Ctrl-C, at its step 20."""

    def __call__(self, report):
        if report.step >= 20:
            raise KeyboardInterrupt


@pytest.mark.parametrize("before", [False, True], ids=["new", "fitted before"])
def test_ctrl_c_in_the_search_fits_nothing(monkeypatch, before):
    clf = fit(**ADAM) if before else classifier(**ADAM)
    monkeypatch.setattr("irmtv.estimators.path.ProgressBar", _CtrlC)
    with pytest.raises(KeyboardInterrupt, match=r"InvariantClassifierCV was interrupted .* is not fitted"):
        clf.set_params(verbose=1).fit(X, 1 - Y, environment=E)
    with pytest.raises(NotFittedError):
        clf.predict(X)


def test_ctrl_c_while_the_choice_is_trained_keeps_it_as_it_was(monkeypatch):
    long = {"max_steps": 480, **ADAM}  # a snapshot every 12 steps
    whole = fit(**long)
    assert whole.selected_["step"] == whole.n_iter_ > 30
    monkeypatch.setattr("irmtv.models.networks.fit.ProgressBar", _CtrlC)
    with pytest.warns(UserWarning, match=r"interrupted at step 2\d: the estimator is fitted as it was then"):
        clf = fit(verbose=1, **long)
    assert clf.selected_["step"] == clf.n_iter_ and 20 <= clf.n_iter_ < 30 and clf.n_iter_ != 24
    assert clf.best_params_ == whole.best_params_
    runs = Runs(penalty_weight=[clf.best_params_["penalty_weight"]])
    direct = train(as_task(X, Y, E), "irm-tv-l1", runs, **{**SAME, "steps": clf.n_iter_, "warmup": 240})
    np.testing.assert_allclose(
        clf.decision_function(X), direct.logits(torch.tensor(standardised(X)).float())[0], atol=2e-3
    )


@pytest.mark.parametrize("estimator", [InvariantClassifierCV, InvariantRegressorCV])
def test_what_fit_says_of_ctrl_c_is_of_the_search(estimator):
    assert "while the path is trained" in estimator.fit.__doc__


# ---- parameters ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", [InvariantClassifierCV, InvariantRegressorCV])
def test_parameters_of_a_single_model_are_not_among_them(estimator):
    names = {"penalty_weight", "early_stopping", "validation_fraction", "warm_start", "start"}
    model = estimator(cv=3, l2=0.1)
    assert not names & set(model.get_params())
    copy = clone(model)
    assert copy.get_params() == model.get_params() and copy.cv == 3 and copy.l2 == 0.1
    assert not any(name in repr(model.set_params(cv=4)) for name in names)
    for name in names:
        with pytest.raises(ValueError, match="Invalid parameter"):
            model.set_params(**{name: 1})
        single = estimator.__name__.removesuffix("CV")
        with pytest.raises(TypeError, match=f"{estimator.__name__} has no parameter {name}: it .* {single}\\({name}="):
            estimator(**{name: 1})
    with pytest.raises(TypeError, match=r"penalty_weights=\[\.\.\.\]. Got penalty_weight=3"):
        estimator(penalty_weight=3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'penalty_weigh'"):
        estimator(penalty_weigh=3)
    assert list(inspect.signature(estimator).parameters)[:2] == ["objective", "environment"]
