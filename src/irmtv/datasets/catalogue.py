"""The data sets by name, for specs and the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from irmtv.core.types import Task
from irmtv.datasets.adult import adult_task
from irmtv.datasets.celeba import load_celeba_features
from irmtv.datasets.celeba_standin import make_celeba_standin
from irmtv.datasets.cerrado import load_cerrado
from irmtv.datasets.colored_mnist import load_colored_mnist
from irmtv.datasets.control import make_control
from irmtv.datasets.house_prices import house_prices_task
from irmtv.datasets.landcover import load_landcover
from irmtv.datasets.landcover_standin import make_landcover_standin
from irmtv.datasets.selection_bias import make_selection_bias
from irmtv.datasets.simulation import make_simulation, population_accuracy, simulation_limit
from irmtv.datasets.unit_tests import make_unit_test

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class DataSet:
    """How a data set is made; `random_state` among the arguments of `make` says which draw or split."""

    make: Callable[..., Task]
    # exact accuracy of linear models in every test environment, where the distribution is known:
    # (coefficients (..., D), intercepts (...), arguments of `make`) -> (..., environments)
    population: Callable[[Tensor, Tensor, Mapping[str, Any]], Floats] | None = None
    # the best worst-environment value of `population` that a model without spurious features can have
    limit: Callable[[Mapping[str, Any]], float] | None = None
    # test environments that are drawn as the training rows are: no part of the mean and the worst
    iid: tuple[str, ...] = ()

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments of `make`, defaults included, `random_state` aside.

        Defaults of None are left out, so that an argument that `make` gets later leaves the keys of stored runs as they
        are.
        """
        parameters = inspect.signature(self.make).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.name != "random_state"}
        known = {k: v for k, v in defaults.items() if v is not inspect.Parameter.empty and v is not None}
        return {**known, **given}


def _simulation_population(coef: Tensor, intercept: Tensor, arguments: Mapping[str, Any]) -> Floats:
    given = DATASETS["simulation"].arguments(arguments)
    return population_accuracy(
        coef, intercept, given["test_p_s"], given["p_v"], given["n_invariant"], given["generator"]
    )


def _simulation_limit(arguments: Mapping[str, Any]) -> float:
    given = DATASETS["simulation"].arguments(arguments)
    return simulation_limit(given["p_v"], given["n_invariant"], given["generator"])


DATASETS: Mapping[str, DataSet] = {
    "simulation": DataSet(make_simulation, _simulation_population, _simulation_limit),
    "control": DataSet(make_control),
    "selection-bias": DataSet(make_selection_bias),
    "unit-test": DataSet(make_unit_test),
    "adult": DataSet(adult_task),
    "house-prices": DataSet(house_prices_task),
    "celeba-features": DataSet(load_celeba_features),
    "celeba-standin": DataSet(make_celeba_standin),
    "landcover": DataSet(load_landcover, iid=("iid",)),
    "landcover-standin": DataSet(make_landcover_standin, iid=("iid",)),
    "cerrado": DataSet(load_cerrado, iid=("iid",)),
    "colored-mnist": DataSet(load_colored_mnist),
}
