"""The coarea formula of the risk (proposition on IRM-TV-l1) for trained networks, in every training environment.

    one axis:  R_e(w)        = mean over e of l(w f(x), y)                       w multiplies the logits
    two axes:  R_e(w_v, w_s) = mean over e of l(f(w_v x_v, w_s x_s), y)          w multiplies the inputs

The inputs of the simulation are x_v (invariant) and x_s (spurious), so the second map shows how much a network leans on
either; with a hidden layer it is not convex. The sides share no code: the gradient comes from the parameters (by the
loss's residual, and by reverse-mode derivatives), the level sets from the values that `FittedRuns.logits` gives.
Networks with ReLU and losses such as cross-entropy are locally Lipschitz in w, which is enough for the formula.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from irmtv.core.types import Runs, Task
from irmtv.datasets import make_simulation
from irmtv.engine import FittedRuns, train
from irmtv.lab.theory.coarea import (
    FORMULA,
    LABEL,
    ContourLengths,
    Crossings,
    contour_lengths,
    crossings,
    every_crossing,
    level_side,
)
from irmtv.lab.theory.figures import ERM, L1, legend, plain
from irmtv.lab.theory.finding import Comparison, Result, claim, equal, ours, statement
from irmtv.lab.theory.sides import Floats, Function, fitted_order, length
from irmtv.lab.theory.variation import pixel_centres

MODELS = ("ERM", "IRM-TV-l1")
COLOURS = (ERM, L1)
ON_THE_LOGITS, ON_THE_INPUTS = (-1.0, 3.0), (-1.0, 2.0)  # the w that are looked at, around w = 1, where one trains
AT_ONCE = 128  # classifiers w per pass
INVARIANT = 5  # columns


def _layers(fitted: FittedRuns, run: int) -> list[tuple[Tensor, Tensor]]:
    """The weights (out, in) and biases (out,) of one run."""
    (state,) = fitted.state()
    p = state.parameters
    return [(p[f"W{i}"][run], p[f"b{i}"][run].reshape(-1)) for i in range(len(p) // 2)]


def _gradient_1d(f: Tensor, task: Task, rows: Tensor, w: Floats) -> Floats:
    """dR_e/dw at every w, where w multiplies the logits f (N,): the mean of l'(w f) f."""
    scaled = torch.as_tensor(w)[:, None] * f[rows]
    y = task.train.y[rows].expand_as(scaled)
    return np.asarray((task.loss.residual(scaled, y) * f[rows]).mean(1))


def _gradient_2d(layers: list[tuple[Tensor, Tensor]], task: Task, rows: Tensor, w: Floats) -> Floats:
    """The gradient of R_e at every w (G, 2): (2, G), by reverse mode through the parameters."""
    x, y = task.train.x[rows].double(), task.train.y[rows]
    (first, bias), *others = layers
    parts = x[:, :INVARIANT] @ first[:, :INVARIANT].T, x[:, INVARIANT:] @ first[:, INVARIANT:].T  # (N, H) each
    found = []
    for some in torch.split(torch.as_tensor(w), AT_ONCE):
        at = some.clone().requires_grad_(True)
        h = at[:, 0, None, None] * parts[0] + at[:, 1, None, None] * parts[1] + bias  # (G, N, H)
        for weight, shift in others:
            h = h.relu() @ weight.T + shift
        f = h.squeeze(-1)
        torch.autograd.backward(task.loss.value(f, y.expand_as(f)).mean(1).sum())
        assert at.grad is not None
        found.append(at.grad.numpy().T)
    return np.concatenate(found, 1)


def _risks_2d(fitted: FittedRuns, task: Task, w: Floats) -> Tensor:
    """Losses of all runs and rows at every w (G, 2), by the engine's own forward pass on scaled inputs: (R, G, N)."""
    x = task.train.x.double()
    losses = []
    for some in torch.split(torch.as_tensor(w), AT_ONCE):
        scale = torch.cat([some[:, :1].expand(-1, INVARIANT), some[:, 1:].expand(-1, x.shape[1] - INVARIANT)], 1)
        f = fitted.logits((scale[:, None, :] * x).flatten(0, 1)).reshape(-1, len(some), len(x))
        losses.append(task.loss.value(f, task.train.y.expand_as(f)))
    return torch.cat(losses, 1)


def _cell_centres(cells: int) -> Floats:
    """The middles of the cells of the map over (w_v, w_s): (cells^2, 2)."""
    low, high = ON_THE_INPUTS
    middle = low + (high - low) * pixel_centres(cells)
    return np.stack(np.meshgrid(middle, middle), -1).reshape(-1, 2)


@statement("Coarea formula of trained networks", LABEL, formula=FORMULA, size=(7.2, 4.6))
def coarea_trained(
    hidden: tuple[int, ...] = (8,),
    penalty_weight: float = 1000.0,
    n_samples: int = 2000,
    steps: int = 500,
    cells: tuple[int, ...] = (16, 32, 64),
    modulus: Function = length,
    level_size_1d: Crossings = crossings,
    level_size_2d: ContourLengths = contour_lengths,
    random_state: int = 0,
) -> Result:
    """The coarea formula holds for the risk of a trained network as a function of the classifier w, in every
    environment: the integral of |grad R| is the total size of the level sets of the risk.

    Both sides of the coarea formula for the risks of two networks, trained with and without the l1 penalty. `hidden`
    are the widths of the network, () is a linear model; `cells` are the numbers of cells per axis of the map over (w_v,
    w_s), which each divide the last. Under test: `modulus` of the gradient (first axis), and the sizes of the level
    sets, `level_size_1d(values, levels, None)` and `level_size_2d(axis, values, levels)`.
    """
    finest = cells[-1] if cells else 0
    if len(cells) < 2 or min(cells) < 8 or sorted(set(cells)) != list(cells) or any(finest % n for n in cells):
        raise ValueError(
            f"cells must be two or more increasing numbers of at least 8, each of which divides the last. "
            f"Got {cells!r}. Use for example (16, 32, 64)."
        )
    seed = random_state
    task = make_simulation(n_samples, p_s=(0.999, 0.7), p_v=0.9, n_invariant=INVARIANT, random_state=seed, n_test=4)
    runs = Runs(penalty_weight=[0.0, penalty_weight], seed=seed)
    settings: dict[str, Any] = {"learning_rate": 0.02, "l2": 1e-3, "dtype": torch.float64}
    fitted = train(task, "irm-tv-l1", runs, hidden=hidden, steps=steps, **settings)
    assert task.train.environment is not None
    environments = [torch.nonzero(task.train.environment == e).squeeze(1) for e in range(2)]
    logits = fitted.logits(task.train.x)  # (2, N)

    line = np.linspace(*ON_THE_LOGITS, 1025)
    scaled = torch.as_tensor(line)[:, None] * logits[:, None, :]  # (2, 1025, N)
    line_losses = task.loss.value(scaled, task.train.y.expand_as(scaled))
    axis = np.linspace(*ON_THE_INPUTS, finest + 1)
    corner = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)  # w_v along the columns, w_s along the rows
    map_losses = _risks_2d(fitted, task, corner)

    comparisons: list[Comparison] = []
    maps: dict[tuple[int, int], Floats] = {}
    sizes: dict[tuple[int, int], float] = {}  # total length of the contours
    shares: dict[tuple[int, int], float] = {}  # of the slope, along the spurious inputs
    flat: list[int] = []  # cells of the map with almost no slope
    relative = np.empty((len(cells), len(MODELS) * len(environments)))  # what the two sides differ by, per map
    for run, model in enumerate(MODELS):
        layers = _layers(fitted, run)
        for e, rows in enumerate(environments):
            where = f"{model}, environment {e + 1}"
            slope = _gradient_1d(logits[run], task, rows, (line[1:] + line[:-1]) / 2)
            values = np.asarray(line_losses[run][:, rows].mean(1))
            left = float(modulus(slope[None]).mean() * np.ptp(ON_THE_LOGITS))
            right = level_side(values, 1 << 15, every_crossing(level_size_1d, values))
            # Values on 1,024 cells and 32,768 levels: h^2 and one level per turn, relative 1e-5 and 1e-4.
            comparisons.append(
                claim(f"{where}: w on the logits", equal("∫|R'| dw", left, "counting", right, 3e-4 * left))
            )
            maps[run, e] = np.asarray(map_losses[run][:, rows].mean(1)).reshape(finest + 1, finest + 1)
            for k, n in enumerate(cells):  # coarser grids are parts of the finest one
                gradient = _gradient_2d(layers, task, rows, _cell_centres(n))
                left = float(modulus(gradient).mean() * np.ptp(ON_THE_INPUTS) ** 2)
                part, values = axis[:: finest // n], maps[run, e][:: finest // n, :: finest // n]
                sizes[run, e] = level_side(values, round(8 * n ** (4 / 3)), partial(level_size_2d, part, values))
                relative[k, len(flat)] = (left - sizes[run, e]) / left
            # Midpoint rule and chords, both order 2 in the cell: on 48 cells a few times 1e-4.
            close = 1.5e-3 * left * (48 / finest) ** 2
            comparisons.append(
                claim(f"{where}: w on the inputs", equal("∫|∇R| dw", left, "contour lengths", sizes[run, e], close))
            )
            shares[run, e] = float(np.abs(gradient[1]).sum() / np.abs(gradient).sum())
            steep = np.hypot(*gradient)
            flat.append(int((steep < 0.01 * steep.mean()).sum()))

    worst = max(c.error / c.left for c in comparisons)
    order = fitted_order(cells, np.sqrt((relative**2).mean(1)))
    # Midpoints, chords and levels (see coarea.py) have order 2, but for the kinks of ReLUs and the luck of four maps.
    comparisons.append(
        ours(
            "w on the inputs: order in the cells, rms over the four maps", equal("measured", order, "chords", 2.0, 0.3)
        )
    )
    flattest = (
        f"at most {max(flat):,} of {finest**2:,} cells of any map have" if any(flat) else "no cell of any map has"
    )

    def paint(figure: Figure) -> None:
        panels = figure.subplots(2, 3, width_ratios=[1, 1, 1.1])
        top = max(float(np.quantile(m, 0.9)) for m in maps.values())
        bottom = min(float(m.min()) for m in maps.values())
        levels = np.linspace(bottom, top, 14)
        for run, model in enumerate(MODELS):
            for e in range(2):
                plain(panels[run, e], f"{model}, environment {e + 1}", "$w_v$" if run else "", "$w_s$" if not e else "")
                panels[run, e].contour(axis, axis, maps[run, e], levels=levels, cmap="viridis", linewidths=0.9)
                panels[run, e].plot(1, 1, "+", color="black", ms=7)
                panels[run, e].set_aspect("equal")
            lengths = panels[run, 2]
            plain(lengths, "length of {R = γ}", "γ" if run else "", "length")
            for e, style in enumerate(("-", "--")):
                ladder = np.linspace(maps[run, e].min(), maps[run, e].max(), 160)
                size = level_size_2d(axis, maps[run, e], ladder)
                name = f"environment {e + 1}: area {sizes[run, e]:.2f}"
                lengths.plot(ladder, size, style, color=COLOURS[run], lw=1.2, label=name)
            lengths.set_ylim(0, 1.35 * lengths.get_ylim()[1])
            legend(lengths, loc="upper right")

    return Result(
        tuple(comparisons),
        f"Two networks with hidden layers {hidden}, trained for {steps} steps with penalty weight 0 (ERM) and "
        f"{penalty_weight:g} (IRM-TV-l1), give the same number on both sides in both environments, within "
        f"{100 * worst:.2g} % at worst, and what is left falls like n^-{order:.1f} with the cells of the grid: these "
        "risks are locally Lipschitz in w, which is enough for the formula.\n\n"
        "The maps show what the penalty does: the share of the slope that lies along the spurious inputs is "
        f"{100 * shares[0, 0]:.0f} and {100 * shares[0, 1]:.0f} % for ERM in the two environments and "
        f"{100 * shares[1, 0]:.0f} and {100 * shares[1, 1]:.0f} % with the penalty. A blocky risk would be flat almost "
        f"everywhere; here {flattest} a slope below a hundredth of the mean. The coarea formula is true of every such "
        "risk and does not by itself make one piecewise constant.",
        paint,
    )
