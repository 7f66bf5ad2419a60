"""The figures of a model's report, each with its numbers and its words. Drawn from a summary alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from irmtv.app.fit.summary import Curves, EnvironmentRow, FitSummary, LossCurve, PathPoint
from irmtv.core.numbers import MetricFormat, several, short
from irmtv.html.drawing import (
    CHOSEN,
    GREEN,
    INK,
    LINE,
    PLAIN,
    SMALL,
    SOFT,
    STYLES,
    TINT,
    VERMILION,
    Floats,
    Style,
    bars,
    error_bars,
    few_ticks,
    floats,
    known,
    label,
    legend,
    new_figure,
    plain_axes,
    room,
)
from irmtv.html.figure_data import Value
from irmtv.html.page import Block, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_ENVIRONMENTS = 24  # drawn; the worst and the best of more
MOST_LINES = 7  # of training, each with a colour, a dash and a name
MODELS = {"ERM": PLAIN, "TV-l1": CHOSEN, "TV-l2": STYLES[2]}


# --- environments -----------------------------------------------------------------------------------------


def by_quality(rows: Sequence[EnvironmentRow], greater_is_better: bool) -> list[EnvironmentRow]:
    """The worst for the chosen model first; those without a value last."""
    sign = 1 if greater_is_better else -1

    def key(row: EnvironmentRow) -> tuple[bool, float]:
        value = row["chosen"]["value"] if row["chosen"]["value"] is not None else row["erm"]["value"]
        return value is None, sign * (value or 0.0)

    return sorted(rows, key=key)


def erm_is_kept(summary: FitSummary) -> bool:
    """Whether the chosen model is plain risk minimisation: then there is one model to show."""
    pairs = [(row["erm"]["value"], row["chosen"]["value"]) for row in [summary["overall"], *summary["environments"]]]
    told = [(a, b) for a, b in pairs if a is not None and b is not None]
    return bool(told) and all(abs(a - b) <= 1e-9 * abs(a) for a, b in told)


def environments_figure(summary: FitSummary) -> Block:
    """Bars of both models with intervals, and beside them the difference with its own."""
    kept = erm_is_kept(summary)
    of = MetricFormat(summary["metric"])
    ordered = by_quality(summary["environments"], summary["greater_is_better"])
    half = MOST_ENVIRONMENTS // 2
    left_out = len(ordered) - MOST_ENVIRONMENTS
    rows = ordered if left_out <= 0 else [*ordered[:half], *ordered[-half:]]
    drawn = [summary["overall"], *rows]
    place = -np.arange(len(drawn), dtype=np.float64)
    place[1:] -= 0.35  # apart from all rows together
    if left_out > 0:
        place[half + 1 :] -= 0.9
    made = new_figure(1.15 + 0.33 * (place[0] - place[-1]))
    ratios = (1.0,) if kept else (1.55, 1.0)
    levels, *others = made.subplots(1, len(ratios), sharey=True, squeeze=False, width_ratios=ratios)[0]
    handles = []
    series = (("erm", PLAIN, 0.19), ("chosen", CHOSEN, -0.19))
    everything: list[Floats] = []
    for key, style, offset in series[:1] if kept else series:
        # names of fields in variables: "erm" or "chosen", and those of an estimate
        value, low, high = (of.factor * floats([row[key][k] for row in drawn]) for k in ("value", "low", "high"))  # type: ignore[literal-required]
        handles.append(bars(levels, place + offset * (not kept), value, low, high, 0.56 if kept else 0.36, style))
        everything += [value, low, high]
    plain_axes(levels, x=of.title, grid="x")
    room(levels, np.concatenate(everything), zero=True)
    levels.axvline(0, color=SOFT, lw=0.8)
    levels.set_yticks(place, [label("all rows"), *(label(row["name"], 18) for row in rows)])
    levels.tick_params(axis="y", length=0)
    few_ticks(levels, 5 if kept else 4)
    for differences in others:
        _draw_differences(differences, place, drawn, of)
    levels.set_ylim(place[-1] - 0.6, place[0] + 0.6)
    if left_out > 0:
        gap = (place[half] + place[half + 1]) / 2
        levels.text(0.01, gap, f"… {left_out} in between", transform=levels.get_yaxis_transform(), va="center",
                  fontsize=SMALL, color=SOFT, style="italic")  # fmt: skip
    legend(made, handles, ["ERM, which is kept"] if kept else ["ERM", "chosen"])
    better = "more is better" if summary["greater_is_better"] else "less is better"
    worst, overall = summary["worst"], summary["overall"]
    alt = (
        f"Bars of the {summary['metric']} in {several(len(ordered), 'environment')}, {better}, ERM beside the chosen "
        f"model, with 95 % intervals, and points for the difference. Over all rows ERM has "
        f"{of.with_unit(overall['erm']['value'])} and the chosen model {of.with_unit(overall['chosen']['value'])}; "
        f"in the worst environment {of.with_unit(worst['erm']['value'])} and {of.with_unit(worst['chosen']['value'])}."
    )
    text = f"Held-out rows; {better}; lines are 95 % intervals. The worst environment of the chosen model stands first."
    if left_out > 0:
        text += f" {MOST_ENVIRONMENTS} of {len(ordered)} are drawn; the table and the CSV have all."
    columns = ["environment", "rows"]
    columns += [f"{model} {k}" for model in ("ERM", "chosen", "difference") for k in ("value", "low", "high")]
    cells = [
        [
            row["name"],
            row["rows"],
            *(row[m][k] for m in ("erm", "chosen", "difference") for k in ("value", "low", "high")),
        ]
        for row in [summary["overall"], *ordered]
    ]
    return figure(made, alt, name="environments", data={"columns": columns, "rows": cells}, text=text)


def _draw_differences(ax: Axes, place: Floats, rows: Sequence[EnvironmentRow], of: MetricFormat) -> None:
    value, low, high = (of.factor * floats([row["difference"][k] for row in rows]) for k in ("value", "low", "high"))
    ax.errorbar(
        value, place, xerr=error_bars(value, low, high), fmt="o", color=INK, ms=4, elinewidth=1.1, capsize=2, ls="none"
    )
    plain_axes(ax, x="chosen − ERM" + of.difference_unit.replace(" ", "\n"), grid="x")
    ax.axvline(0, color=SOFT, lw=0.8)
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0, labelleft=False)
    room(ax, np.concatenate([value, low, high, np.zeros(1)]))
    few_ticks(ax, 3)


# --- the path of penalty weights --------------------------------------------------------------------------


def path_figure(path: Sequence[PathPoint], rhythm: str = "step") -> Block:
    """Risk, variation and the test of invariance over the penalty weights, the choice marked.

    Several kinds of models stand one after the other, with a gap between.
    """
    kinds = [p.get("model", "").partition(" ")[0] for p in path]
    starts = [i for i in range(1, len(path)) if kinds[i] != kinds[i - 1]]
    x = np.arange(len(path), dtype=np.float64)
    for start in starts:
        x[start:] += 0.8
    risks = {"over all rows": [p["risk"] for p in path], "in the worst environment": [p["worst"] for p in path]}
    panels = ["risk", *(["variation"] if known([p["variation"] for p in path]) else [])]
    panels += ["p"] if known([p["p"] for p in path]) else []
    made = new_figure(1.1 + 1.45 * len(panels) + 0.3)
    axes = dict(zip(panels, made.subplots(len(panels), sharex=True, squeeze=False)[:, 0], strict=True))
    handles, names = [], []
    for (name, values), style in zip(risks.items(), (CHOSEN, STYLES[1]), strict=True):
        for part in np.split(np.arange(len(path)), starts):
            (line,) = axes["risk"].plot(
                x[part], floats(values)[part], color=style.colour, ls=style.dash, marker=style.marker, ms=5
            )
        handles.append(line)
        names.append(f"risk {name}")
    plain_axes(axes["risk"], "Held-out risk", grid="y")
    if "variation" in axes:
        variation = floats([p["variation"] for p in path])
        for part in np.split(np.arange(len(path)), starts):
            axes["variation"].plot(x[part], variation[part], color=GREEN, marker="D", ms=4.5, ls=STYLES[2].dash)
        plain_axes(axes["variation"], "Total variation: mean |slope| over the environments", grid="y")
        axes["variation"].set_ylim(0, 1.12 * max(np.nanmax(variation), 1e-12))
    if "p" in axes:
        _draw_p(axes["p"], x, path, starts)
    for ax in axes.values():
        for i, point in enumerate(path):
            if point["chosen"]:
                band = ax.axvspan(x[i] - 0.35, x[i] + 0.35, color=TINT, lw=0, zorder=0)
                if ax is axes["risk"]:
                    handles.append(band)
                    names.append("chosen")
    last = axes[panels[-1]]
    every = max(1, -(-len(path) // 12))
    last.set_xticks(x[::every], [label(p["label"], 16) for p in path[::every]])
    if max((len(label(p["label"], 16)) for p in path), default=0) * len(x[::every]) > 62:
        last.tick_params(axis="x", rotation=40)
        for tick in last.get_xticklabels():
            tick.set_horizontalalignment("right")
    last.set_xlim(-0.6, (x[-1] if len(x) else -1) + 0.6)
    last.set_xlabel("kind of model: penalty weight λ" if starts else "penalty weight λ", fontsize=9, color=SOFT)
    legend(made, handles, names, columns=3)
    chosen = next((p for p in path if p["chosen"]), None)
    passed = [p for p in path if p["passes"]]
    alt = f"Lines over {several(len(path), 'penalty weight')}: held-out risk over all rows and in the worst environment"
    alt += ", total variation" * ("variation" in axes) + ", p of the test of invariance" * ("p" in axes) + ". "
    if chosen is not None:
        alt += f"Chosen: {chosen['label']}, with risk {short(chosen['risk'])} over all rows and "
        alt += f"{short(chosen['worst'])} in the worst environment. "
    if any(p["passes"] is not None for p in path):
        alt += f"{len(passed)} of {len(path)} pass the test."
    text = f"Each weight at its best {rhythm}. A model that is invariant has slope 0 in every environment. "
    if any(p["passes"] is not None for p in path):
        text += "Filled points pass the test of invariance, hollow crosses do not."
    columns = ["penalty weight", "label", rhythm, "risk", "worst", "variation", "p", "passes", "chosen"]
    rows: list[list[Value]] = [
        [
            p["penalty_weight"],
            p["label"],
            p["step"],
            p["risk"],
            p["worst"],
            p["variation"],
            p["p"],
            p["passes"],
            p["chosen"],
        ]
        for p in path
    ]
    return figure(made, alt.strip(), name="penalty-path", data={"columns": columns, "rows": rows}, text=text.strip())


def _draw_p(ax: Axes, x: Floats, path: Sequence[PathPoint], starts: Sequence[int]) -> None:
    """On a logarithmic axis: what fails is often far below any level. What is 0 stands on the floor."""
    p = np.clip(floats([point["p"] for point in path]), 1e-6, 1.0)
    for part in np.split(np.arange(len(path)), starts):
        ax.plot(x[part], p[part], color=SOFT, lw=1.0, zorder=2)
    for i, point in enumerate(path):
        if np.isfinite(p[i]):
            passes = point["passes"]
            fill = SOFT if passes is None else GREEN if passes else VERMILION
            ax.plot(x[i], p[i], marker="X" if passes is False else "o", ms=6.5, mec=fill, mew=1.2, ls="none",
                    mfc="#ffffff" if passes is False else fill, zorder=3)  # fmt: skip
    ax.set_yscale("log")
    floor = float(np.nanmin(p))
    powers = np.arange(np.floor(np.log10(floor)) if floor < 0.1 else -1, 1)
    powers = powers[:: max(1, len(powers) // 4)]
    ax.set_yticks(10.0**powers, [f"{10.0**q:g}" if q > -4 else f"1e{q:.0f}" for q in powers])
    ax.set_yticks([], minor=True)
    ax.set_ylim(10.0 ** (powers[0] - 0.3), 2.0)
    plain_axes(ax, "p of the test of invariance", grid="y")


# --- training ---------------------------------------------------------------------------------------------


def curves_figure(curves: Curves, rhythm: str = "step") -> Block:
    """The risk of every environment over the steps (of trees: rounds); of many, the highest at the end are named."""
    steps = np.asarray(curves["steps"], dtype=np.float64)
    risk = np.array([floats(row) for row in curves["risk"]]).reshape(len(curves["environments"]), len(steps))
    final = np.array([_last(row) for row in risk])
    order = np.argsort(np.where(np.isfinite(final), -final, np.inf), kind="stable")
    named = order if len(order) <= MOST_LINES else order[:4]
    made = new_figure(3.3)
    ax = made.subplots()
    handles, names = [], []
    if len(order) > len(named):
        for e in order[len(named) :]:
            (line,) = ax.plot(steps, risk[e], color=LINE, lw=0.8, zorder=1)
        handles.append(line)
        names.append(f"{len(order) - len(named)} others")
        everywhere = np.array(
            [column[np.isfinite(column)].mean() if np.isfinite(column).any() else np.nan for column in risk.T]
        )
        (line,) = ax.plot(steps, everywhere, color=INK, lw=1.6, zorder=3)
        handles.append(line)
        names.append("mean of all")
    for k, e in enumerate(named):
        style = STYLES[k % len(STYLES)]
        (line,) = ax.plot(
            steps, risk[e], color=style.colour, ls=style.dash, lw=1.5, marker=style.marker, ms=4,
            markevery=(k % 3, max(1, len(steps) // 8)), zorder=4,
        )  # fmt: skip
        handles.append(line)
        names.append(label(curves["environments"][e], 22))
    plain_axes(ax, x=rhythm, y="risk of the training rows", grid="y")
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    legend(made, handles, names, columns=3)
    ends = (
        f"It ends between {short(np.nanmin(final))} and {short(np.nanmax(final))}." if np.isfinite(final).any() else ""
    )
    length = several(int(steps[-1]) if len(steps) else 0, rhythm)
    alt = f"Lines: the risk in {several(len(order), 'environment')} over {length}, of the final model. {ends}"
    text = "The final model while it was trained on all rows."
    if len(order) > len(named):
        text += " Named are the environments with the highest risk at the end."
    rows: list[list[Value]] = [[int(step), *(_plain(v) for v in risk[:, i])] for i, step in enumerate(curves["steps"])]
    return figure(
        made, alt.strip(), name="training", data={"columns": [rhythm, *curves["environments"]], "rows": rows}, text=text
    )


def _last(row: Floats) -> float:
    finite = row[np.isfinite(row)]
    return float(finite[-1]) if finite.size else np.nan


def _plain(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


# --- the loss as a function of the environment --------------------------------------------------------------


def losses_figure(losses: Sequence[LossCurve], environments: Sequence[str]) -> Block:
    """A line for each model over the environments, in the order of the risk of the first."""
    n = len(environments)
    risks = {curve["model"]: floats(list(curve["risk"])[:n] + [None] * (n - len(curve["risk"]))) for curve in losses}
    by = next(iter(risks.values()))
    order = np.argsort(np.where(np.isfinite(by), by, np.inf), kind="stable")
    x = np.arange(n, dtype=np.float64)
    made = new_figure(3.4)
    ax = made.subplots()
    handles, names = [], []
    for k, curve in enumerate(losses):
        style: Style = MODELS.get(curve["model"], STYLES[(k + 3) % len(STYLES)])
        (line,) = ax.plot(
            x, risks[curve["model"]][order], color=style.colour, ls=style.dash, marker=style.marker, lw=1.5,
            ms=6 if n <= 30 else 3.5,
        )  # fmt: skip
        weight = curve["penalty_weight"]
        handles.append(line)
        names.append(label(curve["model"]) + ("" if not weight else f", λ = {weight:g}"))
    every = max(1, -(-n // 16))
    ax.set_xticks(x[::every], [label(environments[e], 14) for e in order[::every]])
    if sum(len(label(environments[e], 14)) + 2 for e in order[::every]) > 60:
        ax.tick_params(axis="x", rotation=45)
        for tick in ax.get_xticklabels():
            tick.set_horizontalalignment("right")
            tick.set_rotation_mode("anchor")
    if n == 1:
        ax.set_xlim(-1, 1)
    plain_axes(
        ax, x=f"environment, in the order of the risk of {label(losses[0]['model'])}", y="held-out risk", grid="y"
    )
    legend(made, handles, names)
    spans = "; ".join(f"{name} from {short(_low(r))} to {short(_high(r))}" for name, r in risks.items())
    alt = f"Lines: the held-out risk of {several(len(losses), 'model')} in {several(n, 'environment')}: {spans}."
    text = (
        "The loss as a function of the environment. Total variation is how much it moves along the axis: the flatter "
    )
    text += "the line, the more invariant the model."
    rows: list[list[Value]] = [[environments[e], *(_plain(r[e]) for r in risks.values())] for e in order]
    return figure(
        made, alt, name="loss-by-environment", data={"columns": ["environment", *risks], "rows": rows}, text=text
    )


def _low(values: Floats) -> float | None:
    return float(np.nanmin(values)) if np.isfinite(values).any() else None


def _high(values: Floats) -> float | None:
    return float(np.nanmax(values)) if np.isfinite(values).any() else None
