"""Paired tests against all signs, Holm's correction against its definition."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from irmtv.lab.tables import holm, paired_tests
from lab.tables.results import frame, only, rows

# --- paired tests -----------------------------------------------------------------------------------------


def p_by_enumeration(difference):
    """Two-sided p of the signed-rank test: all sign patterns of the non-zero differences."""
    d = np.array([x for x in difference if x != 0])
    ranks = stats.rankdata(np.abs(d))
    sums = np.array([np.dot(ranks, signs) for signs in itertools.product((0, 1), repeat=len(d))])
    observed = ranks[d > 0].sum()
    tail = min(np.mean(sums <= observed + 1e-9), np.mean(sums >= observed - 1e-9))
    return min(1.0, 2 * tail)


def compare(a, b, **more):
    return only(paired_tests(frame(rows("a", a), rows("b", b)), **more))


@pytest.mark.parametrize("n", [5, 6, 7, 8])
@pytest.mark.parametrize("seed", range(5))
def test_signed_rank_p_by_enumeration(n, seed):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(0.5, 1, n), rng.normal(size=n)
    row = compare(a, b)
    assert row["n"] == n
    assert row["p"] == pytest.approx(p_by_enumeration(a - b), rel=1e-12)
    size = max(np.abs(a).max(), np.abs(b).max())
    assert row["median_difference"] == pytest.approx(np.median(a - b), abs=1e-7 * size)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-3, 4), min_size=5, max_size=9).filter(any))
def test_signed_rank_p_with_ties_and_zeros_by_enumeration(steps):
    """Accuracies are counts over a test set, so their differences tie; 0.7 + k/100 does not do so exactly."""
    a = [0.7 + step / 100 for step in steps]
    assert compare(a, [0.7] * len(a))["p"] == pytest.approx(p_by_enumeration(steps), rel=1e-12)


def test_ties_are_seen_through_rounding():
    a, b = [0.9, 0.8, 0.7, 0.6, 0.5, 0.3], [0.8, 0.7, 0.6, 0.5, 0.4, 0.4]
    assert len({abs(x - y) for x, y in zip(a, b, strict=True)}) > 1  # as floats they differ
    assert compare(a, b)["p"] == pytest.approx(p_by_enumeration([1, 1, 1, 1, 1, -1]))


def test_differences_that_float32_makes_are_none():
    """Two models that predict alike, one evaluated in another group: their scores differ in the last digits."""
    a = np.array([0.91, 0.82, 0.73, 0.64, 0.55, 0.46])
    rounded = a.astype(np.float32).astype(np.float64)
    assert (a != rounded).all()
    row = compare(a, rounded)
    assert (row["p"], row["median_difference"], row["note"]) == (1.0, 0.0, "all differences are zero")
    steps = np.array([1, 2, 2, -3, 4, 4]) / 100
    assert compare(a + steps, rounded)["p"] == pytest.approx(p_by_enumeration([1, 2, 2, -3, 4, 4]), rel=1e-12)
    # but one of a part in a hundred thousand is one
    assert compare(a * (1 + 1e-5), a)["p"] == pytest.approx(2 / 2**6)


def test_many_pairs_as_scipy_has_it():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0.3, 1, 60), rng.normal(size=60)
    assert compare(a, b)["p"] == pytest.approx(stats.wilcoxon(a, b).pvalue)


def test_equal_methods():
    row = compare([0.5] * 8, [0.5] * 8)
    assert (row["p"], row["p_holm"], row["median_difference"]) == (1.0, 1.0, 0.0)
    assert row["note"] == "all differences are zero"


@pytest.mark.parametrize(
    ("n", "note"),
    [
        (1, "the smallest possible two-sided p with 1 pair is 1"),
        (5, "the smallest possible two-sided p with 5 pairs is 0.0625"),
        (6, ""),
    ],
)
def test_few_pairs_are_said(n, note):
    row = compare([1.0 + 0.1 * i for i in range(n)], [0.0] * n)
    assert row["note"] == note
    assert row["p"] == pytest.approx(2 / 2**n)  # all of one sign: as small as it can be


def test_zero_differences_do_not_count_as_pairs_of_the_test():
    row = compare([1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 0.0], [0.0] * 7)
    assert row["n"] == 7
    assert row["p"] == pytest.approx(0.25)
    assert row["note"] == "the smallest possible two-sided p with 3 pairs that differ is 0.25"


def test_incomplete_pairs_are_dropped_and_counted():
    a, b = [0.9, math.nan, 0.7, 0.8, 0.9, 0.5, 0.65, 0.4], [0.1, 0.2, math.nan, 0.3, 0.45, 0.35, 0.4, 0.1]
    row = compare(a, b)
    assert (row["n"], row["dropped"]) == (6, 2)
    whole = [i for i in range(8) if not math.isnan(a[i] + b[i])]
    assert row["p"] == compare([a[i] for i in whole], [b[i] for i in whole])["p"]


def test_pairs_are_matched_by_repetition_not_by_place():
    rng = np.random.default_rng(2)
    data = frame(rows("a", rng.normal(size=7)), rows("b", rng.normal(size=7)))
    pd.testing.assert_frame_equal(paired_tests(data), paired_tests(pd.concat([data[:7], data[7:][::-1]])))


def test_no_complete_pair():
    row = compare([0.5, math.nan], [math.nan, 0.5])
    assert row["n"] == 0
    assert math.isnan(row["p"]) and math.isnan(row["p_holm"])
    assert row["note"] == "no complete pairs"


def test_an_infinite_loss_is_ranked_last():
    row = compare([math.inf, 1.0, 2.0, 3.0, 4.0, math.inf], [0.0, 0.5, 0.4, 0.3, 0.2, math.inf])
    assert row["n"] == 6
    assert row["p"] == pytest.approx(2 / 2**5)  # inf against inf is no difference


def three_methods():
    rng = np.random.default_rng(3)
    parts = [
        rows(m, rng.normal(i, 1, 8), setting=s, rule=r, metric=q)
        for s in ("s", "t")
        for i, m in enumerate("abc")
        for r in ("fixed", "iid")
        for q in ("accuracy", "population accuracy")
    ]
    return frame(*parts)


def test_all_pairs_in_each_family_and_holm_inside_it():
    table = paired_tests(three_methods())
    assert len(table) == 2 * 2 * 2 * 3
    for _, family in table.groupby(["setting", "rule", "metric"]):
        assert list(zip(family["method"], family["other"], strict=True)) == [("a", "b"), ("a", "c"), ("b", "c")]
        np.testing.assert_array_equal(family["p_holm"], holm(family["p"]))
    assert (table["p_holm"] > table["p"]).any()


def test_against_a_reference():
    table = paired_tests(three_methods(), reference="b", metric="accuracy")
    assert set(table["metric"]) == {"accuracy"}
    assert list(zip(table["method"], table["other"], strict=True))[:2] == [("a", "b"), ("c", "b")]
    assert len(table) == 2 * 2 * 2


def test_a_single_method_has_no_tests_but_all_columns():
    table = paired_tests(frame(rows("a", [0.5, 0.6])))
    assert table.empty
    assert {"setting", "rule", "method", "other", "n", "median_difference", "p", "p_holm", "note"} <= set(table)


# --- Holm -------------------------------------------------------------------------------------------------


def holm_by_definition(p):
    """The smallest level at which the step-down procedure rejects each hypothesis."""
    m = len(p)
    ordered = sorted(p)
    result = []
    for own in p:
        place = ordered.index(own)
        result.append(min(1.0, max((m - j) * ordered[j] for j in range(place + 1))))
    return result


def test_holm_by_hand():
    # ordered 0.005, 0.01, 0.03, 0.04, times 4, 3, 2, 1: 0.02, 0.03, 0.06, 0.04 -> 0.06
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02], rtol=1e-12)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_by_definition(p):
    np.testing.assert_allclose(holm(p), holm_by_definition(p), rtol=1e-12)


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=8), st.floats(0.001, 0.999))
def test_holm_rejects_what_the_step_down_procedure_rejects(p, level):
    rejected = set()
    for step, i in enumerate(np.argsort(p, kind="stable")):
        if p[i] * (len(p) - step) > level:
            break
        rejected.add(int(i))
    assert rejected == set(np.flatnonzero(holm(p) <= level).tolist())


def test_holm_does_not_count_what_was_not_tested():
    np.testing.assert_array_equal(holm([0.01, math.nan, 0.2]), [0.02, math.nan, 0.2])
    assert holm([]).shape == (0,)
