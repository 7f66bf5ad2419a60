"""TV-l1 allows more functions: and a wrong formula is noticed."""

from __future__ import annotations

import math

import pytest

from irmtv.theory.integrability import l1_allows_more
from theory.wrong import FAILED, authors_weights, square_inside, square_outside, without_the_measure_l1


def test_it_holds_on_a_finite_measure_only():
    found = l1_allows_more()
    assert found.verdict == "holds under its condition"
    assert [c.agrees for c in found.comparisons if c.role == "beyond"] == [False]


@pytest.mark.parametrize("wrong", [square_inside, without_the_measure_l1])
def test_a_wrong_l1_penalty_is_noticed(wrong):
    assert l1_allows_more(l1=wrong).verdict in FAILED


@pytest.mark.parametrize("wrong", [square_outside, authors_weights])
def test_a_wrong_l2_penalty_is_noticed(wrong):
    assert l1_allows_more(l2=wrong).verdict == "not verified"


def test_against_a_mild_exponent():
    """Below 1/2 both penalties converge, so the claim about l2 fails."""
    found = l1_allows_more(exponent=0.3)
    growth = next(c for c in found.comparisons if "growth" in c.what)
    assert not growth.agrees and math.isfinite(growth.left)


def test_the_figure_shows_both_penalties():
    penalties, shares = l1_allows_more(environments=(10, 100, 1000)).draw().axes
    assert len(penalties.lines) == 3 and len(shares.lines) == 2
    assert penalties.lines[0].get_ydata()[-1] < penalties.lines[2].get_ydata()[-1]
