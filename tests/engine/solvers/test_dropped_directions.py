"""Directions of x that are left out: second moments against rows, gradients against differences, data with a truth."""

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from irmtv import Runs, train
from irmtv.core.losses import Binary
from irmtv.data.task import make_task
from irmtv.datasets import make_control, make_unit_test
from irmtv.datasets.unit_tests import unit_test_error
from irmtv.engine.solvers.columns import drops_directions
from irmtv.engine.solvers.dropped_directions import (
    SecondMoments,
    _Search,
    drop_directions,
    most_directions,
)


def moments_of(x, y, codes):
    """Of rows x (N, D), with an intercept."""
    parts = [(np.c_[x[codes == e], np.ones((codes == e).sum())], y[codes == e]) for e in range(codes.max() + 1)]
    return SecondMoments(
        rows=np.array([float(len(b)) for _, b in parts]),
        xx=np.stack([a.T @ a / len(a) for a, _ in parts]),
        xy=np.stack([a.T @ b / len(b) for a, b in parts]),
        yy=np.array([b @ b / len(b) for _, b in parts]),
    )


def mixed(n, noise, seed, direction=True):
    """One invariant model of four columns; along one direction of x, if `direction`, y leaves traces of its noise."""
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(len(noise)), n)
    x = rng.normal(size=(len(codes), 4))
    error = rng.normal(size=len(codes)) * np.take(noise, codes)
    y = x @ [1.0, -1.0, 0.5, 0.0] + error
    if direction:
        x[:, 3] += error + 0.3 * rng.normal(size=len(codes))
    turn = stats.ortho_group.rvs(4, random_state=seed)
    return x @ turn, y, codes, turn


@pytest.fixture(scope="module")
def search():
    x, y, codes, _ = mixed(300, (0.5, 1.0, 2.0), 0)
    return _Search(moments_of(x, y, codes), np.zeros((4, 0))), (x, y, codes)


def test_the_gradient_is_that_of_differences():
    x, y, codes, _ = mixed(200, (0.5, 1.0, 2.0, 3.0), 1)
    for j in (1, 2):
        one = _Search(moments_of(x, y, codes), np.zeros((4, j - 1)))
        weight = np.array([0.3, 0.2, 0.1, 0.4])
        at = np.random.default_rng(2).normal(size=4 * j)
        found = optimize.approx_fprime(at, lambda z, one=one, weight=weight: one._value(z, 7.0, weight)[0], 1e-7)
        np.testing.assert_allclose(one._value(at, 7.0, weight)[1], found, rtol=1e-4, atol=1e-5)


def test_risk_and_regret_are_those_of_the_rows(search):
    one, (x, y, codes) = search
    direction = np.linalg.qr(np.random.default_rng(3).normal(size=(4, 1)))[0]
    weight = np.array([3.0, 2.0, 1.0])
    kept = np.linalg.svd(np.eye(4) - direction @ direction.T)[0][:, :3]
    z = np.c_[x @ kept, np.ones(len(x))]
    w = np.take(weight / 300, codes)
    model = np.linalg.lstsq(z * np.sqrt(w)[:, None], y * np.sqrt(w), rcond=None)[0]
    risk = [np.mean((y - z @ model)[codes == e] ** 2) for e in range(3)]
    own = [np.linalg.lstsq(z[codes == e], y[codes == e], rcond=None)[1][0] / 300 for e in range(3)]
    found = one._risks(direction, weight)
    np.testing.assert_allclose(found[0], risk, rtol=1e-8)
    np.testing.assert_allclose(found[1], np.subtract(risk, own), rtol=1e-6)


@pytest.mark.parametrize("seed", [4, 5, 6, 7])
def test_the_direction_that_holds_traces_of_the_noise_is_found(seed):
    """Weights that rise from every start lose it in three of these; weights that fall find it."""
    x, y, codes, turn = mixed(5000, (0.5, 1.0, 2.0), seed)
    found = drop_directions(moments_of(x, y, codes), 1e4)
    assert found.directions.shape == (4, 1) and found.degrees == 5 and found.p >= 0.05
    np.testing.assert_allclose(found.theta[:-1] @ turn.T, [1.0, -1.0, 0.5, 0.0], atol=0.04)


def test_the_last_is_returned_where_nothing_passes():
    x, y, codes, _ = mixed(5000, (0.5, 1.0, 2.0), 4)
    found = drop_directions(moments_of(x, y, codes), 1.0, level=1.0)
    assert found.directions.shape == (4, 2) and found.degrees == 2


def test_nothing_is_left_out_where_one_model_is_right_everywhere():
    """Then it is least squares, every environment counted by its noise, and the statistic is a chi-square."""
    statistics = []
    for seed in range(120):
        x, y, codes, _ = mixed(100, (0.5, 1.0, 2.0), seed, direction=False)
        found = drop_directions(moments_of(x, y, codes), 10.0, level=1e-9)
        assert found.directions.shape == (4, 0) and found.degrees == 10
        statistics.append(found.statistic)
        if seed == 0:
            noise = [np.linalg.lstsq(np.c_[x, np.ones(300)][codes == e], y[codes == e], rcond=None)[1][0] / 95
                     for e in range(3)]  # fmt: skip
            w = 1 / np.sqrt(np.take(noise, codes))
            expected = np.linalg.lstsq(np.c_[x, np.ones(300)] * w[:, None], y * w, rcond=None)[0]
            np.testing.assert_allclose(found.theta, expected, rtol=1e-6)
    assert stats.kstest(statistics, "chi2", args=(10,)).pvalue > 0.001


def test_the_ridge_is_that_of_the_pooled_risk():
    """Where all environments have one noise, it is that of least squares with l2 |theta|^2 beside the mean risk."""
    x, y, codes, _ = mixed(4000, (1.0, 1.0, 1.0), 5, direction=False)
    found = drop_directions(moments_of(x, y, codes), 10.0, l2=0.5, level=1e-9).theta
    z = np.c_[x, np.ones(len(x))]
    expected = np.linalg.solve(z.T @ z / len(z) + np.diag([0.5] * 4 + [0.0]), z.T @ y / len(z))
    np.testing.assert_allclose(found, expected, rtol=0.02, atol=2e-3)


def test_small_environments_are_not_asked_for_models_of_their_own():
    x, y, codes, _ = mixed(2000, (0.5, 1.0, 2.0), 6)
    few = np.concatenate([codes, np.full(8, 3)])
    more = (np.concatenate([x, x[:8]]), np.concatenate([y, 100 + y[:8]]))
    both = [drop_directions(m, 10.0).theta for m in (moments_of(x, y, codes), moments_of(*more, few))]
    np.testing.assert_allclose(*both)


def test_as_many_can_be_left_out_as_the_test_has_degrees_of_freedom_for():
    assert [most_directions(e, 4) for e in (1, 2, 3, 9)] == [0, 1, 2, 3]


def test_scrambled_unit_test_one_is_solved_where_a_scalar_penalty_is_not():
    task = make_unit_test("1s", 4000, 5, random_state=803)
    runs = Runs(penalty_weight=[0.0, 1e4])
    fitted = train(task, "eills", runs, form="directions", dtype=torch.float64)
    coef, intercept = fitted.coefficients()
    plain, found = (np.mean(unit_test_error(c.numpy(), float(b), task)) for c, b in zip(coef, intercept, strict=True))
    assert found < 1.005 * task.card["oracle"] < plain
    kept = fitted.learned("kept_directions")
    torch.testing.assert_close(kept[0], torch.eye(10, dtype=torch.float64))
    torch.testing.assert_close(kept[1] @ kept[1], kept[1])
    torch.testing.assert_close(coef[1] @ kept[1], coef[1])
    scalar = train(task, "irm-tv-l1", Runs(penalty_weight=[100.0, 1e3, 1e4]), solver="newton", dtype=torch.float64)
    errors = [
        np.mean(unit_test_error(c.numpy(), float(b), task))
        for c, b in zip(*scalar.coefficients(), strict=True)
    ]  # fmt: skip
    assert found < min(errors)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({}, "for squared errors of one target"), ({"layer": 2}, "layer must be None")],
    ids=["labels", "layer"],
)
def test_what_it_cannot_do_is_an_error(settings, message):
    regression = bool(settings)
    task = make_control(200, "nothing", n_environments=3, random_state=0, regression=regression)
    assert regression or isinstance(task.loss, Binary)
    with pytest.raises(ValueError, match=message):
        train(task, "eills", form="directions", penalty_weight=10.0, **settings)


def test_when_it_stands_beside_the_path():
    def task(n, environments, d=3):
        x = np.random.default_rng(0).normal(size=(n, d))
        return make_task(x, x[:, 0], loss="squared", environment=np.arange(n) % environments)

    assert drops_directions(task(300, 3))
    assert not drops_directions(task(300, 2))  # nothing would be left to refute it
    assert not drops_directions(task(30, 3))  # too few rows
    assert not drops_directions(task(300, 3, 1))
    assert not drops_directions(make_control(300, "nothing", n_environments=3, random_state=0))
