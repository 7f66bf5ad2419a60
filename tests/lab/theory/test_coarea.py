"""The coarea formula in closed form: counting, contours, orders, and formulas that must not pass."""

from __future__ import annotations

import numpy as np
import pytest

from irmtv.lab.theory.coarea import between_turns, coarea_1d, coarea_2d, contour_lengths, crossings, level_side
from lab.theory.wrong import FAILED

SMALL = (16, 32, 64)


@pytest.fixture(scope="module")
def line():
    return coarea_1d()


@pytest.fixture(scope="module")
def plane():
    return coarea_2d()


def test_one_dimension_holds_for_lebesgues_measure(line):
    assert line.verdict == "holds under its condition"
    assert line.error < 1e-4
    # another density: the plain count fails, the weighted one does not
    assert [c.role for c in line.comparisons if not c.agrees] == ["beyond"]


def test_two_dimensions_hold(plane):
    assert plane.verdict == "holds"
    assert plane.error < 1e-3


def test_counting_by_brute_force():
    rng = np.random.default_rng(0)
    values, levels, weight = rng.normal(size=40), rng.normal(size=25), rng.random(39)
    cut = [(values[:-1] < g) != (values[1:] < g) for g in levels]
    np.testing.assert_allclose(crossings(values, levels), [c.sum() for c in cut])
    np.testing.assert_allclose(crossings(values, levels, weight), [weight[c].sum() for c in cut], atol=1e-12)


def test_contours_of_a_cone_and_a_plane():
    axis = np.linspace(-1, 1, 401)
    cone = np.hypot(axis[None, :], axis[:, None])
    np.testing.assert_allclose(
        contour_lengths(axis, cone, np.array([0.3, 0.9])), 2 * np.pi * np.array([0.3, 0.9]), 1e-4
    )
    tilted = axis[None, :] + 0 * axis[:, None]
    np.testing.assert_allclose(contour_lengths(axis, tilted, np.array([-0.5, 0.123])), 2)
    assert contour_lengths(axis, tilted, np.array([2.0])) == 0


def test_level_side_of_a_cone():
    """Inside the unit square the slope is 1 everywhere: both sides are the area 4."""
    axis = np.linspace(-1, 1, 201)
    cone = np.hypot(axis[None, :], axis[:, None])
    assert level_side(cone, 800, lambda g: contour_lengths(axis, cone, g)) == pytest.approx(4, rel=1e-3)


def test_rise_and_fall():
    total, turns = between_turns(np.cos, (0.5, 7.0))
    np.testing.assert_allclose(turns, [np.pi, 2 * np.pi], atol=1e-6)
    assert total == pytest.approx((np.cos(0.5) + 1) + 2 + (1 - np.cos(7.0)), abs=1e-10)


def test_other_risks():
    found = coarea_1d(risk=np.cos, gradient=lambda w: -np.sin(w), domain=(0.5, 7.0))
    assert found.comparisons[0].agrees and found.comparisons[1].agrees
    bowl = coarea_2d(
        risk=lambda a, b: a**2 + 2 * b**2,
        gradient=lambda a, b: np.stack(np.broadcast_arrays(2 * a, 4 * b)),
        cells=(16, 32, 64, 128),
    )
    assert bowl.verdict == "holds"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda w: -(w * (w**2 - 1) + 1.2 * np.cos(4 * w)),  # a term forgotten
        lambda w: (w * (w**2 - 1) + 1.2 * np.cos(4 * w) + 0.1) ** 2,  # l2 in place of l1
        lambda w: w * (w**2 - 1) + 0.3 * np.cos(4 * w) + 0.1,  # the inner derivative forgotten
    ],
)
def test_a_wrong_gradient_on_the_line_is_noticed(wrong):
    assert coarea_1d(gradient=wrong, cells=(64, 128, 256)).verdict in FAILED


def upwards_only(values, levels, weight=None):
    return crossings(values, levels, weight) / 2


def taken_or_not(values, levels, weight=None):
    return np.minimum(crossings(values, levels, weight), 1)


@pytest.mark.parametrize("wrong", [upwards_only, taken_or_not])
def test_a_wrong_count_is_noticed(wrong):
    assert coarea_1d(level_size=wrong, cells=(64, 128, 256)).verdict in FAILED


@pytest.mark.parametrize(
    "wrong", [lambda g: np.abs(g).sum(0), lambda g: (g**2).sum(0), lambda g: np.abs(g[0])], ids=["l1", "squared", "one"]
)
def test_a_wrong_modulus_is_noticed(wrong):
    assert coarea_2d(modulus=wrong, cells=SMALL).verdict in FAILED


def steps_along_the_axes(axis, values, levels):
    from contourpy import contour_generator

    contours = contour_generator(axis, axis, values)
    return np.array([sum(np.abs(np.diff(part, axis=0)).sum() for part in contours.lines(g)) for g in levels])


def area_above(axis, values, levels):
    return np.array([(values > g).mean() for g in levels]) * (axis[-1] - axis[0]) ** 2


@pytest.mark.parametrize("wrong", [steps_along_the_axes, area_above])
def test_a_wrong_level_size_is_noticed(wrong):
    assert coarea_2d(level_size=wrong, cells=SMALL).verdict in FAILED


def test_the_figures(line, plane):
    curve, counts, errors = line.draw().axes
    assert len(curve.lines[-1].get_xdata()) == 4  # the marked level is met four times
    assert max(counts.lines[0].get_xdata()) == 4
    assert all(side.get_ydata()[-1] < side.get_ydata()[0] / 10 for side in errors.lines)
    contours, lengths, errors, _ = plane.draw().axes
    ladder, sizes = lengths.lines[0].get_data()
    assert np.trapezoid(sizes, ladder) == pytest.approx(plane.comparisons[0].right, rel=0.01)
    assert len(contours.collections) == 1 and len(errors.lines) == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: coarea_1d(domain=(1.0, -1.0)), "bounded interval"),
        (lambda: coarea_1d(cells=(64, 32, 16)), "rising numbers"),
        (lambda: coarea_2d(reach=-1.0), "bounded interval"),
        (lambda: coarea_2d(cells=(16, 32)), "cells must be three or more"),
    ],
)
def test_messages(call, message):
    with pytest.raises(ValueError, match=message):
        call()
