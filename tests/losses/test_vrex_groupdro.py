"""VRExLoss and GroupDROLoss against a few lines of arithmetic."""

from __future__ import annotations

import math

import pytest
import torch

from irmtv.losses import GroupDROLoss, VRExLoss
from losses.by_hand import LOSSES, absolute, named, problem, sample_losses

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def risks(loss, f, y, codes):
    values = sample_losses(loss, f, y)
    return torch.stack([values[codes == e].mean() for e in codes.unique()])


@pytest.mark.parametrize("loss", [*LOSSES, absolute])
@pytest.mark.parametrize("normalise", [True, False])
def test_vrex_is_the_variance_of_the_risks(loss, normalise):
    f, y, codes = problem("squared" if callable(loss) else loss)
    of = risks(loss, f, y, codes)
    theirs = of.mean() + 50 * torch.var(of, correction=0)
    theirs = theirs / 51 if normalise else theirs
    criterion = VRExLoss(named(loss), 50.0, "uniform", normalise)
    ours = criterion(f, y, environment=codes)
    torch.testing.assert_close(ours, theirs, **EXACT)
    torch.testing.assert_close(torch.autograd.grad(ours, f), torch.autograd.grad(theirs, f), **EXACT)
    torch.testing.assert_close(criterion.by_environment_["risk"], of.detach(), **EXACT)
    torch.testing.assert_close(criterion.penalty_, torch.var(of.detach(), correction=0), **EXACT)


def test_vrex_under_the_shares_and_under_a_given_measure_with_an_absent_environment():
    f, y, codes = problem("binary")
    codes = codes.clamp_min(1)  # environment 0 is absent
    of = risks("binary", f, y, codes)
    for measure, mu in (("empirical", codes.bincount()[1:] / 40), ((0.4, 0.2, 0.4), torch.tensor([1, 2]) / 3)):
        mu = mu.double() / mu.double().sum()
        mean = (mu * of).sum()
        ours = VRExLoss("binary", 7.0, measure, False, n_environments=3)(f, y, environment=codes)
        theirs = mean + 7 * (mu * (of - mean) ** 2).sum()
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)  # mu above is float32 for the shares


def test_groupdro_weights_after_steps():
    criterion = GroupDROLoss("squared", n_environments=3, step_size=0.3, adjustment=0.5, n_rows=[4, 100, 25]).double()
    weights = [1 / 3] * 3
    margin = [0.5 / math.sqrt(n) for n in (4, 100, 25)]
    for step in range(4):
        f, y, codes = problem("squared", seed=step)
        codes = codes.clamp_max(1) if step == 2 else codes  # the last environment is absent once: risk 0 in the move
        of = [*risks("squared", f, y, codes), torch.zeros((), dtype=torch.float64)][:3]
        weights = [w * math.exp(0.3 * (float(r.detach()) + c)) for w, r, c in zip(weights, of, margin, strict=True)]
        weights = [w / sum(weights) for w in weights]
        there = weights[:2] if step == 2 else weights
        theirs = sum(w * r for w, r in zip(there, of, strict=False)) / sum(there)
        ours = criterion(f, y, environment=codes)
        torch.testing.assert_close(criterion.weights, torch.tensor(weights, dtype=torch.float64), rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(torch.autograd.grad(ours, f), torch.autograd.grad(theirs, f), rtol=1e-7, atol=1e-7)


def test_groupdro_weights_start_equal_and_survive_a_checkpoint():
    f, y, codes = problem("binary")
    criterion = GroupDROLoss(n_environments=3, step_size=1.0)
    assert criterion.weights.tolist() == pytest.approx([1 / 3] * 3)
    criterion(f, y, environment=codes)
    again = GroupDROLoss(n_environments=3)
    again.load_state_dict(criterion.state_dict())
    torch.testing.assert_close(again.weights, criterion.weights)
    assert criterion.weights.max() > 0.34


def test_groupdro_stands_still_in_evaluation():
    f, y, codes = problem("binary")
    criterion = GroupDROLoss(n_environments=3, step_size=1.0).eval()
    value = criterion(f, y, environment=codes)
    assert criterion.weights.tolist() == pytest.approx([1 / 3] * 3)
    torch.testing.assert_close(value, risks("binary", f, y, codes).mean())


def test_dividing_the_loss_in_place_leaves_the_log_alone():
    f, y, codes = problem("binary")
    criterion = GroupDROLoss(n_environments=3)
    total = criterion(f, y, environment=codes)
    before = total.item()
    total /= 4  # gradient accumulation
    assert criterion.risk_.item() == before


def test_groupdro_waits_where_a_risk_is_not_finite():
    f, y, codes = problem("binary")
    criterion = GroupDROLoss(n_environments=3, step_size=1.0)
    criterion(f * torch.nan, y, environment=codes)
    assert criterion.weights.tolist() == pytest.approx([1 / 3] * 3)


def test_groupdro_with_a_step_of_any_size_stays_a_measure():
    f, y, codes = problem("squared")
    criterion = GroupDROLoss("squared", n_environments=3, step_size=1e6)
    value = criterion(1e3 * f, y, environment=codes)
    assert float(criterion.weights.sum()) == pytest.approx(1)
    torch.testing.assert_close(value, risks("squared", 1e3 * f, y, codes).max())
    criterion.step_size = 0
    criterion(f, y, environment=codes)
    assert criterion.weights.max() == 1
