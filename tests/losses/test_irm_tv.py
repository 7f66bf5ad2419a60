"""IRMTVLoss against the textbook: value and gradient, slopes by double backward, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from irmtv.losses import IRMTVLoss, warmup_weight
from losses.by_hand import LOSSES, absolute, named, one_hot, penalised, problem

LAMBDA = 37.0
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def agree(ours: Tensor, theirs: Tensor, *inputs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, **EXACT)
    for mine, other in zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs), strict=True):
        torch.testing.assert_close(mine, other, **EXACT)


@pytest.mark.parametrize("reduction", ["expectation", "authors"])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("loss", LOSSES)
def test_scalar_classifier_is_the_textbook(loss, norm, normalise, reduction):
    f, y, codes = problem(loss)
    criterion = IRMTVLoss(named(loss), norm, LAMBDA, normalise=normalise, reduction=reduction)
    w = torch.ones((), dtype=torch.float64)
    theirs = penalised(loss, lambda w: w * f, w, y, one_hot(codes), norm, LAMBDA, authors=reduction == "authors")
    agree(criterion(f, y, environment=codes), theirs / (1 + LAMBDA) if normalise else theirs, f)


@pytest.mark.parametrize("reduction", ["expectation", "authors"])
@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("loss", ["multiclass", "several"])
def test_vector_classifier_has_one_w_per_logit(loss, norm, reduction):
    f, y, codes = problem(loss)
    criterion = IRMTVLoss(named(loss), norm, LAMBDA, normalise=False, classifier="vector", reduction=reduction)
    w = torch.ones(3, dtype=torch.float64)
    theirs = penalised(loss, lambda w: w * f, w, y, one_hot(codes), norm, LAMBDA, authors=reduction == "authors")
    agree(criterion(f, y, environment=codes), theirs, f)


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("loss", ["binary", "squared", absolute])
def test_vector_classifier_multiplies_the_inputs_of_the_last_layer(loss, norm):
    _, y, codes = problem("binary" if loss == "binary" else "squared")
    g = torch.Generator().manual_seed(1)
    h = torch.randn(40, 5, generator=g, dtype=torch.float64).requires_grad_()
    layer = nn.Linear(5, 1).double()
    criterion = IRMTVLoss(loss, norm, LAMBDA, normalise=False, classifier="vector")
    w = torch.ones(5, dtype=torch.float64)
    theirs = penalised(loss, lambda w: layer(h * w).squeeze(1), w, y, one_hot(codes), norm, LAMBDA)
    logits = layer(h)
    logits = logits.squeeze(1) if callable(loss) else logits  # a function sees what it is given
    ours = criterion(logits, y, environment=codes, features=h, weight=layer.weight)
    agree(ours, theirs, h, layer.weight, layer.bias)
    assert criterion.by_environment_["slope"].shape == (3, 5)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_a_function_as_loss(norm):
    f, y, codes = problem("squared")
    w = torch.ones((), dtype=torch.float64)
    theirs = penalised(absolute, lambda w: w * f, w, y, one_hot(codes), norm, LAMBDA)
    agree(IRMTVLoss(absolute, norm, LAMBDA, normalise=False)(f, y, environment=codes), theirs, f)


def test_a_function_sees_logits_and_y_as_they_were_passed():
    f, y, codes = problem("multiclass")
    shapes = []

    def cross_entropy(f, y):
        shapes.append((tuple(f.shape), tuple(y.shape)))
        return nn.functional.cross_entropy(f, y, reduction="none")

    ours = IRMTVLoss(cross_entropy)(f, y, environment=codes)
    assert set(shapes) == {((40, 3), (40,))}
    torch.testing.assert_close(ours, IRMTVLoss("multiclass")(f, y, environment=codes), **EXACT)
    column, target = f[:, :1], y.double().unsqueeze(1)
    squared = IRMTVLoss(lambda f, y: (f - y) ** 2)(column, target, environment=codes)
    torch.testing.assert_close(squared, IRMTVLoss("squared")(column, target, environment=codes), **EXACT)
    # outputs on several axes: the slope is still in the one number that multiplies them all
    cube = f.reshape(10, 4, 3)
    several = IRMTVLoss(lambda f, y: (f**2).sum((1, 2)))(cube, y[:10], environment=codes[:10])
    flat = IRMTVLoss(lambda f, y: (f**2).sum(1))(cube.reshape(10, 12), y[:10], environment=codes[:10])
    torch.testing.assert_close(several, flat, **EXACT)


def test_a_module_as_loss_is_registered_and_moves_along():
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]), reduction="none")
    criterion = IRMTVLoss(weighted).double()
    assert weighted.weight.dtype == torch.float64
    f, y, codes = problem("multiclass")
    assert criterion(f, y, environment=codes).isfinite()


@pytest.mark.parametrize("measure", ["empirical", "uniform", (0.2, 0.1, 0.6)])
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_measures(norm, measure):
    f, y, codes = problem("binary")
    mu = {"empirical": None, "uniform": torch.ones(3).double()}.get(measure, torch.tensor([0.2, 0.1, 0.6]).double())
    if isinstance(measure, tuple):
        mu = torch.tensor(measure, dtype=torch.float64)
    w = torch.ones((), dtype=torch.float64)
    for present in (codes, codes.clamp_max(1), codes.clamp_min(2)):  # all, two, one of the three environments
        theirs = penalised("binary", lambda w: w * f, w, y, one_hot(present), norm, LAMBDA, mu)
        agree(IRMTVLoss("binary", norm, LAMBDA, measure, False, n_environments=3)(f, y, environment=present), theirs, f)


def test_absent_environments_are_marked_in_the_log():
    f, y, codes = problem("binary")
    criterion = IRMTVLoss(n_environments=4)
    criterion(f, y, environment=codes).backward()
    kept = criterion.by_environment_
    assert kept["environment"].tolist() == [0, 1, 2, 3]
    assert kept["mass"][3] == 0
    assert kept["risk"][3].isnan() and kept["slope"][3].isnan()
    assert kept["risk"][:3].isfinite().all()
    assert f.grad.isfinite().all()


def test_without_a_number_any_integers_are_environments():
    f, y, codes = problem("binary")
    numbered, named_by_year = IRMTVLoss(n_environments=3), IRMTVLoss()
    years = torch.tensor([2019, -7, 10**12])[codes]
    assert numbered(f, y, environment=codes) == named_by_year(f, y, environment=years)
    assert named_by_year.by_environment_["environment"].tolist() == [-7, 2019, 10**12]
    by_year = numbered.by_environment_["risk"][torch.tensor([1, 0, 2])]
    torch.testing.assert_close(named_by_year.by_environment_["risk"], by_year)


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("loss", LOSSES)
def test_soft_membership_and_its_gradient(loss, norm):
    f, y, _ = problem(loss)
    q = torch.randn(40, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64).softmax(1).requires_grad_()
    w = torch.ones((), dtype=torch.float64)
    theirs = penalised(loss, lambda w: w * f, w, y, q, norm, LAMBDA, mu=None)
    ours = IRMTVLoss(named(loss), norm, LAMBDA, normalise=False)(f, y, membership=q)
    torch.testing.assert_close(ours, theirs, **EXACT)
    (ours_f, ours_q), (theirs_f, theirs_q) = torch.autograd.grad(ours, (f, q)), torch.autograd.grad(theirs, (f, q))
    torch.testing.assert_close(ours_f, theirs_f, **EXACT)
    torch.testing.assert_close(ours_q, theirs_q, **EXACT)


def test_hard_membership_is_environment():
    f, y, codes = problem("multiclass")
    hard = IRMTVLoss("multiclass")(f, y, environment=codes)
    torch.testing.assert_close(IRMTVLoss("multiclass")(f, y, membership=one_hot(codes)), hard, **EXACT)


def test_what_is_kept_is_what_was_computed():
    f, y, codes = problem("binary")
    criterion = IRMTVLoss("binary", "l2", LAMBDA)
    total = criterion(f, y, environment=codes)
    kept = criterion.by_environment_
    torch.testing.assert_close(total, (criterion.risk_ + LAMBDA * criterion.penalty_) / (1 + LAMBDA), **EXACT)
    torch.testing.assert_close(criterion.risk_, (kept["mass"] * kept["risk"]).sum(), **EXACT)
    torch.testing.assert_close(criterion.penalty_, (kept["mass"] * kept["slope"] ** 2).sum(), **EXACT)
    assert not any(t.requires_grad for t in (criterion.risk_, criterion.penalty_, *kept.values()))


def test_shapes_of_one_output_are_the_same_to_it():
    f, y, codes = problem("squared")
    criterion = IRMTVLoss("squared")
    wanted = criterion(f, y, environment=codes)
    for logits in (f, f.unsqueeze(1)):
        for labels in (y, y.unsqueeze(1)):  # (N, 1) - (N,) would silently be (N, N)
            assert criterion(logits, labels, environment=codes.unsqueeze(1)) == wanted


def test_the_slope_of_a_perfectly_flat_environment_has_gradient_zero():
    f = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    y, codes = torch.tensor([0.0, 1, 0, 1, 0, 1]).double(), torch.tensor([0, 0, 0, 1, 1, 1])
    IRMTVLoss("squared", "l1", LAMBDA, classifier="scalar", normalise=False)(f, y, environment=codes).backward()
    torch.testing.assert_close(f.grad, -2 * y / 6, **EXACT)  # that of the risk alone


def test_penalty_weight_may_change():
    f, y, codes = problem("binary")
    criterion = IRMTVLoss("binary", penalty_weight=0.0)
    plain = nn.functional.binary_cross_entropy_with_logits(f, y)
    torch.testing.assert_close(criterion(f, y, environment=codes), plain, **EXACT)
    criterion.penalty_weight = 5
    expected = (criterion.risk_ + 5 * criterion.penalty_) / 6
    torch.testing.assert_close(criterion(f, y, environment=codes), expected, **EXACT)
    with pytest.raises(ValueError, match=r"penalty_weight must be a finite number of at least 0. Got -1"):
        criterion.penalty_weight = -1
    assert criterion.penalty_weight == 5


def test_warmup():
    assert [warmup_weight(s, 10.0, 3) for s in range(5)] == [0, 0, 0, 10, 10]
    assert [warmup_weight(s, 8.0, 1, ramp=4) for s in range(7)] == [0, 2, 4, 6, 8, 8, 8]


def test_it_has_no_state_of_its_own():
    criterion = IRMTVLoss(measure=(1.0, 2.0), n_environments=2)
    assert not criterion.state_dict() and not list(criterion.parameters())
    assert "penalty_weight=1000" in repr(criterion) and "measure=(1.0, 2.0)" in repr(criterion)
