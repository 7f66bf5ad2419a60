"""The layer before a linear model on mixed columns, and why it is not trained."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from irmtv import Runs, make_task, train
from irmtv.core.types import Rows
from irmtv.datasets import make_simulation, population_accuracy
from irmtv.engine.solvers.layers import contrast_layer


def rows(n: int = 600) -> Rows:
    return make_simulation(n, (0.999, 0.7, 0.8), 0.8, random_state=0).train


def covariances(r: Rows, n_environments: int) -> torch.Tensor:
    """cov(x, y) in every environment, by numpy: (E, D)."""
    x, y, e = r.x.double().numpy(), r.y.double().numpy(), r.environment.numpy()
    each = [np.cov(x[e == k].T, y[e == k], bias=True)[:-1, -1] for k in range(n_environments)]
    return torch.as_tensor(np.stack(each))


@pytest.mark.parametrize("k", [3, 6, 15])
def test_directions_are_the_principal_ones_turned(k):
    r = rows()
    layer = contrast_layer(r, r.environment, 3, k, 1)
    torch.testing.assert_close(layer.T @ layer, torch.eye(k).double())
    x = r.x.double() - r.x.double().mean(0)
    top = torch.linalg.svd(x, full_matrices=False)[2][:k]
    torch.testing.assert_close(layer @ layer.T, top.T @ top)  # the same subspace
    differ = covariances(r, 3)
    along = (differ - differ.mean(0)) @ layer  # (E, k)
    assert float(along[:, 2:].abs().max()) < 1e-10  # three environments differ in two directions at most
    assert float(along[:, 0].norm()) >= float(along[:, 1].norm())


def test_rows_of_weight_two_are_two_rows():
    r = rows(300)
    times = torch.randint(1, 3, (300,), generator=torch.Generator().manual_seed(0))
    weighted = Rows(r.x, r.y, r.environment, None, r.names, times.double())
    index = torch.arange(300).repeat_interleave(times)
    a = contrast_layer(weighted, r.environment, 3, 4, 1)
    b = contrast_layer(r.take(index), r.environment[index], 3, 4, 1)
    torch.testing.assert_close((a @ a.T), (b @ b.T))
    torch.testing.assert_close(a[:, :1] @ a[:, :1].T, b[:, :1] @ b[:, :1].T)


def test_a_trained_layer_would_be_the_scalar_classifier():
    """min over Phi' a = b of sum_e mu_e |a * Phi g_e|^2 is sum_e mu_e (b . g_e)^2 / k: reached, and never beaten."""
    g = torch.Generator().manual_seed(0)
    b, gradients = torch.randn(5, generator=g).double(), torch.randn(3, 5, generator=g).double()
    mu, k = torch.tensor([0.2, 0.3, 0.5]).double(), 4

    def penalty(phi: torch.Tensor, a: torch.Tensor) -> float:
        torch.testing.assert_close(phi.T @ a, b)
        return float(mu @ (a * (gradients @ phi.T)).square().sum(1))

    least = float(mu @ (gradients @ b).square()) / k
    a = torch.randn(k, generator=g).double()
    assert penalty(b / (k * a.unsqueeze(1)), a) == pytest.approx(least)
    for _ in range(200):
        phi, a = torch.randn(k, 5, generator=g).double(), torch.randn(k, generator=g).double()
        phi[0] += (b - phi.T @ a) / a[0]
        assert penalty(phi, a) >= least - 1e-9


def test_mixed_columns_of_the_simulation():
    """Columns of the hardest setting, turned at random: in two directions eills finds the invariant one."""
    task = make_simulation(5000, (0.999, 0.9), 0.8, random_state=700)
    turn = torch.linalg.qr(torch.randn(15, 15, generator=torch.Generator().manual_seed(0)).double())[0]
    x = task.train.x.double() @ turn
    mixed = make_task(x.numpy(), task.train.y.numpy(), environment=task.train.environment.numpy(), loss="binary")
    fitted = train(mixed, "eills", Runs(penalty_weight=100.0), layer=2, dtype=torch.float64)
    coef, intercept = fitted.coefficients()
    worst = population_accuracy(coef[0] @ turn.T, intercept[0], (0.999, 0.8, 0.2, 0.001), 0.8, 5).min()
    assert worst > 0.74  # limit 0.792; with all columns 0.03 to 0.7


def test_what_it_is_not_for():
    task = make_task(np.ones((40, 2)) * np.arange(40)[:, None], np.arange(40) % 2, environment=np.arange(40) % 3)
    with pytest.raises(ValueError, match="layer=2 is for linear models by solver='newton'"):
        train(task, "irm-tv-l1", layer=2)
    with pytest.raises(ValueError, match=r"layer must be None or a whole number of at least 1\. Got 0"):
        train(task, "irm-tv-l1", solver="newton", layer=0)
