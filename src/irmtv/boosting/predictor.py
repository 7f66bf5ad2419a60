"""What a fitted booster keeps of training: trees, the constant they are added to, how a table is read. No rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from irmtv.boosting.table import Table
from irmtv.estimators.predictor import Rho
from irmtv.estimators.scaling import Scaler

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TreeMember:
    """One booster, up to one of its rounds; an ensemble has several."""

    booster: Any
    base: Floats  # (C,)
    iterations: int

    def logits(self, features: Floats, n_jobs: int) -> Floats:
        """(N, D) -> (N,), or (N, C) for several classes."""
        shape = (len(features),) if len(self.base) == 1 else (len(features), len(self.base))
        scores = np.broadcast_to(self.base, shape)
        if self.iterations == 0:
            return np.array(scores)
        told = {"raw_score": True, "num_iteration": self.iterations, "num_threads": n_jobs}
        found: Floats = scores + self.booster.predict(features, **told)
        return found

    def importances(self) -> Floats:
        """Gain of every feature's splits: (D,)."""
        if self.iterations == 0:
            return np.zeros(self.booster.num_feature())
        found: Floats = self.booster.feature_importance("gain", iteration=self.iterations)
        return found


@dataclass(frozen=True)
class TreePredictor:
    """From features to outputs in the user's units."""

    table: Table
    members: tuple[TreeMember, ...]
    y: Scaler | None = None  # regression
    rho: Rho | None = None
    n_jobs: int = 0  # threads; 0 leaves it to LightGBM
    aux: None = None  # trees read features alone

    def logits(self, features: Floats) -> Floats:
        """Mean over the members: (N,) or (N, C)."""
        found: Floats = np.mean([m.logits(features, self.n_jobs) for m in self.members], 0)
        return found if self.y is None else self.y.back(found[:, None])[:, 0]

    def importances(self) -> Floats:
        """Each feature's share of the gain of all splits, mean over the members: (D,), sums to 1 or is 0."""
        each = np.stack([m.importances() for m in self.members])
        total = each.sum(1, keepdims=True)
        found: Floats = np.where(total > 0, each / np.where(total > 0, total, 1), 0).mean(0)
        return found
