"""`fit_choice_on`: the last step of `fit` on rows that come in blocks, the twin of `fit_choice` on rows in memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.problems import arrays
from irmtv import InvariantClassifierCV, InvariantRegressorCV
from irmtv.data.blocks import RowsInBlocks

N, SIZES = 1500, [1, 700, 17, 300, 482]


def searched(kind, objective, **more):
    """An estimator, all rows, a sample scaled as they are, its search, and features to predict."""
    x, y, e, _ = arrays(kind, N, 0, 4, 4)
    x = 10 * x + 3  # units of the user
    classifies = kind in ("binary", "multiclass")
    estimator = InvariantClassifierCV if classifies else InvariantRegressorCV
    model = estimator(objective, cv=2, random_state=0, rule="iid", **{"hidden": (), **more})
    whole = model.read_data(x, y, environment=e)
    index = torch.randperm(N, generator=torch.Generator().manual_seed(1))[:600].sort().values
    sample = replace(whole, task=replace(whole.task, train=whole.task.train.take(index)))
    rows = whole.task.train.take(torch.argsort(whole.task.train.environment, stable=True))
    return model, whole, sample, model.search(sample), RowsInBlocks.cut(rows, SIZES), x


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["erm", "irm-tv-l1", "vrex", "eills"])
@pytest.mark.parametrize("kind", ["binary", "squared", "targets"])
def test_attributes_are_those_of_rows_in_memory(kind, objective):
    weights = {} if objective == "erm" else {"penalty_weights": [0.0, 10.0]}
    model, whole, sample, search, source, x = searched(kind, objective, l2=1e-3, **weights)
    acting = [i for i, c in enumerate(search.candidates) if search.paths[c.combination].penalty_weight == 10.0]
    if acting:
        search = replace(search, choice=replace(search.choice, index=acting[0]))
    model.fit_choice_on(source, sample, search)
    names = ("coef_", "intercept_", "environment_weights_")
    found = {name: getattr(model, name) for name in names}
    predicted, steps = model.predict(x), set(model.history_["step"])
    assert model.selected_["step"] == model.n_iter_
    model.fit_choice(whole, search)
    assert steps == set(model.history_["step"])
    for name in names:
        assert np.allclose(found[name], getattr(model, name), rtol=1e-6, atol=1e-9), name
    assert np.allclose(predicted, model.predict(x), rtol=1e-6)


@pytest.mark.slow
def test_networks_predict_as_those_of_rows_in_memory():
    model, whole, sample, search, source, x = searched(
        "binary", "irm-tv-l1", hidden=(8,), max_steps=200, batch_size=50, penalty_weights=[0.0, 1.0], l2=0.0
    )
    model.fit_choice_on(source, sample, search)
    found = model.predict_proba(x)[:, 1]
    model.fit_choice(whole, search)
    assert np.corrcoef(found, model.predict_proba(x)[:, 1])[0, 1] > 0.98


@pytest.mark.slow
def test_a_checkpoint_holds_what_was_read(tmp_path):
    model, _, sample, search, source, _ = searched("binary", "irm-tv-l1", l2=1e-3, penalty_weights=[0.0, 10.0])
    path = tmp_path / "choice.ckpt"
    first = model.fit_choice_on(source, sample, search, checkpoint=path).coef_

    class Gone(RowsInBlocks):
        def blocks(self):
            raise AssertionError("read again")

    assert np.array_equal(model.fit_choice_on(Gone(source.parts), sample, search, checkpoint=path).coef_, first)
