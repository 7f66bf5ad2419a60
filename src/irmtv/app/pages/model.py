"""The report of a fitted model, from its summary alone: the answer first, then what it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from irmtv.app.fit.summary import FitSummary, Outcome
from irmtv.app.pages.feature_figures import NOTES, feature_blocks, features_kind
from irmtv.app.pages.inferred_figures import inferred_figure
from irmtv.app.pages.model_figures import (
    by_quality,
    curves_figure,
    environments_figure,
    erm_is_kept,
    losses_figure,
    path_figure,
)
from irmtv.core.numbers import NO_VALUE, MetricFormat, decimal, probability, several
from irmtv.html.drawing import known
from irmtv.html.page import Badge, Block, Chapter, Content, Headline, Number, Section, code, table, text

MOST_COLUMNS = 60  # that are named among the settings
SCHEMA = 1  # of the summaries that are shown here
OUTCOMES: Mapping[Outcome, Badge] = {
    "erm-invariant": {"text": "ERM is already invariant", "kind": "good"},
    "invariant-found": {"text": "An invariant model was found", "kind": "good"},
    "none-found": {"text": "No invariant model was found", "kind": "bad"},
}


def model_content(summary: FitSummary) -> Content:
    """The page of a model that `irmtv fit` made.

    Parameters
    ----------
    summary : FitSummary
        As `irmtv.estimators.files.read_about` gives it back from a model file.

    Returns
    -------
    Content
        For `irmtv.html.page.page`.
    """
    data = summary["data"]
    chapters: list[Chapter] = [
        {"title": "The answer in numbers", "sections": _answer(summary)},
        {"title": "How it was found", "sections": _found(summary)},
        {"title": "The data and the settings", "sections": _settings(summary)},
    ]
    return {
        "title": f"What predicts {data['target']}, whatever the environment?"
        if data["environment"] or data["aux"]
        else f"What predicts {data['target']}?",
        "headline": _headline(summary),
        "lead": [],
        "facts": _facts(summary),
        "chapters": [chapter for chapter in chapters if chapter["sections"]],
        "foot": f"Made by irmtv {summary['versions'].get('irmtv', '')} from the summary that is stored with the model. "
        "Nothing in this page was loaded from elsewhere.",
    }


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


def _headline(summary: FitSummary) -> Headline:
    of = MetricFormat(summary["metric"])
    outcome = summary["outcome"]
    badge: Badge = (
        OUTCOMES[outcome] if outcome is not None else {"text": f"chosen by {summary['rule']}", "kind": "plain"}
    )
    numbers: list[Number] = []
    for name, row in (("worst environment", summary["worst"]), ("all rows", summary["overall"])):
        if row["erm"]["value"] is None and row["chosen"]["value"] is None:
            continue
        if erm_is_kept(summary):
            interval = row["erm"]["low"] is not None and row["erm"]["high"] is not None
            reach = f"{of.value(row['erm']['low'])} to {of.value(row['erm']['high'])}; " if interval else ""
            value = of.with_unit(row["erm"]["value"])
            numbers.append(
                {"name": f"{summary['metric']}, {name}", "value": value, "note": f"{reach}ERM, which is kept"}
            )
            continue
        difference = of.interval(row["difference"], sign=True)
        numbers.append(
            {
                "name": f"{summary['metric']}, {name}",
                "value": f"{of.value(row['erm']['value'])} → {of.with_unit(row['chosen']['value'])}",
                "note": "ERM → chosen" + ("" if difference == NO_VALUE else f"; difference {difference}"),
            }
        )
    chosen = next((p for p in summary["path"] if p["chosen"]), None)
    if chosen is not None:
        p = "" if chosen["p"] is None else f"p of invariance {probability(chosen['p'])}"
        numbers.append({"name": "penalty weight λ", "value": chosen["label"], "note": p})
    said = summary["message"]
    more = said[:1].upper() + said[1:] if said != summary["headline"] else ""
    answer = summary["headline"].replace(" %", "\u00a0%")  # a number and its unit stay in one line
    return {"badge": badge, "text": answer, "more": more, "numbers": numbers}


def _facts(summary: FitSummary) -> list[tuple[str, str]]:
    data = summary["data"]
    better = "more is better" if summary["greater_is_better"] else "less is better"
    where = ", ".join(data["environment"]) or "none given"
    task = summary["task"] + (
        f" ({several(len(summary['classes']), 'class').replace('classs', 'classes')})" if summary["classes"] else ""
    )
    facts = [
        ("file", f"{data['file']}, {several(data['rows_used'], 'row')} used"),
        ("target", f"{data['target']}, {task}"),
        ("environment", f"{where}; {several(len(summary['environments']), 'environment')}"),
        ("aux", ", ".join(data["aux"])),
        ("model", f"{summary['model']}, {summary['objective']}, chosen by {summary['rule']}{_plain_model(summary)}"),
        ("metric", f"{summary['metric']}, {better}; on held-out rows"),
        ("made", f"{summary['created'].replace('T', ' ')[:16]}, in {summary['seconds'].get('all', 0.0):.1f} s"),
    ]
    return [(name, value) for name, value in facts if value]


def _plain_model(summary: FitSummary) -> str:
    """Of which kind plain risk minimisation is, where it is another."""
    plain = summary.get("plain_model", summary["model"])
    return "" if plain == summary["model"] else f"; ERM is {plain}"


# --- the answer in numbers ----------------------------------------------------------------------------------


def _answer(summary: FitSummary) -> list[Section]:
    sections = [_environments(summary)]
    curves = [curve for curve in summary["losses"] if known(curve["risk"])]
    names = [row["name"] for row in summary["environments"]]
    if curves and names:
        spans = []
        for curve in curves:
            risks = [r for r in curve["risk"] if r is not None]
            weight = curve["penalty_weight"]
            measures = (min(risks), max(risks), max(risks) - min(risks), sum(risks) / len(risks))
            spans.append([curve["model"], NO_VALUE if weight is None else f"{weight:g}", *map(decimal, measures)])
        columns = ["model", "penalty weight", "lowest", "highest", "highest − lowest", "mean"]
        blocks = [losses_figure(curves, names), table(columns, spans, [False, *[True] * 5])]
        sections.append(_section("losses", "The loss as a function of the environment", "held-out rows", blocks))
    if summary["features"]:
        note = NOTES[features_kind(summary)]
        sections.append(_section("features", "Which features it looks at", note, feature_blocks(summary)))
    return sections


def _environments(summary: FitSummary) -> Section:
    of = MetricFormat(summary["metric"])
    ordered = by_quality(summary["environments"], summary["greater_is_better"])
    firsts = [("all rows", summary["overall"]), (_worst_name(summary), summary["worst"])]
    rows = [
        [
            name,
            f"{row['rows']:,}",
            of.interval(row["erm"]),
            of.interval(row["chosen"]),
            of.interval(row["difference"], sign=True),
        ]
        for name, row in [*firsts, *((row["name"], row) for row in ordered)]
    ]
    columns = ["environment", "rows", f"ERM, {of.title}", f"chosen, {of.title}", f"chosen − ERM{of.difference_unit}"]
    drawn = any(row[key]["value"] is not None for row in [summary["overall"], *ordered] for key in ("erm", "chosen"))
    blocks = [environments_figure(summary)] if drawn else []
    blocks.append(table(columns, rows, [False, True, True, True, True]))
    blocks.append(text("In brackets: 95 % intervals. The worst environment of each model may be a different one."))
    return _section("environments", "Every environment: ERM and the chosen model", "held-out rows", blocks)


def _worst_name(summary: FitSummary) -> str:
    """Which environment it is, where the summary says so."""
    name = summary["worst"]["name"]
    return f"worst: {name}" if name in [row["name"] for row in summary["environments"]] else "worst environment"


# --- how it was found ---------------------------------------------------------------------------------------


def _found(summary: FitSummary) -> list[Section]:
    sections = []
    if summary["path"]:
        sections.append(_path(summary))
    inferred = summary["inferred"]
    if inferred is not None and inferred["points"] and inferred["aux"] and inferred["names"]:
        what = "curve" if len(inferred["aux"]) == 1 else "map" if len(inferred["aux"]) == 2 else "curves"
        note = f"{what} over {several(len(inferred['aux']), 'aux column')}"
        sections.append(_section("inferred", "The environments that were found", note, [inferred_figure(inferred)]))
    curves = summary["curves"]
    if curves is not None and curves["steps"] and any(known(row) for row in curves["risk"]):
        sections.append(
            _section(
                "training",
                "Training",
                "the final model, on all rows",
                [curves_figure(curves, _rhythm(summary["model"]))],
            )
        )
    return sections


def _path(summary: FitSummary) -> Section:
    path = summary["path"]
    rhythm = " or ".join(dict.fromkeys(_rhythm(p.get("model", summary["model"])) for p in path))
    blocks: list[Block] = [path_figure(path, rhythm)] if known([p["risk"] for p in path]) else []
    rows = [
        [
            p["label"],
            f"{p['step']:,}",
            decimal(p["risk"]),
            decimal(p["worst"]),
            decimal(p["variation"]),
            probability(p["p"]),
            NO_VALUE if p["passes"] is None else "yes" if p["passes"] else "no",
            "chosen" if p["chosen"] else "",
        ]
        for p in path
    ]
    columns = ["penalty weight λ", rhythm, "risk", "worst environment", "total variation", "p", "invariant", "choice"]
    numeric = [True] * 6 + [False] * 2
    marks = ["good" if p["chosen"] else "plain" for p in path]
    blocks.append(table(columns, rows, numeric, marks))  # type: ignore[arg-type]  # marks are words of Kind
    return _section("path", "The path of penalty weights", f"held-out rows, rule {summary['rule']}", blocks)


def _rhythm(model: str) -> str:
    return "round" if model.startswith("trees") else "step"


# --- data and settings ----------------------------------------------------------------------------------------


def _settings(summary: FitSummary) -> list[Section]:
    data = summary["data"]
    sections = []
    counted = (
        f"{data['file']} has {several(data['rows'], 'row')}; {data['rows_used']:,} were used. "
        f"{several(len(data['columns']), 'column')} became {several(data['features'], 'feature')}."
    )
    blocks: list[Block] = [text(counted), *(text(note) for note in data["notes"])]
    sections.append(_section("data", "What was done to the table", data["file"], blocks))
    if data["missing"]:
        ordered = sorted(data["missing"].items(), key=lambda pair: -pair[1])
        blocks = [
            text(
                f"{several(len(ordered), 'column')} of {len(data['columns']):,} had missing values, which were filled "
                "in and marked."
            ),
            table(["column", "missing, %"], [[name, f"{100 * share:.1f}"] for name, share in ordered], [False, True]),
        ]
        sections.append(_section("missing", "Missing values", "", blocks))
    columns = ", ".join(data["columns"][:MOST_COLUMNS]) + (
        f" and {len(data['columns']) - MOST_COLUMNS:,} more" if len(data["columns"]) > MOST_COLUMNS else ""
    )
    settings = {
        "objective": summary["objective"],
        "model": summary["model"],
        "rule": summary["rule"],
        **({"classes": ", ".join(summary["classes"])} if summary["classes"] else {}),
        **summary["settings"],
        "feature columns": columns,
    }
    rows = [[str(name), plain_value(value)] for name, value in settings.items()]
    sections.append(_section("settings", "Settings", "", [table(["setting", "value"], rows)]))
    versions = table(["package", "version"], [[name, version] for name, version in summary["versions"].items()])
    again = [text("The same command with the same versions gives the same model."), code(summary["command"]), versions]
    sections.append(_section("again", "To run it again", "", again))
    return sections


def plain_value(value: Any) -> str:
    """A setting as text.

    >>> plain_value([1, 0.5]), plain_value({"a": None}), plain_value(True)
    ('1, 0.5', 'a = none', 'yes')
    """
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain_value, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} = {plain_value(v)}" for key, v in value.items()) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _section(name: str, title: str, note: str, blocks: list[Block]) -> Section:
    return {"id": name, "title": title, "note": note, "badge": None, "blocks": blocks}
