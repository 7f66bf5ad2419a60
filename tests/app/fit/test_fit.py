"""From a table to an answer, with tables whose answer is known."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import irmtv
from app.fit.tables import spurious_table
from irmtv.app.fit import fit_table
from irmtv.estimators.files import read_about, save


@pytest.fixture(scope="module")
def found():
    return fit_table(spurious_table(), "sold", ["site"], model="linear", steps=400, command="irmtv fit x.csv")


@pytest.fixture(scope="module")
def solved():
    """By Newton's method alone, with no other objective beside."""
    return fit_table(spurious_table(), "sold", ["site"], objective="irm-tv-l1", model="linear")


def test_an_invariant_model_is_found_and_leaves_the_shortcut(found):
    summary = found.summary
    assert summary["outcome"] == "invariant-found"
    assert summary["headline"] == summary["answer"]["choice"]
    assert summary["headline"].startswith("A model was found that holds in every environment alike")
    assert "worse than the plain model over all rows" in summary["headline"]  # its price
    weight = {f["name"]: f for f in summary["features"]}
    assert abs(weight["shortcut"]["chosen"]) < abs(weight["shortcut"]["erm"])
    assert sum(abs(f["erm"]) for f in summary["features"]) == pytest.approx(1)


def test_every_environment_is_compared_on_held_out_rows(found):
    rows = {row["name"]: row for row in found.summary["environments"]}
    assert {name: row["rows"] for name, row in rows.items()} == {"north": 600, "south": 600}
    for row in (*rows.values(), found.summary["overall"], found.summary["worst"]):
        for key in ("erm", "chosen", "difference"):
            assert row[key]["low"] <= row[key]["value"] <= row[key]["high"]
    assert rows["north"]["erm"]["value"] > rows["south"]["erm"]["value"] + 0.1  # the shortcut works there


def test_held_out_scores_agree_with_scikit_learn(found):
    """ERM, cross-validated by scikit-learn on the same numbers, has about the same accuracy."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    frame = spurious_table()
    numbers = found.pipeline[:-1].transform(frame)
    peer = cross_val_score(make_pipeline(StandardScaler(), LogisticRegression()), numbers, frame["sold"], cv=5).mean()
    assert found.summary["overall"]["erm"]["value"] == pytest.approx(peer, abs=0.02)


def test_the_path_marks_one_choice_and_what_passes(solved):
    path = solved.summary["path"]
    assert [p["penalty_weight"] for p in path] == [0, 10, 100, 1000, 10000, 100000]  # each once
    chosen = [p for p in path if p["chosen"]]
    assert len(chosen) == 1
    assert chosen[0]["passes"]
    selected = solved.pipeline[-1].selected_
    for name in ("penalty_weight", "classifier", "start"):
        assert chosen[0][name] == selected[name]
    assert chosen[0]["variation"] < path[0]["variation"]


def test_a_weight_stands_in_the_path_as_the_best_that_passes_of_its_classifiers_and_starts(solved):
    results = solved.pipeline[-1].cv_results_
    assert set(results["step"]) == {1} and len(results) == solved.summary["settings"]["candidates"] == 2 + 2 * 4
    for point in [p for p in solved.summary["path"] if "classifier" in p]:
        own = results[results["penalty_weight"] == point["penalty_weight"]]
        mine = own[(own["classifier"] == point["classifier"]) & (own["start"] == point["start"])]
        assert mine["risk"].tolist() == pytest.approx([point["risk"]])
        passing = own[own[["p_slopes", "p_risks"]].min(axis=1) >= 0.05]
        if not point["chosen"] and not point["passes"] and len(passing) == 0:
            assert point["risk"] == pytest.approx(own["risk"].min())


def test_newtons_method_has_no_steps_and_rates_among_the_settings(solved):
    settings = solved.summary["settings"]
    assert solved.summary["objective"] == solved.pipeline[-1].objective_
    assert settings["solver"] == "newton" and not {"steps", "learning_rate", "batch_size"} & set(settings)
    assert settings["chosen"]["newton_steps"] == solved.pipeline[-1].n_iter_ and "step" not in settings["chosen"]
    assert solved.summary["curves"]["steps"] == [0, 1] and solved.summary["curves"]["solver"] == "newton"


def test_another_objective_beside_the_path_has_its_name(found):
    path, estimator = found.summary["path"], found.pipeline[-1]
    own = [p["label"] for p in path if "objective" not in p]
    assert own == ["0", "10", "100", "1000", "10000", "100000"]
    assert [p["label"] for p in path if p.get("objective") == "eills"] == ["eills: 10", "eills: 100", "eills: 10000"]
    chosen = next(p for p in path if p["chosen"])
    assert found.summary["objective"] == estimator.objective_ == chosen.get("objective", "irm-tv-l1")
    assert found.summary["settings"]["chosen"]["objective"] == estimator.objective_


def test_the_path_of_a_network_is_at_steps():
    answer = fit_table(spurious_table(400), "sold", ["site"], model="mlp", steps=80, penalty_weights=[100])
    settings, estimator = answer.summary["settings"], answer.pipeline[-1]
    assert (settings["solver"], settings["steps"]) == ("adam", 80)
    chosen = next(p for p in answer.summary["path"] if p["chosen"])
    assert chosen["step"] == settings["chosen"]["step"] == estimator.selected_["step"] == estimator.n_iter_
    assert "classifier" not in chosen


def test_losses_by_environment_of_the_plain_and_of_the_chosen_model(found, solved):
    """As the search measured them; nothing else is trained for them."""
    for answer in (found, solved):
        erm, chosen = answer.summary["losses"]
        name = answer.summary["objective"]
        assert (erm["model"], chosen["model"]) == ("ERM", "TV-l1" if name == "irm-tv-l1" else name)
        assert max(chosen["risk"]) - min(chosen["risk"]) < max(erm["risk"]) - min(erm["risk"])
        figures = answer.summary["settings"]["figures"]
        assert chosen["risk"] == pytest.approx(figures["risks"], rel=1e-4)
        assert erm["risk"] == pytest.approx(figures["risks_erm"], rel=1e-4)


def test_the_summary_is_json_and_comes_back_from_the_model_file(found, tmp_path):
    path = save(found.pipeline, tmp_path / "model.irmtv", about=found.summary)
    assert json.loads(json.dumps(found.summary, allow_nan=False)) == read_about(path)
    frame = spurious_table().drop(columns=["sold", "site"])
    again = irmtv.load(path)
    np.testing.assert_array_equal(again.predict(frame), found.pipeline.predict(frame))
    np.testing.assert_allclose(again.predict_proba(frame), found.pipeline.predict_proba(frame))


def test_a_model_saved_without_anything_about_it_has_none(found, tmp_path):
    assert read_about(save(found.pipeline, tmp_path / "model.irmtv")) is None


def test_where_nothing_differs_plain_risk_minimisation_is_kept():
    summary = fit_table(spurious_table(agreement=(0.8, 0.8)), "sold", ["site"], model="linear", steps=300).summary
    assert summary["outcome"] == "erm-invariant"
    assert summary["worst"]["difference"]["value"] == 0
    assert summary["headline"].startswith("The plain model is kept: the features go with sold alike in every")


def test_environments_are_inferred_from_dates():
    frame = spurious_table().drop(columns="site").rename(columns={"day": "when"})
    summary = fit_table(frame, "sold", aux=["when"], model="linear", steps=600).summary
    assert summary["objective"] == "minimax-tv-l1"
    inferred = summary["inferred"]
    assert inferred["aux"] == ["when"]
    assert inferred["is_date"] == [True]
    years = np.array(inferred["points"])[:, 0]
    assert 2019.9 < years.min() < years.max() < 2023.5
    assert np.allclose(np.sum(inferred["membership"], 1), 1)
    assert [row["name"] for row in summary["environments"]] == ["inferred 1", "inferred 2"]


def test_regression_in_the_units_of_the_target():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.normal(size=400), "site": np.repeat(["a", "b"], 200)})
    frame["price"] = 50_000 + 20_000 * frame["size"] + 3000 * rng.normal(size=400)
    answer = fit_table(frame, "price", ["site"], model="linear", steps=300)
    assert answer.summary["metric"] == "rmse"
    assert answer.summary["overall"]["erm"]["value"] == pytest.approx(3000, rel=0.1)
    assert answer.pipeline.predict(frame).mean() == pytest.approx(frame["price"].mean(), rel=0.02)


def test_auto_takes_a_network_where_it_predicts_better_and_a_linear_model_elsewhere():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(600, 2)), columns=["a", "b"])
    frame["site"] = rng.choice(["u", "v"], 600)
    bent = frame.assign(y=frame["a"] * frame["b"] + 0.1 * rng.normal(size=600))
    straight = frame.assign(y=frame["a"] - frame["b"] + 0.1 * rng.normal(size=600))
    models = [fit_table(f, "y", ["site"], steps=300).summary["model"] for f in (bent, straight)]
    assert models == ["mlp 32", "linear"]


def test_more_than_two_classes_with_a_network():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=450), "site": np.tile(["a", "b", "c"], 150)})
    frame["kind"] = np.where(frame["x"] < -0.5, "low", np.where(frame["x"] < 0.5, "mid", "high"))
    summary = fit_table(frame, "kind", ["site"], model="mlp", steps=200).summary
    assert summary["task"] == "multiclass"
    assert summary["classes"] == ["high", "low", "mid"]
    assert [f["chosen"] for f in summary["features"]] == [1.0]
    assert summary["overall"]["chosen"]["value"] > 0.9


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"model": "lineal"}, "model must be one of .* Did you mean 'linear'"),
        ({"metric": "rmse"}, "metric must be one of"),
        ({"objective": "tiva", "aux": ["cause"]}, "cannot be compared on held-out rows"),
        ({"rule": "oracle"}, "rule must be one of"),
        ({"environment": []}, "environment"),
    ],
)
def test_what_cannot_be_done_is_said(how, message):
    given = {"environment": ["site"], "model": "linear", "steps": 50, **how}
    with pytest.raises(ValueError, match=message):
        fit_table(spurious_table(200), "sold", **given)


def test_of_very_many_rows_some_are_compared_and_all_are_trained_on(monkeypatch):
    from irmtv.app.fit import families as module

    monkeypatch.setattr(module, "SEARCHED_ROWS", 400)
    frame = spurious_table(2400)
    frame = frame[(frame["site"] == "north") | (np.arange(2400) % 12 == 0)]  # 1,200 and 100 rows
    answer = fit_table(frame, "sold", ["site"], model="linear", steps=100)
    rows = {row["name"]: row["rows"] for row in answer.summary["environments"]}
    assert rows == {"north": 1000, "south": 100}  # a thousand of each, or all it has
    assert any("1,100 rows, drawn at random" in note for note in answer.summary["data"]["notes"])
    assert answer.pipeline[-1].environment_weights_.tolist() == pytest.approx([1200 / 1300, 100 / 1300])


@pytest.mark.parametrize(
    ("objective", "environment", "missing"),
    [("auto", [], "environment or aux"), ("vrex", [], "environment"), ("minimax-tv-l1", ["site"], "aux")],
)
def test_what_an_objective_learns_from_is_asked_for_in_words_of_the_command(objective, environment, missing):
    frame = pd.DataFrame({"x": np.arange(40.0), "site": ["a", "b"] * 20, "y": [0, 1] * 20})
    with pytest.raises(ValueError, match=rf"objective '{objective}' needs {missing}\. Got none.*--environment site"):
        fit_table(frame, "y", environment, objective=objective)


def test_the_p_of_the_path_is_that_of_the_message():
    """Where ERM of a linear model is kept, the rule speaks of the slopes in all columns, and so does the path."""
    rng = np.random.default_rng(706)
    frame = pd.DataFrame({name: rng.normal(size=600) for name in "ab"} | {"site": np.repeat(["x", "y", "z"], 200)})
    frame["y"] = 3 * frame["a"] + rng.normal(size=600)
    summary = fit_table(frame, "y", ["site"], model="linear", penalty_weights=[100]).summary
    assert summary["outcome"] == "erm-invariant"
    (chosen,) = (point for point in summary["path"] if point["chosen"])
    assert chosen["p"] == summary["settings"]["figures"]["p_columns_erm"] and chosen["passes"]
    assert f"p = {chosen['p']:.2g}" in summary["message"]
