"""A convolutional network of one's own on series, as `module=`.

    python examples/series_network.py

Series of two channels: the first holds a bump whose width is the class, everywhere; the second a level that follows
the class at the training stations (95 % and 75 %) and turns against it at the test station.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn

from irmtv import InvariantClassifier

LENGTH = 40


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Conv1d(2, 8, kernel_size=7, padding=3)
        self.decide = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:  # (N, 2, 40) -> (N, 1)
        return self.decide(self.look(x).relu().mean(-1))


def station(rows: int, agreement: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, rows)
    t, centre = np.arange(LENGTH), rng.uniform(10, 30, (rows, 1))
    bump = np.exp(-0.5 * ((t - centre) / np.where(y, 4.0, 2.0)[:, None]) ** 2)
    level = np.where(rng.random(rows) < agreement, y, 1 - y)
    x = np.stack([bump, np.repeat(level[:, None], LENGTH, 1)], 1)
    return x + rng.normal(0, 1.0, x.shape), y


def main(rows: int = 1000, steps: int = 1000) -> None:
    parts = [station(rows, 0.95, 1), station(rows, 0.75, 2)]
    X, y = np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
    where = np.repeat(["hill", "lake"], rows)
    X_new, y_new = station(2000, 0.1, 3)
    print(f"{'accuracy (%)':12s}{'hill':>8s}{'lake':>8s}{'the next station':>18s}")
    for objective in ("erm", "irm-tv-l1"):
        model = InvariantClassifier(
            objective, module=Network, penalty_weight=1e3, max_steps=steps, learning_rate=0.02, random_state=0
        ).fit(X, y, environment=where)
        table = 100 * model.evaluate(X, y, environment=where).by_environment[0]
        print(f"{objective:12s}{table[0]:8.1f}{table[1]:8.1f}{100 * model.score(X_new, y_new):18.1f}")


if __name__ == "__main__":
    main()
