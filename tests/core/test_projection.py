"""The projection onto a box with a given sum, against general optimizers and the conditions of optimality."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from irmtv.core.projection import onto_box_with_sum


def by_slsqp(values, low, high, total):
    n = len(values)
    found = minimize(
        lambda p: 0.5 * ((p - values) ** 2).sum(),
        np.full(n, total / n),
        jac=lambda p: p - values,
        bounds=[(low, high)] * n,
        constraints={"type": "eq", "fun": lambda p: p.sum() - total, "jac": lambda p: np.ones(n)},
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert found.success
    return found.x


def by_all_faces(values, low, high, total):
    """Brute force: on every face of the box the nearest point with that sum; the best of those inside."""
    best, best_distance = None, np.inf
    for face in itertools.product((low, high, None), repeat=len(values)):
        free = np.array([side is None for side in face])
        p = np.array([0.0 if side is None else side for side in face])
        missing = total - p.sum()
        if free.any():
            p[free] = values[free] + (missing - values[free].sum()) / free.sum()
        elif abs(missing) > 1e-9:
            continue
        distance = ((p - values) ** 2).sum()
        if p.min() > low - 1e-9 and p.max() < high + 1e-9 and distance < best_distance:
            best, best_distance = p, distance
    return best


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-0.5, 1.5)])
def test_it_is_the_constrained_optimum(seed, low, high):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 12))
    values = rng.normal(0.5, rng.choice([0.05, 0.5, 3.0]), n)
    total = rng.uniform(n * low, n * high)
    found = onto_box_with_sum(torch.tensor(values), low, high, torch.tensor(total))
    np.testing.assert_allclose(found, by_slsqp(values, low, high, total), atol=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_best_point_of_all_faces(seed):
    """Five coordinates, with ties, whole-number totals and values on the bounds among them: exact to rounding."""
    rng = np.random.default_rng(seed)
    values = rng.choice([-0.3, 0.0, 0.25, 0.25, 0.5, 1.0, 1.7], 5) if seed % 2 else rng.normal(0.5, 1, 5)
    total = float(rng.integers(0, 6)) if seed % 4 < 2 else rng.uniform(0, 5)
    found = onto_box_with_sum(torch.tensor(values), 0.0, 1.0, torch.tensor(total))
    np.testing.assert_allclose(found, by_all_faces(values, 0.0, 1.0, total), atol=1e-12)


def test_many_rows_have_sums_of_their_own():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(3, 4, 9, generator=generator, dtype=torch.float64)
    totals = torch.rand(3, 4, generator=generator, dtype=torch.float64) * 9
    together = onto_box_with_sum(values, 0.0, 1.0, totals)
    assert together.shape == values.shape
    torch.testing.assert_close(together.sum(-1), totals)
    for i, j in itertools.product(range(3), range(4)):
        assert torch.equal(together[i, j], onto_box_with_sum(values[i, j], 0.0, 1.0, totals[i, j]))


@pytest.mark.parametrize("size", [1e-12, 1e3, 1e6, 1e12])
def test_conditions_of_optimality_at_any_scale(size):
    """Moved coordinates inside the box all move by the same v; those at the bounds by no less and no more."""
    generator = torch.Generator().manual_seed(1)
    values = size * torch.randn(20, 50, generator=generator, dtype=torch.float64)
    values[:, ::7] = 0.3  # of ordinary size beside them
    totals = torch.linspace(0.5, 49.5, 20, dtype=torch.float64)
    p = onto_box_with_sum(values, 0.0, 1.0, totals)
    assert ((p >= 0) & (p <= 1)).all()
    precision = 1e-14 * max(1.0, size)
    torch.testing.assert_close(p.sum(-1), totals, rtol=0, atol=max(1e-10, 100 * precision))
    v = values - p
    inside = (p > 0) & (p < 1)
    for row in range(20):
        low = v[row][p[row] == 1].min() if (p[row] == 1).any() else v[row][inside[row]].min()
        high = v[row][p[row] == 0].max() if (p[row] == 0).any() else v[row][inside[row]].max()
        between = v[row][inside[row]]
        if len(between):
            assert between.max() - between.min() <= precision
            assert high - precision <= between.min() and between.max() <= low + precision


def test_one_huge_value_does_not_blur_the_others():
    values = torch.tensor([1e12, 0.5, 0.4, -1e12], dtype=torch.float64)
    p = onto_box_with_sum(values, 0.0, 1.0, torch.tensor(1.5))
    torch.testing.assert_close(p, torch.tensor([1.0, 0.3, 0.2, 0.0], dtype=torch.float64), rtol=0, atol=1e-3)


def test_at_and_beyond_what_the_box_can_reach():
    values = torch.tensor([0.2, 0.9, -3.0, 0.2])
    for total, expected in ((0.0, 0.0), (-2.0, 0.0), (4.0, 1.0), (9.0, 1.0)):
        assert torch.equal(onto_box_with_sum(values, 0.0, 1.0, torch.tensor(total)), torch.full((4,), expected))
    one = onto_box_with_sum(torch.tensor([[5.0], [-5.0]]), 0.0, 1.0, torch.tensor(0.25))
    assert torch.allclose(one, torch.tensor(0.25))  # a single coordinate has no choice


def test_a_point_of_the_set_stays_and_equal_values_share():
    inside = torch.tensor([0.1, 0.9, 0.5, 0.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(onto_box_with_sum(inside, 0.0, 1.0, inside.sum()), inside)
    equal = onto_box_with_sum(torch.ones(2, 7), 0.0, 1.0, torch.tensor([3.5, 0.7]))
    torch.testing.assert_close(equal, torch.tensor([[0.5], [0.1]]).expand(2, 7))


def test_float32_of_many_values_keeps_the_sum():
    generator = torch.Generator().manual_seed(2)
    values = torch.rand(4, 20_000, generator=generator)
    totals = torch.tensor([100.0, 6666.0, 10_000.0, 19_000.0])
    p = onto_box_with_sum(values, 0.0, 1.0, totals)
    assert p.dtype == torch.float32
    torch.testing.assert_close(p.double().sum(1).float(), totals, rtol=1e-5, atol=0.1)


def test_it_makes_no_graph():
    values = torch.rand(3, requires_grad=True)
    assert not onto_box_with_sum(values, 0.0, 1.0, torch.tensor(1.0)).requires_grad
