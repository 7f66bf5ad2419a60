"""The path of penalty weights, and the choice among weights and rounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from irmtv import InvariantBoostingClassifierCV, InvariantBoostingRegressorCV, load
from irmtv.datasets import make_simulation

FAST = {"n_estimators": 40, "num_leaves": 4, "n_jobs": 1, "random_state": 0}


@pytest.fixture(scope="module")
def simulation():
    task = make_simulation(2000, (0.999, 0.7), 0.9, random_state=0)
    return task.train.x.numpy(), task.train.y.numpy(), task.train.environment.numpy(), task


@pytest.fixture(scope="module")
def chosen(simulation):
    x, y, environment, _ = simulation
    return InvariantBoostingClassifierCV("vrex", penalty_weights=[100], **FAST).fit(x, y, environment=environment)


def test_an_invariant_booster_is_found(chosen, simulation):
    task = simulation[3]
    assert chosen.selected_["outcome"] == "invariant-found"
    assert chosen.best_params_ == {"penalty_weight": 100.0}
    assert chosen.n_iter_ == chosen.selected_["step"]
    found = chosen.evaluate(task.test.x.numpy(), task.test.y.numpy(), environment=task.test.environment.numpy())
    assert found.worst[0] > 0.78  # plain boosting: about 0.6


def test_what_was_measured_is_what_the_boosters_of_the_folds_say(chosen, simulation):
    """Risks by hand, from boosters that are trained again without each fold."""
    x, y, environment, _ = simulation
    model = InvariantBoostingClassifierCV("vrex", penalty_weights=[100], refit=False, rule="iid", **FAST)
    model.fit(x, y, environment=environment)
    row = model.cv_results_[model.cv_results_["selected"]].iloc[0]
    assert row["risk"] == model.cv_results_["risk"].min()
    assert row["plain"] and row["penalty_weight"] == 0
    from irmtv.core.losses import as_loss
    from irmtv.core.types import Rows, Task
    from irmtv.selection.folds import deal_folds

    rows = Rows(
        torch.as_tensor(x).double(), torch.as_tensor(y).double(), environment=torch.as_tensor(environment), names=(0, 1)
    )
    fold = deal_folds(Task(rows, as_loss("binary")), 5, 0, by_class=True).numpy()
    losses = np.empty(len(y))
    for k, member in enumerate(model.predictor_.members):
        f = member.logits(x[fold == k].astype(float), 1)
        losses[fold == k] = np.logaddexp(0, f) - y[fold == k] * f
    assert row["risk"] == pytest.approx(losses.mean(), rel=1e-6)
    worst = max(losses[environment == e].mean() for e in (0, 1))
    assert row["worst_risk"] == pytest.approx(worst, rel=1e-4)


def test_plain_boosting_is_kept_where_nothing_differs():
    rng = np.random.default_rng(0)
    x, site = rng.normal(size=(400, 3)), np.repeat(["a", "b"], 200)
    y = 10 * x[:, 0] + rng.normal(size=400)
    reg = InvariantBoostingRegressorCV("vrex", penalty_weights=[10], **FAST).fit(x, y, environment=site)
    assert reg.selected_["outcome"] == "erm-invariant" and reg.best_params_ == {"penalty_weight": 0.0}


def test_plain_boosting_is_kept_where_environments_differ_in_noise():
    """Risks differ, but no environment's own booster predicts better."""
    rng = np.random.default_rng(0)
    x, site = rng.normal(size=(1200, 3)), np.repeat(["a", "b"], 600)
    y = 3 * x[:, 0] + np.where(site == "a", 0.5, 2.0) * rng.normal(size=1200)
    reg = InvariantBoostingRegressorCV("vrex", penalty_weights=[10], **FAST).fit(x, y, environment=site)
    assert reg.selected_["figures"]["p_erm"] < 0.01
    assert reg.selected_["outcome"] == "erm-kept" and reg.best_params_ == {"penalty_weight": 0.0}


@pytest.mark.parametrize("rule", ["worst-env", "leave-one-env-out"])
def test_other_rules(rule, simulation):
    x, y, _, _ = simulation
    three = np.repeat([0, 1, 2], 700)[: len(y)]
    model = InvariantBoostingClassifierCV("vrex", penalty_weights=[10], rule=rule, cv=3, **{**FAST, "n_estimators": 20})
    model.fit(x, y, environment=three)
    column = {"worst-env": "worst_risk", "leave-one-env-out": "left_out_risk"}[rule]
    results = model.cv_results_
    assert results.loc[results["selected"], column].iloc[0] == results[column].min()


def test_leaves_are_the_fewest_that_do(simulation):
    x, y, environment, _ = simulation
    model = InvariantBoostingClassifierCV(
        "erm", rule="iid", cv=3, **{**FAST, "num_leaves": "auto", "n_estimators": 100}
    )
    model.fit(x, y, environment=environment)
    assert model.best_params_ == {"num_leaves": 2}  # y is nearly additive in x
    rng = np.random.default_rng(0)
    corners = rng.normal(size=(1500, 3))
    checkers = (corners > 0).sum(1) % 2
    model.fit(corners, checkers, environment=np.arange(1500) % 2)
    assert model.best_params_["num_leaves"] > 4


def test_inferred_environments_and_groupdro(simulation):
    x, y, environment, task = simulation
    how = {**FAST, "cv": 3}
    model = InvariantBoostingClassifierCV("minimax-tv-l1", penalty_weights=[100], **how)
    model.fit(x, y, aux=task.train.aux.numpy())
    assert model.cv_results_["step"].min() >= 2  # once environments are settled
    assert model.selected_["outcome"] is not None
    model = InvariantBoostingClassifierCV("groupdro", **how)
    with pytest.warns(UserWarning, match="no candidate that predicts anything passes"):
        model.fit(x, y, environment=environment)
    assert set(model.cv_results_["objective"]) == {"groupdro", "erm"}
    assert model.selected_["objective"] == model.objective_ == "erm"


def test_a_file_keeps_what_was_chosen(chosen, simulation, tmp_path):
    again = load(chosen.save(tmp_path / "model.irmtv"))
    np.testing.assert_array_equal(again.predict_proba(simulation[0]), chosen.predict_proba(simulation[0]))
    assert again.selected_ == chosen.selected_
    assert again.cv_results_.equals(chosen.cv_results_)
    chosen.plot_path()


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"rule": "invarience"}, "Did you mean 'invariance'"),
        ({"num_leaves": "many"}, "num_leaves must be 'auto'"),
        ({"penalty_weights": ["adaptive"]}, "must be a number"),
        ({"cv": 1}, "cv must be a number of folds"),
    ],
)
def test_wrong_parameters(parameters, said, simulation):
    x, y, environment, _ = simulation
    with pytest.raises(ValueError, match=said):
        InvariantBoostingClassifierCV("vrex", **{**FAST, **parameters}).fit(x, y, environment=environment)


def test_parameters_of_one_model_are_refused():
    with pytest.raises(TypeError, match="has no parameter penalty_weight: it chooses among penalty_weights"):
        InvariantBoostingClassifierCV(penalty_weight=1.0)


def test_plain_boosting_stands_beside_an_objective_without_a_weight(simulation):
    x, y, environment, _ = simulation
    model = InvariantBoostingClassifierCV("groupdro", rule="worst-env", **{**FAST, "cv": 3})
    data = model.read_data(x, y, environment=environment)
    alone, both = model.search(data), model.search(data, erm_beside=True)
    assert [path.objective.name for path in both.paths] == ["groupdro", "erm"]
    assert both.path_of(both.erm).objective.name == "erm"
    with pytest.raises(ValueError, match="no candidate of ERM"):
        _ = alone.erm


def test_what_only_networks_have_is_not_recommended():
    with pytest.raises(TypeError, match=r"has no parameter warm_start: it starts anew, on every fold.*Leave it out\.$"):
        InvariantBoostingClassifierCV(warm_start=True)
    with pytest.raises(TypeError, match=r"or use InvariantBoostingClassifier\(penalty_weight=\.\.\.\)"):
        InvariantBoostingClassifierCV(penalty_weight=1)
