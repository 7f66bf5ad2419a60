"""Learning from failure in training: two networks side by side, and weights on the rows."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import nn

from engine.problems import arrays, close, losses, parameters, refuse, task_of
from irmtv import OBJECTIVES, Runs, make_task, train
from irmtv.engine.components.base import StepRows
from irmtv.engine.components.biased_net import RelativeDifficulty
from irmtv.engine.context import Context
from irmtv.engine.networks import MLP, Conv1d
from irmtv.engine.plan import Chunk, plan
from irmtv.engine.rows import StratifiedBatches

D = torch.float64
S = {"dtype": D, "steps": 25, "learning_rate": 0.02, "l2": 1e-3}
VARIANTS = ["averaged", "plain"]


def lff_by_hand(
    task, loss, seed, hidden, steps=25, rate=0.02, l2=1e-3, variant="averaged", q=0.7, alpha=0.7, batch_size=None
):
    """One run, row by row where the method is: Phi's parameters, the last weights, the visits of each row."""
    x, y = task.train.x, task.train.y
    generator = torch.Generator().manual_seed(seed)
    net = MLP(x.shape[1], hidden, task.n_outputs)
    phi = {k: v.requires_grad_() for k, v in net.init(seed, generator).items()}
    torch.randint(2**62, (), generator=generator)  # the seed of b, which this kind of network does not use
    b = {k: v.requires_grad_() for k, v in net.init(seed, generator).items()}
    adam_phi, adam_b = (torch.optim.Adam(p.values(), lr=rate) for p in (phi, b))
    batches = StratifiedBatches([task.train.environment], batch_size, [generator]) if batch_size else None
    averages = {"b": {}, "phi": {}}
    last, visits = torch.full((len(x),), torch.nan, dtype=D), torch.zeros(len(x))

    def logits(p, rows):
        h = x[rows]
        for i in range(len(hidden)):
            h = torch.relu(h @ p[f"W{i}"].T + p[f"b{i}"].squeeze(1))
        f = h @ p[f"W{len(hidden)}"].T + p[f"b{len(hidden)}"].squeeze(1)
        return f.squeeze(1) if task.n_outputs == 1 else f

    def probability(f, rows):
        if loss == "binary":
            return torch.where(y[rows] == 1, torch.sigmoid(f), 1 - torch.sigmoid(f))
        return torch.softmax(f, 1)[torch.arange(len(rows)), y[rows]]

    def squares(p):
        return l2 * sum(v.square().sum() for v in p.values())

    def relative(kept, values, rows):
        for i, v in zip(rows.tolist(), values.tolist(), strict=True):
            kept[i] = alpha * kept[i] + (1 - alpha) * v if i in kept else v
        largest = {}
        for i, v in kept.items():
            largest[int(y[i])] = max(v, largest.get(int(y[i]), 0.0))
        return torch.tensor([kept[i] / largest[int(y[i])] for i in rows.tolist()], dtype=D)

    for _ in range(steps):
        rows = torch.arange(len(x)) if batches is None else batches.next()[0]
        f_b, f_phi = logits(b, rows), logits(phi, rows)
        loss_b, loss_phi = losses(loss, f_b, y[rows]), losses(loss, f_phi, y[rows])
        p = probability(f_b, rows)
        if variant == "averaged":
            total_b = (loss_b * p.detach() ** q * q).mean()
            of_b = relative(averages["b"], loss_b.detach(), rows)
            of_phi = relative(averages["phi"], loss_phi.detach(), rows)
        else:
            total_b = ((1 - p**q) / q).mean()
            of_b, of_phi = loss_b.detach(), loss_phi.detach()
        weight = of_b / (of_b + of_phi + 1e-8)
        last[rows] = weight
        visits[rows] += 1
        for adam, total in ((adam_b, total_b + squares(b)), (adam_phi, (weight * loss_phi).mean() + squares(phi))):
            adam.zero_grad()
            total.backward()
            adam.step()
    return torch.cat([v.detach().flatten() for v in phi.values()]), last, visits


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("loss", "hidden"), [("binary", ()), ("binary", (4,)), ("multiclass", ()), ("multiclass", (4,))]
)
@pytest.mark.parametrize("batch_size", [None, 30])
def test_training_is_the_plain_loop(variant, loss, hidden, batch_size):
    task = task_of(loss)
    settings = {"variant": variant, "batch_size": batch_size}
    fitted = train(task, "lff", Runs(seed=3), hidden=hidden, gce_exponent=0.6, averaging=0.8, **settings, **S)
    expected, weights, _ = lff_by_hand(task, loss, 3, hidden, q=0.6, alpha=0.8, **settings)
    assert close(parameters(fitted)[0], expected)
    assert close(fitted.learned("row_weights")[0], weights)
    # what it learned is neither ERM nor the other variant
    other = train(
        task, "lff", Runs(seed=3), hidden=hidden, **{**settings, "variant": VARIANTS[variant == "averaged"]}, **S
    )
    erm = train(task, "erm", Runs(seed=3), hidden=hidden, batch_size=batch_size, **S)
    assert not close(parameters(other)[0], expected, 1e-3) and not close(parameters(erm)[0], expected, 1e-3)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("batch_size", [None, 30])
def test_a_run_in_a_batch_is_the_same_run_alone(variant, batch_size):
    tasks = [task_of("multiclass", seed=i) for i in range(2)]
    columns = {
        "seed": [3, 4, 5, 6],
        "data": [0, 1, 1, 0],
        "learning_rate": [1e-3, 5e-2, 2e-2, 5e-3],
        "l2": [0.0, 1e-3, 0.0, 0.1],
        "gce_exponent": [0.3, 0.7, 1.0, 0.7],
        "averaging": [0.0, 0.7, 0.9, 0.2],
    }
    shared = {"dtype": D, "steps": 25, "hidden": (3,), "variant": variant, "batch_size": batch_size}
    together = train(tasks, "lff", Runs(**columns), **shared)
    assert len(together.chunks) == 1
    for r in range(4):
        alone = train(tasks, "lff", Runs(**{k: v[r] for k, v in columns.items()}), **shared)
        assert close(parameters(together)[r], parameters(alone)[0])
        mine, theirs = together.learned("row_weights")[r], alone.learned("row_weights")[0]
        assert torch.allclose(mine, theirs, rtol=1e-8, atol=1e-10, equal_nan=True)
        assert not close(parameters(together)[r], parameters(together)[(r + 1) % 4], 1e-3)


# Mini-batches


def test_weights_are_of_the_last_visit_and_unknown_before_the_first():
    task = task_of()
    for steps in (1, 2, 5):
        fitted = train(task, "lff", Runs(seed=[0, 1]), batch_size=30, **{**S, "steps": steps})
        for r in range(2):
            _, weights, visits = lff_by_hand(task, "binary", r, (), steps=steps, batch_size=30)
            ours = fitted.learned("row_weights")[r]
            assert torch.equal(ours.isnan(), visits == 0)
            assert torch.allclose(ours, weights, rtol=1e-8, equal_nan=True)
            assert (visits == 0).sum() == max(0, 100 - 30 * min(steps, 3)) or steps > 3


def context_of(tasks, runs, **settings):
    """A context outside a program, all runs in it."""
    objective = OBJECTIVES["lff"]
    given = [{"learning_rate": 0.1, "l2": 0.0, "steps": 5, "hidden": (), "seed": s, **settings} for s in runs]
    resolved = [
        {**g, **objective.resolve({k: v for k, v in settings.items() if k in ("variant", "averaging")})} for g in given
    ]
    chunk = Chunk(tuple(range(len(runs))), (0,), resolved[0])
    return Context(chunk, tasks, resolved, objective, torch.device("cpu"), D)


def test_averages_move_for_visited_rows_alone():
    """Two runs see rows of their own; what each keeps of the others stays to the bit."""
    task = task_of(n=12)
    context = context_of([task], [0, 1], averaging=0.75)
    net = MLP(3, (), 1)
    weigher = RelativeDifficulty(context, net)
    generator = torch.Generator().manual_seed(0)
    kept = [dict[int, float](), dict[int, float]()]
    for _ in range(6):
        numbers = torch.stack([torch.randperm(12, generator=generator)[:4] for _ in range(2)])
        y = task.train.y[numbers].view(1, 2, 4)
        rows = StepRows(net.prepare(task.train.x[numbers]), y, (4,), numbers, None, None)
        value = torch.rand(1, 2, 4, generator=generator, dtype=D)
        before = weigher.of_phi.clone(), weigher.of_biased.clone(), weigher.last.clone()
        weight = weigher.weigh(rows, torch.zeros(1, 2, 4, dtype=D), value)
        assert weight.shape == value.shape and ((weight >= 0) & (weight < 1)).all()
        for r in range(2):
            for j, i in enumerate(numbers[r].tolist()):
                v = value[0, r, j].item()
                kept[r][i] = 0.75 * kept[r][i] + 0.25 * v if i in kept[r] else v
                assert weigher.of_phi[0, r, i].item() == pytest.approx(kept[r][i], rel=1e-12)
                assert weigher.last[0, r, i] == weight[0, r, j]
            others = [i for i in range(12) if i not in numbers[r].tolist()]
            for old, new in zip(before, (weigher.of_phi, weigher.of_biased, weigher.last), strict=True):
                assert torch.equal(old[0, r, others].nan_to_num(-1), new[0, r, others].nan_to_num(-1))
    assert torch.equal(weigher.state()["row_weights"].nan_to_num(-1), weigher.last[0].nan_to_num(-1))
    assert weigher.state()["row_weights"].data_ptr() != weigher.last.data_ptr()  # a snapshot must not move on


# Networks of other kinds


class Own(nn.Module):
    def __init__(self, *more):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 5), *more, nn.ReLU(), nn.Linear(5, 1))

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_users_module_is_started_apart(variant):
    """b must not be Phi's twin: with equal starts all weights of the first step would be 1/2."""
    shared = {**S, "variant": variant, "net": lambda: Own(), "steps": 1}
    fitted = train(task_of(), "lff", Runs(seed=[0, 1]), **shared)
    weights = fitted.learned("row_weights")
    assert weights.shape == (2, 100)
    assert ((weights - 0.5).abs() > 1e-3).float().mean() > 0.9
    again = train(task_of(), "lff", Runs(seed=1), **shared)
    assert close(again.learned("row_weights")[0], weights[1])


@pytest.mark.parametrize("batch_size", [None, 30])
@pytest.mark.parametrize("more", [lambda: nn.Dropout(0.5), lambda: nn.BatchNorm1d(5)], ids=["dropout", "batch-norm"])
def test_modules_with_state_keep_it_apart(more, batch_size):
    """Batched = alone, and Phi's averages are Phi's: as many batches seen as there were steps."""
    shared = {**S, "steps": 12, "net": lambda: Own(more()), "batch_size": batch_size}
    together = train(task_of(), "lff", Runs(seed=[0, 1]), **shared)
    for r in range(2):
        alone = train(task_of(), "lff", Runs(seed=r), **shared)
        assert close(parameters(together)[r], parameters(alone)[0])
    buffers = together.state("last")[0].buffers
    if isinstance(more(), nn.BatchNorm1d):
        assert [b["layers.1.num_batches_tracked"].item() for b in buffers] == [12, 12]


def test_series():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 60)
    x = rng.normal(size=(60, 2, 8)) + y[:, None, None]
    task = make_task(x, y, environment=np.arange(60) % 2, loss="multiclass", dtype=D, min_rows=1)
    net = Conv1d(2, 3, channels=(4,), kernels=(3, 3), pool_after=())
    together = train(task, "lff", Runs(seed=[0, 1]), net=net, **{**S, "steps": 8})
    alone = train(task, "lff", Runs(seed=1), net=net, **{**S, "steps": 8})
    assert close(parameters(together)[1], parameters(alone)[0])
    assert close(together.learned("row_weights")[1], alone.learned("row_weights")[0])


def test_no_environments_are_needed_nor_used():
    x, y, e, _ = arrays()
    given = train(make_task(x, y, environment=e, dtype=D, min_rows=1), "lff", **S)
    none = train(make_task(x, y, dtype=D, min_rows=1), "lff", **S)
    assert torch.equal(parameters(given)[0], parameters(none)[0])


def test_the_plan_counts_both_networks(monkeypatch):
    """What a step holds per row and run: three numbers per unit of each network (and what rows need anyway)."""
    widths = {}

    def spy(*args, width, **more):
        widths[name] = width
        return plan(*args, width=width, **more)

    monkeypatch.setattr(sys.modules["irmtv.engine.train"], "plan", spy)
    for name in ("erm", "lff"):
        train(task_of(), name, hidden=(8,), steps=1)
    assert widths["lff"] - widths["erm"] == 3 * (8 + 1)


def test_a_loss_of_ones_own_has_no_probability():
    x, y, e, _ = arrays()
    task = make_task(x, y, environment=e, loss=lambda f, y: (f - y).square(), min_rows=1)
    with refuse("'lff' needs the probability of the right class", "'binary' or 'multiclass'", "Got '<lambda>'"):
        train(task, "lff", steps=1)


# What it is for


def biased_rows(n, agreement, seed):
    """A large column that agrees with y in so many rows, and a small one that always tells y: slower to learn."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    sign = 2 * y - 1
    aligned = rng.uniform(size=n) < agreement
    shortcut = np.where(aligned, sign, -sign) + 0.1 * rng.normal(size=n)
    core = 0.15 * sign + 0.05 * rng.normal(size=n)
    return np.column_stack([core, shortcut]), y.astype(float), torch.as_tensor(aligned)


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_that_a_shortcut_misleads_count_more_and_are_learned_sooner(variant):
    """While the shortcut is ahead of what always holds: at the end ERM, too, learns a column without noise.

    At this step every one of 20 other data sets and seeds gained, by 0.37 in the mean.
    """
    rows = [biased_rows(1000, 0.95, i) for i in range(4)]
    tasks = [make_task(x, y, environment=np.arange(1000) % 2) for x, y, _ in rows]
    tests = [biased_rows(1000, 0.0, 100 + i) for i in range(4)]
    right = torch.stack([torch.as_tensor(y > 0) for _, y, _ in tests])
    runs, shared = Runs(seed=range(4), data=range(4)), {"hidden": (16,), "steps": 200, "learning_rate": 1e-2}

    def accuracy(fitted):
        f = fitted.logits([torch.as_tensor(x, dtype=torch.float32) for x, _, _ in tests])
        return ((f > 0) == right).double().mean(1)

    fitted = train(tasks, "lff", runs, variant=variant, **shared)
    for weights, (_, _, aligned) in zip(fitted.learned("row_weights"), rows, strict=True):
        assert weights[~aligned].mean() > 5 * weights[aligned].mean()
    gain = accuracy(fitted) - accuracy(train(tasks, "erm", runs, **shared))
    assert (gain > 0).all() and gain.mean() > 0.15, gain


# Failures


@pytest.mark.filterwarnings("ignore:.*diverged")
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("batch_size", [None, 30])
def test_a_diverging_run_is_frozen_alone(variant, batch_size):
    shared = {**S, "variant": variant, "batch_size": batch_size, "l2": 1e-3}
    shared.pop("learning_rate")
    task = task_of()
    with_it = train(task, "lff", Runs([0, 1, 2], learning_rate=[0.02, 1e200, 0.02]), **shared)
    without = train(task, "lff", Runs([0, 2], learning_rate=0.02), **shared)
    assert set(with_it.diverged) == {1} and not without.diverged
    assert all(p.isfinite().all() for p in parameters(with_it))
    for ours, theirs in ((0, 0), (2, 1)):
        assert close(parameters(with_it)[ours], parameters(without)[theirs], 1e-10)
        pair = with_it.learned("row_weights")[ours], without.learned("row_weights")[theirs]
        assert torch.allclose(*pair, rtol=1e-10, equal_nan=True)
    # the frozen run's weights are those it had
    step = with_it.diverged[1]
    short = train(task, "lff", Runs(1, learning_rate=1e200), **{**shared, "steps": step})
    assert not short.diverged
    assert close(parameters(with_it)[1], parameters(short)[0])
    pair = with_it.learned("row_weights")[1], short.learned("row_weights")[0]
    assert torch.allclose(*pair, rtol=1e-10, equal_nan=True)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("where", ["biased", "phi"])
def test_what_is_not_finite_in_one_run_stays_there(variant, where):
    """It gets weights that are NaN, by which Phi's guard knows it, and its records stay as they were."""
    task = task_of(n=12)
    net = MLP(3, (), 1)
    rows = StepRows(net.prepare(task.train.x.unsqueeze(0)), task.train.y.view(1, 1, 1, 12), (1, 12), None, None, None)

    def play(bad):
        weigher = RelativeDifficulty(context_of([task], [0, 1, 2], variant=variant), net)
        generator = torch.Generator().manual_seed(0)
        weights = []
        for step in range(4):
            value = torch.rand(1, 3, 1, 12, generator=generator, dtype=D)
            if bad and step == 2 and where == "phi":
                value[0, 1, 0, 5] = torch.inf
            if bad and step == 2 and where == "biased":
                with torch.no_grad():
                    weigher.parameters.views["W0"][1, 0, 0] = torch.inf
            weights.append(weigher.weigh(rows, torch.zeros_like(value), value))
        return weigher, torch.stack(weights)[:, 0, :, 0]  # (steps, runs, rows)

    well, expected = play(False)
    weigher, weights = play(True)
    assert torch.equal(weights[:, [0, 2]], expected[:, [0, 2]])
    assert torch.equal(weights[:2], expected[:2])
    assert weights[2:, 1].isnan().all()
    assert torch.equal(weigher.state()["row_weights"][1], expected[1, 1])
    assert torch.equal(weigher.state()["row_weights"][[0, 2]], expected[3, [0, 2]])
    for name, view in weigher.parameters.views.items():
        assert torch.equal(view[[0, 2]], well.parameters.views[name][[0, 2]])


# Snapshots


def test_weights_are_kept_with_the_states_of_snapshots():
    fitted = train(task_of(), "lff", Runs(seed=[0, 1]), snapshot_every=10, keep_states=True, **S)
    for step in (10, 20):
        short = train(task_of(), "lff", Runs(seed=[0, 1]), **{**S, "steps": step})
        assert close(fitted.at(step).learned("row_weights"), short.learned("row_weights"))
    assert fitted.at(0).learned("row_weights").isnan().all()
    assert not close(fitted.at(10).learned("row_weights"), fitted.learned("row_weights"), 1e-3)
