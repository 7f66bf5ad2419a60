"""The rule `invariance`: its tests against textbook formulas and simulation, its outcomes on records made for each."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from irmtv.core.membership import Codes, Soft, SoftPair
from irmtv.engine.snapshots import covariance_of_means
from irmtv.selection import (
    Pooled,
    Records,
    check_options,
    equal_means,
    extrapolated_risk,
    invariance,
    p_values,
    spread,
    zero_means,
)
from irmtv.selection.invariant import DEFAULTS, TESTS
from selection.candidates import counted, written


def two(values):
    return torch.as_tensor(np.asarray(values, dtype=np.float64))


def random_covariance(rng, candidates, environments):
    a = rng.normal(size=(candidates, environments, 2 * environments))
    return a @ a.swapaxes(1, 2) / 100


# The tests of equal and of zero means


def test_two_environments_are_the_two_sample_z_test():
    mean, se = [[0.5, 0.8], [1.0, 1.0], [-3.0, 2.0]], [[0.1, 0.2], [0.1, 0.1], [1.0, 1.5]]
    z = [(a - b) / np.hypot(c, d) for (a, b), (c, d) in zip(mean, se, strict=True)]
    p = equal_means(two(mean), two(se).square())
    np.testing.assert_allclose(p, 2 * stats.norm.sf(np.abs(z)))
    assert p[1] == 1


def test_several_environments_are_cochrans_q():
    rng = np.random.default_rng(0)
    mean, var = rng.normal(size=(5, 4)), rng.gamma(2.0, size=(5, 4))
    w = 1 / var
    q = (w * (mean - ((w * mean).sum(1) / w.sum(1))[:, None]) ** 2).sum(1)
    np.testing.assert_allclose(equal_means(two(mean), two(var)), stats.chi2.sf(q, 3))
    np.testing.assert_allclose(zero_means(two(mean), two(var)), stats.chi2.sf((w * mean**2).sum(1), 4))


@pytest.mark.parametrize("environments", [2, 3, 6])
def test_covariances_are_the_test_of_all_contrasts(environments):
    rng = np.random.default_rng(environments)
    mean, cov = rng.normal(size=(4, environments)), random_covariance(rng, 4, environments)
    contrast = np.diff(np.eye(environments), axis=0)  # neighbours differ by nothing
    expected, of_zero = [], []
    for m, v in zip(mean, cov, strict=True):
        d = contrast @ m
        expected.append(stats.chi2.sf(d @ np.linalg.solve(contrast @ v @ contrast.T, d), environments - 1))
        of_zero.append(stats.chi2.sf(m @ np.linalg.solve(v, m), environments))
    np.testing.assert_allclose(equal_means(two(mean), two(cov)), expected, rtol=1e-6)
    np.testing.assert_allclose(zero_means(two(mean), two(cov)), of_zero, rtol=1e-6)


def test_a_diagonal_covariance_is_a_list_of_variances():
    rng = np.random.default_rng(1)
    mean, var = two(rng.normal(size=(3, 4))), two(rng.gamma(2.0, size=(3, 4)))
    for test in (equal_means, zero_means):
        np.testing.assert_allclose(test(mean, torch.diag_embed(var)), test(mean, var), rtol=1e-9)


@given(
    st.integers(0, 10**6),
    st.integers(2, 5),
    st.booleans(),
    st.floats(1e-6, 1e6),
    st.floats(-3, 3),
    st.permutations([*range(5)]),
)
@settings(deadline=None, max_examples=40)
def test_units_zero_point_and_order_do_not_matter(seed, environments, soft, scale, shift, order):
    rng = np.random.default_rng(seed)
    mean = two(rng.normal(size=(3, environments)))
    cov = two(random_covariance(rng, 3, environments)) if soft else two(rng.gamma(2.0, size=(3, environments)))
    mean[0, 0] = torch.nan  # one is absent
    order = [i for i in order if i < environments]
    moved = cov[:, order][:, :, order] if soft else cov[:, order]
    for test in (equal_means, zero_means):
        p = test(mean, cov)
        np.testing.assert_allclose(test(scale * mean, scale**2 * cov), p, rtol=1e-5)
        np.testing.assert_allclose(test(mean[:, order], moved), p, rtol=1e-5)
    np.testing.assert_allclose(equal_means(mean + shift, cov), equal_means(mean, cov), rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e9])
@pytest.mark.parametrize("soft", [False, True])
def test_an_environment_without_rows_drops_out(soft, scale):
    rng = np.random.default_rng(2)
    mean, cov = scale * rng.normal(size=(3, 4)), scale**2 * random_covariance(rng, 3, 4)
    some, rest = mean.copy(), [0, 1, 3]
    some[:, 2] = np.nan
    holes = cov.copy()
    holes[:, 2], holes[:, :, 2] = np.nan, np.nan
    cut = cov[:, rest][:, :, rest]
    if not soft:
        holes, cut = holes.diagonal(axis1=1, axis2=2).copy(), cut.diagonal(axis1=1, axis2=2).copy()
    for test in (equal_means, zero_means):
        np.testing.assert_allclose(test(two(some), two(holes)), test(two(mean[:, rest]), two(cut)), rtol=1e-6)


def test_fewer_than_two_environments_cannot_differ():
    mean = two([[1.0, np.nan, np.nan], [np.nan] * 3, [1.0, 2.0, np.nan]])
    for cov in (torch.ones(3, 3), torch.eye(3).expand(3, 3, 3)):
        assert equal_means(mean, cov).isnan().tolist() == [True, True, False]
        assert zero_means(mean, cov).isnan().tolist() == [False, True, False]
    assert equal_means(two([[1.0]]), two([[1.0]])).isnan().all()


@pytest.mark.parametrize("soft", [False, True])
def test_a_constant_model_is_equal_everywhere(soft):
    """No row scatters, so every variance is 0; in float32 the means agree up to rounding only."""
    nothing = torch.zeros(1, 3, 3) if soft else torch.zeros(1, 3)
    assert equal_means(torch.full((1, 3), 0.6931), nothing) == 1
    assert equal_means(torch.zeros(1, 3), nothing) == 1
    assert zero_means(torch.zeros(1, 3), nothing) == 1
    rounded = torch.tensor([[0.6931472, 0.69314724, 0.6931471]])
    assert len(set(rounded[0].tolist())) > 1
    assert equal_means(rounded, nothing) > 0.9
    assert equal_means(torch.tensor([[0.5, 0.6, 0.5]]), nothing) < 1e-9
    assert zero_means(torch.full((1, 3), 0.5), nothing) < 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("nearly", [0.0, 1e-7, 1e-5])
@pytest.mark.parametrize("environments", [2, 3])
def test_soft_environments_that_coincide_tell_nothing(dtype, nearly, environments):
    """Their matrix is singular, and all that tells them apart is rounding."""
    generator = torch.Generator().manual_seed(0)
    v = torch.rand(1, 20, 300, generator=generator).to(dtype)
    q = torch.softmax(nearly * torch.randn(1, 20, environments, 300, generator=generator), 2).to(dtype)
    membership = SoftPair(q[:, :, 0]) if environments == 2 else Soft(q)
    cov = covariance_of_means(membership, v).to(dtype)
    p = equal_means(membership.sums(v) / membership.rows, cov)
    assert p.isnan().all()  # nothing was told apart, so nothing was tested
    assert (zero_means(membership.sums(v) / membership.rows, cov) < 1e-9).all()


def test_a_copy_of_an_environment_adds_no_evidence():
    mean, cov = np.array([0.3, 0.5]), np.array([[0.01, 0.002], [0.002, 0.02]])
    twice = [0, 0, 1]
    p = equal_means(two([mean[twice]]), two([cov[np.ix_(twice, twice)]]))
    z2 = (0.2**2) / (0.01 + 0.02 - 0.004)
    np.testing.assert_allclose(p, stats.chi2.sf(z2, 1), rtol=1e-4)  # as of the two alone: nor does it cost any
    np.testing.assert_allclose(p, equal_means(two([mean]), two([cov])), rtol=1e-4)
    of_zero = zero_means(two([mean[twice]]), two([cov[np.ix_(twice, twice)]]))
    np.testing.assert_allclose(of_zero, stats.chi2.sf(mean @ np.linalg.solve(cov, mean), 2), rtol=1e-4)
    three = [0, 0, 1, 1, 1]
    p = equal_means(two([mean[three]]), two([cov[np.ix_(three, three)]]))
    np.testing.assert_allclose(p, stats.chi2.sf(z2, 1), rtol=1e-4)


@pytest.mark.parametrize("soft", [False, True])
def test_an_environment_of_unknown_variance_drops_out(soft):
    rng = np.random.default_rng(16)
    mean, cov = rng.normal(size=(3, 4)), random_covariance(rng, 3, 4)
    rest = [0, 1, 3]
    cut = cov[:, rest][:, :, rest]
    cov[:, 2], cov[:, :, 2] = np.nan, np.nan
    if not soft:
        cov, cut = cov.diagonal(axis1=1, axis2=2).copy(), cut.diagonal(axis1=1, axis2=2).copy()
    for test in (equal_means, zero_means):
        np.testing.assert_allclose(test(two(mean), two(cov)), test(two(mean[:, rest]), two(cut)), rtol=1e-6)
    for zero in (False, True):
        apart = [spread(two(m), two(v), 0.1, around_zero=zero) for m, v in ((mean, cov), (mean[:, rest], cut))]
        np.testing.assert_allclose(*apart)
        assert (apart[0] > 0).any()


def test_power_grows_with_the_difference_and_the_rows():
    apart = torch.linspace(0, 1, 20)
    mean = torch.stack([torch.zeros(20), apart], 1)
    p = equal_means(mean, torch.full((20, 2), 0.01))
    assert (p.diff() < 0).all() and p[0] == 1 and p[-1] < 1e-10
    assert (equal_means(mean, torch.full((20, 2), 0.005))[1:] < p[1:]).all()
    shared = torch.tensor([[0.01, 0.004], [0.004, 0.01]]).expand(20, 2, 2)
    assert (equal_means(mean, shared)[1:] < p[1:]).all()  # what they share cancels in the difference


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("test", [equal_means, zero_means])
def test_a_vector_of_slopes_is_bonferroni_over_its_components(soft, test):
    rng = np.random.default_rng(3)
    mean = 0.3 * rng.normal(size=(6, 3, 4))
    cov = np.stack([random_covariance(rng, 6, 3) for _ in range(4)], -1)
    cov = cov if soft else cov.diagonal(axis1=1, axis2=2).swapaxes(1, 2).copy()
    parts = np.stack([test(two(mean[..., j].copy()), two(cov[..., j].copy())) for j in range(4)])
    np.testing.assert_allclose(test(two(mean), two(cov)), np.minimum(1, 4 * parts.min(0)))
    mean[0, :, 2:] = np.nan  # a narrower network has fewer of them
    mean[1] = np.nan
    p = test(two(mean), two(cov))
    np.testing.assert_allclose(p[0], min(1, 2 * parts[:2, 0].min()))
    assert p[1].isnan() and p[2:].isfinite().all()


# How far apart, beyond noise


@pytest.mark.parametrize("environments", [2, 3, 5])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("slack", [0.0, 0.5, 2.0])
def test_the_spread_is_that_of_the_average_pair(environments, soft, slack):
    rng = np.random.default_rng(8)
    mean, cov = rng.normal(size=(20, environments)), random_covariance(rng, 20, environments)
    cov = cov if soft else np.stack([np.diag(np.diag(c)) for c in cov])
    expected, from_zero = [], []
    for m, v in zip(mean, cov, strict=True):
        pairs = [(i, j) for i in range(environments) for j in range(i)]
        square = np.mean([(m[i] - m[j]) ** 2 for i, j in pairs])
        noise = np.mean([v[i, i] + v[j, j] - 2 * v[i, j] for i, j in pairs])
        expected.append(np.sqrt(max(0, square - slack**2 * noise)))
        from_zero.append(np.sqrt(max(0, np.mean(m**2) - slack**2 * np.mean(np.diag(v)))))
    given_ = two(cov if soft else cov.diagonal(axis1=1, axis2=2).copy())
    np.testing.assert_allclose(spread(two(mean), given_, slack), expected, atol=1e-12)
    np.testing.assert_allclose(spread(two(mean), given_, slack, around_zero=True), from_zero, atol=1e-12)
    assert (np.array(expected) > 0).any()
    with_absent = np.c_[mean, np.full(20, np.nan)]
    wider = np.full((20, *(environments + 1,) * (1 + soft)), np.nan)
    wider[(slice(None), *(slice(environments),) * (1 + soft))] = given_
    for zero in (False, True):
        there = spread(two(mean), given_, slack, around_zero=zero)
        np.testing.assert_allclose(spread(two(with_absent), two(wider), slack, around_zero=zero), there, atol=1e-12)
        np.testing.assert_allclose(
            spread(1e4 * two(mean), 1e8 * given_, slack, around_zero=zero), 1e4 * there, atol=1e-8
        )


def test_noise_alone_is_no_spread():
    assert spread(two([[0.5, 0.51]]), two([[0.01**2, 0.01**2]]), 1.0) == 0
    assert spread(two([[0.5, 0.52]]), two([[0.0, 0.0]]), 1.0) == pytest.approx(0.02)
    assert spread(two([[0.5, np.nan]]), two([[0.1, 0.1]]), 1.0).isnan().all()
    rng = np.random.default_rng(9)
    noisy = two(0.1 * rng.normal(size=(4000, 4)))
    var = torch.full((4000, 4), 0.01)
    assert spread(noisy, var, 0.0).square().mean() == pytest.approx(0.02, rel=0.05)  # of a pair: twice the variance
    apart = spread(noisy + two([0, 0.5, 1, 1.5]), var, 1.0).square().mean()
    assert apart == pytest.approx(2 * np.var([0, 0.5, 1, 1.5], ddof=1), rel=0.02)


def test_components_of_a_vector_add_up():
    rng = np.random.default_rng(10)
    mean, var = two(rng.normal(size=(5, 3, 2))), two(0.01 * rng.gamma(2.0, size=(5, 3, 2)))
    parts = [spread(mean[..., j], var[..., j], 0.5) for j in range(2)]
    np.testing.assert_allclose(spread(mean, var, 0.5), torch.hypot(*parts))
    mean[0, :, 1] = torch.nan  # a narrower network
    np.testing.assert_allclose(spread(mean, var, 0.5)[0], parts[0][0])


def test_extrapolated_risks():
    records = written([[0.3, 0.5], [0.4, 0.4]], 0.0, slope=[[0.1, 0.1], [0.0, 0.3]], slope_se=0.0, rows=[300.0, 100.0])
    pooled = records.pooled()
    for test, apart in {
        "risks": [0.2, 0.0],
        "both": [0.2, 0.0],
        "slopes": [0.0, 0.3],
        "zero-slopes": [0.1, 0.3 / np.sqrt(2)],
    }.items():
        for reach in (0.0, 3.0):
            by_hand = np.array([0.35, 0.4]) + reach * np.array(apart)
            np.testing.assert_allclose(extrapolated_risk(pooled, test, reach, 0.5), by_hand)


# Calibration: under the null p-values are uniform


def uniform(p):
    return stats.kstest(np.asarray(p), "uniform").pvalue > 0.01


@pytest.mark.parametrize("environments", [2, 4])
def test_hard_environments_are_calibrated(environments):
    rng = np.random.default_rng(4)
    repeats, sizes = 600, np.arange(1, environments + 1) * 150
    scatter = np.arange(1, environments + 1)  # noise may differ, means do not
    draws = [s * (rng.exponential(size=(repeats, n)) - 1) for n, s in zip(sizes, scatter, strict=True)]
    mean = np.stack([d.mean(1) for d in draws], 1)
    var = np.stack([d.var(1, ddof=1) / n for d, n in zip(draws, sizes, strict=True)], 1)
    assert uniform(equal_means(two(mean + 5), two(var)))
    assert uniform(zero_means(two(mean), two(var)))
    assert not uniform(equal_means(two(mean + 5), two(var / 2)))


@pytest.mark.parametrize("kind", ["pair", "two", "four"])
def test_soft_environments_are_calibrated(kind):
    """Rows are shared, so the environments' means are correlated: through the engine's own covariances."""
    generator = torch.Generator().manual_seed(5)
    repeats, n, environments = 600, 300, 4 if kind == "four" else 2
    v = torch.randn(1, repeats, n, generator=generator).exp()
    q = torch.softmax(1.5 * torch.randn(1, repeats, environments, n, generator=generator), 2)
    membership = SoftPair(q[:, :, 0]) if kind == "pair" else Soft(q)
    mean, cov = membership.sums(v) / membership.rows, covariance_of_means(membership, v)
    assert cov.shape == (repeats, environments, environments)
    assert uniform(equal_means(mean, cov))
    independent = cov.diagonal(dim1=1, dim2=2)  # what would be wrong: no row is shared
    assert not uniform(equal_means(mean, independent))


def rejected(sizes, n_folds, repeats=4000):
    """Share of candidates rejected at level 0.01, by test, though risks and slopes are the same exponential everywhere.

    `sizes` are rows by environment over all folds; through the engine's covariances and the pooling of folds.
    """
    generator = torch.Generator().manual_seed(15)
    codes = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes) // n_folds)
    membership = Codes(codes.expand(n_folds, repeats, -1), len(sizes))
    shape = (n_folds, repeats, len(sizes))

    def measured():
        v = torch.empty(n_folds, repeats, len(codes), dtype=torch.float64).exponential_(generator=generator)
        return (membership.sums(v) / membership.rows).view(shape), covariance_of_means(membership, v).view(shape)

    (risk, risk_cov), (slope, slope_cov) = measured(), measured()
    nobody = torch.zeros(repeats, dtype=torch.bool)
    rows = membership.rows.double().view(shape)
    pooled = Records(rows, risk, risk_cov, slope - 1, slope_cov, 2.0, nobody, nobody).pooled()
    return {test: float((p_values(pooled, test) < 0.01).double().mean()) for test in TESTS}


@pytest.mark.parametrize("n_folds", [1, 5])
@pytest.mark.parametrize("sizes", [(20, 20), (20, 40), (20, 400), (40, 40), (20,) * 5, (40,) * 5], ids=str)
def test_small_environments_are_not_rejected_far_too_often(sizes, n_folds):
    """At level 0.01, on one fold: both 1.3 % with 20 rows each, 1.6 % with 20 and 40, 1.4 % with 40; of five such
    environments 4.3 % (20) and 2.6 % (40). Worst is 20 against 400, where the skews do not cancel: 5.4 %, on five
    folds 6.0 %; risks or slopes alone 4.1 % at most. Slopes against zero, where they never cancel: up to 12 %.
    """
    shares = rejected(sizes, n_folds)
    for test in ("both", "risks", "slopes"):
        assert shares[test] < (0.07 if max(sizes) == 400 else 0.06), test
    assert shares["zero-slopes"] < 0.15


# The rule on records made for each outcome

ERM = [0.30, 0.50]  # far apart
SE = 0.02
ASKEW = [-1.5 * SE * np.sqrt(2), 1.5 * SE * np.sqrt(2)]  # slopes of that standard error: unequal by z = 3
FIELDS = ("rows", "risk", "risk_cov", "slope", "slope_cov")


def p_of_both(z):
    """Of risks that differ by z standard errors and slopes that are equal: Bonferroni over the two tests."""
    return np.minimum(1, 2 * 2 * stats.norm.sf(z))


def of_folds(folds):
    return replace(folds[0], **{k: torch.cat([getattr(f, k) for f in folds]) for k in FIELDS})


def test_erm_is_kept_where_it_is_invariant():
    records = written([[0.40, 0.41], [0.45, 0.45], [0.42, 0.42]], SE)
    verdict = invariance(records)
    assert (verdict.index, verdict.outcome) == (0, "erm-invariant")
    f = verdict.figures
    assert f["price"] == 0 and f["gain_kept"] == pytest.approx(1) and f["p"] == f["p_erm"]
    assert (f["candidates"], f["passing"], f["p_confirmed"]) == (2, 2, None)
    assert "plain risk minimisation is kept: it passes" in verdict.message


def test_no_harm_even_where_a_better_and_more_invariant_candidate_is_there():
    verdict = invariance(written([[0.40, 0.44], [0.35, 0.35]], SE))
    assert (verdict.index, verdict.outcome) == (0, "erm-invariant")


def test_an_invariant_model_is_found_with_its_price():
    records = written([ERM, [0.44, 0.46], [0.45, 0.45], [0.35, 0.45], [0.50, 0.50]], SE, rows=[100.0, 300.0])
    verdict = invariance(records)
    assert (verdict.index, verdict.outcome) == (2, "invariant-found")
    f = verdict.figures
    p = p_of_both(np.array([0.02, 0.0, 0.1, 0.0]) / (SE * np.sqrt(2)))
    assert f["risk_erm"] == pytest.approx(0.45) and f["risk"] == pytest.approx(0.45)
    assert f["price"] == pytest.approx(f["risk"] - f["risk_erm"])
    assert (f["candidates"], f["passing"]) == (4, int((p >= 0.01).sum()))
    assert f["risk_extrapolated"] == pytest.approx(0.45)
    assert f["p_erm"] == pytest.approx(p_of_both(0.2 / (SE * np.sqrt(2)))) and f["p"] == 1
    assert "an invariant model was found" in verdict.message and "0.45" in verdict.message


def test_none_is_found():
    verdict = invariance(written([ERM, [0.35, 0.50], [0.40, 0.52]], SE, slope=[ASKEW] * 3, slope_se=SE))
    assert (verdict.index, verdict.outcome) == (0, "none-found")
    f = verdict.figures
    assert (f["passing"], f["price"]) == (0, 0)
    assert f["p_nearest"] == pytest.approx(p_of_both(0.12 / (SE * np.sqrt(2))))
    assert "not invariant" in verdict.message and "0.3, 0.5" in verdict.message


def test_erm_is_the_best_of_its_own_candidates():
    """Of several stopping times of plain risk minimisation the one with the lowest held-out risk; the others, though
    they may be as good as invariant, are no candidates for an invariant model."""
    records = written([[0.42, 0.42], ERM, [0.45, 0.45]], SE, erm=[0, 1])
    verdict = invariance(records)
    assert verdict.figures["risks_erm"] == ERM
    assert (verdict.index, verdict.figures["candidates"]) == (2, 1)
    risks = [[0.42, 0.42], ERM, [0.35, 0.50]]
    alone = invariance(written(risks, SE, slope=[[0.0, 0.0], ASKEW, ASKEW], slope_se=SE, erm=[0, 1]))
    assert (alone.index, alone.outcome) == (1, "none-found")
    assert alone.figures["p_nearest"] == pytest.approx(p_of_both(0.15 / (SE * np.sqrt(2))))


def test_the_lowest_extrapolated_risk_of_those_that_pass():
    se = SE / np.sqrt(2)  # of each, so that a difference has SE
    apart = {"far": 2.5, "within": 0.4, "equal": 0.0, "beyond": 1.5}
    middle = {"far": 0.38, "within": 0.43, "equal": 0.44, "beyond": 0.42}

    def chosen(*names, **options):
        risks = [[middle[k] - SE * apart[k] / 2, middle[k] + SE * apart[k] / 2] for k in names]
        verdict = invariance(written([ERM, *risks], se), **options)
        return ["erm", *names][verdict.index], verdict.figures

    def score(name, reach=10.0, slack=0.5):
        return middle[name] + reach * SE * np.sqrt(max(0, apart[name] ** 2 - slack**2))

    everything = tuple(apart)
    name, f = chosen(*everything)
    assert name == "within" == min(everything, key=score) and f["passing"] == 4
    assert f["risk_extrapolated"] == pytest.approx(score("within"))
    assert chosen("far", "beyond")[0] == "beyond"
    assert chosen(*everything, reach=0)[0] == "far"  # the lowest risk that is not rejected
    assert chosen(*everything, slack=0.0)[0] == "equal"
    assert chosen(*everything, slack=3.0)[0] == "far"
    for reach in (0.3, 1.0, 30.0):
        assert chosen(*everything, reach=reach)[0] == min(everything, key=lambda k: score(k, reach)), reach
    p = p_of_both(2.5)
    assert 0.02 < p < 0.03
    assert chosen("far", "beyond", level=0.99 * p)[1]["passing"] == 2
    assert chosen("far", "beyond", level=1.01 * p)[1]["passing"] == 1
    assert chosen("far", level=1.01 * p)[0] == "erm"
    assert chosen("far", level=0.51 * p, test="risks")[0] == "erm"
    assert chosen("far", level=0.49 * p, test="risks")[0] == "far"


def test_a_model_that_predicts_next_to_nothing_is_not_taken():
    slope = [ASKEW, [0.0, 0.0], [0.0, 0.0]]
    records = written([ERM, [0.90, 0.90], [0.99, 0.99]], SE, slope=slope, slope_se=SE, constant=1.0)
    found = invariance(records)
    assert (found.index, found.outcome) == (0, "none-found")
    assert found.figures["p_nearest"] is None and "nearest" not in found.message  # of those that predict anything
    assert invariance(records, min_gain=0.1).index == 1
    assert invariance(records, min_gain=0.1).figures["gain_kept"] == pytest.approx(0.1 / 0.6)
    assert invariance(records, min_gain=0.0).figures["passing"] == 2


@pytest.mark.parametrize("min_gain", [0.0, 0.2, 1.0])
def test_where_erm_is_worse_than_a_constant_a_candidate_must_not_be(min_gain):
    """A share of a loss is no gain: the threshold is then the constant itself."""
    erm, constant = [0.3125, 0.6875], 0.375  # ERM: 0.5 on average; numbers that floats hold exactly
    slope = {"slope": [ASKEW, [0.0, 0.0]], "slope_se": SE}
    worse = invariance(written([erm, [0.38, 0.38]], SE, constant=constant, **slope), min_gain=min_gain)
    assert (worse.index, worse.outcome) == (0, "none-found")
    assert worse.figures["p_nearest"] is None and worse.figures["gain_kept"] is None
    for risk in (0.375, 0.35):
        found = invariance(written([erm, [risk, risk]], SE, constant=constant, **slope), min_gain=min_gain)
        assert (found.index, found.outcome) == (1, "invariant-found")
        assert found.figures["gain_kept"] is None


@pytest.mark.parametrize(("min_gain", "useful"), [(0.0, 3), (0.25, 2), (0.5, 1), (0.75, 0)])
def test_the_share_of_erms_gain_that_must_be_kept(min_gain, useful):
    """ERM gains 0.5; the candidates 0.25, 0.125 and 0."""
    records = written([[0.25, 0.75], [0.75, 0.75], [0.875, 0.875], [1.0, 1.0]], SE, constant=1.0)
    assert invariance(records, min_gain=min_gain).figures["passing"] == useful


def test_candidates_that_are_not_known_are_never_taken():
    nan = np.nan
    records = written([[nan, nan], ERM, [nan, nan], [0.2, nan], [0.45, 0.45], [0.1, 0.1]], SE, erm=[0, 1])
    records.rows[0, 3, 1] = 0  # one environment only
    records.risk_cov[0, 5] = nan
    verdict = invariance(records)
    assert verdict.index == 4 and verdict.figures["candidates"] == 1
    assert verdict.figures["risks_erm"] == ERM


def test_an_environment_without_rows_is_left_out_and_stays_json():
    records = written([[*ERM, np.nan], [0.45, 0.45, np.nan]], SE, rows=[100.0, 100.0, 0.0])
    verdict = invariance(records)
    assert verdict.index == 1
    assert verdict.figures["risks"] == [0.45, 0.45, None]
    assert verdict.figures["pays_at"] == pytest.approx((0.45 - 0.5) / 0.2)
    json.dumps(verdict.figures, allow_nan=False)
    slope = [[*ASKEW, np.nan]]
    alone = invariance(written([[*ERM, np.nan]], SE, slope=slope, slope_se=SE, rows=[100.0, 100.0, 0.0]))
    assert "0.3, 0.5, no rows" in alone.message


@given(st.integers(0, 10**6), st.integers(2, 4), st.sampled_from(["both", "risks", "slopes", "zero-slopes"]))
@settings(deadline=None, max_examples=60)
def test_figures_agree_with_each_other(seed, environments, test):
    records = random_records(seed, environments)
    verdict = invariance(records, test=test)
    f = json.loads(json.dumps(verdict.figures, allow_nan=False))
    risk = ((records.rows * records.risk).sum((0, 2)) / records.rows.sum((0, 2))).numpy()
    if f["test"] != test:
        assert (test, f["test"]) == ("both", "slopes") and verdict.outcome != "none-found"
        least = DEFAULTS["min_gain"] * max(0, 1 - risk[:2].min())
        kept = 1 - risk >= least
        kept[:2] = [i == risk[:2].argmin() for i in range(2)]
        assert (p_values(records.pooled(), "both").numpy()[kept] < 0.01).all()  # ERM and all that predict anything
        test = f["test"]
    p = p_values(records.pooled(), test).numpy()
    assert f["risk"] == pytest.approx(risk[verdict.index]) and f["risk_erm"] == pytest.approx(risk[:2].min())
    assert f["p"] == pytest.approx(p[verdict.index])
    assert f["price"] == pytest.approx(f["risk"] - f["risk_erm"], abs=1e-12)
    gain = f["risk_constant"] - f["risk_erm"]
    assert f["gain_kept"] == pytest.approx((f["risk_constant"] - f["risk"]) / gain)
    spread = max(f["risks_erm"]) - min(f["risks_erm"])
    assert f["pays_at"] == pytest.approx((max(f["risks"]) - max(f["risks_erm"])) / spread)
    assert f["passing"] <= f["candidates"] == len(records) - 2
    useful = records.constant - risk >= DEFAULTS["min_gain"] * gain
    useful[:2] = False  # plain risk minimisation
    passing = useful & (p >= 0.01)
    assert f["passing"] == int(passing.sum())
    assert f["p_nearest"] == pytest.approx(p[useful].max())
    score = extrapolated_risk(records.pooled(), test, DEFAULTS["reach"], DEFAULTS["slack"]).numpy()
    assert f["risk_extrapolated"] == pytest.approx(score[verdict.index])
    if verdict.outcome == "erm-invariant":
        assert f["p_erm"] >= 0.01 and f["price"] == 0
    else:
        assert f["p_erm"] < 0.01
    if verdict.outcome == "invariant-found":
        assert f["p_confirmed"] == pytest.approx(confirmed_by_hand(records, test))
    else:
        assert f["p_confirmed"] is None
    if verdict.outcome == "invariant-found":
        assert verdict.index == np.where(passing, score, np.inf).argmin() > 1
    assert verdict.message.endswith(".") and "nan" not in verdict.message


def confirmed_by_hand(records, test):
    """Hard environments, each in every fold. 0 where nothing passes in a half, None where a half cannot be tested."""
    rows, risk, slope, risk_var, slope_var = (
        getattr(records, k).numpy() for k in ("rows", "risk", "slope", "risk_cov", "slope_cov")
    )
    erm = records.reference.numpy()
    halves = []
    for start in (0, 1):
        n = rows[start::2]  # (F, C, E)
        total = n.sum(0)
        few = total < 20
        share = n.sum(-1, keepdims=True) / n.sum((0, -1), keepdims=True).reshape(1, -1, 1)

        def mean(v, start=start, few=few, share=share):
            return two(np.where(few, np.nan, (share * v[start::2]).sum(0)))

        def variance(v, start=start, n=n, share=share):
            of_rows = ((n - 1) * n * v[start::2]).sum(0) / (n - 1).sum(0)
            return two(of_rows * (share**2 / n).sum(0))

        m, var, z, z_var = mean(risk), variance(risk_var), mean(slope), variance(slope_var)
        mean_risk = (n * risk[start::2]).sum((0, 2)) / total.sum(1)  # of all environments
        of_risks, of_slopes = equal_means(m, var), equal_means(z, z_var)
        p = {
            "both": (2 * torch.minimum(of_risks, of_slopes)).clamp(0, 1),
            "risks": of_risks,
            "slopes": of_slopes,
            "zero-slopes": torch.where((~torch.as_tensor(few)).sum(1) > 1, zero_means(z, z_var), torch.nan),
        }[test].numpy()
        what = (m, var) if test in ("both", "risks") else (z, z_var)
        score = mean_risk + 10 * spread(*what, 0.5, around_zero=test == "zero-slopes").numpy()
        gain = records.constant - mean_risk
        known = np.isfinite(p)
        if not (known & erm).any() or not (known & ~erm).any():
            return None
        passing = known & ~erm & (gain >= DEFAULTS["min_gain"] * max(0, gain[known & erm].max())) & (p >= 0.01)
        halves.append((p, np.where(passing, score, np.inf).argmin() if passing.any() else None))
    (p_even, from_even), (p_odd, from_odd) = halves
    if from_even is None or from_odd is None:
        return 0.0
    p = 2 * min(p_odd[from_even], p_even[from_odd])
    return None if np.isnan(p) else min(1, p)


def random_records(seed, environments, candidates=7, folds=3, n=240):
    """Two candidates are plain risk minimisation; risks fall where environments lie apart."""
    rng = np.random.default_rng(seed)
    q = np.eye(environments)[rng.permutation(np.arange(n) % environments)]
    apart = np.r_[1.0, 0.8, rng.uniform(0, 0.6, candidates - 2)]
    where = np.linspace(-1, 1, environments)
    mean = 0.6 - 0.2 * apart[:, None] + 0.3 * apart[:, None] * where  # (C, E)
    noise = rng.normal(size=n)
    loss = mean @ q.T + 0.5 * noise + 0.05 * rng.normal(size=(candidates, n))
    slope = apart[:, None] * 0.3 * (where @ q.T) + 0.5 * rng.normal(size=(candidates, n))
    fold = rng.permutation(np.arange(n) % folds)
    # by matrix products: `counted` loops over rows
    fields = {k: [] for k in ("rows", "risk", "risk_cov", "slope", "slope_cov")}
    for f in range(folds):
        part = q[fold == f]
        total = part.sum(0)
        fields["rows"].append(np.stack([total] * candidates))
        for name, v in (("risk", loss[:, fold == f]), ("slope", slope[:, fold == f])):
            means = v @ part / total
            fields[name].append(means)
            fields[f"{name}_cov"].append(((v**2) @ part / total - means**2) / (total - 1))
    first = written(mean.tolist(), 1.0, erm=[0, 1])
    return replace(first, **{k: two(v) for k, v in fields.items()})


@given(st.integers(0, 10**6), st.permutations([*range(7)]), st.permutations([*range(3)]))
@settings(deadline=None, max_examples=40)
def test_the_order_of_candidates_and_environments_does_not_matter(seed, order, environments):
    records = random_records(seed, 3)
    names = ("rows", "risk", "risk_cov", "slope", "slope_cov")
    moved = {k: getattr(records, k)[:, order][:, :, environments] for k in names}
    other = replace(records, **moved, reference=records.reference[order])
    a, b = invariance(records), invariance(other)
    assert (order[b.index], b.outcome) == (a.index, a.outcome)
    for name in ("p", "p_erm", "p_confirmed", "risk", "price", "pays_at"):
        if a.figures[name] is None:
            assert b.figures[name] is None
            continue
        assert b.figures[name] == pytest.approx(a.figures[name], rel=1e-6)


# Which test


def test_noise_that_differs_makes_risks_unequal_but_not_slopes():
    noisy = [[0.3, 0.6], [0.35, 0.62]]
    records = written(noisy, SE, slope=[[-0.1, 0.1], [0.0, 0.0]], slope_se=SE)
    assert invariance(records, test="slopes").index == 1
    assert invariance(records, test="slopes").outcome == "invariant-found"
    assert invariance(records, test="risks").outcome == "none-found"


SO_SLOPES = "No candidate that predicts anything has equal slopes and equal risks, so slopes decide alone: "


def test_slopes_decide_alone_where_nothing_passes_both():
    """Noise that differs: no risks are equal. Where something passes both, or nothing passes at all, `both` counts."""
    noisy = [[0.3, 0.6], [0.35, 0.62]]
    by_slopes = written(noisy, SE, slope=[[-0.1, 0.1], [0.0, 0.0]], slope_se=SE)
    verdict, slopes = invariance(by_slopes), invariance(by_slopes, test="slopes")
    assert verdict == replace(slopes, message=verdict.message)
    assert verdict.message == SO_SLOPES + slopes.message and slopes.message.startswith("an invariant model was found (")
    assert (verdict.index, verdict.outcome, verdict.figures["test"]) == (1, "invariant-found", "slopes")
    assert verdict.figures["p"] == 1 and "(slopes equal over environments" in verdict.message
    erm = invariance(written(noisy, SE, slope=[[0.0, 0.0], [0.0, 0.0]], slope_se=SE))
    assert (erm.index, erm.outcome, erm.figures["test"]) == (0, "erm-invariant", "slopes")
    assert erm.message.startswith(f"{SO_SLOPES}plain risk minimisation is kept: it passes the test (slopes equal")
    none = invariance(written(noisy, SE, slope=[ASKEW, ASKEW], slope_se=SE))
    assert (none.outcome, none.figures["test"]) == ("none-found", "both")
    # candidate 1 passes by slopes with a lower risk; 2 passes both
    slope = [ASKEW, [0.0, 0.0], [0.0, 0.0]]
    both = invariance(written([ERM, [0.25, 0.45], [0.45, 0.45]], SE, slope=slope, slope_se=SE))
    assert (both.index, both.figures["test"]) == (2, "both")
    assert invariance(by_slopes, test="zero-slopes").figures["test"] == "zero-slopes"


@pytest.mark.parametrize("candidate", [None, [np.nan, np.nan]])
def test_with_nothing_but_erm_slopes_do_not_decide_alone(candidate):
    """Equal slopes would make ERM "invariant" though its risks differ, and there was nothing to fail both tests."""
    risks = [ERM] if candidate is None else [ERM, candidate]
    verdict = invariance(written(risks, SE))
    assert (verdict.index, verdict.outcome, verdict.figures["test"]) == (0, "none-found", "both")
    assert (verdict.figures["candidates"], verdict.figures["p_nearest"]) == (0, None)
    assert verdict.message == (
        "plain risk minimisation is not invariant (slopes and risks equal over environments, level 0.01; "
        f"p = {p_of_both(0.2 / (SE * np.sqrt(2))):.1g}, risks by environment 0.3, 0.5), and there is nothing else to "
        "choose from."
    )
    assert invariance(written(risks, SE), test="slopes").outcome == "erm-invariant"


def test_where_the_choice_pays():
    """ERM's risks 0.3 and 0.5: 0.2 apart. The candidate's worst is 0.05 above 0.5, or below it."""
    found = invariance(written([ERM, [0.55, 0.55]], SE))
    assert found.figures["pays_at"] == pytest.approx(0.25)
    assert (
        "It is worse than plain risk minimisation in the worst of them too: it pays where the next environment lies "
        "further out by more than 0.25 times their spread."
    ) in found.message
    for risk in (0.45, 0.5):
        found = invariance(written([ERM, [risk, risk]], SE))
        assert found.outcome == "invariant-found" and found.figures["pays_at"] <= 0
        assert "pays" not in found.message


def test_equal_risks_do_not_make_slopes_equal():
    records = written([ERM, [0.45, 0.45]], SE, slope=[[-0.1, 0.1], [-0.1, 0.1]], slope_se=SE)
    assert invariance(records, test="risks").outcome == "invariant-found"
    for test in ("slopes", "both", "zero-slopes"):
        assert invariance(records, test=test).outcome == "none-found"


def test_slopes_may_be_equal_without_being_zero():
    """A model that overfits has the same wrong scale everywhere."""
    records = written([ERM, [0.45, 0.45]], SE, slope=[[-0.1, 0.1], [0.2, 0.2]], slope_se=SE)
    for test in ("slopes", "both"):
        assert invariance(records, test=test).outcome == "invariant-found"
    assert invariance(records, test="zero-slopes").outcome == "none-found"


def test_p_values_by_name():
    pooled = written([ERM, [0.45, 0.47]], SE, slope=[[0.1, 0.1], [0.0, 0.05]], slope_se=SE).pooled()
    z = np.array([[0.2, 0.02], [0.0, 0.05]]) / (SE * np.sqrt(2))  # of risks, of slopes
    p_risks, p_slopes = 2 * stats.norm.sf(z)
    np.testing.assert_allclose(p_values(pooled, "risks"), p_risks)
    np.testing.assert_allclose(p_values(pooled, "slopes"), p_slopes)
    assert p_risks[0] < p_slopes[0] and p_slopes[1] < p_risks[1]
    np.testing.assert_allclose(p_values(pooled, "both"), [2 * p_risks[0], 2 * p_slopes[1]])
    np.testing.assert_allclose(p_values(pooled, "zero-slopes"), stats.chi2.sf([2 * 25, 6.25], 2))


def test_both_is_a_probability():
    pooled = written([[0.45, 0.45], [0.45, 0.46]], SE).pooled()
    assert p_values(pooled, "risks")[1] > 0.5
    assert p_values(pooled, "both").tolist() == [1, 1]


def test_both_rejects_as_seldom_as_one_test():
    """Risks and slopes that are independent: the smaller of two p-values alone would reject twice as often."""
    rng = np.random.default_rng(12)
    repeats = 40_000
    noise = [(SE * rng.normal(size=(repeats, 3))).tolist() for _ in range(2)]
    pooled = written(noise[0], SE, slope=noise[1], slope_se=SE).pooled()
    for level in (0.01, 0.05):
        rejected = (p_values(pooled, "both") < level).double().mean()
        assert 0.85 * level < rejected < 1.1 * level


# Environments with few rows


def cut(pooled, keep, soft):
    """The same without the environments that are not kept."""
    covs = [c[:, keep][:, :, keep] if soft else c[:, keep] for c in (pooled.risk_cov, pooled.slope_cov)]
    fields = pooled.rows[:, keep], pooled.risk[:, keep], covs[0], pooled.slope[:, keep], covs[1]
    return Pooled(*fields, overall=pooled.overall)


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("components", [None, 2])
def test_environments_with_few_rows_are_not_tested(test, soft, components):
    rng = np.random.default_rng(13)
    shape = (4, 4) if components is None else (4, 4, components)
    risk_cov = random_covariance(rng, 4, 4)
    slope_cov = np.stack([random_covariance(rng, 4, 4) for _ in range(components or 1)], -1)
    if not soft:
        risk_cov = risk_cov.diagonal(axis1=1, axis2=2)
        slope_cov = slope_cov.diagonal(axis1=1, axis2=2).swapaxes(1, 2)
    slope_cov = slope_cov if components else slope_cov[..., 0]
    pooled = Pooled(
        rows=two([[40.0, 19.999, 20.0, 300.0]]).expand(4, -1),
        risk=two(0.5 + 0.8 * rng.normal(size=(4, 4))),
        risk_cov=two(risk_cov.copy()),
        slope=two(0.8 * rng.normal(size=shape)),
        slope_cov=two(slope_cov.copy()),
        overall=two([0.1, 0.2, 0.3, 0.4]),
    )
    rest = cut(pooled, [0, 2, 3], soft)
    np.testing.assert_allclose(p_values(pooled, test), p_values(rest, test), rtol=1e-6)
    # their rows count in the mean risk, not in the spread
    apart = [extrapolated_risk(some, test, 10.0, 0.1) - some.overall for some in (pooled, rest)]
    np.testing.assert_allclose(*apart, rtol=1e-6, atol=1e-12)
    assert (apart[0] > 0).any()
    np.testing.assert_allclose(extrapolated_risk(pooled, test, 0.0, 0.5), pooled.overall)
    weighted = replace(pooled, rows=torch.full((4, 4), 300.0), effective=pooled.rows)  # weights do not make rows
    np.testing.assert_allclose(p_values(weighted, test), p_values(rest, test), rtol=1e-6)
    enough = replace(pooled, rows=torch.full((4, 4), 20.0))
    assert (p_values(enough, test) / p_values(rest, test)).log().abs().max() > 0.5


def test_what_few_rows_say_decides_nothing_but_counts_in_the_risk():
    risks, slope = [[*ERM, 0.9], [0.45, 0.45, 0.9]], [[*ASKEW, 0.9], [0.0, 0.0, 0.9]]
    few = invariance(written(risks, SE, slope=slope, slope_se=SE, rows=[100.0, 100.0, 19.0]))
    assert (few.index, few.outcome) == (1, "invariant-found")
    assert few.figures["p"] == 1 and few.figures["risks"] == [0.45, 0.45, 0.9]
    by_hand = (100 * 0.45 + 100 * 0.45 + 19 * 0.9) / 219
    assert few.figures["risk"] == pytest.approx(by_hand) == few.figures["risk_extrapolated"]
    enough = written(risks, SE, slope=slope, slope_se=SE, rows=[100.0, 100.0, 20.0])
    assert invariance(enough).outcome == "none-found"


def test_rows_of_all_folds_count_together():
    risks, slope = [[*ERM, 0.9], [0.45, 0.45, 0.9]], [[*ASKEW, 0.9], [0.0, 0.0, 0.9]]
    for per_fold, outcome in ((5.0, "none-found"), (4.0, "invariant-found")):
        folds = [written(risks, SE, slope=slope, slope_se=SE, rows=[100.0, 100.0, per_fold]) for _ in range(4)]
        assert invariance(of_folds(folds)).outcome == outcome


@pytest.mark.parametrize("test", TESTS)
def test_two_environments_with_enough_rows_must_be_left(test):
    risks, slope = [[*ERM, 0.4], [0.45, 0.45, 0.45]], [[-0.1, 0.1, 0.0], [0.0, 0.0, 0.0]]
    for rows in ([100.0, 19.0, 19.0], [19.0, 19.0, 19.0], [100.0, 19.0, 0.0]):
        with pytest.raises(ValueError, match=r"two or more environments, at least 20 rows of each.* too small"):
            invariance(written(risks, SE, slope=slope, rows=rows), test=test)
    assert invariance(written(risks, SE, slope=slope, rows=[20.0, 20.0, 19.0]), test=test).index == 1


@pytest.mark.parametrize("test", TESTS)
def test_a_candidate_with_few_rows_is_not_known(test):
    """Of inferred environments every candidate has rows of its own."""
    slope = [[-0.1, 0.1], [0.0, 0.0], [0.0, 0.0]]
    records = written([ERM, [0.40, 0.40], [0.45, 0.45]], SE, slope=slope)
    records.rows[0, 1, 0] = 19
    verdict = invariance(records, test=test)
    assert (verdict.index, verdict.figures["candidates"]) == (2, 1)


@pytest.mark.parametrize("test", TESTS)
def test_a_candidate_without_rows_in_a_fold_is_not_taken(test):
    slope = [[-0.1, 0.1], [0.0, 0.0], [0.0, 0.0]]
    records = of_folds([written([ERM, [0.40, 0.40], [0.45, 0.45]], SE, slope=slope) for _ in range(4)])
    assert invariance(records, test=test).index == 1
    for k in FIELDS:
        getattr(records, k)[3, 1] = 0 if k == "rows" else torch.nan
    verdict = invariance(records, test=test)
    assert (verdict.index, verdict.figures["candidates"]) == (2, 1)


# Confirmed on folds that did not choose


def test_confirmation_by_hand():
    """Even folds choose candidate 1, odd folds candidate 2; each is tested on the other's folds.

    The last is plain risk minimisation too, stopped elsewhere: never chosen.
    """
    se = SE / np.sqrt(2)
    even = [ERM, [0.440, 0.440], [0.45, 0.48], [0.41, 0.41]]
    odd = [ERM, [0.440, 0.472], [0.43, 0.43], [0.30, 0.60]]
    folds = [written(risk, se, erm=[0, 3]) for risk in (even, odd)]
    records = of_folds(folds)
    verdict = invariance(records, test="risks")
    assert verdict.outcome == "invariant-found"
    on_odd, on_even = 2 * stats.norm.sf(0.032 / SE), 2 * stats.norm.sf(0.03 / SE)
    assert verdict.figures["p_confirmed"] == pytest.approx(2 * min(on_odd, on_even))
    apart = replace(records, risk=records.risk.clone())
    apart.risk[1, 1] = torch.tensor([0.33, 0.56])  # chosen by the even folds, refuted by the odd ones
    apart.risk[0, 2] = torch.tensor([0.44, 0.45])
    refuted = invariance(apart, test="risks")
    assert refuted.figures["p_confirmed"] < 1e-9
    assert "it is not confirmed" in refuted.message and "it is not confirmed" not in verdict.message


def test_nothing_confirms_on_one_fold_or_on_folds_that_lack_environments():
    risk = [ERM, [0.45, 0.45]]
    assert invariance(written(risk, SE)).figures["p_confirmed"] is None
    for lacking in (0, 1):
        records = of_folds([written(risk, SE), written(risk, SE)])
        records.rows[lacking, 1, 0] = 0  # candidate 1 was measured in one environment of this fold
        records.risk[lacking, 1, 0] = torch.nan
        verdict = invariance(records)
        assert verdict.outcome == "invariant-found" and verdict.figures["p_confirmed"] is None


def test_confirmation_is_calibrated_where_candidates_are_truly_invariant():
    """At most a share a of the p-values lies below a, however many candidates there are to choose from."""
    rng = np.random.default_rng(6)
    confirmed = []
    for _ in range(150):
        folds = []
        for _ in range(4):
            risk = np.r_[[[0.2, 0.6]], np.full((20, 2), 0.45)] + 0.02 * rng.normal(size=(21, 2))
            folds.append(written(risk.tolist(), 0.02, slope=(0.02 * rng.normal(size=(21, 2))).tolist(), slope_se=0.02))
        confirmed.append(invariance(of_folds(folds)).figures["p_confirmed"])
    p = np.array(confirmed)
    for share in (0.05, 0.2):
        assert (p < share).mean() < share + 0.06
    assert np.median(p) > 0.3


def test_erm_is_not_what_a_half_confirms():
    """Plain risk minimisation violates by 4 standard errors in all, by 2.8 in a half: there it often passes, which
    says nothing of the candidate that was chosen."""
    rng = np.random.default_rng(14)
    apart = 4 * 0.01 * np.sqrt(2)  # four folds: 0.01 is the standard error of a risk over all of them
    found, erm_passes_in_a_half = [], 0
    while len(found) < 100:
        folds = []
        for _ in range(4):
            risk = np.r_[[[0.4 - apart / 2, 0.4 + apart / 2]], np.full((10, 2), 0.45)] + 0.02 * rng.normal(size=(11, 2))
            folds.append(written(risk.tolist(), 0.02, slope=(0.02 * rng.normal(size=(11, 2))).tolist(), slope_se=0.02))
        records = of_folds(folds)
        verdict = invariance(records)
        if verdict.outcome == "invariant-found":
            found.append(verdict.figures["p_confirmed"])
            halves = [records.folds([start, start + 2]).pooled() for start in (0, 1)]
            erm_passes_in_a_half += any(p_values(half, "both")[0] >= 0.01 for half in halves)
    assert None not in found
    assert erm_passes_in_a_half > 50
    assert sum(p < 0.01 for p in found) <= 5  # 0 with this seed; 39 where a half may keep ERM and hand it on


def test_nothing_is_confirmed_where_nothing_passes_in_a_half():
    """The even folds see the candidate far to one side, the odd ones to the other: equal over all, in no half."""
    se, aside = 0.02, [[0.40, 0.50], [0.50, 0.40]]
    records = of_folds([written([ERM, risk], se) for risk in aside])
    verdict = invariance(records)
    assert verdict.outcome == "invariant-found" and verdict.figures["p"] == pytest.approx(1)
    assert verdict.figures["p_confirmed"] == 0
    one_half = of_folds([written([ERM, risk], se) for risk in ([0.45, 0.45], [0.50, 0.40])])
    assert invariance(one_half).figures["p_confirmed"] == 0
    assert "Chosen on half of the folds and tested on the other it is not confirmed (p = 0)" in verdict.message


def test_a_half_that_would_keep_erm_still_tests_a_candidate():
    even, odd = [[0.44, 0.46], [0.45, 0.45]], [[0.20, 0.60], [0.43, 0.47]]
    verdict = invariance(of_folds([written(risk, SE) for risk in (even, odd)]))
    assert verdict.outcome == "invariant-found"
    # candidate 1 is chosen both times: differences of 0 and of 0.04
    assert verdict.figures["p_confirmed"] == pytest.approx(min(1, 2 * p_of_both(0.04 / (SE * np.sqrt(2)))))


def test_halves_with_few_rows_confirm_nothing():
    for rows, known in ((20.0, True), (19.0, False)):
        verdict = invariance(of_folds([written([ERM, [0.45, 0.45]], SE, rows=rows) for _ in range(2)]))
        assert verdict.outcome == "invariant-found"
        assert (verdict.figures["p_confirmed"] is not None) == known  # what cannot be tested is not refuted
        assert "confirmed" not in verdict.message


# What it refuses


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"test": "slope"},
            "test must be one of ['both', 'risks', 'slopes', 'zero-slopes']. Got 'slope'. Did you mean",
        ),
        ({"test": None}, "test must be one of"),
        ({"level": -0.1}, "level must be a number from 0 to 1. Got -0.1"),
        ({"level": "1%"}, "level must be a number from 0 to 1. Got '1%'"),
        ({"level": True}, "level must be a number from 0 to 1. Got True"),
        ({"level": float("nan")}, "level must be a number from 0 to 1. Got nan"),
        ({"reach": -1}, "reach must be a finite number of at least 0. Got -1"),
        ({"reach": float("inf")}, "reach must be a finite number of at least 0. Got inf"),
        ({"slack": "much"}, "slack must be a finite number of at least 0. Got 'much'"),
        ({"slack": float("nan")}, "slack must be a finite number of at least 0. Got nan"),
        ({"min_gain": 2}, "min_gain must be a number from 0 to 1. Got 2"),
    ],
)
def test_options_that_make_no_sense(options, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        invariance(written([ERM], SE), **options)
    with pytest.raises(ValueError, match=re.escape(says)):
        check_options(**options)


def test_options_by_wrong_name():
    with pytest.raises(ValueError, match=r"options of 'invariance' are .* Got 'levle'. Did you mean 'level'"):
        check_options(levle=0.1)
    check_options()
    check_options(test="slopes", level=0, reach=0, slack=3.5, min_gain=1)


def test_defaults_are_what_the_docstring_says():
    check_options(**DEFAULTS)
    records = random_records(0, 3)
    assert invariance(records) == invariance(records, **DEFAULTS)
    text = invariance.__doc__
    assert all(f"{name}" in text for name in DEFAULTS)
    assert f"Default {DEFAULTS['level']}" in text and f"Default {DEFAULTS['min_gain']}" in text
    assert f"Defaults {DEFAULTS['reach']:g} and {DEFAULTS['slack']:g}" in text


def test_without_plain_risk_minimisation():
    for records in (
        written([ERM, [0.45, 0.45]], SE, erm=[]),
        written([[np.nan, np.nan], [0.45, 0.45]], SE),
        written([[0.3, np.nan], [0.45, np.nan]], SE, rows=[100.0, 0.0]),
    ):
        with pytest.raises(ValueError, match=r"needs a candidate of plain risk minimisation .* train 'erm'"):
            invariance(records)


def test_one_environment_is_nothing_to_compare():
    with pytest.raises(ValueError, match=r"needs at least 2. Got 1; use 'iid'"):
        invariance(written([[0.3]], SE))


def test_soft_and_vector_records_from_single_rows():
    """The whole way: rows with soft environments and two slopes each, four folds."""
    rng = np.random.default_rng(7)
    n = 200
    q = rng.dirichlet([0.3, 0.3], size=n)
    fold = rng.permutation(np.arange(n) % 4)
    noise = 0.3 * rng.normal(size=n)
    loss = np.stack([0.4 + 0.4 * (q[:, 0] - 0.5) + noise, 0.5 + noise])
    slope = 0.3 * rng.normal(size=(2, n, 2))
    records = counted(loss, slope, q, fold, 4, soft=True)
    verdict = invariance(records)
    assert (verdict.index, verdict.outcome) == (1, "invariant-found")
    wrong = slope.copy()
    wrong[:, :, 1] += 0.5 * (q[:, 0] - 0.5)  # one component is not equal
    assert invariance(counted(loss, wrong, q, fold, 4, soft=True)).outcome == "none-found"
