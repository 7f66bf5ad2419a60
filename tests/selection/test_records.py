"""Pooling over folds, against the single rows that the records came from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from irmtv.core.membership import Codes, Soft
from irmtv.engine.snapshots import covariance_of_means
from irmtv.selection import iid
from selection.candidates import counted, mean_and_cov, small, written


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


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("components", [None, 2])
@pytest.mark.parametrize("folds", [1, 2, 5])
def test_the_mean_is_that_of_all_rows_at_once(soft, components, folds):
    loss, slope, q, fold = problem(soft=soft, components=components, folds=folds)
    pooled = counted(loss, slope, q, fold, folds, soft=soft).pooled()
    np.testing.assert_allclose(pooled.rows, np.stack([q.sum(0)] * 2))
    np.testing.assert_allclose(pooled.risk, (loss @ q) / q.sum(0))
    by_hand = np.einsum("cn...,ne->ce...", slope, q)
    np.testing.assert_allclose(pooled.slope, by_hand / q.sum(0).reshape(1, -1, *(1,) * (components is not None)))
    np.testing.assert_allclose(iid(pooled), loss.mean(1))


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("components", [None, 2])
def test_the_covariance_is_that_of_rows_around_their_own_folds_mean(soft, components):
    """Var of sum_i q_ie v_i / Q_e, the rows of a fold scattering around that fold's mean (which costs each a row)."""
    loss, slope, q, fold = problem(seed=1, soft=soft, components=components)
    pooled = counted(loss, slope, q, fold, 4, soft=soft).pooled()

    def by_hand(v):
        off = np.zeros_like(q)
        for f in range(4):
            here = fold == f
            means = (v[here] @ q[here]) / q[here].sum(0)
            off[here] = q[here] * (v[here, None] - means) * np.sqrt([small(column) for column in q[here].T])
        cov = off.T @ off / np.outer(q.sum(0), q.sum(0))
        return cov if soft else np.diag(cov)

    for c in range(2):
        np.testing.assert_allclose(pooled.risk_cov[c], by_hand(loss[c]))
        for j in range(components or 1):
            mine = pooled.slope_cov[c] if components is None else pooled.slope_cov[c, ..., j]
            np.testing.assert_allclose(mine, by_hand(slope[c] if components is None else slope[c, :, j]))
    assert pooled.slope_cov.shape == (2, 3, *(3,) * soft, *(2,) * (components is not None))


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
    np.testing.assert_allclose(pooled.risk[:, :2], (loss @ q[:, :2]) / q[:, :2].sum(0))
    assert pooled.risk[:, 2].isnan().all() and pooled.slope[:, 2].isnan().all()
    assert pooled.rows[:, 2].tolist() == [0, 0]
    assert pooled.risk_cov[:, :2].isfinite().all() and (pooled.risk_cov[:, 0] >= 0).any()
    np.testing.assert_allclose(iid(pooled), (loss * q.sum(1)).sum(1) / q.sum())
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
    assert iid(pooled).isnan().all()


def test_a_candidate_without_rows_in_some_fold_is_not_judged_on_the_others():
    """An easy fold would make it look good. One that lacks an environment in a fold has other rows there."""
    loss, slope, q, fold = problem(folds=3, candidates=3)
    records = counted(loss, slope, q, fold, 3)
    whole = records.pooled()
    records.rows[2, 0], records.risk[2, 0] = 0, torch.nan
    records.rows[1, 1, 2], records.risk[1, 1, 2] = 0, torch.nan
    pooled = records.pooled()
    assert pooled.risk[0].isnan().all() and iid(pooled).isnan().tolist() == [True, False, False]
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
    np.testing.assert_allclose(part.pooled().risk, (loss[:, here] @ q[here]) / q[here].sum(0))
    assert part.test is test and part.stated.tolist() == [False, True] and part.constant == records.constant


def test_one_fold_is_a_plain_hold_out():
    records = written([[1.0, 2.0], [3.0, 4.0]], 0.5)
    pooled = records.pooled()
    assert torch.equal(pooled.risk, records.risk[0]) and torch.equal(pooled.risk_cov, records.risk_cov[0])


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
