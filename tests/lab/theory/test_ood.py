"""OOD over e and over w, and lambda_Phi: on sets small enough to be known, and wrong formulas are noticed."""

from __future__ import annotations

import numpy as np
import pytest

from irmtv.lab.theory.classifiers import on_classifiers
from irmtv.lab.theory.ood import lambda_phi_makes_worst_risk, ood_over_w
from lab.theory.wrong import FAILED, agreements, not_squared, over_the_root_of_the_penalty, square_inside, with_the_mean


@pytest.fixture(scope="module")
def over_w():
    return ood_over_w()


@pytest.fixture(scope="module")
def worst_made():
    return lambda_phi_makes_worst_risk()


# ---- Theorem 3.7 ----


def test_over_e_is_over_w_where_r_depends_on_e_through_w(over_w):
    assert over_w.verdict == "holds under its condition"
    assert all(agreements(over_w, "claim")) and not any(agreements(over_w, "beyond"))
    assert over_w.error < 1e-12


def without_the_largest(w):
    return np.unique(w)[:-1]


def with_one_more(w):
    return np.append(np.unique(w), 1.5)


def mean_only(w):
    return np.array([w.mean()])


@pytest.mark.parametrize("wrong", [without_the_largest, with_one_more, mean_only])
def test_a_wrong_image_of_the_environments_is_noticed(wrong):
    found = ood_over_w(sets=40, image=wrong)
    assert found.verdict in FAILED
    assert not all(agreements(found, "claim"))


def test_repetitions_in_the_image_change_no_maximum_but_the_mean():
    found = ood_over_w(sets=40, image=lambda w: w)
    assert all(agreements(found, "claim")) and found.verdict == "not verified"


def test_the_figure_of_ood_over_w(over_w):
    one, all_sets = over_w.draw().axes
    noisy, exact = one.lines[:2]
    assert (noisy.get_ydata() >= exact.get_ydata()).all() and len(exact.get_xdata()) == 8
    assert len(set(exact.get_xdata())) <= 4
    beyond, through = all_sets.lines[:2]
    np.testing.assert_allclose(through.get_xdata(), through.get_ydata(), atol=1e-12)
    # the mean over a fibre is at most its maximum
    assert (beyond.get_ydata() >= beyond.get_xdata() - 1e-12).all()
    assert (beyond.get_ydata() > beyond.get_xdata() + 0.1).any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"sets": 0}, "sets must be a positive"), ({"environments": 4}, "environments must exceed classifiers.*Got 4")],
)
def test_what_ood_over_w_cannot_do(settings, message):
    with pytest.raises(ValueError, match=message):
        ood_over_w(**settings)


# ---- Theorems 3.8 and 3.9, item 2 ----


def test_lambda_phi_makes_the_worst_risk_where_the_penalty_is_positive(worst_made):
    assert worst_made.verdict == "holds under its condition"
    assert all(agreements(worst_made, "claim")) and agreements(worst_made, "beyond") == [False]
    values = [c for c in worst_made.comparisons if c.what.startswith("E R")]
    assert len(values) == 2 and max(c.error for c in values) < 1e-12


def turned_round(worst, expected, penalty, cap):
    return (expected - worst) / penalty


@pytest.mark.parametrize("wrong", [with_the_mean, over_the_root_of_the_penalty, turned_round])
def test_a_wrong_lambda_phi_is_noticed(wrong):
    found = lambda_phi_makes_worst_risk(sets=20, weight=wrong)
    assert found.verdict in FAILED
    assert not found.comparisons[0].agrees and not found.comparisons[1].agrees


@pytest.mark.parametrize("wrong", [square_inside, not_squared])
def test_a_wrong_penalty_has_another_lambda_phi(wrong):
    """The quotient makes the worst risk of any penalty, but lambda_Phi is then another than the printed one."""
    found = lambda_phi_makes_worst_risk(sets=20, penalty=wrong)
    assert found.comparisons[0].agrees and not found.comparisons[2].agrees
    assert found.verdict in FAILED
    flatter = next(c for c in found.comparisons if "flatter" in c.what)
    assert flatter.left == pytest.approx(100 if wrong is square_inside else 1), "lambda_Phi is of degree 1 - 2 in R"


def test_the_root_comes_from_other_code(monkeypatch):
    """With slopes that are wrong by a factor the two sides part: they do not share them."""
    from irmtv.lab.theory import ood

    def steeper(risk, w, mass):
        e = on_classifiers(risk, w, mass)
        return type(e)(e.mean_risk, e.mass, e.risk, 1.01 * e.slope)

    monkeypatch.setattr(ood, "on_classifiers", steeper)
    found = lambda_phi_makes_worst_risk(sets=10)
    assert found.comparisons[2].left == pytest.approx(1.01**-2, abs=1e-6) and not found.comparisons[2].agrees


def test_the_bound_on_lambda_phi_is_sharp(worst_made):
    bound, sharp = worst_made.comparisons[-2:]
    assert bound.role == sharp.role == "ours" and 0.98 < sharp.left <= bound.left <= 1


def test_the_figure_of_lambda_phi(worst_made):
    sets, error_rate = worst_made.draw().axes
    mean, irm, minimax = sets.lines
    assert (mean.get_ydata() <= mean.get_xdata()).all()
    for side in (irm, minimax):
        np.testing.assert_allclose(side.get_ydata(), side.get_xdata(), atol=1e-12)
    rate = error_rate.lines[0].get_ydata()
    assert error_rate.lines[2].get_ydata()[0] == rate.max()
    assert error_rate.lines[1].get_ydata()[0] == pytest.approx(rate.mean())


def test_one_classifier_has_no_worst():
    with pytest.raises(ValueError, match=r"classifiers must be at least 2.*Got 1"):
        lambda_phi_makes_worst_risk(classifiers=1)
