"""The estimators on a GPU: what the CPU gives, and files that a machine without one can read."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import irmtv
from estimators.rows import arrays
from irmtv import EnvironmentInference, InvariantClassifier, InvariantClassifierCV, InvariantRegressor

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
X, y, site, year = arrays(400)
WEIGHT = np.arange(len(y)) % 3 / 2
QUICK = {"max_steps": 120, "dtype": "float64", "random_state": 0}


@pytest.mark.parametrize("hidden", [(), (8,)])
@pytest.mark.parametrize("objective", ["erm", "irm-tv-l1", "vrex", "groupdro", "minimax-tv-l1"])
def test_a_gpu_gives_what_the_cpu_gives(objective, hidden):
    where = {"aux": year} if objective == "minimax-tv-l1" else {"environment": site} if objective != "erm" else {}
    found = [
        InvariantClassifier(objective, hidden=hidden, device=device, **QUICK)
        .fit(X, y, sample_weight=WEIGHT, **where)
        .predict_proba(X)
        for device in ("cuda", "cpu")
    ]
    np.testing.assert_allclose(*found, rtol=1e-7, atol=1e-9)


def test_so_does_a_regressor_of_two_targets_with_early_stopping():
    targets = np.stack([X[:, 0] + X[:, 1] * 1e3, y], 1)
    found = [
        InvariantRegressor("irm-tv-l1", hidden=(), device=device, early_stopping="iid", **QUICK)
        .fit(X, targets, environment=site)
        .predict(X)
        for device in ("cuda", "cpu")
    ]
    np.testing.assert_allclose(*found, rtol=1e-7)


@pytest.mark.parametrize("rule", ["invariance", "iid", "leave-one-env-out"])
def test_so_does_a_path(rule):
    found = [
        InvariantClassifierCV("irm-tv-l1", hidden=(), rule=rule, device=device, **QUICK).fit(X, y, environment=site)
        for device in ("cuda", "cpu")
    ]
    assert found[0].selected_["outcome"] == found[1].selected_["outcome"]
    assert found[0].best_params_ == found[1].best_params_
    np.testing.assert_allclose(found[0].cv_results_["risk"], found[1].cv_results_["risk"], rtol=1e-6)
    np.testing.assert_allclose(found[0].predict_proba(X), found[1].predict_proba(X), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("method", ["minimax", "eiil"])
def test_so_do_inferred_environments(method):
    found = [
        EnvironmentInference(method, device=device, random_state=0).fit(X, y, aux=year).predict_proba(X, y, aux=year)
        for device in ("cuda", "cpu")
    ]
    np.testing.assert_allclose(*found, atol=1e-3)


def test_a_model_trained_on_a_gpu_is_read_without_one(tmp_path):
    fitted = InvariantClassifier("irm-tv-l1", device="cuda", **QUICK).fit(X, y, environment=site)
    fitted.save(tmp_path / "model.irmtv")
    again = irmtv.load(tmp_path / "model.irmtv")
    np.testing.assert_allclose(again.predict_proba(X), fitted.predict_proba(X), rtol=1e-9)
