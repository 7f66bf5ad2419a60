"""The report of a fitted model, from its summary alone: the answer first, then what it rests on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from irmtv.app.fit.summary import Data, EnvironmentRow, Families, FamilyRow, FitSummary, LossCurve
from irmtv.app.pages import new_environment
from irmtv.app.pages.features import NOTES, feature_blocks, features_kind
from irmtv.app.pages.inferred import inferred_figure
from irmtv.app.pages.model_figures import (
    by_quality,
    curves_figure,
    environments_figure,
    erm_is_kept,
    losses_figure,
    path_figure,
    path_table,
)
from irmtv.core.numbers import NO_VALUE, MetricFormat, decimal, percent, probability, several
from irmtv.core.outcomes import OUTCOMES, Outcome
from irmtv.html import drawing, page

MOST_COLUMNS = 60  # that are named among the settings
SCHEMA = 1  # of the summaries that are shown here
BADGES: Mapping[Outcome, page.Badge] = {
    outcome: {"text": words.title, "kind": "bad" if outcome == "none-found" else "good"}
    for outcome, words in OUTCOMES.items()
}


def model_content(summary: FitSummary) -> page.Content:
    """The page of a model that `irmtv fit` made, of the summary that its file holds (`read_about`)."""
    data = summary["data"]
    return page.content(
        f"What predicts {data['target']}{', whatever the environment' if data['environment'] or data['aux'] else ''}?",
        _headline(summary),
        _facts(summary),
        {
            "The answer in numbers": _answer(summary),
            "How it was found": _search(summary),
            "The data and the settings": _settings(summary),
        },
        summary["versions"].get("irmtv", ""),
        source=" from the summary that is stored with the model",
    )


def is_summary(about: Mapping[str, Any]) -> TypeGuard[FitSummary]:
    """Whether what a model file says about itself is a summary that this version can show."""
    if about.get("schema") == SCHEMA and "headline" in about:
        return True
    if isinstance(about.get("schema"), int) and about["schema"] > SCHEMA and "headline" in about:
        raise ValueError(
            f"the summary in the model file has schema {about['schema']}, of a newer irmtv. This one reads {SCHEMA}: "
            "update irmtv."
        )
    return False


def _headline(summary: FitSummary) -> page.Headline:
    outcome, message = summary["outcome"], summary["message"]
    badge: page.Badge = (
        BADGES[outcome] if outcome is not None else {"text": f"chosen by {summary['rule']}", "kind": "plain"}
    )
    more = message[:1].upper() + message[1:] if message != summary["headline"] else ""
    answer = summary["headline"].replace(" %", "\u00a0%")  # a number and its unit stay in one line
    return {"badge": badge, "text": answer, "more": more, "numbers": _numbers(summary)}


def _numbers(summary: FitSummary) -> list[page.Number]:
    of = MetricFormat(summary["metric"])
    numbers = new_environment.first_number(summary)
    for where, row in (("worst known environment", summary["worst"]), ("all rows", summary["overall"])):
        erm, chosen = row["erm"], row["chosen"]
        if erm["value"] is None and chosen["value"] is None:
            continue
        if erm_is_kept(summary):
            known = erm["low"] is not None and erm["high"] is not None
            value = of.with_unit(erm["value"])
            note = f"{of.value(erm['low'])} to {of.value(erm['high'])}; " * known + "ERM, which is kept"
        else:
            value = f"{of.value(erm['value'])} → {of.with_unit(chosen['value'])}"
            difference = of.interval(row["difference"], sign=True)
            note = "ERM → chosen" + ("" if difference == NO_VALUE else f"; difference {difference}")
        numbers.append({"name": f"{summary['metric']}, {where}", "value": value, "note": note})
    point = next((p for p in summary["path"] if p["chosen"]), None)
    if point is not None:
        note = "" if point["p"] is None else f"p of invariance {probability(point['p'])}"
        numbers.append({"name": "penalty weight λ", "value": point["label"], "note": note})
    return numbers


def _facts(summary: FitSummary) -> list[tuple[str, str]]:
    data, classes = summary["data"], summary["classes"]
    better = "more is better" if summary["greater_is_better"] else "less is better"
    where = ", ".join(data["environment"]) or "none given"
    task = summary["task"] + (f" ({several(len(classes), 'class', 'classes')})" if classes else "")
    erm_model = summary.get("plain_model", summary["model"])
    other = "" if erm_model == summary["model"] else f"; ERM is {erm_model}"
    unseen = summary.get("new_environment")
    without = f", {unseen['seconds']:.1f} s of it without each environment" if unseen and unseen["expected"] else ""
    made = f"{summary['created'].replace('T', ' ')[:16]}, in {summary['seconds'].get('all', 0.0):.1f} s{without}"
    return [
        ("file", f"{data['file']}, {several(data['rows_used'], 'row')} used"),
        ("target", f"{data['target']}, {task}"),
        ("environment", f"{where}; {several(len(summary['environments']), 'environment')}"),
        ("aux", ", ".join(data["aux"])),
        ("model", f"{summary['model']}, {summary['objective']}, chosen by {summary['rule']}{other}"),
        ("metric", f"{summary['metric']}, {better}; on held-out rows"),
        ("made", made),
    ]


# --- the answer in numbers ----------------------------------------------------------------------------------


def _answer(summary: FitSummary) -> list[page.Section]:
    unseen = summary.get("new_environment")
    sections = [_environments(summary)] if unseen is None else [new_environment.section(unseen), _environments(summary)]
    curves = [curve for curve in summary["losses"] if drawing.known(curve["risk"])]
    names = [row["name"] for row in summary["environments"]]
    if curves and names:
        columns = ["model", "penalty weight", "lowest", "highest", "highest − lowest", "mean"]
        blocks = [losses_figure(curves, names), page.table(columns, [_span(c) for c in curves], [False, *[True] * 5])]
        sections.append(page.section("losses", "The loss as a function of the environment", "held-out rows", blocks))
    if summary["features"]:
        note = NOTES[features_kind(summary)]
        sections.append(page.section("features", "Which features it looks at", note, feature_blocks(summary)))
    return sections


def _span(curve: LossCurve) -> list[str]:
    risks = [r for r in curve["risk"] if r is not None]
    weight = curve["penalty_weight"]
    measures = (min(risks), max(risks), max(risks) - min(risks), sum(risks) / len(risks))
    return [curve["model"], NO_VALUE if weight is None else f"{weight:g}", *map(decimal, measures)]


def _environments(summary: FitSummary) -> page.Section:
    of = MetricFormat(summary["metric"])
    ordered = by_quality(summary["environments"], summary["greater_is_better"])
    rows: list[EnvironmentRow] = [
        {**summary["overall"], "name": "all rows"},
        {**summary["worst"], "name": _worst_name(summary)},
        *ordered,
    ]
    columns: Mapping[str, Callable[[EnvironmentRow], str]] = {
        "environment": lambda row: row["name"],
        "rows": lambda row: f"{row['rows']:,}",
        f"ERM, {of.title}": lambda row: of.interval(row["erm"]),
        f"chosen, {of.title}": lambda row: of.interval(row["chosen"]),
        f"chosen − ERM{of.difference_unit}": lambda row: of.interval(row["difference"], sign=True),
    }
    drawn = any(row[key]["value"] is not None for row in [summary["overall"], *ordered] for key in ("erm", "chosen"))
    blocks = [environments_figure(summary)] if drawn else []
    blocks.append(page.table_of(rows, columns, words=["environment"]))
    blocks.append(page.text("In brackets: 95 % intervals. The worst environment of each model may be a different one."))
    return page.section("environments", "Every environment: ERM and the chosen model", "held-out rows", blocks)


def _worst_name(summary: FitSummary) -> str:
    """The name of the worst environment, where the summary says it."""
    name = summary["worst"]["name"]
    return f"worst: {name}" if name in [row["name"] for row in summary["environments"]] else "worst environment"


# --- how it was found ---------------------------------------------------------------------------------------


def _search(summary: FitSummary) -> list[page.Section]:
    families = summary.get("families")
    sections = [] if families is None else [_families(families)]
    if summary["path"]:
        sections.append(_path(summary))
    inferred = summary["inferred"]
    if inferred is not None and inferred["points"] and inferred["aux"] and inferred["names"]:
        what = "curve" if len(inferred["aux"]) == 1 else "map" if len(inferred["aux"]) == 2 else "curves"
        note = f"{what} over {several(len(inferred['aux']), 'aux column')}"
        sections.append(page.section("inferred", "The environments that were found", note, [inferred_figure(inferred)]))
    curves = summary["curves"]
    if curves is not None and curves["steps"] and any(drawing.known(row) for row in curves["risk"]):
        sections.append(
            page.section(
                "training",
                "Training",
                "the final model, on all rows",
                [curves_figure(curves, "round" if summary["model"].startswith("trees") else "step")],
            )
        )
    return sections


def _families(families: Families) -> page.Section:
    left_out = families["by"] == "left-out"
    columns: Mapping[str, Callable[[FamilyRow], str]] = {
        "kind of model": lambda row: row["model"],
        "risk, geometric mean" if left_out else "risk": lambda row: decimal(row["risk"]),
        "log risk − lowest" if left_out else "risk − lowest": lambda row: decimal(row["behind"]),
        "standard error": lambda row: decimal(row["error"]),
        "choice": lambda row: "taken" if row["taken"] else "",
    }
    rows = families["compared"]
    marks: list[page.Kind] = ["good" if row["taken"] else "plain" for row in rows]
    table = page.table_of(rows, columns, words=["kind of model", "choice"], marks=marks)
    where = "environments that training left out" if left_out else "held-out rows"
    text = families["message"][:1].upper() + families["message"][1:]
    return page.section("kinds", "The kinds of models", f"ERM of each, {where}", [page.text(text), table])


def _path(summary: FitSummary) -> page.Section:
    path = summary["path"]
    model = summary["model"]
    blocks: list[page.Block] = [path_figure(path, model)] if drawing.known([p["risk"] for p in path]) else []
    blocks.append(path_table(path, model))
    return page.section("path", "The path of penalty weights", f"held-out rows, rule {summary['rule']}", blocks)


# --- data and settings ----------------------------------------------------------------------------------------


def _settings(summary: FitSummary) -> list[page.Section]:
    data = summary["data"]
    sections = [page.section("data", "What was done to the table", data["file"], _rows_and_columns(data))]
    if data["missing"]:
        ordered = sorted(data["missing"].items(), key=lambda pair: -pair[1])
        counted = (
            f"{several(len(ordered), 'column')} of {len(data['columns']):,} had missing values, which were filled in "
            "and marked."
        )
        rows = [[name, percent(share)] for name, share in ordered]
        blocks = [page.text(counted), page.table(["column", "missing, %"], rows, [False, True])]
        sections.append(page.section("missing", "Missing values", "", blocks))
    more = len(data["columns"]) - MOST_COLUMNS
    settings = {
        "objective": summary["objective"],
        "model": summary["model"],
        "rule": summary["rule"],
        **({"classes": ", ".join(summary["classes"])} if summary["classes"] else {}),
        **summary["settings"],
        "feature columns": ", ".join(data["columns"][:MOST_COLUMNS]) + (f" and {more:,} more" if more > 0 else ""),
    }
    sections.append(page.section("settings", "Settings", "", [page.settings_table(settings)]))
    again = page.text("The same command with the same versions gives the same model.")
    blocks = [again, page.code(summary["command"]), page.versions_table(summary["versions"])]
    sections.append(page.section("again", "To run it again", "", blocks))
    return sections


def _rows_and_columns(data: Data) -> list[page.Block]:
    counted = (
        f"{data['file']} has {several(data['rows'], 'row')}; {data['rows_used']:,} were used. "
        f"{several(len(data['columns']), 'column')} became {several(data['features'], 'feature')}."
    )
    return [page.text(counted), *(page.text(note) for note in data["notes"])]
