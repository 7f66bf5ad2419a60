"""What is measured of linear models that were solved outright, against derivatives and moments by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.problems import task_of
from irmtv import Runs, train
from irmtv.engine.solvers import second_order
from irmtv.models.networks import linear
from irmtv.models.networks.linear import column_slopes, is_solved, linear_models, middle_model
from irmtv.objectives import OBJECTIVES


def models_for(task, k=3):
    size = task.train.x[0].numel() + 1
    return torch.randn(k, task.n_outputs, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def slopes_of_rows(task, model):
    """The derivative of each row's loss in a vector w at 1, by autograd: (N, J)."""
    x, rows = task.train.x.double(), task.train
    n, by_output = len(rows), task.n_outputs > 1
    w = torch.ones(n, task.n_outputs if by_output else x.shape[1], dtype=torch.float64, requires_grad=True)
    if by_output:
        f = w * (x @ model[:, :-1].T + model[:, -1])
    else:
        f = (x * w) @ model[0, :-1] + model[0, -1]
    y = rows.y.double() if rows.y.is_floating_point() else rows.y
    losses = {
        "binary": lambda: torch.nn.functional.binary_cross_entropy_with_logits(f, y, reduction="sum"),
        "multiclass": lambda: torch.nn.functional.cross_entropy(f, y, reduction="sum"),
        "squared": lambda: (f - y).square().sum(),
    }
    (slopes,) = torch.autograd.grad(losses[task.loss.name](), w)
    return slopes.numpy()


@pytest.mark.parametrize("at_once", [1, 1 << 25])
@pytest.mark.parametrize("kind", ["binary", "multiclass", "squared"])
def test_slopes_in_every_column_are_derivatives_and_their_covariances_those_of_means(kind, at_once, monkeypatch):
    monkeypatch.setattr(linear, "NUMBERS_AT_ONCE", at_once)
    task = task_of(kind, 200, 0, environments=3)
    models = models_for(task)
    mean, cov = column_slopes(task.train, models, task.loss)
    for k, model in enumerate(models):
        slopes = slopes_of_rows(task, model)
        for e in range(3):
            own = slopes[task.train.environment.numpy() == e]
            np.testing.assert_allclose(mean[k, e], own.mean(0), rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(cov[k, e], np.cov(own.T) / len(own), rtol=1e-9, atol=1e-12)


def test_an_environment_with_one_row_has_no_slopes():
    task = task_of("binary", 50, 0, environments=2)
    codes = torch.zeros(50, dtype=torch.long)
    codes[7] = 1
    mean, cov = column_slopes(replace(task.train, environment=codes), models_for(task), task.loss)
    assert mean[:, 0].isfinite().all() and mean[:, 1].isnan().all() and cov[:, 1].isnan().all()


def test_models_of_all_runs_have_their_intercepts_last():
    task = task_of("multiclass", 120, 0, environments=2)
    fitted = train(task, "erm", Runs(seed=[0, 1], l2=[0.0, 0.1]), solver="newton", dtype=torch.float64)
    models = linear_models(fitted)
    x = task.train.x.double()
    np.testing.assert_allclose(
        x @ models[:, :, :-1].mT + models[:, :, -1].unsqueeze(1), fitted.logits(task.train.x), rtol=1e-9
    )


def test_the_middle_model_is_nearest_to_the_mean():
    models = torch.tensor([[0.0, 0.0], [10.0, 0.0], [4.0, 1.0], [0.0, 5.0]]).double().unsqueeze(1)
    assert middle_model(models).tolist() == [[4.0, 1.0]]


def test_what_is_solved():
    assert is_solved(OBJECTIVES["irm-tv-l1"], {"solver": "newton"})
    assert is_solved(OBJECTIVES["eills"], {"solver": "adam"})  # it has no other way
    assert not is_solved(OBJECTIVES["irm-tv-l1"], {"solver": "adam"})
    assert linear.NUMBERS_AT_ONCE == second_order.NUMBERS_AT_ONCE
