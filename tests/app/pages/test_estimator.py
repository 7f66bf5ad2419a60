"""Models that were saved from Python: what the fitted estimator knows is shown, and nothing else is asked of it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from irmtv import EnvironmentInference, InvariantClassifier, InvariantClassifierCV, InvariantRegressor
from irmtv.app.pages.estimator import estimator_content, history_curves, path_points
from irmtv.html.page import page


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    environment = np.repeat(["north", "south", "<east>"], 80)
    y = rng.integers(0, 2, 240)
    x = rng.normal(size=(240, 3)) + y[:, None] * np.array([1.0, 0.5, 0.0])
    return pd.DataFrame(x, columns=["age", "dose", "=x"]), y, environment


def blocks_of(content):
    return {s["id"]: s["blocks"] for chapter in content["chapters"] for s in chapter["sections"]}


def test_a_cv_estimator_in_a_pipeline(rows):
    x, y, environment = rows
    model = InvariantClassifierCV(hidden=(), penalty_weights=[0, 10, 1000], max_steps=40, cv=2, random_state=0)
    pipeline = make_pipeline(StandardScaler(), model)
    pipeline.fit(x, y, invariantclassifiercv__environment=environment)
    content = estimator_content(pipeline, "m.irmtv")
    blocks = blocks_of(content)
    assert list(blocks) == ["path", "coefficients", "training", "environments", "steps", "settings"]
    assert content["title"] == "InvariantClassifierCV from m.irmtv"
    assert content["headline"]["text"] == model.selected_["message"]
    points = path_points(model.cv_results_)
    assert sum(p["chosen"] for p in points) == 1
    assert [p["label"] for p in points] == ["0", "10", "1000", "eills: 10", "eills: 100", "eills: 10000"]
    chosen = next(p for p in points if p["chosen"])
    best = model.cv_results_[model.cv_results_["selected"]].iloc[0]
    assert (chosen["risk"], chosen["step"]) == (pytest.approx(best["risk"]), best["step"])
    for point in points:
        same = model.cv_results_[model.cv_results_["penalty_weight"] == point["penalty_weight"]]
        same = same[same["objective"] == point.get("objective", "irm-tv-l1")]
        assert point["chosen"] or point["risk"] == pytest.approx(same["risk"].min())
    coefficients = {row[0]: float(row[1].replace(",", "")) for row in blocks["coefficients"][0]["rows"]}
    assert list(coefficients.values()) == pytest.approx(sorted(model.coef_[0], key=abs, reverse=True), rel=1e-3)
    assert ["standardscaler", "StandardScaler"] in blocks["steps"][0]["rows"]
    assert "&lt;east&gt;" in page(content)


def test_a_single_model_and_several_classes(rows):
    x, _, environment = rows
    y = np.array(["a", "b", "c"])[np.arange(240) % 3]
    model = InvariantClassifier(hidden=(), penalty_weight=1.0, max_steps=30, random_state=0)
    model.fit(x, y, environment=environment)
    blocks = blocks_of(estimator_content(model))
    assert blocks["coefficients"][0]["columns"] == ["feature", "a", "b", "c"]
    curves = history_curves(model.history_)
    assert curves["environments"] == ["<east>", "north", "south"] or set(curves["environments"]) == set(environment)
    last = model.history_[model.history_["step"] == model.history_["step"].max()].set_index("environment")["risk"]
    found = dict(zip(curves["environments"], [r[-1] for r in curves["risk"]], strict=True))
    assert found == pytest.approx(last.to_dict())
    assert "path" not in blocks


def test_a_network_for_numbers_and_environments_that_were_found(rows):
    x, y, environment = rows
    model = InvariantRegressor(hidden=(4,), penalty_weight=1.0, max_steps=20, random_state=0)
    model.fit(x, y.astype(float), environment=environment)
    assert list(blocks_of(estimator_content(model))) == ["training", "environments", "settings"]
    found = EnvironmentInference(max_steps=20, random_state=0).fit(x, y, aux=np.linspace(0, 1, 240))
    content = estimator_content(found)
    shares = [float(row[1]) for row in blocks_of(content)["environments"][0]["rows"]]
    assert sum(shares) == pytest.approx(100, abs=0.2)
    page(content)


def test_nothing_to_draw():
    assert history_curves(None) is None
    assert history_curves(pd.DataFrame(columns=["step", "environment", "risk"])) is None
