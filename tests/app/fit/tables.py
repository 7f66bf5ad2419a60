"""Small tables with known answers."""

from __future__ import annotations

import numpy as np
import pandas as pd


def spurious_table(n: int = 1200, agreement: tuple[float, float] = (0.98, 0.7), seed: int = 0) -> pd.DataFrame:
    """Two sites in which `shortcut` agrees with the target unequally often; `cause` predicts it alike in both."""
    rng = np.random.default_rng(seed)
    site = np.repeat(["north", "south"], n // 2)
    cause = rng.normal(size=n)
    y = cause + rng.normal(size=n) > 0
    agrees = rng.random(n) < np.where(site == "north", *agreement)
    shortcut = np.where(agrees, y, ~y) + 0.3 * rng.normal(size=n)
    return pd.DataFrame(
        {
            "cause": np.where(rng.random(n) < 0.05, np.nan, cause),
            "shortcut": shortcut,
            "colour": rng.choice(["red", "green", "blue"], n),
            "day": pd.date_range("2020-01-01", periods=n, freq="D").strftime("%Y-%m-%d"),
            "site": site,
            "sold": np.where(y, "yes", "no"),
        }
    )
