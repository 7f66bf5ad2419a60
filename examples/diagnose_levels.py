"""How often each test of a diagnosis says p < 0.05 where y given X is the same everywhere, by model.

    python examples/diagnose_levels.py [iid|shift] [binary|regression] [rows] [repetitions]

Two environments, four features; y depends on a hinge of the first, squared, and on the sign of a product of two others.
"iid": the environments are drawn at random, so nothing differs, and every test should say so in 95 % of the
repetitions. "shift": the first feature is higher by one standard deviation in one environment. Then losses may differ;
relations do not.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from scipy.special import expit

from irmtv.app.diagnose.erm_model import KINDS, fit_erm
from irmtv.app.diagnose.features import joint_test, own_slopes
from irmtv.app.diagnose.informative import given_informative
from irmtv.app.diagnose.losses import loss_by_environment
from irmtv.app.diagnose.rows import DiagnosisRows, read_rows
from irmtv.selection.equality import equal_means, holm

TESTS = ("loss", "level", "a feature", "all features", "informative")


def world(kind: str, task: str, n: int, seed: int) -> DiagnosisRows:
    rng = np.random.default_rng(seed)
    later = rng.random(n) < 0.4
    x = rng.normal(size=(n, 4))
    x[:, 0] += later * (kind == "shift")
    score = np.maximum(x[:, 0], 0) ** 2 + np.sign(x[:, 1] * x[:, 2])
    y = score + rng.normal(size=n) if task == "regression" else rng.random(n) < expit(1.5 * (score - score.mean()))
    environment = np.where(later, "b", "a")
    return read_rows(x, y, task, features=list("stuv"), environment=environment)  # type: ignore[arg-type]


def rejected(rows: DiagnosisRows, model: str, seed: int) -> tuple[bool, ...]:
    """Which tests say p < 0.05; "a feature" is whether any is named, corrected for their number."""
    plain = fit_erm(rows, seed, model)
    beyond = None if model == "linear" else plain
    p = equal_means(*(torch.as_tensor(v) for v in own_slopes(rows, beyond))).numpy()  # level, then the features
    return (
        loss_by_environment(rows, plain, seed).differs,
        p[0] < 0.05,
        bool((holm(p[1:]) < 0.05).any()),
        joint_test(rows, seed, model=beyond) < 0.05,
        given_informative(rows, plain, seed).informative,
    )


def main(kind: str = "iid", task: str = "binary", n: int = 400, repetitions: int = 200) -> None:
    print(f"{kind}, {task}, {n} rows, {repetitions} repetitions: % with p < 0.05")
    print("".join(f"{name:>14}" for name in ("model", *TESTS)))
    for model in KINDS:
        found = [rejected(world(kind, task, n, seed), model, seed) for seed in range(repetitions)]
        print(f"{model:>14}" + "".join(f"{100 * share:14.1f}" for share in np.mean(found, 0)), flush=True)


if __name__ == "__main__":
    given = sys.argv[1:]
    main(*given[:2], *map(int, given[2:]))
