"""Would every environment choose the same direction: against models of their own, and against its null distribution."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import binom
from sklearn.linear_model import LogisticRegression

from irmtv import make_task, train
from irmtv.engine.solvers.rescaled import rescale, rescaling
from irmtv.models.own_directions import own_directions

F64 = {"dtype": torch.float64}


def erm_of(task):
    coef, intercept = train(task, "erm", solver="newton", **F64).coefficients(which="last")
    n = task.n_outputs
    return torch.cat([coef.double().view(n, -1), intercept.double().view(n, 1)], 1).flatten()


def compared(task):
    return own_directions(task, erm_of(task))


def rows_of(n, weights, noise, seed=0, kind="binary"):
    """Environments with their own weights (E, D) and noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n * len(weights), len(weights[0])))
    e = np.repeat(np.arange(len(weights)), n)
    f = (x * np.array(weights)[e]).sum(1)
    if kind == "squared":
        y = f + np.array(noise)[e] * rng.normal(size=len(f)) + 0.3 * e
        return make_task(x, y, environment=e, loss="squared", **F64)
    y = (f > rng.logistic(size=len(f))).astype(float)
    y = np.where(rng.random(len(y)) < np.array(noise)[e], 1 - y, y)
    return make_task(x, y, environment=e, **F64)


def test_what_own_models_would_gain_beyond_a_common_direction():
    """Squared errors and rows without end: against the best common direction with a scale and a shift for each."""
    task = rows_of(100_000, [(1.0, 0.5, 0.1), (1.1, 0.4, 0.0), (1.0, 0.5, 0.0)], (0.5, 1.0, 2.0), kind="squared")
    x, y, e = task.train.x.numpy(), task.train.y.numpy(), task.train.environment.numpy()
    parts = [(np.column_stack([x[e == k], np.ones((e == k).sum())]), y[e == k]) for k in range(3)]
    moments = [(a.T @ a / len(a), a.T @ b / len(a), b @ b / len(b)) for a, b in parts]

    def risk(w, k):
        xx, xy, yy = moments[k]
        return w @ xx @ w - 2 * w @ xy + yy

    def common(z):  # a direction, and a scale and a shift by environment
        return sum(risk(np.append(z[:3] * z[3 + k], z[6 + k]), k) for k in range(3)) / 3

    best = minimize(common, np.concatenate([erm_of(task).numpy()[:3], np.ones(3), np.zeros(3)]), tol=1e-12).fun
    own = sum(risk(np.linalg.solve(xx, xy), k) for k, (xx, xy, _) in enumerate(moments)) / 3
    found = compared(task)
    assert best - own > 1e-3
    assert found.gain == pytest.approx(best - own, rel=0.03)
    assert found.p < 1e-10


@pytest.mark.parametrize(("kind", "noise"), [("binary", (0.0, 0.3)), ("squared", (0.2, 3.0))])
def test_environments_that_differ_in_noise_and_scale_choose_the_same_direction(kind, noise):
    """p-values as they should be: a tenth of them below 0.1, half below 0.5. Gains are 0, with the deviation that is
    told."""
    n = 120
    found = [compared(rows_of(300, [(1.0, 0.5, 0.0), (1.6, 0.8, 0.0)], noise, seed=s, kind=kind)) for s in range(n)]
    p, gain, error = np.array(found).T
    for level in (0.1, 0.5):
        count = int(np.sum(p < level))
        assert binom.ppf(1e-3, n, level) <= count <= binom.ppf(1 - 1e-3, n, level)
    assert abs(gain.mean()) < 3 * gain.std() / np.sqrt(n)
    assert error.mean() == pytest.approx(gain.std(), rel=0.35)  # of a chi-square with two degrees of freedom: se 0.13


def test_a_column_that_works_in_one_environment_only_is_seen():
    same = compared(rows_of(2000, [(1.0, 0.5, 0.2)] * 2, (0.0, 0.2)))
    other = compared(rows_of(2000, [(1.0, 0.5, 0.8), (1.0, 0.5, -0.2)], (0.0, 0.0)))
    assert same.p > 0.01 and abs(same.gain) < 2e-3
    assert other.p < 1e-12 and other.gain > 0.01


@pytest.mark.parametrize("kind", ["binary", "squared"])
def test_units_of_columns_do_not_matter(kind):
    task = rows_of(500, [(1.0, 0.5, 0.1), (1.0, 0.5, 0.0)], (0.1, 1.0), kind=kind)
    units = torch.tensor([1.0, 1000.0, 0.01], dtype=torch.float64)
    scaled = replace(task, train=replace(task.train, x=task.train.x * units))
    a, b = compared(task), compared(scaled)
    assert 1e-12 < a.p < 0.9
    assert b.p == pytest.approx(a.p, rel=1e-3) and b.gain == pytest.approx(a.gain, rel=1e-3)


def test_three_classes_of_which_softmax_needs_two():
    rng = np.random.default_rng(0)
    x, e = rng.normal(size=(3000, 3)), np.repeat([0, 1], 1500)
    weights = np.array([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 0.5]])
    y = (x @ weights * np.where(e == 0, 1.0, 0.6)[:, None] + rng.gumbel(size=(3000, 3))).argmax(1)
    spurious = y == 2
    same = compared(make_task(x, y, environment=e, **F64))
    assert same.p > 0.01
    x[:, 0] += np.where(e == 0, 1.0, -1.0) * spurious
    assert compared(make_task(x, y, environment=e, **F64)).p < 1e-10


def test_environments_with_few_rows_do_not_count():
    task = rows_of(400, [(1.0, 0.5, 0.2)] * 3, (0.0, 0.0, 0.0))
    few = task.train.take(torch.cat([torch.arange(800), torch.arange(800, 819)]))  # 19 rows, 5 per parameter are 20
    without = task.train.take(torch.arange(800))
    at = erm_of(task)
    assert own_directions(replace(task, train=few), at) == own_directions(replace(task, train=without), at)
    assert own_directions(replace(task, train=task.train.take(torch.arange(400))), at) is None
    one_column = make_task(task.train.x[:, :1], task.train.y, environment=task.train.environment, **F64)
    assert compared(one_column) == (1.0, 0.0, 0.0)


def test_rescaled_as_scikit_learn_rescales():
    task = rows_of(1000, [(1.0, 0.5), (2.0, 1.0)], (0.0, 0.0))
    theta = erm_of(task)
    for e in range(2):
        rows = task.train.take((task.train.environment == e).nonzero().squeeze(1))
        f = (rows.x @ theta[:2]).numpy()
        line = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(f[:, None], rows.y.numpy())
        found = rescale(rows, theta, task.loss, 1)
        assert found.scale == pytest.approx(line.coef_[0, 0], rel=1e-5)
        assert float((rescaling(theta, 1).T @ found.gradient).abs().max()) < 1e-6
    weighted = replace(task.train, weight=torch.linspace(0.1, 2.0, len(task.train)))
    assert rescale(weighted, theta, task.loss, 1).rows < 0.95 * len(task.train)


def test_where_the_rows_are_told_apart_the_scale_stays_finite():
    task = rows_of(200, [(50.0, 20.0)] * 2, (0.0, 0.0))
    theta = torch.tensor([5.0, 2.0, 0.0], dtype=torch.float64)
    rows = replace(task.train, y=(task.train.x @ theta[:2] > 0).double())
    found = rescale(rows, theta, task.loss, 1)
    assert np.isfinite(found.scale) and found.gradient.isfinite().all()
