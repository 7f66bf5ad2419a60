"""Weights of the rows, wherever rows are averaged: against a loop by hand, and against repeated rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from engine.problems import arrays, close, losses, parameters, task_of, train_by_hand
from irmtv import Rows, Runs, make_task, train
from irmtv.core.membership import Codes, Soft, SoftPair, Weighted
from irmtv.core.types import weights_of
from irmtv.engine import Conv1d
from irmtv.engine.components import row_environments
from irmtv.engine.components.row_environments import RowEnvironments
from irmtv.engine.program import Program
from irmtv.engine.rows import TrainingRows
from irmtv.engine.snapshots import covariance_of_means
from irmtv.engine.solvers.hrm import HrmProgram

S = {"dtype": torch.float64, "steps": 15, "warmup": 5, "penalty_weight": 50.0}
N = 100
TIMES = np.random.default_rng(11).integers(0, 4, N)  # how often a row is there


def weighted(kind="binary", **more):
    """Rows that count 0 to 3 each, up to a factor."""
    return task_of(kind, n=N, sample_weight=0.7 * TIMES, **more)


def repeated(kind="binary", aux=None, **more):
    """The same, every row as often as it counts."""
    x, y, e, t = arrays(kind, N, **more)
    t = t if aux is None else np.asarray(aux)
    x, y, e, t = (np.repeat(v, TIMES, axis=0) for v in (x, y, e, t))
    return make_task(x, y, environment=e, aux=t, dtype=torch.float64, min_rows=1)


def with_weight(task, weight, which="train"):
    return replace(task, **{which: replace(getattr(task, which), weight=torch.as_tensor(weight))})


# --- training -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["binary", "squared", "multiclass"])
@pytest.mark.parametrize(
    ("name", "settings", "by_hand"),
    [
        ("irm-tv-l1", {}, {}),
        ("irm-tv-l1", {"hidden": (4,), "classifier": "vector"}, {"hidden": (4,), "vector": True}),
        ("irm-tv-l1", {"measure": "uniform"}, {"measure": "uniform"}),
        (
            "irm-tv-l2",
            {"batch_size": 30, "batch_estimator": "halves"},
            {"kind": "l2", "batch_size": 30, "halves": True},
        ),
        ("irm-tv-l1", {"batch_size": 30, "batch_estimator": "plain"}, {"batch_size": 30}),
        ("minimax-tv-l1", {"environment_learning_rate": 1e-2}, {"inferred": 2}),
        ("minimax-tv-l2", {"environment_learning_rate": 1e-2, "n_environments": 3}, {"kind": "l2", "inferred": 3}),
        (
            "minimax-tv-l1",
            {"environment_learning_rate": 1e-2, "batch_size": 30, "batch_estimator": "plain"},
            {"inferred": 2, "batch_size": 30},
        ),
    ],
    ids=str,
)
def test_steps_equal_a_loop_by_hand(loss, name, settings, by_hand):
    task = weighted(loss)
    mine = parameters(train(task, name, **S, **settings))[0]
    expected = train_by_hand(task, loss=loss, **by_hand)
    assert close(mine, expected)
    without = replace(task, train=replace(task.train, weight=None))
    assert not close(mine, train_by_hand(without, loss=loss, **by_hand), 1e-4)


LAYOUTS = {  # what rho reads
    "one column": lambda: np.random.default_rng(0).uniform(size=N),
    "several columns": lambda: np.random.default_rng(0).uniform(size=(N, 3)),
    "few distinct rows": lambda: np.random.default_rng(0).integers(0, 3, (N, 2)),
}


@pytest.mark.parametrize("aux", LAYOUTS)
@pytest.mark.parametrize("n_environments", [2, 3])
def test_inferred_environments_in_every_layout_are_those_of_repeated_rows(aux, n_environments):
    z = LAYOUTS[aux]()
    settings = {**S, "n_environments": n_environments, "environment_learning_rate": 1e-2, "schedule": "alternating"}
    fitted = train(weighted(aux=z), "minimax-tv-l1", **settings)
    expected = train(repeated(aux=z), "minimax-tv-l1", **settings)
    assert close(parameters(fitted)[0], parameters(expected)[0])
    assert close(fitted.membership(z), expected.membership(z), 1e-7)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("erm", {"measure": "uniform"}),
        ("irm-tv-l1", {"expand": {"n": 5, "reach": 0.5}}),
        ("irm-tv-l1", {"penalty_weight": "adaptive"}),
        ("irm-tv-l2", {"penalty_weight": "learned"}),
        ("irm-tv-l1", {"measure": "learned", "measure_rate": 0.3}),
        ("groupdro", {"measure_distance": 0.1, "measure_rate": 0.3}),
        ("tiva", {"gated": True, "selector_learning_rate": 0.1, "environment_learning_rate": 0.05}),
        ("lff", {"variant": "plain"}),
        ("lff", {"variant": "averaged", "hidden": (3,)}),
        ("zin", {"aux_scaling": "authors", "environment_learning_rate": 1e-2}),
    ],
    ids=str,
)
def test_variants_are_those_of_repeated_rows(name, settings):
    """What the contract of all objectives does not reach."""
    known = {k: v for k, v in S.items() if name not in ("erm", "lff", "groupdro") or k in ("dtype", "steps")}
    settings = {**known, "steps": 30, **settings}
    aux = np.random.default_rng(0).uniform(size=(N, 2))
    mine = train(weighted(aux=aux), name, **settings)
    expected = train(repeated(aux=aux), name, **settings)
    assert close(parameters(mine)[0], parameters(expected)[0])
    assert not close(parameters(train(task_of(aux=aux), name, **settings))[0], parameters(expected)[0], 1e-4)


@pytest.mark.parametrize("name", ["erm", "irm-tv-l1", "minimax-tv-l1"])
@pytest.mark.parametrize("kind", ["module", "series"])
def test_other_networks(name, kind):
    """A module's rows stay as they are and have codes, not blocks; a convolution reads (N, channels, length)."""
    x, y, e, t = arrays("binary", N, features=8)
    x = x if kind == "module" else x.reshape(N, 2, 4)
    about = {"dtype": torch.float64, "min_rows": 1}
    settings = {k: v for k, v in S.items() if name != "erm" or k in ("dtype", "steps")}
    net = (lambda: nn.Linear(8, 1)) if kind == "module" else Conv1d(2, 1, channels=(3,), kernels=(3, 3), pool_after=())
    mine = train(make_task(x, y, environment=e, aux=t, sample_weight=TIMES, **about), name, net=net, **settings)
    rows = {"environment": np.repeat(e, TIMES), "aux": np.repeat(t, TIMES)}
    expected = train(
        make_task(np.repeat(x, TIMES, axis=0), np.repeat(y, TIMES), **rows, **about), name, net=net, **settings
    )
    assert close(parameters(mine)[0], parameters(expected)[0])


@pytest.mark.parametrize("loss", ["binary", "squared", "multiclass"])
@pytest.mark.parametrize("intercept", [False, True])
def test_hrm_with_the_same_labels_for_copies_of_a_row(loss, intercept, monkeypatch):
    labels = torch.randint(3, (4, N), generator=torch.Generator().manual_seed(0))
    copies = torch.repeat_interleave(torch.arange(N), torch.tensor(TIMES))
    calls = []

    def shared(self, generator):
        calls.append(0)
        mine = labels[(len(calls) - 1) % 2]
        return mine if self.codes.shape[1] == N else mine[copies]

    monkeypatch.setattr(HrmProgram, "_random_labels", shared)
    quick = {"cluster_steps": 30, "cluster_learning_rate": 0.05, "rounds": 2, "cluster_moves": 0.01}
    settings = {
        "dtype": torch.float64,
        "steps": 40,
        "cluster_intercept": intercept,
        "gate_learning_rate": 0.01,
        **quick,
    }
    mine = train(weighted(loss), "hrm", **settings)
    expected = train(repeated(loss), "hrm", **settings)
    assert len(calls) == 4
    assert close(parameters(mine)[0], parameters(expected)[0])
    clusters = [f.state()[0].learned["clusters"][0] for f in (mine, expected)]
    assert torch.equal(clusters[0][copies], clusters[1])
    assert not close(parameters(train(task_of(loss), "hrm", **settings))[0], parameters(expected)[0], 1e-4)


@pytest.mark.parametrize("loss", ["binary", "squared"])
def test_rows_of_hrms_clusters_count_by_their_weights_when_it_looks_who_moved(loss, monkeypatch):
    seen = []
    share = HrmProgram._share_of_rows
    monkeypatch.setattr(HrmProgram, "_share_of_rows", lambda self, *a: seen.append((self, *a)) or share(self, *a))
    train(weighted(loss), "hrm", dtype=torch.float64, steps=5, rounds=1, cluster_steps=3)
    program, which, dtype = seen[0]
    expected = (which[0].double() * torch.tensor(TIMES)).sum() / TIMES.sum()
    assert close(share(program, which, dtype)[0], expected)


def test_the_ascent_of_eiil_is_that_of_repeated_rows(monkeypatch):
    """Few steps, so that rows are still on their way: copies of a row share its random start."""
    start = torch.randn(N, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    copies = torch.repeat_interleave(torch.arange(N), torch.tensor(TIMES))
    drawn = []

    def randn(n, **more):
        drawn.append(n)
        return start if n == N else start[copies]

    settings = {**S, "inference": "ascent", "inference_steps": 40, "environment_learning_rate": 0.02}
    monkeypatch.setattr(torch, "randn", randn)
    mine, expected = (train(task, "eiil", **settings) for task in (weighted(), repeated()))
    assert drawn == [N, len(copies)]
    q = [f.membership()[0, :, 0] for f in (mine, expected)]
    there = torch.tensor(TIMES) > 0
    first = (start > 0).double()
    assert 0 < (q[0] != first)[there].double().mean() < 0.9
    assert torch.equal(q[0][copies], q[1])
    assert close(parameters(mine)[0], parameters(expected)[0])


def test_the_value_that_eiil_climbs_is_made_of_weighted_means(monkeypatch):
    """Adam hides the size of a gradient; here is the gradient itself, against autograd's."""
    slopes, climbed = [], []
    ascend, gradient = RowEnvironments._ascend, row_environments.inference_gradient
    monkeypatch.setattr(RowEnvironments, "_ascend", lambda self, s, r: (slopes.append(s), ascend(self, s, r))[1])

    def keep(a, slope):
        climbed.append((a.clone(), gradient(a, slope)))
        return climbed[-1][1]

    monkeypatch.setattr(row_environments, "inference_gradient", keep)
    tasks = [weighted(), task_of(seed=1)]  # one of the two has no weights
    train(tasks, "eiil", Runs(seed=[0, 1], data=[0, 1]), inference="ascent", inference_steps=1, **S)
    a, found = climbed[0]
    a.requires_grad_()
    for r, w in enumerate((torch.tensor(TIMES).double(), torch.ones(N, dtype=torch.float64))):
        q, s = torch.sigmoid(a[r]), slopes[0][r]
        value = (((w * q * s).sum() / w.sum()) ** 2 + ((w * (1 - q) * s).sum() / w.sum()) ** 2) / 2
        torch.testing.assert_close(found[r], torch.autograd.grad(value, a)[0][r], rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("name", ["irm-tv-l1", "minimax-tv-l1", "groupdro", "lff", "tiva", "hrm", "eiil", "sparse-irm"])
@pytest.mark.parametrize("c", [1.0, 3.7])
def test_equal_weights_change_nothing_at_all(name, c):
    """To the last bit, on the full batch and in mini-batches; in what is measured up to rounding, where it is not 1.

    The rows of a snapshot count by their weights even so: folds are weighed against each other by them.
    """
    task = task_of(n=N, held_out=40)
    settings = {"steps": 12, "snapshot_every": 4, **({"rounds": 1, "cluster_steps": 3} if name == "hrm" else {})}
    same = with_weight(with_weight(task, np.full(N, c)), np.full(40, c), "held_out")
    for batch in ({}, {"batch_size": 20})[: 1 if name == "hrm" else 2]:
        mine, expected = (train(t, name, **settings, **batch) for t in (same, task))
        assert torch.equal(parameters(mine)[0], parameters(expected)[0])
        for field in ("rows", "effective", "risk", "risk_cov", "slope", "slope_cov", "accuracy"):
            a, b = getattr(mine.history, field), getattr(expected.history, field) * (c if field == "rows" else 1)
            if c == 1:
                assert torch.equal(a.nan_to_num(-1), b.nan_to_num(-1))
            else:
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_without_weights_nobody_multiplies(monkeypatch):
    made = []
    init = TrainingRows.__init__
    monkeypatch.setattr(TrainingRows, "__init__", lambda self, *a: (init(self, *a), made.append(self))[0])
    monkeypatch.setattr(Weighted, "__init__", None)
    task = task_of()
    for name in ("irm-tv-l1", "minimax-tv-l1"):
        train(task, name, steps=6, snapshot_every=2)
        train(task, name, steps=3, batch_size=20)
    assert [r.shares for r in made] == [None] * 4
    assert made[0].whole.weight is None and made[2].whole.weight is None


@pytest.mark.parametrize("name", ["irm-tv-l1", "minimax-tv-l1", "lff", "groupdro"])
@pytest.mark.parametrize("batch", [{}, {"batch_size": 20}])
def test_data_sets_with_and_without_weights_train_side_by_side(name, batch):
    tasks = [task_of(seed=0), weighted(seed=1), with_weight(task_of(seed=2), np.full(N, 5.0))]
    settings = {"dtype": torch.float64, "steps": 12, "snapshot_every": 6, **batch}
    together = train(tasks, name, Runs(seed=[0, 1, 2, 3, 4, 5], data=[0, 1, 2, 0, 1, 2]), **settings)
    for r in range(6):
        alone = train(tasks[r % 3], name, Runs(seed=r), **settings)
        assert close(parameters(together)[r], parameters(alone)[0])
        assert close(together.history.risk[:, r], alone.history.risk[:, 0])
        assert close(together.history.rows[:, r], alone.history.rows[:, 0])


@pytest.mark.parametrize("name", ["irm-tv-l1", "minimax-tv-l1", "lff"])
def test_a_batch_of_weightless_rows_moves_nothing_far(name):
    """Two rows count, of a hundred: most batches have neither."""
    weight = np.zeros(N)
    weight[:2] = 1, 2
    settings = {"steps": 40, "batch_size": 10, "dtype": torch.float64}
    fitted = train(with_weight(task_of(), weight), name, **settings)
    assert not fitted.diverged
    assert parameters(fitted)[0].isfinite().all()


def test_an_environment_without_weight_is_left_out():
    x, y, e, _ = arrays("binary", N)
    about = {"dtype": torch.float64, "min_rows": 1}
    kept = e != 1
    for name in ("irm-tv-l1", "vrex", "groupdro"):
        settings = {k: v for k, v in S.items() if name != "groupdro" or k in ("dtype", "steps")}
        mine = train(make_task(x, y, environment=e, sample_weight=kept, **about), name, **settings)
        expected = train(make_task(x[kept], y[kept], environment=e[kept], **about), name, **settings)
        assert close(parameters(mine)[0], parameters(expected)[0])


def test_groupdros_adjustment_is_by_the_rows_that_weights_are_worth(monkeypatch):
    """It is for what is not known of an environment: copies of a row tell nothing new."""
    made, run = [], Program.run
    monkeypatch.setattr(
        Program, "run", lambda self, report: (made.append(self.step.measure.adjustment), run(self, report))
    )
    task = weighted()
    codes = task.train.environment
    for rows in (task, task_of()):
        train(rows, "groupdro", steps=2, adjustment=1.5, dtype=torch.float64)
    worth = [w.sum() ** 2 / (w**2).sum() for w in (TIMES[codes.numpy() == e] for e in range(3))]
    assert close(made[0][0], 1.5 / np.sqrt(worth))
    assert close(made[1][0], 1.5 / torch.bincount(codes).double().sqrt())


def test_weights_of_rows():
    x = torch.zeros(3, 1)
    rows = [Rows(x, x[:, 0], weight=w) for w in (None, torch.full((3,), 4.0), torch.tensor([1.0, 0.0, 3.0]))]
    assert weights_of(rows[:2]) is None
    assert weights_of(rows).tolist() == [[1, 1, 1], [1, 1, 1], [1, 0, 3]]
    assert weights_of(rows).dtype == torch.float64
    assert weights_of([r.take(torch.arange(0)) for r in rows]) is None


def test_weights_of_data_sets_that_are_weighed_against_each_other():
    x = torch.zeros(3, 1)
    none, ones, fours, zeros = (Rows(x, x[:, 0], weight=w) for w in (None, torch.ones(3), x[:, 0] + 4, x[:, 0]))
    assert weights_of([none, ones], across_sets=True) is None
    assert weights_of([none, fours, zeros], across_sets=True).tolist() == [[1] * 3, [4] * 3, [0] * 3]
    assert weights_of([zeros], across_sets=True).tolist() == [[0] * 3]


# --- what is measured -----------------------------------------------------------------------------------------


def weighted_errors(w, v):
    """Squared standard error of a weighted mean, by a loop."""
    mean = (w * v).sum() / w.sum()
    n = w.sum() ** 2 / (w**2).sum()
    return sum(wi**2 * (vi - mean) ** 2 for wi, vi in zip(w, v, strict=True)) / w.sum() ** 2 * n / (n - 1)


@pytest.mark.parametrize("on", ["train", "held-out"])
@pytest.mark.parametrize("loss", ["binary", "multiclass", "squared"])
def test_a_record_is_made_of_weighted_means(on, loss):
    weight = np.random.default_rng(5).gamma(1.0, size=N + 60) * (np.random.default_rng(6).random(N + 60) > 0.2)
    task = with_weight(task_of(loss, held_out=60 if on == "held-out" else 0, n=N), weight[:N])
    if on == "held-out":
        task = with_weight(task, weight[N:], "held_out")
    fitted = train(task, "irm-tv-l1", snapshot_every=15, **S)
    rows = task.train if on == "train" else task.held_out
    f, w, codes = fitted.logits(rows.x)[0], rows.weight.numpy(), rows.environment.numpy()
    value = losses(loss, f, rows.y)
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    slope = torch.stack([torch.autograd.grad(v, scale, retain_graph=True)[0] for v in losses(loss, f * scale, rows.y)])
    history = fitted.history
    assert history.on == on
    for e in range(3):
        of = codes == e
        for mine, cov, v in ((history.risk, history.risk_cov, value), (history.slope, history.slope_cov, slope)):
            here = v.detach().numpy()[of]
            assert mine[-1, 0, e].item() == pytest.approx((w[of] * here).sum() / w[of].sum(), rel=1e-9)
            assert cov[-1, 0, e].item() == pytest.approx(weighted_errors(w[of], here), rel=1e-8)
        assert history.rows[-1, 0, e].item() == pytest.approx(w[of].sum(), rel=1e-12)
        assert history.effective[-1, 0, e].item() == pytest.approx(w[of].sum() ** 2 / (w[of] ** 2).sum(), rel=1e-9)
        if loss != "squared":
            right = (f.argmax(1) == rows.y) if loss == "multiclass" else (f > 0) == (rows.y == 1)
            assert history.accuracy[-1, 0, e].item() == pytest.approx((w * right.numpy())[of].sum() / w[of].sum())


def test_a_record_of_inferred_environments():
    task = with_weight(weighted(held_out=60), np.random.default_rng(5).gamma(1.0, size=60), "held_out")
    fitted = train(task, "minimax-tv-l1", snapshot_every=15, environment_learning_rate=0.05, **S)
    held = task.held_out
    q = fitted.membership(held.aux)[0] * held.weight.unsqueeze(1)  # (N, E)
    value = losses("binary", fitted.logits(held.x)[0], held.y)
    mean = (q.T @ value) / q.sum(0)
    off = q * (value.unsqueeze(1) - mean) / q.sum(0)
    n = q.sum(0).square() / q.square().sum(0)
    off = off * (n / (n - 1)).sqrt()
    assert close(fitted.history.rows[-1, 0], q.sum(0))
    squares = (q * held.weight.unsqueeze(1)).sum(0)  # without weights it would be the rows
    assert close(fitted.history.effective[-1, 0], q.sum(0).square() / squares)
    assert close(fitted.history.risk[-1, 0], mean)
    torch.testing.assert_close(fitted.history.risk_cov[-1, 0], off.T @ off, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("kind", ["hard", "pair", "soft"])
@pytest.mark.parametrize("trailing", [(), (2,)])
def test_with_equal_weights_the_standard_errors_are_the_same(kind, trailing):
    """Up to rounding: also of an environment with two rows, with one, and with none."""
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(1, 3, 40, *trailing, generator=generator, dtype=torch.float64)
    if kind == "hard":
        codes = torch.cat([torch.zeros(20), torch.ones(17), torch.full((2,), 2), torch.full((1,), 3)]).long()
        membership = Codes(codes.expand(1, 3, -1), 5)
    else:
        q = torch.softmax(torch.randn(1, 3, 2 if kind == "pair" else 3, 40, generator=generator).double(), 2)
        membership = SoftPair(q[:, :, 0]) if kind == "pair" else Soft(q)
    mine = covariance_of_means(Weighted(membership, torch.full((1, 1, 40), 2.5, dtype=torch.float64)), v)
    torch.testing.assert_close(mine, covariance_of_means(membership, v), rtol=1e-9, atol=1e-15, equal_nan=True)


def test_weights_of_the_held_out_rows_decide_which_state_is_kept():
    """Held-out labels of one half are turned round: the half that counts says how far to train."""
    task = task_of(n=200, held_out=100, seed=3)
    turned = torch.arange(100) % 2 == 0
    held = replace(task.held_out, y=torch.where(turned, 1 - task.held_out.y, task.held_out.y))
    task = replace(task, held_out=held)
    settings = {"steps": 60, "select": "iid", "learning_rate": 0.05, "snapshot_every": 5, "dtype": torch.float64}
    steps = []
    for counts in (turned, ~turned):
        chosen = train(with_weight(task, counts.double(), "held_out"), "erm", **settings)
        only = replace(task, held_out=held.take(counts.nonzero().flatten()))
        assert chosen.steps.tolist() == train(only, "erm", **settings).steps.tolist()
        steps.append(int(chosen.steps))
    assert steps[0] < steps[1]


@pytest.mark.parametrize("name", ["irm-tv-l1", "minimax-tv-l1"])
def test_held_out_rows_of_weight_zero_are_no_rows(name):
    task = with_weight(task_of(n=N, held_out=40), np.zeros(40), "held_out")
    history = train(task, name, steps=6, snapshot_every=3).history
    assert (history.rows == 0).all() and (history.effective == 0).all() and history.risk.isnan().all()
