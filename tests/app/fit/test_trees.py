"""From a table to boosted trees, with tables whose answer is known, and against boosters that were fitted by hand."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import irmtv
from app.fit.tables import spurious_table
from irmtv import InvariantBoostingClassifier
from irmtv.app.fit import fit_table
from irmtv.app.fit.families import Trees
from irmtv.estimators.files import read_about, save

HOW = {"model": "trees", "rounds": 40, "penalty_weights": [100, 1000]}


def table() -> pd.DataFrame:
    """Without its days, by which trees would tell the sites apart and be right in each."""
    return spurious_table(2400).drop(columns="day")


def leaves_and_rounds(point) -> dict[str, int]:
    leaves = int(point["model"].removeprefix("trees (").removesuffix(" leaves)"))
    return {"num_leaves": leaves, "n_estimators": point["step"]}


@pytest.fixture(scope="module")
def found():
    return fit_table(table(), "sold", ["site"], **HOW)


def test_an_invariant_model_is_found_and_leaves_the_shortcut(found):
    summary = found.summary
    assert summary["outcome"] == "invariant-found"
    assert summary["model"].startswith("trees ") and summary["plain_model"] == summary["path"][0]["model"]
    assert summary["features_kind"] == "contributions"
    share = {f["name"]: f for f in summary["features"]}
    assert share["shortcut"]["erm"] > 0.4
    assert share["shortcut"]["chosen"] < 0.6 * share["shortcut"]["erm"]
    for key in ("erm", "chosen"):
        assert sum(f[key] for f in summary["features"]) == pytest.approx(1)
    rows = {row["name"]: row for row in summary["environments"]}
    assert rows["north"]["erm"]["value"] > rows["south"]["erm"]["value"] + 0.1  # the shortcut works there
    apart = {curve["model"]: np.ptp(curve["risk"]) for curve in summary["losses"]}
    assert list(apart) == ["ERM", "vrex"]
    assert apart["vrex"] < 0.5 * apart["ERM"]


def test_importances_are_those_of_boosters_fitted_by_hand(found):
    frame = table()
    numbers = found.pipeline[:-1].transform(frame)
    plain = leaves_and_rounds(found.summary["path"][0])
    erm = InvariantBoostingClassifier("erm", **plain, random_state=0).fit(numbers, frame["sold"])
    np.testing.assert_allclose([f["erm"] for f in found.summary["features"]], erm.feature_importances_)
    chosen = found.pipeline[-1].feature_importances_
    np.testing.assert_allclose([f["chosen"] for f in found.summary["features"]], chosen)


def test_held_out_scores_agree_with_lightgbm_itself(found):
    from lightgbm import LGBMClassifier
    from sklearn.model_selection import cross_val_score

    frame = table()
    plain = leaves_and_rounds(found.summary["path"][0])
    peer = LGBMClassifier(**plain, n_jobs=1, verbose=-1, random_state=0)
    score = cross_val_score(peer, pd.DataFrame(found.pipeline[:-1].transform(frame)), frame["sold"], cv=5).mean()
    assert found.summary["overall"]["erm"]["value"] == pytest.approx(score, abs=0.015)


def test_path_and_curves_count_rounds(found):
    path = found.summary["path"]
    assert [(p["penalty_weight"], p["label"]) for p in path] == [(0, "0"), (100, "100"), (1000, "1000")]
    chosen = next(p for p in path if p["chosen"])
    assert chosen["step"] == found.pipeline[-1].n_iter_ <= 40
    assert found.summary["curves"]["steps"][-1] == chosen["step"]
    assert found.summary["settings"]["rounds"] == 40 and "steps" not in found.summary["settings"]


def test_the_file_predicts_as_the_model_did(found, tmp_path):
    path = save(found.pipeline, tmp_path / "model.irmtv", about=found.summary)
    assert json.loads(json.dumps(found.summary, allow_nan=False)) == read_about(path)
    frame = table().drop(columns=["sold", "site"])
    np.testing.assert_allclose(irmtv.load(path).predict_proba(frame), found.pipeline.predict_proba(frame))


def test_regression_in_the_units_of_the_target_and_nothing_changes_where_plain_boosting_is_kept():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.normal(size=600), "noise": rng.normal(size=600), "site": ["a", "b"] * 300})
    frame["price"] = 50_000 + 20_000 * (frame["size"] > 0) + 3000 * rng.normal(size=600)
    answer = fit_table(frame, "price", ["site"], **HOW)
    assert answer.summary["outcome"] == "erm-invariant"
    assert answer.summary["overall"]["erm"]["value"] == pytest.approx(3000, rel=0.15)
    assert answer.pipeline.predict(frame).mean() == pytest.approx(frame["price"].mean(), rel=0.02)
    assert all(f["erm"] == f["chosen"] for f in answer.summary["features"])
    assert answer.summary["features"][0]["chosen"] > 0.8


def test_environments_inferred_from_dates_and_more_than_two_classes():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=450), "when": np.arange(450.0)})
    frame["kind"] = np.where(frame["x"] < -0.5, "low", np.where(frame["x"] < 0.5, "mid", "high"))
    summary = fit_table(frame, "kind", aux=["when"], **{**HOW, "rounds": 20}).summary
    assert (summary["task"], summary["objective"]) == ("multiclass", "minimax-tv-l1")
    assert np.allclose(np.sum(summary["inferred"]["membership"], 1), 1)
    assert summary["overall"]["chosen"]["value"] > 0.9


def test_what_trees_cannot_minimise_is_said():
    with pytest.raises(ValueError, match=r"objective must be one that trees can minimise"):
        fit_table(spurious_table(200), "sold", ["site"], model="trees", objective="eiil")


def test_rounds_are_checked():
    with pytest.raises(ValueError, match="rounds must be a positive"):
        fit_table(spurious_table(200), "sold", ["site"], model="trees", rounds=0)


def test_the_bar_is_told_after_every_booster():
    frame = spurious_table(400)
    numbers = frame[["cause", "shortcut"]].fillna(0).to_numpy(np.float32)
    parameters = {"objective": "irm-tv-l1", "penalty_weights": [10], "cv": 2, "random_state": 0}
    table = (numbers, frame["sold"].to_numpy(str), frame["site"], None)
    trees = Trees("binary", table, rounds=5, parameters=parameters)

    class Bar:
        def __init__(self):
            self.shares = []

        def stage(self, name, share):
            self.told = (name, share)

        def __call__(self, report):
            self.shares.append(report.share)

    bar = Bar()
    trees.search(bar, 0.5)
    assert bar.told == ("penalty path, trees", 0.5)
    assert len(bar.shares) >= 2 * 2 + 2 * 2  # two weights and two environments' own, on two folds
    assert bar.shares == sorted(bar.shares) and bar.shares[-1] == 1


@pytest.mark.parametrize("model", ["trees", "linear"])
def test_plain_is_plain_also_beside_an_objective_without_a_weight(model):
    """groupDRO after its first round is not ERM."""
    how = {"rule": "worst-env", "model": model, "rounds": 20, "steps": 200}
    found = fit_table(table(), "sold", ["site"], objective="groupdro", **how).summary
    plain = fit_table(table(), "sold", ["site"], objective="erm", **{**how, "rule": "iid"}).summary
    np.testing.assert_allclose(found["losses"][0]["risk"], plain["losses"][0]["risk"], rtol=1e-6)


def test_aux_that_nobody_asks_for_is_told_as_such():
    frame = spurious_table(400)
    frame["t"] = np.arange(len(frame)) / len(frame)
    notes = fit_table(frame, "sold", [], ["t"], objective="erm", model="trees", rounds=5).summary["data"]["notes"]
    assert any("objective 'erm' infers none" in note for note in notes)
