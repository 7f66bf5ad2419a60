"""The ReLU layer by cumulative sums, against the plain one: values and every gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from irmtv.objectives.environments.sorted_relu import sorted_relu_layer

quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def plain_layer(z, w, b, v, c):
    per_run = z.repeat_interleave(len(w) // len(z), 0)  # (R, N)
    hidden = (w.unsqueeze(2) * per_run.unsqueeze(1) + b.unsqueeze(2)).relu()  # (R, H, N)
    return v @ hidden + c.unsqueeze(2)


def value_and_gradients(layer, z, parameters, upstream):
    leaves = [p.clone().requires_grad_() for p in parameters]
    out = layer(z, *leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream)]


def same(z, parameters, upstream, rtol=1e-9, atol=1e-9):
    mine = value_and_gradients(sorted_relu_layer, z, parameters, upstream)
    other = value_and_gradients(plain_layer, z, parameters, upstream)
    for name, a, b in zip(("value", "w", "b", "v", "c"), mine, other, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, msg=lambda m, name=name: f"{name}: {m}")


# products and quotients of these are exact, so a kink that falls on a row does so in both computations
POWERS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 4.0, -4.0, 2.0**-20, -(2.0**-20)]
QUARTERS = st.integers(-12, 12).map(lambda i: i / 4)


@quick
@given(data=st.data())
def test_equal_to_the_plain_network(data):
    """Weights of 0 and -0, ties in z, kinks on a row, between rows and outside all rows; T > 1; several outputs."""
    n_sets, per_set, width, n_out, n_rows = (data.draw(st.integers(1, most)) for most in (3, 2, 4, 3, 8))
    n_runs = n_sets * per_set
    exact = {"elements": QUARTERS}
    z = torch.tensor(data.draw(hnp.arrays(np.float64, (n_sets, n_rows), **exact))).sort(1).values
    w = torch.tensor(data.draw(hnp.arrays(np.float64, (n_runs, width), elements=st.sampled_from(POWERS))))
    b = torch.tensor(data.draw(hnp.arrays(np.float64, (n_runs, width), **exact)))
    v = torch.tensor(data.draw(hnp.arrays(np.float64, (n_runs, n_out, width), **exact)))
    c = torch.tensor(data.draw(hnp.arrays(np.float64, (n_runs, n_out), **exact)))
    upstream = torch.tensor(data.draw(hnp.arrays(np.float64, (n_runs, n_out, n_rows), **exact)))
    same(z, (w, b, v, c), upstream)


@quick
@given(
    seed=st.integers(0, 2**32 - 1),
    n_sets=st.integers(1, 3),
    per_set=st.integers(1, 3),
    width=st.integers(1, 20),
    n_out=st.integers(1, 4),
    n_rows=st.integers(1, 60),
    spread=st.sampled_from([1e-3, 1.0, 1e3]),
)
@example(seed=0, n_sets=2, per_set=2, width=16, n_out=1, n_rows=1, spread=1.0)
def test_equal_at_random_weights(seed, n_sets, per_set, width, n_out, n_rows, spread):
    """`spread` moves the kinks: to all rows' left and right, or all between two rows."""
    rng = np.random.default_rng(seed)
    n_runs = n_sets * per_set
    z = torch.tensor(np.sort(rng.normal(size=(n_sets, n_rows)), 1))
    shapes = (n_runs, width), (n_runs, width), (n_runs, n_out, width), (n_runs, n_out)
    w, b, v, c = (torch.tensor(rng.normal(size=shape)) for shape in shapes)
    same(z, (w, b * spread, v, c), torch.tensor(rng.normal(size=(n_runs, n_out, n_rows))), atol=1e-9 * max(1, spread))


@pytest.mark.parametrize("w", [1.0, -1.0, 0.0, -0.0])
@pytest.mark.parametrize("b", [0.0, 1.0, -1.0, 50.0, -50.0])
@pytest.mark.parametrize("z", [(-1.0, 0.0, 1.0), (0.0, 0.0, 0.0), (-1.0, -1.0, 1.0)], ids=str)
def test_one_unit(w, b, z):
    """As rho starts (b = 0) with a row at the mean (z = 0): a unit is off at its own kink, rising or falling."""
    z = torch.tensor([z], dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    same(z, (w * one, b * one, 3 * one.unsqueeze(2), 0 * one), torch.tensor([[[1.0, 10.0, 100.0]]]).double(), atol=0)


def test_numerical_gradients():
    rng = np.random.default_rng(0)
    z = torch.tensor(np.sort(rng.normal(size=(2, 9)), 1))
    shapes = (4, 5), (4, 5), (4, 2, 5), (4, 2)
    leaves = [torch.tensor(rng.normal(size=shape), requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(lambda *p: sorted_relu_layer(z, *p), leaves)


def test_float32_is_as_good_as_the_plain_network():
    """Cumulative sums over 5000 rows: errors against float64 of the size that the plain network has."""
    rng = np.random.default_rng(0)
    z = torch.tensor(np.sort(rng.normal(size=(1, 5000)), 1))
    shapes = (2, 16), (2, 16), (2, 1, 16), (2, 1)
    parameters = [torch.tensor(rng.normal(size=shape)) for shape in shapes]
    upstream = torch.tensor(rng.normal(size=(2, 1, 5000)))
    exact = value_and_gradients(plain_layer, z, parameters, upstream)
    single = value_and_gradients(sorted_relu_layer, z.float(), [p.float() for p in parameters], upstream.float())
    for a, b in zip(single, exact, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).abs().max() < 2e-5 * b.abs().max()


def test_gradients_arrive_in_any_memory_order():
    rng = np.random.default_rng(0)
    z = torch.tensor(np.sort(rng.normal(size=(2, 7)), 1))
    shapes = (4, 5), (4, 5), (4, 3, 5), (4, 3)
    parameters = [torch.tensor(rng.normal(size=shape)) for shape in shapes]
    same(z, parameters, torch.tensor(rng.normal(size=(7, 3, 4))).transpose(0, 2))
    same(z, parameters, torch.ones((), dtype=torch.float64).expand(4, 3, 7))
