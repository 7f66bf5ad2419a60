"""Rows with selection bias against their definition."""

from __future__ import annotations

import doctest
import json
import re

import numpy as np
import pytest
import torch
from scipy import stats

from irmtv.core.losses import Squared
from irmtv.core.types import Task
from irmtv.datasets import DATASETS, make_selection_bias, selection_bias


def equal(a, b):
    return torch.equal(a.x, b.x) and torch.equal(a.y, b.y) and torch.equal(a.environment, b.environment)


def noiseless(s):
    """m(S), written out for five stable features."""
    return 0.5 * s[:, 0] - s[:, 1] + 1.5 * s[:, 2] - 0.5 * s[:, 3] + s[:, 4] + s[:, 0] * s[:, 1] * s[:, 2]


def test_default_task():
    task = make_selection_bias(random_state=0)
    assert isinstance(task, Task)
    assert isinstance(task.loss, Squared)
    assert task.n_outputs == 1
    assert task.train.x.shape == (2000, 10)
    assert task.train.x.dtype == task.train.y.dtype == torch.float32
    assert task.train.names == ("r=1.5", "r=-1.1")
    assert task.train.environment.tolist() == [0] * 1900 + [1] * 100
    assert task.train.aux is None
    assert task.test.x.shape == (8000, 10)
    assert torch.bincount(task.test.environment).tolist() == [1000] * 8
    assert task.test.names[0] == "r=-3" and task.test.names[-1] == "r=3"


def test_target_and_its_noise():
    task = make_selection_bias((40_000,), (1.2,), random_state=1, n_test=8)
    x, y = task.train.x.double().numpy(), task.train.y.double().numpy()
    noise = y - noiseless(x[:, :5])  # selection looks at m(S), not at y: the noise is as it was
    assert noise.mean() == pytest.approx(0, abs=4 * 0.3 / 200)
    assert noise.std() == pytest.approx(0.3, abs=4 * 0.3 / np.sqrt(80_000))
    assert np.abs(np.corrcoef(np.column_stack([noise, x]).T)[0, 1:]).max() < 4.5 / 200


@pytest.mark.parametrize("r", [1.5, -1.1, -3.0])
def test_rows_are_kept_with_the_probability_of_the_definition(r):
    """Weighing the kept rows by one over their probability gives back the distribution before the selection."""
    task = make_selection_bias((60_000,), (r,), random_state=2, n_test=8)
    x = task.train.x.double().numpy()
    m, v = noiseless(x[:, :5]), x[:, -1]
    gap = m - np.sign(r) * v
    near = np.abs(gap) < 1  # where the weights are not too unequal
    z = np.random.default_rng(0).standard_normal((400_000, 6))
    before = noiseless(0.8 * z[:, :5] + 0.2 * z[:, 1:]) - np.random.default_rng(1).standard_normal(400_000)
    cuts = np.linspace(-1, 1, 11)
    expected = np.histogram(before, cuts)[0] / (np.abs(before) < 1).sum()
    weight = np.abs(r) ** (5 * np.abs(gap[near]))
    found = np.histogram(gap[near], cuts, weights=weight)[0] / weight.sum()
    np.testing.assert_allclose(found, expected, rtol=0.12)


def test_features_before_the_selection():
    """Hardly any selection: r near 1."""
    x = make_selection_bias((40_000,), (1 + 1e-9,), random_state=3, n_test=8).train.x.double().numpy()
    expected = np.eye(10)
    expected[:5, :5] = 0.68 * np.eye(5) + 0.16 * (np.eye(5, k=1) + np.eye(5, k=-1))
    np.testing.assert_allclose(np.cov(x.T), expected, atol=5 * 1.5 / 200)
    assert stats.kstest(x[:5000, -1], "norm").pvalue > 1e-3


def test_the_biased_feature_misleads_and_the_noise_does_not():
    task = make_selection_bias(random_state=4)
    x, y = task.test.x.double().numpy(), task.test.y.double().numpy()
    for e, name in enumerate(task.test.names):
        here = task.test.environment.numpy() == e
        design = np.column_stack([x[here], np.ones(here.sum())])
        coef = np.linalg.lstsq(design, y[here], rcond=None)[0]
        assert np.sign(coef[9]) == np.sign(float(name[2:])) and abs(coef[9]) > 0.15
        assert np.abs(coef[5:9]).max() < 0.1
        stable = np.linalg.lstsq(design[:, [0, 1, 2, 3, 4, 10]], y[here], rcond=None)[0]
        np.testing.assert_allclose(stable[:5], [0.6, -0.93, 1.4, -0.46, 0.9], atol=0.12)  # the same everywhere


def test_reproducible_and_streams_are_apart():
    def make(n=(50, 20), **settings):
        return make_selection_bias(n, **{"random_state": 3, "n_test": 40, **settings})

    task = make()
    assert equal(task.train, make().train) and equal(task.test, make().test)
    assert equal(task.train, make(random_state=np.random.default_rng(3)).train)
    assert not equal(task.train, make(random_state=4).train)
    assert not equal(make(random_state=None).train, make(random_state=None).train)
    assert equal(task.train, make(n_test=8).train)
    assert equal(task.test, make((70, 10)).test)


def test_sizes():
    task = make_selection_bias(30, 2.0, 3, 0, 0, n_test=7, test_r=(1.5, -2))
    assert task.train.x.shape == (30, 4)
    assert task.train.names == ("r=2",)
    assert torch.bincount(task.test.environment).tolist() == [4, 3]


def test_card_and_catalogue():
    card = make_selection_bias((30, 20), random_state=0, n_test=8).card
    assert card["r"] == (1.5, -1.1) and card["n_samples"] == (30, 20)
    assert {"description", "source", "licence", "shift", "citation"} <= set(card)
    json.dumps(card)
    assert DATASETS["selection-bias"].make is make_selection_bias


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"r": (1.5, 1.0)}, "r must hold different finite numbers below -1 or above 1"),
        ({"r": (1.5, 1.5)}, "Got (1.5, 1.5). Use 1.5, say, or (1.5, -1.1)."),
        ({"r": ()}, "r must hold different finite numbers"),
        ({"test_r": "3"}, "test_r must hold different finite numbers"),
        ({"test_r": (True, 2.0)}, "test_r must hold different finite numbers"),
        ({"n_samples": 100}, "n_samples must hold one number of rows per value of r, 2 for (1.5, -1.1). Got 100."),
        ({"n_samples": (100, 0)}, "n_samples must be an integer of at least 1 (one row per value of r). Got 0."),
        ({"n_stable": 2}, "n_stable must be an integer of at least 3 (the target has a product of three of them)."),
        ({"n_noise": -1}, "n_noise must be an integer of at least 0. Got -1."),
        ({"n_test": 7}, "n_test must be an integer of at least 8 (one row per value of test_r). Got 7."),
    ],
)
def test_errors_say_what_to_do(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make_selection_bias(**{"random_state": 0, **settings})


def test_docstring_examples():
    outcome = doctest.testmod(selection_bias)
    assert outcome.attempted > 0
    assert outcome.failed == 0
