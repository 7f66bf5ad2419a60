"""Estimators with objective "eills": linear, by Newton's method, with coefficients that are exactly 0."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from irmtv import InvariantClassifier, InvariantClassifierCV, InvariantRegressor, InvariantRegressorCV, load
from irmtv.datasets import make_simulation

TRAIN = make_simulation(3000, p_s=(0.999, 0.7), p_v=0.9, random_state=700).train
X, Y, E = TRAIN.x.numpy().astype(float), TRAIN.y.numpy().astype(int), TRAIN.environment.numpy()


def regression(seed=0):
    rng = np.random.default_rng(seed)
    y = X[:, :3].sum(1) + rng.normal(size=len(X))
    return np.column_stack([X[:, :3], y[:, None] * np.where(E, 0.3, 1)[:, None] + rng.normal(size=(len(X), 2))]), y


def test_neither_the_solver_nor_the_default_of_hidden_matters():
    models = [
        InvariantClassifier("eills", l2=1e-4, **more).fit(X, Y, environment=E)
        for more in (
            {},
            {"hidden": ()},
            {"solver": "adam"},
            {"solver": "newton"},
            {"max_steps": 5, "learning_rate": 1.0},
        )
    ]
    for model in models:
        np.testing.assert_allclose(model.coef_, models[0].coef_, rtol=1e-6)
    assert (np.flatnonzero(models[0].coef_) == range(5)).all()
    assert list(models[0].environments_) == [0, 1]
    with pytest.raises(ValueError, match="hidden must be empty"):
        InvariantClassifier("eills", hidden=(8,)).fit(X, Y, environment=E)
    with pytest.raises(ValueError, match="no net="):
        InvariantClassifier("eills", module=lambda: torch.nn.Linear(15, 1)).fit(X, Y, environment=E)


def test_the_cv_estimators_choose_it_by_the_rule(tmp_path):
    model = InvariantClassifierCV("eills", random_state=0).fit(X, Y, environment=E)
    assert model.selected_["outcome"] == "invariant-found"
    assert (np.flatnonzero(model.coef_) == range(5)).all()
    assert model.cv_results_["penalty_weight"].tolist()[0] == 0  # ERM, once
    assert set(model.cv_results_["step"]) == {1}
    model.save(tmp_path / "model.irmtv")
    np.testing.assert_array_equal(load(tmp_path / "model.irmtv").predict(X), model.predict(X))
    x, y = regression()
    model = InvariantRegressorCV("eills", refit=False).fit(x, y, environment=E)
    assert (np.flatnonzero(model.coef_) == range(3)).all()


@pytest.mark.parametrize("form", ["regret", "published", "l1"])
def test_forms_by_objective_params(form):
    x, y = regression()
    model = InvariantRegressor("eills", objective_params={"form": form}).fit(x, y, environment=E)
    assert (model.coef_[3:] == 0).all() and (model.coef_ != 0).any()
    labels = np.digitize(y, [-1, 1])
    model = InvariantClassifier("eills", objective_params={"form": form}).fit(x, labels, environment=E)
    assert model.coef_.shape == (3, 5) and (model.coef_[:, 3:] == 0).all()
