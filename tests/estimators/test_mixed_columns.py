"""Regressors on columns that are mixtures: directions of x are left out where three environments can tell."""

import numpy as np
import pytest

from irmtv import InvariantRegressorCV, load
from irmtv.datasets import make_unit_test
from irmtv.datasets.unit_tests import unit_test_error

DIRECTIONS = {"form": "directions"}


@pytest.fixture(scope="module")
def fitted():
    task = make_unit_test("1s", 2500, random_state=802)
    x, y, environment = (v.numpy() for v in (task.train.x.double(), task.train.y, task.train.environment))
    return task, x, InvariantRegressorCV(hidden=(), random_state=0).fit(100 + 3 * x, y, environment=environment)


def test_the_spurious_part_of_scrambled_columns_is_left_out(fitted):
    task, x, model = fitted
    assert model.selected_["outcome"] == "invariant-found" and model.selected_["objective"] == "eills"
    assert DIRECTIONS.items() <= model.best_params_.items()
    coef = 3 * np.ravel(model.coef_)  # columns were shifted and rescaled
    intercept = float(np.ravel(model.intercept_)[0] + 100 * np.ravel(model.coef_).sum())
    assert np.mean(unit_test_error(coef, intercept, task)) < 1.01 * task.card["oracle"]
    np.testing.assert_allclose(model.predict(100 + 3 * x[:50]), x[:50] @ coef + intercept, rtol=1e-5, atol=1e-6)


def test_it_is_one_candidate_with_what_it_keeps_tested(fitted):
    table = fitted[2].cv_results_
    mine = table[table["form"] == "directions"]
    assert len(mine) == 1 and bool(mine["selected"].iloc[0])
    assert fitted[2].selected_["figures"]["p_columns"] > 0.01 > fitted[2].selected_["figures"]["p_columns_erm"]


def test_a_file_predicts_the_same(fitted, tmp_path):
    _, x, model = fitted
    model.save(tmp_path / "m.irmtv")
    np.testing.assert_array_equal(load(tmp_path / "m.irmtv").predict(100 + 3 * x[:20]), model.predict(100 + 3 * x[:20]))


def test_two_environments_have_no_such_candidate(fitted):
    task, x, _ = fitted
    two = task.train.environment.numpy() < 2
    y, environment = task.train.y.numpy()[two], task.train.environment.numpy()[two]
    model = InvariantRegressorCV(hidden=(), random_state=0).fit(x[two], y, environment=environment)
    assert "form" not in model.cv_results_
