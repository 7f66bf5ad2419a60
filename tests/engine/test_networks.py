"""Networks with a run axis, against the same networks of torch.nn one run at a time."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from engine.problems import close, parameters, refuse, task_of
from irmtv import Runs, make_task, train
from irmtv.engine import MLP, Conv1d, Linear, Module

SETS_AND_RUNS = [(1, 1), (1, 4), (3, 1), (2, 3)]
F64 = {"dtype": torch.float64, "steps": 12, "learning_rate": 0.02}


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_parameters(net, n_runs):
    """Biases too, which start at 0."""
    return {k: 0.5 * draw(n_runs, *s, seed=i) for i, (k, s) in enumerate(net.shapes.items())}


def outputs(net, p, x):
    return net.forward(p, net.prepare(x)).logits


def one_by_one(layers, p, x):
    """`layers(p of one run, rows)` for each run: (R, N, C)."""
    n_runs = len(next(iter(p.values())))
    per_set = n_runs // len(x)
    return torch.stack([layers({k: v[r] for k, v in p.items()}, x[r // per_set]) for r in range(n_runs)])


def same(ours, theirs):
    assert ours.shape == (theirs.squeeze(2) if theirs.shape[2] == 1 else theirs).shape
    torch.testing.assert_close(ours.reshape(theirs.shape), theirs, rtol=1e-10, atol=1e-12)


# MLP


@pytest.mark.parametrize(("n_sets", "per_set"), SETS_AND_RUNS)
@pytest.mark.parametrize("hidden", [(), (5,), (4, 3)])
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_mlp_is_a_stack_of_linear_and_relu(n_sets, per_set, hidden, n_outputs):
    net = MLP(6, hidden, n_outputs)
    p, x = random_parameters(net, n_sets * per_set), draw(n_sets, 7, 6, seed=9)

    def stack(p, rows):
        widths, layers = (6, *hidden, n_outputs), []
        for i in range(len(hidden) + 1):
            layers += [nn.Linear(widths[i], widths[i + 1], dtype=torch.float64), nn.ReLU()]
            with torch.no_grad():
                layers[-2].weight.copy_(p[f"W{i}"])
                layers[-2].bias.copy_(p[f"b{i}"].squeeze(1))
        return nn.Sequential(*layers[:-1])(rows).detach()

    same(outputs(net, p, x), one_by_one(stack, p, x))


@pytest.mark.parametrize("hidden", [(), (5,)])
def test_the_last_layer_of_an_mlp(hidden):
    """What a vector classifier multiplies: inputs times weights, summed, are the logits less the bias."""
    net, x = MLP(4, hidden), draw(2, 7, 4)
    p = random_parameters(net, 6)
    out = net.forward(p, net.prepare(x))
    inputs = out.last.inputs.repeat_interleave(6 // len(out.last.inputs), 0)  # (R, J, N)
    bias = p[f"b{len(hidden)}"].squeeze(2)
    torch.testing.assert_close((inputs * out.last.weights.unsqueeze(2)).sum(1) + bias, out.logits)
    assert MLP(4, hidden, 3).forward(random_parameters(MLP(4, hidden, 3), 6), net.prepare(x)).last is None


def test_linear_is_an_mlp_without_hidden_layers():
    assert Linear(5, 2).shapes == MLP(5, (), 2).shapes == {"W0": (2, 5), "b0": (2, 1)}


@pytest.mark.parametrize(
    ("net", "fans"),
    [(MLP(30, (50,), 2), {"W0": 80, "W1": 52}), (Conv1d(8, 6), {"W0": 40 * 5, "W1": 64 * 3, "W2": 96 * 3})],
    ids=["mlp", "conv"],
)
def test_weights_start_xavier_uniform_and_biases_at_zero(net, fans):
    start = net.init(3, torch.Generator().manual_seed(3))
    again = net.init(3, torch.Generator().manual_seed(3))
    for name, shape in net.shapes.items():
        value = start[name]
        assert value.shape == shape and value.dtype == torch.float64
        assert torch.equal(value, again[name])
        if name.startswith("b"):
            assert (value == 0).all()
        elif name in fans:
            bound = math.sqrt(6 / fans[name])
            assert 0.9 * bound < value.abs().max() <= bound
            assert abs(value.std().item() / (bound / math.sqrt(3)) - 1) < 0.1


# Conv1d


@pytest.mark.parametrize(("n_sets", "per_set"), SETS_AND_RUNS)
def test_conv1d_is_the_papers_landcover_network(n_sets, per_set):
    """46 dates, 8 bands, 6 classes; the paper's table of architectures with paddings 2, 1, 1, 1."""
    net = Conv1d(8, 6)
    p, x = random_parameters(net, n_sets * per_set), draw(n_sets, 5, 8, 46, seed=9)

    def landcover(p, rows):
        sizes = [(8, 32, 5, 2), (32, 32, 3, 1), (32, 64, 3, 1), (64, 6, 3, 1)]
        convolutions = [nn.Conv1d(i, o, k, padding=pad, dtype=torch.float64) for i, o, k, pad in sizes]
        with torch.no_grad():
            for i, layer in enumerate(convolutions):
                layer.weight.copy_(p[f"W{i}"])
                layer.bias.copy_(p[f"b{i}"])
        one, two, three, four = convolutions
        stack = nn.Sequential(
            *(one, nn.ReLU(), two, nn.ReLU(), nn.MaxPool1d(2, 2), three, nn.ReLU(), nn.MaxPool1d(2, 2)),
            *(four, nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten()),
        )
        return stack(rows).detach()

    same(outputs(net, p, x), one_by_one(landcover, p, x))


@pytest.mark.parametrize(
    ("channels", "kernels", "pool_after", "last_relu", "n_outputs"),
    [
        ((), (1,), (), False, 2),
        ((4,), (3, 5), (), False, 1),
        ((4, 3), (3, 3, 1), (0, 2), True, 3),
        ((4,), (7, 3), (1,), True, 1),
    ],
)
def test_conv1d_layers_pads_and_pools(channels, kernels, pool_after, last_relu, n_outputs):
    net = Conv1d(2, n_outputs, channels, kernels, pool_after, last_relu)
    p, x = random_parameters(net, 4), draw(2, 6, 2, 13, seed=9)

    def layers(p, h):
        for i, kernel in enumerate(kernels):
            h = functional.conv1d(h, p[f"W{i}"], p[f"b{i}"], padding=(kernel - 1) // 2)
            h = h.relu() if i < len(kernels) - 1 or last_relu else h
            h = functional.max_pool1d(h, 2) if i in pool_after else h
        return h.mean(2)

    same(outputs(net, p, x), one_by_one(layers, p, x))


def series(loss="multiclass", n=60):
    x = draw(n, 2, 9)
    y = torch.arange(n) % 3 if loss == "multiclass" else (torch.arange(n) % 2).double()
    x[:, 0] += y.unsqueeze(1)
    return make_task(x, y, environment=torch.arange(n) // (n // 2), aux=x[:, 1, 0], loss=loss, dtype=torch.float64)


@pytest.mark.parametrize("loss", ["binary", "multiclass"])
@pytest.mark.parametrize("batch_size", [None, 20])
@pytest.mark.parametrize("objective", ["irm-tv-l1", "minimax-tv-l1"])
def test_conv1d_trains(loss, batch_size, objective):
    net = Conv1d(2, 1 if loss == "binary" else 3, (4,), (3, 3), (0,), last_relu=False)
    settings = {**F64, "steps": 30, "penalty_weight": 1.0, "batch_size": batch_size, "net": net}
    fitted = train(series(loss), objective, Runs([0, 1]), snapshot_every=30, **settings)
    risk = (fitted.history.rows * fitted.history.risk).sum(2) / 60  # (S, R)
    assert (risk[1] < 0.9 * risk[0]).all()


# Modules of the user's own


def small(n_outputs=1):
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, n_outputs))


class Flat(nn.Linear):
    """Gives (N,)."""

    def forward(self, x):
        return super().forward(x).squeeze(1)


def starts(net, seeds):
    rows = [net.init(s, torch.Generator()) for s in seeds]
    return {k: torch.stack([row[k] for row in rows]) for k in rows[0]}


@pytest.mark.parametrize(("n_sets", "per_set"), SETS_AND_RUNS)
@pytest.mark.parametrize(
    ("factory", "n_outputs"), [(small, 1), (lambda: small(3), 3), (lambda: Flat(3, 1), 1)], ids=["N1", "NC", "N"]
)
def test_a_vectorised_module_is_the_module_one_run_at_a_time(n_sets, per_set, factory, n_outputs):
    net = Module(factory, n_outputs)
    assert net.vectorised
    p, x = starts(net, range(n_sets * per_set)), draw(n_sets, 7, 3, seed=9)

    def alone(p, rows):
        module = factory().double()
        module.load_state_dict(p)
        return module(rows).detach().reshape(len(rows), -1)

    same(outputs(net, p, x), one_by_one(alone, p, x))


def test_a_run_starts_as_torch_would_with_its_seed():
    before = torch.get_rng_state()
    ours = Module(small).init(7, torch.Generator())
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        theirs = dict(small().named_parameters())
    assert all(torch.equal(ours[k], v.double()) for k, v in theirs.items())


def test_a_module_and_the_same_mlp_train_alike():
    task, seeds = task_of(), [0, 1]
    own = train(task, "irm-tv-l1", Runs(seeds), net=lambda: nn.Linear(3, 1), penalty_weight=10.0, **F64)

    class Started(Linear):
        def init(self, seed, generator):
            start = Module(lambda: nn.Linear(3, 1)).init(seed, generator)
            return {"W0": start["weight"], "b0": start["bias"].unsqueeze(1)}

    built_in = train(task, "irm-tv-l1", Runs(seeds), net=Started(3), penalty_weight=10.0, **F64)
    assert all(close(a, b) for a, b in zip(parameters(own), parameters(built_in), strict=True))


class FunctionalDropout(nn.Linear):
    def forward(self, x):
        return functional.dropout(super().forward(x), 0.3, self.training)


class Branches(nn.Linear):
    """Cannot be vectorised: what it does depends on the numbers."""

    def forward(self, x):
        f = super().forward(x)
        return f if f.sum() > 0 else 2 * f


OWN = {
    "dropout": lambda: nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Dropout(0.4), nn.Linear(6, 1)),
    "batch-norm": lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1)),
    "functional-dropout": lambda: FunctionalDropout(3, 1),
    "branches": lambda: Branches(3, 1),
    "plain": small,
}


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("batch_size", [None, 30])
@pytest.mark.parametrize("objective", ["irm-tv-l1", "minimax-tv-l1"])
def test_a_run_alone_is_the_same_run_in_a_batch(kind, batch_size, objective):
    tasks = [task_of(seed=i) for i in range(2)]
    settings = {**F64, "net": OWN[kind], "penalty_weight": 10.0, "warmup": 4, "batch_size": batch_size}
    before = torch.get_rng_state()
    together = train(tasks, objective, Runs([5, 6, 7, 8], data=[0, 1, 0, 1]), **settings)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(together.chunks) == 1
    x = draw(9, 3)
    for r, (seed, data) in enumerate([(5, 0), (6, 1), (7, 0), (8, 1)]):
        alone = train(tasks, objective, Runs(seed, data=data), **settings)
        assert close(parameters(together)[r], parameters(alone)[0])
        assert close(together.logits(x)[r], alone.logits(x)[0])


def test_dropout_draws_anew_at_every_step_and_not_in_prediction():
    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.last, self.masks = nn.Dropout(0.5), nn.Linear(3, 1), []

        def forward(self, x):
            self.masks.append(self.drop(torch.ones(64)))
            return self.last(x)

    made = []

    def factory():
        made.append(Counted())
        return made[-1]

    fitted = train(task_of(), "erm", Runs([0, 1]), net=factory, **{**F64, "steps": 3})
    masks = [m.masks for m in made if m.masks]
    assert [len(m) for m in masks] == [3, 3]
    drawn = torch.stack([torch.stack(m) for m in masks]).flatten(0, 1)
    assert len(torch.unique(drawn, dim=0)) == 6  # every step and run its own
    assert ((drawn == 0) | (drawn == 2)).all()
    x = draw(9, 3)
    assert torch.equal(fitted.logits(x), fitted.logits(x))
    assert all((m == 1).all() for run in masks for m in run[3:])


def batch_norm_by_hand(task, seed, steps, rate):
    """The module and torch's optimizer, nothing else."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = OWN["batch-norm"]().double()
    adam = torch.optim.Adam(module.parameters(), lr=rate)
    for _ in range(steps):
        adam.zero_grad()
        f = module(task.train.x).squeeze(1)
        functional.binary_cross_entropy_with_logits(f, task.train.y).backward()
        adam.step()
    return module.eval()


@pytest.mark.parametrize("objective", ["erm", "irm-tv-l1", "minimax-tv-l1"])
@pytest.mark.parametrize("aux", [torch.arange(101) / 101, torch.arange(101) % 2], ids=["many", "few"])
def test_batch_norm_sees_the_rows_and_nothing_else(objective, aux):
    """Environments of unequal size: the engine fills up blocks of rows, and those must not count."""
    task = task_of(n=101, aux=aux)
    weight = {} if objective == "erm" else {"penalty_weight": 0.0}
    fitted = train(task, objective, Runs([0, 1]), net=OWN["batch-norm"], **F64, **weight)
    x = draw(9, 3)
    for seed in (0, 1):
        module = batch_norm_by_hand(task, seed, F64["steps"], F64["learning_rate"])
        assert close(fitted.logits(x)[seed], module(x).detach().squeeze(1), 1e-7)


def test_batch_norm_averages_are_kept_with_the_best_and_the_last_state():
    def early(snapshot):
        """Prefers step 4 for the first run and step 8 for the second."""
        return torch.tensor([abs(snapshot.step - 4), abs(snapshot.step - 8)])

    task, x = task_of(), draw(9, 3)
    settings = {k: v for k, v in F64.items() if k != "steps"}
    fitted = train(
        task, "erm", Runs([0, 1]), net=OWN["batch-norm"], select=early, snapshot_every=2, steps=12, **settings
    )
    assert fitted.steps.tolist() == [4, 8]
    best, last = fitted.logits(x), fitted.logits(x, which="last")
    assert torch.equal(fitted.logits(x), best)  # whichever was asked for before
    for seed, step in [(0, 4), (1, 8)]:
        by_hand = [batch_norm_by_hand(task, seed, s, F64["learning_rate"]) for s in (step, 12)]
        assert close(best[seed], by_hand[0](x).detach().squeeze(1), 1e-7)
        assert close(last[seed], by_hand[1](x).detach().squeeze(1), 1e-7)
    for which, steps in (("selected", [4, 8]), ("last", [12, 12])):
        (state,) = fitted.state(which)
        assert [int(b["1.num_batches_tracked"]) for b in state.buffers] == steps


def test_a_module_may_be_wrapped_already():
    settings = {**F64, "steps": 3}
    plain = train(task_of("multiclass"), "erm", net=lambda: small(3), **settings)
    wrapped = train(task_of("multiclass"), "erm", net=Module(lambda: small(3), 3), **settings)
    assert torch.equal(parameters(plain)[0], parameters(wrapped)[0])


# Errors


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"net": nn.Linear(3, 1)}, ("net must be", "Got Linear", "net=lambda")),
        ({"net": "mlp"}, ("net must be", "Got str")),
        ({"net": lambda: 3}, ("must be a function that returns a torch.nn.Module", "int")),
        ({"net": lambda: nn.Linear(3, 2)}, ("the module must give 1 outputs per row", "(100,)", "Got (100, 2)")),
        ({"net": MLP(3, (), 2)}, ("net must have", "n_outputs=1", "Got n_outputs=2")),
        ({"net": Conv1d(3, 1)}, ("Conv1d reads series", "(rows, channels, length)", "Got (100, 3)", "hidden=")),
    ],
)
def test_networks_that_do_not_fit_a_table(settings, message):
    with refuse(*message):
        train(task_of(), "erm", **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": (4,)}, ("x has shape (rows, 2, 9)", "hidden=... is for tables", "Conv1d")),
        ({}, ("x has shape (rows, 2, 9)",)),
        ({"net": Conv1d(2, 2)}, ("n_outputs=3", "Got n_outputs=2")),
        ({"net": lambda: nn.Sequential(nn.Flatten(), nn.Linear(18, 2))}, ("3 outputs per row", "(60, 2)")),
    ],
)
def test_networks_that_do_not_fit_series(settings, message):
    with refuse(*message):
        train(series(), "erm", **settings)


def test_what_is_wrong_inside_a_module_is_said():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        train(task_of(), "erm", net=lambda: nn.Linear(5, 1))


@pytest.mark.parametrize(("channels", "kernels"), [((4,), (3,)), ((), (3, 3)), ((4, 4), (3, 3, 3, 3))])
def test_kernels_and_channels_must_match(channels, kernels):
    with refuse("kernels must have one entry per layer", f"{len(kernels)} kernels and {len(channels)} channels"):
        Conv1d(2, 3, channels, kernels)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_frozen_parameters_stay_as_they_are(dropout):
    """Each run keeps its own frozen layer (fine-tuning), in one vectorised call and in the loop."""

    def factory():
        layers = [nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)]
        layers[0].requires_grad_(False)
        return nn.Sequential(*layers, *([nn.Dropout(dropout)] if dropout else []))

    task = task_of()
    fitted = train(task, "irm-tv-l1", Runs([3, 4]), net=factory, steps=20, dtype=torch.float64)
    assert set(fitted.chunks[0].last.parameters) == {"2.weight", "2.bias"}
    for r, seed in enumerate((3, 4)):
        torch.manual_seed(seed)
        module = factory().double().eval()
        before = module(task.train.x).squeeze(1)
        state = fitted.chunks[0].last.parameters
        module[2].load_state_dict({"weight": state["2.weight"][r], "bias": state["2.bias"][r]})
        torch.testing.assert_close(fitted.logits(task.train.x)[r], module(task.train.x).squeeze(1).detach())
        assert not torch.allclose(before, module(task.train.x).squeeze(1))


def test_a_factory_that_hands_out_one_module():
    module = nn.Linear(3, 1)
    with refuse("new module at every call", "net=lambda: MyModule"):
        train(task_of(), "erm", Runs([0, 1]), net=lambda: module)


def test_nothing_to_train():
    with refuse("net must have parameters to train"):
        train(task_of(), "erm", net=lambda: nn.Linear(3, 1).requires_grad_(False))
