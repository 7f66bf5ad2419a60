"""ZIN and TIVA against Minimax-TV-l2: and wrong formulas are noticed."""

from __future__ import annotations

import numpy as np
import pytest

from irmtv.lab.theory.zin import squared_weights, tiva_is_minimax_tv_l2, zin_rewriting
from irmtv.objectives.irm_tv_l1 import tv_l1
from irmtv.objectives.irm_tv_l2 import tv_l2
from lab.theory.wrong import authors_weights, row, without_the_measure_l2


@pytest.fixture(scope="module")
def rewriting():
    return zin_rewriting()


@pytest.fixture(scope="module")
def rows_assigned():
    return tiva_is_minimax_tv_l2()


# --- the rewriting


def test_the_rewriting_does_not_hold_as_printed(rewriting):
    assert rewriting.verdict == "does not hold as printed"
    first, second = (c for c in rewriting.comparisons if c.role == "claim")
    assert first.agrees and not second.agrees
    assert all(c.agrees for c in rewriting.comparisons if c.role == "ours")


def test_with_the_squares_it_holds():
    assert zin_rewriting(printed=squared_weights, points=10).verdict == "holds"


def one(rho):
    return np.ones_like(rho)


def root(rho):
    return np.sqrt(rho)


def cubed(rho):
    return rho**3


@pytest.mark.parametrize("wrong", [one, root, cubed])
def test_a_wrong_definition_is_noticed(wrong):
    assert zin_rewriting(definition=wrong, points=10).verdict == "not verified"


def test_only_rho_at_a_vertex_hides_the_difference():
    """The printed formula passes at the vertices and fails inside."""
    found = zin_rewriting(environments=2, points=10)
    vertices = next(c for c in found.comparisons if "vertices" in c.what)
    assert vertices.agrees and found.verdict == "does not hold as printed"


@pytest.mark.parametrize(("count", "message"), [(0, "a positive integer"), (1, "2 or more")])
def test_the_environments_must_be_counted(count, message):
    with pytest.raises(ValueError, match=f"environments must be {message}"):
        zin_rewriting(environments=count)


def test_the_figure_of_the_rewriting(rewriting):
    left, right = rewriting.draw().axes
    printed, squared, dots = (line.get_ydata() for line in left.lines)
    assert np.allclose(squared[::2], dots, atol=1e-14)
    assert printed[20] > 1.5 * squared[20]
    assert printed[[0, -1]] == pytest.approx(squared[[0, -1]])
    assert len(right.lines) == 3


# --- rows assigned


def test_equal_masses_are_needed(rows_assigned):
    assert rows_assigned.verdict == "does not hold as printed"
    claims = [c for c in rows_assigned.comparisons if c.role == "claim"]
    assert [(c.what.split(": ")[1], c.agrees) for c in claims] == [("penalty", False), ("first term", False)]
    assert claims[0].left_name == "definition", "the factor E is not printed"
    assert all(c.agrees for c in rows_assigned.comparisons if c.what.startswith("equal masses"))


@pytest.mark.parametrize("wrong", [tv_l1, tv_l2, without_the_measure_l2])
def test_a_wrong_authors_reduction_is_noticed(wrong):
    assert tiva_is_minimax_tv_l2(authors=wrong, draws=5).verdict == "not verified"


@pytest.mark.parametrize("wrong", [tv_l1, authors_weights, without_the_measure_l2])
def test_a_wrong_expectation_is_noticed(wrong):
    found = tiva_is_minimax_tv_l2(expectation=wrong, draws=5)
    assert found.verdict == "not verified"
    assert not row(found, "equal masses: penalty", "ours").agrees


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": 0}, "rows must be a positive integer"),
        ({"draws": -1}, "draws must be a positive integer"),
        ({"bias": 0.0}, "bias must be a finite number above 0"),
    ],
)
def test_messages(settings, message):
    with pytest.raises(ValueError, match=message):
        tiva_is_minimax_tv_l2(**settings)


def test_the_figure_of_assigned_rows(rows_assigned):
    for axes in rows_assigned.draw().axes:
        expected, defined, point = axes.lines
        at = float(point.get_xdata()[0])
        assert at == 0.5
        here = [np.interp(at, line.get_xdata(), line.get_ydata()) for line in (expected, defined)]
        assert here == pytest.approx([float(point.get_ydata()[0])] * 2, rel=0.01)
        assert np.abs(expected.get_ydata() - defined.get_ydata()).max() > 0.01 * float(point.get_ydata()[0])
