"""Too coarse a measure: what is known of a set, what training makes of it, and that wrong formulas are noticed."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from irmtv.lab.theory.coarse_labels import all_extensions, coarse_measure, every_pair, inner_and_outer, left_open
from irmtv.lab.theory.sigma_algebras import generated, on_points
from lab.theory.wrong import authors_weights, row, signs_kept, square_inside, without_the_measure_l1

SMALL = {"n_points": 3, "n_rows": 2000, "steps": 500, "seeds": 2}


@pytest.fixture(scope="module")
def found():
    return coarse_measure(**SMALL)


def test_all_extensions_are_a_linear_programme():
    """The least and the largest mu(E) over the measures that agree on the atoms, by a solver."""
    partition, mass = ((0, 3), (1, 2, 4), (5,)), np.array([1, 2, 3, 4, 5, 6]) / 21
    subset = frozenset({0, 1, 2, 5})
    on_atoms = np.array([[point in atom for point in range(6)] for atom in partition], dtype=float)
    into = np.array([float(point in subset) for point in range(6)])
    low, high = (
        sign * linprog(sign * into, A_eq=on_atoms, b_eq=on_atoms @ mass, bounds=(0, None)).fun for sign in (1, -1)
    )
    assert all_extensions(partition, subset, mass) == pytest.approx((low, high))
    assert inner_and_outer(generated(partition), subset, mass) == pytest.approx((low, high))
    assert (low, high) == pytest.approx((6 / 21, 1.0))


def test_the_minimum_requirement_is_about_the_measure_and_not_about_the_worst_risk(found):
    assert found.verdict == "does not hold as printed"
    failed = [c for c in found.comparisons if c.role == "claim" and not c.agrees]
    assert [c.left_name for c in failed] == ["brute force", "mu_tr on E_all"]
    assert failed[0].left == 0 and failed[0].right > 0
    assert failed[1].left == pytest.approx(5 / 6)  # masses 1, 2, 3 of 6, the first left out
    assert not next(c for c in found.comparisons if c.role == "beyond").agrees


def test_counts_for_three_points_by_hand():
    """5 sigma-algebras with 2, 4, 4, 4 and 8 sets: 22 less 5 empty ones are measurable, of 5 times 7 pairs."""
    pairs = every_pair(3, inner_and_outer, np.array([0.2, 0.3, 0.5]))
    assert pairs.total == {True: 17, False: 18}
    assert pairs.determined == 17 and pairs.narrowest == pytest.approx(1)
    assert pairs.distorted[False, True] == pairs.distorted[True, True] == 0
    assert pairs.distorted[False, False] == 18
    # E_all in F_tr that holds an atom of two or three points: {012} once, each of three pairs alone or with the third
    assert pairs.distorted[True, False] == 1 + 3 * 2
    # the integral over E_all is open in all 18; the mean not where E_all lies within one atom: {012} has 6 such sets,
    # each of the three {01}, {2} two, and the four others of each meet both atoms: {0, 2} and {1, 2}
    assert pairs.integral == {True: 0, False: 18} and pairs.mean == {True: 0, False: 6}
    assert pairs.spread == 6


def test_what_is_left_open_by_random_measures():
    """A hundred measures that agree on the atoms: integral and mean of a risk that is constant on these."""
    partition, mass = ((0, 1), (2, 3), (4,)), np.array([0.1, 0.2, 0.3, 0.15, 0.25])
    rng = np.random.default_rng(0)
    risk = on_points(rng.standard_normal((1, 3)), partition)[0]
    for subset in ({0, 2}, {0}, {0, 1, 4}, {0, 1, 2, 4}):
        inside = np.array([float(point in subset) for point in range(5)])
        drawn = np.empty((100, 5))
        for atom in partition:
            drawn[:, list(atom)] = rng.dirichlet(np.ones(len(atom)), 100) * mass[list(atom)].sum()
        integral = drawn @ (risk * inside)
        moves = bool(np.ptp(integral) > 1e-9), bool(np.ptp(integral / (drawn @ inside)) > 1e-9)
        assert left_open(partition, frozenset(subset), mass) == moves


def test_one_label_is_erm(found):
    assert row(found, "one label: coefficients").left < 1e-5
    assert row(found, "one label: accuracy").agrees
    few, many = row(found, "to and fro").left, row(found, "to and fro").right
    assert many - few > 0.2


def test_labels_that_average_the_drift_out_see_nothing(found):
    _, shift, _ = found.draw().axes
    steady, swings = (line.get_ydata() for line in shift.lines[:2])
    assert steady[1] - swings[1] > 0.2


def atoms_that_meet_it(family, subset, mass):
    """The outer measure, twice."""
    _, outer = inner_and_outer(family, subset, mass)
    return outer, outer


def the_points(family, subset, mass):
    """The measure itself, which nobody who has the atoms only can know."""
    exact = float(mass[sorted(subset)].sum())
    return exact, exact


@pytest.mark.parametrize("wrong", [atoms_that_meet_it, the_points])
def test_a_wrong_inner_or_outer_measure_is_noticed(wrong):
    assert coarse_measure(3, 600, 20, 1, measured=wrong).verdict == "not verified"


@pytest.mark.parametrize("wrong", [square_inside, without_the_measure_l1, signs_kept])
def test_a_wrong_l1_penalty_is_noticed(wrong):
    assert coarse_measure(3, 600, 20, 1, l1=wrong).verdict == "not verified"


def test_a_wrong_l2_penalty_is_noticed():
    assert coarse_measure(3, 600, 20, 1, l2=authors_weights).verdict == "not verified"


def test_the_figure(found):
    interval, shift, table = found.draw().axes
    assert len(interval.lines) == 8 and len(shift.lines) == 4
    widths = [np.ptp(line.get_ydata()) for line in interval.lines[::2]]
    assert widths == sorted(widths, reverse=True) and widths[-1] == 0
    assert [t.get_text() for t in table.texts] == ["0\nof 17", "0\nof 18", "7\nof 17", "18\nof 18"]


@pytest.mark.parametrize("wrong", [{"n_points": 7}, {"n_points": 1}, {"steps": 0}, {"seeds": 0}, {"n_rows": "many"}])
def test_mistakes_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        coarse_measure(**wrong)
