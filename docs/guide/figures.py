"""Draws the pictures of the guide: python docs/guide/figures.py (half a minute), or some of them by name.

Five inches wide with letters of 11 points, so that they can be read on a phone.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from irmtv import EnvironmentInference, Runs, train
from irmtv.app.fit import fit_table
from irmtv.datasets import make_simulation

HERE = Path(__file__).parent
BLUE, ORANGE, GREEN, GREY = "#1f5f99", "#c8590c", "#2d7a4f", "#6b7280"


def frame(width: float, height: float, columns: int = 1, rows: int = 1, **more: bool) -> tuple[Figure, list[Axes]]:
    figure, axes = plt.subplots(rows, columns, figsize=(width, height), layout="constrained", squeeze=False, **more)
    for one in axes.flat:
        one.spines[["top", "right"]].set_visible(False)
    return figure, list(axes.flat)


def environments() -> Figure:
    """An honest and a tempting column at two sites, with the line of each site."""
    rng = np.random.default_rng(0)
    figure, axes = frame(5, 2.9, columns=2, sharey=True)
    for panel, title, slopes in ((axes[0], "honest column", (1, 1)), (axes[1], "tempting column", (1.4, 0.1))):
        for colour, slope in zip((BLUE, ORANGE), slopes, strict=True):
            x = rng.normal(0, 1, 45)
            panel.plot(x, slope * x + rng.normal(0, 0.5, 45), ".", color=colour, alpha=0.5, markersize=6)
            ends = np.array([-2.2, 2.2])
            style = (0, (4, 2)) if slopes == (1, 1) and colour == ORANGE else "-"
            panel.plot(ends, slope * ends, color=colour, linewidth=2.5, linestyle=style)
        panel.set_title(title, fontsize=11)
        panel.set(xlabel="column", xticks=[], yticks=[], xlim=(-3, 3), ylim=(-3.4, 3.4))
    axes[0].text(-1.4, 2.2, "both sites", color="black")
    axes[1].text(0.2, 2.8, "north", color=BLUE)
    axes[1].text(1.2, -0.9, "south", color=ORANGE)
    axes[0].set_ylabel("target")
    return figure


def aux() -> Figure:
    """How a relation changes over time, and the environments that a network finds there."""
    rows = make_simulation(5000, p_s=(0.999, 0.7), random_state=0).train
    inference = EnvironmentInference("minimax", random_state=0).fit(
        rows.x.numpy(), rows.y.numpy(), aux=rows.aux.numpy()
    )
    time = np.linspace(0, 1, 201)
    member = inference.predict_proba(rows.x[:201].numpy(), aux=time[:, None])[:, 0]
    member = member if member[0] > 0.5 else 1 - member
    agrees = (np.sign(rows.x[:, 5:].numpy().mean(1)) > 0) == (rows.y.numpy() > 0.5)
    bins = np.minimum((rows.aux[:, 0].numpy() * 20).astype(int), 19)
    share = [100 * agrees[bins == b].mean() for b in range(20)]
    figure, axes = frame(5, 3.6, rows=2, sharex=True)
    axes[0].step(np.arange(21) / 20, [*share, share[-1]], where="post", color=ORANGE, linewidth=2)
    axes[0].set(ylim=(50, 104), ylabel="agrees, %")
    axes[0].set_title("the tempting column and the target", fontsize=11)
    axes[1].plot(time, member, color=BLUE, linewidth=2.5)
    axes[1].set(ylim=(-0.06, 1.06), yticks=[0, 1], xlabel="time", ylabel="probability")
    axes[1].set_title("first environment, as the network found it", fontsize=11)
    return figure


LADDER = (
    ("Your own network\nand training loop?", "a loss for your loop:\nIRMTVLoss"),
    ("Comparing\npublished methods?", "an experiment file:\nirmtv run"),
    ("Does a column say\nwhere rows came from?", "irmtv fit --environment\n(irm-tv-l1)"),
    ("Is there a time\nor a position?", "irmtv fit --aux\n(minimax-tv-l1)"),
)


def methods() -> Figure:
    """Questions from above to below; the first yes leads to an answer on the right."""
    figure, (axis,) = frame(4.3, 5.0)
    axis.set(xlim=(0, 10), ylim=(0, 10.6))
    axis.axis("off")
    box = {"boxstyle": "round,pad=0.45", "facecolor": "white", "linewidth": 1.4}
    arrow = {"arrowstyle": "-|>", "color": GREY, "linewidth": 1.4}
    for step, (question, answer) in enumerate(LADDER):
        y = 9.7 - 2.15 * step
        axis.annotate("", (5.75, y), (4.6, y), arrowprops=arrow)
        axis.text(5.1, y + 0.18, "yes", ha="center", color=GREY, fontsize=10)
        axis.annotate("", (2.3, y - 1.45), (2.3, y - 0.6), arrowprops=arrow)
        axis.text(2.5, y - 1.1, "no", color=GREY, fontsize=10)
        axis.text(2.3, y, question, ha="center", va="center", fontsize=10, bbox=box | {"edgecolor": BLUE})
        axis.text(7.9, y, answer, ha="center", va="center", fontsize=10, bbox=box | {"edgecolor": GREEN})
    axis.text(
        2.3,
        0.95,
        "a plain model: nothing\nto compare",
        ha="center",
        va="center",
        fontsize=10,
        bbox=box | {"edgecolor": ORANGE},
    )
    return figure


def new_environment() -> Figure:
    """Of the table of start.md: clinics known, left out and new, and the interval, of two models."""
    figure, axes = frame(5, 3.7, rows=2, sharex=True)
    for panel, (title, objective) in zip(axes, (("plain model", "erm"), ("invariant model", "auto")), strict=True):
        summary = clinics(objective)
        taken = next(family for family in summary["new_environment"]["families"] if family["taken"])
        low, high = (100 * taken["expected"][end] for end in ("low", "high"))
        held_out = [100 * row["chosen"]["value"] for row in summary["environments"]]
        left_out = [100 * row["chosen"] for row in taken["environments"]]
        panel.plot(
            [low, high], [1, 1], color=BLUE, linewidth=9, alpha=0.25, solid_capstyle="butt", label="90 % interval"
        )
        panel.plot(held_out, [2] * 4, "o", color=GREY, markersize=7, label="known clinics")
        panel.plot(left_out, [1] * 4, "D", color=BLUE, markersize=7, label="clinics left out")
        harbour = 100 * summary["test"]["environments"][0]["chosen"]["value"]
        panel.plot([harbour], [0], "*", color=ORANGE, markersize=14, label="the harbour, unseen")
        panel.set_title(title, fontsize=11)
        panel.set(yticks=[], ylim=(-0.7, 2.7), xlim=(55, 101))
        panel.spines["left"].set_visible(False)
    axes[1].set_xlabel("accuracy, %")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=2, frameon=False, fontsize=10)
    return figure


def clinics(objective: str) -> dict[str, Any]:
    """What `irmtv fit` finds in the table of start.md, which is made by the code of that page."""
    page = (HERE / "start.md").read_text(encoding="utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    with tempfile.TemporaryDirectory() as folder:
        for name in ("visits.csv", "harbour.csv"):
            code = code.replace(name, f"{folder}/{name}")
        exec(code, {})
        test, table = f"{folder}/harbour.csv", f"{folder}/visits.csv"
        return fit_table(table, "ill", environment="clinic", objective=objective, test=test).summary


def slopes() -> Figure:
    """The risk of two environments as a function of the dummy classifier w, with the tangent at w = 1."""
    task = make_simulation(5000, p_s=(0.999, 0.7), p_v=0.9, random_state=0)
    fitted = train(task, "irm-tv-l1", Runs(penalty_weight=[0.0, 1e4]), steps=1500, warmup=500, learning_rate=0.02)
    logits, y, e = fitted.logits(task.train.x).squeeze(-1), task.train.y.double(), task.train.environment
    scales = torch.linspace(0, 2, 81, dtype=torch.float64)
    figure, axes = frame(5, 3.1, columns=2, sharey=True)
    for run, title in enumerate(("plain model", "invariant model")):
        f = logits[run].double()
        for environment, colour in ((0, BLUE), (1, ORANGE)):
            inside = e == environment
            loss = torch.nn.functional.softplus(scales[:, None] * f[inside]) - y[inside] * scales[:, None] * f[inside]
            slope = ((f[inside].sigmoid() - y[inside]) * f[inside]).mean().item()
            risk = loss.mean(1)
            axes[run].plot(scales, risk, color=colour, linewidth=2.5, label=str(task.train.names[environment]))
            near = np.array([0.55, 1.45])
            axes[run].plot(near, risk[40].item() + slope * (near - 1), color="black", linewidth=1.2)
            axes[run].plot([1], [risk[40].item()], "o", color="black", markersize=4)
        axes[run].set_title(title, fontsize=11)
        axes[run].set(xlabel="w", xticks=[0, 1, 2], ylim=(0, 0.85))
    axes[0].set_ylabel("risk")
    handles, _ = axes[0].get_legend_handles_labels()
    labels = ["first environment", "second environment"]
    figure.legend(handles, labels, loc="outside upper left", ncols=2, frameon=False, fontsize=10)
    return figure


PICTURES = {
    "environments": environments,
    "aux": aux,
    "methods": methods,
    "new-environment": new_environment,
    "slopes": slopes,
}


def main() -> None:
    style = {"font.size": 11, "svg.hashsalt": "irmtv", "svg.fonttype": "path", "axes.titlelocation": "left"}
    mpl.use("agg")
    with mpl.rc_context(style):
        for name in sys.argv[1:] or PICTURES:
            figure = PICTURES[name]()
            figure.savefig(HERE / f"{name}.svg", metadata={"Date": None})
            plt.close(figure)
            print(f"written: docs/guide/{name}.svg")


if __name__ == "__main__":
    main()
