"""When the training measure is enough, and what normalising does: and wrong formulas are noticed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from irmtv.lab.theory.requirements import (
    contains,
    normalised_measure,
    sufficient_condition,
    to_probability,
)
from irmtv.lab.theory.sigma_algebras import by_atom, generated, on_points
from lab.theory.wrong import FAILED, authors_weights, row, square_inside, square_outside, without_the_measure_l1


@pytest.fixture(scope="module")
def sufficient():
    return sufficient_condition()


@pytest.fixture(scope="module")
def normalised():
    return normalised_measure()


def test_it_suffices_where_the_measures_agree(sufficient):
    assert sufficient.verdict == "holds under its condition"
    assert [c.agrees for c in sufficient.comparisons if c.role == "beyond"] == [False, False]
    assert row(sufficient, "other measure: worst risk").agrees


def test_it_is_necessary_for_the_penalty_and_not_for_the_worst_risk(sufficient):
    penalty, worst = (row(sufficient, f"pairs that change {what}") for what in ("l1", "the worst risk"))
    # pairs p finer than or equal to q among the partitions of four points: 60, so 165 are left
    assert penalty.left == 165 and worst.left < 165
    # the example: F_tr = {0}, {1, 2}, {3} does not contain F_all = {0, 1}, {2, 3}, yet knows every worst risk
    training, everything = ((0,), (1, 2), (3,)), ((0, 1), (2, 3))
    assert not contains(generated(training), generated(everything))
    risk = on_points(np.random.default_rng(0).standard_normal((50, 2)), everything)
    seen = by_atom(risk, training, np.array([0.1, 0.2, 0.3, 0.4]))
    assert seen.max(-1) == pytest.approx(risk.max(-1))


def test_five_environments_too():
    assert sufficient_condition(n_points=5, n_families=4, n_models=6).verdict == "holds under its condition"


def the_other_way_round(training, everything):
    return training <= everything


def as_many_sets(training, everything):
    return len(training) >= len(everything)


def anything_will_do(training, everything):
    return True


@pytest.mark.parametrize("wrong", [the_other_way_round, as_many_sets, anything_will_do])
def test_a_condition_that_does_not_suffice_is_noticed(wrong):
    assert sufficient_condition(condition=wrong).verdict in FAILED
    assert not row(sufficient_condition(condition=wrong), "worst risk, F_tr contains F_all").agrees


def test_a_condition_that_asks_for_too_much_is_noticed():
    """Equal sigma-algebras suffice as well, but then it is not true that all other pairs change the penalty."""
    assert sufficient_condition(condition=lambda training, everything: training == everything).verdict == "not verified"


@pytest.mark.parametrize("wrong", [square_inside, without_the_measure_l1])
def test_a_wrong_l1_penalty_is_noticed(wrong):
    assert sufficient_condition(l1=wrong).verdict in FAILED
    assert normalised_measure(l1=wrong).verdict in FAILED


def test_the_figure_of_the_pairs(sufficient):
    grid, penalty, worst = sufficient.draw().axes
    kinds = grid.images[0].get_array()
    assert kinds.shape == (15, 15) and (kinds == 0).sum() == 60 and (kinds == 1).sum() == 165 - 153
    for axes in (penalty, worst):
        lost, kept = axes.lines[:2]
        assert kept.get_xdata() == pytest.approx(kept.get_ydata())
        assert (lost.get_ydata() <= lost.get_xdata() + 1e-12).all() and (lost.get_ydata() < lost.get_xdata()).any()


def test_normalising(normalised):
    assert normalised.verdict == "holds under its condition"
    (plane,) = [c for c in normalised.comparisons if c.role == "beyond"]
    assert not plane.agrees and plane.left == pytest.approx(0.01)
    assert row(normalised, "a finite measure").agrees
    assert row(normalised, "l1, as it is").left == pytest.approx(0.05)
    assert row(normalised, "l1, normalised").left == pytest.approx(0.2)


def test_expectations_against_random_points(normalised):
    rng = np.random.default_rng(0)
    w = rng.uniform((-0.9, 0.0), (0.1, 4.0), size=(400_000, 2))
    assert row(normalised, "E R").left == pytest.approx(np.logaddexp(0, -w @ np.array([1.5, -0.5])).mean(), abs=5e-3)


def by_the_root(weights):
    return weights / weights.sum().sqrt()


def by_the_number(weights):
    return weights / len(weights)


def the_largest_one(weights):
    return weights / weights.max()


@pytest.mark.parametrize("wrong", [by_the_root, by_the_number, the_largest_one])
def test_a_wrong_normalisation_is_noticed(wrong):
    assert normalised_measure(normalise=wrong).verdict in FAILED


@pytest.mark.parametrize("wrong", [square_outside, authors_weights])
def test_a_wrong_l2_penalty_is_noticed(wrong):
    assert normalised_measure(l2=wrong).verdict == "not verified"


@pytest.mark.parametrize("mass", [0.5, 1.0, 10.0])
def test_any_finite_mass(mass):
    found = normalised_measure(mass=mass)
    assert found.verdict == "holds under its condition"
    assert row(found, "l1, as it is").left == pytest.approx(0.2 / mass, abs=1e-3)


def test_a_probability_stays_one():
    already = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    assert to_probability(already) == pytest.approx(already)


def test_the_figure_of_the_minimisers(normalised):
    first, second, third = normalised.draw().axes
    as_it_is, one, again = first.lines[0], first.lines[2], first.lines[4]
    assert as_it_is.get_ydata() == pytest.approx(again.get_ydata(), abs=1e-12)
    assert abs(as_it_is.get_ydata() - one.get_ydata()).max() > 0.1
    assert second.lines[0].get_ydata() == pytest.approx(second.lines[2].get_ydata(), abs=1e-12)
    assert third.lines[0].get_ydata()[-1] < 1e-9
    assert third.lines[1].get_ydata()[-1] == pytest.approx((1 - np.exp(-10)) ** 2)


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        (sufficient_condition, {"n_points": 6}),
        (sufficient_condition, {"n_points": 1}),
        (sufficient_condition, {"n_models": 0}),
        (normalised_measure, {"mass": 0.0}),
        (normalised_measure, {"mass": float("inf")}),
        (normalised_measure, {"mass": float("nan")}),
        (normalised_measure, {"penalty_weight": 0.1}),
        (normalised_measure, {"n_models": 0}),
    ],
)
def test_mistakes_are_named(function, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        function(**wrong)
