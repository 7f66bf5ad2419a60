"""The formulas of a learned measure: the step on the simplex, and the nearest measure within a distance."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from irmtv.objectives.learned_measure import divergence, exponentiated_ascent, within_distance


def kl(p, q):
    return float(sum(a * np.log(a / b) for a, b in zip(p, q, strict=True) if a > 0))


def random_measures(seed, runs, environments, sharpness=1.0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    centre = torch.softmax(torch.randn(runs, environments, generator=g, dtype=dtype), 1)
    mu = torch.softmax(centre.log() + sharpness * torch.randn(runs, environments, generator=g, dtype=dtype), 1)
    return mu, centre


def column(value, runs, dtype=torch.float64):
    return torch.full((runs, 1), value, dtype=dtype)


def test_one_step_by_hand():
    mu, gradient = torch.tensor([[0.5, 0.3, 0.2]]).double(), torch.tensor([[1.0, -2.0, 0.5]]).double()
    raw = [m * np.exp(0.7 * g) for m, g in zip([0.5, 0.3, 0.2], [1.0, -2.0, 0.5], strict=True)]
    expected = torch.tensor([[r / sum(raw) for r in raw]]).double()
    assert torch.allclose(exponentiated_ascent(mu, gradient, column(0.7, 1)), expected, rtol=1e-12)


def test_no_gradient_overflows():
    mu = torch.tensor([[0.5, 0.5, 0.0]])
    moved = exponentiated_ascent(mu, torch.tensor([[1e6, -1e6, 0.0]]), column(10.0, 1, torch.float32))
    assert torch.equal(moved, torch.tensor([[1.0, 0.0, 0.0]]))


@pytest.mark.parametrize("environments", [2, 5, 40])
@pytest.mark.parametrize("sharpness", [1e-4, 0.3, 5.0, 100.0])
def test_the_divergence(environments, sharpness):
    mu, centre = random_measures(0, 20, environments, sharpness)
    expected = [kl(m, c) for m, c in zip(mu.tolist(), centre.tolist(), strict=True)]
    assert torch.allclose(divergence(mu, centre)[:, 0], torch.tensor(expected).double(), rtol=1e-6, atol=1e-15)


def test_the_divergence_counts_only_what_the_centre_has():
    centre = torch.tensor([[0.5, 0.5, 0.0]]).double()
    assert float(divergence(centre, centre)) == 0
    assert float(divergence(torch.tensor([[1.0, 0.0, 0.0]]).double(), centre)) == pytest.approx(np.log(2))


@pytest.mark.parametrize("environments", [2, 3, 6])
@pytest.mark.parametrize("distance", [0.01, 0.1, 0.5])
def test_the_projection_is_the_constrained_minimum(environments, distance):
    """Against a general solver: minimise KL(p || mu) over the simplex with KL(p || centre) <= distance."""
    mu, centre = random_measures(environments, 6, environments, 1.5)
    ours = within_distance(mu, centre, column(distance, 6))
    for m, c, p in zip(mu.numpy(), centre.numpy(), ours.numpy(), strict=True):
        found = minimize(
            kl,
            c,
            args=(m,),
            method="SLSQP",
            bounds=[(1e-9, 1)] * environments,
            constraints=[
                {"type": "eq", "fun": lambda q: q.sum() - 1},
                {"type": "ineq", "fun": lambda q, c=c: distance - kl(q, c)},
            ],
            options={"ftol": 1e-13, "maxiter": 500},
        )
        assert np.abs(found.x - p).max() < 2e-5  # as near as the solver comes
        assert kl(p, m) <= found.fun + 1e-8
        assert kl(p, c) <= distance * (1 + 1e-9)


def bisected(mu, centre, distance):
    """The power a by 200 halvings, in Python."""
    least, greatest = 0.0, 1.0
    for _ in range(200):
        a = (least + greatest) / 2
        p = mu**a * centre ** (1 - a)
        least, greatest = (least, a) if kl(p / p.sum(), centre) > distance else (a, greatest)
    p = mu**least * centre ** (1 - least)
    return p / p.sum()


@given(
    seed=st.integers(0, 10**6),
    environments=st.integers(2, 12),
    sharpness=st.floats(0.01, 60.0),
    distance=st.floats(1e-4, 2.0),
)
@settings(max_examples=60, deadline=None)
def test_the_projection_equals_bisection(seed, environments, sharpness, distance):
    mu, centre = random_measures(seed, 3, environments, sharpness)
    ours = within_distance(mu, centre, column(distance, 3))
    assert torch.allclose(ours.sum(1), torch.ones(3).double(), atol=1e-12)
    for m, c, p in zip(mu.numpy(), centre.numpy(), ours.numpy(), strict=True):
        if kl(m, c) <= distance:
            assert np.array_equal(m, p)  # what is inside is not touched
        else:
            assert np.abs(bisected(m, c, distance) - p).max() < 1e-9
            assert kl(p, c) <= distance * (1 + 1e-8)


def test_float32():
    mu, centre = random_measures(1, 50, 10, 3.0, torch.float32)
    for distance in (1e-3, 0.1, 1.0):
        ours = within_distance(mu, centre, column(distance, 50, torch.float32))
        exact = within_distance(mu.double(), centre.double(), column(distance, 50))
        assert (ours - exact).abs().max() < 2e-6
        assert ours.dtype == torch.float32


def test_a_measure_that_jumped_into_a_corner():
    """Powers far below 1e-2 and a divergence that is flat over most of [0, 1]."""
    centre = torch.tensor([[0.01, 0.5, 0.49]]).double().repeat(3, 1)
    mu = torch.softmax(torch.tensor([[0.0, -700, -600], [-700, 0, -650], [0, -1e5, -1e5]]).double(), 1)
    for distance in (1e-3, 0.1, 0.6):
        ours = within_distance(mu, centre, column(distance, 3))
        assert torch.allclose(divergence(ours, centre), column(distance, 3), rtol=1e-5)


def test_the_ends_of_the_range():
    mu, centre = random_measures(0, 4, 5)
    assert torch.allclose(within_distance(mu, centre, column(0.0, 4)), centre, atol=1e-15)
    assert torch.equal(within_distance(mu, centre, column(torch.inf, 4)), mu)
    mixed = torch.tensor([[0.0], [torch.inf], [0.01], [100.0]]).double()
    ours = within_distance(mu, centre, mixed)
    assert torch.allclose(ours[0], centre[0], atol=1e-15)
    assert torch.equal(ours[[1, 3]], mu[[1, 3]])
    assert torch.isfinite(ours).all()


def test_an_environment_without_share_gets_none():
    centre = torch.tensor([[0.6, 0.4, 0.0]], dtype=torch.float64)
    mu = exponentiated_ascent(centre, torch.tensor([[9.0, 0.0, 5.0]]).double(), column(1.0, 1))
    ours = within_distance(mu, centre, column(0.05, 1))
    assert float(ours[0, 2]) < 1e-300
    assert float(divergence(ours, centre)) == pytest.approx(0.05, rel=1e-9)


def test_neighbours_do_not_change_a_run():
    """Some need more steps than others: what is found first must stay as it is."""
    mu, centre = random_measures(3, 8, 4, 4.0)
    mu[3] = torch.softmax(torch.tensor([0.0, -700, -600, -650]).double(), 0)
    distance = column(0.05, 8)
    together = within_distance(mu, centre, distance)
    for r in range(8):
        assert torch.equal(within_distance(mu[r : r + 1], centre[r : r + 1], distance[:1])[0], together[r])
