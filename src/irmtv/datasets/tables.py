"""What loaders share: where files lie, which split, and raw tables for scikit-learn."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

Home = str | os.PathLike[str] | None  # of files
Seed = int | np.random.Generator | None  # of a split


@dataclass(frozen=True, eq=False)
class Tables:
    """Raw rows, divided: what scikit-learn takes. The index is the row's number in the files, one after the other."""

    X_train: pd.DataFrame
    y_train: pd.Series
    environment_train: pd.Series
    X_test: pd.DataFrame
    y_test: pd.Series
    environment_test: pd.Series
    name: str = "data"
    card: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, x: pd.DataFrame, y: pd.Series, environment: pd.Series, train: Any, test: Any, **more: Any) -> Tables:
        """The rows at the positions `train` and `test`, of all three; `more` are the name and the card."""
        parts = [frame.iloc[rows] for rows in (train, test) for frame in (x, y, environment)]
        return cls(*parts, **more)

    def __repr__(self) -> str:
        return (
            f"Tables({self.name!r}, {len(self.X_train)} training rows, {len(self.X_test)} test rows, "
            f"{self.X_train.shape[1]} columns)"
        )
