"""hidden="auto" of the CV estimators: a linear model or a network, by ERM in environments that are left out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.base import clone

import irmtv
from irmtv import InvariantClassifierCV, InvariantRegressorCV
from irmtv.models.networks.settings import DEFAULT_HIDDEN

FEW = {"max_steps": 150, "cv": 2, "l2": 0.0, "penalty_weights": [100.0], "random_state": 0}
pytestmark = pytest.mark.filterwarnings("ignore:.*ERM is kept, though it is not invariant")


def line(n_environments, n=150):
    rng = np.random.default_rng(0)
    x, e = rng.normal(size=(n * n_environments, 3)), np.repeat(np.arange(n_environments), n)
    return x, x[:, 0] - x[:, 1] + 0.3 * rng.normal(size=len(x)), e


def wave(n_environments):
    x, _, e = line(n_environments)
    return x, np.sin(2 * x[:, 0]) + 0.1 * x[:, 1], e


@pytest.mark.parametrize(("n_environments", "where"), [(3, "in the 3 environments left out"), (2, "on held-out rows")])
def test_the_one_with_which_erm_does_better_is_taken(n_environments, where):
    x, y, e = line(n_environments)
    found = InvariantRegressorCV(**FEW).fit(x, y, environment=e)
    assert found.hidden_ == found.selected_["hidden"] == () and found.hidden == "auto"
    assert found.selected_["family"].startswith("linear is taken:") and where in found.selected_["family"]
    alone = InvariantRegressorCV(hidden=(), **FEW).fit(x, y, environment=e)
    np.testing.assert_allclose(found.predict(x), alone.predict(x), rtol=1e-9)
    assert found.selected_["outcome"] == alone.selected_["outcome"]

    x, y, e = wave(n_environments)
    found.fit(x, y, environment=e)
    assert found.hidden_ == DEFAULT_HIDDEN and found.selected_["family"].startswith("network is taken:")
    assert not hasattr(found, "coef_")
    network = InvariantRegressorCV(hidden=DEFAULT_HIDDEN, **FEW).fit(x, y, environment=e)
    np.testing.assert_allclose(
        found.predict(x), network.predict(x), rtol=1e-2, atol=0.02
    )  # float64 rows before scaling


def test_inferred_environments_are_no_part_of_it():
    x, y, _ = line(3)
    found = InvariantRegressorCV(**FEW).fit(x, y, aux=np.arange(len(x)))
    assert found.hidden_ == () and "on held-out rows" in found.selected_["family"]


def test_a_file_and_a_clone_know_nothing_else_of_it(tmp_path):
    x, y, e = line(2)
    found = InvariantClassifierCV(**FEW).fit(x, y > 0, environment=e)
    found.save(tmp_path / "model.irmtv")
    np.testing.assert_array_equal(irmtv.load(tmp_path / "model.irmtv").predict_proba(x), found.predict_proba(x))
    assert clone(found).get_params()["hidden"] == "auto" and not hasattr(clone(found), "hidden_")


@pytest.mark.parametrize(
    "linear", [{"objective": "eills", "penalty_weights": [10.0]}, {"solver": "newton"}, {"layer": 2}]
)
def test_what_is_linear_by_itself_is_not_compared(linear):
    x, y, e = line(2)
    found = InvariantRegressorCV(**{**FEW, **linear}).fit(x, y, environment=e)
    assert found.hidden_ == () and found.family_ is None and "family" not in found.selected_


def test_a_module_of_the_users_own_is_not_compared():
    x, y, e = line(2)
    found = InvariantRegressorCV(module=lambda: torch.nn.Linear(3, 1), **FEW).fit(x, y, environment=e)
    assert not hasattr(found, "hidden_") and "family" not in found.selected_


def test_another_word_is_refused():
    x, y, e = line(2)
    with pytest.raises(ValueError, match=r"hidden must be 'auto' or a sequence of layer widths.*Got 'deep'"):
        InvariantRegressorCV(hidden="deep").fit(x, y, environment=e)
    with pytest.raises(ValueError, match="hidden must be a sequence of layer widths"):
        irmtv.InvariantRegressor(hidden="auto").fit(x, y, environment=e)
