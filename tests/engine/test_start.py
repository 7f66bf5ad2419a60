"""Runs that start from given parameters: Phi from there, all else as ever."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from engine.problems import close, losses, parameters, refuse, steps_taken, task_of
from irmtv import Runs, train
from irmtv.engine import MLP

S = {"dtype": torch.float64, "steps": 12}
PENALTY = {"warmup": 4, "penalty_weight": 20.0}


def initial(seed, hidden=(), features=3, n_outputs=1):
    """The random start of a run, (1, ...) each."""
    start = MLP(features, hidden, n_outputs).init(seed, torch.Generator().manual_seed(seed))
    return {k: v.unsqueeze(0) for k, v in start.items()}


def stacked(*starts):
    return {k: torch.cat([s[k] for s in starts]) for k in starts[0]}


def test_a_start_that_another_seed_draws_gives_that_seeds_run():
    task = task_of()
    mine = train(task, "irm-tv-l1", Runs(seed=0), hidden=(4,), start=initial(5, (4,)), **S, **PENALTY)
    expected = train(task, "irm-tv-l1", Runs(seed=5), hidden=(4,), **S, **PENALTY)
    assert torch.equal(parameters(mine)[0], parameters(expected)[0])
    assert not close(parameters(mine)[0], parameters(train(task, "irm-tv-l1", hidden=(4,), **S, **PENALTY))[0], 1e-3)


@pytest.mark.parametrize("name", ["minimax-tv-l1", "tiva", "lff", "eiil", "sparse-irm", "irm-tv-l1", "hrm"])
def test_what_else_a_run_draws_stays_its_own(name):
    """Its own random start, given, changes nothing: rho, gates and whoever else draws draw what they drew."""
    task = task_of()
    settings = {**S, **({"rounds": 1, "cluster_steps": 5} if name == "hrm" else {})}
    settings |= {"variant": "joint"} if name == "eiil" else {}
    own = initial(3, features=4 if name == "tiva" else 3)
    mine, expected = (train(task, name, Runs(seed=3), start=start, **settings) for start in (own, None))
    assert torch.equal(parameters(mine)[0], parameters(expected)[0])


def test_the_optimizer_starts_anew():
    """Two stages of ERM, the second by hand with a new Adam of torch's."""
    task = task_of(n=60)
    first = train(task, "erm", learning_rate=0.05, **S)
    start = first.state()[0].parameters
    second = train(task, "erm", learning_rate=0.02, start=start, **S)
    w, b = (start[k][0].clone().requires_grad_() for k in ("W0", "b0"))
    adam = torch.optim.Adam([w, b], lr=0.02)
    for _ in range(12):
        adam.zero_grad()
        losses("binary", (task.train.x @ w.T + b.T).squeeze(1), task.train.y).mean().backward()
        adam.step()
    assert close(parameters(second)[0], torch.cat([w.detach().flatten(), b.detach().flatten()]))
    assert torch.equal(start["W0"], first.state()[0].parameters["W0"])  # what was given stays as it was


@pytest.mark.parametrize("max_chunk", [None, 1, 2])
def test_every_run_has_the_start_at_its_place(max_chunk):
    tasks = [task_of(seed=i) for i in range(2)]
    data = [1, 0, 1, 0, 0]
    starts = stacked(*(initial(s) for s in (10, 11, 12, 13, 14)))
    settings = {**S, **PENALTY, "max_chunk": max_chunk}
    mine = train(tasks, "irm-tv-l1", Runs(seed=range(5), data=data), start=starts, **settings)
    expected = train(tasks, "irm-tv-l1", Runs(seed=range(10, 15), data=data), **settings)
    for r in range(5):
        assert close(parameters(mine)[r], parameters(expected)[r])
    for_all = train(tasks, "irm-tv-l1", Runs(seed=range(5), data=data), start=initial(10), **settings)
    for r in range(5):
        alone = train(tasks, "irm-tv-l1", Runs(seed=10, data=data[r]), **settings)
        assert close(parameters(for_all)[r], parameters(alone)[0])


def test_arrays_and_other_precisions_are_taken():
    task = task_of()
    given = {k: v.float().numpy() for k, v in initial(4).items()}
    mine = train(task, "erm", start=given, steps=5)
    assert mine.state()[0].parameters["W0"].dtype == torch.float32
    assert close(parameters(mine)[0], parameters(train(task, "erm", Runs(seed=4), steps=5))[0], 1e-6)


def test_a_module_starts_there_too():
    def net():
        return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))

    task = task_of()
    first = train(task, "erm", Runs(seed=[0, 1]), net=net, **S)
    start = first.state()[0].parameters
    again = train(task, "erm", Runs(seed=[7, 8]), net=net, start=start, learning_rate=1e-12, **S)
    for r in range(2):
        assert close(parameters(again)[r], parameters(first)[r], 1e-6)
    flipped = train(task, "erm", Runs(seed=[7, 8]), net=net, start={k: start[k] for k in reversed(start)}, **S)
    assert torch.equal(
        parameters(flipped)[0], parameters(train(task, "erm", Runs(seed=[7, 8]), net=net, start=start, **S))[0]
    )


@pytest.mark.parametrize("name", ["irm-tv-l1", "minimax-tv-l1"])
@pytest.mark.parametrize("kind", ["one for all", "the same by pairs", "each its own"])
def test_runs_share_a_warm_up_only_from_the_same_start(name, kind, monkeypatch):
    seen = steps_taken(monkeypatch)
    task = task_of()
    seeds = {"one for all": [20] * 4, "the same by pairs": [20, 21, 20, 21], "each its own": [20, 21, 22, 23]}[kind]
    start = initial(20) if kind == "one for all" else stacked(*(initial(s) for s in seeds))
    settings = {**S, "warmup": 6}
    weights = [1.0, 10.0, 100.0, 1e3]
    together = train(task, name, Runs(seed=0, penalty_weight=weights), start=start, **settings)
    assert {n for _, n in seen[:6]} == {len(set(seeds))}
    assert {n for _, n in seen[6:]} == {4}
    for r in range(4):
        alone = train(task, name, Runs(seed=0, penalty_weight=weights[r]), start=initial(seeds[r]), **settings)
        assert close(parameters(together)[r], parameters(alone)[0])


def test_hrm_begins_every_round_there():
    task = task_of("squared")
    settings = {**S, "rounds": 2, "cluster_steps": 5, "learning_rate": 1e-12, "gate_learning_rate": 1e-12}
    fitted = train(
        task, "hrm", start={"W0": torch.tensor([[[1.0, 2.0, 3.0]]]), "b0": torch.tensor([[[4.0]]])}, **settings
    )
    assert close(fitted.coefficients()[0][0], torch.tensor([0.5, 1.0, 1.5]).double(), 1e-6)  # gates half open
    assert close(fitted.coefficients()[1], torch.tensor([4.0]).double(), 1e-6)


def test_starts_that_cannot_be():
    task = task_of()
    good = initial(0)
    for start, parts in [
        ([1, 2], ("start must be a mapping", "Got list")),
        ({}, ("start must be a mapping", "Got an empty mapping")),
        (
            {**good, "V0": good["W0"]},
            ("start must name the parameters of the network, 'W0', 'b0'", "'V0', which it does"),
        ),
        ({"W0": good["W0"]}, ("start must name the parameters", "Got without 'b0'")),
        ({"w0": good["W0"], "b0": good["b0"]}, ("'w0', which it does not have and without 'W0'", "Did you mean 'W0'?")),
        ({**good, "W0": torch.zeros(1, 1, 5)}, ("start['W0'] must have the shape (1, 1, 3)", "Got (1, 1, 5)")),
        ({**good, "W0": torch.zeros(2, 1, 3)}, ("start['W0'] must have an entry for every run", "3 or 1", "(2, 1, 3)")),
        ({**good, "b0": torch.tensor(1.0)}, ("start['b0'] must have an entry for every run", "Got shape ()")),
        ({**good, "W0": [[1.0]]}, ("start['W0'] must be a tensor or an array", "Got list")),
        ({**good, "W0": torch.full((1, 1, 3), torch.nan)}, ("start['W0'] must be finite",)),
        ({**good, "b0": np.ones((1, 1, 1)) * 1j}, ("start['b0'] must be finite",)),
    ]:
        with refuse(*parts):
            train(task, "erm", Runs(seed=range(3)), start=start, steps=1)
    with refuse("start goes with one network for all runs", "differ in hidden"):
        train(task, "erm", Runs(seed=[0, 1], hidden=[(), (3,)]), start=good, steps=1)
