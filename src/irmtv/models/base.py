"""The protocol of a model family: what networks and trees provide, and what the search, `fit` and `diagnose` rely on.

A `Model` holds the settings of a family (frozen, no rows). Given the folds of a task it makes a `PathTrainer`, which
trains combinations of hyper-parameters outside every fold. Each gives a `TrainedPath`: a candidate at every one of its
steps, measured on rows that it has not seen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from irmtv.core.messages import did_you_mean, plain
from irmtv.core.types import Rows, Task
from irmtv.engine import Progress
from irmtv.engine.snapshots import History
from irmtv.objectives.base import Objective
from irmtv.selection import Measurements
from irmtv.selection.directions import Directions
from irmtv.selection.folds import constant_risk

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.object_]
Combination = Mapping[str, Any]  # hyper-parameters by name
Report = Callable[[Progress], None]
KeepOutputs = bool | Literal["left-out"]  # on held-out rows, or also in environments that were left out
Outputs = Sequence[Tensor]  # by part that was left out: (n,) or (n, C) outputs on its rows, in units of training
OWN_PARAMETERS = ("learning_rate", "l2", "hidden", "batch_size", "classifier", "penalty_weight", "warmup")


@dataclass(frozen=True)
class Split:
    """A task in folds, and without each of its environments where that is asked for."""

    task: Task
    fold: Tensor  # (N,) which fold holds a training row out
    folds: Sequence[Task]  # trained outside a fold, measured on it
    left_out: Sequence[Task] = ()  # trained without an environment, or a group of them, measured on it
    groups: Sequence[Sequence[int]] = ()  # the environments of each of these, as codes

    def constants(self) -> list[tuple[float, float]]:
        """By fold: the held-out risk of the best constant, and what the held-out rows weigh."""
        return [(constant_risk(task), _weight(task.held_out)) for task in self.folds]

    def together(self, parts: Sequence[Tensor]) -> Tensor:
        """Values of the held-out rows, fold by fold, in the order of the training rows: (N, ...)."""
        values = parts[0].new_empty(len(self.fold), *parts[0].shape[1:])
        for k, part in enumerate(parts):
            values[self.fold == k] = part
        return values


def _weight(rows: Rows | None) -> float:
    assert rows is not None
    return float(len(rows) if rows.weight is None else rows.weight.double().sum())


class TrainedPath(ABC):
    """One combination of hyper-parameters, trained outside every fold."""

    def __init__(
        self,
        objective: Objective,
        combination: Combination,
        steps: Sequence[int],
        erm_until: int,
        is_erm: bool,
    ) -> None:
        self.objective, self.combination = objective, combination
        self.steps = tuple(steps)  # at which it is a candidate; of trees, rounds
        self.erm_until = erm_until  # up to this step it is ERM
        self.is_erm = is_erm  # to the end
        self.without: Tensor | None = None  # (S, parts, 2): what `left_out` says of every step, once it was trained
        self.outputs_without: Callable[[int], Outputs] | None = None  # of a step, where they can be had

    @property
    def penalty_weight(self) -> Any:
        """0 where the objective has none."""
        return self.combination.get("penalty_weight", 0.0)

    @property
    @abstractmethod
    def diverged(self) -> bool:
        """Whether training diverged outside some fold: then it cannot be chosen."""

    @abstractmethod
    def measurements(self) -> Measurements:
        """What was measured of it on held-out rows, at its steps."""

    def left_out(self, step: int) -> Tensor | None:
        """Of the models trained without each part of the environments, on it: risk and accuracy, (parts, 2).

        None where they were not trained (`PathTrainer.leave_out`); NaN where they did not get to this step.
        """
        return None if self.without is None else self.without[self.steps.index(step)]

    def left_out_outputs(self, step: int) -> Outputs | None:
        """Outputs of the models trained without each part of the environments, on it; None where these are not kept."""
        return None if self.outputs_without is None else self.outputs_without(step)

    @abstractmethod
    def held_out_outputs(self, step: int) -> Tensor:
        """Outputs for every training row of models that have not seen it: (N,) or (N, C), in units of training."""


class PathTrainer(ABC):
    """Trains the combinations of one search. What they share (bins, an l2 or leaves that ERM chose) is made once."""

    split: Split
    left_out_seconds: float = 0.0  # spent so far on models without some environments

    @abstractmethod
    def train(self, objective: Objective, combinations: Sequence[Combination]) -> list[TrainedPath]:
        """One path per combination."""

    @abstractmethod
    def train_erm(self, combinations: Sequence[Combination]) -> list[TrainedPath]:
        """ERM beside an objective that has no penalty weight of 0: with the other hyper-parameters of these."""

    @abstractmethod
    def leave_out(self, paths: Sequence[TrainedPath]) -> None:
        """Train these also without each part of the environments (`Split.left_out`), for their `left_out`."""

    @abstractmethod
    def directions(self, erm: TrainedPath, step: int) -> Directions | None:
        """Whether all environments would choose the same direction as ERM; None where it is not known."""

    @abstractmethod
    def toward(self, erm: TrainedPath, step: int, other: TrainedPath, other_step: int) -> Directions | None:
        """The same in the direction of another candidate alone: would some environments go there, others away?"""

    @abstractmethod
    def elsewhere(self, path: TrainedPath, step: int, tasks: Sequence[Task]) -> tuple[Tensor, Outputs | None]:
        """A combination trained on each task up to a step: risk and accuracy on its held-out rows, (tasks, 2), and the
        outputs there, None where these are not kept."""


@dataclass(frozen=True)
class FittedModel:
    """A model that was trained on all rows, and what is known of its training. It holds no rows."""

    predictor: Any  # from features in the user's units to outputs
    objective: Objective
    step: int
    environments: Labels  # (E,)
    environment_weights: Floats  # (E,) what each counts
    history: pd.DataFrame
    importances: Floats | None = None  # (D,) shares, of trees


class Model(ABC):
    """A model family and its settings."""

    @abstractmethod
    def common_settings(self, objective: Objective, combination: Combination) -> Mapping[str, Any]:
        """The objective's hyper-parameters that are the same for all combinations, of which this is one."""

    @abstractmethod
    def like(self, path: TrainedPath) -> Self:
        """The same with the size, or the shrinking, that was tuned for a path."""

    @abstractmethod
    def trainer(
        self,
        split: Split,
        objective: Objective,
        combinations: Sequence[Combination],
        report: Report | None = None,
    ) -> PathTrainer:
        """For one search: `combinations` are those that will be trained, `report` is called with the progress."""


def over_environments(values: Tensor, rows: Tensor) -> Tensor:
    """Means over rows, of means by environment (..., E) and their numbers of rows: (...)."""
    return torch.where(rows > 0, rows * values, 0).double().sum(-1) / rows.double().sum(-1)


def lowest_overall_risk(rows: Tensor, risk: Tensor) -> Tensor:
    """The mean risk over all rows and folds, by step, of statistics (F, S, E): (S,); infinite where one is missing."""
    overall = torch.where(rows > 0, rows * risk, 0).sum((0, 2)) / rows.sum((0, 2))
    complete = (rows.sum(2) > 0).all(0)
    return torch.where(complete, overall, torch.inf).nan_to_num(torch.inf)


def environment_labels(names: Sequence[Any]) -> Labels:
    """An array of labels, of any kind; "all" where there are none."""
    array = np.empty(max(1, len(names)), dtype=object)  # element by element: labels may be tuples
    array[:] = ["all"]
    for e, name in enumerate(names):
        array[e] = name
    return array


def history_frame(history: History | None, run: int, environments: Any) -> pd.DataFrame:
    """Snapshots of one run: step, environment, on, rows, risk, slope, accuracy.

    `on` says which rows were measured, "train" or "held-out"; of a vector classifier `slope` is the length. Where
    environments are inferred row by row, or by clusters, only all rows together are measured: "all".
    """
    columns = ["step", "environment", "on", "rows", "risk", "slope", "accuracy"]
    if history is None:
        return pd.DataFrame(columns=columns)
    slope = history.slope[:, run]
    slope = slope if slope.ndim == 2 else torch.linalg.vector_norm(slope, dim=-1)
    n = history.risk.shape[-1]
    names = environments if len(environments) == n else ["all"] * n
    records = [
        {
            "step": step,
            "environment": names[e],
            "on": history.on,
            "rows": float(history.rows[s, run, e]),
            "risk": float(history.risk[s, run, e]),
            "slope": float(slope[s, e]),
            "accuracy": float(history.accuracy[s, run, e]),
        }
        for s, step in enumerate(history.steps)
        for e in range(n)
    ]
    return pd.DataFrame(records, columns=columns)


def own_hyperparameters(given: Any, objective: Objective, owner: str) -> dict[str, Any]:
    """`objective_params`: hyper-parameters of the objective that are no parameters of the estimator named `owner`."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValueError(
            f"objective_params must be a dict of hyper-parameters of the objective, or None. Got {given!r}. Use "
            "objective_params={'measure': 'uniform'}, for example."
        )
    known = sorted({h.name for h in objective.hyperparameters} - set(OWN_PARAMETERS))
    for name in given:
        if name in OWN_PARAMETERS:
            raise ValueError(
                f"objective_params must not hold {name!r}, which is a parameter of the estimator. Set it there: "
                f"{owner}({name}=...)."
            )
        if name not in known:
            raise ValueError(
                f"objective_params must name hyper-parameters of {objective.name!r}: {known}. Got {name!r}."
                f"{did_you_mean(name, known)}"
            )
    return {name: plain(value) for name, value in given.items()}
