"""The rule `invariance` where models were trained without an environment, too, and measured in it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from irmtv.selection import invariance
from irmtv.selection.invariant import AGAINST, ALL, FAR_WORSE, LOST, STEADY, WON_BACK
from selection.candidates import SE, columns, of_folds, two, written

LEVEL = [0.4, 0.4, 0.4]  # ERM's held-out risks; it gains 0.6 over the constant, 1
APART = [0.3, 0.4, 0.5]
TILTED, EQUAL = [-0.1, 0.0, 0.1], [0.0, 0.0, 0.0]  # slopes
OWN_WORSE = two([[[100.0, -0.1, 1.0]] * 3])


def left(*means, apart=0.05):
    """Risks in the environments that were left out (C, 3), around these means."""
    return two([[m - apart, m, m + apart] for m in means])


# What a test says, left-out environments must not speak against


def noisy(left_out, dearer=0.01):
    """No risks are equal; candidate 1 has equal slopes and its risks lie less far apart: alone that would do."""
    risk = [APART, [0.32 + dearer, 0.4 + dearer, 0.48 + dearer]]
    more = {} if left_out is None else {"left_out": two(left_out)}
    return written(risk, SE, slope=[TILTED, EQUAL], slope_se=SE, **more)


def test_equal_slopes_that_are_worse_where_left_out_are_refused():
    erm = [0.42, 0.45, 0.48]
    for worse in ([0.43, 0.47, 0.481], [0.43, 0.47, 0.479]):  # everywhere, or on average
        verdict = invariance(noisy([erm, worse]))
        assert (verdict.index, verdict.outcome, verdict.figures["not_paying"]) == (0, "none-found", 1)
        assert "1 with equal slopes cost more than they promise: nothing says" in verdict.message
    better = invariance(noisy([erm, [0.43, 0.45, 0.46]]))
    assert (better.index, better.outcome, better.figures["test"]) == (1, "invariant-found", "slopes")
    assert invariance(noisy(None)).index == 1


def test_where_noise_differs_left_out_environments_count_by_shares_of_their_risk():
    """Half of a risk, 3/5 of another: the mean is higher, and that of the shares, but that of the logarithms lower."""
    verdict = invariance(noisy([[0.10, 0.4, 0.5], [0.05, 0.4, 0.8]]))
    assert (verdict.index, verdict.figures["test"]) == (1, "slopes")
    assert verdict.figures["left_out"] > verdict.figures["left_out_erm"]
    said = "In environments left out of training its mean risk is 0.417, that of ERM 0.333."
    assert verdict.message.endswith(said)
    assert invariance(noisy([[0.05, 0.4, 0.8], [0.10, 0.4, 0.5]])).outcome == "none-found"


def test_left_out_environments_count_instead_of_how_far_risks_lie_apart():
    """With this reach what the candidate costs is more than what lies less far apart."""
    better = [[0.45, 0.45, 0.45], [0.44, 0.44, 0.46]]
    assert invariance(noisy(None, 0.05), reach=0.1).outcome == "none-found"
    assert invariance(noisy(better, 0.05), reach=0.1).index == 1


def test_a_candidate_with_equal_slopes_that_was_not_left_out_is_not_allowed():
    verdict = invariance(noisy([[0.45, 0.45, 0.45], [0.3, np.nan, 0.3]]))
    assert (verdict.index, verdict.outcome) == (0, "none-found")
    json.dumps(verdict.figures, allow_nan=False)


def equal_risks(left_out):
    return written([APART, [0.45] * 3], SE, slope=[TILTED, EQUAL], slope_se=SE, left_out=left_out)


def equal_columns(left_out):
    """Nothing else is equal."""
    unequal, even = [[-0.1, 0.1], [0.0, 0.0], [0.1, -0.1]], [[0.0, 0.0]] * 3
    more = columns([unequal, even], 0.01)
    return written([APART, [0.33, 0.43, 0.53]], SE, slope=[TILTED] * 2, slope_se=SE, left_out=left_out, **more)


@pytest.mark.parametrize(
    ("case", "test", "share", "taken"),
    [
        (equal_risks, "both", 0.95 * AGAINST, True),
        (equal_risks, "both", 1.05 * AGAINST, False),
        (equal_columns, "columns", -0.05, True),
        (equal_columns, "columns", 0.05, False),
    ],
)
def test_by_how_many_standard_errors_a_candidate_may_be_worse_where_left_out(case, test, share, taken):
    """Some where its risks are equal, too; else none."""
    off = np.array([-0.05, 0.0, 0.05])
    mean = share * off.std(ddof=1) / np.sqrt(3)
    erm = np.array([0.3, 0.4, 0.5])
    verdict = invariance(case(two([erm, erm * np.exp(mean + off)])))
    assert (verdict.index, verdict.outcome) == ((1, "invariant-found") if taken else (0, "none-found"))
    assert verdict.figures["test"] == (test if taken else "both")
    assert ("In environments left out of training its mean risk is" in verdict.message) == taken
    assert invariance(case(None)).index == 1


def test_what_left_out_environments_refuse_is_not_what_the_halves_choose():
    """1, the cheapest, is far worse where left out; one half would take it, the other refutes it. 2 is equal in both.

    Without left-out environments a half chooses 1: then 2, the choice of both, is not confirmed, but taken.
    """
    left_out = two([[0.45, 0.45, 0.45], [0.90, 0.91, 0.92], [0.45, 0.44, 0.45]])
    slope = {"slope": [TILTED, EQUAL, EQUAL], "slope_se": SE}
    cheap = ([0.42, 0.42, 0.42], [0.30, 0.42, 0.54])
    records = of_folds([written([APART, r, [0.45] * 3], SE, left_out=left_out, **slope) for r in cheap])
    verdict = invariance(records)
    assert (verdict.index, verdict.figures["test"]) == (2, "both")
    assert verdict.figures["p_confirmed"] == verdict.figures["p_halves"] == 1
    assert "not confirmed" not in verdict.message
    without = invariance(replace(records, left_out=None))
    assert (without.index, without.figures["test"], without.figures["p_halves"]) == (2, "both", 1)
    assert without.figures["p_confirmed"] < STEADY and "it is not confirmed" in without.message


# Won back where ERM loses much


def invariant_erm(left_out, **more):
    return written([LEVEL, [0.45, 0.45, 0.45], [0.5, 0.5, 0.5]], SE, left_out=left_out, **more)


def no_invariant_model(left_out, **more):
    risk = [APART, [0.35, 0.45, 0.55], [0.4, 0.5, 0.6]]
    return written(risk, SE, slope=[TILTED] * 3, slope_se=SE, left_out=left_out, **more)


def own_models_are_no_better(left_out, **more):
    return no_invariant_model(left_out, own=OWN_WORSE, **more)


def risks_differ_slopes_do_not(left_out, **more):
    return written([APART, [0.35, 0.45, 0.55], [0.4, 0.5, 0.6]], SE, left_out=left_out, **more)


ELSE = {
    invariant_erm: "erm-invariant",
    no_invariant_model: "none-found",
    own_models_are_no_better: "erm-kept",
    risks_differ_slopes_do_not: "erm-invariant",
}
every_case = pytest.mark.parametrize("case", [*ELSE])


@every_case
def test_a_candidate_that_wins_back_what_erm_loses_is_taken(case):
    """ERM has 0.4 where it was trained and 1.1 where it was not: 0.7 is lost. 2 wins back more than 1."""
    verdict = invariance(case(left(1.1, 0.58, 0.55)))
    assert (verdict.index, verdict.outcome, verdict.figures["test"]) == (2, "invariant-found", "left-out")
    f = verdict.figures
    assert (f["left_out"], f["left_out_erm"]) == (pytest.approx(0.55), pytest.approx(1.1))
    assert f["risk"] == pytest.approx(0.5) and f["p_confirmed"] is None and f["p_halves"] is None
    assert verdict.message.startswith("a model was found that does better in environments which training did not see:")
    assert "its mean risk there is 0.55, that of ERM 1.1." in verdict.message
    json.dumps(f, allow_nan=False)


@every_case
@pytest.mark.parametrize(("share", "taken"), [(1.02, True), (0.98, False)])
def test_half_of_it_must_be_won_back(case, share, taken):
    verdict = invariance(case(left(1.1, 1.1 - share * WON_BACK * 0.7, 1.09)))
    assert verdict.index == (1 if taken else 0)
    assert verdict.outcome == ("invariant-found" if taken else ELSE[case])


@every_case
@pytest.mark.parametrize(("share", "taken"), [(1.02, True), (0.98, False)])
def test_erm_must_have_lost_a_quarter_of_its_gain_or_all_of_it_where_nothing_else_speaks_against_it(case, share, taken):
    lost = share * (LOST if case is no_invariant_model else ALL) * 0.6
    verdict = invariance(case(left(0.4 + lost, 0.3, 0.4 + lost)))
    assert verdict.index == (1 if taken else 0)
    assert verdict.outcome == ("invariant-found" if taken else ELSE[case])


@every_case
def test_without_left_out_environments_nothing_is_won_back(case):
    verdict = invariance(case(None))
    assert (verdict.index, verdict.outcome) == (0, ELSE[case])
    assert (verdict.figures["left_out"], verdict.figures["left_out_erm"]) == (None, None)


def test_one_environment_does_not_decide_however_much_is_lost_in_it():
    """Above twice the constant, 2, a loss counts as that: 1 loses 50 in one environment and wins in the others."""
    erm = [0.8, 0.8, 2.0]
    verdict = invariance(invariant_erm(two([erm, [0.3, 0.3, 50.0], erm])))
    assert verdict.index == 0  # (0.3 + 0.3 + 2) / 3 is more than half way back
    verdict = invariance(invariant_erm(two([[0.8, 0.8, 50.0], [0.3, 0.3, 1.5], erm])))
    assert (verdict.index, verdict.figures["test"]) == (1, "left-out")
    verdict = invariance(invariant_erm(two([[0.8, 0.8, 50.0], [0.7, 0.7, 1.9], erm])))  # from 1.2 to 1.1, not to 0.8
    assert verdict.index == 0


def test_what_predicts_nothing_wins_nothing_back():
    """A constant has the same risk everywhere: 0.95, of which ERM, at 1.6, would be glad."""
    risk = [LEVEL, [0.95, 0.95, 0.95], [0.80, 0.80, 0.80]]
    verdict = invariance(written(risk, SE, left_out=left(1.6, 0.90, 0.95)))
    assert verdict.index == 2
    assert invariance(written(risk[:2], SE, left_out=left(1.6, 0.90))).outcome == "erm-invariant"


def test_candidates_that_are_not_known_where_they_were_left_out_win_nothing_back():
    left_out = left(1.1, 0.4, 0.55)
    left_out[1, 0] = torch.nan
    assert invariance(invariant_erm(left_out)).index == 2
    left_out[0, 1] = torch.nan  # nor is it known what ERM loses
    assert invariance(invariant_erm(left_out)).outcome == "erm-invariant"


def test_equal_slopes_in_every_column_come_before_what_is_won_back():
    """Where noise differs: 1 has equal slopes in every column, 2 does best where it was left out."""
    unequal, even = [[-0.1, 0.1], [0.0, 0.0], [0.1, -0.1]], [[0.0, 0.0]] * 3
    verdict = invariance(no_invariant_model(left(0.8, 0.7, 0.5), **columns([unequal, even, unequal], 0.01)))
    assert (verdict.index, verdict.figures["test"]) == (1, "columns")
    verdict = invariance(no_invariant_model(left(0.8, 0.7, 0.5), **columns([unequal] * 3, 0.01)))
    assert (verdict.index, verdict.figures["test"]) == (2, "left-out")


def test_one_test_alone_does_not_ask_left_out_environments():
    for test in ("risks", "slopes", "zero-slopes"):
        assert invariance(invariant_erm(left(0.8, 0.5, 0.5)), test=test).outcome == "erm-invariant"


def test_erm_that_loses_nothing_where_left_out_has_nothing_to_win_back():
    """Its risks are the same, left out or not; the small environment counts a third in one mean, little in the other.

    By rows its risk is 0.12, by environments 0.37.
    """
    risk = [[0.1, 0.1, 0.9], [0.12, 0.12, 0.45]]
    records = written(risk, SE, rows=[1000.0, 1000.0, 50.0], slope=[EQUAL, TILTED], slope_se=SE, left_out=two(risk))
    assert invariance(records).figures["test"] != "left-out"


@pytest.mark.parametrize(("share", "taken"), [(0.95, True), (1.05, False)])
def test_what_is_not_confirmed_may_not_be_far_worse_where_left_out(share, taken):
    """1 is what one half would take, and the other refutes; 2 is what both take."""
    slope = {"slope": [TILTED, EQUAL, EQUAL], "slope_se": SE}
    cheap = ([0.42, 0.42, 0.42], [0.30, 0.42, 0.54])
    far = 0.45 * np.exp(share * FAR_WORSE + np.array([-0.4, 0.0, 0.4]))
    left_out = two([[0.45] * 3, [0.45, 0.46, 0.45], far.tolist()])
    records = of_folds([written([APART, r, [0.45] * 3], SE, left_out=left_out, **slope) for r in cheap])
    verdict = invariance(records)
    assert (verdict.index, verdict.outcome) == ((2, "invariant-found") if taken else (0, "none-found"))
    same = of_folds([written([APART, cheap[1], [0.45] * 3], SE, left_out=left_out, **slope)] * 2)
    confirmed = invariance(same)
    assert confirmed.index == 2 and confirmed.figures["p_confirmed"] > 0.01
