"""Tests of means whose standard errors come from few rows: against textbook tests of the rows, and calibration."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from irmtv.selection import equal_means, extrapolated_risk, p_values, zero_means
from irmtv.selection.equality import enough_rows
from irmtv.selection.records import Pooled
from irmtv.selection.views import MIN_ROWS, ROWS_PER_ROOT
from selection.candidates import random_covariance, two


def measured(groups):
    """Means, squared standard errors and numbers of rows, (1, E) each."""
    return (
        two([[g.mean() for g in groups]]),
        two([[g.var(ddof=1) / len(g) for g in groups]]),
        two([[len(g) for g in groups]]),
    )


def welch_by_hand(groups):
    """Of the rows, by loops: B. L. Welch 1951."""
    k = len(groups)
    w = [len(g) / np.var(g, ddof=1) for g in groups]
    middle = sum(a * np.mean(g) for a, g in zip(w, groups, strict=True)) / sum(w)
    between = sum(a * (np.mean(g) - middle) ** 2 for a, g in zip(w, groups, strict=True)) / (k - 1)
    unsure = sum((1 - a / sum(w)) ** 2 / (len(g) - 1) for a, g in zip(w, groups, strict=True))
    return stats.f.sf(between / (1 + 2 * (k - 2) * unsure / (k**2 - 1)), k - 1, (k**2 - 1) / (3 * unsure))


def some_groups(rng, environments):
    sizes = rng.integers(3, 30, environments)
    return [rng.normal(0.3 * rng.normal(), rng.gamma(3.0), n) for n in sizes]


@pytest.mark.parametrize("environments", [2, 3, 7, 40])
def test_diagonal_with_rows_is_welchs_analysis_of_variance(environments):
    rng = np.random.default_rng(environments)
    for _ in range(5):
        groups = some_groups(rng, environments)
        p = equal_means(*measured(groups)).item()
        assert p == pytest.approx(welch_by_hand(groups), rel=1e-6)
        if "equal_var" in inspect.signature(stats.f_oneway).parameters:
            assert p == pytest.approx(stats.f_oneway(*groups, equal_var=False).pvalue, rel=1e-6)
        if environments == 2:
            assert p == pytest.approx(stats.ttest_ind(*groups, equal_var=False).pvalue, rel=1e-6)


def test_one_environment_against_zero_is_the_t_test():
    rng = np.random.default_rng(0)
    for n in (2, 5, 30):
        rows = rng.normal(0.4, 1, n)
        assert zero_means(*measured([rows])).item() == pytest.approx(stats.ttest_1samp(rows, 0).pvalue, rel=1e-6)


@pytest.mark.parametrize("test", [equal_means, zero_means])
def test_many_rows_are_chi_square_and_few_are_less_sure(test):
    rng = np.random.default_rng(1)
    mean, var = two(2 * rng.normal(size=(20, 5))), two(rng.gamma(2.0, size=(20, 5)))
    plain = test(mean, var)
    for many in (1e9, np.inf):
        np.testing.assert_allclose(test(mean, var, torch.full((5,), many)), plain, rtol=1e-3)  # scipy before 1.17: 4e-4
    far = plain < 0.05
    assert far.any() and (test(mean, var, torch.full((20, 5), 8.0))[far] > 1.05 * plain[far]).all()


@pytest.mark.parametrize("test", [equal_means, zero_means])
def test_environments_without_a_mean_or_a_second_row_drop_out(test):
    rng = np.random.default_rng(2)
    mean, var, rows = two(rng.normal(size=(6, 3))), two(rng.gamma(2.0, size=(6, 3))), two(rng.integers(2, 40, (6, 3)))
    expected = test(mean, var, rows)
    for m, v, n in (
        (np.nan, 1.0, 9.0),
        (5.0, np.nan, 9.0),
        (5.0, 1e-4, 1.0),
        (5.0, 1e-4, 0.0),
        (np.nan, np.nan, np.nan),
    ):
        wider = [torch.cat([a, torch.full((6, 1), b)], 1) for a, b in ((mean, m), (var, v), (rows, n))]
        np.testing.assert_allclose(test(*wider), expected, rtol=1e-9)
    alone = torch.where(torch.arange(3) == 0, mean, torch.nan)
    assert test(alone, var, rows).isnan().all() == (test is equal_means)
    assert test(torch.full((6, 3), torch.nan), var, rows).isnan().all()


def test_no_variance_is_handled_as_without_rows():
    nothing, rows = torch.zeros(1, 3), torch.full((1, 3), 50.0)
    assert equal_means(torch.full((1, 3), 0.6931), nothing, rows) == 1
    assert zero_means(torch.zeros(1, 3), nothing, rows) == 1
    assert equal_means(torch.tensor([[0.5, 0.6, 0.5]]), nothing, rows) < 1e-9
    assert zero_means(torch.full((1, 3), 0.5), nothing, rows) < 1e-9


@pytest.mark.parametrize("test", [equal_means, zero_means])
def test_shared_rows_keep_chi_square_and_components_are_tested_one_by_one(test):
    rng = np.random.default_rng(3)
    mean, full = two(0.3 * rng.normal(size=(6, 3, 4))), [random_covariance(rng, 6, 3) for _ in range(4)]
    rows, cov = two(rng.integers(5, 30, (6, 3))), two(np.stack(full, -1))
    assert torch.equal(test(mean, cov, rows), test(mean, cov))
    var = cov.diagonal(dim1=1, dim2=2).swapaxes(1, 2)  # (C, E, J)
    parts = torch.stack([test(mean[..., j], var[..., j], rows) for j in range(4)])
    np.testing.assert_allclose(test(mean, var, rows), (4 * parts.amin(0)).clamp_max(1))
    assert not torch.allclose(test(mean, var, rows), test(mean, var))


# Which environments have enough rows


@given(st.lists(st.sampled_from([0.0, 5.0, 20.0, 21.0, 30.0, 35.5, 60.0]), min_size=1, max_size=40))
@settings(deadline=None, max_examples=60)
def test_the_largest_environments_as_many_as_their_rows_allow(rows):
    taken = enough_rows(two([rows]), 20, 7.0)[0].numpy()
    best = 0
    for k in range(1, len(rows) + 1):
        smallest = sorted(rows)[-k]
        best = k if smallest >= 20 and smallest >= 7.0 * np.sqrt(k) else best
    assert taken.sum() == best
    if 0 < best < len(rows):
        assert np.array(rows)[taken].min() >= np.array(rows)[~taken].max()


def test_how_many_of_equal_size_are_tested():
    def number(environments, rows):
        return int(enough_rows(torch.full((1, environments), float(rows)), MIN_ROWS, ROWS_PER_ROOT).sum())

    assert [number(8, 20), number(100, 70), number(2, 1000)] == [8, 100, 2]  # all
    assert [number(10, 20), number(100, 20), number(100, 30), number(300, 50)] == [8, 8, 18, 51]
    assert number(100, 19) == 0
    assert enough_rows(two([20.0, 20.0, 19.0, np.nan]), MIN_ROWS, ROWS_PER_ROOT).tolist() == [True, True, False, False]


def test_the_spread_is_of_all_environments_and_the_test_of_the_largest():
    risk, var = torch.full((1, 12), 0.5, dtype=torch.float64), torch.full((1, 12), 1e-4, dtype=torch.float64)
    risk[0, -1] = 0.9
    for rows, tested in ((20.0, False), (25.0, True)):  # 8 of 12, and 12 of 12: sqrt(12) * 7 = 24.2
        n = torch.full((1, 12), rows)
        pooled = Pooled(rows=n, risk=risk, risk_cov=var, slope=risk, slope_cov=var, overall=two([0.5]))
        for test in ("risks", "slopes", "both"):
            assert (p_values(pooled, test) < 1e-9).item() == tested
            assert extrapolated_risk(pooled, test, 1.0, 0.5) > 0.6


# Calibration: rejected at level 0.01 though all means are equal

KINDS = ("normal", "log loss", "squared")


def single_rows(kind, rng, shape):
    if kind == "log loss":  # of a right model of two classes, one feature
        y = rng.integers(0, 2, shape)
        return np.log1p(np.exp(-(2 * y - 1) * (y + rng.normal(size=shape) - 0.5)))
    x = rng.normal(size=shape)
    return x if kind == "normal" else x**2 - 1


def drawn(kind, environments, n, repeats, seed=0):
    rng = np.random.default_rng(seed)
    parts = [single_rows(kind, rng, (100, environments, n)) for _ in range(repeats // 100)]
    mean = two(np.concatenate([x.mean(-1) for x in parts]))
    var = two(np.concatenate([x.var(-1, ddof=1) / n for x in parts]))
    return mean, var, torch.full_like(mean, n)


def share(p):
    assert p.isfinite().all()
    return (p < 0.01).double().mean().item()


# environments, rows, draws; what chi-square rejects at least, Welch and p_values at most, by kind of rows
CASES = [
    (2, 1000, 1000, (0.00, 0.00, 0.00), (0.02, 0.02, 0.02), (0.02, 0.02, 0.02)),
    (10, 20, 2000, (0.02, 0.03, 0.06), (0.02, 0.03, 0.055), (0.02, 0.03, 0.045)),
    (100, 20, 1000, (0.06, 0.17, 0.48), (0.02, 0.09, 0.36), (0.02, 0.03, 0.05)),
    (100, 30, 1000, (0.03, 0.08, 0.29), (0.02, 0.07, 0.23), (0.02, 0.04, 0.075)),
    (300, 50, 400, (0.02, 0.06, 0.33), (0.03, 0.07, 0.32), (0.025, 0.05, 0.11)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}x{c[1]}")
@pytest.mark.parametrize("kind", KINDS)
def test_how_often_equal_means_are_rejected(case, kind):
    """Long runs of 2,000 to 4,000 draws (chi-square, Welch, and p_values, which leaves out what is too small), in %:

    10 x 20: normal 2.9, 1.3, 1.3; log losses 4.7, 2.1, 1.9; squared 7.6, 3.8, 2.9.
    100 x 20: 8.8, 1.2, 0.7; 21, 6.7, 1.9; 54, 31, 3.1. 100 x 30: 5.2, 1.3, 1.4; 11, 4.8, 2.3; 34, 19, 5.6.
    300 x 50: 4.2, 1.2, 0.5; 11, 4.2, 2.7; 40, 25, 7.7. 2 x 1,000: all 0.8 to 1.0.
    """
    environments, n, repeats, *bounds = case
    of_chi_square, of_welch, of_rule = (b[KINDS.index(kind)] for b in bounds)
    mean, var, rows = drawn(kind, environments, n, repeats)
    pooled = Pooled(rows=rows, risk=mean, risk_cov=var, slope=mean, slope_cov=var, overall=mean.mean(-1))
    assert share(equal_means(mean, var)) >= of_chi_square
    assert share(equal_means(mean, var, rows)) <= of_welch
    assert share(p_values(pooled, "risks")) <= of_rule
    assert share(p_values(pooled, "slopes")) <= of_rule
    if kind == "normal":
        assert share(zero_means(mean, var, rows)) <= 0.025


def test_p_is_uniform_for_normal_rows_with_unequal_noise():
    rng = np.random.default_rng(7)
    sizes, scatter = rng.integers(15, 40, 30), rng.uniform(0.5, 3, 30)
    draws = [s * rng.normal(size=(2000, n)) for n, s in zip(sizes, scatter, strict=True)]
    mean = two(np.stack([d.mean(1) for d in draws], 1))
    var = two(np.stack([d.var(1, ddof=1) / n for d, n in zip(draws, sizes, strict=True)], 1))
    for test in (equal_means, zero_means):
        assert stats.kstest(test(mean, var, two(sizes)), "uniform").pvalue > 0.01
        assert stats.kstest(test(mean, var), "uniform").pvalue < 1e-6
