"""The optima of the model with lambda_Phi, and where descent ends: wrong formulas are noticed."""

from __future__ import annotations

import numpy as np
import pytest

from irmtv.lab.theory.adaptive_weight import DETACHED, detached_weight_stops_short, optima_agree
from irmtv.objectives.lambda_phi import lambda_phi
from lab.theory.wrong import not_squared, over_the_root_of_the_penalty, row, with_the_mean


@pytest.fixture(scope="module")
def agree():
    return optima_agree()


@pytest.fixture(scope="module")
def detached():
    return detached_weight_stops_short()


def half_of_it(worst, expected, penalty, cap):
    return lambda_phi(worst, expected, penalty, cap) / 2


# ---- item 3 ----


def test_the_optima_agree_wherever_lambda_phi_exists(agree):
    assert agree.verdict == "does not hold as printed"
    (broken,) = [c for c in agree.comparisons if not c.agrees]
    assert broken.role == "claim" and broken.what.startswith("half turn")
    # at Phi = pi the angles are half a turn and a whole one; at the ends of the grid 2 Phi is 1 away from a whole one
    assert broken.left == 1 and broken.right == pytest.approx((1 + np.cos(1)) / 2, abs=1e-12)


def test_the_optima_are_the_known_ones(agree):
    """Double well: R is equal at w = 0.8 and 1.25, (0.64 + 1.5625) Phi^2 = 2. Flat bottom: 0.6 / 0.8 to 1.4 / 1.25."""
    wells, flat, _ = agree.draw().axes
    wells_at = np.asarray(wells.lines[3].get_xdata())
    np.testing.assert_allclose(np.abs(wells_at), np.sqrt(2 / (0.8**2 + 1.25**2)), atol=0.008)
    assert len(wells_at) == 2 and wells_at.sum() == pytest.approx(0, abs=1e-12)
    flat_at = flat.lines[3].get_xdata()
    assert flat_at.min() == pytest.approx(0.75, abs=0.005) and flat_at.max() == pytest.approx(1.12, abs=0.005)


@pytest.mark.parametrize("wrong", [with_the_mean, over_the_root_of_the_penalty, half_of_it])
def test_a_wrong_lambda_phi_has_other_optima(wrong):
    found = optima_agree(weight=wrong)
    assert found.verdict == "not verified" and not row(found, "Phi of these families").agrees


def test_any_penalty_that_is_positive_gives_the_same_optima():
    """The quotient cancels the penalty: what the penalty is plays no part in item 3."""
    found = optima_agree(penalty=not_squared)
    assert [c.what for c in found.comparisons if not c.agrees] == [
        "half turn: worst risk at the model's optimum, where all slopes are 0"
    ]
    assert row(found, "the constant 1").agrees


def test_the_models_curve_is_the_worst_risk(agree):
    for axes in agree.draw().axes[:2]:
        mean, worst, model, optima = (np.asarray(line.get_ydata()) for line in axes.lines)
        np.testing.assert_allclose(model, worst, atol=1e-12)
        assert (mean <= worst + 1e-12).all()
        np.testing.assert_allclose(optima, worst.min(), atol=1e-9)


def test_too_coarse_a_grid_is_refused():
    with pytest.raises(ValueError, match=r"points must be at least 41.*Got 10"):
        optima_agree(points=10)


# ---- how a gradient gets there ----


def test_differentiated_it_arrives_and_held_fixed_it_does_not(detached):
    assert detached.verdict == "holds"
    assert [c.role for c in detached.comparisons].count("claim") == 1
    excess = next(c for c in detached.comparisons if "held fixed" in c.what and c.relation == ">")
    assert excess.left == pytest.approx((DETACHED - 1) ** 2, abs=1e-6)


def test_the_closed_form_of_the_fixed_point():
    """2 Phi - 3 + 2 (Phi - 1) / Phi changes sign there, and nowhere else between 1 and 2."""
    phi = np.linspace(1, 2, 100_001)
    gradient = 2 * phi - 3 + 2 * (phi - 1) / phi
    crossing = phi[1:][np.diff(np.sign(gradient)) != 0]
    assert len(crossing) == 1 and crossing[0] == pytest.approx(DETACHED, abs=2e-5)


@pytest.mark.parametrize("wrong", [with_the_mean, over_the_root_of_the_penalty, half_of_it])
def test_a_wrong_weight_ends_elsewhere(wrong):
    assert detached_weight_stops_short(steps=400, weight=wrong).verdict == "not verified"


def held_fixed(worst, expected, penalty, cap):
    return expected + lambda_phi(worst.detach(), expected.detach(), penalty.detach(), cap) * penalty


def mean_risk_only(worst, expected, penalty, cap):
    return expected


@pytest.mark.parametrize("wrong", [held_fixed, mean_risk_only])
def test_an_objective_that_is_not_the_worst_risk_is_noticed(wrong):
    found = detached_weight_stops_short(steps=400, exact=wrong)
    assert found.verdict == "does not hold as printed"


def test_another_penalty_ends_elsewhere():
    assert detached_weight_stops_short(steps=400, penalty=not_squared).verdict == "not verified"


def test_the_figure(detached):
    risks, paths = detached.draw().axes
    assert risks.lines[4].get_data()[0][0] == 1
    np.testing.assert_allclose(risks.lines[5].get_xdata(), DETACHED, atol=1e-4)
    ends = [line.get_ydata()[-1] for line in paths.lines[:8]]
    np.testing.assert_allclose(ends[::2], DETACHED, atol=1e-4)
    np.testing.assert_allclose(ends[1::2], 1, atol=0.01)


@pytest.mark.parametrize("starts", [(), (0.0, 1.0)])
def test_starts_must_be_positive(starts):
    with pytest.raises(ValueError, match="starts must be one or more positive numbers"):
        detached_weight_stops_short(starts=starts)
