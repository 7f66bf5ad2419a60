"""What is wrong with a batch or a setting is said: the parameter, what was expected, what came, what to do."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

from irmtv.losses import GroupDROLoss, IRMTVLoss, MinimaxTVLoss, VRExLoss
from losses.by_hand import problem

F, Y, CODES = problem("binary")
F3, Y3, _ = problem("multiclass")
Q = torch.full((40, 2), 0.5)


@pytest.mark.parametrize(
    ("settings", "arguments", "message"),
    [
        ({}, {}, r"exactly one of environment and membership must be given. Got neither"),
        ({}, {"environment": CODES, "membership": Q}, r"Got both"),
        ({}, {"environment": CODES[:5]}, r"environment must be one integer per row, 40 of them. Got shape \(5,\)"),
        ({}, {"environment": CODES.float()}, r"Got shape \(40,\) of torch.float32.*membership="),
        ({}, {"environment": CODES.tolist()}, r"environment must be a torch.Tensor. Got list"),
        (
            {},
            {"environment": ["a", "b"] * 20},
            r"environment must be a torch.Tensor of numbers. Got list of text.*numpy.unique\(labels, return_",
        ),
        ({}, {"environment": np.array(["a", "b"] * 20)}, r"Got ndarray of text.*pandas.factorize\(labels\)"),
        ({"n_environments": 2}, {"environment": CODES}, r"must be codes 0..1, as n_environments is 2. Got 2"),
        ({"n_environments": 3}, {"environment": CODES - 1}, r"must be codes 0..2.*Got -1"),
        ({"measure": (0.5, 0.5)}, {"environment": CODES}, r"must be codes 0..1"),
        (
            {},
            {"membership": Q[:4]},
            r"membership must be probabilities of shape \(40, environments\). Got shape \(4, 2\)",
        ),
        ({"n_environments": 3}, {"membership": Q}, r"shape \(40, 3\)"),
        ({}, {"membership": Q.long()}, r"of torch.int64.*codes go to environment="),
        ({}, {"membership": Q * 1.1}, r"that sum to 1. Got rows that miss 1 by up to 0.1 "),
        ({}, {"membership": torch.tensor([[1.5, -0.5]] * 40)}, r"values down to -0.5"),
        ({}, {"environment": CODES, "features": F}, r"features and weight must be left out: classifier is 'scalar'"),
        ({"classifier": "vector"}, {"environment": CODES}, r"features and weight must be given.*Got no features"),
        (
            {"classifier": "vector"},
            {"environment": CODES, "features": torch.ones(40, 3), "weight": torch.ones(4)},
            r"Got features \(40, 3\) and weight \(4,\)",
        ),
        ({"reduce_across_ranks": True}, {"environment": CODES}, r"reduce_across_ranks=True needs an initialised"),
    ],
)
def test_environments_and_features(settings, arguments, message):
    with pytest.raises(ValueError, match=message):
        IRMTVLoss(**settings)(F, Y, **arguments)


@pytest.mark.parametrize(
    ("loss", "logits", "y", "message"),
    [
        ("binary", F.tolist(), Y, r"logits must be a torch.Tensor. Got list"),
        ("binary", F, Y.numpy(), r"y must be a torch.Tensor. Got ndarray"),
        ("binary", Y.long(), Y, r"logits must be floating point.*before any sigmoid, softmax or argmax"),
        ("binary", F, Y[:3], r"Got 40 rows of logits and y of shape \(3,\)"),
        ("binary", F[:0], Y[:0], r"at least one row. Got none"),
        ("binary", F3, Y, r"Got logits \(40, 3\).*loss='multiclass', or the difference"),
        ("binary", F, 2 * Y - 1, r"y must lie in \[0, 1\] for loss 'binary'. Got values from -1.0 to 1.0"),
        ("binary", F, Y.where(Y > 0, torch.nan), r"y must lie in \[0, 1\]"),
        ("multiclass", F, Y.long(), r"logits must be \(rows, classes\) for loss 'multiclass'.*loss='binary'"),
        ("multiclass", F3, Y3.double(), r"y must be class numbers.*of torch.float64.*Use y.long\(\)"),
        ("multiclass", F3, torch.eye(3)[Y3].long(), r"y.argmax\(1\) for one column per class"),
        ("multiclass", F3, Y3 + 1, r"must be classes 0..2, as the logits have 3 columns. Got classes from 1 to 3"),
        ("squared", F3, Y, r"must have one shape.*Got logits \(40, 3\), y \(40,\)"),
        (lambda f, y: (f - y).mean(), F, Y, r"loss must give one number per row, shape \(40,\). Got \(\).*'none'"),
        (lambda f, y: f - y[:, None], F3, Y3, r"Got \(40, 3\)"),
    ],
)
@pytest.mark.parametrize("kind", [IRMTVLoss, VRExLoss])
def test_logits_and_labels(kind, loss, logits, y, message):
    codes = CODES[: len(logits)]
    with pytest.raises(ValueError, match=message):
        kind(loss)(logits, y, environment=codes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: IRMTVLoss("binray"), r"loss must be one of 'binary'.*Got 'binray'. Did you mean 'binary'\?"),
        (lambda: IRMTVLoss(3), r"or a function \(logits, y\) -> one number per row. Got 3"),
        (lambda: IRMTVLoss(torch.nn.MSELoss), r"loss must be one of"),
        (lambda: IRMTVLoss(norm="l3"), r"norm must be one of 'l1', 'l2'. Got 'l3'"),
        (lambda: IRMTVLoss(classifier="matrix"), r"classifier must be one of"),
        (lambda: IRMTVLoss(measure="unifrom"), r"measure must be one of.*Did you mean 'uniform'\?"),
        (lambda: IRMTVLoss(measure=(0.5, -1)), r"one weight of at least 0 per environment. Got \(0.5, -1\)"),
        (lambda: VRExLoss(measure=(0.0, 0)), r"measure must be"),
        (lambda: VRExLoss(measure=()), r"measure must be"),
        (lambda: IRMTVLoss(measure=(0.5, 0.5), n_environments=3), r"n_environments is 3. Got 2 weights"),
        (lambda: IRMTVLoss(measure="uniform", reduction="authors"), r"measure must be 'empirical' with reduction="),
        (lambda: IRMTVLoss(penalty_weight="adaptive"), r"penalty_weight must be a finite number.*Got 'adaptive'"),
        (lambda: IRMTVLoss(penalty_weight=float("inf")), r"penalty_weight must be"),
        (lambda: IRMTVLoss(penalty_weight=True), r"penalty_weight must be a finite number.*Got True"),
        (lambda: IRMTVLoss(penalty_weight="1"), r"penalty_weight must be a finite number.*Got '1'"),
        (lambda: VRExLoss(penalty_weight=np.bool_(True)), r"penalty_weight must be a finite number.*Got True"),
        (lambda: IRMTVLoss(n_environments=0), r"n_environments must be a positive integer. Got 0"),
        (lambda: GroupDROLoss(), r"n_environments must be given: every environment has a weight"),
        (lambda: GroupDROLoss(n_environments=2, step_size=-1), r"step_size must be a finite number of at least 0"),
        (lambda: GroupDROLoss(n_environments=2, adjustment=1), r"n_rows must be 2 numbers with adjustment=1.*Got None"),
        (lambda: GroupDROLoss(n_environments=2, adjustment=1, n_rows=[1]), r"Got 1 numbers"),
        (lambda: GroupDROLoss(n_environments=2, adjustment=1, n_rows=[1, 0]), r"n_rows must be a positive integer"),
        (lambda: MinimaxTVLoss(), r"n_aux must be given: rho reads"),
        (lambda: MinimaxTVLoss(n_aux=0), r"n_aux must be a positive integer"),
        (lambda: MinimaxTVLoss(n_aux=1, n_environments=1), r"n_environments must be at least 2"),
        (lambda: MinimaxTVLoss(network=torch.nn.Linear(1, 2)).standardise(F), r"n_aux must be given to the loss"),
    ],
)
def test_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("aux", "message"),
    [
        (None, r"aux must be given: environments are inferred from it.*IRMTVLoss"),
        ([1.0] * 40, r"aux must be a torch.Tensor. Got list"),
        (torch.ones(40), r"aux must have shape \(40, 2\).*Got \(40,\)"),
        (torch.ones(39, 2), r"aux must have shape \(40, 2\).*Got \(39, 2\)"),
        (torch.full((40, 2), torch.nan), r"aux must be finite"),
    ],
)
def test_auxiliary_variables(aux, message):
    with pytest.raises(ValueError, match=message):
        MinimaxTVLoss(n_aux=2)(F, Y, aux=aux)


@pytest.mark.parametrize(("name", "given"), [("environment", CODES), ("membership", Q)])
def test_known_environments_are_for_another_loss(name, given):
    message = rf"{name} must be left out: MinimaxTVLoss infers environments from aux.*IRMTVLoss\(.*{name}="
    with pytest.raises(ValueError, match=message):
        MinimaxTVLoss(n_aux=1)(F, Y, **{name: given})


@pytest.mark.parametrize("loss", [IRMTVLoss(), VRExLoss(), GroupDROLoss(n_environments=3)])
def test_auxiliary_variables_are_for_another_loss(loss):
    message = rf"{type(loss).__name__} has no argument aux.*Got a Tensor.*MinimaxTVLoss\(...\)\(logits, y, aux="
    with pytest.raises(TypeError, match=message):
        loss(F, Y, aux=CODES)
    assert "aux" not in inspect.signature(loss.forward).parameters


@pytest.mark.parametrize("weight", [np.float32(2), torch.tensor(2.0), 2])
def test_numbers_of_any_library_are_weights(weight):
    assert IRMTVLoss(penalty_weight=weight).penalty_weight == 2.0


def test_an_own_network_must_fit():
    with pytest.raises(ValueError, match=r"network must give logits of shape \(40, 3\). Got \(40, 2\)"):
        MinimaxTVLoss(network=torch.nn.Linear(1, 2), n_environments=3)(F, Y, aux=torch.ones(40))


def test_several_outputs_need_no_features():
    with pytest.raises(ValueError, match=r"3 outputs have one w per logit"):
        IRMTVLoss("multiclass", classifier="vector")(F3, Y3, environment=CODES, features=F3, weight=F3)


def test_checks_of_values_can_be_switched_off():
    far = IRMTVLoss(check_values=False)(F, 2 * Y, environment=CODES)
    assert far.isfinite()
