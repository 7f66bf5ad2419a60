"""Moments that are added up are those of all rows at once."""

from __future__ import annotations

import numpy as np
import pytest

from irmtv.data.moments import Moments
from irmtv.data.scaling import Scaler


def added(values, sizes):
    moments = Moments()
    for part in np.split(values, np.cumsum(sizes)[:-1]):
        moments.add(part)
    return moments


@pytest.mark.parametrize("factor", [1.0, 1e-200, 1e150])
def test_the_scaler_of_blocks_is_that_of_all_rows(factor):
    rng = np.random.default_rng(0)
    values = np.c_[rng.normal(size=500), 1e9 + rng.normal(size=500), np.full(500, 7.0), rng.normal(size=500) ** 9]
    values = values * factor
    whole, blocks = Scaler.of(values), added(values, [1, 0, 300, 99, 100]).scaler()
    np.testing.assert_allclose(blocks.mean, whole.mean, rtol=1e-11)
    np.testing.assert_allclose(blocks.scale, whole.scale, rtol=1e-12)
    assert blocks.mean[2] == whole.mean[2] and np.isinf(blocks.scale[2])


def test_single_precision_is_added_in_double():
    values = np.random.default_rng(0).normal(size=(1000, 2)).astype(np.float32)
    moments = added(values, [400, 600])
    np.testing.assert_allclose(moments.mean, values.astype(np.float64).mean(0), rtol=1e-13)
    np.testing.assert_allclose(moments.deviation, values.astype(np.float64).std(0), rtol=1e-13)
    assert moments.scaler(constant=1.0).scale.dtype == np.float64


@pytest.mark.parametrize("factor", [1.0, 1e-200, 1e150])
def test_moments_that_were_added_up_apart_are_joined(factor):
    rng = np.random.default_rng(0)
    values = (
        np.c_[rng.normal(size=500), 1e9 + rng.normal(size=500), np.full(500, 7.0), rng.normal(size=500) ** 9] * factor
    )
    joined = Moments()
    for part in (values[:0], values[:1], values[1:300], values[300:]):
        joined.join(added(part, [len(part)]))
    whole, own = Scaler.of(values), joined.scaler()
    np.testing.assert_allclose(own.mean, whole.mean, rtol=1e-11)
    np.testing.assert_allclose(own.scale, whole.scale, rtol=1e-12)
    assert joined.n == 500 and joined.low.tolist() == values.min(0).tolist()
