"""The hyper-parameters of "eills"; its formulas are checked in tests/engine/solvers/test_columns.py."""

from __future__ import annotations

import re

import pytest

from irmtv import OBJECTIVES

EILLS = OBJECTIVES["eills"]


def test_what_it_is():
    assert (EILLS.needs, EILLS.procedure, EILLS.finds_clusters) == ("environment", "columns", False)
    assert EILLS.tasks == ("binary", "multiclass", "regression")
    assert EILLS.resolve({}) == {"penalty_weight": 1e3, "form": "regret", "level": 0.05, "measure": "empirical"}
    assert [h.name for h in EILLS.hyperparameters if h.per_run] == ["penalty_weight"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"penalty_weight": -1.0}, "penalty_weight of 'eills' must be a finite number of at least 0. Got -1.0."),
        ({"penalty_weight": "adaptive"}, "penalty_weight of 'eills' must be a finite number of at least 0."),
        ({"form": "l2"}, "form of 'eills' must be one of ['regret', 'published', 'l1', 'directions']. Got 'l2'."),
        ({"level": 0}, "level of 'eills' must be a number in (0, 1). Got 0."),
        ({"measure": "learned"}, "measure of 'eills' must be 'empirical', 'uniform', or a tuple"),
        ({"measure": (0.0, 0.0)}, "measure of 'eills' must be 'empirical', 'uniform', or a tuple"),
    ],
)
def test_hyperparameters_are_checked(setting, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        EILLS.resolve(setting)


def test_it_cannot_be_added_to_penalties():
    with pytest.raises(ValueError, match="'eills' is a way of training"):
        OBJECTIVES["irm-tv-l1+eills"]


def test_a_weight_of_zero_is_erm_to_the_end_with_any_solver():
    for solver in ("adam", "newton"):
        engine = {"steps": 50, "solver": solver}
        assert EILLS.plain_until({**EILLS.resolve({"penalty_weight": 0.0}), **engine}) == 50
        assert EILLS.plain_until({**EILLS.resolve({}), **engine}) == 0
