"""Weights of stored linear models and the shares made of them, against hand, scikit-learn and training again."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from irmtv import Runs, train
from irmtv.datasets import make_simulation, population_accuracy
from irmtv.lab.experiments import feature_weights, run_experiment
from irmtv.lab.experiments.feature_weights import invariant_share, net_share, normalised, read_weights, risk_minimiser
from lab.experiments.small import ERM, MINIMAX, TV, small


def test_normalised_weights_by_hand():
    assert normalised([1.0, -2.0, 0.0, 5.0]).tolist() == [0.125, 0.25, 0.0, 0.625]
    several = normalised([[3.0, -1.0], [0.0, 0.0], [np.nan, 1.0]])
    assert several[0].tolist() == [0.75, 0.25]
    assert np.isnan(several[1:]).all()  # no model, no shares


def test_shares_by_hand():
    w = [[1.0, -1.0, 2.0, -3.0, 1.0], [-10.0, -10.0, 20.0, -30.0, 10.0]]
    assert invariant_share(w, 2).tolist() == [2 / 8, 20 / 80]  # whatever the scale
    assert np.isnan(net_share(w, 2)[0]) and net_share(w, 2)[1] == 1.0  # V = S = 0; V = -20, S = 0
    assert net_share([1.0, 2.0, -1.0], 2) == 0.75
    assert invariant_share([1.0, 2.0], 2) == 1.0


def test_shares_need_the_weights_of_all_columns():
    with pytest.raises(ValueError, match=r"at least n_invariant=5. Got shape \(3,\)"):
        invariant_share([1.0, 2.0, 3.0], 5)
    with pytest.raises(ValueError, match=r"n_invariant must be a positive integer\. Got 0"):
        net_share([1.0, 2.0], 0)


@pytest.mark.parametrize("l2", [0.0, 0.02])
def test_the_lowest_risk_in_the_population_is_where_many_rows_lead(l2):
    rows = make_simulation(200_000, (0.999, 0.8), 0.7, 3, 4, random_state=1, n_test=8).train
    expected = risk_minimiser((0.999, 0.8), 0.7, 3, 4, l2)
    strength = 1e8 if l2 == 0 else 1 / (2 * l2 * len(rows))
    fitted = LogisticRegression(C=strength, fit_intercept=False).fit(rows.x.numpy(), rows.y.numpy())
    np.testing.assert_allclose(fitted.coef_[0], expected, atol=0.03)
    for part in (slice(3), slice(3, None)):  # columns of one kind are exchangeable: their mean is surer
        np.testing.assert_allclose(fitted.coef_[0, part].mean(), expected[part].mean(), atol=0.01)


def test_the_lowest_risk_ignores_what_says_nothing():
    np.testing.assert_allclose(risk_minimiser((0.5, 0.5), 0.8)[5:], 0, atol=1e-6)
    np.testing.assert_allclose(risk_minimiser((0.9, 0.7), 0.5)[:5], 0, atol=1e-6)


# --- from a store ---------------------------------------------------------------------------------------------------

SETTINGS = {"steps": 30, "learning_rate": 0.05}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    tv = {**TV, "fixed": {"penalty_weight": 100.0}}
    minimax = {**MINIMAX, "fixed": {"penalty_weight": 100.0}}
    spec = small(ERM, tv, minimax, rules=["fixed", "invariance"], repetitions=2)
    run_experiment(spec, folder)
    return spec, folder, read_weights(spec, folder)


def again(method, repetition, weight=None):
    """The same run, trained by itself."""
    task = make_simulation(240, n_test=120, random_state=repetition)
    own = {} if weight is None else {"penalty_weight": weight, "warmup": 10}
    return train(task, method, Runs(seed=repetition), snapshot_every=5, keep_states=True, **SETTINGS, **own)


def test_every_method_rule_and_repetition_has_a_row(stored):
    _, _, found = stored
    assert len(found) == 3 * 2 * 2
    assert set(found["method"]) == {"erm", "irm-tv-l1", "minimax-tv-l1"}
    assert all(w.shape == (15,) for w in found["weights"])


@pytest.mark.parametrize("method", ["erm", "irm-tv-l1", "minimax-tv-l1"])
def test_fixed_has_the_weights_of_the_last_step(stored, method):
    _, _, found = stored
    of = found[(found["method"] == method) & (found["rule"] == "fixed")].sort_values("repetition")
    for r, row in enumerate(of.to_dict("records")):
        coefficients, intercepts = again(method, r, None if method == "erm" else 100.0).coefficients()
        np.testing.assert_allclose(row["weights"], coefficients[0].numpy(), rtol=1e-3, atol=1e-5)
        worst = population_accuracy(coefficients[0], intercepts[0], [0.999, 0.8, 0.2, 0.001], 0.8).min()
        assert row["worst"] == pytest.approx(worst, abs=1e-4)


def test_invariance_has_the_weights_of_the_chosen_method_weight_and_step(stored):
    _, _, found = stored
    for row in found[found["rule"] == "invariance"].to_dict("records"):
        weight = row["hyperparameters"].get("penalty_weight")
        then = again(row["chosen_method"], row["repetition"], weight).at(row["step"])
        np.testing.assert_allclose(row["weights"], then.coefficients()[0][0].numpy(), rtol=1e-3, atol=1e-5)
    assert set(found.loc[found["rule"] == "invariance", "step"]) != {30}  # not the last step throughout


def test_a_folder_of_an_earlier_version_says_so(stored, monkeypatch):
    spec, folder, _ = stored
    monkeypatch.setattr(feature_weights, "COEFFICIENTS", "what is not there")
    with pytest.raises(ValueError, match=r"must hold their coefficients. Got runs of an earlier version"):
        read_weights(spec, folder)


def test_networks_with_hidden_layers_have_no_feature_weights(tmp_path):
    spec = small(ERM, training={"hidden": [4], "steps": 5}, rules=["fixed"])
    run_experiment(spec, tmp_path / "x")
    with pytest.raises(ValueError, match="feature weights are those of linear models"):
        read_weights(spec, tmp_path / "x")
