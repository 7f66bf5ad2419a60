"""What training leaves, and how it is used."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss, mean_squared_error
from torch import nn

from engine.problems import arrays, close, refuse, task_of
from irmtv import Runs, make_task, train
from irmtv.core.types import Rows
from irmtv.datasets import make_simulation
from irmtv.engine import Conv1d, Module
from irmtv.metrics import evaluate_environments

S = {"dtype": torch.float64, "steps": 8, "learning_rate": 0.05}
LOSSES = ("binary", "squared", "targets", "multiclass")


def with_test(kind="binary", seed=0, n_test=50):
    x, y, e, _ = arrays(kind, n_test, seed + 100, environments=2)
    return task_of(kind, seed=seed, test={"x": x, "y": y, "environment": np.array(["u", "v"])[e]})


def by_hand(fitted, r, x):
    """Logits of run r of an MLP: (N, C)."""
    for chunk, state in zip(fitted.chunks, fitted.state(), strict=True):
        if r in chunk.chunk.runs:
            p = {k: v[chunk.chunk.runs.index(r)] for k, v in state.parameters.items()}
            h = torch.as_tensor(x)
            for i in range(len(p) // 2):
                h = (torch.relu(h) if i else h) @ p[f"W{i}"].T + p[f"b{i}"].T
            return h
    raise AssertionError(r)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("hidden", [(), (4,)])
@pytest.mark.parametrize("max_chunk", [None, 1])
def test_logits_of_rows_that_all_runs_read(kind, hidden, max_chunk):
    tasks = [task_of(kind, seed=i) for i in range(2)]
    runs = Runs([0, 1, 2, 3], data=[1, 0, 0, 1])
    fitted = train(tasks, "erm", runs, hidden=hidden, max_chunk=max_chunk, **S)
    x = arrays(n=30, seed=7)[0]
    f = fitted.logits(x)
    n_outputs = tasks[0].n_outputs
    assert f.shape == ((4, 30) if n_outputs == 1 else (4, 30, n_outputs))
    for r in range(4):
        assert close(f[r].reshape(30, -1), by_hand(fitted, r, x))


@pytest.mark.parametrize("max_chunk", [None, 1])
def test_logits_of_one_array_per_data_set(max_chunk):
    tasks = [task_of(seed=i) for i in range(3)]
    runs = Runs([0, 1, 2, 3], data=[2, 0, 1, 0])
    fitted = train(tasks, "erm", runs, max_chunk=max_chunk, **S)
    xs = [arrays(n=30, seed=7 + i)[0] for i in range(3)]
    for given in (xs, tuple(torch.as_tensor(x) for x in xs)):
        f = fitted.logits(given)
        for r, d in enumerate(runs.column("data")):
            assert close(f[r], by_hand(fitted, r, xs[d]).squeeze(1))


@pytest.mark.parametrize("net", ["mlp", "conv", "module", "batch-norm"])
@pytest.mark.parametrize("several", [False, True])
def test_pieces_of_rows_give_the_same(net, several):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2, 6)) if net == "conv" else rng.normal(size=(60, 3))
    tasks = [make_task(x + i, np.arange(60) % 2, dtype=torch.float64) for i in range(2)]
    nets = {
        "mlp": None,
        "conv": Conv1d(2, 1, (3,), (3, 3)),
        "module": Module(lambda: nn.Linear(3, 1)),
        "batch-norm": lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)),
    }
    fitted = train(tasks, "erm", Runs([0, 1, 2, 3], data=[0, 1, 0, 1]), net=nets[net], **S)
    rows = [x, 2 * x] if several else x
    whole = fitted.logits(rows)
    assert whole.shape == (4, 60)
    for batch_rows in (1, 7, 60, 1000):
        assert close(fitted.logits(rows, batch_rows=batch_rows), whole, 1e-10)


def test_logits_take_lists_frames_and_other_precisions():
    fitted = train(task_of(), "erm", Runs([0, 1]), **S)
    x = arrays(n=5, seed=7)[0]
    expected = fitted.logits(x)
    assert expected.dtype == torch.float64
    for given in (x.tolist(), pd.DataFrame(x), torch.as_tensor(x), np.asfortranarray(x), x[::-1].copy()[::-1]):
        assert torch.equal(fitted.logits(given), expected)
    x.flags.writeable = False
    assert torch.equal(fitted.logits(x), expected)
    assert close(fitted.logits(x.astype(np.float32)), expected, 1e-5)
    assert fitted.logits(x[:0]).shape == (2, 0)


def test_the_selected_and_the_last_state():
    def rule(snapshot):
        return torch.tensor([float(snapshot.step), -float(snapshot.step)])

    task, x = task_of(), arrays(n=5, seed=7)[0]
    fitted = train(task, "erm", Runs([0, 1]), select=rule, snapshot_every=2, **S)
    assert fitted.steps.tolist() == [0, 8]
    selected, last = fitted.logits(x), fitted.logits(x, which="last")
    assert not close(selected[0], last[0]) and torch.equal(selected[1], last[1])
    assert not close(fitted.coefficients()[0][0], fitted.coefficients(which="last")[0][0])
    assert close(last, train(task, "erm", Runs([0, 1]), **S).logits(x))


@pytest.mark.parametrize(
    ("x", "got"),
    [(np.zeros((5, 4)), "(5, 4)"), (np.zeros(3), "(3,)"), (np.zeros((5, 3, 1)), "(5, 3, 1)")],
)
def test_features_that_are_not_those_of_the_training_rows(x, got):
    fitted = train(task_of(), "erm", **S)
    with refuse("x must have the features of the training rows, (rows, 3)", f"Got {got}"):
        fitted.logits(x)


def test_one_array_per_data_set_or_one_for_all():
    fitted = train([task_of(seed=i) for i in range(3)], "erm", Runs(0, data=[0, 1, 2]), **S)
    with refuse("one array for all runs or one per data set (3)", "Got 2 arrays"):
        fitted.logits([np.zeros((4, 3))] * 2)


# Coefficients


@pytest.mark.parametrize("kind", LOSSES)
def test_coefficients_give_the_logits(kind):
    task = task_of(kind)
    fitted = train(task, "erm", Runs([0, 1, 2]), max_chunk=2, **S)
    coef, intercept = fitted.coefficients()
    x = torch.as_tensor(arrays(n=30, seed=7)[0])
    if task.n_outputs == 1:
        assert coef.shape == (3, 3) and intercept.shape == (3,)
        theirs = x @ coef.T + intercept  # (N, R)
        assert close(fitted.logits(x), theirs.T)
    else:
        assert coef.shape == (3, task.n_outputs, 3) and intercept.shape == (3, task.n_outputs)
        assert close(fitted.logits(x), torch.einsum("nd,rcd->rnc", x, coef) + intercept.unsqueeze(1))


@pytest.mark.parametrize("settings", [{"hidden": (4,)}, {"net": lambda: nn.Linear(3, 1)}])
def test_coefficients_are_for_linear_models(settings):
    fitted = train(task_of(), "erm", **settings, **S)
    with refuse("coefficients() is for linear models, hidden=()"):
        fitted.coefficients()


# Membership


@pytest.mark.parametrize("n_environments", [2, 3])
@pytest.mark.parametrize("scaling", ["column", "authors"])
@pytest.mark.parametrize("n_aux", [1, 2])
def test_membership(n_environments, scaling, n_aux):
    aux = np.random.default_rng(0).normal(size=(100, n_aux)) * [5.0, 0.1][:n_aux] + 3
    tasks = [task_of(aux=aux), task_of(aux=aux + 1)]
    settings = {"n_environments": n_environments, "aux_scaling": scaling, "environment_learning_rate": 0.1, **S}
    fitted = train(tasks, "minimax-tv-l1", Runs([0, 1, 2], data=[0, 1, 0]), **settings)
    z = aux[:20] - 0.3
    q = fitted.membership(z)
    assert q.shape == (3, 20, n_environments)
    assert (q >= 0).all()
    torch.testing.assert_close(q.sum(2), torch.ones(3, 20, dtype=torch.float64))
    # by hand, run 1: its own data set's mean and deviation
    chunk = next(c for c in fitted.chunks if 1 in c.chunk.runs)
    p = {k: v[chunk.chunk.runs.index(1)] for k, v in chunk.last.rho.items()}
    own = aux + 1
    mean, deviation = (own.mean(0), own.std(0)) if scaling == "column" else (own.mean(), own.std())
    hidden = torch.relu(torch.as_tensor((z - mean) / deviation) @ p["W"].T + p["b"])
    logits = hidden @ p["V"].T + p["c"]
    first = torch.sigmoid(logits)
    by_hand = torch.cat([first, 1 - first], 1) if n_environments == 2 else torch.softmax(logits, 1)
    assert close(q[1], by_hand)
    if n_aux == 1:
        assert torch.equal(fitted.membership(z[:, 0]), q)


@pytest.mark.parametrize("n_environments", [2, 3])
def test_membership_of_a_list_with_as_many_rows_as_data_sets(n_environments):
    """Rows of plain numbers are rows of all data sets; only arrays are one per data set."""
    aux = np.random.default_rng(0).normal(size=(100, 1))
    tasks = [task_of(aux=aux), task_of(aux=aux + 1)]
    settings = {"n_environments": n_environments, "environment_learning_rate": 0.1, **S}
    fitted = train(tasks, "minimax-tv-l1", Runs([0, 1, 2], data=[0, 1, 0]), **settings)
    rows = fitted.membership(np.array([[0.3], [-1.0]]))
    assert rows.shape == (3, 2, n_environments)
    for listed in ([0.3, -1.0], (0.3, -1.0), [[0.3], [-1.0]], ((0.3,), (-1.0,)), [[0.3], (-1.0,)]):
        assert torch.equal(fitted.membership(listed), rows)
    z = [aux[:7], aux[20:27]]
    each = [fitted.membership(a) for a in z]
    expected = torch.stack([each[0][0], each[1][1], each[0][2]])
    assert not close(expected, each[0], 1e-3)
    for listed in (z, tuple(z), [torch.as_tensor(a) for a in z], [a[:, 0] for a in z]):
        assert close(fitted.membership(listed), expected)


def test_membership_is_for_inferred_environments():
    with refuse("membership() is for objectives that infer environments", "'irm-tv-l1' does not"):
        train(task_of(), "irm-tv-l1", **S).membership(np.zeros(4))


@pytest.mark.parametrize(("shape", "got"), [((5,), "(5, 1)"), ((5, 3), "(5, 3)"), ((5, 2, 1), "(5, 2, 1)")])
def test_membership_asks_for_the_auxiliary_columns_of_the_training_rows(shape, got):
    fitted = train(task_of(aux=np.random.default_rng(0).normal(size=(100, 2))), "minimax-tv-l1", **S)
    with refuse("aux must have the columns of the training rows, (rows, 2)", f"Got {got}"):
        fitted.membership(np.zeros(shape))


# Evaluation


def score(kind, f, y):
    if kind == "binary":
        return accuracy_score(y, f > 0)
    if kind == "multiclass":
        return accuracy_score(y, f.argmax(1))
    return mean_squared_error(y, f)


@pytest.mark.parametrize("kind", LOSSES)
def test_evaluation_is_the_metric_of_the_logits(kind):
    task = with_test(kind)
    fitted = train(task, "irm-tv-l1", Runs([0, 1, 2]), max_chunk=2, **S)
    table = fitted.evaluate()
    assert table.names == ("u", "v")
    assert table.metric == ("accuracy" if kind in ("binary", "multiclass") else "mse")
    rows = task.test
    for r, f in enumerate(fitted.logits(rows.x)):
        assert table.overall[r] == pytest.approx(score(kind, f.numpy(), rows.y.numpy()))
        for e in range(2):
            here = rows.environment == e
            assert table.by_environment[r, e] == pytest.approx(score(kind, f[here].numpy(), rows.y[here].numpy()))


def test_evaluation_on_other_rows_with_another_metric_and_intervals():
    task = with_test()
    fitted = train(task, "irm-tv-l1", Runs([0, 1]), **S)
    table = fitted.evaluate(task.train, metric="log_loss", n_bootstrap=50, random_state=3)
    p = torch.sigmoid(fitted.logits(task.train.x)).numpy()
    assert table.overall[1] == pytest.approx(log_loss(task.train.y.numpy(), p[1]))
    assert table.names == task.train.names
    direct = evaluate_environments(
        fitted.logits(task.train.x),
        task.train.y,
        task.train.environment,
        names=task.train.names,
        metric="log_loss",
        n_bootstrap=50,
        random_state=3,
    )
    np.testing.assert_array_equal(table.intervals["worst"].lower, direct.intervals["worst"].lower)
    plain = fitted.evaluate(Rows(task.test.x, task.test.y))
    assert plain.names == ("all",)


@pytest.mark.parametrize("kind", LOSSES)
def test_every_run_is_evaluated_on_the_test_rows_of_its_own_task(kind):
    tasks = [with_test(kind, seed=i) for i in range(3)]
    owner = [2, 0, 1, 0]
    fitted = train(tasks, "erm", Runs([0, 1, 2, 3], data=owner), **S)
    table = fitted.evaluate()
    for r, d in enumerate(owner):
        rows = tasks[d].test
        f = fitted.logits(rows.x)[r]
        assert table.overall[r] == pytest.approx(score(kind, f.numpy(), rows.y.numpy()))
        here = rows.environment == 1
        assert table.by_environment[r, 1] == pytest.approx(score(kind, f[here].numpy(), rows.y[here].numpy()))
    same = fitted.evaluate([t.test for t in tasks])
    np.testing.assert_array_equal(same.by_environment, table.by_environment)
    shared = fitted.evaluate(tasks[0].test)
    np.testing.assert_array_equal(shared.by_environment[1], table.by_environment[1])


def test_evaluation_of_the_last_state():
    task = with_test()
    fitted = train(task, "erm", select=lambda s: torch.tensor([float(s.step)]), snapshot_every=2, **S)
    assert fitted.evaluate(metric="log_loss").overall[0] != fitted.evaluate(metric="log_loss", which="last").overall[0]


def test_evaluation_needs_rows():
    fitted = train(task_of(name="orchard"), "erm", **S)
    with refuse("evaluate() needs rows", "'orchard' has no test rows"):
        fitted.evaluate()


# What else it says


def test_what_a_result_knows():
    runs = Runs([0, 1, 2], penalty_weight=[1.0, 10.0, 100.0])
    task = task_of()
    fitted = train(task, "irm-tv-l1", runs, l2=0.5, **S)
    assert len(fitted) == 3
    assert fitted.objective.name == "irm-tv-l1" and fitted.runs is runs and fitted.tasks == (task,)
    assert fitted.diverged == {} and fitted.select == "fixed" and fitted.seconds > 0
    assert [s["penalty_weight"] for s in fitted.settings] == [1.0, 10.0, 100.0]
    assert all(s["l2"] == 0.5 and s["steps"] == 8 and s["measure"] == "empirical" for s in fitted.settings)
    assert fitted.steps.tolist() == [8, 8, 8]


def test_evaluate_wants_test_sets_of_one_size():
    tasks = [make_simulation(200, random_state=i, n_test=40 * (i + 1)) for i in range(2)]
    fitted = train(tasks, "erm", Runs(seed=[0, 0], data=[0, 1]), steps=2)
    with pytest.raises(ValueError, match=r"as many rows. Got \[40, 80\]"):
        fitted.evaluate()


def test_the_repr_is_short():
    fitted = train(task_of(), "irm-tv-l1", Runs(seed=range(3)), steps=2)
    assert repr(fitted).startswith("FittedRuns('irm-tv-l1', Runs(3: seed=[0, 1, 2]), select='fixed', ")
    assert len(repr(fitted)) < 100


def test_which_state():
    with refuse("which must be 'selected' or 'last'", "'best'"):
        train(task_of(), "erm", steps=2).logits(arrays()[0], which="best")
