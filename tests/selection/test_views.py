"""What models of single environments gain over ERM, in stores of older versions: the test, and what the rule says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from irmtv.selection import check_options, invariance
from irmtv.selection.views import nothing_of_its_own
from selection.candidates import written

# The test over environments


def gains(seed=0, shifts=(0.0, 0.1, -0.2), folds=3):
    """Gains of single rows, [fold][environment], and what is stored of them."""
    rng = np.random.default_rng(seed)
    rows = [[rng.normal(s, 1 + e, size=40 + 7 * e + 3 * f) for e, s in enumerate(shifts)] for f in range(folds)]
    return rows, torch.tensor([[[len(g), g.mean(), g.var(ddof=1)] for g in fold] for fold in rows])


def by_hand(rows, environments):
    p = []
    for e in environments:
        own = [fold[e] for fold in rows if fold[e] is not None]
        n = sum(len(g) for g in own)
        variance = sum(((g - g.mean()) ** 2).sum() for g in own) / (n - len(own))
        p.append(stats.norm.sf(np.concatenate(own).mean() / np.sqrt(variance / n)))
    return min(1.0, len(p) * min(p))


@pytest.mark.parametrize("shifts", [(0.0, 0.1, -0.2), (0.2, 0.0), (-1.0, -1.0), (0.05, 0.3, 0.1, 0.0)])
def test_one_sided_z_tests_with_bonferroni(shifts):
    rows, own = gains(1, shifts)
    assert nothing_of_its_own(own) == pytest.approx(by_hand(rows, range(len(shifts))), rel=1e-9)


def test_environments_that_are_not_known_or_small_are_left_out():
    rows, own = gains(2, (0.1, 5.0, 5.0, 0.0))
    own[:, 1] = torch.nan
    own[:, 2, 0] = 6  # 18 rows in three folds
    assert nothing_of_its_own(own) == pytest.approx(by_hand(rows, [0, 3]), rel=1e-9)
    own[0, 0] = torch.nan  # in one fold
    rows[0][0] = None
    assert nothing_of_its_own(own) == pytest.approx(by_hand(rows, [0, 3]), rel=1e-9)


def test_a_model_that_diverged_is_no_evidence():
    """Its rows are known, its gain is not: that is not a gain of 0."""
    rows, own = gains(3, (0.3, 0.0))
    own[:, 1, 1:] = torch.nan
    assert nothing_of_its_own(own) == pytest.approx(by_hand(rows, [0]), rel=1e-9)
    own[:, 0, 1:] = torch.inf
    assert nothing_of_its_own(own) is None


def test_without_rows_there_is_no_p_value():
    assert nothing_of_its_own(None) is None
    assert nothing_of_its_own(torch.full((2, 3, 3), torch.nan)) is None
    assert nothing_of_its_own(torch.tensor([[[19.0, 1.0, 1.0], [5.0, 1.0, 1.0]]])) is None


# The rule


NOTHING = torch.tensor([[[100.0, -0.01, 1.0], [100.0, 0.0, 1.0]]])
SOMETHING = torch.tensor([[[100.0, 0.0, 1.0], [100.0, 1.0, 1.0]]])


def candidates(**more):
    return written([[0.35, 0.55], [0.45, 0.45]], 0.01, **more)


def test_erm_is_kept_where_no_environment_has_a_model_of_its_own():
    verdict = invariance(candidates(own=NOTHING))
    assert (verdict.index, verdict.outcome) == (0, "erm-kept")
    f = verdict.figures
    assert f["p_own"] == nothing_of_its_own(NOTHING) > 0.2 and f["p_erm"] < 0.01
    assert "is kept: it differs between environments" in verdict.message
    assert "no model trained on one environment alone beats it there" in verdict.message


@pytest.mark.parametrize(("own", "options"), [(NOTHING, {"own_level": 1}), (SOMETHING, {}), (None, {})])
def test_else_the_rule_looks_further(own, options):
    verdict, before = invariance(candidates(own=own), **options), invariance(candidates())
    assert (verdict.index, verdict.outcome, verdict.message) == (1, "invariant-found", before.message)
    assert verdict.figures == {**before.figures, "p_own": nothing_of_its_own(own)}


def test_erm_that_passes_is_kept_for_that():
    verdict = invariance(written([[0.40, 0.41], [0.45, 0.45]], 0.02, own=SOMETHING))
    assert verdict.outcome == "erm-invariant" and "ERM passed the invariance test" in verdict.message


@pytest.mark.parametrize("value", [-0.1, 1.1, "much", True, float("nan")])
def test_levels_that_make_no_sense(value):
    with pytest.raises(ValueError, match="own_level must be a number from 0 to 1"):
        check_options(own_level=value)
