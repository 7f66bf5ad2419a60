"""The verdict follows from the numbers."""

from __future__ import annotations

import math

import pytest

from irmtv.lab.theory.finding import Comparison, Finding


def line(left, relation, right, role="claim", tolerance=0.01):
    return Comparison("x", "a", left, relation, "b", right, tolerance, role)


def finding(*comparisons):
    return Finding("n", "Title", "Theorem 1", "It is so.", comparisons, "It is.", lambda figure: None)


@pytest.mark.parametrize(
    ("left", "relation", "right", "agrees"),
    [
        (1.0, "=", 1.005, True),
        (1.0, "=", 1.02, False),
        (1.0, "≠", 1.005, False),
        (1.0, "≠", 1.02, True),
        (1.0, "<", 1.02, True),
        (1.0, "<", 1.005, False),  # within the tolerance nobody is less
        (1.0, "≤", 0.995, True),
        (1.0, "≤", 0.98, False),
        (1.0, ">", 0.98, True),
        (1.0, ">", 0.995, False),
        (1.0, "≥", 1.005, True),
        (1.0, "≥", 1.02, False),
        (math.inf, "=", math.inf, True),
        (math.inf, ">", 3.0, True),
        (math.inf, "=", 3.0, False),
    ],
)
def test_relations_with_their_tolerance(left, relation, right, agrees):
    assert line(left, relation, right).agrees is agrees


@pytest.mark.parametrize("relation", ["=", "≠", "<", "≤", ">", "≥"])
def test_what_is_not_a_number_agrees_with_nothing(relation):
    assert not line(math.nan, relation, 1.0).agrees
    assert not line(1.0, relation, math.nan).agrees


def test_verdict():
    good, bad = (1, "=", 1), (1, "=", 2)
    assert finding(line(*good)).verdict == "holds"
    assert finding(line(*good), line(*good, "beyond")).verdict == "holds"
    assert finding(line(*good), line(*bad, "beyond")).verdict == "holds under its condition"
    assert finding(line(*bad), line(*bad, "beyond"), line(*good, "ours")).verdict == "does not hold as printed"
    assert finding(line(*good), line(*bad, "ours")).verdict == "not verified"
    assert finding(line(*bad), line(*bad, "ours")).verdict == "not verified"


def test_a_statement_without_a_claim_is_none():
    with pytest.raises(ValueError, match="needs at least one comparison of role 'claim'"):
        finding(line(1, "=", 1, "ours"))


def test_error_table_and_text():
    found = finding(line(1.0, "=", 1.5), line(1.0, "=", 1.25), line(0.0, "<", 9.0), line(0, "=", 7, "ours", 10))
    assert found.error == 0.5
    assert math.isnan(finding(line(0.0, "<", 9.0)).error)
    table = found.table()
    assert list(table["error"]) == [0.5, 0.25, 9.0, 7.0] and list(table["agrees"]) == [False, False, True, True]
    assert "does not hold as printed" in str(found) and "a 1 = b 1.5 (error 5.0e-01)" in str(found)


def test_every_call_draws_a_new_figure():
    found = Finding(
        "n", "T", "L", "S.", (line(1, "=", 1),), "M.", lambda figure: figure.subplots().plot([0, 1], [0, 1])
    )
    first, second = found.draw(), found.draw()
    assert first is not second and len(first.axes) == len(second.axes) == 1
