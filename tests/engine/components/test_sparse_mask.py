"""SparseIRM's mask in training: by hand, alone and in a batch, within its budget, frozen, in any network."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from engine.problems import close, losses, parameters, refuse, task_of
from irmtv import Runs, make_task, train
from irmtv.core.projection import onto_box_with_sum
from irmtv.engine import MLP, Conv1d, Module
from irmtv.engine.components.sparse_mask import STREAM, SparseMask, masked_shapes, within_budget
from irmtv.engine.context import Noise

S = {"dtype": torch.float64, "steps": 60, "warmup": 10, "penalty_weight": 20.0, "learning_rate": 1e-2}
# a few dozen steps are few: the share falls early, and scores move fast
FAST = {"sparsify_from": 0.2, "sparsify_until": 0.6, "score_learning_rate": 5e-2}
PENALTIES = ("irm-tv-l2", "irm-tv-l1", "vrex")


# By hand


def by_bisection(scores, budget):
    """clip(s - v, 0, 1) with the least v >= 0 that keeps the sum within the budget."""
    if scores.clamp(0, 1).sum() <= budget:
        return scores.clamp(0, 1)
    low, high = 0.0, float(scores.max())
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if (scores - middle).clamp(0, 1).sum() > budget else (low, middle)
    return (scores - high).clamp(0, 1)


def train_by_hand(task, loss, penalty, seed, hidden=(), kept_share=0.5, l2=1e-3):
    """One run, line by line, optimizers from torch, slopes by differentiating a gradient: parameters and scores."""
    x, y, codes = task.train.x, task.train.y, task.train.environment
    steps, first, last, weight = S["steps"], 12, 36, S["penalty_weight"]
    phi = MLP(x.shape[1], hidden, task.n_outputs).init(seed, torch.Generator().manual_seed(seed))
    phi = {k: v.requires_grad_() for k, v in phi.items()}
    names = [k for k in phi if k[0] == "W"]
    n = sum(phi[k].numel() for k in names)
    scores = torch.ones(n, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam(phi.values(), lr=S["learning_rate"])
    score_adam = torch.optim.Adam([scores], lr=FAST["score_learning_rate"])
    noise = Noise([seed], torch.device("cpu"), STREAM)

    def risks(views, w):
        h = x
        for i in range(len(hidden) + 1):
            h = (torch.relu(h) if i else h) @ views[f"W{i}"].T + views[f"b{i}"].squeeze(1)
        values = losses(loss, (h.squeeze(1) if task.n_outputs == 1 else h) * w, y)
        return torch.stack([values[codes == e].mean() for e in range(3)])

    mu = torch.bincount(codes).double() / len(codes)
    for step in range(steps):
        views = dict(phi)
        if step >= first:
            softness = 0.97 * (1 - step / steps) + 0.03
            draw = noise.logistic(step, (n,), torch.float64)[0]
            mask = (scores.detach() == 1).double()  # exactly 1 or 0, where the probability is
            open_ = torch.nonzero((scores.detach() > 0) & (scores.detach() < 1)).squeeze(1)
            near = scores[open_].clamp(1e-7, 1 - 1e-7)
            odds = torch.log(near / (1 - near))
            mask = mask.index_put((open_,), torch.sigmoid((odds + draw[open_]) / softness))
            at = 0
            for k in names:
                views[k] = phi[k] * mask[at : at + phi[k].numel()].view_as(phi[k])
                at += phi[k].numel()
        one = torch.ones((), dtype=torch.float64, requires_grad=True)
        risk = risks(views, one)
        total = (mu * risk).sum() + l2 * sum(p.square().sum() for p in phi.values())
        if step >= S["warmup"]:
            slope = torch.stack([torch.autograd.grad(r, one, create_graph=True)[0] for r in risk])
            value = {
                "irm-tv-l2": (mu * slope.square()).sum(),
                "irm-tv-l1": (mu * slope.abs()).sum().square(),
                "vrex": (mu * (risk - (mu * risk).sum()).square()).sum(),
            }[penalty]
            total = (total + weight * value) / (1 + weight)
        adam.zero_grad()
        score_adam.zero_grad()
        total.backward()
        adam.step()
        if step >= first:
            score_adam.step()
            progress = min(1.0, (step + 1 - first) / (last - first))
            share = kept_share + (1 - kept_share) * (1 - progress) ** 3
            with torch.no_grad():
                scores.copy_(by_bisection(scores, share * n))
    # at the end all parameters, the weights that are not kept 0
    scores = scores.detach()
    likeliest = sorted(range(n), key=lambda j: (-float(scores[j]), j))[: max(1, round(kept_share * n))]
    kept = torch.zeros(n, dtype=torch.float64)
    kept[[j for j in likeliest if scores[j] >= 0.5]] = 1
    at = 0
    for k in names:
        phi[k].data *= kept[at : at + phi[k].numel()].view_as(phi[k])
        at += phi[k].numel()
    return torch.cat([p.detach().flatten() for p in phi.values()]), scores, kept


@pytest.mark.parametrize(
    ("penalty", "loss", "hidden"),
    [
        ("irm-tv-l2", "binary", ()),
        ("irm-tv-l1", "binary", (4,)),
        ("vrex", "multiclass", (4, 3)),
        ("irm-tv-l2", "multiclass", ()),
        ("irm-tv-l1", "squared", ()),
        ("vrex", "squared", ()),
    ],
)
def test_steps_equal_those_by_hand(penalty, loss, hidden):
    task = task_of(loss, features=6)
    fitted = train(
        task, "sparse-irm", Runs(seed=3, kept_share=0.5), hidden=hidden, penalty=penalty, l2=1e-3, **S, **FAST
    )
    expected, scores, kept = train_by_hand(task, loss, penalty, 3, hidden)
    assert close(fitted.learned("scores")[0], scores)
    assert close(parameters(fitted)[0], expected)
    assert close(fitted.learned("kept")[0], kept.mean())
    assert 0 < kept.mean() < 0.6 and scores.std() > 0.1  # something was switched off, by choice


# Runs beside each other


@pytest.mark.parametrize(("loss", "penalty"), [*zip(("binary", "multiclass", "squared"), PENALTIES, strict=True)])
def test_a_run_in_a_batch_is_the_same_run_alone(loss, penalty):
    tasks = [task_of(loss, seed=i, features=6) for i in range(2)]
    columns = {
        "seed": [3, 4, 3, 6],
        "data": [0, 1, 0, 1],
        "kept_share": [0.95, 0.5, 0.3, 1.0],
        "score_learning_rate": [5e-2, 5e-2, 2e-2, 6e-3],
        "warmup": [10, 0, 20, 10],
    }
    shared = {**{k: v for k, v in {**S, **FAST}.items() if k not in columns}, "penalty": penalty, "hidden": (3,)}
    together = train(tasks, "sparse-irm", Runs(**columns), **shared)
    for r in range(4):
        alone = train(tasks, "sparse-irm", Runs(**{k: v[r] for k, v in columns.items()}), **shared)
        assert close(together.learned("scores")[r], alone.learned("scores")[0])
        assert close(parameters(together)[r], parameters(alone)[0])
    assert (together.learned("scores")[3] == 1).all()
    assert not close(together.learned("scores")[0], together.learned("scores")[2])


@pytest.mark.parametrize("hidden", [(), (5,)])
def test_keeping_all_weights_without_a_penalty_is_erm(hidden):
    """And with a penalty it is the penalty's objective: scores of 1 make a mask of exactly 1 that has no slope."""
    task = task_of(features=6)
    shared = {"hidden": hidden, "dtype": torch.float64, "steps": 60}
    zero = train(task, "sparse-irm", Runs([1, 2]), kept_share=1.0, penalty_weight=0.0, **shared)
    erm = train(task, "erm", Runs([1, 2]), **shared)
    for a, b in zip(parameters(zero), parameters(erm), strict=True):
        assert close(a, b, 1e-12)
    for penalty in PENALTIES:
        masked = train(task, "sparse-irm", Runs([1, 2]), kept_share=1.0, penalty=penalty, **{**S, **FAST, **shared})
        plain = train(task, penalty, Runs([1, 2]), **{**S, **shared})
        assert (masked.learned("scores") == 1).all() and (masked.learned("kept") == 1).all()
        for a, b in zip(parameters(masked), parameters(plain), strict=True):
            assert close(a, b, 1e-12)


def test_a_mask_without_a_penalty_is_not_erm():
    task = task_of(features=6)
    masked = train(task, "sparse-irm", kept_share=0.5, **{**S, **FAST, "penalty_weight": 0.0})
    erm = train(task, "erm", dtype=torch.float64, steps=60, learning_rate=1e-2)
    assert not close(parameters(masked)[0], parameters(erm)[0], 1e-3)


# The budget


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_more_weights_than_the_share_says_rounded_to_whole_weights(dtype):
    shares = [0.01, 0.1, 0.25, 1 / 3, 0.5, 0.75, 0.95, 1.0]
    settings = {**S, **FAST, "dtype": dtype}
    fitted = train(task_of(features=10), "sparse-irm", Runs(seed=range(8), kept_share=shares), hidden=(4,), **settings)
    scores, n = fitted.learned("scores").double(), 44
    budget = torch.tensor(shares, dtype=torch.float64) * n
    assert scores.shape == (8, n)
    assert ((scores >= 0) & (scores <= 1)).all()
    assert (scores.sum(1) <= budget + (1e-3 if dtype == torch.float32 else 1e-9)).all()
    weights = [torch.cat([c.last.parameters[k].flatten(1) for k in ("W0", "W1")], 1) for c in fitted.chunks]
    used = (torch.cat(weights) != 0).sum(1)
    assert torch.equal((fitted.learned("kept") * n).round().long(), used)
    assert (used <= budget.round().clamp_min(1)).all()
    assert used[-1] == n
    biases = torch.cat([c.last.parameters["b0"].flatten(1) for c in fitted.chunks])
    assert (biases != 0).all()  # they are not the mask's


def test_nothing_is_switched_off_before_its_time_and_the_budget_falls_on_a_cubic_curve():
    settings = {**S, **FAST, "steps": 100, "sparsify_from": 0.4, "sparsify_until": 0.8}
    fitted = train(task_of(features=10), "sparse-irm", kept_share=0.2, snapshot_every=20, keep_states=True, **settings)
    for step in (20, 40):
        assert (fitted.at(step).learned("scores") == 1).all()
    without = train(task_of(features=10), "irm-tv-l2", **{**S, "steps": 40})
    assert close(parameters(fitted.at(40))[0], parameters(without)[0], 1e-12)
    sums = [fitted.at(step).learned("scores").sum().item() for step in (60, 80, 100)]
    for found, share in zip(sums, (0.2 + 0.8 / 8, 0.2, 0.2), strict=True):
        assert found <= share * 10 + 1e-9
    assert sums[0] > 2.5  # the budget is used while it falls


def test_the_nearest_point_within_the_budget():
    scores = torch.tensor([[0.2, 0.5, -0.1], [1.3, 0.9, 0.4], [0.9, 0.8, 0.7]], dtype=torch.float64)
    found = within_budget(scores, torch.tensor([2.0, 2.5, 1.5], dtype=torch.float64))
    assert close(found[0], torch.tensor([0.2, 0.5, 0.0], dtype=torch.float64))  # within: clipped only
    assert close(found[1], torch.tensor([1.0, 0.9, 0.4], dtype=torch.float64))  # clipped, it is within
    assert close(found[2], onto_box_with_sum(scores[2], 0.0, 1.0, torch.tensor(1.5)))
    assert close(found[2], scores[2] - 0.3)


# Frozen runs


@pytest.mark.filterwarnings("ignore:.*diverged")
def test_a_frozen_runs_scores_stand_still():
    """A loss that is NaN beyond logits of 1: the run with the high rate fails while the share is falling."""

    def finite_until_one(f, y):
        return torch.sqrt(1 - f) + 0 * y

    x = 0.1 * (np.abs(np.random.default_rng(0).normal(size=(60, 6))) + 0.5)
    task = make_task(x, x[:, 0], environment=np.arange(60) % 2, loss=finite_until_one, dtype=torch.float64, min_rows=1)
    settings = {**S, **FAST, "steps": 120, "warmup": 120, "score_learning_rate": 5e-3}
    del settings["learning_rate"]
    runs = Runs(seed=[0, 0, 0], learning_rate=[1e-7, 9e-3, 2e-7], kept_share=0.3)
    fitted = train(task, "sparse-irm", runs, snapshot_every=1, keep_states=True, **settings)
    assert list(fitted.diverged) == [1]
    died = fitted.diverged[1]
    assert 26 < died < 70  # while the share was falling
    then = fitted.at(died)
    assert (then.learned("scores")[1] >= 0.5).sum() > 2  # more than may stay in the end
    assert 0.3 * 6 + 0.1 < then.learned("scores")[1].sum() < 5.9
    for step in (died + 1, died + 20, 120):
        assert torch.equal(fitted.at(step).learned("scores")[1], then.learned("scores")[1])
        assert torch.equal(parameters(fitted.at(step))[1], parameters(then)[1])
    neighbours = train(task, "sparse-irm", Runs(seed=[0, 0], learning_rate=[1e-7, 2e-7], kept_share=0.3), **settings)
    for mine, theirs in ((0, 0), (2, 1)):
        assert close(fitted.learned("scores")[mine], neighbours.learned("scores")[theirs])
        assert close(parameters(fitted)[mine], parameters(neighbours)[theirs])


# Other networks, batches, losses


class Small(nn.Module):
    def __init__(self, outputs=1):
        super().__init__()
        self.first, self.scale = nn.Linear(6, 4), nn.Parameter(torch.ones(4))
        self.second = nn.Linear(4, outputs)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x) * self.scale))


def test_which_parameters_have_a_mask():
    assert masked_shapes(MLP(6, (4,), 1)) == {"W0": (4, 6), "W1": (1, 4)}
    assert list(masked_shapes(Conv1d(2, 3))) == ["W0", "W1", "W2", "W3"]
    assert masked_shapes(Module(Small)) == {"first.weight": (4, 6), "second.weight": (1, 4)}


@pytest.mark.parametrize("loss", ["binary", "multiclass", "squared"])
@pytest.mark.parametrize("batch_size", [None, 32])
def test_a_users_module(loss, batch_size):
    outputs = 3 if loss == "multiclass" else 1
    settings = {**S, **FAST, "steps": 30, "batch_size": batch_size}
    fitted = train(
        task_of(loss, features=6),
        "sparse-irm",
        Runs([0, 1], kept_share=[0.5, 1.0]),
        net=lambda: Small(outputs),
        **settings,
    )
    used = [(c.last.parameters["first.weight"] != 0).flatten(1).double().mean(1) for c in fitted.chunks]
    assert torch.cat(used)[0] < 0.8 and torch.cat(used)[1] == 1
    assert all(p.isfinite().all() for p in parameters(fitted))
    assert (fitted.chunks[0].last.parameters["scale"] != 0).all()


@pytest.mark.parametrize(
    ("loss", "penalty"), [*zip(("binary", "multiclass", "squared", "targets"), (*PENALTIES, "vrex"), strict=True)]
)
def test_mini_batches_alone_and_together(loss, penalty):
    settings = {**S, **FAST, "steps": 30, "batch_size": 40, "hidden": (3,), "penalty": penalty}
    task = task_of(loss, features=6)
    together = train(task, "sparse-irm", Runs([0, 1], kept_share=[0.5, 0.3]), **settings)
    for r, share in enumerate((0.5, 0.3)):
        alone = train(task, "sparse-irm", Runs(r, kept_share=share), **settings)
        assert close(parameters(together)[r], parameters(alone)[0])
        assert alone.learned("scores").sum() <= share * alone.learned("scores").shape[1] + 1e-9


def test_vector_classifier_and_series():
    fitted = train(task_of(features=6), "sparse-irm", classifier="vector", hidden=(3,), kept_share=0.5, **S, **FAST)
    assert 0 < fitted.learned("kept")[0] <= 0.5
    rng = np.random.default_rng(0)
    x, e = rng.normal(size=(60, 2, 12)), np.arange(60) % 2
    task = make_task(x, (x.mean((1, 2)) > 0).astype(float), environment=e, dtype=torch.float64, min_rows=1)
    net = Conv1d(2, 1, (3,), (3, 3), (), last_relu=False)
    fitted = train(task, "sparse-irm", net=net, kept_share=0.5, **{**S, **FAST, "steps": 30})
    assert fitted.learned("scores").shape == (1, 2 * 3 * 3 + 3 * 3)
    assert 0 < fitted.learned("kept")[0] <= 0.52


def test_the_best_snapshot_is_one_of_masked_weights():
    fitted = train(task_of(features=6, held_out=60), "sparse-irm", kept_share=0.3, select="iid", **S, **FAST)
    best = int(fitted.steps[0])
    kept = train(
        task_of(features=6, held_out=60), "sparse-irm", kept_share=0.3, snapshot_every=1, keep_states=True, **S, **FAST
    )
    assert close(parameters(fitted, "selected")[0], parameters(kept.at(best))[0])
    used = fitted.coefficients(which="last")[0] != 0
    assert used.sum() <= 2 and close(used.double().mean(), fitted.learned("kept", which="last")[0])


def test_a_network_without_weights_is_refused():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(6))

        def forward(self, x):
            return x @ self.w

    with refuse("net must have weights", "two or more dimensions", "irm-tv-l2"):
        train(task_of(features=6), "sparse-irm", net=Scaled, **S)


def test_moments_in_the_wrong_order_are_refused():
    with refuse("sparsify_until must be at least sparsify_from", "0.7", "0.5"):
        train(task_of(), "sparse-irm", sparsify_from=0.7, sparsify_until=0.5, **S)


def test_all_at_once_and_from_the_first_step():
    for first, last in ((0.0, 0.0), (0.5, 0.5), (0.0, 1.0), (1.0, 1.0)):
        fitted = train(
            task_of(features=10), "sparse-irm", kept_share=0.5, sparsify_from=first, sparsify_until=last, **S
        )
        expected = 10 if first == 1.0 else 5
        assert fitted.learned("scores").sum() <= expected + 1e-9
        assert parameters(fitted)[0].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gradient_too_large_to_square_moves_its_score_and_spoils_nothing(monkeypatch, dtype):
    step = SparseMask.step

    def with_large_gradients(mask):
        if mask.context.step == 30:
            mask.parameters.gradient[:3] = torch.tensor([torch.inf, torch.finfo(dtype).max, torch.nan])
        step(mask)

    settings = {**S, **FAST, "dtype": dtype}
    plain = train(task_of(features=6), "sparse-irm", kept_share=0.5, **settings)
    monkeypatch.setattr(SparseMask, "step", with_large_gradients)
    fitted = train(task_of(features=6), "sparse-irm", kept_share=0.5, **settings)
    scores = fitted.learned("scores")[0]
    assert scores.isfinite().all() and parameters(fitted)[0].isfinite().all() and not fitted.diverged
    assert scores[0] < plain.learned("scores")[0, 0] - 0.5  # down, as its gradient says
