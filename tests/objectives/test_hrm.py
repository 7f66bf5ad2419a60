"""The formulas of heterogeneous risk minimisation, each by hand or by autograd."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from scipy import stats

from irmtv import OBJECTIVES
from irmtv.objectives import hrm
from irmtv.objectives.gates import density, gate

R, E, C, D = 3, 4, 2, 5


def numbers(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_slope_of_the_gate():
    mu = (0.6 * numbers(R, D)).requires_grad_()
    opened = gate(mu, numbers(R, D, seed=1), torch.full((R, 1), 0.4, dtype=torch.float64))
    opened.sum().backward()
    assert (opened == 0).any() and (opened == 1).any() and ((opened > 0) & (opened < 1)).any()
    assert torch.equal(mu.grad, hrm.gate_slope(opened.detach()).double())


def test_slope_of_the_density():
    mu, sigma = numbers(R, D).requires_grad_(), torch.tensor([[0.1], [0.5], [2.0]], dtype=torch.float64)
    density(mu, sigma).sum().backward()
    torch.testing.assert_close(hrm.density_slope(mu.detach(), sigma), mu.grad)
    expected = stats.norm.pdf((mu.detach().numpy() + 0.5) / sigma.numpy()) / sigma.numpy()
    np.testing.assert_allclose(hrm.density_slope(mu.detach(), sigma).numpy(), expected)


def test_heterogeneity_and_penalty_by_hand():
    gradients, mu = numbers(R, E, C, D), numbers(R, D, seed=1)
    rows = torch.tensor([[3.0, 1, 5, 2], [4, 0, 1, 2], [0, 0, 7, 0]], dtype=torch.float64)
    weights = hrm.mean_weights(rows)
    deviation = hrm.deviations(gradients, weights)
    spread = hrm.heterogeneity(deviation)
    for r in range(R):
        there = [e for e in range(E) if rows[r, e] > 0]
        np.testing.assert_allclose(weights[r].numpy(), [1 / len(there) if e in there else 0 for e in range(E)])
        total = 0.0
        for j in range(D):
            one = 0.0
            for c in range(C):
                values = [float(gradients[r, e, c, j]) for e in there]
                one += sum((v - np.mean(values)) ** 2 for v in values)
            assert float(spread[r, j]) == pytest.approx(one, abs=1e-12)
            total += (float(mu[r, j]) + 0.5) * one
        assert float(hrm.invariance_penalty(mu, spread)[r]) == pytest.approx(total)
    assert (deviation[1, 1] == 0).all()
    assert (spread[2] == 0).all()  # one environment agrees with itself


def test_closed_gates():
    densities = torch.tensor([[1.0, 1.0, 1.0], [0.5, 1.0, 0.0]])
    torch.testing.assert_close(hrm.closed_gates(densities), torch.tensor([0.0, -1.5]))


def test_the_gradient_of_the_shrinkage():
    """mean_j |density_j coef_kj|, summed over outputs."""
    coef, densities = numbers(R, E, C, D).requires_grad_(), numbers(R, D, seed=1).abs()
    by_hand = sum(
        (densities[r, j] * coef[r, k, c, j]).abs()
        for r in range(R)
        for k in range(E)
        for c in range(C)
        for j in range(D)
    )
    (by_hand / D).backward()
    torch.testing.assert_close(hrm.shrinkage_gradient(coef.detach(), densities), coef.grad)
    assert (hrm.shrinkage_gradient(torch.zeros(R, E, C, D), densities) == 0).all()


def test_defaults_are_those_of_the_publication():
    objective = OBJECTIVES["hrm"]
    assert (objective.needs, objective.procedure) == ("nothing", "hrm")
    assert objective.tasks == ("binary", "multiclass", "regression")
    published = {
        "rounds": 5,
        "n_clusters": 3,
        "cluster_steps": 3000,
        "cluster_learning_rate": 1e-3,
        "cluster_moves": 0.125,
        "cluster_shrinkage": 1.0,
        "first_density": 0.0,
        "penalty_weight": 1000.0,
        "gate_weight": 0.1,
        "growth": 1.05,
        "gate_noise": 0.1,
        "gate_learning_rate": 3e-4,
        "keep_density": 0.2,
    }
    settings = objective.resolve({})
    assert {k: settings[k] for k in published} == published
    assert settings["erm_share"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"growth": 0.9}, "growth of 'hrm' must be a finite number of at least 1. Got 0.9."),
        ({"erm_share": 1}, "erm_share of 'hrm' must be a number in (0, 1). Got 1."),
        ({"erm_share": 0.0}, "erm_share of 'hrm' must be a number in (0, 1). Got 0.0."),
        ({"n_clusters": 1}, "n_clusters of 'hrm' must be a whole number of at least 2. Got 1."),
        ({"gate_noise": 0}, "gate_noise of 'hrm' must be a finite number above 0. Got 0."),
        ({"keep_density": 1.5}, "keep_density of 'hrm' must be a number in [0, 1]. Got 1.5."),
        ({"penalty_weight": -1.0}, "penalty_weight of 'hrm' must be a finite number of at least 0. Got -1.0."),
        ({"cluster_intercept": "no"}, "cluster_intercept of 'hrm' must be one of [False, True]. Got 'no'."),
    ],
)
def test_hyperparameters_are_checked(setting, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        OBJECTIVES["hrm"].resolve(setting)


def test_it_cannot_be_added_to_penalties():
    with pytest.raises(ValueError, match="'hrm' is a way of training"):
        OBJECTIVES["irm-tv-l1+hrm"]
