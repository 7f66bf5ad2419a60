"""The figures of a model's report, each with its numbers and its words. Drawn from a summary alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from irmtv.app.fit.comparing import erm_is_kept, in_order
from irmtv.app.fit.summary import Curves, EnvironmentRow, FitSummary, LossCurve, PathPoint, variant
from irmtv.core.numbers import NO_VALUE, MetricFormat, decimal, probability, several, short
from irmtv.core.plain_json import finite
from irmtv.html import drawing, page
from irmtv.html.texts import FigureData, Value, estimate_cells

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ENVIRONMENTS = 24  # drawn; the worst and the best of more
NEWTON = ("ERM", "final model")  # what steps 0 and 1 of Newton's method are
MOST_LINES = 7  # of training, each with a colour, a dash and a name
MODEL_KEYS: tuple[Literal["erm", "chosen"], ...] = ("erm", "chosen")
NAMES = {"erm": "plain", "chosen": "chosen", "difference": "difference"}
SERIES = (("erm", drawing.PLAIN, 0.19), ("chosen", drawing.CHOSEN, -0.19))  # key, style, how far from the row's middle
MODELS = {"ERM": drawing.PLAIN, "TV-l1": drawing.CHOSEN, "TV-l2": drawing.STYLES[2]}


# --- environments -----------------------------------------------------------------------------------------


def environments_figure(summary: FitSummary) -> page.Block:
    """The scores of every environment: over time where they are times, else bars with the worst first."""
    of, (ordered, times) = MetricFormat(summary["metric"]), in_order(summary, summary["environments"])
    kept = erm_is_kept(summary)
    made = _drift(summary, ordered, of) if times else _bars(summary, ordered, of)
    better = "more is better" if summary["greater_is_better"] else "less is better"
    first = "the worst first" if kept else "the worst for the chosen model first"
    order = "in the order of time" if times else first
    text = f"Held-out rows; {better}; lines are 95 % intervals; {order}."
    if len(ordered) > MOST_ENVIRONMENTS and not times:
        text += f" {MOST_ENVIRONMENTS} of {len(ordered)} are drawn; the numbers below and the CSV have all."
    keys = ("erm",) if kept else ("erm", "chosen", "difference")
    columns = ["environment", "rows"]
    columns += [f"{NAMES[key]} {end}" for key in keys for end in ("value", "low", "high")]
    cells = [
        [row["name"], row["rows"], *estimate_cells(*(cast(Any, row)[key] for key in keys))]
        for row in [summary["overall"], *ordered]
    ]
    data: FigureData = {"columns": columns, "rows": cells}
    numbers = environments_table(summary)
    return page.figure(
        made, _environments_alt(summary, of, better), name="environments", data=data, text=text, numbers=numbers
    )


def environments_table(summary: FitSummary) -> page.Block:
    """All environments in numbers, over all rows first; one model where the plain one is kept."""
    of, (ordered, _) = MetricFormat(summary["metric"]), in_order(summary, summary["environments"])
    columns: dict[str, Callable[[EnvironmentRow], str]] = {
        "environment": lambda row: row["name"],
        "rows": lambda row: f"{row['rows']:,}",
        f"plain, {of.title}": lambda row: of.interval(row["erm"]),
    }
    if not erm_is_kept(summary):
        columns[f"chosen, {of.title}"] = lambda row: of.interval(row["chosen"])
        means = "better" if summary["greater_is_better"] else "worse"
        columns[f"chosen − plain{of.difference_unit}, + is {means}"] = lambda row: of.interval(
            row["difference"], sign=True
        )
    worst: EnvironmentRow = {**summary["worst"], "name": _worst_name(summary)}
    rows: list[EnvironmentRow] = [{**summary["overall"], "name": "all rows"}, worst, *ordered]
    return page.table_of(rows, columns, words=["environment"])


def _worst_name(summary: FitSummary) -> str:
    """The name of the worst environment, where the summary says it; of two models it may be two."""
    name = summary["worst"]["name"]
    return f"worst: {name}" if name in [row["name"] for row in summary["environments"]] else "worst environment"


def _drift(summary: FitSummary, rows: Sequence[EnvironmentRow], of: MetricFormat) -> Figure:
    """A line over the times for every model, with the interval of every time."""
    kept = erm_is_kept(summary)
    made = drawing.new_figure(3.0)
    ax = made.subplots()
    x = np.arange(len(rows), dtype=np.float64)
    handles = []
    for key, style, offset in SERIES[:1] if kept else SERIES:
        value, low, high = drawing.estimates([cast(Any, row)[key] for row in rows], of.factor)
        at = x if kept else x - 0.4 * offset
        ax.errorbar(at, value, yerr=drawing.error_bars(value, low, high), fmt="none", ecolor=style.colour, lw=1.0)
        handles.append(drawing.line(ax, at, value, style, lw=1.5, ms=5 if len(rows) <= 30 else 3))
    every = max(1, -(-len(rows) // 12))
    ticks = [drawing.label(row["name"], 14) for row in rows[::every]]
    ax.set_xticks(x[::every], ticks)
    if sum(len(tick) + 2 for tick in ticks) > 60:
        drawing.turn_ticks(ax, 45)
    drawing.plain_axes(ax, y=of.title, grid="y")
    drawing.legend(made, handles, _legend(kept))
    return made


def _legend(kept: bool) -> list[str]:
    return ["plain model, which is kept"] if kept else ["plain model", "chosen model"]


def _bars(summary: FitSummary, ordered: Sequence[EnvironmentRow], of: MetricFormat) -> Figure:
    """Bars of both models with intervals, and beside them the difference with its own."""
    kept = erm_is_kept(summary)
    half, left_out = MOST_ENVIRONMENTS // 2, len(ordered) - MOST_ENVIRONMENTS
    rows = ordered if left_out <= 0 else [*ordered[:half], *ordered[-half:]]
    drawn = [summary["overall"], *rows]
    place = -np.arange(len(drawn), dtype=np.float64)
    place[1:] -= 0.35  # apart from all rows together
    if left_out > 0:
        place[half + 1 :] -= 0.9
    made = drawing.new_figure(1.15 + 0.33 * (place[0] - place[-1]))
    ratios = (1.0,) if kept else (1.55, 1.0)
    levels, *others = made.subplots(1, len(ratios), sharey=True, squeeze=False, width_ratios=ratios)[0]
    handles = _draw_levels(levels, place, drawn, of, kept)
    drawing.name_rows(levels, place, [drawing.label("all rows"), *(drawing.label(row["name"], 18) for row in rows)])
    for differences in others:
        value, low, high = drawing.estimates([row["difference"] for row in drawn], of.factor)
        drawing.points(differences, place, (value, low, high), drawing.INK, 4)
        better = "right" if summary["greater_is_better"] else "left"
        unit = of.difference_unit.replace(" (", ", ").replace(")", "")
        drawing.second_panel(differences, f"chosen − plain{unit}\n({better} is better)", 3)
        drawing.room(differences, np.concatenate([value, low, high, np.zeros(1)]))
    if left_out > 0:
        gap = (place[half] + place[half + 1]) / 2
        levels.text(0.01, gap, f"… {left_out} in between", transform=levels.get_yaxis_transform(), va="center",
                    fontsize=drawing.SMALL, color=drawing.SOFT, style="italic")  # fmt: skip
    drawing.legend(made, handles, _legend(kept))
    return made


def _draw_levels(ax: Axes, place: drawing.Floats, rows: Sequence[Any], of: MetricFormat, kept: bool) -> list[Any]:
    handles: list[Any] = []
    everything: list[drawing.Floats] = []
    for key, style, offset in SERIES[:1] if kept else SERIES:
        value, low, high = drawing.estimates([row[key] for row in rows], of.factor)
        at = place if kept else place + offset
        handles.append(drawing.bars(ax, at, value, 0.56 if kept else 0.36, style, (low, high)))
        everything += [value, low, high]
    drawing.plain_axes(ax, x=of.title, grid="x")
    drawing.room(ax, np.concatenate(everything), zero=True)
    drawing.zero_line(ax)
    drawing.few_ticks(ax, 5 if kept else 4)
    return handles


def _environments_alt(summary: FitSummary, of: MetricFormat, better: str) -> str:
    worst, overall, n = summary["worst"], summary["overall"], several(len(summary["environments"]), "environment")
    if erm_is_kept(summary):
        return (
            f"The {summary['metric']} of the plain model in {n}, {better}, with 95 % intervals: over all rows "
            f"{of.with_unit(overall['erm']['value'])}, in the worst environment {of.with_unit(worst['erm']['value'])}."
        )
    return (
        f"The {summary['metric']} in {n}, {better}, the plain model beside the chosen one, with 95 % intervals. Over "
        f"all rows the plain model has {of.with_unit(overall['erm']['value'])} and the chosen one "
        f"{of.with_unit(overall['chosen']['value'])}; in the worst environment {of.with_unit(worst['erm']['value'])} "
        f"and {of.with_unit(worst['chosen']['value'])}."
    )


# --- the path of penalty weights --------------------------------------------------------------------------


def rhythm_of(path: Sequence[PathPoint], model: str = "") -> str:
    """What its candidates differ in beside the weight: "step", "round", "step or round".

    Nothing for Newton's method, which has one candidate of a weight; `model` is that of points that do not say theirs.
    """
    others = [p for p in path if p.get("solver") != "newton"]
    rounds = [p.get("model", model).startswith("trees") for p in others]
    return " or ".join(dict.fromkeys("round" if of_trees else "step" for of_trees in rounds))


def path_figure(
    path: Sequence[PathPoint], model: str = "", risk: str = "risk", numbers: page.Block | None = None
) -> page.Block:
    """Risk, variation and the test of invariance over the penalty weights, the choice marked.

    Several kinds of models stand one after the other, with a gap between. `risk` is its name; `numbers` are folded
    under the figure.
    """
    kinds = [(p.get("model", "").partition(" ")[0], p.get("objective")) for p in path]
    starts = [i for i in range(1, len(path)) if kinds[i] != kinds[i - 1]]
    x = np.arange(len(path), dtype=np.float64)
    for start in starts:
        x[start:] += 0.8
    panels = ["risk", *(["variation"] if drawing.known([p["variation"] for p in path]) else [])]
    panels += ["p"] if drawing.known([p["p"] for p in path]) else []
    made = drawing.new_figure(1.1 + 1.45 * len(panels) + 0.3)
    axes = dict(zip(panels, made.subplots(len(panels), sharex=True, squeeze=False)[:, 0], strict=True))
    risks = {"over all rows": [p["risk"] for p in path], "in the worst environment": [p["worst"] for p in path]}
    handles, names = [], []
    for (name, values), style in zip(risks.items(), drawing.STYLES, strict=False):
        of_style = {"color": style.colour, "ls": style.dash, "marker": style.marker}
        handles.append(_line(axes["risk"], x, drawing.floats(values), starts, ms=5, **of_style))
        names.append(name)
    drawing.plain_axes(axes["risk"], f"{risk[:1].upper()}{risk[1:]} on held-out rows".replace("$", r"\$"), grid="y")
    if "variation" in axes:
        variation = drawing.floats([p["variation"] for p in path])
        _line(
            axes["variation"], x, variation, starts, color=drawing.GREEN, marker="D", ms=4.5, ls=drawing.STYLES[2].dash
        )
        drawing.plain_axes(axes["variation"], "Total variation: mean |slope| over the environments", grid="y")
        axes["variation"].set_ylim(0, 1.12 * max(np.nanmax(variation), 1e-12))
    if "p" in axes:
        _draw_p(axes["p"], x, path, starts)
    for i in (i for i, point in enumerate(path) if point["chosen"]):
        bands = [ax.axvspan(x[i] - 0.35, x[i] + 0.35, color=drawing.TINT, lw=0, zorder=0) for ax in axes.values()]
        handles.append(bands[0])
        names.append("chosen")
    last = axes[panels[-1]]
    _name_weights(last, x, [p["label"] for p in path])
    last.set_xlabel("kind of model: penalty weight λ" if starts else "penalty weight λ", fontsize=9, color=drawing.SOFT)
    drawing.legend(made, handles, names, columns=3)
    rhythm, several_tried = rhythm_of(path, model), any(map(variant, path))
    best = [*(["classifier and start"] if several_tried else []), *([rhythm] if rhythm else [])]
    text = f"Each weight at its best {', or at its best '.join(best)}. " if best else ""
    text += (
        "The larger the penalty weight λ, the more a model pays for fitting environments differently; 0 is the plain "
        "model. A slope says how far an environment would rescale the model: invariance is 0 in all of them. "
    )
    if any(p["passes"] is not None for p in path):
        text += "Filled points pass the test of invariance, hollow crosses do not."
    columns = {"penalty weight": "penalty_weight", "label": "label"}
    columns |= {"classifier": "classifier", "start": "start"} if several_tried else {}
    columns |= {rhythm: "step"} if rhythm else {}
    columns |= {key: key for key in ("risk", "worst", "variation", "p", "passes", "chosen")}
    rows: list[list[Value]] = [[_cell(p, key) for key in columns.values()] for p in path]
    alt = _path_alt(path, panels)
    data: FigureData = {"columns": list(columns), "rows": rows}
    return page.figure(made, alt, name="penalty-path", data=data, text=text.strip(), numbers=numbers)


def _cell(point: PathPoint, key: str) -> Value:
    if key == "step" and point.get("solver") == "newton":
        return None
    value: Value = dict(point).get(key)  # type: ignore[assignment]  # by variable
    return value


def _line(ax: Axes, x: drawing.Floats, y: drawing.Floats, starts: Sequence[int], **style: Any) -> Any:
    """A line that is interrupted where another kind of model starts."""
    for part in np.split(np.arange(len(x)), starts):
        (line,) = ax.plot(x[part], y[part], **style)
    return line


def _name_weights(ax: Axes, x: drawing.Floats, names: Sequence[str]) -> None:
    every = max(1, -(-len(names) // 12))
    ax.set_xticks(x[::every], [drawing.label(name, 16) for name in names[::every]])
    if max((len(drawing.label(name, 16)) for name in names), default=0) * len(x[::every]) > 62:
        drawing.turn_ticks(ax, 40)
    ax.set_xlim(-0.6, (x[-1] if len(x) else -1) + 0.6)


def _path_alt(path: Sequence[PathPoint], panels: Sequence[str]) -> str:
    alt = f"Lines over {several(len(path), 'penalty weight')}: held-out risk over all rows and in the worst environment"
    alt += ", total variation" * ("variation" in panels) + ", p of the test of invariance" * ("p" in panels) + ". "
    chosen = next((p for p in path if p["chosen"]), None)
    if chosen is not None:
        alt += f"Chosen: {chosen['label']}, with risk {short(chosen['risk'])} over all rows and "
        alt += f"{short(chosen['worst'])} in the worst environment. "
    if any(p["passes"] is not None for p in path):
        alt += f"{sum(bool(p['passes']) for p in path)} of {len(path)} pass the test."
    return alt.strip()


def _draw_p(ax: Axes, x: drawing.Floats, path: Sequence[PathPoint], starts: Sequence[int]) -> None:
    """On a logarithmic axis: what fails is often far below any level. What is 0 stands on the floor."""
    p = np.clip(drawing.floats([point["p"] for point in path]), 1e-6, 1.0)
    _line(ax, x, p, starts, color=drawing.SOFT, lw=1.0, zorder=2)
    for i, point in enumerate(path):
        if np.isfinite(p[i]):
            passes = point["passes"]
            fill = drawing.SOFT if passes is None else drawing.GREEN if passes else drawing.VERMILION
            ax.plot(x[i], p[i], marker="X" if passes is False else "o", ms=6.5, mec=fill, mew=1.2, ls="none",
                    mfc="#ffffff" if passes is False else fill, zorder=3)  # fmt: skip
    ax.set_yscale("log")
    floor = float(np.nanmin(p))
    powers = np.arange(np.floor(np.log10(floor)) if floor < 0.1 else -1, 1)
    powers = powers[:: max(1, len(powers) // 4)]
    ax.set_yticks(10.0**powers, [f"{10.0**q:g}" if q > -4 else f"1e{q:.0f}" for q in powers])
    ax.set_yticks([], minor=True)
    ax.set_ylim(10.0 ** (powers[0] - 0.3), 2.0)
    drawing.plain_axes(ax, "p of the test of invariance", grid="y")


def path_table(path: Sequence[PathPoint], model: str = "", tested: bool = True, risk: str = "risk") -> page.Block:
    """The path in numbers; `tested`: with the total variation and whether the point passes the test of invariance."""
    rhythm = rhythm_of(path, model)
    columns: dict[str, Callable[[PathPoint], str]] = {
        "penalty weight λ": lambda p: p["label"],
        **({"classifier, start": lambda p: variant(p) or NO_VALUE} if any(map(variant, path)) else {}),
        **({rhythm: lambda p: NO_VALUE if p.get("solver") == "newton" else f"{p['step']:,}"} if rhythm else {}),
        risk: lambda p: decimal(p["risk"]),
        "worst environment": lambda p: decimal(p["worst"]),
        "total variation": lambda p: decimal(p["variation"]),
        "p" if tested else "p of equal slopes": lambda p: probability(p["p"]),
        "invariant": lambda p: NO_VALUE if p["passes"] is None else "yes" if p["passes"] else "no",
        "choice": lambda p: "chosen" if p["chosen"] else "",
    }
    if not tested:
        del columns["total variation"], columns["invariant"]
    marks: list[page.Kind] = ["good" if p["chosen"] else "plain" for p in path]
    return page.table_of(path, columns, words=["classifier, start", "invariant", "choice"], marks=marks)


# --- training ---------------------------------------------------------------------------------------------


def curves_figure(curves: Curves, rhythm: str = "step", risk_name: str = "risk") -> page.Block:
    """The risk of every environment over the steps (of trees: rounds); of many, the highest at the end are named.

    Newton's method has ERM and the final model.
    """
    newton = curves.get("solver") == "newton"
    steps = np.asarray(curves["steps"], dtype=np.float64)
    risk = np.array([drawing.floats(row) for row in curves["risk"]]).reshape(len(curves["environments"]), len(steps))
    final = np.array([next((r for r in row[::-1] if np.isfinite(r)), np.nan) for row in risk])  # the last that is known
    order = np.argsort(np.where(np.isfinite(final), -final, np.inf), kind="stable")
    named = order if len(order) <= MOST_LINES else order[:4]
    others = order[len(named) :]
    made = drawing.new_figure(3.3)
    ax = made.subplots()
    handles, names = [], []
    if len(others):
        handles += _draw_others(ax, steps, risk, others)
        names += [f"{len(others)} others", "mean of all"]
    for k, e in enumerate(named):
        style = drawing.STYLES[k % len(drawing.STYLES)]
        every = 1 if newton else (k % 3, max(1, len(steps) // 8))
        handles.append(drawing.line(ax, steps, risk[e], style, lw=1.5, ms=4, markevery=every, zorder=4))
        names.append(drawing.label(curves["environments"][e], 22))
    drawing.plain_axes(ax, x="" if newton else rhythm, y=_on_axis(f"{risk_name}, training rows"), grid="y")
    if newton:
        ax.set_xticks(steps, NEWTON)
    else:
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    drawing.legend(made, handles, names, columns=3)
    ends = f"It ends between {_span(final, 'and')}." if np.isfinite(final).any() else ""
    length = "from ERM to" if newton else f"over {several(int(steps[-1]) if len(steps) else 0, rhythm)}, of"
    alt = f"Lines: the risk in {several(len(order), 'environment')} {length} the final model. {ends}"
    text = "ERM and the final model on all rows." if newton else "The final model while it was trained on all rows."
    if len(others):
        text += " Named are the environments with the highest risk at the end."
    named_steps: Sequence[Value] = NEWTON if newton else curves["steps"]
    rows: list[list[Value]] = [[step, *map(finite, risk[:, i])] for i, step in enumerate(named_steps)]
    columns = ["model" if newton else rhythm, *curves["environments"]]
    return page.figure(made, alt.strip(), name="training", data={"columns": columns, "rows": rows}, text=text)


def _draw_others(ax: Axes, steps: drawing.Floats, risk: drawing.Floats, others: Sequence[int] | Any) -> list[Any]:
    """Faint lines of the environments that are not named, and the mean over all environments."""
    for e in others:
        (faint,) = ax.plot(steps, risk[e], color=drawing.LINE, lw=0.8, zorder=1)
    there = np.isfinite(risk)
    mean = np.array(
        [column[here].mean() if here.any() else np.nan for column, here in zip(risk.T, there.T, strict=True)]
    )
    (line,) = ax.plot(steps, mean, color=drawing.INK, lw=1.6, zorder=3)
    return [faint, line]


# --- the loss as a function of the environment --------------------------------------------------------------


def losses_figure(losses: Sequence[LossCurve], environments: Sequence[str], risk_name: str = "risk") -> page.Block:
    """A line for each model over the environments, in the order of the risk of the first."""
    n = len(environments)
    risks = {
        curve["model"]: drawing.floats(list(curve["risk"])[:n] + [None] * (n - len(curve["risk"]))) for curve in losses
    }
    by = next(iter(risks.values()))
    order = np.argsort(np.where(np.isfinite(by), by, np.inf), kind="stable")
    x = np.arange(n, dtype=np.float64)
    made = drawing.new_figure(3.4)
    ax = made.subplots()
    handles, names = [], []
    for k, curve in enumerate(losses):
        style = MODELS.get(curve["model"], drawing.STYLES[(k + 2) % len(drawing.STYLES)])
        handles.append(drawing.line(ax, x, risks[curve["model"]][order], style, lw=1.5, ms=6 if n <= 30 else 3.5))
        weight = curve["penalty_weight"]
        names.append(drawing.label(curve["model"]) + ("" if not weight else f", λ = {weight:g}"))
    every = max(1, -(-n // 16))
    ticks = [drawing.label(environments[e], 14) for e in order[::every]]
    ax.set_xticks(x[::every], ticks)
    if sum(len(tick) + 2 for tick in ticks) > 60:
        drawing.turn_ticks(ax, 45)
    if n == 1:
        ax.set_xlim(-1, 1)
    by_risk = f"environment, in the order of the risk of {drawing.label(losses[0]['model'])}"
    drawing.plain_axes(ax, x=by_risk, y=_on_axis(f"{risk_name}, held-out rows"), grid="y")
    drawing.legend(made, handles, names)
    spans = "; ".join(f"{name} from {_span(r, 'to')}" for name, r in risks.items())
    alt = f"Lines: the held-out risk of {several(len(losses), 'model')} in {several(n, 'environment')}: {spans}."
    text = (
        "The loss as a function of the environment. Total variation is how much it moves along the axis: the flatter "
        "the line, the more invariant the model."
    )
    rows: list[list[Value]] = [[environments[e], *(finite(r[e]) for r in risks.values())] for e in order]
    columns = ["environment", *risks]
    return page.figure(made, alt, name="loss-by-environment", data={"columns": columns, "rows": rows}, text=text)


def _on_axis(text: str) -> str:
    """A name with a target's in it: not too long, and no formula."""
    return drawing.label(text, 44)


def _span(values: drawing.Floats, to: str) -> str:
    """'LOW to HIGH' of the values that there are."""
    there = values[np.isfinite(values)]
    return f"{short(there.min())} {to} {short(there.max())}" if there.size else f"{NO_VALUE} {to} {NO_VALUE}"
