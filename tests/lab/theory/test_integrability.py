"""TV-l1 allows more functions: and a wrong formula is noticed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from irmtv.lab.theory.integrability import _largest_ratio, _one_steep, l1_allows_more
from irmtv.objectives.irm_tv_l1 import tv_l1
from irmtv.objectives.irm_tv_l2 import tv_l2
from lab.theory.wrong import (
    authors_weights,
    row,
    square_inside,
    square_outside,
    without_the_measure_l1,
    without_the_measure_l2,
)


def test_a_finite_measure_is_needed_and_not_enough():
    found = l1_allows_more()
    assert found.verdict == "does not hold as printed"
    assert [c.agrees for c in found.comparisons if c.role == "beyond"] == [False]
    (strictly,) = [c for c in found.comparisons if c.role == "claim" and not c.agrees]
    assert strictly.what.startswith("10 environments") and strictly.left == pytest.approx(10)
    assert "no slopes were found with a ratio above 10.0000" in found.meaning


@pytest.mark.parametrize("count", [2, 7])
def test_no_slopes_exceed_the_bound(count):
    """E S^2 <= n (E|S|)^2: a million random slopes, some with few that are not 0; the search finds the bound."""
    rng = np.random.default_rng(0)
    slope = rng.standard_cauchy((1_000_000 // count, count)) * (rng.random((1_000_000 // count, count)) < 0.4)
    mean = np.abs(slope).mean(-1)
    ratio = (slope**2).mean(-1)[mean > 0] / mean[mean > 0] ** 2
    assert ratio.max() <= count * (1 + 1e-12)
    assert _largest_ratio(count, tv_l1, tv_l2) == pytest.approx(count, rel=1e-9)
    assert _one_steep(count, tv_l1, tv_l2) == pytest.approx(count, rel=1e-12)


@pytest.mark.parametrize("wrong", [square_inside, without_the_measure_l1])
def test_a_wrong_l1_penalty_is_noticed(wrong):
    found = l1_allows_more(l1=wrong)
    assert found.verdict == "not verified" and not row(found, "largest l2 / l1 penalty on n").agrees


@pytest.mark.parametrize("wrong", [square_outside, authors_weights, without_the_measure_l2])
def test_a_wrong_l2_penalty_is_noticed(wrong):
    assert l1_allows_more(l2=wrong).verdict == "not verified"


def test_against_a_mild_exponent():
    """Below 1/2 both penalties converge, so the claim about l2 fails."""
    found = l1_allows_more(exponent=0.3)
    growth = next(c for c in found.comparisons if "growth" in c.what)
    assert not growth.agrees and math.isfinite(growth.left)


def test_the_figure_shows_both_penalties():
    penalties, shares, finite = l1_allows_more(environments=(10, 100, 1000)).draw().axes
    assert len(penalties.lines) == 3 and len(shares.lines) == 2
    assert penalties.lines[0].get_ydata()[-1] < penalties.lines[2].get_ydata()[-1]
    np.testing.assert_allclose(finite.lines[1].get_ydata(), finite.lines[0].get_ydata(), rtol=1e-6)
