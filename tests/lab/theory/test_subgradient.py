"""The closed-form subgradients: wrong formulas, kinks, and the parts against autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from irmtv.lab.theory.small_network import (
    ENVIRONMENTS,
    UNITS,
    by_hand,
    flat_point,
    kink_point,
    make_rows,
    smooth_point,
    split,
    statistics,
)
from irmtv.lab.theory.subgradient import (
    STEPS,
    concave_kink,
    frechet_quotients,
    norm_rule,
    sign_rule,
    subgradient_scalar,
    subgradient_vector,
)
from lab.theory.wrong import row

BOTH = {"scalar": subgradient_scalar, "vector": subgradient_vector}


@pytest.fixture(scope="module")
def found():
    return {name: function() for name, function in BOTH.items()}


def test_the_verdicts(found):
    assert found["scalar"].verdict == "holds under its condition"
    assert found["vector"].verdict == "holds under its condition"
    assert all(f.error < 1e-8 for f in found.values())


@pytest.mark.parametrize("classifier", ["scalar", "vector"])
@pytest.mark.parametrize("loss", ["binary", "squared"])
def test_slopes_and_jacobians_against_autograd(loss, classifier):
    """From torch's own losses and an explicit w: second derivatives by autograd, none by hand."""
    rows, theta = make_rows(loss, 3), torch.from_numpy(smooth_point(3))
    parts = by_hand(theta.numpy(), rows, loss, classifier)
    for e in range(ENVIRONMENTS):
        x, y = (torch.from_numpy(part[rows.codes == e]) for part in (rows.x, rows.y))

        def slope(t, x=x, y=y):
            w = torch.ones(UNITS if classifier == "vector" else (), dtype=torch.float64, requires_grad=True)
            f = torch.tanh(x @ t[:-UNITS].view(UNITS, -1).T) * w @ t[-UNITS:]
            risk = functional.binary_cross_entropy_with_logits if loss == "binary" else functional.mse_loss
            return torch.autograd.grad(risk(f, y), w, create_graph=True)[0].reshape(-1)

        np.testing.assert_allclose(parts.slopes[e], slope(theta.requires_grad_()).detach(), rtol=1e-10)
        jacobian = torch.autograd.functional.jacobian(slope, theta)
        np.testing.assert_allclose(parts.jacobians[e], jacobian, rtol=1e-9, atol=1e-12)


def test_the_library_has_the_same_slopes():
    rows, theta = make_rows("binary", 0), smooth_point(0)
    e = statistics(torch.from_numpy(theta[None]), rows, "binary", "vector")
    np.testing.assert_allclose(e.slope[0], by_hand(theta, rows, "binary", "vector").slopes, rtol=1e-12)
    np.testing.assert_allclose(e.mass[0], rows.mu)
    assert len(set(rows.mu)) > 1


@pytest.mark.parametrize("loss", ["binary", "squared"])
def test_the_points_are_what_they_say(loss):
    rows = make_rows(loss, 0)
    for classifier in BOTH:
        assert by_hand(smooth_point(0), rows, loss, classifier).moduli.min() > 0.01
        at_kink = by_hand(kink_point(0), rows, loss, classifier)
        assert at_kink.moduli[0] == 0.0 and at_kink.moduli[1:].min() > 1e-3
        assert np.abs(at_kink.jacobians[0]).max() > 0.01  # a kink, not a plateau
        assert not by_hand(flat_point(0), rows, loss, classifier).moduli.any()
    b, a = split(flat_point(0))
    assert b.all() and not a.any()


def test_the_rules_by_hand():
    jacobian = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 1.0]])
    np.testing.assert_allclose(norm_rule(np.array([3.0, 4.0]), jacobian), [0.6, 2.0, 0.8])
    np.testing.assert_array_equal(norm_rule(np.zeros(2), jacobian), np.zeros(3))
    np.testing.assert_array_equal(sign_rule(np.array([-0.1]), jacobian[:1]), [-1, -2, 0])
    np.testing.assert_array_equal(sign_rule(np.array([0.0]), jacobian[:1]), np.zeros(3))


def without_sign(slope, jacobian):
    return jacobian[0]


def by_the_slope(slope, jacobian):
    """The gradient of S^2 / 2."""
    return slope @ jacobian


def one_at_zero(slope, jacobian):
    """sign(0) = 1: right everywhere but at the kink, where it is another subgradient, not the paper's."""
    return (1.0 if slope[0] >= 0 else -1.0) * jacobian[0]


def twice_at_zero(slope, jacobian):
    return (2.0 if slope[0] == 0 else np.sign(slope[0])) * jacobian[0]


@pytest.mark.parametrize("wrong", [without_sign, by_the_slope, one_at_zero, twice_at_zero])
def test_a_wrong_scalar_rule_is_noticed(wrong):
    assert subgradient_scalar(modulus_rule=wrong).verdict == "not verified"


def test_at_zero_length_one_is_allowed_and_length_two_is_not():
    quotient = "smallest Fréchet quotient of |S_0|"
    assert row(subgradient_scalar(modulus_rule=one_at_zero), quotient).left > -1e-5
    assert not row(subgradient_scalar(modulus_rule=twice_at_zero), quotient).agrees


def sign_of_every_component(slope, jacobian):
    """The subgradient of sum_j |S_j|."""
    return np.sign(slope) @ jacobian


def not_a_number_at_zero(slope, jacobian):
    with np.errstate(invalid="ignore"):
        return slope @ jacobian / np.linalg.norm(slope)


@pytest.mark.parametrize("wrong", [by_the_slope, sign_of_every_component, not_a_number_at_zero])
def test_a_wrong_vector_rule_is_noticed(wrong):
    assert subgradient_vector(modulus_rule=wrong).verdict == "not verified"


def without_the_two(risks, moduli, subgradients, mu, weight):
    return mu @ risks + weight * (mu @ moduli) * (mu @ subgradients)


def square_inside(risks, moduli, subgradients, mu, weight):
    return mu @ risks + 2 * weight * (mu * moduli) @ subgradients


def without_the_measure(risks, moduli, subgradients, mu, weight):
    even = np.full_like(mu, 1 / len(mu))
    return mu @ risks + 2 * weight * (even @ moduli) * (even @ subgradients)


@pytest.mark.parametrize("classifier", list(BOTH))
@pytest.mark.parametrize("wrong", [without_the_two, square_inside, without_the_measure])
def test_a_wrong_objective_rule_is_noticed(wrong, classifier):
    found = BOTH[classifier](objective_rule=wrong)
    assert found.verdict == "not verified"
    assert not row(found, "the objective: relative error").agrees


def test_the_error_falls_with_the_square_of_the_step(found):
    for finding in found.values():
        errors = finding.draw().axes[0]
        for line in errors.lines[:4]:
            h, error = line.get_data()
            np.testing.assert_array_equal(h, STEPS)
            assert error[1] / error[2] == pytest.approx(100, rel=0.02)


def test_autograd_gives_the_same(found):
    assert all(row(f, "backpropagation").left < 1e-12 for f in found.values())


def test_quotients_of_the_absolute_value():
    moves = np.array([[1e-3], [-1e-3]])
    for v, smallest in ((0.0, 1.0), (0.5, 0.5), (-1.0, 0.0), (1.5, -0.5)):
        quotients = frechet_quotients(np.abs(moves[:, 0]), 0.0, np.array([v]), moves)
        assert quotients.min() == pytest.approx(smallest)


def test_a_relu_can_leave_no_subgradient(found):
    left, right = concave_kink()
    assert left == pytest.approx(0.0) and right == pytest.approx(-6.0, abs=1e-4)
    assert not row(found["scalar"], "ReLU").agrees
    # f = w_1 relu(b) - w_2: |S| = 2 (2 - relu(b)) sqrt(1 + relu(b)^2) falls by 2 to the right of b = 0
    assert concave_kink(vector=True) == pytest.approx((0.0, -2.0), abs=1e-4)
    assert not row(found["vector"], "ReLU").agrees and row(found["vector"], "ReLU").role == "beyond"


def test_another_seed_says_the_same():
    assert subgradient_scalar(seed=1).verdict == "holds under its condition"
    assert subgradient_vector(seed=1).verdict == "holds under its condition"


def test_the_figures(found):
    _, kink, flat = found["scalar"].draw().axes
    line, modulus = kink.lines[0].get_data()
    assert modulus[len(line) // 2] == 0.0 and modulus[0] > 0.1 < modulus[-1]
    assert len(flat.lines) == 2
    _, cone, circle = found["vector"].draw().axes
    assert cone.collections and [bool((c.get_ydata() < 0).any()) for c in circle.lines[:3]] == [False, False, True]


def test_a_penalty_weight_of_zero_is_refused():
    with pytest.raises(ValueError, match="penalty_weight must be a positive number"):
        subgradient_scalar(penalty_weight=0.0)
