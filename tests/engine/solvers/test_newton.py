"""solver="newton" and starts by name, through `train`: against scikit-learn, scipy, Adam and finite differences."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import import_module

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear, minimize
from sklearn.linear_model import LinearRegression, LogisticRegression

from engine.problems import arrays, close, parameters, refuse, task_of
from engine.solvers.plainly import Plain
from irmtv import OBJECTIVES, Runs, make_task, train
from irmtv.engine import MLP, Progress
from irmtv.engine.solvers import linear_risks, second_order
from irmtv.engine.solvers.newton import why_not

F64 = {"dtype": torch.float64}
NEWTON = {**F64, "solver": "newton"}
PLAIN = {  # the penalties of an objective, and the measure of its risk
    "erm": ((), "empirical"),
    "irm-tv-l2": (("l2",), "empirical"),
    "irm-tv-l1": (("l1",), "empirical"),
    "vrex": (("variance",), "empirical"),
    "irmv1": (("l2",), "uniform"),
    "irm-tv-l2+vrex": (("l2", "variance"), "empirical"),
    "irm-tv-l1+vrex": (("l1", "variance"), "empirical"),
}


def models(fitted, which="last"):
    """Every run's model as `Plain` reads it: (R, P)."""
    coef, intercept = fitted.coefficients(which=which)
    coef, intercept = coef.double(), intercept.double()
    joined = torch.cat([coef, intercept.unsqueeze(-1)], -1)
    return joined.flatten(1)


def plain_of(task, kind, objective, weight=0.0, **more):
    """The objective in plain words; `weight` is one for all penalties, or one for each."""
    kinds, measure = PLAIN[objective]
    weights = weight if isinstance(weight, tuple) else (weight,) * len(kinds)
    return Plain(task.train, kind, tuple(zip(kinds, weights, strict=True)), measure=measure, **more)


def smoothing(task, kind, objective, vector=False, l2=0.0):
    """A thousandth of ERM's total variation; ERM by scipy."""
    plain = plain_of(task, kind, objective, vector=vector, l2=l2)
    erm = Plain(task.train, kind, measure=PLAIN[objective][1], l2=l2)
    n_outputs = {"multiclass": 3, "targets": 2}.get(kind, 1)
    start = np.zeros(n_outputs * (task.train.x.shape[1] + 1))
    found = minimize(erm.value_and_gradient, start, jac=True, options={"gtol": 1e-9}).x
    return 1e-3 * float(plain.mass @ torch.linalg.vector_norm(plain.slopes(torch.from_numpy(found)).detach(), dim=1))


def gain_left(plain, theta):
    """How much lower a parabola that is fitted here goes, as a share of 1 + |F|."""
    curvature, directions = torch.linalg.eigh(plain.hessian(theta))
    along = (directions.T @ plain.gradient(theta)).square()
    gain = (along / curvature.abs().clamp_min(1e-8 * curvature[-1])).sum()
    return float(gain) / (1 + abs(plain.value(theta)))


@cache
def overlapping(kind="binary", n=400, **more):
    return task_of(kind, n=n, **more)


def logistic(x, y, sample_weight=None, **more):
    model = LogisticRegression(**{"C": np.inf, "solver": "newton-cholesky", "tol": 1e-10, "max_iter": 1000, **more})
    return model.fit(x, y, sample_weight)


# ---- ERM


def test_erm_is_logistic_regression():
    task = overlapping()
    theirs = logistic(task.train.x.numpy(), task.train.y.numpy())
    coef, intercept = train(task, "erm", **NEWTON).coefficients()
    np.testing.assert_allclose(coef.numpy(), theirs.coef_, rtol=1e-6)
    np.testing.assert_allclose(intercept.numpy(), theirs.intercept_, rtol=1e-6)


def test_erm_of_three_classes_is_multinomial_regression():
    task = overlapping("multiclass")
    theirs = logistic(task.train.x.numpy(), task.train.y.numpy(), solver="lbfgs")
    mine = torch.softmax(train(task, "erm", **NEWTON).logits(task.train.x)[0], -1)
    np.testing.assert_allclose(mine.numpy(), theirs.predict_proba(task.train.x.numpy()), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["squared", "targets"])
def test_erm_of_squared_errors_is_linear_regression(kind):
    task = overlapping(kind)
    theirs = LinearRegression().fit(task.train.x.numpy(), task.train.y.numpy())
    coef, intercept = train(task, "erm", **NEWTON).coefficients()
    np.testing.assert_allclose(coef[0].numpy(), theirs.coef_, rtol=1e-6)
    np.testing.assert_allclose(intercept[0].numpy(), theirs.intercept_, rtol=1e-6)


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_l2_is_scikit_learns_c(kind):
    """mean l + l2 |theta|^2 is, times n C, their C sum l + |theta|^2 / 2 with C = 1 / (2 n l2).

    They leave the intercept out of |theta|^2, and we do not: the intercept is a column of ones for them.
    """
    task, l2 = overlapping(kind), 0.03
    x = np.c_[task.train.x.numpy(), np.ones(len(task.train))]
    tight = {"solver": "lbfgs", "tol": 1e-12} if kind == "multiclass" else {}
    theirs = logistic(x, task.train.y.numpy(), C=1 / (2 * len(x) * l2), fit_intercept=False, **tight)
    mine = models(train(task, "erm", l2=l2, **NEWTON))[0]
    np.testing.assert_allclose(mine.numpy(), theirs.coef_.ravel(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["binary", "squared"])
def test_sample_weights(kind):
    weight = np.random.default_rng(3).integers(0, 4, 400) * 0.7
    task = task_of(kind, n=400, sample_weight=weight)
    x, y = task.train.x.numpy(), task.train.y.numpy()
    theirs = logistic(x, y, weight) if kind == "binary" else LinearRegression().fit(x, y, weight)
    coef, intercept = train(task, "erm", **NEWTON).coefficients()
    np.testing.assert_allclose(coef.numpy().ravel(), theirs.coef_.ravel(), rtol=1e-6)
    np.testing.assert_allclose(intercept.numpy(), theirs.intercept_, rtol=1e-6)


@pytest.mark.parametrize("objective", ["irm-tv-l1", "irm-tv-l2", "vrex"])
def test_a_row_that_counts_twice_is_two_rows(objective):
    times = np.random.default_rng(3).integers(0, 4, 200)
    x, y, e, _ = arrays(n=200)
    weighted = make_task(x, y, environment=e, sample_weight=times, min_rows=1, **F64)
    repeated = make_task(*(np.repeat(v, times, axis=0) for v in (x, y)), environment=np.repeat(e, times), **F64)
    a, b = (models(train(t, objective, penalty_weight=50.0, **NEWTON))[0] for t in (weighted, repeated))
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


# ---- the solution of penalised objectives


@pytest.mark.parametrize("kind", ["binary", "multiclass", "squared", "targets"])
@pytest.mark.parametrize("classifier", ["scalar", "vector"])
@pytest.mark.parametrize("objective", [o for o in PLAIN if o != "erm"])
def test_the_solution_is_stationary(kind, classifier, objective):
    task, vector, l2 = overlapping(kind, 200), classifier == "vector", 1e-3
    runs = Runs(penalty_weight=[0.03, 7.0, 2345.0])
    fitted = train(task, objective, runs, classifier=classifier, l2=l2, **NEWTON)
    assert bool(fitted.learned("converged").all())
    eps = smoothing(task, kind, objective, vector, l2) if "l1" in objective else 0.0
    for theta, weight in zip(models(fitted), (0.03, 7.0, 2345.0), strict=True):
        plain = plain_of(task, kind, objective, weight, vector=vector, l2=l2, eps=eps)
        assert gain_left(plain, theta) < 1e-8
        largest = torch.linalg.eigvalsh(plain.hessian(theta))[-1]
        assert plain.finite_differences(theta, 1e-7).norm() < 1e-6 * (1 + largest)


@pytest.mark.parametrize("start", ["erm", "equal-risks", "environment", "small", "random"])
@pytest.mark.parametrize("objective", ["irm-tv-l2", "irm-tv-l1"])
def test_every_start_ends_at_a_stationary_point(start, objective):
    task, l2 = overlapping(n=200), 1e-3
    fitted = train(task, objective, Runs(penalty_weight=[3.0, 40.0]), classifier="vector", start=start, l2=l2, **NEWTON)
    assert bool(fitted.learned("converged").all())
    eps = smoothing(task, "binary", objective, True, l2) if objective == "irm-tv-l1" else 0.0
    for theta, weight in zip(models(fitted), (3.0, 40.0), strict=True):
        assert gain_left(plain_of(task, "binary", objective, weight, vector=True, l2=l2, eps=eps), theta) < 1e-8


def test_a_penalty_weight_for_each_penalty_of_a_sum():
    task = overlapping(n=200)
    weight = {"irm-tv-l2": 3.0, "vrex": 70.0}
    theta = models(train(task, "irm-tv-l2+vrex", penalty_weight=weight, **NEWTON))[0]
    assert gain_left(plain_of(task, "binary", "irm-tv-l2+vrex", (3.0, 70.0)), theta) < 1e-8
    assert gain_left(plain_of(task, "binary", "irm-tv-l2+vrex", (70.0, 3.0)), theta) > 1e-6


@pytest.mark.parametrize("measure", ["uniform", (0.6, 0.1, 0.3)])
@pytest.mark.parametrize("objective", ["irm-tv-l2", "vrex"])
def test_measures(objective, measure):
    task = overlapping(n=200)
    theta = models(train(task, objective, measure=measure, penalty_weight=20.0, **NEWTON))[0]
    kinds = PLAIN[objective][0]
    assert gain_left(Plain(task.train, "binary", ((kinds[0], 20.0),), measure=measure), theta) < 1e-8


def test_the_authors_reduction():
    """Slopes weighed by the masses: sum_e |m_e S_e|^2."""
    task = overlapping(n=200)
    theta = models(train(task, "irm-tv-l2", reduction="authors", penalty_weight=20.0, **NEWTON))[0]
    mass = Plain(task.train, "binary").mass
    assert gain_left(Plain(task.train, "binary", (("l2", 20.0),), counts=mass**2), theta) < 1e-8


@pytest.mark.parametrize(("weight", "kinks"), [(3.0, 0), (30.0, 1), (1000.0, 2)])
def test_tv_l1_ends_where_zero_is_a_subgradient(weight, kinks):
    """0 = grad R + 2 lambda T sum_e mu_e v_e dS_e, where v_e = sign S_e, or anything in [-1, 1] at the kink S_e = 0."""
    task = overlapping()
    theta = models(train(task, "irm-tv-l1", penalty_weight=weight, **NEWTON))[0]
    plain, eps = plain_of(task, "binary", "irm-tv-l1", weight), smoothing(task, "binary", "irm-tv-l1")
    slopes = plain.slopes(theta).detach().squeeze(1)
    at_kink = slopes.abs() < 10 * eps
    assert int(at_kink.sum()) == kinks
    total = float(plain.mu @ slopes.abs())
    by_theta = torch.autograd.functional.jacobian(lambda t: plain.slopes(t).squeeze(1), theta)  # (E, P)
    pulls = 2 * weight * total * plain.mu.unsqueeze(1) * by_theta
    risk = Plain(task.train, "binary").gradient(theta)
    left = risk + (slopes.sign().unsqueeze(1) * pulls)[~at_kink].sum(0)
    if kinks:
        left = torch.from_numpy(lsq_linear(pulls[at_kink].T.numpy(), -left.numpy(), bounds=(-1, 1)).fun)
    assert left.norm() < 5 * eps / total * risk.norm()


@pytest.mark.parametrize("objective", ["irm-tv-l2", "irm-tv-l1", "vrex"])
def test_adam_goes_no_lower_in_five_thousand_steps_from_the_same_start(objective):
    task, weights = overlapping(n=200), [0.5, 10.0, 300.0]
    runs = Runs(penalty_weight=weights)
    adam = train(task, objective, runs, start="erm", steps=5000, warmup=0, learning_rate=2e-3, **F64)
    newton = train(task, objective, runs, start="erm", **NEWTON)
    for mine, theirs, weight in zip(models(newton), models(adam), weights, strict=True):
        plain = plain_of(task, "binary", objective, weight)
        # an l1 norm that is smoothed by eps is at most eps larger
        eps = smoothing(task, "binary", objective) if objective == "irm-tv-l1" else 0.0
        total = plain.penalty("l1", theirs).sqrt().item()
        assert plain.value(mine) <= plain.value(theirs) + 1e-9 + weight * ((total + eps) ** 2 - total**2)
        assert plain.value(mine) > plain.value(theirs) - 0.05  # nor is it elsewhere


# ---- runs


WEIGHTS = [0.0, 0.004, 0.1, 3.7, 10.0, 123.0]


@pytest.mark.parametrize("objective", ["irm-tv-l1", "irm-tv-l2", "vrex", "irm-tv-l1+vrex", "irmv1"])
@pytest.mark.parametrize("start", ["erm", "equal-risks"])
def test_a_run_alone_ends_where_it_ends_in_a_batch(objective, start):
    """On a path it shares with others, or that it has to itself."""
    tasks = [overlapping(n=200, seed=s) for s in range(2)]
    runs = {"penalty_weight": WEIGHTS * 2, "data": [0] * 6 + [1] * 6, "l2": [1e-3, 1e-3, 1e-3, 1e-3, 0.02, 1e-3] * 2}
    together = models(train(tasks, objective, Runs(**runs), start=start, **NEWTON))
    for r in (0, 3, 4, 11):
        alone = train(tasks, objective, Runs(**{k: v[r] for k, v in runs.items()}), start=start, **NEWTON)
        torch.testing.assert_close(models(alone)[0], together[r], rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("start", ["erm", "random"])
def test_chunks_change_nothing(start):
    task = overlapping(n=200)
    runs = Runs(penalty_weight=WEIGHTS, seed=range(6))
    settings = {"start": start, "l2": 1e-3, **NEWTON}
    whole = train(task, "irm-tv-l2", runs, **settings)
    cut = train(task, "irm-tv-l2", runs, max_chunk=4, **settings)
    assert len(cut.chunks) > len(whole.chunks)
    torch.testing.assert_close(models(cut), models(whole), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("objective", ["irm-tv-l1", "irm-tv-l2+vrex"])
@pytest.mark.parametrize("start", ["erm", "equal-risks", "environment", "small", "random"])
def test_weight_zero_is_erm_whatever_the_start(objective, start):
    task = overlapping(n=200)
    fitted = train(task, objective, Runs(penalty_weight=[0.0, 1.0]), start=start, **NEWTON)
    erm = train(task, "erm", **NEWTON)
    torch.testing.assert_close(models(fitted)[0], models(erm)[0], rtol=1e-9, atol=1e-11)
    assert not close(models(fitted)[1], models(erm)[0], 1e-4)
    only = train(task, objective, penalty_weight=0.0, start=start, **NEWTON)
    torch.testing.assert_close(models(only)[0], models(erm)[0], rtol=1e-9, atol=1e-11)


def test_runs_may_mix_starts_classifiers_and_solvers():
    task = overlapping(n=200)
    mixed = {
        "start": ["erm", "random", "equal-risks", "small", "environment", "random", None],
        "classifier": ["scalar", "vector", "vector", "scalar", "vector", "scalar", "vector"],
        "penalty_weight": [5.0, 5.0, 50.0, 5.0, 500.0, 5.0, 5.0],
        "seed": range(7),
        "l2": 1e-3,
    }
    fitted = train(task, "irm-tv-l2", Runs(**mixed), snapshot_every=1, **NEWTON)
    assert fitted.history.steps == (0, 1)
    for r in range(7):
        own = {k: v if isinstance(v, float) else v[r] for k, v in mixed.items()}
        start, classifier = own.pop("start"), own.pop("classifier")
        alone = train(task, "irm-tv-l2", Runs(**own), start=start, classifier=classifier, **NEWTON)
        torch.testing.assert_close(models(fitted)[r], models(alone)[0], rtol=1e-7, atol=1e-8)
        plain = plain_of(task, "binary", "irm-tv-l2", own["penalty_weight"], vector=classifier == "vector", l2=1e-3)
        assert gain_left(plain, models(fitted)[r]) < 1e-8
    both = train(task, "irm-tv-l2", Runs(solver=["adam", "newton"], l2=1e-3), penalty_weight=5.0, steps=10, **F64)
    torch.testing.assert_close(models(both)[1], models(fitted)[0], rtol=1e-7, atol=1e-8)


def test_none_is_erm_and_steps_learning_rate_and_warmup_say_nothing():
    task = overlapping(n=200)
    first = train(task, "irm-tv-l1", penalty_weight=5.0, **NEWTON)
    for other in ({"start": "erm"}, {"steps": 3}, {"learning_rate": 1.0}, {"warmup": 0.5}, {"batch_size": 16}):
        again = train(task, "irm-tv-l1", penalty_weight=5.0, **other, **NEWTON)
        assert torch.equal(models(first), models(again))


def test_random_starts_are_the_seeds():
    task = overlapping(n=200)
    settings = {"start": "random", "penalty_weight": 300.0, "classifier": "vector", "l2": 1e-3, **NEWTON}
    several = models(train(task, "irm-tv-l2", Runs(seed=range(8)), **settings))
    assert torch.equal(several, models(train(task, "irm-tv-l2", Runs(seed=range(8)), **settings)))
    assert not close(several[0], several[1:], 1e-3)  # several stationary points


def test_equal_risks_is_the_same_path_where_risks_are_among_the_penalties():
    task = overlapping(n=200)
    a, b = (
        models(train(task, "irm-tv-l2+vrex", start=s, penalty_weight=30.0, **NEWTON)) for s in ("erm", "equal-risks")
    )
    assert torch.equal(a, b)


# ---- inferred environments


@pytest.mark.parametrize("kind", ["binary", "multiclass", "squared"])
@pytest.mark.parametrize(
    ("objective", "norm", "power"), [("minimax-tv-l1", "l1", 1), ("minimax-tv-l2", "l2", 1), ("zin", "l2", 2)]
)
def test_inferred_environments_are_cut_once_and_the_solution_is_stationary_for_them(kind, objective, norm, power):
    """From one column of aux. The given environments play no part."""
    task, weight, l2 = overlapping(kind, 200), 7.0, 1e-3
    fitted = train(task, objective, penalty_weight=weight, l2=l2, **NEWTON)
    codes = fitted.membership()[0].argmax(1)
    assert set(codes.tolist()) == {0, 1}
    rows = replace(task.train, environment=codes, names=("one", "two"))
    mass = Plain(rows, kind).mass
    inferred = replace(task, train=rows)
    eps = smoothing(inferred, kind, "irm-tv-l1", l2=l2) if norm == "l1" else 0.0
    plain = Plain(rows, kind, ((norm, weight),), counts=mass**power, l2=l2, eps=eps)
    assert gain_left(plain, models(fitted)[0]) < 1e-8
    blind = make_task(task.train.x, task.train.y, aux=task.train.aux, **F64)
    again = train(blind, objective, penalty_weight=weight, l2=l2, **NEWTON)
    torch.testing.assert_close(models(again), models(fitted), rtol=1e-9, atol=1e-11)


# ---- what is told


def test_a_history_has_erm_and_the_solution_measured_on_held_out_rows():
    task = task_of(n=300, held_out=100)
    runs = Runs(penalty_weight=[0.0, 30.0])
    fitted = train(task, "irm-tv-l2", runs, snapshot_every=7, keep_states=True, **NEWTON)
    history, erm = fitted.history, models(train(task, "erm", **NEWTON))[0]
    assert history.steps == (0, 1)
    assert fitted.steps.tolist() == [1, 1]
    for step, theta in ((0, erm), (1, models(fitted)[1])):
        held = Plain(task.held_out, "binary", n_env=3)
        torch.testing.assert_close(history.risk[step, 1].double(), held.risks(theta), rtol=1e-6, atol=1e-8)
        slopes = held.slopes(theta).detach().squeeze(1)
        torch.testing.assert_close(history.slope[step, 1].double().reshape(-1), slopes, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(models(fitted.at(step))[1], theta, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(history.risk[0], history.risk[1][[0, 0]])  # ERM is all that weight 0 has


def test_a_history_without_held_out_rows_is_of_the_training_rows():
    task = overlapping(n=200)
    fitted = train(task, "irm-tv-l2", penalty_weight=30.0, snapshot_every=1, **NEWTON)
    expected = Plain(task.train, "binary").risks(models(fitted)[0])
    torch.testing.assert_close(fitted.history.risk[1, 0].double(), expected)


def test_select_keeps_the_better_of_erm_and_the_solution():
    task = task_of(n=300, held_out=100)
    fitted = train(task, "irm-tv-l2", Runs(penalty_weight=[0.0, 1e4]), classifier="vector", select="iid", **NEWTON)
    rows, risk = fitted.history.rows.double(), fitted.history.risk.double()
    pooled = (rows * risk).sum(2) / rows.sum(2)  # (2, R)
    assert pooled[0, 1] < pooled[1, 1]
    assert int(fitted.steps[1]) == 0
    torch.testing.assert_close(models(fitted, "selected")[1], models(train(task, "erm", **NEWTON))[0])


def test_steps_and_convergence_are_told():
    task = overlapping(n=200)
    fitted = train(task, "irm-tv-l1", Runs(penalty_weight=[0.0, 0.01, 10.0, 1e3]), **NEWTON)
    steps = fitted.learned("newton_steps")
    assert steps.shape == (4,) and int(steps[0]) >= 3 and bool((steps[1:] > steps[0]).all())
    assert steps[3] > steps[1]
    assert fitted.learned("converged").tolist() == [True] * 4
    with refuse("'converged', 'newton_steps'", "newton_step"):
        fitted.learned("newton_step")


def test_runs_that_do_not_reach_the_tolerance_are_named(monkeypatch):
    monkeypatch.setattr(second_order, "MOST_STEPS", 4)
    task = overlapping(n=200)
    with pytest.warns(
        UserWarning, match=r"not reach its tolerance in \d of 3 runs \(.*\)\. .* large penalty_weight"
    ) as told:
        fitted = train(task, "irm-tv-l2", Runs(penalty_weight=[0.0, 1.0, 1e4]), **NEWTON)
    assert len(told) == 1 and told[0].filename == __file__
    assert not bool(fitted.learned("converged")[2])


@pytest.mark.parametrize("l2", [0.0, 1e-4])
def test_classes_that_a_linear_model_separates(l2):
    """Without l2 there is no minimum, but what a step gains falls below the tolerance: it ends, without a warning."""
    x, _, e, _ = arrays(n=200)
    task = make_task(x, (x[:, 0] > 0.3).astype(float), environment=e, **F64)
    fitted = train(task, "irm-tv-l2", Runs(penalty_weight=[0.0, 10.0]), l2=l2, **NEWTON)
    assert bool(fitted.learned("converged").all())
    risks = Plain(task.train, "binary").risks(models(fitted)[0])
    assert bool((risks < (1e-8 if l2 == 0 else 0.1)).all())
    assert bool(models(fitted).isfinite().all())
    if l2:
        for theta, weight in zip(models(fitted), (0.0, 10.0), strict=True):
            assert gain_left(plain_of(task, "binary", "irm-tv-l2", weight, l2=l2), theta) < 1e-8


def test_progress():
    told: list[Progress] = []
    train(overlapping(n=200), "irm-tv-l2", Runs(penalty_weight=[1.0, 1e3]), progress=told.append, **NEWTON)
    shares = [p.share for p in told]
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] == 1


def test_plain_until():
    """Step 0 is ERM, and all of it where no penalty acts."""
    objective = OBJECTIVES["irm-tv-l1"]
    settings = {"steps": 50, "solver": "newton", "penalty_weight": 3.0, "warmup": 20}
    assert objective.plain_until(settings) == 0
    assert objective.plain_until({**settings, "penalty_weight": 0.0}) == 50
    assert OBJECTIVES["erm"].plain_until({"steps": 50, "solver": "newton"}) == 50


# ---- data of all kinds


def test_five_environments_of_unequal_sizes():
    task = task_of(n=400, environments=5)
    sizes = torch.bincount(task.train.environment)
    assert len(sizes) == 5 and sizes.max() > 3 * sizes.min()
    for objective in ("irm-tv-l2", "irmv1", "vrex"):
        theta = models(train(task, objective, penalty_weight=50.0, **NEWTON))[0]
        assert gain_left(plain_of(task, "binary", objective, 50.0), theta) < 1e-8


@pytest.mark.parametrize("objective", ["erm", "irm-tv-l1", "irm-tv-l2", "vrex"])
@pytest.mark.parametrize("classifier", ["scalar", "vector"])
def test_the_columns_scales_do_not_matter(objective, classifier):
    x, y, e, _ = arrays(n=200)
    scales = np.array([1e-5, 1.0, 1e5])
    settings = {**NEWTON, "classifier": classifier, **({} if objective == "erm" else {"penalty_weight": 30.0})}
    a, b = (train(make_task(v, y, environment=e, **F64), objective, **settings) for v in (x, x * scales))
    assert torch.equal(a.learned("newton_steps"), b.learned("newton_steps"))
    torch.testing.assert_close(
        b.coefficients()[0] * torch.from_numpy(scales), a.coefficients()[0], rtol=1e-6, atol=1e-8
    )
    torch.testing.assert_close(b.coefficients()[1], a.coefficients()[1], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("constant", [0.0, 1.0, -3.0])
@pytest.mark.parametrize("kind", ["binary", "squared"])
def test_a_constant_column(constant, kind):
    """Beside the intercept it says nothing: the predictions are those without it."""
    x, y, e, _ = arrays(kind, n=200)
    wide = np.c_[x, np.full(200, constant)]
    for objective, more in (("erm", {}), ("irm-tv-l2", {"penalty_weight": 20.0})):
        a, b = (train(make_task(v, y, environment=e, **F64), objective, **more, **NEWTON).logits(v) for v in (x, wide))
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["binary", "squared"])
def test_more_columns_than_rows(kind):
    task = task_of(kind, n=30, features=40, environments=2)
    fitted = train(task, "irm-tv-l2", Runs(penalty_weight=[0.0, 10.0]), l2=0.05, **NEWTON)
    assert bool(fitted.learned("converged").all())
    for theta, weight in zip(models(fitted), (0.0, 10.0), strict=True):
        assert gain_left(plain_of(task, kind, "irm-tv-l2", weight, l2=0.05), theta) < 1e-8


def test_single_precision_is_computed_in_double_and_rounded():
    x, y, e, _ = arrays(n=200)
    single = make_task(x, y, environment=e)
    double = make_task(single.train.x.double().numpy(), y, environment=e, **F64)
    settings = {"penalty_weight": 1e3, "solver": "newton"}
    a, b = train(single, "irm-tv-l1", **settings), train(double, "irm-tv-l1", **F64, **settings)
    assert a.coefficients()[0].dtype == torch.float32
    torch.testing.assert_close(a.coefficients()[0], b.coefficients()[0].float(), rtol=1e-6, atol=1e-7)


def test_tasks_without_environments_have_erm():
    x, y, _, _ = arrays(n=200)
    task = make_task(x, y, **F64)
    theirs = logistic(x, y)
    np.testing.assert_allclose(train(task, "erm", **NEWTON).coefficients()[0].numpy(), theirs.coef_, rtol=1e-6)


@pytest.mark.parametrize("kind", ["binary", "multiclass", "squared"])
def test_all_directions_of_x_are_the_columns_turned_which_a_scalar_classifier_does_not_see(kind):
    task = overlapping(kind, 200)
    settings = {"penalty_weight": 7.0, "l2": 1e-3, **NEWTON}
    a, b = (train(task, "irm-tv-l2", layer=layer, **settings) for layer in (None, 3))
    torch.testing.assert_close(models(a), models(b), rtol=1e-5, atol=1e-6)
    fewer = train(task, "irm-tv-l2", layer=2, **settings).coefficients()[0].reshape(-1, 3)
    assert torch.linalg.matrix_rank(fewer, rtol=1e-8) <= 2


# ---- starts of Adam

TINY = {"steps": 1, "learning_rate": 1e-12}


def test_adam_begins_at_erm():
    tasks = [overlapping(n=200, seed=s) for s in range(2)]
    runs = Runs(data=[1, 0, 1], l2=[0.0, 0.01, 0.1], seed=range(3))
    begun = models(train(tasks, "irm-tv-l1", runs, start="erm", warmup=0, **TINY, **F64))
    for theta, data, l2 in zip(begun, (1, 0, 1), (0.0, 0.01, 0.1), strict=True):
        plain = Plain(tasks[data].train, "binary", l2=l2)
        assert plain.gradient(theta).norm() < 1e-8
    solved = models(train(tasks, "erm", runs, **NEWTON))
    torch.testing.assert_close(begun, solved, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", ["multiclass", "squared", "targets"])
def test_adam_begins_at_erm_of_any_loss(kind):
    task = overlapping(kind, 200)
    theta = models(train(task, "erm", start="erm", **TINY, **F64))[0]
    assert Plain(task.train, kind).gradient(theta).norm() < 1e-6


def test_adam_begins_at_the_model_of_the_environment_where_erm_is_worst():
    task = overlapping(n=400)
    x, y, e = (v.numpy() for v in (task.train.x, task.train.y, task.train.environment))
    erm = logistic(x, y)
    risks = [-np.log(np.choose(y[e == i].astype(int), erm.predict_proba(x[e == i]).T)).mean() for i in range(3)]
    worst = int(np.argmax(risks))
    theirs = logistic(x[e == worst], y[e == worst])
    begun = train(task, "irm-tv-l1", start="environment", **TINY, **F64)
    np.testing.assert_allclose(begun.coefficients()[0].numpy(), theirs.coef_, rtol=1e-6)
    np.testing.assert_allclose(begun.coefficients()[1].numpy(), theirs.intercept_, rtol=1e-6)


@pytest.mark.parametrize("hidden", [(), (4,)])
def test_a_small_start_is_a_hundredth_of_the_random_one(hidden):
    task = overlapping(n=200)
    small, none, random = (
        parameters(train(task, "irm-tv-l1", Runs(seed=3), start=s, hidden=hidden, **TINY, **F64))[0]
        for s in ("small", None, "random")
    )
    assert torch.equal(none, random)
    torch.testing.assert_close(small, 0.01 * random, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("start", ["erm", "environment"])
@pytest.mark.parametrize("solver", ["adam", "newton"])
def test_a_start_is_solved_once_for_all_runs_that_share_it(start, solver, monkeypatch):
    solved, solve = [], second_order.Problem.minimise

    def counted(self, theta, *more):
        if not self.terms:
            solved.append(len(theta))
        return solve(self, theta, *more)

    monkeypatch.setattr(second_order.Problem, "minimise", counted)
    runs = Runs(seed=range(6), penalty_weight=[0.1, 1.0, 10.0] * 2, l2=[0.0] * 3 + [0.1] * 3)
    steps = {"steps": 1} if solver == "adam" else {}
    train(overlapping(n=200), "irm-tv-l2", runs, start=start, solver=solver, **steps, **F64)
    assert solved == ([2] if start == "erm" else [2, 1, 1])


def test_adams_starts_may_differ_between_runs():
    task = overlapping(n=200)
    names = ["erm", "random", "small", "environment", None]
    mixed = models(train(task, "irm-tv-l1", Runs(start=names, seed=range(5)), **TINY, **F64))
    for r, name in enumerate(names):
        alone = train(task, "irm-tv-l1", Runs(seed=r), start=name, **TINY, **F64)
        torch.testing.assert_close(mixed[r], models(alone)[0], rtol=1e-9, atol=1e-11)


# ---- refusals


@pytest.mark.parametrize(
    ("objective", "settings", "parts"),
    [
        ("irm-tv-l1", {"hidden": (4,)}, ("it is for linear models, hidden=(), and hidden is (4,)",)),
        ("irm-tv-l1", {"net": MLP(3, (), 1)}, ("the network is given by net=",)),
        ("lff", {}, ("'lff' is a way of training of its own",)),
        ("sparse-irm", {}, ("'sparse-irm' is a way of training of its own",)),
        ("hrm", {}, ("'hrm' is a way of training of its own",)),
        ("tiva", {}, ("'tiva' is a way of training of its own",)),
        ("eiil", {"variant": "joint"}, ("'eiil' infers environments row by row",)),
        (
            "minimax-tv-l1",
            {"schedule": "alternating"},
            ("schedule='alternating' moves the environments at every step",),
        ),
        ("mm-rex", {}, ("the penalty of 'mm-rex' is neither an l1 nor an l2 norm",)),
        ("irm-tv-l1+mm-rex", {}, ("the penalty of 'mm-rex' is neither",)),
        ("irm-tv-l1", {"penalty_weight": "adaptive"}, ("the penalty weight follows Phi",)),
        ("ood-tv-irm-l1", {}, ("the penalty weight follows Phi",)),
        ("irm-tv-l1", {"measure": "learned"}, ("the measure is learned",)),
        ("irm-tv-l1", {"expand": {"n": 4, "reach": 1.0}}, ("penalties see mixtures of the environments (expand)",)),
    ],
)
def test_what_newtons_method_cannot_do(objective, settings, parts):
    with refuse("solver='newton' is not for this: ", *parts, ". Use solver='adam'."):
        train(overlapping(n=200), objective, **settings, **NEWTON)


def test_newtons_method_knows_the_built_in_losses_only():
    def pinball(f, y):
        return torch.maximum(0.9 * (y - f), 0.1 * (f - y))

    x, y, e, _ = arrays("squared", n=200)
    task = make_task(x, y, environment=e, loss=pinball, **F64)
    with refuse("it knows the derivatives of the binary, multi-class and squared losses, not of 'pinball'"):
        train(task, "irm-tv-l1", **NEWTON)
    with refuse("start='erm' is for linear models, hidden=(), with a built-in loss"):
        train(task, "irm-tv-l1", start="erm", steps=1, **F64)


def test_what_starts_cannot_be():
    task = overlapping(n=200)
    given = {"W0": torch.zeros(1, 1, 3), "b0": torch.zeros(1, 1, 1)}
    with refuse("start must be a name with layer=2, one of ['erm', 'equal-risks'", "Got tensors; use layer=None"):
        train(task, "irm-tv-l1", start=given, layer=2, **NEWTON)
    with refuse("start='equal-risks' is a path of Newton's method. Use solver='newton' with it."):
        train(task, "irm-tv-l1", start="equal-risks", steps=1)
    for name in ("erm", "environment"):
        with refuse(f"start='{name}' is for linear models, hidden=()", "Got hidden=(4,)", "warmup=0.5"):
            train(task, "irm-tv-l1", start=name, hidden=(4,), steps=1)
        with refuse(f"start='{name}' is for linear models"):
            train(task, "irm-tv-l1", start=name, net=lambda: torch.nn.Linear(3, 1), steps=1)
        with refuse(f"start='{name}' is a model of x alone", "'tiva' predicts from aux", "'small' or 'random'"):
            train(task, "tiva", start=name, steps=1)
    with refuse("start must be one of ('erm', 'equal-risks', 'environment', 'small', 'random'), or None", "'ERM'"):
        train(task, "irm-tv-l1", start="ERM", **NEWTON)
    with refuse("start must be one of", "Got 'best' (run 1)"):
        train(task, "irm-tv-l1", Runs(start=["erm", "best"]), **NEWTON)
    with refuse("layer is for given environments. Got layer=2 for 'minimax-tv-l1'"):
        train(task, "minimax-tv-l1", layer=2, **NEWTON)
    with refuse("layer=2 is for linear models by solver='newton'", "Use solver='newton', or layer=None."):
        train(task, "irm-tv-l1", layer=2, steps=1)
    with refuse("solver must be 'adam' or 'newton'. Got 'lbfgs' (run 0)."):
        train(task, "irm-tv-l1", solver="lbfgs", **F64)


def test_why_not_has_nothing_against_what_it_can_do():
    loss = overlapping().loss
    for name in PLAIN:
        assert why_not(OBJECTIVES[name], {"hidden": (), "penalty_weight": 3.0}, loss) is None


def test_the_program_itself_refuses_other_networks(monkeypatch):
    monkeypatch.setattr(import_module("irmtv.engine.train"), "check_solver", lambda *_: None)
    with refuse("solver='newton' is for linear models", "Got net=MLP"):
        train(overlapping(n=200), "erm", net=MLP(3, (4,), 1), **NEWTON)


@pytest.mark.parametrize("objective", ["irm-tv-l1", "irm-tv-l2", "vrex"])
def test_a_given_start_is_gone_on_from(objective):
    """At a solution it stays, whatever path led there; by run, and one for all."""
    task, weights = overlapping(n=200), [5.0, 50.0]
    settings = {"l2": 1e-3, **NEWTON}
    for name in ("erm", "equal-risks"):
        first = train(task, objective, Runs(penalty_weight=weights), start=name, **settings)
        at = models(first)
        given = {"W0": at[:, None, :-1], "b0": at[:, None, -1:]}
        again = train(task, objective, Runs(penalty_weight=weights), start=given, **settings)
        torch.testing.assert_close(models(again), at, rtol=1e-4, atol=1e-5)
        assert bool((again.learned("newton_steps") < first.learned("newton_steps")).all())
        one = {name: value[:1] for name, value in given.items()}
        near = train(task, objective, Runs(penalty_weight=[5.0, 5.1]), start=one, **settings)
        torch.testing.assert_close(models(near)[:1], at[:1], rtol=1e-4, atol=1e-5)
    with refuse("start['W0'] must have the shape"):
        train(
            task, objective, penalty_weight=5.0, start={"W0": at[:1, None, 1:-1], "b0": at[:1, None, -1:]}, **settings
        )


def test_rows_are_read_once_and_erm_is_begun_where_it_ended(monkeypatch):
    built, steps = [], []
    init, minimise = linear_risks.SharedRows.__init__, second_order.Problem.minimise

    def counted(self, *args, **more):
        built.append(1)
        init(self, *args, **more)

    def watched(self, *args, **more):
        solved = minimise(self, *args, **more)
        steps.append(int(solved.steps.max()))
        return solved

    monkeypatch.setattr(linear_risks.SharedRows, "__init__", counted)
    monkeypatch.setattr(second_order.Problem, "minimise", watched)
    task = overlapping(n=200)
    apart = [models(train(task, name, **NEWTON)) for name in ("irm-tv-l1", "irm-tv-l1", "vrex")]
    assert len(built) == 3
    first = steps[0]
    built.clear()
    with linear_risks.rows_read_once():
        steps.clear()
        together = [models(train(task, name, **NEWTON)) for name in ("irm-tv-l1", "irm-tv-l1", "vrex")]
        assert len(built) == 1 and steps[0] == first > 2 and 1 in steps[1:]
        other = overlapping(n=200, seed=1)
        train(other, "erm", **NEWTON)
        assert len(built) == 2
    for a, b in zip(apart, together, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)
