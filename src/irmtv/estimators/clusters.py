"""k-means with soft memberships, and an order of the clusters that does not depend on where it started."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from irmtv.data.scaling import Scaler

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Clusters:
    """k-means' centres, and how wide the clusters are.

    The soft membership is that of a mixture of round normal distributions with equal weights around the centres, of
    the variance that the training rows have: q_e is proportional to exp(-|z - c_e|^2 / (2 variance)). The most probable
    cluster is the one with the nearest centre.
    """

    scaler: Scaler
    centres: Floats  # (E, A), standardised, in lexicographic order
    variance: float  # per column

    @classmethod
    def of(cls, values: Floats, scaler: Scaler, n_clusters: int, seed: int) -> Clusters:
        """From the training rows (N, A)."""
        from sklearn.cluster import KMeans  # with all that it imports, longer to load than most of irmtv

        z = scaler(values)
        kmeans = KMeans(n_clusters, n_init=10, random_state=seed).fit(z)
        centres = kmeans.cluster_centers_
        variance = float(kmeans.inertia_) / z.size
        return cls(scaler, centres[lexicographic(centres)], max(variance, np.finfo(np.float64).tiny))

    def membership(self, values: Floats) -> Floats:
        """(N, A) -> (N, E), rows sum to 1."""
        z = self.scaler(values)
        squared = np.stack([((z - c) ** 2).sum(1) for c in self.centres], 1)  # (N, E)
        # from the nearest centre, before the division: a tiny variance must not overflow all of them
        nearer = (squared - squared.min(1, keepdims=True)) / 2
        with np.errstate(over="ignore"):
            result: Floats = softmax(-nearer / self.variance, axis=1)
        return result


def lexicographic(rows: Floats) -> Labels:
    """The order of rows (E, A) by their first column, then the second, ..."""
    order: Labels = np.lexsort(rows.T[::-1])
    return order
