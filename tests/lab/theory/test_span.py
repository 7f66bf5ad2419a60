"""Inside and outside the span: the closed forms, the linearity, and that a wrong mixture is noticed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from irmtv.lab.theory import span
from irmtv.lab.theory.simulated_risk import gauss_hermite
from irmtv.lab.theory.span import (
    BEYOND,
    CORNER,
    OUTSIDE,
    THIRD,
    TRAINING,
    Predictors,
    affine_coefficients,
    environment_span,
    make_blocks,
    trapezoid,
)
from irmtv.objectives.environments.affine import expanded
from lab.theory.wrong import FAILED

SMALL = {"n_rows": 1500, "steps": 500, "seeds": 2}


@pytest.fixture(scope="module")
def found():
    return environment_span(**SMALL)


@pytest.fixture(scope="module")
def predictor():
    rng = np.random.default_rng(3)
    return Predictors(0.4 * rng.standard_normal((2, 15)) + 0.2, np.array([0.3, -0.2]))


def test_the_population_is_that_of_the_rows(predictor):
    """Accuracy and risk in closed form against half a million rows."""
    place = (0.7, 0.35)
    rows = make_blocks([place], 500_000, seed=11).train
    x, y = rows.x.numpy(), rows.y.numpy()
    f = predictor.coef @ x.T + predictor.intercept[:, None]
    right = ((f > 0) == (y > 0)).mean(1)
    risk = (np.logaddexp(0, f) - y * f).mean(1)
    assert predictor.accuracy([place])[:, 0] == pytest.approx(right, abs=3e-3)  # four standard errors
    assert predictor.risk([place], gauss_hermite(80))[:, 0] == pytest.approx(risk, abs=6e-3)


def test_both_quadratures_are_those_of_the_normal_distribution():
    def value(t):
        return np.logaddexp(0, 0.7 - 1.3 * t)

    exact = quad(lambda t: value(t) * norm.pdf(t), -12, 12, epsabs=1e-13)[0]
    for nodes, weights in (gauss_hermite(80), trapezoid()):
        assert value(nodes) @ weights == pytest.approx(exact, abs=1e-10)


def test_which_environments_are_in_the_span():
    coefficients, distance = affine_coefficients(TRAINING, BEYOND)
    assert coefficients == pytest.approx([-3, 4]) and distance < 1e-12
    assert affine_coefficients(TRAINING, OUTSIDE)[1] > 0.5
    assert affine_coefficients((*TRAINING, THIRD), OUTSIDE)[0] == pytest.approx([-1.5, -1.5, 4])
    assert affine_coefficients((*TRAINING, THIRD), CORNER)[1] > 0.5  # the two blocks together are not spanned
    assert sum(affine_coefficients(TRAINING, CORNER)[0]) == pytest.approx(1)


def test_it_holds_inside_the_span_only(found):
    assert found.verdict == "holds under its condition"
    (outside,) = (c for c in found.comparisons if c.role == "beyond")
    assert not outside.agrees
    mass = next(c for c in found.comparisons if c.what.startswith("mass of"))
    assert mass.role == "ours" and mass.relation == "≠" and mass.left == pytest.approx(2)
    corner = next(c for c in found.comparisons if c.what.startswith("distance in theta"))
    assert corner.agrees and corner.left == pytest.approx(0.792, abs=1e-3)


def test_the_meaning_has_the_numbers(found):
    by_name = {c.left_name: c for c in found.comparisons}
    assert f"{100 * by_name['best of the penalised'].left:.1f} %" in found.meaning
    assert "{" not in found.meaning


def only_interpolates(e):
    assert e.mixtures is not None
    return expanded(replace(e, mixtures=e.mixtures.clamp(0, 1)))


def turned_round(e):
    assert e.mixtures is not None
    return expanded(replace(e, mixtures=e.mixtures.flip(-1)))


def slopes_made_positive(e):
    """|S| of a mixture is not the mixture of |S|."""
    return expanded(replace(e, slope=e.slope.abs()))


@pytest.mark.parametrize("wrong", [only_interpolates, turned_round, slopes_made_positive])
def test_a_wrong_mixture_is_noticed(wrong):
    wronged = environment_span(n_rows=600, steps=20, seeds=1, expansion=wrong)
    assert not next(c for c in wronged.comparisons if "affine mixtures" in c.what).agrees
    assert wronged.verdict in FAILED


def test_the_right_mixture_passes_where_a_wrong_one_does_not():
    assert next(c for c in environment_span(600, 20, 1).comparisons if "affine mixtures" in c.what).agrees


def test_without_a_penalty_nothing_is_gained():
    """The claim about the penalised methods is theirs: with lambda 0 they are ERM, and it fails."""
    found = environment_span(n_rows=800, steps=100, seeds=1, penalty_weight=0.0)
    inside = next(c for c in found.comparisons if "outside the hull" in c.what)
    assert not inside.agrees and inside.left == pytest.approx(inside.right, abs=0.01)


def test_training_rows_agree_as_often_as_they_should():
    rows = make_blocks(TRAINING, 40_000, seed=0).train
    y = 2 * rows.y - 1
    first = rows.x[:, 5:10].mean(1) * y  # mean 2 p - 1
    for code, (p1, _) in enumerate(TRAINING):
        assert first[rows.environment == code].mean().item() == pytest.approx(2 * p1 - 1, abs=0.03)
    assert rows.x.dtype == torch.float64


def test_the_figure(found):
    plane, along, across = found.draw().axes
    assert len(along.lines) == len(span.COLOURS) and len(across.lines) == len(span.COLOURS) + 2
    erm = along.lines[0].get_ydata()
    assert np.diff(erm) == pytest.approx(np.full(40, erm[1] - erm[0]))  # linear in p1, as everything is
    assert across.lines[-1].get_ydata()[0] > across.lines[0].get_ydata()[0]
    assert len(plane.texts) == 4


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"seeds": -1}, {"n_rows": 1.5}, {"n_rows": 50}])
def test_mistakes_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        environment_span(**wrong)
