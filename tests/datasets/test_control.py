"""The controls' rows against their definition, and that nothing can be gained on them."""

from __future__ import annotations

import doctest
import json
import math
import re

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from irmtv.core.losses import Binary, Squared
from irmtv.core.types import Task
from irmtv.datasets import DATASETS, control, make_control

LABELS = ["nothing", "label-noise", "feature-noise", "base-rate"]
KINDS = [*LABELS, "outcome-noise"]
NUMBERS = ["nothing", "base-rate", "outcome-noise"]
# by kind, over three environments: agreement of a with y, and standard deviation of the noise
AGREEMENT = dict.fromkeys(LABELS, (0.8,) * 3) | {"label-noise": (0.9, 0.8, 0.7)}
DEVIATION = dict.fromkeys(LABELS, (1.0,) * 3) | {"feature-noise": (1.0, 1.5, 2.0)}
RATE = dict.fromkeys(LABELS, (0.5,) * 3) | {"base-rate": (0.3, 0.5, 0.7)}
# of regressions: standard deviation of the noise, and intercept
NOISE = dict.fromkeys(NUMBERS, (1.0,) * 3) | {"outcome-noise": (0.5, 1.0, 1.5)}
INTERCEPT = dict.fromkeys(NUMBERS, (0.0,) * 3) | {"base-rate": (-0.5, 0.0, 0.5)}


def sides(task):
    """Training and test rows by environment: (x, y, code) in float64."""
    for rows in (task.train, task.test):
        x, y, code = rows.x.double().numpy(), rows.y.double().numpy(), rows.environment.numpy()
        for e in range(len(rows.names)):
            yield x[code == e], y[code == e], e


def equal(a, b):
    return torch.equal(a.x, b.x) and torch.equal(a.y, b.y) and torch.equal(a.environment, b.environment)


# -- the rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("differ", KINDS)
def test_default_task(differ):
    task = make_control(differ=differ, random_state=0)
    assert isinstance(task, Task)
    assert isinstance(task.loss, Squared if differ == "outcome-noise" else Binary)
    assert task.n_outputs == 1
    assert task.name == f"control {differ}"
    for rows in (task.train, task.test):
        assert rows.x.shape == (5000, 15)
        assert rows.x.dtype == torch.float32
        assert rows.y.shape == (5000,)
        assert rows.y.dtype == torch.float32
        assert differ == "outcome-noise" or set(rows.y.tolist()) == {0.0, 1.0}
        assert rows.environment.dtype == torch.int64
        assert rows.environment.tolist() == [0] * 2500 + [1] * 2500
        assert rows.names == ("t<0.5", "t>=0.5")
    assert task.train.aux.shape == (5000, 1)
    assert task.train.aux.dtype == torch.float32
    torch.testing.assert_close(task.train.aux[:, 0].double(), (torch.arange(5000) + 0.5).double() / 5000)
    assert task.test.aux is None


@pytest.mark.parametrize("differ", KINDS)
def test_sizes_and_segments(differ):
    task = make_control(10, differ, 2, 0, 4, 0, n_test=7)
    assert task.train.x.shape == (10, 2)
    assert task.test.x.shape == (7, 2)
    assert torch.bincount(task.train.environment).tolist() == [2, 3, 2, 3]
    assert torch.bincount(task.test.environment).tolist() == [2, 1, 2, 2]  # t = 1/2 belongs to the later half
    assert task.train.names == task.test.names == ("t<0.25", "0.25<=t<0.5", "0.5<=t<0.75", "t>=0.75")


@pytest.mark.parametrize("differ", LABELS)
def test_agreement_and_noise_per_environment(differ):
    # 300 informative columns show the sign: their mean is a up to noise of standard deviation 0.12 at most.
    task = make_control(6000, differ, 300, 3, 3, 1, n_test=4500)
    for x, y, e in sides(task):
        n, label = len(y), 2 * y - 1
        mean, p, sd = x[:, :300].mean(1), AGREEMENT[differ][e], DEVIATION[differ][e]
        assert y.mean() == pytest.approx(RATE[differ][e], abs=2 / math.sqrt(n))
        assert np.abs(np.abs(mean) - 1).max() < 6 * sd / math.sqrt(300)
        sign = np.sign(mean)
        agree = (sign == label).mean()
        assert agree == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / n))
        for value in (-1, 1):  # a agrees equally often with either label
            here = sign[label == value] == value
            assert here.mean() == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / len(here)))
        noise = x[:, :300] - sign[:, None]  # (n, 300)
        assert noise.mean() == pytest.approx(0, abs=4 * sd / math.sqrt(noise.size))
        assert noise.std() == pytest.approx(sd, abs=4 * sd / math.sqrt(2 * noise.size))
        assert stats.kstest(noise[:20].ravel() / sd, "norm").pvalue > 1e-3


@pytest.mark.parametrize("differ", LABELS)
def test_columns_given_the_label(differ):
    task = make_control(60_000, differ, 2, 2, 3, 2, n_test=3)
    for x, y, e in list(sides(task))[:3]:
        n, label = len(y), 2 * y - 1
        p, sd = AGREEMENT[differ][e], DEVIATION[differ][e]
        tolerance = 5 * 3 * sd**2 / math.sqrt(n)
        # cov(x): a has variance 1 - E[a]^2, the columns' noise is their own; E[x y] = E[a y] = 2 p - 1
        expected = np.eye(4)
        expected[:2, :2] = 1 - ((2 * p - 1) * (2 * RATE[differ][e] - 1)) ** 2 + sd**2 * np.eye(2)
        np.testing.assert_allclose(np.cov(x.T), expected, atol=tolerance)
        for value in (-1, 1):  # given the label, the columns' means do not depend on the share of the labels
            here = x[label == value]
            means = [value * (2 * p - 1)] * 2 + [0] * 2
            np.testing.assert_allclose(here.mean(0), means, atol=5 * (1 + sd) / math.sqrt(len(here)))


@pytest.mark.parametrize("differ", NUMBERS)
def test_regression_per_environment(differ):
    task = make_control(60_000, differ, 3, 2, 3, 3, n_test=45_000, regression=True)
    assert isinstance(task.loss, Squared)
    for x, y, e in sides(task):
        n, sd, b = len(y), NOISE[differ][e], INTERCEPT[differ][e]
        np.testing.assert_allclose(np.cov(x.T), np.eye(5), atol=5 * 1.5 / math.sqrt(n))
        design = np.column_stack([x, np.ones(n)])
        coef = np.linalg.lstsq(design, y, rcond=None)[0]
        np.testing.assert_allclose(coef, [0.5] * 3 + [0] * 2 + [b], atol=4.5 * sd / math.sqrt(n))
        residual = y - b - 0.5 * x[:, :3].sum(1)
        assert residual.mean() == pytest.approx(0, abs=4 * sd / math.sqrt(n))
        assert residual.std() == pytest.approx(sd, abs=4 * sd / math.sqrt(2 * n))
        assert stats.kstest(residual[:5000] / sd, "norm").pvalue > 1e-3


@pytest.mark.parametrize("differ", KINDS)
def test_noise_columns_say_nothing(differ):
    task = make_control(40_000, differ, 2, 5, random_state=4, n_test=40_000)
    for x, y, _ in sides(task):
        noise, n = x[:, 2:], len(y)
        np.testing.assert_allclose(np.cov(noise.T), np.eye(5), atol=5 * 1.5 / math.sqrt(n))
        others = np.column_stack([y, x[:, :2]])
        cross = np.corrcoef(noise.T, others.T)[:5, 5:]
        assert np.abs(cross).max() < 4.5 / math.sqrt(n)


@pytest.mark.parametrize("differ", KINDS)
def test_reproducible_and_streams_are_apart(differ):
    def make(n=50, **settings):
        return make_control(n, differ, **{"random_state": 3, "n_test": 40, **settings})

    task = make()
    again = make()
    assert equal(task.train, again.train)
    assert equal(task.test, again.test)
    assert equal(task.train, make(random_state=np.random.default_rng(3)).train)
    assert equal(task.train, make(random_state=np.int64(3)).train)
    assert not equal(task.train, make(random_state=4).train)
    assert not equal(make(random_state=None).train, make(random_state=None).train)
    assert equal(task.train, make(n_test=12).train)
    assert equal(task.test, make(70).test)
    assert not torch.equal(task.train.x[:40], task.test.x)


def test_kinds_with_labels_are_paired():
    plain, label, feature, rate = (make_control(40, differ, random_state=0, n_test=4).train for differ in LABELS)
    assert torch.equal(plain.y, label.y)
    assert torch.equal(plain.y, feature.y)
    assert torch.equal(plain.x[:20], feature.x[:20])  # the first environments are alike
    assert torch.equal(plain.x[:, 5:], label.x[:, 5:])
    assert not torch.equal(plain.x[20:], feature.x[20:])
    assert torch.equal(plain.x[:, 5:], rate.x[:, 5:])
    assert (rate.y <= plain.y)[:20].all() and (rate.y >= plain.y)[20:].all()


def test_regressions_are_paired():
    plain, rate, noise = (
        make_control(40, differ, random_state=0, n_test=4, regression=True).train for differ in NUMBERS
    )
    assert torch.equal(plain.x, rate.x) and torch.equal(plain.x, noise.x)
    torch.testing.assert_close(rate.y - plain.y, torch.tensor([-0.5] * 20 + [0.5] * 20))


@pytest.mark.parametrize(("differ", "number"), [("nothing", False), ("base-rate", False), ("outcome-noise", True)])
def test_regression_by_default_is_outcome_noise_alone(differ, number):
    plain, asked = (
        make_control(20, differ, random_state=0, n_test=4, **given) for given in ({}, {"regression": number})
    )
    assert equal(plain.train, asked.train)
    assert isinstance(plain.loss, Squared if number else Binary)


def test_given_generator_is_advanced():
    rng = np.random.default_rng(0)
    first, second = (make_control(20, random_state=rng, n_test=4) for _ in range(2))
    assert not equal(first.train, second.train)


def test_global_random_state_is_left_alone():  # the legacy state is what must not move, hence NPY002 below
    before, before_torch = np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    for differ in KINDS:
        make_control(20, differ, n_test=4)
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before_torch)


# -- nothing to gain -----------------------------------------------------------------------------------


@pytest.mark.parametrize("differ", LABELS)
def test_limits_are_reached_by_the_sum_and_by_no_fit(differ):
    task = make_control(2, differ, 5, 3, 2, 5, n_test=100_000)
    for x, y, e in list(sides(task))[2:]:
        limit = task.card["limits"][e]
        tolerance = 4 * math.sqrt(limit * (1 - limit) / len(y))
        right = (x[:, :5].sum(1) > 0) == (y > 0.5)
        assert right.mean() == pytest.approx(limit, abs=tolerance)
        # the linear discriminant of this environment alone: the same direction, and no better without an intercept
        direction = np.linalg.solve(np.cov(x.T), x[y > 0.5].mean(0) - x[y < 0.5].mean(0))
        best = np.array([1.0] * 5 + [0.0] * 3)
        assert direction @ best / (np.linalg.norm(direction) * np.linalg.norm(best)) > 0.995
        assert ((x @ direction > 0) == (y > 0.5)).mean() < limit + tolerance


@pytest.mark.parametrize(
    ("differ", "limits"), [("outcome-noise", (0.25, 2.25)), ("base-rate", (1.25, 1.25)), ("nothing", (1.0, 1.0))]
)
def test_limits_of_the_regression(differ, limits):
    task = make_control(2, differ, n_environments=2, random_state=6, n_test=100_000, regression=True)
    assert task.card["limits"] == limits
    for x, y, e in list(sides(task))[2:]:
        error = np.mean((y - 0.5 * x[:, :5].sum(1)) ** 2)
        assert error == pytest.approx(task.card["limits"][e], rel=4 * math.sqrt(2 / len(y)))


def worst_of_a_threshold(cut, scale):
    """Worst accuracy and worst cross-entropy over base rates 0.3 and 0.7 of the logit scale (m - cut), by integrals."""
    m, step = np.linspace(-25, 25, 20_001, retstep=True)  # the sum of five columns
    given = {
        y: 0.8 * stats.norm.pdf(m, 5 * y, math.sqrt(5)) + 0.2 * stats.norm.pdf(m, -5 * y, math.sqrt(5)) for y in (-1, 1)
    }
    right = {y: step * given[y] @ (y * (m - cut) > 0) for y in (-1, 1)}
    loss = {y: step * given[y] @ np.logaddexp(0, -y * scale * (m - cut)) for y in (-1, 1)}
    rates = (0.3, 0.7)
    return min(r * right[1] + (1 - r) * right[-1] for r in rates), max(r * loss[1] + (1 - r) * loss[-1] for r in rates)


def test_no_threshold_is_better_in_the_worst_base_rate_than_that_of_erm():
    limit = make_control(2, "base-rate", n_test=2, random_state=0).card["limits"]
    assert limit[0] == limit[1]
    at_zero = [worst_of_a_threshold(0, scale) for scale in (0.1, 0.3, 1.0)]
    assert all(accuracy == pytest.approx(limit[0], abs=1e-3) for accuracy, _ in at_zero)
    for cut in (-4, -1, 1, 4):
        for (accuracy, loss), scale in zip(at_zero, (0.1, 0.3, 1.0), strict=True):
            other = worst_of_a_threshold(cut, scale)
            assert other[0] < accuracy - 1e-3
            assert other[1] > loss + 1e-3


@pytest.mark.parametrize("regression", [False, True])
def test_base_rate_erm_is_the_sum_and_flat_in_every_environment(regression):
    task = make_control(60_000, "base-rate", 5, 3, 3, 7, n_test=3, regression=regression)
    x, y, code = task.train.x.double().numpy(), task.train.y.double().numpy(), task.train.environment.numpy()
    design = np.column_stack([x, np.ones(len(y))])
    link = (lambda f: f) if regression else (lambda f: 1 / (1 + np.exp(-f)))
    weights = np.zeros(9)
    for _ in range(8):  # Newton's steps, of the whole data: ERM
        mean = link(design @ weights)
        curvature = 1 if regression else mean * (1 - mean)
        weights += np.linalg.solve(
            design.T @ (design * np.broadcast_to(curvature, len(y))[:, None]), design.T @ (y - mean)
        )
    noise = 6 / math.sqrt(len(y))
    np.testing.assert_allclose(weights[:5] / weights[:5].mean(), 1, atol=4 * noise)
    np.testing.assert_allclose(weights[5:], 0, atol=2 * noise)  # the intercept, too
    residual = y - link(design @ weights)
    for e, sign in enumerate([-1, 0, 1]):
        here = code == e
        assert abs(residual[here].mean()) < 2 * noise if sign == 0 else sign * residual[here].mean() > 0.1
        np.testing.assert_allclose(x[here].T @ residual[here] / here.sum(), 0, atol=4 * noise)  # slopes in w


@pytest.mark.parametrize(("differ", "ratio"), [("nothing", 1.0), ("label-noise", 2.83), ("feature-noise", 1.52)])
def test_best_scale_of_the_logit_differs_as_the_docstring_says(differ, ratio):
    card = make_control(2, differ, n_test=2, random_state=0).card
    m = np.linspace(-60, 60, 20_001)  # the sum of five columns, given y = 1; y = -1 mirrors it

    def best(p, sd):
        width = sd * math.sqrt(5)
        density = p * stats.norm.pdf(m, 5, width) + (1 - p) * stats.norm.pdf(m, -5, width)
        return optimize.minimize_scalar(
            lambda scale: density @ np.logaddexp(0, -scale * m), bounds=(0, 3), method="bounded"
        ).x

    first, last = map(best, card["agreement"], card["deviation"])
    assert first / last == pytest.approx(ratio, abs=0.01)


# -- the card, the catalogue, errors and documentation -------------------------------------------------


@pytest.mark.parametrize("differ", KINDS)
def test_card(differ):
    card = make_control(100, differ, 3, 4, 3, 0, n_test=40).card
    assert card["differ"] == differ
    assert (card["n_informative"], card["n_noise"], card["n_environments"]) == (3, 4, 3)
    assert (card["n_samples"], card["n_test"]) == (100, 40)
    assert {"description", "source", "licence", "shift"} <= set(card)
    assert "is the same in all environments" in card["invariance"]
    assert ("may rightly reject" in card["invariance"]) == (differ in ("label-noise", "feature-noise"))
    assert len(card["limits"]) == 3
    if differ == "outcome-noise":
        assert card["deviation"] == (0.5, 1.0, 1.5)
        assert "agreement" not in card
    else:
        assert card["agreement"] == pytest.approx(AGREEMENT[differ])
        assert card["base_rate"] == pytest.approx(RATE[differ])
        assert card["deviation"] == pytest.approx(DEVIATION[differ])
    json.dumps(card)  # records and reports store it


def test_shifts_are_told_apart():
    cards = [make_control(4, differ, n_test=4).card for differ in KINDS]
    cards.append(make_control(4, "base-rate", n_test=4, regression=True).card)
    assert len({card["shift"] for card in cards}) == len(cards)
    assert "intercept" in cards[-1]["shift"]
    assert cards[-1]["intercept"] == (-0.5, 0.5)


def test_catalogue():
    entry = DATASETS["control"]
    assert entry.make is make_control
    assert entry.population is None
    defaults = {
        "n_samples": 5000,
        "differ": "nothing",
        "n_informative": 5,
        "n_noise": 10,
        "n_environments": 2,
        "n_test": 5000,
    }
    assert entry.arguments({}) == defaults
    assert entry.arguments({"differ": "label-noise"}) == {**defaults, "differ": "label-noise"}


KNOWN = "differ must be one of ['nothing', 'label-noise', 'feature-noise', 'outcome-noise', 'base-rate']. Got"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"differ": "lable-noise"}, f"{KNOWN} 'lable-noise'. Did you mean 'label-noise'?"),
        ({"differ": "feature_noise"}, "Did you mean 'feature-noise'?"),
        ({"differ": "Nothing"}, "Did you mean 'nothing'?"),
        ({"differ": "xyz"}, f"{KNOWN} 'xyz'. Use 'nothing' for environments that are all alike."),
        ({"differ": None}, f"{KNOWN} None."),
        ({"differ": np.array(["nothing", "x"])}, KNOWN),
        ({"differ": "base_rate"}, "Did you mean 'base-rate'?"),
        (
            {"differ": "label-noise", "regression": True},
            "regression must be None or False for differ='label-noise'. Got True. Leave it out, or use 'nothing'",
        ),
        (
            {"differ": "outcome-noise", "regression": False},
            "regression must be None or True for differ='outcome-noise'. Got False.",
        ),
        ({"regression": "yes"}, "regression must be None, False or True for differ='nothing'. Got 'yes'."),
        ({"n_informative": 0}, "n_informative must be an integer of at least 1. Got 0."),
        ({"n_noise": -1}, "n_noise must be an integer of at least 0. Got -1."),
        ({"n_noise": 1.0}, "n_noise must be an integer of at least 0. Got 1.0."),
        (
            {"n_environments": 1},
            "n_environments must be an integer of at least 2 (a control compares environments). Got 1.",
        ),
        (
            {"n_samples": 2, "n_environments": 3},
            "n_samples must be an integer of at least 3 (one row per environment). Got 2.",
        ),
        ({"n_samples": True}, "n_samples must be an integer of at least 2 (one row per environment). Got True."),
        ({"n_test": 1}, "n_test must be an integer of at least 2 (one row per environment). Got 1."),
        ({"random_state": -1}, "random_state must be None, an integer of at least 0, or a numpy.random.Generator."),
        ({"random_state": "seed"}, "or a numpy.random.Generator. Got 'seed'."),
    ],
)
def test_errors_say_what_to_do(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make_control(**{"n_samples": 10, "n_test": 4, "random_state": 0, **settings})


def test_docstring_examples():
    outcome = doctest.testmod(control)
    assert outcome.attempted > 0
    assert outcome.failed == 0
