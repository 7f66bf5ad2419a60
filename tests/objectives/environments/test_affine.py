"""Affine mixtures of environments: the coefficients, and what penalties make of the mixtures."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.problems import close, losses, parameters, refuse, task_of
from irmtv import OBJECTIVES, Runs, train
from irmtv.core.types import Statistics
from irmtv.engine.networks import MLP
from irmtv.objectives.environments import Affine
from irmtv.objectives.environments.affine import expanded, gathered

F64 = {"dtype": torch.float64}
PENALISED = ("irm-tv-l1", "irm-tv-l2", "vrex", "mm-rex", "irm-tv-l1+vrex")


def generators(*seeds):
    return [torch.Generator().manual_seed(s) for s in seeds]


def statistics(seed=0, runs=3, environments=4, mixtures=5, absent=(), vector=0):
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    mass = torch.rand(runs, environments, generator=g, dtype=torch.float64) + 0.2
    risk = normal(runs, environments).abs() + 0.1
    slope = normal(runs, environments, *([vector] if vector else []))
    for r, e in absent:  # as a mini-batch gives an environment that it does not have
        mass[r, e] = risk[r, e] = slope[r, e] = 0
    mass = mass / mass.sum(1, keepdim=True)
    coefficients = Affine(mixtures, 0.5).draw(environments, generators(*range(runs)))
    return Statistics((mass * risk).sum(1), mass, risk, slope, mixtures=coefficients)


# --- coefficients -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_environments", [2, 3, 10, 1000])
@pytest.mark.parametrize("reach", [0, 0.5, 3.0])
def test_coefficients_sum_to_one_and_lie_in_the_box(n_environments, reach):
    c = Affine(20, reach).draw(n_environments, generators(0, 1))
    assert c.shape == (2, 20, n_environments)
    assert torch.allclose(c.sum(2), torch.ones(2, 20).double(), atol=1e-9)
    assert c.min() >= -reach
    assert c.max() <= 1 + reach
    assert len(c.flatten(0, 1).unique(dim=0)) == 40
    if reach and n_environments < 1000:
        assert c.min() < 0  # it does extrapolate


def test_two_environments_by_hand():
    """On a line: the nearest point with c_1 + c_2 = 1 is the box point moved along (1, 1), cut at the ends."""
    g = torch.Generator().manual_seed(3)
    u = torch.rand(50, 2, generator=g, dtype=torch.float64) * 2 - 0.5
    first = (0.5 + (u[:, 0] - u[:, 1]) / 2).clamp(-0.5, 1.5)
    c = Affine(50, 0.5).draw(2, generators(3))[0]
    assert torch.allclose(c, torch.stack([first, 1 - first], 1), atol=1e-12)


def test_every_run_draws_its_own():
    together = Affine(6).draw(3, generators(1, 2, 1))
    alone = Affine(6).draw(3, generators(2))
    assert torch.equal(together[1], alone[0])
    assert torch.equal(together[0], together[2])
    assert not torch.equal(together[0], together[1])
    before = torch.get_rng_state()
    Affine(6).draw(3, generators(1))
    assert torch.equal(torch.get_rng_state(), before)


# --- statistics of mixtures ---------------------------------------------------------------------------------


def test_expanded_is_what_reweighted_rows_give():
    """Rows of environment e with weight c_e / n_e are the mixture: its risk and slope, from the rows."""
    task = task_of(n=90)
    phi = MLP(3, (), 1).init(0, torch.Generator().manual_seed(0))
    codes = task.train.environment
    counts = torch.bincount(codes).double()
    w = torch.ones((), dtype=torch.float64, requires_grad=True)
    each = losses("binary", (task.train.x @ phi["W0"].T + phi["b0"].T).squeeze(1) * w, task.train.y)

    def of(coefficient):
        risk = (coefficient[codes] / counts[codes] * each).sum()
        return torch.stack([risk.detach(), torch.autograd.grad(risk, w, retain_graph=True)[0]])

    own = torch.stack([of(row) for row in torch.eye(3, dtype=torch.float64)], 1)  # (2, 3)
    mixtures = Affine(8, 1.0).draw(3, generators(0))
    mass = (counts / 90).unsqueeze(0)
    e = expanded(Statistics(each.mean().detach()[None], mass, own[:1], own[1:], mixtures=mixtures))
    direct = torch.stack([of(c) for c in mixtures[0]], 1)
    assert torch.allclose(e.risk[0, 3:], direct[0], atol=1e-12)
    assert torch.allclose(e.slope[0, 3:], direct[1], atol=1e-12)
    assert torch.equal(e.risk[:, :3], own[:1])
    assert torch.allclose(e.mass, torch.full((1, 11), 1 / 11).double())
    assert e.mixtures is None
    assert e.learned is None


def test_nothing_to_expand():
    e = replace(statistics(), mixtures=None)
    assert expanded(e) is e


def test_vector_slopes_and_halves():
    e = statistics(vector=3)
    e = replace(e, slope_halves=(e.slope + 1, 2 * e.slope))
    seen = expanded(e)
    for before, after in ((e.slope, seen.slope), *zip(e.slope_halves, seen.slope_halves, strict=True)):
        assert after.shape == (3, 9, 3)
        for r in range(3):
            for m in range(5):
                by_hand = sum(e.mixtures[r, m, k] * before[r, k] for k in range(4))
                assert torch.allclose(after[r, 4 + m], by_hand)


def test_mixtures_of_an_absent_environment_drop_out():
    e = statistics(absent=[(0, 1), (2, 0), (2, 3)])
    e.mixtures[0, 2] = torch.tensor([0.5, 0.0, 0.7, -0.2])  # has nothing of the absent one
    seen = expanded(e)
    assert (seen.mass[0] > 0).tolist() == [True, False, True, True, False, False, True, False, False]
    assert torch.allclose(seen.mass[0][seen.mass[0] > 0], torch.full((4,), 0.25).double())
    assert torch.allclose(seen.mass[1], torch.full((9,), 1 / 9).double())
    assert (seen.mass[2] > 0).tolist() == [False, True, True, False] + [False] * 5


@pytest.mark.parametrize("absent", [(), ((0, 1), (2, 0), (2, 3))])
def test_gathered_is_the_backward_of_expanded(absent):
    e = statistics(absent=absent)
    risk = e.risk.clone().requires_grad_()
    pull = torch.randn(3, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = torch.autograd.grad((expanded(replace(e, risk=risk)).risk * pull).sum(), risk)[0]
    assert torch.allclose(gathered(pull, e.mixtures), expected)


# --- penalties ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["irm-tv-l1", "irm-tv-l2", "vrex", "irm-tv-l1+vrex"])
@pytest.mark.parametrize("absent", [(), ((0, 1), (2, 0), (2, 3))])
def test_the_closed_form_is_the_gradient_of_the_values(name, absent):
    objective = OBJECTIVES[name]
    settings = objective.resolve({"expand": {"n": 5, "reach": 0.5}})
    e = statistics(absent=absent)
    weight, scale = torch.tensor([2.0, 0.0, 30.0]).double(), torch.tensor([0.5, 1.0, 0.1]).double()
    weights = [(weight, (weight * scale).unsqueeze(1))] * len(objective.penalties)
    total, _, by_risk, by_slope = objective.value_and_gradient(e, settings, weights, scale)
    risk, slope = e.risk.clone().requires_grad_(), e.slope.clone().requires_grad_()
    values = objective.penalty_values(replace(e, risk=risk, slope=slope), settings)
    expected = objective.risk(e, settings) + sum(weight * v for v in values)
    grads = torch.autograd.grad((sum(weight * v for v in values) * scale).sum(), (risk, slope), allow_unused=True)
    assert torch.allclose(total, expected)
    for ours, theirs in zip((by_risk, by_slope), grads, strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or (torch.allclose(ours, theirs) and bool(ours.isfinite().all()))


@pytest.mark.parametrize("name", PENALISED)
def test_the_values_by_hand(name):
    """A list of environments and mixtures that all count the same; those with an absent part are left out."""
    absent = [(0, 1), (2, 0), (2, 3)]
    e = statistics(absent=absent)
    ours = OBJECTIVES[name].penalty_values(e, OBJECTIVES[name].resolve({"expand": Affine(5)}))
    for r in range(3):
        gone = {k for run, k in absent if run == r}
        here = [k for k in range(4) if k not in gone]
        risks, slopes = [float(e.risk[r, k]) for k in here], [float(e.slope[r, k]) for k in here]
        if not gone:
            for c in e.mixtures[r].tolist():
                risks.append(sum(a * float(b) for a, b in zip(c, e.risk[r], strict=True)))
                slopes.append(sum(a * float(b) for a, b in zip(c, e.slope[r], strict=True)))
        n, mean = len(risks), sum(risks) / len(risks)
        by_name = {
            "irm-tv-l1": (sum(map(abs, slopes)) / n) ** 2,
            "irm-tv-l2": sum(s**2 for s in slopes) / n,
            "vrex": sum((v - mean) ** 2 for v in risks) / n,
            "mm-rex": max(risks) - mean,
        }
        for value, part in zip(ours, name.split("+"), strict=True):
            assert float(value[r]) == pytest.approx(by_name[part], rel=1e-10)
    worst = OBJECTIVES[name].worst_risk(statistics())
    whole = statistics()
    mixed = torch.einsum("rme,re->rm", whole.mixtures, whole.risk)
    assert torch.allclose(worst, torch.cat([whole.risk, mixed], 1).amax(1))


# --- training -----------------------------------------------------------------------------------------------


def by_hand(task, name, expand, *, steps=12, warmup=4, weight=20.0, seed=0, rate=5e-3):
    """One run, line by line, its mixtures drawn after the start of Phi from the same generator."""
    generator = torch.Generator().manual_seed(seed)
    phi = {k: v.requires_grad_() for k, v in MLP(task.train.x.shape[1], (), 1).init(seed, generator).items()}
    codes = task.train.environment
    mixtures = expand.draw(len(task.train.names), [generator])[0]
    adam = torch.optim.Adam(phi.values(), lr=rate)
    for step in range(steps):
        w = torch.ones((), dtype=torch.float64, requires_grad=True)
        each = losses("binary", (task.train.x @ phi["W0"].T + phi["b0"].T).squeeze(1) * w, task.train.y)
        risks = torch.stack([each[codes == e].mean() for e in range(len(task.train.names))])
        slopes = torch.stack([torch.autograd.grad(r, w, create_graph=True)[0] for r in risks])
        risks, slopes = (torch.cat([v, mixtures @ v]) for v in (risks, slopes))
        penalty = {
            "irm-tv-l1": slopes.abs().mean().square(),
            "irm-tv-l2": slopes.square().mean(),
            "vrex": (risks - risks.mean()).square().mean(),
            "mm-rex": risks.max() - risks.mean(),
        }[name]
        total = each.mean() if name != "mm-rex" else risks[: len(task.train.names)].mean()
        total = (total + weight * penalty) / (1 + weight) if step >= warmup else total
        adam.zero_grad()
        total.backward()
        adam.step()
    return torch.cat([p.detach().flatten() for p in phi.values()])


@pytest.mark.parametrize("name", PENALISED[:4])
@pytest.mark.parametrize("expand", [Affine(6, 0.5), Affine(1, 0.0), Affine(9, 2)])
def test_steps_by_hand(name, expand):
    task = task_of()
    settings = {"steps": 12, "warmup": 4, "penalty_weight": 20.0, **F64}
    ours = parameters(train(task, name, expand=expand, **settings))[0]
    assert close(ours, by_hand(task, name, expand))
    assert not close(ours, parameters(train(task, name, **settings))[0], 1e-4)


@pytest.mark.parametrize("name", ["irm-tv-l1", "irm-tv-l2", "vrex", "mm-rex", "minimax-tv-l1", "minimax-tv-l2+vrex"])
@pytest.mark.parametrize("batch_size", [None, 10])
def test_runs_alone_and_together(name, batch_size):
    """Batches of 10 do not have all of 6 environments, so mixtures drop out; inferred environments mix as well."""
    task = task_of(environments=6)
    settings = {"expand": {"n": 4, "reach": 1.0}, "steps": 25, "warmup": 10, "batch_size": batch_size, **F64}
    together = parameters(train(task, name, Runs(seed=range(3), penalty_weight=[1.0, 10.0, 100.0]), **settings))
    assert all(bool(p.isfinite().all()) for p in together)
    for r in range(3):
        alone = train(task, name, Runs(seed=r, penalty_weight=10.0**r), **settings)
        assert close(together[r], parameters(alone)[0])


@pytest.mark.parametrize("name", ["irm-tv-l1", "vrex"])
def test_with_a_learned_measure_of_the_risk(name):
    """The risk follows the measure; the penalty counts environments and mixtures the same."""
    task = task_of()
    settings = {"expand": Affine(4), "steps": 25, "warmup": 5, **F64}
    learned = train(task, name, measure="learned", **settings)
    shares = torch.bincount(task.train.environment).double() / 100
    assert (learned.learned("measure")[0] - shares).abs().max() > 1e-4
    fixed = parameters(train(task, name, measure="learned", measure_distance=0.0, **settings))[0]
    assert close(fixed, parameters(train(task, name, **settings))[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Affine(0), "n of Affine must be a positive integer. Got 0"),
        (lambda: Affine(2.5), "n of Affine must be a positive integer. Got 2.5"),
        (lambda: Affine(4, -0.1), "reach of Affine must be a finite number of at least 0"),
        (lambda: Affine(4, float("inf")), "reach of Affine must be a finite number"),
        (lambda: Affine(4, float("nan")), "reach of Affine must be a finite number"),
        (lambda: Affine(4, True), "reach of Affine must be a finite number"),
        (lambda: OBJECTIVES["vrex"].resolve({"expand": {"n": 0}}), "n of Affine must be a positive integer. Got 0"),
        (lambda: OBJECTIVES["vrex"].resolve({"expand": {"m": 3}}), "expand of 'vrex' must be None"),
        (lambda: OBJECTIVES["vrex"].resolve({"expand": 64}), "expand of 'vrex' must be None"),
        (
            lambda: OBJECTIVES["irm-tv-l1"].resolve({"expand": Affine(), "reduction": "authors"}),
            "mixtures of environments have none. Got expand=Affine(n=64, reach=0.5)",
        ),
        (lambda: OBJECTIVES["zin"].resolve({"expand": Affine()}), "reduction='expectation'"),
    ],
)
def test_what_is_refused(make, message):
    with refuse(message):
        make()


def test_a_mapping_is_as_good_as_the_object():
    assert OBJECTIVES["vrex"].resolve({"expand": {"n": 3, "reach": 0}})["expand"] == Affine(3, 0)
    assert OBJECTIVES["vrex"].resolve({})["expand"] is None
