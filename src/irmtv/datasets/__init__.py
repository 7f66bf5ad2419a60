"""Data sets: generators and loaders that return a :class:`irmtv.core.types.Task`, with a card each."""

from irmtv.datasets.adult import Tables, load_adult
from irmtv.datasets.catalogue import DATASETS, DataSet
from irmtv.datasets.control import make_control
from irmtv.datasets.selection_bias import make_selection_bias
from irmtv.datasets.simulation import (
    expected_worst,
    make_simulation,
    population_accuracy,
    simulation_limit,
)

__all__ = [
    "DATASETS",
    "DataSet",
    "Tables",
    "expected_worst",
    "load_adult",
    "make_control",
    "make_selection_bias",
    "make_simulation",
    "population_accuracy",
    "simulation_limit",
]
