"""Do no harm: invariant boosting beside plain LightGBM on Adult and on house prices, chosen on training rows alone.

    IRMTV_DATA=folder python examples/boosting_no_harm.py

Adult: five splits, raw columns with their categories; accuracy in percent, mean and standard error over splits. House
prices: one split by built year; mean squared error, in the worst segment with the standard error over its rows.
LightGBM is LGBMClassifier or LGBMRegressor with its defaults.
"""

from __future__ import annotations

import os
import time
import warnings
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import lightgbm
import numpy as np

from irmtv import InvariantBoostingClassifierCV, InvariantBoostingRegressorCV
from irmtv.datasets import load_adult, load_house_prices

METHODS = {"V-REx": "vrex", "TV-l1": "irm-tv-l1", "TV-l1 + V-REx": "irm-tv-l1+vrex"}
FEW = {"penalty_weights": [1.0, 100.0, 1e4], "n_jobs": 1, "random_state": 0}


def told(model: Any) -> str:
    weight = model.best_params_["penalty_weight"]
    return (
        f"{model.selected_['outcome']}, weight {weight:g}, {model.best_params_['num_leaves']} leaves, {model.n_iter_}"
    )


def adult(splits: int = 5) -> None:
    found: dict[str, list[tuple[float, float]]] = {}
    for split in range(splits):
        tables = load_adult(split, as_frame=True)
        x, y, where = tables.X_train, tables.y_train.to_numpy(), tables.environment_train.to_numpy()
        right = {}
        as_categories = {c: "category" for c in x.columns if x[c].dtype.kind not in "if"}
        levels = {c: x[c].astype("category").dtype for c in as_categories}
        plain = lightgbm.LGBMClassifier(n_jobs=1, verbosity=-1).fit(x.astype(levels), y)
        right["LightGBM"] = plain.predict(tables.X_test.astype(levels)) == tables.y_test.to_numpy()
        for name, objective in METHODS.items():
            began = time.perf_counter()
            model = InvariantBoostingClassifierCV(objective, **FEW).fit(x, y, environment=where)
            right[name] = model.predict(tables.X_test) == tables.y_test.to_numpy()
            print(f"adult {split} {name}: {told(model)} rounds, {time.perf_counter() - began:.0f} s", flush=True)
        groups = tables.environment_test.to_numpy()
        for name, hit in right.items():
            worst = min(hit[groups == g].mean() for g in np.unique(groups))
            found.setdefault(name, []).append((100 * hit.mean(), 100 * worst))
    for name, values in found.items():
        mean, error = np.mean(values, 0), np.std(values, 0, ddof=1) / np.sqrt(splits)
        print(f"Adult, {name}: all {mean[0]:.2f} ± {error[0]:.2f}, worst {mean[1]:.2f} ± {error[1]:.2f}")


def house_prices() -> None:
    task = load_house_prices()
    rows, test = task.train, task.test
    assert test is not None and rows.environment is not None and test.environment is not None
    squares = {}
    plain = lightgbm.LGBMRegressor(n_jobs=1, verbosity=-1).fit(rows.x.numpy(), rows.y.numpy())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # LightGBM names the columns of arrays itself
        squares["LightGBM"] = (plain.predict(test.x.numpy()) - test.y.numpy()) ** 2
    for name, objective in METHODS.items():
        model = InvariantBoostingRegressorCV(objective, **FEW)
        model.fit(rows.x.numpy(), rows.y.numpy(), environment=rows.environment.numpy())
        squares[name] = (model.predict(test.x.numpy()) - test.y.numpy()) ** 2
        print(f"house prices {name}: {told(model)} rounds", flush=True)
    for name, error in squares.items():
        parts = [error[test.environment.numpy() == e] for e in range(len(test.names))]
        worst = max(parts, key=lambda part: float(part.mean()))
        spread = worst.std(ddof=1) / np.sqrt(len(worst))
        print(f"house prices, {name}: all {error.mean():.3f}, worst {worst.mean():.3f} ± {spread:.3f}")


if __name__ == "__main__":
    house_prices()
    adult()
