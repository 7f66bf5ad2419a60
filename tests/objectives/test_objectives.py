"""Every risk and penalty, against loops over the environments and against the identities that relate them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.reference import AUTHORS, KINDS, UNIFORM
from irmtv.core.membership import Codes
from irmtv.core.risk import summarise
from irmtv.core.types import Statistics
from irmtv.objectives import OBJECTIVES
from irmtv.objectives.base import Penalty

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
PENALISED = [name for name, o in OBJECTIVES.items() if o.penalties]
WEIGHTS = (0.2, 3.0, 0.0, 1.0, 0.5)  # a given measure, not summing to 1
R, E = 3, 5


def random_statistics(seed=0, n_environments=E, n_components=None, absent=(), equal=False):
    """Statistics of R runs with unequal masses; environments in `absent` have no rows."""
    rng = np.random.default_rng(seed)
    mass = np.ones((R, n_environments)) if equal else rng.gamma(0.7, size=(R, n_environments)) + 0.01
    mass[:, list(absent)] = 0
    mass /= mass.sum(1, keepdims=True)
    risk = rng.gamma(1.0, size=(R, n_environments))
    shape = (R, n_environments) if n_components is None else (R, n_environments, n_components)
    slope = rng.normal(size=shape)
    risk[:, list(absent)] = 0
    slope[:, list(absent)] = 0
    mass, risk, slope = map(torch.tensor, (mass, risk, slope))
    return Statistics((mass * risk).sum(1), mass, risk, slope)


def loop_measure(kind, mass):
    """mu of one run: (E,)."""
    mu = []
    for e, m in enumerate(mass):
        if kind == "empirical":
            mu.append(m)
        elif m == 0:
            mu.append(0.0)
        else:
            mu.append(1.0 if kind == "uniform" else kind[e])
    return [w / sum(mu) for w in mu]


def length(slope):
    return math.sqrt(sum(float(s) ** 2 for s in np.atleast_1d(slope)))


def loop_penalty(kind, e, r, measure, reduction):
    """One penalty of run r from its definition, one environment at a time."""
    mass, risk, slope = e.mass[r].tolist(), e.risk[r].tolist(), e.slope[r].numpy()
    mu = loop_measure(measure, mass)
    total = 0.0
    if kind == "l1":
        for i in range(len(mass)):
            total += length(mass[i] * slope[i]) if reduction == "authors" else mu[i] * length(slope[i])
        return total**2
    if kind == "l2":
        for i in range(len(mass)):
            total += length(mass[i] * slope[i]) ** 2 if reduction == "authors" else mu[i] * length(slope[i]) ** 2
        return total
    mean = sum(m * x for m, x in zip(mu, risk, strict=True))
    if kind == "variance":
        for i in range(len(mass)):
            total += mu[i] * (risk[i] - mean) ** 2
        return total
    assert kind == "worst", f"write the penalty {kind!r} from its definition here"
    return max(x for x, m in zip(risk, mass, strict=True) if m > 0) - mean


def value(name, e, **given_settings):
    (penalty,) = OBJECTIVES[name].penalty_values(e, OBJECTIVES[name].resolve(given_settings))
    assert penalty.shape == (R,)
    return penalty


# --- the formulas -----------------------------------------------------------------------------------------


def test_every_objective_is_here():
    """A new objective must be added to the brute force above."""
    assert set(PENALISED) == set(KINDS)
    assert set(OBJECTIVES) - set(PENALISED) == {"erm", "groupdro", "lff", "hrm", "eills"}


@pytest.mark.parametrize("name", PENALISED)
@pytest.mark.parametrize("measure", [None, "empirical", "uniform", WEIGHTS], ids=str)
@pytest.mark.parametrize("reduction", [None, "expectation", "authors"])
@pytest.mark.parametrize("n_components", [None, 4], ids=["scalar", "vector"])
@pytest.mark.parametrize("absent", [(), (1, 3)], ids=["all present", "two absent"])
def test_penalty_against_loops(name, measure, reduction, n_components, absent):
    objective, kind = OBJECTIVES[name], KINDS[name]
    asked = {k: v for k, v in (("measure", measure), ("reduction", reduction)) if v is not None}
    if kind in ("variance", "worst") and reduction is not None:
        with pytest.raises(ValueError, match="'reduction' is not a hyper-parameter"):
            objective.resolve(asked)
        return
    own_measure = measure or ("uniform" if name in UNIFORM else "empirical")
    own_reduction = reduction or ("authors" if name in AUTHORS else "expectation")
    if own_reduction == "authors" and own_measure != "empirical":
        with pytest.raises(ValueError, match="it goes with measure='empirical' only"):
            objective.resolve(asked)
        return
    for seed in range(3):
        e = random_statistics(seed, n_components=n_components, absent=absent)
        expected = [loop_penalty(kind, e, r, own_measure, own_reduction) for r in range(R)]
        np.testing.assert_allclose(value(name, e, **asked), expected, rtol=1e-12)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("measure", [None, "empirical", "uniform", WEIGHTS], ids=str)
@pytest.mark.parametrize("absent", [(), (1, 3)], ids=["all present", "two absent"])
def test_risk_against_loops(name, measure, absent):
    """sum_e mu_e R_e; where environments are inferred the mean loss, whatever the measure."""
    objective = OBJECTIVES[name]
    e = random_statistics(absent=absent)
    own = measure or ("uniform" if name in UNIFORM else "empirical")
    if objective.infers is not None:
        own = "empirical"
    elif measure is None and objective.measure == "learned":
        own, e = WEIGHTS, replace(e, learned=torch.tensor([WEIGHTS], dtype=torch.float64))
    expected = [
        sum(m * x for m, x in zip(loop_measure(own, e.mass[r].tolist()), e.risk[r].tolist(), strict=True))
        for r in range(R)
    ]
    asked = {} if measure is None else {"measure": measure}
    np.testing.assert_allclose(objective.risk(e, asked), expected, rtol=1e-12)


@pytest.mark.parametrize("name", PENALISED)
def test_one_mass_for_all_runs(name):
    """Masses (1, E), as given environments of one data set have them, stand for every run's."""
    e = random_statistics()
    shared = Statistics(e.mean_risk, e.mass[:1], e.risk, e.slope)
    repeated = Statistics(e.mean_risk, e.mass[:1].expand(R, -1), e.risk, e.slope)
    assert (value(name, shared) == value(name, repeated)).all()


@pytest.mark.parametrize("name", PENALISED)
def test_gradients_are_right(name):
    """d penalty / d (R_e, S_e, m_e), numerically; nothing is detached on the way."""
    e = random_statistics()
    penalty = OBJECTIVES[name].penalties[0]

    def function(mass, risk, slope):
        return penalty(Statistics(e.mean_risk, mass, risk, slope))

    leaves = [t.clone().requires_grad_() for t in (e.mass, e.risk, e.slope)]
    assert torch.autograd.gradcheck(function, leaves)


# --- identities -------------------------------------------------------------------------------------------


@quick
@given(seed=st.integers(0, 2**32 - 1), n_environments=st.integers(1, 6), lambda_min=st.floats(-20, 1))
def test_mm_rex_is_the_worst_affine_combination(seed, n_environments, lambda_min):
    """(1 - E l) max_e R_e + l sum_e R_e, with lambda = 1 - E l >= 0."""
    lambda_min = min(lambda_min, 1 / n_environments)
    e = random_statistics(seed, n_environments)
    weight = 1 - n_environments * lambda_min
    total = OBJECTIVES["mm-rex"].risk(e, {}) + weight * value("mm-rex", e)
    worst, summed = e.risk.amax(1), e.risk.sum(1)
    torch.testing.assert_close(total, weight * worst + lambda_min * summed, rtol=1e-10, atol=1e-10)
    # the definition: the best vertex of the affine combinations with coefficients of at least l that sum to 1
    for r in range(R):
        corners = [
            sum((lambda_min + (weight if i == j else 0)) * e.risk[r, i].item() for i in range(n_environments))
            for j in range(n_environments)
        ]
        assert total[r].item() == pytest.approx(max(corners), rel=1e-9, abs=1e-9)


def test_vrex_of_two_equal_environments():
    e = random_statistics(n_environments=2, equal=True)
    torch.testing.assert_close(value("vrex", e), (e.risk[:, 0] - e.risk[:, 1]).square() / 4)


def test_vrex_is_numpys_population_variance_with_the_uniform_measure():
    e = random_statistics()
    np.testing.assert_allclose(value("vrex", e, measure="uniform"), np.var(e.risk.numpy(), axis=1), rtol=1e-12)


def test_irmv1_is_tv_l2_with_the_uniform_measure():
    e = random_statistics()
    assert (value("irmv1", e) == value("irm-tv-l2", e, measure="uniform")).all()
    uniform = OBJECTIVES["irm-tv-l2"].resolve({"measure": "uniform"})
    assert (OBJECTIVES["irmv1"].risk(e, {}) == OBJECTIVES["irm-tv-l2"].risk(e, uniform)).all()
    np.testing.assert_allclose(value("irmv1", e), (e.slope.numpy() ** 2).mean(1), rtol=1e-12)


@pytest.mark.parametrize("name", ["irm-tv-l1", "minimax-tv-l1"])
def test_authors_l1_is_the_expectation(name):
    e = random_statistics()
    torch.testing.assert_close(value(name, e, reduction="authors"), value(name, e, reduction="expectation"))


@pytest.mark.parametrize("n_environments", [1, 2, 3, 7])
@pytest.mark.parametrize("name", ["irm-tv-l2", "minimax-tv-l2"])
def test_authors_l2_is_the_expectation_over_e_for_equal_environments(name, n_environments):
    e = random_statistics(n_environments=n_environments, equal=True)
    authors, expectation = value(name, e, reduction="authors"), value(name, e, reduction="expectation")
    torch.testing.assert_close(authors, expectation / n_environments)


def test_zin_is_minimax_tv_l2_with_the_authors_reduction():
    e = random_statistics()
    assert (value("zin", e) == value("minimax-tv-l2", e, reduction="authors")).all()
    assert (value("zin", e, reduction="expectation") == value("minimax-tv-l2", e)).all()


@pytest.mark.parametrize("name", ["irm-tv-l1", "irm-tv-l2", "vrex"])
def test_jensen(name):
    """(E|S|)^2 <= E S^2, and no variation over one environment or over equal ones."""
    e = random_statistics()
    assert (value("irm-tv-l1", e) <= value("irm-tv-l2", e) + 1e-12).all()
    flat = Statistics(e.mean_risk, e.mass, torch.ones_like(e.risk), torch.zeros_like(e.slope))
    assert value(name, flat).abs().max() < 1e-28


# --- absent environments, from rows -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("measure", ["empirical", "uniform", (0.5, 2.0, 4.0)], ids=str)
@pytest.mark.parametrize("name", ["erm", *(n for n in PENALISED if OBJECTIVES[n].needs == "environment")])
def test_an_environment_absent_from_a_mini_batch_does_not_count(name, measure, dtype):
    """Through codes and sums, where an absent environment has 0 / (almost) 0: the same as if it were not listed."""
    objective = OBJECTIVES[name]
    rng = np.random.default_rng(0)
    value = torch.tensor(5 + rng.random((1, R, 7)), dtype=dtype)  # far from the 0 that an absent risk reads
    slope = torch.tensor(rng.normal(size=(1, R, 7)), dtype=dtype)
    codes = torch.tensor([0, 2, 2, 0, 2, 2, 2]).expand(1, R, 7)
    with_absent = summarise(value, slope, Codes(codes, 3), {"risk", "slope"})
    without = summarise(value, slope, Codes(codes // 2, 2), {"risk", "slope"})
    shorter = measure if isinstance(measure, str) else (measure[0], measure[2])
    asked, expected = objective.resolve({"measure": measure}), objective.resolve({"measure": shorter})
    torch.testing.assert_close(objective.risk(with_absent, asked), objective.risk(without, expected))
    for mine, other in zip(
        objective.penalty_values(with_absent, asked), objective.penalty_values(without, expected), strict=True
    ):
        torch.testing.assert_close(mine, other)
        assert mine.isfinite().all()


def test_worst_risk_below_zero():
    """A loss may be negative: an absent environment's 0 must not be the worst risk."""
    risk = torch.tensor([[-3.0, -2.0, 0.0]])
    e = Statistics(torch.tensor([-2.5]), torch.tensor([[0.5, 0.5, 0.0]]), risk, torch.zeros_like(risk))
    assert OBJECTIVES["mm-rex"].penalty_values(e, {})[0].tolist() == [0.5]


# --- mini-batches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "estimator", "halves"),
    [
        ("irm-tv-l2", "auto", True),
        ("irm-tv-l2", "plain", False),
        ("irm-tv-l2", "halves", True),
        ("irm-tv-l1", "auto", False),
        ("irm-tv-l1", "plain", False),
        ("irm-tv-l1", "halves", True),
        ("vrex", "halves", False),
        ("zin", "auto", True),
        ("irm-tv-l1+irm-tv-l2", "auto", True),
        ("irm-tv-l1+vrex", "auto", False),
    ],
)
def test_who_wants_halves(name, estimator, halves):
    assert OBJECTIVES[name].wants_halves({"batch_estimator": estimator}) is halves


@pytest.mark.parametrize("estimator", ["auto", "plain", "halves"])
@pytest.mark.parametrize("reduction", ["expectation", "authors"])
def test_half_batch_penalties_against_loops(estimator, reduction):
    """In one sum each penalty takes its own form: l2 the product of half-batch slopes, l1 the plain one."""
    base = random_statistics()
    rng = np.random.default_rng(5)
    even, odd = torch.tensor(rng.normal(size=(2, R, E)))
    e = Statistics(base.mean_risk, base.mass, base.risk, base.slope, (even, odd))
    objective = OBJECTIVES["irm-tv-l1+irm-tv-l2"]
    l1, l2 = objective.penalty_values(e, {"batch_estimator": estimator, "reduction": reduction})
    m, s, product = base.mass.numpy(), base.slope.numpy(), (even * odd).numpy()
    size = np.sqrt(np.abs(product)) if estimator == "halves" else np.abs(s)
    square = s**2 if estimator == "plain" else product
    np.testing.assert_allclose(l1, (m * size).sum(1) ** 2, rtol=1e-12)
    np.testing.assert_allclose(l2, ((m**2 if reduction == "authors" else m) * square).sum(1), rtol=1e-12)


# --- what a step must compute, and the weights of the phases ----------------------------------------------


@pytest.mark.parametrize(
    ("name", "measure", "uses"),
    [
        ("erm", None, set()),
        ("erm", "uniform", {"risk"}),
        ("irm-tv-l1", None, {"slope"}),
        ("irm-tv-l1", "uniform", {"slope", "risk"}),
        ("irm-tv-l1", (1.0, 2.0), {"slope", "risk"}),
        ("irmv1", None, {"slope", "risk"}),
        ("vrex", None, {"risk"}),
        ("mm-rex", None, {"risk"}),
        ("minimax-tv-l1", "uniform", {"slope"}),  # its risk is the mean loss
        ("irm-tv-l1+vrex", None, {"slope", "risk"}),
    ],
)
def test_what_a_step_computes(name, measure, uses):
    assert OBJECTIVES[name].uses({"measure": measure}) == uses


@pytest.mark.parametrize("name", PENALISED)
def test_divisor_and_weight_in_the_warm_up(name):
    weight = torch.tensor([0.0, 0.5, 1.0, 1e4])
    objective = OBJECTIVES[name]
    if name == "irmv1":  # as first published: weight 1 before annealing, division by lambda after
        assert objective.divisor(weight).tolist() == [1.0, 1.0, 1.0, 1e4]
        assert objective.warmup_weight(weight).tolist() == [0.0, 0.5, 1.0, 1.0]
    else:
        assert objective.divisor(weight).tolist() == [1.0, 1.5, 2.0, 10001.0]
        assert objective.warmup_weight(weight).tolist() == [0.0] * 4


def test_a_penalty_of_ones_own():
    """The interface that a plug-in writes against: one function of the statistics and of mu."""
    mine = Penalty("mean", lambda e, mu: (mu * e.slope).sum(-1), measure="uniform")
    e = random_statistics()
    torch.testing.assert_close(mine(e), e.slope.mean(1))
    torch.testing.assert_close(mine(e, "empirical"), (e.mass * e.slope).sum(1))
    torch.testing.assert_close(mine(e, reduction="authors"), (e.mass * e.slope).sum(1))


def authors(objective):
    return objective.penalties[0].reduction == "authors"


@pytest.mark.parametrize(
    ("name", "measure"),
    [
        (name, measure)
        for name in OBJECTIVES
        if OBJECTIVES[name].explicit and OBJECTIVES[name].penalties
        # the authors' reduction fixes the measure
        for measure in ("empirical", *(() if authors(OBJECTIVES[name]) else ("uniform", (0.2, 0.5, 0.3))))
    ],
)
def test_closed_form_subgradients_are_those_of_autograd(name, measure):
    """Value and gradient of the whole objective, by hand and by autograd, a slope of exactly 0 among them."""
    objective = OBJECTIVES[name]
    settings = objective.resolve({"measure": measure})
    generator = torch.Generator().manual_seed(0)
    draw = {k: torch.randn(4, 3, dtype=torch.float64, generator=generator).requires_grad_() for k in ("risk", "slope")}
    draw["slope"].data[0, 0] = 0
    mean = torch.randn(4, dtype=torch.float64, generator=generator).requires_grad_()
    mass = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    e = Statistics(mean, mass, draw["risk"], draw["slope"])
    weight, scale = (torch.rand(4, dtype=torch.float64, generator=generator) for _ in range(2))
    weights = [(weight, (weight * scale).unsqueeze(1))]
    total, *grads = objective.value_and_gradient(e, settings, weights, scale)
    expected = objective.risk(e, settings) + weight * objective.penalty_values(e, settings)[0]
    torch.testing.assert_close(total, expected)
    leaves = (mean, draw["risk"], draw["slope"])
    by_autograd = torch.autograd.grad(expected, leaves, scale, allow_unused=True)
    for ours, theirs in zip(grads, by_autograd, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs)
