"""Small problems for the tests of the engine, and a training loop to compare with."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from irmtv import make_task
from irmtv.engine.networks import MLP
from irmtv.engine.program import Program
from irmtv.engine.rows import StratifiedBatches
from irmtv.objectives.environments import AuxNetwork


def refuse(*parts):
    """A ValueError that says these texts in this order."""
    return pytest.raises(ValueError, match="(?s)" + ".*".join(re.escape(p) for p in parts))


def arrays(kind="binary", n=100, seed=0, environments=3, features=3):
    """x (n, features), y, environment codes of unequal shares, and a time for every row."""
    rng = np.random.default_rng(seed)
    share = np.arange(1, environments + 1) / np.arange(1, environments + 1).sum()
    e = rng.permutation(np.repeat(np.arange(environments), np.diff(np.r_[0, np.round(n * share.cumsum()).astype(int)])))
    x = rng.normal(size=(n, features)) + 0.3 * e[:, None]
    signal = x[:, 0] - x[:, 1] * (1 + 0.5 * e) + rng.normal(size=n)
    y = {
        "binary": (signal > 0).astype(float),
        "squared": signal,
        "targets": np.stack([signal, x[:, 0] + rng.normal(size=n)], 1),
        "multiclass": np.digitize(signal, [-1.0, 1.0]),
    }[kind]
    return x, y, e, rng.uniform(size=n)


def task_of(kind="binary", n=100, seed=0, environments=3, features=3, held_out=0, **more):
    """The same as a task, in float64; `held_out` rows beside it."""
    x, y, e, t = arrays(kind, n + held_out, seed, environments, features)
    settings = {"aux": t, "dtype": torch.float64, "min_rows": 1, **more}
    aux = np.asarray(settings.pop("aux"))
    if held_out:
        settings["held_out"] = {"x": x[n:], "y": y[n:], "environment": e[n:], "aux": aux[n:]}
    return make_task(x[:n], y[:n], environment=e[:n], aux=aux[:n], **settings)


def parameters(fitted, which="last"):
    """Every run's parameters, one vector each, in the order of the runs."""
    vectors = {}
    for chunk, state in zip(fitted.chunks, fitted.state(which), strict=True):
        for i, run in enumerate(chunk.chunk.runs):
            vectors[run] = torch.cat([v[i].flatten() for v in state.parameters.values()])
    return [vectors[r] for r in range(len(fitted))]


def close(a, b, tolerance=1e-8):
    return torch.allclose(torch.as_tensor(a), torch.as_tensor(b), rtol=tolerance, atol=tolerance * 1e-2)


def losses(loss, f, y):
    """Per row: (N,) or (N, C) logits -> (N,)."""
    if loss == "binary":
        return functional.binary_cross_entropy_with_logits(f, y, reduction="none")
    if loss == "multiclass":
        return functional.cross_entropy(f, y, reduction="none")
    return (f - y).square() if f.ndim == 1 else (f - y).square().mean(1)


def train_by_hand(
    task,
    *,
    loss="binary",
    kind="l1",
    seed=0,
    hidden=(),
    steps=15,
    warmup=5,
    weight=50.0,
    rate=5e-3,
    l2=0.0,
    normalise=True,
    measure="empirical",
    vector=False,
    inferred=0,
    rho_rate=1e-2,
    batch_size=None,
    halves=False,
):
    """One run, line by line: slopes by differentiating a gradient, optimizers from torch.

    Only the starting values and the order of the rows come from the engine. The objective is
    risk + l2 |theta|^2 + weight penalty, divided by 1 + weight where normalised, after a warm-up on
    risk + l2 |theta|^2 in which rho (where environments are inferred) climbs the penalty.
    Returns Phi's parameters as one vector, in the engine's order.
    """
    x, y, z = task.train.x, task.train.y, task.train.aux
    codes, n_codes = task.train.environment, len(task.train.names)
    each = torch.ones(len(x), dtype=x.dtype) if task.train.weight is None else task.train.weight  # what rows count
    generator = torch.Generator().manual_seed(seed)
    phi = MLP(x.shape[1], hidden, task.n_outputs).init(seed, generator)
    phi = {k: v.requires_grad_() for k, v in phi.items()}
    adam = torch.optim.Adam(phi.values(), lr=rate)
    if inferred:
        mean = (each @ z) / each.sum()
        z = (z - mean) / ((each @ (z - mean).square()) / each.sum()).sqrt()
        rho = {k: v.requires_grad_() for k, v in AuxNetwork(z.shape[1], inferred).init(generator).items()}
        adam_rho = torch.optim.Adam(rho.values(), lr=rho_rate, maximize=True)
    batches = StratifiedBatches([codes], batch_size, [generator]) if batch_size else None

    def membership(rows):
        """q times the rows' weights: (N, E)."""
        if not inferred:
            return nn.functional.one_hot(codes[rows], n_codes).double() * each[rows, None]
        out = torch.relu(z[rows] @ rho["W"].T + rho["b"]) @ rho["V"].T + rho["c"]
        if inferred == 2:
            q = torch.cat([torch.sigmoid(out), 1 - torch.sigmoid(out)], 1)
        else:
            q = torch.softmax(out, 1)
        return q * each[rows, None]

    def forward(rows):
        """Losses (N,) as a function of a classifier w that multiplies the logits or the last layer's inputs."""
        h = x[rows]
        for i in range(len(hidden)):
            h = torch.relu(h @ phi[f"W{i}"].T + phi[f"b{i}"].squeeze(1))
        last = len(hidden)
        one_output = task.n_outputs == 1

        def at(w):
            inside = vector and one_output
            f = (h * w if inside else h) @ phi[f"W{last}"].T + phi[f"b{last}"].squeeze(1)
            f = f if inside else f * w
            return losses(loss, f.squeeze(1) if one_output else f, y[rows])

        size = (h.shape[1] if one_output else task.n_outputs,) if vector else ()
        return at, torch.ones(size, dtype=x.dtype, requires_grad=True)

    def slopes(at, w, q):
        """S_e for every environment: (E,) or (E, J); of an environment without rows 0."""
        rows = []
        for e in range(q.shape[1]):
            mean = (q[:, e] * at(w)).sum() / q[:, e].sum() if q[:, e].sum() > 0 else 0 * at(w).sum()
            rows.append(torch.autograd.grad(mean, w, create_graph=True)[0])
        return torch.stack(rows)

    def penalty(rows, q):
        at, w = forward(rows)
        if halves:
            even = slopes(*forward(rows[0::2]), q[0::2])
            odd = slopes(*forward(rows[1::2]), q[1::2])
            product = (even * odd).reshape(q.shape[1], -1).sum(1)
            # the square root has no derivative at 0
            sizes = torch.stack([p.abs().sqrt() if p != 0 else 0 * p for p in product])
        else:
            s = slopes(at, w, q).reshape(q.shape[1], -1)
            product = s.square().sum(1)
            sizes = torch.linalg.vector_norm(s, dim=1)
        mu = mu_of(q)
        return (mu * sizes).sum().square() if kind == "l1" else (mu * product).sum()

    def mu_of(q):
        present = (q.sum(0) > 0).double()
        return q.sum(0) / q.sum() if measure == "empirical" else present / present.sum()

    def risk(rows, q):
        values = forward(rows)[0](1.0)
        if inferred or measure == "empirical":
            return (each[rows] * values).sum() / each[rows].sum()
        total = q.sum(0)
        return (mu_of(q) * (q.T @ values) / torch.where(total > 0, total, 1)).sum()

    for step in range(steps):
        rows = torch.arange(len(x)) if batches is None else batches.next()[0]
        if inferred and step < warmup:
            adam_rho.zero_grad()
            penalty(rows, membership(rows)).backward()
            adam_rho.step()
        q = membership(rows).detach()
        total = risk(rows, q) + l2 * sum(p.square().sum() for p in phi.values())
        if step >= warmup:
            total = (total + weight * penalty(rows, q)) / (1 + weight if normalise else 1)
        adam.zero_grad()
        total.backward()
        adam.step()
    return torch.cat([p.detach().flatten() for p in phi.values()])


def steps_taken(monkeypatch):
    """A list that trainings from now on fill: the number of every step, of any kind, and how many runs take it."""
    found, advance = [], Program._advance

    def counted(program, phase):
        step = advance(program, phase)

        def one():
            found.append((program.context.step, program.context.n_runs))
            step()

        return one

    monkeypatch.setattr(Program, "_advance", counted)
    return found
