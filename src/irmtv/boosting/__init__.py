"""Trees as Phi: gradient boosting that minimises an invariant objective.

To read it: `gradients` (objectives as functions of the scores), `trust_region` (the step rule), `rounds` (the loop),
then `estimators`, `search` and `cv` (scikit-learn's interface) and `files`.
"""

from irmtv.boosting.cv import InvariantBoostingClassifierCV, InvariantBoostingRegressorCV
from irmtv.boosting.estimators import InvariantBoostingClassifier, InvariantBoostingRegressor

__all__ = [
    "InvariantBoostingClassifier",
    "InvariantBoostingClassifierCV",
    "InvariantBoostingRegressor",
    "InvariantBoostingRegressorCV",
]
