"""What invariance costs a booster: training time beside plain LightGBM with a custom objective.

    OMP_NUM_THREADS=1 python -m benchmarks.boosting

The plain one is LightGBM on all rows with the logistic loss in NumPy, the fastest of five. Ours grow the same trees
(leaves, rounds, rate, one thread); three tenths of the rows are set aside unless it says otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import lightgbm
import numpy as np
import torch
from scipy.special import expit

from irmtv.core.losses import Binary
from irmtv.core.types import Rows, Task
from irmtv.models.trees.rounds import Binned, Trees, boost
from irmtv.objectives import OBJECTIVES

SIZES = ((5_000, 15), (20_000, 20), (100_000, 20))
METHODS = (
    ("erm", 0),
    ("vrex", 0),
    ("vrex", 3),
    ("irm-tv-l1", 3),
    ("irm-tv-l1+vrex", 3),
    ("mm-rex", 3),
    ("groupdro", 3),
)


def fastest(function: Callable[[], Any], times: int = 5) -> float:
    found = []
    for _ in range(times):
        began = time.perf_counter()
        function()
        found.append(time.perf_counter() - began)
    return min(found)


def main() -> None:
    torch.set_num_threads(1)
    trees = Trees(n_estimators=100, num_leaves=31, n_jobs=1)
    for n, d in SIZES:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(n, d))
        y = (x[:, :3].sum(1) + rng.normal(size=n) > 0).astype(float)
        codes = torch.as_tensor(np.arange(n) % 4)
        rows = Rows(torch.as_tensor(x), torch.as_tensor(y), environment=codes, names=("a", "b", "c", "d"))
        task = Task(rows, Binary())
        binned = {share: Binned(task, [], trees, Fraction(share, 10)) for share in (0, 3)}
        data = lightgbm.Dataset(x, y, params=trees.parameters(1)).construct()

        def logistic(f: Any, data: Any, y: Any = y) -> Any:
            p = expit(f)
            return p - y, p * (1 - p)

        parameters = {**trees.parameters(1), "objective": logistic}
        plain = fastest(lambda p=parameters, data=data: lightgbm.train(p, data, trees.n_estimators))
        print(f"{n} rows, {d} columns: plain LightGBM {plain:.2f} s")
        for name, share in METHODS:
            objective = OBJECTIVES[name]
            how = {"weights": [100.0] * len(objective.penalties), "warmup": 1, "every": 10}
            ours = fastest(lambda b=binned[share], o=objective, how=how: boost(b, o, o.resolve({}), trees, **how))
            print(f"  {name:16} {share} tenths aside: {ours:.2f} s, {ours / plain:.2f} times")


if __name__ == "__main__":
    main()
