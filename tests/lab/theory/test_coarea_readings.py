"""The coarea formula without a Lipschitz constant: steps, the Cantor function, and formulas that must not pass."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from irmtv.lab.theory.coarea import crossings
from irmtv.lab.theory.coarea_readings import (
    _boundaries,
    _climb,
    cantor,
    coarea_needs_lipschitz,
    coarea_piecewise_constant,
    iterate,
    on_plateaus,
)
from lab.theory.wrong import starting


@pytest.fixture(scope="module")
def blocky():
    return coarea_piecewise_constant()


@pytest.fixture(scope="module")
def singular():
    return coarea_needs_lipschitz()


def test_a_blocky_risk(blocky):
    assert blocky.verdict == "does not hold as printed"
    assert starting(blocky, "Proposition 3.6", "claim").agrees  # 0 = 0
    assert not starting(blocky, "section 2.2, total variation", "claim").agrees
    assert starting(blocky, "total variation", "ours").left == pytest.approx(1)  # every row changes sides once


def test_the_cantor_function_breaks_the_formula(singular):
    assert singular.verdict == "does not hold as printed"
    claim = starting(singular, "Cantor function", "claim")
    assert claim.left == 0 and claim.right == pytest.approx(1)
    assert [(c.role, c.agrees) for c in singular.comparisons] == [("claim", False)] * 2 + [("ours", True)] * 7
    assert starting(singular, "a step, total variation in place", "claim").left == pytest.approx(1)
    assert starting(singular, "sqrt(w)").left == pytest.approx(1) == starting(singular, "sqrt(w)").right


def cantor_by_self_similarity(w: Fraction, depth: int = 40) -> Fraction:
    """c(w) = c(3w) / 2 on [0, 1/3], 1/2 on [1/3, 2/3], 1/2 + c(3w - 2) / 2 on [2/3, 1]."""
    if w <= 0 or w >= 1 or depth == 0:
        return Fraction(int(w >= 1))
    if w <= Fraction(1, 3):
        return cantor_by_self_similarity(3 * w, depth - 1) / 2
    if w < Fraction(2, 3):
        return Fraction(1, 2)
    return Fraction(1, 2) + cantor_by_self_similarity(3 * w - 2, depth - 1) / 2


def test_cantor_against_its_self_similarity():
    k = np.arange(3**6 + 1)
    expected = [float(cantor_by_self_similarity(Fraction(int(i), 3**6))) for i in k]
    np.testing.assert_array_equal(cantor(k, 6)[0], expected)
    assert cantor(np.array([-5, 3**6 + 7]), 6)[0].tolist() == [0, 1]
    # 1/4 = 0.0202... in base 3, and c(1/4) = 0.0101... in base 2
    assert cantor(np.array([3**30 // 4]), 30)[0][0] == pytest.approx(1 / 3, abs=1e-8)


def test_gaps_have_their_lengths():
    k = 3 * np.arange(3**7) + 1
    for digits in (1, 2, 5):
        assert cantor(k, digits, 8)[1].mean() == pytest.approx((2 / 3) ** digits)


def test_approximations_are_continuous_and_converge():
    k = np.arange(3**8 + 1)
    for digits in (1, 3, 6):
        values = iterate(k, digits, 8)
        assert np.diff(values).min() >= 0 and values[0] == 0 and values[-1] == 1
        assert np.diff(values).max() == pytest.approx(1.5**digits / 3**8)
        assert np.abs(values - cantor(k, 8)[0]).max() <= 0.5**digits


def test_preimages_and_boundaries():
    plateaus = np.array([0.0, 2.0, 1.0])
    assert on_plateaus(plateaus, np.array([0.5, 1.0])).tolist() == [0, np.inf]
    assert _boundaries(plateaus, np.array([0.5, 1.5, 2.5])).tolist() == [1, 2, 0]


@pytest.mark.parametrize("width", [0.5, 0.01])
def test_climbs_have_equal_ends(width):
    assert _climb(np.array([0.1, 0.5 - width / 2, 0.5, 0.9]), width) == pytest.approx([0, 0, 0.5, 1])


def upwards_only(plateaus, levels, weight=None):
    above = plateaus[None, :] > levels[:, None]
    return (above[:, 1:] & ~above[:, :-1]).sum(1).astype(float)


def once_per_level(plateaus, levels, weight=None):
    return np.minimum(_boundaries(plateaus, levels), 1)


@pytest.mark.parametrize("wrong", [upwards_only, once_per_level])
def test_a_wrong_boundary_is_noticed(wrong):
    assert coarea_piecewise_constant(boundaries=wrong).verdict == "not verified"


@pytest.mark.parametrize("wrong", [_boundaries, lambda plateaus, levels: np.ones(len(levels))])
def test_a_wrong_preimage_is_noticed(wrong):
    assert coarea_piecewise_constant(preimages=wrong).verdict == "not verified"


@pytest.mark.parametrize(
    "wrong",
    [
        {"slope": lambda digits, gap: np.where(gap, 0.0, 3.0**digits)},
        {"slope": lambda digits, gap: np.full(gap.shape, 1.5**digits)},
        {"level_size": lambda values, levels, weight: 2 * crossings(values, levels)},
        {"level_size": lambda values, levels, weight: crossings(values, levels) * levels},
    ],
)
def test_a_wrong_slope_or_count_is_noticed(wrong):
    assert coarea_needs_lipschitz(depth=6, **wrong).verdict == "not verified"
    assert coarea_needs_lipschitz(depth=6).verdict == "does not hold as printed"


def test_other_sizes():
    assert coarea_piecewise_constant(rows=25, random_state=4).verdict == "does not hold as printed"


def test_the_figures(blocky, singular):
    curve, counts, prices = blocky.draw().axes
    assert len(curve.patches) == 1
    assert max(counts.lines[0].get_xdata()) >= 2 and max(counts.lines[1].get_xdata()) == 0
    assert np.ptp(prices.lines[0].get_ydata()) < 1e-9 and prices.lines[1].get_ydata()[-1] > 100
    functions, limit, readings = singular.draw().axes
    assert len(functions.lines) == 3
    assert limit.lines[2].get_ydata()[0] == 0 and limit.lines[3].get_ydata()[0] == pytest.approx(1)
    heights = [round(bar.get_height()) for bar in readings.patches]  # by reading: Lipschitz, step, Cantor
    assert heights == [1, 0, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: coarea_piecewise_constant(rows=3), "rows must be at least 10"),
        (lambda: coarea_needs_lipschitz(depth=20), "depth must be from 4 to 13"),
    ],
)
def test_messages(call, message):
    with pytest.raises(ValueError, match=message):
        call()
