"""EIIL's formulas: the exact split against all splits, the gradient of the inference, the hyper-parameters."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from irmtv import OBJECTIVES
from irmtv.core.membership import SoftPair
from irmtv.core.risk import summarise
from irmtv.objectives.eiil import exact_split, inference_gradient


def authors_l2(q, s):
    return (q * s).mean(-1) ** 2 + ((1 - q) * s).mean(-1) ** 2


def squared_l1(q, s):
    return (np.abs((q * s).mean(-1)) + np.abs(((1 - q) * s).mean(-1))) ** 2


def expectation_l2(q, s):
    """sum_e m_e S_e^2, an empty environment counting nothing."""
    values = []
    for part in (q, 1 - q):
        mass = part.mean(-1)
        values.append((part * s).mean(-1) ** 2 / np.where(mass > 0, mass, 1))
    return sum(values)


def every_split(n):
    return np.array(list(product([0.0, 1.0], repeat=n)))  # (2^n, n)


def slopes(n, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=n) * rng.exponential(size=n) + rng.normal()


@pytest.mark.parametrize("form", [authors_l2, squared_l1])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 12])
@pytest.mark.parametrize("seed", range(5))
def test_no_split_is_better_than_the_exact_one(form, n, seed):
    """Over all hard splits and many soft ones; and its complement is as good."""
    s = slopes(n, seed)
    exact = exact_split(torch.tensor(s)).numpy()
    best = form(exact, s)
    hard = every_split(n)
    assert best == pytest.approx(form(hard, s).max(), rel=1e-12)
    rng = np.random.default_rng(seed)
    soft = np.concatenate([rng.uniform(size=(500, n)), rng.beta(0.1, 0.1, size=(500, n))])
    assert (form(soft, s) <= best * (1 + 1e-12)).all()
    assert form(1 - exact, s) == pytest.approx(best, rel=1e-12)
    if form is authors_l2:  # the only best ones, unless nothing differs in sign
        equal = hard[np.isclose(form(hard, s), best, rtol=1e-12)]
        assert len(equal) == 2 and {tuple(e) for e in equal} == {tuple(exact), tuple(1 - exact)}


def test_the_expectation_form_of_l2_has_another_best_split():
    """It gains more from an environment of few, large slopes than from the signs."""
    s = np.array([3.0, 0.1, -1.0])
    exact = exact_split(torch.tensor(s)).numpy()
    other = np.array([1.0, 0.0, 0.0])
    assert expectation_l2(exact, s) == pytest.approx((3.1**2 / 2 + 1) / 3)
    assert expectation_l2(other, s) == pytest.approx((9 + 0.9**2 / 2) / 3)
    hard = every_split(3)
    assert expectation_l2(other, s) == expectation_l2(hard, s).max() > expectation_l2(exact, s)


def test_slopes_of_zero_belong_to_the_second_environment():
    s = torch.tensor([[1.0, 0.0, -2.0, -0.0], [-1.0, 3.0, 0.0, 1e-30]])
    assert exact_split(s).tolist() == [[1, 0, 0, 0], [0, 1, 0, 1]]
    assert exact_split(s.double()).dtype == torch.float64


def inference_value(q, slope):
    """What the memberships climb, [ (mean q s)^2 + (mean (1 - q) s)^2 ] / 2: (..., N) -> (...)."""
    return ((q * slope).mean(-1).square() + ((1 - q) * slope).mean(-1).square()) / 2


def test_what_is_inferred_is_half_the_penalty():
    """The bracket of the inference is half of what Phi is penalised by, with the default reduction."""
    generator = torch.Generator().manual_seed(0)
    q = torch.rand(4, 30, generator=generator, dtype=torch.float64)
    s = torch.randn(4, 30, generator=generator, dtype=torch.float64)
    e = summarise(torch.zeros(2, 2, 30).double(), s.view(2, 2, 30), SoftPair(q.view(2, 2, 30)), {"slope"})
    objective = OBJECTIVES["eiil"]
    (penalty,) = objective.penalty_values(e, objective.resolve({}))
    torch.testing.assert_close(inference_value(q, s), penalty / 2)
    torch.testing.assert_close(inference_value(q, s), torch.tensor(authors_l2(q.numpy(), s.numpy()) / 2))


def test_the_gradient_of_the_inference():
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(3, 20, generator=generator, dtype=torch.float64, requires_grad=True)
    s = torch.randn(3, 20, generator=generator, dtype=torch.float64)
    (expected,) = torch.autograd.grad(inference_value(torch.sigmoid(a), s).sum(), a)
    torch.testing.assert_close(inference_gradient(a.detach(), s), expected)


def test_defaults():
    settings = OBJECTIVES["eiil"].resolve({})
    expected = {
        "variant": "two-stage",
        "inference": "exact",
        "inference_steps": 10_000,
        "environment_learning_rate": 1e-3,
        "reduction": "authors",
        "measure": "empirical",
        "penalty_weight": 1e3,
    }
    assert {k: settings[k] for k in expected} == expected
    per_run = {h.name for h in OBJECTIVES["eiil"].hyperparameters if h.per_run}
    assert "environment_learning_rate" in per_run and not per_run & {"variant", "inference", "inference_steps"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"variant": "both"}, r"variant of 'eiil' must be one of \['two-stage', 'joint'\]\. Got 'both'"),
        ({"inference": "hard"}, r"inference of 'eiil' must be one of \['exact', 'ascent'\]\. Got 'hard'"),
        ({"inference_steps": 0}, r"inference_steps of 'eiil' must be a whole number of at least 1\. Got 0"),
        ({"inference_steps": 1e4}, r"must be a whole number of at least 1\. Got 10000\.0"),
        ({"environment_learning_rate": 0}, r"environment_learning_rate of 'eiil' must be a finite number above 0"),
        ({"n_environments": 3}, r"'n_environments' is not a hyper-parameter of 'eiil'"),
        ({"measure": "uniform"}, r"it goes with measure='empirical' only.*use reduction='expectation'"),
    ],
)
def test_what_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        OBJECTIVES["eiil"].resolve(given)


@pytest.mark.parametrize(("variant", "when"), [("two-stage", "never"), ("joint", "always")])
def test_when_the_rows_climb(variant, when):
    for name in ("eiil", "eiil+vrex", "vrex+eiil"):
        objective = OBJECTIVES[name]
        assert objective.infers == "rows" and objective.needs == "nothing"
        assert objective.climbs(objective.resolve({"variant": variant})) == when


def test_a_sum_sees_one_kind_of_environments():
    with pytest.raises(ValueError, match=r"must see the same environments.*'eiil\+minimax-tv-l1'"):
        OBJECTIVES["eiil+minimax-tv-l1"]
    with pytest.raises(ValueError, match="same penalty twice"):
        OBJECTIVES["eiil+irm-tv-l2"]
