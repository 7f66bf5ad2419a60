"""The formulas of learning from failure, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from engine.problems import refuse, task_of
from irmtv import OBJECTIVES, train
from irmtv.objectives.lff import (
    class_maximum,
    gce_weight,
    moving_average,
    relative_difficulty,
    relative_to_class,
)

D = torch.float64
NAN = math.nan


def tensor(*values):
    return torch.tensor(values, dtype=D)


def probabilities(n=50, classes=4, seed=0):
    """Logits, classes, and the probability of each row's class."""
    generator = torch.Generator().manual_seed(seed)
    f = 3 * torch.randn(n, classes, generator=generator, dtype=D)
    y = torch.randint(classes, (n,), generator=generator)
    return f, y, torch.softmax(f, 1)[torch.arange(n), y]


@pytest.mark.parametrize("q", [0.2, 0.7, 1.0])
def test_the_weight_is_that_of_the_probability(q):
    f, y, p = probabilities()
    loss = functional.cross_entropy(f, y, reduction="none")
    assert torch.allclose(gce_weight(loss, q), q * p**q, rtol=1e-12, atol=0)


def test_an_exponent_of_its_own_for_every_run():
    loss, q = torch.ones(2, 1, 3, dtype=D), tensor(0.5, 1.0).view(2, 1, 1)
    assert torch.allclose(gce_weight(loss, q)[:, 0, 0], tensor(0.5 * math.exp(-0.5), math.exp(-1)))


def test_the_published_loss_has_q_times_the_gradient_of_the_true_one():
    f, y, p = probabilities()
    q = 0.7

    def gradient(of):
        leaf = f.clone().requires_grad_()
        of(functional.cross_entropy(leaf, y, reduction="none")).sum().backward()
        return leaf.grad

    published = gradient(lambda loss: loss * gce_weight(loss, q))
    # no gradient through the weight: p^q times that of the cross-entropy
    assert torch.allclose(published, q * (p**q).unsqueeze(1) * gradient(lambda loss: loss), rtol=1e-10, atol=1e-14)
    # and q times that of the true one, (1 - p^q) / q
    leaf = f.clone().requires_grad_()
    ((1 - torch.softmax(leaf, 1)[torch.arange(len(y)), y] ** q) / q).sum().backward()
    assert torch.allclose(published, q * leaf.grad, rtol=1e-9, atol=1e-14)


def test_relative_difficulty():
    weights = relative_difficulty(tensor(3.0, 1.0, 0.0, 0.0), tensor(1.0, 1.0, 5.0, 0.0))
    assert torch.allclose(weights, tensor(0.75, 0.5, 0.0, 0.0), atol=1e-8)
    assert relative_difficulty(tensor(1e-8), tensor(0.0)).item() == pytest.approx(0.5)


def test_moving_average_stores_the_first_value_as_it_is():
    old = tensor(NAN, 2.0, 0.0)
    assert torch.allclose(moving_average(old, tensor(5.0, 4.0, 1.0), 0.7), tensor(5.0, 0.7 * 2 + 0.3 * 4, 0.3))
    assert torch.equal(moving_average(old, tensor(5.0, 4.0, 1.0), 0.0), tensor(5.0, 4.0, 1.0))
    per_run = moving_average(torch.full((2, 3), 2.0, dtype=D), torch.ones(2, 3, dtype=D), tensor(0.5, 0.9).view(2, 1))
    assert torch.allclose(per_run, tensor(1.5, 1.9).view(2, 1).expand(2, 3))


def test_class_maximum_over_the_rows_that_were_visited():
    average = torch.stack([tensor(1.0, 7.0, NAN, 2.0, 3.0), tensor(4.0, NAN, 5.0, NAN, 0.5)])
    classes = torch.tensor([0, 1, 0, 0, 1])
    largest = class_maximum(average, classes, 3)
    assert torch.equal(largest, torch.stack([tensor(2.0, 7.0, 0.0), tensor(5.0, 0.5, 0.0)]))
    some = torch.tensor([[3, 4], [0, 4]])
    relative = relative_to_class(average.gather(1, some), classes[some], largest)
    assert torch.allclose(relative, torch.stack([tensor(1.0, 3 / 7), tensor(0.8, 1.0)]))


def test_class_maximum_brute_force():
    generator = torch.Generator().manual_seed(0)
    average = torch.rand(2, 3, 40, generator=generator, dtype=D)
    classes = torch.randint(5, (2, 1, 40), generator=generator)
    largest = class_maximum(average, classes, 5)
    for t in range(2):
        for k in range(3):
            for c in range(5):
                mine = [v.item() for v, own in zip(average[t, k], classes[t, 0], strict=True) if own == c]
                assert largest[t, k, c] == max(mine, default=0.0)


def test_a_class_without_any_loss_left_has_difficulty_zero():
    nothing = torch.zeros(1, 3, dtype=torch.float32)
    classes = torch.zeros(1, 3, dtype=torch.int64)
    assert torch.equal(relative_to_class(nothing, classes, class_maximum(nothing, classes, 2)), nothing)


# the objective itself


def test_regression_is_refused_and_the_reason_given():
    with refuse("objective 'lff' is for ['binary', 'multiclass']", "probability of the right class", "is regression"):
        train(task_of("squared"), "lff", steps=1)


def test_it_cannot_be_added_to_a_penalty():
    with refuse("'lff' is a way of training, not a penalty"):
        OBJECTIVES["vrex+lff"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"variant": "published"}, ["variant of 'lff' must be one of ['averaged', 'plain']", "Got 'published'"]),
        ({"gce_exponent": 0.0}, ["gce_exponent of 'lff' must be a number in (0, 1]", "Got 0.0"]),
        ({"gce_exponent": 1.1}, ["gce_exponent of 'lff' must be a number in (0, 1]", "Got 1.1"]),
        ({"averaging": 1.0}, ["averaging of 'lff' must be a number in [0, 1)", "Got 1.0"]),
        ({"averaging": -0.1}, ["averaging of 'lff' must be a number in [0, 1)", "Got -0.1"]),
        ({"penalty_weight": 1.0}, ["'penalty_weight' is neither", "['averaging', 'gce_exponent', 'variant']"]),
    ],
)
def test_settings_are_checked(settings, words):
    with refuse(*words):
        train(task_of(), "lff", steps=1, **settings)


def test_defaults_are_the_published_ones():
    assert OBJECTIVES["lff"].resolve({}) == {"variant": "averaged", "gce_exponent": 0.7, "averaging": 0.7}
    assert OBJECTIVES["lff"].resolve({"gce_exponent": 1.0, "averaging": 0.0})["averaging"] == 0.0
