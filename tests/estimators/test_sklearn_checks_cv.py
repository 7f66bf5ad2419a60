"""scikit-learn's own checks of the estimators that choose their penalty weight."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from estimators.rows import EveryOtherRow
from irmtv.estimators import InvariantClassifierCV, InvariantRegressorCV
from older import STRICT

pytestmark = pytest.mark.filterwarnings("ignore:X is sparse and was made dense:UserWarning")
# "invariance" asks for twenty rows of an environment, more than most checks have
FAST = {"max_steps": 20, "learning_rate": 0.05, "cv": 2, "rule": "iid", "random_state": 0}
PATH = {"penalty_weights": (1.0,), **FAST}
FOLDS = (
    "the check hands over its own folds; ours are drawn in equal shares from every environment, and cv is their number"
)
SAME_WEIGHTS = ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data")


class ClassifierOnTwoPlaces(EveryOtherRow, InvariantClassifierCV):
    pass


class RegressorOnTwoPlaces(EveryOtherRow, InvariantRegressorCV):
    pass


ESTIMATORS = [
    ClassifierOnTwoPlaces("irm-tv-l1", hidden=(), min_rows=1, **PATH),
    RegressorOnTwoPlaces("irm-tv-l1", hidden=(), min_rows=1, **PATH),
    ClassifierOnTwoPlaces("irm-tv-l1", min_rows=1, **PATH),
    RegressorOnTwoPlaces("irm-tv-l1", min_rows=1, **PATH),
    InvariantClassifierCV("erm", n_seeds=2, refit=False, **FAST),
    InvariantRegressorCV("erm", n_seeds=2, **FAST),
    InvariantClassifierCV("eiil", hidden=(32,), **PATH),
    InvariantRegressorCV("eiil", hidden=(32,), **PATH),
]


@parametrize_with_checks(
    ESTIMATORS, expected_failed_checks=lambda estimator: dict.fromkeys(SAME_WEIGHTS, FOLDS), **STRICT
)
def test_scikit_learn_check(estimator, check):
    check(estimator)
