"""One tensor program that trains many runs."""

from irmtv.core.progress import Progress
from irmtv.engine.fitted import FittedRuns
from irmtv.engine.networks import MLP, Conv1d, Linear, Module
from irmtv.engine.train import TrainingInterrupted, train

__all__ = ["MLP", "Conv1d", "FittedRuns", "Linear", "Module", "Progress", "TrainingInterrupted", "train"]
