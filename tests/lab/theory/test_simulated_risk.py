"""Linear predictors on the simulation: their population risk against quadrature, rows and differences."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.nn.functional import binary_cross_entropy_with_logits

from irmtv.core.losses import Binary
from irmtv.datasets import make_simulation
from irmtv.lab.theory.simulated_risk import Linear, fit, least_logistic_risk, mixed, risk_gradient, risk_line


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    return Linear(rng.normal(size=(3, 15)) * 0.3, rng.normal(size=3) * 0.2, 0.8)


def by_quad(coef, intercept, w, p_s, p_v):
    """The risk by adaptive quadrature over the Gaussian logit, from the generator's definition."""
    v, s = w[0] * coef[:5], w[1] * coef[5:]
    noise, total = np.sqrt((v**2).sum() + (s**2).sum()), 0.0
    for y, a, b in itertools.product((1, -1), repeat=3):
        p = 0.5 * (p_v if a == y else 1 - p_v) * (p_s if b == y else 1 - p_s)
        mean = a * v.sum() + b * s.sum() + w[2] * intercept

        def integrand(z, mean=mean, y=y):
            return stats.norm.pdf(z) * np.logaddexp(0, -y * (mean + noise * z))

        total += p * integrate.quad(integrand, -12, 12, epsabs=1e-12)[0]
    return total


@pytest.mark.parametrize("w", [(1.0, 1.0, 1.0), (0.3, 1.7, 1.0), (2.0, 2.0, 2.0)])
def test_risk_against_adaptive_quadrature(model, w):
    risk = mixed(model.risk([w])[..., 0], 0.7, -1)
    expected = [by_quad(c, b, w, 0.7, 0.8) for c, b in zip(model.coef, model.intercept, strict=True)]
    np.testing.assert_allclose(risk, expected, atol=1e-8)


def test_risk_where_the_classifier_is_zero(model):
    np.testing.assert_allclose(model.risk([(0.0, 0.0, 0.0)]), np.log(2), atol=1e-14)


def test_risk_against_drawn_rows(model):
    rows = make_simulation(2, p_v=0.8, random_state=5, n_test=200_000, test_p_s=(0.9, 0.3)).test
    f = torch.from_numpy(model.coef) @ rows.x.double().T + torch.from_numpy(model.intercept)[:, None]  # (3, N)
    loss = Binary().value(f, rows.y.double().expand_as(f)).numpy()
    np.testing.assert_allclose(model.losses(rows), loss, atol=1e-14)
    on_the_line = risk_line(*model.risk_by_agreement(), np.array([0.9, 0.3]))  # (3, 2)
    for e, p_s in enumerate((0.9, 0.3)):
        here = loss[:, rows.environment.numpy() == e]
        exact = mixed(model.risk()[..., 0], p_s, -1)
        assert (np.abs(here.mean(1) - exact) < 4.5 * here.std(1) / np.sqrt(here.shape[1])).all()
        np.testing.assert_allclose(on_the_line[:, e], exact, atol=1e-15)


def test_gradient_against_differences(model):
    w, h = np.array([[1.0, 1.0, 1.0], [0.2, 1.5, 0.7]]), 1e-5
    exact = risk_gradient(model, w)
    assert exact.shape == (3, 2, 2, 3)
    for k in range(3):
        step = h * np.eye(3)[k]
        np.testing.assert_allclose(exact[..., k], (model.risk(w + step) - model.risk(w - step)) / (2 * h), atol=1e-8)


def test_fit_is_one_run_per_task_and_weight():
    tasks = [make_simulation(200, random_state=r, n_test=4) for r in range(2)]
    both = fit(tasks, "irm-tv-l1", 0.8, 30, [1.0, 100.0])
    assert both.coef.shape == (2, 2, 15) and both.intercept.shape == (2, 2)
    alone = fit(tasks[1:], "irm-tv-l1", 0.8, 30, [100.0])  # another seed of the start, but the same data
    assert not np.allclose(both.coef[0, 1], both.coef[1, 1]) and not np.allclose(both.coef[1, 0], both.coef[1, 1])
    assert np.abs(alone.coef[0, 0] - both.coef[1, 1]).max() < 1


@pytest.mark.parametrize("counts", ["alike", "not alike"])
def test_erm_is_the_least_risk(counts):
    """Newton's coefficients against torch's own optimiser."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 4))
    y = (x[:, 0] + rng.standard_normal(300) > 0).astype(float)
    mass = np.ones(300) if counts == "alike" else rng.uniform(0.1, 2, 300)
    b = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [b], max_iter=200, tolerance_grad=1e-10, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        optimiser.zero_grad()
        value = binary_cross_entropy_with_logits(torch.from_numpy(x) @ b, torch.from_numpy(y), torch.from_numpy(mass))
        value.backward()
        return value

    optimiser.step(closure)
    assert least_logistic_risk(x, y, mass) == pytest.approx(b.detach().numpy(), abs=1e-6)
