"""From logits to risks and slopes per environment, against the textbook: slopes by differentiating a gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from benchmarks import textbook
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from irmtv.core.losses import as_loss
from irmtv.core.membership import Blocks, Codes, Soft, SoftPair, Weighted
from irmtv.core.risk import Head, LastLayer, modulus, modulus_squared, per_sample, summarise
from irmtv.core.types import Statistics

CPU = torch.device("cpu")
T, K, N, E, C = 2, 2, 23, 3, 3
LOSSES = {"binary": 1, "squared": 1, "multiclass": C}
LAYOUTS = {  # rows per environment of each data set
    "equal": [(6, 6, 6), (6, 6, 6)],
    "padded": [(17, 2, 1), (1, 2, 17)],
    "one absent": [(9, 0, 9), (4, 10, 4)],
    "one data set": [(11, 5, 4)],
}
every_loss = pytest.mark.parametrize("loss", LOSSES)
every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class HeadAsNode(torch.autograd.Function):
    """`Head` as one node of a graph, so that its two ways can be compared with autograd."""

    @staticmethod
    def forward(ctx, f, y, loss, membership, share, uses, want_slope, want_value):
        ctx.head, ctx.membership, ctx.share = Head(loss, f, y, want_value, want_slope), membership, share
        ctx.set_materialize_grads(False)
        e = summarise(ctx.head.value, ctx.head.slope, membership, uses)
        return e.mean_risk, e.risk, e.slope

    @staticmethod
    def backward(ctx, *grads):
        return ctx.head.pull_back(ctx.membership, ctx.share, *grads), *[None] * 7


def by_head(loss, f, y, membership, uses, want_slope, want_value=True, share=None):
    if share is None:  # blocks
        share = (1 if membership.weight is None else membership.weight) / membership.counts.sum(1).view(-1, 1, 1, 1)
    mean, risk, slope = HeadAsNode.apply(f, y, loss, membership, share, uses, want_slope, want_value)
    return Statistics(mean, membership.mass, risk, slope)


def targets(rng, loss, *shape):
    if loss == "multiclass":
        return torch.tensor(rng.integers(C, size=shape))
    return torch.tensor(rng.integers(2, size=shape).astype(float) if loss == "binary" else rng.normal(size=shape))


def logits(rng, n_outputs, *shape):
    return torch.tensor(2 * rng.normal(size=shape if n_outputs == 1 else (*shape, n_outputs)))


def make_codes(rng, sizes):
    return torch.tensor(np.stack([rng.permutation(np.repeat(np.arange(len(s)), s)) for s in sizes]))


def lay(blocks, v):
    """(T, K, N, ...) -> (T, K, blocks, length, ...)."""
    index = torch.arange(len(v)).unsqueeze(1)
    moved = v.transpose(1, 2)[index, blocks.order].transpose(1, 2)
    return moved.reshape(*v.shape[:2], *blocks.rows_shape, *v.shape[3:])


def by_textbook(loss, f, y, q):
    """Mean risk (R,), R_e and S_e (R, E) from f (T, K, N, ...), y (T, N, ...), q (T, K, E, N); 0 where q is."""
    mean, risk, slope = [], [], []
    for t in range(f.shape[0]):
        for k in range(f.shape[1]):
            pairs = [
                textbook.risk_and_slope(loss, f[t, k], y[t], w) if w.sum() > 0 else (torch.zeros(()), torch.zeros(()))
                for w in q[t, k]
            ]
            each = q[t, k].sum(0)  # 1, or the rows' weights
            mean.append((each * textbook.sample_losses(loss, f[t, k], y[t])).sum() / each.sum())
            risk.append(torch.stack([r.double() for r, _ in pairs]))
            slope.append(torch.stack([s.double() for _, s in pairs]))
    return torch.stack(mean), torch.stack(risk), torch.stack(slope)


def close(mine, other, rtol=1e-9, atol=1e-11):
    torch.testing.assert_close(mine, other, rtol=rtol, atol=atol)


def same_with_gradients(mine, other, leaves, seed=0):
    """Two lists of tensors: equal, and any combination of them has equal gradients in the leaves."""
    generator = torch.Generator().manual_seed(seed)
    totals = [torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)]
    for a, b in zip(mine, other, strict=True):
        close(a, b)
        weight = torch.randn(a.shape, generator=generator, dtype=a.dtype)
        totals = [totals[0] + (weight * a).sum(), totals[1] + (weight * b).sum()]
    gradients = [torch.autograd.grad(total, leaves, retain_graph=True) for total in totals]
    for a, b in zip(*gradients, strict=True):
        close(a, b, rtol=1e-8, atol=1e-10)


# --- risks and slopes per environment ---------------------------------------------------------------------


@every_loss
@every_layout
@pytest.mark.parametrize("weighted", [False, True])
def test_given_environments_are_the_textbooks(loss, layout, weighted):
    """Three ways (blocks in one graph node, blocks in several, codes per row) and the textbook: one answer."""
    rng = np.random.default_rng(0)
    n_sets, n_rows, n_environments = len(layout), sum(layout[0]), len(layout[0])
    codes = make_codes(rng, layout)
    f = logits(rng, LOSSES[loss], n_sets, K, n_rows).requires_grad_()
    y = targets(rng, loss, n_sets, n_rows)
    q = functional.one_hot(codes, n_environments).double().transpose(1, 2).unsqueeze(1).expand(-1, K, -1, -1)
    weight = torch.tensor(rng.integers(0, 4, (n_sets, n_rows)) * 0.3) if weighted else None
    q = q if weight is None else q * weight[:, None, None]
    expected = by_textbook(loss, f, y, q)

    uses, form = {"risk", "slope"}, as_loss(loss)
    blocks = Blocks.of(codes, n_environments, K, weight).to(CPU, torch.float64)
    laid_f, laid_y = lay(blocks, f), lay(blocks, y.unsqueeze(1))
    by_row = Codes(codes.unsqueeze(1).expand(-1, K, -1), n_environments)
    by_row = by_row if weight is None else Weighted(by_row, weight.unsqueeze(1))
    found = [
        by_head(form, laid_f, laid_y, blocks, uses, True),
        summarise(*per_sample(form, laid_f, laid_y, True), blocks, uses),
        summarise(*per_sample(form, f, y.unsqueeze(1), True), by_row, uses),
    ]
    for e in found:
        same_with_gradients([e.mean_risk, e.risk, e.slope], expected, [f])
        close(e.mass.expand(len(e.risk), -1), (q.sum(-1) / q.sum((-1, -2)).unsqueeze(-1)).flatten(0, 1))


@pytest.mark.parametrize("loss", [*LOSSES, "several targets"])
@pytest.mark.parametrize("uses", [{"risk"}, {"slope"}, {"risk", "slope"}, set()], ids=lambda u: "+".join(sorted(u)))
@quick
@given(
    seed=st.integers(0, 2**32 - 1),
    n_sets=st.integers(1, 3),
    per_set=st.integers(1, 3),
    n_rows=st.integers(1, 40),
    n_environments=st.integers(1, 5),
    skew=st.sampled_from([0, 2, 20]),
)
def test_the_head_by_hand_equals_autograd_over_its_parts(
    loss, uses, seed, n_sets, per_set, n_rows, n_environments, skew
):
    """The parts are checked by the losses' own tests."""
    rng = np.random.default_rng(seed)
    share = (rng.random((n_sets, n_environments)) + 1e-3) ** skew
    codes = torch.tensor(np.stack([rng.choice(n_environments, n_rows, p=s / s.sum()) for s in share]))
    blocks = Blocks.of(codes, n_environments, per_set).to(CPU, torch.float64)
    several = loss == "several targets"
    form = as_loss("squared" if several else loss, C if several else 1)
    f = logits(rng, C if several else LOSSES[loss], n_sets, per_set, *blocks.rows_shape).requires_grad_()
    y = torch.tensor(rng.normal(size=(n_sets, n_rows, C))) if several else targets(rng, loss, n_sets, n_rows)
    y = lay(blocks, y.unsqueeze(1))
    want_slope = "slope" in uses
    one = by_head(form, f, y, blocks, uses, want_slope)
    many = summarise(*per_sample(form, f, y, want_slope), blocks, uses)
    for e in (one, many):
        assert (e.risk is not None) == ("risk" in uses)
        assert (e.slope is not None) == want_slope
        assert e.slope_halves is None
    pairs = [(one.mean_risk, many.mean_risk), (one.risk, many.risk), (one.slope, many.slope)]
    pairs = [(a, b) for a, b in pairs if a is not None]
    same_with_gradients(*zip(*pairs, strict=True), [f], seed)
    # each alone: None says which gradients never come
    for a, b in pairs:
        same_with_gradients([a], [b], [f], seed)
    assert (one.mass == many.mass).all()


@every_loss
@pytest.mark.parametrize("n_environments", [2, 3])
def test_inferred_environments_are_the_textbooks(loss, n_environments):
    """Soft memberships: gradients in the logits and in q."""
    rng = np.random.default_rng(1)
    f = logits(rng, LOSSES[loss], T, K, N).requires_grad_()
    y = targets(rng, loss, T, N)
    if n_environments == 2:
        scores = torch.tensor(rng.normal(size=(T, K, N)), requires_grad=True)
        rho = torch.sigmoid(scores)
        q, membership = torch.stack([rho, 1 - rho], 2), SoftPair(rho)
    else:
        scores = torch.tensor(rng.normal(size=(T, K, n_environments, N)), requires_grad=True)
        q = torch.softmax(scores, 2)
        membership = Soft(q)
    e = summarise(*per_sample(as_loss(loss), f, y.unsqueeze(1), True), membership, {"risk", "slope"})
    expected = by_textbook(loss, f, y, q)
    mass = q.mean(-1).flatten(0, 1)
    same_with_gradients([e.mean_risk, e.risk, e.slope, e.mass], [*expected, mass], [f, scores])


@every_loss
def test_a_second_derivative_is_an_error_not_a_wrong_number(loss):
    rng = np.random.default_rng(0)
    blocks = Blocks.of(torch.tensor([[0, 0, 1, 1]]), 2).to(CPU, torch.float64)
    f = logits(rng, LOSSES[loss], 1, 1, *blocks.rows_shape).requires_grad_()
    y = targets(rng, loss, 1, 1, *blocks.rows_shape)
    e = summarise(*per_sample(as_loss(loss), f, y, True), blocks, {"slope"})
    (gradient,) = torch.autograd.grad(modulus_squared(e).sum(), f, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        gradient.sum().backward()


def test_only_what_is_used_is_computed():
    v = torch.ones(1, 1, 4)
    codes = Codes(torch.tensor([[[0, 0, 1, 1]]]), 2)
    assert summarise(v, v, codes, {"risk"}).slope is None
    assert summarise(v, v, codes, {"slope"}).risk is None
    assert summarise(v, None, codes, {"slope"}).slope is None
    value, slope = per_sample(as_loss("binary"), torch.zeros(1, 1, 4), torch.ones(1, 1, 4), False)
    assert slope is None
    assert value.shape == (1, 1, 4)


# --- vector classifiers -----------------------------------------------------------------------------------


def explicit_vector_slopes(losses, classify, n_components, q):
    """R_e and S_e (E, J) of one run with an explicit vector w; `classify(w)` gives the logits."""
    w = torch.ones(n_components, dtype=torch.float64, requires_grad=True)
    risks = [(weight * losses(classify(w))).sum() / weight.sum() for weight in q]
    slopes = [torch.autograd.grad(r, w, create_graph=True)[0] for r in risks]
    return torch.stack(risks), torch.stack(slopes)


def huber(f, y):
    return functional.huber_loss(f, y, reduction="none")


def one_output_losses(loss, y):
    if loss == "huber":
        return lambda f: huber(f, y)
    return lambda f: textbook.sample_losses(loss, f, y)


@pytest.mark.parametrize("loss", ["binary", "squared", "huber"])
@pytest.mark.parametrize("hidden", [None, 4], ids=["linear", "one hidden layer"])
@pytest.mark.parametrize("in_blocks", [False, True])
def test_vector_classifier_on_the_last_layers_inputs(loss, hidden, in_blocks):
    """w multiplies h elementwise: linear h = x shared by the runs (T, J, N); hidden h its own for each (R, J, N)."""
    rng = np.random.default_rng(2)
    n_features = 5
    x = torch.tensor(rng.normal(size=(T, N, n_features)))
    y = targets(rng, loss, T, N)
    codes = make_codes(rng, [(13, 6, 4), (3, 4, 16)])
    q = functional.one_hot(codes, E).double().transpose(1, 2)
    n_last = hidden or n_features
    a = torch.tensor(rng.normal(size=(T * K, n_last)), requires_grad=True)
    b = torch.tensor(rng.normal(size=(T * K,)), requires_grad=True)
    first = torch.tensor(rng.normal(size=(T * K, n_last, n_features)), requires_grad=True)
    leaves = [a, b] if hidden is None else [a, b, first]

    def inputs(t, r):
        return x[t] if hidden is None else (x[t] @ first[r].T).relu()  # (N, J)

    expected_risk, expected_slope = [], []
    for r in range(T * K):
        h = inputs(r // K, r)
        risk, slope = explicit_vector_slopes(
            one_output_losses(loss, y[r // K]),
            lambda w, h=h, r=r: (h * w) @ a[r] + b[r],
            n_last,
            q[r // K],
        )
        expected_risk.append(risk)
        expected_slope.append(slope)

    blocks = Blocks.of(codes, E, K).to(CPU, torch.float64)
    if in_blocks:
        x = torch.stack([x[t][blocks.order[t]] for t in range(T)])
        y = lay(blocks, y.unsqueeze(1))
        membership, shape = blocks, blocks.rows_shape
    else:
        y = y.unsqueeze(1)
        membership, shape = Codes(codes.unsqueeze(1).expand(-1, K, -1), E), (N,)
    h = x.transpose(1, 2) if hidden is None else torch.stack([inputs(r // K, r).T for r in range(T * K)])
    full = h.repeat_interleave(K, 0) if hidden is None else h
    f = (torch.einsum("rj,rjn->rn", a, full) + b.unsqueeze(1)).view(T, K, *shape)
    value, slope = per_sample(as_loss(huber if loss == "huber" else loss), f, y, True, LastLayer(h, a), True)
    assert slope.shape == (T, K, *shape, n_last)
    e = summarise(value, slope, membership, {"risk", "slope"})
    same_with_gradients([e.risk, e.slope], [torch.stack(expected_risk), torch.stack(expected_slope)], leaves)
    squared = torch.stack(expected_slope).square().sum(-1)
    same_with_gradients([modulus_squared(e), modulus(e)], [squared, squared.sqrt()], leaves)


@pytest.mark.parametrize("loss", ["multiclass", "several targets", "custom"])
def test_vector_classifier_on_several_logits(loss):
    """One w per logit: s_ic = r_ic f_ic."""
    rng = np.random.default_rng(3)
    f = logits(rng, C, T, K, N).requires_grad_()
    several = loss == "several targets"
    y = torch.tensor(rng.normal(size=(T, N, C))) if several else targets(rng, "multiclass", T, N)
    codes = make_codes(rng, [(13, 6, 4), (3, 4, 16)])
    q = functional.one_hot(codes, E).double().transpose(1, 2)
    form = {
        "multiclass": as_loss("multiclass"),
        "several targets": as_loss("squared", C),
        "custom": as_loss(lambda f, y: (f.logsumexp(-1) - f.gather(-1, y.unsqueeze(-1)).squeeze(-1)).square(), C),
    }[loss]
    plain = {
        "multiclass": lambda f, y: functional.cross_entropy(f, y, reduction="none"),
        "several targets": lambda f, y: (f - y).square().mean(-1),
        "custom": lambda f, y: functional.cross_entropy(f, y, reduction="none").square(),
    }[loss]
    expected = [
        explicit_vector_slopes(lambda g, t=t: plain(g, y[t]), lambda w, t=t, k=k: f[t, k] * w, C, q[t])
        for t in range(T)
        for k in range(K)
    ]
    target = y.unsqueeze(1).expand(T, K, *y.shape[1:])
    value, slope = per_sample(form, f, target, True, None, True)
    e = summarise(value, slope, Codes(codes.unsqueeze(1).expand(-1, K, -1), E), {"risk", "slope"})
    assert e.slope.shape == (T * K, E, C)
    same_with_gradients(
        [e.risk, e.slope], [torch.stack([r for r, _ in expected]), torch.stack([s for _, s in expected])], [f]
    )


# --- halves of a mini-batch -------------------------------------------------------------------------------


def half_means(q, v):
    """sum q v / sum q over the even and over the odd rows, 0 where there are none: two (R, E, ...)."""
    halves = []
    for start in (0, 1):
        w, s = q[..., start::2], v[:, :, start::2]  # (T, K, E, n), (T, K, n, ...)
        out = np.zeros((w.shape[0] * w.shape[1], w.shape[2], *v.shape[3:]))
        for t, k, e in np.ndindex(*w.shape[:3]):
            if w[t, k, e].sum() > 0:
                mean = sum(w[t, k, e, i] * s[t, k, i] for i in range(w.shape[3])) / w[t, k, e].sum()
                out[t * w.shape[1] + k, e] = mean
        halves.append(out)
    return halves


@pytest.mark.parametrize("kind", ["codes", "soft", "pair"])
@pytest.mark.parametrize("trailing", [(), (2,)], ids=["scalar", "vector"])
@pytest.mark.parametrize("n_rows", [2, 9, 12])
def test_halves(kind, trailing, n_rows):
    rng = np.random.default_rng(n_rows)
    s = rng.normal(size=(T, K, n_rows, *trailing))
    value = torch.tensor(rng.random((T, K, n_rows)))
    if kind == "codes":
        codes = rng.integers(E, size=(T, K, n_rows))
        q, membership = np.eye(E)[codes].swapaxes(2, 3), Codes(torch.tensor(codes), E)
    elif kind == "soft":
        q = rng.dirichlet(np.ones(E), size=(T, K, n_rows)).swapaxes(2, 3)
        membership = Soft(torch.tensor(q))
    else:
        rho = rng.random((T, K, n_rows))
        q, membership = np.stack([rho, 1 - rho], 2), SoftPair(torch.tensor(rho))
    e = summarise(value, torch.tensor(s), membership, {"slope"}, halves=True)
    even, odd = half_means(q, s)
    np.testing.assert_allclose(e.slope_halves[0], even, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(e.slope_halves[1], odd, rtol=1e-10, atol=1e-12)
    product = even * odd if not trailing else (even * odd).sum(-1)
    np.testing.assert_allclose(modulus_squared(e), product, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(modulus(e), np.sqrt(np.abs(product)), rtol=1e-7, atol=1e-9)
    # the whole batch is there too, for penalties that take it plain
    assert e.slope.shape == (T * K, q.shape[2], *trailing)


# --- the modulus ------------------------------------------------------------------------------------------


def statistics(slope=None, halves=None):
    some = slope if slope is not None else halves[0]
    return Statistics(torch.zeros(len(some)), torch.full((1, some.shape[1]), 1 / some.shape[1]), None, slope, halves)


@pytest.mark.parametrize("n_components", [None, 1, 3])
def test_modulus_and_its_square(n_components):
    rng = np.random.default_rng(0)
    s = rng.normal(size=(4, E) if n_components is None else (4, E, n_components))
    length = np.abs(s) if n_components is None else np.sqrt((s**2).sum(-1))
    e = statistics(torch.tensor(s))
    np.testing.assert_allclose(modulus(e), length, rtol=1e-12)
    np.testing.assert_allclose(modulus_squared(e), length**2, rtol=1e-12)


@pytest.mark.parametrize("shape", [(1, 2), (1, 2, 3)], ids=["scalar", "vector"])
def test_subgradient_at_zero_is_zero(shape):
    s = torch.zeros(shape, dtype=torch.float64)
    s[0, 1] = 2.0
    s.requires_grad_()
    modulus(statistics(s)).sum().backward()
    assert (s.grad[0, 0] == 0).all()
    torch.testing.assert_close(s.grad[0, 1], torch.full(shape[2:], 1 / max(1, np.sqrt(s[0, 1].numel()))).double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("even", "odd"),
    [
        (0.0, 0.0),
        (0.0, 3.0),
        (-2.0, 0.0),
        (1e-200, 1e-200),  # the product underflows to 0
        ((1.0, 1.0), (1.0, -1.0)),  # orthogonal
        ((0.0, 0.0), (1.0, -1.0)),
    ],
)
def test_half_batch_form_with_product_zero_has_gradient_zero(even, odd, dtype):
    even, odd = (torch.tensor([[v]], dtype=dtype, requires_grad=True) for v in (even, odd))
    value = modulus(statistics(halves=(even, odd)))
    assert value.tolist() == [[0.0]]
    value.square().sum().backward()
    assert (even.grad == 0).all()
    assert (odd.grad == 0).all()
    modulus(statistics(halves=(even, odd))).sum().backward()
    assert even.grad.isfinite().all()
    assert (even.grad == 0).all()


def test_half_batch_form_elsewhere_is_differentiable():
    even = torch.tensor([[0.5, -2.0]], dtype=torch.float64, requires_grad=True)
    odd = torch.tensor([[3.0, 0.7]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: modulus(statistics(halves=(a, b))), (even, odd))
    assert modulus_squared(statistics(halves=(even, odd)))[0].tolist() == pytest.approx([1.5, -1.4])  # may be negative
