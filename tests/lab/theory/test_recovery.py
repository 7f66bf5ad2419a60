"""Total variation denoising: solvers against brute force, certificates against wrong solvers, the statement."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from irmtv.lab.theory.recovery import HEIGHTS, LENGTHS, recovery_1d, recovery_2d, sunken_blocks
from irmtv.lab.theory.tv_solvers import (
    differences,
    divergence,
    relative_gap,
    relative_slope,
    solve_l1_grid,
    solve_l1_line,
    solve_l2,
)
from lab.theory.wrong import row


@pytest.fixture(scope="module")
def line():
    return recovery_1d()


@pytest.fixture(scope="module")
def image():
    return recovery_2d(size=32)


def noisy(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).cumsum(0)


@pytest.mark.parametrize("shape", [(7,), (4, 5), (3, 4, 2)])
def test_divergence_is_the_transpose_of_differences(shape):
    generator = np.random.default_rng(0)
    f, p = generator.standard_normal(shape), generator.standard_normal((len(shape), *shape))
    assert (differences(f) * p).sum() == pytest.approx((f * divergence(p)).sum())


def test_differences_by_hand():
    f = np.array([[1.0, 4.0], [2.0, 8.0]])
    np.testing.assert_array_equal(differences(f), [[[1, 4], [0, 0]], [[3, 0], [6, 0]]])


@pytest.mark.parametrize("weight", [0.05, 0.5, 5.0])
def test_the_exact_line_against_quadratic_programming(weight):
    """The dual is a smooth problem with bounds: L-BFGS-B knows nothing of blocks."""
    y = noisy(12)

    def dual(p):
        field = np.append(p, 0.0)[None]
        f = y - divergence(field) / (2 * weight)
        return weight * (f**2).sum(), -differences(f)[0][:-1]

    best = minimize(
        dual, np.zeros(11), jac=True, bounds=[(-1, 1)] * 11, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-12}
    )
    expected = y - divergence(np.append(best.x, 0.0)[None]) / (2 * weight)
    np.testing.assert_allclose(solve_l1_line(y, weight)[0], expected, atol=1e-5)


@pytest.mark.parametrize("weight", [1e-3, 0.3, 3.0, 1e3])
def test_the_line_has_no_gap(weight):
    y = noisy(60, 1)
    f, p = solve_l1_line(y, weight)
    assert abs(relative_gap(f, p, y, weight)) < 1e-12


def test_the_line_with_ties_and_extremes():
    y = np.array([1.0, 1.0, 3.0, 3.0, 3.0, 0.0])
    f, p = solve_l1_line(y, 0.5)
    assert abs(relative_gap(f, p, y, 0.5)) < 1e-12
    np.testing.assert_allclose(solve_l1_line(y, 1e-6)[0], y.mean())  # all one block
    np.testing.assert_allclose(solve_l1_line(y, 1e6)[0], y, atol=1e-5)


def test_grid_and_line_agree_on_a_line():
    y = noisy(30)
    f, _ = solve_l1_grid(y, 0.5, tolerance=1e-10)
    np.testing.assert_allclose(f, solve_l1_line(y, 0.5)[0], atol=1e-3)


def test_the_gap_bounds_the_energy_from_both_sides():
    """No other signal has an energy below f's by more than the gap."""
    y, weight = noisy((6, 6)), 0.7
    f, p = solve_l1_grid(y, weight)

    def energy(g):
        return np.sqrt((differences(g) ** 2).sum(0)).sum() + weight * ((g - y) ** 2).sum()

    lowest = energy(f) * (1 - relative_gap(f, p, y, weight))
    generator = np.random.default_rng(1)
    for size in (1e-4, 1e-2, 1.0):
        assert all(energy(f + size * generator.standard_normal(f.shape)) >= lowest for _ in range(50))


@pytest.mark.parametrize("shape", [(9,), (5, 4)])
def test_l2_against_minimisation(shape):
    y, weight = noisy(shape), 0.4

    def energy(flat):
        f = flat.reshape(shape)
        return (differences(f) ** 2).sum() + weight * ((f - y) ** 2).sum()

    best = minimize(energy, y.ravel(), method="BFGS", options={"gtol": 1e-7}).x.reshape(shape)
    np.testing.assert_allclose(solve_l2(y, weight), best, atol=1e-5)
    assert relative_slope(solve_l2(y, weight), y, weight) < 1e-13 < relative_slope(y, y, weight)


def test_sunken_blocks_by_hand():
    moved = sunken_blocks(2.0) - np.repeat(HEIGHTS, LENGTHS)
    # 0 (up to 2), 2 (a peak), 1 (a valley), 3 (a peak), -0.5 (the end, below)
    expected = [1 / (4 * 50), -2 / (4 * 30), 2 / (4 * 40), -2 / (4 * 60), 1 / (4 * 60)]
    np.testing.assert_allclose(moved, np.repeat(expected, LENGTHS), atol=1e-15)


def test_the_line_holds_for_blocky_truths(line):
    assert line.verdict == "holds"
    assert {c.role for c in line.comparisons if "error of TV-l1" in c.what} == {"ours"}
    assert row(line, "blocky truth").left < 1 < row(line, "smooth truth").left
    assert row(line, "duality gap").left < 1e-12
    assert row(line, "share of the highest jump").left > 0.8


def test_the_image_holds_for_blocky_truths(image):
    assert image.verdict == "holds" and not any("draw" in c.what for c in image.comparisons)
    assert row(image, "duality gap").left < 1e-5
    assert row(image, "smooth truth").left > 1


def twice_the_weight(y, weight):
    return solve_l1_line(y, 2 * weight)


def observed_itself(y, weight):
    return y, solve_l1_line(y, weight)[1]


def l2_in_place_of_l1(y, weight):
    f = solve_l2(y, weight)
    return f, 2 * weight * np.cumsum(f - y)[None]


@pytest.mark.parametrize("wrong", [twice_the_weight, observed_itself, l2_in_place_of_l1])
def test_a_wrong_l1_on_the_line_is_noticed(wrong):
    found = recovery_1d(draws=1, l1=wrong)
    assert found.verdict == "not verified"
    assert not row(found, "duality gap").agrees


def componentwise(y, weight):
    """|Df| as the sum over the axes, not as their norm."""
    p = np.zeros((2, *y.shape))
    for _ in range(500):
        p = np.clip(p + weight / 4 * differences(y - divergence(p) / (2 * weight)), -1, 1)
    return y - divergence(p) / (2 * weight), p


def half_the_weight(y, weight):
    return solve_l1_grid(y, weight / 2)


@pytest.mark.parametrize("wrong", [componentwise, half_the_weight])
def test_a_wrong_l1_on_the_grid_is_noticed(wrong):
    found = recovery_2d(size=16, l1=wrong)
    assert found.verdict == "not verified"
    assert not row(found, "duality gap").agrees


@pytest.mark.parametrize("wrong", [lambda y, w: solve_l2(y, w / 2), lambda y, w: solve_l1_line(y, w)[0]])
def test_a_wrong_l2_is_noticed(wrong):
    found = recovery_1d(draws=1, l2=wrong)
    assert found.verdict == "not verified"
    assert not row(found, "relative gradient").agrees


def test_a_solver_that_ignores_lambda_misses_the_noise():
    found = recovery_1d(draws=1, l2=lambda y, w: np.full_like(y, y.mean()))
    assert not row(found, "residual is the noise").agrees


def test_lambda_does_not_look_at_the_truth(line):
    """The residual of both models is the noise level, to many digits."""
    assert row(line, "residual is the noise").left < 1e-6


def test_the_figures(line, image):
    blocks, steps, wave = line.draw().axes
    assert [len(a.lines) for a in (blocks, steps, wave)] == [4, 3, 4]
    np.testing.assert_array_equal(blocks.lines[1].get_ydata(), np.repeat(HEIGHTS, LENGTHS))
    smoothed, kept = blocks.lines[2].get_ydata(), blocks.lines[3].get_ydata()
    assert np.abs(np.diff(kept)).max() > 2 * np.abs(np.diff(smoothed)).max()
    *pictures, row, hills = image.draw().axes
    assert [p.images[0].get_array().shape for p in pictures] == [(32, 32)] * 4
    assert len(row.lines) == len(hills.lines) == 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: recovery_1d(noise=0.0), "noise must be a positive number"),
        (lambda: recovery_1d(draws=0), "draws must be a positive integer"),
        (lambda: recovery_2d(noise=-1.0), "noise must be a positive number"),
        (lambda: recovery_2d(size=8), "size must be at least 16"),
    ],
)
def test_what_a_user_could_get_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call()
