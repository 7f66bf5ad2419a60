"""scikit-learn's own checks of estimators. Whatever is expected to fail is listed with its reason, strictly."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import (
    check_sample_weight_equivalence_on_dense_data,
    parametrize_with_checks,
)

from estimators.rows import EveryOtherRow
from irmtv.estimators import InvariantClassifier, InvariantRegressor
from older import STRICT

# densifying says so, at each of scikit-learn's sparse inputs; their own checks repeat a label's deprecation
pytestmark = pytest.mark.filterwarnings("ignore:X is sparse and was made dense:UserWarning")
FAST = {"max_steps": 25, "learning_rate": 0.05, "random_state": 0}
ROUNDING = "trained in float32: equal to 1e-5, where 1e-7 is asked; in float64 it passes (test below)"
BY_NUMBER = "environments are made from the row's number here, and a row that is repeated or left out shifts them"
SAME_WEIGHTS = ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data")


class ClassifierOnTwoPlaces(EveryOtherRow, InvariantClassifier):
    pass


class RegressorOnTwoPlaces(EveryOtherRow, InvariantRegressor):
    pass


def expected_failures(estimator) -> dict[str, str]:
    if estimator.hidden == () and not isinstance(estimator, RegressorOnTwoPlaces):
        return {}  # in float64; where a plane separates classes slopes have one sign: l1 is the same however divided
    return dict.fromkeys(SAME_WEIGHTS, BY_NUMBER if isinstance(estimator, EveryOtherRow) else ROUNDING)


ESTIMATORS = [
    InvariantClassifier("erm", hidden=(), **FAST),
    InvariantRegressor("erm", hidden=(), **FAST),
    ClassifierOnTwoPlaces("irm-tv-l1", hidden=(), min_rows=1, penalty_weight=1.0, **FAST),
    RegressorOnTwoPlaces("irm-tv-l1", hidden=(), min_rows=1, penalty_weight=1.0, **FAST),
    InvariantClassifier("erm", **FAST),
    InvariantClassifier("eiil", penalty_weight=1.0, **FAST),
    InvariantRegressor("erm", **FAST),
    InvariantRegressor("eiil", penalty_weight=1.0, **FAST),  # 1e3 shrinks what a check wants fitted
    ClassifierOnTwoPlaces("irm-tv-l1", min_rows=1, **FAST),
    RegressorOnTwoPlaces("irm-tv-l1", min_rows=1, **FAST),
]


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected_failures, **STRICT)
def test_scikit_learn_check(estimator, check):
    check(estimator)


@pytest.mark.parametrize("objective", ["erm", "eiil"])
@pytest.mark.parametrize("kind", [InvariantClassifier, InvariantRegressor])
def test_weights_are_repeated_rows_in_float64(kind, objective):
    """What float32 cannot show to 1e-7: a row of weight 2 is two rows, of weight 0 none."""
    check_sample_weight_equivalence_on_dense_data(kind.__name__, kind(objective, dtype="float64", **FAST))
