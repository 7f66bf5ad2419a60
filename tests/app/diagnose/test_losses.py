"""The loss by environment: by hand, and the level of the test of equality."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, f_oneway
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss

from app.diagnose.worlds import regression, rows_of
from irmtv.app.diagnose import losses
from irmtv.app.diagnose.erm_model import fit_erm
from irmtv.app.diagnose.losses import loss_by_environment


def found(rows, seed=0):
    return loss_by_environment(rows, fit_erm(rows, seed), seed)


def test_outputs_are_of_models_that_have_not_seen_the_row():
    rows = regression(n=100)
    model = fit_erm(rows, 3)
    for k in range(5):
        held = model.fold == k
        expected = Ridge(alpha=1.0).fit(rows.x[~held], rows.y[~held]).predict(rows.x[held])
        assert model.outputs[held] == pytest.approx(expected)
    assert model.loss == pytest.approx((model.outputs - rows.y) ** 2)
    assert model.slope == pytest.approx(2 * (model.outputs - rows.y) * model.outputs)


def test_classes_by_scikit_learn():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 3))
    y = np.array(["u", "v", "w"])[(x[:, :2] + rng.normal(size=(240, 2))).argmax(1) + (x[:, 2] > 1)]
    rows = rows_of(x, y, "multiclass", environment=np.tile(["a", "b"], 120))
    model = fit_erm(rows, 0)
    held = model.fold == 2
    reference = LogisticRegression(max_iter=300).fit(rows.x[~held], rows.y[~held])
    one_by_one = [-np.log(p[c]) for p, c in zip(reference.predict_proba(rows.x[held]), rows.y[held], strict=True)]
    assert model.loss[held] == pytest.approx(one_by_one)
    part = found(rows)
    a = rows.environment == 0
    assert part.loss[0]["value"] == pytest.approx(model.loss[a].mean())
    assert part.metric_values[0]["value"] == pytest.approx((model.outputs.argmax(1) == rows.y)[a].mean())
    assert part.constant == pytest.approx(log_loss(rows.y, np.tile(np.bincount(rows.y) / 240, (240, 1))))


def test_a_regression_has_its_metric_in_the_units_of_the_target():
    rows = regression(noise=(1.0, 3.0), n=2000)
    part = found(rows)
    assert part.metric == "rmse"
    assert [e["value"] for e in part.metric_values] == pytest.approx([1.0, 3.0], rel=0.06)
    scale = rows.y_scale**2
    assert [e["value"] for e in part.loss] == pytest.approx([1 / scale, 9 / scale], rel=0.12)
    assert part.differs and part.environments[part.worst] == "b"
    assert "in b, " in part.sentence and part.summary()["worst"] == "b"


def test_the_test_of_equality_agrees_with_an_analysis_of_variance_where_spreads_are_equal():
    rows = regression(n=2000, noise=(1.0, 1.05), seed=5)
    model = fit_erm(rows, 0)
    p = f_oneway(*(model.loss[rows.environment == e] for e in (0, 1))).pvalue
    assert loss_by_environment(rows, model, 0).p == pytest.approx(p, abs=0.02)


def test_equal_environments_are_told_apart_as_often_as_the_level_says(monkeypatch):
    monkeypatch.setattr(losses, "DRAWS", 2)  # intervals are not looked at
    n = 200
    rejected = sum(found(regression(n=200, seed=s, d=2), s).differs for s in range(n))
    assert rejected <= binom.ppf(0.999, n, 0.06)
    assert rejected >= 1
    assert "not shown" in found(regression(seed=2)).sentence
