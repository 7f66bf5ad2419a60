"""The figures of a diagnosis, each with its numbers and its words. Drawn from a summary alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from irmtv.core.numbers import MetricFormat, several
from irmtv.html.drawing import (
    CHOSEN,
    GREEN,
    INK,
    PLAIN,
    SOFT,
    VERMILION,
    Floats,
    error_bars,
    floats,
    label,
    legend,
    new_figure,
    plain_axes,
    room,
)
from irmtv.html.page import Block, figure

MOST_ENVIRONMENTS = 24
MOST_FEATURES = 20
WHISKERS = {"ecolor": INK, "lw": 0.9, "capsize": 1.8}

Part = Mapping[str, Any]


def differ_figure(differ: Part) -> Block:
    """Areas under the curve, each environment against the rest."""
    rows = differ["environments"]
    drawn = [{"name": "all environments", "auc": differ["auc"]}, *rows[:MOST_ENVIRONMENTS]]
    made = new_figure(1.0 + 0.3 * len(drawn))
    ax = made.subplots()
    _points(ax, [row["auc"] for row in drawn], [row["name"] for row in drawn])
    plain_axes(ax, x="area under the ROC curve, environment against the rest", grid="x")
    ax.axvline(0.5, color=VERMILION, lw=1.2, ls=(0, (4, 2)))
    ax.set_xlim(min(0.45, *(row["auc"]["low"] or 0.5 for row in drawn)) - 0.02, 1.02)
    alt = (
        f"Points with 95 % intervals: how well a classifier tells each of {several(len(rows), 'environment')} from the "
        f"rest. {differ['said']}"
    )
    data = [[row["name"], *_three(row["auc"])] for row in [drawn[0], *rows]]
    return figure(
        made,
        alt,
        name="how-different",
        data={"columns": ["environment", "area", "low", "high"], "rows": data},
        text="0.5 (dashed) is guessing, 1 tells every row; lines are 95 % intervals." + _left_out(rows),
    )


def losses_figure(losses: Part) -> Block:
    """Held-out loss and metric of plain risk minimisation in every environment."""
    rows = sorted(losses["environments"], key=lambda row: -(row["loss"]["value"] or 0.0))
    of = MetricFormat(losses["metric"])
    shown = rows[:MOST_ENVIRONMENTS]
    drawn = [{"name": "all rows", **losses["overall"]}, *shown]
    made = new_figure(1.0 + 0.32 * len(drawn))
    first, second = made.subplots(1, 2, sharey=True)
    place = -np.arange(len(drawn), dtype=np.float64)
    for ax, key, factor, title in (
        (first, "loss", 1.0, losses["loss"]),
        (second, "metric", of.factor, of.title),
    ):
        value, low, high = _limits([row[key] for row in drawn], factor)
        ax.barh(place, np.nan_to_num(value), 0.6, color=PLAIN.colour, hatch=PLAIN.hatch, edgecolor="#ffffff",
                linewidth=0.0, xerr=error_bars(value, low, high), error_kw=WHISKERS)  # fmt: skip
        plain_axes(ax, x=label(title, 40), grid="x")
        room(ax, np.concatenate([value, low, high]), zero=True)
        ax.locator_params(axis="x", nbins=4)
        ax.tick_params(axis="y", length=0)
    first.set_yticks(place, [label(row["name"], 18) for row in drawn])
    better = "more is better" if losses["greater_is_better"] else "less is better"
    alt = (
        f"Bars with 95 % intervals: held-out loss and {losses['metric']} of plain risk minimisation in "
        f"{several(len(rows), 'environment')}. {losses['said']}"
    )
    columns = [
        "environment",
        "loss",
        "low",
        "high",
        losses["metric"],
        f"{losses['metric']} low",
        f"{losses['metric']} high",
    ]
    cells = [[row["name"], *_three(row["loss"]), *_three(row["metric"])] for row in [drawn[0], *rows]]
    return figure(
        made,
        alt,
        name="loss-by-environment",
        data={"columns": columns, "rows": cells},
        text=f"Left the loss (less is better), right the {losses['metric']} ({better}); the worst environment first."
        + _left_out(rows),
    )


def features_figure(features: Part) -> Block:
    """Weights under plain risk minimisation beside those under invariance, what changes first."""
    rows = features["features"]
    shown = rows[:MOST_FEATURES]
    place = -np.arange(len(shown), dtype=np.float64)
    made = new_figure(1.2 + 0.34 * len(shown))
    ax = made.subplots()
    handles = []
    for key, style, offset in (("erm", PLAIN, 0.19), ("invariant", CHOSEN, -0.19)):
        value = 100 * floats([row[key] for row in shown])
        handles.append(
            ax.barh(place + offset, np.nan_to_num(value), 0.36, color=style.colour, hatch=style.hatch,
                    edgecolor="#ffffff", linewidth=0.0)
        )  # fmt: skip
    ax.set_yticks(place, [label(row["name"]) + (" *" if row["changes"] else "") for row in shown])
    ax.tick_params(axis="y", length=0)
    ax.axvline(0, color=SOFT, lw=0.8)
    linear = features.get("model", "linear") == "linear"
    plain_axes(ax, x="weight, % of the sum of all" if linear else "how far it moves the outputs, % of all", grid="x")
    legend(made, handles, ["plain risk minimisation", "invariant (TV-l1)"])
    alt = (
        f"Bars: the weights of {several(len(shown), 'feature')} under plain risk minimisation and under invariance. "
        f"{features['said']}"
    )
    slopes = [f"slope {'' if linear else 'of what is left '}in {name}" for name in features["environments"]]
    columns = ["feature", "weight ERM", "weight invariant", "p", "p Holm", *slopes]
    cells = [[row["name"], row["erm"], row["invariant"], row["p"], row["p_holm"], *row["slopes"]] for row in rows]
    more = f" The first {len(shown)} of {len(rows)}; the CSV has all." if len(rows) > len(shown) else ""
    return figure(
        made,
        alt,
        name="features",
        data={"columns": columns, "rows": cells},
        text=f"A star marks features whose relation to the target changes (5 %, corrected for their number).{more}",
    )


def splits_figure(splits: Part) -> Block:
    """Parts of the difference of the loss, each environment against the rest."""
    rows = sorted(splits["environments"], key=lambda row: -(row["gap"]["value"] or 0.0))
    shown = rows[:MOST_ENVIRONMENTS]
    place = -np.arange(len(shown), dtype=np.float64)
    made = new_figure(1.2 + 0.45 * len(shown))
    ax = made.subplots()
    handles = []
    everything: list[Floats] = [np.zeros(1)]
    for key, colour, hatch, offset in (
        ("from_x", GREEN, "....", 0.2),
        ("from_y_given_x", VERMILION, "\\\\\\\\", -0.2),
    ):
        value, low, high = _limits([row[key] for row in shown])
        handles.append(
            ax.barh(place + offset, np.nan_to_num(value), 0.38, color=colour, hatch=hatch, edgecolor="#ffffff",
                    linewidth=0.0, xerr=error_bars(value, low, high), error_kw=WHISKERS)
        )  # fmt: skip
        everything += [value, low, high]
    (gap,) = ax.plot(floats([row["gap"]["value"] for row in shown]), place, "D", color=INK, ms=4, ls="none")
    ax.axvline(0, color=SOFT, lw=0.8)
    ax.set_yticks(place, [label(row["name"], 18) + ("" if row["trusted"] else " (?)") for row in shown])
    ax.tick_params(axis="y", length=0)
    plain_axes(ax, x="loss less that of the rest", grid="x")
    room(ax, np.concatenate(everything))
    legend(made, [*handles, gap], ["change in X", "change in y given X", "together"])
    alt = (
        f"Bars with 95 % intervals for {several(len(shown), 'environment')}: how much of the difference of the loss "
        f"from the rest comes from a change in X and how much from one in y given X. {splits['said']}"
    )
    columns = [
        "environment",
        "rows",
        "gap",
        "from X",
        "X low",
        "X high",
        "from y given X",
        "y low",
        "y high",
        "overlap",
    ]
    cells = [
        [row["name"], row["rows"], row["gap"]["value"], *_three(row["from_x"]), *_three(row["from_y_given_x"]),
         row["overlap"]]
        for row in rows
    ]  # fmt: skip
    return figure(
        made,
        alt,
        name="loss-split",
        data={"columns": columns, "rows": cells},
        text="(?): too little of X is shared to trust the parts." + _left_out(rows),
    )


def _points(ax: Any, estimates: Sequence[Part], names: Sequence[str]) -> None:
    place = -np.arange(len(names), dtype=np.float64)
    value, low, high = _limits(estimates)
    ax.errorbar(value, place, xerr=error_bars(value, low, high), fmt="o", color=CHOSEN.colour, ms=5, elinewidth=1.2,
                capsize=2, ls="none")  # fmt: skip
    ax.set_yticks(place, [label(name, 18) for name in names])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(place[-1] - 0.6, 0.6)


def _limits(estimates: Sequence[Part], factor: float = 1.0) -> tuple[Floats, Floats, Floats]:
    value, low, high = (factor * floats([e[k] for e in estimates]) for k in ("value", "low", "high"))
    return value, low, high


def _three(estimate: Part) -> list[float | None]:
    return [estimate["value"], estimate["low"], estimate["high"]]


def _left_out(rows: Sequence[Any]) -> str:
    n = len(rows) - MOST_ENVIRONMENTS
    return f" {MOST_ENVIRONMENTS} of {len(rows)} are drawn; the CSV has all." if n > 0 else ""
