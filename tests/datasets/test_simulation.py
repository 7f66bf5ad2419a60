"""The simulation's rows against their definition, and its exact numbers against brute force."""

from __future__ import annotations

import doctest
import itertools
import json
import math
import re

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats

from irmtv.core.losses import Binary
from irmtv.core.types import Task
from irmtv.datasets import (
    expected_worst,
    make_simulation,
    population_accuracy,
    simulation,
    simulation_limit,
)

GENERATORS = ["code", "appendix"]
SIGNS = (1.0, -1.0)


def signs(rows):
    """The label as -1, +1: (N,) float64."""
    return 2 * rows.y.double().numpy() - 1


def code_accuracy_by_sum(coef, intercept, p_s, p_v, n_invariant):
    """Accuracy for "code", written out over the eight cases (y, a, b) with scipy.stats."""
    noise = np.sqrt(np.sum(coef**2))
    total = 0.0
    for y, a, b in itertools.product(SIGNS, repeat=3):
        probability = 0.5 * (p_v if a == y else 1 - p_v) * (p_s if b == y else 1 - p_s)
        mean = a * coef[:n_invariant].sum() + b * coef[n_invariant:].sum() + intercept
        total += probability * stats.norm.cdf(y * mean / noise)
    return total


def appendix_accuracy_by_quadrature(coef, intercept, p_s, p_v, n_invariant):
    """Accuracy for "appendix": adaptive quadrature over v, straight from the definition."""
    invariant, spurious = coef[:n_invariant].sum(), coef[n_invariant:].sum()
    noise = np.sqrt(np.sum(coef**2) + spurious**2)

    def right(v):  # density of v times the probability of a right prediction given v
        density = 0.5 * stats.norm.pdf(v - 1) + 0.5 * stats.norm.pdf(v + 1)
        total = 0.0
        for y, b in itertools.product(SIGNS, repeat=2):
            probability = (p_v if y * v > 0 else 1 - p_v) * (p_s if b == y else 1 - p_s)
            total += probability * stats.norm.cdf(y * (invariant * v + spurious * b + intercept) / noise)
        return density * total

    below = integrate.quad(right, -12, 0, epsabs=1e-12, epsrel=1e-12)[0]
    return below + integrate.quad(right, 0, 12, epsabs=1e-12, epsrel=1e-12)[0]


# -- the rows ------------------------------------------------------------------------------------------


def test_default_task():
    task = make_simulation(random_state=0)
    assert isinstance(task, Task)
    assert isinstance(task.loss, Binary)
    assert task.name == "simulation ps=(0.999,0.9),pv=0.8"
    train, test = task.train, task.test
    assert train.x.shape == (5000, 15)
    assert train.x.dtype == torch.float32
    assert train.y.shape == (5000,)
    assert train.y.dtype == torch.float32
    assert set(train.y.tolist()) == {0.0, 1.0}
    assert train.environment.dtype == torch.int64
    assert train.environment.tolist() == [0] * 2500 + [1] * 2500
    assert train.names == ("t<0.5", "t>=0.5")
    assert train.aux.shape == (5000, 1)
    assert train.aux.dtype == torch.float32
    torch.testing.assert_close(train.aux[:, 0].double(), (torch.arange(5000) + 0.5).double() / 5000)
    assert test.x.shape == (5000, 15)
    assert test.x.dtype == torch.float32
    assert test.y.dtype == torch.float32
    assert test.environment.dtype == torch.int64
    assert torch.bincount(test.environment).tolist() == [1250] * 4
    assert test.names == ("p_s=0.999", "p_s=0.8", "p_s=0.2", "p_s=0.001")
    assert test.aux.shape == (5000, 1) and 0 < test.aux.min() < 0.01 and 0.99 < test.aux.max() < 1


def test_card():
    card = make_simulation(100, (0.999, 0.7), 0.9, 3, 4, random_state=0, n_test=40).card
    assert card["limit"] == simulation_limit(0.9, 3)
    assert card["expected_worst"] == expected_worst(card["limit"], 10)
    assert card["licence"] == "generated"
    assert card["generator"] == "code"
    assert (card["p_s"], card["p_v"]) == ((0.999, 0.7), 0.9)
    assert (card["n_invariant"], card["n_spurious"]) == (3, 4)
    assert "ICML 2024" in card["citation"]
    assert "ZIN" in card["citation"]
    assert {"description", "source", "shift", "differs_from_paper"} <= set(card)
    json.dumps(card)  # records and reports store it
    other = make_simulation(100, (0.999, 0.7), 0.9, random_state=0, generator="appendix").card
    assert other["limit"] == simulation_limit(0.9, generator="appendix")
    assert other["differs_from_paper"] != card["differs_from_paper"]


@pytest.mark.parametrize(
    ("p_s", "n", "counts", "names"),
    [
        (0.9, 4, [4], ("0<=t<1",)),
        ((0.9,), 4, [4], ("0<=t<1",)),
        ((0.9, 0.8), 5, [2, 3], ("t<0.5", "t>=0.5")),  # t = 0.5 itself belongs to the later half
        ((0.9, 0.8, 0.7), 6, [2, 2, 2], ("t<0.333333", "0.333333<=t<0.666667", "t>=0.666667")),
        ([0.9, 0.8, 0.7, 0.9], 10, [2, 3, 2, 3], ("t<0.25", "0.25<=t<0.5", "0.5<=t<0.75", "t>=0.75")),
        (np.linspace(0.9, 0.7, 5), 5, [1] * 5, ("t<0.2", "0.2<=t<0.4", "0.4<=t<0.6", "0.6<=t<0.8", "t>=0.8")),
    ],
)
def test_segments_of_time(p_s, n, counts, names):
    train = make_simulation(n, p_s, random_state=0, n_test=4).train
    assert torch.bincount(train.environment).tolist() == counts
    assert train.names == names
    k = len(counts)
    edges = torch.arange(k + 1).double() / k
    t = train.aux[:, 0].double()
    assert (t >= edges[train.environment] - 1e-6).all()
    assert (t < edges[train.environment + 1] + 1e-6).all()


@pytest.mark.parametrize("generator", GENERATORS)
def test_agreement_rates_per_environment(generator):
    # 300 columns of a kind show their hidden number: theta up to noise of standard deviation 0.058.
    p_s, test_p_s, p_v = (0.95, 0.6, 0.3), (0.999, 0.1), 0.85
    task = make_simulation(6000, p_s, p_v, 300, 300, 1, n_test=4000, test_p_s=test_p_s, generator=generator)
    for rows, shares in ((task.train, p_s), (task.test, test_p_s)):
        y = signs(rows)
        invariant = rows.x[:, :300].double().mean(1).numpy()
        spurious = rows.x[:, 300:].double().mean(1).numpy()
        assert abs(y.mean()) < 4 / math.sqrt(len(y))
        known = np.abs(invariant) > 0.3  # five standard deviations: the sign of theta is certain
        for e, share in enumerate(shares):
            here = rows.environment.numpy() == e
            agree = np.sign(invariant[here & known]) == y[here & known]
            assert agree.mean() == pytest.approx(p_v, abs=4 * math.sqrt(p_v * (1 - p_v) / agree.size))
            if generator == "code":
                agree = np.sign(spurious[here]) == y[here]
                deviation = math.sqrt(share * (1 - share) / agree.size)
            else:  # u = b + N(0, 1), so E[y u] = 2 p_s - 1; (1 + y u) / 2 has mean p_s, variance below 1/2
                agree = (1 + y[here] * spurious[here]) / 2
                deviation = math.sqrt(0.51 / agree.size)
            assert agree.mean() == pytest.approx(share, abs=4 * deviation)
        if generator == "code":  # theta is a sign
            assert known.all()
            assert np.abs(np.abs(invariant) - 1).max() < 6 / math.sqrt(300)
        else:  # theta is v, a mixture of N(1, 1) and N(-1, 1): variance 2, and often near zero
            near = np.mean(np.abs(invariant) < 0.5)
            assert near == pytest.approx(stats.norm.cdf(-0.5) - stats.norm.cdf(-1.5), abs=0.02)
            assert np.var(invariant) == pytest.approx(2, abs=0.15)


@pytest.mark.parametrize("generator", GENERATORS)
def test_columns_given_the_signs(generator):
    # p_s = 1 and (for "code") p_v = 1 make the hidden signs visible: they are y.
    n = 40_000
    rows = make_simulation(n, 1.0, 1.0, 3, 4, 2, n_test=4, generator=generator).train
    x, y = rows.x.double().numpy(), signs(rows)
    tolerance = 5 * 3 / math.sqrt(n)
    spurious = np.cov((x[:, 3:] - y[:, None]).T)
    invariant = np.cov(x[:, :3].T)
    shared = 0.0 if generator == "code" else 1.0  # variance of the base that all columns of a kind share
    np.testing.assert_allclose(spurious, np.eye(4) + shared, atol=tolerance)
    np.testing.assert_allclose(invariant, np.eye(3) + 1 + shared, atol=tolerance)  # + 1: the sign itself
    # Given y, the two kinds are independent.
    for label in SIGNS:
        cross = np.cov(x[y == label].T)[:3, 3:]
        np.testing.assert_allclose(cross, 0, atol=tolerance)
    if generator == "code":
        np.testing.assert_allclose(np.cov((x[:, :3] - y[:, None]).T), np.eye(3), atol=tolerance)
        assert stats.kstest((x - y[:, None])[:5000].ravel(), "norm").pvalue > 1e-3


def equal(a, b):
    return torch.equal(a.x, b.x) and torch.equal(a.y, b.y) and torch.equal(a.environment, b.environment)


@pytest.mark.parametrize("generator", GENERATORS)
def test_reproducible_and_streams_are_apart(generator):
    def make(*args, **settings):
        return make_simulation(*args, **{"random_state": 3, "generator": generator, "n_test": 40, **settings})

    task = make(50)
    again = make(50)
    assert equal(task.train, again.train)
    assert equal(task.test, again.test)
    assert equal(task.train, make(50, random_state=np.random.default_rng(3)).train)
    assert equal(task.train, make(50, random_state=np.int64(3)).train)
    assert not equal(task.train, make(50, random_state=4).train)
    assert not equal(make(50, random_state=None).train, make(50, random_state=None).train)
    # The test side does not touch the training rows, and the other way round.
    assert equal(task.train, make(50, n_test=12, test_p_s=(0.5, 0.1, 0.2)).train)
    assert equal(task.test, make(70, p_s=(0.8, 0.7, 0.6)).test)
    assert not torch.equal(task.train.x[:40], task.test.x)
    # One seed pairs settings: the noise stays where the agreement changes.
    changed = make(50, p_s=(0.999, 0.5)).train
    assert torch.equal(task.train.x[:25], changed.x[:25])
    assert torch.equal(task.train.x[:, :5], changed.x[:, :5])
    assert not torch.equal(task.train.x[25:], changed.x[25:])


def test_given_generator_is_advanced():
    rng = np.random.default_rng(0)
    first, second = (make_simulation(20, random_state=rng, n_test=4) for _ in range(2))
    assert not equal(first.train, second.train)
    used = np.random.default_rng(0)
    used.random()
    assert not equal(first.train, make_simulation(20, random_state=used, n_test=4).train)


def test_global_random_state_is_left_alone():  # the legacy state is what must not move, hence NPY002 below
    before, before_torch = np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    make_simulation(20, n_test=4, random_state=0)
    make_simulation(20, n_test=4)
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before_torch)


def test_test_rows_split_as_equally_as_possible():
    task = make_simulation(10, n_test=11, random_state=0)
    assert torch.bincount(task.test.environment).tolist() == [3, 3, 3, 2]
    one = make_simulation(10, n_test=3, test_p_s=0.5, random_state=0)
    assert one.test.names == ("p_s=0.5",)


def test_extreme_probabilities():
    task = make_simulation(200, (1.0, 0.0), 1.0, 300, 300, 0, n_test=4)
    y, x = signs(task.train), task.train.x.double().numpy()
    assert (np.sign(x[:, :300].mean(1)) == y).all()
    spurious = np.sign(x[:, 300:].mean(1))
    assert (spurious[:100] == y[:100]).all()
    assert (spurious[100:] == -y[100:]).all()


# -- agreement as a function of time -------------------------------------------------------------------


@pytest.mark.parametrize("generator", GENERATORS)
def test_a_function_constant_by_segments_gives_the_rows_of_its_values(generator):
    values = np.array([0.999, 0.6, 0.3])
    settings = {"p_v": 0.9, "random_state": 2, "n_test": 40, "generator": generator}
    by_value = make_simulation(301, values, **settings)
    by_time = make_simulation(301, lambda t: values[np.floor(3 * t).astype(int)], n_segments=3, **settings)
    assert equal(by_value.train, by_time.train) and equal(by_value.test, by_time.test)
    assert torch.equal(by_value.train.aux, by_time.train.aux) and by_value.train.names == by_time.train.names
    np.testing.assert_allclose(by_time.card["p_s"], values, atol=1e-12)
    assert {k: v for k, v in by_time.card.items() if k not in ("p_s", "shift")} == {
        k: v for k, v in by_value.card.items() if k not in ("p_s", "shift")
    }


def test_segments_divide_the_same_rows():
    def drift(t):
        return 0.9 - 0.5 * t

    by_default, ten = (make_simulation(200, drift, random_state=0, **kw).train for kw in ({}, {"n_segments": 10}))
    assert torch.equal(by_default.x, ten.x) and torch.equal(by_default.y, ten.y)
    assert by_default.names == ("t<0.5", "t>=0.5") and torch.bincount(ten.environment).tolist() == [20] * 10
    one = make_simulation(200, drift, random_state=0, n_segments=np.int64(1))
    assert one.train.names == ("0<=t<1",) and one.card["p_s"] == pytest.approx((0.65,))


def test_agreement_follows_the_function():
    def wave(t):
        return 0.6 + 0.3 * np.sin(2 * np.pi * t)

    rows = make_simulation(40_000, wave, 0.8, 1, 100, 4, n_test=4, n_segments=2).train
    agree = np.sign(rows.x[:, 1:].double().mean(1).numpy()) == signs(rows)  # 100 columns show the sign
    t = rows.aux[:, 0].double().numpy()
    for low in np.arange(0, 1, 0.05):  # finer than the two environments
        here = (t >= low) & (t < low + 0.05)
        p = integrate.quad(wave, low, low + 0.05)[0] / 0.05
        assert agree[here].mean() == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / here.sum()))


def test_card_of_a_function():
    task = make_simulation(1000, lambda t: 0.9 - 0.2 * t, random_state=0, n_segments=4)
    assert task.card["p_s"] == pytest.approx((0.875, 0.825, 0.775, 0.725))
    assert "a function of time from 0.7001 to 0.8999" in task.card["shift"] and "4 equal segments" in task.card["shift"]
    assert task.name == "simulation ps=[0.7001..0.8999] in 4,pv=0.8"
    json.dumps(task.card)


def test_the_times_are_the_functions_own_copy():
    def careless(t):
        t *= 0  # would move the times of the rows
        return t + 0.9

    times = make_simulation(10, careless, random_state=0, n_test=4).train.aux[:, 0]
    torch.testing.assert_close(times, (torch.arange(10) + 0.5) / 10)


# -- the exact accuracy --------------------------------------------------------------------------------


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("p_v", [0.9, 0.35])
def test_population_accuracy_against_monte_carlo(generator, p_v):
    rng = np.random.default_rng(5)
    n_invariant, n_spurious, shares = 3, 4, (0.999, 0.7, 0.05)
    coef = rng.normal(size=(6, n_invariant + n_spurious))  # (R, D)
    intercept = rng.normal(size=6)  # (R,)
    rows = make_simulation(
        2, p_v=p_v, n_invariant=n_invariant, n_spurious=n_spurious, random_state=7, n_test=600_000,
        test_p_s=shares, generator=generator,
    ).test  # fmt: skip
    said = rows.x.double().numpy() @ coef.T + intercept > 0  # (N, R)
    right = said == (rows.y.numpy() > 0.5)[:, None]
    exact = population_accuracy(coef, intercept, shares, p_v, n_invariant, generator)  # (R, k)
    assert exact.shape == (6, 3)
    for e in range(3):
        sample = right[rows.environment.numpy() == e]
        deviation = np.sqrt(exact[:, e] * (1 - exact[:, e]) / len(sample))
        np.testing.assert_array_less(np.abs(sample.mean(0) - exact[:, e]), 4.5 * deviation)


@pytest.mark.parametrize(
    ("generator", "reference"),
    [("code", code_accuracy_by_sum), ("appendix", appendix_accuracy_by_quadrature)],
)
def test_population_accuracy_against_another_calculation(generator, reference):
    rng = np.random.default_rng(11)
    for case in range(8):
        n_invariant, n_spurious = rng.integers(1, 7, size=2)
        coef = rng.normal(size=n_invariant + n_spurious) * 10.0 ** rng.integers(-3, 3)
        intercept = [0.0, np.abs(coef).max() * rng.normal()][case % 2]
        p_s, p_v = rng.random(2)
        exact = population_accuracy(coef, intercept, p_s, p_v, int(n_invariant), generator)
        assert exact == pytest.approx(reference(coef, intercept, p_s, p_v, n_invariant), abs=1e-10)


@pytest.mark.parametrize(
    ("coef", "intercept"),
    [
        ([1.0, 1.0, 1.0], 1.0),  # b = -1 and the intercept cancel: shift 0
        ([2.0, 1.0, 0.0], 3.0),  # intercept = the sum over the invariant column: k_h = 0 with shift != 0
        ([2.0, 1.0, 0.0], -1.0),
        ([1.0, 0.0, 0.0], 0.0),
        ([1.0, 0.0, 0.0], 1.0),  # slope = shift
        ([0.0, 1.0, 0.0], 0.0),  # slope 0
        ([0.0, 1.0, 0.0], -1.0),  # slope 0 and shift 0
        ([-1.0, 2.0, -2.0], 0.0),  # spurious coefficients that cancel
    ],
)
def test_appendix_formula_where_its_terms_jump(coef, intercept):
    coef = np.array(coef)
    exact = population_accuracy(coef, intercept, 0.9, 0.8, 1, "appendix")
    assert exact == pytest.approx(appendix_accuracy_by_quadrature(coef, intercept, 0.9, 0.8, 1), abs=1e-10, rel=0)
    # and it is continuous there
    beside = intercept + np.array([-1e-9, 1e-9])
    near = population_accuracy(np.stack([coef, coef]), beside, 0.9, 0.8, 1, "appendix")
    np.testing.assert_allclose(near, exact, atol=1e-8)


@pytest.mark.parametrize("generator", GENERATORS)
def test_population_accuracy_shapes_and_tensors(generator):
    rng = np.random.default_rng(0)
    coef, intercept = rng.normal(size=(2, 3, 15)), rng.normal(size=(2, 3))
    both = population_accuracy(coef, intercept, (0.9, 0.2), 0.8, generator=generator)
    assert both.shape == (2, 3, 2)
    assert both.dtype == np.float64
    single = population_accuracy(coef, intercept, 0.2, 0.8, generator=generator)
    assert single.shape == (2, 3)
    np.testing.assert_array_equal(single, both[..., 1])
    assert population_accuracy(coef, intercept, [0.2], 0.8, generator=generator).shape == (2, 3, 1)
    alone = population_accuracy(coef[1, 2], intercept[1, 2], np.float64(0.2), 0.8, generator=generator)
    assert alone.shape == ()
    assert alone == pytest.approx(single[1, 2], abs=1e-15)
    assert population_accuracy(coef, 0.0, torch.tensor(0.2), 0.8, generator=generator).shape == (2, 3)
    tensors = torch.tensor(coef, requires_grad=True), torch.tensor(intercept, requires_grad=True)
    np.testing.assert_array_equal(population_accuracy(*tensors, (0.9, 0.2), 0.8, generator=generator), both)
    lists = population_accuracy(coef.tolist(), intercept.tolist(), (0.9, 0.2), 0.8, generator=generator)
    np.testing.assert_array_equal(lists, both)
    half = population_accuracy(torch.ones(15, dtype=torch.float16), torch.tensor(0), 0.2, 0.8)
    assert half == population_accuracy(np.ones(15), 0.0, 0.2, 0.8)


@pytest.mark.parametrize("generator", GENERATORS)
def test_population_accuracy_invariances(generator):
    rng = np.random.default_rng(1)
    coef, intercept, shares = rng.normal(size=(5, 15)), rng.normal(size=5), np.array([0.9, 0.3])
    base = population_accuracy(coef, intercept, shares, 0.8, generator=generator)
    for scale in (1e-300, 1e-3, 1e300):  # only the sign of f counts
        scaled = population_accuracy(scale * coef, scale * intercept, shares, 0.8, generator=generator)
        np.testing.assert_allclose(scaled, base, atol=1e-12)
    # -f is right where f is wrong; so is f where both agreements are turned round
    opposite = population_accuracy(-coef, -intercept, shares, 0.8, generator=generator)
    np.testing.assert_allclose(opposite, 1 - base, atol=1e-12)
    turned = population_accuracy(coef, intercept, 1 - shares, 1 - 0.8, generator=generator)
    np.testing.assert_allclose(turned, 1 - base, atol=1e-12)
    # without spurious coefficients (or columns) every environment is the same
    coef[:, 5:] = 0
    flat = population_accuracy(coef, intercept, shares, 0.8, generator=generator)
    np.testing.assert_allclose(flat[:, 0], flat[:, 1], atol=1e-14)
    none = population_accuracy(coef[:, :5], intercept, shares, 0.8, generator=generator)
    np.testing.assert_allclose(none, flat, atol=1e-14)


@pytest.mark.parametrize("generator", GENERATORS)
def test_constant_predictors_are_right_half_of_the_time(generator):
    coef = np.zeros((4, 15))
    intercept = np.array([0.0, 1.0, -1.0, 1e300])
    exact = population_accuracy(coef, intercept, (0.999, 0.001), 0.9, generator=generator)
    np.testing.assert_array_equal(exact, np.full((4, 2), 0.5))
    # an intercept that drowns the columns is constant too
    drowned = population_accuracy(np.full(15, 1e-300), 1e300, (0.999, 0.001), 0.9, generator=generator)
    np.testing.assert_allclose(drowned, 0.5, atol=1e-15)
    # and half is what the rule "f > 0 says 1" scores on drawn rows
    y = make_simulation(2, n_test=100_000, random_state=0, generator=generator).test.y
    assert (y == 0).float().mean() == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(100_000))


@pytest.mark.parametrize("generator", GENERATORS)
def test_diverged_runs_are_nan_and_alone(generator):
    coef, intercept = np.ones((5, 15)), np.zeros(5)
    coef[0, 3], coef[1, 12] = np.nan, np.inf
    intercept[2], intercept[3] = np.nan, -np.inf
    exact = population_accuracy(coef, intercept, (0.9, 0.1), 0.8, generator=generator)
    assert np.isnan(exact[:4]).all()
    np.testing.assert_array_equal(exact[4], population_accuracy(coef[4], 0.0, (0.9, 0.1), 0.8, generator=generator))
    zero = population_accuracy(np.zeros(15), np.nan, 0.9, 0.8, generator=generator)
    assert np.isnan(zero)


# -- the limit -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("generator", "p_v", "percent", "digits"),
    [
        ("code", 0.9, 88.99, 2),
        ("code", 0.8, 79.24, 2),
        ("appendix", 0.9, 83.1, 1),
        ("appendix", 0.8, 74.8, 1),
    ],
)
def test_published_limits(generator, p_v, percent, digits):
    assert round(100 * simulation_limit(p_v, generator=generator), digits) == percent


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("p_v", [0.0, 0.3, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("n_invariant", [1, 5])
def test_limit_is_the_accuracy_of_the_mean(generator, p_v, n_invariant):
    coef = np.zeros(n_invariant + 2)
    coef[:n_invariant] = 1 if p_v >= 0.5 else -1
    exact = population_accuracy(coef, 0.0, (0.0, 0.4, 1.0), p_v, n_invariant, generator)
    np.testing.assert_allclose(exact, simulation_limit(p_v, n_invariant, generator), atol=1e-14)


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("p_v", [0.8, 0.3])
def test_no_linear_invariant_predictor_is_better(generator, p_v):
    n_invariant = 3
    limit = simulation_limit(p_v, n_invariant, generator)
    rng = np.random.default_rng(0)
    coef, intercept = (
        rng.normal(size=(20_000, n_invariant)),
        rng.normal(size=20_000) * rng.integers(0, 2, 20_000),
    )
    assert population_accuracy(coef, intercept, 0.5, p_v, n_invariant, generator).max() <= limit + 1e-14

    def loss(w):
        return -population_accuracy(w[:-1], w[-1], 0.5, p_v, n_invariant, generator)

    found = max(-optimize.minimize(loss, rng.normal(size=n_invariant + 1), tol=1e-10).fun for _ in range(4))
    assert found == pytest.approx(limit, abs=1e-6)
    assert found <= limit + 1e-14


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("p_v", [0.9, 0.6, 0.2])
def test_limit_is_the_bayes_accuracy(generator, p_v):
    # Any predictor at all: the integral of max(p(m | y = 1), p(m | y = -1)) / 2 over the sufficient mean m.
    n = 5
    m = np.linspace(-8, 8, 16_001)
    if generator == "code":
        theta, weight = np.array(SIGNS), np.array([0.5, 0.5])
    else:
        theta = (np.arange(-4000, 4000) + 0.5) / 500  # midpoints, so that the jump at 0 lies between two
        weight = (stats.norm.pdf(theta - 1) + stats.norm.pdf(theta + 1)) / 2 / 500
        m = m[::20]
    density = stats.norm.pdf((m[:, None] - theta) * math.sqrt(n)) * math.sqrt(n) * weight  # (M, theta)
    positive = density @ np.where(theta > 0, p_v, 1 - p_v)  # p(m, y = 1)
    negative = density @ np.where(theta > 0, 1 - p_v, p_v)
    bayes = integrate.trapezoid(np.maximum(positive, negative), m)
    assert simulation_limit(p_v, n, generator) == pytest.approx(bayes, abs=1e-4)


@pytest.mark.parametrize("generator", GENERATORS)
def test_limit_bounds_the_worst_of_a_symmetric_pair(generator):
    # Predictors that read the spurious columns too: their average over p_s and 1 - p_s is no better.
    rng = np.random.default_rng(4)
    coef, intercept = rng.normal(size=(20_000, 15)), rng.normal(size=20_000)
    coef[:, :5] = np.abs(coef[:, :5]) * 3
    coef[:5000, 5:] *= 0.03
    intercept[:10_000] *= 0.01
    pair = population_accuracy(coef, intercept, (0.999, 0.001), 0.8, generator=generator)
    limit = simulation_limit(0.8, generator=generator)
    assert pair.mean(-1).max() <= limit + 1e-14
    assert pair.max() > limit  # one of the two alone can be better, so the bound says something


# -- the worst of several ------------------------------------------------------------------------------


@pytest.mark.parametrize(("p_v", "percent"), [(0.9, 88.07), (0.8, 78.05)])
def test_published_expected_worst(p_v, percent):
    assert round(100 * expected_worst(simulation_limit(p_v), 1250), 2) == percent
    assert round(100 * make_simulation(2, p_v=p_v, random_state=0).card["expected_worst"], 2) == percent


def worst_by_enumeration(accuracy, sizes):
    total = 0.0
    for counts in itertools.product(*(range(n + 1) for n in sizes)):
        probability = math.prod(
            math.comb(n, c) * accuracy**c * (1 - accuracy) ** (n - c) for n, c in zip(sizes, counts, strict=True)
        )
        total += probability * min(c / n for n, c in zip(sizes, counts, strict=True))
    return total


@pytest.mark.parametrize("accuracy", [0.0, 0.3, 0.89, 1.0])
@pytest.mark.parametrize(("n_rows", "k"), [(1, 1), (1, 4), (4, 3), (7, 4), (9, 1)])
def test_expected_worst_against_enumeration(accuracy, n_rows, k):
    exact = expected_worst(accuracy, n_rows, k)
    assert exact == pytest.approx(worst_by_enumeration(accuracy, [n_rows] * k), abs=1e-13)
    if k == 1:
        assert exact == pytest.approx(accuracy, abs=1e-14)


@pytest.mark.parametrize("n_test", [4, 9, 11, 14])
def test_expected_worst_in_the_card_of_unequal_environments(n_test):
    task = make_simulation(10, n_test=n_test, random_state=0)
    sizes = torch.bincount(task.test.environment).tolist()
    brute = worst_by_enumeration(simulation_limit(0.8), sizes)
    assert task.card["expected_worst"] == pytest.approx(brute, abs=1e-13)


def test_expected_worst_against_drawn_test_sets():
    # The whole chain once: the mean predictor's worst of four on drawn test sets of 4 x 50 rows.
    worst = []
    for seed in range(300):
        rows = make_simulation(2, p_v=0.9, random_state=seed, n_test=200).test
        right = ((rows.x[:, :5].sum(1) > 0) == (rows.y > 0.5)).double()
        worst.append(right.reshape(4, 50).mean(1).min().item())
    expected = expected_worst(simulation_limit(0.9), 50)
    assert np.mean(worst) == pytest.approx(expected, abs=4 * np.std(worst) / math.sqrt(300))


# -- errors and documentation --------------------------------------------------------------------------


def simulate(**settings):
    return lambda: make_simulation(**{"n_samples": 10, "n_test": 4, "random_state": 0, **settings})


SHARE = "a number from 0 to 1. Got"
COEF = np.ones(15)
OVER_TIME = "p_s, as a function of time, must take an array of times and return as many probabilities. Got"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (simulate(p_v=1.5), f"p_v must be a probability, {SHARE} 1.5. Give a share: 0.9, not 90."),
        (simulate(p_v=-0.1), f"p_v must be a probability, {SHARE} -0.1."),
        (simulate(p_v=math.nan), f"p_v must be a probability, {SHARE} nan."),
        (simulate(p_v="0.9"), f"p_v must be a probability, {SHARE} '0.9'."),
        (simulate(p_v=None), f"p_v must be a probability, {SHARE} None."),
        (simulate(p_s=90), f"p_s must be a probability, {SHARE} 90."),
        (simulate(p_s="0.9"), f"p_s must be a probability, {SHARE} '0.9'."),
        (simulate(p_s=(0.9, 80)), f"p_s[1] must be a probability, {SHARE} 80."),
        (simulate(p_s=[(0.9, 0.8)]), f"p_s[0] must be a probability, {SHARE} (0.9, 0.8)."),
        (simulate(p_s=()), "p_s must hold at least one probability. Got (). Give one per environment."),
        (simulate(p_s=lambda t: 2 * t), f"{OVER_TIME} 1.1 at t = 0.55, and 5 of 10 values outside [0, 1]. Give shares"),
        (simulate(p_s=lambda t: -t), f"{OVER_TIME} -0.05 at t = 0.05, and 10 of 10 values outside [0, 1]."),
        (simulate(p_s=lambda t: np.where(t > 0.9, math.nan, 0.5)), f"{OVER_TIME} nan at t = 0.95, and 1 of 10 values"),
        (simulate(p_s=lambda t: t + math.inf), f"{OVER_TIME} inf at t = 0.05, and 10 of 10"),
        (simulate(p_s=lambda t: 0.9), f"{OVER_TIME} shape () for times of shape (10,). For a constant give the number"),
        (simulate(p_s=lambda t: t[:3]), f"{OVER_TIME} shape (3,) for times of shape (10,)."),
        (simulate(p_s=lambda t: t[:, None]), f"{OVER_TIME} shape (10, 1) for times of shape (10,)."),
        (simulate(p_s=lambda t: 0.9 if t < 0.5 else 0.8), f"{OVER_TIME} ValueError: The truth value of an array"),
        (simulate(p_s=lambda: 0.9), f"{OVER_TIME} TypeError: "),
        (
            simulate(n_segments=3),
            "n_segments must be None where p_s holds values, one per segment of time. Got n_segments=3 and "
            "p_s=(0.999, 0.9). Drop n_segments, or give p_s as a function of time.",
        ),
        (simulate(p_s=0.9, n_segments=1), "Got n_segments=1 and p_s=0.9."),
        (simulate(p_s=np.cos, n_segments=0), "n_segments must be an integer of at least 1. Got 0."),
        (simulate(p_s=np.cos, n_segments=2.0), "n_segments must be an integer of at least 1. Got 2.0."),
        (simulate(p_s=np.cos, n_segments=11), "n_samples must be an integer of at least 11 (one row per segment of"),
        (simulate(test_p_s=(0.9, -1)), f"test_p_s[1] must be a probability, {SHARE} -1."),
        (simulate(test_p_s=[]), "test_p_s must hold at least one probability. Got []."),
        (
            simulate(test_p_s=(0.9, 0.9)),
            "test_p_s must hold different values, since they name the test environments. Got (0.9, 0.9). "
            "Drop the repeated ones",
        ),
        (
            simulate(n_samples=0),
            "n_samples must be an integer of at least 2 (one row per value of p_s). Got 0. "
            "Give a whole number without a decimal point, 2 or more.",
        ),
        (
            simulate(n_samples=2, p_s=(0.9,) * 3),
            "n_samples must be an integer of at least 3 (one row per value",
        ),
        (
            simulate(n_samples=5000.0),
            "n_samples must be an integer of at least 2 (one row per value of p_s). Got 5",
        ),
        (
            simulate(n_test=3),
            "n_test must be an integer of at least 4 (one row per value of test_p_s). Got 3.",
        ),
        (simulate(n_invariant=0), "n_invariant must be an integer of at least 1. Got 0."),
        (simulate(n_invariant=True), "n_invariant must be an integer of at least 1. Got True."),
        (simulate(n_spurious=-2), "n_spurious must be an integer of at least 1. Got -2."),
        (simulate(n_spurious="10"), "n_spurious must be an integer of at least 1. Got '10'."),
        (
            simulate(generator="apendix"),
            "generator must be one of ['code', 'appendix']. Got 'apendix'. Did you mean 'appendix'?",
        ),
        (simulate(generator="paper"), "Got 'paper'. Use 'code' for the data behind the published numbers."),
        (simulate(generator=None), "generator must be one of ['code', 'appendix']. Got None."),
        (
            simulate(random_state=-1),
            "random_state must be None, an integer of at least 0, or a numpy.random.Generator. Got -1. "
            "Use an integer for data that can be drawn again.",
        ),
        (simulate(random_state="seed"), "or a numpy.random.Generator. Got 'seed'."),
        (simulate(random_state=True), "or a numpy.random.Generator. Got True."),
        (lambda: simulation_limit(2), f"p_v must be a probability, {SHARE} 2."),
        (lambda: simulation_limit(0.9, 0), "n_invariant must be an integer of at least 1. Got 0."),
        (lambda: simulation_limit(0.9, generator="Code"), "Did you mean 'code'?"),
        (lambda: expected_worst(88.99, 1250), f"accuracy must be a probability, {SHARE} 88.99."),
        (lambda: expected_worst(0.9, 0), "n_rows must be an integer of at least 1. Got 0."),
        (lambda: expected_worst(0.9, 10, 0), "n_environments must be an integer of at least 1. Got 0."),
        (
            lambda: population_accuracy(np.ones(4), 0.0, 0.9, 0.8),
            "coef must have shape (..., D), the invariant columns first, with D at least n_invariant=5. "
            "Got shape (4,). Give the coefficients of all columns, or the n_invariant the data were drawn "
            "with.",
        ),
        (
            lambda: population_accuracy(1.0, 0.0, 0.9, 0.8),
            "coef must have shape (..., D), the invariant columns",
        ),
        (
            lambda: population_accuracy("w", 0.0, 0.9, 0.8),
            "coef must be numbers: an array, a tensor, or nested",
        ),
        (lambda: population_accuracy(COEF, [[1], [1, 2]], 0.9, 0.8), "intercept must be numbers: an array"),
        (
            lambda: population_accuracy(np.ones((3, 15)), np.ones((3, 1)), 0.9, 0.8),
            "intercept must be one number or have the shape of coef without its last axis, (3,). "
            "Got shape (3, 1). Reshape it to one number per run.",
        ),
        (lambda: population_accuracy(COEF, 0.0, 1.1, 0.8), f"p_s must be a probability, {SHARE} 1.1."),
        (lambda: population_accuracy(COEF, 0.0, [0.1, 7], 0.8), f"p_s[1] must be a probability, {SHARE} 7."),
        (lambda: population_accuracy(COEF, 0.0, 0.9, -1), f"p_v must be a probability, {SHARE} -1."),
        (
            lambda: population_accuracy(COEF, 0.0, 0.9, 0.8, 0),
            "n_invariant must be an integer of at least 1.",
        ),
        (
            lambda: population_accuracy(COEF, 0.0, 0.9, 0.8, 5, "x"),
            "generator must be one of ['code', 'appendix']",
        ),
    ],
)
def test_errors_say_what_to_do(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_docstring_examples():
    outcome = doctest.testmod(simulation)
    assert outcome.attempted > 0
    assert outcome.failed == 0
