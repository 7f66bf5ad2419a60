"""A measure on the environments that climbs the objective: by hand, by finite differences, and where it may go."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.problems import close, losses, parameters, refuse, task_of
from irmtv import Runs, train
from irmtv.engine.networks import MLP
from irmtv.engine.rows import StratifiedBatches
from irmtv.objectives.environments import Affine

F64 = {"dtype": torch.float64}
LEARNED = {"measure": "learned", "measure_rate": 0.5, "measure_distance": 0.05}
NAMES = ("irm-tv-l1", "irm-tv-l2", "vrex", "mm-rex")


def penalty(name, mu, risks, slopes):
    """By its formula, from lists of numbers or of scalar tensors."""
    mean = sum(m * r for m, r in zip(mu, risks, strict=True))
    if name == "irm-tv-l1":
        return sum(m * abs(s) for m, s in zip(mu, slopes, strict=True)) ** 2
    if name == "irm-tv-l2":
        return sum(m * s**2 for m, s in zip(mu, slopes, strict=True))
    if name == "vrex":
        return sum(m * (r - mean) ** 2 for m, r in zip(mu, risks, strict=True))
    return max(risks) - mean


def kl(p, q):
    return float(sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)))


def back_into_the_ball(mu, centre, distance):
    if kl(mu, centre) <= distance:
        return mu
    least, greatest = 0.0, 1.0
    for _ in range(100):
        a = (least + greatest) / 2
        p = np.array(mu) ** a * np.array(centre) ** (1 - a)
        p = p / p.sum()
        least, greatest = (least, a) if kl(p, centre) > distance else (a, greatest)
    return p.tolist()


def numbers(task, loss, phi, rows):
    """R_e and S_e as scalar tensors with a graph, slopes by differentiating a gradient; None where there is no row."""
    w = torch.ones((), dtype=torch.float64, requires_grad=True)
    f = (task.train.x[rows] @ phi["W0"].T + phi["b0"].squeeze(1)) * w
    each = losses(loss, f.squeeze(1) if task.n_outputs == 1 else f, task.train.y[rows])
    codes = task.train.environment[rows]
    here = [e for e in range(len(task.train.names)) if (codes == e).any()]
    risks = [each[codes == e].mean() for e in here]
    return here, risks, [torch.autograd.grad(r, w, create_graph=True)[0] for r in risks]


def start(task, seed):
    generator = torch.Generator().manual_seed(seed)
    phi = MLP(task.train.x.shape[1], (), task.n_outputs).init(seed, generator)
    return {k: v.requires_grad_() for k, v in phi.items()}, generator


def by_hand(task, name, loss="binary", *, steps, warmup, weight, eta, distance, seed=0, batch_size=None, rate=5e-3):
    """One run in plain Python: parameters as one vector, and the measure."""
    phi, generator = start(task, seed)
    codes = task.train.environment
    draw = None if batch_size is None else StratifiedBatches([codes], batch_size, [generator])
    adam = torch.optim.Adam(phi.values(), lr=rate)
    shares = (torch.bincount(codes).double() / len(codes)).tolist()
    mu = list(shares)
    for step in range(steps):
        rows = torch.arange(len(codes)) if draw is None else draw.next()[0]
        here, risks, slopes = numbers(task, loss, phi, rows)
        acting = step >= warmup

        def objective(m, here=here, risks=risks, slopes=slopes, acting=acting):
            m = [m[e] for e in here]
            m = [v / sum(m) for v in m]
            total = sum(v * r for v, r in zip(m, risks, strict=True))
            return (total + weight * penalty(name, m, risks, slopes)) / (1 + weight) if acting else total

        leaf = torch.tensor(mu, dtype=torch.float64, requires_grad=True)
        gradient = torch.autograd.grad(objective(leaf), leaf, retain_graph=True)[0].tolist()
        mu = [m * math.exp(eta * g) for m, g in zip(mu, gradient, strict=True)]
        mu = back_into_the_ball([m / sum(mu) for m in mu], shares, distance)
        adam.zero_grad()
        objective(mu).backward()
        adam.step()
    return torch.cat([p.detach().flatten() for p in phi.values()]), torch.tensor(mu, dtype=torch.float64)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("loss", "batch_size"), [("binary", None), ("multiclass", None), ("squared", 10)])
def test_steps_by_hand(name, loss, batch_size):
    """A warm-up and penalised steps; batches of 10 do not always have each of the 6 environments."""
    task = task_of(loss, environments=6)
    eta = 0.02 if loss == "squared" else 0.5  # of much larger numbers
    hand = {"steps": 14, "warmup": 5, "weight": 5.0, "eta": eta, "distance": 0.01, "batch_size": batch_size}
    ours = {k: hand[k] for k in ("steps", "warmup", "batch_size")} | LEARNED
    ours |= {"penalty_weight": 5.0, "measure_rate": eta, "measure_distance": 0.01, **F64}
    if "tv" in name:
        ours["batch_estimator"] = "plain"
    fitted = train(task, name, **ours)
    vector, mu = by_hand(task, name, loss, **hand)
    assert close(parameters(fitted)[0], vector, 1e-7)
    assert close(fitted.learned("measure")[0], mu, 1e-7)
    shares = torch.bincount(task.train.environment) / 100
    assert (mu - shares).abs().max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_the_direction_against_finite_differences(name):
    """One tiny step from the shares: log mu moves by rate times the slope of the objective in mu."""
    task, weight, rate = task_of(), 7.0, 1e-3
    settings = {"measure": "learned", "measure_rate": rate, "measure_distance": math.inf, "warmup": 0, "steps": 1}
    mu = train(task, name, penalty_weight=weight, **settings, **F64).learned("measure")[0]
    _, risks, slopes = numbers(task, "binary", start(task, 0)[0], torch.arange(100))
    risks, slopes = [r.item() for r in risks], [s.item() for s in slopes]
    shares = (torch.bincount(task.train.environment).double() / 100).tolist()

    def objective(m):
        m = [v / sum(m) for v in m]
        return (sum(v * r for v, r in zip(m, risks, strict=True)) + weight * penalty(name, m, risks, slopes)) / 8

    slope = []
    for e in range(3):
        up, down = ([v + h * (i == e) for i, v in enumerate(shares)] for h in (1e-5, -1e-5))
        slope.append((objective(up) - objective(down)) / 2e-5)
    moved = (mu / torch.tensor(shares, dtype=torch.float64)).log() / rate
    expected = torch.tensor(slope, dtype=torch.float64)
    assert torch.allclose(moved - moved[0], expected - expected[0], atol=1e-6)
    assert (expected - expected[0]).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["erm", *NAMES, "irm-tv-l1+vrex", "minimax-tv-l1"])
@pytest.mark.parametrize("batch_size", [None, 20])
def test_it_stays_within_its_distance(name, batch_size):
    task = task_of()
    settings = {"steps": 60, "snapshot_every": 10, "keep_states": True, "batch_size": batch_size, **F64}
    settings |= {} if name == "erm" else {"warmup": 20}
    distances = [0.0, 1e-3, 0.1]
    runs = Runs(seed=range(3), measure_distance=distances)
    fitted = train(task, name, runs, measure="learned", measure_rate=5.0, **settings)
    at_the_edge = 0
    for step in range(30, 61, 10):
        mu = fitted.at(step).learned("measure")
        assert torch.allclose(mu.sum(1), torch.ones(3).double())
        if name == "minimax-tv-l1":
            if batch_size is not None:
                continue  # the shares of inferred environments are then those of the batch, which is gone
            centre = fitted.at(step).membership(task.train.aux).mean(1)
        else:
            centre = (torch.bincount(task.train.environment) / 100).double().expand(3, -1)
        for m, c, distance in zip(mu.tolist(), centre.tolist(), distances, strict=True):
            assert kl(m, c) <= distance * (1 + 1e-6) + 1e-12
            at_the_edge += distance > 0 and kl(m, c) > 0.999 * distance
    assert at_the_edge > 0 or name == "minimax-tv-l1"


@pytest.mark.parametrize("name", ["erm", *NAMES[:3], "irm-tv-l1+vrex", "minimax-tv-l1"])
def test_distance_zero_is_the_empirical_measure(name):
    task = task_of()
    settings = {"steps": 40, **F64} | ({} if name == "erm" else {"warmup": 10, "penalty_weight": 50.0})
    learned = train(task, name, measure="learned", measure_distance=0.0, **settings)
    assert close(parameters(learned)[0], parameters(train(task, name, measure="empirical", **settings))[0])
    free = train(task, name, measure="learned", measure_distance=1.0, measure_rate=5.0, **settings)
    assert not close(parameters(learned)[0], parameters(free)[0], 1e-3)


@pytest.mark.parametrize("name", ["irm-tv-l1", "vrex", "minimax-tv-l1", "minimax-tv-l2+vrex"])
@pytest.mark.parametrize("batch_size", [None, 20])
def test_runs_whose_penalty_starts_at_other_times_are_as_alone(name, batch_size):
    """While one run's inferred environments still move, its measure is theirs, whatever its neighbours do."""
    task = task_of(environments=5)
    columns = {
        "seed": [1, 2, 3],
        "warmup": [5, 20, 12],
        "measure_rate": [0.1, 2.0, 0.5],
        "measure_distance": [0.01, 0.1, math.inf],
        "penalty_weight": [10.0, 100.0, 0.0],
    }
    shared = {"measure": "learned", "steps": 40, "batch_size": batch_size, **F64}
    shared |= {"environment_learning_rate": 0.05} if "minimax" in name else {}
    together = train(task, name, Runs(**columns), **shared)
    for r in range(3):
        alone = train(task, name, Runs(**{k: v[r] for k, v in columns.items()}), **shared)
        assert close(parameters(together)[r], parameters(alone)[0])
        mu = together.learned("measure")[r]
        assert torch.allclose(mu, alone.learned("measure")[0], rtol=1e-8, equal_nan=True)
        # without a penalty there is nothing that inferred environments could be weighed for
        assert bool(mu.isnan().any()) == ("minimax" in name and columns["penalty_weight"][r] == 0)


def test_tasks_have_shares_of_their_own():
    tasks = [task_of(seed=0), task_of(seed=1)]
    tasks[1] = replace(tasks[1], train=replace(tasks[1].train, environment=torch.arange(100) % 3))
    runs = Runs(seed=[0, 0], data=[0, 1])
    mu = train(tasks, "vrex", runs, measure="learned", measure_distance=0.0, steps=3, **F64).learned("measure")
    for m, task in zip(mu, tasks, strict=True):
        assert close(m, torch.bincount(task.train.environment).double() / 100)


@pytest.mark.parametrize("weight", ["adaptive", "adaptive-exact", "learned"])
def test_with_penalty_weights_that_follow_phi(weight):
    task = task_of()
    fitted = train(task, "vrex", penalty_weight=weight, steps=40, warmup=10, **LEARNED, **F64)
    assert torch.isfinite(parameters(fitted)[0]).all()
    shares = torch.bincount(task.train.environment).double() / 100
    assert (fitted.learned("measure")[0] - shares).abs().max() > 0.01


def test_a_run_that_diverges_leaves_a_finite_measure():
    runs = Runs(seed=[0, 0], learning_rate=[1e200, 5e-3])
    with pytest.warns(UserWarning, match="1 of 2 runs diverged"):
        fitted = train(task_of("squared"), "vrex", runs, steps=20, warmup=5, **LEARNED, **F64)
    assert torch.isfinite(fitted.learned("measure")).all()
    alone = train(task_of("squared"), "vrex", steps=20, warmup=5, **LEARNED, **F64)
    assert close(parameters(fitted)[1], parameters(alone)[0])


def test_what_is_refused():
    with refuse("measure='learned' has nothing to act on here", "expand=Affine(n=4", "minimax-tv-l1", "expand=None"):
        train(task_of(), "minimax-tv-l1", measure="learned", expand=Affine(4))
    with refuse("goes with measure='empirical' only", "Got measure='learned'"):
        train(task_of(), "irm-tv-l1", measure="learned", reduction="authors")
    with refuse("name must be what all runs learned", "Got 'measure'"):
        train(task_of(), "irm-tv-l1", steps=2).learned("measure")
