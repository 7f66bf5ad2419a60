"""scikit-learn estimators: tables in, predictions out."""

from irmtv.estimators.boosting import (
    InvariantBoostingClassifier,
    InvariantBoostingClassifierCV,
    InvariantBoostingRegressor,
    InvariantBoostingRegressorCV,
)
from irmtv.estimators.classifier import InvariantClassifier
from irmtv.estimators.cv import InvariantClassifierCV, InvariantRegressorCV
from irmtv.estimators.environment_inference import EnvironmentInference
from irmtv.estimators.files import load, save
from irmtv.estimators.regressor import InvariantRegressor

__all__ = [
    "EnvironmentInference",
    "InvariantBoostingClassifier",
    "InvariantBoostingClassifierCV",
    "InvariantBoostingRegressor",
    "InvariantBoostingRegressorCV",
    "InvariantClassifier",
    "InvariantClassifierCV",
    "InvariantRegressor",
    "InvariantRegressorCV",
    "load",
    "save",
]
