"""scikit-learn's own checks of estimators. Whatever is expected to fail is listed with its reason, strictly."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from estimators.rows import EveryOtherRow
from irmtv import (
    InvariantBoostingClassifier,
    InvariantBoostingClassifierCV,
    InvariantBoostingRegressor,
    InvariantBoostingRegressorCV,
)
from older import STRICT

FAST = {"n_estimators": 20, "min_child_samples": 1, "n_jobs": 1, "random_state": 0}
BY_NUMBER = "environments are made from the row's number here, and a row that is repeated or left out shifts them"
BINS = "LightGBM makes its bins of rows and counts rows in leaves, whatever these weigh"
FOLDS = (
    "the check hands over its own folds; ours are drawn in equal shares from every environment, and cv is their number"
)
SAME_WEIGHTS = ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data")


class BoosterOnTwoPlaces(EveryOtherRow, InvariantBoostingClassifier):
    pass


class BoostingRegressorOnTwoPlaces(EveryOtherRow, InvariantBoostingRegressor):
    pass


class PathOnTwoPlaces(EveryOtherRow, InvariantBoostingClassifierCV):
    pass


class RegressionPathOnTwoPlaces(EveryOtherRow, InvariantBoostingRegressorCV):
    pass


SHORT = {**FAST, "n_estimators": 8, "min_rows": 1, "rule": "iid", "cv": 2, "penalty_weights": [0.1], "num_leaves": 4}
ESTIMATORS = [
    InvariantBoostingClassifier("erm", **FAST),
    InvariantBoostingRegressor("erm", **FAST),
    BoosterOnTwoPlaces("irm-tv-l1", min_rows=1, penalty_weight=0.1, **FAST),
    BoostingRegressorOnTwoPlaces("vrex", min_rows=1, penalty_weight=0.1, **FAST),
    PathOnTwoPlaces("irm-tv-l1", **SHORT),
    RegressionPathOnTwoPlaces("vrex", **SHORT),
]


def expected_failures(estimator) -> dict[str, str]:
    if hasattr(estimator, "cv"):
        return dict.fromkeys(SAME_WEIGHTS, FOLDS)
    return dict.fromkeys(SAME_WEIGHTS, BY_NUMBER if isinstance(estimator, EveryOtherRow) else BINS)


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected_failures, **STRICT)
@pytest.mark.filterwarnings("ignore:X is sparse and was made dense:UserWarning")
@pytest.mark.filterwarnings("ignore:.*no tree found a split:UserWarning")  # one class counts for nothing
def test_scikit_learn_check(estimator, check):
    check(estimator)
