"""rho: its scaling, its layouts and its memberships, against torch.nn, scikit-learn and the plain layout."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler
from torch import nn

from irmtv.core.membership import Soft, SoftPair
from irmtv.core.risk import summarise
from irmtv.objectives import OBJECTIVES
from irmtv.objectives.environments import AuxNetwork, AuxScaler
from irmtv.objectives.environments.aux_network import GroupedRows, PlainRows, SortedRows, _distinct_rows, lay_out

quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MINIMAX = ["minimax-tv-l1", "minimax-tv-l2", "zin"]


# --- scaling ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_aux", [1, 3])
def test_scaling_by_column_is_scikit_learns(n_aux):
    rng = np.random.default_rng(0)
    aux, other = rng.normal(5, [1, 10, 1e-3][:n_aux], size=(2, 50, n_aux))
    scaler, reference = AuxScaler.of(torch.tensor(aux)), StandardScaler().fit(aux)
    np.testing.assert_allclose(scaler(torch.tensor(aux)), reference.transform(aux), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(scaler(torch.tensor(other)), reference.transform(other), rtol=1e-9, atol=1e-9)


def test_the_authors_scaling_has_one_mean_and_one_deviation():
    rng = np.random.default_rng(0)
    aux, other = rng.normal(5, [1, 10, 1e-3], size=(2, 50, 3))
    scaled = AuxScaler.of(torch.tensor(aux), "authors")(torch.tensor(other))
    np.testing.assert_allclose(scaled, (other - aux.mean()) / aux.std(), rtol=1e-12)


@pytest.mark.parametrize("scaling", ["column", "authors"])
def test_scaling_by_weighted_rows(scaling):
    """As scikit-learn weighs them; whole numbers are repeated rows, and rows of weight 0 are not there."""
    rng = np.random.default_rng(0)
    aux, times = rng.normal(5, [1, 10, 1e-3], size=(50, 3)), rng.integers(0, 4, 50)
    aux[times == 0, 0] = 100.0
    aux[times > 0, 1] = 4.0  # a constant, but for rows that are not there
    mine = AuxScaler.of(torch.tensor(aux), scaling, torch.tensor(0.3 * times))
    repeated = AuxScaler.of(torch.tensor(np.repeat(aux, times, axis=0)), scaling)
    np.testing.assert_allclose(mine.mean, repeated.mean, rtol=1e-12)
    np.testing.assert_allclose(mine.deviation, repeated.deviation, rtol=1e-9)
    if scaling == "column":
        reference = StandardScaler().fit(aux[:, [0, 2]], sample_weight=0.3 * times)
        np.testing.assert_allclose(mine.mean[[0, 2]], reference.mean_, rtol=1e-12)
        np.testing.assert_allclose(mine.deviation[[0, 2]], reference.scale_, rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("constant", [0.0, 7.0, 0.1, 1999.9])
@pytest.mark.parametrize("scaling", ["column", "authors"])
def test_a_constant_column_becomes_zero(constant, scaling, dtype):
    """Its deviation is 0 up to rounding only; dividing by that would make it a column of +-1."""
    aux = torch.full((5000, 1), constant, dtype=dtype)
    scaler = AuxScaler.of(aux, scaling)
    assert (scaler.deviation == 1).all()
    assert scaler(aux).abs().max() <= 4 * abs(constant) * torch.finfo(dtype).eps  # the mean's rounding


# --- the network ------------------------------------------------------------------------------------------


def parameters(net, n_runs, seed=0, scale=1.0):
    """Random ones, biases too: (R, ...) float64."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (scale * torch.randn(n_runs, *shape, generator=generator, dtype=torch.float64)).requires_grad_()
        for name, shape in net.shapes.items()
    }


@pytest.mark.parametrize("n_environments", [2, 3, 5])
@pytest.mark.parametrize("n_aux", [1, 4])
def test_start(n_aux, n_environments):
    """Xavier-uniform weights, as torch bounds them, zero biases, decided by the generator alone."""
    net = AuxNetwork(n_aux, n_environments, hidden=200)
    n_out = 1 if n_environments == 2 else n_environments
    assert net.n_outputs == n_out
    start = net.init(torch.Generator().manual_seed(1))
    for name, layer in (("W", nn.Linear(n_aux, 200)), ("V", nn.Linear(200, n_out))):
        assert start[name].shape == layer.weight.shape
        bound = nn.init.calculate_gain("linear") * math.sqrt(6 / sum(layer.weight.shape))
        assert bound * 0.9 < start[name].abs().max() <= bound
        assert start[name].dtype == torch.float64
    assert not start["b"].any()
    assert not start["c"].any()
    again = net.init(torch.Generator().manual_seed(1))
    assert all((start[k] == again[k]).all() for k in start)
    assert (start["W"] != net.init(torch.Generator().manual_seed(2))["W"]).all()


@pytest.mark.parametrize("n_environments", [2, 3])
@pytest.mark.parametrize(("n_sets", "per_set"), [(1, 1), (1, 3), (2, 2)])
def test_memberships_are_those_of_a_torch_network(n_environments, n_sets, per_set):
    n_aux, hidden, n_rows = 3, 5, 11
    net = AuxNetwork(n_aux, n_environments, hidden)
    p = parameters(net, n_sets * per_set)
    aux = torch.randn(n_sets, n_rows, n_aux, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    membership = PlainRows(aux.transpose(1, 2)).membership(net, p)
    assert isinstance(membership, SoftPair if n_environments == 2 else Soft)
    assert membership.n_environments == n_environments
    q = membership.q if n_environments > 2 else torch.stack([membership.rho, 1 - membership.rho], 2)
    last = nn.Sigmoid() if n_environments == 2 else nn.Softmax(1)
    for r in range(n_sets * per_set):
        module = nn.Sequential(nn.Linear(n_aux, hidden), nn.ReLU(), nn.Linear(hidden, net.n_outputs), last).double()
        with torch.no_grad():
            for i, weight, bias in ((0, "W", "b"), (2, "V", "c")):
                module[i].weight.copy_(p[weight][r])
                module[i].bias.copy_(p[bias][r])
        expected = module(aux[r // per_set]).T  # (1 or E, N)
        expected = torch.cat([expected, 1 - expected]) if n_environments == 2 else expected
        torch.testing.assert_close(q[r // per_set, r % per_set], expected, rtol=1e-12, atol=1e-14)


def test_mini_batches_have_rows_of_their_own_per_run():
    """z (R, A, N) with `n_sets` given: run r reads its own rows."""
    net = AuxNetwork(2, 3, 4)
    p = parameters(net, 4)
    z = torch.randn(4, 2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    together = PlainRows(z, None, 2).membership(net, p)
    assert together.q.shape == (2, 2, 3, 6)
    for r in range(4):
        alone = PlainRows(z[r : r + 1]).membership(net, {k: v[r : r + 1] for k, v in p.items()})
        torch.testing.assert_close(together.q[r // 2, r % 2], alone.q[0, 0])


# --- layouts ----------------------------------------------------------------------------------------------


def distinct_aux(rng, n_sets, n_rows, n_aux, n_distinct):
    """(T, N, A) with exactly `n_distinct` distinct rows in each data set."""
    pool = rng.normal(size=(n_sets, n_distinct, n_aux))
    extra = rng.integers(n_distinct, size=(n_sets, n_rows - n_distinct))
    pick = np.concatenate([np.tile(np.arange(n_distinct), (n_sets, 1)), extra], 1)
    pick = rng.permuted(pick, axis=1)
    return torch.tensor(np.stack([pool[t][pick[t]] for t in range(n_sets)]))


@pytest.mark.parametrize(
    ("n_aux", "n_distinct", "kind"),
    [
        (1, 40, SortedRows),  # all distinct, one column
        (1, 11, SortedRows),  # a few more than a quarter of the rows
        (1, 10, GroupedRows),
        (1, 1, GroupedRows),
        (3, 40, PlainRows),
        (3, 11, PlainRows),
        (3, 10, GroupedRows),
    ],
)
@pytest.mark.parametrize("n_sets", [1, 2])
def test_the_cheapest_layout_is_chosen(n_aux, n_distinct, kind, n_sets):
    aux = distinct_aux(np.random.default_rng(0), n_sets, 40, n_aux, n_distinct)
    rows = lay_out(aux, 2)
    assert type(rows) is kind
    if kind is PlainRows:
        assert rows.order is None
        assert (rows.z == aux.transpose(1, 2)).all()
        return
    for t in range(n_sets):
        real = torch.ones(rows.order.shape[1], dtype=torch.bool)
        if kind is GroupedRows and rows.blocks.weight is not None:
            real = rows.blocks.weight[t].flatten() == 1
        assert rows.order[t][real].sort().values.tolist() == list(range(40)), "a permutation of the rows"
        laid = aux[t][rows.order[t]]  # (slots, A)
        if kind is SortedRows:
            assert (laid[:, 0] == rows.z[t]).all()
            assert (rows.z[t].diff() >= 0).all()
        else:
            group = rows.blocks.environment[t, 0].repeat_interleave(rows.blocks.length)
            assert (rows.z[t].T[group] == laid)[real].all()


def test_data_sets_with_different_numbers_of_distinct_rows_are_not_grouped():
    rng = np.random.default_rng(0)
    one, two = distinct_aux(rng, 1, 40, 1, 5), distinct_aux(rng, 1, 40, 1, 6)
    assert isinstance(lay_out(torch.cat([one, two]), 1), SortedRows)


@quick
@given(seed=st.integers(0, 2**32 - 1), n_rows=st.integers(1, 40), n_aux=st.integers(1, 4), levels=st.integers(1, 4))
def test_distinct_rows_are_numpys(seed, n_rows, n_aux, levels):
    aux = np.random.default_rng(seed).integers(levels, size=(n_rows, n_aux)).astype(float) - 1
    rows, codes = _distinct_rows(torch.tensor(aux))
    assert (rows[codes].numpy() == aux).all()
    np.testing.assert_array_equal(rows[np.lexsort(rows.numpy().T[::-1])], np.unique(aux, axis=0))


# --- the layouts agree ------------------------------------------------------------------------------------


def lay(rows, v):
    """(T, K, N, ...) where the layout reads it."""
    if rows.order is None:
        return v
    index = torch.arange(len(v)).unsqueeze(1)
    moved = v.transpose(1, 2)[index, rows.order].transpose(1, 2)
    shape = rows.blocks.rows_shape if isinstance(rows, GroupedRows) else (v.shape[2],)
    return moved.reshape(*v.shape[:2], *shape, *v.shape[3:])


def penalties_and_gradients(net, p, rows, value, slope):
    """Statistics, the penalties of all minimax objectives, and their gradients in rho's parameters."""
    e = summarise(lay(rows, value), lay(rows, slope), rows.membership(net, p), {"risk", "slope"})
    values = [OBJECTIVES[name].penalty_values(e, {})[0] for name in MINIMAX]
    gradients = [g for v in values for g in torch.autograd.grad(v.sum(), list(p.values()), retain_graph=True)]
    return [e.mean_risk, e.mass, e.risk, e.slope, *values, *gradients]


@pytest.mark.parametrize("n_environments", [2, 4])
@pytest.mark.parametrize("trailing", [(), (2,)], ids=["scalar", "vector"])
@pytest.mark.parametrize(
    ("n_aux", "n_distinct", "kind"),
    [(1, 60, SortedRows), (1, 20, SortedRows), (1, 7, GroupedRows), (3, 9, GroupedRows)],
)
@pytest.mark.parametrize(("n_sets", "per_set"), [(1, 2), (2, 2)])
def test_layouts_agree_with_the_plain_one(n_sets, per_set, n_aux, n_distinct, kind, trailing, n_environments):
    rng = np.random.default_rng(n_distinct)
    aux = distinct_aux(rng, n_sets, 60, n_aux, n_distinct)
    value = torch.tensor(rng.random((n_sets, per_set, 60)))
    slope = torch.tensor(rng.normal(size=(n_sets, per_set, 60, *trailing)))
    net = AuxNetwork(n_aux, n_environments, 6)
    p = parameters(net, n_sets * per_set)
    rows = lay_out(aux, per_set)
    assert type(rows) is kind
    mine = penalties_and_gradients(net, p, rows, value, slope)
    plain = penalties_and_gradients(net, p, PlainRows(aux.transpose(1, 2).contiguous()), value, slope)
    for a, b in zip(mine, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@quick
@given(
    seed=st.integers(0, 2**32 - 1),
    n_sets=st.integers(1, 2),
    per_set=st.integers(1, 2),
    n_aux=st.integers(1, 3),
    n_groups=st.integers(1, 6),
    n_environments=st.integers(2, 4),
)
def test_grouped_rows_equal_plain_rows_for_any_group_sizes(seed, n_sets, per_set, n_aux, n_groups, n_environments):
    rng = np.random.default_rng(seed)
    n_rows = int(rng.integers(4 * n_groups, 80))
    aux = distinct_aux(rng, n_sets, n_rows, n_aux, n_groups)
    value = torch.tensor(rng.random((n_sets, per_set, n_rows)))
    slope = torch.tensor(rng.normal(size=(n_sets, per_set, n_rows)))
    net = AuxNetwork(n_aux, n_environments, 4)
    p = parameters(net, n_sets * per_set, seed % 1000)
    rows = lay_out(aux, per_set)
    assert isinstance(rows, GroupedRows)
    mine = penalties_and_gradients(net, p, rows, value, slope)
    plain = penalties_and_gradients(net, p, PlainRows(aux.transpose(1, 2).contiguous()), value, slope)
    for a, b in zip(mine, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-11)


def test_rho_at_its_start_agrees_on_a_symmetric_time_axis():
    """All biases 0 and a row at z = 0: every unit's kink lies on that row."""
    aux = torch.linspace(-1, 1, 41, dtype=torch.float64).view(1, -1, 1)
    net = AuxNetwork(1, 2, 8)
    p = {k: v.unsqueeze(0).requires_grad_() for k, v in net.init(torch.Generator().manual_seed(0)).items()}
    slope = torch.randn(1, 1, 41, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows = lay_out(aux, 1)
    assert isinstance(rows, SortedRows)
    mine = penalties_and_gradients(net, p, rows, slope.abs(), slope)
    plain = penalties_and_gradients(net, p, PlainRows(aux.transpose(1, 2).contiguous()), slope.abs(), slope)
    for a, b in zip(mine, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
