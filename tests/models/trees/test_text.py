"""Trees as text: whatever is wrong is found before LightGBM reads it."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from irmtv import InvariantBoostingClassifier, load
from irmtv.estimators.boosting_content import boosting_content
from irmtv.models.trees.text import check_trees, trees_alone
from irmtv.persistence import ModelFileError, write_model


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=900), "c": rng.choice(list("stuvwxyz"), 900)})
    y = (frame["a"] > 0) ^ frame["c"].isin(["s", "x"])
    how = {"n_estimators": 4, "num_leaves": 6, "n_jobs": 1, "lightgbm_params": {"min_data_per_group": 10}}
    return InvariantBoostingClassifier("erm", **how).fit(frame, y)


@pytest.fixture(scope="module")
def text(model):
    found = trees_alone(model.predictor_.members[0].booster.model_to_string())
    assert "cat_threshold=" in found  # splits on categories are among them
    return found


def test_whole_trees_pass(text):
    assert check_trees(text, 2, 1) == 4


@pytest.mark.parametrize(
    ("what", "by"),
    [
        (r"num_leaves=6", "num_leaves=7"),
        (r"num_leaves=6", "num_leaves=99999999999"),
        (r"split_feature=\d", "split_feature=2"),
        (r"split_feature=\d", "split_feature=-1"),
        (r"left_child=(\S+)", "left_child=77"),
        (r"left_child=(\S+)", "left_child=0"),
        (r"right_child=(\S+)", "right_child=-99"),
        (r"leaf_value=(\S+)", "leaf_value=nan"),
        (r"leaf_value=(\S+)", "leaf_value=1e999"),
        (r"leaf_value=(\S+)", "leaf_value=abc"),
        (r"leaf_value=(\S+) ", "leaf_value="),
        (r"num_cat=[1-9]", "num_cat=9"),
        (r"cat_boundaries=0", "cat_boundaries=5"),
        (r"cat_threshold=\d+", "cat_threshold=99999999999"),
        (r"cat_threshold=(\d+)", r"cat_threshold=\1 1"),
        (r"decision_type=\d+", "decision_type=255"),
        (r"is_linear=0", "is_linear=1"),
        (r"Tree=1", "Tree=7"),
        (r"max_feature_idx=1", "max_feature_idx=1000000"),
        (r"num_class=1", "num_class=3"),
        (r"tree_sizes=\d+", "tree_sizes=1"),
        (r"feature_infos=\S+", "feature_infos=[x:y]"),
        (r"version=v4", "version=v9"),
        (r"end of trees", "end of tres"),
        (r"shrinkage=\S+", "shrinkage=0.1\nmore=1"),
    ],
)
def test_broken_trees_do_not(text, what, by):
    broken = re.sub(what, by, text, count=1)
    assert broken != text
    with pytest.raises(ValueError):
        check_trees(broken, 2, 1)


def test_a_loop_among_splits_is_found(text):
    """Every place taken once, but below itself."""
    block = re.search(r"left_child=(.*)\nright_child=(.*)\n", text)
    left, right = (side.split() for side in block.groups())
    first = next(i for i, child in enumerate(left) if int(child) > 0)
    inner = int(left[first])
    leaf = next(i for i, child in enumerate(right) if i >= inner and int(child) < 0)
    left[first], right[leaf] = right[leaf], left[first]
    broken = text.replace(block.group(0), f"left_child={' '.join(left)}\nright_child={' '.join(right)}\n", 1)
    assert len(broken) == len(text)
    with pytest.raises(ValueError, match="before those below it"):
        check_trees(broken, 2, 1)


def test_random_damage_is_found_or_harmless(text):
    """Whatever passes the check is read by LightGBM and predicts finite numbers."""
    import lightgbm

    rng = np.random.default_rng(0)
    rows = np.c_[rng.normal(size=20), rng.integers(0, 8, 20)]
    passed = 0
    for _ in range(400):
        place = int(rng.integers(len(text)))
        broken = text[:place] + chr(int(rng.integers(32, 127))) + text[place + 1 :]
        try:
            check_trees(broken, 2, 1)
        except ValueError:
            continue
        passed += 1
        scores = lightgbm.Booster(model_str=broken).predict(rows, raw_score=True, num_threads=1)
        assert np.isfinite(scores).all()
    assert 0 < passed < 300


def test_a_file_with_broken_trees_is_refused(model, tmp_path):
    arrays, meta = boosting_content(model)
    meta["members"][0]["trees"] = meta["members"][0]["trees"].replace("left_child=", "left_child=9", 1)
    path = write_model(tmp_path / "broken.irmtv", "invariant-boosting-classifier", arrays, meta)
    with pytest.raises(ModelFileError, match="does not hold a whole InvariantBoostingClassifier"):
        load(path)
    meta["members"][0]["iterations"] = 99
    meta["members"][0]["trees"] = meta["members"][0]["trees"].replace("left_child=9", "left_child=", 1)
    with pytest.raises(ModelFileError, match="iterations must be a whole number from 0 to 4"):
        load(write_model(tmp_path / "long.irmtv", "invariant-boosting-classifier", arrays, meta))
