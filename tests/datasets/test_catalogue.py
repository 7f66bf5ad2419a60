"""The data sets by name: what a spec may write, and what is known exactly."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

from irmtv import Task
from irmtv.datasets import DATASETS, make_simulation, population_accuracy


def test_the_simulation_is_in_the_catalogue():
    assert DATASETS["simulation"].make is make_simulation


@pytest.mark.parametrize("name", list(DATASETS))
def test_arguments_are_the_defaults_and_what_is_given(name):
    entry = DATASETS[name]
    signature = inspect.signature(entry.make).parameters
    assert "random_state" in signature
    defaults = entry.arguments({})
    assert defaults == {
        k: p.default
        for k, p in signature.items()
        if k != "random_state" and p.default is not inspect.Parameter.empty and p.default is not None
    }
    one = next(iter(defaults))
    assert entry.arguments({one: "other"}) == {**defaults, one: "other"}
    assert entry.arguments({}) == defaults  # nothing is remembered


def test_an_argument_that_asks_for_nothing_is_no_argument():
    """Keys of stored runs are made of the arguments: they must not change when `make` learns something new."""
    entry = DATASETS["simulation"]
    assert "n_segments" not in entry.arguments({})
    assert entry.arguments({"n_segments": 4})["n_segments"] == 4


def test_arguments_make_the_data_set():
    entry = DATASETS["simulation"]
    given = {"n_samples": 40, "p_s": (0.9, 0.6), "n_test": 20}
    a, b = entry.make(**entry.arguments(given), random_state=3), make_simulation(**given, random_state=3)
    assert isinstance(a, Task)
    assert torch.equal(a.train.x, b.train.x) and torch.equal(a.test.y, b.test.y)
    assert entry.arguments({})["test_p_s"] == (0.999, 0.8, 0.2, 0.001)  # keyword-only ones too


def test_exact_accuracy_by_name():
    rng = np.random.default_rng(0)
    coef, intercept = torch.as_tensor(rng.normal(size=(2, 3, 15))), torch.as_tensor(rng.normal(size=(2, 3)))
    exact = DATASETS["simulation"].population
    assert exact is not None
    by_default = exact(coef, intercept, {})
    assert by_default.shape == (2, 3, 4)
    np.testing.assert_array_equal(by_default, population_accuracy(coef, intercept, (0.999, 0.8, 0.2, 0.001), 0.8, 5))
    given = {"p_v": 0.9, "test_p_s": (0.7, 0.3), "n_invariant": 3, "generator": "appendix", "p_s": (0.5, 0.6)}
    expected = population_accuracy(coef, intercept, (0.7, 0.3), 0.9, 3, "appendix")
    np.testing.assert_array_equal(exact(coef, intercept, given), expected)


def test_exact_accuracy_is_what_many_rows_give():
    given = {"p_v": 0.9, "test_p_s": (0.9, 0.2), "n_invariant": 2, "n_spurious": 3, "n_samples": 10}
    coef, intercept = torch.tensor([1.0, 0.5, 0.3, 0.2, -0.1]), torch.tensor(0.2)
    test = DATASETS["simulation"].make(**given, n_test=40000, random_state=0).test
    right = ((test.x @ coef + intercept > 0) == (test.y > 0.5)).double()
    sampled = [float(right[test.environment == e].mean()) for e in range(2)]
    np.testing.assert_allclose(DATASETS["simulation"].population(coef, intercept, given), sampled, atol=0.012)
