"""What the statements share: equalities of many numbers, statistics, fitted orders."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import expit

from irmtv.core.losses import Binary
from irmtv.core.membership import Codes
from irmtv.lab.theory.sides import fitted_order, length, slope_penalties, statistics_of
from irmtv.objectives.irm_tv_l1 import tv_l1
from irmtv.objectives.irm_tv_l2 import tv_l2


def test_statistics_are_means_over_the_rows_of_an_environment():
    f = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64)
    y = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    e = statistics_of(Binary(), f, y, Codes(torch.tensor([[[0, 0, 1]]]), 2))
    loss = np.logaddexp(0, np.array([-0.5, -1.0, 2.0]))
    slope = (expit(f[0].numpy()) - y.numpy()) * f[0].numpy()
    assert e.risk[0].tolist() == pytest.approx([loss[:2].mean(), loss[2]])
    assert e.slope[0].tolist() == pytest.approx([slope[:2].mean(), slope[2]])


def test_penalties_of_given_slopes_by_hand():
    """Slopes 1, -3 with masses 1/4, 3/4: (10/4)^2 and 28/4."""
    assert slope_penalties(np.array([1.0, -3.0]), np.array([0.25, 0.75]), tv_l1, tv_l2) == pytest.approx((6.25, 7.0))


def test_the_order_is_that_of_a_power():
    assert fitted_order((10, 20, 40), [1.0, 0.25, 0.0625]) == pytest.approx(2)
    assert np.isnan(fitted_order((10, 20), [1.0, 0.0]))


def test_length_is_over_the_first_axis():
    assert length(np.array([[3.0, 0.0], [4.0, -2.0]])).tolist() == [5.0, 2.0]
