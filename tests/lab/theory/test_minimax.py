"""The maximum over rho of the minimax penalties: and wrong formulas are noticed."""

from __future__ import annotations

import numpy as np
import pytest

from irmtv.lab.theory.minimax import minimax_penalties_coincide
from irmtv.objectives.irm_tv_l2 import tv_l2
from lab.theory.wrong import FAILED, by_the_root_of_the_measure, not_squared, signs_kept, without_the_measure_l2


@pytest.fixture(scope="module")
def coincide():
    return minimax_penalties_coincide()


def test_they_coincide_on_a_given_basis_and_not_where_rows_are_assigned(coincide):
    assert coincide.verdict == "holds under its condition"
    assert [c.agrees for c in coincide.comparisons if c.role == "beyond"] == [False, False]
    given = [c for c in coincide.comparisons if c.what.startswith("given basis")]
    assert len(given) == 4 and all(c.left == pytest.approx(0.81) for c in given)


def test_rows_with_slopes_of_one_sign_leave_l1_nothing_to_climb():
    """Without a negative slope (P + N)^2 is the mean slope squared, whatever the split; l2 still finds one."""
    rng = np.random.default_rng(0)
    from irmtv.lab.theory.minimax import _all_assignments
    from irmtv.objectives.irm_tv_l1 import tv_l1

    slopes = rng.uniform(0.1, 1, 8)
    e, codes = _all_assignments(slopes)
    assert len(codes) == 128 and len(np.unique(codes, axis=0)) == 128
    assert np.allclose(np.asarray(tv_l1(e, e.mass)), slopes.mean() ** 2)
    assert np.ptp(np.asarray(tv_l2(e, e.mass))) > 0.01


@pytest.mark.parametrize("wrong", [not_squared, without_the_measure_l2, signs_kept])
def test_a_wrong_l1_is_noticed(wrong):
    assert minimax_penalties_coincide(l1=wrong, rows=8, starts=20).verdict in FAILED


@pytest.mark.parametrize("wrong", [without_the_measure_l2, signs_kept])
def test_a_wrong_l2_is_noticed(wrong):
    assert minimax_penalties_coincide(l2=wrong, rows=8, starts=20).verdict in FAILED


@pytest.mark.parametrize("wrong", [by_the_root_of_the_measure, tv_l2])
def test_a_wrong_zin_is_noticed(wrong):
    assert minimax_penalties_coincide(zin=wrong, rows=8, starts=20).verdict in FAILED


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slopes": (1.0, 2.0)}, "slopes must be three numbers"),
        ({"rows": 30}, "rows must be 3 to 16"),
        ({"rows": 0}, "rows must be a positive integer"),
    ],
)
def test_messages(settings, message):
    with pytest.raises(ValueError, match=message):
        minimax_penalties_coincide(**settings)


def test_the_figure(coincide):
    edge, ascents, splits = coincide.draw().axes
    ends = [line.get_ydata()[-1] for line in edge.lines[:3]]
    assert ends == pytest.approx([0.81] * 3)
    l1, l2, zin = (bar.get_height() for bar in ascents.patches)
    assert l1 == l2 == 1 and zin < 0.9
    assert sum(len(line.get_xdata()) for line in splits.lines[:6]) == 3 * 12
