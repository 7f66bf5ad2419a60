"""lambda_Phi: the formula, what it makes of the objective, and the paper's counterexample for a fixed lambda."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from irmtv import OBJECTIVES
from irmtv.core.types import Statistics
from irmtv.objectives.lambda_phi import lambda_phi, worst_risk_objective

PENALISED = [n for n, o in OBJECTIVES.items() if o.penalties and o.procedure is None]


def statistics(seed, runs=4, environments=5):
    g = torch.Generator().manual_seed(seed)
    mass = torch.rand(1, environments, generator=g, dtype=torch.float64) + 0.1
    mass = mass / mass.sum()
    risk = torch.rand(runs, environments, generator=g, dtype=torch.float64) * 3
    slope = torch.randn(runs, environments, generator=g, dtype=torch.float64)
    return Statistics((mass * risk).sum(-1), mass, risk, slope)


@settings(deadline=None)
@given(seed=st.integers(0, 10_000), name=st.sampled_from(PENALISED))
def test_the_value_is_the_worst_risk(seed, name):
    """E R + lambda_Phi penalty = max_e R_e before normalisation, to 1e-6 in float64."""
    e, objective = statistics(seed), OBJECTIVES[name]
    defaults = objective.resolve({})
    risk = objective.risk(e, defaults)
    penalty = torch.stack(objective.penalty_values(e, defaults)).sum(0)
    worst = e.risk.amax(-1)
    weight = lambda_phi(worst, risk, penalty, 1e12)
    assert (weight >= 0).all()
    torch.testing.assert_close(risk + weight * penalty, worst, rtol=0, atol=1e-6)
    torch.testing.assert_close(worst_risk_objective(worst, risk, penalty, 1e12), worst, rtol=0, atol=1e-6)


def test_the_cap_and_penalties_that_are_not_positive():
    worst, expected = torch.tensor([1.0, 1.0, 1.0, 0.5, 1.0]), torch.full((5,), 0.5)
    penalty = torch.tensor([0.25, 1e-9, 0.0, 0.0, -0.1])
    assert lambda_phi(worst, expected, penalty, 100.0).tolist() == [2.0, 100.0, 100.0, 0.0, 0.0]
    exact = worst_risk_objective(worst, expected, penalty, 100.0)
    assert torch.allclose(exact, torch.tensor([1.0, 0.5 + 1e-7, 0.5, 0.5, 1.0]))


def test_the_exact_gradient_is_that_of_the_worst_risk_and_the_capped_one_is_not():
    risks = torch.tensor([[0.2, 0.9, 0.4], [0.2, 0.9, 0.4]], dtype=torch.float64, requires_grad=True)
    penalty = torch.tensor([0.5, 1e-12], dtype=torch.float64)
    worst_risk_objective(risks.amax(-1), risks.mean(-1), penalty, 10.0).sum().backward()
    assert risks.grad[0].tolist() == [0, 1, 0]
    torch.testing.assert_close(risks.grad[1], torch.full((3,), 1 / 3, dtype=torch.float64))


# ---- the counterexample of the paper's appendix, on w itself: R(w Phi) = |w Phi + 1| for w uniform on [-0.9, 0.1] ----

W = torch.linspace(-0.9, 0.1, 1001, dtype=torch.float64)
EVERY_PHI = torch.linspace(-1, 1, 2001, dtype=torch.float64)


def on_w(phi):
    """Each w is an environment: risk 1 + w Phi, slope Phi, the uniform measure. (R,) -> statistics (R, 1001)."""
    mass = torch.full((1, len(W)), 1 / len(W), dtype=torch.float64)
    risk = (W * phi.unsqueeze(1) + 1).abs()
    slope = phi.unsqueeze(1) * torch.sign(W * phi.unsqueeze(1) + 1)
    return Statistics((mass * risk).sum(-1), mass, risk, slope)


def parts(phi):
    e, objective = on_w(phi), OBJECTIVES["irm-tv-l1"]
    defaults = objective.resolve({})
    return e.risk.amax(-1), objective.risk(e, defaults), objective.penalty_values(e, defaults)[0]


def test_the_worst_risk_is_least_at_zero():
    worst, expected, penalty = parts(EVERY_PHI)
    assert EVERY_PHI[worst.argmin()].abs() < 1e-12
    torch.testing.assert_close(expected, 1 - 0.4 * EVERY_PHI)
    torch.testing.assert_close(penalty, EVERY_PHI**2)


@pytest.mark.parametrize("weight", [0.0, 0.05, 0.2, 0.5, 1.0, 10.0, 100.0])
def test_every_fixed_lambda_misses_the_optimum(weight):
    """Closed form: 1 / (5 lambda) above 1/5, else 1. Found by gradient descent too."""
    best = min(1.0, 1 / (5 * weight)) if weight else 1.0
    phi = torch.full((1,), 0.3, dtype=torch.float64, requires_grad=True)
    for _ in range(1500):
        _, expected, penalty = parts(phi)
        (expected + weight * penalty).sum().backward()
        with torch.no_grad():
            phi -= 0.1 / (1 + 2 * weight) * phi.grad
            phi.clamp_(-1, 1)
        phi.grad = None
    assert abs(phi.item() - best) < 1e-3
    assert phi.item() > 1e-3


@pytest.mark.parametrize("start", [-1.0, -0.2, 0.4, 1.0])
def test_adaptive_exact_finds_it(start):
    phi = torch.full((1,), start, dtype=torch.float64, requires_grad=True)
    for step in range(1500):
        worst_risk_objective(*parts(phi), 1e6).sum().backward()
        with torch.no_grad():
            phi -= 0.5 / (1 + step) ** 0.75 * phi.grad
            phi.clamp_(-1, 1)
        phi.grad = None
    assert abs(phi.item()) < 5e-3


def test_held_fixed_in_the_gradient_it_need_not_arrive():
    """R_e = (Phi - a_e)^2 + v_e, a = (1, 2), v = (1, 0): "adaptive" ends at Phi = 1.28, the optimum is at 1."""

    def risks(phi):
        return torch.stack([(phi - 1) ** 2 + 1, (phi - 2) ** 2], -1)

    def run(exact):
        phi = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        for step in range(3000):
            risk = risks(phi)
            # dR/dw of R(w Phi) at w = 1
            slope = torch.stack([2 * (phi - 1) * phi, 2 * (phi - 2) * phi], -1)
            penalty = (slope.abs().mean(-1)) ** 2
            worst, expected = risk.amax(-1), risk.mean(-1)
            if exact:
                value = worst_risk_objective(worst, expected, penalty, 1e6)
            else:
                value = expected + lambda_phi(worst.detach(), expected.detach(), penalty.detach(), 1e6) * penalty
            value.sum().backward()
            with torch.no_grad():
                phi -= 0.05 / (1 + step) ** 0.5 * phi.grad
            phi.grad = None
        return risks(phi).amax().item(), phi.item()

    worst, phi = run(exact=True)
    assert abs(worst - 1.0) < 2e-3 and abs(phi - 1) < 2e-3
    worst, phi = run(exact=False)
    # E R' + lambda_Phi penalty' = 2 Phi - 3 + 2 (Phi - 1) / Phi = 0
    assert abs(phi - (1 + 17**0.5) / 4) < 1e-3
    assert abs(worst - 1.0788) < 1e-3
