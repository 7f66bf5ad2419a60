"""Noise by counting: distributions, independence along every axis, and the same numbers alone and in a batch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from irmtv.engine.context import MASK, Noise, _mix

CPU = torch.device("cpu")
F64 = torch.float64


def draws(seeds=(0,), steps=range(1), n=1, stream=0, kind="uniform", dtype=F64):
    """(R, steps, n)."""
    noise = Noise(list(seeds), CPU, stream)
    return torch.stack([getattr(noise, kind)(step, (n,), dtype) for step in steps], 1)


# (seeds, steps, places) that a hundred thousand numbers are spread over
SPREADS = {
    "places": (range(1), range(7, 8), 100_000),
    "steps": (range(1), range(1000), 100),
    "runs": (range(1000), range(3, 4), 100),
    "runs and steps": (range(100), range(1000), 1),
}


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize(
    ("kind", "law", "variance"),
    [("uniform", stats.uniform, 1 / 12), ("normal", stats.norm, 1.0), ("logistic", stats.logistic, np.pi**2 / 3)],
)
def test_moments_and_law(spread, kind, law, variance):
    x = draws(*SPREADS[spread], kind=kind).flatten().numpy()
    mean = 0.5 if kind == "uniform" else 0.0
    assert abs(x.mean() - mean) < 4 * np.sqrt(variance / len(x))
    fourth = law.stats(moments="k") + 3
    assert abs(x.var() - variance) < 4 * variance * np.sqrt((fourth - 1) / len(x))
    assert stats.kstest(x, law.cdf).pvalue > 1e-3


def test_all_bits_are_fair():
    """A hash whose last bits are poor would still pass the tests above."""
    x = draws(range(20), range(50), 100).flatten()
    bits = (x * 2**23).long()
    for bit in range(23):
        share = (bits >> bit & 1).double().mean().item()
        assert abs(share - 0.5) < 4.5 * 0.5 / np.sqrt(len(bits))


def correlation(a, b):
    """In units of its standard deviation under independence."""
    return abs(np.corrcoef(a.flatten(), b.flatten())[0, 1]) * np.sqrt(a.numel())


@pytest.mark.parametrize("apart", [1, 2, 16, 256])
@pytest.mark.parametrize("along", ["runs", "steps", "places"])
def test_neighbours_are_independent(along, apart):
    axis = {"runs": 0, "steps": 1, "places": 2}[along]
    sizes = [40, 40, 40]
    sizes[axis] = 40 + apart
    x = draws(range(sizes[0]), range(sizes[1]), sizes[2])
    a, b = x.narrow(axis, 0, 40), x.narrow(axis, apart, 40)
    assert correlation(a, b) < 4.5
    assert correlation((a - 0.5).square(), (b - 0.5).square()) < 4.5  # nor are their sizes related
    pairs = np.histogram2d(a.flatten(), b.flatten(), 8, [[0, 1], [0, 1]])[0]
    assert stats.chisquare(pairs.flatten()).pvalue > 1e-4
    assert (a == b).double().mean() < 1e-3


@pytest.mark.parametrize("other", [1, 2, 0x5BA5])
def test_streams_of_one_run_are_independent(other):
    a, b = draws(range(40), range(40), 40), draws(range(40), range(40), 40, stream=other)
    assert correlation(a, b) < 4.5
    assert (a == b).double().mean() < 1e-3


def test_a_step_is_not_another_runs_step_later():
    """Seeds, steps, places and streams that differ by one in two axes at once give no numbers twice."""
    x = draws(range(6), range(6), 64)
    fields = [x[r, t] for r, t in itertools.product(range(6), range(6))]
    fields += list(draws(range(6), range(6), 64, stream=1).flatten(0, 1))
    for a, b in itertools.combinations(fields, 2):
        assert not torch.isin(a[:-1], b[1:]).double().mean() > 0.1
        assert not torch.equal(a, b)


def test_seeds_above_32_bits_count_with_all_their_bits():
    seeds = [5, 5 + 2**32, 5 + 2**33, 5 + 2**40, 2**62 + 5, 2**63 - 1, 2**31 - 1, 0]
    x = draws(seeds, range(20), 50)
    for a, b in itertools.combinations(range(len(seeds)), 2):
        assert correlation(x[a], x[b]) < 4.5
        assert not torch.equal(x[a], x[b])
    high = draws([2**32 * k for k in range(1, 101)], range(10), 100, kind="normal")
    assert stats.kstest(high.flatten().numpy(), "norm").pvalue > 1e-3


def test_the_high_half_of_a_seed_is_not_taken_for_a_stream():
    for high, stream in itertools.product((1, 2, 7), (1, 2, 7)):
        assert not torch.equal(draws([9 + high * 2**32], n=20), draws([9], n=20, stream=stream))


@pytest.mark.parametrize("kind", ["uniform", "normal", "logistic"])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_run_alone_has_the_numbers_it_has_in_a_batch(kind, dtype):
    seeds = [3, 2**40, 7, 0]
    together = draws(seeds, [0, 5, 2**31], 12, 4, kind, dtype)
    assert together.dtype == dtype
    for r, seed in enumerate(seeds):
        assert torch.equal(draws([seed], [0, 5, 2**31], 12, 4, kind, dtype)[0], together[r])


def test_the_step_may_be_a_tensor_and_the_shape_anything():
    noise = Noise([1, 2], CPU, 3)
    flat = noise.normal(6, (12,), F64)
    assert torch.equal(noise.normal(torch.tensor(6), (12,), F64), flat)
    assert torch.equal(noise.normal(6, (3, 4), F64), flat.view(2, 3, 4))
    assert torch.equal(noise.normal(6, (5,), F64), flat[:, :5])  # a place's number does not depend on how many follow
    assert noise.uniform(6, (), F64).shape == (2,)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("bits", [0, MASK])
def test_never_0_or_1(dtype, bits):
    """At the places where the hash is all zeros or all ones, found by running it backwards."""
    noise = Noise([0], CPU)
    steps = torch.arange(1 << 20)
    at_step = _mix(noise.key + _mix(steps) & MASK)
    place = unmixed(unmixed(torch.tensor(bits)) - at_step & MASK) - 0x85EBCA6B & MASK
    step, n = int(steps[place.argmin()]), int(place.min()) + 1
    assert n < 100_000
    extreme = noise.uniform(step, (n,), dtype)[0, -1]
    assert 0 < extreme < 1
    assert (extreme - float(bits > 0)).abs() < 1e-6
    assert noise.logistic(step, (n,), dtype).isfinite().all() and noise.normal(step, (n,), dtype).isfinite().all()


def unmixed(x):
    """The number whose hash is x: the steps of `_mix` undone, last first."""
    x = x ^ (x >> 16)
    x = x * pow(0x846CA68B, -1, 2**32) & MASK
    x = x ^ (x >> 15) ^ (x >> 30)
    x = x * pow(0x7FEB352D, -1, 2**32) & MASK
    return x ^ (x >> 16)


def test_the_hash_is_one_to_one():
    x = torch.randint(0, 2**32, (10_000,), generator=torch.Generator().manual_seed(0))
    assert torch.equal(unmixed(_mix(x)), x)


def test_the_hash_changes_half_of_the_bits():
    x = torch.randint(0, 2**32, (2_000,), generator=torch.Generator().manual_seed(1))
    for bit in range(32):
        changed = _mix(x) ^ _mix(x ^ (1 << bit))
        shares = torch.stack([(changed >> b & 1).double().mean() for b in range(32)])
        assert (shares - 0.5).abs().max() < 0.1
