"""The figures of an experiment's report: what each method reaches, and what the invariance rule found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from irmtv.core.numbers import MetricFormat, is_accuracy, several
from irmtv.core.outcomes import OUTCOMES as WORDS
from irmtv.core.plain_json import plain_json
from irmtv.html import drawing, page
from irmtv.html.texts import Value
from irmtv.lab.tables.compare import NOT_RUN
from irmtv.lab.tables.layout import PUBLISHED, rule_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# how each outcome of the rule "invariance" is named and drawn
OUTCOMES: Mapping[str, tuple[str, str, str]] = {
    "invariant-found": (WORDS["invariant-found"].legend, drawing.CHOSEN.colour, ""),
    "erm-invariant": (WORDS["erm-invariant"].legend, drawing.ORANGE, "////"),
    "erm-kept": (WORDS["erm-kept"].legend, drawing.ORANGE, ""),
    "none-found": (WORDS["none-found"].legend, drawing.VERMILION, "xxxx"),
}


def methods_figure(frame: pd.DataFrame, main_rule: str, name: str) -> page.Block:
    """A bar per method for the main rule, marks for the others and for what is published.

    `frame`: the rows of a summary (:func:`irmtv.lab.tables.summarise`) in one setting, metric and summary.
    """
    metric, summary, setting = (str(frame[c].iloc[0]) for c in ("metric", "summary", "setting"))
    of = MetricFormat(metric)
    methods = list(frame["method"].unique())
    made, ax, place = drawing.row_figure(len(methods), 1.2, 0.34)
    handles, values = _draw_methods(ax, frame, main_rule, methods, place)
    drawing.plain_axes(ax, x=f"{of.title}, {summary}", grid="x")
    drawing.room(ax, np.concatenate(values), zero=True)
    drawing.name_rows(ax, place, [drawing.label(m, 24) for m in methods])
    drawing.legend(made, list(handles.values()), list(handles))
    first = (
        frame[frame["rule"] == main_rule].dropna(subset="mean").sort_values("mean", ascending=not is_accuracy(metric))
    )
    reached = "; ".join(f"{m}: {of.with_unit(v)}" for m, v in zip(first["method"], first["mean"], strict=True))
    alt = (
        f"Bars: {metric} ({summary}) of {several(len(methods), 'method')} in the setting {setting}, rule "
        f"{rule_name(main_rule)}. {reached}."
    )
    text = f"Bars: rule {rule_name(main_rule)}, mean over repetitions, with a 95 % interval of the mean."
    columns = ["method", "rule", "repetitions", "mean", "sd", "low", "high", "published mean", "published sd", "limit"]
    keys = ["n", "mean", "sd", "low", "high", "published_mean", "published_sd", "limit"]
    rows: list[list[Value]] = [
        [str(r["method"]), rule_name(str(r["rule"])), *(plain_json(r[k]) for k in keys)]
        for r in frame.to_dict("records")
    ]
    return page.figure(made, alt, name=name, data={"columns": columns, "rows": rows}, text=text)


def _draw_methods(
    ax: Axes, frame: pd.DataFrame, main_rule: str, methods: list[str], place: drawing.Floats
) -> tuple[dict[str, Any], list[drawing.Floats]]:
    """What a legend shows, by its name; and all values that are drawn."""
    factor = MetricFormat(str(frame["metric"].iloc[0])).factor
    handles: dict[str, Any] = {}
    values = [np.zeros(1)]

    def by_method(rows: pd.DataFrame, *columns: str) -> list[drawing.Floats]:
        ordered = rows.drop_duplicates("method").set_index("method").reindex(methods)
        return [factor * ordered[c].to_numpy(np.float64) for c in columns]

    rules = [main_rule, *(r for r in frame["rule"].unique() if r not in (main_rule, NOT_RUN))]
    for k, rule in enumerate(rules):
        mean, low, high = by_method(frame[frame["rule"] == rule], "mean", "low", "high")
        values += [mean, low, high]
        if k == 0:
            handles[rule_name(rule)] = drawing.bars(ax, place, mean, 0.62, drawing.CHOSEN, (low, high))
        else:
            style = drawing.STYLES[1 + (k - 1) % (len(drawing.STYLES) - 1)]
            (handles[rule_name(rule)],) = ax.plot(
                mean, place, style.marker, color=style.colour, mec="#ffffff", mew=0.6, ms=6.5, ls="none", zorder=4
            )
    (theirs,) = by_method(frame.dropna(subset="published_mean"), "published_mean")
    if np.isfinite(theirs).any():
        (handles[PUBLISHED],) = ax.plot(
            theirs, place, "D", mfc="#ffffff", mec=drawing.INK, mew=1.2, ms=5.5, ls="none", zorder=5
        )
        values.append(theirs)
    limit = frame["limit"].dropna()
    if len(limit):
        at = factor * float(limit.iloc[0])
        handles["limit"] = ax.axvline(at, color=drawing.SOFT, lw=1.3, ls=(0, (1, 1.5)))
        values.append(np.array([at]))
    return handles, values


def outcomes_figure(counts: pd.DataFrame) -> page.Block:
    """Stacked bars per method, over all settings and repetitions; `counts` is that of `counted_outcomes`."""
    methods = list(counts["method"].unique())
    sums = counts.groupby("method", sort=False)[list(OUTCOMES)].sum().reindex(methods)
    made, ax, place = drawing.row_figure(len(methods), 1.2, 0.34)
    left = np.zeros(len(methods))
    handles, names = [], []
    for outcome, (words, colour, hatch) in OUTCOMES.items():
        n = sums[outcome].to_numpy(np.float64)
        if n.any():
            handles.append(
                ax.barh(place, n, 0.62, left=left, color=colour, hatch=hatch, edgecolor="#ffffff", linewidth=0)
            )
            names.append(words)
        left += n
    drawing.plain_axes(ax, x="repetitions, over all settings", grid="x")
    drawing.name_rows(ax, place, [drawing.label(m, 24) for m in methods])
    ax.locator_params(axis="x", integer=True)
    drawing.legend(made, handles, names, columns=1)
    total = sums.sum()
    counted = "; ".join(f"{OUTCOMES[o][0]}: {int(total[o])}" for o in OUTCOMES if total[o])
    of_methods = several(len(methods), "method")
    alt = f"Stacked bars: how often each outcome of the invariance rule came, for {of_methods}. {counted}."
    rows: list[list[Value]] = [
        [str(r["setting"]), str(r["method"]), *(int(r[o]) for o in OUTCOMES)] for r in counts.to_dict("records")
    ]
    return page.figure(made, alt, name="outcomes", data={"columns": ["setting", "method", *OUTCOMES], "rows": rows})


def counted_outcomes(results: pd.DataFrame, rule: str) -> pd.DataFrame:
    """How often each outcome came, by setting and method; empty where the rule was not used."""
    columns = ["setting", "method", *OUTCOMES]
    if "outcome" not in results:
        return pd.DataFrame(columns=columns)
    here = results[results["rule"] == rule].drop_duplicates(["setting", "method", "repetition"])
    here = here[here["outcome"].isin(list(OUTCOMES))]
    rows = [
        {"setting": setting, "method": method, **{o: int((group["outcome"] == o).sum()) for o in OUTCOMES}}
        for (setting, method), group in here.groupby(["setting", "method"], sort=False)
    ]
    return pd.DataFrame(rows, columns=columns)
