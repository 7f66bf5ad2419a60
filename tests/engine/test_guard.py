"""A run that turns non-finite is frozen and reported; its neighbours do not notice."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.problems import close, parameters, task_of
from irmtv import Runs, make_task, train
from irmtv.engine.optim import Adam, FlatParameters, Guard

pytestmark = pytest.mark.filterwarnings("ignore:.*diverged")  # what these tests are about; one asks for it

S = {"dtype": torch.float64, "steps": 30, "penalty_weight": 10.0, "warmup": 10}


def all_finite(fitted):
    rho = [v for state in fitted.state("last") for v in (state.rho or {}).values()]
    return all(p.isfinite().all() for p in [*parameters(fitted), *rho])


def finite_until_one(f, y):
    """A loss of one's own that pulls the logits up to 1, and is NaN beyond."""
    return torch.sqrt(1 - f) + 0 * y


# The guard itself


def three_runs(seed=0):
    generator = torch.Generator().manual_seed(seed)
    starts = [{"w": torch.randn(2, 2, generator=generator), "b": torch.randn(1, generator=generator)} for _ in range(3)]
    return FlatParameters(starts, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["objective", "gradient"])
def test_one_bad_run_is_held_and_the_others_are_left_alone(bad, where):
    phi = three_runs()
    adam = Adam(phi, torch.tensor([0.1, 0.2, 0.3]))
    guard = Guard(phi)
    phi.gradient.normal_(generator=torch.Generator().manual_seed(1))
    total = torch.tensor([1.0, 2.0, 3.0])
    guard.check(total, 4, adam)
    assert guard.report() == {} and not guard.all_dead

    if where == "objective":
        total[1] = bad
    else:
        phi.views["w"].grad[1, 0, 1] = bad
    before, gradient, rate = phi.vector.clone(), phi.gradient.clone(), adam.rate.clone()
    guard.check(total, 7, adam)
    assert guard.report() == {1: 7}
    mine = phi.spread(torch.tensor([0.0, 1.0, 0.0])).bool()
    assert torch.equal(phi.gradient[~mine], gradient[~mine]) and (phi.gradient[mine] == 0).all()
    assert torch.equal(adam.rate[~mine], rate[~mine]) and (adam.rate[mine] == 0).all()
    adam.step()
    assert torch.equal(phi.vector[mine], before[mine])
    assert (phi.vector[~mine] != before[~mine]).all()

    phi.gradient.fill_(1.0)  # it stays frozen, since its first failure, though it looks well again
    guard.check(torch.ones(3), 8, adam)
    assert guard.report() == {1: 7}
    assert (phi.gradient[mine] == 0).all()


def test_opposite_infinities_do_not_cancel():
    phi = three_runs()
    guard = Guard(phi)
    phi.views["w"].grad[0, 0, 0], phi.views["w"].grad[2, 0, 0] = torch.inf, -torch.inf
    guard.check(torch.zeros(3), 0, Adam(phi, torch.ones(3)))
    assert guard.report() == {0: 0, 2: 0}


def test_large_but_finite_numbers_are_no_failure():
    """Their sum overflows, which must not be taken for one of them."""
    phi = three_runs()
    guard = Guard(phi)
    phi.gradient.fill_(1.8e19)
    guard.check(torch.full((3,), 3e38), 0, Adam(phi, torch.ones(3)))
    assert guard.report() == {}


def test_a_gradient_without_a_finite_square_is_reported():
    """Adam would divide by infinity and the run would stand still without a word."""
    x = np.random.default_rng(0).normal(size=(100, 3)) * 1e6
    task = make_task(x, x[:, 0] * 2, environment=np.arange(100) % 2)
    with pytest.warns(UserWarning, match=r"2 of 2 runs diverged .*\(run: step 0: 0, 1: 0\)\. Lower learning_rate"):
        fitted = train(task, "irm-tv-l1", Runs(seed=[0, 1]), steps=5, warmup=0, normalise=False)
    assert fitted.diverged == {0: 0, 1: 0}


def test_all_dead():
    phi = three_runs()
    guard = Guard(phi)
    guard.check(torch.full((3,), torch.nan), 2, Adam(phi, torch.ones(3)))
    assert guard.all_dead and guard.report() == {0: 2, 1: 2, 2: 2}


# In training


@pytest.mark.parametrize(
    ("objective", "settings", "bad"),
    [
        ("irm-tv-l1", {}, {"learning_rate": 1e200}),
        ("vrex", {}, {"learning_rate": 1e200}),
        ("irm-tv-l2", {"hidden": (4,)}, {"learning_rate": 1e200}),
        ("irm-tv-l1", {"classifier": "vector"}, {"learning_rate": 1e200}),
        ("irm-tv-l1", {"batch_size": 30}, {"learning_rate": 1e200}),
        ("minimax-tv-l1", {}, {"learning_rate": 1e200}),
        ("minimax-tv-l1", {"schedule": "alternating"}, {"learning_rate": 1e200}),
        # l1 has nothing to climb here: all slopes have one sign, and the gradient of rho is 0
        ("minimax-tv-l2", {}, {"environment_learning_rate": 1e200}),
        ("minimax-tv-l2", {"schedule": "alternating"}, {"environment_learning_rate": 1e200}),
        # finite losses whose slopes are too large for rho's gradient. (A huge rate of rho's own need not fail in
        # mini-batches: where it makes all of rho's logits infinite of one sign, environments are one-sided but finite.)
        ("minimax-tv-l1", {"batch_size": 30}, {"learning_rate": 1e150}),
        ("irm-tv-l1", {}, {"penalty_weight": 1e307}),
    ],
)
def test_a_bad_run_leaves_its_neighbours_as_they_are_without_it(objective, settings, bad):
    ((name, value),) = bad.items()
    usual = {"learning_rate": 0.01, "environment_learning_rate": 0.01, "penalty_weight": 10.0}[name]
    shared = {**S, "learning_rate": 0.01, **settings}
    shared.pop(name, None)
    task = task_of("squared")
    normalise = {"normalise": False} if name == "penalty_weight" else {}
    with_it = train(task, objective, Runs([0, 1, 2], **{name: [usual, value, usual]}), **shared, **normalise)
    without = train(task, objective, Runs([0, 2], **{name: usual}), **shared, **normalise)
    assert set(with_it.diverged) == {1} and not without.diverged
    assert all_finite(with_it)
    assert close(parameters(with_it)[0], parameters(without)[0], 1e-10)
    assert close(parameters(with_it)[2], parameters(without)[1], 1e-10)
    step = with_it.diverged[1]
    assert with_it.steps.tolist() == [30, step, 30]


def barrier(steps, learning_rate, **settings):
    shared = {k: v for k, v in S.items() if k not in ("steps", "penalty_weight")}
    task = task_of("squared", loss=finite_until_one)
    runs = Runs([0, 1, 2, 3], learning_rate=learning_rate)
    return train(task, "irm-tv-l1", runs, steps=steps, penalty_weight=0.1, **shared, **settings)


def test_a_run_is_frozen_where_it_stood_before_it_failed():
    """The state of run 1 is that of a training that stops at the reported step."""

    class Small(torch.nn.Linear):
        def reset_parameters(self):
            torch.nn.init.zeros_(self.weight)
            torch.nn.init.constant_(self.bias, -1.0)

    rates = [1e-3, 0.2, 1e-3, 0.5]
    fitted = barrier(40, rates, net=lambda: Small(3, 1))
    assert set(fitted.diverged) == {1, 3}
    assert all_finite(fitted)
    for r, step in fitted.diverged.items():
        assert 0 < step < 40
        short = barrier(step, rates, net=lambda: Small(3, 1))
        assert r not in short.diverged
        assert close(parameters(fitted)[r], parameters(short)[r])
        # one step more is where it fails
        assert barrier(step + 1, rates, net=lambda: Small(3, 1)).diverged[r] == step
    calm = barrier(40, [1e-3] * 4, net=lambda: Small(3, 1))
    for r in (0, 2):
        assert close(parameters(fitted)[r], parameters(calm)[r], 1e-10)


def test_float32_and_chunks_report_the_right_runs():
    runs = Runs(range(5), learning_rate=[0.01, 1e30, 0.01, 0.01, 1e30])
    settings = {**S, "dtype": torch.float32}
    whole = train(task_of(), "irm-tv-l1", runs, **settings)
    cut = train(task_of(), "irm-tv-l1", runs, max_chunk=2, **settings)
    assert set(whole.diverged) == {1, 4}
    assert whole.diverged == cut.diverged
    assert list(cut.diverged) == [1, 4]


def test_the_best_state_of_a_frozen_run_is_one_it_had():
    runs = Runs([0, 1], learning_rate=[0.01, 1e200])
    fitted = train(task_of(), "irm-tv-l1", runs, select="iid", snapshot_every=5, **S)
    assert fitted.steps[1] <= fitted.diverged[1]
    assert all_finite(fitted)
    assert fitted.logits(task_of().train.x)[0].isfinite().all()


@pytest.mark.parametrize("objective", ["irm-tv-l1", "minimax-tv-l1"])
def test_where_all_runs_fail_training_stops_early(objective):
    """Without an error, in every phase, with a last report; other chunks go on."""
    told = []
    settings = {**S, "steps": 100, "warmup": 50}
    runs = Runs([0, 1, 2], learning_rate=[1e200, 1e200, 0.01], hidden=[(), (), (3,)])
    fitted = train(
        task_of("squared"), objective, runs, snapshot_every=10, progress=lambda p: told.append(p), **settings
    )
    assert set(fitted.diverged) == {0, 1}
    first = [p.step for p in told if p.runs_done == 0]
    assert first[-1] == 100
    assert len(first) == max(fitted.diverged.values()) + 2  # one per step until the last one failed, and the end
    assert [p.step for p in told if p.runs_done == 2] == list(range(101))
    assert fitted.steps[2] == 100
    history = fitted.history  # the runs that stopped have no later records
    assert history.risk.shape[:2] == (len(history.steps), 3)
    assert history.risk[-1, 2].isfinite().all()
    assert (history.rows[-1, :2] == 0).all()


@pytest.mark.parametrize(
    ("name", "settings", "what"),
    [
        ("groupdro", {"batch_size": 16}, "measure"),
        ("irm-tv-l1", {"measure": "learned", "warmup": 2}, "measure"),
        ("irm-tv-l2", {"penalty_weight": "adaptive", "warmup": 2}, "penalty_weight"),
        ("irm-tv-l1", {"penalty_weight": "learned", "warmup": 15}, "penalty_weight"),
        ("ood-tv-irm-l1", {"warmup": 15}, "penalty_weight"),
    ],
    ids=str,
)
def test_what_a_frozen_run_learned_stands_still_with_it(name, settings, what):
    task = task_of("squared")
    runs = Runs(seed=[0, 1], learning_rate=[1e-3, 1e180])
    with pytest.warns(UserWarning, match="1 of 2 runs diverged"):
        fitted = train(task, name, runs, steps=30, snapshot_every=1, keep_states=True, dtype=torch.float64, **settings)
    frozen = fitted.diverged[1]
    assert frozen < 15
    then, last = (fitted.at(s).learned(what)[1] for s in (frozen + 1, 30))
    assert torch.isfinite(last).all()
    assert torch.equal(then, last)
    assert not torch.equal(fitted.at(frozen + 1).learned(what)[0], fitted.learned(what)[0])  # the other goes on
