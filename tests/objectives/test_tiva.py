"""TIVA: its formulas and its settings; the training is in tests/engine/test_selector.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from engine.problems import refuse
from irmtv import OBJECTIVES
from irmtv.objectives.gates import density, gate
from irmtv.objectives.tiva import selector_loss

MU = np.linspace(-2, 2, 9)
SIGMAS = (0.1, 0.7, 1.0, 3.0)


def tensor(values):
    return torch.as_tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_the_density_is_the_probability_that_a_gate_is_not_closed(sigma):
    expected = 1 - stats.norm(MU + 0.5, sigma).cdf(0)
    assert np.allclose(density(tensor(MU), sigma), expected, rtol=1e-12)
    even = tensor(stats.norm.ppf((np.arange(20000) + 0.5) / 20000))  # noise at its quantiles
    opened = (gate(tensor(MU)[:, None], even, sigma) > 0).double().mean(1)
    assert np.allclose(opened, expected, atol=1e-4)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_the_mean_of_a_gate_is_that_of_a_clipped_normal_variable(sigma):
    even = tensor(stats.norm.ppf((np.arange(20000) + 0.5) / 20000))
    ours = gate(tensor(MU)[:, None], even, sigma).mean(1)
    for mu, mean in zip(MU, ours.numpy(), strict=True):
        normal = stats.norm(mu + 0.5, sigma)
        inside = integrate.quad(lambda v, p=normal: v * p.pdf(v), 0, 1, points=[np.clip(mu + 0.5, 0, 1)])[0]
        assert mean == pytest.approx(inside + normal.sf(1), abs=1e-4)


def test_without_noise_a_gate_is_open_above_a_half_and_closed_below_minus_a_half():
    assert gate(tensor([-3.0, -0.5, -0.25, 0.0, 0.5, 2.0])).tolist() == [0, 0, 0.25, 0.5, 1, 1]


def test_the_gates_of_every_run_have_their_own_noise_level():
    mu, noise = tensor(np.zeros((2, 3))), tensor([[0.2, -0.2, 3.0]] * 2)
    ours = gate(mu, noise, tensor([[1.0], [0.1]]))
    assert torch.allclose(ours, tensor([[0.7, 0.3, 1.0], [0.52, 0.48, 0.8]]))


def test_the_selector_pays_for_the_mean_density():
    total = selector_loss(tensor([1.0, 2.0]), tensor([[0.2, 0.4], [1.0, 0.0]]), tensor([0.5, 0.0]))
    assert total.tolist() == pytest.approx([1.15, 2.0])


def test_the_settings_are_those_of_the_released_code():
    tiva = OBJECTIVES["tiva"]
    settings = tiva.resolve({})
    assert not settings["gated"]
    assert settings["gate_noise"] == 1.0
    assert settings["gate_weight"] == 1e-3
    assert settings["selector_learning_rate"] == settings["environment_learning_rate"] == 0.01
    assert settings["environment_hidden"] == 16
    assert settings["reduction"] == "authors"
    assert tiva.reads_aux
    assert OBJECTIVES["zin"].resolve({})["environment_learning_rate"] == 1e-3  # others keep theirs


def test_gated_is_a_mask_on_phi():
    tiva = OBJECTIVES["tiva"]
    assert tiva.chosen(tiva.resolve({})).mask is None
    assert tiva.chosen(tiva.resolve({"gated": True})).mask == "gates"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("gated", "yes", "one of"),
        ("gate_noise", 0.0, "above 0"),
        ("gate_weight", -1.0, "at least 0"),
        ("selector_learning_rate", 0.0, "above 0"),
    ],
)
def test_bad_settings_are_refused(name, value, expected):
    with refuse(name, "'tiva'", expected, repr(value)):
        OBJECTIVES["tiva"].resolve({name: value})


def test_it_cannot_be_a_part_of_a_sum():
    with refuse("'tiva' is a way of training"):
        OBJECTIVES["tiva+vrex"]
