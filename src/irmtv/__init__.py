"""irmtv: predictors that keep working when the environment changes.

For tables, as scikit-learn does it (all names here are loaded when they are first used):

>>> from irmtv import InvariantClassifier, InvariantRegressor

The batched engine, for researchers:

>>> from irmtv import Runs, make_task, train            # a task from arrays, runs, one call
>>> from irmtv.datasets import make_simulation          # or a task with known answers
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from irmtv._moved import MOVED as _MOVED
from irmtv._moved import install as _install_moved_names
from irmtv._version import __version__

if TYPE_CHECKING:
    from irmtv.core.types import Rows, Runs, Task
    from irmtv.data import make_task
    from irmtv.engine import FittedRuns, train
    from irmtv.estimators import (
        EnvironmentInference,
        InvariantBoostingClassifier,
        InvariantBoostingClassifierCV,
        InvariantBoostingRegressor,
        InvariantBoostingRegressorCV,
        InvariantClassifier,
        InvariantClassifierCV,
        InvariantRegressor,
        InvariantRegressorCV,
        load,
        save,
    )
    from irmtv.objectives import OBJECTIVES

_install_moved_names()

# loaded when they are first asked for: `irmtv --help` and the shell's completion need neither torch nor scikit-learn
_LATER = {
    "OBJECTIVES": "irmtv.objectives",
    "FittedRuns": "irmtv.engine",
    "Rows": "irmtv.core.types",
    "Runs": "irmtv.core.types",
    "Task": "irmtv.core.types",
    "make_task": "irmtv.data",
    "train": "irmtv.engine",
    "EnvironmentInference": "irmtv.estimators",
    "InvariantBoostingClassifier": "irmtv.estimators",
    "InvariantBoostingClassifierCV": "irmtv.estimators",
    "InvariantBoostingRegressor": "irmtv.estimators",
    "InvariantBoostingRegressorCV": "irmtv.estimators",
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
    "InvariantBoostingClassifier",
    "InvariantBoostingClassifierCV",
    "InvariantBoostingRegressor",
    "InvariantBoostingRegressorCV",
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


# parts that `import irmtv` alone gives access to, as irmtv.engine.train
_PARTS = ("core", "engine", "metrics", "objectives", "selection", "data")


def __getattr__(name: str) -> Any:
    if name in _PARTS or f"irmtv.{name}" in _MOVED:
        return import_module(f"irmtv.{name}")
    if name not in _LATER:
        raise AttributeError(f"module 'irmtv' has no attribute {name!r}")
    found = getattr(import_module(_LATER[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
