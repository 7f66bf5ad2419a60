"""Losses and slopes in closed form, against torch's own losses, double backward, finite differences, scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import special
from sklearn.metrics import log_loss, mean_squared_error
from torch.nn import functional

from irmtv.core.losses import Binary, Custom, Loss, Multiclass, Squared, as_loss

C = 3


def huber(f, y):
    d = (f - y).abs()
    return torch.where(d < 1, 0.5 * d.square(), d - 0.5)


def generalised_cross_entropy(f, y):
    """(1 - p_y^q) / q: a loss on several logits that has no closed form here."""
    log_p = torch.log_softmax(f, -1).gather(-1, y.expand(f.shape[:-1]).unsqueeze(-1)).squeeze(-1)
    return (1 - (0.7 * log_p).exp()) / 0.7


def reference_gce(f, y):
    p = (torch.softmax(f, -1) * functional.one_hot(y, f.shape[-1])).sum(-1)
    return (1 - p**0.7) / 0.7


@dataclass(frozen=True)
class Case:
    loss: Loss
    reference: Callable  # (f, y) -> l, by torch or written out; rows first
    n_outputs: int = 1
    target: str = "real"  # "probability", "class"

    def tensors(self, f, y, dtype=torch.float64):
        y = torch.as_tensor(y)
        return torch.tensor(f, dtype=dtype), y if self.target == "class" else y.to(dtype)


CASES = {
    "binary": Case(
        Binary(), lambda f, y: functional.binary_cross_entropy_with_logits(f, y, reduction="none"), 1, "probability"
    ),
    "squared": Case(Squared(), lambda f, y: functional.mse_loss(f, y, reduction="none")),
    "squared, 3 targets": Case(Squared(C), lambda f, y: functional.mse_loss(f, y, reduction="none").mean(-1), C),
    "multiclass": Case(Multiclass(), lambda f, y: functional.cross_entropy(f, y, reduction="none"), C, "class"),
    "custom, one output": Case(Custom(huber), lambda f, y: functional.huber_loss(f, y, reduction="none")),
    "custom, 3 classes": Case(Custom(generalised_cross_entropy, n_outputs=C), reference_gce, C, "class"),
}
every_loss = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def draw_rows(data, case, bound=30.0):
    """Logits (n,) or (n, C) and targets, as NumPy arrays."""
    n = data.draw(st.integers(1, 6))
    shape = (n,) if case.n_outputs == 1 else (n, case.n_outputs)
    numbers = st.floats(-bound, bound, allow_subnormal=False)
    f = data.draw(hnp.arrays(np.float64, shape, elements=numbers))
    if case.target == "class":
        return f, data.draw(hnp.arrays(np.int64, n, elements=st.integers(0, C - 1)))
    if case.target == "probability":
        return f, data.draw(hnp.arrays(np.float64, n, elements=st.sampled_from([0.0, 1.0, 0.25])))
    # off the round numbers: at |f - y| = 1 the slope of Huber's loss has two one-sided derivatives
    return f, data.draw(hnp.arrays(np.float64, shape, elements=numbers)) + 0.1234567


def by_double_backward(case, f, y):
    """l and s (n,) with the slope as a differentiable gradient in one dummy classifier per row."""
    w = torch.ones(len(f), dtype=f.dtype, requires_grad=True)
    value = case.reference(f * (w if case.n_outputs == 1 else w.unsqueeze(-1)), y)
    (slope,) = torch.autograd.grad(value.sum(), w, create_graph=True)
    return value, slope


def close(mine, other, rtol=1e-9, atol=1e-11):
    torch.testing.assert_close(mine, other, rtol=rtol, atol=atol)


# --- values, slopes, residuals ----------------------------------------------------------------------------


@every_loss
@quick
@given(data=st.data())
def test_value_slope_and_residual(case, data):
    f, y = case.tensors(*draw_rows(data, case))
    value, slope = case.loss.value_and_slope(f, y)
    expected_value, expected_slope = by_double_backward(case, f, y)
    close(value, expected_value)
    close(case.loss.value(f, y), expected_value)
    close(slope, expected_slope.detach())

    h = 1e-5
    by_difference = (case.reference((1 + h) * f, y) - case.reference((1 - h) * f, y)) / (2 * h)
    scale = 1 + f.square() if case.n_outputs == 1 else 1 + f.square().sum(-1)
    assert ((slope - by_difference).abs() <= 1e-4 * scale).all()

    leaf = f.clone().requires_grad_()
    (residual,) = torch.autograd.grad(case.reference(leaf, y).sum(), leaf)
    close(case.loss.residual(f, y), residual)


@every_loss
@quick
@given(data=st.data())
def test_gradient_of_any_combination_is_that_of_a_double_backward(case, data):
    """d(a.l + b.s)/df; also with l or s alone, where one gradient never arrives."""
    f, y = case.tensors(*draw_rows(data, case))
    a, b = (torch.tensor(data.draw(hnp.arrays(np.float64, len(f), elements=st.floats(-2, 2)))) for _ in range(2))
    combine = data.draw(
        st.sampled_from([lambda v, s: (a * v + b * s).sum(), lambda v, s: (b * s).sum(), lambda v, s: (a * v).sum()])
    )
    mine, other = f.clone().requires_grad_(), f.clone().requires_grad_()
    combine(*case.loss.value_and_slope(mine, y)).backward()
    combine(*by_double_backward(case, other, y)).backward()
    close(mine.grad, other.grad, rtol=1e-8, atol=1e-9)


@every_loss
@quick
@given(data=st.data())
def test_value_alone_and_residual_differentiate(case, data):
    """What a vector classifier needs: dl/df through `value`, and d(b.r)/df through `residual`."""
    f, y = case.tensors(*draw_rows(data, case))
    b = torch.tensor(data.draw(hnp.arrays(np.float64, f.shape, elements=st.floats(-2, 2))))
    mine, other = f.clone().requires_grad_(), f.clone().requires_grad_()
    (case.loss.value(mine, y).sum() + (b * case.loss.residual(mine, y)).sum()).backward()
    value = case.reference(other, y).sum()
    (residual,) = torch.autograd.grad(value, other, create_graph=True)
    (value + (b * residual).sum()).backward()
    close(mine.grad, other.grad, rtol=1e-8, atol=1e-9)


@every_loss
def test_finite_differences_of_the_slopes_gradient(case):
    """torch's numerical check of the written-out backward."""
    rng = np.random.default_rng(3)
    f = rng.normal(size=(4,) if case.n_outputs == 1 else (4, C))
    y = {"class": rng.integers(C, size=4), "probability": rng.integers(2, size=4).astype(float)}.get(
        case.target, rng.normal(size=f.shape)
    )
    f, y = case.tensors(f, y)
    assert torch.autograd.gradcheck(lambda g: case.loss.value_and_slope(g, y), f.requires_grad_())


@every_loss
def test_targets_are_shared_by_the_runs(case):
    """f (T, K, N, ...) with y (T, 1, N, ...): the same as run by run."""
    rng = np.random.default_rng(0)
    trailing = () if case.n_outputs == 1 else (C,)
    f = torch.tensor(rng.normal(size=(2, 3, 5, *trailing)))
    y = {
        "class": torch.tensor(rng.integers(C, size=(2, 1, 5))),
        "probability": torch.tensor(rng.integers(2, size=(2, 1, 5)).astype(float)),
    }.get(case.target, torch.tensor(rng.normal(size=(2, 1, 5, *trailing))))
    value, slope = case.loss.value_and_slope(f, y)
    residual = case.loss.residual(f, y)
    assert value.shape == slope.shape == (2, 3, 5)
    assert residual.shape == f.shape
    for t in range(2):
        for k in range(3):
            expected = by_double_backward(case, f[t, k], y[t, 0])
            close(value[t, k], expected[0])
            close(slope[t, k], expected[1].detach())
            close(residual[t, k], case.loss.residual(f[t, k], y[t, 0]))


@every_loss
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_precision_is_kept(case, dtype, tolerance):
    rng = np.random.default_rng(1)
    f = 3 * rng.normal(size=(50,) if case.n_outputs == 1 else (50, C))
    y = {"class": rng.integers(C, size=50), "probability": rng.integers(2, size=50).astype(float)}.get(
        case.target, rng.normal(size=f.shape)
    )
    mine, target = case.tensors(f, y, dtype)
    mine.requires_grad_()
    value, slope = case.loss.value_and_slope(mine, target)
    (value + slope).sum().backward()
    exact, exact_target = case.tensors(f, y)
    exact.requires_grad_()
    expected = by_double_backward(case, exact, exact_target)
    (expected[0] + expected[1]).sum().backward()
    assert value.dtype == slope.dtype == mine.grad.dtype == case.loss.residual(mine, target).dtype == dtype
    for got, wanted in ((value, expected[0]), (slope, expected[1]), (mine.grad, exact.grad)):
        torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=10 * tolerance)


# --- far from zero ----------------------------------------------------------------------------------------

EXTREME = np.array([0.0, 1e-30, 1.0, 19.9, 20.1, 25.0, 39.0, 41.0, 88.0, 100.0, 709.0, 1e3, 1e4])
EXTREME = np.concatenate([EXTREME, -EXTREME])


@pytest.mark.parametrize("label", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_binary_at_extreme_logits(label, dtype):
    f = torch.tensor(EXTREME, dtype=dtype, requires_grad=True)
    value, slope = Binary().value_and_slope(f, torch.full_like(f, label))
    (value + slope).sum().backward()
    sign = 1 - 2 * label  # -log sigmoid(-sign f): no cancellation
    x = f.detach().double().numpy()
    p = special.expit(sign * x)
    eps = torch.finfo(dtype).eps
    np.testing.assert_array_less(np.abs(value.detach().numpy() + special.log_expit(-sign * x)), 3 * eps * (1 + abs(x)))
    np.testing.assert_array_less(np.abs(slope.detach().numpy() - sign * p * x), 3 * eps * (1 + abs(x)))
    curve = x * special.expit(x) * special.expit(-x)
    np.testing.assert_allclose(f.grad.numpy(), 2 * sign * p + curve, rtol=0, atol=100 * eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_multiclass_at_extreme_logits(dtype):
    logits = np.array(np.meshgrid(EXTREME[::3], EXTREME[::3], EXTREME[::3])).reshape(3, -1).T  # (rows, 3)
    y = np.arange(len(logits)) % 3
    f = torch.tensor(logits, dtype=dtype, requires_grad=True)
    value, slope = Multiclass().value_and_slope(f, torch.tensor(y))
    (value + slope).sum().backward()
    x, rows = f.detach().double().numpy(), np.arange(len(logits))
    p = special.softmax(x, -1)
    r = p - np.eye(3)[y]
    size, eps = 1 + np.abs(x).max(-1), torch.finfo(dtype).eps
    np.testing.assert_array_less(np.abs(value.detach().numpy() + special.log_softmax(x, -1)[rows, y]), 8 * eps * size)
    np.testing.assert_array_less(np.abs(slope.detach().numpy() - (r * x).sum(-1)), 16 * eps * size)
    curve = p * (x - (p * x).sum(-1, keepdims=True))
    np.testing.assert_allclose(f.grad.numpy(), 2 * r + curve, rtol=0, atol=16 * eps * size.max())


@pytest.mark.parametrize("n_targets", [1, 2])
def test_squared_at_extreme_predictions(n_targets):
    f = torch.tensor(np.stack([EXTREME] * n_targets, -1) if n_targets > 1 else EXTREME, dtype=torch.float32)
    f.requires_grad_()
    y = torch.ones_like(f)
    value, slope = Squared(n_targets).value_and_slope(f, y)
    (value + slope).sum().backward()
    x = EXTREME.astype(np.float32).astype(float)
    np.testing.assert_allclose(value.detach().numpy(), (x - 1) ** 2, rtol=1e-6)
    np.testing.assert_allclose(slope.detach().numpy(), 2 * (x - 1) * x, rtol=1e-6, atol=1e-30)
    wanted = (2 * (x - 1) + 4 * x - 2) / n_targets
    grad = f.grad.numpy()
    np.testing.assert_allclose(grad if n_targets == 1 else grad[:, 0], wanted, rtol=1e-6)


# --- against scikit-learn ---------------------------------------------------------------------------------


def test_means_are_scikit_learns():
    rng = np.random.default_rng(2)
    f, y = rng.normal(size=200), rng.integers(2, size=200)
    mean = Binary().value(torch.tensor(f), torch.tensor(y, dtype=torch.float64)).mean().item()
    assert mean == pytest.approx(log_loss(y, special.expit(f)), rel=1e-12)
    f, y = rng.normal(size=(200, C)), rng.integers(C, size=200)
    mean = Multiclass().value(torch.tensor(f), torch.tensor(y)).mean().item()
    assert mean == pytest.approx(log_loss(y, special.softmax(f, -1)), rel=1e-12)
    y = rng.normal(size=(200, C))
    mean = Squared(C).value(torch.tensor(f), torch.tensor(y)).mean().item()
    assert mean == pytest.approx(mean_squared_error(y, f), rel=1e-12)


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["binary", "squared", "squared, 3 targets", "multiclass"])
def test_a_second_derivative_is_an_error_not_a_wrong_number(name):
    case = CASES[name]
    rng = np.random.default_rng(0)
    f = rng.normal(size=(4,) if case.n_outputs == 1 else (4, C))
    f, y = case.tensors(f, rng.integers(2, size=4) if case.target != "real" else rng.normal(size=f.shape))
    f.requires_grad_()
    value, slope = case.loss.value_and_slope(f, y)
    (gradient,) = torch.autograd.grad((value.square() + slope).sum(), f, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    ("name", "kind", "n_outputs"), [("binary", Binary, 1), ("squared", Squared, 1), ("multiclass", Multiclass, 3)]
)
def test_losses_by_name(name, kind, n_outputs):
    loss = as_loss(name, n_outputs)
    assert type(loss) is kind
    assert loss.name == name
    assert isinstance(loss, Loss)
    assert repr(loss) == f"<loss {name}>"
    assert as_loss(loss) is loss


def test_several_targets_by_name():
    assert as_loss("squared", 4).n_targets == 4


def test_a_function_becomes_a_loss():
    loss = as_loss(huber)
    assert isinstance(loss, Custom)
    assert isinstance(loss, Loss)
    assert loss.name == "huber"
    assert repr(loss) == "<loss huber>"
    assert Custom(huber, name="mine").name == "mine"
    assert as_loss(torch.nn.HuberLoss(reduction="none")).name == "custom"  # no __name__


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("hinge", r"one of \['binary', 'multiclass', 'squared'\] or a function.*Got 'hinge'"),
        ("Binary", r"Got 'Binary'"),
        (3, r"must be a name, a function .*or a Loss\. Got int"),
        (None, r"Got NoneType"),
        (Binary, r"Got type"),  # the class in place of a loss
    ],
)
def test_what_is_not_a_loss(bad, message):
    with pytest.raises(ValueError, match=message):
        as_loss(bad)
