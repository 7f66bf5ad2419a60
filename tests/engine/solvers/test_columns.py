"""Columns chosen outright: every part by brute force, then what is promised of the whole."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import nn

from irmtv import Runs, make_task, train
from irmtv.core.losses import as_loss
from irmtv.datasets import make_simulation
from irmtv.engine.solvers import column_sets, columns, second_order
from irmtv.engine.solvers.column_sets import (
    GradientValues,
    Moments,
    RegretValues,
    Sums,
    all_masks,
    best_sets,
    chi_square_quantile,
    chosen_columns,
)
from irmtv.engine.solvers.linear_risks import LinearRisks
from irmtv.engine.solvers.second_order import Problem, Term

STEPS = [(1.0, 0.05), (100.0, 0.05), (100.0, 0.5)]


def data(n=900, d=8, seed=0, loss="squared", n_environments=3, spread=0.2):
    """Two columns are causes, which spread more and more; the others follow y, differently in every environment."""
    rng = np.random.default_rng(seed)
    e = rng.integers(n_environments, size=n)
    x = rng.normal(size=(n, d)) * (1 + spread * e[:, None])
    y = drawn(rng, x[:, 0] - x[:, 1], loss, 1 + 0.3 * e)
    x[:, 2:] = (2 - e[:, None]) * (y - y.mean())[:, None] + rng.normal(size=(n, d - 2))
    return x, y, e


def drawn(rng, signal, loss, noise):
    """y from a linear model that is true; noise of any size for numbers."""
    if loss == "squared":
        return signal + noise * rng.normal(size=len(signal))
    if loss == "binary":
        return (2 * signal + rng.logistic(size=len(signal)) > 0).astype(float)
    scores = 2 * signal[:, None] * np.array([-1, 0.3, 1])
    return (scores + rng.gumbel(size=scores.shape)).argmax(1)


def task_of(x, y, e, loss="squared", **more):
    return make_task(x, y, environment=e, loss=loss, dtype=torch.float64, min_rows=1, **more)


def risks_of(task, loss="squared"):
    rows = task.train
    return LinearRisks(rows, rows.environment, len(rows.names), as_loss(loss, task.n_outputs), task.n_outputs)


def fit(task, weights=(100.0,), **settings):
    return train(task, "eills", Runs(penalty_weight=list(weights)), dtype=torch.float64, **settings)


def parameters(fitted):
    coef, intercept = fitted.coefficients()
    return torch.cat([coef.flatten(1), intercept.reshape(len(coef), -1)], 1)


def taken(fitted):
    return [np.flatnonzero(row).tolist() for row in fitted.learned("columns").numpy()]


# ---- second moments --------------------------------------------------------------------------------------------


def rss(x, y, w):
    """Weighted residual sum of squares of the fit with intercept, over all targets, and the fit."""
    u, root = np.column_stack([np.ones(len(x)), x]), np.sqrt(w)[:, None]
    beta = np.linalg.lstsq(u * root, y * root, rcond=None)[0]
    return float((w[:, None] * (y - u @ beta) ** 2).sum()), beta


def regret_by_hand(x, y, e, w, mu, steps):
    """Values of all sets, in the words of the file's head."""
    codes, t = sorted(set(e)), y.shape[1]
    weight = sum(np.where(e == k, m * w / w[e == k].sum(), 0) for k, m in zip(codes, mu, strict=True))
    y = (y - weight @ y) / np.sqrt(weight @ (y - weight @ y) ** 2)
    centred = x - weight @ x
    rows = np.array([w[e == k].sum() ** 2 / (w[e == k] ** 2).sum() for k in codes])
    n = rows.sum()

    def cost(risk, size):
        return risk * n / (n - size - 1) * np.log(n) / n

    values = np.empty((len(steps), 2 ** x.shape[1]))
    for s in range(2 ** x.shape[1]):
        mine = [j for j in range(x.shape[1]) if s >> j & 1]
        size = len(mine)
        risk = rss(x[:, mine], y, weight)[0]
        own = np.array([rss(x[e == k][:, mine], y[e == k], w[e == k] / w[e == k].sum())[0] for k in codes])
        others = [rss(x[:, [i for i in mine if i != j]], y, weight)[0] for j in mine]
        earning = sum(other - risk > cost(risk, size) for other in others)
        overall = risk / t * n / (n - size - 1)
        noise = (own * rows / t + 2 * overall) / (rows - size - 1 + 2)
        squares = np.column_stack([np.ones(len(x)), centred[:, mine]]) ** 2
        share = np.array([weight[e == k] @ squares[e == k] for k in codes]) / (weight @ squares)
        parts = noise * mu / rows * (1 - share.mean(1))
        degrees = max((earning + 1) * t * (len(codes) - 1) * parts.sum() ** 2 / (parts**2).sum() / len(codes), 1)
        for g, (gamma, level) in enumerate(steps):
            spread = 2 / (9 * degrees)
            quantile = (1 - spread + stats.norm.ppf(1 - level) * np.sqrt(spread)) ** 3
            excess = max(risk - mu @ own - (earning + 1) * t * parts.sum() * quantile, 0)
            values[g, s] = risk + (size + 1) * cost(risk, size) + gamma * excess
    return values


@pytest.mark.parametrize(("n_targets", "measure"), [(1, "empirical"), (2, "empirical"), (1, (0.2, 0.3, 0.5))])
def test_values_of_all_sets_by_brute_force(n_targets, measure):
    x, y, e = data(d=6)
    w = np.random.default_rng(1).uniform(0.5, 2, len(x))
    y = np.column_stack([y, x[:, 2] + y])[:, :n_targets]
    task = task_of(x, y if n_targets > 1 else y[:, 0], e, sample_weight=w)
    risks = risks_of(task)
    mu = risks.mass if measure == "empirical" else torch.tensor(measure, dtype=torch.float64)
    values = RegretValues(Moments.of(risks, mu), STEPS)
    expected = regret_by_hand(x, y, e, w, mu.numpy(), STEPS)
    np.testing.assert_allclose(values.of_all().numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(values.of(all_masks(6)).numpy(), expected, rtol=1e-6)
    chosen = best_sets(values, 6, 3)
    assert all((all_masks(6)[expected[g].argsort()[:3]] == chosen[g]).all() for g in range(len(STEPS)))


def published_by_hand(x, y, e, gamma, mine):
    """The least value on a set, and its coefficients (the intercept first)."""
    u = np.column_stack([np.ones(len(x)), x[:, mine]])
    codes, hessian, toward, total = sorted(set(e)), 0, 0, 0
    for k in codes:
        at, mu = u[e == k], (e == k).mean()
        a, b = at.T @ at / len(at), at.T @ y[e == k] / len(at)
        hessian = hessian + mu * (a + 4 * gamma * a @ a)
        toward = toward + mu * (b + 4 * gamma * a @ b)
        total = total + mu * ((y[e == k] ** 2).mean() + 4 * gamma * b @ b)
    beta = np.linalg.solve(hessian, toward)
    return total - toward @ beta, beta


def test_the_published_form_by_brute_force():
    x, y, e = data(d=6, n=300)
    x *= np.array([1, 2, 0.5, 1, 3, 1.0])
    task, gammas = task_of(x, y, e), (0.01, 0.3, 30.0)
    risks = risks_of(task)
    moments = Moments.of(risks, risks.mass, standardise=False)
    values = GradientValues(moments, torch.tensor(gammas, dtype=torch.float64), of_labels=False)
    sets = [[j for j in range(6) if s >> j & 1] for s in range(64)]
    expected = np.array([[published_by_hand(x, y, e, gamma, mine)[0] for mine in sets] for gamma in gammas])
    np.testing.assert_allclose(values.of_all().numpy(), expected, rtol=1e-6)
    fitted = fit(task, gammas, form="published")
    for g, gamma in enumerate(gammas):
        best = sets[int(expected[g].argmin())]
        assert taken(fitted)[g] == best
        beta = published_by_hand(x, y, e, gamma, best)[1]
        mine = parameters(fitted)[g].numpy()
        np.testing.assert_allclose(mine[[*best, 6]], [*beta[1:], beta[0]], rtol=1e-5)


def test_the_l1_form_by_brute_force():
    x, y, e = data(d=4, n=300)
    u = np.column_stack([x, np.ones(len(x))])

    def value(beta, mine, gamma):
        size = total = 0.0
        for k in sorted(set(e)):
            residual = u[e == k][:, mine] @ beta - y[e == k]
            mu = (e == k).mean()
            total += mu * (residual**2).mean()
            size += mu * np.linalg.norm(2 * u[e == k][:, mine].T @ residual / (e == k).sum())
        return total + gamma * size**2

    for gamma in (0.02, 0.3):
        found = []
        for k in range(5):
            for some in itertools.combinations(range(4), k):
                mine = [*some, 4]
                begin = np.linalg.lstsq(u[:, mine], y, rcond=None)[0]
                solved = optimize.minimize(value, begin, (mine, gamma), method="Nelder-Mead", tol=1e-10)
                found.append((solved.fun, list(some)))
        fitted = fit(task_of(x, y, e), [gamma], form="l1")
        assert taken(fitted)[0] == min(found)[1]
        mine = [*min(found)[1], 4]
        assert value(parameters(fitted)[0].numpy()[mine], mine, gamma) <= min(found)[0] * (1 + 1e-4)


def test_labels_of_several_classes_become_uncorrelated_numbers():
    x, y, e = data(loss="multiclass")
    moments = Moments.of(risks_of(task_of(x, y, e, "multiclass"), "multiclass"), torch.tensor([0.2, 0.3, 0.5]).double())
    assert moments.n_targets == 2
    torch.testing.assert_close(moments.stacked[0, -2:, -2:], torch.eye(2, dtype=torch.float64))


def test_the_search_finds_what_looking_at_all_sets_finds(monkeypatch):
    x, y, e = data(d=9)
    risks = risks_of(task_of(x, y, e))
    plain, two = Moments.of(risks, risks.mass, standardise=False), torch.tensor([0.1, 10.0]).double()
    for values, n in (
        (RegretValues(Moments.of(risks, risks.mass), STEPS), 3),
        (GradientValues(plain, two, of_labels=False), 2),
    ):
        exact = best_sets(values, 9, 1)
        monkeypatch.setattr(type(values), "most", 0)
        found = best_sets(values, 9, 5)
        assert [bool((found[g][0] == exact[g][0]).all()) for g in range(n)] == [True] * n
        assert all(len(torch.unique(sets, dim=0)) == len(sets) == 5 for sets in found)


def test_columns_of_noise_do_not_hide_a_spurious_one():
    """Together they would widen what counts as noise: here 35 of them, beside 5 causes and 10 effects."""
    task = make_simulation(5000, p_s=(0.999, 0.9), p_v=0.8, random_state=700)
    x = np.column_stack([task.train.x.numpy(), np.random.default_rng(0).normal(size=(5000, 35))])
    fitted = fit(task_of(x, task.train.y.numpy(), task.train.environment.numpy(), "binary"), [1e4])
    assert taken(fitted) == [[0, 1, 2, 3, 4]]


def test_logistic_risks_to_second_order_around_a_model():
    """Of every set: the least value of the quadratic, of all rows and of each environment, by solving for it."""
    x, y, e = data(300, d=3, loss="binary")
    risks = risks_of(task_of(x, y, e, "binary"), "binary")
    theta = 0.3 * torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    moments = Moments.around(risks, risks.mass, theta, torch.arange(3))
    point = risks.at(theta.unsqueeze(0))
    pooled = [risks.mass @ point.risk[0], risks.mass @ point.gradient[0]]
    pooled.append(torch.einsum("e,eij->ij", risks.mass, point.hessian[0]))
    parts = [pooled, *zip(point.risk[0], point.gradient[0], point.hessian[0], strict=True)]
    for s in range(8):
        mine = [3, *[j for j in range(3) if s >> j & 1]]  # the intercept last in theta, first in the moments
        other = [j for j in range(4) if j not in mine]
        for matrix, (risk, gradient, hessian) in zip(moments.stacked, parts, strict=True):
            at = [0, *[j + 1 for j in mine[1:]]]
            inside, toward = matrix[at][:, at], matrix[at, -1]
            least = matrix[-1, -1] - toward @ torch.linalg.solve(inside, toward)
            # from theta to 0 outside of the set, and freely in it
            step = torch.zeros(4, dtype=torch.float64)
            step[other] = -theta[other]
            step[mine] = -torch.linalg.solve(hessian[mine][:, mine], (gradient + hessian @ step)[mine])
            expected = risk + gradient @ step + step @ hessian @ step / 2
            assert float(least) == pytest.approx(2 * float(expected), rel=1e-8)


def test_classes_whose_causes_spread_differently():
    """Squared errors of labels see other slopes there: no set of the first list passes the test."""
    x, y, e = data(2000, loss="binary", spread=1.0)
    assert taken(fit(task_of(x, y, e, "binary"), [100.0, 1e4], l2=1e-3)) == [[0, 1], [0, 1]]


def test_quantiles_of_chi_square():
    degrees = torch.tensor([1.0, 5.0, 40.0], dtype=torch.float64)
    for level in (0.01, 0.05, 0.5):
        np.testing.assert_allclose(chi_square_quantile(degrees, level), stats.chi2.ppf(1 - level, degrees), rtol=0.08)
        np.testing.assert_allclose(
            chi_square_quantile(degrees, level)[1:], stats.chi2.ppf(1 - level, degrees[1:]), rtol=5e-3
        )


# ---- the fits with the true loss -------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["binary", "squared", "multiclass"])
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_the_penalty_of_gradients_and_its_derivatives(loss, norm):
    x, y, e = data(n=60, d=3, loss=loss)
    task = task_of(x, y, e, loss)
    risks = risks_of(task, loss)
    p = risks.n_parameters
    used = torch.ones(p, dtype=torch.float64)
    used[1] = 0
    problem = Problem([risks], [risks.mass], [Term("gradient", norm, [risks.mass])], torch.diag(used).unsqueeze(0))
    theta = 0.3 * torch.randn(p, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    kind, one = torch.zeros(1, dtype=torch.long), torch.ones(1, dtype=torch.float64)

    def local(t):
        return problem.local(t.unsqueeze(0), kind, 0.1 * one, 2 * one.unsqueeze(1), 1e-3 * one, kind)

    here = local(theta)
    sizes = (risks.at(theta.unsqueeze(0)).gradient[0] * used).square().sum(1)
    penalty = risks.mass @ sizes if norm == "l2" else (risks.mass @ (sizes + 1e-6).sqrt()) ** 2
    risk = float(risks.at(theta.unsqueeze(0)).risk @ risks.mass)
    assert float(here.value) == pytest.approx(risk + 0.1 * float(theta.square().sum()) + 2 * float(penalty))
    h, whole = 1e-5, (here.hessian + here.rest)[0]
    for i in range(p):
        up, down = (local(theta + s * h * torch.eye(p, dtype=torch.float64)[i]) for s in (1, -1))
        assert float(up.value - down.value) / (2 * h) == pytest.approx(float(here.gradient[0, i]), rel=1e-5, abs=1e-7)
        torch.testing.assert_close((up.gradient - down.gradient)[0] / (2 * h), whole[i], rtol=1e-4, atol=1e-6)


def test_spread_is_the_second_moment_of_the_rows_gradients():
    for loss in ("binary", "multiclass", "squared"):
        x, y, e = data(n=50, d=2, loss=loss)
        risks = risks_of(task_of(x, y, e, loss), loss)
        theta = 0.3 * torch.randn(
            1, risks.n_parameters, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
        )
        spread = risks.spread(theta)[0]
        for k, part in enumerate(risks.parts):
            f = theta.view(risks.n_outputs, -1) @ risks.x[part].T  # (C, n)
            target = risks.y[part] if risks.n_outputs > 1 else risks.y[part].double()
            outputs = f.T if risks.n_outputs > 1 else f[0]
            residual = risks.loss.residual(outputs, target).reshape(len(target), -1)
            rows = (residual.unsqueeze(2) * risks.x[part].unsqueeze(1)).flatten(1)
            torch.testing.assert_close(spread[k], rows.T @ rows / len(rows))


def judged(task, loss, mine=None, l2=0.0):
    """The pooled fit of a set, judged."""
    risks = risks_of(task, loss)
    d = task.train.x.shape[1]
    used = torch.ones(d + 1, dtype=torch.float64)
    if mine is not None:
        used[:-1] = torch.tensor([float(j in mine) for j in range(d)])
    used = used.repeat(risks.n_outputs).unsqueeze(0)
    problem = columns.OnColumns([risks], [risks.mass], (), torch.diag_embed(used))
    zero, one = torch.zeros_like(used), torch.ones(1, dtype=torch.float64)
    which = torch.zeros(1, dtype=torch.long)
    theta = problem.minimise(zero, which, l2 * one, zero[:, :0], one, kind=which).theta
    return columns.judge(risks, risks.mass, theta, used, l2 * one), theta, risks


def test_the_statistic_by_hand():
    """One step of the generalised method of moments, on two environments and the columns 0 and 2."""
    x, y, e = data(n=400, d=3, loss="binary", n_environments=2)
    found, theta, _ = judged(task_of(x, y, e, "binary"), "binary", [0, 2])
    assert float(theta[0, 1]) == 0
    u = np.column_stack([x[:, [0, 2]], np.ones(len(x))])
    p = 1 / (1 + np.exp(-u @ theta[0, [0, 2, 3]].numpy()))
    parts, gradients, curve = [], u * (p - y)[:, None], p * (1 - p)
    scale = (gradients**2).sum() / (curve @ u**2).sum()
    for k in (0, 1):
        at, n = e == k, (e == k).sum()
        rows = gradients[at]
        hessian = (u[at] * curve[at, None]).T @ u[at] / n
        covariance = np.cov(rows.T, bias=True)
        lean = (2 * 3 + 10) / n
        covariance = (covariance + lean * scale * hessian) / (1 + lean)
        parts.append((n, rows.mean(0), hessian, np.linalg.inv(covariance)))
    step = -np.linalg.solve(sum(n * h @ s @ h for n, g, h, s in parts), sum(n * h @ s @ g for n, g, h, s in parts))
    statistic = sum(n * (g + h @ step) @ s @ (g + h @ step) for n, g, h, s in parts)
    assert float(found.statistic) == pytest.approx(statistic, rel=1e-6)
    regret = sum(n / len(x) * g @ np.linalg.solve(h, g) / 2 for n, g, h, s in parts)
    assert float(found.regret) == pytest.approx(regret, rel=1e-8)
    own = [float(judged(task_of(x[e == k], y[e == k], e[e == k], "binary"), "binary", [0, 2])[0].risk) for k in (0, 1)]
    assert float(found.risk) - np.average(own, weights=[n for n, *_ in parts]) == pytest.approx(regret, rel=0.2)


@pytest.mark.parametrize("loss", ["binary", "squared", "multiclass"])
def test_the_statistic_is_a_chi_square_where_nothing_differs(loss):
    """Noise that grows with a column too, and environments of unequal size: p-values of 150 draws are uniform."""
    values = []
    for seed in range(150):
        rng = np.random.default_rng(seed)
        e = (rng.uniform(size=600) < 0.3).astype(int)
        x = rng.normal(size=(600, 3)) * (1 + 0.5 * e[:, None])
        y = drawn(rng, 0.5 * (x[:, 0] - x[:, 1]), loss, 0.5 + np.abs(x[:, 0]))
        found, _, _ = judged(task_of(x, y, e, loss), loss)
        degrees = 4 * (2 if loss == "multiclass" else 1)
        values.append(float(stats.chi2.sf(float(found.statistic), degrees)))
    assert stats.kstest(values, "uniform").pvalue > 0.01
    assert 0.01 < np.mean(np.array(values) < 0.05) < 0.11


def test_degrees_count_columns_that_earn_their_place():
    x, y, e = data(d=3, loss="multiclass")
    x[:, 1] = np.random.default_rng(5).normal(size=len(x))
    found, _, _ = judged(task_of(x, y, e, "multiclass"), "multiclass")
    assert float(found.degrees) == (1 + 2) * 2 * 2  # the intercept and two of three columns, outputs, environments


# ---- the whole -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["binary", "squared", "multiclass"])
def test_it_takes_the_causes_and_fits_them(loss):
    x, y, e = data(2000, loss=loss)
    fitted = fit(task_of(x, y, e, loss), [100.0, 1e4], snapshot_every=1, l2=1e-3)
    assert taken(fitted) == [[0, 1], [0, 1]]
    coef, _ = fitted.coefficients()
    assert (coef[..., 2:] == 0).all() and (coef[..., :2] != 0).all()
    expected = train(task_of(x[:, :2], y, e, loss), "erm", solver="newton", dtype=torch.float64, l2=1e-3)
    torch.testing.assert_close(coef[0, ..., :2], expected.coefficients()[0][0], rtol=1e-4, atol=1e-5)
    assert fitted.history.steps == (0, 1)
    rows = fitted.history.rows[0, 0].to(fitted.history.risk.dtype)
    assert (fitted.history.risk[0] @ rows < fitted.history.risk[1] @ rows).all()
    assert fitted.learned("converged").all() and (fitted.learned("newton_steps") > 0).all()


def test_all_sets_of_a_table_of_eight_columns_by_brute_force():
    """What is chosen is the best of all 256 fits, judged one by one."""
    x, y, e = data(600, loss="binary", seed=4)
    task = task_of(x, y, e, "binary")
    chosen = taken(fit(task, [3.0, 1e3], l2=1e-3))
    every = [[j for j in range(8) if s >> j & 1] for s in range(256)]
    values = torch.cat(
        [judged(task, "binary", mine, 1e-3)[0].values(torch.tensor([3.0, 1e3]).double(), 0.05) for mine in every], 1
    )
    assert chosen == [every[int(v.argmin())] for v in values]


@pytest.mark.parametrize("loss", ["binary", "squared", "multiclass"])
def test_weight_zero_is_erm_on_all_columns(loss):
    x, y, e = data(loss=loss)
    task = task_of(x, y, e, loss)
    zero = fit(task, [0.0], l2=1e-3)
    expected = train(task, "erm", solver="newton", dtype=torch.float64, l2=1e-3)
    torch.testing.assert_close(parameters(zero), parameters(expected))
    assert taken(zero) == [list(range(8))]


@pytest.mark.parametrize("form", ["regret", "published", "l1"])
@pytest.mark.parametrize("loss", ["binary", "squared", "multiclass"])
def test_a_run_in_a_batch_is_the_same_run_alone(loss, form):
    tasks = [task_of(*data(300, d=4, seed=i, loss=loss), loss) for i in range(2)]
    every = {"data": [0, 1, 1, 0], "penalty_weight": [0.1, 10.0, 0.0, 1e3], "l2": [1e-4, 1e-3, 1e-4, 2e-4]}
    together = train(tasks, "eills", Runs(**every), dtype=torch.float64, form=form)
    for r in range(4):
        alone = train(tasks, "eills", Runs(**{k: v[r] for k, v in every.items()}), dtype=torch.float64, form=form)
        torch.testing.assert_close(parameters(together)[r], parameters(alone)[0], rtol=1e-6, atol=1e-8)
    assert len({tuple(row.round(decimals=6).tolist()) for row in parameters(together)}) == 4


@pytest.mark.parametrize("form", ["published", "l1"])
@pytest.mark.parametrize("loss", ["binary", "squared", "multiclass"])
def test_weights_are_repeated_rows_and_a_name_is_no_evidence(loss, form):
    x, y, e = data(300, d=4, loss=loss)
    settings = {"weights": [0.3], "form": form, "l2": 1e-3}
    times = np.random.default_rng(7).integers(0, 4, len(y))
    weighted = fit(task_of(x, y, e, loss, sample_weight=0.7 * times), **settings)
    repeated = fit(task_of(*(np.repeat(v, times, axis=0) for v in (x, y, e)), loss), **settings)
    torch.testing.assert_close(parameters(weighted), parameters(repeated), rtol=1e-6, atol=1e-8)
    plain = parameters(fit(task_of(x, y, e, loss), **settings))
    twice = task_of(*(np.concatenate([v, v]) for v in (x, y)), np.concatenate([e, e + 10]), loss)
    torch.testing.assert_close(parameters(fit(twice, **settings)), plain, rtol=1e-6, atol=1e-8)


def test_weights_of_the_regret_form_count_for_fewer_rows():
    """Equal weights change nothing; where few rows have nearly all the weight, these are the rows that count."""
    x, y, e = data(400, loss="binary", n_environments=2)
    plain = fit(task_of(x, y, e, "binary"))
    equal = fit(task_of(x, y, e, "binary", sample_weight=np.full(400, 3.0)))
    torch.testing.assert_close(parameters(plain), parameters(equal))
    uneven = np.where(np.arange(400) % 10 == 0, 1.0, 1e-6)
    risks = risks_of(task_of(x, y, e, "binary", sample_weight=uneven), "binary")
    assert float(Moments.of(risks, risks.mass).rows.sum()) == pytest.approx(40, rel=1e-3)


@pytest.mark.parametrize("form", ["regret", "published", "l1"])
def test_a_column_that_does_not_vary_is_not_taken(form):
    x, y, e = data(d=4)
    x = np.column_stack([x, np.ones(len(x)), np.zeros(len(x)), x[:, 0]])
    fitted = fit(task_of(x, y, e), [10.0], form=form, l2=1e-6)
    assert not {4, 5} & set(taken(fitted)[0])
    assert parameters(fitted).isfinite().all()


def test_a_column_that_varies_in_one_environment_only():
    x, y, e = data(2000, loss="binary", n_environments=2)
    x[e == 0, 1] = 0
    y = (x[:, 0] - x[:, 1] + np.random.default_rng(3).normal(size=len(x)) > 0).astype(float)
    assert taken(fit(task_of(x[:, :2], y, e, "binary")))[0] == [0, 1]


def test_an_environment_without_rows_does_not_count():
    x, y, e = data(1200)
    whole = task_of(x, y, e)
    some = torch.tensor(np.flatnonzero(e != 2))
    part = task_of(x[e != 2], y[e != 2], e[e != 2])
    rows = whole.train.take(some)
    assert len(rows.names) == 3
    missing = fit(replace(whole, train=rows))
    torch.testing.assert_close(parameters(missing), parameters(fit(part)))
    uniform = fit(replace(whole, train=rows), measure="uniform")
    torch.testing.assert_close(parameters(uniform), parameters(fit(part, measure="uniform")))


def test_fewer_rows_than_columns():
    """At most half as many columns as rows are taken; an environment of two rows neither helps nor hurts much."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 40))
    y, e = 3 * x[:, 0] + rng.normal(size=20), np.repeat([0, 1], 10)
    fitted = fit(task_of(x, y, e), l2=1e-3)
    assert 0 in taken(fitted)[0] and len(taken(fitted)[0]) < 10
    x, y, e = data(1000, n_environments=2)
    for rows in (1, 2):
        e[:rows] = 5
        assert taken(fit(task_of(x, y, e)))[0] == [0, 1]


def test_one_environment_that_counts_leaves_what_columns_must_earn():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, 5))
    e = np.repeat([0, 1], 500)
    y = x[:, 0] + np.where(e, 0, 1) * x[:, 3] + rng.normal(size=1000)
    assert taken(fit(task_of(x, y, e)))[0] == [0]
    assert taken(fit(task_of(x, y, e), measure=(1.0, 0.0)))[0] == [0, 3]
    assert taken(fit(task_of(x, y, e), measure=(0.0, 1.0)))[0] == [0]


def test_a_target_without_noise():
    x, _, e = data(300)
    assert taken(fit(task_of(x, x[:, 0] - 2 * x[:, 1], e)))[0] == [0, 1]


def test_no_column_that_varies():
    _, y, e = data(300, loss="binary")
    for form in ("regret", "published", "l1"):
        fitted = fit(task_of(np.ones((300, 2)), y, e, "binary"), form=form, l2=1e-4)
        assert taken(fitted) == [[]] and (fitted.coefficients()[0] == 0).all()


def test_several_targets():
    x, y, e = data(2000)
    both = np.column_stack([y, 2 * x[:, 0] + np.random.default_rng(1).normal(size=len(x))])
    assert taken(fit(task_of(x, both, e)))[0] == [0, 1]


def test_classes_that_a_column_separates(monkeypatch):
    """The fits that are compared have a little ridge; a model that is not reached is told."""
    rng = np.random.default_rng(0)
    e, y = np.repeat([0, 1], 500), rng.integers(2, size=1000).astype(float)
    x = np.column_stack([2 * y - 1 + rng.normal(size=1000), (2 * y - 1) * (1 + e) + 0.01 * rng.normal(size=1000)])
    task = task_of(x, y, e, "binary")
    assert len(taken(fit(task, [1.0], l2=1e-3))[0]) > 0
    monkeypatch.setattr(second_order, "MOST_STEPS", 3)
    with pytest.warns(UserWarning, match="did not reach its tolerance in 1 of 1 runs"):
        fit(task, [0.0])


def test_columns_may_be_many_and_the_list_short(monkeypatch):
    monkeypatch.setattr(columns, "SHORT_LIST", 8)
    x, y, e = data(1000, d=20)
    assert column_sets.RegretValues.most < 20
    assert taken(fit(task_of(x, y, e)))[0] == [0, 1]


def test_what_it_cannot_do():
    x, y, e = data(100, d=3)
    task = task_of(x, y, e)
    with pytest.raises(ValueError, match="hidden must be empty"):
        train(task, "eills", hidden=(4,))
    with pytest.raises(ValueError, match=r"use hidden=\(\) and no net=\. Got net=Module"):
        train(task, "eills", net=lambda: nn.Linear(3, 1))
    with pytest.raises(ValueError, match=r"start must be None or a name\. Got tensors"):
        train(task, "eills", start={"W0": torch.zeros(1, 1, 3), "b0": torch.zeros(1, 1, 1)})
    own = make_task(x, y, environment=e, loss=lambda f, y: (f - y).abs(), dtype=torch.float64)
    with pytest.raises(ValueError, match="needs the derivatives of the loss"):
        train(own, "eills")
    for solver in ("adam", "newton"):  # one is as good as the other
        assert parameters(train(task, "eills", solver=solver, dtype=torch.float64)).isfinite().all()


@pytest.mark.parametrize("loss", ["squared", "multiclass"])
def test_rows_in_pieces_give_the_moments_of_the_whole(loss):
    x, y, e = data(600, 5, loss=loss)
    x = 5 + 3 * x
    weight = np.random.default_rng(2).uniform(0.5, 2, 600)
    risks = risks_of(task_of(x, y, e, loss, sample_weight=weight), loss)
    classes = loss == "multiclass"
    targets = torch.nn.functional.one_hot(torch.tensor(y).long()) if classes else torch.tensor(y).unsqueeze(1)
    origin = torch.full((5,), 4.0, dtype=torch.float64)

    def piece(rows):
        more = {"weight": torch.tensor(weight)[rows], "origin": origin, "classes": classes}
        return Sums.of(torch.tensor(x)[rows], targets[rows], torch.tensor(e)[rows], 3, **more)

    sums = piece(slice(0, 100)) + piece(slice(100, 450)) + piece(slice(450, 600))
    for standardise in (True, False):
        whole, pieces = Moments.of(risks, risks.mass, standardise), Moments.from_sums(sums, None, standardise)
        torch.testing.assert_close(pieces.rows, whole.rows)
        torch.testing.assert_close(pieces.mu, whole.mu)
        if classes:  # directions of the indicators may point either way
            torch.testing.assert_close(pieces.each[:, :6, :6], whole.each[:, :6, :6])
            assert pieces.n_targets == whole.n_targets
        else:
            torch.testing.assert_close(pieces.each, whole.each)
    with pytest.raises(ValueError, match="one origin"):
        _ = sums + Sums.of(torch.tensor(x), targets, torch.tensor(e), 3)


def test_columns_of_rows_that_come_in_pieces():
    """The invariant columns of the simulation, without ever holding all of its rows."""
    pieces = (make_simulation(5000, (0.999, 0.8), 0.9, random_state=seed).train for seed in range(4))
    first = next(pieces)
    origin = first.x.double().mean(0)

    def sums_of(rows):
        return Sums.of(rows.x, 2 * rows.y.unsqueeze(1) - 1, rows.environment, 2, origin=origin)

    found = chosen_columns(sum((sums_of(rows) for rows in pieces), start=sums_of(first)), [0.0, 1e4])
    assert found[0].sum() > 5  # without a penalty spurious ones, too
    assert found[1].nonzero().flatten().tolist() == [0, 1, 2, 3, 4]
