"""The page of a diagnosis, from its summary alone: the answer first, then every part with its figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from irmtv.app.pages.inferred import inferred_figure
from irmtv.core.numbers import MetricFormat, several, short
from irmtv.html import drawing, page
from irmtv.html.texts import estimate_cells

LEVEL = 0.05
MOST_ENVIRONMENTS = 24
MOST_FEATURES = 20
_TESTED = {"linear": "linear models", "mlp": "what the network leaves", "trees": "what the trees leave"}
_ABOUT_IMPORTANCES = (
    " Weights are how far the outputs move when a feature is shuffled. The tests ask whether what the model leaves of "
    "the target depends on a feature in one environment otherwise than in another."
)

Part = Mapping[str, Any]


def diagnosis_content(summary: Part) -> page.Content:
    """The page of `irmtv diagnose`, of `Diagnosis.summary` or of what `irmtv diagnose --json` printed."""
    target = summary.get("target", "")
    makers = {"differ": _differ, "losses": _losses, "found": _found, "features": _features, "splits": _splits}
    made = {name: [make(summary)] if summary[name] else [] for name, make in makers.items()}
    informative = map(_informative, summary["informative"])
    return page.content(
        f"What shifts in what predicts {target}?" if target else "What shifts?",
        _headline(summary),
        _facts(summary),
        {
            "The environments": [*made["differ"], *made["losses"], *made["found"], *informative],
            "What changes": [*made["features"], *made["splits"]],
            "The data": [_data(summary)],
        },
        summary.get("versions", {}).get("irmtv", ""),
    )


# --- the answer ---------------------------------------------------------------------------------------------


def _headline(summary: Part) -> page.Headline:
    first, *more = summary["headline"]
    return {"badge": _outcome(summary), "text": first, "more": " ".join(more), "numbers": _numbers(summary)}


def _outcome(summary: Part) -> page.Badge:
    losses = summary["losses"]
    if losses is None:
        return {"text": "Nothing to compare", "kind": "unknown"}
    if _significant(losses["p"]):
        return {"text": "A shift that hurts", "kind": "bad"}
    if any(part["informative"] for part in summary["informative"]):
        return {"text": "Not invariant", "kind": "partly"}
    return {"text": "No shift that hurts is shown", "kind": "good"}


def _numbers(summary: Part) -> list[page.Number]:
    numbers: list[page.Number] = []
    if summary["differ"] is not None:
        area = summary["differ"]["auc"]
        note = f"area under the curve, {short(area['low'])} to {short(area['high'])}; 0.5 is guessing"
        numbers.append({"name": "environments told apart", "value": short(area["value"]), "note": note})
    if (losses := summary["losses"]) is not None:
        worst = next(row for row in losses["environments"] if row["name"] == losses["worst"])
        note = f"{losses['loss']}; {short(losses['overall']['loss']['value'])} over all rows"
        value = short(worst["loss"]["value"])
        numbers.append({"name": f"loss in {losses['worst']}", "value": value, "note": note})
    for part in summary["informative"]:
        name = f"penalty, {part['source']} environments"
        numbers.append({"name": name, "value": f"{short(part['ratio'])} ×", "note": f"chance; p = {short(part['p'])}"})
    return numbers


def _facts(summary: Part) -> list[tuple[str, str]]:
    facts = [("file", summary.get("file", "")), ("target", f"{summary.get('target', '')} ({summary['task']})")]
    facts += [(name, ", ".join(summary.get(name, ()))) for name in ("environment", "aux")]
    facts.append(("model", _model(summary)))
    facts.append(("rows", f"{summary['rows']:,}"))
    if summary["names"]:
        facts.append(("environments", f"{len(summary['names'])}, {summary['environments']}"))
    if "features_in" in summary:
        facts.append(("features", f"{summary['features_in']} numbers"))
    return facts


def _model(summary: Part) -> str:
    """The name of the model; a summary of an earlier version is of a linear model, and does not say so."""
    name: str = summary.get("models", {}).get("name", "a linear model")
    return name


def _about_model(summary: Part) -> str:
    """Which model it was and, where it was chosen, among which."""
    models = summary.get("models", {})
    size = f" ({models['leaves']} leaves, {several(models['rounds'], 'round')})" if "leaves" in models else ""
    name = _model(summary)
    about = f"{name[0].upper()}{name[1:]}{size} on standardised features."
    risks = models.get("risks", {})
    if models.get("asked") == "auto" and len(risks) > 1:
        compared = ", ".join(f"{kind} {short(risk)}" for kind, risk in risks.items())
        about += f" It was chosen by the held-out loss over all rows ({compared}): the simplest within 1 % of the "
        about += "lowest."
    return about


def _significant(p: float | None) -> bool:
    return p is not None and p < LEVEL


def _badge(shown: bool, yes: str, no: str, kind: page.Kind = "partly") -> page.Badge:
    return {"text": yes if shown else no, "kind": kind if shown else "good"}


# --- the environments ---------------------------------------------------------------------------------------


def _differ(summary: Part) -> page.Section:
    differ = summary["differ"]
    about = (
        "A classifier (ridge regression on the features, their squares and products) guesses the environment of rows "
        f"that it has not seen. The p-value compares it with {differ['permutations']} classifiers that were trained on "
        f"permuted labels; {several(differ['rows'], 'row')}. That the features differ does not yet mean that "
        "predictions suffer."
    )
    return page.section(
        "differ",
        "How different are the environments?",
        "classifier two-sample test",
        [page.text(differ["said"]), differ_figure(differ), page.text(about)],
        _badge(_significant(differ["p"]), "different", "not told apart"),
    )


def differ_figure(differ: Part) -> page.Block:
    """Areas under the curve, each environment against the rest."""
    rows = differ["environments"]
    drawn = [{"name": "all environments", "auc": differ["auc"]}, *rows[:MOST_ENVIRONMENTS]]
    made, ax, place = drawing.row_figure(len(drawn), 1.0, 0.3)
    drawing.points(ax, place, drawing.estimates([row["auc"] for row in drawn]), drawing.CHOSEN.colour, 5)
    drawing.name_rows(ax, place, [drawing.label(row["name"], 18) for row in drawn])
    drawing.plain_axes(ax, x="area under the ROC curve, environment against the rest", grid="x")
    ax.axvline(0.5, color=drawing.VERMILION, lw=1.2, ls=(0, (4, 2)))
    ax.set_xlim(min(0.45, *(row["auc"]["low"] or 0.5 for row in drawn)) - 0.02, 1.02)
    alt = (
        f"Points with 95 % intervals: how well a classifier tells each of {several(len(rows), 'environment')} from the "
        f"rest. {differ['said']}"
    )
    return page.figure(
        made,
        alt,
        name="how-different",
        data={
            "columns": ["environment", "area", "low", "high"],
            "rows": [[row["name"], *estimate_cells(row["auc"])] for row in [drawn[0], *rows]],
        },
        text="0.5 (dashed) is guessing, 1 tells every row; lines are 95 % intervals." + _left_out(rows),
    )


def _losses(summary: Part) -> page.Section:
    losses = summary["losses"]
    about = (
        f"{_about_model(summary)} A loss may also differ because one environment is harder to predict for any model; "
        f"a constant has a loss of {short(losses['constant'])}."
    )
    return page.section(
        "losses",
        "How does the loss of the plain model (ERM) differ across them?",
        "held-out rows, five folds",
        [page.text(losses["said"]), losses_figure(losses), page.text(about)],
        _badge(_significant(losses["p"]), "differs", "not shown to differ", "bad"),
    )


def losses_figure(losses: Part) -> page.Block:
    """Held-out loss and metric of ERM in every environment."""
    rows = sorted(losses["environments"], key=lambda row: -(row["loss"]["value"] or 0.0))
    metric, of = losses["metric"], MetricFormat(losses["metric"])
    drawn = [{"name": "all rows", **losses["overall"]}, *rows[:MOST_ENVIRONMENTS]]
    made = drawing.new_figure(1.0 + 0.32 * len(drawn))
    panels = made.subplots(1, 2, sharey=True)
    place = -np.arange(len(drawn), dtype=np.float64)
    for ax, key, factor, title in zip(
        panels, ("loss", "metric"), (1.0, of.factor), (losses["loss"], of.title), strict=True
    ):
        value, low, high = drawing.estimates([row[key] for row in drawn], factor)
        drawing.bars(ax, place, value, 0.6, drawing.PLAIN, (low, high))
        drawing.plain_axes(ax, x=drawing.label(title, 40), grid="x")
        drawing.room(ax, np.concatenate([value, low, high]), zero=True)
        ax.locator_params(axis="x", nbins=4)
        ax.tick_params(axis="y", length=0)
    panels[0].set_yticks(place, [drawing.label(row["name"], 18) for row in drawn])
    better = "more is better" if losses["greater_is_better"] else "less is better"
    alt = (
        f"Bars with 95 % intervals: held-out loss and {metric} of ERM in {several(len(rows), 'environment')}. "
        f"{losses['said']}"
    )
    return page.figure(
        made,
        alt,
        name="loss-by-environment",
        data={
            "columns": ["environment", "loss", "low", "high", metric, f"{metric} low", f"{metric} high"],
            "rows": [[row["name"], *estimate_cells(row["loss"], row["metric"])] for row in [drawn[0], *rows]],
        },
        text=f"Left the loss (less is better), right the {metric} ({better}); the worst environment first."
        + _left_out(rows),
    )


def _found(summary: Part) -> page.Section:
    found = summary["found"]
    return page.section(
        "found",
        "What environments are found in aux, and where?",
        "minimax network",
        [page.text(found["said"]), inferred_figure(found)],
        {"text": "two found" if found["divides"] else "none found", "kind": "plain"},
    )


def _informative(part: Part) -> page.Section:
    searched = "the labels" if part["source"] == "given" else "aux, each searched anew"
    rows = [["reached", short(part["penalty"])], ["by chance, on average", short(part["by_chance"])]]
    about = (
        f"p = {short(part['p'])} from {part['permutations']} permutations of {searched}; "
        f"{several(part['rows'], 'row')}."
    )
    return page.section(
        f"informative-{part['source']}",
        f"Are the {part['source']} environments informative at all?",
        "invariance test with permutations",
        [page.text(part["said"]), page.table(["", "penalty"], rows, [False, True]), page.text(about)],
        _badge(part["informative"], "informative", "not shown to be"),
    )


# --- what changes -------------------------------------------------------------------------------------------


def _features(summary: Part) -> page.Section:
    features = summary["features"]
    kind = features.get("model", "linear")
    about = (
        f"p = {short(features['joint_p'])} for all features together; p = {short(features['level_p'])} for the level "
        "of the target given the features. The invariant model is TV-l1 with penalty weight "
        f"{short(features['penalty_weight'])}."
    )
    changes = _significant(features["joint_p"]) or any(f["changes"] for f in features["features"])
    return page.section(
        "features",
        "Which features' relation to the target changes?",
        _TESTED[kind],
        [
            page.text(features["said"]),
            features_figure(features),
            page.text(about if kind == "linear" else about + _ABOUT_IMPORTANCES),
        ],
        _badge(changes, "changes", "not shown"),
    )


def features_figure(features: Part) -> page.Block:
    """Weights under ERM beside those under invariance, what changes first."""
    rows = features["features"]
    shown = rows[:MOST_FEATURES]
    made, ax, place = drawing.row_figure(len(shown), 1.2, 0.34)
    handles = [
        drawing.bars(ax, place + offset, 100 * drawing.floats([row[key] for row in shown]), 0.36, style)
        for key, style, offset in (("erm", drawing.PLAIN, 0.19), ("invariant", drawing.CHOSEN, -0.19))
    ]
    ax.set_yticks(place, [drawing.label(row["name"]) + (" *" if row["changes"] else "") for row in shown])
    ax.tick_params(axis="y", length=0)
    drawing.zero_line(ax)
    linear = features.get("model", "linear") == "linear"
    drawing.plain_axes(
        ax, x="weight, % of the sum of all" if linear else "how far it moves the outputs, % of all", grid="x"
    )
    drawing.legend(made, handles, ["ERM", "invariant (TV-l1)"])
    alt = f"Bars: the weights of {several(len(shown), 'feature')} under ERM and under invariance. {features['said']}"
    slopes = [f"slope {'' if linear else 'of what is left '}in {name}" for name in features["environments"]]
    more = f" The first {len(shown)} of {len(rows)}; the CSV has all." if len(rows) > len(shown) else ""
    return page.figure(
        made,
        alt,
        name="features",
        data={
            "columns": ["feature", "weight ERM", "weight invariant", "p", "p Holm", *slopes],
            "rows": [[*(row[k] for k in ("name", "erm", "invariant", "p", "p_holm")), *row["slopes"]] for row in rows],
        },
        text=f"A star marks features whose relation to the target changes (5 %, corrected for their number).{more}",
    )


def _splits(summary: Part) -> page.Section:
    splits = summary["splits"]
    each = [row["said"] for row in splits["environments"]]
    about = (
        "Compared on what both sides share of X. Intervals come from resampled rows, the weights held; "
        f"{several(splits['rows'], 'row')}."
    )
    return page.section(
        "splits",
        "How does the loss split into change in X and change in y given X?",
        "each environment against the rest",
        [
            page.text(splits["said"]),
            splits_figure(splits),
            page.text(about),
            *([page.text(" ".join(each))] if 1 < len(each) <= 6 else []),
        ],
        {"text": "parts", "kind": "plain"},
    )


def splits_figure(splits: Part) -> page.Block:
    """Parts of the difference of the loss, each environment against the rest."""
    rows = sorted(splits["environments"], key=lambda row: -(row["gap"]["value"] or 0.0))
    shown = rows[:MOST_ENVIRONMENTS]
    made, ax, place = drawing.row_figure(len(shown), 1.2, 0.45)
    handles = []
    everything: list[drawing.Floats] = [np.zeros(1)]
    for key, style, offset in (("from_x", drawing.STYLES[2], 0.2), ("from_y_given_x", drawing.STYLES[1], -0.2)):
        value, low, high = drawing.estimates([row[key] for row in shown])
        handles.append(drawing.bars(ax, place + offset, value, 0.38, style, (low, high)))
        everything += [value, low, high]
    (gap,) = ax.plot(
        drawing.floats([row["gap"]["value"] for row in shown]), place, "D", color=drawing.INK, ms=4, ls="none"
    )
    drawing.zero_line(ax)
    ax.set_yticks(place, [drawing.label(row["name"], 18) + ("" if row["trusted"] else " (?)") for row in shown])
    ax.tick_params(axis="y", length=0)
    drawing.plain_axes(ax, x="loss less that of the rest", grid="x")
    drawing.room(ax, np.concatenate(everything))
    drawing.legend(made, [*handles, gap], ["change in X", "change in y given X", "together"])
    alt = (
        f"Bars with 95 % intervals for {several(len(shown), 'environment')}: how much of the difference of the loss "
        f"from the rest comes from a change in X and how much from one in y given X. {splits['said']}"
    )
    columns = ["environment", "rows", "gap", "from X", "X low", "X high", "from y given X", "y low", "y high"]
    columns.append("overlap")
    cells = [
        [row["name"], row["rows"], row["gap"]["value"], *estimate_cells(row["from_x"], row["from_y_given_x"]),
         row["overlap"]]
        for row in rows
    ]  # fmt: skip
    return page.figure(
        made,
        alt,
        name="loss-split",
        data={"columns": columns, "rows": cells},
        text="(?): too little of X is shared to trust the parts." + _left_out(rows),
    )


def _left_out(rows: Sequence[Any]) -> str:
    more = len(rows) > MOST_ENVIRONMENTS
    return f" {MOST_ENVIRONMENTS} of {len(rows)} are drawn; the CSV has all." if more else ""


# --- the data -----------------------------------------------------------------------------------------------


def _data(summary: Part) -> page.Section:
    blocks: list[page.Block] = [page.text(note if note.endswith(".") else f"{note}.") for note in summary["notes"]]
    if summary.get("command"):
        blocks.append(page.code(summary["command"]))
    blocks.append(page.versions_table(summary.get("versions", {})))
    return page.section("data", "Notes, command, versions", "", blocks)
