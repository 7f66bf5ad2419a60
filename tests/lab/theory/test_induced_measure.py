"""The induced measure: integrals, wrong measures and densities, the sets on which it is defined."""

from __future__ import annotations

import math

import numpy as np
import pytest

from irmtv.lab.theory.induced_measure import (
    CLASSIFIERS,
    MASSES,
    induced_measure,
    smallest_failure,
    sum_over_preimages,
    two_branches,
)
from irmtv.lab.theory.sigma_algebras import is_sigma_algebra, pushforward
from lab.theory.wrong import row


@pytest.fixture(scope="module")
def found():
    return induced_measure()


def test_it_holds_under_its_condition(found):
    assert found.verdict == "holds under its condition"
    assert [c.agrees for c in found.comparisons if c.role == "beyond"] == [False] * 3
    assert found.error < 1e-10


def test_masses_are_those_of_a_loop():
    values, nu = sum_over_preimages(MASSES, CLASSIFIERS)
    expected = {}
    for mass, w in zip(MASSES, CLASSIFIERS, strict=True):
        expected[w] = expected.get(w, 0.0) + mass
    np.testing.assert_allclose([expected[w] for w in values], nu, rtol=1e-15)
    assert len(values) == 3


def test_the_density_is_that_of_a_histogram():
    e = (np.arange(200_000) + 0.5) / 100_000 - 1
    share = ((e**2 > 0.3) & (e**2 < 0.31)).mean()
    assert share / 0.01 == pytest.approx(two_branches(0.305), rel=1e-2)


def equal_masses(mu, w):
    values = np.unique(w)
    return values, np.full(len(values), 1 / len(values))


def one_preimage_each(mu, w):
    values, first = np.unique(w, return_index=True)
    return values, mu[first]


@pytest.mark.parametrize("wrong", [equal_masses, one_preimage_each])
def test_a_wrong_measure_is_noticed(wrong):
    assert induced_measure(induced=wrong, points=2).verdict == "does not hold as printed"


@pytest.mark.parametrize("wrong", [lambda w: 1.0, lambda w: two_branches(w) / 2, lambda w: 2 * math.sqrt(w)])
def test_a_wrong_density_is_noticed(wrong):
    found = induced_measure(density=wrong, points=2)
    assert found.verdict == "does not hold as printed"
    assert not row(found, "w = e^2: R").agrees


def test_the_pushforward_family_needs_no_condition():
    found = induced_measure(family=pushforward)
    assert [c.agrees for c in found.comparisons if "w not measurable" in c.what] == [True, True]
    assert row(found, "is the push-forward exactly where").agrees


def test_a_wrong_family_is_noticed():
    def atoms_only(w, family, whole):
        return frozenset(g for g in pushforward(w, family, whole) if len(g) == 1)

    assert induced_measure(family=atoms_only).verdict == "not verified"  # and is no sigma-algebra
    assert not row(induced_measure(family=atoms_only), "w measurable: cases of 60 in which").agrees
    assert not row(induced_measure(family=atoms_only), "is the push-forward exactly where").agrees


def test_every_case_on_three_points_is_counted_by_hand():
    """Five partitions; w is measurable where its fibres are unions of atoms: the coarsenings of each."""
    found = induced_measure(points=3)
    # coarsenings: of three points 5, of each of the three {1, 2} 2, of the whole 1
    assert "cases of 12" in row(found, "w measurable: cases of 12 with").what
    undefined = row(found, "w not measurable: cases of 13 with")
    # of two atoms {1}, {2, 3}: w injective is harmless (three times), w(1) = w(2) or w(1) = w(3) is not (six times);
    # of the one atom nothing can go wrong
    assert undefined.left == 6


def test_the_smallest_failure_is_one():
    printed, right = smallest_failure()
    assert frozenset("a") in printed and frozenset("b") not in printed
    assert not is_sigma_algebra(printed, "ab") and is_sigma_algebra(right, "ab")


def test_one_classifier_for_different_risks(found):
    risks = row(found, "Condition 2 violated")
    assert risks.left > risks.right + 0.1 and not risks.agrees
    assert row(found, "w = 1 for all: variation").agrees


def test_the_text_has_the_computed_numbers(found):
    failing = row(found, "w not measurable: cases of 165 with").left
    assert f"Of the 165 finite cases with another w {failing:.0f} have" in found.meaning and "all 225" in found.meaning


def test_the_figure(found):
    masses, smooth, example = found.draw().axes
    assert len(masses.patches) == len(MASSES)
    np.testing.assert_allclose(sorted(masses.lines[0].get_ydata()), sorted([0.15, 0.2, 0.65]))
    w, density = smooth.lines[0].get_data()
    np.testing.assert_allclose(density, 1 / (2 * np.sqrt(w)))
    assert any("printed: {}, {a}, {a, b}" in t.get_text() for t in example.texts)


@pytest.mark.parametrize("points", [0, 6, 2.5])
def test_points_are_checked(points):
    with pytest.raises(ValueError, match="points must be"):
        induced_measure(points=points)
