"""Networks by name: the paper's table, layer by layer in torch.nn; errors; training, many runs and alone."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
import torch
from torch import nn

from irmtv import InvariantClassifier, Runs, make_task, train
from irmtv.engine import named_networks as networks
from irmtv.engine.named_networks import NETWORKS, make_network

RNG = np.random.default_rng(0)


def by_hand(n_channels, n_outputs, last_relu):
    """The paper's table as torch.nn has it."""
    layers = [nn.Conv1d(n_channels, 32, 5, padding=2), nn.ReLU(), nn.Conv1d(32, 32, 3, padding=1), nn.ReLU()]
    layers += [nn.MaxPool1d(2, 2), nn.Conv1d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool1d(2, 2)]
    layers += [nn.Conv1d(64, n_outputs, 3, padding=1), *([nn.ReLU()] if last_relu else [])]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten())


@pytest.fixture(scope="module")
def task():
    x, y = RNG.normal(size=(90, 8, 46)), np.arange(90) % 6
    return make_task(x, y, environment=np.arange(90) // 45, aux=RNG.normal(size=(90, 2)), min_rows=1)


@pytest.mark.parametrize(("name", "last_relu"), [("landcover-cnn", True), ("series-cnn", False)])
@pytest.mark.parametrize(("n_channels", "length", "n_outputs"), [(8, 46, 6), (9, 24, 9), (2, 7, 3)])
def test_the_layers_are_those_of_the_paper(name, last_relu, n_channels, length, n_outputs):
    net = make_network(name, (n_channels, length), n_outputs)
    with torch.random.fork_rng():
        torch.manual_seed(2)  # with some weights all logits are positive
        reference = by_hand(n_channels, n_outputs, last_relu).double()
    p = {}
    for i, layer in enumerate(m for m in reference if isinstance(m, nn.Conv1d)):
        p[f"W{i}"], p[f"b{i}"] = layer.weight.detach()[None], layer.bias.detach()[None]
    assert {k: tuple(v.shape[1:]) for k, v in p.items()} == net.shapes
    x = torch.randn(5, n_channels, length, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits = net.forward(p, net.prepare(x[None])).logits
    torch.testing.assert_close(logits[0], reference(x))
    assert bool((logits >= 0).all()) is last_relu


def test_runs_train_together_as_alone(task):
    net = make_network("landcover-cnn", task.train.x.shape[1:], task.n_outputs)
    settings = {"net": net, "steps": 6, "warmup": 2, "batch_size": 30, "dtype": torch.float64}
    for objective in ("irm-tv-l1", "minimax-tv-l1"):
        both = train(task, objective, Runs(seed=[3, 4]), **settings).logits(task.train.x)
        alone = train(task, objective, Runs(seed=[4]), **settings).logits(task.train.x)
        torch.testing.assert_close(both[1], alone[0], rtol=1e-8, atol=1e-8)
        assert not torch.allclose(both[0], both[1])


def test_an_estimator_takes_it_as_its_module(task):
    x, y = task.train.x.numpy(), task.train.y.numpy()
    model = InvariantClassifier(
        "irm-tv-l1", module=make_network("series-cnn", x.shape[1:], 6), max_steps=3, random_state=0
    ).fit(x, y, environment=task.train.environment.numpy())
    assert model.predict_proba(x).shape == (90, 6)


def test_what_does_not_fit_is_said():
    with pytest.raises(ValueError, match=r"network must be one of \['landcover-cnn', .*Did you mean 'landcover-cnn'\?"):
        make_network("landcover_cnn", (8, 46), 6)
    with pytest.raises(ValueError, match=r"network must be one of .* Got 3\."):
        make_network(3, (8, 46), 6)
    with pytest.raises(ValueError, match=r"reads series: .* Got \(59,\)\. Use hidden"):
        make_network("landcover-cnn", (59,), 6)
    with pytest.raises(ValueError, match=r"at least 4 times\. Got 3\."):
        make_network("series-cnn", (46, 3), 6)


def test_every_network_says_what_it_is():
    for name, network in NETWORKS.items():
        assert network.layers and network.source
        assert make_network(name, (3, 12), 2).n_outputs == 2


def test_docstring_examples():
    outcome = doctest.testmod(networks)
    assert outcome.attempted == 2
    assert outcome.failed == 0
