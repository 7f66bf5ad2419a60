"""Pictures of fitted estimators, on matplotlib axes that are the user's or new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from irmtv.core.messages import did_you_mean
from irmtv.metrics import EnvironmentTable

QUANTITIES = ("risk", "slope", "accuracy")
MOST_LINES = 10  # that a reader can tell apart by their colours


def new_axes(ax: Any, height: float = 3.2) -> Any:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt  # so that a notebook shows it

    return plt.subplots(figsize=(5.5, height), layout="constrained")[1]


def plot_history(history: pd.DataFrame, quantity: str, ax: Any = None) -> Any:
    if quantity not in QUANTITIES:
        raise ValueError(
            f"quantity must be one of {list(QUANTITIES)}. Got {quantity!r}.{did_you_mean(quantity, QUANTITIES)}"
        )
    if history.empty or history[quantity].isna().all():
        raise ValueError(f"the history holds no {quantity}: it is for classifiers, or training made no snapshot.")
    ax = new_axes(ax)
    last = history[history["step"] == history["step"].max()].set_index("environment")[quantity]
    many = len(last) > MOST_LINES
    worst = last.idxmin() if quantity == "accuracy" else last.abs().idxmax()
    for k, (name, part) in enumerate(history.groupby("environment", sort=False)):
        if not many:
            ax.plot(part["step"], part[quantity], label=str(name))
        elif name != worst:
            label = f"{len(last) - 1} others" if k == 0 or (k == 1 and last.index[0] == worst) else None
            ax.plot(part["step"], part[quantity], color="#BBBBBB", lw=0.8, label=label)
    if many:
        part = history[history["environment"] == worst]
        ax.plot(part["step"], part[quantity], color="#D55E00", label=f"{worst} (worst at the end)")
    if quantity == "slope":
        ax.axhline(0, color="#999999", lw=0.8)
    ax.set(xlabel="step", ylabel=f"{quantity} ({history['on'].iloc[0]} rows)")
    ax.legend(title="environment", frameon=False, fontsize=8)
    return ax


def plot_environments(table: EnvironmentTable, ax: Any = None) -> Any:
    """One bar per environment, the worst marked, intervals where there are any."""
    factor = 100 if table.percent else 1
    values = factor * table.by_environment[0]
    names = [str(n) for n in table.names]
    ax = new_axes(ax, 1.0 + 0.35 * len(names))
    worst = table.worst_environment[0]
    colours = ["#D55E00" if n == worst and len(names) > 1 else "#0072B2" for n in table.names]
    error = None
    if table.intervals is not None:
        low, high = (factor * side[0] for side in table.intervals["by_environment"])
        error = np.stack([values - low, high - values]).clip(0)
    ax.barh(names, values, xerr=error, color=colours)
    ax.set_ylim(len(names) - 0.4, -0.6)  # the first on top, no space lost
    ax.axvline(factor * table.overall[0], color="#444444", lw=0.8, ls=":")
    ax.set(xlabel=f"{table.metric}{' (%)' if table.percent else ''}; dotted: all rows; orange: the worst")
    return ax


def plot_features(
    coefficients: npt.NDArray[np.float64],
    names: list[str],
    n_features: int = 20,
    ax: Any = None,
    outputs: Sequence[str] = (),
) -> Any:
    """Coefficients (C, D), the `n_features` largest first; `outputs` names the C, where there are several."""
    size = np.abs(coefficients).max(0)
    order = np.argsort(-size, kind="stable")[:n_features]
    ax = new_axes(ax, 1.0 + 0.28 * len(order))
    place = np.arange(len(order))
    width = 0.8 / len(coefficients)
    for k, row in enumerate(coefficients):
        label = outputs[k] if len(coefficients) > 1 and len(outputs) == len(coefficients) else None
        ax.barh(place + (k + 0.5) * width - 0.4, row[order], height=width, color=f"C{k % 10}", label=label)
    ax.set_yticks(place, [names[i] for i in order])
    ax.invert_yaxis()
    ax.axvline(0, color="#444444", lw=0.8)
    ax.set(xlabel="coefficient per standard deviation")
    if len(coefficients) > 1 and outputs:
        ax.legend(frameon=False, fontsize=8)
    return ax


def plot_path(results: pd.DataFrame, ax: Any = None) -> Any:
    """Held-out risk by penalty weight, each at its best step; the choice marked by stars."""
    if "penalty_weight" not in results:
        raise ValueError("plot_path shows penalty weights, and this objective has none. Look at cv_results_ instead.")
    ax = new_axes(ax)
    label = results["penalty_weight"].map(_weight_label)
    names = list(dict.fromkeys(label))  # in the order of the path
    place = names.index(label[results["selected"]].iloc[0])
    lines = [("risk", "#0072B2", "all rows"), ("worst_risk", "#D55E00", "worst environment")]
    if "left_out_risk" in results:
        lines.append(("left_out_risk", "#009E73", "environments left out"))
    for column, colour, text in lines:
        best = results.groupby(label)[column].min().reindex(names)  # NaN where all diverged
        ax.plot(np.arange(len(names)), best.to_numpy(), "o-", color=colour, label=text)
        ax.plot(place, results.loc[results["selected"], column].iloc[0], "*", ms=13, color=colour)
    ax.set_xticks(np.arange(len(names)), names)
    ax.set(xlabel="penalty weight", ylabel="held-out risk (best step; stars: the choice)")
    ax.legend(frameon=False, fontsize=8)
    return ax


def _weight_label(weight: Any) -> str:
    """A penalty weight: a number, a word, or one number for each part of a sum."""
    if isinstance(weight, Mapping):
        return "\n".join(f"{name} {w:g}" for name, w in weight.items())
    if isinstance(weight, str):
        return weight
    return "ERM" if np.isnan(weight) else f"{weight:g}"  # ERM beside an objective without it
