"""Newton's method: values and derivatives against torch's own, and where it ends against scipy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from engine.problems import task_of
from engine.solvers.plainly import Plain
from irmtv.engine.solvers import second_order
from irmtv.engine.solvers.linear_risks import LinearRisks
from irmtv.engine.solvers.second_order import Local, Problem, Term, _step

D = 3
OUTPUTS = {"binary": 1, "multiclass": 3, "squared": 1, "targets": 2}
PENALTIES = {
    "none": (),
    "l2": (("l2", 3.0),),
    "l1": (("l1", 3.0),),
    "variance": (("variance", 3.0),),
    "l1 + variance": (("l1", 2.0), ("variance", 5.0)),
    "l2 + l1": (("l2", 0.7), ("l1", 4.0)),
    "all": (("l2", 0.7), ("l1", 4.0), ("variance", 2.0)),
}
MEASURES = {"empirical": "empirical", "uniform": "uniform", "weights": (0.5, 0.2, 0.3)}


def components_of(n_outputs, vector, d=D):
    if not vector:
        return torch.ones(n_outputs * (d + 1), 1, dtype=torch.float64)
    if n_outputs > 1:
        return torch.block_diag(*[torch.ones(d + 1, 1, dtype=torch.float64)] * n_outputs)
    return torch.cat([torch.eye(d, dtype=torch.float64), torch.zeros(1, d, dtype=torch.float64)])


def problem_of(tasks, kind, kinds, vector=False, measure="empirical", counts=None):
    """The solver's own form of `Plain`, on several data sets."""
    sets = [LinearRisks(t.train, t.train.environment, len(t.train.names), t.loss, OUTPUTS[kind]) for t in tasks]
    plain = [Plain(t.train, kind, measure=measure, counts=counts) for t in tasks]
    terms = [
        Term("risk", "l2", [p.counts for p in plain])
        if k == "variance"
        else Term("slope", k, [p.counts for p in plain])
        for k in kinds
    ]
    return Problem(sets, [p.mu for p in plain], terms, components_of(OUTPUTS[kind], vector))


def models(kind, n, seed=0, scale=0.5):
    size = OUTPUTS[kind] * (D + 1)
    return scale * torch.randn(n, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def zeros(n):
    return torch.zeros(n, dtype=torch.long)


def by_scipy(plain, start, method="BFGS"):
    result = minimize(
        plain.value_and_gradient, start.numpy(), jac=True, method=method, options={"gtol": 1e-11, "maxiter": 5000}
    )
    return torch.from_numpy(result.x), result.fun


# ---- value and derivatives


@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.parametrize("vector", [False, True], ids=["scalar", "vector"])
@pytest.mark.parametrize("penalties", PENALTIES)
def test_value_gradient_and_hessian(kind, vector, penalties):
    task = task_of(kind, n=60)
    chosen = PENALTIES[penalties]
    problem = problem_of([task], kind, [k for k, _ in chosen], vector)
    theta, l2, eps = models(kind, 2), doubles(0.0, 0.3), doubles(0.05, 0.5)
    weights = doubles(*(w for _, w in chosen)) * doubles(1.0, 2.0).unsqueeze(1)
    local = problem.local(theta, zeros(2), l2, weights, eps)
    for k in range(2):
        mine = tuple((name, w * (1 + k)) for name, w in chosen)
        plain = Plain(task.train, kind, mine, vector=vector, l2=float(l2[k]), eps=float(eps[k]))
        torch.testing.assert_close(local.value[k], plain(theta[k]).detach(), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(local.gradient[k], plain.gradient(theta[k]), rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(local.hessian[k] + local.rest[k], plain.hessian(theta[k]), rtol=1e-9, atol=1e-10)
        assert torch.linalg.eigvalsh(local.hessian[k])[0] > -1e-10  # the Gauss-Newton part is positive semi-definite
        if not chosen:
            assert not local.rest[k].any()


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("vector", [False, True], ids=["scalar", "vector"])
def test_measures(measure, vector):
    task = task_of(n=60)
    problem = problem_of([task], "binary", ["l1", "l2", "variance"], vector, MEASURES[measure])
    chosen = (("l1", 1.5), ("l2", 0.5), ("variance", 2.0))
    plain = Plain(task.train, "binary", chosen, vector=vector, eps=0.1, measure=MEASURES[measure])
    theta = models("binary", 1)
    local = problem.local(theta, zeros(1), doubles(0.0), doubles(1.5, 0.5, 2.0).unsqueeze(0), doubles(0.1))
    torch.testing.assert_close(local.value[0], plain(theta[0]).detach())
    torch.testing.assert_close(local.gradient[0], plain.gradient(theta[0]))
    torch.testing.assert_close((local.hessian + local.rest)[0], plain.hessian(theta[0]))


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_environments_may_count_other_than_in_the_risk_and_not_sum_to_one(norm):
    """As with the authors' reduction, which counts powers of the masses."""
    task = task_of(n=60)
    counts = Plain(task.train, "binary").mass ** 2
    problem = problem_of([task], "binary", [norm], counts=counts)
    plain = Plain(task.train, "binary", ((norm, 3.0),), counts=counts, eps=0.1)
    theta = models("binary", 1)
    local = problem.local(theta, zeros(1), doubles(0.0), doubles(3.0).unsqueeze(0), doubles(0.1))
    torch.testing.assert_close(local.value[0], plain(theta[0]).detach())
    torch.testing.assert_close(local.gradient[0], plain.gradient(theta[0]))
    torch.testing.assert_close((local.hessian + local.rest)[0], plain.hessian(theta[0]))


def test_row_weights():
    task = task_of(n=60, sample_weight=np.random.default_rng(5).integers(0, 4, 60))
    problem = problem_of([task], "binary", ["l1", "variance"])
    plain = Plain(task.train, "binary", (("l1", 1.5), ("variance", 2.0)), eps=0.1)
    theta = models("binary", 1)
    local = problem.local(theta, zeros(1), doubles(0.0), doubles(1.5, 2.0).unsqueeze(0), doubles(0.1))
    torch.testing.assert_close(local.value[0], plain(theta[0]).detach())
    torch.testing.assert_close((local.hessian + local.rest)[0], plain.hessian(theta[0]))


def test_the_l1_majorant_is_one():
    """What stands for the curvature of l1 is at least its own: the step with it is not too long."""
    task = task_of(n=60)
    problem = problem_of([task], "binary", ["l1"], vector=True)
    one = doubles(1.0).unsqueeze(0)
    for seed in range(5):
        theta = models("binary", 1, seed)
        point = problem.sets[0].at(theta)
        u, by_theta = second_order._inner(problem.terms[0], point, 0, problem.components)
        outer = second_order._outer("l1", u, by_theta, problem.terms[0].counts[0].expand(len(u), -1), 1e-3 * one[0])
        assert torch.linalg.eigvalsh(outer.curved - outer.exact)[0, 0] > -1e-10


def test_runs_are_evaluated_some_at_a_time(monkeypatch):
    tasks = [task_of(n=60, seed=s) for s in range(2)]
    problem = problem_of(tasks, "binary", ["l2"])
    owner = torch.tensor([1, 0, 0, 1, 1])
    arguments = (models("binary", 5), owner, torch.rand(5).double(), torch.rand(5, 1).double(), doubles(*[0.0] * 5))
    whole = problem.local(*arguments)
    monkeypatch.setattr(second_order, "NUMBERS_AT_ONCE", 1)
    for a, b in zip(whole, problem.local(*arguments), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    for k in range(5):
        alone = problem_of([tasks[owner[k]]], "binary", ["l2"])
        at = alone.local(arguments[0][k : k + 1], zeros(1), *(a[k : k + 1] for a in arguments[2:]))
        torch.testing.assert_close(at.value[0], whole.value[k])


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_runs_may_differ_in_their_classifiers(kind):
    """Components that a classifier does not have are columns of zeros."""
    task = task_of(kind, n=60)
    scalar, vector = (problem_of([task], kind, ["l1", "variance"], v) for v in (False, True))
    padded = torch.zeros_like(vector.components)
    padded[:, :1] = scalar.components
    mixed = replace(vector, components=torch.stack([padded, vector.components]))
    which = torch.tensor([1, 0, 0, 1])
    theta, l2, eps = models(kind, 4), torch.full((4,), 0.01).double(), torch.full((4,), 0.1).double()
    weights = doubles([1.0, 2.0]).repeat(4, 1)
    local = mixed.local(theta, zeros(4), l2, weights, eps, which)
    solved = mixed.minimise(theta, zeros(4), l2, weights, eps, kind=which)
    for k in range(4):
        one = slice(k, k + 1)
        own = (vector if which[k] else scalar, theta[one], zeros(1), l2[one], weights[one], eps[one])
        for a, b in zip(own[0].local(*own[1:]), local, strict=True):
            torch.testing.assert_close(a[0], b[k], rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(own[0].minimise(*own[1:]).theta[0], solved.theta[k], rtol=1e-6, atol=1e-8)


# ---- the minimum


@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.parametrize("l2", [0.0, 0.02])
def test_erm_is_what_scipy_finds(kind, l2):
    task = task_of(kind, n=200)
    problem = problem_of([task], kind, [])
    start = models(kind, 1)
    solution = problem.minimise(start, zeros(1), doubles(l2), torch.zeros(1, 0).double(), doubles(0.0))
    plain = Plain(task.train, kind, l2=l2)
    theta, value = by_scipy(plain, start[0])
    assert bool(solution.reached.all())
    assert abs(float(solution.value[0]) - value) < 1e-10
    if kind == "multiclass" and l2 == 0:  # probabilities do not see what is added to all outputs alike
        theta, found = (v.view(3, -1) - v.view(3, -1).mean(0) for v in (theta, solution.theta[0]))
    else:
        found = solution.theta[0]
    torch.testing.assert_close(found, theta, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.parametrize("penalties", ["l2", "l1", "variance", "all"])
def test_small_weights_give_what_scipy_finds_from_the_same_start(kind, penalties):
    task = task_of(kind, n=200)
    chosen = tuple((k, 0.02 * w) for k, w in PENALTIES[penalties])
    problem = problem_of([task], kind, [k for k, _ in chosen])
    start = models(kind, 1, scale=0.1)
    weights = doubles(*(w for _, w in chosen)).unsqueeze(0)
    solution = problem.minimise(start, zeros(1), doubles(0.01), weights, doubles(0.01))
    theta, value = by_scipy(Plain(task.train, kind, chosen, l2=0.01, eps=0.01), start[0])
    assert bool(solution.reached.all())
    assert abs(float(solution.value[0]) - value) < 1e-9
    torch.testing.assert_close(solution.theta[0], theta, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.parametrize("vector", [False, True], ids=["scalar", "vector"])
@pytest.mark.parametrize("penalties", ["l2", "l1", "variance", "all"])
def test_large_weights_end_at_a_stationary_point_that_scipy_cannot_better(kind, vector, penalties):
    """Along a path of weights; some of these go through a narrow curved valley, in more than a hundred steps."""
    task, base = task_of(kind, n=200), PENALTIES[penalties]
    problem = problem_of([task], kind, [k for k, _ in base], vector)
    weights = doubles(*(w for _, w in base))
    theta, l2, eps = models(kind, 1, scale=0.1), doubles(1e-3), doubles(0.02)
    for level in (0.0, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4):
        solution = problem.minimise(theta, zeros(1), l2, level * weights.unsqueeze(0), eps)
        assert bool(solution.reached.all())
        theta = solution.theta
        if level not in (10.0, 1e4):
            continue
        plain = Plain(task.train, kind, tuple((k, level * w) for k, w in base), vector=vector, l2=1e-3, eps=0.02)
        found = float(solution.value)
        assert abs(plain.value(theta[0]) - found) < 1e-9 * (1 + abs(found))
        curvature, directions = torch.linalg.eigh(plain.hessian(theta[0]))
        gradient = plain.finite_differences(theta[0], 1e-6)
        assert gradient.abs().max() < 1e-6 * (1 + curvature[-1])
        # how much lower the minimum of a parabola is that is fitted here
        along = (directions.T @ plain.gradient(theta[0])).square()
        assert (along / curvature.abs().clamp_min(1e-8 * curvature[-1])).sum() < 1e-8 * (1 + abs(found))
        assert found <= by_scipy(plain, theta[0], "L-BFGS-B")[1] + 1e-8 * (1 + abs(found))


def test_a_batch_of_runs_ends_where_each_alone_does():
    tasks = [task_of(n=150, seed=s) for s in range(2)]
    problem = problem_of(tasks, "binary", ["l1", "variance"], vector=True)
    owner = torch.tensor([0, 1, 1, 0, 0, 1])
    l2 = doubles(0.0, 1e-3, 0.1, 0.0, 1e-2, 0.0)
    weights = doubles([0, 0], [1, 0], [0, 10], [100, 3], [1e3, 1e3], [0.5, 0.25])
    eps = doubles(0.1, 0.1, 0.01, 0.01, 0.05, 1.0)
    start = models("binary", 6)
    together = problem.minimise(start, owner, l2, weights, eps)
    assert bool(together.reached.all())
    for k in range(6):
        one = slice(k, k + 1)
        alone = problem.minimise(start[one], owner[one], l2[one], weights[one], eps[one])
        torch.testing.assert_close(alone.theta[0], together.theta[k], rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(alone.value[0], together.value[k], rtol=1e-10, atol=1e-12)
        assert alone.steps[0] == together.steps[k]


def test_a_run_that_has_converged_is_not_moved():
    """However long its neighbours take."""
    task = task_of(n=150)
    problem = problem_of([task], "binary", ["l2"])
    l2, weights, eps = doubles(0.0, 0.0), doubles([0.0], [1e4]), doubles(0.0, 0.0)
    erm = problem.minimise(models("binary", 1), zeros(1), l2[:1], weights[:1], eps[:1])
    start = torch.cat([erm.theta, models("binary", 1, seed=3, scale=2.0)])
    both = problem.minimise(start, zeros(2), l2, weights, eps)
    assert both.steps[0] < 3 < both.steps[1]
    torch.testing.assert_close(both.theta[0], erm.theta[0], rtol=1e-9, atol=1e-11)
    assert both.value[0] <= erm.value[0]
    assert torch.equal(start[0], erm.theta[0])  # nor is what was given


def test_a_value_never_rises_and_the_last_one_is_told(monkeypatch):
    task = task_of(n=150)
    problem = problem_of([task], "binary", ["l1"])
    start, weights, eps = models("binary", 1), doubles([300.0]), doubles(1e-3)
    plain = Plain(task.train, "binary", (("l1", 300.0),), eps=1e-3)
    last = plain.value(start[0])
    for steps in (1, 2, 4, 8, 16):
        monkeypatch.setattr(second_order, "MOST_STEPS", steps)
        solution = problem.minimise(start, zeros(1), doubles(0.0), weights, eps)
        assert int(solution.steps[0]) <= steps
        assert float(solution.value[0]) <= last + 1e-12
        last = float(solution.value[0])
        torch.testing.assert_close(solution.value[0], plain(solution.theta[0]).detach())
    monkeypatch.setattr(second_order, "MOST_STEPS", 1)
    assert not bool(problem.minimise(start, zeros(1), doubles(0.0), weights, eps).reached.any())


def test_a_step_promises_a_decrease_wherever_it_is_taken():
    """Of the whole Hessian where that is positive definite, else of its Gauss-Newton part."""
    g = torch.Generator().manual_seed(0)
    a = torch.randn(4, 6, 5, generator=g, dtype=torch.float64)
    hessian = a.transpose(1, 2) @ a
    rest = torch.randn(4, 5, 5, generator=g, dtype=torch.float64) * doubles(0.01, 0.1, 10.0, 100.0).view(-1, 1, 1)
    rest = rest + rest.transpose(1, 2)
    gradient = torch.randn(4, 5, generator=g, dtype=torch.float64)
    definite = torch.linalg.eigvalsh(hessian + rest)[:, 0] > 1e-3
    assert definite.tolist() == [True, True, False, False]
    tiny = torch.full((4,), 1e-12, dtype=torch.float64)
    step, promised = _step(Local(torch.zeros(4).double(), gradient, hessian, rest), tiny)
    for k in range(4):
        used = hessian[k] + rest[k] if definite[k] else hessian[k]
        torch.testing.assert_close(step[k], -torch.linalg.solve(used, gradient[k]), rtol=1e-5, atol=1e-6)
        model = gradient[k] @ step[k] + step[k] @ used @ step[k] / 2
        torch.testing.assert_close(promised[k], -model, rtol=1e-6, atol=1e-9)
    assert bool((promised > 0).all())


def test_a_start_far_away_that_is_not_finite_stays_where_it_is():
    task = task_of(n=100)
    problem = problem_of([task], "binary", ["l2"])
    start = torch.full((1, 4), torch.nan, dtype=torch.float64)
    solution = problem.minimise(start, zeros(1), doubles(0.0), doubles([1.0]), doubles(0.0))
    assert not bool(solution.reached.any())
