"""TIVA's training: the selector and its gates, rho on the rest of the inputs, and a predictor that reads aux."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from engine.problems import arrays, close, losses, parameters, refuse, task_of
from irmtv import Runs, make_task, train
from irmtv.engine import Conv1d
from irmtv.engine.components.selector import NOISE_STREAM
from irmtv.engine.context import Noise
from irmtv.engine.networks import MLP
from irmtv.engine.rows import StratifiedBatches
from irmtv.objectives.environments import AuxNetwork

S = {"dtype": torch.float64, "learning_rate": 0.02, "penalty_weight": 50.0, "steps": 15, "warmup": 9}
LOSSES = ("binary", "squared", "targets", "multiclass")


def inputs_of(rows, train):
    """u = [x, aux standardised by the training rows]: (N, D + A)."""
    z = (rows.aux - train.aux.mean(0)) / train.aux.std(0, correction=0)
    return torch.cat([rows.x, z], 1).double()


def by_hand(
    task,
    *,
    loss="binary",
    seed=0,
    steps=15,
    warmup=9,
    alternating=False,
    weight=50.0,
    rate=0.02,
    l2=0.0,
    gated=False,
    sigma=1.0,
    gate_weight=1e-3,
    rho_rate=0.01,
    selector_rate=0.01,
    environments=2,
    batch_size=None,
):
    """One run, line by line: three optimizers from torch, slopes by differentiating a gradient.

    Starting values, noise and the order of the rows come from the engine. Returns what Phi predicts with as one vector,
    the gates, and the membership of rows (N, D + A).
    """
    u, y = inputs_of(task.train, task.train), task.train.y
    n_inputs, generator = u.shape[1], torch.Generator().manual_seed(seed)
    phi = MLP(n_inputs, (), task.n_outputs).init(seed, generator)
    rho = AuxNetwork(n_inputs, environments).init(generator)
    h = {**MLP(n_inputs, (), task.n_outputs).init(seed, generator), "mu": torch.zeros(n_inputs).double()}
    phi, rho, h = ({k: v.requires_grad_() for k, v in p.items()} for p in (phi, rho, h))
    adam = torch.optim.Adam(phi.values(), lr=rate)
    adam_rho = torch.optim.Adam(rho.values(), lr=rho_rate, maximize=True)
    adam_h = torch.optim.Adam(h.values(), lr=selector_rate)
    noise = Noise([seed], torch.device("cpu"), NOISE_STREAM)
    batches = StratifiedBatches([task.train.environment], batch_size, [generator]) if batch_size else None

    def linear(p, inputs):
        f = inputs @ p["W0"].T + p["b0"].squeeze(1)
        return f.squeeze(1) if f.shape[1] == 1 else f

    def gates():
        return torch.clamp(h["mu"].detach() + 0.5, 0, 1)

    def membership(inputs):
        rest = (1 - gates()) * inputs
        out = torch.relu(rest @ rho["W"].T + rho["b"]) @ rho["V"].T + rho["c"]
        return torch.cat([torch.sigmoid(out), torch.sigmoid(-out)], 1) if environments == 2 else torch.softmax(out, 1)

    def penalty(seen, rows, q):
        w = torch.ones((), dtype=torch.float64, requires_grad=True)
        total = 0.0
        for e in range(environments):
            mean = (q[:, e] * losses(loss, w * linear(phi, seen), y[rows])).mean()
            total = total + torch.autograd.grad(mean, w, create_graph=True)[0].square()
        return total

    for step in range(steps):
        rows = torch.arange(len(u)) if batches is None else batches.next()[0]
        seen = gates() * u[rows] if gated else u[rows]  # Phi's step is computed before the selector takes its own
        if alternating or step < warmup:
            eps = noise.normal(step, (n_inputs,), torch.float64)[0]
            noisy = torch.clamp(h["mu"] + 0.5 + sigma * eps, 0, 1)
            opened = torch.distributions.Normal(0.0, 1.0).cdf((h["mu"] + 0.5) / sigma)
            adam_h.zero_grad()
            (losses(loss, linear(h, noisy * u[rows]), y[rows]).mean() + gate_weight * opened.mean()).backward()
            adam_h.step()
            adam_rho.zero_grad()
            penalty(seen, rows, membership(u[rows])).backward()
            adam_rho.step()
        total = losses(loss, linear(phi, seen), y[rows]).mean() + l2 * sum(p.square().sum() for p in phi.values())
        if step >= warmup:
            total = (total + weight * penalty(seen, rows, membership(u[rows]).detach())) / (1 + weight)
        adam.zero_grad()
        total.backward()
        adam.step()
    w = phi["W0"] * gates() if gated else phi["W0"]
    return torch.cat([w.detach().flatten(), phi["b0"].detach().flatten()]), gates(), lambda v: membership(v).detach()


def agrees(fitted, expected, task):
    phi, gates, membership = expected
    assert close(parameters(fitted)[0], phi)
    assert close(fitted.learned("gates")[0], gates)
    assert close(fitted.membership()[0], membership(inputs_of(task.train, task.train)))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("steps", [1, 15])
@pytest.mark.parametrize("kind", LOSSES)
def test_steps_equal_a_loop_by_hand(kind, steps, gated):
    task = task_of(kind)
    hand = by_hand(task, loss=kind, steps=steps, gated=gated)
    agrees(train(task, "tiva", gated=gated, **{**S, "steps": steps}), hand, task)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    ("ours", "hand"),
    [
        ({"schedule": "alternating", "warmup": 0}, {"alternating": True, "warmup": 0}),
        ({"n_environments": 3, "l2": 0.01}, {"environments": 3, "l2": 0.01}),
        ({"gate_noise": 0.3, "gate_weight": 0.5}, {"sigma": 0.3, "gate_weight": 0.5}),
        (
            {"environment_learning_rate": 0.05, "selector_learning_rate": 0.1},
            {"rho_rate": 0.05, "selector_rate": 0.1},
        ),
        ({"batch_size": 32, "batch_estimator": "plain"}, {"batch_size": 32}),
    ],
    ids=["alternating", "three", "noise", "rates", "batches"],
)
def test_every_setting_equals_a_loop_by_hand(ours, hand, gated):
    task = task_of(aux=np.random.default_rng(1).normal(size=(100, 2)) * [1, 100])
    agrees(train(task, "tiva", Runs(3), gated=gated, **{**S, **ours}), by_hand(task, seed=3, gated=gated, **hand), task)


@pytest.mark.parametrize("batch_size", [None, 40])
@pytest.mark.parametrize("gated", [False, True])
def test_a_run_in_a_batch_is_the_same_run_alone(gated, batch_size):
    """With gates, rates and a warm-up of its own; the selector stops where the run's warm-up ends."""
    tasks = [task_of(seed=i, aux=np.random.default_rng(i).normal(size=100) * (1 + i)) for i in range(2)]
    columns = {
        "seed": [1, 2, 3, 4],
        "data": [0, 1, 1, 0],
        "warmup": [3, 9, 6, 12],
        "gate_noise": [1.0, 0.5, 0.5, 2.0],
        "gate_weight": [0.0, 1e-3, 0.1, 1.0],
        "selector_learning_rate": [0.01, 0.02, 0.05, 0.01],
    }
    shared = {**{k: v for k, v in S.items() if k not in columns}, "gated": gated, "batch_size": batch_size}
    together = train(tasks, "tiva", Runs(**columns), **shared)
    x, _, _, z = arrays(n=20, seed=9)
    for r in range(4):
        alone = train(tasks, "tiva", Runs(**{k: v[r] for k, v in columns.items()}), **shared)
        assert close(parameters(together)[r], parameters(alone)[0])
        assert close(together.learned("gates")[r], alone.learned("gates")[0])
        assert close(together.membership(z, x=x)[r], alone.membership(z, x=x)[0])
        assert close(together.logits(x, aux=z)[r], alone.logits(x, aux=z)[0])


def test_without_penalty_it_is_risk_minimisation_on_x_and_aux():
    task = task_of()
    both = make_task(inputs_of(task.train, task.train), task.train.y, dtype=torch.float64)
    for warmup in (0.0, 0.5):
        settings = {**S, "penalty_weight": 0.0, "warmup": warmup, "schedule": "alternating"}
        ours = parameters(train(task, "tiva", **settings))[0]
        assert close(ours, parameters(train(both, "erm", **{k: S[k] for k in ("dtype", "learning_rate", "steps")}))[0])


def test_gates_open_for_what_predicts_y_and_close_for_the_rest():
    """Three columns of x predict y, two do not and aux does not, in five data sets."""

    def toy(seed):
        rng = np.random.default_rng(seed)
        x, t = rng.normal(size=(200, 5)), rng.uniform(size=200)
        return make_task(x, x[:, :3].sum(1) + 0.5 * rng.normal(size=200) > 0, aux=t)

    fitted = train(
        [toy(i) for i in range(5)],
        "tiva",
        Runs(seed=range(5), data=range(5)),
        steps=400,
        warmup=399,
        gate_weight=0.05,
        selector_learning_rate=0.03,
    )
    gates = fitted.learned("gates")
    assert gates.shape == (5, 6)
    assert (gates[:, :3].amin(1) > gates[:, 3:].amax(1) + 0.5).all()


def test_a_closed_gate_takes_the_input_from_a_gated_predictor_and_gives_it_to_rho():
    task = task_of()
    closing = {**S, "steps": 60, "warmup": 50, "gate_weight": 1e3, "selector_learning_rate": 0.1}
    gated, free = (train(task, "tiva", gated=g, **closing) for g in (True, False))
    for fitted in (gated, free):
        assert (fitted.learned("gates") == 0).all()
    assert (gated.coefficients()[0] == 0).all()
    assert (free.coefficients()[0] != 0).all()
    opening = {**closing, "gate_weight": 0.0, "gate_noise": 0.01}
    opened = train(task_of("squared"), "tiva", gated=True, **opening)
    full = opened.learned("gates")[0] == 1
    assert full.any()
    moved = task.train.x.clone()
    moved[:, full[:3]] += 5  # rho does not see what the selector takes
    assert torch.equal(opened.membership(task.train.aux, x=moved), opened.membership(task.train.aux, x=task.train.x))


@pytest.mark.parametrize("hidden", [(), (4,)])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("kind", LOSSES)
def test_the_predictor_reads_aux(kind, gated, hidden):
    """One x and aux for all runs are standardised by each data set's own training rows."""
    rng = np.random.default_rng(0)
    tasks = [task_of(kind, seed=i, aux=rng.normal(i, 10.0**i, size=(100, 2))) for i in range(2)]
    fitted = train(tasks, "tiva", Runs([0, 1, 2, 3], data=[1, 0, 1, 0]), hidden=hidden, gated=gated, **S)
    x, _, _, _ = arrays(n=30, seed=7)
    z = rng.normal(size=(30, 2))
    f = fitted.logits(x, aux=z)
    for r, d in enumerate([1, 0, 1, 0]):
        given = tasks[d].train
        z_scaled = (torch.as_tensor(z) - given.aux.mean(0)) / given.aux.std(0, correction=0)
        u = torch.cat([torch.as_tensor(x), z_scaled], 1)
        state, place = next(
            (s, c.chunk.runs.index(r)) for c, s in zip(fitted.chunks, fitted.state(), strict=True) if r in c.chunk.runs
        )
        p = {k: v[place] for k, v in state.parameters.items()}
        for i in range(len(hidden) + 1):
            u = (torch.relu(u) if i else u) @ p[f"W{i}"].T + p[f"b{i}"].T
        assert close(f[r].reshape(30, -1), u)
    assert not close(f, fitted.logits(x, aux=z + 1), 1e-3)
    each = fitted.logits([x, x], aux=[z, z])
    assert close(each, f)
    assert close(fitted.logits(x, aux=z, batch_rows=7), f, 1e-10)


def test_evaluate_reads_the_aux_of_the_rows():
    x, y, e, t = arrays(n=40, seed=5)
    test = {"x": x, "y": y, "environment": e, "aux": t}
    tasks = [task_of(seed=i, test=test) for i in range(2)]
    fitted = train(tasks, "tiva", Runs([0, 1], data=[0, 1]), **S)
    f = fitted.logits(x, aux=t).numpy()
    for rows in (None, tasks[0].test):
        table = fitted.evaluate(rows)
        for r in range(2):
            right = ((f[r] > 0) == y).astype(float)
            assert np.allclose(table.by_environment[r], [right[e == k].mean() for k in np.unique(e)])
    assert train(task_of(), "erm", steps=3).logits(x, aux="whatever").shape == (1, 40)  # others do not look at it


def test_snapshots_see_the_environments_of_held_out_rows():
    task = task_of(held_out=60)
    rows = task.held_out
    fitted = train(task, "tiva", Runs([0, 1]), snapshot_every=5, select="worst-env", **S)
    at = fitted.history.steps.index(15)
    f = fitted.logits(rows.x, aux=rows.aux, which="last")
    q = fitted.membership(rows.aux, x=rows.x, which="last")
    value = torch.stack([losses("binary", one, rows.y) for one in f])  # (R, N)
    risk = torch.einsum("rne,rn->re", q, value) / q.sum(1)
    assert close(fitted.history.risk[at], risk)
    assert close(fitted.history.rows[at], q.sum(1))


def test_a_run_that_diverges_leaves_the_others_and_has_finite_gates():
    good = task_of("squared")
    x = good.train.x * torch.tensor([1e200, 1, 1], dtype=torch.float64)
    bad = make_task(x, good.train.y, environment=good.train.environment, aux=good.train.aux, dtype=torch.float64)
    runs = Runs([0, 1], data=[0, 1])
    with pytest.warns(UserWarning, match="diverged"):
        fitted = train([good, bad], "tiva", runs, **S)
    assert list(fitted.diverged) == [1]
    assert fitted.learned("gates").isfinite().all()
    assert close(parameters(fitted)[0], parameters(train(good, "tiva", **S))[0])


def test_a_users_own_network_reads_x_and_aux():
    fitted = train(task_of(), "tiva", net=lambda: nn.Linear(4, 1).double(), **S)
    x, _, _, t = arrays(n=10)
    assert fitted.logits(x, aux=t).shape == (1, 10)
    with refuse("gated=True", "first layer", "gated=False", "Module"):
        train(task_of(), "tiva", net=lambda: nn.Linear(4, 1).double(), gated=True, **S)


def test_what_is_missing_is_said():
    x, y, _, t = arrays()
    with refuse("'tiva'", "aux for the test rows", "'data'"):
        train(make_task(x, y, aux=t, test={"x": x, "y": y}), "tiva", **S)
    with refuse("'tiva'", "aux for the held-out rows"):
        train(make_task(x, y, aux=t, held_out={"x": x, "y": y}), "tiva", **S)
    with refuse("'tiva'", "auxiliary variables", "no aux"):
        train(make_task(x, y), "tiva", **S)
    with refuse("'tiva'", "one table", "(100, 3, 1)"):
        train(make_task(x[:, :, None], y, aux=t), "tiva", net=Conv1d(3, 1), **S)
    fitted = train(task_of(), "tiva", **S)
    with refuse("aux must be given", "'tiva'", "logits(x, aux=...)"):
        fitted.logits(x)
    with refuse("aux must have the columns", "(rows, 1)", "(100, 2)"):
        fitted.logits(x, aux=np.zeros((100, 2)))
    with refuse("aux must have one row for every row of x", "99", "100"):
        fitted.logits(x, aux=t[:99])
    with refuse("x must be given", "'tiva'", "membership(aux, x=...)"):
        fitted.membership(t)
    with refuse("x must have the features", "(100, 2)"):
        fitted.membership(t, x=x[:, :2])
