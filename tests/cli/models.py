"""Small fitted models with their files, for tests of commands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.pipeline import Pipeline

import irmtv
from irmtv.app.io import read_table, split_columns, table_steps
from irmtv.estimators.files import save


def houses(n: int = 300, seed: int = 0) -> pd.DataFrame:
    """Numbers, a category, codes, a date, missing values; a class and a price to be predicted."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "id": [f"{k:05d}" for k in range(n)],
            "size": rng.normal(size=n).round(4),
            "kind": rng.choice(["flat", "house, small", "hut"], n),
            "code": rng.choice(["01", "02", "x"], n),
            "built": [f"20{k:02d}-03-11" for k in rng.integers(10, 24, n)],
            "site": rng.choice(["north", "south"], n),
        }
    )
    frame["sold"] = np.where(frame["size"] + 0.5 * rng.normal(size=n) > 0, "yes", "no")
    frame["price"] = (100 + 10 * frame["size"] + rng.normal(size=n)).round(3)
    frame.loc[::9, "size"] = np.nan
    frame.loc[::7, "kind"] = None
    return frame


def fitted(folder: Path, target: str = "sold", about: bool = True) -> Path:
    """A model file, fitted on houses.csv of the folder, which is written, too."""
    houses().to_csv(folder / "houses.csv", index=False)
    frame = read_table(folder / "houses.csv").frame.drop(columns=["id", {"sold": "price", "price": "sold"}[target]])
    columns = split_columns(frame, target=target, environment="site")
    kind = irmtv.InvariantClassifier if target == "sold" else irmtv.InvariantRegressor
    model = Pipeline([*table_steps(), ("model", kind("erm", hidden=(), max_steps=100, random_state=0))])
    model.fit(columns.features, columns.y)
    chosen = {"chosen": {"value": 0.75}}
    known = {
        "metric": "accuracy" if target == "sold" else "rmse",
        "task": "binary" if target == "sold" else "regression",
        "outcome": "erm-invariant",
        "headline": "ERM is kept.",
        "data": {"target": target, "environment": ["site"], "aux": [], "rows_used": 300},
        "environments": [{"name": "north", **chosen}],
        "overall": {"name": "all rows", **chosen},
    }
    return save(model, folder / "model.irmtv", about=known if about else None)
