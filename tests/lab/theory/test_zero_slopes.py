"""A penalty of 0 without a constant risk: the examples are what they are said to be."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from irmtv.lab.theory.zero_slopes import smooth_step, zero_penalty_without_constancy
from irmtv.objectives.vrex import risk_variance


@pytest.fixture(scope="module")
def found():
    return zero_penalty_without_constancy()


def test_the_printed_sentence_fails_and_what_is_true_in_place_of_it_holds(found):
    assert found.verdict == "does not hold as printed"
    agrees = {role: {c.agrees for c in found.comparisons if c.role == role} for role in ("claim", "beyond", "ours")}
    assert agrees == {"claim": {False}, "beyond": {False}, "ours": {True}}


def test_the_example_by_hand(found):
    first = found.comparisons[0]
    assert (first.left, first.right) == (0.5, 1.0)
    noise = next(c for c in found.comparisons if "noise" in c.what and c.role == "beyond")
    assert (noise.left, noise.right) == (0.625, 1.0)


def test_the_step_is_lipschitz_flat_at_both_ends_and_not_constant():
    w = torch.linspace(-1, 2, 3001, dtype=torch.float64)
    slope = np.gradient(smooth_step(w).numpy(), w.numpy())
    assert np.abs(slope).max() == pytest.approx(1.5, abs=1e-3)
    assert np.abs(slope[[1000, 2000]]).max() < 2e-3
    assert smooth_step(torch.tensor([0.0, 1.0])).tolist() == [0, 1]


@pytest.mark.parametrize("wrong", [lambda w: w, lambda w: w**2, torch.sin])
def test_an_example_with_slope_is_noticed(wrong):
    """It would not satisfy what the sentence asks."""
    assert zero_penalty_without_constancy(step=wrong).verdict == "not verified"


def test_a_penalty_that_sees_the_risks_is_told_from_tv():
    """V-REx's is not 0 there: the relation would hold with it, so nothing is written by hand."""
    found = zero_penalty_without_constancy(penalty=risk_variance)
    rows = [c for c in found.comparisons if c.role in ("claim", "beyond") and "minimax" not in c.what]
    assert len(rows) == 4 and all(c.agrees for c in rows)


def test_a_constant_weight_is_noticed():
    found = zero_penalty_without_constancy(weight=lambda worst, expected, penalty, cap: torch.ones_like(penalty))
    assert found.verdict == "not verified"


def test_equal_noise_is_no_example():
    """Where the noise is the same everywhere a penalty of 0 and equal risks go together."""
    found = zero_penalty_without_constancy(noise=(0.5, 0.5, 0.5))
    assert [c.agrees for c in found.comparisons if c.role == "beyond"] == [True]


def test_the_figure(found):
    two, hole, noise = found.draw().axes
    assert [line.get_ydata()[0] for line in two.lines[1:3]] == [0.5, 1.0]
    blocks = hole.lines[-2:]
    assert [set(np.asarray(b.get_ydata())) for b in blocks] == [{0.0}, {1.0}]
    curves = [line for line in noise.lines if len(line.get_xdata()) == 100]
    assert [min(c.get_ydata()) for c in curves] == pytest.approx([0.25, 1.0], abs=1e-3)


@pytest.mark.parametrize("noise", [(1.0,), (0.1, -0.2)])
def test_noise_must_be_variances(noise):
    with pytest.raises(ValueError, match="noise must be two or more variances"):
        zero_penalty_without_constancy(noise=noise)
