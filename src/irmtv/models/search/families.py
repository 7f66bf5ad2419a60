"""What a search trains and finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from irmtv.engine import FittedRuns
from irmtv.objectives.base import Objective
from irmtv.selection import Choice, Records, p_values, worst_environment


def infers_held_out(objective: Objective) -> bool:
    """Whether the objective says the environments of held-out rows itself."""
    return objective.infers in ("aux", "rest")


OF_ALL_OBJECTIVES = ("learning_rate", "l2")  # what may differ between runs of plain risk minimisation
ENGINE = ("hidden", "net", "classifier", "steps", *OF_ALL_OBJECTIVES, "batch_size", "device", "dtype", "max_chunk")


@dataclass(frozen=True)
class Family:
    """The combinations of one objective, trained with every seed outside every fold.

    Fold by fold, in it seed by seed, in it combination by combination.
    """

    objective: Objective
    combinations: tuple[Mapping[str, Any], ...]
    settings: Mapping[str, Any]  # for `train`, the same for all
    folds: FittedRuns
    left_out: FittedRuns | None = None  # outside every environment

    def runs_of(self, part: int, c: int, of: FittedRuns | None = None) -> list[int]:
        """Where a combination's runs on one fold stand, one per seed; or without one environment, of `left_out`."""
        fitted = self.folds if of is None else of
        n = len(self.combinations)
        per_part = len(fitted) // len(fitted.tasks)
        return list(range(part * per_part + c, (part + 1) * per_part, n))

    def plain_until(self, c: int) -> int:
        """Up to which step a combination is plain risk minimisation."""
        return self.objective.plain_until(self.folds.settings[c])

    def plain(self) -> list[int]:
        """Combinations that are plain risk minimisation to the end."""
        ends = [int(s["steps"]) for s in self.folds.settings[: len(self.combinations)]]
        return [c for c, steps in enumerate(ends) if self.plain_until(c) >= steps]

    def diverged(self, c: int) -> bool:
        """Whether one of a combination's runs did."""
        n = len(self.combinations)
        parts = [self.folds] if self.left_out is None else [self.folds, self.left_out]
        return any(run % n == c for fitted in parts for run in fitted.diverged)


@dataclass(frozen=True)
class Candidate:
    """One combination at one of its snapshots."""

    family: int
    combination: int
    step: int


@dataclass(frozen=True)
class Searched:
    """What was trained, what was chosen."""

    choice: Choice
    families: tuple[Family, ...]  # the objective's, and plain risk minimisation where the objective has none itself
    candidates: tuple[Candidate, ...]  # in the order of the records
    records: Records
    fold: torch.Tensor  # (N,) which fold holds a training row out, of the rows that count

    @property
    def chosen(self) -> Candidate:
        return self.candidates[self.choice.index]

    @property
    def family(self) -> Family:
        """Which objective was chosen."""
        return self.families[self.chosen.family]

    @property
    def combination(self) -> Mapping[str, Any]:
        """The chosen hyper-parameters."""
        return self.family.combinations[self.chosen.combination]

    @property
    def step(self) -> int:
        """The chosen step."""
        return self.chosen.step

    @property
    def plain(self) -> int:
        """The candidate that others are compared with."""
        return self.records.plain

    def fold_models(self) -> tuple[FittedRuns, list[int]]:
        """The chosen models of all folds and seeds, at the chosen step, and which runs they are; needs their states."""
        folds, c = self.family.folds, self.chosen.combination
        return folds.at(self.step), [run for f in range(len(folds.tasks)) for run in self.family.runs_of(f, c)]

    def table(self) -> pd.DataFrame:
        """Every candidate: hyper-parameters, step, held-out risk over all rows and in the worst environment, p."""
        pooled = self.records.pooled()
        several = self.records.risk.shape[-1] > 1
        nothing = torch.full((len(self.candidates),), torch.nan)
        frame = pd.DataFrame([dict(self.families[c.family].combinations[c.combination]) for c in self.candidates])
        frame.insert(0, "objective", [self.families[c.family].objective.name for c in self.candidates])
        frame["step"] = [c.step for c in self.candidates]
        frame["risk"] = pooled.overall.numpy()
        frame["worst_risk"] = (worst_environment(pooled) if several else pooled.overall).numpy()
        frame["p_slopes"] = (p_values(pooled, "slopes") if several else nothing).numpy()
        frame["p_risks"] = (p_values(pooled, "risks") if several else nothing).numpy()
        if self.records.left_out is not None:
            frame["left_out_risk"] = self.records.left_out.mean(1).numpy()
        frame["plain"] = self.records.reference.numpy()
        frame["selected"] = np.arange(len(frame)) == self.choice.index
        return frame
