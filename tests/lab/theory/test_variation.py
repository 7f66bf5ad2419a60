"""Total variation by its dual definition: the splines, the sup, and formulas that must not pass."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.interpolate import BSpline

from irmtv.lab.theory import variation
from irmtv.lab.theory.variation import (
    by_linear_program,
    dual_total_variation,
    dual_value,
    field_on_pixels,
    moments,
    pixel_centres,
    steepest,
)
from lab.theory.wrong import FAILED


@pytest.fixture(scope="module")
def found():
    return dual_total_variation()


def test_it_holds_for_bounded_variation_only(found):
    assert found.verdict == "holds under its condition"
    assert [c.what[:10] for c in found.comparisons if not c.agrees] == ["f = sin(1/"]


def test_moments_against_scipys_splines():
    """int f B_i' by another B-spline and a much finer rule."""
    cells, f = 16, lambda x: np.exp(x) * np.cos(5 * x)
    knots = np.arange(cells + 1) / cells
    x = pixel_centres(1 << 16)
    for i, moment in zip(range(1, cells - 3), moments(f(x), cells)[:, 0], strict=True):
        slope = BSpline.basis_element(knots[i : i + 4], extrapolate=False).derivative()(x)
        assert moment == pytest.approx(np.nan_to_num(slope * f(x)).mean(), abs=1e-8)


def test_moments_in_two_dimensions_are_products():
    """For f(x, y) = u(x) v(y): int u B_i' int v B_j, and the same turned round."""
    x = pixel_centres(512)
    u, v = np.sin(3 * x), np.exp(-x)
    m = moments(u[:, None] * v[None, :], 16)
    spline = np.stack([BSpline.basis_element(np.arange(i, i + 4) / 16, extrapolate=False)(x) for i in range(1, 13)])
    spline = np.nan_to_num(spline)
    np.testing.assert_allclose(m[..., 0], np.outer(moments(u, 16)[:, 0], spline @ v / 512), atol=1e-12)
    np.testing.assert_allclose(m[..., 1], np.outer(spline @ u / 512, moments(v, 16)[:, 0]), atol=1e-12)


def test_a_field_is_what_its_coefficients_say():
    c = np.random.default_rng(0).uniform(-1, 1, (12, 1))
    x = pixel_centres(256)
    by_scipy = sum(
        a * np.nan_to_num(BSpline.basis_element(np.arange(i, i + 4) / 16, extrapolate=False)(x))
        for i, a in enumerate(c[:, 0], start=1)
    )
    np.testing.assert_allclose(field_on_pixels(c, 256)[:, 0], by_scipy, atol=1e-12)
    g = field_on_pixels(np.ones((12, 12, 2)), 256)
    assert g.max() == pytest.approx(1) and g.min() == 0 and np.abs(g[:16]).max() == 0 == np.abs(g[:, -16:]).max()


def test_no_admissible_field_does_better():
    """Random coefficients in the unit ball stay below the sup, and the linear program finds it."""
    rng = np.random.default_rng(0)
    m = moments(rng.normal(size=(256, 256)), 16)
    best = (steepest(m) * m).sum()
    for _ in range(50):
        c = rng.normal(size=m.shape)
        c /= np.maximum(1, np.sqrt((c**2).sum(-1, keepdims=True)))
        assert (c * m).sum() < best
    line = moments(rng.normal(size=256), 32)
    assert by_linear_program(line) == pytest.approx(np.abs(line).sum(), rel=1e-12)


def test_simple_functions():
    x = pixel_centres(4096)
    assert dual_value(np.full_like(x, 3.0), 64) == pytest.approx(0, abs=1e-12)
    assert dual_value((x > 0.3) * 2.0 - (x > 0.7) * 5.0, 64) == pytest.approx(7)
    # a straight line: every spline contributes its integral h, and four of n are missing near the boundary
    assert dual_value(x, 64) == pytest.approx(60 / 64, rel=1e-12)


def box(m):
    return np.sign(m)


def one_axis(m):
    return np.concatenate([np.ones_like(m[..., :1]), np.zeros_like(m[..., 1:])], -1) * np.sign(m)


@pytest.mark.parametrize("wrong", [box, one_axis])
def test_a_wrong_field_is_noticed(wrong):
    assert dual_total_variation(field=wrong).verdict in FAILED


@pytest.mark.parametrize("wrong", [lambda g: np.abs(g).sum(0), lambda g: (g**2).sum(0)], ids=["l1 norm", "squared"])
def test_a_wrong_modulus_is_noticed(wrong):
    assert dual_total_variation(modulus=wrong).verdict in FAILED


def test_a_wrong_gradient_is_noticed():
    assert dual_total_variation(slope=lambda x: 7 * np.cos(7 * x)).verdict in FAILED


def test_a_tame_function_in_place_of_the_wild_one():
    """Of bounded variation: the sup does not grow, and our statement that it does fails."""
    tame = dual_total_variation(wild=lambda x: x**2 * np.sin(1 / x))
    beyond = next(c for c in tame.comparisons if c.role == "beyond")
    assert beyond.agrees and tame.verdict == "not verified"


def test_the_figure(found):
    curve, disc, errors, grows = found.draw().axes
    assert len(curve.lines) == 2 and np.abs(curve.lines[1].get_ydata()).max() <= 1
    assert len(disc.collections) == 1
    assert [len(line.get_ydata()) for line in errors.lines] == [5, 4, 4]
    assert all(np.diff(line.get_ydata()).max() < 0 for line in errors.lines)
    assert np.diff(grows.lines[0].get_ydata()).min() > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cells_1d": (16, 48)}, "cells_1d must be three or more powers of 2"),
        ({"cells_2d": (8, 16, 32)}, "cells_2d must be three or more powers of 2"),
        ({"radius": 0.6}, "radius must lie between 0 and 0.5"),
        ({"jumps": ((1.5, 1.0),)}, "jumps must be"),
    ],
)
def test_messages(settings, message):
    with pytest.raises(ValueError, match=message):
        dual_total_variation(**settings)


def test_cells_must_divide_the_pixels():
    with pytest.raises(ValueError, match="cells must be at least 5 and divide the 100 pixels"):
        variation.moments(np.zeros(100), 16)
