"""The landscape of IRM-TV with two features, one invariant and one spurious: docs/solving.svg.

    python examples/solving_landscape.py docs/solving.svg

The objective risk + lambda x penalty of a vector classifier over the two weights, for three penalties, with its
minima, and the ways of Newton's method from ERM and from equal risks.
"""

from __future__ import annotations

import sys

import matplotlib
import numpy as np
import torch

from irmtv import Runs, make_task, train
from irmtv.engine.solvers.linear_risks import LinearRisks

matplotlib.use("svg")
from matplotlib import pyplot as plt

WEIGHT = 300.0
LEVELS = [0.1, 1.0, 10.0, 30.0, 100.0, WEIGHT]
GRID = (np.linspace(-0.6, 2.4, 241), np.linspace(-0.6, 3.4, 241))


def rows(n: int = 4000, seed: int = 0) -> object:
    """y agrees with the invariant sign in 80 % of the rows, with the spurious sign in 99 % or 84 %, by environment."""
    rng = np.random.default_rng(seed)
    environment = np.repeat([0, 1], n // 2)
    sign = rng.choice([-1, 1], n)
    invariant = np.where(rng.random(n) < 0.8, sign, -sign) + 0.45 * rng.normal(size=n)
    agrees = np.where(environment == 0, 0.99, 0.84)
    spurious = np.where(rng.random(n) < agrees, sign, -sign) + 0.45 * rng.normal(size=n)
    x = np.stack([invariant, spurious], 1)
    return make_task((x - x.mean(0)) / x.std(0), (sign > 0).astype(float), environment=environment, loss="binary")


def statistics(task: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """R_e and S_e (of every column) at all points of the grid, and the environments' shares."""
    risks = LinearRisks(task.train, task.train.environment, 2, task.loss, 1, many=False)
    a, b = (torch.as_tensor(v) for v in np.meshgrid(*GRID, indexing="xy"))
    theta = torch.stack([a.flatten(), b.flatten(), torch.zeros(a.numel())], 1)
    parts = [risks.at(some) for some in torch.split(theta, 512)]
    risk, gradient = (torch.cat([getattr(p, name) for p in parts]) for name in ("risk", "gradient"))
    return risk, (theta.unsqueeze(1) * gradient)[..., :2], risks.mass


def way(task: object, objective: str, start: str) -> np.ndarray:
    """The points of the path: ERM, then the solution of every weight, and where it ends."""
    weights = [0.0, *LEVELS]
    name = "irm-tv-l2+vrex" if start == "equal-risks" else objective
    fitted = train(task, name, Runs(penalty_weight=weights), solver="newton", classifier="vector", dtype=torch.float64)
    points = fitted.coefficients()[0].numpy()
    if start == "equal-risks":
        last = train(
            task,
            objective,
            Runs(penalty_weight=[WEIGHT]),
            solver="newton",
            classifier="vector",
            start=start,
            dtype=torch.float64,
        )
        points = np.concatenate([points, last.coefficients()[0].numpy()])
    return points


def main(path: str) -> None:
    task = rows()
    risk, slope, mass = statistics(task)
    mean = risk @ mass
    length = torch.linalg.vector_norm(slope, dim=2)
    penalties = {
        "ERM": torch.zeros_like(mean),
        "+ TV-l2, vector": length.square() @ mass,
        "+ TV-l1, vector": (length @ mass).square(),
    }
    names = {"+ TV-l2, vector": "irm-tv-l2", "+ TV-l1, vector": "irm-tv-l1"}
    figure, axes = plt.subplots(1, 3, figsize=(12, 4.6), sharey=True, layout="constrained")
    for ax, (title, penalty) in zip(axes, penalties.items(), strict=True):
        value = (mean + WEIGHT * penalty).view(len(GRID[1]), len(GRID[0])).numpy()
        height = np.log(value - value.min() + 0.02)
        ax.contourf(*GRID, height, levels=24, cmap="Greys", alpha=0.75).set_rasterized(True)
        ax.contour(*GRID, height, levels=24, colors="white", linewidths=0.4).set_rasterized(True)
        erm = way(task, "irm-tv-l1", "erm")[0]
        ax.plot(*erm, "o", color="black", ms=7, label="ERM")
        if title in names:
            for start, colour, label in (
                ("erm", "#c23b22", "from ERM"),
                ("equal-risks", "#1f6f8b", "from equal risks"),
            ):
                points = way(task, names[title], start)
                ax.plot(*points.T, "-", color=colour, lw=1.6)
                ax.plot(*points[-1], "*", color=colour, ms=15, mec="white", label=f"reached {label}")
        ax.axvline(0, color="black", lw=0.4)
        ax.axhline(0, color="black", lw=0.4)
        ax.set_title(title if title == "ERM" else f"risk {title}, lambda = {WEIGHT:g}")
        ax.set_xlabel("weight of the invariant feature")
        ax.legend(loc="upper left", fontsize=8)
    axes[0].set_ylabel("weight of the spurious feature")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/solving.svg")
