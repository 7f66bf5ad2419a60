"""The rule `invariance` with linear models, whose slopes are known in every column; and where ERM is kept."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from irmtv.selection import extrapolated_risk, invariance, p_values
from irmtv.selection.case import CHEAP, DEARER, SEEN, SETTLED, STRONG
from irmtv.selection.directions import Directions
from irmtv.selection.invariant import worth_leaving_out, would_be_taken
from irmtv.selection.views import COLUMNS_REACH
from selection.candidates import ASKEW, ERM, SE, columns, of_folds, two, written

NOISY = [0.3, 0.6]  # ERM's risks where noise differs
UNEQUAL, EVEN = [[-0.1, 0.1], [0.1, -0.1]], [[0.0, 0.0], [0.0, 0.0]]  # slopes in two columns, of two environments
OTHERWISE = [[0.1, -0.1], [-0.1, 0.1]]  # as far apart, the other way round
OWN_WORSE, OWN_BETTER = two([[[100.0, -0.1, 1.0]] * 2]), two([[[100.0, 0.5, 1.0]] * 2])
SAME, OTHER = Directions(0.5, 0.0), Directions(1e-9, 0.1)  # whether all environments would choose the same direction


def noisy(extra, *, slope=(ASKEW, [0.0, 0.0], [0.0, 0.0]), column=(UNEQUAL, UNEQUAL, EVEN), **more):
    """ERM; 1 has equal slopes, but not in every column, and costs 0.01; 2 has them in every column and costs `extra`.

    No risks are equal, and all lie less far apart than those of ERM.
    """
    risks = [NOISY, [0.33, 0.59], [0.32 + extra, 0.58 + extra]]
    return written(risks, SE, slope=list(slope), slope_se=SE, **columns(list(column), 0.01), **more)


# Slopes in every column


def test_equal_slopes_in_every_column_decide_where_noise_differs():
    verdict = invariance(noisy(0.02))
    assert (verdict.index, verdict.outcome, verdict.figures["test"]) == (2, "invariant-found", "columns")
    f = verdict.figures
    assert f["p"] == f["p_columns"] == 1 and f["p_erm"] == f["p_columns_erm"] < 1e-9
    assert f["variation"] == 0 and f["variation_erm"] == pytest.approx(np.hypot(0.1, 0.1), rel=0.01)
    assert f["price"] == pytest.approx(0.02)
    assert (f["candidates"], f["passing"]) == (2, 1)
    assert verdict.message.startswith(
        "Environments seem to differ in noise or base rate, so slopes decide alone: an inv"
    )
    assert "(slopes of all columns equal over environments, " in verdict.message
    json.dumps(f, allow_nan=False)


def test_without_columns_the_same_records_are_decided_by_slopes():
    without = written([NOISY, [0.33, 0.59], [0.34, 0.60]], SE, slope=[ASKEW, [0.0, 0.0], [0.0, 0.0]], slope_se=SE)
    verdict = invariance(without)
    assert (verdict.index, verdict.figures["test"]) == (1, "slopes")
    by_column = ("p_columns", "p_columns_erm", "variation", "variation_erm", "detectable")
    assert [verdict.figures[name] for name in by_column] == [None] * 5


@pytest.mark.parametrize(("share", "index", "test"), [(0.98, 2, "columns"), (1.02, 1, "slopes")])
def test_equal_slopes_in_every_column_may_cost_three_times_as_much_as_equal_slopes(share, index, test):
    verdict = invariance(noisy(share * DEARER * 0.01))
    assert (verdict.index, verdict.outcome, verdict.figures["test"]) == (index, "invariant-found", test)


def test_what_equal_slopes_in_every_column_cost_does_not_matter_where_nothing_else_is_left():
    verdict = invariance(noisy(0.3, slope=(ASKEW, ASKEW, [0.0, 0.0])))
    assert (verdict.index, verdict.figures["test"]) == (2, "columns")


def test_slopes_that_are_equal_in_every_column_must_be_so_in_their_sum():
    """A noisy environment hides in the sum over columns what the slope of the logits shows."""
    verdict = invariance(noisy(0.3, slope=(ASKEW, ASKEW, ASKEW)))
    assert (verdict.index, verdict.outcome) == (0, "none-found")


def test_equal_slopes_and_equal_risks_come_first():
    risks = [ERM, [0.45, 0.45], [0.42, 0.49]]
    more = columns([UNEQUAL, EVEN, EVEN], 0.01)
    verdict = invariance(written(risks, SE, slope=[ASKEW, [0.0, 0.0], [0.0, 0.0]], slope_se=SE, **more))
    assert (verdict.index, verdict.figures["test"]) == (1, "both")


def test_of_those_with_equal_risks_slopes_that_vary_over_columns_count_against():
    """By hand: risk + 30 x 0.01 of variation, so that 0.45 without is better than 0.44 with it."""
    a_little = (0.01**2 + 2 * 0.002**2 / 2) ** 0.5  # what noise of 0.002 in two columns adds is taken off
    vary = [[-a_little, 0.0], [a_little, 0.0]]
    records = written([ERM, [0.44, 0.44], [0.45, 0.45]], SE, slope=[ASKEW, [0.0, 0.0], [0.0, 0.0]], slope_se=SE,
                      **columns([UNEQUAL, vary, EVEN], 0.002))  # fmt: skip
    score = extrapolated_risk(records.pooled(), "both", 10.0, 0.5)
    np.testing.assert_allclose(score[1:], [0.44 + COLUMNS_REACH * 0.01, 0.45])
    np.testing.assert_allclose(extrapolated_risk(records.pooled(), "columns", 10.0, 0.5)[1:], [0.44 + 10 * 0.01, 0.45])
    assert invariance(records).index == 2


def test_environments_with_few_rows_do_not_count_in_columns():
    column = [[*UNEQUAL, [5.0, 5.0]], [*EVEN, [5.0, -5.0]]]
    risks = [[*NOISY, 0.9], [0.32, 0.58, 0.9]]
    slope = {"slope": [[-0.1, 0.1, 0.0], [0.0, 0.0, 0.0]], "slope_se": SE}
    for few, test in ((19.0, "columns"), (20.0, "slopes")):
        verdict = invariance(written(risks, SE, rows=[100.0, 100.0, few], **slope, **columns(column, 0.01)))
        assert (verdict.index, verdict.figures["test"]) == (1, test)


def test_the_test_of_columns_alone():
    records = noisy(0.3, slope=(ASKEW, ASKEW, ASKEW))
    verdict = invariance(records, test="columns")
    assert (verdict.index, verdict.outcome, verdict.figures["test"]) == (2, "invariant-found", "columns")
    np.testing.assert_allclose(p_values(records.pooled(), "columns")[2], 1)
    passed = invariance(noisy(0.3, column=(EVEN, UNEQUAL, EVEN)), test="columns")
    assert (passed.index, passed.outcome) == (0, "erm-invariant")
    assert invariance(noisy(0.3, column=(UNEQUAL, UNEQUAL, UNEQUAL)), test="columns").outcome == "none-found"


def test_the_test_of_columns_needs_columns():
    with pytest.raises(ValueError, match=r"test 'columns' looks at the slope in every column.* use test='both'"):
        invariance(written([ERM, [0.45, 0.45]], SE), test="columns")


def test_risks_that_differ_do_not_speak_against_erm_with_equal_slopes_in_every_column():
    verdict = invariance(noisy(0.02, slope=([0.0, 0.0],) * 3, column=(EVEN,) * 3))
    assert (verdict.index, verdict.outcome, verdict.figures["test"]) == (0, "erm-invariant", "both")
    assert invariance(noisy(0.02, column=(EVEN,) * 3)).outcome != "erm-invariant"  # its slopes differ


def test_equal_slopes_do_not_make_erm_invariant_where_its_columns_differ():
    verdict = invariance(noisy(0.02, slope=([0.0, 0.0],) * 3))
    assert verdict.figures["p_columns_erm"] < 1e-9
    assert (verdict.index, verdict.outcome, verdict.figures["test"]) == (2, "invariant-found", "columns")


# On each half of the folds


def test_columns_must_be_equal_in_both_halves():
    """2 is what each half chooses, too: by hand, two columns' differences over their standard errors."""
    aside = [[-0.01, 0.0], [0.01, 0.0]]
    records = of_folds([noisy(0.02), noisy(0.02, column=(UNEQUAL, UNEQUAL, aside))])
    verdict = invariance(records)
    assert (verdict.index, verdict.figures["test"]) == (2, "columns")
    p = stats.chi2.sf(0.02**2 / (2 * 0.01**2), 2)
    assert verdict.figures["p_halves"] == verdict.figures["p_confirmed"] == pytest.approx(min(1, 2 * p))


def test_columns_that_halves_of_the_folds_see_differently_are_not_taken():
    """Unequal in either half, equal over both: then equal slopes decide."""
    records = of_folds([noisy(0.02, column=(UNEQUAL, UNEQUAL, c)) for c in (UNEQUAL, OTHERWISE)])
    assert p_values(records.pooled(), "columns")[2] == pytest.approx(1)
    verdict = invariance(records)
    assert (verdict.index, verdict.outcome, verdict.figures["test"]) == (1, "invariant-found", "slopes")
    nothing_else = of_folds(
        [noisy(0.02, slope=(ASKEW,) * 3, column=(UNEQUAL, UNEQUAL, c)) for c in (UNEQUAL, OTHERWISE)]
    )
    assert invariance(nothing_else).outcome == "none-found"


def test_equal_slopes_must_be_equal_in_both_halves():
    risks = [NOISY, [0.33, 0.59]]

    def halves(z):
        aside = z * SE / np.sqrt(2)
        each = ([-aside, aside], [aside, -aside])
        return of_folds([written(risks, SE, slope=[ASKEW, slope], slope_se=SE) for slope in each])

    refuted, steady = invariance(halves(5.0)), invariance(halves(2.0))
    assert (refuted.index, refuted.outcome) == (0, "none-found")
    assert (steady.index, steady.outcome, steady.figures["test"]) == (1, "invariant-found", "slopes")
    p = pytest.approx(2 * 2 * stats.t.sf(2.0, 198))
    assert steady.figures["p_halves"] == p and steady.figures["p_confirmed"] == p


def test_one_hold_out_has_no_halves():
    for column in (UNEQUAL, OTHERWISE):
        assert invariance(noisy(0.02, column=(UNEQUAL, UNEQUAL, column))).index == 1
    verdict = invariance(noisy(0.02))
    assert verdict.index == 2
    assert verdict.figures["p_halves"] is None and verdict.figures["p_confirmed"] is None


@pytest.mark.parametrize(("risk", "taken"), [([0.31, 0.51], False), ([0.31, 0.49], True)])
def test_where_folds_cannot_tell_what_costs_everywhere_is_not_taken(risk, taken):
    """Halves of 19 rows. The candidate's risks are equal enough to pass; ERM's lie at 0.3 and 0.5."""
    slope = {"slope": [[-0.1, 0.1], [0.0, 0.0]], "slope_se": SE}
    verdict = invariance(of_folds([written([ERM, risk], 0.2, rows=19.0, **slope) for _ in range(2)]))
    assert verdict.figures["p_halves"] is None and verdict.figures["p_confirmed"] is None
    assert verdict.outcome == ("invariant-found" if taken else "none-found")


@pytest.mark.parametrize("lacking", [0, 1])
@pytest.mark.parametrize(("risk", "taken"), [([0.42, 0.59], True), ([0.42, 0.61], False)])
def test_a_half_that_does_not_know_the_choice_cannot_tell(risk, taken, lacking):
    """Of inferred environments a candidate has rows of its own; candidate 2 is known in both halves, and fails.

    So nothing passes in that half, and the choice is not confirmed; it is not refuted by it, either.
    """
    risks = [NOISY, risk, NOISY]
    records = of_folds([written(risks, SE, slope=[[-0.1, 0.1], [0.0, 0.0], [-0.1, 0.1]], slope_se=SE)] * 2)
    records.rows[lacking, 1] = two([10.0, 100.0])
    verdict = invariance(records)
    assert (verdict.index, verdict.outcome) == ((1, "invariant-found") if taken else (0, "none-found"))
    assert verdict.figures["test"] == ("slopes" if taken else "both")
    assert verdict.figures["p_halves"] is None and verdict.figures["p_confirmed"] == (0 if taken else None)


# ERM is kept


@pytest.mark.parametrize(("weak", "share", "taken"), [(True, 1.01, True), (True, 0.99, False), (False, 0.99, True)])
def test_where_erm_fails_by_little_a_candidate_may_cost_next_to_nothing(weak, share, taken):
    """ERM gains 0.6, and the candidate this share of CHEAP of it. ERM's slopes differ; p-values are of two tests."""
    p = (STRONG * 0.01) ** 0.5 if weak else STRONG / 2
    aside, risk = stats.t.isf(p / 4, 198) * SE / np.sqrt(2), 1 - share * CHEAP * 0.6
    slope = {"slope": [[-aside, aside], [0.0, 0.0]], "slope_se": SE}
    verdict = invariance(written([[0.4, 0.4], [risk, risk]], SE, **slope))
    assert verdict.figures["p_erm"] == pytest.approx(p)
    # slopes alone, of half the p-value, would be clear enough, but the candidate costs more in every environment
    assert (verdict.index, verdict.outcome) == ((1, "invariant-found") if taken else (0, "none-found"))


def test_erm_is_kept_where_no_environments_own_model_is_better():
    records = {"risk": [ERM, [0.45, 0.45]], "se": SE, "slope": [ASKEW, [0.0, 0.0]], "slope_se": SE}
    kept = invariance(written(**records, own=OWN_WORSE))
    assert (kept.index, kept.outcome, kept.figures["test"]) == (0, "erm-kept", "both")
    assert kept.figures["p_own"] > 0.95 and kept.figures["price"] == 0 and kept.figures["p_erm"] < 1e-9
    assert "no model trained on one environment alone beats it there" in kept.message
    assert "all worse, having fewer rows" in kept.message
    for found in (invariance(written(**records, own=OWN_BETTER)), invariance(written(**records))):
        assert (found.index, found.outcome) == (1, "invariant-found")
    assert invariance(written(**records, own=OWN_WORSE), own_level=1.0).outcome == "invariant-found"
    assert invariance(written(**records, own=OWN_WORSE), test="risks").outcome == "erm-kept"


def test_erm_that_passes_is_invariant_whatever_own_models_gain():
    for own in (OWN_WORSE, OWN_BETTER):
        assert invariance(written([[0.4, 0.4], [0.45, 0.45]], SE, own=own)).outcome == "erm-invariant"


def test_equal_columns_are_no_reason_to_leave_erm_where_no_own_model_is_better():
    for column in (UNEQUAL, EVEN):
        verdict = invariance(noisy(0.02, column=(UNEQUAL, UNEQUAL, column), own=OWN_WORSE))
        assert (verdict.index, verdict.outcome, verdict.figures["test"]) == (0, "erm-kept", "both")


# ERM that is right almost everywhere


def settled(risk, *, erm=0.5 * SETTLED, column=(UNEQUAL, EVEN), slope=(0.0, 0.0), **more):
    """A constant has a risk of 1; ERM's slopes differ, but where next to nothing is left to explain no direction is
    better than its own. 1 has these risks and slopes."""
    more = {"directions": SAME, **more}
    slopes = {"slope": [ASKEW, list(slope)], "slope_se": SE}
    return written([[erm, erm], list(risk)], 0.001, **slopes, **columns(list(column), 0.01), **more)


@pytest.mark.parametrize(("share", "taken"), [(1.01, True), (0.99, False)])
def test_where_erm_is_right_almost_everywhere_one_that_can_be_tested_may_cost_next_to_nothing(share, taken):
    gain = 1 - 0.5 * SETTLED
    risk = 1 - share * CHEAP * gain
    verdict = invariance(settled([risk, risk]))
    assert (verdict.index, verdict.outcome) == ((1, "invariant-found") if taken else (0, "erm-kept"))
    assert verdict.figures["test"] == ("columns" if taken else "both")
    assert verdict.figures["gain_kept"] == pytest.approx(share * CHEAP if taken else 1)
    json.dumps(verdict.figures, allow_nan=False)


def test_a_model_that_is_taken_for_being_testable_has_risks_and_slopes_that_are_equal_and_large_enough():
    assert invariance(settled([0.05, 0.05])).index == 1
    for refused in (
        settled([0.03, 0.07]),  # risks
        settled([0.05, 0.05], slope=ASKEW),
        settled([0.05, 0.05], column=(UNEQUAL, OTHERWISE)),
        settled([0.9 * SETTLED] * 2),  # as little is left of it as of ERM
        settled([0.05, 0.05], erm=1.1 * SETTLED),  # something is left of ERM
        settled([0.05, 0.05], left_out=two([[0.01] * 3, [0.05] * 3])),  # clearly worse where left out
    ):
        assert (invariance(refused).index, invariance(refused).outcome) == (0, "erm-kept")
    assert invariance(settled([0.05, 0.05], erm=1.1 * SETTLED, directions=OTHER)).index == 1  # as ever
    assert invariance(settled([1.1 * SETTLED] * 2)).index == 1


def test_what_can_be_tested_there_is_worth_leaving_out():
    erm_alone = two([[0.01] * 3, [np.nan] * 3])
    for erm, worth in ((0.5, True), (1.1, False)):
        records = settled([0.05, 0.05], erm=erm * SETTLED, left_out=erm_alone)
        assert worth_leaving_out(records).tolist() == [False, worth]


def test_of_others_than_linear_models_nothing_can_be_tested_there():
    records = replace(settled([0.05, 0.05]), column_slope=None, column_slope_cov=None)
    assert invariance(records).outcome == "erm-kept"


def test_what_is_taken_for_being_testable_must_be_equal_in_both_halves_too():
    for each, outcome in (((EVEN, EVEN), "invariant-found"), ((UNEQUAL, OTHERWISE), "erm-kept")):
        verdict = invariance(of_folds([settled([0.05, 0.05], column=(UNEQUAL, c)) for c in each]))
        assert verdict.outcome == outcome
        assert verdict.figures["p_halves"] == verdict.figures["p_confirmed"] == (1 if each[0] is EVEN else None)


# What the test could have seen


def sure(rows):
    """ERM passes all tests; a row's slope has a standard deviation of 1 in each of two columns."""
    more = columns([EVEN, EVEN], rows**-0.5)
    return written([[0.4, 0.4], [0.45, 0.45]], SE, rows=rows, **more)


def test_erm_is_invariant_only_where_the_test_could_have_seen_something():
    few, many = invariance(sure(50.0)), invariance(sure(2000.0))
    assert (few.index, few.outcome) == (0, "erm-kept")
    assert (many.index, many.outcome) == (0, "erm-invariant")
    assert few.figures["blind"] and not many.figures["blind"]
    gain = 1.0 - 0.4
    assert few.figures["detectable"] > SEEN * gain > many.figures["detectable"]
    assert few.figures["detectable"] == pytest.approx(many.figures["detectable"] * np.sqrt(2000 / 50))
    assert "these rows could not show much" in few.message and few.message.endswith("More rows would tell.")
    assert f"It would have seen slopes that vary by {many.figures['detectable']:.2g} (ERM gains 0.6)" in many.message


def test_where_erm_gains_nothing_nothing_can_be_seen():
    records = written([[0.4, 0.4], [0.39, 0.39]], SE, rows=2000.0, constant=0.4, **columns([EVEN, EVEN], 1e-6))
    verdict = invariance(records)
    assert verdict.outcome == "erm-kept" and verdict.figures["blind"]


def test_a_test_that_sees_little_keeps_erm_whatever_left_out_environments_say():
    """ERM fails there and 1 does not: with more rows it would be taken."""
    left_out = {"left_out": two([[0.5, 1.2, 0.5], [0.44, 0.45, 0.44]])}
    few, many = (invariance(replace(sure(rows), **left_out)) for rows in (50.0, 2000.0))
    assert (few.index, few.outcome, few.figures["test"]) == (0, "erm-kept", "both")
    assert few.figures["blind"] and not few.figures["contradicted"] and "could not show much" in few.message
    assert (many.index, many.outcome, many.figures["test"]) == (1, "invariant-found", "left-out")


def test_without_columns_nothing_is_known_of_what_could_be_seen():
    verdict = invariance(written([[0.4, 0.4], [0.45, 0.45]], SE, rows=20.0))
    assert verdict.outcome == "erm-invariant" and verdict.figures["detectable"] is None
    assert "would have seen" not in verdict.message


def test_what_was_found_against_erm_is_said_though_the_rows_show_little_of_columns():
    more = columns([EVEN, EVEN], 0.2)
    records = written([ERM, [0.6, 0.8]], SE, slope=[[-0.2, 0.2]] * 2, slope_se=SE, own=OWN_WORSE, **more)
    verdict = invariance(records)
    assert verdict.outcome == "erm-kept" and verdict.figures["p_erm"] < 1e-9
    assert verdict.figures["detectable"] > SEEN * 0.6 and not verdict.figures["blind"]
    assert "nothing was found against it" not in verdict.message


def test_the_message_tells_the_p_value_of_the_test_that_decided():
    records = noisy(0.02, slope=([0.0, 0.0],) * 3)
    verdict = invariance(records, test="slopes")
    assert verdict.outcome == "erm-invariant" and verdict.figures["p_erm"] == 1
    assert verdict.message.startswith("ERM passed the invariance test (p = 1; slopes equal over environments")


# At ease


def test_of_those_that_pass_at_ease_the_lowest_risk_is_taken():
    """Both have equal risks and slopes, up to noise; those of the dearer one lie nearer to each other."""
    risks = [NOISY, [0.4, 0.418], [0.45, 0.45]]  # ERM, 1, 2
    flat = {"slope": [ASKEW, [0.0, 0.0], [0.0, 0.0]], "slope_se": SE}
    records = written(risks, SE, **flat, **columns([UNEQUAL, EVEN, EVEN], 0.01), directions=OTHER)
    score = extrapolated_risk(records.pooled(), "both", 10.0, 0.5)
    assert score[2] < score[1] and float(p_values(records.pooled(), "both")[1]) > 0.05
    assert invariance(records).index == 1
    near = written(
        [NOISY, [0.4, 0.47], [0.45, 0.45]], SE, **flat, **columns([UNEQUAL, EVEN, EVEN], 0.01), directions=OTHER
    )
    assert 0.01 < float(p_values(near.pooled(), "both")[1]) < 0.05
    assert invariance(near).index == 2, "the extrapolated risk decides where one is not at ease"


@pytest.mark.parametrize(("gain", "error", "outcome"), [
    (0.1, 0.0, "none-found"), (0.1, 0.046, "none-found"), (0.1, 0.049, "erm-kept"), (0.0049, 0.0, "erm-kept"),
])  # fmt: skip
def test_erm_misses_something_where_own_models_would_clearly_gain_a_hundredth(gain, error, outcome):
    """ERM gains 0.55 over a constant, 1."""
    records = noisy(0.3, column=(UNEQUAL, UNEQUAL, UNEQUAL), slope=(ASKEW,) * 3)
    verdict = invariance(replace(records, directions=Directions(1e-9, gain, error)))
    assert (verdict.index, verdict.outcome) == (0, outcome)
    f = verdict.figures
    assert (f["own_gain"], f["own_error"]) == (gain, error)
    if outcome == "erm-kept":
        noise = " (with a standard deviation of 0.05)" if error else ""
        assert f"models of their own would gain them much: {gain:.1g}{noise}, where ERM gains 0.55" in verdict.message


@pytest.mark.parametrize(("error", "taken"), [(0.0495, True), (0.0505, False)])
def test_a_candidate_is_taken_where_own_models_would_clearly_gain_something(error, taken):
    """A direction is another one, but what it would gain may be noise: then environments need no other model."""
    verdict = invariance(noisy(0.02, directions=Directions(1e-9, 0.1, error)))
    assert (verdict.index, verdict.outcome) == ((2, "invariant-found") if taken else (0, "erm-kept"))


# Toward the candidate that would be taken


def test_environments_are_asked_about_the_candidate_rather_than_all_directions():
    risks = [NOISY, [0.4, 0.4]]
    flat = {"slope": [ASKEW, [0.0, 0.0]], "slope_se": SE, **columns([UNEQUAL, EVEN], 0.01)}
    for everywhere in (SAME, OTHER):
        records = written(risks, SE, **flat, directions=everywhere)
        assert would_be_taken(records) == 1
        taken = invariance(replace(records, toward=Directions(1e-4, 0.02)))
        assert (taken.index, taken.outcome, taken.figures["p_own"]) == (1, "invariant-found", 1e-4)
        kept = invariance(replace(records, toward=Directions(0.01, 0.02)))
        assert (kept.index, kept.outcome, kept.figures["p_own"]) == (0, "erm-kept", 0.01)
        said = "these rows do not show clearly that some of them would go another way than others (p = 0.01; 0.002 is"
        assert said in kept.message
        same = invariance(replace(records, toward=Directions(0.5, 0.02)))
        assert "each of them would choose the same model, but for its scale (p = 0.5)" in same.message


def test_nothing_is_asked_where_nothing_would_be_taken():
    passing = written([NOISY, [0.4, 0.4]], SE, slope=[[0.0, 0.0]] * 2, slope_se=SE, **columns([EVEN, EVEN], 0.01))
    assert would_be_taken(passing) is None and invariance(passing).index == 0
