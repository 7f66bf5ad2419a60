"""What to expect in an environment that nobody has seen: the section of the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from irmtv.app.fit.expectation import expect
from irmtv.app.fit.summary import Expected, FitSummary, LeftOutFamily, NewEnvironment
from irmtv.core.numbers import MetricFormat, listed, several
from irmtv.html import drawing, page
from irmtv.html.texts import Value

STYLES = dict(zip(("linear", "mlp", "trees"), drawing.STYLES, strict=False))
ONE_MORE = "a new one"


def section(summary: FitSummary, unseen: NewEnvironment) -> page.Section:
    """Every left-out environment, the plain model and the choice of every kind, and the interval for one more."""
    trained = {
        "in order": "on what came before each of these times",
        "blocks of aux": "without each of these blocks of the first aux column",
    }.get(unseen["left_out"], "without each of these environments")
    how = (
        f"Every model was trained again {trained} and scored on it. Penalty weight and step are those that were chosen "
        f"once, on all rows. The interval is for one more environment, {unseen['assumption']}."
    )
    drawn = any(drawing.known([row["plain"], row["chosen"]]) for f in unseen["families"] for row in f["environments"])
    blocks = [
        _figure(summary, unseen) if drawn else _table(unseen),
        page.fold("How this was measured", [page.text(how)]),
    ]
    in_order = unseen["left_out"] == "in order"
    lead = "times, each predicted from what came before" if in_order else "environments that training left out"
    return page.section("unseen", "A new environment", lead, blocks)


def _without(unseen: NewEnvironment) -> str:
    """What training had no row of."""
    return "predicted from what came before each" if unseen["left_out"] == "in order" else "that training left out"


def _models(family: LeftOutFamily) -> Mapping[str, tuple[Literal["plain", "chosen"], Expected]]:
    """What there is to show of a kind of model: ERM and its choice, or one where they are the same."""
    rows, taken = family["environments"], " (taken)" * family["taken"]
    if all(row["plain"] == row["chosen"] for row in rows):
        return {f"{family['name']}, plain{taken}": ("plain", family["plain_expected"])}
    return {
        f"{family['name']}, plain": ("plain", family["plain_expected"]),
        f"{family['name']}, {'chosen' if taken else 'penalised'}{taken}": ("chosen", family["expected"]),
    }


def _figure(summary: FitSummary, unseen: NewEnvironment) -> page.Block:
    of, families = MetricFormat(unseen["metric"]), unseen["families"]
    names = [row["name"] for row in families[0]["environments"]]
    longest = 24 if unseen["left_out"] == "in order" else 18  # "2011-03-01 to 2011-05-31"
    place = -np.arange(len(names) + 1, dtype=np.float64)
    place[1:] -= 0.35  # apart from the interval
    made = drawing.new_figure(1.25 + (0.2 + 0.12 * len(families)) * (len(names) + 1))
    ax = made.subplots()
    handles, labels, everything = [], [], []
    for k, family in enumerate(families):
        at = place + 0.22 * ((len(families) - 1) / 2 - k)
        style = STYLES.get(family["name"], drawing.CHOSEN)
        models = _models(family)
        for label, (key, expected) in models.items():
            values = of.factor * drawing.floats([row[key] for row in family["environments"]])
            mean, low, high = (of.factor * drawing.floats([expected[end]]) for end in ("mean", "low", "high"))
            fill = "#ffffff" if len(models) > 1 and key == "plain" else style.colour
            handles += ax.plot(values, at[1:], marker=style.marker, ms=5.5, ls="none", color=style.colour, mew=1.2,
                               zorder=3, mfc=fill)  # fmt: skip
            labels.append(label)
            everything += [values, mean, low, high]
        drawing.points(ax, at[:1], (mean, low, high), style.colour, 4.5)
    drawing.plain_axes(ax, x=of.title, grid="x")
    drawing.room(ax, np.concatenate(everything))
    drawing.few_ticks(ax, 5)
    drawing.name_rows(ax, place, [ONE_MORE, *(drawing.label(name, longest) for name in names)], air=0.65)
    ax.axhline((place[0] + place[1]) / 2, color=drawing.LINE, lw=0.8)
    drawing.legend(made, handles, labels, columns=2)
    kinds = listed(family["name"] for family in families)
    alt = (
        f"Points of the {unseen['metric']} in {several(len(names), 'environment')} {_without(unseen)}, of {kinds}, "
        f"and above them the mean with the interval for one more environment. {expect(summary)}"
    )
    names_of = {"mlp": "mlp is a network", "trees": "trees are boosted ones"}
    of_names = "".join(f"; {names_of[family['name']]}" for family in families if family["name"] in names_of)
    kinds_of = f"{len(families)} kinds of models: t" if len(families) > 1 else "T"
    text = (
        f"{kinds_of}he plain model and, where it is another, what the rule chose"
        f"{of_names}. Above: the mean, and between which values {100 * unseen['coverage']:.0f} % of new environments "
        "are."
    )
    cells: list[list[Value]] = [
        [family["name"], row["name"], row["rows"], row["plain"], row["chosen"], row["missing"]]
        for family in families
        for row in family["environments"]
    ]
    columns = ["kind of model", "environment", "rows", "plain", "chosen", "classes missing in training"]
    data: Any = {"columns": columns, "rows": cells}
    return page.figure(made, alt, name="unseen-environments", data=data, text=text, numbers=_table(unseen))


def _table(unseen: NewEnvironment) -> page.Block:
    """By environment, and above them mean, worst and interval."""
    of, families = MetricFormat(unseen["metric"]), unseen["families"]
    ends: Mapping[str, Callable[[Expected], str]] = {
        "mean": lambda e: of.value(e["mean"]),
        "worst": lambda e: of.value(e["worst"]),
        f"{100 * unseen['coverage']:.0f} % of new ones": lambda e: f"{of.value(e['low'])} to {of.value(e['high'])}",
    }
    missing = any(row["missing"] for row in families[0]["environments"])
    models = [(label, family, *of_label) for family in families for label, of_label in _models(family).items()]
    rows = [[name, "", *(text(expected) for *_, expected in models), *[""] * missing] for name, text in ends.items()]
    for i, row in enumerate(families[0]["environments"]):
        values = [of.value(family["environments"][i][key]) for _, family, key, _ in models]
        rows.append([row["name"], f"{row['rows']:,}", *values, *[row["missing"]] * missing])
    columns = ["environment", "rows", *(label for label, *_ in models), *["classes missing in training"] * missing]
    return page.table(columns, rows, [False, *[True] * (1 + len(models)), *[False] * missing])
