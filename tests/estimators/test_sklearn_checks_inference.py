"""scikit-learn's own checks of EnvironmentInference where it reads aux, which they cannot hand over."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.utils.estimator_checks import parametrize_with_checks

from irmtv.estimators import EnvironmentInference
from older import STRICT

pytestmark = [
    pytest.mark.filterwarnings("ignore:X is sparse and was made dense:UserWarning"),
    pytest.mark.filterwarnings("ignore:.* the most probable of no row:UserWarning"),
]
NEEDS_Y_TO_FIT = "fit is called without y, and there is no penalty to climb without labels"
AS_A_CLASSIFIER = "takes predict_proba for that of a classifier, one column per class of y, and asks for its tags"


def first_column(X) -> np.ndarray:
    """Where X is fit to be read; else the number of the row, so that it is X that is complained of."""
    values = X.toarray() if sparse.issparse(X) else np.asarray(X)
    if values.ndim == 2 and values.shape[1] and values.dtype.kind in "fiuO":
        try:
            return np.nan_to_num(values[:, 0].astype(float))
        except (TypeError, ValueError):
            pass
    return np.arange(len(values) if values.ndim else 1)


class DividedByTheFirstColumn(EnvironmentInference):
    """The first column is aux, and a feature too."""

    def fit(self, X, y=None, aux=None):
        return super().fit(X, y, first_column(X) if aux is None else aux)

    def predict_proba(self, X, y=None, aux=None):
        return super().predict_proba(X, y, first_column(X) if aux is None else aux)


def expected_failures(estimator) -> dict[str, str]:
    expected = dict.fromkeys(("check_estimator_sparse_array", "check_estimator_sparse_matrix"), AS_A_CLASSIFIER)
    return expected | ({"check_clustering": NEEDS_Y_TO_FIT} if estimator.method == "minimax" else {})


@parametrize_with_checks(
    [DividedByTheFirstColumn(m, max_steps=5, n_shuffles=5, random_state=0) for m in ("minimax", "clusters")],
    expected_failed_checks=expected_failures,
    **STRICT,
)
def test_scikit_learn_check(estimator, check):
    check(estimator)
