"""Fused steps against ordinary ones on the CPU, by Triton's interpreter: `test_fused.py` runs it in its own process.

Triton decides at import whether it interprets, so TRITON_INTERPRET=1 must be set before. Prints a line of
JSON per case: how many steps were fused, and the largest difference of parameters after them, relative to the largest.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch

from irmtv import Runs, make_task
from irmtv.core.types import Task
from irmtv.engine import fused, program
from irmtv.engine.components.base import Phase
from irmtv.engine.train import train


def data(seed: int, n: int, kind: str, loss: str, n_features: int = 3) -> Task:
    rng = np.random.default_rng([seed, n])
    x = rng.normal(size=(n, n_features))
    y = x[:, 0] + 0.5 * rng.normal(size=n)
    y = (y > 0).astype(int) if loss == "binary" else y
    if kind == "given":
        return make_task(
            x, y, environment=np.repeat(["a", "b", "c"], [n // 2, n // 4, n - n // 2 - n // 4]), min_rows=1
        )
    if kind == "weighted":
        return make_task(x, y, environment=rng.integers(2, size=n), sample_weight=rng.uniform(0.5, 2, n))
    columns = {"time": 1, "place": 2, "years": 1}[kind]
    aux = rng.integers(5, size=(n, 1)).astype(float) if kind == "years" else rng.normal(size=(n, columns))
    return make_task(x, y, aux=aux)


STEPS = 4
CASES = {
    "erm": ("erm", "given", {}),
    "irm-tv-l1": ("irm-tv-l1", "given", {"warmup": 2}),
    "irm-tv-l2, authors": ("irm-tv-l2", "given", {"warmup": 0, "reduction": "authors"}),
    "weights of rows": ("irm-tv-l1", "weighted", {"warmup": 0}),
    # from ERM, where the mean slope is 0: while both slopes have one sign, rho has nothing but rounding to climb
    "minimax-tv-l1, one column": ("minimax-tv-l1", "time", {"warmup": 2, "start": "erm", "l2": 0}),
    "minimax-tv-l2, two columns": ("minimax-tv-l2", "place", {"warmup": 2}),
    "zin, few distinct rows": ("zin", "years", {"warmup": 2}),
    # these must take the ordinary step
    "not fused: penalty on risks": ("vrex", "given", {"warmup": 0}),
    "not fused: network": ("irm-tv-l1", "given", {"warmup": 0, "hidden": (4,)}),
    "not fused: weight that follows Phi": ("irm-tv-l1", "given", {"warmup": 0, "penalty_weight": "adaptive"}),
    "not fused: another measure": ("irm-tv-l1", "given", {"warmup": 0, "measure": "uniform"}),
}
ALSO_SQUARED = ("irm-tv-l1", "minimax-tv-l2, two columns")


@contextlib.contextmanager
def as_if_on_a_gpu(kernels: bool) -> Iterator[list[int]]:
    """Counts live in tensors, as on a GPU, and steps are fused or not; yields how many steps of each phase were."""
    fused_steps: list[int] = []
    start = program.Program.__init__

    def begin(self: program.Program, *arguments: Any) -> None:
        start(self, *arguments)
        self.context._on_gpu = torch.zeros((), dtype=torch.int64)
        for adam in self.step.optimizers():
            adam.steps = torch.zeros((), dtype=torch.float64)

    def advance(self: program.Program, phase: Phase) -> Callable[[], None]:
        made = fused.fused_step(self.step, phase) if kernels else None
        if made is not None:
            fused_steps.append(phase.stop - phase.start)
        return made or (lambda: self.step(phase))

    with (
        mock.patch.object(program.Program, "__init__", begin),
        mock.patch.object(program.Program, "_advance", advance),
        mock.patch.object(program.Program, "_share_warmup", return_value=0),
    ):
        yield fused_steps


def trained(name: str, kind: str, loss: str, settings: dict[str, Any]) -> dict[str, torch.Tensor]:
    tasks = [data(seed, 50, kind, loss) for seed in range(2)]
    runs = Runs(seed=range(4), data=[0, 0, 1, 1])
    weight = {} if name == "erm" else {"penalty_weight": 10.0}
    settings = {"l2": 1e-2, "learning_rate": 0.05} | weight | settings
    state = train(tasks, name, runs, steps=STEPS, dtype=torch.float64, **settings).state()[0]
    return {**state.parameters, **(state.rho or {})}


def main() -> None:
    fused.TILE, fused.MOST_CHUNKS = 64, 2  # several tiles and chunks on few rows
    for label, case in CASES.items():
        for loss in ("binary", "squared") if label in ALSO_SQUARED else ("binary",):
            name, kind, settings = case
            with as_if_on_a_gpu(kernels=False):
                expected = trained(name, kind, loss, settings)
            with as_if_on_a_gpu(kernels=True) as steps:
                got = trained(name, kind, loss, settings)
            difference = max(float((got[k] - v).abs().max() / v.abs().max()) for k, v in expected.items())
            print(json.dumps({"case": f"{label}, {loss}", "fused": sum(steps), "difference": difference}), flush=True)


if __name__ == "__main__":
    main()
