"""The variation of slopes over columns: against draws, and the moments that it is made of against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from irmtv.selection.variation import POWER, slope_moments, variation
from selection.candidates import columns, of_folds, random_covariance, two, written

ROWS = [400.0, 100.0, 250.0, 50.0]


def drawn(rng, mean, cov, draws=4000):
    """Slopes (draws, E, J) around `mean` (E, J) with covariances (E, J, J), and these and rows for every draw."""
    slope = np.stack([rng.multivariate_normal(m, c, size=draws) for m, c in zip(mean, cov, strict=True)], 1)
    rows = two(ROWS[: len(mean)]).expand(draws, -1)
    return two(slope), two(cov).expand(draws, *cov.shape), rows


def true_variation(mean):
    """T of the means themselves."""
    share = np.array(ROWS[: len(mean)]) / sum(ROWS[: len(mean)])
    return (share * ((mean - share @ mean) ** 2).sum(1)).sum()


@pytest.mark.parametrize("environments", [2, 4])
@pytest.mark.parametrize("size", [2, 6])
def test_equal_slopes_have_p_values_that_are_about_uniform(environments, size):
    """Environments of other sizes, columns that hang together, the same slope everywhere (not zero)."""
    rng = np.random.default_rng(environments + size)
    cov = random_covariance(rng, environments, size) + 0.1  # correlations of a half and more
    mean = np.tile(rng.normal(size=size), (environments, 1))
    p = variation(*drawn(rng, mean, cov), level=0.01).p
    assert 0.03 < (p < 0.05).double().mean() < 0.07
    assert 0.45 < p.mean() < 0.55
    assert 0.4 < (p < 0.5).double().mean() < 0.6


def test_one_column_of_two_environments_is_the_z_test():
    slope, se = two([[[0.1], [0.3]], [[0.5], [0.5]], [[-1.0], [2.0]]]), two([0.1, 0.2])
    cov = se.square().view(1, 2, 1, 1).expand(3, -1, -1, -1)
    z = np.array([0.2, 0.0, 3.0]) / np.hypot(0.1, 0.2)
    p = variation(slope, cov, two([[300.0, 50.0]]).expand(3, -1), level=0.01).p
    np.testing.assert_allclose(p, 2 * stats.norm.sf(z))


@pytest.mark.parametrize("environments", [2, 4])
def test_the_variation_beyond_noise_is_the_true_one_on_average(environments):
    rng = np.random.default_rng(environments)
    mean, cov = 3 * rng.normal(size=(environments, 5)), random_covariance(rng, environments, 5)
    found = variation(*drawn(rng, mean, cov), level=0.01).beyond_noise.square()
    truth = true_variation(mean)
    assert found.min() > 0  # nothing was cut off at 0
    error = float(found.std()) / len(found) ** 0.5
    assert abs(float(found.mean()) - truth) < 4 * error < 0.02 * truth


def test_what_noise_adds_is_taken_off():
    """By hand: the sum of mu (1 - mu) times the variances of all columns."""
    rng = np.random.default_rng(2)
    cov = random_covariance(rng, 3, 5)
    slope, every_cov, rows = drawn(rng, 3 * rng.normal(size=(3, 5)), cov, draws=10)
    share = np.array(ROWS[:3]) / sum(ROWS[:3])
    noise = (share * (1 - share) * np.trace(cov, axis1=1, axis2=2)).sum()
    found, raw = (variation(slope, c, rows, level=0.01).beyond_noise.square() for c in (every_cov, 0 * every_cov))
    np.testing.assert_allclose(raw - found, noise, rtol=1e-9)


def test_the_variation_is_zero_rather_than_negative():
    rng = np.random.default_rng(3)
    found = variation(*drawn(rng, np.zeros((3, 4)), random_covariance(rng, 3, 4)), level=0.01).beyond_noise
    assert 0.3 < (found == 0).double().mean() < 0.8 and found.isfinite().all()


def test_environments_of_no_rows_do_not_count():
    rng = np.random.default_rng(4)
    slope, cov, rows = drawn(rng, rng.normal(size=(4, 3)), random_covariance(rng, 4, 3), draws=50)
    there = [0, 2, 3]
    without = variation(slope[:, there], cov[:, there], rows[:, there], level=0.01)
    rows = rows.clone()
    rows[:, 1] = 0
    for nothing in (slope, slope.index_fill(1, torch.tensor([1]), torch.nan)):
        for a, b in zip(variation(nothing, cov, rows, level=0.01), without, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9)


def test_slopes_that_are_not_known_do_not_count_whatever_their_rows():
    rng = np.random.default_rng(5)
    slope, cov, rows = drawn(rng, rng.normal(size=(3, 2)), random_covariance(rng, 3, 2), draws=5)
    without = variation(slope[:, :2], cov[:, :2], rows[:, :2], level=0.01)
    slope[:, 2, 1] = torch.nan
    np.testing.assert_allclose(variation(slope, cov, rows, level=0.01).p, without.p, rtol=1e-9)
    slope[:, 1, 0] = torch.nan  # one environment is left
    assert variation(slope, cov, rows, level=0.01).p.isnan().all()


@pytest.mark.parametrize("size", [5, 20, 150])
def test_what_is_detectable_is_detected_four_times_in_five(size):
    rng = np.random.default_rng(size)
    cov = random_covariance(rng, 4, size)
    mean = rng.normal(size=(4, size))
    needed = float(variation(*drawn(rng, mean, cov, draws=1), level=0.01).detectable)
    mean *= needed / np.sqrt(true_variation(mean))
    rejected = (variation(*drawn(rng, mean, cov, draws=600), level=0.01).p < 0.01).double().mean()
    assert POWER - 0.1 < rejected < POWER + 0.1


def test_what_is_detectable_shrinks_with_the_noise_and_grows_as_the_level_falls():
    rng = np.random.default_rng(7)
    slope, cov, rows = drawn(rng, np.zeros((3, 4)), random_covariance(rng, 3, 4), draws=1)
    needed = variation(slope, cov, rows, level=0.05).detectable
    np.testing.assert_allclose(variation(slope, cov / 4, rows, level=0.05).detectable, needed / 2)
    assert variation(slope, cov, rows, level=0.001).detectable > needed


# The moments


def moments_by_hand(slopes, codes, weight, n_environments):
    """Loops: a mean of rows with shares s has the covariance sum s^2 (x - mean)(x - mean)', n / (n - 1) times."""
    means, covariances = [], []
    for e in range(n_environments):
        x, w = slopes[(codes == e) & (weight > 0)], weight[(codes == e) & (weight > 0)]
        mean = sum(a * v for a, v in zip(w, x, strict=True)) / w.sum()
        terms = [(a / w.sum()) ** 2 * np.outer(v - mean, v - mean) for a, v in zip(w, x, strict=True)]
        n = w.sum() ** 2 / (w**2).sum()
        means.append(mean)
        covariances.append(n / (n - 1) * sum(terms))
    return np.stack(means), np.stack(covariances)


def some_rows(seed=0, n=60, size=3):
    rng = np.random.default_rng(seed)
    slopes = rng.normal(size=(n, size)) @ rng.normal(size=(size, size))
    return rng, slopes, np.arange(n) % 5 % 3  # environments of 24, 24 and 12 rows


def test_means_and_covariances_are_those_of_numpy():
    _, slopes, codes = some_rows()
    mean, cov = slope_moments(two(slopes), torch.as_tensor(codes), 3, None)
    for e in range(3):
        mine = slopes[codes == e]
        np.testing.assert_allclose(mean[e], mine.mean(0))
        np.testing.assert_allclose(cov[e], np.cov(mine.T) / len(mine))


def test_means_and_covariances_of_rows_with_weights():
    rng, slopes, codes = some_rows(1)
    weight = rng.gamma(1.0, size=len(slopes))
    found = slope_moments(two(slopes), torch.as_tensor(codes), 3, two(weight))
    for a, b in zip(found, moments_by_hand(slopes, codes, weight, 3), strict=True):
        np.testing.assert_allclose(a, b)
    alike = slope_moments(two(slopes), torch.as_tensor(codes), 3, torch.full((len(slopes),), 0.3))
    for a, b in zip(alike, slope_moments(two(slopes), torch.as_tensor(codes), 3, None), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_rows_of_weight_zero_are_not_there():
    rng, slopes, codes = some_rows(2)
    weight = rng.gamma(1.0, size=len(slopes))
    weight[::4] = 0
    there = weight > 0
    slopes[~there] = np.nan  # whatever stands in them
    found = slope_moments(two(slopes), torch.as_tensor(codes), 3, two(weight))
    without = slope_moments(two(slopes[there]), torch.as_tensor(codes[there]), 3, two(weight[there]))
    for a, b in zip(found, without, strict=True):
        assert a.isfinite().all()
        np.testing.assert_allclose(a, b)


def test_an_environment_of_one_row_or_none_is_unknown():
    _, slopes, codes = some_rows(3)
    codes[codes == 1] = 0
    codes[0] = 1
    mean, cov = slope_moments(two(slopes), torch.as_tensor(codes), 4, None)
    assert mean[[1, 3]].isnan().all() and cov[[1, 3]].isnan().all()
    assert mean[[0, 2]].isfinite().all() and cov[[0, 2]].isfinite().all()
    weight = torch.ones(len(slopes))
    weight[two(codes == 0).nonzero().squeeze(1)[1:]] = 0  # one row of weight is left
    mean, _ = slope_moments(two(slopes), torch.as_tensor(codes), 4, weight)
    assert mean[0].isnan().all() and mean[2].isfinite().all()


# Over folds


def measured(slopes, codes, fold, n_environments):
    """Records of one candidate, ERM, of whose columns single rows are known."""
    parts = []
    for f in np.unique(fold):
        here = fold == f
        mean, cov = slope_moments(two(slopes[here]), torch.as_tensor(codes[here]), n_environments, None)
        rows = np.bincount(codes[here], minlength=n_environments).tolist()
        risk = [[0.4] * n_environments]
        more = {"column_slope": mean[None, None], "column_slope_cov": cov[None, None]}
        parts.append(written(risk, 0.1, rows=[float(n) for n in rows], **more))
    return of_folds(parts)


def test_folds_count_in_columns_by_their_rows():
    _, slopes, codes = some_rows(4)
    fold = (np.arange(60) >= 20).astype(int)  # 20 and 40 rows
    records = measured(slopes, codes, fold, 3)
    pooled = records.pooled()
    by_hand = [moments_by_hand(slopes[fold == f], codes[fold == f], np.ones((fold == f).sum()), 3) for f in (0, 1)]
    np.testing.assert_allclose(pooled.column_slope[0], by_hand[0][0] / 3 + by_hand[1][0] * 2 / 3)
    np.testing.assert_allclose(pooled.column_slope_cov[0], by_hand[0][1] / 9 + by_hand[1][1] * 4 / 9)
    some = records.folds([1]).pooled()
    np.testing.assert_allclose(some.column_slope[0], by_hand[1][0])
    np.testing.assert_allclose(some.column_slope_cov[0], by_hand[1][1])


def test_a_fold_with_one_row_of_an_environment_says_nothing_of_its_columns():
    _, slopes, codes = some_rows(5)
    fold = np.arange(60) % 2
    codes[(codes == 2) & (fold == 0)] = 0
    codes[0] = 2  # its only row in fold 0
    pooled = measured(slopes, codes, fold, 3).pooled()
    mine = slopes[(codes == 2) & (fold == 1)]
    np.testing.assert_allclose(pooled.column_slope[0, 2], mine.mean(0))
    np.testing.assert_allclose(pooled.column_slope_cov[0, 2], np.cov(mine.T) / len(mine))


def test_columns_that_no_fold_knows_stay_unknown():
    """A model with fewer columns than another that it is compared with; a model that was not measured."""
    records = written([[0.3, 0.6]] * 2, 0.1, **columns([[[0.1, 0.2], [0.3, -0.2]]] * 2, 0.01))
    known = records.pooled()
    records.column_slope[0, 1, :, 1] = torch.nan
    pooled = records.pooled()
    np.testing.assert_allclose(pooled.column_slope[0], known.column_slope[0])
    p = variation(pooled.column_slope, pooled.column_slope_cov, pooled.rows, level=0.01).p
    assert p[0] < 1e-9 and p[1].isnan()
