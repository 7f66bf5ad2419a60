"""Do no harm: invariant boosting beside plain LightGBM on Adult and on house prices, chosen on training rows alone.

    IRMTV_DATA=folder python examples/boosting_no_harm.py      # two processes

Adult: five splits, raw columns with their categories; accuracy in percent over all test rows and in the worst of the
four subgroups (race x sex), mean and standard error over splits. House prices: trained on houses built from 1900 to
1950, environments of ten built years each, tested on those built from 1951 to 2000; mean squared error of the price
among houses of the same built year, standardised, over all test rows and in the worst ten years, with the standard
error over its rows. LightGBM is LGBMClassifier or LGBMRegressor with its
defaults, the others are our CV estimators with theirs.
"""

from __future__ import annotations

import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: processes share the cores

import lightgbm
import numpy as np

from irmtv import InvariantBoostingClassifierCV, InvariantBoostingRegressorCV
from irmtv.datasets import load_adult, load_house_prices

METHODS = {"LightGBM": "", "V-REx": "vrex", "TV-l1": "irm-tv-l1", "TV-l1 + V-REx": "irm-tv-l1+vrex"}
SPLITS = 5
Found = tuple[float, float, float]  # overall, worst, standard error of the worst


def told(model: Any, began: float) -> str:
    chosen = model.best_params_
    return (
        f"{model.selected_['outcome']}, weight {chosen['penalty_weight']:g}, {chosen['num_leaves']} leaves, "
        f"{model.n_iter_} rounds, {time.perf_counter() - began:.0f} s"
    )


def adult(method: str, split: int) -> tuple[Found, str]:
    tables = load_adult(split, as_frame=True)
    x, y, began = tables.X_train, tables.y_train.to_numpy(), time.perf_counter()
    said = ""
    if method == "LightGBM":
        levels = {c: x[c].astype("category").dtype for c in x.columns if x[c].dtype.kind not in "if"}
        plain = lightgbm.LGBMClassifier(n_jobs=1, verbosity=-1).fit(x.astype(levels), y)
        known = {c: tables.X_test[c].where(tables.X_test[c].isin(kind.categories)) for c, kind in levels.items()}
        predicted = plain.predict(tables.X_test.assign(**known).astype(levels))
    else:
        model = InvariantBoostingClassifierCV(METHODS[method], n_jobs=1, random_state=0)
        model.fit(x, y, environment=tables.environment_train.to_numpy())
        predicted, said = model.predict(tables.X_test), told(model, began)
    right, groups = predicted == tables.y_test.to_numpy(), tables.environment_test.to_numpy()
    worst = min(right[groups == g].mean() for g in np.unique(groups))
    return (100 * right.mean(), 100 * worst, np.nan), said


def house_prices(method: str, split: int) -> tuple[Found, str]:
    task = load_house_prices()
    rows, test = task.train, task.test
    assert test is not None and rows.environment is not None and test.environment is not None
    said, began = "", time.perf_counter()
    if method == "LightGBM":
        plain = lightgbm.LGBMRegressor(n_jobs=1, verbosity=-1).fit(rows.x.numpy(), rows.y.numpy())
        predicted = plain.predict(test.x.numpy())
    else:
        model = InvariantBoostingRegressorCV(METHODS[method], n_jobs=1, random_state=0)
        model.fit(rows.x.numpy(), rows.y.numpy(), environment=rows.environment.numpy())
        predicted, said = model.predict(test.x.numpy()), told(model, began)
    squares = (predicted - test.y.numpy()) ** 2
    parts = [squares[test.environment.numpy() == e] for e in range(len(test.names))]
    worst = max(parts, key=lambda part: float(part.mean()))
    return (squares.mean(), worst.mean(), worst.std(ddof=1) / np.sqrt(len(worst))), said


def run(job: tuple[str, str, int]) -> tuple[Found, str]:
    import torch

    torch.set_num_threads(1)
    data, method, split = job
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # what was found is told below
        return (adult if data == "Adult" else house_prices)(method, split)


def main() -> None:
    jobs = [("Adult", method, split) for split in range(SPLITS) for method in METHODS]
    jobs += [("house prices", method, 0) for method in METHODS]
    found: dict[tuple[str, str], list[Found]] = {}
    with ProcessPoolExecutor(2) as pool:
        for (data, method, split), (numbers, said) in zip(jobs, pool.map(run, jobs), strict=True):
            print(f"{data} {split} {method}: {said}", flush=True)
            found.setdefault((data, method), []).append(numbers)
    print("| | all | worst |\n| --- | ---: | ---: |")
    for (data, method), values in found.items():
        overall, worst, error = np.mean(values, 0)
        if data == "Adult":
            spread = np.std(values, 0, ddof=1) / np.sqrt(SPLITS)
            print(f"| {data}, {method} | {overall:.2f} ± {spread[0]:.2f} | {worst:.2f} ± {spread[1]:.2f} |")
        else:
            print(f"| {data}, {method} | {overall:.3f} | {worst:.3f} ± {error:.3f} |")


if __name__ == "__main__":
    main()
