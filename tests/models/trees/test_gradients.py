"""Objectives as functions of the scores: against finite differences, and against the formulas by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from irmtv.core.losses import as_loss
from irmtv.core.membership import Codes, Soft, SoftPair
from irmtv.models.trees.gradients import ScoreObjective
from irmtv.objectives import OBJECTIVES

N, E = 40, 3
LOSSES = {"binary": 1, "squared": 1, "multiclass": 3}
NAMES = [
    "erm",
    "vrex",
    "mm-rex",
    "irm-tv-l1",
    "irm-tv-l2",
    "irmv1",
    "irm-tv-l1+vrex",
    "irm-tv-l2+mm-rex",
    "minimax-tv-l1",
    "minimax-tv-l2",
]


def rows(loss, seed=0):
    g = torch.Generator().manual_seed(seed)
    n_outputs = LOSSES[loss]
    f = torch.randn(*((N,) if n_outputs == 1 else (N, n_outputs)), generator=g, dtype=torch.float64)
    y = torch.randn(N, generator=g, dtype=torch.float64)
    if loss == "binary":
        y = (y > 0).double()
    elif loss == "multiclass":
        y = torch.randint(0, n_outputs, (N,), generator=g)
    weight = torch.rand(N, generator=g, dtype=torch.float64) + 0.2
    codes = torch.randint(0, E, (N,), generator=g)
    q = torch.softmax(torch.randn(E, N, generator=g, dtype=torch.float64), 0)
    return f, y, weight, codes, q


def score_objective(name, loss, weighted=False, soft=False, **settings):
    f, y, weight, codes, q = rows(loss)
    objective = OBJECTIVES[name]
    membership = Soft(q[None, None]) if soft or objective.infers else Codes(codes[None, None], E)
    of = ScoreObjective(
        objective, objective.resolve(settings), as_loss(loss), y, membership, weight if weighted else None
    )
    return of, f, [7.0, 3.0][: len(objective.penalties)]


def numerical(function, f, h=1e-6):
    found = torch.zeros_like(f)
    flat, out = f.flatten(), found.flatten()
    for i in range(len(flat)):
        high, low = flat.clone(), flat.clone()
        high[i] += h
        low[i] -= h
        out[i] = (function(high.view_as(f)) - function(low.view_as(f))) / (2 * h)
    return out.view_as(f)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_finite_differences(name, loss, weighted):
    of, f, weights = score_objective(name, loss, weighted)
    of.scale = 1.3
    pull = of.pull(f, weights)
    total = of.total
    torch.testing.assert_close(
        pull.risk_gradient, total * numerical(lambda v: of.values(v, ())[0], f), rtol=1e-5, atol=1e-6
    )
    if weights:
        expected = total * numerical(lambda v: of.values(v, weights)[1], f)
        torch.testing.assert_close(pull.penalty_gradient, expected, rtol=1e-5, atol=1e-5)
    else:
        assert pull.penalty_gradient is None
    assert (pull.risk, pull.penalty) == pytest.approx(of.values(f, weights), abs=1e-12)


@pytest.mark.parametrize("measure", ["uniform", (1.0, 2.0, 5.0)])
@pytest.mark.parametrize("name", ["erm", "vrex", "irm-tv-l1"])
def test_gradients_with_other_measures(name, measure):
    of, f, weights = score_objective(name, "binary", measure=measure)
    pull = of.pull(f, weights)
    whole = pull.risk_gradient + (0 if pull.penalty_gradient is None else pull.penalty_gradient)
    torch.testing.assert_close(whole, N * numerical(lambda v: sum(of.values(v, weights)), f), rtol=1e-5, atol=1e-6)


def test_soft_pairs_are_soft_environments():
    f, y, weight, _, q = rows("binary")
    rho = q[0] / (q[0] + q[1])
    objective = OBJECTIVES["minimax-tv-l2"]
    settings = objective.resolve({})
    pair = ScoreObjective(objective, settings, as_loss("binary"), y, SoftPair(rho[None, None]), weight)
    both = Soft(torch.stack([rho, 1 - rho])[None, None])
    soft = ScoreObjective(objective, settings, as_loss("binary"), y, both, weight)
    torch.testing.assert_close(pair.pull(f, [5.0]).penalty_gradient, soft.pull(f, [5.0]).penalty_gradient)


def test_the_l1_gradient_by_hand():
    """2 lambda (sum_e |G_e|) (sum_e sign(G_e) q_ie) u_i, with G_e = m_e S_e and u_i = ds_i/df_i."""
    of, f, _ = score_objective("irm-tv-l1", "binary")
    _, y, _, codes, _ = rows("binary")
    p = torch.sigmoid(f)
    slope = (p - y) * f
    g = torch.stack([slope[codes == e].sum() / N for e in range(E)])
    u = p - y + f * p * (1 - p)
    expected = 2 * 10 * g.abs().sum() * torch.sign(g)[codes] * u
    torch.testing.assert_close(of.pull(f, [10.0]).penalty_gradient, expected)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_curvature_of_the_risk_is_that_of_finite_differences(loss, weighted):
    """In every score alone."""
    of, f, _ = score_objective("erm", loss, weighted)
    found, h = of.pull(f, ()).risk_curvature, 1e-5
    columns = [slice(None)] if f.ndim == 1 else [(slice(None), k) for k in range(f.shape[1])]
    for column in columns:
        step = torch.zeros_like(f)
        step[column] = h
        expected = (of.pull(f + step, ()).risk_gradient - of.pull(f - step, ()).risk_gradient) / (2 * h)
        torch.testing.assert_close(found[column], expected[column], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("loss", LOSSES)
def test_at_the_best_scale_the_mean_slope_is_zero(loss):
    of, f, _ = score_objective("irm-tv-l1", loss, weighted=True)
    f = f / 10  # as small as those of a booster that has just begun
    target = of.y[0, 0]
    f = f + 0.1 * (torch.nn.functional.one_hot(target, 3) if loss == "multiclass" else target * 2 - 1)
    of.rescale(f)
    assert 1 < of.scale < 100
    e = of.statistics(f)
    assert abs(float((e.mass * e.slope).sum())) < 1e-3 * float((e.mass * e.slope.abs()).sum())


def test_penalties_may_be_measured_on_other_rows():
    """The multipliers come from there, losses and slopes of the rows from here."""
    of, f, weights = score_objective("vrex", "binary")
    elsewhere = of.statistics(2 * f)
    found = of.pull(f, weights, elsewhere)
    _, y, _, codes, _ = rows("binary")
    risk, mass = elsewhere.risk[0], elsewhere.mass[0]
    multiplier = 2 * weights[0] * mass * (risk - (mass * risk).sum())
    n = torch.bincount(codes).double()
    expected = N * (multiplier / n)[codes] * (torch.sigmoid(f) - y)
    torch.testing.assert_close(found.penalty_gradient, expected)
    assert found.penalty == pytest.approx(of.values(2 * f, weights)[1])


def test_groupdro_follows_the_worst_environment():
    of, f, _ = score_objective("groupdro", "binary", measure_rate=0.5)
    risks = of.statistics(f).risk[0].numpy()
    before = of.measure.mu[0].numpy().copy()
    of.pull(f, [])
    expected = before * np.exp(0.5 * risks)
    np.testing.assert_allclose(of.measure.mu[0].numpy(), expected / expected.sum())
    pull = of.pull(f, [])
    n = torch.bincount(rows("binary")[3]).double()
    each = (of.measure.mu[0] / n)[rows("binary")[3]] * N
    torch.testing.assert_close(pull.risk_gradient, each * (torch.sigmoid(f) - rows("binary")[1]))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("name", "soft"), [("groupdro", False), *((name, soft) for name in NAMES for soft in (False, True))]
)
def test_several_scores_at_once_are_each_alone(name, soft, weighted, loss):
    of, f, weights = score_objective(name, loss, weighted, soft)
    of.scale = 1.3
    several = torch.stack([f, 0.5 * f, f - 0.1])
    each = [of.values(one, weights) for one in several]
    np.testing.assert_allclose(of.risks(several), [risk for risk, _ in each], rtol=1e-12)
    np.testing.assert_allclose(of.risks(several), [of.risk(one) for one in several], rtol=1e-12)
    risks, penalties = of.several(several, weights)
    np.testing.assert_allclose(risks, [risk for risk, _ in each], rtol=1e-12)
    np.testing.assert_allclose(penalties, [penalty for _, penalty in each], rtol=1e-10, atol=1e-14)
