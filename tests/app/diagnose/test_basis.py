"""What classifiers of environments read."""

from __future__ import annotations

import numpy as np
import pytest

from irmtv.app.diagnose import two_sample
from irmtv.app.diagnose.two_sample import quadratic_basis


def standardised(n, d, seed=0):
    x = np.random.default_rng(seed).normal(size=(n, d))
    return (x - x.mean(0)) / x.std(0)


def test_few_columns_are_multiplied_with_one_another():
    x = standardised(500, 3)
    found = quadratic_basis(x)
    assert found.shape == (500, 3 + 6)
    product = x[:, 0] * x[:, 2]
    expected = ((product - product.mean()) / product.std()).clip(-8, 8)
    assert any(np.allclose(column, expected) for column in found.T)
    assert found[:, :3] == pytest.approx(x)


def test_of_many_columns_the_principal_components_are(monkeypatch):
    x = standardised(400, 20)
    x[:, 0] = np.where(x[:, 0] > 0, 1.0, -1.0)  # its square says nothing
    assert quadratic_basis(x).shape == (400, 20 + 19 + 16 * 17 // 2)
    monkeypatch.setattr(two_sample, "MOST_COLUMNS", 18)
    found = quadratic_basis(x)
    assert found.shape == (400, 18 + 18 + 16 * 17 // 2)
    assert np.corrcoef(found[:, :18].T) == pytest.approx(np.eye(18), abs=0.05)


def test_constant_products_are_left_out_and_extremes_drawn_in():
    signs = np.tile([-1.0, 1.0], 50)[:, None]
    assert quadratic_basis(signs).shape == (100, 1)  # the square of a sign is 1
    far = np.r_[np.zeros(999), 1.0][:, None]
    assert np.abs(quadratic_basis((far - far.mean()) / far.std())).max() == 8.0
