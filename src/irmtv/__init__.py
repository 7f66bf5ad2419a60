"""irmtv: predictors that keep working when the environment changes.

The batched engine, for researchers:

>>> from irmtv import Runs, make_task, train            # a task from arrays, runs, one call
>>> from irmtv.datasets import make_simulation          # or a task with known answers
"""

from irmtv._version import __version__
from irmtv.core.types import Rows, Runs, Task
from irmtv.engine import FittedRuns, train
from irmtv.objectives import OBJECTIVES
from irmtv.validate import make_task

__all__ = ["OBJECTIVES", "FittedRuns", "Rows", "Runs", "Task", "__version__", "make_task", "train"]
