"""How much a model depends on each feature."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from irmtv.core.types import Task
from irmtv.models.networks.predictor import Predictor

Floats = npt.NDArray[np.float64]
SHUFFLED_ROWS = 2000  # at most as many rows are shuffled


def network_importances(model: Predictor, task: Task, seed: int) -> Floats:
    """Shares of all absolute weights: (D,).

    A linear model: coefficient x standard deviation. Others: how much the risk rises when a feature is shuffled.
    """
    linear = model.linear()
    if linear is None:
        weights = risk_rise(model, task, seed)
    else:
        scale = np.where(np.isfinite(model.x.scale), model.x.scale, 0.0)
        per_deviation = linear[0] * scale  # (1 or C, D)
        weights = per_deviation[0] if len(per_deviation) == 1 else np.linalg.norm(per_deviation, axis=0)
    total = np.abs(weights).sum()
    return np.asarray(weights / total if total > 0 else weights)


def risk_rise(model: Predictor, task: Task, seed: int) -> Floats:
    """How much the risk rises when a feature is shuffled: (D,), at least 0."""
    rng = np.random.default_rng(seed)
    n = len(task.train)
    some = torch.as_tensor(rng.choice(n, min(SHUFFLED_ROWS, n), replace=False))
    x, y = task.train.x[some].double(), task.train.y[some]
    order = torch.as_tensor(rng.permutation(len(some)))

    def risk(values: torch.Tensor) -> float:
        f = torch.stack([m.logits(values) for m in model.members]).mean(0)
        return float(task.loss.value(f, y.to(f.dtype) if y.is_floating_point() else y).double().mean())

    before, rise = risk(x), np.zeros(x.shape[1])
    for j in range(x.shape[1]):
        shuffled = x.clone()
        shuffled[:, j] = x[order, j]
        rise[j] = max(0.0, risk(shuffled) - before)
    return rise


def output_shares(outputs: Callable[[Floats], Floats], x: Floats, seed: int) -> Floats:
    """How far the outputs (n, C) move when one feature of x (N, D) is shuffled, as a share of all features': (D,).

    The root of the mean square; of a linear model on standardised features that is the share of the absolute weights.
    Labels are not looked at, so that it tells what the model reads and not how well.
    """
    rng = np.random.default_rng(seed)
    x = x[rng.permutation(len(x))[:SHUFFLED_ROWS]]
    order = rng.permutation(len(x))
    before = outputs(x)
    moved = np.zeros(x.shape[1])
    for j in range(x.shape[1]):
        shuffled = x.copy()
        shuffled[:, j] = x[order, j]
        change = outputs(shuffled) - before
        if change.shape[1] > 1:  # a constant added to all classes changes nothing
            change = change - change.mean(1, keepdims=True)
        moved[j] = np.sqrt(np.square(change).sum(1).mean())
    return np.asarray(moved / max(moved.sum(), 1e-300))
