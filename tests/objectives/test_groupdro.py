"""groupDRO step by step: its weights, its parameters, its adjustment, its ball and its mini-batches, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from engine.problems import close, losses, parameters, refuse, task_of
from irmtv import OBJECTIVES, Runs, make_task, train
from irmtv.engine.networks import MLP
from irmtv.engine.rows import BalancedBatches, StratifiedBatches
from irmtv.objectives import combine

KINDS = ("binary", "squared", "multiclass")
F64 = {"dtype": torch.float64}


def by_hand(
    task,
    loss="binary",
    *,
    steps,
    seed=0,
    eta=0.01,
    adjustment=0.0,
    start="uniform",
    rate=5e-3,
    l2=0.0,
    batches=None,
):
    """One run in plain Python: parameters as one vector, and the weights after the last step."""
    x, y, codes = task.train.x, task.train.y, task.train.environment
    counts = [int((codes == e).sum()) for e in range(len(task.train.names))]
    generator = torch.Generator().manual_seed(seed)
    phi = {k: v.requires_grad_() for k, v in MLP(x.shape[1], (), task.n_outputs).init(seed, generator).items()}
    draw = batches and batches([codes], 12, [generator])
    adam = torch.optim.Adam(phi.values(), lr=rate)
    q = [1 / len(counts)] * len(counts) if start == "uniform" else [n / sum(counts) for n in counts]
    for _ in range(steps):
        rows = draw.next()[0] if draw else torch.arange(len(x))
        f = x[rows] @ phi["W0"].T + phi["b0"].squeeze(1)
        each = losses(loss, f.squeeze(1) if task.n_outputs == 1 else f, y[rows])
        risks = [each[codes[rows] == e].mean() if (codes[rows] == e).any() else None for e in range(len(counts))]
        seen = [0.0 if r is None else float(r.detach()) for r in risks]
        q = [p * math.exp(eta * (r + adjustment / math.sqrt(n))) for p, r, n in zip(q, seen, counts, strict=True)]
        q = [p / sum(q) for p in q]
        here = sum(p for p, r in zip(q, risks, strict=True) if r is not None)
        total = sum(p * r / here for p, r in zip(q, risks, strict=True) if r is not None)
        adam.zero_grad()
        (total + l2 * sum(p.square().sum() for p in phi.values())).backward()
        adam.step()
    return torch.cat([p.detach().flatten() for p in phi.values()]), torch.tensor(q, dtype=torch.float64)


def equal_to_hand(task, loss="binary", ours=None, **settings):
    names = {"eta": "measure_rate", "start": "measure_start", "rate": "learning_rate"}
    given = {names.get(k, k): v for k, v in settings.items() if k not in ("seed", "batches")} | (ours or {})
    fitted = train(task, "groupdro", Runs(seed=settings.get("seed", 0)), **F64, **given)
    vector, q = by_hand(task, loss, **settings)
    return close(parameters(fitted)[0], vector) and close(fitted.learned("measure")[0], q)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_weights_after_a_few_steps(steps):
    task = task_of()
    fitted = train(task, "groupdro", steps=steps, measure_rate=0.7, **F64)
    q = fitted.learned("measure")
    assert q.shape == (1, 3)
    assert close(q[0], by_hand(task, steps=steps, eta=0.7)[1])
    assert (q - 1 / 3).abs().max() > 1e-3  # they did move


@pytest.mark.parametrize("loss", KINDS)
@pytest.mark.parametrize("start", ["uniform", "empirical"])
def test_the_parameters_after_twelve_steps(loss, start):
    assert equal_to_hand(task_of(loss), loss, steps=12, eta=0.5, l2=1e-3, start=start, seed=3)


def test_the_new_weights_are_used_not_the_old():
    """With a huge rate the first step already has all its weight on the worst environment."""
    task = task_of("squared")
    assert equal_to_hand(task, "squared", steps=1, eta=10.0)
    assert float(train(task, "groupdro", steps=1, measure_rate=10.0, **F64).learned("measure").max()) > 0.999


@pytest.mark.parametrize("adjustment", [0.5, 4.0])
def test_the_adjustment_favours_small_environments(adjustment):
    task = task_of()
    assert equal_to_hand(task, steps=12, eta=0.5, adjustment=adjustment)
    plain, adjusted = (
        train(task, "groupdro", steps=12, measure_rate=0.5, adjustment=c, **F64).learned("measure")[0] for c in (0, 4.0)
    )
    small = int(task.train.environment.bincount().argmin())
    assert adjusted[small] > plain[small] + 0.01


@pytest.mark.parametrize("sampling", ["stratified", "balanced"])
@pytest.mark.parametrize("loss", KINDS)
def test_mini_batches(loss, sampling):
    batches = {"stratified": StratifiedBatches, "balanced": BalancedBatches}[sampling]
    ours = {"batch_size": 12, "sampling": sampling}
    assert equal_to_hand(task_of(loss), loss, ours, steps=20, eta=0.5, batches=batches, seed=2)


def test_an_environment_that_a_batch_does_not_have():
    """Risk 0 in the update, as published; Phi's step normalises the weights of the others."""
    task = task_of(n=120, environments=14)  # more environments than rows in a batch
    for sampling, batches in (("stratified", StratifiedBatches), ("balanced", BalancedBatches)):
        ours = {"batch_size": 12, "sampling": sampling}
        assert equal_to_hand(task, ours=ours, steps=15, eta=0.5, batches=batches)


def test_on_the_full_batch_sampling_changes_nothing():
    task = task_of()
    one, other = (
        parameters(train(task, "groupdro", steps=20, sampling=s, **F64))[0] for s in ("stratified", "balanced")
    )
    assert torch.equal(one, other)


def test_runs_with_rates_and_adjustments_of_their_own():
    task = task_of()
    columns = {
        "seed": [1, 2, 3, 4],
        "measure_rate": [0.01, 1.0, 0.3, 1.0],
        "adjustment": [0.0, 0.0, 2.0, 1.0],
        "measure_distance": [math.inf, 0.01, 0.1, math.inf],
    }
    together = train(task, "groupdro", Runs(**columns), steps=40, **F64)
    for r in range(4):
        alone = train(task, "groupdro", Runs(**{k: v[r] for k, v in columns.items()}), steps=40, **F64)
        assert close(parameters(together)[r], parameters(alone)[0])
        assert close(together.learned("measure")[r], alone.learned("measure")[0])


def test_balanced_runs_alone_and_together():
    task = task_of()
    settings = {"steps": 25, "batch_size": 15, "sampling": "balanced", **F64}
    together = parameters(train(task, "groupdro", Runs(seed=range(3)), **settings))
    for r in range(3):
        assert close(together[r], parameters(train(task, "groupdro", Runs(seed=r), **settings))[0])


def test_it_is_erm_under_a_learned_measure_without_a_bound():
    task = task_of()
    learned = {"measure_rate": 0.3, "measure_distance": math.inf, "steps": 30}
    erm = train(task, "erm", measure="learned", **learned, **F64)
    dro = train(task, "groupdro", measure_start="empirical", **learned, **F64)
    assert close(parameters(erm)[0], parameters(dro)[0])


def test_distance_zero_is_erm():
    task = task_of()
    dro = train(task, "groupdro", measure_distance=0.0, steps=30, **F64)
    assert close(parameters(dro)[0], parameters(train(task, "erm", steps=30, **F64))[0])


def test_it_finds_the_least_worst_risk():
    """One intercept for two environments of constant targets 0 and 1, nine rows to one: minimax is the middle, 1/2."""
    y = np.r_[np.zeros(90), np.ones(10)]
    task = make_task(np.zeros((100, 1)), y, environment=y.astype(int), loss="squared", dtype=torch.float64)
    settings = {"steps": 1500, "learning_rate": 5e-3, **F64}
    middle = train(task, "groupdro", measure_rate=0.02, **settings).coefficients()[1]
    mean = train(task, "erm", **settings).coefficients()[1]
    assert float(mean) == pytest.approx(0.1, abs=1e-3)
    assert float(middle) == pytest.approx(0.5, abs=0.02)


def test_what_it_is():
    known = {h.name: h for h in OBJECTIVES["groupdro"].hyperparameters}
    assert {n: h.default for n, h in known.items()} == {
        "measure_distance": math.inf,
        "measure_rate": 0.01,
        "measure_start": "uniform",
        "adjustment": 0.0,
        "sampling": "stratified",
    }
    assert {n for n, h in known.items() if h.per_run} == {"measure_distance", "measure_rate", "adjustment"}
    with refuse("'groupdro' is a way of training", "use it alone"):
        combine((OBJECTIVES["vrex"], OBJECTIVES["groupdro"]))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"measure": "uniform"}, "'measure' is neither a setting of train() nor a hyper-parameter of 'groupdro'"),
        ({"adjustment": -1.0}, "adjustment of 'groupdro' must be a finite number of at least 0. Got -1.0"),
        ({"measure_rate": 0.0}, "measure_rate of 'groupdro' must be a finite number above 0. Got 0.0"),
        ({"measure_distance": -0.1}, "measure_distance of 'groupdro' must be a number of at least 0"),
        ({"measure_start": "random"}, "measure_start of 'groupdro' must be one of ['uniform', 'empirical']"),
        ({"sampling": "equal"}, "sampling of 'groupdro' must be one of ['stratified', 'balanced']. Got 'equal'"),
    ],
)
def test_what_is_refused(setting, message):
    with refuse(message):
        train(task_of(), "groupdro", **setting)


def test_it_needs_environments():
    x = np.random.default_rng(0).normal(size=(40, 2))
    with refuse("objective 'groupdro' needs to know the environment of every row"):
        train(make_task(x, (x[:, 0] > 0).astype(float)), "groupdro")
