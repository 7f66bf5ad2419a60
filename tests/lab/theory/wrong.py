"""Formulas that are wrong on purpose, to see that a statement notices; and how to find a comparison again."""

from __future__ import annotations

from irmtv.core.risk import modulus, modulus_squared
from irmtv.objectives.irm_tv_l2 import tv_l2
from irmtv.objectives.lambda_phi import lambda_phi

FAILED = ("not verified", "does not hold as printed")  # the verdicts that a wrong formula must lead to


def row(found, words, role=None):
    """The first comparison that speaks of `words`, of this role where one is given."""
    return next(c for c in found.comparisons if words in c.what and role in (None, c.role))


def starting(found, start, role=None):
    """The first comparison that begins with these words."""
    return next(c for c in found.comparisons if c.what.startswith(start) and role in (None, c.role))


def agreements(found, role):
    return [c.agrees for c in found.comparisons if c.role == role]


# ---- penalties, (Statistics, mu) -> (R,): l1 is (E|S|)^2, l2 is E|S|^2


def square_inside(e, mu):
    """E|S|^2, where l1 is meant."""
    return (mu * modulus(e).square()).sum(-1)


def square_outside(e, mu):
    """(E|S|)^2, where l2 is meant."""
    return (mu * modulus(e)).sum(-1).square()


def not_squared(e, mu):
    return (mu * modulus(e)).sum(-1)


def half_of_it(e, mu):
    return square_outside(e, mu) / 2


def signs_kept(e, mu):
    """(E S)^2: slopes of opposite sign cancel."""
    return (mu * e.slope).sum(-1).square()


def without_the_measure_l1(e, mu):
    return modulus(e).sum(-1).square()


def without_the_measure_l2(e, mu):
    return modulus_squared(e).sum(-1) + 0 * mu.sum(-1)  # mu stays in the graph, for those who differentiate in it


def authors_weights(e, mu):
    """sum mu^2 |S|^2, as in published code."""
    return tv_l2(e, mu**2)


def by_the_root_of_the_measure(e, mu):
    return tv_l2(e, mu.sqrt())


# ---- lambda_Phi, (worst risk, mean risk, penalty, cap) -> weight


def with_the_mean(worst, expected, penalty, cap):
    return lambda_phi(expected, expected, penalty, cap)


def over_the_root_of_the_penalty(worst, expected, penalty, cap):
    return lambda_phi(worst, expected, penalty.sqrt(), cap)
