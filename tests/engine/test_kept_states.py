"""States kept at every snapshot: going back to a step is having trained no further."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from engine.problems import arrays, close, losses, parameters, refuse, task_of
from irmtv import Runs, train
from irmtv.core.membership import Soft
from irmtv.engine import Linear
from irmtv.engine.snapshots import covariance_of_means, measure
from irmtv.objectives.environments import AuxNetwork

S = {"dtype": torch.float64, "learning_rate": 0.05}
X = arrays(n=30, seed=7)[0]


@pytest.mark.parametrize("max_chunk", [None, 1])
@pytest.mark.parametrize(
    ("objective", "settings"),
    [
        ("erm", {}),
        ("irm-tv-l1", {"warmup": 3, "penalty_weight": 20.0}),
        ("irm-tv-l1+vrex", {"warmup": 3}),
        ("minimax-tv-l1", {"warmup": 6, "penalty_weight": 20.0, "environment_learning_rate": 0.1}),
        ("minimax-tv-l2", {"warmup": 0, "schedule": "alternating", "n_environments": 3}),
    ],
)
def test_a_step_is_a_shorter_training(objective, settings, max_chunk):
    tasks = [task_of(seed=i) for i in range(2)]
    runs = Runs([0, 1, 2, 3], data=[1, 0, 0, 1], learning_rate=[0.05, 0.01, 0.02, 0.05])
    settings = {**S, **settings, "max_chunk": max_chunk}
    fitted = train(tasks, objective, runs, steps=11, snapshot_every=4, keep_states=True, **settings)
    assert fitted.history.steps == (0, 4, 8, 11)
    for step in (4, 8, 11):
        at, shorter = fitted.at(step), train(tasks, objective, runs, steps=step, **settings)
        assert close(at.logits(X), shorter.logits(X))
        assert all(close(a, b) for a, b in zip(parameters(at), parameters(shorter), strict=True))
        assert at.steps.tolist() == [step] * 4
        if objective.startswith("minimax"):
            z = np.linspace(0, 1, 9)
            assert close(at.membership(z), shorter.membership(z))
    start = fitted.at(0)
    assert start.steps.tolist() == [0] * 4 and not close(start.logits(X), fitted.logits(X))
    # going back leaves the whole as it was
    assert torch.equal(fitted.at(11).logits(X), fitted.logits(X))
    assert fitted.steps.tolist() == [11] * 4
    assert torch.equal(fitted.at(4).at(8).logits(X), fitted.at(8).logits(X))


def test_history_is_measured_on_the_kept_states():
    task = task_of(n=60, held_out=40)
    fitted = train(
        task, "irm-tv-l1", Runs([0, 1, 2]), steps=10, warmup=2, snapshot_every=3, keep_states=True, max_chunk=2, **S
    )
    rows = task.held_out
    for s, step in enumerate(fitted.history.steps):
        f = fitted.at(step).logits(rows.x)
        for r in range(3):
            value = losses("binary", f[r], rows.y)
            for e in range(3):
                here = rows.environment == e
                assert fitted.history.risk[s, r, e] == pytest.approx(float(value[here].mean()))
                assert fitted.history.risk_cov[s, r, e] == pytest.approx(
                    float(value[here].var(correction=1) / here.sum())
                )
        table = fitted.at(step).evaluate(rows)
        np.testing.assert_allclose(table.by_environment, fitted.history.accuracy[s])


def test_history_of_inferred_environments_is_measured_with_the_kept_rho():
    task = task_of(n=60, held_out=40)
    settings = {"warmup": 8, "environment_learning_rate": 0.1, "n_environments": 3, **S}
    fitted = train(task, "minimax-tv-l2", Runs([0, 1]), steps=10, snapshot_every=5, keep_states=True, **settings)
    memberships = []
    for s, step in enumerate(fitted.history.steps):
        at = fitted.at(step)
        q = at.membership(task.held_out.aux)  # (R, N, E)
        memberships.append(q)
        value = torch.stack([losses("binary", f, task.held_out.y) for f in at.logits(task.held_out.x)])
        mean = torch.einsum("rne,rn->re", q, value) / q.sum(1)
        torch.testing.assert_close(fitted.history.risk[s], mean)
        cov = covariance_of_means(Soft(q.transpose(1, 2)[None]), value[None])
        torch.testing.assert_close(fitted.history.risk_cov[s], cov)
    assert not close(memberships[0], memberships[1], 1e-3)


def test_snapshots_of_three_inferred_environments_in_single_precision():
    task = task_of(n=60, held_out=40, dtype=torch.float32)
    settings = {"n_environments": 3, "warmup": 3, "steps": 6, "snapshot_every": 3}
    history = train(task, "minimax-tv-l1", Runs([0, 1]), **settings).history
    assert history.risk_cov.shape == (3, 2, 3, 3) and history.risk_cov.isfinite().all()


def test_keeping_states_changes_nothing_else():
    task, runs = task_of(held_out=30), Runs([0, 1])
    settings = {"steps": 9, "snapshot_every": 2, "select": "iid", "warmup": 3, **S}
    plain = train(task, "irm-tv-l1", runs, **settings)
    kept = train(task, "irm-tv-l1", runs, keep_states=True, **settings)
    assert torch.equal(plain.logits(X), kept.logits(X)) and torch.equal(plain.steps, kept.steps)
    assert torch.equal(plain.history.risk, kept.history.risk)
    assert not plain.chunks[0].kept


def test_a_step_overrides_the_selected_state():
    def rule(snapshot):
        return torch.tensor([float(snapshot.step), -float(snapshot.step)])

    fitted = train(task_of(), "erm", Runs([0, 1]), steps=8, select=rule, snapshot_every=2, keep_states=True, **S)
    assert fitted.steps.tolist() == [0, 8]
    at = fitted.at(4)
    assert at.steps.tolist() == [4, 4] and torch.equal(at.logits(X), at.logits(X, which="last"))
    assert torch.equal(fitted.at(0).logits(X)[0], fitted.logits(X)[0])
    assert torch.equal(fitted.at(8).logits(X)[1], fitted.logits(X)[1])


def test_a_rule_brings_the_snapshots_that_are_kept():
    fitted = train(task_of(), "erm", steps=100, select="iid", keep_states=True, **S)
    assert sorted(fitted.chunks[0].kept) == list(range(0, 101, 2))


def test_what_a_module_keeps_beside_its_parameters():
    """Batch norm's averages go back too, and forth again."""

    def net():
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    settings = {"net": net, **S}
    fitted = train(task_of(), "erm", Runs([0, 1]), steps=6, snapshot_every=2, keep_states=True, **settings)
    last = fitted.logits(X)
    for step in (2, 4):
        shorter = train(task_of(), "erm", Runs([0, 1]), steps=step, **settings)
        assert close(fitted.at(step).logits(X), shorter.logits(X))
    assert torch.equal(fitted.logits(X), last)


def test_mini_batches():
    settings = {"batch_size": 20, "warmup": 2, **S}
    fitted = train(task_of(), "irm-tv-l1", Runs([0, 1]), steps=8, snapshot_every=4, keep_states=True, **settings)
    shorter = train(task_of(), "irm-tv-l1", Runs([0, 1]), steps=4, **settings)
    assert close(fitted.at(4).logits(X), shorter.logits(X))


def test_a_run_that_diverges_keeps_its_last_finite_state():
    runs = Runs([0, 1], learning_rate=[0.01, 1e300])
    with pytest.warns(UserWarning, match="1 of 2 runs diverged"):
        fitted = train(
            task_of("squared"), "erm", runs, steps=6, snapshot_every=2, keep_states=True, dtype=torch.float64
        )
    at = fitted.at(4)
    assert at.steps[0] == 4 and at.steps[1] == fitted.diverged[1] < 4
    assert at.logits(X).isfinite().all()


def test_runs_of_several_lengths():
    """One that had ended stays at its end; one that goes on is never ahead of the step."""
    fitted = train(task_of(), "erm", Runs([0, 1], steps=[5, 8]), snapshot_every=4, keep_states=True, **S)
    shorter = {s: train(task_of(), "erm", Runs([0, 1]), steps=s, **S).logits(X) for s in (4, 5, 8)}
    for step, own in {4: [4, 4], 5: [5, 4], 8: [5, 8]}.items():
        at = fitted.at(step)
        assert at.steps.tolist() == own
        for r, s in enumerate(own):
            assert close(at.logits(X)[r], shorter[s][r])
    with refuse("step must be a snapshot whose states were kept, one of [0, 4, 5, 8]. Got 7"):
        fitted.at(7)


@pytest.mark.parametrize("step", [3, -1, 100, None, "last"])
def test_a_step_that_was_not_kept(step):
    fitted = train(task_of(), "erm", steps=5, snapshot_every=2, keep_states=True, **S)
    with refuse("step must be a snapshot whose states were kept, one of [0, 2, 4, 5]", f"Got {step!r}"):
        fitted.at(step)


def test_nothing_was_kept():
    fitted = train(task_of(), "erm", steps=5, snapshot_every=2, **S)
    with refuse("nothing: train with snapshot_every=... and keep_states=True", "Got 2"):
        fitted.at(2)


def test_states_are_kept_at_snapshots_only():
    with refuse("keep_states=True keeps the states of the snapshots", "snapshot_every="):
        train(task_of(), "erm", steps=5, keep_states=True, **S)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_environments", [2, 3])
def test_an_environment_that_rho_leaves_empty_has_no_rows(dtype, n_environments):
    """With a mass below rounding its means would be numbers of any size."""
    task = task_of(n=50, dtype=dtype)
    net, rho = Linear(3), AuxNetwork(1, n_environments)
    generator = torch.Generator().manual_seed(0)
    p = {k: v[None].to(dtype) for k, v in net.init(0, generator).items()}
    q = {k: v[None].to(dtype) for k, v in rho.init(generator).items()}
    f = net.forward(p, net.prepare(task.train.x[None])).logits[None]
    for below, gone in ((-3.0, False), (-12.0, False), (np.log(torch.finfo(dtype).eps) - 3, True)):
        q["c"][0, 0] = below
        inferred = rho.from_logits(rho.logits(q, task.train.aux[None].to(dtype).transpose(1, 2)), 1)
        snapshot = measure(0, "train", task.loss, f, task.train.y[None, None], inferred)
        assert (snapshot.rows[0] == 0).tolist() == [gone] + [False] * (n_environments - 1)
        for value in (snapshot.risk, snapshot.slope, snapshot.accuracy):
            assert torch.equal(value.isnan(), snapshot.rows == 0)
        assert torch.equal(snapshot.risk_cov[0].diagonal().isnan(), snapshot.rows[0] == 0)
        assert snapshot.risk.nan_to_num(1.0).min() > 0.1


# Membership, one array per data set


@pytest.mark.parametrize("max_chunk", [None, 1])
@pytest.mark.parametrize("n_environments", [2, 3])
@pytest.mark.parametrize("n_aux", [1, 2])
def test_membership_of_one_array_per_data_set(max_chunk, n_environments, n_aux):
    rng = np.random.default_rng(0)
    tasks = [task_of(seed=i, aux=rng.normal(size=(100, n_aux)) * (i + 1) + i) for i in range(3)]
    owner = [2, 0, 1, 0, 2]
    settings = {"n_environments": n_environments, "environment_learning_rate": 0.1, "max_chunk": max_chunk, **S}
    fitted = train(tasks, "minimax-tv-l1", Runs([0, 1, 2, 3, 4], data=owner), steps=4, **settings)
    zs = [rng.normal(size=(20, n_aux)) for _ in range(3)]
    one_by_one = [fitted.membership(z) for z in zs]
    for given in (zs, tuple(torch.as_tensor(z) for z in zs), *([[z[:, 0] for z in zs]] if n_aux == 1 else [])):
        q = fitted.membership(given)
        assert q.shape == (5, 20, n_environments)
        for r, d in enumerate(owner):
            assert close(q[r], one_by_one[d][r])


def test_one_data_set_has_no_list_form():
    fitted = train(task_of(), "minimax-tv-l1", steps=3, **S)
    z = np.linspace(0, 1, 7)
    assert torch.equal(fitted.membership(z.tolist()), fitted.membership(z))


def test_arrays_of_several_lengths_or_widths():
    fitted = train([task_of(seed=i) for i in range(2)], "minimax-tv-l1", Runs(0, data=[0, 1]), steps=3, **S)
    with refuse("aux must have as many rows for every data set. Got [4, 5]"):
        fitted.membership([np.zeros(4), np.zeros(5)])
    with refuse("aux must have the columns of the training rows, (rows, 1)", "Got (4, 2)"):
        fitted.membership([np.zeros((4, 1)), np.zeros((4, 2))])
    with refuse("aux must have the columns of the training rows, (rows, 1)"):
        fitted.membership([np.zeros((4, 1))] * 3)
