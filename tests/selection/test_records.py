"""Pooling over folds, against the single rows that the records came from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from irmtv.core.membership import Codes, Soft
from irmtv.engine.snapshots import covariance_of_means
from irmtv.selection import Records, equal_means, invariance, spread
from selection.candidates import counted, mean_and_cov, small, weights_of_rows, written


def problem(seed=0, n=90, candidates=2, environments=3, folds=4, soft=False, components=None):
    rng = np.random.default_rng(seed)
    loss = rng.gamma(2.0, size=(candidates, n))
    slope = rng.normal(size=(candidates, n) if components is None else (candidates, n, components))
    if soft:
        q = rng.dirichlet(np.ones(environments), size=n)
    else:
        q = np.eye(environments)[rng.choice(environments, n, p=np.arange(1, environments + 1) / 6)]
    fold = rng.permutation(np.arange(n) % folds)
    return loss, slope, q, fold


def weighted_means(v, q, fold):
    """(C, E[, J]) from single rows v (C, N[, J]); NaN where an environment has none."""
    means = np.einsum("cn...,ne->ce...", v, weights_of_rows(q, fold))
    means[:, np.asarray(q).sum(0) == 0] = np.nan
    return means


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("components", [None, 2])
@pytest.mark.parametrize("folds", [1, 2, 5])
def test_every_fold_counts_alike_in_all_environments(soft, components, folds):
    loss, slope, q, fold = problem(soft=soft, components=components, folds=folds)
    fold[:9] = 0  # folds of other sizes
    pooled = counted(loss, slope, q, fold, folds, soft=soft).pooled()
    np.testing.assert_allclose(pooled.rows, np.stack([q.sum(0)] * 2))
    np.testing.assert_allclose(pooled.risk, weighted_means(loss, q, fold))
    np.testing.assert_allclose(pooled.slope, weighted_means(slope, q, fold))
    np.testing.assert_allclose(pooled.overall, loss.mean(1))  # every row once
    if folds == 1:
        np.testing.assert_allclose(pooled.risk, (loss @ q) / q.sum(0))


def test_a_fold_with_a_worse_model_tells_no_environments_apart():
    """Inferred environments are of other sizes in every fold; the mean of all rows of each would differ by that."""
    environment = np.repeat([0, 1, 0, 1], [30, 10, 10, 30])
    fold = np.repeat([0, 1], 40)
    loss = 1.0 * fold[None]  # the model of the second fold is worse by 1, for everybody
    q = np.eye(2)[environment]
    pooled = counted(loss, loss, q, fold, 2).pooled()
    np.testing.assert_allclose(pooled.risk, [[0.5, 0.5]])
    assert [loss[0, environment == e].mean() for e in (0, 1)] == [0.25, 0.75]
    assert equal_means(pooled.risk, pooled.risk_cov) == 1


@pytest.mark.parametrize("components", [None, 2])
def test_soft_environments_have_the_covariance_of_rows_around_their_own_folds_mean(components):
    """Var of sum_i w_ie v_i, the rows of a fold scattering around that fold's mean (which costs each a row)."""
    loss, slope, q, fold = problem(seed=1, soft=True, components=components)
    pooled = counted(loss, slope, q, fold, 4, soft=True).pooled()
    weights = weights_of_rows(q, fold)

    def by_hand(v):
        off = np.zeros_like(q)
        for f in range(4):
            here = fold == f
            means = (v[here] @ q[here]) / q[here].sum(0)
            off[here] = weights[here] * (v[here, None] - means) * np.sqrt([small(column) for column in q[here].T])
        return off.T @ off

    for c in range(2):
        np.testing.assert_allclose(pooled.risk_cov[c], by_hand(loss[c]))
        for j in range(components or 1):
            mine = pooled.slope_cov[c] if components is None else pooled.slope_cov[c, ..., j]
            np.testing.assert_allclose(mine, by_hand(slope[c] if components is None else slope[c, :, j]))
    assert pooled.slope_cov.shape == (2, 3, 3, *(2,) * (components is not None))


def pooled_variance(v, q, fold):
    """(E,) of hard environments: s^2 of rows around their fold's mean, times the sum of squared weights."""
    weights = weights_of_rows(q, fold)
    found = np.full(q.shape[1], np.nan)
    for e in range(q.shape[1]):
        parts = [v[(fold == f) & (q[:, e] == 1)] for f in np.unique(fold)]
        freedom = sum(len(part) - 1 for part in parts if len(part))
        if freedom > 0:
            s2 = sum(((part - part.mean()) ** 2).sum() for part in parts if len(part)) / freedom
            found[e] = s2 * (weights[:, e] ** 2).sum()
    return found


@pytest.mark.parametrize("components", [None, 2])
@pytest.mark.parametrize("folds", [1, 4, 30])
def test_hard_environments_have_one_variance_of_single_rows_for_all_folds(components, folds):
    """With 30 folds many have one row of an environment, or none."""
    loss, slope, q, fold = problem(seed=1, components=components, folds=folds)
    pooled = counted(loss, slope, q, fold, folds).pooled()
    for c in range(2):
        np.testing.assert_allclose(pooled.risk_cov[c], pooled_variance(loss[c], q, fold))
        for j in range(components or 1):
            mine = pooled.slope_cov[c] if components is None else pooled.slope_cov[c, ..., j]
            of_rows = slope[c] if components is None else slope[c, :, j]
            np.testing.assert_allclose(mine, pooled_variance(of_rows, q, fold))
    assert pooled.slope_cov.shape == (2, 3, *(2,) * (components is not None))


def test_the_pooled_variance_is_right_on_average_where_a_fold_has_one_row_of_an_environment():
    """Rows 5, 1, 1 and 3 of an environment, of 10 each in the folds."""
    rng = np.random.default_rng(5)
    environment = np.concatenate([np.repeat([0, 1], [n, 10 - n]) for n in (5, 1, 1, 3)])
    q, fold = np.eye(2)[environment], np.repeat(np.arange(4), 10)
    v = rng.normal(size=(4000, 40))
    means = weighted_means(v, q, fold)
    some = counted(v[:400], v[:400], q, fold, 4).pooled()
    np.testing.assert_allclose(some.risk, means[:400])
    np.testing.assert_allclose(some.risk_cov.mean(0), means.var(0), rtol=0.1)


def test_an_environment_with_one_row_in_each_fold_is_unknown_and_drops_out():
    rng = np.random.default_rng(6)
    folds = 25
    environment = np.tile(np.repeat([0, 1, 2], [1, 4, 4]), folds)  # 25 rows of the first: enough to be tested
    fold = np.repeat(np.arange(folds), 9)
    loss = np.stack([0.5 + 1.0 * (environment == 2), np.full(len(fold), 0.9)])
    loss = loss + 0.1 * rng.normal(size=loss.shape)
    slope = 0.1 * rng.normal(size=loss.shape)
    records = counted(loss, slope, np.eye(3)[environment], fold, folds, constant=2.0)
    pooled = records.pooled()
    assert pooled.risk.isfinite().all()
    assert pooled.risk_cov.isnan().tolist() == [[True, False, False]] * 2
    for f in (equal_means, lambda m, v: spread(m, v, 0.5), lambda m, v: spread(m, v, 0.5, around_zero=True)):
        np.testing.assert_allclose(f(pooled.risk, pooled.risk_cov), f(pooled.risk[:, 1:], pooled.risk_cov[:, 1:]))
    verdict = invariance(records)
    assert (verdict.index, verdict.outcome) == (1, "invariant-found")
    assert np.isfinite(verdict.figures["risk_extrapolated"])


def test_fewer_scatter_where_the_models_of_the_folds_differ():
    """A difference between two folds' models is not noise of the rows."""
    loss = np.r_[np.zeros(10), np.ones(10)][None]
    q, fold = np.eye(2)[np.arange(20) % 2], np.repeat([0, 1], 10)
    pooled = counted(loss, loss, q, fold, 2).pooled()
    np.testing.assert_allclose(pooled.risk, [[0.5, 0.5]])
    np.testing.assert_allclose(pooled.risk_cov, 0, atol=1e-15)
    assert (counted(loss, loss, q, np.zeros(20), 1).pooled().risk_cov > 0.02).all()


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("components", [None, 2])
def test_an_environment_that_some_folds_lack(soft, components):
    loss, slope, q, fold = problem(seed=2, soft=soft, components=components)
    q[fold == 1, 0] = 0
    q[:, 2] = 0
    q[q.sum(1) == 0, 1] = 1
    records = counted(loss, slope, q, fold, 4, soft=soft)
    assert records.risk[1, :, 0].isnan().all() and records.risk_cov[1].isnan().any()
    pooled = records.pooled()
    np.testing.assert_allclose(pooled.risk, weighted_means(loss, q, fold))
    np.testing.assert_allclose(pooled.slope, weighted_means(slope, q, fold))
    assert pooled.risk[:, 2].isnan().all() and pooled.slope[:, 2].isnan().all()
    assert pooled.rows[:, 2].tolist() == [0, 0]
    assert pooled.risk_cov[:, :2].isfinite().all() and (pooled.risk_cov[:, 0] >= 0).any()
    np.testing.assert_allclose(pooled.overall, (loss * q.sum(1)).sum(1) / q.sum())
    without = [i for i in range(4) if i != 1]  # environment 0 is measured on the other folds alone
    same = records.folds(without).pooled()
    np.testing.assert_allclose(pooled.risk[:, 0], same.risk[:, 0])
    where = (slice(None), 0, 0) if soft else (slice(None), 0)
    np.testing.assert_allclose(pooled.risk_cov[where], same.risk_cov[where])
    np.testing.assert_allclose(pooled.slope_cov[where], same.slope_cov[where])


def test_a_candidate_that_diverged_or_was_not_measured_stays_unknown():
    loss, slope, q, fold = problem(folds=2)
    records = counted(loss, slope, q, fold, 2)
    records.risk[0, 0] = torch.nan
    records.rows[:, 1], records.risk[:, 1] = 0, torch.nan
    pooled = records.pooled()
    assert pooled.risk[0].isnan().all() and pooled.risk[1].isnan().all()
    assert pooled.overall.isnan().all()


def test_a_candidate_without_rows_in_some_fold_is_not_judged_on_the_others():
    """An easy fold would make it look good. One that lacks an environment in a fold has other rows there."""
    loss, slope, q, fold = problem(folds=3, candidates=3)
    records = counted(loss, slope, q, fold, 3)
    whole = records.pooled()
    records.rows[2, 0], records.risk[2, 0] = 0, torch.nan
    records.rows[1, 1, 2], records.risk[1, 1, 2] = 0, torch.nan
    pooled = records.pooled()
    assert pooled.risk[0].isnan().all() and pooled.overall.isnan().tolist() == [True, False, False]
    assert pooled.risk[1].isfinite().all()
    assert torch.equal(pooled.risk[2], whole.risk[2]) and torch.equal(pooled.rows[2], whole.rows[2])
    part = records.folds([0, 1]).pooled()  # there it has all its rows
    assert part.risk[0].isfinite().all()


def test_some_of_the_folds():
    loss, slope, q, fold = problem(seed=3)
    test = torch.tensor([1.0, 2.0])
    records = counted(loss, slope, q, fold, 4, test=test, stated=1)
    part = records.folds([3, 1])
    here = np.isin(fold, [1, 3])
    assert (part.n_folds, len(part), records.n_folds, len(records)) == (2, 2, 4, 2)
    np.testing.assert_allclose(part.pooled().risk, weighted_means(loss[:, here], q[here], fold[here]))
    np.testing.assert_allclose(part.pooled().overall, loss[:, here].mean(1))
    assert part.test is test and part.stated.tolist() == [False, True] and part.constant == records.constant


def test_one_fold_is_a_plain_hold_out():
    records = written([[1.0, 2.0], [3.0, 4.0]], 0.5)
    pooled = records.pooled()
    torch.testing.assert_close(pooled.risk, records.risk[0])
    torch.testing.assert_close(pooled.risk_cov, records.risk_cov[0])


# What the engine measures of one fold


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("components", [None, 2])
@pytest.mark.parametrize("environments", [2, 3])
@pytest.mark.parametrize("soft", [False, True])
def test_covariance_of_means_against_loops(dtype, components, environments, soft):
    """In float32 too, which is what trainings use."""
    rng = np.random.default_rng(4)
    n = 40
    v = rng.normal(1, 2, size=(n,) if components is None else (n, components))
    q = rng.dirichlet(np.ones(environments), size=n) if soft else np.eye(environments)[np.arange(n) % environments]
    values = torch.as_tensor(v, dtype=dtype)[None, None].repeat(1, 2, *(1,) * v.ndim)  # two runs on one data set
    if soft:
        membership = Soft(torch.as_tensor(q.T.copy(), dtype=dtype).expand(1, 2, -1, -1))
    else:
        membership = Codes(torch.as_tensor(q.argmax(1)).expand(1, 2, -1), environments)
    cov = covariance_of_means(membership, values)
    assert cov.dtype == torch.float64
    assert cov.shape == (2, environments, *(environments,) * soft, *(components,) * (components is not None))
    for j in range(components or 1):
        _, by_hand = mean_and_cov(v if components is None else v[:, j], q)
        mine = cov[1] if components is None else cov[1, ..., j]
        tolerance = 1e-4 if dtype == torch.float32 else 1e-10
        np.testing.assert_allclose(mine, by_hand if soft else np.diag(by_hand), rtol=tolerance, atol=tolerance * 1e-3)


def of_one_run(v, environment, n_environments):
    codes = torch.as_tensor(environment)[None, None]
    return covariance_of_means(Codes(codes, n_environments), torch.as_tensor(v)[None, None])[0]


def test_squared_standard_errors_are_those_of_scipy():
    v, environment = np.random.default_rng(0).normal(3, 2, size=50), np.repeat([0, 1, 2], [2, 8, 40])
    expected = [stats.sem(v[environment == e]) ** 2 for e in range(3)]
    np.testing.assert_allclose(of_one_run(v, environment, 3), expected, rtol=1e-9)


def test_one_row_alone_has_no_scatter_and_none_is_unknown():
    cov = of_one_run([1.0, 5.0, 7.0], [0, 1, 1], 3)
    np.testing.assert_allclose(cov, [0.0, 1.0, np.nan])


def test_squared_standard_errors_are_right_on_average_however_few_the_rows():
    rng = np.random.default_rng(1)
    repeats = 4000
    v = torch.as_tensor(rng.exponential(size=(1, repeats, 8)))
    membership = Codes(torch.tensor([0, 0, 0, 1, 1, 1, 1, 1]).expand(1, repeats, -1), 2)
    cov = covariance_of_means(membership, v)
    np.testing.assert_allclose(cov.mean(0), [1 / 3, 1 / 5], rtol=0.08)


@pytest.mark.parametrize("components", [None, 2])
def test_soft_environments_of_zeros_and_ones_are_hard_ones(components):
    rng = np.random.default_rng(2)
    environment = np.repeat([0, 1, 2], [2, 5, 9])
    v = torch.as_tensor(rng.normal(size=(16,) if components is None else (16, components)))[None, None]
    q = torch.as_tensor(np.eye(3)[environment].T.copy())[None, None]
    matrix = covariance_of_means(Soft(q), v)
    hard = covariance_of_means(Codes(torch.as_tensor(environment)[None, None], 3), v)
    torch.testing.assert_close(matrix.diagonal(dim1=1, dim2=2), hard if components is None else hard.transpose(1, 2))
    off = ~torch.eye(3, dtype=torch.bool)
    assert (matrix[:, off] == 0).all()


def test_soft_environments_of_few_effective_rows():
    """Weights w, w, 2 w count as 16 / 6 rows; nearly one row alone is taken for two, not divided by next to 0."""
    v = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    for w in (0.01, 0.4):
        q = torch.tensor([w, w, 2 * w], dtype=torch.float64)
        cov = covariance_of_means(Soft(torch.stack([q, 1 - q])[None, None]), v[None, None])
        mean = (1 + 2 + 8) / 4
        plain = ((1 - mean) ** 2 + (2 - mean) ** 2 + 4 * (4 - mean) ** 2) / 16
        assert float(cov[0, 0, 0]) == pytest.approx(plain * (16 / 6) / (16 / 6 - 1))
    q = torch.tensor([1.0, 1e-3, 1e-3], dtype=torch.float64)
    cov = covariance_of_means(Soft(torch.stack([q, 1 - q])[None, None]), v[None, None])
    _, by_hand = mean_and_cov(v.numpy(), torch.stack([q, 1 - q], 1).numpy())
    mean = (1 + 0.006) / 1.002
    plain = ((1 - mean) ** 2 + 1e-6 * (2 - mean) ** 2 + 1e-6 * (4 - mean) ** 2) / 1.002**2
    assert float(cov[0, 0, 0]) == pytest.approx(2 * plain)
    np.testing.assert_allclose(cov[0], by_hand, rtol=1e-9)


def test_rows_with_weights_are_worth_fewer():
    """Of all folds together, and in the variance of single rows, of which folds with few effective rows know little."""
    rng = np.random.default_rng(3)
    n, folds = 120, 3
    w, e, fold, v = rng.gamma(0.5, size=n), np.arange(n) % 2, np.arange(n) // 2 % folds, rng.normal(size=n)
    fields = {name: np.zeros((folds, 1, 2)) for name in ("rows", "effective", "risk", "risk_cov")}
    for f in range(folds):
        for a in range(2):
            wi, vi = w[(fold == f) & (e == a)], v[(fold == f) & (e == a)]
            mean, worth = (wi * vi).sum() / wi.sum(), wi.sum() ** 2 / (wi**2).sum()
            cov = (wi**2 * (vi - mean) ** 2).sum() / wi.sum() ** 2 * worth / (worth - 1)
            for name, value in zip(fields, (wi.sum(), worth, mean, cov), strict=True):
                fields[name][f, 0, a] = value
    nobody = torch.zeros(1, dtype=torch.bool)
    t = {name: torch.as_tensor(value) for name, value in fields.items()}
    records = Records(**t, slope=t["risk"], slope_cov=t["risk_cov"], constant=1.0, reference=nobody, stated=nobody)
    pooled = records.pooled()
    worth = [w[e == a].sum() ** 2 / (w[e == a] ** 2).sum() for a in range(2)]
    np.testing.assert_allclose(pooled.effective[0], worth)
    np.testing.assert_allclose(pooled.worth, pooled.effective)
    np.testing.assert_allclose(pooled.overall, (w * v).sum() / w.sum())
    share = fields["rows"].sum(2)[:, 0] / w.sum()
    for a in range(2):
        k, cov = fields["effective"][:, 0, a], fields["risk_cov"][:, 0, a]
        single = ((k - 1) * k * cov).sum() / (k - 1).sum()
        assert float(pooled.risk_cov[0, a]) == pytest.approx(single * (share**2 / k).sum())
    assert torch.equal(records.folds([0, 2]).effective, t["effective"][[0, 2]])
    assert pooled.rows[0].sum() == pytest.approx(w.sum())


def test_the_weight_of_a_fold_without_rows_of_an_environment_counts_nothing():
    rows = torch.tensor([[[30.0, 30.0]], [[30.0, 0.0]]], dtype=torch.float64)
    effective = torch.tensor([[[10.0, 15.0]], [[20.0, 0.0]]], dtype=torch.float64)
    value, nobody = torch.ones_like(rows), torch.zeros(1, dtype=torch.bool)
    pooled = Records(rows, value, value, value, value, 1.0, nobody, nobody, effective=effective).pooled()
    np.testing.assert_allclose(pooled.effective, [[60**2 / (90 + 45), 15]])
