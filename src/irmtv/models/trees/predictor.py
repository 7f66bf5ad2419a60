"""What a fitted booster keeps of training: trees, the constant they are added to, how a table is read. No rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from irmtv.data.categories import CategoricalColumns
from irmtv.data.scaling import Scaler

if TYPE_CHECKING:
    from irmtv.models.networks.predictor import Rho

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
        options = {"raw_score": True, "num_iteration": self.iterations, "num_threads": n_jobs}
        scores_of_trees: Floats = scores + self.booster.predict(features, **options)
        return scores_of_trees

    def importances(self, features: Floats, n_jobs: int) -> Floats:
        """How far every feature moves the scores of these rows, on average: (N, D) -> (D,)."""
        if self.iterations == 0:
            return np.zeros(features.shape[1])
        options = {"pred_contrib": True, "num_iteration": self.iterations, "num_threads": n_jobs}
        each = self.booster.predict(features, **options).reshape(len(features), len(self.base), -1)  # last: the mean
        moved: Floats = np.abs(each[:, :, :-1]).mean(0).sum(0)
        return moved


@dataclass(frozen=True)
class TreePredictor:
    """From features to outputs in the user's units."""

    table: CategoricalColumns
    members: tuple[TreeMember, ...]
    y: Scaler | None = None  # regression
    rho: Rho | None = None
    n_jobs: int = 0  # threads; 0 leaves it to LightGBM
    aux: None = None  # trees read features alone

    def logits(self, features: Floats) -> Floats:
        """Mean over the members: (N,) or (N, C)."""
        outputs: Floats = np.mean([m.logits(features, self.n_jobs) for m in self.members], 0)
        return outputs if self.y is None else self.y.back(outputs[:, None])[:, 0]

    def linear(self) -> None:
        """Trees have no coefficients."""

    def importances(self, features: Floats) -> Floats:
        """Each feature's share in how far all of them move the scores of these rows: (D,), sums to 1 or is 0.

        The mean absolute value of its Shapley values (TreeSHAP), mean over the members. The gain of splits, which
        LightGBM has, would not do: a split that takes back an earlier one, or a tree that was shortened to nothing,
        counts in it as any other.
        """
        each = np.stack([m.importances(features, self.n_jobs) for m in self.members])
        total = each.sum(1, keepdims=True)
        shares: Floats = np.where(total > 0, each / np.where(total > 0, total, 1), 0).mean(0)
        return shares
