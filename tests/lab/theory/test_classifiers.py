"""Every classifier an environment: a parabola by hand, and the two ways to the worst measure."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from irmtv.lab.theory.classifiers import (
    adaptive_value,
    nearest_with_any_weight,
    on_classifiers,
    worst_measure,
    worst_risk,
)
from irmtv.lab.theory.sides import largest_on_simplex, uniform_measure
from irmtv.objectives.irm_tv_l1 import tv_l1
from irmtv.objectives.lambda_phi import lambda_phi


def three():
    """R(w) = w^2 + w at w = -1, 0, 2 with masses 1/2, 1/4, 1/4: risks 0, 0, 6, slopes -1, 1, 5."""
    w = torch.tensor([[-1.0, 0.0, 2.0]], dtype=torch.float64)
    return on_classifiers(lambda w: w**2 + w, w, torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64))


def test_the_statistics_of_a_parabola_by_hand():
    e = three()
    assert e.risk.tolist() == [[0, 0, 6]] and e.slope.tolist() == [[-1, 1, 5]]
    assert e.mean_risk.item() == 1.5 and worst_risk(e) == 6


def test_lambda_phi_of_the_parabola_by_hand():
    """E|S| = 1/2 + 1/4 + 5/4 = 2, so lambda_Phi = (6 - 3/2) / 4; minimax: (6 - 3/2) / 25."""
    e = three()
    weight, value = adaptive_value(e, e.mass, lambda_phi, tv_l1)
    assert weight.tolist() == [4.5 / 4] and value.tolist() == [6]
    weight, value = adaptive_value(e, worst_measure(e), lambda_phi, tv_l1)
    np.testing.assert_allclose([*weight, *value], [4.5 / 25, 6], atol=1e-15)


def test_the_cap_holds_the_weight():
    e = three()
    weight, value = adaptive_value(e, e.mass, lambda_phi, tv_l1, cap=0.5)
    assert weight.tolist() == [0.5] and value.tolist() == [3.5]


def test_the_worst_measure_is_the_linear_programs():
    for slope in np.random.default_rng(0).normal(size=(20, 1, 7)):
        by_slope = torch.as_tensor(slope)
        e = on_classifiers(by_slope.mul, torch.ones(1, 7, dtype=torch.float64), uniform_measure(7))
        largest, rho = largest_on_simplex(np.abs(slope[0]))
        np.testing.assert_allclose(worst_measure(e)[0].numpy(), rho, atol=1e-9)
        assert largest == pytest.approx(np.abs(slope).max(), abs=1e-9)


def test_the_search_over_lambda_finds_the_worst_risk_where_there_is_a_penalty():
    e = three()
    assert nearest_with_any_weight(e, e.mass, tv_l1) == pytest.approx(6, abs=1e-14)
    assert nearest_with_any_weight(e, e.mass, lambda e, mu: torch.zeros(1)) == 1.5
