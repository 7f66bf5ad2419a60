"""IRMv1 as a surrogate of IRM and as a TV-l2 model: and wrong formulas are noticed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import expit

from irmtv.lab.theory.surrogate import balancing_share, irmv1_is_tv_l2, zero_slope_may_be_a_maximum
from lab.theory.wrong import FAILED, authors_weights, square_outside, starting, without_the_measure_l2


@pytest.fixture(scope="module")
def maximum():
    return zero_slope_may_be_a_maximum()


@pytest.fixture(scope="module")
def surrogate():
    return irmv1_is_tv_l2()


# --- zero slope


def test_zero_slope_is_necessary_and_suffices_for_convex_risks_only(maximum):
    assert maximum.verdict == "holds under its condition"
    beyond = [c for c in maximum.comparisons if c.role == "beyond"]
    assert len(beyond) == 1 and not beyond[0].agrees
    assert beyond[0].left <= 0  # no w on the grid has a lower risk than the zero of the slope


def test_the_share_balances_the_slopes():
    """Against a finite difference of the risk at w = 1."""
    for right, wrong in ((0.5, 3.0), (0.8, 4.0), (2.0, 1.0)):
        p, h = balancing_share(right, wrong), 1e-5

        def risk(w, p=p, right=right, wrong=wrong):
            return p * expit(-w * right) + (1 - p) * expit(w * wrong)

        assert abs(risk(1 + h) - risk(1 - h)) / (2 * h) < 1e-9
        # a maximum where the wrong rows have the wider margin, else a minimum
        assert (risk(1.0) > risk(1.1)) == (right < wrong)


def test_margins_for_which_it_is_a_minimum():
    """Right by more than wrong: w = 1 is then the minimum, and the claim of a maximum fails."""
    found = zero_slope_may_be_a_maximum(margins=((3.0, 0.5), (4.0, 0.8)), data_sets=2)
    assert found.verdict == "does not hold as printed"
    assert starting(found, "largest |slope| of").agrees and not starting(found, "not sufficient: ").agrees


def half_and_half(right, wrong):
    return 0.5


def without_the_margin(right, wrong):
    pull = [expit(m) * expit(-m) for m in (right, wrong)]
    return pull[1] / (pull[0] + pull[1])


@pytest.mark.parametrize("share", [half_and_half, without_the_margin])
def test_a_wrong_share_is_noticed(share):
    found = zero_slope_may_be_a_maximum(share=share, data_sets=2)
    assert found.verdict in FAILED and not starting(found, "largest |slope| of").agrees


def test_a_convex_loss_is_noticed():
    def logistic(f, y):
        return torch.nn.functional.softplus((1 - 2 * y) * f)

    assert zero_slope_may_be_a_maximum(loss=logistic, data_sets=2).verdict in FAILED


def test_margins_must_be_positive():
    with pytest.raises(ValueError, match=r"margins must be a finite number above 0. Got -1.0"):
        zero_slope_may_be_a_maximum(margins=((0.5, -1.0),))


def test_the_figure_marks_the_maximum(maximum):
    left, right = maximum.draw().axes
    markers = [line for line in left.lines if list(line.get_xdata()) == [1]]
    curves = [line for line in left.lines if len(line.get_xdata()) > 100]
    tops = sorted(float(np.max(line.get_ydata())) for line in curves)
    assert sorted(float(m.get_ydata()[0]) for m in markers) == pytest.approx(tops)
    assert len(right.lines) == 6


# --- IRMv1 is TV-l2


def test_it_holds_for_the_uniform_measure_and_a_given_w(surrogate):
    assert surrogate.verdict == "holds under its condition"
    assert surrogate.error < 1e-12
    assert [c.agrees for c in surrogate.comparisons if c.role == "beyond"] == [False] * 2
    assert all("measure not uniform" in c.what for c in surrogate.comparisons if c.role == "beyond")
    assert starting(surrogate, "w free").role == "ours" and starting(surrogate, "w free").relation == "<"


def test_a_free_w_ends_at_erm(surrogate):
    least = starting(surrogate, "w free")
    assert least.left < least.right - 0.01
    excess = starting(surrogate, "excess")
    assert excess.left == pytest.approx(excess.right, rel=1e-4)


@pytest.mark.parametrize("wrong", [square_outside, without_the_measure_l2, authors_weights])
def test_a_wrong_penalty_is_noticed(wrong):
    found = irmv1_is_tv_l2(l2=wrong, scales=(1.0, 100.0))
    assert found.verdict in FAILED and not starting(found, "objective over").agrees


@pytest.mark.parametrize("measure", ["empirical", (1.0, 2.0, 3.0)])
def test_a_wrong_measure_is_noticed(measure):
    assert irmv1_is_tv_l2(measure=measure, scales=(1.0, 100.0)).verdict == "does not hold as printed"


def test_environments_of_one_size_have_one_measure():
    """The share of the rows is then uniform."""
    found = irmv1_is_tv_l2(rows=(200, 200, 200), scales=(1.0, 100.0))
    assert starting(found, "measure not uniform (share of the rows): objective").agrees


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"penalty_weight": 0.0}, "penalty_weight must be a finite number above 0"),
        ({"rows": (10, 20)}, "agreement and rows must have one value per environment"),
        ({"scales": (2.0, 10.0)}, "scales must rise from 1"),
    ],
)
def test_messages(settings, message):
    with pytest.raises(ValueError, match=message):
        irmv1_is_tv_l2(**settings)


def test_the_figure_shows_both_sides_and_the_way_to_erm(surrogate):
    first, second, third = surrogate.draw().axes
    line, dots = first.lines[0], first.lines[1]
    assert np.allclose(line.get_ydata()[::2], dots.get_ydata(), atol=1e-12)
    falling = second.lines[0].get_ydata()
    assert (np.diff(falling) < 0).all() and falling[-1] == pytest.approx(second.lines[1].get_ydata()[0], abs=1e-6)
    assert third.lines[0].get_ydata()[-1] == pytest.approx(third.lines[1].get_ydata()[0], abs=1e-3)
