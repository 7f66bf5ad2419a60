"""What each part of boosting's step rule is worth, on three settings of the paper's simulation.

    python examples/boosting_step_rule.py

Fixed weight, 100 rounds, nothing chosen: worst accuracy over the four test environments in percent, mean over
repetitions. Seeds 100 to 102 were looked at while the step rule was made, so this says why it is as it is, not how well
it does: that is `examples/boosting_simulation.py`, on other seeds.
"""

from __future__ import annotations

import os
from dataclasses import replace
from fractions import Fraction

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from irmtv.core.types import Task
from irmtv.datasets import make_simulation
from irmtv.models.trees.rounds import Binned, Boosted, Trees, boost
from irmtv.objectives import OBJECTIVES

SETTINGS = ((0.7, 0.9), (0.9, 0.9), (0.9, 0.8))
SEEDS = (100, 101, 102)
WEIGHT = 300.0
# what is set aside (tenths), leaves, radius (None: by the weight)
VARIANTS: dict[str, tuple[int, int, float | None]] = {
    "as it is": (3, 2, None),
    "nothing set aside": (0, 2, None),
    "31 leaves": (3, 31, None),
    "31 leaves, nothing set aside": (0, 31, None),
    "penalties pull at most as hard as the risk": (3, 2, 1.0),
    "at most 3 times": (3, 2, 3.0),
    "as hard as they like": (3, 2, float("inf")),
}


def worst(task: Task, found: Boosted) -> float:
    rows = task.held_out
    assert rows is not None and rows.environment is not None
    right = ((found.watched[-1].scores > 0) == (rows.y > 0.5)).double()
    return 100 * min(float(right[rows.environment == e].mean()) for e in range(len(rows.names)))


def trained(task: Task, name: str, aside: int, leaves: int, radius: float | None) -> Boosted:
    objective = OBJECTIVES[name]
    trees = Trees(n_estimators=100, num_leaves=leaves, n_jobs=1)
    weights, warmup = [WEIGHT] * len(objective.penalties), int("irm" in name)
    binned = Binned(task, [], trees, Fraction(aside, 10))
    return boost(binned, objective, objective.resolve({}), trees, weights=weights, warmup=warmup, radius=radius)


def main() -> None:
    torch.set_num_threads(1)
    tasks = {
        setting: [make_simulation(5000, (0.999, setting[0]), setting[1], random_state=s) for s in SEEDS]
        for setting in SETTINGS
    }
    print(f"| | {' | '.join(f'(0.999, {late:g}), p_v {p_v:g}' for late, p_v in SETTINGS)} |")
    print(f"| --- | {'---: | ' * len(SETTINGS)}".rstrip())
    rows = [("plain boosting", "erm", (0, 2, None))]
    rows += [(f"{label}: {what}", name, how) for label, name in (("V-REx", "vrex"), ("TV-l1", "irm-tv-l1"))
             for what, how in VARIANTS.items()]  # fmt: skip
    for label, name, how in rows:
        cells = []
        for setting in SETTINGS:
            watched = [replace(task, held_out=task.test, test=None) for task in tasks[setting]]
            cells.append(f"{np.mean([worst(task, trained(task, name, *how)) for task in watched]):.1f}")
        print(f"| {label} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
