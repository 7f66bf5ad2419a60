"""Trees on rows in blocks are those of the same rows in memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("lightgbm")

from engine.problems import arrays, refuse
from irmtv import InvariantBoostingClassifierCV, InvariantBoostingRegressorCV
from irmtv.data.blocks import RowsInBlocks
from irmtv.models.trees.blocks import sequences, task_of_blocks

N, SIZES = 1200, [1, 420, 17, 600, 162]


def fitted(kind, objective, n_estimators=6, weights=(0.0, 100.0)):
    """An estimator, all rows, a sample of them, its search with a penalty that acts, and features to predict."""
    x, y, e, t = arrays(kind, N, 0, 4, 4)
    x[::7, 2] = np.nan
    estimator = InvariantBoostingRegressorCV if kind == "squared" else InvariantBoostingClassifierCV
    few = {"cv": 2, "n_estimators": n_estimators, "num_leaves": 4, "random_state": 0, "rule": "iid"}
    model = estimator(objective, penalty_weights=weights, **few)
    whole = model.read_data(x, y, environment=e, aux=t)
    index = torch.randperm(N, generator=torch.Generator().manual_seed(1))[:500].sort().values
    sample = replace(whole, task=replace(whole.task, train=whole.task.train.take(index)))
    search = model.search(sample)
    last = max(i for i, c in enumerate(search.candidates) if search.paths[c.combination].penalty_weight == weights[-1])
    return model, whole, sample, replace(search, choice=replace(search.choice, index=last)), x


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["vrex", "minimax-tv-l1"])
@pytest.mark.parametrize("kind", ["binary", "multiclass", "squared"])
def test_trees_are_those_of_rows_in_memory(kind, objective):
    model, whole, sample, search, x = fitted(kind, objective)
    source = RowsInBlocks.cut(whole.task.train, SIZES)
    model.fit_choice_on(source, sample, search)
    outputs = model.predict if kind == "squared" else model.predict_proba
    found, weights, at = outputs(x), model.environment_weights_, model.n_iter_
    assert set(model.history_["step"]) == {at}
    model.fit_choice(whole, search)
    assert np.array_equal(outputs(x), found)
    assert np.array_equal(model.environment_weights_, weights)


def test_sequences_give_the_rows_that_are_asked_for():
    x, *_ = arrays(n=300)
    rows = torch.as_tensor(x)
    source = RowsInBlocks(tuple(_rows(part) for part in torch.split(rows, [100, 1, 150, 49])))
    numbers = torch.arange(0, 300, 3)
    each = sequences(source, numbers)
    assert sum(map(len, each)) == len(numbers)
    assert np.array_equal(np.concatenate([one[:] for one in each]), x[::3])
    assert np.array_equal(each[0][4], x[12])
    assert np.array_equal(each[0][[0, 2]], x[[0, 6]])


def _rows(x):
    from irmtv import Rows

    return Rows(x, torch.zeros(len(x)))


def test_of_features_numbers_of_rows_stay():
    _, whole, *_ = fitted("binary", "vrex", n_estimators=2)
    task = task_of_blocks(RowsInBlocks.cut(whole.task.train, SIZES), whole.task)
    assert torch.equal(task.train.x[:, 0], torch.arange(N))
    assert torch.equal(task.train.y, whole.task.train.y)
    assert torch.equal(task.train.environment, whole.task.train.environment)


def test_what_cannot_be_is_refused(tmp_path):
    model, whole, sample, search, _ = fitted("binary", "vrex", n_estimators=2)
    source = RowsInBlocks.cut(whole.task.train, SIZES)
    with refuse("checkpoint must be None for trees"):
        model.fit_choice_on(source, sample, search, checkpoint=tmp_path / "file")
    narrow = RowsInBlocks((replace(whole.task.train, x=whole.task.train.x[:, :2]),))
    with refuse("blocks must be Rows of (4,) features", "Got (2,)"):
        model.fit_choice_on(narrow, sample, search)
    model.refit = False
    with refuse("refit must be True"):
        model.fit_choice_on(source, sample, search)
