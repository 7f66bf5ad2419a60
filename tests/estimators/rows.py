"""Small tables that the tests of the estimators share."""

from __future__ import annotations

import numpy as np
import pandas as pd


def table(n: int = 240, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Two features in units of their own, a site, a year; y follows the first feature everywhere, the second at "a"."""
    rng = np.random.default_rng(seed)
    site = rng.choice(["a", "b", "c"], n)
    year = 2000 + 20 * rng.random(n)
    stable, fickle = rng.normal(size=n), rng.normal(size=n)
    y = (stable + np.where(site == "a", 1.5, -0.2) * fickle + 0.5 * rng.normal(size=n) > 0).astype(int)
    frame = pd.DataFrame({"stable": 100 + 10 * stable, "site": site, "fickle": 1e-3 * fickle, "year": year})
    return frame, y


def arrays(n: int = 240, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The same as X, y, site, year."""
    frame, y = table(n, seed)
    return frame[["stable", "fickle"]].to_numpy(), y, frame["site"].to_numpy(), frame["year"].to_numpy()


class EveryOtherRow:
    """Before an estimator: rows come from two places in turn, which scikit-learn's checks cannot say."""

    def fit(self, X, y, environment=None, aux=None, sample_weight=None):
        if environment is None:
            n_rows = X.shape[0] if hasattr(X, "shape") else len(np.asarray(X))
            environment = np.arange(n_rows) % 2
        return super().fit(X, y, environment=environment, aux=aux, sample_weight=sample_weight)
