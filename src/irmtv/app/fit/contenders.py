"""Kinds of models that stand for choice, each with a path of penalty weights measured on the same held-out rows.

`fit_table` asks all kinds the same things, in this order: `search`, `finish` of the one that has the choice, and what
its features weigh. `networks` and `trees` answer them; `together` makes one choice among several.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from irmtv.app.fit.summary import FeaturesKind
from irmtv.data.features import CategoricalColumns
from irmtv.data.scaling import Scaler
from irmtv.data.training import TrainingData
from irmtv.engine.progress_bar import ProgressBar
from irmtv.estimators.parameters import as_seed
from irmtv.models.search import Searched
from irmtv.objectives import OBJECTIVES
from irmtv.objectives.base import Objective

Floats = npt.NDArray[np.float64]
R = TypeVar("R", TrainingData[Scaler], TrainingData[CategoricalColumns])
SEARCHED_ROWS = 200_000  # of more rows so many are drawn for the search; the choice is trained on all
COMPARED_ROWS = 50_000  # and so many to choose a kind of model by plain risk minimisation


@dataclass(frozen=True)
class Path:
    """What a search found, and its candidates' outputs for rows that they have not seen."""

    searched: Searched
    outputs: Callable[[int], Floats]  # of a candidate: (N,) or (N, C), in the units of y


class Contender(ABC, Generic[R]):
    """One kind of model, with the rows as it reads them."""

    rhythm: Literal["step", "round"]
    everything: R  # all rows
    rows: R  # those of the search

    def __init__(self, estimator: Any, random_state: int) -> None:
        self.estimator = estimator  # an Invariant*CV, which `finish` fits
        self.random_state = random_state
        self.seed = as_seed(random_state)

    @property
    @abstractmethod
    def kind(self) -> str:
        """In a word, once it was searched: "linear", "mlp" or "trees"."""

    @abstractmethod
    def name_of(self, searched: Searched, index: int) -> str:
        """What a candidate is: the kind, and how large ("mlp 32", hidden units; "trees (12 leaves)")."""

    @property
    @abstractmethod
    def features_kind(self) -> FeaturesKind:
        """What `feature_weights` are."""

    @abstractmethod
    def plain_risk(self, bar: ProgressBar | None, share: float) -> float:
        """Of plain risk minimisation on held-out rows: how this kind suits the rows, before any penalty."""

    @abstractmethod
    def search(self, bar: ProgressBar | None, share: float) -> Path:
        """The whole path on every fold, with what the rule chooses from it. `share` is that of the bar."""

    @abstractmethod
    def finish(self, searched: Searched) -> None:
        """Train the choice on all rows; `searched` is that of `search`, maybe with another choice."""

    @abstractmethod
    def feature_weights(self, searched: Searched) -> tuple[Floats, Floats]:
        """Of plain risk minimisation and of the choice, after `finish`: (D,) each, shares of all absolute weights."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What there is to say of how it was trained."""

    @abstractmethod
    def _path_of(self, objective: Objective, weight: Any, like: Searched, index: int) -> Path:
        """One penalty weight of another objective on the same folds, otherwise as a candidate of this one."""

    def with_objective(self, name: str, like: Searched, index: int) -> tuple[Path, int]:
        """Another objective with the weight and (nearly) the step of a candidate: its path, and which it is there."""
        candidate = like.candidates[index]
        weight = weight_of(like, index)
        path = self._path_of(OBJECTIVES[name], weight, like, index)
        same = [i for i in range(len(path.searched.candidates)) if weight_of(path.searched, i) == weight]
        return path, min(same, key=lambda i: abs(path.searched.candidates[i].step - candidate.step))

    def _twin(self, **changes: Any) -> Any:
        """Another estimator of the same parameters but these, not fitted."""
        return type(self.estimator)(**{**self.estimator.get_params(deep=False), **changes})


def weight_of(searched: Searched, index: int) -> Any:
    """A candidate's penalty weight; 0 where its objective has none."""
    candidate = searched.candidates[index]
    return searched.families[candidate.family].combinations[candidate.combination].get("penalty_weight", 0.0)


def some_rows(prepared: R, most: int, seed: int) -> R:
    """At most so many rows, at random: of every environment its share, and no fewer than a thousand of its rows."""
    rows = prepared.task.train
    n = len(rows)
    if n <= most:
        return prepared
    shuffled = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    codes = torch.zeros(n, dtype=torch.int64) if rows.environment is None else rows.environment
    in_order = shuffled[torch.argsort(codes[shuffled], stable=True)]
    sizes = torch.bincount(codes).tolist()
    wanted = [min(size, max(1000, round(size * most / n))) for size in sizes]
    parts = torch.split(in_order, sizes)
    index = torch.cat([part[:count] for part, count in zip(parts, wanted, strict=True)]).sort().values
    return replace(prepared, task=replace(prepared.task, train=rows.take(index)))


def stage(bar: ProgressBar | None, name: str, share: float) -> None:
    """What comes next, and its share of the bar."""
    if bar is not None:
        bar.stage(name, share)
