"""The verdict follows from the numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from irmtv.lab.theory.finding import (
    Comparison,
    Finding,
    Result,
    all_equal,
    at_least,
    at_most,
    beyond,
    claim,
    equal,
    greater,
    less,
    ours,
    statement,
    unequal,
)


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


def test_an_equality_of_many_is_judged_by_the_farthest_pair():
    found = claim("x", all_equal("a", [[1.0, 2.0], [3.0, 4.0]], "b", np.array([[1.0, 2.5], [3.0, 4.1]]), 0.2))
    assert (found.left, found.right, found.agrees) == (2.0, 2.5, False)
    assert found.what == "x (farthest of 4)"


def test_what_is_not_a_number_equals_nothing():
    found = ours("x", all_equal("a", torch.tensor([1.0, float("nan")]), "b", 0.0, 9))
    assert np.isnan(found.left) and not found.agrees


@pytest.mark.parametrize(
    ("sides", "relation"),
    [(equal, "="), (unequal, "≠"), (less, "<"), (at_most, "≤"), (greater, ">"), (at_least, "≥")],
)
def test_a_comparison_is_written_as_role_and_sides(sides, relation):
    assert beyond("x", sides("a", 1.0, "b", 2.0, 0.1)) == Comparison("x", "a", 1.0, relation, "b", 2.0, 0.1, "beyond")


def test_a_statement_is_named_after_its_function():
    @statement("Title", "Theorem 1", size=(3.0, 2.0))
    def so_it_is(left=1.0):
        """So
        it is.

        Under test: `left`.
        """
        return Result([claim("x", equal("a", left, "b", 1.0))], "It is.", lambda figure: None)

    found = so_it_is(2.0)
    assert isinstance(found, Finding) and found.name == "so-it-is"
    assert (found.verdict, found.statement, found.size) == ("does not hold as printed", "So it is.", (3.0, 2.0))
