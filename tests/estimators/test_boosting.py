"""The estimators: tables in, predictions out."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import polars
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from irmtv import InvariantBoostingClassifier, InvariantBoostingRegressor, load, save
from irmtv.datasets import make_simulation

FAST = {"n_estimators": 15, "num_leaves": 4, "n_jobs": 1, "random_state": 0}


def table(n=600, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.normal(size=n),
            "ward": rng.choice(["heart", "lung", "eye"], n),
            "site": np.repeat(["a", "b", "c"], n // 3),
            "year": np.linspace(2000, 2020, n),
        }
    )
    frame["blood"] = pd.Categorical(rng.choice(["0", "A"], n))
    y = np.where((frame["age"] > 0) ^ (frame["ward"] == "eye"), "ill", "well")
    frame.loc[::7, "age"] = np.nan
    return frame, y


@pytest.mark.parametrize("objective", ["erm", "vrex", "mm-rex", "groupdro", "irm-tv-l1", "irm-tv-l2", "irm-tv-l1+vrex"])
def test_categories_and_missing_values_are_read_as_they_are(objective):
    frame, y = table()
    how = {**FAST, "n_estimators": 40, "penalty_weight": 1.0}
    clf = InvariantBoostingClassifier(objective, environment="site", aux="year", **how).fit(frame, y)
    assert clf.score(frame, y) > 0.85
    assert list(clf.feature_names_in_) == ["age", "ward", "blood"]
    assert clf.feature_importances_.sum() == pytest.approx(1) and clf.feature_importances_[2] < 0.1
    without = frame.drop(columns=["site", "year"])
    np.testing.assert_array_equal(clf.predict_proba(without), clf.predict_proba(frame))
    assert list(clf.environments_) == ["a", "b", "c"]
    assert clf.environment_weights_.sum() == pytest.approx(1)


def test_an_unknown_category_counts_as_missing():
    frame, y = table()
    clf = InvariantBoostingClassifier("erm", environment="site", aux="year", **FAST).fit(frame, y)
    strange, missing = frame.assign(ward="knee"), frame.assign(ward=None)
    np.testing.assert_array_equal(clf.predict_proba(strange), clf.predict_proba(missing))
    assert clf.predictor_.table.categories == (None, ("eye", "heart", "lung"), ("0", "A"))
    read = clf.predictor_.table(clf, strange.drop(columns=["site", "year"]))
    assert np.isnan(read[:, 1]).all() and not np.isnan(read[:, 2]).any()


def test_polars_is_pandas():
    frame, y = table()
    clf = InvariantBoostingClassifier("vrex", environment="site", aux="year", **FAST).fit(frame, y)
    other = InvariantBoostingClassifier("vrex", environment="site", aux="year", **FAST).fit(
        polars.from_pandas(frame), y
    )
    np.testing.assert_array_equal(clf.predict_proba(frame), other.predict_proba(polars.from_pandas(frame)))


def test_arrays_beside_x_are_columns():
    frame, y = table()
    named = InvariantBoostingClassifier("irm-tv-l1", environment="site", **FAST).fit(frame, y)
    given = InvariantBoostingClassifier("irm-tv-l1", **FAST).fit(
        frame.drop(columns="site"), y, environment=frame["site"]
    )
    np.testing.assert_array_equal(named.predict_proba(frame), given.predict_proba(frame.drop(columns="site")))


def test_several_classes_and_numbers():
    frame, _ = table()
    three = np.where(frame["age"] > 0.5, "high", np.where(frame["ward"] == "eye", "eye", "low"))
    clf = InvariantBoostingClassifier("irm-tv-l1+vrex", environment="site", **FAST).fit(frame, three)
    proba = clf.predict_proba(frame)
    assert proba.shape == (600, 3) and clf.score(frame, three) > 0.9
    np.testing.assert_allclose(proba.sum(1), 1)
    numbers = 1000 + 50 * frame["age"].fillna(0).to_numpy()
    reg = InvariantBoostingRegressor("vrex", environment="site", **{**FAST, "n_estimators": 60}).fit(frame, numbers)
    assert reg.score(frame, numbers) > 0.9
    # in other units the same
    other = InvariantBoostingRegressor("vrex", environment="site", **{**FAST, "n_estimators": 60}).fit(
        frame, numbers * 7
    )
    np.testing.assert_allclose(other.predict(frame), 7 * reg.predict(frame), rtol=1e-6)


def test_rows_of_weight_0_are_not_there_and_rows_of_weight_2_are_two():
    frame, y = table()
    weight = np.ones(600)
    weight[::5] = 0
    parameters = {**FAST, "min_child_samples": 1, "lightgbm_params": {"min_sum_hessian_in_leaf": 1e-3}}
    kept = weight > 0
    some = InvariantBoostingClassifier("erm", **parameters).fit(frame[kept].drop(columns="site"), y[kept])
    all_of = InvariantBoostingClassifier("erm", **parameters).fit(frame.drop(columns="site"), y, sample_weight=weight)
    np.testing.assert_allclose(
        some.predict_proba(frame.drop(columns="site")), all_of.predict_proba(frame.drop(columns="site"))
    )


def test_early_stopping_keeps_the_round_with_the_lowest_held_out_risk():
    frame, y = table()
    noisy = np.where(np.random.default_rng(1).random(600) < 0.3, "ill", y)
    how = {**FAST, "n_estimators": 80, "num_leaves": 31, "min_child_samples": 2}
    for rule in ("iid", "worst-env"):
        clf = InvariantBoostingClassifier("vrex", environment="site", early_stopping=rule, **how).fit(frame, noisy)
        seen = clf.history_.assign(total=clf.history_["rows"] * clf.history_["risk"]).groupby("step")
        score = seen["total"].sum() / seen["rows"].sum() if rule == "iid" else seen["risk"].max()
        assert clf.n_iter_ == score.idxmin() < 80
        assert set(clf.history_["on"]) == {"held-out"}
        assert clf.selected_ == {"rule": rule, "step": clf.n_iter_, "objective": "vrex"}


def test_environments_inferred_from_aux():
    frame, y = table()
    clf = InvariantBoostingClassifier(aux="year", **{**FAST, "n_estimators": 20}).fit(frame.drop(columns="site"), y)
    assert clf.objective_ == "minimax-tv-l1"
    assert list(clf.environments_) == ["inferred 1", "inferred 2"]
    q = clf.membership(frame)
    assert q.shape == (600, 2)
    np.testing.assert_allclose(q.sum(1), 1)


def test_evaluate_tells_by_environment():
    frame, y = table()
    clf = InvariantBoostingClassifier("vrex", environment="site", **FAST).fit(frame, y)
    found = clf.evaluate(frame, y)
    by_hand = [(clf.predict(frame) == y)[frame["site"] == s].mean() for s in "abc"]
    np.testing.assert_allclose(found.by_environment[0], by_hand)


def test_pictures():
    frame, y = table()
    clf = InvariantBoostingClassifier("vrex", environment="site", **FAST).fit(frame, y)
    axes = clf.plot_features()
    assert next(t.get_text() for t in axes.get_yticklabels()) in ("age", "ward")
    assert "move the score" in axes.get_xlabel()
    clf.plot_history()
    clf.plot_environments(frame, y)


# ---- files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["two classes", "three classes", "numbers", "inferred", "nothing to split"])
def test_a_file_predicts_as_the_estimator_did(kind, tmp_path):
    frame, y = table()
    if kind == "numbers":
        model = InvariantBoostingRegressor("irm-tv-l2", environment="site", **FAST).fit(frame, frame["year"].to_numpy())
    elif kind == "inferred":
        model = InvariantBoostingClassifier(aux="year", **FAST).fit(frame.drop(columns="site"), y)
    elif kind == "nothing to split":
        with pytest.warns(UserWarning, match="no tree found a split.*min_child_samples=20 of them, and there are 12"):
            model = InvariantBoostingClassifier("erm", **FAST).fit(frame[:12], y[:12])
    else:
        labels = frame["ward"].where(frame["age"] > 0, "none") if kind == "three classes" else y
        model = InvariantBoostingClassifier("vrex", environment="site", **FAST).fit(frame, labels)
    if kind == "inferred":
        frame = frame.drop(columns="site")
    path = model.save(tmp_path / "model.irmtv")
    again = load(path)
    assert type(again) is type(model)
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    np.testing.assert_allclose(again.feature_importances_, model.feature_importances_, rtol=1e-4)
    assert again.get_params() == model.get_params()
    pd.testing.assert_frame_equal(again.history_, model.history_)
    assert again.save(tmp_path / "again.irmtv").read_bytes() == path.read_bytes()
    if kind == "inferred":
        np.testing.assert_array_equal(again.membership(frame), model.membership(frame))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(frame), model.predict(frame))


def test_a_pipeline_is_saved_with_its_booster(tmp_path):
    frame, y = table()
    x = frame[["age", "year"]].fillna(0).to_numpy()
    pipeline = make_pipeline(StandardScaler(), InvariantBoostingClassifier("erm", **FAST)).fit(x, y)
    again = load(save(pipeline, tmp_path / "pipeline.irmtv"))
    np.testing.assert_array_equal(again.predict_proba(x), pipeline.predict_proba(x))


def test_without_lightgbm_there_is_a_word_on_how_to_get_it():
    code = (
        "import sys; sys.modules['lightgbm'] = None\n"
        "from irmtv import InvariantBoostingClassifier\n"
        "try:\n    InvariantBoostingClassifier('erm').fit([[0.0], [1.0]], [0, 1])\n"
        "except ImportError as error:\n    print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'irmtv[boosting]'" in said


# ---- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"objective": "lff"}, "objective must be one that trees can minimise"),
        ({"objective": "tiva"}, "Got 'tiva'|needs aux"),
        ({"penalty_weight": -1.0}, "penalty_weight"),
        ({"penalty_weight": "adaptive"}, "must be a number"),
        ({"n_estimators": 0}, "n_estimators must be a positive integer"),
        ({"num_leaves": 1}, "num_leaves must be a whole number from 2"),
        ({"learning_rate": 0.0}, "learning_rate must be a finite number above 0"),
        ({"warmup": -1}, "warmup must be"),
        ({"reserve": 1.0}, "reserve must be a number from 0 to 0.9"),
        ({"n_jobs": 0}, "n_jobs must be"),
        ({"early_stopping": "best"}, "early_stopping must be"),
        ({"objective_params": {"normalise": False}}, "must not hold 'normalise' for trees"),
        ({"objective_params": {"masure": "uniform"}}, "Did you mean 'measure'"),
        ({"lightgbm_params": {"num_leaves": 3}}, "must not hold 'num_leaves'"),
        ({"lightgbm_params": 3}, "lightgbm_params must be a dict"),
    ],
)
def test_wrong_parameters(parameters, said):
    frame, y = table()
    with pytest.raises(ValueError, match=said):
        InvariantBoostingClassifier(**{"objective": "vrex", "environment": "site", **parameters}).fit(frame, y)


def test_wrong_rows():
    frame, y = table()
    clf = InvariantBoostingClassifier("erm", **FAST)
    with pytest.raises(ValueError, match=r"contains infinity in 1 of 600 rows: .* infinity in row 3, column 'age'"):
        clf.fit(frame.assign(age=np.where(np.arange(600) == 3, np.inf, 1.0)), y)
    with pytest.raises(ValueError, match="Got dates in 'day'"):
        clf.fit(frame.assign(day=pd.Timestamp("2020-01-01")), y)
    with pytest.raises(ValueError, match="one target"):
        InvariantBoostingRegressor("erm", **FAST).fit(frame, np.zeros((600, 2)))
    clf.fit(frame, y)
    with pytest.raises(
        ValueError, match="X must be a DataFrame, as in training: 'ward', 'site', 'blood' held categories"
    ):
        clf.predict(frame.to_numpy())
    with pytest.raises(ValueError, match="to_onnx writes networks"):
        clf.to_onnx("model.onnx")


def test_importances_are_how_far_features_move_the_score():
    """Of stumps, which are additive: by moving one column alone, about its mean over the training rows."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3))
    y = (2 * x[:, 0] - x[:, 1] + rng.normal(size=500) > 0).astype(int)
    clf = InvariantBoostingClassifier("erm", num_leaves=2, n_estimators=40, n_jobs=1).fit(x, y)
    moved = []
    for j in range(3):
        alone = np.zeros_like(x)
        alone[:, j] = x[:, j]
        score = clf.decision_function(alone)
        moved.append(np.abs(score - score.mean()).mean())
    np.testing.assert_allclose(clf.feature_importances_, np.array(moved) / sum(moved), rtol=1e-5)


def test_what_a_penalty_has_undone_moves_little():
    """Splits that take back others have gain; nothing moves by them."""
    rows = make_simulation(2000, (0.999, 0.7), 0.9, random_state=0).train
    how = {"num_leaves": 4, "n_estimators": 60, "penalty_weight": 300, "n_jobs": 1, "random_state": 0}
    spurious = [
        InvariantBoostingClassifier(name, **how)
        .fit(rows.x.numpy(), rows.y.numpy(), environment=rows.environment.numpy())
        .feature_importances_[5:]
        .sum()
        for name in ("erm", "vrex")
    ]
    assert spurious[0] > 0.4 and spurious[1] < 0.5 * spurious[0]


def test_a_warm_up_must_end():
    frame, y = table()
    with pytest.raises(ValueError, match="n_estimators must be more than the rounds of the warm-up, 15"):
        InvariantBoostingClassifier("vrex", environment="site", warmup=15, **FAST).fit(frame, y)
    with pytest.raises(ValueError, match="n_estimators must be more than the rounds of the warm-up, 1,"):
        InvariantBoostingClassifier("irm-tv-l1", environment="site", **{**FAST, "n_estimators": 1}).fit(frame, y)


def test_intervals_as_categories_are_refused_before_training():
    frame, y = table()
    with pytest.raises(ValueError, match=r"Got Interval in 'band'.*astype\(str\)"):
        InvariantBoostingClassifier("erm", **FAST).fit(frame.assign(band=pd.cut(frame["year"], 4)), y)


def test_numbers_that_lightgbm_takes_for_0_are_one_message():
    rng = np.random.default_rng(0)
    X, y = 1e-300 * rng.normal(size=(80, 2)), rng.integers(0, 2, 80)
    message = r"LightGBM cannot grow trees on X .* It takes numbers below 1e-35 for 0"
    with pytest.warns(UserWarning, match="have no value beyond 1e-30"), pytest.raises(ValueError, match=message):
        InvariantBoostingClassifier().fit(X, y, environment=np.repeat([0, 1], 40))


def test_columns_that_lightgbm_would_take_for_zero_are_warned_of():
    rng = np.random.default_rng(0)
    x = pd.DataFrame({"tiny": rng.normal(size=60) * 1e-36, "usual": rng.normal(size=60), "zero": np.zeros(60)})
    model = InvariantBoostingRegressor("erm", n_estimators=2, n_jobs=1)
    with pytest.warns(UserWarning, match=r"columns 'tiny' of X have no value beyond 1e-30, and trees take"):
        model.fit(x, x["usual"])
    with pytest.warns(UserWarning, match="columns 0 of X have no value"):
        model.fit(x.to_numpy(), x["usual"])
