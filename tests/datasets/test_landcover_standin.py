"""The stand-in of Landcover: its limit three ways, what is drawn counted, and a network that needs invariance."""

from __future__ import annotations

import doctest
import json

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from scipy.stats import multivariate_normal

from irmtv import Task
from irmtv.core.losses import Multiclass
from irmtv.datasets import landcover_standin
from irmtv.datasets.landcover_standin import (
    AFRICAN_BANDS,
    climate_profiles,
    land_profiles,
    landcover_standin_limit,
    make_landcover_standin,
)

MANY = 30_000


@pytest.fixture(scope="module")
def task():
    return make_landcover_standin(2000, random_state=0, n_test=1000)


@pytest.fixture(scope="module")
def many():
    return make_landcover_standin(MANY, random_state=1, n_test=4 * 6000, land=3.0)


def recognised(rows, profiles, bands):
    """The profile with the greatest product: (N,)."""
    return np.einsum("nbt,kbt->nk", rows.x.numpy()[:, bands].astype(float), profiles).argmax(1)


def test_shapes(task):
    assert isinstance(task, Task) and isinstance(task.loss, Multiclass) and task.n_outputs == 6
    assert task.train.x.shape == (2000, 8, 46) and task.test.x.shape == (1000, 8, 46)
    assert task.train.x.dtype == torch.float32 and task.train.y.dtype == torch.int64
    assert task.train.aux.shape == (2000, 2) and task.train.aux.dtype == torch.float64
    assert task.train.names == ("north", "south")
    assert task.test.names == ("iid", "africa north", "africa middle", "africa south")
    assert torch.bincount(task.train.environment).tolist() == [1000, 1000]
    assert torch.bincount(task.test.environment).tolist() == [250] * 4
    odd = make_landcover_standin(7, random_state=0, n_test=6)
    assert torch.bincount(odd.train.environment).tolist() == list(odd.card["n_train"].values())
    assert sorted(torch.bincount(odd.test.environment).tolist()) == [1, 1, 2, 2]


def test_profiles_are_orthonormal():
    for profiles, bands in ((land_profiles(), 5), (climate_profiles(), 3)):
        assert profiles.shape == (6, bands, 46)
        flat = profiles.reshape(6, -1)
        np.testing.assert_allclose(flat @ flat.T, np.eye(6), atol=1e-12)


def test_where_the_rows_are(task):
    latitude, longitude = task.train.aux.T
    assert torch.equal(task.train.environment == 1, latitude < 0)
    assert not ((longitude > -20) & (longitude < 55)).any()
    for e, name in enumerate(task.test.names):
        latitude, longitude = task.test.aux[task.test.environment == e].T
        if name == "iid":
            assert latitude.min() < -20 and latitude.max() > 20
            assert not ((longitude > -20) & (longitude < 55)).any()
        else:
            low, high = AFRICAN_BANDS[name]
            assert low <= latitude.min() and latitude.max() <= high
            assert longitude.min() >= -17 and longitude.max() <= 51


def test_how_often_land_and_climate_tell_the_class():
    """With profiles so strong that they are always recognised."""
    drawn = make_landcover_standin(MANY, random_state=2, n_test=4 * 6000, land=40.0, climate=60.0)
    for rows, agreement in ((drawn.train, None), (drawn.test, (None, 0.5, 1 / 6, 0.0))):
        y, latitude = rows.y.numpy(), rows.aux[:, 0].numpy()
        land = recognised(rows, land_profiles(), slice(0, 5)) == y
        climate = recognised(rows, climate_profiles(), slice(5, 8)) == y
        np.testing.assert_allclose(np.bincount(y) / len(y), 1 / 6, atol=0.01)
        for e in range(len(rows.names)):
            here = rows.environment.numpy() == e
            assert abs(land[here].mean() - 0.8) < 0.02
            if agreement is not None and agreement[e] is not None:
                assert abs(climate[here].mean() - agreement[e]) < 0.02
        if agreement is None:
            assert abs(climate[latitude > 25].mean() - 0.95) < 0.01
            assert abs(climate[latitude < -25].mean() - 0.7) < 0.02
            near = np.abs(latitude) < 2
            assert 0.75 < climate[near].mean() < 0.9  # between
            # given the class, land and climate know nothing of each other
            assert abs(np.corrcoef(land, climate)[0, 1]) < 0.02


# ---- the limit


@pytest.mark.parametrize(("p_v", "land"), [(0.8, 3.0), (1.0, 1.0), (0.5, 2.0)])
def test_the_limit_is_what_the_best_rule_reaches(p_v, land):
    """The rule: the likelihood of every class, mixtures and all, on many rows."""
    rows = make_landcover_standin(2, random_state=3, n_test=4 * 8000, p_v=p_v, land=land).test
    products = np.einsum("nbt,kbt->nk", rows.x.numpy()[:, :5].astype(float), land_profiles()) * land  # log-likelihoods
    of_land = np.exp(products - products.max(1, keepdims=True))
    of_class = p_v * of_land + (1 - p_v) / 5 * (of_land.sum(1, keepdims=True) - of_land)
    right = of_class.argmax(1) == rows.y.numpy()
    limit = landcover_standin_limit(p_v, land)
    assert abs(right.mean() - limit) < 3.5 * np.sqrt(limit * (1 - limit) / len(right))
    for e in range(4):
        here = right[rows.environment.numpy() == e]
        assert abs(here.mean() - limit) < 3.5 * np.sqrt(limit * (1 - limit) / len(here))


def test_the_limit_by_another_integral():
    """P(all five differences of the true product and the others are positive): a normal orthant probability."""
    for land in (0.5, 2.0, 4.0):
        orthant = multivariate_normal(np.full(5, land), np.eye(5) + 1, seed=0, abseps=1e-7, maxpts=10**6)
        right = orthant.cdf(np.full(5, 2 * land))  # by symmetry: P(D > 0) = P(D < 2 mean)
        assert abs(landcover_standin_limit(1.0, land) - right) < 1e-4
        z = np.linspace(-12, 12, 20_001)
        by_sum = np.exp(-0.5 * z**2) @ ndtr(z + land) ** 5 * (z[1] - z[0]) / np.sqrt(2 * np.pi)
        assert abs(landcover_standin_limit(1.0, land) - by_sum) < 1e-9
        for p_v in (0.3, 0.9):
            expected = p_v * by_sum + (1 - p_v) * (1 - by_sum) / 5
            assert abs(landcover_standin_limit(p_v, land) - expected) < 1e-9


def test_the_limit_at_its_ends():
    assert abs(landcover_standin_limit(1.0, 0.0) - 1 / 6) < 1e-9
    assert abs(landcover_standin_limit(0.8, 30.0) - 0.8) < 1e-9
    assert abs(landcover_standin_limit(0.8, 300.0) - 0.8) < 1e-9


def test_the_field_tells_nothing_of_the_class(many):
    """Climate bands minus the climate: the same mean for all classes."""
    rows = many.test.take(many.test.environment == 2)  # where the climate tells nothing
    means = np.stack([rows.x[rows.y == k][:, 5:].mean((0, 2)).numpy() for k in range(6)])
    assert np.abs(means - means.mean(0)).max() < 0.06


# ---- random numbers, errors


def test_seeds():
    a, b = (make_landcover_standin(50, random_state=5, n_test=n) for n in (8, 40))
    assert torch.equal(a.train.x, b.train.x) and a.card["random_state"] == 5
    assert not torch.equal(a.train.x, make_landcover_standin(50, random_state=6, n_test=8).train.x)
    assert torch.equal(a.test.x, make_landcover_standin(70, random_state=5, n_test=8).test.x)
    generator = np.random.default_rng(5)
    one, two = (make_landcover_standin(50, random_state=generator, n_test=8) for _ in range(2))
    assert torch.equal(one.train.x, a.train.x) and not torch.equal(one.train.x, two.train.x)
    assert one.card["random_state"] is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"n_samples": 1}, "n_samples must be an integer of at least 2"),
        ({"n_test": 3}, "n_test must be an integer of at least 4"),
        ({"p_s": 0.9}, r"p_s must hold 2 probabilities, .* for the north and the south\. Got 0\.9"),
        ({"p_s": (0.9, 1.2)}, "p_s must hold 2"),
        ({"p_s": (0.9, 0.8, 0.7)}, "p_s must hold 2"),
        ({"p_s": "ab"}, "p_s must hold 2"),
        ({"test_p_s": (0.9, 0.8)}, "test_p_s must hold 3"),
        ({"p_v": 0.1}, "p_v must be a probability above 1/6"),
        ({"p_v": 80}, "0.8, not 80"),
        ({"p_v": "high"}, "p_v must be a probability"),
        ({"land": -1.0}, "land must be a finite number of at least 0"),
        ({"climate": float("inf")}, "climate must be a finite number"),
        ({"climate": [1]}, "climate must be a finite number"),
        ({"random_state": -1}, "random_state must be None"),
    ],
)
def test_errors(arguments, says):
    with pytest.raises(ValueError, match=says):
        make_landcover_standin(**arguments)


def test_the_card(task):
    needed = {
        "description", "source", "licence", "citation", "n_train", "n_test", "random_state", "shift", "looks_at_test",
        "differs_from_paper", "limits", "columns", "aux", "limit",
    }  # fmt: skip
    assert needed <= set(task.card)
    assert task.card["n_train"] == {"north": 1000, "south": 1000}
    assert task.card["n_test"] == dict.fromkeys(task.test.names, 250)
    assert task.card["limit"] == landcover_standin_limit(0.8, 6.0)
    assert len(task.card["columns"]) == 8 and task.name == "landcover-standin"
    json.dumps(task.card)


# ---- what it is for


def least_squares(rows, bands):
    """A linear classifier of the series, by least squares on all rows: (D + 1, 6)."""
    x = rows.x[:, bands].flatten(1).double()
    design = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)
    ridge = 10 * torch.eye(design.shape[1], dtype=torch.float64)
    return torch.linalg.solve(design.T @ design + ridge, design.T @ torch.eye(6, dtype=torch.float64)[rows.y])


def accuracies(coef, rows, bands):
    x = rows.x[:, bands].flatten(1).double()
    right = ((x @ coef[:-1] + coef[-1]).argmax(1) == rows.y).double()
    return [float(right[rows.environment == e].mean()) for e in range(len(rows.names))]


def test_who_leans_on_the_climate_loses_in_africa_and_who_does_not_keeps_the_limit():
    task = make_landcover_standin(MANY // 3, random_state=4, n_test=4 * 2000)
    everything, land = slice(0, 8), slice(0, 5)
    plain = accuracies(least_squares(task.train, everything), task.test, everything)
    invariant = accuracies(least_squares(task.train, land), task.test, land)
    assert plain[0] > task.card["limit"] + 0.01  # it pays in training
    assert plain[1] > plain[2] > plain[3] and plain[3] < 0.5
    assert min(invariant) > task.card["limit"] - 0.06 and max(invariant) < task.card["limit"] + 0.03


def test_latitude_tells_the_environments(many):
    """Which half of the rows the climate fits better can be seen from the latitude: what inference needs."""
    rows = many.train
    fits = recognised(rows, climate_profiles(), slice(5, 8)) == rows.y.numpy()
    north = rows.aux[:, 0].numpy() > 0
    assert fits[north].mean() > fits[~north].mean() + 0.15


def test_docstring_examples():
    outcome = doctest.testmod(landcover_standin)
    assert outcome.attempted == 5
    assert outcome.failed == 0
