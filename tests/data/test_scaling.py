"""Standardisation against NumPy, also where numbers are large, far from 0, or constant."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from irmtv.data import scaling
from irmtv.data.scaling import Scaler


@pytest.mark.parametrize(("shift", "scale"), [(0, 1), (1e9, 1), (0, 1e-200), (0, 1e200), (-3e4, 1e-3)])
def test_columns_have_mean_0_and_deviation_1(shift, scale):
    values = shift + scale * np.random.default_rng(0).normal(size=(500, 3))
    z = Scaler.of(values)(values)
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(z.std(0), 1, rtol=1e-6)
    np.testing.assert_allclose(Scaler.of(values).back(z), values, rtol=1e-12)


def test_weights_count_rows():
    values = np.random.default_rng(0).normal(size=(50, 2))
    weight = np.arange(50) % 3
    one, two = Scaler.of(values, weight.astype(float)), Scaler.of(np.repeat(values, weight, 0))
    np.testing.assert_allclose(one.mean, two.mean)
    np.testing.assert_allclose(one.scale, two.scale)


def test_a_constant_column_becomes_0():
    values = np.full((30, 1), 0.1) * np.array([1.0, 1e20])
    scaler = Scaler.of(values)
    np.testing.assert_array_equal(scaler.scale, np.inf)
    np.testing.assert_array_equal(scaler(values), 0)
    np.testing.assert_array_equal(scaler(values + 7), 0)  # training does not say what another value means
    np.testing.assert_array_equal(Scaler.of(values, constant=1.0).back(np.zeros((30, 2))), values)
    # constant among the rows that count
    among = Scaler.of(np.r_[5.0, np.ones(29)][:, None], np.r_[0, np.ones(29)])
    np.testing.assert_array_equal([among.mean[0], among.scale[0]], [1, np.inf])


def test_series_have_a_scale_per_channel():
    values = np.random.default_rng(0).normal(size=(40, 2, 7)) * np.array([1.0, 100])[:, None] + 3
    scaler = Scaler.of(values, np.arange(40) % 2 + 0.0)
    used = values[1::2]
    np.testing.assert_allclose(scaler.mean[:, 0], used.mean((0, 2)))
    np.testing.assert_allclose(scaler.scale[:, 0], used.std((0, 2)))
    assert scaler(values).shape == values.shape


def test_many_numbers_are_scaled_in_blocks_with_the_same_result(monkeypatch):
    values = np.random.default_rng(0).normal(size=(40, 7)) * np.arange(1.0, 8.0) + 3
    weight = np.arange(40) % 4 + 1.0
    whole = Scaler.of(values, weight)
    monkeypatch.setattr(scaling, "BLOCK", 80)  # eleven rows at a time
    blocks = Scaler.of(values, weight)
    np.testing.assert_allclose(blocks.mean, whole.mean, rtol=1e-14)
    np.testing.assert_allclose(blocks.scale, whole.scale, rtol=1e-14)
    np.testing.assert_array_equal(whole.tensor(values, torch.float64, rows=9).numpy(), whole(values))
