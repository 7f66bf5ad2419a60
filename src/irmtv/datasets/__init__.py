"""Data sets: generators and loaders that return a :class:`irmtv.core.types.Task`, with a card each."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from irmtv.datasets.adult import load_adult
    from irmtv.datasets.catalogue import DATASETS, DataSet
    from irmtv.datasets.celeba import load_celeba_features
    from irmtv.datasets.celeba_standin import make_celeba_standin
    from irmtv.datasets.cerrado import load_cerrado
    from irmtv.datasets.colored_mnist import load_colored_mnist
    from irmtv.datasets.common import Tables
    from irmtv.datasets.control import make_control
    from irmtv.datasets.house_prices import load_house_prices
    from irmtv.datasets.landcover import load_landcover
    from irmtv.datasets.landcover_standin import landcover_standin_limit, make_landcover_standin
    from irmtv.datasets.selection_bias import make_selection_bias
    from irmtv.datasets.simulation import (
        expected_worst,
        make_simulation,
        population_accuracy,
        simulation_limit,
    )
    from irmtv.datasets.unit_tests import make_unit_test, unit_test_error

# loaded when they are first asked for: what lists the data sets and looks for their files needs no torch
_LATER = {
    "DATASETS": "catalogue",
    "DataSet": "catalogue",
    "Tables": "common",
    "expected_worst": "simulation",
    "landcover_standin_limit": "landcover_standin",
    "load_adult": "adult",
    "load_celeba_features": "celeba",
    "load_cerrado": "cerrado",
    "load_colored_mnist": "colored_mnist",
    "load_house_prices": "house_prices",
    "load_landcover": "landcover",
    "make_celeba_standin": "celeba_standin",
    "make_control": "control",
    "make_landcover_standin": "landcover_standin",
    "make_selection_bias": "selection_bias",
    "make_simulation": "simulation",
    "make_unit_test": "unit_tests",
    "population_accuracy": "simulation",
    "simulation_limit": "simulation",
    "unit_test_error": "unit_tests",
}

__all__ = [
    "DATASETS",
    "DataSet",
    "Tables",
    "expected_worst",
    "landcover_standin_limit",
    "load_adult",
    "load_celeba_features",
    "load_cerrado",
    "load_colored_mnist",
    "load_house_prices",
    "load_landcover",
    "make_celeba_standin",
    "make_control",
    "make_landcover_standin",
    "make_selection_bias",
    "make_simulation",
    "make_unit_test",
    "population_accuracy",
    "simulation_limit",
    "unit_test_error",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'irmtv.datasets' has no attribute {name!r}")
    return getattr(import_module(f"irmtv.datasets.{_LATER[name]}"), name)
