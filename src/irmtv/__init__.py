"""irmtv: predictors that keep working when the environment changes.

For tables, as scikit-learn does it (these names are loaded, with scikit-learn, when they are first used):

>>> from irmtv import InvariantClassifier, InvariantRegressor

The batched engine, for researchers:

>>> from irmtv import Runs, make_task, train            # a task from arrays, runs, one call
>>> from irmtv.datasets import make_simulation          # or a task with known answers
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from irmtv._version import __version__
from irmtv.core.types import Rows, Runs, Task
from irmtv.engine import FittedRuns, train
from irmtv.objectives import OBJECTIVES
from irmtv.validate import make_task

if TYPE_CHECKING:
    from irmtv.estimators import (
        EnvironmentInference,
        InvariantClassifier,
        InvariantClassifierCV,
        InvariantRegressor,
        InvariantRegressorCV,
        load,
        save,
    )

# loaded when they are first asked for: importing irmtv does not import scikit-learn
_LATER = {
    "EnvironmentInference": "irmtv.estimators",
    "InvariantClassifier": "irmtv.estimators",
    "InvariantClassifierCV": "irmtv.estimators",
    "InvariantRegressor": "irmtv.estimators",
    "InvariantRegressorCV": "irmtv.estimators",
    "load": "irmtv.estimators",
    "save": "irmtv.estimators",
}

__all__ = [
    "OBJECTIVES",
    "EnvironmentInference",
    "FittedRuns",
    "InvariantClassifier",
    "InvariantClassifierCV",
    "InvariantRegressor",
    "InvariantRegressorCV",
    "Rows",
    "Runs",
    "Task",
    "__version__",
    "load",
    "make_task",
    "save",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'irmtv' has no attribute {name!r}")
    found = getattr(import_module(_LATER[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
