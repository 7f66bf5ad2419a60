"""Penalty weights in training: ramps, lambda that follows Phi, lambda that is learned; each against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from engine.problems import close, parameters, refuse, task_of
from irmtv import OBJECTIVES, Runs, train
from irmtv.engine.networks import MLP

STEPS, WARM, RATE = 25, 8, 5e-3


def slopes_and_risks(task, f):
    """R_e, S_e and m_e by a loop over environments, binary cross-entropy."""
    y, code = task.train.y.double(), task.train.environment
    loss = functional.binary_cross_entropy_with_logits(f, y, reduction="none")
    slope = (torch.sigmoid(f) - y) * f
    each = [code == e for e in range(len(task.train.names))]
    return (
        torch.stack([loss[m].mean() for m in each]),
        torch.stack([slope[m].mean() for m in each]),
        torch.stack([m.double().mean() for m in each]),
    )


def penalty_of(name, risk, slope, mass):
    if name.endswith("l1"):
        return (mass * slope.abs()).sum() ** 2
    if name.endswith("l2"):
        return (mass * slope**2).sum()
    return (mass * (risk - (mass * risk).sum()) ** 2).sum()


def by_hand(task, weigh, name="irm-tv-l1", seed=0, normalise=True, exact=False, learner=None, l2=0.0):
    """Coefficients after training. `weigh(step, risk, expected, penalty)` gives lambda without a graph."""
    x = task.train.x.double()
    start = MLP(x.shape[1]).init(seed, torch.Generator().manual_seed(seed))
    w, b = start["W0"].clone().requires_grad_(), start["b0"].clone().requires_grad_()
    adam = torch.optim.Adam([w, b], lr=RATE)
    for step in range(STEPS):
        risk, slope, mass = slopes_and_risks(task, (x @ w.T + b.T).squeeze(1))
        expected = (mass * risk).sum()
        total, scale = expected, 1.0
        if step >= WARM:
            penalty = penalty_of(name, risk, slope, mass)
            if exact:
                total = risk.max()
            else:
                weight = learner(w, b, penalty.detach()) if learner else weigh(step, risk, expected, penalty)
                total = expected + weight * penalty
                scale = 1 / (1 + torch.as_tensor(weight).item()) if normalise else 1.0
        adam.zero_grad()
        ((total + l2 * ((w**2).sum() + (b**2).sum())) * scale).backward()
        adam.step()
        if learner and step >= WARM:
            learner.climb(scale)
    return torch.cat([w.detach().flatten(), b.detach().flatten()])


def ours(task, name="irm-tv-l1", **settings):
    shared = {"steps": STEPS, "warmup": WARM, "learning_rate": RATE, "dtype": torch.float64}
    return train(task, name, **shared | settings)


@pytest.mark.parametrize("schedule", ["linear", "geometric"])
@pytest.mark.parametrize("ramp", [0.5, 1.0, 5])
@pytest.mark.parametrize("full", [0.5, 200.0])
def test_a_ramp_by_hand(schedule, ramp, full):
    task = task_of()
    length = ramp if isinstance(ramp, int) else round(ramp * (STEPS - WARM))

    def weigh(step, risk, expected, penalty):
        share = min(1.0, (step - WARM + 1) / length)
        return full * share if schedule == "linear" else (full**share if full > 1 else full)

    fitted = ours(task, penalty_weight=full, penalty_schedule=schedule, penalty_ramp=ramp, l2=1e-2)
    assert close(parameters(fitted)[0], by_hand(task, weigh, l2=1e-2))
    assert fitted.learned("penalty_weight").tolist() == pytest.approx([full])
    if full > 1:
        assert not close(parameters(fitted)[0], parameters(ours(task, penalty_weight=full, l2=1e-2))[0], 1e-4)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("name", ["irm-tv-l1", "irm-tv-l2", "vrex"])
@pytest.mark.parametrize("cap", [1e6, 3.0])
def test_adaptive_by_hand(name, normalise, cap):
    task = task_of()

    def weigh(step, risk, expected, penalty):
        return min(cap, ((risk.max() - expected) / penalty).item())

    fitted = ours(task, name, penalty_weight="adaptive", normalise=normalise, max_penalty_weight=cap)
    assert close(parameters(fitted)[0], by_hand(task, weigh, name, normalise=normalise))


@pytest.mark.parametrize("name", ["irm-tv-l1", "irm-tv-l2", "vrex", "mm-rex"])
def test_adaptive_exact_descends_the_worst_risk(name):
    task = task_of()
    settings = {"measure": "empirical"} if name == "mm-rex" else {}
    fitted = ours(task, name, penalty_weight="adaptive-exact", max_penalty_weight=1e12, **settings)
    assert close(parameters(fitted)[0], by_hand(task, None, exact=True))


def test_adaptive_exact_ends_below_erm_in_the_worst_environment():
    """It minimises what the docs say it minimises."""
    task = task_of(n=400)
    worst = {}
    for name, settings in {"erm": {}, "irm-tv-l1": {"penalty_weight": "adaptive-exact", "warmup": 100}}.items():
        fitted = train(task, name, steps=3000, snapshot_every=3000, dtype=torch.float64, **settings)
        worst[name] = fitted.history.risk[-1, 0].max()
    assert worst["irm-tv-l1"] < worst["erm"] - 1e-4


class LogWeight:
    """lambda = exp(theta), theta climbs scale * lambda * penalty by Adam."""

    def __init__(self, rate, cap=1e6):
        self.theta = torch.zeros((), dtype=torch.float64, requires_grad=True)
        self.adam = torch.optim.Adam([self.theta], lr=rate, maximize=True)
        self.cap = cap

    def __call__(self, w, b, penalty):
        self.penalty = penalty
        return self.theta.detach().exp().clamp_max(self.cap)

    def climb(self, scale):
        self.adam.zero_grad()
        (self.theta.exp() * self.penalty * scale * (self.theta.exp() < self.cap)).backward()
        self.adam.step()


@pytest.mark.parametrize("cap", [1e6, 1.5])
def test_a_learned_weight_by_hand(cap):
    task, learner = task_of(), LogWeight(0.1, cap)
    settings = {"penalty_weight": "learned", "weight_learning_rate": 0.1, "max_penalty_weight": cap}
    fitted = ours(task, **settings)
    expected = by_hand(task, None, learner=learner)
    assert close(parameters(fitted)[0], expected)
    assert 1 < fitted.learned("penalty_weight") <= cap


class Network:
    """lambda = unit softplus(MLP(Phi)); Phi's gradient goes through it."""

    def __init__(self, n_inputs, seed, rate, unit, hidden=16):
        g = torch.Generator().manual_seed(seed)
        MLP(n_inputs - 1).init(seed, g)  # Phi draws from the run's generator first

        def xavier(n_out, n_in):
            bound = np.sqrt(6 / (n_in + n_out))
            return torch.empty(n_out, n_in, dtype=torch.float64).uniform_(-bound, bound, generator=g).requires_grad_()

        zeros = torch.zeros(hidden, dtype=torch.float64)
        self.W, self.V = xavier(hidden, n_inputs), xavier(1, hidden)
        self.b, self.c = zeros.clone().requires_grad_(), zeros[:1].clone().requires_grad_()
        self.adam = torch.optim.Adam([self.W, self.b, self.V, self.c], lr=rate, maximize=True)
        self.unit = unit

    def __call__(self, w, b, penalty):
        flat = torch.cat([w.flatten(), b.flatten()])
        out = self.V @ (self.W @ flat + self.b).relu() + self.c
        self.weight = self.unit * functional.softplus(out).squeeze()
        self.penalty, self.flat = penalty, flat
        return self.weight

    def climb(self, scale):
        out = self.V @ (self.W @ self.flat.detach() + self.b).relu() + self.c
        self.adam.zero_grad()
        (self.unit * functional.softplus(out).squeeze() * self.penalty * scale).backward()
        self.adam.step()


@pytest.mark.parametrize("unit", [1.0, 50.0])
@pytest.mark.parametrize("kind", ["l1", "l2"])
def test_ood_tv_by_hand(unit, kind):
    """Phi descends risk + lambda(Phi) penalty through lambda too, while the network climbs."""
    task = task_of()
    learner = Network(4, 0, 1e-2, unit)
    fitted = ours(task, f"ood-tv-irm-{kind}", penalty_weight=unit)
    assert close(parameters(fitted)[0], by_hand(task, None, f"irm-tv-{kind}", learner=learner))
    plain = ours(task, f"irm-tv-{kind}", penalty_weight=fitted.learned("penalty_weight").item())
    assert not close(parameters(fitted)[0], parameters(plain)[0], 1e-3)


@pytest.mark.parametrize("name", ["ood-tv-minimax-l1", "ood-tv-minimax-l2"])
def test_with_inferred_environments_the_weight_climbs_too(name):
    fitted = ours(task_of(), name, steps=60, environment_learning_rate=1e-2)
    assert fitted.learned("penalty_weight").item() > np.log(2)  # where an untrained softplus would start
    assert not fitted.diverged


@pytest.mark.parametrize("mode", ["adaptive", "adaptive-exact", "learned"])
@pytest.mark.parametrize("name", ["minimax-tv-l1", "irm-tv-l1+vrex", "mm-rex"])
def test_every_mode_with_inferred_environments_and_sums(name, mode):
    fitted = ours(task_of(), name, penalty_weight=mode)
    erm = ours(task_of(), name, penalty_weight=0.0)
    assert not close(parameters(fitted)[0], parameters(erm)[0], 1e-4)


@pytest.mark.parametrize("mode", ["adaptive", "adaptive-exact", "learned"])
def test_warm_ups_of_their_own_and_modes_side_by_side(mode):
    """Runs with a number, and runs whose lambda follows Phi, in one call; each equals itself alone."""
    task = task_of()
    columns = {"seed": [0, 1, 2], "warmup": [3, 12, 3], "penalty_weight": [mode, mode, 10.0]}
    settings = {"weight_learning_rate": 0.1, "l2": 1e-2}
    together = parameters(ours(task, runs=Runs(**columns), **settings))
    for r in range(3):
        alone = ours(task, runs=Runs(**{k: v[r] for k, v in columns.items()}), **settings)
        assert close(together[r], parameters(alone)[0])


def test_a_mini_batch_may_give_a_negative_penalty():
    fitted = ours(task_of(n=300), "irm-tv-l2", penalty_weight="adaptive", batch_size=50)
    assert torch.isfinite(parameters(fitted)[0]).all()
    assert fitted.learned("penalty_weight") >= 0


def test_what_is_refused():
    with refuse("penalty_weight", "'adaptive', 'adaptive-exact', 'learned'", "'adaptve'"):
        ours(task_of(), penalty_weight="adaptve")
    with refuse("penalty_ramp", "share of the penalised steps in (0, 1]", "1.5"):
        ours(task_of(), penalty_ramp=1.5)
    with refuse("max_penalty_weight", "above 0"):
        ours(task_of(), penalty_weight="adaptive", max_penalty_weight=0)
    with refuse("penalty_weight of 'ood-tv-irm-l1'", "at least 0", "'learned'"):
        ours(task_of(), "ood-tv-irm-l1", penalty_weight="learned")
    with refuse("'ood-tv-irm-l1' is a way of training"):
        OBJECTIVES["ood-tv-irm-l1+vrex"]


def test_only_what_follows_phi_is_told():
    with refuse("nothing: these runs learned Phi alone", "'penalty_weight'"):
        ours(task_of(), penalty_weight=10.0).learned("penalty_weight")
