"""Sums per environment, against loops over rows, for every kind of membership."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from irmtv.core.membership import Blocks, Codes, Membership, Soft, SoftPair, Weighted, mean_over_rows
from irmtv.core.risk import divide, summarise
from irmtv.objectives.environments.aux_network import Grouped

CPU = torch.device("cpu")
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Laid:
    """A membership, the q it stands for (times the rows' weights), and how rows are put where it reads them."""

    membership: Membership
    q: np.ndarray  # (T, K, E, N)
    lay: Callable[[torch.Tensor], torch.Tensor]  # (T, K, N, ...) -> (T, K, *rows_shape, ...)


def unequal_codes(rng, n_sets, n_rows, n_environments, skew):
    """(T, N): from about equal shares (skew 0) to one environment with nearly all rows and some with none."""
    share = (rng.random((n_sets, n_environments)) + 1e-3) ** skew
    return np.stack([rng.choice(n_environments, n_rows, p=s / s.sum()) for s in share])


def one_hot(codes, n_environments):
    return np.eye(n_environments)[codes].swapaxes(-1, -2)  # (..., N) -> (..., E, N)


def dirichlet(rng, *shape, n_environments):
    q = rng.gamma(0.5, size=(*shape[:-1], n_environments, shape[-1])) + 1e-12
    return q / q.sum(-2, keepdims=True)


def lay_blocks(blocks):
    def lay(v):
        index = torch.arange(len(v)).unsqueeze(1)
        moved = v.transpose(1, 2)[index, blocks.order].transpose(1, 2)  # (T, K, slots, ...)
        return moved.reshape(*v.shape[:2], *blocks.rows_shape, *v.shape[3:])

    return lay


def make(kind, rng, n_sets, per_set, n_rows, n_environments, skew, weight=None):
    laid = unweighted(kind, rng, n_sets, per_set, n_rows, n_environments, skew, weight)
    if weight is None:
        return laid
    m, q = laid.membership, laid.q * weight[:, None, None]
    return Laid(m if isinstance(m, (Blocks, Grouped)) else Weighted(m, torch.tensor(weight).unsqueeze(1)), q, laid.lay)


def some_weights(rng, n_sets, n_rows):
    """(T, N), a third of them 0, but not all."""
    weight = rng.gamma(1.0, size=(n_sets, n_rows)) * (rng.random((n_sets, n_rows)) > 1 / 3)
    weight[:, 0] += 0.1
    return weight


def unweighted(kind, rng, n_sets, per_set, n_rows, n_environments, skew, weight):
    """Weights (T, N) are for the blocks alone."""
    shape, weight = (n_sets, per_set, n_rows), None if weight is None else torch.tensor(weight)
    if kind == "blocks":
        codes = unequal_codes(rng, n_sets, n_rows, n_environments, skew)
        blocks = Blocks.of(torch.tensor(codes), n_environments, per_set, weight).to(CPU, torch.float64)
        q = np.repeat(one_hot(codes, n_environments)[:, None], per_set, 1)
        return Laid(blocks, q, lay_blocks(blocks))
    if kind == "codes":
        codes = unequal_codes(rng, n_sets * per_set, n_rows, n_environments, skew).reshape(shape)
        return Laid(Codes(torch.tensor(codes), n_environments), one_hot(codes, n_environments), lambda v: v)
    if kind == "soft":
        q = dirichlet(rng, *shape, n_environments=n_environments)
        return Laid(Soft(torch.tensor(q)), q, lambda v: v)
    if kind == "pair":
        rho = rng.beta(0.5, 0.5, size=shape)
        return Laid(SoftPair(torch.tensor(rho)), np.stack([rho, 1 - rho], 2), lambda v: v)
    # rows through the membership of their groups; group numbers are the blocks' "environments"
    n_groups = n_environments
    groups = unequal_codes(rng, n_sets, n_rows, n_groups, skew)
    blocks = Blocks.of(torch.tensor(groups), n_groups, per_set, weight).to(CPU, torch.float64)
    if kind == "grouped":
        q_group = dirichlet(rng, n_sets, per_set, n_groups, n_environments=3)
        soft = Soft(torch.tensor(q_group))
    else:
        rho = rng.random((n_sets, per_set, n_groups))
        q_group, soft = np.stack([rho, 1 - rho], 2), SoftPair(torch.tensor(rho))
    q = np.stack([q_group[t][:, :, groups[t]] for t in range(n_sets)])
    return Laid(Grouped(blocks, soft), q, lay_blocks(blocks))


KINDS = ["blocks", "codes", "soft", "pair", "grouped", "grouped pair"]
every_kind = pytest.mark.parametrize("kind", KINDS)
shapes = {
    "seed": st.integers(0, 2**32 - 1),
    "n_sets": st.integers(1, 3),
    "per_set": st.integers(1, 3),
    "n_rows": st.integers(1, 60),
    "n_environments": st.integers(1, 6),
    "skew": st.sampled_from([0, 1, 6, 30]),
}


def loop_sums(q, v):
    """sum_i q_ie v_i by loops: (R, E) or (R, E, J)."""
    n_sets, per_set, n_environments, n_rows = q.shape
    out = np.zeros((n_sets * per_set, n_environments, *v.shape[3:]))
    for t in range(n_sets):
        for k in range(per_set):
            for e in range(n_environments):
                for i in range(n_rows):
                    out[t * per_set + k, e] += q[t, k, e, i] * v[t, k, i]
    return out


def close(mine, other, rtol=1e-10, atol=1e-11):
    np.testing.assert_allclose(np.asarray(mine), other, rtol=rtol, atol=atol)


# --- what every membership does ---------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("trailing", [(), (2,)], ids=["scalar", "vector"])
@quick
@given(**shapes)
@example(seed=0, n_sets=2, per_set=2, n_rows=1, n_environments=4, skew=0)
def test_sums_rows_mass_total(kind, weighted, trailing, seed, n_sets, per_set, n_rows, n_environments, skew):
    rng = np.random.default_rng(seed)
    weight = some_weights(rng, n_sets, n_rows) if weighted else None
    laid = make(kind, rng, n_sets, per_set, n_rows, n_environments, skew, weight)
    m, n_runs = laid.membership, n_sets * per_set
    v = rng.normal(size=(n_sets, per_set, n_rows, *trailing))
    sums = m.sums(laid.lay(torch.tensor(v)))
    assert sums.shape == (n_runs, laid.q.shape[2], *trailing)
    assert m.n_environments == laid.q.shape[2]
    close(sums, loop_sums(laid.q, v))

    rows = laid.q.sum(-1).reshape(n_runs, -1)
    assert m.rows.shape in {rows.shape, (1, rows.shape[1])}
    assert (m.rows > 0).all(), "no 0 / 0 where an environment has no rows"
    close(m.rows.expand(n_runs, -1), rows)
    total = np.repeat(weight.sum(1), per_set) if weighted else np.full(n_runs, n_rows)
    close(m.mass.expand(n_runs, -1), rows / total[:, None])
    close(np.broadcast_to(np.asarray(m.total), n_runs), total)
    close(m.mass.sum(1), 1)
    assert (np.asarray(m.mass.expand(n_runs, -1))[rows == 0] == 0).all(), "absent means a mass of exactly 0"
    assert np.prod(m.rows_shape) >= n_rows

    means = divide(sums, m.rows)
    assert means.isfinite().all()
    assert (np.asarray(means)[rows == 0] == 0).all()


@every_kind
@pytest.mark.parametrize("weighted", [False, True])
@quick
@given(**shapes)
def test_gradient_of_the_sums_is_q(kind, weighted, seed, n_sets, per_set, n_rows, n_environments, skew):
    """d(u . sums)/dv_i = sum_e q_ie u_e: every row gets its own share once, pads give nothing."""
    rng = np.random.default_rng(seed)
    weight = some_weights(rng, n_sets, n_rows) if weighted else None
    laid = make(kind, rng, n_sets, per_set, n_rows, n_environments, skew, weight)
    v = torch.tensor(rng.normal(size=(n_sets, per_set, n_rows)), requires_grad=True)
    u = rng.normal(size=(n_sets * per_set, laid.q.shape[2]))
    (laid.membership.sums(laid.lay(v)) * torch.tensor(u)).sum().backward()
    close(v.grad, np.einsum("tken,tke->tkn", laid.q, u.reshape(n_sets, per_set, -1)))


@pytest.mark.parametrize("kind", ["codes", "soft", "pair"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_rows", [2, 7, 8])
@pytest.mark.parametrize("odd", [False, True])
def test_halves_are_every_other_row(kind, weighted, n_rows, odd):
    rng = np.random.default_rng(n_rows)
    weight = rng.random((2, n_rows)) + 0.1 if weighted else None
    laid = make(kind, rng, 2, 2, n_rows, 3, 1, weight)
    half = laid.membership.half(odd)
    q = laid.q[..., int(odd) :: 2]
    v = rng.normal(size=(2, 2, n_rows))[..., int(odd) :: 2]
    close(half.sums(torch.tensor(v)), loop_sums(q, v))
    close(half.rows, q.sum(-1).reshape(4, -1), atol=1e-30)
    total = np.repeat(weight[:, int(odd) :: 2].sum(1), 2) if weighted else q.shape[-1]
    close(np.asarray(half.total), total)


@pytest.mark.parametrize("kind", ["codes", "soft", "pair"])
def test_rows_of_weight_0_alone_have_means_of_0(kind):
    """As a mini-batch may be made of; nothing is 0 / 0."""
    rng = np.random.default_rng(0)
    laid = make(kind, rng, 1, 2, 6, 3, 1, np.zeros((1, 6)))
    v = torch.tensor(rng.normal(size=(1, 2, 6)), requires_grad=True)
    e = summarise(v, v, laid.membership, {"risk", "slope"})
    for found in (e.mean_risk, e.mass, e.risk, e.slope):
        assert (found == 0).all()
    (e.mean_risk.sum() + e.risk.sum() + e.slope.sum()).backward()
    assert (v.grad == 0).all()


def test_mean_over_rows():
    rng = np.random.default_rng(0)
    v = rng.normal(size=(2, 3, 4, 5))
    close(mean_over_rows(torch.tensor(v), None), v.mean((2, 3)).flatten())
    share = rng.dirichlet(np.ones(20), size=2).reshape(2, 1, 4, 5)
    expected = [(v[t, k] * share[t, 0]).sum() for t in range(2) for k in range(3)]
    close(mean_over_rows(torch.tensor(v), torch.tensor(share)), expected)


# --- blocks -----------------------------------------------------------------------------------------------


def blocks_and_codes(seed, n_sets, per_set, n_rows, n_environments, skew):
    codes = unequal_codes(np.random.default_rng(seed), n_sets, n_rows, n_environments, skew)
    blocks = Blocks.of(torch.tensor(codes), n_environments, per_set).to(CPU, torch.float64)
    return blocks, codes


@quick
@given(**shapes)
@example(seed=1, n_sets=1, per_set=1, n_rows=1, n_environments=6, skew=0)
def test_every_row_stands_once_in_a_block_of_its_environment(seed, n_sets, per_set, n_rows, n_environments, skew):
    blocks, codes = blocks_and_codes(seed, n_sets, per_set, n_rows, n_environments, skew)
    n_blocks, length = blocks.rows_shape
    assert blocks.order.shape == (n_sets, n_blocks * length)
    for t in range(n_sets):
        real = np.ones(n_blocks * length, bool) if blocks.weight is None else blocks.weight[t].numpy().ravel() == 1
        assert sorted(blocks.order[t].numpy()[real]) == list(range(n_rows))
        if blocks.weight is not None:
            assert set(np.unique(blocks.weight[t])) <= {0.0, 1.0}
        code_of_slot = np.repeat(blocks.environment[t, 0].numpy(), length)
        np.testing.assert_array_equal(code_of_slot[real], codes[t][blocks.order[t].numpy()[real]])
        assert blocks.order[t].max() < n_rows, "pads read a row that exists"


@quick
@given(**shapes)
def test_spread_is_the_adjoint_of_sums(seed, n_sets, per_set, n_rows, n_environments, skew):
    """<sums(v), u> = <v, spread(u)> in the layout, pads included."""
    blocks, _ = blocks_and_codes(seed, n_sets, per_set, n_rows, n_environments, skew)
    generator = torch.Generator().manual_seed(seed)
    shape = (n_sets, per_set, *blocks.rows_shape)
    v = torch.randn(shape, generator=generator, dtype=torch.float64)
    u = torch.randn(n_sets * per_set, n_environments, generator=generator, dtype=torch.float64)
    back = torch.broadcast_to(blocks.spread(u, shape), shape)
    close((blocks.sums(v) * u).sum(), (v * back).sum())
    leaf = v.clone().requires_grad_()
    (blocks.sums(leaf) * u).sum().backward()
    close(leaf.grad, back)


@pytest.mark.parametrize(
    ("sizes", "padded", "identity"),
    [
        ([(40, 40)], False, True),
        ([(600, 300)], False, False),  # blocks of 300: two of the first environment
        ([(41, 40)], True, True),
        ([(1000, 7, 1)], True, False),
        ([(12, 0, 12)], False, False),  # no block for the second
        ([(24,)], False, True),
        ([(300, 600), (600, 300)], False, False),
        ([(31, 30), (30, 31)], True, True),
        ([(899, 1), (1, 899)], True, False),
    ],
)
def test_the_layouts_there_are(sizes, padded, identity):
    """Each branch of the layout is reached, and its sums are right."""
    rng = np.random.default_rng(0)
    n_environments, n_rows = len(sizes[0]), sum(sizes[0])
    codes = np.stack([rng.permutation(np.repeat(np.arange(n_environments), s)) for s in sizes])
    blocks = Blocks.of(torch.tensor(codes), n_environments, 2).to(CPU, torch.float64)
    assert (blocks.weight is not None, blocks.identity) == (padded, identity)
    assert blocks.order.shape[1] < 1.3 * n_rows, "padding costs little"
    v = rng.normal(size=(len(sizes), 2, n_rows))
    q = np.repeat(one_hot(codes, n_environments)[:, None], 2, 1)
    close(blocks.sums(lay_blocks(blocks)(torch.tensor(v))), np.einsum("tken,tkn->tke", q, v).reshape(-1, len(q[0, 0])))


@quick
@given(**shapes)
def test_the_number_of_blocks_does_not_explode(seed, n_sets, per_set, n_rows, n_environments, skew):
    """The layout costs no more (rows, and eight per block) than one block per environment or one row per block."""
    blocks, codes = blocks_and_codes(seed, n_sets, per_set, n_rows, n_environments, skew)
    counts = np.stack([np.bincount(c, minlength=n_environments) for c in codes])
    n_blocks, length = blocks.rows_shape
    cost = n_blocks * length * (1.25 if blocks.weight is not None else 1) + 8 * n_blocks
    widest = counts.max()
    per_environment = (counts > 0).sum(1).max()
    assert cost <= per_environment * widest * 1.25 + 8 * per_environment
    assert cost <= 9 * n_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [(5, 5), (9, 1)])
def test_blocks_take_the_precision_of_the_run(dtype, sizes):
    blocks = Blocks.of(torch.tensor(np.repeat([0, 1], sizes)[None]), 3).to(CPU, dtype)
    v = torch.ones(1, 1, *blocks.rows_shape, dtype=dtype)
    for tensor in (blocks.sums(v), blocks.rows, blocks.mass, blocks.total):
        assert tensor.dtype == dtype
    assert blocks.sums(v).tolist() == [[*sizes, 0]]


# --- mini-batches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mass_of_a_mini_batch_is_exact(dtype):
    """Codes have no precision of their own; a third must be a third of the run's."""
    value = torch.ones(1, 1, 3, dtype=dtype)
    e = summarise(value, value, Codes(torch.tensor([[[0, 1, 2]]]), 3), {"risk", "slope"})
    assert e.mass.dtype == e.risk.dtype == e.slope.dtype == dtype
    assert (e.mass == torch.ones(3, dtype=dtype) / 3).all()


# --- pairs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trailing", [(), (2,)], ids=["scalar", "vector"])
def test_a_pair_is_two_soft_environments(trailing):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 9, generator=generator, dtype=torch.float64, requires_grad=True)
    v = torch.randn(2, 3, 9, *trailing, generator=generator, dtype=torch.float64)
    u = torch.randn(6, 2, *trailing, generator=generator, dtype=torch.float64)
    rho = torch.sigmoid(logits)

    def gradient(m):
        means = divide(m.sums(v), m.rows)
        (g,) = torch.autograd.grad((u * means).sum() + m.mass.square().sum(), logits, retain_graph=True)
        return means.detach(), g

    for mine, other in zip(gradient(SoftPair(rho)), gradient(Soft(torch.stack([rho, 1 - rho], 2))), strict=True):
        close(mine, other)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("logit", [14.0, 16.0, 17.0, 18.0, 40.0])
def test_a_pair_whose_second_environment_is_empty_up_to_rounding(logit, grouped):
    """There 1 - rho is a rounding error: its mean must stay of the size of the slopes, and l2 finite."""
    generator = torch.Generator().manual_seed(0)
    rho = torch.sigmoid(logit + 0.5 * torch.randn(1, 50, 500, generator=generator))
    v = torch.randn(1, 50, 500, generator=generator)
    m = SoftPair(rho)
    if grouped:
        blocks = Blocks.of(torch.arange(500).unsqueeze(0), 500, 50).to(CPU, torch.float32)
        m, v = Grouped(blocks, m), lay_blocks(blocks)(v)
    e = summarise(v, v, m, {"slope"})
    assert (e.mass >= 0).all()
    assert (e.mass.sum(1) - 1).abs().max() < 1e-6
    assert e.slope.abs().max() < 10
    assert (e.mass * e.slope.square()).isfinite().all()
