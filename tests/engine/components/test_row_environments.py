"""Environments inferred row by row: training against a plain loop, the split, memberships, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from engine.problems import arrays, close, losses, parameters, refuse, task_of
from irmtv import Runs, make_task, train
from irmtv.engine.networks import MLP
from irmtv.engine.rows import StratifiedBatches

S = {"dtype": torch.float64, "steps": 16, "warmup": 6, "learning_rate": 2e-2, "penalty_weight": 50.0, "l2": 1e-3}
LOSSES = ("binary", "squared", "targets", "multiclass")
VARIANTS = ({"variant": "two-stage"}, {"variant": "two-stage", "inference": "ascent"}, {"variant": "joint"})


def bare(kind="binary", n=100, seed=0):
    """A task of which nothing is known but x and y."""
    x, y, _, _ = arrays(kind, n, seed)
    return make_task(x, y, dtype=torch.float64, min_rows=1)


def by_hand(
    task, kind, *, variant="two-stage", inference="exact", reduction="authors", hidden=(), seed=0, steps=16, warmup=6,
    weight=50.0, rate=2e-2, l2=1e-3, row_rate=1e-3, inference_steps=200, batch_size=None,
):  # fmt: skip
    """One run in a plain loop: Phi's parameters as one vector, and q (N,). Starts and row order are the engine's."""
    x, y = task.train.x, task.train.y
    generator = torch.Generator().manual_seed(seed)
    phi = {k: v.requires_grad_() for k, v in MLP(x.shape[1], hidden, task.n_outputs).init(seed, generator).items()}
    adam = torch.optim.Adam(phi.values(), lr=rate)
    climbs = variant == "joint" or inference == "ascent"
    a = torch.randn(len(x), generator=generator, dtype=torch.float64).requires_grad_() if climbs else None
    climber = torch.optim.Adam([a], lr=row_rate, maximize=True) if climbs else None
    batches = StratifiedBatches([torch.zeros(len(x)).long()], batch_size, [generator]) if batch_size else None

    def rows_of(index):
        """Loss and slope of every row, the slope by differentiating in a classifier of its own."""
        h = x[index]
        for i in range(len(hidden)):
            h = torch.relu(h @ phi[f"W{i}"].T + phi[f"b{i}"].squeeze(1))
        f = h @ phi[f"W{len(hidden)}"].T + phi[f"b{len(hidden)}"].squeeze(1)
        w = torch.ones(len(index), 1, dtype=x.dtype, requires_grad=True)
        f = (w * f).squeeze(1) if task.n_outputs == 1 else w * f
        value = losses(kind, f, y[index])
        (slope,) = torch.autograd.grad(value.sum(), w, create_graph=True)
        return value, slope.squeeze(1)

    def penalty(q, slope):
        total = 0.0
        for part in (q, 1 - q):
            mean, mass = (part * slope).mean(), part.mean()
            total = total + (mean.square() if reduction == "authors" else mean.square() / mass)
        return total

    everything, q = torch.arange(len(x)), None
    for step in range(steps):
        index = everything if batches is None else batches.next()[0]
        if variant == "two-stage" and step == warmup:
            slope = rows_of(everything)[1].detach()
            if inference == "exact":
                q = (slope > 0).double()
            else:
                for _ in range(inference_steps):
                    climber.zero_grad()
                    soft = torch.sigmoid(a)
                    (((soft * slope).mean() ** 2 + ((1 - soft) * slope).mean() ** 2) / 2).backward()
                    climber.step()
                q = (torch.sigmoid(a.detach()) > 0.5).double()
        value, slope = rows_of(index)
        if variant == "joint":
            climber.zero_grad()
            penalty(torch.sigmoid(a)[index], slope.detach()).backward()
            climber.step()
            q = torch.sigmoid(a.detach())
        total = value.mean() + l2 * sum(p.square().sum() for p in phi.values())
        if step >= warmup:
            total = (total + weight * penalty(q[index], slope)) / (1 + weight)
        adam.zero_grad()
        total.backward()
        adam.step()
    return torch.cat([p.detach().flatten() for p in phi.values()]), q


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("hidden", [(), (4,)])
@pytest.mark.parametrize("own", VARIANTS, ids=["exact", "ascent", "joint"])
def test_training_equals_a_plain_loop(kind, hidden, own):
    """Plain steps, the split, penalised steps; or a row's logit climbing before every step of Phi."""
    task, loss = bare(kind), "squared" if kind == "targets" else kind
    more = {"environment_learning_rate": 0.05, **own}
    fitted = train(task, "eiil", Runs(seed=[3]), hidden=hidden, inference_steps=50, **more, **S)
    vector, q = by_hand(task, loss, hidden=hidden, seed=3, row_rate=0.05, inference_steps=50, **own)
    assert close(parameters(fitted)[0], vector)
    assert close(fitted.membership()[0], torch.stack([q, 1 - q], 1))
    assert not close(vector, by_hand(task, loss, hidden=hidden, seed=3, weight=0.0, **own)[0], 1e-3)


@pytest.mark.parametrize("variant", ["two-stage", "joint"])
def test_the_expectation_equals_a_plain_loop(variant):
    task, more = bare(), {"variant": variant, "reduction": "expectation"}
    vector, q = by_hand(task, "binary", row_rate=0.05, **more)
    fitted = train(task, "eiil", environment_learning_rate=0.05, **more, **S)
    assert close(parameters(fitted)[0], vector)
    assert close(fitted.membership()[0, :, 0], q)
    assert not close(vector, by_hand(task, "binary", row_rate=0.05, variant=variant)[0], 1e-3)


@pytest.mark.parametrize("own", VARIANTS, ids=["exact", "ascent", "joint"])
def test_mini_batches_equal_a_plain_loop(own):
    """Every row keeps its own membership, whichever batch it is in."""
    task = bare()
    more = {"environment_learning_rate": 0.05, "inference_steps": 50, "batch_estimator": "plain", **own}
    fitted = train(task, "eiil", Runs(seed=[3]), batch_size=30, **more, **S)
    vector, q = by_hand(task, "binary", seed=3, row_rate=0.05, inference_steps=50, batch_size=30, **own)
    assert close(parameters(fitted)[0], vector)
    assert close(fitted.membership()[0, :, 0], q)
    halves = train(task, "eiil", Runs(seed=[3]), batch_size=30, **(more | {"batch_estimator": "auto"}), **S)
    assert halves.diverged == {} and not close(parameters(halves)[0], vector, 1e-3)


@pytest.mark.parametrize("own", VARIANTS, ids=["exact", "ascent", "joint"])
@pytest.mark.parametrize("batch_size", [None, 30])
def test_a_run_in_a_batch_is_the_same_run_alone(own, batch_size):
    tasks = [bare(seed=i) for i in range(2)]
    columns = {
        "seed": [3, 4, 5, 6],
        "data": [0, 1, 1, 0],
        "warmup": [6, 3, 0, 16],  # the last run's never ends
        "environment_learning_rate": [1e-2, 3e-2, 0.1, 1e-3],
        "penalty_weight": [10.0, 50.0, 100.0, 20.0],
    }
    shared = {k: v for k, v in S.items() if k not in columns}
    shared |= {"batch_size": batch_size, "inference_steps": 30, **own}
    together = train(tasks, "eiil", Runs(**columns), **shared)
    for r in range(4):
        alone = train(tasks, "eiil", Runs(**{k: v[r] for k, v in columns.items()}), **shared)
        assert close(parameters(together)[r], parameters(alone)[0])
        assert torch.allclose(together.membership()[r], alone.membership()[0], rtol=1e-8, equal_nan=True)


def test_the_ascent_ends_at_the_exact_split():
    """Up to swapping the two environments, for slopes that are not close to 0."""
    task = bare(n=200)
    runs = Runs(seed=range(4))
    reference = train(task, "erm", runs, **{k: S[k] for k in ("dtype", "learning_rate", "l2")}, steps=6)
    f, y = reference.logits(task.train.x), task.train.y
    slope = (torch.sigmoid(f) - y) * f
    exact = train(task, "eiil", runs, **S).membership()[..., 0]
    assert torch.equal(exact, (slope > 0).double())
    climbed = train(
        task, "eiil", runs, inference="ascent", inference_steps=600, environment_learning_rate=0.1, **S
    ).membership()[..., 0]
    clear = slope.abs() > 0.05 * slope.abs().mean(1, keepdim=True)
    assert clear.double().mean() > 0.8
    for r in range(4):
        same = (climbed[r] == exact[r])[clear[r]]
        assert same.all() or not same.any()


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_a_vector_classifier_is_split_by_the_slope_of_a_scalar_one(kind):
    """The split is that of one w on all logits; the penalty then has one slope per component."""
    task = bare(kind)
    one, many = (train(task, "eiil", classifier=c, hidden=(4,), **S) for c in ("scalar", "vector"))
    assert torch.equal(one.membership(), many.membership())
    assert not close(parameters(one)[0], parameters(many)[0], 1e-3)


def test_a_network_of_the_users():
    def net():
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    for own in VARIANTS:
        fitted = train(bare(), "eiil", Runs(seed=range(2)), net=net, inference_steps=10, **own, **S)
        assert fitted.diverged == {} and fitted.membership().shape == (2, 100, 2)


def test_given_environments_and_aux_play_no_part():
    known, settings = task_of(), {**S, "batch_size": None}
    for own in VARIANTS:
        a, b = (train(t, "eiil", inference_steps=10, **own, **settings) for t in (known, bare()))
        assert torch.equal(parameters(a)[0], parameters(b)[0])


def test_a_sum_with_another_penalty_sees_the_same_split():
    alone, both = (train(bare(), name, **S) for name in ("eiil", "eiil+vrex"))
    assert torch.equal(alone.membership(), both.membership())
    assert not close(parameters(alone)[0], parameters(both)[0], 1e-3)


# Memberships


def test_membership_is_hard_after_the_split_and_soft_where_it_climbs():
    runs = Runs(seed=range(3))
    hard = train(bare(), "eiil", runs, **S).membership()
    assert hard.shape == (3, 100, 2) and set(hard.unique().tolist()) == {0.0, 1.0}
    soft = train(bare(), "eiil", runs, variant="joint", **S).membership()
    assert ((soft > 0) & (soft < 1)).all()
    for q in (hard, soft):
        torch.testing.assert_close(q.sum(2), torch.ones(3, 100, dtype=torch.float64))


def test_memberships_come_in_the_order_of_the_runs():
    tasks = [bare(seed=i) for i in range(2)]
    runs = Runs(seed=[0, 1, 2, 3], data=[1, 0, 0, 1])
    whole = train(tasks, "eiil", runs, **S).membership()
    assert torch.equal(train(tasks, "eiil", runs, max_chunk=1, **S).membership(), whole)
    assert not torch.equal(whole[0], whole[1])


def test_membership_at_snapshots_is_not_known_before_the_split():
    fitted = train(
        bare(), "eiil", Runs(seed=0, warmup=[4, 8]), snapshot_every=2, keep_states=True, **_without("warmup")
    )
    for step in (0, 2, 4, 6, 8, 10, 16):
        known = ~fitted.at(step).membership().isnan().flatten(1).any(1)
        assert known.tolist() == [step >= 4, step >= 8]  # at its own last step of the warm-up a run is split
    assert torch.equal(fitted.at(6).membership()[0], fitted.membership()[0])  # once and for all
    joint = train(bare(), "eiil", variant="joint", snapshot_every=2, keep_states=True, **S)
    start = torch.randn(100, generator=_after_phi(joint, 0), dtype=torch.float64)
    assert close(joint.at(0).membership()[0, :, 0], torch.sigmoid(start))


def _without(name):
    return {k: v for k, v in S.items() if k != name}


def _after_phi(fitted, seed):
    generator = torch.Generator().manual_seed(seed)
    fitted.chunks[0].net.init(seed, generator)
    return generator


def test_new_rows_have_no_membership():
    fitted = train(bare(), "eiil", **S)
    with refuse("aux must be None for 'eiil'", "other rows have no membership", "membership()"):
        fitted.membership(np.zeros(5))


def test_memberships_of_data_sets_of_different_sizes():
    fitted = train([bare(n=60), bare(n=100)], "eiil", Runs(seed=0, data=[0, 1]), **S)
    with refuse("as many rows", "Got [60, 100]", "in a call of its own"):
        fitted.membership()


@pytest.mark.parametrize("n_sets", [1, 2])
def test_without_aux_a_network_on_aux_tells_of_its_training_rows(n_sets):
    tasks = [task_of(seed=i) for i in range(n_sets)]
    runs = Runs(seed=[0, 1, 2], data=[0, n_sets - 1, 0])
    settings = {k: S[k] for k in ("dtype", "steps", "learning_rate")} | {"environment_learning_rate": 0.1}
    fitted = train(tasks, "minimax-tv-l1", runs, **settings)
    own = fitted.membership()
    assert own.shape == (3, 100, 2)
    for r, d in enumerate(runs.column("data")):
        assert torch.equal(own[r], fitted.membership(tasks[d].train.aux)[r])


# What is asked of the task, and of the settings


def test_a_measure_is_one_on_the_two_inferred_environments():
    more = {"reduction": "expectation", **S}
    uniform = train(bare(), "eiil", measure="uniform", **more)
    assert close(parameters(uniform)[0], parameters(train(bare(), "eiil", measure=(2.0, 2.0), **more))[0])
    assert not close(parameters(uniform)[0], parameters(train(bare(), "eiil", **more))[0], 1e-4)
    with refuse("measure must have one weight per environment, n_environments=2", "Got 3 weights"):
        train(bare(), "eiil", measure=(1.0, 1.0, 1.0), **more)


def test_selection_looks_at_given_environments():
    with refuse("select='worst-env'", "needs their environments", "select='iid'"):
        train(bare(), "eiil", select="worst-env", **S)
    fitted = train(task_of(), "eiil", select="worst-env", **S)
    assert fitted.history.risk.shape[2] == 3
    assert train(bare(), "eiil", select="iid", **S).history.risk.shape[2] == 1
